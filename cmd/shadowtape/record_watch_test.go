package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shadowtape/shadowtape/formats"
)

// dcgm serves a DCGM exporter's page.
func dcgm(t *testing.T) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, `DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-remote"} 500`)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// TestRecordWatches: a recording through the proxy carries the server's and the GPUs' state, analyze shows it as it does a run's, and pages
// that cannot be read are counted and said once, and disturb nothing.
func TestRecordWatches(t *testing.T) {
	target, _ := startSim(t, "--ttft", "500ms", "--itl", "3ms") // long answers: some scrape must see one, however few there are
	html := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		io.WriteString(w, "<html>\x00\xff{{{")
	}))
	defer html.Close()
	down := "http://someone:secret@" + freeAddress(t) + "/metrics?token=secret"
	rec, first := filepath.Join(t.TempDir(), "rec"), filepath.Join(t.TempDir(), "run")
	trace := smallTrace(t, 40, 15*time.Millisecond, nil)
	p := startRecording(t, "--listen", "127.0.0.1:0", "--upstream", target, "-o", rec, "--key-file", keyFile(t), "--json",
		"--metrics", target+"/metrics", "--metrics", down, "--metrics", html.URL, "--gpu-metrics", dcgm(t), "--gpu-metrics", html.URL, "--scrape", "50ms")
	if code, out, errs := shadowtape(t, "replay", trace, "--target", p.base, "-o", first, "--allow-invalid"); code != exitGood {
		t.Fatalf("replay: %d %s %s", code, out, errs)
	}
	code, out, errs := p.end()
	var a recordAnswer
	if err := json.Unmarshal([]byte(out), &a); err != nil || code != exitGood || a.Dropped != 0 {
		t.Fatalf("%d %s %s %v", code, out, errs, err)
	}
	documentedKeys(t, "record", out)
	if n := a.Notes; n["metrics_failed"] == 0 || n["metrics_scrapes"] <= n["metrics_failed"] || n["gpu_metrics_failed"] == 0 || n["samples_written"] == 0 || n["samples_dropped"] != 0 {
		t.Errorf("%v", n)
	}
	for text, want := range map[string]int{"the recording goes on": 3, "no metrics at": 1, "secret": 0, "cannot be read": 2} {
		if n := strings.Count(errs, text); n != want {
			t.Errorf("%d times %q, want %d: %s", n, text, want, errs)
		}
	}
	agree(t, rec, first, 40)
	tr, err := formats.Open(rec)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	kv, gpus := 0, 0
	for s, err := range tr.ServerSamples() {
		if err != nil || strings.Contains(s.Target, "secret") {
			t.Fatalf("%+v %v", s, err)
		}
		if s.Series == "kv_usage" && s.Target == target+"/metrics" {
			kv++
		}
	}
	for s, err := range tr.GPUSamples() {
		if err != nil || s.UUID != "GPU-remote" {
			t.Fatalf("%+v %v", s, err)
		}
		gpus++
	}
	if kv == 0 || gpus == 0 {
		t.Errorf("%d samples of kv_usage, %d of the GPU", kv, gpus)
	}
	usage := func(where string) *float64 {
		code, out, errs := shadowtape(t, "analyze", where, "--json")
		var doc struct {
			Runs []struct {
				Aggregates map[string]struct {
					Value *float64 `json:"value"`
				} `json:"aggregates"`
			} `json:"runs"`
		}
		if err := json.Unmarshal([]byte(out), &doc); err != nil || code != exitGood && code != exitInvalid || len(doc.Runs) != 1 {
			t.Fatalf("analyze %s: %d %s %s", where, code, out, errs)
		}
		return doc.Runs[0].Aggregates["kv_usage_peak"].Value
	}
	if r, w := usage(rec), usage(first); r == nil || w == nil || *r <= 0 {
		t.Errorf("the server's greatest KV usage: %v by the recording, %v by the run", r, w)
	}
	if code, out, errs := shadowtape(t, "inspect", rec, "--privacy"); code != exitGood || strings.Contains(out, "secret") {
		t.Errorf("%d %s %s", code, out, errs)
	}
}

// TestRecordWatchKilled kills a recording: what it had sampled comes back.
func TestRecordWatchKilled(t *testing.T) {
	target, _ := startSim(t)
	rec, address := filepath.Join(t.TempDir(), "rec"), freeAddress(t)
	var errs lockedBuffer
	c := child(t, &errs, "record", "--sink", address, "-o", rec, "--metrics", target+"/metrics", "--gpu-metrics", dcgm(t), "--scrape", "20ms")
	journals := []string{filepath.Join(rec, "server.journal"), filepath.Join(rec, "gpu.journal")}
	for deadline := time.Now().Add(3 * time.Minute); ; time.Sleep(5 * time.Millisecond) {
		n := 0
		for _, j := range journals {
			if info, err := os.Stat(j); err == nil && info.Size() > 6000 {
				n++
			}
		}
		if n == 2 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(errs.String())
		}
	}
	resp, err := http.Post("http://"+address+"/v1/completions", "application/json", strings.NewReader(`{"model":"m","prompt":"x"}`))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	time.Sleep(time.Second) // what ended so long before the kill is kept
	if err := c.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	c.Wait()
	code, out, text := shadowtape(t, "repair", rec, "--json")
	if code != exitGood || !strings.Contains(out, `"samples":["gpu.parquet","server.parquet"]`) {
		t.Fatalf("%d %s %s", code, out, text)
	}
	documentedKeys(t, "repair", out)
	tr, err := formats.Open(rec)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	server, gpus := 0, 0
	for _, err := range tr.ServerSamples() {
		if err != nil {
			t.Fatal(err)
		}
		server++
	}
	for _, err := range tr.GPUSamples() {
		if err != nil {
			t.Fatal(err)
		}
		gpus++
	}
	if server == 0 || gpus == 0 {
		t.Errorf("%d, %d samples", server, gpus)
	}
}

func TestRecordWatchUsage(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"--pcap x -o y --metrics http://h/metrics", "capture file"},
		{"--pcap x -o y --gpu-metrics http://h/metrics", "capture file"},
		{"--sink :0 -o y --metrics h:8000", "no http or https URL"},
		{"--sink :0 -o y --metrics http://h/metrics --scrape 0s", "--scrape"},
		{"--interface lo --check --metrics http://h/metrics", "--check"},
	} {
		code, out, errs := shadowtape(t, append([]string{"record"}, strings.Fields(c.args)...)...)
		if code != exitUsage || out != "" || !strings.Contains(errs, c.want) {
			t.Errorf("record %s: %d %s%s", c.args, code, out, errs)
		}
	}
}
