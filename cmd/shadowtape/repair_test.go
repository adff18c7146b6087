package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shadowtape/shadowtape/formats"
)

func TestRepairCommand(t *testing.T) {
	where := filepath.Join(t.TempDir(), "t")
	w, err := formats.Create(where, formats.Header{}, formats.SegmentOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Write(&formats.Exchange{Phase: formats.PhaseRecord}); err != nil {
		t.Fatal(err)
	}
	call := func(args ...string) (int, string, string) {
		var out, errs bytes.Buffer
		code := run(context.Background(), args, strings.NewReader(""), &out, &errs)
		return code, out.String(), errs.String()
	}
	if code, _, errs := call("repair", where); code != exitFailed || !strings.Contains(errs, "another process is writing to it") {
		t.Errorf("exit %d, stderr %q", code, errs)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if code, out, _ := call("repair", where); code != exitGood || out != where+": in order, 1 segments\n" {
		t.Errorf("exit %d, stdout %q", code, out)
	}
	if err := os.WriteFile(filepath.Join(where, "exchanges-00002.parquet"), []byte("PAR1"), 0o666); err != nil {
		t.Fatal(err)
	}
	code, out, _ := call("repair", where)
	want := where + ": 0 exchanges recovered, 0 more cut short in flight, 1 segments\n  set aside  exchanges-00002.parquet\n"
	if code != exitGood || out != want {
		t.Errorf("exit %d, stdout %q", code, out)
	}
	code, out, _ = call("repair", where, "--json")
	if code != exitGood || out != `{"segments":1,"recovered":0,"cut_short":0,"torn_journals":0,"rebuilt":[],"samples":[],"removed":[],"damaged":[]}`+"\n" {
		t.Errorf("exit %d, stdout %q", code, out)
	}
	documentedKeys(t, "repair", out)
	if code, _, errs := call("repair", filepath.Join(where, "absent")); code != exitFailed || !strings.Contains(errs, "no such file") {
		t.Errorf("exit %d, stderr %q", code, errs)
	}
}
