//go:build bench

package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/benchreport"
	"github.com/shadowtape/shadowtape/replayer"
)

// The benchmarks of the replayer: `make bench-accuracy` and `make bench-lag`. Client and simulator are two processes on this machine;
// the simulator's emission log is the truth that the client's rows are joined with on x-request-id. They print the tables of
// docs/PERFORMANCE.md.

// built builds the program once.
func built(t *testing.T) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "shadowtape")
	c := exec.Command("go", "build", "-o", bin, ".")
	c.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return bin
}

// simulate starts the simulator as a process and returns its address; stop ends it and waits.
func simulate(t *testing.T, bin string, args ...string) (url string, stop func()) {
	t.Helper()
	c := exec.Command(bin, append([]string{"sim", "--listen", "127.0.0.1:0"}, args...)...)
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.Stderr = os.Stderr
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(line), func() {
		c.Process.Signal(os.Interrupt)
		c.Wait()
	}
}

// load writes a trace of requests at the times that next gives, and returns its name.
func load(t *testing.T, n int, input, output int64, next func(i int) time.Duration) string {
	t.Helper()
	where := filepath.Join(t.TempDir(), "trace.parquet")
	w, err := formats.Create(where, formats.Header{SourceKind: "synth", TimeBase: "relative"}, formats.SegmentOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		x := &formats.Exchange{Phase: formats.PhaseRecord, ArrivalUnixNS: int64(next(i)), Endpoint: formats.EndpointCompletions, Stream: formats.Of(true),
			InputTokens: formats.Of(input), InputTokensSource: formats.TokensTrace, OutputTokens: formats.Of(output), OutputTokensSource: formats.TokensTrace}
		if err := w.Write(x); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return where
}

// poisson is a seeded Poisson process.
func poisson(rate float64, seed uint64) func(int) time.Duration {
	r := rand.New(rand.NewPCG(seed, 7))
	at := 0.0
	return func(int) time.Duration {
		at += r.ExpFloat64() / rate
		return time.Duration(at * 1e9)
	}
}

func quantile(v []float64, q float64) float64 {
	if len(v) == 0 {
		return math.NaN()
	}
	slices.Sort(v)
	h := q * float64(len(v)-1)
	i := int(h)
	if i+1 >= len(v) {
		return v[i]
	}
	return v[i] + (h-float64(i))*(v[i+1]-v[i])
}

func meanOf(v []float64) float64 {
	s := 0.0
	for _, x := range v {
		s += x
	}
	return s / float64(len(v))
}

type truthLine struct {
	ID     string  `json:"x_request_id"`
	Tokens []int64 `json:"token_unix_ns"`
}

func emissions(t *testing.T, log, prefix string) map[formats.Hash]truthLine {
	t.Helper()
	f, err := os.Open(log)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	out := map[formats.Hash]truthLine{}
	d := json.NewDecoder(bufio.NewReaderSize(f, 1<<20))
	for d.More() {
		var l truthLine
		if err := d.Decode(&l); err != nil {
			t.Fatal(err)
		}
		out[replayer.CorrelationID(prefix, l.ID)] = l
	}
	return out
}

// TestBenchAccuracy measures what the client's own clocks say against what the server did.
func TestBenchAccuracy(t *testing.T) {
	bin := built(t)
	fmt.Println("| streams | clock | requests | ttft error mean ms | p50 | p99 | max | gap error p99 ms | gap error p50 | client delay p99 ms | coalesced | send lag p99 ms | verdict |")
	fmt.Println("|---|---|---|---|---|---|---|---|---|---|---|---|---|")
	for _, streams := range []int{1, 10, 100, 500, 1000} {
		for _, clock := range []string{"kernel", "user"} {
			t.Run(fmt.Sprintf("streams=%d/%s", streams, clock), func(t *testing.T) { benchAccuracy(t, bin, streams, clock) })
		}
	}
}

func benchAccuracy(t *testing.T, bin string, streams int, clock string) {
	{
		{
			tokens := int64(100)
			each := 50*time.Millisecond + time.Duration(tokens-1)*10*time.Millisecond
			gap := each / time.Duration(streams)
			n := max(int(10*time.Second/gap), 10)
			trace := load(t, n, 64, tokens, func(i int) time.Duration { return time.Duration(i) * gap })
			dir := t.TempDir()
			log, out := filepath.Join(dir, "emitted.jsonl"), filepath.Join(dir, "run")
			url, stop := simulate(t, bin, "--ttft", "50ms", "--itl", "10ms", "--emission-log", log)
			c := exec.Command(bin, "replay", trace, "--target", url, "-o", out, "--allow-invalid", "--clock", clock)
			if b, err := c.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, b)
			}
			stop()
			m, rows := readRun(t, out)
			truth := emissions(t, log, m.Options["request_ids"].(string))
			var first, gaps, delay []float64
			var events, coalesced int
			for _, x := range rows {
				l, ok := truth[x.CorrelationID.V]
				if !ok || !x.FirstTokenNS.Valid || len(l.Tokens) != len(x.EventGapUS) {
					continue
				}
				first = append(first, float64(x.ArrivalUnixNS+x.FirstTokenNS.V-l.Tokens[0])/1e6)
				for i := 1; i < len(l.Tokens); i++ {
					events++
					if x.EventFlags != nil && x.EventFlags[i]&formats.FlagCoalesced != 0 {
						coalesced++
						continue
					}
					gaps = append(gaps, math.Abs(float64(x.EventGapUS[i])/1e3-float64(l.Tokens[i]-l.Tokens[i-1])/1e6))
				}
				if x.ClientDelayUS.Valid {
					delay = append(delay, float64(x.ClientDelayUS.V)/1e3)
				}
			}
			if len(first) != len(rows) {
				t.Errorf("%d of %d requests could be joined", len(first), len(rows))
			}
			verdict := verdictOf(m)
			for _, f := range []struct {
				name string
				ms   float64
			}{{"TTFT error mean", meanOf(first)}, {"TTFT error p99", quantile(first, 0.99)}, {"gap error p99", quantile(gaps, 0.99)}} {
				benchreport.Record(t, benchreport.Figure{Group: "accuracy", Name: fmt.Sprintf("%s, %d streams, %s clock", f.name, streams, clock), Value: f.ms, Unit: "ms", Better: "lower", Note: verdict})
			}
			fmt.Printf("| %d | %s | %d | %.3f | %.3f | %.3f | %.3f | %.3f | %.3f | %.3f | %.2f %% | %.3f | %s |\n", streams, clock, len(first), meanOf(first), quantile(first, 0.5), quantile(first, 0.99), quantile(first, 1),
				quantile(gaps, 0.99), quantile(gaps, 0.5), quantile(delay, 0.99), 100*float64(coalesced)/float64(max(events, 1)), m.Fidelity["send_lag_p99_ms"], verdict)
		}
	}
}

