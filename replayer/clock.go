package replayer

import "time"

// clock is the run's time: nanoseconds on the monotonic clock since the run's start, and the start on the wall clock. The wall clock is
// read once; steps of it during the run move nothing but kernel stamps, which are checked apart.
type clock struct {
	start time.Time // with its monotonic reading
	unix  int64     // the same instant, nanoseconds since 1970
	wall  *wallWatch
}

func newClock(start time.Time) clock {
	c := clock{start, start.UnixNano(), &wallWatch{}}
	c.wall.offset.Store(c.difference())
	return c
}

// now is the time since the start, in nanoseconds.
func (c clock) now() int64 { return int64(time.Since(c.start)) }

// at is the instant d after the start.
func (c clock) at(d time.Duration) time.Time { return c.start.Add(d) }
