package recorder

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/recorder/ring"
)

// Live is a source of packets from a network interface. Open it first, so that privileges can be dropped before Run; Close it afterwards.
type Live struct {
	Ring   ring.Options // the interface, its filter, its ring
	Key    []byte       // of the keyed hashes; without one, identifiers and prefixes stay unknown
	Node   string       // what stands in the node column
	Select Selection
	MaxCPU float64 // processors that the process may use before it sheds sessions; 0: no limit
	Counting
	Limits

	// Begin and Forget, where given, are told of exchanges in flight: see Spool. They are called like emit.
	Begin  func(x, known *formats.Exchange)
	Forget func(x *formats.Exchange)

	rings    []*ring.Ring
	admit    *admission
	talks    *sessions  // of all workers
	seen     *sights    // likewise, where there are several
	mu       sync.Mutex // guards what follows; and emit is called under emitting
	emitting sync.Mutex
	shown    []SourceStats // of each worker, as last published
	emitted  int64
	failed   error
}

// readWait is how long a worker waits for packets before it looks at its clock, and publishEvery how often it shows its counters.
const (
	readWait     = 50 * time.Millisecond
	publishEvery = 500 * time.Millisecond
)

// Validate reports what is wrong with the source.
func (l *Live) Validate() error {
	err := errors.Join(l.Ring.Validate(), l.Select.Validate(), l.Limits.validate())
	if l.MaxCPU < 0 {
		err = errors.Join(err, fmt.Errorf("at most %v processors", l.MaxCPU))
	}
	return err
}

// Open opens the rings. The error wraps ring.ErrPermission where the process may not.
func (l *Live) Open() (err error) {
	if err := l.Validate(); err != nil {
		return err
	}
	l.rings, err = ring.Open(l.Ring)
	return err
}

// Close releases the rings, after Run has returned.
func (l *Live) Close() error {
	var errs []error
	for _, r := range l.rings {
		errs = append(errs, r.Close())
	}
	return errors.Join(errs...)
}

