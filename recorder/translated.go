package recorder

import (
	"hash/maphash"
	"sync"
	"sync/atomic"
)

// Behind address translation one connection has two pairs of addresses, and a recorder that sees both sides of the translator (an interface
// named any, a node's veth and its eth0, captures of two interfaces) meets it twice. Translation leaves sequence numbers, payload and IP
// identification alone. So a connection is another sight of one that is known where both initial sequence numbers, 64 bits that nobody
// chooses, are the same; where the first request's first segment is the same to the byte and the IP identification, and was seen within
// translationTime of the other; and where the packet came another way: through another interface, or through one router more. A connection
// that was joined in the middle has no initial sequence numbers: there a whole segment must agree, sequence and acknowledgement numbers,
// payload and identification. The second sight then counts as copies of the first's packets.
//
// The two sights may be in the hands of two workers. Then the one that meets the first request first keeps the connection, and the other
// counts its packets as copies. What was open when the recorder came is paired within a worker only.
//
// A proxy in between, docker's userland one too, opens a connection of its own: these are two, and both are recorded.
const (
	translationTime = 10e6
	leastISN        = 1 << 16 // sequence numbers below this are made by hand: captures made for tests count from 0
	joinedSegments  = 64      // of a connection joined in the middle, that another sight of it is looked for in
	leastPayload    = 16
)

// sight is a segment as it was seen, to be compared with how another connection's was.
type sight struct {
	seq, ack uint32
	ipID     uint32
	size     int
	ttl      uint8
	out      outer
	at       int64
	sum      uint64
}

func (e *engine) sight(s *segment) sight {
	return sight{s.seq, s.ack, s.ipID, len(s.payload), s.ttl, s.out, s.at, maphash.Bytes(e.sums, s.payload)}
}

// again reports whether b is a once more, having come another way.
func (a *sight) again(b *sight) bool {
	d := b.at - a.at
	return a.seq == b.seq && a.ack == b.ack && a.ipID == b.ipID && a.size == b.size && a.sum == b.sum && (a.out != b.out || a.ttl != b.ttl) && d <= translationTime && d >= -translationTime
}

// translation is what is known of a connection's other sights.
type translation struct {
	fresh  bool   // its first request is still to come
	first  sight  // of that
	pair   uint64 // the initial sequence numbers by which others find it; 0: none do
	of     *conn  // the connection that this is only another sight of; nil: none
	turned bool   // whose ends stand the other way round
	copies []*conn
	synAck int64 // when the server's first word was seen here
	early  int   // segments that were noted of a connection joined in the middle
	gone   bool  // it was retired

	shared    *sharedSight // what other workers know of it; nil: nothing
	elsewhere bool         // another worker has it: this is only another sight of it
	closed    [2]bool      // of one that is elsewhere: a side has ended
}

// open reports whether a connection that another worker has goes on.
func (n *translation) open() bool { return n.elsewhere && !(n.closed[0] && n.closed[1]) }

// sights is what the workers of one recorder know of each other's connections. Safe for concurrent use.
type sights struct {
	sums  maphash.Seed
	mu    sync.Mutex
	pairs map[uint64]*sharedSight
}

// sharedSight is a connection as the worker that has it saw it.
type sharedSight struct {
	owner  *conn
	first  sight
	synAck int64
	server atomic.Pointer[string] // the address nearer to the server, where another worker saw it
}

func newSights() *sights { return &sights{sums: maphash.MakeSeed(), pairs: map[uint64]*sharedSight{}} }

// claim makes a connection known by its initial sequence numbers, or returns another worker's that it is another sight of.
func (t *sights) claim(pair uint64, c *conn) *sharedSight {
	t.mu.Lock()
	defer t.mu.Unlock()
	q := t.pairs[pair]
	if q == nil {
		q = &sharedSight{owner: c, first: c.nat.first, synAck: c.nat.synAck}
		t.pairs[pair], c.nat.shared = q, q
		return nil
	}
	if !q.first.again(&c.nat.first) {
		return nil
	}
	if n := &c.nat; q.synAck > n.synAck && n.synAck > 0 { // it is the nearest so far
		name := c.key.name(1 - c.client)
		q.server.Store(&name)
		q.synAck = n.synAck
	}
	return q
}

func (t *sights) forget(c *conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := &c.nat; t.pairs[n.pair] == n.shared && n.shared.owner == c {
		delete(t.pairs, n.pair)
	}
}

