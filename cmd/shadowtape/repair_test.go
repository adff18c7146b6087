package main

import (
	"bytes"
	"context"
	"errors"
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

// TestEmptyRecording: a recording that was killed before its first exchange ended is, once repaired, a trace without rows, and says so.
func TestEmptyRecording(t *testing.T) {
	live, killed := filepath.Join(t.TempDir(), "live"), filepath.Join(t.TempDir(), "killed")
	w, err := formats.Create(live, formats.Header{SourceKind: "proxy"}, formats.SegmentOptions{Journal: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(killed, os.DirFS(live)); err != nil { // what the kill leaves
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	call := func(args ...string) (int, string, string) {
		var out, errs bytes.Buffer
		code := run(context.Background(), args, strings.NewReader(""), &out, &errs)
		return code, out.String(), errs.String()
	}
	if code, _, errs := call("inspect", killed); code != exitFailed || !strings.Contains(errs, "shadowtape repair") {
		t.Errorf("before the repair: exit %d, stderr %q", code, errs)
	}
	if code, out, _ := call("repair", killed); code != exitGood || !strings.Contains(out, "0 exchanges recovered") || !strings.Contains(out, "it is an empty trace") {
		t.Errorf("repair: exit %d, stdout %q", code, out)
	}
	for _, args := range [][]string{{"inspect", killed}, {"inspect", live}} {
		if code, out, errs := call(args...); code != exitGood || !strings.Contains(out, "0 exchanges") || !strings.Contains(out, "it is empty") {
			t.Errorf("%s: exit %d, stdout %q, stderr %q", args, code, out, errs)
		}
	}
	tr, err := formats.Open(killed)
	if err != nil || tr.Rows != 0 || tr.Header.SourceKind != "proxy" {
		t.Errorf("%+v, %v", tr, err)
	}
	for _, err := range tr.All() {
		t.Error("it has a row", err)
	}
	if code, out, errs := call("inspect", t.TempDir()); code != exitFailed || !strings.Contains(errs, "no segments") {
		t.Errorf("a directory that is no trace: exit %d, stdout %q, stderr %q", code, out, errs)
	}
}

// TestNothingIsLeft: a trace whose every segment is damaged, or gone, is not called an empty one, and nothing sends its owner to repair again.
func TestNothingIsLeft(t *testing.T) {
	where := filepath.Join(t.TempDir(), "t")
	w, err := formats.Create(where, formats.Header{SourceKind: "proxy"}, formats.SegmentOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Write(&formats.Exchange{Phase: formats.PhaseRecord, ArrivalUnixNS: 1e18}), w.Close()); err != nil {
		t.Fatal(err)
	}
	segment := filepath.Join(where, "exchanges-00001.parquet")
	if err := os.WriteFile(segment, []byte("PAR1"), 0o644); err != nil {
		t.Fatal(err)
	}
	check := func(want string, args ...string) {
		t.Helper()
		var out, errs bytes.Buffer
		code := run(context.Background(), args, strings.NewReader(""), &out, &errs)
		said := out.String() + errs.String()
		if strings.Contains(said, "no exchange had begun") || strings.Contains(said, "shadowtape repair brings back") || !strings.Contains(said, want) {
			t.Errorf("%s: exit %d: %q", args, code, said)
		}
	}
	check("every segment of it is damaged and was set aside (exchanges-00001.parquet.damaged): take them from a copy", "repair", where)
	check("every segment of it is damaged", "repair", where)
	check("every segment of it is damaged", "inspect", where)
	if err := os.Remove(segment + ".damaged"); err != nil {
		t.Fatal(err)
	}
	check("counts 1 exchanges written, and 0 are here", "repair", where)
	check("counts 1 exchanges written, and 0 are here", "inspect", where)
}

// TestPartOfALoad: who takes the requests of a run that was cut short, or whose rows were lost, is told that they are not the whole load.
func TestPartOfALoad(t *testing.T) {
	for want, m := range map[string]formats.Manifest{
		"this run was cut short: its 1 requests are not the whole load; take what it replayed (day)": {Interrupted: true},
		"its disk was too slow for 7 rows": {RowsLost: 7},
		"":                                 {Valid: true},
	} {
		where := filepath.Join(t.TempDir(), "r")
		m.TracePath, m.Kind = "day", "replay"
		w, err := formats.CreateRun(where, m)
		if err != nil {
			t.Fatal(err)
		}
		x := &formats.Exchange{Phase: formats.PhaseMeasure, ArrivalUnixNS: 1e18, InputTokens: formats.Of[int64](3), OutputTokens: formats.Of[int64](2)}
		if err := errors.Join(w.Write(x), w.Close(m)); err != nil {
			t.Fatal(err)
		}
		var out, errs bytes.Buffer
		if code := run(context.Background(), []string{"export", "csv", where, "-o", where + ".csv"}, strings.NewReader(""), &out, &errs); code != exitGood || !strings.Contains(errs.String(), want) || want == "" && errs.Len() > 0 {
			t.Errorf("exit %d: %q, not %q", code, errs.String(), want)
		}
	}
}

// TestOneLineSaysItOnce: a writer fails, and says so again when it is closed.
func TestOneLineSaysItOnce(t *testing.T) {
	if got := oneLine("write t: full\nwrite t: full\nclose u: gone\n"); got != "write t: full; close u: gone" {
		t.Errorf("%q", got)
	}
}
