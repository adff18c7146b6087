package promtext

import (
	"context"
	"io"
	"net/http"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shadowtape/shadowtape/formats"
)

// pages serves one page after the other, without a network.
type pages struct {
	mu    sync.Mutex
	n     int
	serve func(n int) (status int, kind, body string, takes time.Duration)
}

func (p *pages) RoundTrip(r *http.Request) (*http.Response, error) {
	p.mu.Lock()
	n := p.n
	p.n++
	p.mu.Unlock()
	status, kind, body, takes := p.serve(n)
	select {
	case <-time.After(takes):
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	rd, wr := io.Pipe()
	go func() {
		io.WriteString(wr, body)
		wr.Close()
	}()
	return &http.Response{StatusCode: status, Header: http.Header{"Content-Type": {kind}}, Body: rd, Request: r}, nil
}

// watch runs for d and returns the rows by the time since the start.
func watch(t *testing.T, d time.Duration, serve func(n int) (int, string, string, time.Duration)) (WatchStats, map[string]map[time.Duration]float64) {
	t.Helper()
	var s WatchStats
	rows := map[string]map[time.Duration]float64{}
	synctest.Test(t, func(t *testing.T) {
		start := time.Now().UnixNano()
		ctx, cancel := context.WithTimeout(t.Context(), d)
		defer cancel()
		var mu sync.Mutex
		var err error
		s, err = Watch(ctx, []Endpoint{{Target: "t", URL: "http://t/metrics", Client: &http.Client{Transport: &pages{serve: serve}}}}, time.Second, func(r []formats.ServerSample) error {
			mu.Lock()
			defer mu.Unlock()
			for _, v := range r {
				k := v.Series + v.Labels
				if rows[k] == nil {
					rows[k] = map[time.Duration]float64{}
				}
				rows[k][time.Duration(v.UnixNS-start)] = v.Value
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	})
	return s, rows
}

func TestWatchKeepsItsTimes(t *testing.T) {
	b, err := os.ReadFile("testdata/vllm_v0.11.0.txt")
	if err != nil {
		t.Fatal(err)
	}
	s, rows := watch(t, 4500*time.Millisecond, func(n int) (int, string, string, time.Duration) {
		takes := 100 * time.Millisecond
		if n == 1 { // a slow answer skips a tick and moves no other
			takes = 1500 * time.Millisecond
		}
		return 200, "text/plain", string(b), takes
	})
	const ms = time.Millisecond
	for _, at := range []time.Duration{50 * ms, 1750 * ms, 3050 * ms, 4050 * ms, 4550 * ms} {
		if v, ok := rows["kv_usage"+`engine="0"`][at]; !ok || v != 0.9216 {
			t.Errorf("kv_usage at %v: %v %t", at, v, ok)
		}
	}
	if s.Scrapes != 5 || s.Failed != 0 || len(rows["up"]) != 5 || s.Dialects[0] != "vllm" {
		t.Errorf("%+v", s)
	}
	if n := len(rows["vllm:iteration_tokens_total_bucket"+`engine="0",le="16384.0",model_name="Qwen/Qwen2.5-7B-Instruct"`]); n != 2 && n != 0 {
		t.Errorf("a bucket stands %d times", n)
	}
	buckets := 0
	for k, v := range rows {
		if len(k) > 60 && len(v) == 2 {
			buckets++
		}
	}
	if buckets == 0 {
		t.Error("no bucket was kept of the first and last scrape")
	}
}

func TestWatchFailuresAndRestarts(t *testing.T) {
	s, rows := watch(t, 5500*time.Millisecond, func(n int) (int, string, string, time.Duration) {
		switch n {
		case 1:
			return 503, "text/plain", "no", 0
		case 2:
			return 200, "text/html", "<html>", 0
		case 3:
			return 200, "text/plain", "vllm:generation_tokens_total 40\nvllm:kv_cache_usa", 0
		}
		return 200, "text/plain", "vllm:generation_tokens_total 100\n", 0
	})
	if s.Failed != 2 || s.Truncated != 1 || s.Resets != 1 || s.LastError == "" {
		t.Errorf("%+v", s)
	}
	want := map[time.Duration]float64{0: 100, 3 * time.Second: 140, 4 * time.Second: 200, 5 * time.Second: 200, 5500 * time.Millisecond: 200}
	for at, v := range want {
		if rows["decode_tokens"][at] != v {
			t.Errorf("decode_tokens at %v is %v, want %v", at, rows["decode_tokens"][at], v)
		}
	}
	if rows["up"][time.Second] != 0 || rows["up"][3*time.Second] != 1 {
		t.Errorf("up: %v", rows["up"])
	}
}
