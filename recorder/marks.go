package recorder

import "github.com/shadowtape/shadowtape/formats"

// eventMarks remembers which events the last segments of a response brought, so that a segment that turns out to be sent again can flag
// them.
type eventMarks struct {
	ring [64]eventMark
	n    int
}

type eventMark struct {
	from, to uint32
	x        *formats.Exchange
	events   int // before the segment
}

func (m *eventMarks) reset() { m.n = 0 }

func (m *eventMarks) add(d *dialogue, from, to uint32) {
	if len(d.open) == 0 || d.open[0].resp == nil {
		return
	}
	x := d.open[0].x
	m.ring[m.n%len(m.ring)] = eventMark{from, to, x, len(x.EventFlags)}
	m.n++
}

// flag marks the events from the one that holds seq on.
func (m *eventMarks) flag(seq uint32) {
	for i := max(m.n-len(m.ring), 0); i < m.n; i++ {
		k := &m.ring[i%len(m.ring)]
		if diff(k.to, seq) <= 0 {
			continue
		}
		for j := k.events; j < len(k.x.EventFlags); j++ {
			k.x.EventFlags[j] |= formats.FlagRetransmit
		}
		return
	}
	if m.n > len(m.ring) { // older than what is remembered: everything may be late
		x := m.ring[m.n%len(m.ring)].x
		for j := range x.EventFlags {
			x.EventFlags[j] |= formats.FlagRetransmit
		}
	}
}

// current is the exchange that bytes of a direction belong to now.
func (d *dialogue) current(dir int) *exchange {
	if dir == fromClient && d.req != nil {
		return d.req
	}
	if len(d.open) > 0 {
		return d.open[0]
	}
	return nil
}
