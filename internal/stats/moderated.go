package stats

import (
	"math"
	"slices"

	"gonum.org/v1/gonum/stat/distuv"
)

// Prior is what earlier differences say about the deviation of one more: Sigma, worth DF degrees of freedom. The zero value is none.
type Prior struct {
	Sigma float64 `json:"sigma"`
	DF    float64 `json:"df"`
}

// The weight of a prior: a robust deviation of n differences around a known centre is worth 0.37 n degrees of freedom (the median
// absolute deviation's efficiency at the normal), and never more than twenty; fewer than ten are none.
const (
	priorShare = 0.37
	priorMost  = 20
	priorLeast = 10
)

// PriorOf makes a prior of differences that are known to have no centre but 0: of pairs of the same thing.
func PriorOf(differences []float64) Prior {
	all := make([]float64, 0, len(differences))
	for _, d := range differences {
		if !math.IsNaN(d) && !math.IsInf(d, 0) {
			all = append(all, math.Abs(d))
		}
	}
	if len(all) < priorLeast {
		return Prior{}
	}
	return Prior{Sigma: madScale * Median(all), DF: min(priorShare*float64(len(all)), priorMost)}
}

// Estimate is the mean of a few differences with what is known of its uncertainty.
type Estimate struct {
	N     int
	Mean  float64
	SD    float64 // of one difference, shrunk towards the prior; NaN where nothing is known
	DF    float64
	Noisy bool // the differences vary more than the prior allows (F test at 1 %); SD is then no smaller than their own
}

// Moderate is Smyth's moderated t statistic for one series: its variance is the average of the prior's and its own, weighted by their
// degrees of freedom. Source: Smyth, Linear models and empirical Bayes methods, Stat. Appl. Genet. Mol. Biol. 3 (2004), 3.
func Moderate(d []float64, p Prior) Estimate {
	e := Estimate{N: len(d), Mean: math.NaN(), SD: math.NaN()}
	if e.N == 0 {
		return e
	}
	var m Moments
	for _, x := range d {
		m.Add(x, 1)
	}
	e.Mean = m.Mean()
	own, df := 0.0, float64(e.N-1)
	if df > 0 {
		own = m.Var() * float64(e.N) / df
	}
	if e.DF = p.DF + df; e.DF <= 0 {
		return e
	}
	v := (p.DF*p.Sigma*p.Sigma + df*own) / e.DF
	if df > 0 && p.DF > 0 && own > p.Sigma*p.Sigma*(distuv.F{D1: df, D2: p.DF}).Quantile(0.99) {
		e.Noisy = true
		v = max(v, own)
	}
	e.SD = math.Sqrt(v)
	return e
}

// SE is the standard error of the mean.
func (e Estimate) SE() float64 { return e.SD / math.Sqrt(float64(e.N)) }

// StudentT is the quantile of Student's t with df degrees of freedom, which need not be whole; NaN without any.
func StudentT(p, df float64) float64 {
	if !(df > 0) || !(p > 0 && p < 1) {
		return math.NaN()
	}
	return distuv.StudentsT{Mu: 0, Sigma: 1, Nu: df}.Quantile(p)
}

// Lower is the one-sided lower bound of the mean at level alpha: what the true mean lies below with probability alpha at most. It is
// −Inf where nothing is known.
func (e Estimate) Lower(alpha float64) float64 { return e.bound(alpha, -1) }

// Upper is the one-sided upper bound; +Inf where nothing is known.
func (e Estimate) Upper(alpha float64) float64 { return e.bound(alpha, 1) }

func (e Estimate) bound(alpha, sign float64) float64 {
	if math.IsNaN(e.SD) || !(e.DF > 0) {
		return sign * math.Inf(1)
	}
	return e.Mean + sign*StudentT(1-alpha, e.DF)*e.SE()
}

// P is the one-sided p-value of a mean above 0: small speaks for it, near 1 for a mean below. Where nothing is known it is 0.5.
func (e Estimate) P() float64 {
	switch {
	case math.IsNaN(e.SD) || !(e.DF > 0):
		return 0.5
	case e.SD == 0 && e.Mean == 0:
		return 0.5
	case e.SD == 0:
		return map[bool]float64{true: 0, false: 1}[e.Mean > 0]
	}
	return distuv.StudentsT{Mu: 0, Sigma: 1, Nu: e.DF}.Survival(e.Mean / e.SE())
}

// Detectable is the true mean that a one-sided test at level alpha finds with the given power; +Inf where nothing is known.
func (e Estimate) Detectable(alpha, power float64) float64 {
	if math.IsNaN(e.SD) || !(e.DF > 0) {
		return math.Inf(1)
	}
	return (StudentT(1-alpha, e.DF) + StudentT(power, e.DF)) * e.SE()
}

// Needed is how many differences in all it takes to find delta at level alpha with the given power, if they vary as these do; 0 where
// nothing is known. The quantiles are those of the degrees of freedom at hand, so it is a little pessimistic.
func (e Estimate) Needed(delta, alpha, power float64) int {
	if math.IsNaN(e.SD) || !(e.DF > 0) || !(delta > 0) {
		return 0
	}
	n := (StudentT(1-alpha, e.DF) + StudentT(power, e.DF)) * e.SD / delta
	if n*n > 1e6 {
		return 1e6
	}
	return max(1, int(math.Ceil(n*n)))
}

// madScale makes the median absolute deviation of a normal sample its standard deviation: 1 ÷ Φ⁻¹(¾).
const madScale = 1.482602218505602

// Median of values in any order, by linear interpolation; NaN for none. x is left as it was.
func Median(x []float64) float64 {
	s := slices.Clone(x)
	slices.Sort(s)
	return Quantile(s, 0.5)
}

// RobustSD is the median absolute deviation from the median, scaled to the standard deviation of a normal sample; NaN for none.
func RobustSD(x []float64) float64 {
	m := Median(x)
	d := make([]float64, len(x))
	for i, v := range x {
		d[i] = math.Abs(v - m)
	}
	return madScale * Median(d)
}

// BinomialInterval is the interval of Clopper and Pearson for a share of which k of n were seen: exact, never too narrow.
func BinomialInterval(k, n int, confidence float64) (lo, hi float64) {
	if n <= 0 || k < 0 || k > n {
		return math.NaN(), math.NaN()
	}
	tail := (1 - confidence) / 2
	lo, hi = 0, 1
	if k > 0 {
		lo = distuv.Beta{Alpha: float64(k), Beta: float64(n - k + 1)}.Quantile(tail)
	}
	if k < n {
		hi = distuv.Beta{Alpha: float64(k + 1), Beta: float64(n - k)}.Quantile(1 - tail)
	}
	return lo, hi
}
