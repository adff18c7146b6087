package workload

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"
)

// Length is a distribution of token counts. Draws are rounded to whole tokens, at least 1, at most Max.
type Length struct {
	Family string    `json:"family"`
	Mean   float64   `json:"mean,omitempty"`   // fixed, exponential, gamma
	CV     float64   `json:"cv,omitempty"`     // gamma: standard deviation ÷ mean
	Low    float64   `json:"low,omitempty"`    // uniform
	High   float64   `json:"high,omitempty"`   // uniform
	P50    float64   `json:"p50,omitempty"`    // lognormal, mixture
	P99    float64   `json:"p99,omitempty"`    // lognormal, mixture
	Share  float64   `json:"share,omitempty"`  // mixture: share of the Pareto tail
	Min    float64   `json:"min,omitempty"`    // mixture: where the Pareto tail begins
	Alpha  float64   `json:"alpha,omitempty"`  // mixture: exponent of the Pareto tail
	Values []float64 `json:"values,omitempty"` // table: ascending, each as likely as the others
	Max    float64   `json:"max,omitempty"`    // 0: a million
}

// The families of lengths.
const (
	Fixed       = "fixed"
	Uniform     = "uniform"
	Lognormal   = "lognormal"
	Exponential = "exponential"
	GammaLength = "gamma"
	Mixture     = "mixture" // log-normal body and Pareto tail
	Table       = "table"   // values as they were seen
)

// z99 is the 99th percentile of the normal law.
const z99 = 2.3263478740408408

// maxLength bounds draws that have no Max, in tokens.
const maxLength = 1_000_000

// Validate reports parameters that describe no distribution.
func (l Length) Validate() error {
	var errs []error
	want := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf("length "+l.Family+": "+format, args...))
		}
	}
	for _, v := range []float64{l.Mean, l.CV, l.Low, l.High, l.P50, l.P99, l.Share, l.Min, l.Alpha, l.Max} {
		want(v >= 0 && v <= 1e12, "%v must be between 0 and 1e12", v)
	}
	switch l.Family {
	case Fixed, Exponential:
		want(l.Mean > 0, "mean %v must be positive", l.Mean)
	case GammaLength:
		want(l.Mean > 0 && l.CV > 0, "mean %v and cv %v must be positive", l.Mean, l.CV)
	case Uniform:
		want(l.Low > 0 && l.High >= l.Low, "%v to %v is no range", l.Low, l.High)
	case Lognormal, Mixture:
		want(l.P50 > 0 && l.P99 >= l.P50, "p50 %v and p99 %v must be positive and ascend", l.P50, l.P99)
		if l.Family == Mixture {
			want(l.Share <= 1 && l.Min > 0 && l.Alpha > 0, "share %v, min %v, alpha %v must be a share and positive", l.Share, l.Min, l.Alpha)
		}
	case Table:
		want(len(l.Values) > 0 && sort.Float64sAreSorted(l.Values), "%d values must be some and ascend", len(l.Values))
	default:
		want(false, "there are fixed, uniform, lognormal, exponential, gamma, mixture and table")
	}
	return errors.Join(errs...)
}

// draw returns a number of tokens.
func (l Length) draw(s *source) int64 {
	x := 0.0
	switch l.Family {
	case Fixed:
		x = l.Mean
	case Uniform:
		lo, hi := int64(math.Round(l.Low)), int64(math.Round(l.High))
		x = float64(lo + int64(s.below(int(hi-lo+1))))
	case Exponential:
		x = float64(l.Mean * s.exponential())
	case GammaLength:
		x = float64(l.Mean * s.gamma(1/float64(l.CV*l.CV)))
	case Lognormal:
		x = l.body(s)
	case Mixture:
		if s.uniform() < l.Share {
			x = float64(l.Min * exp(-ln(s.positive())/l.Alpha))
		} else {
			x = l.body(s)
		}
	case Table:
		x = l.Values[s.below(len(l.Values))]
	}
	top := l.Max
	if top == 0 {
		top = maxLength
	}
	return max(1, int64(math.Round(min(x, top))))
}

func (l Length) body(s *source) float64 {
	sigma := ln(l.P99/l.P50) / z99
	return float64(l.P50 * exp(float64(sigma*s.normal())))
}

// tableValues is how many values a table keeps.
const tableValues = 1000

// TableOf is the distribution of values as they were seen: up to 1,000 means of equal parts of them. It sorts values.
func TableOf(values []float64) (Length, error) {
	if len(values) == 0 {
		return Length{}, errors.New("length table: no values")
	}
	sort.Float64s(values)
	l := Length{Family: Table, Max: values[len(values)-1], Values: Condense(values, tableValues)}
	return l, l.Validate()
}

// Condense returns the means of k equal parts of sorted values, or the values themselves where they are no more. The mean of all is kept
// but for rounding to a tenth.
func Condense(sorted []float64, k int) []float64 {
	n := len(sorted)
	k = min(k, n)
	out := make([]float64, k)
	for i := range out {
		// Part i holds the values of rank i n/k to (i+1) n/k, those at its ends by their share.
		lo, hi := float64(i)*float64(n)/float64(k), float64(i+1)*float64(n)/float64(k)
		sum := 0.0
		for j := int(lo); j < n && float64(j) < hi; j++ {
			sum += sorted[j] * (min(hi, float64(j+1)) - max(lo, float64(j)))
		}
		out[i] = math.Round(sum/(hi-lo)*10) / 10
	}
	return out
}

// LengthsOf condenses pairs of input and output tokens: equal parts by input, and of each part's outputs again equal parts. Both means are
// kept. It sorts pairs, of which there must be one.
func LengthsOf(pairs [][2]float64, parts, outputs int) (l Lengths) {
	slices.SortFunc(pairs, func(a, b [2]float64) int { return cmp.Or(cmp.Compare(a[0], b[0]), cmp.Compare(a[1], b[1])) })
	inputs := make([]float64, len(pairs))
	for i, p := range pairs {
		inputs[i] = p[0]
	}
	l.Inputs = Condense(inputs, parts)
	k := len(l.Inputs)
	for i := range k {
		lo, hi := i*len(pairs)/k, (i+1)*len(pairs)/k
		var out []float64
		for _, p := range pairs[lo:max(hi, lo+1)] {
			out = append(out, p[1])
		}
		sort.Float64s(out)
		l.Outputs = append(l.Outputs, Condense(out, outputs))
	}
	return l
}
