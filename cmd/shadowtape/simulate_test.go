package main

import (
	"bytes"
	"fmt"
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

// The schedule's flags are the replay's, and do what they do there.
func TestSimulateSchedules(t *testing.T) {
	dir := t.TempDir()
	in, model := filepath.Join(dir, "in.parquet"), filepath.Join(dir, "model.json")
	writeTrace(t, in, 200) // 10 s
	must(t, "fit", in, "-o", model)
	for i, c := range []struct {
		args string
		says string
	}{
		{"--window 2s..4s", "scheduled 40 = sent 40"},
		{"--window 2s..4s --preroll 1s", "scheduled 40 = sent 40"},
		{"--rate 40", "run "},
		{"--loop 3", "scheduled 600 = sent 600"},
		{"--loop 0 --duration 25s", "scheduled 500 = sent 500"},
		{"--thin 0.5", "run "},
		{"--max-requests 7", "scheduled 7 = sent 7"},
		{"--sessions think-time", "scheduled 200 = sent 200"},
		{"--users 3 --think 1s --max-requests 50", "scheduled 50 = sent 50"},
	} {
		run := filepath.Join(dir, fmt.Sprint("run", i))
		out := must(t, append([]string{"simulate", in, "-o", run}, strings.Fields(c.args)...)...)
		if !strings.Contains(out, c.says) {
			t.Errorf("%s: %s", c.args, out)
		}
		m := manifest(t, run)
		switch c.args {
		case "--rate 40":
			if v := m.Options["speed"].(float64); v < 1.98 || v > 2 {
				t.Errorf("%s: speed %v", c.args, v)
			}
		case "--thin 0.5":
			if n := m.Requests.Scheduled; n < 70 || n > 130 {
				t.Errorf("%s: %d requests", c.args, n)
			}
		case "--window 2s..4s --preroll 1s":
			if tr, err := formats.Open(run); err != nil || tr.Rows != 60 {
				t.Errorf("%s: %d rows, %v", c.args, tr.Rows, err)
			}
		case "--sessions think-time":
			if m.Options["sessions"] != "think-time" {
				t.Errorf("%s: %v", c.args, m.Options)
			}
		}
	}
	if out := must(t, "simulate", model, "--window", "5s..20s", "--duration", "4s", "-o", filepath.Join(dir, "modelled")); !strings.Contains(out, "scheduled 80 = sent 80") {
		t.Errorf("a model's window: %s", out)
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
		{[]string{in, "-o", filepath.Join(dir, "r"), "--sessions", "often"}, exitUsage, "think-time"},
		{[]string{in, "-o", filepath.Join(dir, "r"), "--users", "2", "--sessions", "think-time"}, exitUsage, "closed loop"},
		{[]string{in, "-o", filepath.Join(dir, "r"), "--think", "1s"}, exitUsage, "--think is of --users"},
		{[]string{in, "-o", filepath.Join(dir, "r"), "--loop", "0"}, exitUsage, "endless loop"},
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
		if args[0] == "calibrate" && !strings.Contains(stdout.String(), "held out 60 requests: error of a request's ttft: median 0.") {
			t.Errorf("calibrate says %s", stdout.String())
		}
	}
	var stdout, errs bytes.Buffer
	if code := run(t.Context(), []string{"calibrate", in, "-o", filepath.Join(dir, "x.json")}, strings.NewReader(""), &stdout, &errs); code != exitFailed || !strings.Contains(errs.String(), "0 of the first 140") {
		t.Errorf("a trace without times: exit %d, %s", code, errs.String())
	}
	if code := run(t.Context(), []string{"calibrate", out, "-o", filepath.Join(dir, "n.json"), "--max-requests", "-1"}, strings.NewReader(""), &stdout, &errs); code != exitUsage || !strings.Contains(errs.String(), "negative") {
		t.Errorf("a negative number: exit %d, %s", code, errs.String())
	}
	checkDocumented(t, "calibrate", must(t, "calibrate", out, "-o", filepath.Join(dir, "y.json"), "--max-requests", "60", "--json"))
	if code := run(t.Context(), []string{"calibrate", out, "-o", profile}, strings.NewReader(""), &stdout, &errs); code != exitFailed || !strings.Contains(errs.String(), "--force") {
		t.Errorf("overwriting: exit %d, %s", code, errs.String())
	}
}

func TestRateBeyondNumbers(t *testing.T) {
	dir := t.TempDir()
	trace := filepath.Join(dir, "trace")
	writeTrace(t, trace, 300)
	if code, _, errs := invoke("simulate", trace, "--rate", "1e308", "-o", filepath.Join(dir, "run")); code != exitFailed && code != exitUsage || !strings.Contains(errs, "times as fast, which must be between") {
		t.Errorf("exit %d, %s", code, errs)
	}
}
