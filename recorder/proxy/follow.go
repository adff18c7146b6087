package proxy

import (
	"sync"
	"sync/atomic"
	"time"
)

// Side says which way bytes went.
type Side uint8

// The sides.
const (
	FromClient Side = iota
	FromServer
)

// Consumer follows one connection, behind the traffic: it may be slow, and it may panic, and the connection does not notice. Its
// methods are called in order, by one goroutine at a time. After a panic the connection gets a new consumer, which starts in the
// middle.
type Consumer interface {
	// Bytes is what came from one side in one read, stamped when the read returned. p is valid until Bytes returns.
	Bytes(side Side, unixNS int64, p []byte)
	// Lost says that n bytes from that side passed here and were not kept.
	Lost(side Side, unixNS int64, n int64)
	// End says that a side has ended: by its own close, or by a reset of the connection.
	End(side Side, unixNS int64, reset bool)
	// Close comes last, when the connection is over.
	Close(unixNS int64)
	// Busy reports whether an exchange is open. It is asked each time the consumer has taken what there was.
	Busy() bool
	// Heading is when the client began the head that it is in the middle of while no exchange is open, in nanoseconds since 1970; 0: it is
	// in none. It is asked like Busy.
	Heading() int64
}

// follower owns the backlog between traffic and consumers.
type follower struct {
	limit  int64
	follow func(Connection) Consumer

	backlog atomic.Int64
	lost    atomic.Int64
	pieces  atomic.Int64
	panics  atomic.Int64
	over    atomic.Int64

	mu    sync.Mutex
	ready []*trail // those with something to take, each once
}

// followTick is how often what passed is taken. Taking it piece by piece would cost a wake-up for each token of each stream.
const followTick = 25 * time.Millisecond

func newFollower(o Options) *follower { return &follower{limit: o.BacklogBytes, follow: o.Follow} }

func (f *follower) stats() Stats {
	return Stats{Backlog: f.backlog.Load(), LostBytes: f.lost.Load(), LostPieces: f.pieces.Load(), Panics: f.panics.Load(), Overflowing: f.over.Load()}
}

// run starts taking. The returned function takes what is left, for as long as wait, and stops.
func (f *follower) run() (stop func(wait time.Duration)) {
	if f.follow == nil {
		return func(time.Duration) {}
	}
	ending, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		giveWay()
		tick := time.NewTicker(followTick)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				f.take()
			case <-ending:
				f.take()
				return
			}
		}
	}()
	return func(wait time.Duration) {
		close(ending)
		t := time.NewTimer(wait)
		defer t.Stop()
		select {
		case <-ended:
		case <-t.C: // a consumer that blocks for ever is left behind
		}
	}
}

func (f *follower) take() {
	f.mu.Lock()
	ready := f.ready
	f.ready = nil
	f.mu.Unlock()
	for _, t := range ready {
		t.take()
	}
}

func (f *follower) enqueue(t *trail) {
	f.mu.Lock()
	f.ready = append(f.ready, t)
	f.mu.Unlock()
}

// piece is one read, end or loss of a trail; its bytes stand in the trail's buffer.
type piece struct {
	kind   pieceKind
	side   Side
	unixNS int64
	n      int64
}

type pieceKind uint8

const (
	pieceBytes pieceKind = iota
	pieceLost
	pieceEnd
	pieceReset
	pieceClose
)

const pieceCost = 64 // what a piece adds to the backlog beside its bytes

// trail is what has passed on one connection and was not taken yet. A nil trail keeps nothing.
type trail struct {
	f          *follower
	connection Connection

	mu      sync.Mutex
	pieces  []piece
	buffer  []byte
	queued  bool
	lost    [2]int64 // bytes since the last piece of that side that was kept
	hasLost bool

	open  atomic.Int32 // 1: the consumer says busy; read by quiet
	head  atomic.Int64 // when the head began that the consumer is in the middle of; 0: in none
	taken sync.Mutex   // held while the consumer works
	to    Consumer
	// What the last take left, to be used again.
	sparePieces []piece
	spareBuffer []byte
}

func (f *follower) open(c Connection) *trail {
	if f.follow == nil {
		return nil
	}
	return &trail{f: f, connection: c}
}

func (t *trail) bytes(side Side, at int64, p []byte) {
	if t == nil {
		return
	}
	cost := int64(len(p)) + pieceCost
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.f.backlog.Add(cost) > t.f.limit {
		t.f.backlog.Add(-cost)
		t.lose(side, int64(len(p)))
		return
	}
	t.flushLost(side, at)
	t.pieces = append(t.pieces, piece{pieceBytes, side, at, int64(len(p))})
	t.buffer = append(t.buffer, p...)
	t.queue()
}

