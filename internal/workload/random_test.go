package workload

import (
	"math"
	"testing"
)

func TestElementaryFunctions(t *testing.T) {
	s := source{1}
	for range 20000 {
		x := s.normal() * 50
		if got, want := exp(x), math.Exp(x); math.Abs(got/want-1) > 1e-14 {
			t.Fatalf("exp(%v) = %v, want %v", x, got, want)
		}
		y := exp(x)
		if got, want := ln(y), math.Log(y); math.Abs(got-want) > 1e-13 {
			t.Fatalf("ln(%v) = %v, want %v", y, got, want)
		}
	}
	if ln(1) != 0 || exp(0) != 1 || !math.IsInf(exp(1000), 1) || exp(-1000) != 0 {
		t.Error("the corners are wrong")
	}
}

// moments draws n values and returns mean and variance.
func moments(n int, draw func() float64) (mean, variance float64) {
	for range n {
		x := draw()
		mean += x / float64(n)
		variance += x * x / float64(n)
	}
	return mean, variance - mean*mean
}

func TestMomentsOfDraws(t *testing.T) {
	s := source{2}
	for _, test := range []struct {
		name           string
		draw           func() float64
		mean, variance float64
	}{
		{"uniform", s.uniform, 0.5, 1.0 / 12},
		{"exponential", s.exponential, 1, 1},
		{"normal", s.normal, 0, 1},
		{"gamma 0.3", func() float64 { return s.gamma(0.3) }, 1, 1 / 0.3},
		{"gamma 1", func() float64 { return s.gamma(1) }, 1, 1},
		{"gamma 8", func() float64 { return s.gamma(8) }, 1, 1.0 / 8},
		{"poisson 3", func() float64 { return float64(s.poisson(3)) }, 3, 3},
		{"poisson 500", func() float64 { return float64(s.poisson(500)) }, 500, 500},
	} {
		const n = 60000
		mean, variance := moments(n, test.draw)
		if se := math.Sqrt(test.variance / n); math.Abs(mean-test.mean) > 5*se {
			t.Errorf("%s: mean %v, want %v", test.name, mean, test.mean)
		}
		if math.Abs(variance/test.variance-1) > 0.06 {
			t.Errorf("%s: variance %v, want %v", test.name, variance, test.variance)
		}
	}
}

// TestDrawsNeverChange holds the first draws of each kind: a trace must come out the same on every machine and in every version.
func TestDrawsNeverChange(t *testing.T) {
	s := source{42}
	got := []float64{s.uniform(), s.exponential(), s.normal(), s.gamma(0.4), s.gamma(3), float64(s.poisson(100)), float64(s.below(1000)), ln(3), exp(1.5)}
	want := []float64{0.7415648787718233, 1.8331416651510675, -1.2810773478777024, 0.41964196332001785, 0.3097645834281853, 95, 277, 1.0986122886681096, 4.4816890703380645}
	for i, w := range want {
		if got[i] != w {
			t.Errorf("draw %d is %v, was %v", i, got[i], w)
		}
	}
}
