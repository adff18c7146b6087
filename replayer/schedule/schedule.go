package schedule

import (
	"container/heap"
	"fmt"
	"iter"
	"math"
	"time"

	"github.com/shadowtape/shadowtape/formats"
)

// Arrival is one request of a schedule.
type Arrival struct {
	At time.Duration // absolute offset from the run's start, never negative
	// After is not 0 where the arrival is released by another's end: the exchange with this id of the source trace, in the same pass, and
	// earlier in the schedule. It is then due Think after that end, and At only says where it stands in the schedule, unless NotBefore.
	After     uint64
	Think     time.Duration
	NotBefore bool              // with After: not before At either
	Warmup    bool              // sent like the others, but not measured: its row's phase is warmup
	Other     bool              // another shard sends it: it keeps its place in the schedule, and that is all
	Loop      int32             // which pass over the trace, from 0
	Exchange  *formats.Exchange // what to send; the schedule's consumer may keep it, but must not change it
}

// Arrivals yields them in the order of At. Transforms (Speed, Window, Thin, …) take one and return another; they hold no
// more than the arrivals of one instant, so that memory does not depend on the trace's length. An error ends the sequence.
type Arrivals = iter.Seq2[Arrival, error]

// Speed plays a schedule factor times as fast: every offset and think time is divided by it. It panics on a factor that is not
// positive and finite; Options.Validate catches what a user gives.
func Speed(s Arrivals, factor float64) Arrivals {
	if !(factor > 0) || math.IsInf(factor, 0) {
		panic(fmt.Sprintf("schedule: speed %v", factor))
	}
	if factor == 1 {
		return s
	}
	return func(yield func(Arrival, error) bool) {
		for a, err := range s {
			if err == nil {
				a.At = scale(a.At, factor)
				a.Think = scale(a.Think, factor)
			}
			if !yield(a, err) {
				return
			}
		}
	}
}

// scale divides a duration, rounding to the nearest nanosecond; what a duration cannot hold becomes the largest one.
func scale(d time.Duration, factor float64) time.Duration {
	v := math.Round(float64(d) / factor)
	if v >= math.MaxInt64 {
		return math.MaxInt64
	}
	return time.Duration(v)
}

// Until ends a schedule before the first arrival at or after d. Zero means no limit.
func Until(s Arrivals, d time.Duration) Arrivals {
	if d <= 0 {
		return s
	}
	return func(yield func(Arrival, error) bool) {
		for a, err := range s {
			if err == nil && a.At >= d {
				return
			}
			if !yield(a, err) {
				return
			}
		}
	}
}

// MaxRequests ends a schedule after n arrivals, warm-up not counted. Zero means no limit.
func MaxRequests(s Arrivals, n int64) Arrivals {
	if n <= 0 {
		return s
	}
	return func(yield func(Arrival, error) bool) {
		left := n
		for a, err := range s {
			if !yield(a, err) {
				return
			}
			if err == nil && !a.Warmup {
				if left--; left == 0 {
					return
				}
			}
		}
	}
}

// FromTrace is the schedule of a trace: each row at its distance from the first, with the given columns only, or all where none is given. Of a run only the measured rows are taken. Rows that
// stand out of order (a run is stored in the order its answers ended) are sorted on the way, holding as many rows as the trace is out
// of order; the trace is read once for that before the first arrival is yielded.
func FromTrace(t *formats.Trace, columns ...formats.Column) Arrivals {
	return func(yield func(Arrival, error) bool) {
		o, err := scanOrder(t)
		if err != nil {
			yield(Arrival{}, err)
			return
		}
		fromRows(t.All(columns...), o, yield)
	}
}

// FromRows is the schedule of rows that come in the order of their arrivals, such as a workload model generates them: each at its
// distance from the first.
func FromRows(rows iter.Seq2[*formats.Exchange, error]) Arrivals {
	return func(yield func(Arrival, error) bool) {
		var first int64
		any := false
		for x, err := range rows {
			if err != nil {
				yield(Arrival{}, err)
				return
			}
			if !any {
				first, any = x.ArrivalUnixNS, true
			}
			if !yield(Arrival{At: time.Duration(x.ArrivalUnixNS - first), Exchange: x}, nil) {
				return
			}
		}
	}
}

// order is what must be known of a trace's times before it can be read as a schedule.
type order struct {
	first    int64 // the earliest arrival of a measured row
	disorder int64 // the furthest that a row stands behind an earlier row with a later time, nanoseconds
}

// scheduled says whether a row is part of what a replay of its trace sends.
func scheduled(p formats.Phase) bool { return p != formats.PhaseWarmup }

func scanOrder(t *formats.Trace) (order, error) {
	var o order
	last, any := int64(math.MinInt64), false
	for b, err := range t.Scan("arrival_unix_ns", "phase") {
		if err != nil {
			return o, err
		}
		at, _ := b.Int64("arrival_unix_ns")
		phase := b.String("phase")
		for i, v := range at {
			if !scheduled(formats.Phase(phase[i])) {
				continue
			}
			if !any || v < o.first {
				o.first = v
			}
			any = true
			if v < last {
				o.disorder = max(o.disorder, last-v)
			}
			last = max(last, v)
		}
	}
	return o, nil
}

// fromRows yields the rows as arrivals, sorted by time, then by arrival index, then by position, given how far out of order they stand.
func fromRows(rows iter.Seq2[*formats.Exchange, error], o order, yield func(Arrival, error) bool) {
	var h rowHeap
	newest := int64(math.MinInt64)
	var seq int64
	emit := func() bool {
		x := heap.Pop(&h).(row).x
		return yield(Arrival{At: time.Duration(x.ArrivalUnixNS - o.first), Exchange: x}, nil)
	}
	for x, err := range rows {
		if err != nil {
			yield(Arrival{}, err)
			return
		}
		if !scheduled(x.Phase) {
			continue
		}
		heap.Push(&h, row{x, seq})
		seq++
		newest = max(newest, x.ArrivalUnixNS)
		// No row still to come is earlier than newest - disorder; one at exactly that time may still come and belong before these.
		for len(h) > 0 && h[0].x.ArrivalUnixNS < newest-o.disorder {
			if !emit() {
				return
			}
		}
	}
	for len(h) > 0 {
		if !emit() {
			return
		}
	}
}

type row struct {
	x   *formats.Exchange
	seq int64
}

type rowHeap []row

func (h rowHeap) Len() int { return len(h) }
func (h rowHeap) Less(i, j int) bool {
	if h[i].x.ArrivalUnixNS != h[j].x.ArrivalUnixNS {
		return h[i].x.ArrivalUnixNS < h[j].x.ArrivalUnixNS
	}
	if a, b := h[i].x.ArrivalIndex, h[j].x.ArrivalIndex; a.Valid && b.Valid && a.V != b.V {
		return a.V < b.V // of a run: rows of one instant are stored as they ended
	}
	return h[i].seq < h[j].seq
}
func (h rowHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *rowHeap) Push(v any)   { *h = append(*h, v.(row)) }
func (h *rowHeap) Pop() any {
	o := *h
	v := o[len(o)-1]
	o[len(o)-1] = row{}
	*h = o[:len(o)-1]
	return v
}
