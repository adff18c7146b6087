package client

import "time"

// Clock is the run's time: nanoseconds on the monotonic clock since the run's start, and the start on the wall clock. The wall clock is
// read once; steps of it during the run move nothing but kernel stamps, which are checked apart.
type Clock struct {
	start time.Time // with its monotonic reading
	unix  int64     // the same instant, nanoseconds since 1970
	wall  *wallWatch
}

// NewClock is the time of a run that starts then; start has its monotonic reading.
func NewClock(start time.Time) Clock {
	c := Clock{start, start.UnixNano(), &wallWatch{}}
	c.wall.offset.Store(c.difference())
	return c
}

// Now is the time since the start, in nanoseconds.
func (c Clock) Now() int64 { return int64(time.Since(c.start)) }

// At is the instant d after the start.
func (c Clock) At(d time.Duration) time.Time { return c.start.Add(d) }

// Start is the run's start.
func (c Clock) Start() time.Time { return c.start }

// Unix is the run's start on the wall clock, nanoseconds since 1970.
func (c Clock) Unix() int64 { return c.unix }

// Steps is how often the wall clock was set so far, as far as reads have seen it.
func (c Clock) Steps() int64 { return c.wall.steps.Load() }
