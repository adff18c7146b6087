package workload

import (
	"math"
	"math/bits"

	"github.com/shadowtape/shadowtape/internal/stats"
)

// source is the one generator behind everything drawn here: splitmix64, whose state is one word and which can be forked by purpose. The
// same seed gives the same draws on every machine: integer operations are exact, and the functions below keep floating-point operations
// from being fused (each product is rounded by a conversion) and call only functions of package math that are exact.
type source struct{ state uint64 }

// fork returns an independent source for a purpose.
func (s source) fork(purpose uint64) source {
	return source{stats.Mix(s.state ^ stats.Mix(purpose+0x632be59bd9b4e019))}
}

func (s *source) next() uint64 {
	s.state += stats.MixStep
	return stats.Scatter(s.state)
}

// uniform is in [0, 1).
func (s *source) uniform() float64 { return float64(s.next()>>11) * 0x1p-53 }

// positive is in (0, 1].
func (s *source) positive() float64 { return float64(s.next()>>11+1) * 0x1p-53 }

// below is in [0, n), n > 0.
func (s *source) below(n int) int {
	hi, _ := bits.Mul64(s.next(), uint64(n))
	return int(hi)
}

// exponential has mean 1.
func (s *source) exponential() float64 { return -ln(s.positive()) }

// normal has mean 0 and variance 1 (the polar method of Marsaglia).
func (s *source) normal() float64 {
	for {
		u, v := float64(2*s.uniform())-1, float64(2*s.uniform())-1
		if q := float64(u*u) + float64(v*v); q > 0 && q < 1 {
			return float64(u * math.Sqrt(float64(-2*ln(q))/q))
		}
	}
}

// gamma has the given shape and mean 1 (Marsaglia and Tsang 2000; shapes below 1 by their power of a uniform).
func (s *source) gamma(shape float64) float64 {
	if shape < 1 {
		return float64(s.gamma(shape+1) * (shape + 1) * exp(float64(ln(s.positive())/shape)) / shape)
	}
	d := shape - 1.0/3
	c := 1 / math.Sqrt(float64(9*d))
	for {
		x := s.normal()
		v := 1 + float64(c*x)
		if v <= 0 {
			continue
		}
		v = float64(float64(v*v) * v)
		if ln(s.positive()) < float64(float64(x*x)/2)+float64(d*(float64(1-v)+ln(v))) {
			return float64(d*v) / shape
		}
	}
}

// poisson is a count with the given mean: by gaps while it is small, else by splitting the mean at a gamma variate (Ahrens and Dieter).
func (s *source) poisson(mean float64) int64 {
	n := int64(0)
	for mean > 30 {
		k := int64(mean * 7 / 8)
		g := float64(s.gamma(float64(k)) * float64(k)) // the time of the k-th arrival
		if g > mean {
			return n + s.binomial(k-1, mean/g)
		}
		n += k
		mean -= g
	}
	for t := s.exponential(); t < mean; t += s.exponential() {
		n++
	}
	return n
}

// binomial counts successes one by one.
func (s *source) binomial(n int64, p float64) (k int64) {
	for range n {
		if s.uniform() < p {
			k++
		}
	}
	return k
}

// ln is the natural logarithm of x > 0, to within a few units in the last place: x = f 2^k with f near 1, ln f = 2 atanh((f-1)/(f+1)).
func ln(x float64) float64 {
	f, k := math.Frexp(x)
	if f < math.Sqrt2/2 {
		f *= 2
		k--
	}
	s := (f - 1) / (f + 1)
	q := float64(s * s)
	sum := 0.0
	for n := 23; n >= 1; n -= 2 {
		sum = float64(sum*q) + 1/float64(n)
	}
	return float64(float64(k)*math.Ln2) + float64(float64(2*s)*sum)
}

// exp is e to the power of x, to within a few units in the last place: e^x = 2^k e^r with |r| <= ln 2 / 2, by Taylor's series.
func exp(x float64) float64 {
	if x > 709 {
		return math.Inf(1)
	}
	if x < -745 {
		return 0
	}
	const hi, lo = 6.93147180369123816490e-01, 1.90821492927058770002e-10 // ln 2 in two parts
	k := math.Round(x / math.Ln2)
	r := x - float64(k*hi)
	r -= float64(k * lo)
	sum := 1.0
	for n := 15; n >= 1; n-- {
		sum = float64(float64(sum*r)/float64(n)) + 1
	}
	return math.Ldexp(sum, int(k))
}
