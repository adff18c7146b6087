package recorder

import (
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// What a sink holds is bounded as a whole, whoever sends: connections by number (gate), heads that are being read (mirrorConn), bodies that are
// being read and requests that wait (ledger). Whoever holds most pays.

// ledger is the memory of requests that are being read or wait to be recorded.
type ledger struct {
	mu      sync.Mutex
	limit   int64
	used    int64
	reading map[*loan]struct{}
}

// loan is one request's part.
type loan struct {
	cost    int64
	cut     func() // makes its reader stop
	evicted bool
}

// open begins a request whose reading can be cut.
func (l *ledger) open(cut func()) *loan {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.reading == nil {
		l.reading = map[*loan]struct{}{}
	}
	r := &loan{cut: cut}
	l.reading[r] = struct{}{}
	return r
}

// charge adds n bytes to what a request that is being read holds. Where that is too much for all, the one that holds most is given up, be it
// this one: then it reports false, and the request holds nothing.
func (l *ledger) charge(r *loan, n int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.evicted {
		return false
	}
	l.used += n
	r.cost += n
	for l.used > l.limit {
		worst := r
		for other := range l.reading {
			if other.cost > worst.cost {
				worst = other
			}
		}
		l.used -= worst.cost
		worst.cost, worst.evicted = 0, true
		delete(l.reading, worst)
		if worst == r {
			return false
		}
		worst.cut()
	}
	return true
}

// read ends the reading of a request, which now waits, and takes back what was charged and not read. It reports false where the request was
// given up before.
func (l *ledger) read(r *loan, unread int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.reading, r)
	if r.evicted {
		return false
	}
	l.used -= unread
	r.cost -= unread
	return true
}

// close gives back what a request held.
func (l *ledger) close(r *loan) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.reading, r)
	l.used -= r.cost
	r.cost, r.evicted = 0, true
}

// held is what all hold.
func (l *ledger) held() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.used
}

// errBacklog ends the read of a body for which there is no room.
var errBacklog = errors.New("sink: no memory for the body")

// bodyReader reads a body and charges for it as it comes. A peer that stalls, or takes too long in all, is cut.
type bodyReader struct {
	from  io.Reader
	l     *ledger
	loan  *loan
	ready int64 // charged and not read yet
	until time.Time
	wait  func(time.Time) error // sets the deadline of the next read
}

const (
	bodyStep  = 32 << 10         // charged at once: few additions to what all connections share
	bodyStall = 15 * time.Second // without a byte of it
)

func (b *bodyReader) Read(p []byte) (int, error) {
	if len(p) > bodyStep {
		p = p[:bodyStep]
	}
	if b.ready == 0 {
		b.ready = bodyStep
		if !b.l.charge(b.loan, bodyStep) {
			return 0, errBacklog
		}
	}
	if int64(len(p)) > b.ready {
		p = p[:b.ready]
	}
	deadline := time.Now().Add(bodyStall)
	if deadline.After(b.until) {
		deadline = b.until
	}
	_ = b.wait(deadline)
	n, err := b.from.Read(p)
	b.ready -= int64(n)
	b.l.mu.Lock()
	evicted := b.loan.evicted
	b.l.mu.Unlock()
	if evicted {
		return n, errBacklog
	}
	return n, err
}

// gate lets so many connections in; others are closed at once, so that a gateway knows, and does not wait.
type gate struct {
	net.Listener
	m    *Mirror
	most int64
	open atomic.Int64
}

func (g *gate) Accept() (net.Conn, error) {
	for {
		c, err := g.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if g.open.Add(1) <= g.most {
			return &mirrorConn{Conn: c, gate: g}, nil
		}
		g.open.Add(-1)
		g.m.refused.Add(1)
		c.Close()
	}
}

// mirrorConn counts what a connection's peer has sent of a head that is not whole yet: together they may hold so much, and beyond it those
// that hold more than their share are closed.
type mirrorConn struct {
	net.Conn
	gate    *gate
	head    atomic.Int64
	working atomic.Int64 // requests of it that are being served
	closed  atomic.Bool
}

var errHeads = errors.New("sink: no memory for the head")

func (c *mirrorConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n == 0 || c.working.Load() > 0 {
		return n, err
	}
	m := c.gate.m
	mine, all := c.head.Add(int64(n)), m.heads.Add(int64(n))
	if limit := m.headLimit; all > limit && mine > limit/c.gate.most {
		m.headsOver.Add(1)
		c.drop()
		c.Conn.Close() // an error alone would end a line, not the head
		return 0, errHeads
	}
	return n, err
}

// drop forgets the head: it is whole, or will not be.
func (c *mirrorConn) drop() int64 {
	n := c.head.Swap(0)
	c.gate.m.heads.Add(-n)
	return n
}

func (c *mirrorConn) Close() error {
	if !c.closed.Swap(true) {
		c.gate.open.Add(-1)
		switch n := c.drop(); {
		case n > mirrorHead:
			c.gate.m.headsLarge.Add(1)
		case n > 0 && c.working.Load() == 0:
			c.gate.m.headsCut.Add(1)
		}
	}
	return c.Conn.Close()
}

// CloseWrite is what net/http ends an answer with that its peer is to read before the connection goes.
func (c *mirrorConn) CloseWrite() error {
	if w, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return nil
}

// mirrorConnKey is where a request's context has its connection.
type mirrorConnKey struct{}

// headBytes is about what a head holds in memory once it has been read.
func headBytes(r *http.Request) int64 {
	n := int64(1024 + len(r.RequestURI))
	for name, values := range r.Header {
		for _, v := range values {
			n += int64(len(name)+len(v)) + 32
		}
	}
	return n
}
