package recorder

import (
	"cmp"
	"hash/maphash"
	"net/netip"
	"slices"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/openai"
	"github.com/shadowtape/shadowtape/internal/tokenizer"
)

// engine turns packets into exchanges: decoder, reassembler, dialogues. One for each worker; not safe for concurrent use.
type engine struct {
	o         engineOptions
	dec       decoder
	seg       segment
	conns     map[flow]*conn
	count     int
	waiting   []*conn // connections with a hole or held segments
	heldBytes int
	now       int64 // newest packet time
	swept     int64
	waited    int64
	hash      *openai.Hasher
	emit      func(*formats.Exchange)
	begin     func(x, known *formats.Exchange) // nil, or told when a request has been read: known is what it says so far
	forget    func(x *formats.Exchange)        // nil, or told that an exchange that began will not be emitted
	dialogues uint64                           // so far
	bodies    int                              // bytes of requests being read
	heads     int                              // bytes of heads that are not whole
	heading   map[*dialogue]struct{}           // that hold some
	open      int                              // exchanges
	models    map[string]bool                  // that a server has answered for
	lengths   lengths
	oldest    *exchange // open exchanges in order of arrival
	newest    *exchange
	stats     SourceStats
	recent    [1024]*conn      // the last ones, by ports: a look here spares the hash of two addresses
	pairs     map[uint64]*conn // by both initial sequence numbers: see translation
	joined    [1024]joined     // the last segments of connections joined in the middle
	sums      maphash.Seed
}

type engineOptions struct {
	Limits
	Node  string
	clock formats.Clock
	admit *admission
	talks *sessions // shared by the workers of one recorder; nil: the engine's own
	seen  *sights   // likewise; nil: there is one worker
	words *tokenizer.Model
	keep  *Bodies
}

func newEngine(o engineOptions, ports []uint16, hash *openai.Hasher, emit func(*formats.Exchange)) *engine {
	e := &engine{o: o, conns: map[flow]*conn{}, heading: map[*dialogue]struct{}{}, hash: hash, emit: emit, models: map[string]bool{}, stats: newSourceStats(), pairs: map[uint64]*conn{}, sums: maphash.MakeSeed()}
	if o.seen != nil {
		e.sums = o.seen.sums
	}
	if e.o.talks == nil {
		e.o.talks = newSessions()
	}
	if o.words != nil && hash != nil {
		e.lengths.counter, e.lengths.special = o.words.NewCounter(), int64(o.words.Special())
		hash.CountWith(e.lengths.counter)
	}
	e.dec.ports = map[uint16]bool{}
	for _, p := range ports {
		e.dec.ports[p] = true
	}
	return e
}

// packet takes one captured frame.
func (e *engine) packet(p *packet) {
	e.stats.Packets++
	e.stats.Bytes += int64(len(p.data))
	if p.step != 0 {
		e.stepped(p.step)
	}
	s := &e.seg
	switch e.dec.decode(p, s) {
	case notTCP:
		e.stats.Notes["packets_not_tcp"]++
		return
	case unread:
		e.stats.Notes["packets_unreadable"]++
		return
	case filtered:
		e.stats.Notes["packets_other_ports"]++
		return
	}
	e.now = max(e.now, s.at)
	if e.now-e.waited >= ackWait/2 && len(e.waiting) > 0 {
		e.settleWaiting()
	}
	if e.now-e.swept >= sweepEvery {
		e.sweep()
	}
	c := e.find(s)
	if c == nil {
		return
	}
	if len(s.payload) > 0 && (c.nat.fresh || !c.syn && c.nat.early < joinedSegments) {
		if c = e.translated(c, s); c == nil {
			return
		}
	}
	if q := c.nat.shared; q != nil && c.dlg != nil {
		if near := q.server.Load(); near != nil {
			c.answeredBy(*near)
		}
	}
	c.segment(e, s)
	if e.heldBytes > e.o.MaxHeld {
		e.relieve()
	}
	if !c.dead && (c.half[0].bytes+c.half[1].bytes > e.o.MaxHeldEach || len(c.half[0].held) > maxSegments || len(c.half[1].held) > maxSegments) {
		e.stats.Notes["over_memory"]++
		c.flush(e)
	}
}

const sweepEvery = 10e9

// slot is a flow's place among the recent ones.
func (f *flow) slot() int { return int(f.pa^f.pb) & 1023 }

