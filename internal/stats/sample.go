package stats

import (
	"math"
	"slices"
	"sort"
)

// DefaultExact is how many distinct entries a Sample keeps before it becomes a sketch.
const DefaultExact = 1 << 20

// Sample collects values with whole-number weights for mean, deviation, extremes and quantiles. It is exact up to Limit entries and a
// Sketch beyond, so its memory is bounded. The zero value is empty and has the default limit. Not safe for concurrent use.
type Sample struct {
	Limit int // entries kept exactly; 0 means DefaultExact, negative none

	moments Moments
	values  []float64
	weights []uint32 // nil while every weight is 1
	sorted  bool
	sketch  *Sketch
	n       uint64
	min     float64
	max     float64
}

// Add takes w samples of x; NaN, infinities and w = 0 are ignored.
func (s *Sample) Add(x float64, w uint32) {
	if w == 0 || math.IsNaN(x) || math.IsInf(x, 0) {
		return
	}
	if s.n == 0 {
		s.min, s.max = x, x
	}
	s.min, s.max = min(s.min, x), max(s.max, x)
	s.n += uint64(w)
	s.moments.Add(x, float64(w))
	s.keep(x, w)
}

func (s *Sample) keep(x float64, w uint32) {
	if s.sketch != nil {
		s.sketch.Add(x, uint64(w))
		return
	}
	limit := s.Limit
	if limit == 0 {
		limit = DefaultExact
	}
	if len(s.values) >= limit {
		s.spill()
		s.sketch.Add(x, uint64(w))
		return
	}
	if w != 1 && s.weights == nil {
		s.weights = make([]uint32, len(s.values), max(len(s.values)*2, 16))
		for i := range s.weights {
			s.weights[i] = 1
		}
	}
	s.values = append(s.values, x)
	if s.weights != nil {
		s.weights = append(s.weights, w)
	}
	s.sorted = false
}

// spill moves the exact values to a sketch.
func (s *Sample) spill() {
	s.sketch = &Sketch{}
	for i, x := range s.values {
		s.sketch.Add(x, uint64(s.weight(i)))
	}
	s.values, s.weights = nil, nil
}

func (s *Sample) weight(i int) uint32 {
	if s.weights == nil {
		return 1
	}
	return s.weights[i]
}

// Merge adds what o has seen; o is left as it was.
func (s *Sample) Merge(o *Sample) {
	if o.n == 0 {
		return
	}
	if s.n == 0 {
		s.min, s.max = o.min, o.max
	}
	s.min, s.max = min(s.min, o.min), max(s.max, o.max)
	s.n += o.n
	s.moments.Merge(o.moments)
	if o.sketch != nil {
		if s.sketch == nil {
			s.spill()
		}
		s.sketch.Merge(o.sketch)
		return
	}
	for i, x := range o.values {
		s.keep(x, o.weight(i))
	}
}

// N is the number of samples, weights counted.
func (s *Sample) N() uint64 { return s.n }

// Mean, Std (population), Min and Max are NaN for no samples.
func (s *Sample) Mean() float64 { return s.moments.Mean() }

// Std is the population standard deviation.
func (s *Sample) Std() float64 { return s.moments.Std() }

// Sum is mean times n; 0 for no samples.
func (s *Sample) Sum() float64 {
	if s.n == 0 {
		return 0
	}
	return s.moments.Mean() * float64(s.n)
}

// Min is the smallest sample.
func (s *Sample) Min() float64 { return s.extreme(s.min) }

// Max is the largest sample.
func (s *Sample) Max() float64 { return s.extreme(s.max) }

func (s *Sample) extreme(x float64) float64 {
	if s.n == 0 {
		return math.NaN()
	}
	return x
}

// Error is the largest relative error of a quantile: 0 while the sample is exact, SketchError beyond.
func (s *Sample) Error() float64 {
	if s.sketch != nil {
		return SketchError
	}
	return 0
}

// Quantile is the p-quantile by linear interpolation at (n−1)p, NaN for no samples.
func (s *Sample) Quantile(p float64) float64 {
	if s.sketch != nil {
		return s.sketch.Quantile(p)
	}
	if s.n == 0 || math.IsNaN(p) {
		return math.NaN()
	}
	s.sort()
	if s.weights == nil {
		return Quantile(s.values, p)
	}
	h := float64(s.n-1) * min(max(p, 0), 1)
	lo := uint64(h)
	return lerp(s.AtRank(lo), s.AtRank(min(lo+1, s.n-1)), h-float64(lo))
}

// AtRank is the sample at a rank from 0 in ascending order, weights counted; NaN out of range.
func (s *Sample) AtRank(rank uint64) float64 {
	if rank >= s.n {
		return math.NaN()
	}
	if s.sketch != nil {
		return s.sketch.atRank(rank)
	}
	s.sort()
	if s.weights == nil {
		return s.values[rank]
	}
	seen := uint64(0)
	for i, w := range s.weights {
		if seen += uint64(w); seen > rank {
			return s.values[i]
		}
	}
	return s.max
}

func (s *Sample) sort() {
	if s.sorted {
		return
	}
	s.sorted = true
	if s.weights == nil {
		slices.Sort(s.values)
		return
	}
	sort.Sort(weighted{s.values, s.weights})
}

// weighted sorts values and carries their weights along.
type weighted struct {
	values  []float64
	weights []uint32
}

func (w weighted) Len() int           { return len(w.values) }
func (w weighted) Less(i, j int) bool { return w.values[i] < w.values[j] }
func (w weighted) Swap(i, j int) {
	w.values[i], w.values[j] = w.values[j], w.values[i]
	w.weights[i], w.weights[j] = w.weights[j], w.weights[i]
}

// Bin is a value and how often it was seen.
type Bin struct {
	Value float64 `json:"v"`
	N     uint64  `json:"n"`
}

// Bins are the distinct values in ascending order. ok is false where there are more than limit, or the sample is no longer exact.
func (s *Sample) Bins(limit int) (bins []Bin, ok bool) {
	if s.sketch != nil {
		return nil, false
	}
	s.sort()
	bins = []Bin{}
	for i, v := range s.values {
		if n := len(bins); n > 0 && bins[n-1].Value == v {
			bins[n-1].N += uint64(s.weight(i))
			continue
		}
		if len(bins) == limit {
			return nil, false
		}
		bins = append(bins, Bin{v, uint64(s.weight(i))})
	}
	return bins, true
}
