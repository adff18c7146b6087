package replayer

import (
	"sync"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/replayer/schedule"
)

// conversation is a session in one pass over the trace.
type conversation struct {
	session formats.Hash
	loop    int32
}

// loopID names an exchange of the trace in one pass.
type loopID struct {
	loop int32
	id   uint64
}

// turns releases the arrivals that wait for another exchange's end.
type turns struct {
	mu      sync.Mutex
	open    map[loopID][]*job // read and not ended: who waits for it
	ended   map[loopID]int64  // when, by the run's clock
	order   []loopID          // of ended, oldest first
	waiting int
}

func newTurns() *turns {
	return &turns{open: map[loopID][]*job{}, ended: map[loopID]int64{}}
}

// expect notes an arrival that has been read.
func (t *turns) expect(k loopID) {
	t.mu.Lock()
	if _, ok := t.open[k]; !ok {
		t.open[k] = nil
	}
	t.mu.Unlock()
}

// hold keeps j until k has ended. If it has, held is false and end says when; the start of the run where that is forgotten.
func (t *turns) hold(k loopID, j *job) (end int64, held bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if q, ok := t.open[k]; ok {
		t.open[k] = append(q, j)
		t.waiting++
		return 0, true
	}
	return t.ended[k], false
}

// end notes that k has ended and returns who waited for it.
func (t *turns) end(k loopID, at int64) []*job {
	t.mu.Lock()
	defer t.mu.Unlock()
	q, ok := t.open[k]
	if !ok {
		return nil
	}
	delete(t.open, k)
	t.waiting -= len(q)
	t.ended[k] = at
	if t.order = append(t.order, k); len(t.order) > schedule.Remembered {
		delete(t.ended, t.order[0])
		t.order = t.order[1:]
	}
	return q
}

// pending says whether any arrival waits.
func (t *turns) pending() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.waiting > 0
}

// overlap counts turns that were sent while an earlier one of their session was still being answered.
type overlap struct {
	mu   sync.Mutex
	busy map[conversation]int
	n    int64
}

func (o *overlap) start(x *formats.Exchange) {
	if !x.SessionID.Valid {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.busy == nil {
		o.busy = map[conversation]int{}
	}
	k := conversation{x.SessionID.V, x.Loop.V}
	if o.busy[k] > 0 {
		o.n++
	}
	o.busy[k]++
}

func (o *overlap) end(x *formats.Exchange) {
	if !x.SessionID.Valid {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	k := conversation{x.SessionID.V, x.Loop.V}
	if o.busy[k]--; o.busy[k] <= 0 {
		delete(o.busy, k)
	}
}
