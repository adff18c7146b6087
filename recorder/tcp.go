package recorder

import (
	"github.com/shadowtape/shadowtape/formats"
)

// conn is one TCP connection being reassembled. Bytes reach the dialogue in sequence order, each with the time at which it was
// available in order: the running maximum of the packets' times. A segment is held back while bytes before it are missing, or while
// the other direction lacks bytes that its sender had acknowledged: so a response never overtakes its request.
type conn struct {
	key    flow
	out    outer   // the view that it was first seen in
	views  []outer // others
	half   [2]half // by sender: the flow's a, b
	client int     // which half is the client's; -1 is not known yet
	dlg    *dialogue
	syn    bool  // its start was seen
	last   int64 // newest packet
	dead   bool  // closed: late packets are ignored
	reset  bool
	resets [2]uint32 // where each half ends after a reset
	has    [2]bool   // resets is known
	resetT int64
	resetB int // who reset
	next   *conn
	queued bool // on the engine's list of connections that wait

	nat translation

	unacked []finished // exchanges that are over, but for the client's word that it has them
}

// finished is an exchange that waits until the client has acknowledged the response's last byte: until then a segment may be sent again
// and so show that the client had it later than it seemed.
type finished struct {
	x   *exchange
	end uint32
	at  int64
}

// half is one direction.
type half struct {
	seen    bool // a packet came from here
	known   bool // next is right
	isn     uint32
	hasISN  bool
	next    uint32 // sequence number after the last byte delivered or given up
	total   int64  // bytes so far
	acked   uint32 // highest acknowledgement by the peer
	hasAck  bool
	fin     bool
	finSeq  uint32
	finAt   int64
	ended   bool
	at      int64 // time of the last byte delivered
	held    []heldSegment
	bytes   int   // held
	holeAt  int64 // packet time when the hole was noticed; 0: none
	gapNext bool  // the next bytes follow a gap
	recent  [8]seenSegment
	recentN int
}

// seenSegment is what tells a segment that is captured twice from one that is sent twice.
type seenSegment struct {
	seq, ipID uint32
	size      int
	at        int64
}

// saw notes a segment, and reports whether it is another capture of one that was seen just before.
func (h *half) saw(s *segment, seq uint32) bool {
	size := len(s.payload) + s.cut
	for i := range h.recent {
		r := &h.recent[i]
		if r.seq != seq || r.size != size || r.ipID != s.ipID {
			continue
		}
		// Without an IP id only time tells: nothing is sent again this soon.
		if age := s.at - r.at; age <= dupWindow && (s.ipID != 0 || age <= dupWindow/10) {
			return true
		}
	}
	h.recent[h.recentN%len(h.recent)] = seenSegment{seq, s.ipID, size, s.at}
	h.recentN++
	return false
}

const (
	maxJump     = 1 << 26 // sequence numbers further apart than this belong to different connections
	ackWait     = 50e6    // after this long a hole that the peer has acknowledged was lost by the capture
	ackPatience = 500e6   // after this long without an acknowledgement an exchange is emitted all the same
	dupWindow   = 1e6     // an identical packet within this time is another view of the same one
)

func diff(a, b uint32) int64 { return int64(int32(a - b)) }