// verdictOf is a run's verdict with its reasons.
func verdictOf(m formats.Manifest) string {
	if m.Valid {
		return "valid"
	}
	return strings.Join(append([]string{"invalid"}, m.Invalid...), "; ")
}

// TestBenchLag measures how late requests leave, and whether the load that left is the load that was scheduled. An answer is one token: of
// two, the instant simulator's come in one read, and a run whose gaps cannot be told is not valid.
func TestBenchLag(t *testing.T) {
	bin := built(t)
	fmt.Println("| rate/s | requests | late > 1 ms | send lag p50 ms | p90 | p99 | p99.9 | max | completed | idc 1 s | of schedule | idc 10 s | of schedule | gap autocorrelation | of schedule | KS of gaps | verdict |")
	fmt.Println("|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|")
	for _, rate := range []float64{100, 500, 1000, 2000, 5000} {
		t.Run(fmt.Sprintf("rate=%.0f", rate), func(t *testing.T) { benchLag(t, bin, rate) })
	}
	t.Run("burst", func(t *testing.T) { benchBurst(t, bin) })
}

func benchLag(t *testing.T, bin string, rate float64) {
	{
		n := int(rate * benchSeconds(t))
		trace := load(t, n, 16, 1, poisson(rate, uint64(rate)))
		out := filepath.Join(t.TempDir(), "run")
		url, stop := simulate(t, bin, "--profile", "instant", "--max-num-seqs", "100000")
		c := exec.Command(bin, "replay", trace, "--target", url, "-o", out, "--allow-invalid")
		if b, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, b)
		}
		stop()
		m, rows := readRun(t, out)
		slices.SortFunc(rows, func(a, b *formats.Exchange) int { return int(a.ArrivalIndex.V - b.ArrivalIndex.V) })
		var lag, want, got []float64
		late := 0
		for _, x := range rows {
			l := float64(x.SentNS.V) / 1e6
			lag = append(lag, l)
			if l > 1 {
				late++
			}
			want = append(want, float64(x.ArrivalUnixNS-rows[0].ArrivalUnixNS)/1e9)
			got = append(got, float64(x.ArrivalUnixNS+x.SentNS.V-rows[0].ArrivalUnixNS)/1e9)
		}
		slices.Sort(got)
		verdict := verdictOf(m)
		for _, q := range []float64{50, 99, 99.9} {
			benchreport.Record(t, benchreport.Figure{Group: "dispatch", Name: fmt.Sprintf("send lag p%g, %.0f/s", q, rate), Value: quantile(lag, q/100), Unit: "ms", Better: "lower", Note: verdict})
		}
		benchreport.Record(t, benchreport.Figure{Group: "dispatch", Name: fmt.Sprintf("late by more than 1 ms, %.0f/s", rate), Value: 100 * float64(late) / float64(len(rows)), Unit: "%", Better: "lower", Note: verdict})
		fmt.Printf("| %.0f | %d | %.3f %% | %.3f | %.3f | %.3f | %.3f | %.3f | %d | %.3f | %.3f | %s | %s | %.4f | %.4f | %.4f | %s |\n", rate, len(rows), 100*float64(late)/float64(len(rows)), quantile(lag, 0.5), quantile(lag, 0.9),
			quantile(lag, 0.99), quantile(lag, 0.999), quantile(lag, 1), m.Requests.Completed, dispersion(got, 1), dispersion(want, 1), overTens(got), overTens(want), autocorrelation(got), autocorrelation(want), kolmogorov(got, want), verdict)
	}
}

