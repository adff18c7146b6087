package verdict

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/shadowtape/shadowtape/internal/stats"
)

// runOf makes a run whose requests are base's times a ratio.
func runOf(ratio float64, base []float64) *Run {
	x := make([]float64, len(base))
	for i, v := range base {
		x[i] = v * ratio
	}
	return &Run{Columns: map[string][]float64{"ttft": x}, Figures: map[string]float64{"capacity": 1000 / ratio, "error_rate": 0}}
}

func requests(r *rand.Rand, n int) []float64 {
	x := make([]float64, n)
	for i := range x {
		x[i] = math.Exp(5 + r.NormFloat64())
	}
	return x
}

func named(name string) Metric {
	for _, m := range Defaults() {
		if m.Name == name {
			return m
		}
	}
	panic(name)
}

// TestDifferencesAgainstDefinition: every estimator gives back a ratio that all requests share, whatever the requests are, and centre and
// slow set agree with a direct computation where they do not.
func TestDifferencesAgainstDefinition(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	x := requests(r, 1000)
	a, b := []*Run{runOf(1, x), runOf(1.1, x)}, []*Run{runOf(1.2, x), runOf(1.05, x)}
	want := []float64{math.Log(1.2), math.Log(1.05 / 1.1)}
	for _, name := range []string{"ttft", "ttft_slow"} {
		d, _, _ := Differences(named(name), a, b)
		for i := range want {
			if math.Abs(d[i]-want[i]) > 1e-12 {
				t.Errorf("%s: difference %d is %v, want %v", name, i, d[i], want[i])
			}
		}
	}
	if d, _, _ := Differences(named("capacity"), a, b); math.Abs(d[0]+want[0]) > 1e-12 {
		t.Errorf("capacity: %v, want %v", d[0], -want[0])
	}

	c, e := runOf(1, x), runOf(1, x)
	for i := range e.Columns["ttft"] {
		e.Columns["ttft"][i] *= math.Exp(0.1 * r.NormFloat64())
	}
	c.Columns["ttft"][3], e.Columns["ttft"][7] = math.NaN(), math.NaN()
	var sum, n float64
	for i := range x {
		if i != 3 && i != 7 {
			sum, n = sum+math.Log(e.Columns["ttft"][i])-math.Log(c.Columns["ttft"][i]), n+1
		}
	}
	if d, _, _ := Differences(named("ttft"), []*Run{c}, []*Run{e}); math.Abs(d[0]-sum/n) > 1e-12 {
		t.Errorf("centre %v, want %v", d[0], sum/n)
	}
}

func TestSlowestIsChosenOnBothSides(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	x := requests(r, 400)
	a, b := runOf(1, x), runOf(1, x)
	set := Slowest("ttft", []*Run{a}, []*Run{b})
	if len(set) != 20 {
		t.Fatalf("the slow set of 400 has %d", len(set))
	}
	order := make([]int, len(x))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int {
		if x[i] > x[j] {
			return -1
		}
		return 1
	})
	if !slices.Equal(set, order[:20]) {
		t.Errorf("the slow set is %v, want %v", set, order[:20])
	}
	if swapped := Slowest("ttft", []*Run{b}, []*Run{a}); !slices.Equal(set, swapped) {
		t.Error("the slow set depends on which side is which")
	}
	if Slowest("ttft", []*Run{runOf(1, x[:399])}) != nil {
		t.Error("nineteen slow requests are a set")
	}
}

// history draws nights and A/A differences around ln 200 with a deviation.
func history(r *rand.Rand, level, sd float64) Past {
	var p Past
	for range 30 {
		p.Nights = append(p.Nights, level+sd*r.NormFloat64()/2)
		p.AA = append(p.AA, sd*math.Sqrt2*r.NormFloat64())
	}
	return p
}