// find returns the segment's connection, a new one where it opens one, nil where it belongs to none.
func (e *engine) find(s *segment) *conn {
	slot := s.flow.slot()
	if c := e.recent[slot]; c != nil && c.out == s.out && c.key == s.flow && s.flags&tcpSYN == 0 && c.relation(s) == same {
		return c
	}
	// Those seen in the same wrapping come first.
	for _, mine := range [2]bool{true, false} {
		for c := e.conns[s.flow]; c != nil; c = c.next {
			if c.mine(s) != mine {
				continue
			}
			if c.nat.of != nil {
				if p := e.original(c, s); p != nil {
					return p
				}
				continue
			}
			if c.nat.elsewhere {
				if e.copied(c, s) {
					return nil
				}
				continue
			}
			switch c.relation(s) {
			case same:
				if c.key == s.flow {
					e.recent[slot] = c
				}
				return c
			case over: // the address pair is in use again
				e.retire(c)
			}
		}
	}
	if len(s.payload)+s.cut == 0 && s.flags&tcpSYN == 0 {
		return nil
	}
	if s.flags&tcpSYN == 0 {
		if p := e.rejoined(s); p != nil {
			return p
		}
	}
	c := &conn{key: s.flow, out: s.out, client: -1, syn: s.flags&tcpSYN != 0, nat: translation{fresh: s.flags&tcpSYN != 0}, last: s.at, next: e.conns[s.flow]}
	if s.flags&tcpSYN != 0 {
		c.client = s.from
		if s.flags&tcpACK != 0 {
			c.client = 1 - s.from
		}
		c.start(e)
	}
	e.conns[s.flow] = c
	e.count++
	e.recent[slot] = c
	if e.count > e.o.MaxConnections {
		e.evict(c)
	}
	return c
}

type relation uint8

const (
	other relation = iota
	same
	over
)

// relation says whether a segment belongs to the connection, to another of the same addresses (in another network, or seen through
// another tunnel), or to a later one that ends it.
func (c *conn) relation(s *segment) relation {
	h := &c.half[s.from]
	mine := c.mine(s)
	if s.flags&tcpSYN != 0 {
		switch {
		case h.hasISN && h.isn == s.seq, h.known && !h.hasISN && h.total < maxJump && diff(h.next, s.seq+1) >= 0 && diff(h.next, s.seq+1) <= h.total:
			c.view(s, mine)
			return same
		case !h.known && !h.hasISN && mine && !c.dead: // the other side's first word
			return same
		case !h.known && !mine && s.flags&tcpACK != 0 && c.half[1-s.from].hasISN && c.half[1-s.from].isn+1 == s.ack:
			c.view(s, mine)
			return same
		case mine:
			return over
		}
		return other
	}
	near := false
	if h.known {
		d := diff(s.seq, h.next)
		near = d < maxJump && d > -min(h.total+1<<20, 1<<31)
	} else if p := &c.half[1-s.from]; p.known && s.flags&tcpACK != 0 {
		d := diff(s.ack, p.next)
		near = d < maxJump && d > -min(p.total+1<<20, 1<<31)
	} else {
		near = mine
	}
	switch {
	case near && !mine && !c.plausible(s):
		return other
	case near && c.dead && diff(s.seq, h.next) > 0 && len(s.payload) > 0:
		return over
	case near:
		c.view(s, mine)
		return same
	case mine && len(s.payload) > 0:
		return over
	case mine:
		return same // a stray packet
	}
	return other
}

// mine reports whether the connection has been seen in the segment's wrapping.
func (c *conn) mine(s *segment) bool {
	if s.out == c.out {
		return true
	}
	for _, v := range c.views {
		if v == s.out {
			return true
		}
	}
	return false
}

// plausible reports whether a segment in another wrapping is the same flow: sequence numbers that fit both ways do not happen by chance.
func (c *conn) plausible(s *segment) bool {
	h := &c.half[s.from]
	if !h.known {
		return true
	}
	d := diff(s.seq, h.next)
	return d < 1<<20 && d > -1<<20
}

// view notes another wrapping in which the flow is seen.
func (c *conn) view(s *segment, known bool) {
	if !known && len(c.views) < 8 {
		c.views = append(c.views, s.out)
	}
}

// retire ends a connection and forgets it.
func (e *engine) retire(c *conn) {
	if c.nat.gone {
		return
	}
	c.nat.gone = true
	if e.pairs[c.nat.pair] == c {
		delete(e.pairs, c.nat.pair)
	}
	for _, other := range c.nat.copies {
		e.retire(other)
	}
	if c.nat.shared != nil {
		e.o.seen.forget(c)
	}
	if !c.dead {
		c.flush(e)
		if !c.dead {
			c.kill(e)
		}
	}
	if slot := c.key.slot(); e.recent[slot] == c {
		e.recent[slot] = nil
	}
	e.count--
	head := e.conns[c.key]
	if head == c {
		if c.next == nil {
			delete(e.conns, c.key)
		} else {
			e.conns[c.key] = c.next
		}
		return
	}
	for ; head != nil; head = head.next {
		if head.next == c {
			head.next = c.next
			return
		}
	}
}

// wait puts a connection on the list of those whose holes have a time limit.
func (e *engine) wait(c *conn) {
	if !c.queued {
		c.queued = true
		e.waiting = append(e.waiting, c)
	}
}

func (e *engine) settleWaiting() {
	e.waited = e.now
	list := e.waiting
	e.waiting = e.waiting[:0:0]
	for _, c := range list {
		c.queued = false
		if c.dead {
			continue
		}
		c.settle(e, e.now)
		if c.release(e, false); !c.dead && (len(c.unacked) > 0 || len(c.half[0].held)+len(c.half[1].held) > 0 || c.hole(0) > 0 || c.hole(1) > 0) {
			e.wait(c)
		}
	}
}

