package analyzer

import (
	"math"

	"github.com/shadowtape/shadowtape/internal/stats"
)

const (
	maxBins  = 2048
	firstBin = int64(1) << 27 // ns, about an eighth of a second
)

// bin is one interval of arrival time.
type bin struct {
	sum, n []float64 // by metric
	counts [countsPerBin]float64
}

// The counts of a bin, of requests by arrival.
const (
	countScheduled = iota
	countSent
	countFailed
	countAborted
	countDropped
	countMet
	countInput // tokens
	countOutput
	countsPerBin
)

// timeline sums samples over intervals of arrival time whose width doubles when there are too many, so that its size does not depend on
// the run. Intervals are aligned to the epoch, so timelines merge. The zero value is empty.
type timeline struct {
	width   int64
	first   int64 // number of bins[0]: its start ÷ width
	bins    []*bin
	metrics int
}

// at returns the bin of a time in Unix ns.
func (t *timeline) at(unixNS int64) *bin {
	if t.width == 0 {
		t.width = firstBin
	}
	for {
		k := floorDiv(unixNS, t.width)
		if len(t.bins) == 0 {
			t.first = k
		}
		if lo, hi := min(k, t.first), max(k, t.first+int64(len(t.bins))-1); hi-lo < maxBins {
			t.cover(lo, hi)
			b := t.bins[k-t.first]
			if b == nil {
				b = &bin{sum: make([]float64, t.metrics), n: make([]float64, t.metrics)}
				t.bins[k-t.first] = b
			}
			return b
		}
		t.widen()
	}
}

func (t *timeline) cover(lo, hi int64) {
	if lo < t.first {
		t.bins = append(make([]*bin, t.first-lo), t.bins...)
		t.first = lo
	}
	for t.first+int64(len(t.bins)) <= hi {
		t.bins = append(t.bins, nil)
	}
}

// widen joins pairs of bins.
func (t *timeline) widen() {
	old := *t
	*t = timeline{width: old.width * 2, first: floorDiv(old.first, 2), metrics: old.metrics}
	for i, b := range old.bins {
		k := floorDiv(old.first+int64(i), 2) - t.first
		for int64(len(t.bins)) <= k {
			t.bins = append(t.bins, nil)
		}
		t.bins[k] = t.bins[k].plus(b)
	}
}

// plus adds o's sums to b's and returns b, or o where b is nil.
func (b *bin) plus(o *bin) *bin {
	if b == nil {
		return o
	}
	if o == nil {
		return b
	}
	for i := range o.sum {
		b.sum[i] += o.sum[i]
		b.n[i] += o.n[i]
	}
	for i, c := range o.counts {
		b.counts[i] += c
	}
	return b
}

// merge adds what o has seen; o is spent.
func (t *timeline) merge(o *timeline) {
	if len(o.bins) == 0 {
		return
	}
	if len(t.bins) == 0 {
		*t = *o
		return
	}
	for t.width < o.width {
		t.widen()
	}
	for i, b := range o.bins {
		if b != nil {
			t.at((o.first + int64(i)) * o.width).plus(b)
		}
	}
}

// blocks joins the bins into at most n intervals of equal width, for resampling.
func (t *timeline) blocks(n int) []*bin {
	if len(t.bins) == 0 {
		return nil
	}
	n = min(n, len(t.bins))
	out := make([]*bin, n)
	for i := range out {
		out[i] = &bin{sum: make([]float64, t.metrics), n: make([]float64, t.metrics)}
	}
	for i, b := range t.bins {
		out[i*n/len(t.bins)].plus(b)
	}
	return out
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

// intervals speak for this run: blocks of its time are resampled. They are blind to what differs between starts of a server.
type intervals struct {
	blocks []*bin
	draws  int
}

const (
	intervalConfidence = 0.95
	intervalBlocks     = 20 // to begin with
	fewestBlocks       = 10
)

func (t *tally) intervals() intervals { return intervals{t.time.blocks(intervalBlocks), 1000} }

// ratio is the interval of a sum over a sum: the block bootstrap's, widened by Student's t for the number of blocks. Blocks are joined
// until neighbors no longer resemble each other.
func (v intervals) ratio(part, whole func(*bin) float64) *[2]float64 {
	a, b := make([]float64, len(v.blocks)), make([]float64, len(v.blocks))
	for i, x := range v.blocks {
		a[i], b[i] = part(x), whole(x)
	}
	a, b = independent(a, b)
	k := len(a)
	lo, hi := stats.BlockBootstrap(k, v.draws, 1, intervalConfidence, func(times []int32) float64 {
		var s, n float64
		for i, w := range times {
			s += float64(w) * a[i]
			n += float64(w) * b[i]
		}
		return s / n // NaN where nothing was drawn
	})
	mean := sumOf(a) / sumOf(b)
	wider := math.Sqrt(float64(k)/float64(k-1)) * stats.StudentT(1-(1-intervalConfidence)/2, float64(k-1)) / stats.NormalQuantile(1-(1-intervalConfidence)/2)
	out := [2]float64{mean - (mean-lo)*wider, mean + (hi-mean)*wider}
	if !finite(out[0]) || !finite(out[1]) {
		return nil // too few blocks, or a block without any of it
	}
	return &out
}

func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

// independent joins neighboring blocks while the residuals of neighbors are correlated by more than chance, down to ten blocks.
func independent(a, b []float64) (x, y []float64) {
	for len(a) >= 2*fewestBlocks {
		r := sumOf(a) / sumOf(b)
		var lag, all, before float64
		for i := range a {
			d := a[i] - r*b[i]
			if i > 0 {
				lag += d * before
			}
			all += d * d
			before = d
		}
		if !(lag/all > 1/math.Sqrt(float64(len(a)))) {
			break
		}
		k := len(a) / 2
		x, y := make([]float64, k), make([]float64, k)
		for i := range a {
			j := min(i/2, k-1)
			x[j] += a[i]
			y[j] += b[i]
		}
		a, b = x, y
	}
	return a, b
}

func sumOf(x []float64) (s float64) {
	for _, v := range x {
		s += v
	}
	return s
}

// effective is how many independent samples a metric's samples are worth: their number over the design effect, which is the variance of
// the mean by blocks over that of as many independent samples (Kish). At most their number.
func (v intervals) effective(metric int, mean, std float64) float64 {
	a, c := make([]float64, len(v.blocks)), make([]float64, len(v.blocks))
	for i, x := range v.blocks {
		a[i], c[i] = x.sum[metric], x.n[metric]
	}
	a, c = independent(a, c)
	var n, between float64
	for i := range a {
		n += c[i]
		d := a[i] - mean*c[i]
		between += d * d
	}
	if n == 0 {
		return 0
	}
	if k := float64(len(a)); k > 1 && std > 0 {
		between *= k / (k - 1)
		return n / max(1, between/(n*std*std))
	}
	return n
}
