package stats

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestStudentTPublished(t *testing.T) {
	// Any table of Student's t.
	for _, c := range []struct{ p, df, want float64 }{{0.975, 10, 2.228139}, {0.95, 5, 2.015048}, {0.99, 1, 31.820516}, {0.975, 1e7, 1.959964}} {
		if got := StudentT(c.p, c.df); math.Abs(got-c.want) > 1e-5 {
			t.Errorf("t(%v, %v) = %v, want %v", c.p, c.df, got, c.want)
		}
	}
	if !math.IsNaN(StudentT(0.9, 0)) {
		t.Error("t without degrees of freedom is not NaN")
	}
}

// TestModerateIsStudentsWithoutAPrior uses the differences that Student published with the test: t = 4.0621, p = 0.00283 two-sided.
func TestModerateIsStudentsWithoutAPrior(t *testing.T) {
	e := Moderate([]float64{1.2, 2.4, 1.3, 1.3, 0, 1, 1.8, 0.8, 4.6, 1.4}, Prior{})
	if got := e.Mean / e.SE(); math.Abs(got-4.0621) > 1e-4 {
		t.Errorf("t = %v, want 4.0621", got)
	}
	if got := 2 * e.P(); math.Abs(got-0.002833) > 1e-6 {
		t.Errorf("p = %v, want 0.002833", got)
	}
	lo, hi := e.Lower(0.025), e.Upper(0.025) // published 95 % interval: 0.70 to 2.46
	if math.Abs(lo-0.7001) > 1e-3 || math.Abs(hi-2.4599) > 1e-3 {
		t.Errorf("interval %v to %v, want 0.7001 to 2.4599", lo, hi)
	}
}

func TestModerateShrinks(t *testing.T) {
	d := []float64{0.9, 1, 1.1}
	own := Moderate(d, Prior{})
	strong := Moderate(d, Prior{Sigma: 2, DF: 1e9})
	if math.Abs(own.SD-0.1) > 1e-12 || math.Abs(strong.SD-2) > 1e-6 {
		t.Errorf("own %v, with a certain prior %v", own.SD, strong.SD)
	}
	mixed := Moderate(d, Prior{Sigma: 0.3, DF: 4}) // (4×0.09 + 2×0.01) ÷ 6
	if math.Abs(mixed.SD-math.Sqrt(0.38/6)) > 1e-12 || mixed.DF != 6 || mixed.Noisy {
		t.Errorf("mixed %+v", mixed)
	}
	if e := Moderate([]float64{-3, 0, 3}, Prior{Sigma: 0.1, DF: 12}); !e.Noisy || e.SD < 3 {
		t.Errorf("differences thirty times the prior's: %+v", e)
	}
}

func TestModerateKnowsNothing(t *testing.T) {
	for _, d := range [][]float64{nil, {0.1}} {
		e := Moderate(d, Prior{})
		if !math.IsInf(e.Lower(0.02), -1) || !math.IsInf(e.Upper(0.02), 1) || e.P() != 0.5 || e.Needed(0.05, 0.02, 0.8) != 0 || !math.IsInf(e.Detectable(0.02, 0.8), 1) {
			t.Errorf("%v: %+v says something", d, e)
		}
	}
	if e := Moderate([]float64{0.1}, Prior{Sigma: 0.01, DF: 12}); math.IsInf(e.Lower(0.02), -1) {
		t.Error("one difference and a prior say nothing")
	}
}

// TestBoundsCover draws differences of known mean: the lower bound exceeds it as often as its level says, with the prior estimated from
// other draws.
func TestBoundsCover(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	const trials, alpha = 20000, 0.05
	for _, pairs := range []int{3, 5} {
		above := 0
		for range trials {
			history := make([]float64, 30)
			for i := range history {
				history[i] = r.NormFloat64()
			}
			d := make([]float64, pairs)
			for i := range d {
				d[i] = 1 + r.NormFloat64()
			}
			if Moderate(d, PriorOf(history)).Lower(alpha) > 1 {
				above++
			}
		}
		if got := float64(above) / trials; got < 0.035 || got > 0.065 {
			t.Errorf("%d pairs: the bound lies above the truth in %.3f of trials, its level is %v", pairs, got, alpha)
		}
	}
}

func TestDetectableIsFoundWithItsPower(t *testing.T) {
	r := rand.New(rand.NewPCG(13, 14))
	p := Prior{Sigma: 1, DF: 1e9} // the truth is known: the figure is exact
	at := Moderate(make([]float64, 5), p).Detectable(0.02, 0.8)
	found, trials := 0, 20000
	for range trials {
		d := make([]float64, 5)
		for i := range d {
			d[i] = at + r.NormFloat64()
		}
		if Moderate(d, p).Lower(0.02) > 0 {
			found++
		}
	}
	if got := float64(found) / float64(trials); math.Abs(got-0.8) > 0.01 {
		t.Errorf("a change of the detectable size is found in %.3f, want 0.80", got)
	}
	if n := Moderate(make([]float64, 5), p).Needed(at, 0.02, 0.8); n != 5 && n != 6 {
		t.Errorf("%d pairs for what 5 can see", n)
	}
}

