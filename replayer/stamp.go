package replayer

import (
	"sync/atomic"
	"time"
)

// stamper tells when the kernel received the newest of the bytes that the last read returned, on the wall clock.
type stamper interface {
	received() (unixNS int64, ok bool)
	each(next func() []byte, handle func(n int, err error) bool)
}

const (
	stepSize  = int64(time.Millisecond) // a change of the wall clock against the monotonic one that is a step
	stepShade = int64(time.Second)      // how long after a step no stamp is trusted: it may be from before
	tooOld    = int64(time.Minute)      // a stamp older than this is no stamp of this read
)

// wallWatch pairs the wall clock, which stamps what the kernel receives, with the monotonic clock, which times the run. Both are slewed
// alike, so their difference changes by steps only.
type wallWatch struct {
	offset atomic.Int64 // wall - monotonic - start, as last seen
	stepAt atomic.Int64 // the run's time of the last step, plus 1; 0: none
	steps  atomic.Int64
}

// stamp converts the kernel's stamp of a read to the run's time; now is an instant after the read. ok is false where the wall clock was
// set around then, or where the stamp makes no sense.
func (c clock) stamp(unixNS int64, now time.Time) (at int64, ok bool) {
	mono, wall := int64(now.Sub(c.start)), now.UnixNano()
	if !c.pair(mono, wall) {
		return mono, false
	}
	delay := wall - unixNS
	if delay < -int64(50*time.Microsecond) || delay > tooOld {
		return mono, false
	}
	return mono - max(delay, 0), true
}

// pair compares the clocks and reports whether stamps may be trusted.
func (c clock) pair(mono, wall int64) bool {
	w := c.wall
	off := wall - c.unix - mono
	if old := w.offset.Load(); off-old > stepSize || old-off > stepSize {
		if w.offset.CompareAndSwap(old, off) {
			w.steps.Add(1)
			w.stepAt.Store(mono + 1)
		}
		return false
	}
	step := w.stepAt.Load()
	return step == 0 || mono-step+1 > stepShade
}