// segment takes one captured segment of the connection.
func (c *conn) segment(e *engine, s *segment) {
	me, peer := &c.half[s.from], &c.half[1-s.from]
	me.seen = true
	c.last = max(c.last, s.at)
	if s.flags&tcpACK != 0 && !peer.known && me.hasISN && s.flags&tcpSYN == 0 {
		peer.known, peer.next = true, s.ack // its SYN was lost, but this answers it
	}
	if s.flags&tcpACK != 0 && peer.known {
		if d := diff(s.ack, peer.next); (!peer.hasAck || diff(s.ack, peer.acked) > 0) && d < maxJump && d > -maxJump {
			peer.acked, peer.hasAck = s.ack, true
		}
	}
	seq := s.seq
	if s.flags&tcpSYN != 0 {
		if !me.known {
			me.known, me.next = true, seq+1
		}
		me.isn, me.hasISN = seq, true
		if s.flags&tcpACK != 0 && c.nat.synAck == 0 {
			c.nat.synAck = s.at
		}
		if s.flags&tcpACK != 0 && !peer.known { // the SYN was lost, but this answers it
			peer.known, peer.next, peer.isn, peer.hasISN = true, s.ack, s.ack-1, true
		}
		seq++
	}
	if len(s.payload)+s.cut > 0 {
		c.payload(e, s, me, peer, seq)
	}
	end := seq + uint32(len(s.payload)+s.cut)
	if s.flags&tcpFIN != 0 && me.known && !me.fin {
		me.fin, me.finSeq, me.finAt = true, end, s.at
	}
	if s.flags&tcpRST != 0 && !c.reset {
		c.reset, c.resetT, c.resetB = true, s.at, s.from
		if me.known && diff(end, me.next) < maxJump && diff(end, me.next) > 0 {
			c.resets[s.from], c.has[s.from] = end, true
		}
		if s.flags&tcpACK != 0 && peer.known && diff(s.ack, peer.next) > 0 && diff(s.ack, peer.next) < maxJump {
			c.resets[1-s.from], c.has[1-s.from] = s.ack, true
		}
	}
	if s.untimed && s.flags&(tcpFIN|tcpRST) != 0 && c.dlg != nil {
		c.dlg.doubt(fromServer)
	}
	if len(c.unacked) > 0 {
		c.release(e, false)
	}
	if len(me.held)+len(peer.held) > 0 || me.fin || peer.fin || c.reset || me.hasAck && diff(me.acked, me.next) > 0 || peer.hasAck && diff(peer.acked, peer.next) > 0 {
		c.settle(e, s.at)
	}
}

// payload takes a segment's bytes.
func (c *conn) payload(e *engine, s *segment, me, peer *half, seq uint32) {
	if c.client < 0 {
		c.decideClient(e, s)
	}
	if !me.known {
		me.known, me.next = true, seq
	}
	if s.flags&tcpACK != 0 && peer.seen && !peer.known {
		peer.known, peer.next = true, s.ack
	}
	dup := me.saw(s, seq)
	data, flags := s.payload, int32(0)
	if s.untimed {
		flags = formats.FlagGap
	}
	if d := diff(me.next, seq); d > 0 { // begins before what was delivered
		if d >= int64(len(data)+s.cut) {
			switch {
			case dup || s.out != c.out:
				e.stats.Notes["duplicate_packets"]++
			case len(data) <= 1 && d == 1: // a keep-alive probe
			default:
				c.repeated(e, s.from, seq)
			}
			return
		}
		c.repeated(e, s.from, seq)
		flags |= formats.FlagRetransmit
		if d >= int64(len(data)) {
			s.cut -= int(d) - len(data)
			data = nil
		} else {
			data = data[d:]
		}
		seq = me.next
	}
	if me.fin && diff(seq, me.finSeq) >= 0 {
		return
	}
	blocked := s.flags&tcpACK != 0 && peer.seen && peer.known && diff(s.ack, peer.next) > 0 && diff(s.ack, peer.next) < maxJump
	if seq == me.next && len(me.held) == 0 && !blocked {
		c.deliver(e, s.from, data, s.cut, s.at, flags)
		return
	}
	if seq == me.next && len(me.held) > 0 && me.held[0].seq != seq && !(me.hasAck && diff(me.acked, seq) > 0) {
		// It fills a hole: sent again, or overtaken. Where the receiver has acknowledged it already, only the capture has its order wrong.
		flags |= formats.FlagRetransmit
		c.countRepeat(e, s.from)
	}
	ack := s.ack
	if !blocked {
		ack = peer.next
	}
	c.hold(e, s.from, heldSegment{seq: seq, ack: ack, data: data, cut: s.cut, at: s.at, flags: flags})
}

