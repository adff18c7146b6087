package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shadowtape/shadowtape/formats"
)

// writeTrace writes a small trace: n requests of 500 prompt and 20 output tokens, one every 50 ms.
func writeTrace(t *testing.T, where string, n int) {
	t.Helper()
	w, err := formats.Create(where, formats.Header{SourceKind: "synth", TimeBase: "relative"}, formats.SegmentOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		x := &formats.Exchange{ExchangeID: int64(i + 1), Phase: formats.PhaseRecord, ArrivalUnixNS: int64(i) * 50e6, Endpoint: formats.EndpointCompletions,
			Stream: formats.Of(true), InputTokens: formats.Of[int64](500), OutputTokens: formats.Of[int64](20)}
		if err := w.Write(x); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestSimulateWritesARun(t *testing.T) {
	dir := t.TempDir()
	in, out, states := filepath.Join(dir, "in.parquet"), filepath.Join(dir, "run"), filepath.Join(dir, "states.csv")
	writeTrace(t, in, 100)
	var stdout, errs bytes.Buffer
	args := []string{"simulate", in, "-o", out, "--replicas", "2", "--state-log", states, "--speed", "2"}
	if code := run(t.Context(), args, strings.NewReader(""), &stdout, &errs); code != exitGood {
		t.Fatalf("exit %d: %s", code, errs.String())
	}
	if !strings.Contains(stdout.String(), "scheduled 100 = sent 100 + dropped 0; completed 100") {
		t.Errorf("stdout %s", stdout.String())
	}
	tr, err := formats.Open(out)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	if tr.Manifest == nil || tr.Manifest.Kind != "simulate" || !tr.Manifest.Valid || tr.Manifest.Requests.Completed != 100 || tr.Rows != 100 {
		t.Errorf("run of %d rows: %+v", tr.Rows, tr.Manifest)
	}
	for x, err := range tr.All() {
		if err != nil {
			t.Fatal(err)
		}
		if !x.FirstTokenNS.Valid || x.FirstTokenNS.V <= 0 || len(x.EventGapUS) != 20 {
			t.Fatalf("row %+v", x)
		}
	}
	samples := 0
	for _, err := range tr.ServerSamples() {
		if err != nil {
			t.Fatal(err)
		}
		samples++
	}
	log, err := os.ReadFile(states)
	if err != nil || samples == 0 || !strings.HasPrefix(string(log), "replica,start_unix_ns,") || strings.Count(string(log), "\n") < 50 {
		t.Errorf("%d samples; state log %v: %.200s", samples, err, log)
	}
	if code := run(t.Context(), args, strings.NewReader(""), &stdout, &errs); code != exitFailed || !strings.Contains(errs.String(), "--force") {
		t.Errorf("overwriting: exit %d, %s", code, errs.String())
	}
	stdout.Reset()
	if code := run(t.Context(), append(args, "--force"), strings.NewReader(""), &stdout, &errs); code != exitGood {
		t.Errorf("--force: exit %d, %s", code, errs.String())
	}
}

func TestSimulateUsage(t *testing.T) {
	dir := t.TempDir()
	in := filepath.Join(dir, "in.parquet")
	writeTrace(t, in, 1)
	for _, test := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{in}, exitUsage, "-o is missing"},
		{[]string{in, "-o", filepath.Join(dir, "r"), "--route", "random"}, exitUsage, "least-loaded"},
		{[]string{in, "-o", filepath.Join(dir, "r"), "--speed", "0"}, exitUsage, "speed"},
		{[]string{in, "-o", filepath.Join(dir, "r"), "--pages", "-3"}, exitUsage, "pages"},
		{[]string{filepath.Join(dir, "none"), "-o", filepath.Join(dir, "r")}, exitFailed, "none"},
		{nil, exitUsage, "TRACE"},
	} {
		var out, errs bytes.Buffer
		if code := run(t.Context(), append([]string{"simulate"}, test.args...), strings.NewReader(""), &out, &errs); code != test.code || !strings.Contains(errs.String(), test.says) {
			t.Errorf("%v: exit %d, %q", test.args, code, errs.String())
		}
	}
}

func TestCalibrateASimulation(t *testing.T) {
	dir := t.TempDir()
	in, out, profile := filepath.Join(dir, "in.parquet"), filepath.Join(dir, "run"), filepath.Join(dir, "fitted.json")
	writeTrace(t, in, 200)
	for _, args := range [][]string{
		{"simulate", in, "-o", out, "--profile", "llama-3.1-8b-a100"},
		{"calibrate", out, "-o", profile},
		{"simulate", in, "-o", out + "2", "--profile", profile},
	} {
		var stdout, errs bytes.Buffer
		if code := run(t.Context(), args, strings.NewReader(""), &stdout, &errs); code != exitGood {
			t.Fatalf("%v: exit %d: %s", args, code, errs.String())
		}
		if args[0] == "calibrate" && !strings.Contains(stdout.String(), "200 requests; error of a request's ttft: median 0.") {
			t.Errorf("calibrate says %s", stdout.String())
		}
	}
	var stdout, errs bytes.Buffer
	if code := run(t.Context(), []string{"calibrate", in, "-o", filepath.Join(dir, "x.json")}, strings.NewReader(""), &stdout, &errs); code != exitFailed || !strings.Contains(errs.String(), "0 of 200") {
		t.Errorf("a trace without times: exit %d, %s", code, errs.String())
	}
	checkDocumented(t, "calibrate", must(t, "calibrate", out, "-o", filepath.Join(dir, "y.json"), "--max-requests", "60", "--json"))
	if code := run(t.Context(), []string{"calibrate", out, "-o", profile}, strings.NewReader(""), &stdout, &errs); code != exitFailed || !strings.Contains(errs.String(), "--force") {
		t.Errorf("overwriting: exit %d, %s", code, errs.String())
	}
}
