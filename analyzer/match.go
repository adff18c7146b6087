package analyzer

import (
	"fmt"
	"math"
	"slices"

	"github.com/shadowtape/shadowtape/formats"
)

// pairedMetrics are the metrics that runs are compared on, by index in the table.
var pairedMetrics = func() (at []int) {
	for i, m := range metrics {
		switch m.Name {
		case "ttft", "ttfc", "tpot", "e2el", "send_lag":
			at = append(at, i)
		}
	}
	return at
}()

// sideRequest is what a comparison keeps of one request.
type sideRequest struct {
	at            int64 // scheduled, Unix ns
	input, output int64 // −1 unknown
	values        []float32
	failed, met   bool
	dropped       bool // never sent
}

// pair is one request of the schedule on both sides.
type pair struct {
	base, candidate             []float32 // by paired metric; NaN undefined
	block                       int32
	failedBase, failedCandidate bool
	metBase, metCandidate       bool
	dropBase, dropCandidate     bool
}

// matched are the requests of two runs of one schedule.
type matched struct {
	pairs    []pair
	blocks   int
	column   map[int]int // metric index → place in pair.base
	warnings []string
}

// match pairs two runs on their place in the schedule (arrival_index), or a recording with its replay on the recorded exchange's id. It
// refuses runs of different traffic.
func match(a, b *Run, o CompareOptions) (*matched, error) {
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("compare %s with %s: %w: %s", a.Label, b.Label, ErrIncomparable, fmt.Sprintf(format, args...))
	}
	ra, err := loadComparable(a, o)
	if err != nil {
		return nil, err
	}
	rb, err := loadComparable(b, o)
	if err != nil {
		return nil, err
	}
	x, y := ra.byIndex, rb.byIndex
	switch {
	case len(x) > 0 && len(y) > 0:
	case len(x) == 0 && len(rb.bySource) > 0:
		x, y = ra.byID, rb.bySource
	case len(y) == 0 && len(ra.bySource) > 0:
		x, y = ra.bySource, rb.byID
	default:
		x, y = ra.byID, rb.byID
	}
	if len(x) == 0 || len(y) == 0 {
		return nil, refuse("one of them has no measured exchange")
	}
	keys := make([]int64, 0, len(x))
	for k := range x {
		if y[k] != nil {
			keys = append(keys, k)
		}
	}
	if 2*len(keys) < max(len(x), len(y)) {
		return nil, refuse("%d of %d and %d requests are at the same place of a schedule", len(keys), len(x), len(y))
	}
	slices.SortFunc(keys, func(i, j int64) int { return compareInts(x[i].at, x[j].at, i, j) })
	m := &matched{column: map[int]int{}}
	for i, metric := range pairedMetrics {
		m.column[metric] = i
	}
	if n := max(len(x), len(y)); len(keys) < n {
		m.warnings = append(m.warnings, fmt.Sprintf("%d of %d requests are in one run only", n-len(keys), n))
	}
	if err := m.check(keys, x, y, refuse); err != nil {
		return nil, err
	}
	first, span := x[keys[0]].at, x[keys[len(keys)-1]].at-x[keys[0]].at
	m.blocks = blocksFor(len(keys), span)
	for _, k := range keys {
		p, q := x[k], y[k]
		block := int32(0)
		if span > 0 {
			block = int32(float64(p.at-first) / float64(span+1) * float64(m.blocks))
		}
		m.pairs = append(m.pairs, pair{p.values, q.values, min(block, int32(m.blocks-1)), p.failed, q.failed, p.met, q.met, p.dropped, q.dropped})
	}
	return m, nil
}

// blocksFor is how many blocks of time an interval resamples: blocks of five seconds, but ten blocks at least, sixty at most, and no more
// than there are requests.
func blocksFor(pairs int, spanNS int64) int {
	n := int(spanNS / 5e9)
	return min(max(n, 10), 60, max(pairs, 1))
}