func TestStates(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	x := requests(r, 500)
	level := meanLog(x)
	past := map[string]Past{"ttft": history(r, level, 0.01)}
	jitter := func(center float64) []*Run {
		var out []*Run
		for range 5 {
			out = append(out, runOf(center*math.Exp(0.003*r.NormFloat64()), x))
		}
		return out
	}
	m := named("ttft")
	for _, c := range []struct {
		name       string
		base, cand float64
		past       map[string]Past
		want       State
	}{
		{"ten percent slower", 1, 1.1, past, Regressed},
		{"ten percent faster", 1, 0.9, past, Improved},
		{"no change", 1, 1, past, Unchanged},
		{"slower than a base that was lucky, within the history", 0.9, 1, past, Inconclusive},
		{"without a history the pairs decide", 0.9, 1, nil, Regressed},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, err := Decide(jitter(c.base), jitter(c.cand), Options{Metrics: []Metric{m}, Past: c.past})
			if err != nil || len(f) != 1 || f[0].State != c.want {
				t.Fatalf("%+v %v, want %s", f, err, c.want)
			}
			if want := 100 * (c.cand/c.base - 1); math.Abs(f[0].ChangePct.V-want) > 1.5 {
				t.Errorf("change %v, want about %v", f[0].ChangePct.V, want)
			}
		})
	}
	// three sure percent of one percent: small
	m.Minimum, m.Tolerance = 0.08, 0.001
	if f, _ := Decide(jitter(1), jitter(1.05), Options{Metrics: []Metric{m}}); f[0].State != Small {
		t.Errorf("sure and below the minimum: %+v", f[0])
	}
	if f, _ := Decide(jitter(1)[:1], jitter(2)[:1], Options{Metrics: []Metric{named("ttft")}}); f[0].State != Inconclusive || f[0].Why == "" {
		t.Errorf("one pair without a history: %+v", f[0])
	}
	m.Gate, m.Better = true, "sideways"
	if _, err := Decide(nil, nil, Options{Metrics: []Metric{m}}); err == nil {
		t.Error("a direction that is none is taken")
	}
}

// TestMirror: turning the sides round turns regressed into improved and back.
func TestMirror(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 4))
	other := map[State]State{Regressed: Improved, Improved: Regressed}
	seen := map[State]int{}
	for range 300 {
		x := requests(r, 60)
		var a, b []*Run
		effect := 1 + 0.1*(r.Float64()-0.5)
		for range 5 {
			a, b = append(a, runOf(math.Exp(0.01*r.NormFloat64()), x)), append(b, runOf(effect*math.Exp(0.01*r.NormFloat64()), x))
		}
		m := named("ttft")
		f, _ := Decide(a, b, Options{Metrics: []Metric{m}})
		g, _ := Decide(b, a, Options{Metrics: []Metric{m}})
		seen[f[0].State]++
		if want, ok := other[f[0].State]; ok && g[0].State != want {
			t.Fatalf("%s one way, %s the other", f[0].State, g[0].State)
		}
		m.Better = "higher"
		if h, _ := Decide(a, b, Options{Metrics: []Metric{m}}); other[f[0].State] != "" && h[0].State != other[f[0].State] {
			t.Fatalf("lower is better: %s, higher is better: %s", f[0].State, h[0].State)
		}
	}
	if seen[Regressed] < 10 || seen[Improved] < 10 {
		t.Errorf("the draws hold too few changes: %v", seen)
	}
}

func TestBoundsOfHistory(t *testing.T) {
	p := Past{Nights: []float64{1, 2, 3, 4, 5, 6, 7, 8, 9}}
	lo, median, hi, ok := p.Bounds()
	reach := stats.StudentT(0.95, 8) * 1.482602218505602 * 2 * math.Sqrt(1+1.0/9) // the median deviation of 1…9 from 5 is 2
	if !ok || median != 5 || math.Abs(hi-(5+reach)) > 1e-9 || math.Abs(lo-(5-reach)) > 1e-9 {
		t.Errorf("bounds %v %v %v %v, want 5 ± %v", lo, median, hi, ok, reach)
	}
	for _, short := range []Past{{}, {Nights: []float64{1, 2}}, {Nights: []float64{1, 2, 3, 4, 5, 6, 7}}, {Nights: []float64{1, 2}, Earlier: make([]float64, 20)}} {
		if _, _, _, ok := short.Bounds(); ok {
			t.Errorf("%+v has bounds", short)
		}
	}
	if _, _, _, ok := (Past{Nights: []float64{1, 2, 3}, Earlier: []float64{-1, 0, 1, -1, 1}}).Bounds(); !ok {
		t.Error("three nights after a change have no bounds although earlier segments say how much they vary")
	}
}

