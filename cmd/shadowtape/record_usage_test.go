package main

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// nothingIn fails the test where a directory is not empty.
func nothingIn(t *testing.T, dir string, args []string) {
	t.Helper()
	es, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range es {
		t.Errorf("record %q left %s behind", args, e.Name())
		os.RemoveAll(filepath.Join(dir, e.Name()))
	}
}

// What flags alone cannot mean is said in one line, before a port is taken or a file is made.
func TestRecordMisuse(t *testing.T) {
	dir := t.TempDir()
	out := filepath.Join(dir, "trace")
	capture, err := filepath.Abs(streamPcap)
	if err != nil {
		t.Fatal(err)
	}
	files := []string{"--pcap", capture, "-o", out}
	proxy := []string{"--listen", "127.0.0.1:0", "--upstream", "http://127.0.0.1:1", "-o", out, "--duration", "1ms"}
	sink := []string{"--sink", "127.0.0.1:0", "-o", out, "--duration", "1ms"}
	lo := []string{"--interface", "lo", "-o", out, "--duration", "1ms"}
	for _, c := range []struct {
		base []string
		args string // parted by spaces
		says string
	}{
		{nil, "-o x", "record needs a source"},
		{files, "--sink 127.0.0.1:0", "one source, not --pcap and --sink"},
		{files[:2], "", "needs -o"},
		{files, "--idle-timeout -1s", "--idle-timeout -1s is not positive"},
		{files, "--gap-timeout 0", "--gap-timeout 0s is not positive"},
		{files, "--sample 0", "--sample 0"},
		{files, "--sample 1.5", "1.5"},
		{files, "--sample-by colour", "colour"},
		{files, "--status 2xy", "2xy"},
		{files, "--port 70000", "70000"},
		{files, "--keep-bodies-limit 5MB", "--keep-bodies-limit without --keep-bodies"},
		{files, "--keep-bodies " + filepath.Join(dir, "b") + " --keep-bodies-limit 0", "keeps nothing"},
		{files, "--quota 5GB", "--quota says nothing to --pcap"},
		{files, "--workers 2", "--workers says nothing to --pcap"},
		{files, "--tls-key k", "--tls-key says nothing to --pcap"},
		{files, "--metrics http://h/metrics", "cannot be watched"},
		{proxy, "--grace -1s", "--grace -1s is negative"},
		{proxy, "--drain-delay -1s", "negative"},
		{proxy, "--close-idle -1s", "negative"},
		{proxy, "--segment-age -1s", "--segment-age -1s is not positive"},
		{proxy, "--segment-age soon", "--segment-age"},
		{proxy, "--segment-size 0", "--segment-size 0"},
		{proxy, "--segment-size -1", "--segment-size"},
		{proxy, "--memory 1MB", "--memory"},
		{proxy, "--max-connections -1", "--max-connections -1"},
		{proxy, "--metrics-listen x", "--metrics-listen x: no address"},
		{proxy, "--metrics-listen 127.0.0.1:99999", "no TCP port"},
		{proxy, "--tls-cert c.pem", "--tls-cert without --tls-key"},
		{proxy, "--tls-key k.pem", "--tls-key without --tls-cert"},
		{proxy, "--append --force", "--append goes on with a trace, --force replaces it"},
		{proxy, "--filter port", "--filter says nothing to --listen"},
		{proxy, "--port 8000", "--port says nothing to --listen"},
		{proxy, "--scrape 0", "--scrape 0s is not positive"},
		{proxy, "--metrics nonsense", "metrics page"},
		{proxy[:2], "-o " + out, "a proxy needs --listen ADDRESS and --upstream URL"},
		{[]string{"--listen", "nowhere", "--upstream", "http://127.0.0.1:1", "-o", out}, "", "--listen nowhere: no address"},
		{[]string{"--listen", "127.0.0.1:0", "--upstream", "ftp://h", "-o", out}, "", "is no http or https URL"},
		{[]string{"--listen", "127.0.0.1:0", "--upstream", "http://h/v1", "-o", out}, "", "takes a server only"},
		{sink, "--grace -1s", "negative"},
		{sink, "--upstream-ca ca.pem", "--upstream-ca says nothing to --sink"},
		{sink, "--idle-timeout -1s", "not positive"},
		{sink, "--max-connections 1000000000", "--max-connections"},
		{[]string{"--sink", "127.0.0.1:http-ish", "-o", out}, "", "no TCP port"},
		{[]string{"--sink", "127.0.0.1:0", "-o", out + ".parquet"}, "", "into a directory"},
		{lo, "--workers 0", "--workers 0"},
		{lo, "--max-cpu -1", "--max-cpu -1"},
		{lo, "--filter frobnicate", "frobnicate"},
		{lo, "--duration -1s", "negative"},
		{lo, "--grace 5s", "--grace says nothing to --interface"},
		{sink, "--check", "--check says nothing to --sink"},
	} {
		args := append(append([]string(nil), c.base...), strings.Fields(c.args)...)
		code, stdout, errs := runRecord(t, args...)
		first, rest, _ := strings.Cut(errs, "\n")
		if code != exitUsage || stdout != "" || !strings.HasPrefix(first, "shadowtape: ") || !strings.Contains(first, c.says) || strings.Count(rest, "\n") > 1 {
			t.Errorf("record %q: exit %d, want %d and a line with %q:\n%s%s", args, code, exitUsage, c.says, stdout, errs)
		}
		nothingIn(t, dir, args)
	}
}