// Run records until ctx is done or the interface is gone. Exchanges come in the order in which they end; those that are open at the end
// are cut there.
func (l *Live) Run(ctx context.Context, f Filter, emit func(*formats.Exchange)) error {
	if l.rings == nil {
		return errors.New("record from an interface: it is not open")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	l.admit = newAdmission(l.Select)
	l.talks = newSessions()
	if len(l.rings) > 1 {
		l.seen = newSights()
	}
	shown := make([]SourceStats, len(l.rings))
	for i := range shown {
		shown[i] = newSourceStats()
	}
	l.mu.Lock() // who asks for Stats may have been there before
	l.shown = shown
	l.mu.Unlock()
	var running sync.WaitGroup
	for i, r := range l.rings {
		w := &liveWorker{l: l, index: i, ring: r, engine: l.engine(f, emit)}
		running.Go(func() {
			if err := w.run(ctx); err != nil {
				l.mu.Lock()
				l.failed = errors.Join(l.failed, err)
				l.mu.Unlock()
				cancel() // the others cannot see the whole of the traffic
			}
		})
	}
	if l.MaxCPU > 0 {
		running.Go(func() { l.govern(ctx) })
	}
	running.Wait()
	return l.failed
}

// engine makes a worker's engine, whose exchanges reach emit one at a time.
func (l *Live) engine(f Filter, emit func(*formats.Exchange)) *engine {
	o := engineOptions{Limits: l.Limits, Node: l.Node, clock: formats.ClockPacket, admit: l.admit, talks: l.talks, seen: l.seen, words: l.Tokenizer, keep: l.Bodies}
	o.defaults()
	e := newEngine(o, f.Ports, hasherOf(l.Key), func(x *formats.Exchange) {
		l.emitting.Lock()
		defer l.emitting.Unlock()
		l.emitted++
		emit(x)
	})
	if l.Begin != nil {
		e.begin = func(x, known *formats.Exchange) { l.emitting.Lock(); defer l.emitting.Unlock(); l.Begin(x, known) }
		e.forget = func(x *formats.Exchange) { l.emitting.Lock(); defer l.emitting.Unlock(); l.Forget(x) }
	}
	return e
}

// Stats returns the counters as the workers last showed them, at most half a second ago while Run runs.
func (l *Live) Stats() SourceStats {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := newSourceStats()
	for _, w := range l.shown {
		s = merge(s, w)
	}
	for _, r := range l.rings {
		k, err := r.Stats()
		if err != nil {
			continue
		}
		s.Notes["kernel_received"] += k.Received
		s.Notes["kernel_drops"] += k.Dropped
		s.Notes["ring_frozen"] += k.Frozen
		s.Notes["ring_read"] += k.Read
		s.Notes["ring_cut"] += k.Cut
	}
	for _, name := range []string{"kernel_drops", "ring_frozen", "ring_cut"} {
		if s.Notes[name] == 0 {
			delete(s.Notes, name)
		}
	}
	if n := s.Notes["kernel_drops"]; n > 0 {
		s.Warnings = append(s.Warnings, fmt.Sprintf("%s: the kernel dropped %d of %d packets: a larger ring or a narrower filter", l.Ring.Interface, n, s.Notes["kernel_received"]))
	}
	return s
}

// liveWorker reads one ring into one engine.
type liveWorker struct {
	l      *Live
	index  int
	ring   *ring.Ring
	engine *engine
	clock  clockGuard
	shown  time.Time
}

func (w *liveWorker) run(ctx context.Context) error {
	defer func() {
		w.engine.finish()
		w.show()
	}()
	w.clock.live = true
	var p packet
	take := func(q *ring.Packet) {
		p = packet{data: q.Data, at: q.UnixNS, orig: q.Length, link: linkEthernet, iface: uint32(q.Interface)}
		if w.clock.take(&p) {
			w.engine.packet(&p)
			return
		}
		w.decided()
	}
	defer func() { w.clock.end(); w.decided() }()
	for {
		n, err := w.ring.Read(ctx, readWait, take)
		if ctx.Err() != nil {
			w.last(context.WithoutCancel(ctx), take)
			return nil
		}
		if err != nil {
			return err
		}
		if n == 0 {
			// Nothing came: no packet that is older than a block's time can still come.
			late := 2 * max(w.l.Ring.BlockTimeout, ring.DefaultBlockTimeout)
			now := time.Now().Add(-late)
			step := w.clock.tick(now.UnixNano(), now)
			w.decided()
			if step != 0 {
				w.engine.stepped(step)
			}
			w.engine.tick(now.UnixNano())
		}
		if time.Since(w.shown) >= publishEvery {
			w.show()
		}
	}
}

// last reads on until the kernel has closed the block that was open, though others be ready before it.
func (w *liveWorker) last(ctx context.Context, take func(*ring.Packet)) {
	end := time.Now().Add(2 * max(w.l.Ring.BlockTimeout, ring.DefaultBlockTimeout))
	for left := time.Until(end); left > 0; left = time.Until(end) {
		if _, err := w.ring.Read(ctx, left, take); err != nil {
			return
		}
	}
}

// decided hands on the packets whose time has been decided on.
func (w *liveWorker) decided() {
	for i := range w.clock.ready {
		w.engine.packet(&w.clock.ready[i])
	}
	w.clock.ready = w.clock.ready[:0]
}

// show publishes the engine's counters.
func (w *liveWorker) show() {
	w.shown = time.Now()
	s := merge(newSourceStats(), w.engine.stats)
	for note, n := range map[string]int64{"clock_steps": w.clock.steps, "packets_of_wrong_time": w.clock.wrong} {
		if n > 0 {
			s.Notes[note] = n
		}
	}
	w.l.mu.Lock()
	defer w.l.mu.Unlock()
	w.l.shown[w.index] = s
}

// tick tells the engine that the packets' clock has come to now though no packet came.
func (e *engine) tick(now int64) {
	e.now = max(e.now, now)
	if e.now-e.waited >= ackWait/2 && len(e.waiting) > 0 {
		e.settleWaiting()
	}
	if e.now-e.swept >= sweepEvery {
		e.sweep()
	}
}

// governEvery is how often the process's use of the CPU is looked at.
const governEvery = time.Second

// govern keeps the process below MaxCPU processors: it sheds a growing share of sessions while it uses more, and takes them back one step
// at a time when it uses clearly less.
func (l *Live) govern(ctx context.Context) {
	g := governor{limit: l.MaxCPU}
	at, used := time.Now(), cpuTime()
	tick := time.NewTicker(governEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now, u := time.Now(), cpuTime()
		l.admit.setShed(g.next((u - used).Seconds() / now.Sub(at).Seconds()))
		at, used = now, u
	}
}

// governor turns the use of the CPU into the share of sessions to shed.
type governor struct {
	limit float64
	share float64
}

func (g *governor) next(used float64) float64 {
	switch {
	case used > g.limit: // what is kept costs about in proportion: keep what fits, at least a little less than before
		keep := (1 - g.share) * min(g.limit/used, 0.95)
		g.share = min(1-keep, 0.999)
	case used < 0.8*g.limit:
		g.share = max(0, g.share-0.05)
	}
	return g.share
}