func TestSequenceKeepsWhatItDecided(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	x := requests(r, 100)
	past := map[string]Past{"ttft": history(r, meanLog(x), 0.01)}
	var a, b []*Run
	for range 8 {
		a, b = append(a, runOf(math.Exp(0.005*r.NormFloat64()), x)), append(b, runOf(1.2*math.Exp(0.005*r.NormFloat64()), x))
	}
	s := Sequence{Options: Options{Metrics: []Metric{named("ttft")}, Past: past}}
	var at []int
	for n := 1; n <= 8; n++ {
		f, looked, err := s.Next(a[:n], b[:n])
		if err != nil {
			t.Fatal(err)
		}
		if looked {
			at = append(at, n)
		}
		if n >= 3 && (f[0].State != Regressed || f[0].Pairs != 3) {
			t.Fatalf("after %d pairs: %+v", n, f[0])
		}
		if s.Done() != (n >= 3) {
			t.Fatalf("after %d pairs done is %v", n, s.Done())
		}
	}
	if !slices.Equal(at, []int{3, 5, 8}) {
		t.Errorf("looks at %v", at)
	}
	none := Sequence{Options: Options{Metrics: []Metric{named("ttft")}}}
	if none.NextLook() != 5 || none.Most() != 8 {
		t.Errorf("without a prior the first look is at %d pairs", none.NextLook())
	}
	sum := 0.0
	for _, l := range Looks(true) {
		sum += l.Alpha
	}
	if math.Abs(sum-DefaultAlpha) > 1e-12 {
		t.Errorf("the looks' levels sum up to %v", sum)
	}
}

// firings is how many of so many sequences of launches end as regressed, where the candidate's capacity is the base's times change and
// launches vary by two percent.
func firings(t *testing.T, trials int, change float64, with bool) (fired int) {
	r := rand.New(rand.NewPCG(6, 6))
	m := named("capacity")
	for range trials {
		past := map[string]Past{}
		if with {
			past[m.Name] = history(r, math.Log(1000), 0.02)
		}
		s := Sequence{Options: Options{Metrics: []Metric{m}, Past: past}}
		var a, b []*Run
		for !s.Done() {
			draw := func(level float64) *Run {
				return &Run{Figures: map[string]float64{"capacity": level * math.Exp(0.02*r.NormFloat64())}}
			}
			a, b = append(a, draw(1000)), append(b, draw(1000*change))
			f, _, err := s.Next(a, b)
			if err != nil {
				t.Fatal(err)
			}
			if Overall(f) == Regressed {
				fired++
			}
		}
	}
	return fired
}

// TestFalseAlarms draws launches of one build: the whole rule fires in at most two percent of comparisons, with a history and without.
func TestFalseAlarms(t *testing.T) {
	const trials = 2000
	for _, with := range []bool{true, false} {
		if fired := firings(t, trials, 1, with); fired > trials*2/100 {
			t.Errorf("history %v: %d false alarms in %d", with, fired, trials)
		}
	}
}

// TestLossesAreFound: eight percent of the capacity, four times what launches vary by, is not overlooked; nor is a gain taken for a loss.
func TestLossesAreFound(t *testing.T) {
	const trials = 500
	for _, with := range []bool{true, false} {
		if fired := firings(t, trials, 0.92, with); fired < trials*98/100 {
			t.Errorf("history %v: a loss of 8 %% is found in %d of %d", with, fired, trials)
		}
		if fired := firings(t, trials, 1.08, with); fired > 0 {
			t.Errorf("history %v: a gain of 8 %% is a loss in %d of %d", with, fired, trials)
		}
	}
}

func TestOverall(t *testing.T) {
	f := func(states ...State) []Finding {
		var out []Finding
		for _, s := range states {
			out = append(out, Finding{State: s, Gated: true})
		}
		return append(out, Finding{State: Regressed})
	}
	for _, c := range []struct {
		in   []Finding
		want State
	}{{f(Unchanged, Improved), Improved}, {f(Unchanged, Inconclusive), Inconclusive}, {f(Inconclusive, Regressed), Regressed}, {f(), Inconclusive}, {f(Small, Unchanged), Small}} {
		if got := Overall(c.in); got != c.want {
			t.Errorf("%+v: %s, want %s", c.in, got, c.want)
		}
	}
}
