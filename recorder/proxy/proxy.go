// Package proxy passes connections through to an upstream server, byte for byte, and shows what passed to consumers that follow behind:
// a consumer that is slow, blocked or broken loses what it would have recorded, and nothing else happens.
package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// The defaults of Options.
const (
	DefaultMaxConnections   = 10_000
	DefaultDialTimeout      = 10 * time.Second
	DefaultHandshakeTimeout = 10 * time.Second
	DefaultGrace            = 25 * time.Second
	DefaultBacklogBytes     = 64 << 20
)

// Options say where to pass connections and who follows them. Only Upstream is required.
type Options struct {
	Upstream         string        // host:port
	UpstreamTLS      *tls.Config   // nil: plain
	ListenTLS        *tls.Config   // nil: plain
	MaxConnections   int           // more wait, and those that have been of no use longest make room for them; 0: DefaultMaxConnections
	DialTimeout      time.Duration // 0: DefaultDialTimeout
	HandshakeTimeout time.Duration // of TLS on either side; 0: DefaultHandshakeTimeout
	IdleTimeout      time.Duration // a connection on which nothing passes either way for so long is closed; 0: never. Must exceed the longest time to a first token
	DrainDelay       time.Duration // keeps accepting for so long after the context has ended, while load balancers learn of it
	Grace            time.Duration // how long connections may go on after that; 0: DefaultGrace
	BacklogBytes     int64         // what passed and no consumer has taken yet; beyond it, bytes are reported as lost. 0: DefaultBacklogBytes

	// Follow returns the consumer of a new connection; nil, or a nil consumer, and nobody follows. It is called behind the traffic.
	Follow func(Connection) Consumer
	// Dial replaces the way to the upstream, for tests. Nil: TCP.
	Dial func(ctx context.Context, address string) (net.Conn, error)
}

// Validate reports everything that is wrong with o.
func (o *Options) Validate() error {
	var errs []error
	if _, port, err := net.SplitHostPort(o.Upstream); err != nil || port == "" {
		errs = append(errs, fmt.Errorf("upstream %q: it takes host:port", o.Upstream))
	}
	for _, d := range []struct {
		name string
		v    time.Duration
	}{{"dial timeout", o.DialTimeout}, {"handshake timeout", o.HandshakeTimeout}, {"idle timeout", o.IdleTimeout}, {"drain delay", o.DrainDelay}, {"grace", o.Grace}} {
		if d.v < 0 {
			errs = append(errs, fmt.Errorf("%s %s is negative", d.name, d.v))
		}
	}
	if o.MaxConnections < 0 {
		errs = append(errs, fmt.Errorf("at most %d connections", o.MaxConnections))
	}
	if o.BacklogBytes < 0 {
		errs = append(errs, fmt.Errorf("backlog of %d bytes", o.BacklogBytes))
	}
	return errors.Join(errs...)
}

func (o Options) withDefaults() Options {
	o.MaxConnections = cmpOr(o.MaxConnections, DefaultMaxConnections)
	o.DialTimeout = cmpOr(o.DialTimeout, DefaultDialTimeout)
	o.HandshakeTimeout = cmpOr(o.HandshakeTimeout, DefaultHandshakeTimeout)
	o.Grace = cmpOr(o.Grace, DefaultGrace)
	o.BacklogBytes = cmpOr(o.BacklogBytes, DefaultBacklogBytes)
	return o
}

func cmpOr[T comparable](v, d T) T {
	var zero T
	if v == zero {
		return d
	}
	return v
}

// Connection names one connection to a consumer.
type Connection struct {
	ID             uint64 // 1, 2, 3 …
	Client, Server string // addresses; Server is the upstream's as dialled
	OpenedUnixNS   int64  // accepted
}

// Stats count what a proxy has met.
type Stats struct {
	Accepted    int64 // connections
	Open        int64 // of these, now open
	DialFailed  int64 // the upstream did not answer
	Handshakes  int64 // TLS handshakes that failed, on either side
	FromClient  int64 // bytes passed on
	FromServer  int64 // bytes passed on
	Backlog     int64 // bytes that consumers have not taken yet
	LostBytes   int64 // bytes that passed and no consumer saw
	LostPieces  int64 // reads these came in
	Panics      int64 // of consumers
	Overflowing int64 // connections that have lost bytes
	Cut         int64 // connections that the grace period cut
	Evicted     int64 // connections between exchanges, or long in the middle of a head, that were closed to let others in
}

// Proxy is one listener's proxy. Its methods are safe for concurrent use.
type Proxy struct {
	o        Options
	follower *follower
	loops    []*loop // while Serve runs; none: goroutines pump
	turn     atomic.Uint32

	mu       sync.Mutex
	links    map[*link]struct{}
	draining atomic.Bool

	accepted, dialFailed, handshakes, cut, evicted atomic.Int64
	lastID                                         atomic.Uint64
	fromClient, fromServer                         atomic.Int64
}

// New returns a proxy that Serve runs.
func New(o Options) (*Proxy, error) {
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("set up the proxy: %w", err)
	}
	o = o.withDefaults()
	return &Proxy{o: o, follower: newFollower(o), links: map[*link]struct{}{}}, nil
}

