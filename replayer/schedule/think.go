package schedule

import (
	"time"

	"github.com/shadowtape/shadowtape/formats"
)

// conversation is a session in one pass over the trace.
type conversation struct {
	session formats.Hash
	loop    int32
}

// Remembered is how many ended exchanges ThinkTime and Turns remember for those that come after them. What is older has ended
// long ago.
const Remembered = 1 << 16

// ThinkTime makes every turn of a session but the first wait for the answer before it, and then for as long as the recorded user
// thought: the time from the recorded answer's end to the recorded next turn. A sub-agent's first request waits for its caller's answer
// in the same way, where it came after it. Where the recording does not say when the answer ended, a turn comes at its recorded time or
// when the answer before it has ended, whichever is later. It holds one small record a session.
func ThinkTime(s Arrivals) Arrivals {
	type turn struct {
		id  uint64
		at  time.Duration
		end formats.Null[int64]
	}
	return func(yield func(Arrival, error) bool) {
		last := map[conversation]turn{}
		callers := map[ID]turn{}
		var order []ID // of callers, oldest first
		for a, err := range s {
			if err == nil {
				x := a.Exchange
				now := turn{uint64(x.ExchangeID), a.At, x.EndNS}
				k := conversation{x.SessionID.V, a.Loop}
				before, ok := last[k], false
				if x.SessionID.Valid {
					_, ok = last[k]
					last[k] = now
				}
				if !ok && x.ParentID.Valid {
					before, ok = callers[ID{a.Loop, uint64(x.ParentID.V)}]
					ok = ok && before.end.Valid && before.at+time.Duration(before.end.V) <= a.At // it was called by the answer
				}
				if ok {
					a.After, a.NotBefore = before.id, !before.end.Valid
					if before.end.Valid {
						a.Think = max(a.At-before.at-time.Duration(before.end.V), 0)
					}
				}
				id := IDOf(a)
				callers[id] = now
				if order = append(order, id); len(order) > Remembered {
					delete(callers, order[0])
					order = order[1:]
				}
			}
			if !yield(a, err) {
				return
			}
		}
	}
}
