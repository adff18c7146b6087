package stats

import (
	"math"
	"sort"
)

// Quantile returns the p-quantile of values sorted ascending, by linear interpolation at index (n−1)p (type 7 of Hyndman and Fan,
// numpy's default). It is NaN for no values.
func Quantile(sorted []float64, p float64) float64 {
	n := len(sorted)
	if n == 0 || math.IsNaN(p) {
		return math.NaN()
	}
	h := float64(n-1) * min(max(p, 0), 1)
	lo := int(h)
	if lo+1 >= n {
		return sorted[n-1]
	}
	return lerp(sorted[lo], sorted[lo+1], h-float64(lo))
}

// lerp interpolates without a rounding error where both ends are equal or f is 0.
func lerp(a, b, f float64) float64 {
	if a == b || f == 0 {
		return a
	}
	return a + f*(b-a)
}

// floorConfidence is the confidence at which Floor lets a percentile be known.
const floorConfidence = 0.99

// Floor returns how many samples it takes to know the p-quantile (0 < p < 1) at 99 % confidence with one sample over it allowed:
// MLPerf LoadGen's early-stopping rule, the smallest n = h + 1 with I_p(h, 2) ≤ 0.01, which is P(at most one of n lies above) ≤ 0.01.
// p90 needs 64, p95 130, p99 662, p99.9 6,636.
func Floor(p float64) int {
	if !(p > 0 && p < 1) {
		return math.MaxInt
	}
	tooFew := func(n int) bool {
		// P(Bin(n, 1−p) ≤ 1) = p^n + n(1−p)p^(n−1)
		x := float64(n)
		return math.Exp(x*math.Log(p))+x*(1-p)*math.Exp((x-1)*math.Log(p)) > 1-floorConfidence
	}
	hi := 2
	for tooFew(hi) {
		hi *= 2
	}
	return hi/2 + sort.Search(hi/2, func(i int) bool { return !tooFew(hi/2 + i) })
}

// OrderInterval returns the ranks (from 0, of n ascending samples) of the order statistics that enclose the p-quantile with at least
// the given confidence: P(lo < Bin(n, p) ≤ hi) ≥ confidence, the tails shared equally. ok is false where n samples cannot enclose
// it on both sides; then the interval is open and no number stands for it. Source: David and Nagaraja, Order Statistics, 7.1.
func OrderInterval(n int, p, confidence float64) (lo, hi int, ok bool) {
	if n < 2 || !(p > 0 && p < 1) {
		return 0, 0, false
	}
	tail := (1 - confidence) / 2
	// X(l) with l from 1 covers below where P(Bin ≤ l−1) ≤ tail; X(u) covers above where P(Bin ≤ u−1) ≥ 1 − tail.
	l := searchBinomial(n, p, func(cdf float64) bool { return cdf > tail })    // smallest k with P(Bin ≤ k) > tail; ranks l = k
	u := searchBinomial(n, p, func(cdf float64) bool { return cdf >= 1-tail }) // smallest k with P(Bin ≤ k) ≥ 1 − tail; rank u = k + 1
	if l < 1 || u+1 > n {
		return 0, 0, false
	}
	return l - 1, u, true
}

// searchBinomial returns the smallest k in [0, n] for which ok(P(Bin(n, p) ≤ k)) holds; ok must be monotone.
func searchBinomial(n int, p float64, ok func(float64) bool) int {
	if n > 20000 { // the normal approximation with continuity correction is exact to far below one rank in a thousand here
		mean, sd := float64(n)*p, math.Sqrt(float64(n)*p*(1-p))
		return sort.Search(n, func(k int) bool { return ok(normalCDF((float64(k) + 0.5 - mean) / sd)) })
	}
	lp, lq := math.Log(p), math.Log1p(-p)
	ln, _ := math.Lgamma(float64(n + 1))
	cdf := 0.0
	for k := 0; k < n; k++ {
		a, _ := math.Lgamma(float64(k + 1))
		b, _ := math.Lgamma(float64(n - k + 1))
		cdf += math.Exp(ln - a - b + float64(k)*lp + float64(n-k)*lq)
		if ok(cdf) {
			return k
		}
	}
	return n
}

// normalCDF is the standard normal distribution function.
func normalCDF(z float64) float64 { return math.Erfc(-z/math.Sqrt2) / 2 }

// NormalQuantile is the quantile of the standard normal distribution, 0 < p < 1.
func NormalQuantile(p float64) float64 { return math.Sqrt2 * math.Erfinv(2*p-1) }
