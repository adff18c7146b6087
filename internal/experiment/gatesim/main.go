// Command gatesim measures how often the gate's rules are wrong: it draws launches whose truth is known, lets every rule judge them, and
// prints false alarms and power as the table of docs/GATE.md. The model of the noise is in this file and said in that page.
package main

import (
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/shadowtape/shadowtape/internal/experiment/verdict"
	"github.com/shadowtape/shadowtape/internal/stats"
)

func main() {
	trials := flag.Int("trials", 2000, "experiments for each deviation")
	seed := flag.Uint64("seed", 1, "seed of all draws")
	flag.Parse()
	if err := simulate(os.Stdout, *trials, *seed); err != nil {
		fmt.Fprintln(os.Stderr, "gatesim:", err)
		os.Exit(1)
	}
}

const (
	requests = 1000
	nights   = 30 // of history, three launches each
	launches = 3
	most     = 8 // pairs
	effect   = 0.05
	tail     = 0.10
)

// world is a host and a workload: what differs from request to request and does not from run to run.
type world struct {
	r     *rand.Rand
	sigma float64 // from launch to launch
	ttft  []float64
	tpot  []float64
}

func newWorld(r *rand.Rand, sigma float64) *world {
	w := &world{r: r, sigma: sigma, ttft: make([]float64, requests), tpot: make([]float64, requests)}
	for i := range requests {
		w.ttft[i], w.tpot[i] = math.Log(200)+0.65*r.NormFloat64(), math.Log(25)+0.1*r.NormFloat64()
	}
	return w
}

// launch draws one run. session is what all runs of a night share.
func (w *world) launch(session float64) *verdict.Run {
	r := w.r
	common := r.NormFloat64()
	mood := func() float64 { return w.sigma * (math.Sqrt(0.5)*common + math.Sqrt(0.5)*r.NormFloat64()) }
	lt, lp := session+mood(), session+mood()
	if r.Float64() < 0.03 { // a launch that went wrong in a way nobody sees
		bad := 3 * w.sigma * math.Abs(r.NormFloat64())
		lt, lp = lt+bad, lp+bad
	}
	hiccup := make([]float64, requests)
	for range poisson(r, 2) { // a pause that ten neighbors feel
		at, size := r.IntN(requests), r.ExpFloat64()
		for i := at; i < min(at+10, requests); i++ {
			hiccup[i] += size
		}
	}
	ttft, tpot := make([]float64, requests), make([]float64, requests)
	const phi = 0.6
	scale := math.Sqrt(1 - phi*phi)
	qt, qp := r.NormFloat64(), r.NormFloat64()
	for i := range requests {
		heavy := 0.0
		if r.Float64() < 0.01 {
			heavy = 0.5 * r.ExpFloat64()
		}
		ttft[i] = math.Exp(w.ttft[i] + lt + 0.2*qt + hiccup[i] + heavy)
		tpot[i] = math.Exp(w.tpot[i] + lp + 0.05*qp + 0.2*hiccup[i] + 0.2*heavy)
		qt, qp = phi*qt+scale*r.NormFloat64(), phi*qp+scale*r.NormFloat64()
	}
	run := &verdict.Run{Columns: map[string][]float64{"ttft": ttft, "tpot": tpot}, Figures: map[string]float64{}}
	levels(run)
	return run
}

func poisson(r *rand.Rand, mean float64) int {
	n, p, limit := 0, r.Float64(), math.Exp(-mean)
	for p > limit {
		p *= r.Float64()
		n++
	}
	return n
}

// slower returns the run with both columns longer by a share.
func slower(run *verdict.Run, share float64) *verdict.Run {
	out := &verdict.Run{Columns: map[string][]float64{}, Figures: map[string]float64{}}
	for name, c := range run.Columns {
		s := make([]float64, len(c))
		for i, v := range c {
			s[i] = v * (1 + share)
		}
		out.Columns[name] = s
	}
	for name, v := range run.Figures {
		out.Figures[name] = v * (1 + share)
	}
	return out
}

// experiment is all that one trial draws: a history, a stored baseline, and pairs.
type experiment struct {
	past            map[string]verdict.Past
	nights          map[string][]float64 // of the classic figures: the median of each night's launches
	stored          *verdict.Run
	base, candidate []*verdict.Run
}

// gated are the three metrics that the table is about.
var gated = func() (out []verdict.Metric) {
	for _, m := range verdict.Defaults() {
		if slices.Contains([]string{"ttft", "ttft_slow", "tpot"}, m.Name) {
			out = append(out, m)
		}
	}
	return out
}()

// classic are the figures that fixed rules compare: percentiles of a run.
var classic = []string{"ttft_p50", "ttft_p99", "tpot_p50"}

