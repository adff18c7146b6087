package virtual

import (
	"container/heap"
	"iter"
	"time"

	"github.com/shadowtape/shadowtape/replayer/schedule"
)

// Where arrivals wait for others' ends, a schedule is read so far ahead of what is due: a turn may come earlier than recorded, where the
// simulated server is faster than the recorded one was.
const (
	lookAhead      = time.Hour
	lookAheadCount = 1 << 16
)

// due is an arrival whose time has come to be known, or a user who will want one.
type due struct {
	at      time.Duration
	order   int64 // of equal times
	arrival schedule.Arrival
}

type dueHeap []due

func (h dueHeap) Len() int { return len(h) }
func (h dueHeap) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].order < h[j].order
}
func (h dueHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *dueHeap) Push(x any)   { *h = append(*h, x.(due)) }
func (h *dueHeap) Pop() any {
	d := (*h)[len(*h)-1]
	(*h)[len(*h)-1] = due{}
	*h = (*h)[:len(*h)-1]
	return d
}

// feed reads a schedule and says what is due when.
type feed struct {
	o         Options
	next      func() (schedule.Arrival, error, bool)
	stop      func()
	over      bool // the schedule
	read      time.Duration
	order     int64
	due       dueHeap
	turns     *schedule.Turns[schedule.Arrival] // nil: nobody waits
	one       *schedule.Arrival                 // read for the next user
	unordered int64
	unsent    int64
}

func newFeed(arrivals schedule.Arrivals, o Options) *feed {
	f := &feed{o: o}
	f.next, f.stop = iter.Pull2(arrivals)
	if o.Turns {
		f.turns = schedule.NewTurns[schedule.Arrival]()
	}
	for i := range o.Users {
		f.push(o.Ramp*time.Duration(i)/time.Duration(o.Users), schedule.Arrival{})
	}
	return f
}

func (f *feed) push(at time.Duration, a schedule.Arrival) {
	f.order++
	heap.Push(&f.due, due{at, f.order, a})
}

// follows says whether an end may bring the next arrival.
func (f *feed) follows() bool {
	return f.turns != nil && f.turns.Waiting() > 0 || f.o.Users > 0 && f.one != nil
}

// peek is the time of the next arrival that is known of; false where there is none, or none before something has ended.
func (f *feed) peek(now time.Duration) (time.Duration, bool, error) {
	if f.o.Users > 0 {
		if f.one == nil && !f.over {
			a, err, ok := f.next()
			if err != nil {
				return 0, false, err
			}
			if f.over = !ok; ok {
				f.one = &a
			}
		}
		if f.one == nil || len(f.due) == 0 {
			return 0, false, nil
		}
		return f.due[0].at, true, nil
	}
	for !f.over && f.wants(now) {
		a, err, ok := f.next()
		if err != nil {
			return 0, false, err
		}
		if !ok {
			f.over = true
			break
		}
		f.take(a)
	}
	if len(f.due) == 0 {
		return 0, false, nil
	}
	return f.due[0].at, true, nil
}

// wants says whether more of the schedule is to be read.
func (f *feed) wants(now time.Duration) bool {
	if f.turns == nil {
		return len(f.due) == 0
	}
	waiting := f.turns.Waiting()
	return len(f.due)+waiting == 0 || f.read <= now+lookAhead && len(f.due)+waiting < lookAheadCount
}

// take sorts in what was read.
func (f *feed) take(a schedule.Arrival) {
	if a.At < f.read {
		a.At = f.read
		f.unordered++
	}
	f.read = a.At
	at := a.At
	if f.turns != nil {
		f.turns.Expect(schedule.IDOf(a))
		if a.After != 0 {
			end, held := f.turns.Hold(schedule.ID{Loop: a.Loop, Exchange: a.After}, a)
			if held {
				return
			}
			at = time.Duration(a.Due(end))
		}
	}
	f.later(at, a)
}

// later makes an arrival due, or forgets it where the run is over by then, and with it those that wait for it.
func (f *feed) later(at time.Duration, a schedule.Arrival) {
	if f.o.End > 0 && at >= f.o.End && a.After != 0 {
		f.unsent++
		for _, next := range f.turns.End(schedule.IDOf(a), int64(at)) {
			f.later(at, next)
		}
		return
	}
	f.push(at, a)
}

// pop takes the arrival that peek told of.
func (f *feed) pop() schedule.Arrival {
	d := heap.Pop(&f.due).(due)
	if f.o.Users > 0 {
		a := *f.one
		f.one = nil
		return a
	}
	return d.arrival
}

// ended lets those go on that waited for an exchange, or the user who sent it.
func (f *feed) ended(id schedule.ID, at time.Duration) {
	switch {
	case f.o.Users > 0:
		if next := at + f.o.Think; f.o.End == 0 || next < f.o.End {
			f.push(next, schedule.Arrival{})
		}
	case f.turns != nil:
		for _, a := range f.turns.End(id, int64(at)) {
			f.later(time.Duration(a.Due(int64(at))), a)
		}
	}
}