// sweep forgets connections that have been silent for longer than the idle limit, and closed ones after a short while.
func (e *engine) sweep() {
	e.swept = e.now
	idle := e.o.IdleTimeout.Nanoseconds()
	var goners []*conn
	for _, c := range e.conns {
		for ; c != nil; c = c.next {
			if c.nat.of != nil {
				continue // it goes with the one that it is a sight of
			}
			if age := e.now - c.last; age > idle || c.dead && !c.nat.open() && age > lingerDead {
				goners = append(goners, c)
			}
		}
	}
	for _, c := range goners {
		e.retire(c)
	}
}

const lingerDead = 30e9

// evict makes room for connections: those without an open exchange that have been silent longest go first.
func (e *engine) evict(except *conn) {
	e.sweep()
	if e.count <= e.o.MaxConnections {
		return
	}
	var all []*conn
	for _, c := range e.conns {
		for ; c != nil; c = c.next {
			if c != except && c.nat.of == nil {
				all = append(all, c)
			}
		}
	}
	slices.SortFunc(all, func(a, b *conn) int {
		if a.busy() != b.busy() {
			if a.busy() {
				return 1
			}
			return -1
		}
		return cmp.Compare(a.last, b.last)
	})
	for _, c := range all[:min(len(all), e.count-e.o.MaxConnections+e.o.MaxConnections/16)] {
		e.stats.Notes["connections_evicted"]++
		e.retire(c)
	}
}

func (c *conn) busy() bool { return c.dlg != nil && len(c.dlg.open) > 0 }

// relieve makes room: the connection that holds most gives up its oldest hole.
func (e *engine) relieve() {
	for e.heldBytes > e.o.MaxHeld {
		var worst *conn
		most := 0
		for _, c := range e.waiting {
			if n := c.half[0].bytes + c.half[1].bytes; n > most && !c.dead {
				worst, most = c, n
			}
		}
		if worst == nil {
			return
		}
		e.stats.Notes["over_memory"]++
		worst.flush(e)
	}
}

// finish ends everything: the capture is over.
func (e *engine) finish() {
	var all []*conn
	for _, c := range e.conns {
		for ; c != nil; c = c.next {
			all = append(all, c)
		}
	}
	for _, c := range all {
		e.retire(c)
	}
}

// opened puts an exchange on the list of open ones.
func (e *engine) opened(x *exchange) {
	x.live = true
	e.open++
	x.older = e.newest
	if e.newest != nil {
		e.newest.newer = x
	} else {
		e.oldest = x
	}
	e.newest = x
}

// done takes it off.
func (e *engine) done(x *exchange) {
	if x.older != nil {
		x.older.newer = x.newer
	} else if e.oldest == x {
		e.oldest = x.newer
	}
	if x.newer != nil {
		x.newer.older = x.older
	} else if e.newest == x {
		e.newest = x.older
	}
	x.older, x.newer = nil, nil
	e.bodies -= x.charged
	x.charged = 0
	if x.live {
		x.live = false
		e.open--
	}
}

// exchangeBytes is about what an open exchange holds beside its body.
const exchangeBytes = 2 << 10

// crowded reports whether exchanges take as much as bodies may.
func (e *engine) crowded() bool { return e.open > e.o.MaxBodies/exchangeBytes }

// mostHeads is how many bytes heads that are not whole may take together.
func (e *engine) mostHeads() int { return max(e.o.MaxBodies/4, 1<<20) }

// emitExchange hands a finished exchange out. A model's name is kept once a server has answered for it; before, and in refused requests,
// it may be anything that a user typed, and is hashed.
func (e *engine) emitExchange(x *exchange) {
	e.done(x)
	if x.resp != nil || e.lengths.counter != nil {
		t := text{prompt: x.prompt, promptTokens: x.promptTokens}
		if r := x.resp; r != nil {
			t.answer = r.TextBytes()
			if c := e.lengths.counter; c != nil {
				t.count = func() []int64 { return r.CountText(c) }
			}
		}
		if warning := e.lengths.apply(x.x, t, e.stats.Notes); warning != "" {
			e.stats.Warnings = append(e.stats.Warnings, warning)
		}
	}
	x.x.RequestModel = e.modelName(x.x.RequestModel, x.status)
	e.emit(x.x)
}

// modelName is what may be kept of a model's name, given the status of the answer, 0 without one.
func (e *engine) modelName(m string, status int) string {
	switch {
	case m == "":
		return ""
	case status >= 200 && status < 300 && len(e.models) < 4096:
		e.models[m] = true
	}
	switch {
	case e.models[m]:
		return m
	case e.hash != nil:
		return e.hash.Hex("model", m)
	}
	return ""
}

// name is an end's address and port.
func (f flow) name(end int) string {
	a, p := f.a, f.pa
	if end == 1 {
		a, p = f.b, f.pb
	}
	return netip.AddrPortFrom(netip.AddrFrom16(a).Unmap(), p).String()
}
