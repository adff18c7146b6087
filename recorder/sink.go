package recorder

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shadowtape/shadowtape/formats"
)

// Mirror is a source at the far end of a gateway's request mirroring. It reads each request, answers it with an empty 202 before it looks
// at what it says, and records it: arrival, lengths, parameters, prefixes. It never sees an answer, so every exchange ends as capture_cut
// and has neither status nor output. HTTP/1.1, and HTTP/2 without TLS.
type Mirror struct {
	Listener     net.Listener  // owned by Run
	Key          []byte        // of the keyed hashes; without one, identifiers and prefixes stay unknown
	Node         string        // what stands in the node column
	BacklogBytes int64         // of requests being read or not yet recorded; beyond it the largest are dropped and counted. A quarter more, at least 1 MiB, for heads that are not whole. 0: 64 MiB
	Connections  int           // at once; more are closed and counted. 0: 1,024
	ReadTimeout  time.Duration // of one request; 0: 5 minutes
	Grace        time.Duration // how long requests that are being sent may take after the context has ended; 0: 5 s
	Select       Selection
	Counting
	Limits

	backlog    ledger
	heads      atomic.Int64 // bytes of heads that are not whole
	headLimit  int64
	requests   atomic.Int64
	refused    atomic.Int64 // connections
	headsOver  atomic.Int64 // connections closed for what they held of a head
	headsLarge atomic.Int64 // connections with a head beyond mirrorHead
	headsCut   atomic.Int64 // connections that ended, or were too slow, in the middle of a head
	cut        atomic.Int64 // requests whose body did not come whole
	draining   atomic.Bool

	working sync.Mutex // held while a request is read; guards the engine
	engine  *engine

	mu      sync.Mutex
	shown   SourceStats
	dropped map[string]int64
}

// Validate reports what is wrong with the source.
func (m *Mirror) Validate() error {
	err := errors.Join(m.Select.Validate(), m.Limits.validate())
	if m.Listener == nil {
		err = errors.Join(err, errors.New("sink: nothing to listen on"))
	}
	if m.BacklogBytes < 0 || m.ReadTimeout < 0 || m.Grace < 0 || m.Connections < 0 {
		err = errors.Join(err, errors.New("sink: a negative limit"))
	}
	return err
}

// mirrored is a request as it was read.
type mirrored struct {
	head    head
	body    []byte
	arrival int64
	end     int64
	loan    *loan
	cut     bool // its body was not read to the end
	over    int64
}

// Draining reports whether the sink has been told to stop.
func (m *Mirror) Draining() bool { return m.draining.Load() }

// Run serves until ctx is done.
func (m *Mirror) Run(ctx context.Context, _ Filter, emit func(*formats.Exchange)) error {
	if err := m.Validate(); err != nil {
		return err
	}
	o := engineOptions{Limits: m.Limits, Node: m.Node, clock: formats.ClockUser, admit: newAdmission(m.Select), words: m.Tokenizer, keep: m.Bodies}
	o.defaults()
	m.working.Lock()
	m.engine = newEngine(o, nil, hasherOf(m.Key), emit)
	m.working.Unlock()
	m.backlog.limit = cmpOr(m.BacklogBytes, 64<<20)
	m.headLimit = cmpOr(m.headLimit, max(m.backlog.limit/4, 1<<20))
	work := make(chan mirrored, 4096)
	var worker sync.WaitGroup
	worker.Go(func() {
		for r := range work {
			m.record(r)
			m.backlog.close(r.loan)
		}
	})
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.serve(w, r, work, int64(o.MaxBody)) }),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, mirrorConnKey{}, c)
		},
		ReadHeaderTimeout: mirrorHeadTime,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    mirrorHead,
		Protocols:         protocols,
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: 64, MaxReceiveBufferPerConnection: 256 << 10, MaxReceiveBufferPerStream: 64 << 10},
		ErrorLog:          log.New(io.Discard, "", 0), // what clients do wrong is counted, and may hold their words
	}
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		m.draining.Store(true)
		ending, cancel := context.WithTimeout(context.Background(), cmpOr(m.Grace, 5*time.Second))
		defer cancel()
		if server.Shutdown(ending) != nil {
			server.Close()
		}
	})
	err := server.Serve(&gate{Listener: m.Listener, m: m, most: int64(cmpOr(m.Connections, 1024))})
	if !stop() {
		<-stopped
	}
	if errors.Is(err, http.ErrServerClosed) {
		err = nil
	}
	close(work)
	worker.Wait()
	return err
}

func cmpOr[T comparable](v, d T) T {
	var zero T
	if v == zero {
		return d
	}
	return v
}