// lose remembers what did not fit; flushLost says so in its place once something fits again.
func (t *trail) lose(side Side, n int64) {
	if !t.hasLost {
		t.hasLost = true
		t.f.over.Add(1)
	}
	t.lost[side] += n
	t.f.lost.Add(n)
	t.f.pieces.Add(1)
}

func (t *trail) flushLost(side Side, at int64) {
	if t.lost[side] == 0 {
		return
	}
	t.f.backlog.Add(pieceCost)
	t.pieces = append(t.pieces, piece{pieceLost, side, at, t.lost[side]})
	t.lost[side] = 0
}

func (t *trail) queue() {
	if !t.queued {
		t.queued = true
		t.f.enqueue(t)
	}
}

func (t *trail) end(side Side, at int64, reset bool) {
	if t == nil {
		return
	}
	kind := pieceEnd
	if reset {
		kind = pieceReset
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.flushLost(side, at)
	t.f.backlog.Add(pieceCost)
	t.pieces = append(t.pieces, piece{kind, side, at, 0})
	t.queue()
}

func (t *trail) close(at int64) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.flushLost(FromClient, at)
	t.flushLost(FromServer, at)
	t.f.backlog.Add(pieceCost)
	t.pieces = append(t.pieces, piece{pieceClose, FromClient, at, 0})
	t.queue()
}

// busy reports whether the consumer, or what it has yet to take, has an exchange open.
func (t *trail) busy() bool {
	if t == nil {
		return false
	}
	t.mu.Lock()
	waiting := len(t.pieces) > 0
	t.mu.Unlock()
	return waiting || t.open.Load() != 0
}

// heading is since when the client has been in the middle of a head; the zero time where it is in none.
func (t *trail) heading() time.Time {
	if t == nil || t.busy() {
		return time.Time{}
	}
	if at := t.head.Load(); at != 0 {
		return time.Unix(0, at)
	}
	return time.Time{}
}

// take hands the consumer what has passed. Only one goroutine takes.
func (t *trail) take() {
	t.taken.Lock()
	defer t.taken.Unlock()
	t.mu.Lock()
	pieces, buffer := t.pieces, t.buffer
	t.pieces, t.buffer = t.sparePieces[:0], t.spareBuffer[:0]
	t.queued = false
	t.mu.Unlock()
	t.open.Store(1) // until the consumer has said otherwise
	cost := int64(len(buffer) + pieceCost*len(pieces))
	left, rest := pieces, buffer
	for len(left) > 0 {
		var stopped bool
		left, rest, stopped = t.hand(left, rest)
		if stopped {
			t.f.panics.Add(1)
			if _, over := t.to.(nobody); !over {
				t.to = nil
			}
		}
	}
	t.f.backlog.Add(-cost)
	open, head := int32(0), int64(0)
	if t.to != nil {
		busy, began := t.state()
		if head = began; busy {
			open = 1
		}
	}
	t.head.Store(head)
	t.open.Store(open)
	t.sparePieces, t.spareBuffer = nil, nil
	if cap(buffer) <= 8<<10 && cap(pieces) <= 128 {
		t.sparePieces, t.spareBuffer = pieces, buffer
	}
}

func (t *trail) state() (busy bool, head int64) {
	defer func() {
		if recover() != nil {
			t.f.panics.Add(1)
		}
	}()
	return t.to.Busy(), t.to.Heading()
}

// hand gives pieces to the consumer until it has all or panics; it returns what was not handed.
func (t *trail) hand(pieces []piece, rest []byte) (left []piece, leftBytes []byte, stopped bool) {
	defer func() {
		if recover() != nil {
			left, leftBytes, stopped = pieces, rest, true
		}
	}()
	if t.to == nil {
		t.to = nobody{} // which it stays if Follow panics
		if c := t.f.follow(t.connection); c != nil {
			t.to = c
		}
	}
	for len(pieces) > 0 {
		p := pieces[0]
		pieces = pieces[1:] // before the consumer sees it: what it panics on is not handed again
		switch p.kind {
		case pieceBytes:
			b := rest[:p.n:p.n]
			rest = rest[p.n:]
			t.to.Bytes(p.side, p.unixNS, b)
		case pieceLost:
			t.to.Lost(p.side, p.unixNS, p.n)
		case pieceEnd, pieceReset:
			t.to.End(p.side, p.unixNS, p.kind == pieceReset)
		case pieceClose:
			t.to.Close(p.unixNS)
		}
	}
	return nil, nil, false
}

// nobody is the consumer of a connection that nobody follows.
type nobody struct{}

func (nobody) Bytes(Side, int64, []byte) {}
func (nobody) Lost(Side, int64, int64)   {}
func (nobody) End(Side, int64, bool)     {}
func (nobody) Close(int64)               {}
func (nobody) Busy() bool                { return false }
func (nobody) Heading() int64            { return 0 }
