package sweep

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/engine"
	"github.com/shadowtape/shadowtape/internal/sim"
	"github.com/shadowtape/shadowtape/replayer/job"
)

func TestCells(t *testing.T) {
	m := &Matrix{
		Axes:    []Axis{{"input", []string{"512", "2048"}}, {"output", []string{"128"}}, {"rate", []string{"1", "2", "4"}}},
		Exclude: []map[string]string{{"input": "2048", "rate": "4"}, {}},
		Include: []map[string]string{{"input": "8192"}, {"input": "512", "rate": "1"}},
	}
	var names []string
	for _, c := range m.Cells() {
		names = append(names, c.Name())
	}
	want := []string{
		"input=512,output=128,rate=1", "input=512,output=128,rate=2", "input=512,output=128,rate=4",
		"input=2048,output=128,rate=1", "input=2048,output=128,rate=2", "input=8192,output=128,rate=1",
	}
	if !slices.Equal(names, want) {
		t.Errorf("cells\n%v, want\n%v", names, want)
	}
	a, b := Cell{map[string]string{"x": "a/b"}, []string{"x"}}, Cell{map[string]string{"x": "a_b"}, []string{"x"}}
	if a.Name() == b.Name() || strings.Contains(a.Name(), "/") {
		t.Errorf("%q and %q", a.Name(), b.Name())
	}
}

func TestReadMatrix(t *testing.T) {
	good := "deploy: d.yaml\nmatrix:\n  input: [512, 2048]\n  output: 128\n  rate: [1, 2.5]\n  tp: [1, 2]\nexclude:\n  - {tp: 1, rate: 2.5}\nrequests: 50\ntimeout: 5m\nslo: ttft=500ms\n"
	m, err := parse([]byte(good))
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Validate(); err != nil || len(m.Cells()) != 6 || m.Timeout != 5*time.Minute || m.Repeats != 1 {
		t.Errorf("%v %+v", err, m)
	}
	for name, text := range map[string]string{
		"an unknown field":       "target: x\nmatrices: {}\n",
		"no matrix":              "target: x\n",
		"a matrix of maps":       "target: x\nmatrix: {input: {a: 1}}\n",
		"a length of 0":          "target: x\nmatrix: {input: [0], output: 1, rate: 1}\n",
		"no output":              "target: x\nmatrix: {input: 1, rate: 1}\n",
		"no load":                "target: x\nmatrix: {input: 1, output: 1}\n",
		"two loads":              "target: x\nmatrix: {input: 1, output: 1, rate: 1, users: 1}\n",
		"an axis and no file":    "target: x\nmatrix: {input: 1, output: 1, rate: 1, tp: 2}\n",
		"target and deploy":      "target: x\ndeploy: y\nmatrix: {input: 1, output: 1, rate: 1}\n",
		"an exclude of no axis":  "target: x\nmatrix: {input: 1, output: 1, rate: 1}\nexclude: [{tp: 1}]\n",
		"a search without SLO":   "target: x\nmatrix: {input: 1, output: 1}\nsearch: {from: 1, to: 2}\n",
		"a negative time":        "target: x\nmatrix: {input: 1, output: 1, rate: 1}\ntimeout: -1s\n",
		"a rate that is not one": "target: x\nmatrix: {input: 1, output: 1, rate: NaN}\n",
		"an empty file":          "",
	} {
		m, err := parse([]byte(text))
		if err == nil {
			err = m.Validate()
		}
		if err == nil {
			t.Errorf("%s is taken", name)
		}
	}
}

func FuzzMatrix(f *testing.F) {
	f.Add([]byte("target: x\nmatrix:\n  input: [1]\n  output: [1]\n  rate: [1]\n"))
	f.Add([]byte("matrix: {a: [1, [2]]}\nexclude: [{a: 1}]\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := parse(b)
		if err != nil || m.Validate() != nil {
			return
		}
		n := 1
		for _, a := range m.Axes {
			if n *= len(a.Values); n > 1000 {
				return
			}
		}
		for _, c := range m.Cells() {
			if c.Name() == "" || strings.ContainsAny(c.Name(), "/\x00") {
				t.Fatalf("cell name %q", c.Name())
			}
		}
	})
}

// server is a simulated one behind a counter of what it is asked.
func server(t *testing.T, asked *atomic.Int64) string {
	t.Helper()
	p, err := engine.FindProfile("instant")
	if err != nil {
		t.Fatal(err)
	}
	s, err := sim.New(sim.Options{Profile: p})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Close()
		<-done
	})
	to, err := url.Parse("http://" + l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(to)
	proxy.FlushInterval = -1
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "completions") {
			asked.Add(1)
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(front.Close)
	return front.URL
}

