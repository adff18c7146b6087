package workload

import (
	"errors"
	"fmt"
	"math"
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
		want(v >= 0 && v <= 1e12, "%v must be a number that is not negative", v)
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

// FitLength fits a parametric family to values, by its moments or quantiles: exponential and gamma by the mean (and CV), lognormal by the
// median and the standard deviation of logarithms, mixture by a lognormal below the 95th percentile and Hill's exponent above it.
// Table keeps up to 1,000 means of equal parts of the sorted values. It sorts values.
func FitLength(family string, values []float64) (Length, error) {
	if len(values) == 0 {
		return Length{}, fmt.Errorf("fit length %s: no values", family)
	}
	sort.Float64s(values)
	n := float64(len(values))
	mean, square, logs, logSquare := 0.0, 0.0, 0.0, 0.0
	for _, v := range values {
		mean += v / n
		square += v * v / n
		logs += math.Log(max(v, 1)) / n
		logSquare += math.Log(max(v, 1)) * math.Log(max(v, 1)) / n
	}
	l := Length{Family: family, Max: values[len(values)-1]}
	sigma := math.Sqrt(max(logSquare-logs*logs, 0))
	switch family {
	case Fixed, Exponential:
		l.Mean = mean
	case GammaLength:
		l.Mean, l.CV = mean, max(math.Sqrt(max(square-mean*mean, 0))/mean, 1e-3)
	case Lognormal:
		l.P50 = math.Exp(logs)
		l.P99 = l.P50 * math.Exp(z99*sigma)
	case Mixture:
		cut := int(0.95 * n)
		l.Share, l.Min = 1-float64(cut)/n, values[min(cut, len(values)-1)]
		hill := 0.0
		for _, v := range values[cut:] {
			hill += math.Log(v / l.Min)
		}
		l.Alpha = math.Min(50, max(n-float64(cut), 1)/max(hill, 1e-9))
		body, err := FitLength(Lognormal, append([]float64(nil), values[:max(cut, 1)]...))
		if err != nil {
			return l, err
		}
		l.P50, l.P99 = body.P50, body.P99
	case Table:
		l.Values = condense(values, 1000)
	default:
		return l, fmt.Errorf("fit length %q: there are fixed, exponential, gamma, lognormal, mixture and table", family)
	}
	return l, l.Validate()
}

// condense returns the means of k equal parts of sorted values, or the values themselves where they are no more. The mean of all is kept
// but for rounding to a tenth.
func condense(sorted []float64, k int) []float64 {
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
