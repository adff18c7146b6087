// Package sim is a simulated inference server: an engine behind OpenAI-compatible endpoints, with vLLM's stream shapes and metrics.
//
// One goroutine, the driver, owns the engine's time: it sleeps until the engine's next event, advances it to the present, and writes
// what came out. Deadlines are the engine's, absolute, so a late wake delays what it writes but nothing after it. A connection has one
// goroutine, which reads requests and notices a client that leaves.
package sim

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/shadowtape/shadowtape/internal/engine"
)

// Options describe a Server.
type Options struct {
	Profile     engine.Profile
	Fixed       bool // TTFT and ITL instead of the profile's step times
	TTFT, ITL   time.Duration
	Seed        uint64 // of noise, faults and lengths
	Slowdown    engine.Slowdown
	Noise       engine.Noise
	Faults      Faults
	StallTime   time.Duration // how long a stalled stream is silent; default 30 s
	EmissionLog io.Writer     // one JSON line a request, at its end; nil: none
	StateLog    io.Writer     // CSV, one line a step; nil: none
	Precise     bool          // wait on kernel timers where there are some; off under a virtual clock
}

// Validate reports every option that cannot be used.
func (o Options) Validate() error {
	errs := []error{o.Profile.Validate(), o.Faults.Validate()}
	if o.StallTime < 0 {
		errs = append(errs, fmt.Errorf("stall time %v: must not be negative", o.StallTime))
	}
	if o.StateLog != nil && (o.Fixed || o.Profile.Instant) {
		errs = append(errs, errors.New("state log: fixed times have no steps to log"))
	}
	return errors.Join(errs...)
}

// core is what the driver needs of an engine: Scheduler and Fixed are two.
type core interface {
	Submit(*engine.Request) error
	Abort(*engine.Request)
	Next() (time.Duration, bool)
	Advance(time.Duration)
	Counters() engine.Counters
	ResetPrefixCache() error
}

// Server is a simulated inference server. Its methods are safe for concurrent use.
type Server struct {
	o        Options
	maxLen   int // tokens of prompt and answer together
	started  time.Time
	startNS  int64 // started in nanoseconds since 1970
	waiter   waiter
	logs     chan logEntry
	logErr   error // read after logDone
	logDone  chan struct{}
	driven   chan struct{}
	handlers sync.WaitGroup
	scratch  []byte // the driver's

	mu       sync.Mutex // guards what follows
	engine   core
	meter    *Meter
	out      []emission // since the driver last looked
	aborts   []*exchange
	resumes  []*exchange
	ordinal  uint64
	last     time.Duration // of the latest arrival submitted
	conns    map[*conn]struct{}
	listener net.Listener
	closed   bool
}

// emission is a token that the engine generated, or the end of a request without tokens.
type emission struct {
	choice *choice
	at     time.Duration
	token  bool
}

// New starts a server's clock. Serve it with Serve; Close it in any case.
func New(o Options) (*Server, error) {
	if o.StallTime == 0 {
		o.StallTime = 30 * time.Second
	}
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("make simulator: %w", err)
	}
	s := &Server{o: o, meter: NewMeter(o.Profile), conns: map[*conn]struct{}{}, driven: make(chan struct{}), logDone: make(chan struct{})}
	s.maxLen = min(o.Profile.MaxModelLen, o.Profile.Pages*o.Profile.PageSize)
	calls := engine.Callbacks{Token: s.token, Done: s.ended, Step: s.stepped}
	var err error
	if o.Fixed || o.Profile.Instant {
		f := engine.FixedOptions{TTFT: o.TTFT, ITL: o.ITL, Slowdown: o.Slowdown, Noise: o.Noise, Seed: o.Seed, Pages: o.Profile.Pages, PageSize: o.Profile.PageSize, Callbacks: calls}
		s.engine, err = engine.NewFixed(f)
	} else {
		eo := o.Profile.Options()
		eo.Slowdown, eo.Noise, eo.Seed, eo.Callbacks = o.Slowdown, o.Noise, o.Seed, calls
		s.engine, err = engine.NewScheduler(eo)
	}
	if err != nil {
		return nil, fmt.Errorf("make simulator: %w", err)
	}
	s.waiter = newTimerWaiter()
	if o.Precise {
		s.waiter = newWaiter()
	}
	s.started = time.Now()
	s.startNS = s.started.UnixNano()
	s.logs = make(chan logEntry, 4096)
	go s.writeLogs()
	go s.drive()
	return s, nil
}

