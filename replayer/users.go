package replayer

import (
	"context"
	"sync"
	"time"
)

// users is the closed loop: each user sends the schedule's next request when its last answer is there and it has thought. The load then
// depends on the candidate: what is measured is throughput under so much concurrency, not latency under a load. It returns true when
// the run was cut short.
func (r *replay) users(ctx context.Context, first *job) bool {
	var mu sync.Mutex
	next := func() *job {
		mu.Lock()
		defer mu.Unlock()
		if j := first; j != nil {
			first = nil
			return j
		}
		return <-r.order
	}
	var wg sync.WaitGroup
	for i := range r.o.Users {
		wg.Go(func() {
			due := time.Duration(float64(r.o.Ramp) * float64(i) / float64(r.o.Users))
			for {
				SleepTimer(r.clk.At(due), ctx.Done())
				if ctx.Err() != nil || r.o.End > 0 && due >= r.o.End {
					return
				}
				j := next()
				if j == nil {
					return
				}
				j.due = due
				j.x.ArrivalUnixNS = r.clk.Unix() + int64(due)
				j.live.Scheduled.Add(1)
				r.live.InFlight.Add(1)
				r.inFlight.Add(1)
				r.send(ctx, j)
				due = time.Duration(r.clk.Now()) + r.o.Think
			}
		})
	}
	wg.Wait()
	return ctx.Err() != nil
}
