package experiment

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/engine"
	"github.com/shadowtape/shadowtape/internal/experiment/verdict"
	"github.com/shadowtape/shadowtape/internal/stats"
	"github.com/shadowtape/shadowtape/internal/virtual"
)

// traffic draws requests that share prefixes: Poisson arrivals, lognormal lengths, forty roots of 512 tokens.
func traffic(n int, rate float64) ([]*formats.Exchange, formats.Header) {
	r := rand.New(rand.NewPCG(7, 7))
	at := 0.0
	var rows []*formats.Exchange
	for i := range n {
		at += r.ExpFloat64() / rate
		root := int64(r.IntN(40))
		x := &formats.Exchange{ExchangeID: int64(i + 1), Phase: formats.PhaseRecord, ArrivalUnixNS: int64(at * 1e9), EndReason: formats.EndComplete, Stream: formats.Of(true)}
		tail := int64(1 + math.Exp(5+0.8*r.NormFloat64()))
		x.InputTokens, x.OutputTokens = formats.Of(512+tail), formats.Of(int64(2+math.Exp(3.5+0.7*r.NormFloat64())))
		for b := range int64(32) {
			x.PrefixBlocks = append(x.PrefixBlocks, root<<32|b)
		}
		for b := range tail / 16 {
			x.PrefixBlocks = append(x.PrefixBlocks, int64(i+1)<<40|b)
		}
		x.PrefixTailTokens = formats.Of(tail % 16)
		rows = append(rows, x)
	}
	return rows, formats.Header{PrefixBlockUnit: "tokens", PrefixBlockSize: 16, PrefixBlockRule: "floor"}
}

// fleet is a virtual deployment on drawn traffic: a small server at about half its load, whose cache holds all roots.
func fleet(t testing.TB, requests int) *Virtual {
	t.Helper()
	rows, header := traffic(requests, 6)
	p, err := engine.FindProfile("qwen2.5-7b-l4")
	if err != nil {
		t.Fatal(err)
	}
	p.Pages, p.MaxSeqs = 6000, 48
	o := virtual.Options{Profile: p, Noise: engine.Noise{Launch: 0.02, Step: 0.01}}
	return &Virtual{Rows: rows, Header: header, Base: o, Candidate: o, Saturate: 200}
}

// pastOf makes a history of nights of two launches each, which are A/A pairs.
func pastOf(t testing.TB, v Virtual, nights int) map[string]verdict.Past {
	t.Helper()
	past := map[string]verdict.Past{}
	var slow []int
	for n := range nights {
		var runs []*verdict.Run
		for k := range 2 {
			m, err := v.Launch(context.Background(), Leg{Pair: 1000 + n, Arm: Base, Try: 1 + k})
			if err != nil {
				t.Fatal(err)
			}
			runs = append(runs, m.Run)
		}
		if slow == nil {
			slow = verdict.Slowest("ttft", runs)
		}
		for _, m := range verdict.Defaults() {
			if m.Kind == verdict.Slow {
				m.Set = slow
			}
			p := past[m.Name]
			if m.Kind == verdict.Slow {
				p.Slow = slow
			}
			var levels []float64
			for _, r := range runs {
				if x := r.Level(m); !math.IsNaN(x) {
					levels = append(levels, x)
				}
			}
			if len(levels) == 2 {
				p.Nights = append(p.Nights, stats.Median(levels))
			}
			d, _, _ := verdict.Differences(m, runs[:1], runs[1:])
			p.AA = append(p.AA, d...)
			past[m.Name] = p
		}
	}
	return past
}

