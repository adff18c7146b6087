package sim

import "time"

// waiter lets the driver sleep until an instant, or until somebody has work for it.
type waiter interface {
	until(t time.Time) // returns at t or after wake; the zero time waits for wake only
	wake()             // safe from any goroutine; not lost when nobody waits yet
	close()
}

// timerWaiter waits with the runtime's timers: exact under a virtual clock, up to a millisecond late on a real one.
type timerWaiter struct{ woken chan struct{} }

func newTimerWaiter() *timerWaiter { return &timerWaiter{woken: make(chan struct{}, 1)} }

func (w *timerWaiter) until(t time.Time) {
	if t.IsZero() {
		<-w.woken
		return
	}
	timer := time.NewTimer(time.Until(t))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-w.woken:
	}
}

func (w *timerWaiter) wake() {
	select {
	case w.woken <- struct{}{}:
	default:
	}
}

func (w *timerWaiter) close() {}
