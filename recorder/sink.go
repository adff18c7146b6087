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
	BacklogBytes int64         // of requests read and not yet recorded; beyond it they are dropped and counted. 0: 64 MiB
	ReadTimeout  time.Duration // of one request; 0: 5 minutes
	Grace        time.Duration // how long requests that are being sent may take after the context has ended; 0: 5 s
	Select       Selection
	Limits

	backlog  atomic.Int64
	requests atomic.Int64
	draining atomic.Bool

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
	if m.BacklogBytes < 0 || m.ReadTimeout < 0 || m.Grace < 0 {
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
	cost    int64
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
	o := engineOptions{Limits: m.Limits, Node: m.Node, clock: formats.ClockUser, admit: newAdmission(m.Select)}
	o.defaults()
	m.working.Lock()
	m.engine = newEngine(o, nil, hasherOf(m.Key), emit)
	m.working.Unlock()
	limit := cmpOr(m.BacklogBytes, 64<<20)
	work := make(chan mirrored, 4096)
	var worker sync.WaitGroup
	worker.Go(func() {
		for r := range work {
			m.record(r)
			m.backlog.Add(-r.cost)
		}
	})
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.serve(w, r, work, limit, int64(o.MaxBody)) }),
		ReadHeaderTimeout: time.Minute,
		ReadTimeout:       cmpOr(m.ReadTimeout, 5*time.Minute),
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    maxHead,
		Protocols:         protocols,
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
	err := server.Serve(m.Listener)
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

// serve reads a request, hands it over and answers.
func (m *Mirror) serve(w http.ResponseWriter, r *http.Request, work chan<- mirrored, limit, maxBody int64) {
	q := mirrored{arrival: time.Now().UnixNano()}
	m.requests.Add(1)
	defer func() {
		w.Header()["Date"] = nil
		w.WriteHeader(http.StatusAccepted)
	}()
	q.cost = min(max(r.ContentLength, 0), maxBody) + 1024
	if m.backlog.Add(q.cost) > limit {
		m.backlog.Add(-q.cost)
		m.drop(droppedBacklog)
		return
	}
	var err error
	q.body, err = io.ReadAll(io.LimitReader(&charged{r.Body, &q.cost, 1024, &m.backlog, limit}, maxBody+1))
	if errors.Is(err, errBacklog) {
		q.body = nil
		m.backlog.Add(-q.cost)
		m.drop(droppedBacklog)
		return
	}
	if int64(len(q.body)) > maxBody {
		q.over, err = io.Copy(io.Discard, r.Body)
	}
	q.cut = err != nil
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
		m.backlog.Add(-q.cost)
		m.drop(droppedBacklog)
	}
}

// errBacklog ends the read of a body for which the backlog has no room.
var errBacklog = errors.New("sink: the backlog is full")

// charged reads a body and charges the backlog for what its length did not announce, as it comes: many bodies of unknown length at once
// must not outgrow it.
type charged struct {
	from    io.Reader
	cost    *int64 // charged so far
	read    int64
	backlog *atomic.Int64
	limit   int64
}

func (c *charged) Read(b []byte) (int, error) {
	n, err := c.from.Read(b)
	c.read += int64(n)
	if more := c.read - *c.cost; more > 0 {
		more = max(more, 32<<10) // few additions to what all connections share
		*c.cost += more
		if c.backlog.Add(more) > c.limit {
			return n, errBacklog
		}
	}
	return n, err
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
	return s
}