// TestGateVirtual measures the whole gate on the simulated engine: `make gate-virtual` runs it at its full size, which takes minutes.
func TestGateVirtual(t *testing.T) {
	size, _ := strconv.Atoi(os.Getenv("SHADOWTAPE_GATES"))
	if size == 0 {
		t.Skip("set SHADOWTAPE_GATES to a number of gates (make gate-virtual): takes minutes")
	}
	v := fleet(t, 500)
	began := time.Now()
	type result struct {
		fired   map[string]int
		pairs   int
		states  map[verdict.State]int
		reports []Report
	}
	many := func(n int, seed uint64, change func(*virtual.Options)) result {
		out := result{fired: map[string]int{}, states: map[verdict.State]int{}}
		var mu sync.Mutex
		var wg sync.WaitGroup
		workers := runtime.GOMAXPROCS(0)
		for k := range workers {
			wg.Go(func() {
				var past map[string]verdict.Past
				for i := k; i < n; i += workers {
					w := *v
					w.Seed = stats.Mix(seed<<32 + uint64(i))
					if past == nil || (i/workers)%10 == 0 { // a series' history serves several gates
						past = pastOf(t, w, 20)
					}
					change(&w.Candidate)
					r, _, err := Gate(context.Background(), w.Launch, GateOptions{Compare: CompareOptions{Past: past, MinSamples: 1}})
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					out.pairs += r.Pairs
					out.states[r.Verdict]++
					any := false
					for _, f := range r.Findings {
						if f.Gated && f.State == verdict.Regressed {
							out.fired[f.Metric]++
							any = true
						}
					}
					if any {
						out.fired["any"]++
					}
					if len(out.reports) < 3 {
						out.reports = append(out.reports, r)
					}
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		return out
	}
	share := func(k, n int) string {
		lo, hi := stats.BinomialInterval(k, n, 0.95)
		return fmt.Sprintf("%d of %d, %.1f %% (%.1f to %.1f)", k, n, 100*float64(k)/float64(n), 100*lo, 100*hi)
	}
	line := func(name string, n int, r result) {
		var each []string
		for _, m := range verdict.Defaults() {
			if m.Gate && r.fired[m.Name] > 0 {
				each = append(each, fmt.Sprintf("%s %.0f %%", m.Name, 100*float64(r.fired[m.Name])/float64(n)))
			}
		}
		t.Logf("| %s | %s | %s | %.1f |", name, share(r.fired["any"], n), strings.Join(each, ", "), float64(r.pairs)/float64(n))
	}
	aa := many(size, 1, func(*virtual.Options) {})
	line("no change", size, aa)
	if _, hi := stats.BinomialInterval(aa.fired["any"], size, 0.95); size >= 400 && hi > 0.04 {
		t.Errorf("false alarms: %s, the upper bound is over 4 %%", share(aa.fired["any"], size))
	}
	half := max(1, size/2)
	five := many(half, 2, func(o *virtual.Options) { o.Slowdown = engine.Slowdown{Prefill: 1.05, Decode: 1.05} })
	line("every step 5 % slower", half, five)
	if size >= 400 && float64(five.fired["any"]) < 0.8*float64(half) {
		t.Errorf("5 %% slower steps: %s, want 80 %%", share(five.fired["any"], half))
	}
	few := max(1, size/20)
	for _, c := range []struct {
		name   string
		change func(*virtual.Options)
		want   string // among what differs
		says   string // among what is said to have moved
	}{
		{"prefill 15 % slower", func(o *virtual.Options) { o.Slowdown.Prefill = 1.15 }, "slowdown.prefill", "prefill or waiting"},
		{"decode 15 % slower", func(o *virtual.Options) { o.Slowdown.Decode = 1.15 }, "slowdown.decode", "decode rather"},
		{"cache of a quarter of the pages", func(o *virtual.Options) { o.Profile.Pages /= 4 }, "profile.pages", "prefix cache hits"},
		{"cache of a sixth of the pages: preemptions", func(o *virtual.Options) { o.Profile.Pages /= 6 }, "profile.pages", "preemptions"},
		{"batch of 36 sequences at most in place of 48: less capacity", func(o *virtual.Options) { o.Profile.MaxSeqs = 36 }, "profile.max_num_seqs", "fewer requests run at once"},
	} {
		r := many(few, 3, c.change)
		line(c.name, few, r)
		for _, rep := range r.reports[:1] {
			for _, f := range rep.Findings {
				t.Logf("    %s: %s %s (could see %s) %s", f.Metric, change(f), f.State, detectable(f), f.Why)
			}
			told := strings.Join(rep.Explanation, "; ")
			t.Logf("    differs: %s; probably: %s", rep.cause(), told)
			if !strings.Contains(rep.cause(), c.want) || !strings.Contains(told, c.says) {
				t.Errorf("%s: the cause named is %q and %q", c.name, rep.cause(), told)
			}
		}
	}
	t.Logf("%.0f s", time.Since(began).Seconds())
}
