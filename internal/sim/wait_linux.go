package sim

import (
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// preciseWaiter waits on a kernel timer that the runtime's poller watches. The runtime's own timers are rounded up to a millisecond
// while a process idles; this one ends within tens of microseconds.
type preciseWaiter struct {
	fd    int
	file  *os.File
	buf   [8]byte
	mu    sync.Mutex
	woken bool
}

func newWaiter() waiter {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return newTimerWaiter()
	}
	return &preciseWaiter{fd: fd, file: os.NewFile(uintptr(fd), "timer")}
}

func (w *preciseWaiter) set(d time.Duration) {
	spec := unix.ItimerSpec{}
	if d > 0 {
		spec.Value = unix.NsecToTimespec(int64(d))
	}
	_ = unix.TimerfdSettime(w.fd, 0, &spec, nil) // cannot fail: the descriptor is a timer and the time is valid
}

func (w *preciseWaiter) until(t time.Time) {
	w.mu.Lock()
	if w.woken {
		w.woken = false
		w.mu.Unlock()
		return
	}
	if t.IsZero() {
		w.set(0)
	} else {
		w.set(max(time.Until(t), 1))
	}
	w.mu.Unlock()
	_, _ = w.file.Read(w.buf[:]) // an error means closed: the driver looks at that itself
	w.mu.Lock()
	w.woken = false
	w.mu.Unlock()
}

func (w *preciseWaiter) wake() {
	w.mu.Lock()
	if !w.woken {
		w.woken = true
		w.set(1)
	}
	w.mu.Unlock()
}

func (w *preciseWaiter) close() { w.file.Close() }
