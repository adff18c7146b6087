package schedule

import "sync"

// ID names an exchange of the trace in one pass.
type ID struct {
	Loop     int32
	Exchange uint64
}

// IDOf is an arrival's own.
func IDOf(a Arrival) ID { return ID{a.Loop, uint64(a.Exchange.ExchangeID)} }

// Turns keeps the arrivals that wait for another exchange's end, in whatever form its consumer has given them, and forgets ends once
// Remembered others have come. Times are the consumer's, in nanoseconds. NewTurns makes one; it is safe for concurrent use.
type Turns[T any] struct {
	mu      sync.Mutex
	open    map[ID][]T   // read and not ended: who waits for it
	ended   map[ID]int64 // when
	order   []ID         // of ended, oldest first
	waiting int
}

// NewTurns returns an empty one.
func NewTurns[T any]() *Turns[T] {
	return &Turns[T]{open: map[ID][]T{}, ended: map[ID]int64{}}
}

// Expect notes an arrival that has been read. All arrivals are expected, in the order of the schedule.
func (t *Turns[T]) Expect(k ID) {
	t.mu.Lock()
	if _, ok := t.open[k]; !ok {
		t.open[k] = nil
	}
	t.mu.Unlock()
}

// Hold keeps v until k has ended. If it has, held is false and end says when; 0, the start of the run, where that is forgotten.
func (t *Turns[T]) Hold(k ID, v T) (end int64, held bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if q, ok := t.open[k]; ok {
		t.open[k] = append(q, v)
		t.waiting++
		return 0, true
	}
	return t.ended[k], false
}

// End notes that k has ended and returns who waited for it, in the order of the schedule.
func (t *Turns[T]) End(k ID, at int64) []T {
	t.mu.Lock()
	defer t.mu.Unlock()
	q, ok := t.open[k]
	if !ok {
		return nil
	}
	delete(t.open, k)
	t.waiting -= len(q)
	t.ended[k] = at
	if t.order = append(t.order, k); len(t.order) > Remembered {
		delete(t.ended, t.order[0])
		t.order = t.order[1:]
	}
	return q
}

// Waiting is how many arrivals are kept.
func (t *Turns[T]) Waiting() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.waiting
}

// Due is when a turn whose predecessor ended at end may be sent: when it has thought, and not before its own time where NotBefore says so.
// Both are nanoseconds from the run's start.
func (a Arrival) Due(end int64) int64 {
	due := end + int64(a.Think)
	if a.NotBefore {
		due = max(due, int64(a.At))
	}
	return due
}