// benchBurst sends a thousand requests in one instant.
func benchBurst(t *testing.T, bin string) {
	trace := load(t, 1000, 16, 2, func(int) time.Duration { return time.Second })
	out := filepath.Join(t.TempDir(), "run")
	url, stop := simulate(t, bin, "--profile", "instant", "--max-num-seqs", "100000")
	c := exec.Command(bin, "replay", trace, "--target", url, "-o", out, "--allow-invalid")
	if b, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, b)
	}
	stop()
	_, rows := readRun(t, out)
	var lag, end []float64
	reused := 0
	for _, x := range rows {
		lag = append(lag, float64(x.SentNS.V)/1e6)
		end = append(end, float64(x.RequestEndNS.V)/1e6)
		if x.ConnReused.V {
			reused++
		}
	}
	fmt.Printf("\nburst of %d in one instant: first byte of the first after %.3f ms, of half after %.3f ms, of the last after %.3f ms; last byte of the last after %.3f ms; %d on a connection that stood\n",
		len(rows), quantile(lag, 0), quantile(lag, 0.5), quantile(lag, 1), quantile(end, 1), reused)
}

// benchSeconds is how long each rate is kept: 10 s, or SHADOWTAPE_BENCH_SECONDS.
func benchSeconds(t *testing.T) float64 {
	s := os.Getenv("SHADOWTAPE_BENCH_SECONDS")
	if s == "" {
		return 10
	}
	v, err := strconv.ParseFloat(s, 64)
	if err != nil || !(v >= 2) {
		t.Fatalf("SHADOWTAPE_BENCH_SECONDS=%s is no number of seconds from 2", s)
	}
	return v
}

// overTens is the dispersion over windows of 10 s, where there are five of them.
func overTens(at []float64) string {
	if at[len(at)-1] < 50 {
		return "-"
	}
	return fmt.Sprintf("%.3f", dispersion(at, 10))
}

// dispersion is the variance of the counts of windows of s seconds over their mean.
func dispersion(at []float64, s float64) float64 {
	counts := make([]float64, int(at[len(at)-1]/s))
	for _, a := range at {
		if i := int(a / s); i < len(counts) {
			counts[i]++
		}
	}
	m, v := meanOf(counts), 0.0
	for _, c := range counts {
		v += (c - m) * (c - m)
	}
	return v / float64(len(counts)) / m
}

// kolmogorov is the Kolmogorov-Smirnov distance between the gaps of two sequences of times.
func kolmogorov(a, b []float64) float64 {
	gaps := func(at []float64) []float64 {
		var g []float64
		for i := 1; i < len(at); i++ {
			g = append(g, at[i]-at[i-1])
		}
		slices.Sort(g)
		return g
	}
	x, y := gaps(a), gaps(b)
	most, i, j := 0.0, 0, 0
	for i < len(x) && j < len(y) {
		v := min(x[i], y[j])
		for i < len(x) && x[i] <= v {
			i++
		}
		for j < len(y) && y[j] <= v {
			j++
		}
		most = math.Max(most, math.Abs(float64(i)/float64(len(x))-float64(j)/float64(len(y))))
	}
	return most
}

// autocorrelation is that of the gaps, at lag one.
func autocorrelation(at []float64) float64 {
	gaps := make([]float64, len(at)-1)
	for i := range gaps {
		gaps[i] = at[i+1] - at[i]
	}
	m := meanOf(gaps)
	var num, den float64
	for i, g := range gaps {
		den += (g - m) * (g - m)
		if i > 0 {
			num += (g - m) * (gaps[i-1] - m)
		}
	}
	return num / den
}