func TestRunResumesAndKeepsFailures(t *testing.T) {
	var asked atomic.Int64
	m := &Matrix{Target: server(t, &asked), Axes: []Axis{{"input", []string{"16", "32"}}, {"output", []string{"4"}}, {"rate", []string{"200", "400"}}}, Requests: 10, Repeats: 2}
	m.Defaults()
	dir := filepath.Join(t.TempDir(), "sweep")
	ctx, cancel := context.WithCancel(context.Background())
	o := Options{Dir: dir, Job: job.Options{Scrape: -1}}
	runs := 0
	o.Progress = func(p Progress) {
		if p.Done {
			if runs++; runs == 3 {
				cancel()
			}
		}
	}
	part, err := Run(ctx, m, o)
	if !errors.Is(err, context.Canceled) || len(part.Results) != 3 {
		t.Fatalf("cancelled after three runs: %v, %d results", err, len(part.Results))
	}
	// a run that was cut, and a cell that failed
	cut := filepath.Join(dir, "cells", "input=16,output=4,rate=400,r2")
	if err := os.MkdirAll(cut, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "cells", "input=32,output=4,rate=400,r1.error"), []byte("the GPU is too small"), 0o644); err != nil {
		t.Fatal(err)
	}
	// what is not ours is not deleted
	foreign := filepath.Join(cut, "thesis.txt")
	if err := os.WriteFile(foreign, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Run(context.Background(), m, o); err == nil || !strings.Contains(err.Error(), "thesis.txt in it is not part of a trace or run") {
		t.Errorf("a cell's place taken: %v", err)
	}
	if err := os.Remove(foreign); err != nil {
		t.Fatal("it was deleted: ", err)
	}
	resumed := 0
	o.Progress = func(p Progress) {
		if p.Done && p.Resumed {
			resumed++
		}
	}
	before := asked.Load()
	table, err := Run(context.Background(), m, o)
	if err != nil || len(table.Results) != 8 || len(table.Medians) != 4 || resumed != 4 {
		t.Fatalf("%v: %d results, %d cells, %d resumed", err, len(table.Results), len(table.Medians), resumed)
	}
	if n := asked.Load() - before; n < 4*10 || n > 4*10+4*6 { // and what calibration asks
		t.Errorf("%d requests for four runs of ten", n)
	}
	if r := table.Results[6]; r.Error != "the GPU is too small" || len(r.Figures) != 0 || r.Run != "" {
		t.Errorf("the failed run: %+v", r)
	}
	if r := table.Results[0]; r.Figures["requests"] != 10 || r.Figures["failed"] != 0 || r.Figures["ttft_p50"] <= 0 {
		t.Errorf("a run: %+v", r)
	}
	// what failed is tried again when asked, the others are not
	o.Retry = true
	if table, err = Run(context.Background(), m, o); err != nil || table.Results[6].Error != "" || table.Results[6].Figures["requests"] != 10 {
		t.Fatalf("tried again: %v %+v", err, table.Results)
	}
	if _, err := os.Stat(filepath.Join(dir, "cells", "input=32,output=4,rate=400,r1.error")); err == nil {
		t.Error("the old error is still there")
	}
	m.Requests = 11
	if _, err := Run(context.Background(), m, o); err == nil || !strings.Contains(err.Error(), "another matrix") {
		t.Errorf("another matrix: %v", err)
	}
	var csv, page, text strings.Builder
	if err := errors.Join(table.CSV(&csv), table.Page(&page, "x"), table.Text(&text)); err != nil {
		t.Fatal(err)
	}
	if strings.Count(csv.String(), "\n") != 1+8+4 || !strings.Contains(page.String(), "<svg") || strings.Contains(page.String(), "http") || strings.Contains(page.String(), "ZgotmplZ") {
		t.Errorf("csv of %d lines, or a page without its chart", strings.Count(csv.String(), "\n"))
	}
	for _, h := range []string{"TTFT p50", "input \\ rate"} {
		if !strings.Contains(page.String(), h) {
			t.Errorf("the page lacks %q", h)
		}
	}
	path := filepath.Join(t.TempDir(), "r.parquet")
	if err := formats.WriteResults(path, table.Rows()); err != nil {
		t.Fatal(err)
	}
	if s, err := os.Stat(path); err != nil || s.Size() < 500 {
		t.Errorf("%v", err)
	}
}
