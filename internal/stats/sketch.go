package stats

import "math"

const (
	sketchBits  = 10              // mantissa bits that name a bucket
	sketchShift = 52 - sketchBits // bits of a float64 below them
)

// SketchError is the largest relative error of a Sketch's quantile: half a bucket, 2⁻¹¹.
const SketchError = 1.0 / (1 << (sketchBits + 1))

// Sketch is a mergeable histogram whose buckets are the leading bits of a float64: sign, exponent and ten bits of mantissa. A bucket
// is at most 2⁻¹⁰ of its value wide and its middle stands for it, so every quantile is within SketchError of the exact one, relative;
// merging loses nothing, in any order. The zero value is empty. Its memory depends on the range of the values (8 KiB for each factor
// of two), not on their number. Not safe for concurrent use.
type Sketch struct {
	pos, neg buckets
	zero     uint64
	n        uint64
	min, max float64
}

// buckets counts by the leading bits of a positive float64.
type buckets struct {
	first  uint64
	counts []uint64
}

func (b *buckets) add(key, w uint64) {
	if i := key - b.first; i < uint64(len(b.counts)) {
		b.counts[i] += w
		return
	}
	b.grow(key)
	b.counts[key-b.first] += w
}

// grow makes room for key, a factor of two at a time.
func (b *buckets) grow(key uint64) {
	const step = 1 << sketchBits
	lo := key &^ (step - 1)
	hi := lo + step
	if len(b.counts) > 0 {
		lo = min(lo, b.first)
		hi = max(hi, b.first+uint64(len(b.counts)))
	}
	grown := make([]uint64, hi-lo)
	if len(b.counts) > 0 {
		copy(grown[b.first-lo:], b.counts)
	}
	b.first, b.counts = lo, grown
}

func (b *buckets) merge(o *buckets) {
	for i, w := range o.counts {
		if w > 0 {
			b.add(o.first+uint64(i), w)
		}
	}
}

// middle is the value that stands for bucket i.
func (b *buckets) middle(i int) float64 {
	key := b.first + uint64(i)
	lo := math.Float64frombits(key << sketchShift)
	hi := math.Float64frombits((key + 1) << sketchShift)
	return lo + (hi-lo)/2
}

// Add takes w samples of x. NaN and infinities are ignored.
func (s *Sketch) Add(x float64, w uint64) {
	if w == 0 || math.IsNaN(x) || math.IsInf(x, 0) {
		return
	}
	if s.n == 0 {
		s.min, s.max = x, x
	}
	s.min, s.max = min(s.min, x), max(s.max, x)
	s.n += w
	switch {
	case x > 0:
		s.pos.add(math.Float64bits(x)>>sketchShift, w)
	case x < 0:
		s.neg.add(math.Float64bits(-x)>>sketchShift, w)
	default:
		s.zero += w
	}
}

// Merge adds what o has seen.
func (s *Sketch) Merge(o *Sketch) {
	if o.n == 0 {
		return
	}
	if s.n == 0 {
		s.min, s.max = o.min, o.max
	}
	s.min, s.max = min(s.min, o.min), max(s.max, o.max)
	s.n += o.n
	s.zero += o.zero
	s.pos.merge(&o.pos)
	s.neg.merge(&o.neg)
}

// N is the number of samples.
func (s *Sketch) N() uint64 { return s.n }

// Quantile is the p-quantile at rank (n−1)p, within SketchError of the exact one; NaN for no samples. The smallest and the largest
// sample are exact.
func (s *Sketch) Quantile(p float64) float64 {
	if s.n == 0 || math.IsNaN(p) {
		return math.NaN()
	}
	h := float64(s.n-1) * min(max(p, 0), 1)
	lo := uint64(h)
	a := s.atRank(lo)
	if f := h - float64(lo); f > 0 {
		return lerp(a, s.atRank(lo+1), f)
	}
	return a
}

// atRank estimates the sample at a rank from 0.
func (s *Sketch) atRank(rank uint64) float64 {
	if rank == 0 {
		return s.min
	}
	if rank >= s.n-1 {
		return s.max
	}
	seen := uint64(0)
	for i := len(s.neg.counts) - 1; i >= 0; i-- {
		if seen += s.neg.counts[i]; seen > rank {
			return max(-s.neg.middle(i), s.min)
		}
	}
	if seen += s.zero; seen > rank {
		return 0
	}
	for i, w := range s.pos.counts {
		if seen += w; seen > rank {
			return min(max(s.pos.middle(i), s.min), s.max)
		}
	}
	return s.max
}
