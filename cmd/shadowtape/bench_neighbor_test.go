//go:build bench && linux

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shadowtape/shadowtape/internal/benchreport"
)

// TestBenchNeighbor measures what a recorder on an interface does to the server beside it: the time between a simulator's own tokens, which
// is to be 10 ms, while `record --interface lo` runs and while it does not, in turns.
func TestBenchNeighbor(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: a recorder on an interface needs CAP_NET_RAW")
	}
	const streams, rounds, itl = 200, 4, 10 * time.Millisecond
	bin := built(t)
	trace := load(t, streams*10, 64, 100, func(i int) time.Duration { return time.Duration(i) * 10 * time.Second / (streams * 10) })
	type side struct {
		late []float64 // of a step, in microseconds: what it took beyond 10 ms
		cpu  time.Duration
		ran  time.Duration
	}
	var off, on side
	for round := range 2 * rounds {
		dir := t.TempDir()
		log := filepath.Join(dir, "emitted.jsonl")
		url, stop := simulate(t, bin, "--ttft", "50ms", "--itl", itl.String(), "--emission-log", log)
		s := &off
		var rec *exec.Cmd
		if round%2 == 1 {
			s = &on
			port := url[strings.LastIndexByte(url, ':')+1:]
			rec = exec.Command(bin, "record", "--interface", "lo", "--port", port, "-o", filepath.Join(dir, "recorded"))
			rec.Stderr = os.Stderr
			if err := rec.Start(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(500 * time.Millisecond)
		}
		start := time.Now()
		if b, err := exec.Command(bin, "replay", trace, "--target", url, "-o", filepath.Join(dir, "run"), "--allow-invalid").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, b)
		}
		s.ran += time.Since(start)
		if rec != nil {
			rec.Process.Signal(os.Interrupt)
			_ = rec.Wait() // an interrupt is its ordinary end
			s.cpu += rec.ProcessState.UserTime() + rec.ProcessState.SystemTime()
		}
		stop()
		for _, l := range emissions(t, log, "") {
			for i := 1; i < len(l.Tokens); i++ {
				s.late = append(s.late, float64(l.Tokens[i]-l.Tokens[i-1]-int64(itl))/1e3)
			}
		}
	}
	fmt.Println("| recorder | steps | beyond 10 ms, mean us | p50 | p90 | p99 | p99.9 | CPU of the recorder |\n|---|---|---|---|---|---|---|---|")
	for _, r := range []struct {
		name string
		s    *side
	}{{"off", &off}, {"on", &on}} {
		slices.Sort(r.s.late)
		fmt.Printf("| %s | %d | %.1f | %.1f | %.1f | %.1f | %.1f | %.3f |\n", r.name, len(r.s.late), meanOf(r.s.late), quantile(r.s.late, .5), quantile(r.s.late, .9), quantile(r.s.late, .99), quantile(r.s.late, .999), r.s.cpu.Seconds()/r.s.ran.Seconds())
	}
	for _, p := range []float64{.5, .99} {
		benchreport.Record(t, benchreport.Figure{Group: "recorder", Name: fmt.Sprintf("added to a neighbor's step of 10 ms, p%g", 100*p), Value: quantile(on.late, p) - quantile(off.late, p), Unit: "us", Better: "lower",
			Note: fmt.Sprintf("%d streams of 100 tokens/s on loopback, %d rounds with the recorder and without", streams, rounds)})
	}
	benchreport.Record(t, benchreport.Figure{Group: "recorder", Name: "a neighbor's step of 10 ms with the recorder, as a multiple of without", Value: (10_000 + meanOf(on.late)) / (10_000 + meanOf(off.late)), Unit: benchreport.Ratio, Better: "lower"})
	benchreport.Record(t, benchreport.Figure{Group: "recorder", Name: "processors for 20,000 tokens a second on an interface", Value: on.cpu.Seconds() / on.ran.Seconds(), Unit: "CPUs", Better: "lower"})
}
