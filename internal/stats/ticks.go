package stats

import "math"

// Ticks finds the tick of a coarse clock in the ascending times that it gave. The zero value has seen none. Not safe for concurrent use.
type Ticks struct {
	n, shared int64
	last, run int64
	gaps      Sample
}

// Add takes the next time, in any unit; one before its predecessor begins anew and counts no distance.
func (t *Ticks) Add(at int64) {
	t.n++
	if t.n > 1 && at == t.last {
		if t.run++; t.run == 1 {
			t.shared++ // the first of them
		}
		t.shared++
		return
	}
	if t.run = 0; t.n > 1 && at > t.last {
		t.gaps.Add(float64(at-t.last), 1)
	}
	t.last = at
}

// Tick is the median distance of distinct times, where more than half of the times are shared with another; else 0.
func (t *Ticks) Tick() int64 {
	if 2*t.shared <= t.n || t.gaps.N() == 0 {
		return 0
	}
	return int64(math.Round(t.gaps.Quantile(0.5)))
}
