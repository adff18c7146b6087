package occupancy

import "math/rand/v2"

// stretchesOfSpan is of how many intervals a model of a part of the time draws some.
const stretchesOfSpan = 400

// stretches are the intervals of a span that are modelled, whole ones with everything that overlaps them: what holds pages or meets in a
// batch cannot be sampled request by request. Before[i] is how many of the intervals before the i-th are modelled; nil is all.
type stretches struct{ before []int }

// newStretches draws one of every k intervals, each out of its own k, so that no rhythm of the load can hide between them. The same k draws
// the same.
func newStretches(k int) stretches {
	if k <= 1 {
		return stretches{}
	}
	s := stretches{make([]int, stretchesOfSpan+1)}
	r := rand.New(rand.NewPCG(uint64(k), 1))
	for i := 0; i < stretchesOfSpan; i += k {
		n := min(k, stretchesOfSpan-i)
		if chosen := r.IntN(k); chosen < n {
			s.before[i+chosen+1] = 1
		}
	}
	if k >= stretchesOfSpan { // one at least
		s.before[1+r.IntN(stretchesOfSpan)] = 1
	}
	for i := range stretchesOfSpan {
		s.before[i+1] += s.before[i]
	}
	return s
}

// has reports whether an interval is modelled.
func (s stretches) has(i int) bool {
	return s.before == nil || s.before[i+1] > s.before[i]
}

// meet reports whether a time that is given as shares of the span touches what is modelled.
func (s stretches) meet(from, to float64) bool {
	if s.before == nil {
		return true
	}
	i, j := int(from*stretchesOfSpan), int(to*stretchesOfSpan)
	return s.before[min(j+1, stretchesOfSpan)] > s.before[min(i, stretchesOfSpan-1)]
}

// covered is the share of the span that is modelled.
func (s stretches) covered() float64 {
	if s.before == nil {
		return 1
	}
	return float64(s.before[stretchesOfSpan]) / stretchesOfSpan
}