// A head is longer than mirrorHead, and takes longer than mirrorHeadTime, only where somebody means harm.
const (
	mirrorHead     = 64 << 10
	mirrorHeadTime = 10 * time.Second
)

// serve reads a request, hands it over and answers.
func (m *Mirror) serve(w http.ResponseWriter, r *http.Request, work chan<- mirrored, maxBody int64) {
	q := mirrored{arrival: time.Now().UnixNano()}
	m.requests.Add(1)
	spent := false // the connection goes: what it has sent of the body is not read
	if c, ok := r.Context().Value(mirrorConnKey{}).(*mirrorConn); ok {
		c.working.Add(1)
		c.drop()
		defer func() {
			if !spent {
				c.working.Add(-1)
			}
		}()
	}
	defer func() {
		w.Header()["Date"] = nil
		w.WriteHeader(http.StatusAccepted)
	}()
	control := http.NewResponseController(w)
	q.loan = m.backlog.open(func() { _ = control.SetReadDeadline(time.Unix(1, 0)) })
	body := &bodyReader{from: r.Body, l: &m.backlog, loan: q.loan, until: time.Now().Add(cmpOr(m.ReadTimeout, 5*time.Minute)), wait: control.SetReadDeadline}
	err := errBacklog
	if m.backlog.charge(q.loan, headBytes(r)) {
		q.body, err = io.ReadAll(io.LimitReader(body, maxBody+1))
		if err == nil && int64(len(q.body)) > maxBody {
			q.over, err = io.Copy(io.Discard, &discarding{body})
			body.ready = 0
		}
	}
	if errors.Is(err, errBacklog) || !m.backlog.read(q.loan, body.ready) {
		m.backlog.close(q.loan)
		m.drop(droppedBacklog)
		if spent = r.ProtoMajor == 1; spent {
			w.Header().Set("Connection", "close")
		}
		return
	}
	if q.cut = err != nil; q.cut {
		m.cut.Add(1)
	}
	q.end = time.Now().UnixNano()
	q.head = head{method: r.Method, path: r.RequestURI, length: r.ContentLength, encoding: r.Header.Get("Content-Encoding")}
	for name, values := range r.Header {
		for _, v := range values {
			q.head.field([]byte(name), []byte(v))
		}
	}
	select {
	case work <- q:
	default:
		m.backlog.close(q.loan)
		m.drop(droppedBacklog)
	}
}

// discarding reads what follows the part of a body that is kept, and charges nothing for it.
type discarding struct{ *bodyReader }

func (d *discarding) Read(p []byte) (int, error) {
	d.ready = bodyStep
	return d.bodyReader.Read(p)
}

func (m *Mirror) drop(reason string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.dropped == nil {
		m.dropped = map[string]int64{}
	}
	m.dropped[reason]++
}

// record turns a request into an exchange.
func (m *Mirror) record(q mirrored) {
	m.working.Lock()
	defer m.working.Unlock()
	d := newDialogue(m.engine, "", true, formats.ClockUser)
	defer func() {
		if recover() != nil {
			m.drop(droppedPanic)
			for _, x := range append(d.over, d.open...) {
				m.engine.o.keep.forget(x.x)
				m.engine.done(x)
			}
		}
	}()
	d.deaf = true
	d.reqAt = q.arrival
	d.requestHead(&q.head, q.arrival)
	d.req.x.ConnReused.Valid = false // whose connection it is, the gateway knows
	d.body(true, q.body, q.end, 0)
	d.req.bodySize += q.over
	if q.cut {
		d.req.damaged = true
	}
	d.end(true, q.end)
	d.close(fromServer, closedCut, q.end)
	for _, x := range d.over {
		x.x.EndNS.Valid = false // only the request's end is known
		m.engine.emitExchange(x)
	}
}

// Stats returns the counters so far. While a request is being recorded it returns those of the last call.
func (m *Mirror) Stats() SourceStats {
	if m.working.TryLock() {
		s := newSourceStats()
		if m.engine != nil {
			s = merge(s, m.engine.stats)
		}
		m.working.Unlock()
		m.mu.Lock()
		m.shown = s
		m.mu.Unlock()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	s := merge(newSourceStats(), m.shown)
	for reason, n := range m.dropped {
		s.Dropped[reason] += n
	}
	s.Notes["requests"] = m.requests.Load()
	for note, n := range map[string]int64{"connections_refused": m.refused.Load(), "heads_over_memory": m.headsOver.Load(), "heads_too_large": m.headsLarge.Load(),
		"heads_unfinished": m.headsCut.Load(), "requests_cut": m.cut.Load()} {
		if n > 0 {
			s.Notes[note] = n
		}
	}
	return s
}