// copied takes a segment of a connection that another worker has; false where the addresses are in use again.
func (e *engine) copied(c *conn, s *segment) bool {
	n := &c.nat
	if s.flags&tcpSYN != 0 && s.seq != c.half[s.from].isn {
		e.retire(c)
		return false
	}
	c.last = s.at
	n.closed[s.from] = n.closed[s.from] || s.flags&(tcpFIN|tcpRST) != 0
	n.closed[1-s.from] = n.closed[1-s.from] || s.flags&tcpRST != 0
	e.stats.Notes["duplicate_packets"]++
	return true
}

// answeredBy says which address answers.
func (c *conn) answeredBy(server string) {
	if c.dlg.server == server {
		return
	}
	c.dlg.server = server
	for _, x := range c.dlg.open {
		x.x.ServerID = server
	}
}

// joined is a segment of a connection that was joined in the middle.
type joined struct {
	c    *conn
	from int
	sight
}

// translated looks at a connection's first request, or at the first packets of one that was joined in the middle, and returns the
// connection that the segment is to be taken for: c, or one that c is another sight of; nil where another worker has that.
func (e *engine) translated(c *conn, s *segment) *conn {
	n := &c.nat
	if !c.syn {
		if n.early++; n.early <= joinedSegments && len(s.payload) >= leastPayload && s.cut == 0 {
			e.joined[s.seq%uint32(len(e.joined))] = joined{c, s.from, e.sight(s)}
		}
		return c
	}
	n.fresh = false
	me, peer := &c.half[s.from], &c.half[1-s.from]
	if s.from != c.client || !me.hasISN || !peer.hasISN || me.isn < leastISN || peer.isn < leastISN || me.total+peer.total > 0 || s.seq != me.isn+1 || s.cut > 0 || len(s.payload) < leastPayload {
		return c
	}
	n.first = e.sight(s)
	pair := uint64(me.isn)<<32 | uint64(peer.isn)
	p := e.pairs[pair]
	if p == nil {
		if e.o.seen != nil && e.o.seen.claim(pair, c) != nil {
			e.stats.Notes["translated_connections"]++
			c.dead, c.dlg, n.elsewhere = true, nil, true
			if slot := c.key.slot(); e.recent[slot] == c {
				e.recent[slot] = nil
			}
			e.copied(c, s)
			return nil
		}
		n.pair = pair
		e.pairs[pair] = c
		return c
	}
	if p.dead || !p.nat.first.again(&n.first) {
		return c
	}
	c.dlg = nil
	e.same(p, c, p.client != c.client, p.nat.synAck > n.synAck && n.synAck > 0)
	p.through(c, s)
	return p
}

// rejoined finds the connection, joined in the middle, of which a segment that belongs to none is another sight.
func (e *engine) rejoined(s *segment) *conn {
	j := &e.joined[s.seq%uint32(len(e.joined))]
	p := j.c
	if p == nil || p.nat.gone || p.dead || p.key == s.flow || len(s.payload) < leastPayload || s.cut > 0 {
		return nil
	}
	if now := e.sight(s); !j.sight.again(&now) {
		return nil
	}
	c := &conn{key: s.flow, out: s.out, client: -1, last: s.at, next: e.conns[s.flow]}
	if p.client >= 0 {
		c.client = p.client
		if j.from != s.from {
			c.client = 1 - p.client
		}
	}
	e.conns[s.flow] = c
	e.count++
	// What the client says passes the side of the server last.
	e.same(p, c, j.from != s.from, p.client >= 0 && j.from == p.client)
	p.through(c, s)
	return p
}

// same makes c another sight of p. nearer: it is the one on the server's side, whose address is the one that answers.
func (e *engine) same(p, c *conn, turned, nearer bool) {
	e.stats.Notes["translated_connections"]++
	c.dead, c.nat.of, c.nat.turned = true, p, turned
	if slot := c.key.slot(); e.recent[slot] == c {
		e.recent[slot] = nil
	}
	p.nat.copies = append(p.nat.copies, c)
	if nearer && p.dlg != nil && c.client >= 0 {
		p.answeredBy(c.key.name(1 - c.client))
	}
}

// through turns a segment seen as c's into one of p's.
func (p *conn) through(c *conn, s *segment) {
	s.flow = p.key
	if c.nat.turned {
		s.from = 1 - s.from
	}
}

// original returns the connection that a segment of another sight belongs to, and turns the segment into that one's; nil where the addresses
// are in use again.
func (e *engine) original(c *conn, s *segment) *conn {
	p, t := c.nat.of, *s
	p.through(c, &t)
	switch p.relation(&t) {
	case same:
		*s = t
		return p
	case over:
		e.retire(c)
	}
	return nil
}
