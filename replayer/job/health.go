package job

import (
	"context"
	"math"
	"runtime/metrics"
	"time"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/replayer"
)

// The runtime's own figures that a client sample is made of; see the documentation of runtime/metrics.
const (
	metricGC         = "/sched/pauses/total/gc:seconds"
	metricLatency    = "/sched/latencies:seconds"
	metricGoroutines = "/sched/goroutines:goroutines"
	metricHeap       = "/memory/classes/heap/objects:bytes"
)

// health samples the replayer itself.
type health struct {
	live    *replayer.Live
	samples []metrics.Sample
	latency []uint64 // counts of the sample before
}

func newHealth(l *replayer.Live) *health {
	h := &health{live: l}
	for _, name := range []string{metricGC, metricLatency, metricGoroutines, metricHeap} {
		h.samples = append(h.samples, metrics.Sample{Name: name})
	}
	h.sample() // what happened before the run is not the run's
	return h
}

func (h *health) sample() formats.ClientSample {
	metrics.Read(h.samples)
	s := formats.ClientSample{
		UnixNS: time.Now().UnixNano(), InFlight: h.live.InFlight.Load(), Sent: h.live.Sent.Load(), Late: h.live.Late.Load(),
		SendLagMaxNS: h.live.LagMaxNS.Swap(0), CPUSeconds: cpuSeconds(),
	}
	for _, m := range h.samples {
		switch v := m.Value; {
		case m.Name == metricGC && v.Kind() == metrics.KindFloat64Histogram:
			s.GCPauseNS = int64(1e9 * total(v.Float64Histogram()))
		case m.Name == metricLatency && v.Kind() == metrics.KindFloat64Histogram:
			g := v.Float64Histogram()
			s.SchedLatencyNS = int64(1e9 * quantileSince(g, h.latency, 0.99))
			h.latency = append(h.latency[:0], g.Counts...)
		case v.Kind() == metrics.KindUint64 && m.Name == metricGoroutines:
			s.Goroutines = int64(v.Uint64())
		case v.Kind() == metrics.KindUint64 && m.Name == metricHeap:
			s.HeapBytes = int64(v.Uint64())
		}
	}
	return s
}

// total estimates the sum of a histogram: each count at its bucket's upper end, or lower end where that is infinite.
func total(h *metrics.Float64Histogram) (sum float64) {
	for i, n := range h.Counts {
		if n > 0 {
			sum += float64(n) * edge(h, i)
		}
	}
	return sum
}

func edge(h *metrics.Float64Histogram, i int) float64 {
	if v := h.Buckets[i+1]; !math.IsInf(v, 0) {
		return v
	}
	if v := h.Buckets[i]; !math.IsInf(v, 0) {
		return v
	}
	return 0
}

// quantileSince is the upper end of the bucket that holds the quantile of what was counted since before.
func quantileSince(h *metrics.Float64Histogram, before []uint64, q float64) float64 {
	since := func(i int) uint64 {
		if i < len(before) {
			return h.Counts[i] - before[i]
		}
		return h.Counts[i]
	}
	var n uint64
	for i := range h.Counts {
		n += since(i)
	}
	if n == 0 {
		return 0
	}
	rank := uint64(math.Ceil(q * float64(n)))
	for i := range h.Counts {
		if c := since(i); c >= rank {
			return edge(h, i)
		} else {
			rank -= c
		}
	}
	return 0
}

// watchClient samples once a second until ctx ends, and once more then.
func watchClient(ctx context.Context, l *replayer.Live, sink func(formats.ClientSample) error) error {
	h := newHealth(l)
	next := time.Now()
	for {
		next = next.Add(time.Second)
		replayer.SleepTimer(next, ctx.Done())
		if err := sink(h.sample()); err != nil || ctx.Err() != nil {
			return err
		}
	}
}