func draw(r *rand.Rand, sigma float64) experiment {
	w := newWorld(r, sigma)
	x := experiment{past: map[string]verdict.Past{}, nights: map[string][]float64{}}
	for range nights {
		session := sigma / 2 * r.NormFloat64()
		runs := make([]*verdict.Run, launches)
		for i := range runs {
			runs[i] = w.launch(session)
		}
		for _, m := range gated {
			p := x.past[m.Name]
			if m.Kind == verdict.Slow && p.Slow == nil {
				p.Slow = verdict.Slowest(m.Of, runs)
			}
			m.Set = p.Slow
			var levels []float64
			for _, run := range runs {
				levels = append(levels, run.Level(m))
			}
			d, _, _ := verdict.Differences(m, runs[:1], runs[1:2])
			p.Nights, p.AA = append(p.Nights, stats.Median(levels)), append(p.AA, d...)
			x.past[m.Name] = p
		}
		for _, name := range classic {
			var v []float64
			for _, run := range runs {
				v = append(v, run.Figures[name])
			}
			x.nights[name] = append(x.nights[name], stats.Median(v))
		}
		x.stored = runs[0]
	}
	session := sigma / 2 * r.NormFloat64()
	for range most {
		x.base, x.candidate = append(x.base, w.launch(session)), append(x.candidate, w.launch(session))
	}
	return x
}

// rule judges an experiment whose candidate is slower by some share: which metrics it calls worse, and how many pairs it took.
type rule struct {
	name, runs string
	judge      func(x experiment, candidate []*verdict.Run) (worse map[string]bool, states map[string]verdict.State, pairs int)
}

// fixed compares a figure of the candidate, the median over some runs, with a limit.
func fixed(runs int, names map[string]string, limit func(x experiment, name string) float64) func(experiment, []*verdict.Run) (map[string]bool, map[string]verdict.State, int) {
	return func(x experiment, candidate []*verdict.Run) (map[string]bool, map[string]verdict.State, int) {
		worse := map[string]bool{}
		for metric, name := range names {
			var v []float64
			for _, run := range candidate[:runs] {
				v = append(v, run.Figures[name])
			}
			worse[metric] = stats.Median(v) > limit(x, name)
		}
		return worse, nil, 0
	}
}

func gate(pairs int, history bool) func(experiment, []*verdict.Run) (map[string]bool, map[string]verdict.State, int) {
	return func(x experiment, candidate []*verdict.Run) (map[string]bool, map[string]verdict.State, int) {
		s := verdict.Sequence{Options: verdict.Options{Metrics: gated, Past: x.past}}
		if !history {
			s.Options.Past = map[string]verdict.Past{}
			for name, p := range x.past {
				s.Options.Past[name] = verdict.Past{AA: p.AA, Slow: p.Slow}
			}
		}
		if pairs > 0 {
			s.Plan = []verdict.Look{{Pairs: pairs, Alpha: verdict.DefaultAlpha}}
		}
		var found []verdict.Finding
		n := 0
		for n = 1; n <= most && !s.Done(); n++ {
			var err error
			if found, _, err = s.Next(x.base[:n], candidate[:n]); err != nil {
				panic(err) // the metrics are this file's own
			}
		}
		return worse(found), states(found), n - 1
	}
}

func alone(x experiment, candidate []*verdict.Run) (map[string]bool, map[string]verdict.State, int) {
	found, err := verdict.DecideAlone(candidate[:3], nil, verdict.Options{Metrics: gated, Past: x.past})
	if err != nil {
		panic(err) // likewise
	}
	return worse(found), states(found), 0
}

func worse(found []verdict.Finding) map[string]bool {
	out := map[string]bool{}
	for _, f := range found {
		out[f.Metric] = f.State == verdict.Regressed
	}
	return out
}

func states(found []verdict.Finding) map[string]verdict.State {
	out := map[string]verdict.State{}
	for _, f := range found {
		out[f.Metric] = f.State
	}
	return out
}

var percentiles = map[string]string{"ttft": "ttft_p50", "ttft_slow": "ttft_p99", "tpot": "tpot_p50"}

func over(share float64) func(experiment, string) float64 {
	return func(x experiment, name string) float64 { return x.stored.Figures[name] * (1 + share) }
}

// sigmas is a limit of three standard deviations of the nights above a centre.
func sigmas(centre func(x experiment, name string) float64) func(experiment, string) float64 {
	return func(x experiment, name string) float64 {
		var m stats.Moments
		for _, v := range x.nights[name] {
			m.Add(v, 1)
		}
		return centre(x, name) + 3*m.Std()
	}
}

func middle(x experiment, name string) float64 { return stats.Median(x.nights[name]) }

var rules = []rule{
	{"over 3 %, one run against one stored run", "1 + 0", fixed(1, percentiles, over(0.03))},
	{"over 5 %, one run against one stored run", "1 + 0", fixed(1, percentiles, over(0.05))},
	{"median of 3 over the stored run by 3 sigma of 30 nights", "3 + 0", fixed(3, percentiles, sigmas(func(x experiment, name string) float64 { return x.stored.Figures[name] }))},
	{"median of 3 over the nights' median by 3 sigma", "3 + 0", fixed(3, percentiles, sigmas(middle))},
	{"history alone, 3 launches (`--tier pr`)", "3 + 0", alone},
	{"pairs alone, 5, Holm (no history)", "5 + 5", gate(5, false)},
	{"two sources, 5 pairs", "5 + 5", gate(5, true)},
	{"**two sources, looks at 3, 5 and 8 pairs (the gate)**", "3 to 8 pairs", gate(0, true)},
}