// check refuses pairs that are not the same request at the same time, and warns of unequal work.
func (m *matched) check(keys []int64, x, y map[int64]*sideRequest, refuse func(string, ...any) error) error {
	x0, y0 := x[keys[0]].at, y[keys[0]].at
	apart, worst := 0, int64(0)
	var worstKey int64
	var inA, inB, outA, outB float64
	for _, k := range keys {
		p, q := x[k], y[k]
		if d := (p.at - x0) - (q.at - y0); d > 1e6 || d < -1e6 {
			apart++
			if d < 0 {
				d = -d
			}
			if d > worst {
				worst, worstKey = d, k
			}
		}
		if p.input >= 0 && q.input >= 0 {
			inA, inB = inA+float64(p.input), inB+float64(q.input)
		}
		if p.output >= 0 && q.output >= 0 && !p.failed && !q.failed && !p.dropped && !q.dropped {
			outA, outB = outA+float64(p.output), outB+float64(q.output)
		}
	}
	if 100*apart > len(keys) {
		return refuse("arrival %d came %.3f s after the first in one and %.3f s in the other", worstKey, float64(x[worstKey].at-x0)/1e9, float64(y[worstKey].at-y0)/1e9)
	}
	if inA > 0 && math.Abs(inB/inA-1) > 0.10 {
		return refuse("matched requests have %.0f and %.0f input tokens", inA, inB)
	}
	if inA > 0 && math.Abs(inB/inA-1) > 0.01 {
		m.warnings = append(m.warnings, fmt.Sprintf("input tokens differ by %+.1f %%", (inB/inA-1)*100))
	}
	if outA > 0 && math.Abs(outB/outA-1) > 0.02 {
		m.warnings = append(m.warnings, fmt.Sprintf("unequal work: output tokens differ by %+.1f %%, so e2el is not comparable", (outB/outA-1)*100))
	}
	return nil
}

// sideRun is a run's requests by their keys.
type sideRun struct{ byIndex, bySource, byID map[int64]*sideRequest }

// loadComparable keeps about a hundred bytes of each measured request.
func loadComparable(r *Run, o CompareOptions) (*sideRun, error) {
	out := &sideRun{map[int64]*sideRequest{}, map[int64]*sideRequest{}, map[int64]*sideRequest{}}
	columns := append([]formats.Column{formats.ColExchangeID, formats.ColSourceID, formats.ColArrivalIndex, formats.ColLoop,
		formats.ColEventGap, formats.ColEventTokens, formats.ColEventChoice, formats.ColEventFlags, formats.ColChoiceOutputTokens}, metricColumns...)
	for x, err := range r.Exchanges(columns...) {
		if err != nil {
			return nil, r.readError(err)
		}
		if x.Phase == formats.PhaseWarmup {
			continue
		}
		oc := outcomeOf(x)
		c := &sideRequest{
			at: x.ArrivalUnixNS, input: x.InputTokens.Or(-1), output: x.OutputTokens.Or(-1), failed: oc == outcomeFailed, dropped: oc == outcomeDropped,
			met: len(o.SLO) > 0 && oc == outcomeCompleted && meets(x, o.SLO), values: make([]float32, len(pairedMetrics)),
		}
		for i, metric := range pairedMetrics {
			c.values[i] = float32(math.NaN())
			var sum, n float64
			metrics[metric].Samples(x, func(v, w float64) { sum, n = sum+v*w, n+w })
			if n > 0 {
				c.values[i] = float32(sum / n)
			}
		}
		if x.ArrivalIndex.Valid {
			out.byIndex[x.ArrivalIndex.V] = c
		}
		if x.SourceID.Valid && x.Loop.Or(0) == 0 {
			out.bySource[x.SourceID.V] = c
		}
		out.byID[x.ExchangeID] = c
	}
	return out, nil
}

func compareInts(a, b, tieA, tieB int64) int {
	switch {
	case a < b, a == b && tieA < tieB:
		return -1
	case a == b && tieA == tieB:
		return 0
	}
	return 1
}

func compareFloats(a, b float64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// blockValue is a value and the block of time it belongs to.
type blockValue struct {
	v     float64
	block int32
}

func sortBlockValues(x []blockValue) {
	slices.SortStableFunc(x, func(a, b blockValue) int { return compareFloats(a.v, b.v) })
}

// weightedQuantile is the p-quantile of ascending values at (n−1)p where each value counts as often as its block was drawn; nil times
// means once.
func weightedQuantile(sorted []blockValue, times []int32, p float64) float64 {
	weight := func(i int) int64 {
		if times == nil {
			return 1
		}
		return int64(times[sorted[i].block])
	}
	var n int64
	for i := range sorted {
		n += weight(i)
	}
	if n == 0 {
		return math.NaN()
	}
	h := float64(n-1) * p
	lo := int64(h)
	var seen int64
	for i := range sorted {
		if seen += weight(i); seen > lo {
			if f := h - float64(lo); f > 0 && seen == lo+1 {
				for j := i + 1; j < len(sorted); j++ {
					if weight(j) > 0 {
						return sorted[i].v + f*(sorted[j].v-sorted[i].v)
					}
				}
			}
			return sorted[i].v
		}
	}
	return math.NaN()
}