// Draining reports whether the proxy has been told to stop: a readiness probe says so to load balancers.
func (p *Proxy) Draining() bool { return p.draining.Load() }

// Stats returns the counts so far.
func (p *Proxy) Stats() Stats {
	p.mu.Lock()
	open := len(p.links)
	p.mu.Unlock()
	s := p.follower.stats()
	s.Accepted, s.Open, s.DialFailed, s.Handshakes = p.accepted.Load(), int64(open), p.dialFailed.Load(), p.handshakes.Load()
	s.FromClient, s.FromServer, s.Cut, s.Evicted = p.fromClient.Load(), p.fromServer.Load(), p.cut.Load(), p.evicted.Load()
	return s
}

// Serve passes on the connections of l until ctx ends. Then it accepts for the drain delay, closes l, closes connections as soon as no
// exchange is open on them, and those that are left when the grace period ends. It returns when every connection has ended and the
// consumers have taken what passed, or the grace period is over; an error only where l failed.
func (p *Proxy) Serve(ctx context.Context, l net.Listener) error {
	stopFollowing := p.follower.run()
	p.loops = newLoops()
	defer func() {
		for _, l := range p.loops {
			l.stop()
		}
	}()
	slots := make(chan struct{}, p.o.MaxConnections)
	var running sync.WaitGroup
	accepting, stopAccepting := context.WithCancel(context.WithoutCancel(ctx))
	defer stopAccepting()
	go func() {
		select {
		case <-ctx.Done():
			p.draining.Store(true)
			sleep(accepting, p.o.DrainDelay)
		case <-accepting.Done():
		}
		stopAccepting()
		l.Close()
	}()
	err := p.accept(accepting, l, slots, &running)
	stopAccepting()
	p.draining.Store(true)
	p.drain(&running)
	stopFollowing(p.o.Grace)
	return err
}

func sleep(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

func (p *Proxy) accept(ctx context.Context, l net.Listener, slots chan struct{}, running *sync.WaitGroup) error {
	for {
		c, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			if temporary(err) { // out of file descriptors, a client that left already
				if errors.Is(err, syscall.EMFILE) {
					p.makeRoom()
				}
				sleep(ctx, 10*time.Millisecond)
				continue
			}
			return fmt.Errorf("accept on %s: %w", l.Addr(), err)
		}
		p.accepted.Add(1)
		if !p.slot(ctx, slots) {
			c.Close()
			return nil
		}
		k := &link{p: p, client: c, opened: time.Now()}
		p.add(k)
		running.Add(1)
		go func() {
			defer func() { p.remove(k); <-slots; running.Done() }()
			k.run()
		}()
	}
}

// slot waits for room for one more connection; false where the proxy ends before there is some.
func (p *Proxy) slot(ctx context.Context, slots chan struct{}) bool {
	select {
	case slots <- struct{}{}:
		return true
	default:
	}
	tick := time.NewTicker(quietTime)
	defer tick.Stop()
	for {
		p.makeRoom()
		select {
		case slots <- struct{}{}:
			return true
		case <-tick.C:
		case <-ctx.Done():
			return false
		}
	}
}

// makeRoom closes connections that have been of no use longest, a few at once: a look at all of them costs more than a connection.
func (p *Proxy) makeRoom() {
	type spare struct {
		k     *link
		since time.Time
	}
	var all []spare
	n := 0
	p.each(func(k *link) {
		n++
		if since, ok := k.spare(); ok {
			all = append(all, spare{k, since})
		}
	})
	slices.SortFunc(all, func(a, b spare) int { return a.since.Compare(b.since) })
	for _, s := range all[:min(len(all), 1+n/256)] {
		p.evicted.Add(1)
		s.k.cut.Store(true)
		go s.k.abortGently() // a TLS goodbye may wait for a client that does not read
	}
}

func temporary(err error) bool {
	var t interface{ Temporary() bool }
	return errors.As(err, &t) && t.Temporary() && !errors.Is(err, net.ErrClosed)
}

func (p *Proxy) add(k *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.links[k] = struct{}{}
}

func (p *Proxy) remove(k *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.links, k)
}

// drain ends connections that are between exchanges, until none is left or the grace period is over.
func (p *Proxy) drain(running *sync.WaitGroup) {
	ended := make(chan struct{})
	go func() { running.Wait(); close(ended) }()
	deadline := time.NewTimer(p.o.Grace)
	defer deadline.Stop()
	tick := time.NewTicker(drainTick)
	defer tick.Stop()
	for {
		select {
		case <-ended:
			return
		case <-deadline.C:
			p.each(func(k *link) { p.cut.Add(1); k.cut.Store(true); k.abort() })
			<-ended
			return
		case <-tick.C:
			p.each(func(k *link) {
				if k.quiet() {
					go k.abortGently() // a TLS goodbye may wait for a client that does not read
				}
			})
		}
	}
}

func (p *Proxy) each(f func(*link)) {
	p.mu.Lock()
	links := slices.Collect(maps.Keys(p.links))
	p.mu.Unlock()
	for _, k := range links {
		f(k)
	}
}
