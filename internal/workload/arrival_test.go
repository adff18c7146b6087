package workload

import (
	"math"
	"testing"
)

// times draws the arrivals of a process up to a time, in seconds.
func times(a Arrival, seed uint64, until float64) []float64 {
	c := newClock(a, source{seed})
	var at []float64
	for t := c.gap(); t < until; t += c.gap() {
		at = append(at, t)
	}
	return at
}

// dispersion is the index of dispersion of counts.
func dispersion(at []float64, until, window float64) float64 {
	counts := make([]float64, int(until/window))
	for _, t := range at {
		if i := int(t / window); i < len(counts) {
			counts[i]++
		}
	}
	mean, variance := 0.0, 0.0
	for _, n := range counts {
		mean += n / float64(len(counts))
		variance += n * n / float64(len(counts))
	}
	return (variance - mean*mean) / mean
}

// autocorrelation of consecutive gaps.
func autocorrelation(at []float64) float64 {
	var gaps []float64
	for i := 1; i < len(at); i++ {
		gaps = append(gaps, at[i]-at[i-1])
	}
	mean := 0.0
	for _, g := range gaps {
		mean += g / float64(len(gaps))
	}
	num, den := 0.0, 0.0
	for i, g := range gaps {
		den += (g - mean) * (g - mean)
		if i > 0 {
			num += (g - mean) * (gaps[i-1] - mean)
		}
	}
	return num / den
}

// gapCorrelation is the autocorrelation of an mmpp's consecutive gaps in closed form (Fischer and Meier-Hellstern 1993): with the gap's
// moments from M, the inverse of rates less transitions, and arrivals from one state to the other by M times the rates.
func gapCorrelation(a Arrival) float64 {
	off, on := a.Rates()
	up, down := 1/a.Off, 1/a.On
	det := (off+up)*(on+down) - up*down
	m := [2][2]float64{{(on + down) / det, up / det}, {down / det, (off + up) / det}}
	begin := [2]float64{a.Off * off, a.On * on} // the state that an arrival leaves behind
	sum := begin[0] + begin[1]
	begin[0], begin[1] = begin[0]/sum, begin[1]/sum
	row := func(v [2]float64, m [2][2]float64) [2]float64 {
		return [2]float64{v[0]*m[0][0] + v[1]*m[1][0], v[0]*m[0][1] + v[1]*m[1][1]}
	}
	first := row(begin, m)
	mean := first[0] + first[1]
	second := row(first, m)
	square := 2 * (second[0] + second[1])
	next := row(row(first, [2][2]float64{{m[0][0] * off, m[0][1] * on}, {m[1][0] * off, m[1][1] * on}}), m)
	return (next[0] + next[1] - mean*mean) / (square - mean*mean)
}

// TestArrivalsHaveTheirDispersion compares generated processes with the closed forms: rate, index of dispersion over windows of several
// lengths, and the autocorrelation of gaps, which is 0 for renewal processes.
func TestArrivalsHaveTheirDispersion(t *testing.T) {
	const until = 60_000
	for _, test := range []struct {
		a         Arrival
		windows   []float64
		tolerance float64
	}{
		{Arrival{Family: Constant, Rate: 5}, []float64{1, 10}, 0.01},
		{Arrival{Family: Poisson, Rate: 5}, []float64{1, 10, 60}, 0.1},
		{Arrival{Family: Gamma, Rate: 5, CV: 2}, []float64{30, 60}, 0.15},
		{Arrival{Family: Gamma, Rate: 5, CV: 0.5}, []float64{30, 60}, 0.15},
		{Arrival{Family: Weibull, Rate: 5, CV: 2}, []float64{30, 60}, 0.15},
		{Arrival{Family: MMPP, Rate: 5, Burst: 10, On: 10, Off: 50}, []float64{1, 10, 60}, 0.2},
		{Arrival{Family: MMPP, Rate: 2, On: 5, Off: 20}, []float64{1, 10, 60}, 0.2},
	} {
		at := times(test.a, 7, until)
		for _, w := range test.windows {
			want := test.a.IDC(w)
			if got := dispersion(at, until, w); math.Abs(got-want) > test.tolerance*max(want, 1) {
				t.Errorf("%+v: IDC over %v s is %v, closed form %v", test.a, w, got, want)
			}
		}
		// The variance of the count tells how far the mean rate may be off.
		idc := max(test.a.IDC(until), 1.0/until)
		if got, se := float64(len(at))/until, math.Sqrt(idc*test.a.Rate/until); math.Abs(got-test.a.Rate) > 5*se {
			t.Errorf("%+v: rate %v, five standard errors are %v", test.a, got, 5*se)
		}
		if test.a.Family == Constant {
			continue
		}
		r, want, tolerance := autocorrelation(at), 0.0, 5/math.Sqrt(float64(len(at)))
		if test.a.Family == MMPP && test.a.Burst > 0 { // without arrivals while off it is a renewal process: what came before is forgotten
			want, tolerance = gapCorrelation(test.a), 0.015
		}
		if math.Abs(r-want) > tolerance {
			t.Errorf("%+v: autocorrelation of gaps %v, closed form %v", test.a, r, want)
		}
	}
}

