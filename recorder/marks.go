package recorder

import "github.com/shadowtape/shadowtape/formats"

// eventMarks remembers which events the last segments of a response brought, so that a segment that turns out to be sent again can flag
// them.
type eventMarks struct {
	ring []eventMark // allocated with the first
	n    int
}

const rememberedSegments = 64

type eventMark struct {
	x        *formats.Exchange
	from, to uint32
	events   int32 // before the segment
}

func (m *eventMarks) reset() { m.n = 0 }

func (m *eventMarks) add(d *dialogue, from, to uint32) {
	if len(d.open) == 0 || d.open[0].resp == nil {
		return
	}
	if m.ring == nil {
		m.ring = make([]eventMark, rememberedSegments)
	}
	x := d.open[0].x
	m.ring[m.n%len(m.ring)] = eventMark{x, from, to, int32(len(x.EventGapUS))}
	m.n++
}

// flag marks the events from the one that holds seq on, and returns the exchange that has them, nil where none is known.
func (m *eventMarks) flag(seq uint32) *formats.Exchange {
	for i := max(m.n-len(m.ring), 0); i < m.n; i++ {
		k := &m.ring[i%len(m.ring)]
		if diff(k.to, seq) <= 0 {
			continue
		}
		if diff(k.from, seq) > 0 && m.n > len(m.ring) { // older than what is remembered: everything may be late
			flagFrom(k.x, 0)
		} else {
			flagFrom(k.x, int(k.events))
		}
		return k.x
	}
	return nil
}

func flagFrom(x *formats.Exchange, event int) {
	if event >= len(x.EventGapUS) {
		return
	}
	if x.EventFlags == nil {
		x.EventFlags = make([]int32, len(x.EventGapUS))
	}
	for i := event; i < len(x.EventFlags); i++ {
		x.EventFlags[i] |= formats.FlagRetransmit
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
