package recorder

import (
	"time"

	"github.com/shadowtape/shadowtape/formats"
)

// Packets carry the only clock there is, and it may be wrong: one damaged record says the year 2106, or the machine's time was set while
// the capture ran. A packet further than clockJump from the one before it is held back until the next ones tell. Where clockWitnesses of
// them agree with it, it is right: the traffic was silent, or the clock was set. Where one agrees with the packets before it, its time is
// wrong: it gets theirs, its events and its row are flagged as those of
// a packet that was sent again, and it is counted.
const (
	clockJump      = 10e9
	clockWitnesses = 3
	clockSilence   = 3600e9 // the last packet of a capture has no witness: up to so long after the one before it, it is believed
)

// clockGuard looks at the times of one clock's packets. The zero value is ready.
type clockGuard struct {
	live  bool // it is told of silence (tick): what jumps without one is the clock's doing
	known bool
	base  int64 // time of the last packet that was believed
	held  []packet
	ready []packet  // decided, in order, to be taken by the owner
	seen  time.Time // of the last tick,
	shown int64     // and what the clock showed
	wrong int64
	steps int64
}

func (g *clockGuard) near(a, b int64) bool { d := a - b; return d <= clockJump && d >= -clockJump }

// take looks at the next packet. It reports whether the packet is fine as it is; else it is kept, as a copy, and what is decided stands in
// ready.
func (g *clockGuard) take(p *packet) bool {
	if g.known && len(g.held) == 0 && g.near(p.at, g.base) {
		g.base = p.at
		return true
	}
	q := *p
	q.data = append([]byte(nil), p.data...)
	g.held = append(g.held, q)
	g.judge(false)
	return false
}

// end decides on what is held: there are no more packets.
func (g *clockGuard) end() { g.judge(true) }

func (g *clockGuard) judge(last bool) {
	for len(g.held) > 0 {
		if !g.known && !g.begin(last) {
			return
		}
		h := &g.held[0]
		if g.near(h.at, g.base) {
			g.base = h.at
			g.pass()
			continue
		}
		witnesses, broken := 0, false
		for i := 1; i < len(g.held) && !broken; i++ {
			if broken = !g.near(g.held[i].at, g.held[i-1].at); !broken {
				witnesses++
			}
		}
		switch silence := h.at - g.base; {
		case broken: // by one that agrees with those before, or with none
			g.refuse()
		case witnesses >= clockWitnesses, last && (witnesses > 0 || silence > 0 && silence < clockSilence):
			g.believe()
		case last:
			g.refuse()
		default:
			return
		}
	}
}

// begin finds out what time it is at first: the first packet may be the wrong one.
func (g *clockGuard) begin(last bool) bool {
	h := g.held
	switch {
	case len(h) == 1 && !last, len(h) == 2 && !last && !g.near(h[0].at, h[1].at):
		return false
	case len(h) > 2 && !g.near(h[0].at, h[1].at) && g.near(h[1].at, h[2].at):
		g.base = h[1].at
	default:
		g.base = h[0].at
	}
	g.known = true
	return true
}

func (g *clockGuard) pass() {
	g.ready = append(g.ready, g.held[0])
	g.held = g.held[1:]
}

// believe takes the first held packet's time for the time.
func (g *clockGuard) believe() {
	h := &g.held[0]
	if step := h.at - g.base; g.live || step < 0 { // a capture file that goes on later was silent
		h.step = step
		g.steps++
		g.shown += step
	}
	g.base = h.at
	g.pass()
}

// refuse gives the first held packet the time of those before it.
func (g *clockGuard) refuse() {
	h := &g.held[0]
	h.at, h.untimed = g.base, true
	g.wrong++
	g.pass()
}

// tick says that the packets' clock shows at, that no packet came for a while, and that it is now by a clock that nobody sets. It decides on
// what is held, and returns by how much the packets' clock was set since the last packet or tick, 0 nearly always.
func (g *clockGuard) tick(at int64, now time.Time) (step int64) {
	first, elapsed := g.seen.IsZero(), now.Sub(g.seen).Nanoseconds()
	g.seen = now
	for len(g.held) > 0 {
		switch h := &g.held[0]; {
		case !g.known:
			g.known, g.base = true, h.at
			g.pass()
		case g.near(h.at, g.base):
			g.base = h.at
			g.pass()
		case g.near(h.at, at):
			g.believe()
		default:
			g.refuse()
		}
	}
	if step = at - g.shown - elapsed; first || step <= clockJump && step >= -clockJump {
		step = 0
	} else {
		g.steps++
	}
	g.known, g.base, g.shown = true, at, at
	return step
}

// stepped follows a clock that was set by delta: what is under way goes on in the new time, as if it had begun in it.
func (e *engine) stepped(delta int64) {
	if e.now == 0 {
		return
	}
	e.now, e.swept, e.waited = e.now+delta, e.swept+delta, e.waited+delta
	move := func(at *int64) {
		if *at != 0 {
			*at += delta
		}
	}
	for _, c := range e.conns {
		for ; c != nil; c = c.next {
			move(&c.last)
			move(&c.resetT)
			for i := range c.half {
				h := &c.half[i]
				move(&h.at)
				move(&h.holeAt)
				move(&h.finAt)
				for j := range h.held {
					move(&h.held[j].at)
				}
				for j := range h.recent {
					move(&h.recent[j].at)
				}
			}
			for i := range c.unacked {
				move(&c.unacked[i].at)
				move(&c.unacked[i].x.x.ArrivalUnixNS)
			}
			if c.dlg != nil {
				c.dlg.stepped(move)
			}
		}
	}
}

func (d *dialogue) stepped(move func(*int64)) {
	for _, at := range []*int64{&d.closedAt[0], &d.closedAt[1], &d.respAt, &d.reqAt, &d.half[0].lostAt, &d.half[1].lostAt} {
		move(at)
	}
	for _, list := range [][]*exchange{d.open, d.over} {
		for _, x := range list {
			move(&x.last)
			move(&x.x.ArrivalUnixNS)
		}
	}
}

// doubt flags the exchange that a packet of a direction, whose time was wrong, belongs to: its times are as exact as the packets around
// that one allow.
func (d *dialogue) doubt(dir int) {
	var e *exchange
	switch open := len(d.open); {
	case dir == fromServer && len(d.over) > 0:
		e = d.over[len(d.over)-1]
	case open > 0 && dir == fromServer:
		e = d.open[0]
	case open > 0:
		e = d.open[open-1]
	default:
		return
	}
	e.x.Retransmits = formats.Of(e.x.Retransmits.Or(0) + 1)
}
