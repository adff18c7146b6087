package stats

import "math"

// Moments accumulates weighted mean and variance in one pass (Welford), and merges (Chan, Golub and LeVeque). The zero value is
// empty. Not safe for concurrent use.
type Moments struct {
	n, mean, m2 float64
}

// Add takes a value with a weight; a weight of k is k samples of the value.
func (m *Moments) Add(x, w float64) {
	if w <= 0 {
		return
	}
	m.n += w
	d := x - m.mean
	m.mean += d * w / m.n
	m.m2 += w * d * (x - m.mean)
}

// Merge adds what o has seen.
func (m *Moments) Merge(o Moments) {
	if o.n == 0 {
		return
	}
	if m.n == 0 {
		*m = o
		return
	}
	n := m.n + o.n
	d := o.mean - m.mean
	m.m2 += o.m2 + d*d*m.n*o.n/n
	m.mean += d * o.n / n
	m.n = n
}

// N is the sum of the weights.
func (m *Moments) N() float64 { return m.n }

// Mean is NaN where nothing was added.
func (m *Moments) Mean() float64 {
	if m.n == 0 {
		return math.NaN()
	}
	return m.mean
}

// Var is the population variance, NaN where nothing was added.
func (m *Moments) Var() float64 {
	if m.n == 0 {
		return math.NaN()
	}
	return max(m.m2, 0) / m.n
}

// Std is the population standard deviation.
func (m *Moments) Std() float64 { return math.Sqrt(m.Var()) }
