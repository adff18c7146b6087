package recorder

import (
	"context"
	"errors"
	"net"
	"sync"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/recorder/proxy"
)

// Proxy is a source that stands in the traffic's way: it passes connections through to an upstream, byte for byte, and reads along. Times are
// those at which its reads returned. What it cannot keep up with it loses: an exchange of which bytes were lost is dropped and counted.
type Proxy struct {
	Listener net.Listener  // owned by Run
	Options  proxy.Options // but for Follow, which is the recorder's
	Key      []byte        // of the keyed hashes; without one, identifiers and prefixes stay unknown
	Node     string        // what stands in the node column
	Select   Selection
	Counting
	Limits

	// Begin and Forget, where given, are told of exchanges in flight: see Spool. They are called like emit.
	Begin  func(x, known *formats.Exchange)
	Forget func(x *formats.Exchange)

	proxy *proxy.Proxy

	working sync.Mutex // held while bytes are read; guards what follows
	engine  *engine
	open    map[uint64]*listener

	mu    sync.Mutex
	shown SourceStats
}

// The reasons for which a proxy drops exchanges.
const (
	droppedBacklog = "backlog_full" // bytes were not kept
	droppedPanic   = "parser_panic" // it was open when the parser failed
	droppedUpgrade = "upgraded"     // its answer is in another protocol, which its client asked for
)

// Validate reports what is wrong with the source.
func (p *Proxy) Validate() error {
	err := errors.Join(p.Options.Validate(), p.Select.Validate(), p.Limits.validate())
	if p.Listener == nil {
		err = errors.Join(err, errors.New("proxy: nothing to listen on"))
	}
	return err
}

// Prepare makes the source ready to Run, so that Traffic and Stats answer before.
func (p *Proxy) Prepare() error {
	if err := p.Validate(); err != nil {
		return err
	}
	o := p.Options
	o.Follow = p.follow
	var err error
	if p.proxy, err = proxy.New(o); err != nil {
		return err
	}
	p.shown = newSourceStats()
	return nil
}

// Traffic counts what passed, recorded or not.
func (p *Proxy) Traffic() proxy.Stats { return p.proxy.Stats() }

// Draining reports whether the proxy has been told to stop.
func (p *Proxy) Draining() bool { return p.proxy.Draining() }

// Run passes connections through until ctx is done and those that are open have ended, or the grace period is over. Exchanges come in the
// order in which they end.
func (p *Proxy) Run(ctx context.Context, _ Filter, emit func(*formats.Exchange)) error {
	if p.proxy == nil {
		if err := p.Prepare(); err != nil {
			return err
		}
	}
	o := engineOptions{Limits: p.Limits, Node: p.Node, clock: formats.ClockUser, admit: newAdmission(p.Select), words: p.Tokenizer, keep: p.Bodies}
	o.defaults()
	p.working.Lock()
	p.open = map[uint64]*listener{}
	p.engine = newEngine(o, nil, hasherOf(p.Key), func(x *formats.Exchange) {
		if x.GapBytes.Or(0) > 0 {
			p.engine.stats.Dropped[droppedBacklog]++
			p.Bodies.forget(x)
			if p.Forget != nil {
				p.Forget(x)
			}
			return
		}
		emit(x)
	})
	p.engine.begin, p.engine.forget = p.Begin, p.Forget
	p.working.Unlock()
	err := p.proxy.Serve(ctx, p.Listener)
	p.Stats()
	return err
}

