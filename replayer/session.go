package replayer

import (
	"sync"

	"github.com/shadowtape/shadowtape/formats"
)

// conversation is a session in one pass over the trace.
type conversation struct {
	session formats.Hash
	loop    int32
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
