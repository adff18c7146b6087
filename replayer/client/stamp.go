package client

import (
	"math"
	"sync/atomic"
	"time"
)

// stamper tells when the kernel received the newest of the bytes that the last read returned, on the wall clock.
type stamper interface {
	received() (unixNS int64, ok bool)
	each(next func() []byte, handle func(n int, err error) bool)
	reads() int // so far
}

const (
	stepSize  = int64(time.Millisecond) // a change of the wall clock against the monotonic one that is a step
	stepShade = int64(time.Second)      // how long after a step no stamp is trusted: it may be from before
	tooOld    = int64(time.Minute)      // a stamp older than this is no stamp of this read
)

// wallWatch pairs the wall clock, which stamps what the kernel receives, with the monotonic clock, which times the run. Both are slewed
// alike, so their difference changes by steps only; it is watched at every read.
type wallWatch struct {
	offset atomic.Int64 // wall - monotonic - start
	stepAt atomic.Int64 // the run's time of the last step, plus 1; 0: none
	steps  atomic.Int64
}

// difference is what the wall clock is ahead of the monotonic one since the start. time.Now reads the wall clock first: a thread that is
// put aside between the two makes it too small, so the largest of a few is the best.
func (c Clock) difference() int64 {
	best := int64(math.MinInt64)
	for range 8 {
		t := time.Now()
		best = max(best, t.UnixNano()-c.unix-int64(t.Sub(c.start)))
	}
	return best
}

// stamp converts the kernel's stamp of a read to the run's time; now is an instant after the read. ok is false where the wall clock was
// set around then, or where the stamp makes no sense.
func (c Clock) stamp(unixNS int64, now time.Time) (at int64, ok bool) {
	mono := int64(now.Sub(c.start))
	if !c.pair(mono, now.UnixNano()) {
		return mono, false
	}
	at = unixNS - c.unix - c.wall.offset.Load()
	if at > mono+int64(50*time.Microsecond) || at < mono-tooOld {
		return mono, false
	}
	return min(at, mono), true
}

// pair compares the clocks and reports whether stamps may be trusted.
func (c Clock) pair(mono, wall int64) bool {
	w := c.wall
	far := func(off int64) bool { d := off - w.offset.Load(); return d > stepSize || d < -stepSize }
	if off := wall - c.unix - mono; far(off) {
		if off = c.difference(); far(off) { // not only a thread put aside
			old := w.offset.Load()
			if w.offset.CompareAndSwap(old, off) {
				w.steps.Add(1)
				w.stepAt.Store(mono + 1)
			}
			return false
		}
	}
	step := w.stepAt.Load()
	return step == 0 || mono-step+1 > stepShade
}
