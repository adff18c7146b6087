//go:build bench

package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/benchreport"
	"github.com/shadowtape/shadowtape/recorder/netlab"
)

// The benchmarks of sharded replay: `make bench-shards` and `make bench-aggregate`. They print the tables of docs/SCALE.md.

// fleet is replayers on machines of their own: each in a network namespace, beside the simulator's.
type fleet struct {
	bin     string
	server  *netlab.Host
	clients []*netlab.Host
}

const fleetServer = "10.9.0.1"

func newFleet(t *testing.T, bin string, n int) *fleet {
	f := &fleet{bin: bin, server: netlab.NewHost(t)}
	f.server.IP("addr add " + fleetServer + "/32 dev lo")
	for i := range n {
		c := netlab.NewHost(t)
		netlab.Link(f.server, fmt.Sprint("s", i), fmt.Sprintf("10.8.%d.1/24", i), c, "c", fmt.Sprintf("10.8.%d.2/24", i))
		c.IP(fmt.Sprintf("route add %s/32 via 10.8.%d.1", fleetServer, i))
		f.clients = append(f.clients, c)
	}
	return f
}

// serve starts the simulator on the fleet's server; stop ends it and waits.
func (f *fleet) serve(t *testing.T, args ...string) (url string, stop func()) {
	t.Helper()
	c := exec.Command(f.bin, append([]string{"sim", "--listen", fleetServer + ":8000"}, args...)...)
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.Stderr = os.Stderr
	f.server.Do(func() { err = c.Start() })
	if err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(line), func() { c.Process.Signal(os.Interrupt); c.Wait() }
}

// replay replays a trace by all clients of the fleet, as shards where there are several, and returns the whole run. Its error is a replayer's
// that could make none.
func (f *fleet) replay(t *testing.T, trace, target string, seed int) (formats.Manifest, []*formats.Exchange, error) {
	t.Helper()
	dir, n := t.TempDir(), len(f.clients)
	if err := os.Mkdir(filepath.Join(dir, "shards"), 0o777); err != nil {
		t.Fatal(err)
	}
	start := time.Now().Add(3 * time.Second).UTC().Format(time.RFC3339Nano)
	command := func(h *netlab.Host, args ...string) error {
		var out bytes.Buffer
		c := exec.Command(f.bin, args...)
		c.Stdout, c.Stderr = &out, &out
		var err error
		h.Do(func() { err = c.Start() })
		if err == nil {
			err = c.Wait()
		}
		if err != nil {
			return fmt.Errorf("%q: %w: %s", args, err, out.String())
		}
		return nil
	}
	run := filepath.Join(dir, "shards")
	failed := make([]error, n)
	var wg sync.WaitGroup
	for i, c := range f.clients {
		wg.Go(func() {
			args := []string{"replay", trace, "--target", target, "--seed", fmt.Sprint(seed), "--allow-invalid", "-o", filepath.Join(run, fmt.Sprint(i))}
			if n > 1 {
				args = append(args, "--shard", fmt.Sprintf("%d/%d", i+1, n), "--start-at", start)
			}
			failed[i] = command(c, args...)
		})
	}
	wg.Wait()
	if err := errors.Join(failed...); err != nil {
		return formats.Manifest{}, nil, err
	}
	if n == 1 {
		m, rows := readRun(t, filepath.Join(run, "0"))
		return m, rows, nil
	}
	whole := filepath.Join(dir, "whole")
	if err := command(f.clients[0], "merge", run, "-o", whole, "--allow-invalid"); err != nil {
		t.Fatal(err)
	}
	m, rows := readRun(t, whole)
	return m, rows, nil
}

// conserved says what is wrong with the account of a run of n requests; "" if nothing.
func conserved(m formats.Manifest, rows []*formats.Exchange, n int) string {
	r := m.Requests
	if r.Scheduled != int64(n) || r.Scheduled != r.Sent+r.Dropped || r.Sent != r.Completed+r.Failed+r.Aborted+r.RunEnd || len(rows) != n {
		return fmt.Sprintf("%d rows of %+v", len(rows), r)
	}
	seen := make([]bool, n)
	for _, x := range rows {
		if i := x.ArrivalIndex.V; i < 0 || i >= int64(n) || seen[i] {
			return fmt.Sprintf("arrival %d twice, or none", i)
		}
		seen[x.ArrivalIndex.V] = true
	}
	return ""
}

