package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shadowtape/shadowtape/formats"
)

const (
	streamPcap = "../../recorder/testdata/openai_stream_usage.pcap"
	normalPcap = "../../recorder/testdata/openai_normal_usage.pcap"
)

// runRecord runs the verb in process.
func runRecord(t *testing.T, args ...string) (code int, out, errs string) {
	t.Helper()
	var o, e bytes.Buffer
	code = run(context.Background(), append([]string{"record"}, args...), strings.NewReader(""), &o, &e)
	return code, o.String(), e.String()
}

func TestRecordFiles(t *testing.T) {
	dir := t.TempDir()
	where := filepath.Join(dir, "trace")
	code, out, errs := runRecord(t, "--pcap", streamPcap, normalPcap, "-o", where, "--json")
	if code != exitGood || errs != "" {
		t.Fatalf("exit %d: %s", code, errs)
	}
	var a recordAnswer
	if err := json.Unmarshal([]byte(out), &a); err != nil || a.Seen != 2 || a.Written != 2 || a.Packets != 1044 {
		t.Fatalf("%v %s", err, out)
	}
	tr, err := formats.Open(where)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	n := 0
	for x, err := range tr.All() {
		if err != nil {
			t.Fatal(err)
		}
		if n++; x.OutputTokens.V != 512 || x.InputTokens.V != 18 || x.ExchangeID != int64(n) {
			t.Errorf("%+v", x)
		}
	}
	if n != 2 || tr.Header.Counters.Written != 2 || tr.Header.HashKeyID == "" || tr.Header.PrefixBlockUnit != "bytes" {
		t.Errorf("%d rows, header %+v", n, tr.Header)
	}
	if code, _, errs = runRecord(t, "--pcap", streamPcap, "-o", where); code != exitFailed || !strings.Contains(errs, "--force") {
		t.Errorf("overwrite: exit %d: %s", code, errs)
	}
	if code, _, errs = runRecord(t, "--pcap", streamPcap, "-o", where, "--force"); code != exitGood {
		t.Errorf("force: exit %d: %s", code, errs)
	}
}

// TestRecordStdin reads a capture from a pipe, and only what is asked for of it.
func TestRecordStdin(t *testing.T) {
	b, err := os.ReadFile(streamPcap)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args   []string
		counts string
	}{
		{nil, "1 exchanges seen, 0 filtered, 0 dropped, 1 written"},
		{[]string{"--model", "other"}, "1 exchanges seen, 1 filtered, 0 dropped, 0 written"},
		{[]string{"--port", "9000"}, "0 exchanges seen, 0 filtered, 0 dropped, 0 written"},
	} {
		var o, e bytes.Buffer
		args := append([]string{"record", "--pcap", "-", "-o", filepath.Join(t.TempDir(), "x.parquet")}, c.args...)
		if code := run(context.Background(), args, bytes.NewReader(b), &o, &e); code != exitGood || !strings.Contains(o.String(), c.counts) {
			t.Errorf("%q: exit %d\n%s%s", c.args, code, o.String(), e.String())
		}
	}
}

func TestRecordDamage(t *testing.T) {
	dir := t.TempDir()
	b, err := os.ReadFile(streamPcap)
	if err != nil {
		t.Fatal(err)
	}
	cut := filepath.Join(dir, "cut.pcap")
	if err := os.WriteFile(cut, b[:len(b)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	code, out, errs := runRecord(t, "--pcap", cut, "-o", filepath.Join(dir, "a.parquet"))
	if code != exitGood || strings.Count(errs, "\n") != 1 || !strings.Contains(errs, "cut.pcap: cut in the middle of a packet") || !strings.Contains(out, "1 written") {
		t.Errorf("exit %d\n%s%s", code, out, errs)
	}
	text := filepath.Join(dir, "x.txt")
	if err := os.WriteFile(text, []byte("no capture at all"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"--pcap", text}, {"--pcap", filepath.Join(dir, "missing")}, {"--pcap", streamPcap, "--key-file", text + "x"}} {
		if code, _, errs := runRecord(t, append(args, "-o", filepath.Join(dir, "b"))...); code != exitFailed || strings.Count(errs, "\n") != 1 {
			t.Errorf("%q: exit %d: %s", args, code, errs)
		}
	}
	for _, args := range [][]string{{"-o", "x"}, {"--pcap", streamPcap}, {"--pcap", streamPcap, "-o", "x", "--port", "70000"}} {
		if code, _, errs := runRecord(t, args...); code != exitUsage {
			t.Errorf("%q: exit %d: %s", args, code, errs)
		}
	}
}