// What only the machine can refuse ends with 1, and leaves nothing either: what was there before stays.
func TestRecordRefused(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	file := filepath.Join(other, "file")
	if err := os.WriteFile(file, []byte("no certificate, no directory"), 0o600); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, "trace")
	sink := []string{"--sink", "127.0.0.1:0", "-o", out, "--duration", "1ms", "--keep-bodies", filepath.Join(dir, "bodies")}
	proxy := []string{"--listen", "127.0.0.1:0", "--upstream", "http://127.0.0.1:1", "-o", out, "--duration", "1ms"}
	cases := [][]string{
		append(sink, "--metrics-listen", taken.Addr().String()),
		{"--sink", taken.Addr().String(), "-o", out, "--keep-bodies", filepath.Join(dir, "bodies")},
		append(proxy, "--tls-cert", file, "--tls-key", file),
		append(proxy, "--key-file", filepath.Join(other, "missing")),
		{"--sink", "127.0.0.1:0", "-o", filepath.Join(file, "trace"), "--duration", "1ms", "--keep-bodies", filepath.Join(dir, "bodies")},
		{"--pcap", streamPcap, "-o", filepath.Join(file, "trace"), "--keep-bodies", filepath.Join(dir, "bodies")},
	}
	if runtime.GOOS == "linux" { // where not even root may write
		cases = append(cases, []string{"--sink", "127.0.0.1:0", "-o", "/proc/trace", "--duration", "1ms"}, []string{"--pcap", streamPcap, "-o", "/proc/trace.parquet"})
	}
	if os.Geteuid() != 0 {
		locked := filepath.Join(other, "locked")
		if err := os.Mkdir(locked, 0o500); err != nil {
			t.Fatal(err)
		}
		cases = append(cases, []string{"--sink", "127.0.0.1:0", "-o", filepath.Join(locked, "trace"), "--duration", "1ms"}, []string{"--pcap", streamPcap, "-o", filepath.Join(locked, "trace")})
	}
	for _, args := range cases {
		code, stdout, errs := runRecord(t, args...)
		lines := strings.Split(strings.TrimSuffix(errs, "\n"), "\n")
		last := lines[len(lines)-1]
		if strings.HasPrefix(last, "hint: ") && len(lines) > 1 {
			last = lines[len(lines)-2]
		}
		if code != exitFailed || stdout != "" || !strings.HasPrefix(last, "shadowtape: ") || strings.Contains(errs, "recording") {
			t.Errorf("record %q: exit %d, want %d:\n%s%s", args, code, exitFailed, stdout, errs)
		}
		nothingIn(t, dir, args)
	}
}

// Standard input that is no capture makes no trace, and takes none away.
func TestRecordNoCaptureOnStdin(t *testing.T) {
	dir := t.TempDir()
	out := filepath.Join(dir, "trace")
	for name, in := range map[string]string{"nothing": "", "text": "GET / HTTP/1.1\r\n\r\n", "gzip of nothing": "\x1f\x8b\x08\x00\x00\x00", "three bytes": "\xd4\xc3\xb2", "a header cut": "\xd4\xc3\xb2\xa1\x02\x00"} {
		var o, e bytes.Buffer
		args := []string{"record", "--pcap", "-", "-o", out}
		if code := run(t.Context(), args, strings.NewReader(in), &o, &e); code != exitFailed || strings.Count(e.String(), "\n") != 1 {
			t.Errorf("%s: exit %d: %s", name, code, e.String())
		}
		nothingIn(t, dir, args)
	}
	if code, _, errs := runRecord(t, "--pcap", streamPcap, "-o", out); code != exitGood {
		t.Fatal(errs)
	}
	before, err := os.ReadDir(out)
	if err != nil {
		t.Fatal(err)
	}
	var o, e bytes.Buffer
	if code := run(t.Context(), []string{"record", "--pcap", "-", "-o", out, "--force"}, strings.NewReader("nothing"), &o, &e); code != exitFailed {
		t.Errorf("--force with a bad capture: exit %d: %s", code, e.String())
	}
	if after, err := os.ReadDir(out); err != nil || len(after) != len(before) {
		t.Errorf("the trace that was there is gone: %v, %v", after, err)
	}
}
