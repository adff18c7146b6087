package replayer

import (
	"context"
	"sync"
	"time"

	"github.com/shadowtape/shadowtape/replayer/client"
)

const (
	warmTick   = 10 * time.Millisecond
	warmBucket = 20 * time.Millisecond // arrivals closer than this cannot share a connection: no answer is that short
	warmAhead  = time.Second           // how far ahead bursts are prepared for
	warmStart  = 2 * time.Second       // what the start of the schedule waits for at most
)

// warmer opens connections before the arrivals that will need them, so that setting one up is no part of a latency. It knows the
// arrivals of the next second from the schedule's reader.
type warmer struct {
	pools []*client.Target
	mu    sync.Mutex
	due   []time.Duration // of arrivals to come, in order
}

func (w *warmer) add(due time.Duration) {
	w.mu.Lock()
	w.due = append(w.due, due)
	w.mu.Unlock()
}

// need is how many arrivals of the time from now on may want a connection at once.
func (w *warmer) need(now time.Duration) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := 0
	for i < len(w.due) && w.due[i] <= now {
		i++
	}
	w.due = append(w.due[:0], w.due[i:]...)
	most, j := 0, 0
	for i := range w.due {
		if w.due[i] > now+warmAhead {
			break
		}
		for w.due[i]-w.due[j] > warmBucket {
			j++
		}
		most = max(most, i-j+1)
	}
	return most
}

// fill opens what is needed from now on.
func (w *warmer) fill(ctx context.Context, now time.Duration) {
	n := w.need(now)
	each := (n + len(w.pools) - 1) / len(w.pools)
	var wg sync.WaitGroup
	for _, p := range w.pools {
		wg.Go(func() { p.Warm(ctx, each) })
	}
	wg.Wait()
}

// run keeps connections ready until ctx ends.
func (w *warmer) run(ctx context.Context, clk client.Clock) {
	next := time.Now()
	for ctx.Err() == nil {
		w.fill(ctx, time.Duration(clk.Now()))
		next = next.Add(warmTick)
		if d := time.Since(next); d > 0 {
			next = time.Now()
		}
		SleepTimer(next, ctx.Done())
	}
}