// deliver hands bytes that are next in sequence to the dialogue.
func (c *conn) deliver(e *engine, from int, data []byte, cut int, at int64, flags int32) {
	h := &c.half[from]
	h.at = max(h.at, at)
	h.holeAt = 0
	h.next += uint32(len(data) + cut)
	h.total += int64(len(data) + cut)
	untimed := flags&formats.FlagGap != 0
	if h.gapNext {
		flags |= formats.FlagGap
		h.gapNext = false
	}
	if c.dlg == nil {
		return
	}
	dir := c.dir(from)
	defer c.collect(e, at)
	if len(data) > 0 {
		if !h.hasISN {
			c.dlg.half[dir].resync = true // its first bytes may be missing
		}
		if dir == fromServer {
			c.dlg.marks.add(c.dlg, h.next-uint32(len(data)+cut), h.next)
		}
		c.dlg.data(dir, data, h.at, flags)
		if untimed {
			c.dlg.doubt(dir)
		}
	}
	if cut > 0 {
		c.dlg.gap(dir, int64(cut), true)
		e.stats.Notes["truncated_packets"]++
		h.gapNext = true
	}
}

// collect takes the exchanges that the dialogue has finished.
func (c *conn) collect(e *engine, at int64) {
	if len(c.dlg.over) == 0 {
		return
	}
	end := c.half[1-c.client].next
	for _, x := range c.dlg.over {
		c.unacked = append(c.unacked, finished{x, end, at})
	}
	c.dlg.over = c.dlg.over[:0]
	e.wait(c)
	c.release(e, false)
}

// release emits those that have been acknowledged, or for which no acknowledgement can be expected.
func (c *conn) release(e *engine, all bool) {
	if c.dlg != nil && all {
		for _, x := range c.dlg.over {
			c.unacked = append(c.unacked, finished{x: x})
		}
		c.dlg.over = nil
	}
	if len(c.unacked) == 0 {
		return
	}
	srv := &c.half[1-c.client]
	all = all || !c.half[c.client].seen
	n := 0
	for n < len(c.unacked) {
		u := &c.unacked[n]
		if !all && e.now-u.at < ackPatience && (!srv.hasAck || diff(srv.acked, u.end) < 0) {
			break
		}
		e.emitExchange(u.x)
		n++
	}
	c.unacked = c.unacked[n:]
	if len(c.unacked) == 0 {
		c.unacked = nil
	}
}

func (c *conn) dir(from int) int {
	if from == c.client {
		return fromClient
	}
	return fromServer
}

// repeated books a segment whose bytes had been delivered: they were sent again, so the receiver may have had them, and all that followed,
// only now.
func (c *conn) repeated(e *engine, from int, seq uint32) {
	var x *formats.Exchange
	if c.dlg != nil && c.dir(from) == fromServer {
		x = c.dlg.marks.flag(seq)
	}
	c.bookRepeat(e, from, x)
}

func (c *conn) countRepeat(e *engine, from int) { c.bookRepeat(e, from, nil) }

// bookRepeat counts a repeated segment, for x or for the exchange that the direction is at.
func (c *conn) bookRepeat(e *engine, from int, x *formats.Exchange) {
	e.stats.Notes["retransmitted_packets"]++
	if x == nil && c.dlg != nil {
		if now := c.dlg.current(c.dir(from)); now != nil {
			x = now.x
		} else if n := len(c.unacked); n > 0 {
			x = c.unacked[n-1].x.x
		}
	}
	if x != nil {
		x.Retransmits = formats.Of(x.Retransmits.Or(0) + 1)
	}
}

