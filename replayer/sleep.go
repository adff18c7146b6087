package replayer

import "time"

// SleepTimer waits with the runtime's timers: good to about a millisecond, and to the nanosecond on the virtual clock of testing/synctest.
func SleepTimer(t time.Time, stop <-chan struct{}) {
	d := time.Until(t)
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-stop:
	}
}
