package recorder

import (
	"bytes"

	"github.com/shadowtape/shadowtape/formats"
)

// heldSegment is a segment that cannot be delivered yet.
type heldSegment struct {
	seq   uint32
	ack   uint32
	data  []byte
	cut   int
	at    int64
	flags int32
}

const (
	heldOverhead = 80   // bytes that a held segment costs beside its data
	maxSegments  = 4096 // held for one direction
)

// hold keeps a copy of a segment that cannot be delivered yet. Bytes that are held already win over later ones.
func (c *conn) hold(e *engine, from int, s heldSegment) {
	h := &c.half[from]
	i := len(h.held) // nearly always the last
	for i > 0 && diff(h.held[i-1].seq, s.seq) >= 0 {
		i--
	}
	if i > 0 {
		p := &h.held[i-1]
		if over := diff(p.seq+uint32(len(p.data)+p.cut), s.seq); over > 0 {
			c.overlap(e, p, s.seq, s.data, from)
			if over >= int64(len(s.data)+s.cut) {
				return
			}
			if over > int64(len(s.data)) {
				return // what is left was cut from the capture
			}
			s.data, s.seq = s.data[over:], s.seq+uint32(over)
			s.flags |= formats.FlagRetransmit
		}
	}
	for i < len(h.held) {
		n := &h.held[i]
		over := diff(s.seq+uint32(len(s.data)+s.cut), n.seq)
		if over <= 0 {
			break
		}
		c.overlap(e, n, s.seq, s.data, from)
		lead := int(diff(n.seq, s.seq)) // bytes before the held ones
		rest := s
		if lead > 0 {
			first := s
			first.cut = 0
			if lead > len(s.data) {
				first.cut = lead - len(s.data)
				first.data = s.data
			} else {
				first.data = s.data[:lead]
			}
			c.insert(e, h, i, first)
			i++
			n = &h.held[i]
		}
		skip := lead + len(n.data) + n.cut
		if skip >= len(rest.data) {
			return
		}
		s.data, s.seq = rest.data[skip:], rest.seq+uint32(skip)
		i++
	}
	if len(s.data)+s.cut > 0 {
		c.insert(e, h, i, s)
	}
}

func (c *conn) insert(e *engine, h *half, i int, s heldSegment) {
	s.data = append([]byte(nil), s.data...)
	h.held = append(h.held, heldSegment{})
	copy(h.held[i+1:], h.held[i:])
	h.held[i] = s
	n := len(s.data) + heldOverhead
	h.bytes += n
	e.heldBytes += n
	e.wait(c)
}

// overlap compares bytes that came twice with different segments: where they differ, the first to come are taken.
func (c *conn) overlap(e *engine, p *heldSegment, seq uint32, data []byte, from int) {
	a, b := p.data, data
	if d := diff(seq, p.seq); d > 0 {
		a = a[min(int(d), len(a)):]
	} else {
		b = b[min(int(-d), len(b)):]
	}
	n := min(len(a), len(b))
	p.flags |= formats.FlagRetransmit
	c.countRepeat(e, from)
	if !bytes.Equal(a[:n], b[:n]) {
		e.stats.Notes["conflicting_overlaps"]++
	}
}

// drain delivers held segments that are next and not blocked. force ignores what the other direction lacks.
func (c *conn) drain(e *engine, from int, force bool) (moved bool) {
	h, peer := &c.half[from], &c.half[1-from]
	for len(h.held) > 0 {
		s := h.held[0]
		if s.seq != h.next {
			break
		}
		if d := diff(s.ack, peer.next); !force && peer.seen && peer.known && d > 0 && d < maxJump {
			break
		}
		h.held = h.held[1:]
		if len(h.held) == 0 {
			h.held = nil
		}
		h.bytes -= len(s.data) + heldOverhead
		e.heldBytes -= len(s.data) + heldOverhead
		c.deliver(e, from, s.data, s.cut, s.at, s.flags)
		moved = true
	}
	return moved
}

// hole returns how many bytes are known to be missing next; 0 where none are.
func (c *conn) hole(from int) int64 {
	h := &c.half[from]
	if !h.known || !h.seen {
		return 0
	}
	end, some := h.next, false
	if h.hasAck && diff(h.acked, h.next) > 0 {
		end, some = h.acked, true
		if h.fin && diff(end, h.finSeq) > 0 {
			end = h.finSeq
		}
	}
	if len(h.held) > 0 && (!some || diff(h.held[0].seq, end) < 0) {
		end = h.held[0].seq
	}
	if h.fin && !h.ended && !some && len(h.held) == 0 && diff(h.finSeq, h.next) > 0 {
		end = h.finSeq
	}
	if c.has[from] && !some && len(h.held) == 0 && diff(c.resets[from], h.next) > 0 {
		end = c.resets[from]
	}
	n := max(diff(end, h.next), 0)
	// Of a long hole only so much is given up at once as the other direction's next bytes presuppose: they may end what the first part
	// belongs to.
	if p := &c.half[1-from]; len(p.held) > 0 && p.held[0].seq == p.next {
		if d := diff(p.held[0].ack, h.next); d > 0 && d < n {
			n = d
		}
	}
	return n
}

// giveUp steps over a hole.
func (c *conn) giveUp(e *engine, from int) {
	n := c.hole(from)
	if n <= 0 {
		return
	}
	h := &c.half[from]
	h.next += uint32(n)
	h.total += n
	h.holeAt = 0
	h.gapNext = true
	e.stats.Notes["gaps"]++
	e.stats.Notes["gap_bytes"] += n
	if c.dlg != nil {
		c.dlg.gap(c.dir(from), n, false)
	}
}