func TestPriorOf(t *testing.T) {
	r := rand.New(rand.NewPCG(15, 16))
	d := make([]float64, 4000)
	for i := range d {
		d[i] = 3 * r.NormFloat64()
	}
	if p := PriorOf(d); math.Abs(p.Sigma-3) > 0.15 || p.DF != 20 {
		t.Errorf("prior of 4,000 draws with deviation 3: %+v", p)
	}
	if p := PriorOf(d[:9]); p != (Prior{}) {
		t.Errorf("nine differences are a prior: %+v", p)
	}
	if p := PriorOf(d[:30]); math.Abs(p.DF-11.1) > 1e-9 {
		t.Errorf("thirty differences are worth %v", p.DF)
	}
	spoiled := append(slices.Clone(d[:30]), math.NaN(), math.Inf(1))
	if PriorOf(spoiled) != PriorOf(d[:30]) {
		t.Error("NaN and infinities count")
	}
}

// TestMultiplePublished is the example of Benjamini and Hochberg's paper (J. R. Stat. Soc. B 57, 1995, 3.2): of fifteen hypotheses
// their procedure rejects four at 0.05, a family-wise one three.
func TestMultiplePublished(t *testing.T) {
	p := []float64{0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240, 0.4262, 0.5719, 0.6528, 0.7590, 1.0}
	count := func(b []bool) (n int) {
		for _, v := range b {
			if v {
				n++
			}
		}
		return n
	}
	r := rand.New(rand.NewPCG(17, 18))
	r.Shuffle(len(p), func(i, j int) { p[i], p[j] = p[j], p[i] })
	if n := count(BenjaminiHochberg(p, 0.05)); n != 4 {
		t.Errorf("Benjamini-Hochberg rejects %d, want 4", n)
	}
	if n := count(Holm(p, 0.05)); n != 3 {
		t.Errorf("Holm rejects %d, want 3", n)
	}
	if got := Holm([]float64{0.01, 0.04, 0.03, 0.005}, 0.05); !slices.Equal(got, []bool{true, false, false, true}) {
		t.Errorf("Holm of R's p.adjust example: %v", got)
	}
	if got := Holm([]float64{math.NaN(), 0.001}, 0.05); got[0] {
		t.Error("NaN is rejected")
	}
}

// TestCUSUMRunLengths compares mean run lengths with the published ones for k = 0.5, h = 5: 465 without a shift, 10.4 at one deviation
// (Montgomery, Introduction to Statistical Quality Control, table 9.3).
func TestCUSUMRunLengths(t *testing.T) {
	r := rand.New(rand.NewPCG(19, 20))
	for _, c := range []struct{ shift, want float64 }{{0, 465}, {1, 10.4}} {
		const trials = 3000
		total := 0
		for range trials {
			z := noise(r, 6000, c.shift, 1)
			if a := (CUSUM{0.5, 5}).Run(z); len(a) > 0 {
				total += a[0].At + 1
			} else {
				total += len(z)
			}
		}
		if got := float64(total) / trials; math.Abs(got/c.want-1) > 0.06 {
			t.Errorf("shift %v: mean run length %v, published %v", c.shift, got, c.want)
		}
	}
	a := CUSUM{0.5, 8}.Run([]float64{0, 0, 0, 3, 3, 3, 3, 3})
	if len(a) != 1 || a[0].At != 6 || a[0].Since != 3 || !a[0].Up {
		t.Errorf("a jump of three deviations: %+v", a)
	}
}

func TestBinomialIntervalPublished(t *testing.T) {
	// 0 of n: the upper end of 95 % is 1 − 0.025^(1/n); 10 of 100: 4.90 to 17.62 %, as R's binom.test prints.
	if lo, hi := BinomialInterval(0, 400, 0.95); lo != 0 || math.Abs(hi-(1-math.Pow(0.025, 1.0/400))) > 1e-9 {
		t.Errorf("0 of 400: %v to %v", lo, hi)
	}
	if lo, hi := BinomialInterval(10, 100, 0.95); math.Abs(lo-0.04900469) > 1e-6 || math.Abs(hi-0.17622260) > 1e-6 {
		t.Errorf("10 of 100: %v to %v", lo, hi)
	}
	if lo, hi := BinomialInterval(5, 5, 0.95); hi != 1 || !(lo > 0.4) {
		t.Errorf("5 of 5: %v to %v", lo, hi)
	}
}