// TestBenchShards replays one trace by one replayer and by four, several times each, against simulators of one seed: the figures of the
// whole must differ by no more than they differ from run to run, and every request is accounted for, once.
func TestBenchShards(t *testing.T) {
	const n, rate, repeats = 600, 30, 4
	bin := built(t)
	trace := load(t, n, 512, 60, poisson(rate, 11))
	names := []string{"TTFT p50, ms", "TTFT p90, ms", "TPOT mean, ms", "E2EL p50, ms", "E2EL p90, ms", "output tokens", "completed"}
	figures := map[int][][]float64{}
	one, four := newFleet(t, bin, 1), newFleet(t, bin, 4)
	for range repeats {
		for _, f := range []*fleet{one, four} { // in turn: a slow minute of the machine meets both
			url, stop := f.serve(t, "--profile", "llama-3.1-8b-h100", "--seed", "7")
			m, rows, err := f.replay(t, trace, url, 3)
			stop()
			if err != nil {
				t.Fatal(err)
			}
			if wrong := conserved(m, rows, n); wrong != "" {
				t.Errorf("%d shards: %s", len(f.clients), wrong)
			}
			var ttft, tpot, e2el []float64
			tokens := 0.0
			for _, x := range rows {
				tokens += float64(x.OutputTokens.Or(0))
				if x.FirstTokenNS.Valid && x.LastTokenNS.Valid {
					ttft = append(ttft, float64(x.FirstTokenNS.V)/1e6)
					e2el = append(e2el, float64(x.LastTokenNS.V)/1e6)
					tpot = append(tpot, float64(x.LastTokenNS.V-x.FirstTokenNS.V)/1e6/float64(x.OutputTokens.V-1))
				}
			}
			figures[len(f.clients)] = append(figures[len(f.clients)], []float64{quantile(ttft, 0.5), quantile(ttft, 0.9), meanOf(tpot), quantile(e2el, 0.5), quantile(e2el, 0.9), tokens, float64(m.Requests.Completed)})
		}
	}
	fmt.Printf("| %d requests, %d/s, %d runs of each | one replayer | four shards, merged | difference of the means | from run to run (standard deviation) | t |\n|---|---|---|---|---|---|\n", n, rate, repeats)
	for i, name := range names {
		column := func(k int) (v []float64) {
			for _, run := range figures[k] {
				v = append(v, run[i])
			}
			return v
		}
		a, b := column(1), column(4)
		noise := math.Sqrt((variance(a) + variance(b)) / 2)
		ratio := "0"
		if noise > 0 {
			ratio = fmt.Sprintf("%.2f", (meanOf(b)-meanOf(a))/(noise*math.Sqrt(2.0/repeats)))
		}
		fmt.Printf("| %s | %s | %s | %.4g | %.3g | %s |\n", name, listed(a), listed(b), meanOf(b)-meanOf(a), noise, ratio)
	}
}

func variance(v []float64) float64 {
	m, s := meanOf(v), 0.0
	for _, x := range v {
		s += (x - m) * (x - m)
	}
	return s / float64(len(v)-1)
}

func listed(v []float64) string {
	var out []string
	for _, x := range v {
		out = append(out, fmt.Sprintf("%.4g", x))
	}
	return strings.Join(out, " ")
}

// TestBenchAggregate finds the highest rate, and the most concurrent streams, at which a run is valid still: client and simulator on this
// machine, by one replayer and by four in namespaces of their own.
func TestBenchAggregate(t *testing.T) {
	bin := built(t)
	const seconds = 4
	fmt.Println("| replayers | load | offered | late > 1 ms | send lag p50 ms | p99 | completed | verdict |")
	fmt.Println("|---|---|---|---|---|---|---|---|")
	for _, clients := range []int{1, 4} {
		f := newFleet(t, bin, clients)
		for _, kind := range []string{"requests/s", "streams"} {
			best := 0.0
			steps := []float64{1000, 2000, 5000, 10000, 15000, 20000, 25000, 30000}
			if kind == "streams" {
				steps = []float64{250, 500, 750, 1000, 1500, 2000, 2500, 3000}
			}
			bad := 0
			for _, step := range steps {
				rate, tokens, sim := step, int64(1), []string{"--profile", "instant", "--max-num-seqs", "100000"}
				if kind == "streams" { // each lasts 50 ms and 99 times 10 ms
					rate, tokens, sim = step/1.04, 100, []string{"--ttft", "50ms", "--itl", "10ms"}
				}
				n := int(rate * seconds)
				trace := load(t, n, 16, tokens, poisson(rate, uint64(step)))
				url, stop := f.serve(t, sim...)
				m, rows, err := f.replay(t, trace, url, 1)
				stop()
				if err != nil { // as when the step before has left no port free
					fmt.Printf("| %d | %.0f %s | %d in %d s | | | | | none: %s |\n", clients, step, kind, n, seconds, strings.TrimSpace(err.Error()))
					break
				}
				if wrong := conserved(m, rows, n); wrong != "" {
					t.Errorf("%d replayers, %.0f %s: %s", clients, step, kind, wrong)
				}
				var lag []float64
				late := 0
				for _, x := range rows {
					if x.SentNS.Valid {
						lag = append(lag, float64(x.SentNS.V)/1e6)
						if x.SentNS.V > 1e6 {
							late++
						}
					}
				}
				slices.Sort(lag)
				if !m.Valid {
					bad++
				} else {
					best, bad = step, 0
				}
				fmt.Printf("| %d | %.0f %s | %d in %d s | %.2f %% | %.3f | %.3f | %d | %s |\n", clients, step, kind, n, seconds, 100*float64(late)/float64(n), quantile(lag, 0.5), quantile(lag, 0.99), m.Requests.Completed, verdictOf(m))
				if bad == 2 {
					break
				}
			}
			benchreport.Record(t, benchreport.Figure{Group: "aggregate", Name: fmt.Sprintf("most %s of a valid run, %d replayers", kind, clients), Value: best, Unit: map[string]string{"streams": "streams", "requests/s": "1/s"}[kind], Better: "higher", Note: "client and simulator on this machine"})
		}
	}
}
