package probe

import (
	"math/rand/v2"
	"testing"
	"time"
)

// TestClockBounds asks a server whose clock is off by a known time, over a way that takes unequal times there and back: what is known always
// holds the truth, and fourteen questions leave little more than the round trip.
func TestClockBounds(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		offset := time.Duration(r.Int64N(int64(4*time.Minute))) - 2*time.Minute
		there, back := time.Duration(r.Int64N(int64(20*time.Millisecond))), time.Duration(r.Int64N(int64(20*time.Millisecond)))
		now := time.Unix(1_800_000_000, r.Int64N(1e9))
		var b bounds
		for range offsetProbes {
			if b.n > 0 {
				before := now
				if now = b.next(now, (there+back)/2); now.Before(before) || now.Sub(before) > time.Second {
					t.Fatalf("the next question is %v away", now.Sub(before))
				}
			}
			sent := now
			date := sent.Add(there + offset).Truncate(time.Second)
			now = sent.Add(there + back)
			b.tighten(sent, now, date)
			now = now.Add(time.Duration(r.Int64N(int64(time.Millisecond))))
		}
		if offset < b.low || offset > b.high {
			t.Fatalf("offset %v is not between %v and %v", offset, b.low, b.high)
		}
		if width := b.high - b.low; width > there+back+2*time.Millisecond {
			t.Fatalf("after %d questions %v is left of an offset of %v, with a round trip of %v", b.n, width, offset, there+back)
		}
	}
}

func TestClockBoundsContradict(t *testing.T) {
	at := time.Unix(1_800_000_000, 0)
	var b bounds
	b.tighten(at, at.Add(time.Millisecond), at)
	b.tighten(at.Add(10*time.Second), at.Add(10*time.Second+time.Millisecond), at.Add(15*time.Second)) // another clock
	if b.low <= b.high {
		t.Errorf("%v to %v", b.low, b.high)
	}
}