// now is the engine's clock: the time since the server started.
func (s *Server) now() time.Duration { return time.Since(s.started) }

// Serve accepts connections until Close; it returns nil then, or the listener's error. It may be called once.
func (s *Server) Serve(l net.Listener) error {
	s.mu.Lock()
	s.listener = l
	closed := s.closed
	s.mu.Unlock()
	if closed {
		return l.Close()
	}
	for {
		c, err := l.Accept()
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			if err == nil {
				c.Close()
			}
			return nil
		}
		if err != nil {
			s.mu.Unlock()
			return fmt.Errorf("accept connections: %w", err)
		}
		k := newConn(c)
		s.conns[k] = struct{}{}
		s.handlers.Add(1)
		s.mu.Unlock()
		go func() {
			defer s.handlers.Done()
			s.serve(k)
			s.mu.Lock()
			delete(s.conns, k)
			s.mu.Unlock()
		}()
	}
}

// Close stops listening, breaks all connections, waits for them and writes the logs out. It returns the first error of a log.
func (s *Server) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		<-s.logDone
		return s.logErr
	}
	s.closed = true
	if s.listener != nil {
		s.listener.Close()
	}
	open := make([]*conn, 0, len(s.conns))
	for k := range s.conns {
		open = append(open, k)
	}
	s.mu.Unlock()
	for _, k := range open {
		k.close(false)
	}
	s.handlers.Wait() // the driver still runs: it ends the exchanges that the handlers abort
	s.mu.Lock()
	s.engine = nil
	s.mu.Unlock()
	s.waiter.wake()
	<-s.driven
	s.waiter.close()
	close(s.logs)
	<-s.logDone
	return s.logErr
}

// drive is the driver.
func (s *Server) drive() {
	defer close(s.driven)
	var out []emission
	for {
		s.mu.Lock()
		if s.engine == nil {
			s.mu.Unlock()
			return
		}
		aborts, resumes := s.aborts, s.resumes
		s.aborts, s.resumes = nil, nil
		for _, ex := range aborts {
			s.abandon(ex)
		}
		s.engine.Advance(s.now())
		out, s.out = s.out, out[:0]
		next, busy := s.engine.Next()
		s.mu.Unlock()
		for _, ex := range aborts {
			ex.end("abort")
		}
		for _, ex := range resumes {
			ex.resume()
		}
		for _, e := range out {
			e.choice.exchange.emit(e)
		}
		clear(out)
		if len(out) > 0 {
			continue // writing took time: more may be due
		}
		if busy {
			s.waiter.until(s.started.Add(next))
		} else {
			s.waiter.until(time.Time{})
		}
	}
}

// token, ended and stepped are the engine's callbacks: the driver holds mu.
func (s *Server) token(r *engine.Request, at time.Duration) {
	s.meter.Token(r, at)
	s.out = append(s.out, emission{r.Owner.(*choice), at, true})
}

func (s *Server) ended(r *engine.Request, at time.Duration) {
	c := r.Owner.(*choice)
	s.meter.Done(r, at, c.finish)
	if r.Output == 0 {
		s.out = append(s.out, emission{c, at, false})
	}
}

func (s *Server) stepped(st engine.Step) {
	s.meter.Step(st)
	if s.o.StateLog != nil {
		s.logs <- logEntry{step: st}
	}
}

// counters are the engine's; mu is held.
func (s *Server) counters() engine.Counters {
	if s.engine == nil {
		return engine.Counters{}
	}
	return s.engine.Counters()
}

// submit hands an exchange's requests to the engine.
func (s *Server) submit(ex *exchange) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.engine == nil {
		return errors.New("the server is closing")
	}
	s.last = max(s.last, ex.arrived)
	for i := range ex.choices {
		r := &ex.choices[i].request
		r.Arrival = s.last
		if err := s.engine.Submit(r); err != nil {
			for j := range i {
				s.engine.Abort(&ex.choices[j].request)
			}
			return err
		}
	}
	s.waiter.wake()
	return nil
}

// abandon gives up an exchange's requests; mu is held.
func (s *Server) abandon(ex *exchange) {
	for i := range ex.choices {
		if !ex.choices[i].ended {
			ex.choices[i].ended = true
			s.engine.Abort(&ex.choices[i].request)
			s.meter.Abort()
		}
	}
}