// settle delivers what has become possible, gives up holes whose time is over, and closes what has ended.
func (c *conn) settle(e *engine, now int64) {
	for moved := true; moved; {
		moved = c.drain(e, 0, false) || c.drain(e, 1, false)
		for i := range c.half {
			if c.hole(i) == 0 {
				continue
			}
			h := &c.half[i]
			if h.holeAt == 0 {
				h.holeAt = max(now, 1)
				e.wait(c)
			}
			wait := e.o.GapTimeout.Nanoseconds()
			if h.hasAck && diff(h.acked, h.next) > 0 {
				wait = ackWait
			}
			if now-h.holeAt >= wait {
				c.giveUp(e, i)
				moved = true
			}
		}
	}
	c.ends(e, now, false)
}

// ends tells the dialogue of FIN and RST once everything before them has been delivered.
func (c *conn) ends(e *engine, now int64, force bool) {
	if c.dlg != nil && c.client >= 0 {
		c.dlg.deaf = !c.half[1-c.client].seen
	}
	for i := range c.half {
		h := &c.half[i]
		if h.fin && !h.ended && h.known && (force || diff(h.finSeq, h.next) <= 0) {
			h.ended = true
			if c.dlg != nil {
				c.dlg.close(c.dir(i), closedFIN, max(h.finAt, h.at))
			}
		}
	}
	if c.reset && (force || c.resetReady()) {
		if c.dlg != nil {
			c.dlg.close(c.dir(c.resetB), closedRST, max(c.resetT, c.half[c.resetB].at))
		}
		c.kill(e)
	}
	if c.half[0].ended && c.half[1].ended {
		c.kill(e)
	}
}

func (c *conn) resetReady() bool {
	for i := range c.half {
		if h := &c.half[i]; c.has[i] && h.known && diff(c.resets[i], h.next) > 0 {
			return false
		}
	}
	return true
}

// flush gives up every hole and delivers everything: the connection or the capture is over.
func (c *conn) flush(e *engine) {
	for range 1 << 20 {
		moved := c.drain(e, 0, false) || c.drain(e, 1, false)
		if moved {
			continue
		}
		// The older hole goes first, so that the order of the two directions stays right.
		first := 0
		if c.hole(0) == 0 || c.hole(1) > 0 && c.half[1].holeAt != 0 && c.half[1].holeAt < c.half[0].holeAt {
			first = 1
		}
		if c.hole(first) > 0 {
			c.giveUp(e, first)
			continue
		}
		if !c.drain(e, 0, true) && !c.drain(e, 1, true) {
			break
		}
	}
	c.ends(e, c.last, true)
}

// kill drops what the connection holds. It stays known for a while, so that its late packets open no new one.
func (c *conn) kill(e *engine) {
	for i := range c.half {
		e.heldBytes -= c.half[i].bytes
		c.half[i].held, c.half[i].bytes = nil, 0
	}
	if c.dlg != nil {
		if len(c.dlg.open) > 0 {
			c.dlg.close(fromServer, closedCut, c.last)
		}
		c.dlg.forgetHeads()
	}
	c.release(e, true)
	c.dlg = nil
	c.dead = true
}

// decideClient finds out who asks: by the SYN, then by the server's port, then by what is said.
func (c *conn) decideClient(e *engine, s *segment) {
	ports := [2]uint16{c.key.pa, c.key.pb}
	switch {
	case e.dec.ports[ports[0]] != e.dec.ports[ports[1]]:
		c.client = 0
		if e.dec.ports[ports[0]] {
			c.client = 1
		}
	default:
		if yes, whole := looksLikeRequest(s.payload); yes && whole {
			c.client = s.from
		} else if yes, whole := looksLikeResponse(s.payload); yes && whole {
			c.client = 1 - s.from
		} else {
			return
		}
	}
	c.start(e)
}

// start gives the connection its dialogue.
func (c *conn) start(e *engine) {
	server := c.key.name(1 - c.client)
	c.dlg = newDialogue(e, server, c.syn, e.o.clock)
}
