package replayer

import (
	"time"

	"golang.org/x/sys/unix"
)

// The runtime rounds its waits to milliseconds, so the last stretch is waited for in the kernel, whose own slack is 50 microseconds.
const coarse = 3 * time.Millisecond

func sleepPrecise(t time.Time, stop <-chan struct{}) {
	d := time.Until(t)
	if d > coarse {
		SleepTimer(t.Add(-coarse+time.Millisecond), stop)
		select {
		case <-stop:
			return
		default:
		}
	}
	for {
		d := time.Until(t)
		if d <= 0 {
			return
		}
		ts := unix.NsecToTimespec(int64(d))
		if err := unix.ClockNanosleep(unix.CLOCK_MONOTONIC, 0, &ts, nil); err != nil && err != unix.EINTR {
			SleepTimer(t, stop)
			return
		}
	}
}