// Stats returns the counters so far. While the parser is at work it returns those of the last call.
func (p *Proxy) Stats() SourceStats {
	if p.working.TryLock() {
		s := newSourceStats()
		if p.engine != nil {
			s = merge(s, p.engine.stats)
		}
		p.working.Unlock()
		p.mu.Lock()
		p.shown = s
		p.mu.Unlock()
	}
	p.mu.Lock()
	s := merge(newSourceStats(), p.shown)
	p.mu.Unlock()
	if p.proxy == nil {
		return s
	}
	t := p.proxy.Stats()
	for name, n := range map[string]int64{"connections": t.Accepted, "upstream_unreachable": t.DialFailed, "tls_handshakes_failed": t.Handshakes,
		"backlog_lost_bytes": t.LostBytes, "parser_panics": t.Panics, "connections_cut_at_the_end": t.Cut, "connections_closed_for_room": t.Evicted} {
		if n > 0 {
			s.Notes[name] = n
		}
	}
	s.Bytes = t.FromClient + t.FromServer
	return s
}

// follow makes the reader of a connection. A second one for the same connection means that the first has failed.
func (p *Proxy) follow(c proxy.Connection) proxy.Consumer {
	p.working.Lock()
	defer p.working.Unlock()
	failed := p.open[c.ID]
	if failed != nil {
		failed.abandon()
	}
	l := &listener{p: p, id: c.ID, dialogue: newDialogue(p.engine, c.Server, failed == nil, formats.ClockUser)}
	p.open[c.ID] = l
	return l
}

// listener reads one connection along.
type listener struct {
	p        *Proxy
	id       uint64
	dialogue *dialogue
}

// abandon gives up what was open when the parser failed.
func (l *listener) abandon() {
	e := l.p.engine
	l.dialogue.forgetHeads()
	for _, list := range [][]*exchange{l.dialogue.over, l.dialogue.open} {
		for _, x := range list {
			l.dialogue.letGo(x)
			e.o.keep.forget(x.x)
			e.done(x)
			if x.begun && e.forget != nil {
				e.forget(x.x)
			}
			if x.keep {
				e.stats.Dropped[droppedPanic]++
			} else {
				e.stats.Filtered["endpoint"]++
			}
		}
	}
	l.dialogue.over, l.dialogue.open = nil, nil
}

// Bytes implements proxy.Consumer.
func (l *listener) Bytes(side proxy.Side, at int64, b []byte) {
	l.p.working.Lock()
	defer l.p.working.Unlock()
	l.p.engine.now = max(l.p.engine.now, at)
	l.dialogue.data(int(side), b, at, 0)
	l.collect()
}

// Lost implements proxy.Consumer.
func (l *listener) Lost(side proxy.Side, _, n int64) {
	l.p.working.Lock()
	defer l.p.working.Unlock()
	l.dialogue.gap(int(side), n, false)
	l.collect()
}

// End implements proxy.Consumer.
func (l *listener) End(side proxy.Side, at int64, reset bool) {
	l.p.working.Lock()
	defer l.p.working.Unlock()
	how := closedFIN
	if reset {
		how = closedRST
	}
	l.dialogue.close(int(side), how, at)
	l.collect()
}

// Close implements proxy.Consumer: what is still open was cut by our own end.
func (l *listener) Close(at int64) {
	l.p.working.Lock()
	defer l.p.working.Unlock()
	l.dialogue.close(fromServer, closedCut, at)
	l.dialogue.close(fromClient, closedCut, at)
	l.collect()
	delete(l.p.open, l.id)
}

// Busy implements proxy.Consumer.
func (l *listener) Busy() bool {
	l.p.working.Lock()
	defer l.p.working.Unlock()
	return len(l.dialogue.open) > 0 || l.dialogue.half[fromClient].state == opaque
}

// Heading implements proxy.Consumer.
func (l *listener) Heading() int64 {
	l.p.working.Lock()
	defer l.p.working.Unlock()
	if h := &l.dialogue.half[fromClient]; h.state != inHead || h.resync || len(l.dialogue.open) > 0 {
		return 0
	}
	return l.dialogue.reqAt
}

func (l *listener) collect() {
	d := l.dialogue
	for len(d.over) > 0 {
		x := d.over[0]
		d.over = d.over[1:]
		d.e.emitExchange(x)
	}
	if len(d.over) == 0 {
		d.over = nil
	}
}