// levels fills the figures that the classic rules compare.
func levels(run *verdict.Run) {
	for _, name := range []string{"ttft", "tpot"} {
		s := slices.Clone(run.Columns[name])
		slices.Sort(s)
		run.Figures[name+"_p50"], run.Figures[name+"_p99"] = stats.Quantile(s, 0.5), stats.Quantile(s, 0.99)
	}
}

// score counts what one rule did.
type score struct {
	alarms    map[string]int // at no change, by metric and "any"
	found     map[string]int // at the effect
	unchanged map[string]int // at no change
	missed    map[string]int // called unchanged at the effect
	pairs     int
}

func newScore() *score {
	return &score{map[string]int{}, map[string]int{}, map[string]int{}, map[string]int{}, 0}
}

func (s *score) add(o *score) {
	for _, m := range []struct{ to, from map[string]int }{{s.alarms, o.alarms}, {s.found, o.found}, {s.unchanged, o.unchanged}, {s.missed, o.missed}} {
		for k, v := range m.from {
			m.to[k] += v
		}
	}
	s.pairs += o.pairs
}

func (s *score) judge(j func(experiment, []*verdict.Run) (map[string]bool, map[string]verdict.State, int), x experiment) {
	bad, st, pairs := j(x, x.candidate)
	any := false
	for name, b := range bad {
		if b {
			s.alarms[name]++
			any = true
		}
		if st[name] == verdict.Unchanged || st[name] == verdict.Improved {
			s.unchanged[name]++
		}
	}
	if any {
		s.alarms["any"]++
	}
	s.pairs += pairs
	for _, c := range []struct {
		share   float64
		metrics []string
	}{{effect, []string{"ttft", "tpot"}}, {tail, []string{"ttft_slow"}}} {
		changed := make([]*verdict.Run, len(x.candidate))
		for i, run := range x.candidate {
			changed[i] = slower(run, c.share)
		}
		bad, st, _ := j(x, changed)
		for _, name := range c.metrics {
			if bad[name] {
				s.found[name]++
			}
			if st[name] == verdict.Unchanged {
				s.missed[name]++
			}
		}
	}
}

func simulate(w io.Writer, trials int, seed uint64) error {
	began := time.Now()
	fmt.Fprintf(w, "%d experiments for each deviation, seed %d, %d requests a run, %d nights of %d launches.\n", trials, seed, requests, nights, launches)
	for _, sigma := range []float64{0.01, 0.02, 0.03} {
		total := make([]*score, len(rules))
		for i := range total {
			total[i] = newScore()
		}
		var mu sync.Mutex
		var wg sync.WaitGroup
		workers := runtime.GOMAXPROCS(0)
		for k := range workers {
			wg.Go(func() {
				own := make([]*score, len(rules))
				for i := range own {
					own[i] = newScore()
				}
				for t := k; t < trials; t += workers {
					x := draw(rand.New(rand.NewPCG(seed, uint64(t)<<8|uint64(sigma*100))), sigma)
					for i := range rules {
						own[i].judge(rules[i].judge, x)
					}
				}
				mu.Lock()
				defer mu.Unlock()
				for i := range own {
					total[i].add(own[i])
				}
			})
		}
		wg.Wait()
		if err := print(w, sigma, trials, total); err != nil {
			return err
		}
	}
	fmt.Fprintf(os.Stderr, "gatesim: %.0f s\n", time.Since(began).Seconds())
	return nil
}

func print(w io.Writer, sigma float64, trials int, total []*score) error {
	p := func(n int) string { return fmt.Sprintf("%.1f", 100*float64(n)/float64(trials)) }
	fmt.Fprintf(w, "\n### Launch to launch: %.0f %%\n\n", 100*sigma)
	fmt.Fprintf(w, "| rule | runs | false alarms TPOT | TTFT | TTFT tail | any of three | finds TPOT +5 %% | TTFT +5 %% | tail +10 %% | no change called unchanged (TPOT / TTFT / tail) | pairs at no change |\n")
	fmt.Fprintf(w, "|---|---|---|---|---|---|---|---|---|---|---|\n")
	for i, s := range total {
		same, pairs := "-", "-"
		if len(s.unchanged) > 0 {
			same = p(s.unchanged["tpot"]) + " / " + p(s.unchanged["ttft"]) + " / " + p(s.unchanged["ttft_slow"])
		}
		if s.pairs > 0 {
			pairs = fmt.Sprintf("%.1f", float64(s.pairs)/float64(trials))
		}
		if _, err := fmt.Fprintf(w, "| %s | %s | %s %% | %s %% | %s %% | %s %% | %s %% | %s %% | %s %% | %s | %s |\n", rules[i].name, rules[i].runs,
			p(s.alarms["tpot"]), p(s.alarms["ttft"]), p(s.alarms["ttft_slow"]), p(s.alarms["any"]),
			p(s.found["tpot"]), p(s.found["ttft"]), p(s.found["ttft_slow"]), same, pairs); err != nil {
			return err
		}
	}
	return nil
}