// TestGapsHaveTheirCV checks the renewal families' gaps.
func TestGapsHaveTheirCV(t *testing.T) {
	for _, a := range []Arrival{
		{Family: Gamma, Rate: 3, CV: 3}, {Family: Gamma, Rate: 3, CV: 0.4}, {Family: Weibull, Rate: 3, CV: 3}, {Family: Weibull, Rate: 3, CV: 0.4}, {Family: Poisson, Rate: 3, CV: 1},
	} {
		c := newClock(a, source{3})
		mean, variance := moments(100000, c.gap)
		if math.Abs(mean*a.Rate-1) > 0.05 || math.Abs(math.Sqrt(variance)/mean/a.CV-1) > 0.06 {
			t.Errorf("%+v: mean gap %v, cv %v", a, mean, math.Sqrt(variance)/mean)
		}
	}
}

// TestRatesThatChange compares counts in slices of time with the integral of the rate.
func TestRatesThatChange(t *testing.T) {
	ramp := Arrival{Family: Ramp, Rate: 10, From: 0.5, To: 2, Over: 10000}
	diurnal := Arrival{Family: Diurnal, Rate: 10, Peak: 4, Period: 10000}
	for _, a := range []Arrival{ramp, diurnal} {
		at := times(a, 5, 10000)
		for k := range 10 {
			lo, hi := float64(k)*1000, float64(k+1)*1000
			n, want := 0.0, 0.0
			for _, x := range at {
				if x >= lo && x < hi {
					n++
				}
			}
			for s := range 1000 {
				x := (lo + float64(s) + 0.5) / 10000
				if a.Family == Ramp {
					want += 10 * (0.5 + 1.5*x)
				} else {
					want += 10 * (1 - 0.6*math.Cos(2*math.Pi*x))
				}
			}
			if math.Abs(n-want) > 5*math.Sqrt(want) {
				t.Errorf("%s, slice %d: %v arrivals, want %v", a.Family, k, n, want)
			}
		}
	}
	for x := -3.0; x < 3; x += 0.001 {
		if got, want := cosine(x), math.Cos(2*math.Pi*x); math.Abs(got-want) > 1e-13 {
			t.Fatalf("cosine(%v) = %v, want %v", x, got, want)
		}
	}
}

func TestArrivalValidate(t *testing.T) {
	for _, a := range []Arrival{
		{}, {Family: Poisson}, {Family: "burst", Rate: 1}, {Family: Gamma, Rate: 1}, {Family: Weibull, Rate: 1, CV: 50}, {Family: MMPP, Rate: 1, On: 1},
		{Family: MMPP, Rate: 1, On: 1, Off: 1, Burst: -1}, {Family: Ramp, Rate: 1, Over: 10}, {Family: Diurnal, Rate: 1, Peak: 0.5, Period: 1}, {Family: Poisson, Rate: math.NaN()},
	} {
		if a.Validate() == nil {
			t.Errorf("%+v was taken", a)
		}
	}
}
