package recorder

import (
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/shadowtape/shadowtape/formats"
)

// Segments is what a Spool writes to: formats.Writer, or what a test puts in its place.
type Segments interface {
	Begin(*formats.Exchange) error
	Forget(id int64) error
	Write(*formats.Exchange) error
	WriteServer([]formats.ServerSample) error
	WriteGPU([]formats.GPUSample) error
	Rotate() error
	Full() bool
	Header() *formats.Header
	Close() error
}

// SpoolOptions say how a Spool works. The zero value means the defaults.
type SpoolOptions struct {
	QueueBytes int64                    // exchanges that wait for the disk; beyond it they are dropped and counted. 0: 32 MiB
	Every      time.Duration            // how often age and counters of the open segment are looked at; 0: 200 ms
	Reopen     func() (Segments, error) // nil, or opens a new writer after the old one has failed for good
	RetryEvery time.Duration            // between two tries of it; 0: 10 s
	Bodies     *Bodies                  // whose bodies are written with the rows; nil: none are
}

// Spool stands between a source, which must not wait, and a trace, which may: a bounded queue, and one goroutine that writes. Emit, Begin
// and Forget never block and are safe for concurrent use; Begin and Forget of one exchange come before its Emit.
type Spool struct {
	o      SpoolOptions
	source func() SourceStats
	ended  chan struct{}
	wake   chan struct{}

	mu      sync.Mutex // guards what follows
	queue   []spooled
	bytes   int64
	closing bool
	dropped map[string]int64
	begun   map[*formats.Exchange]bool
	written int64
	samples map[string]int64 // notes
	first   int64
	last    int64
	errs    []string // distinct errors of the writer, for the user
	writer  error    // that ended the writer; nil while it works
	full    bool     // the disk is: the writer lives, and takes nothing

	// The writing goroutine's own.
	w      Segments
	base   formats.Counters // what writers before this one have accounted for
	flying map[*formats.Exchange]int64
	tried  time.Time
	looked time.Time
}

type spooled struct {
	kind   spoolKind
	x      *formats.Exchange
	row    *formats.Exchange // of spoolBegin: what is known of x
	server []formats.ServerSample
	gpu    []formats.GPUSample
	cost   int64
}

const forgetCost = 64

type spoolKind uint8

const (
	spoolEmit spoolKind = iota
	spoolBegin
	spoolForget
	spoolSamples
)

// The notes about samples of the server and its GPUs.
const (
	samplesWritten = "samples_written"
	samplesDropped = "samples_dropped"
)

// The reasons for which a spool drops exchanges.
const (
	droppedQueue  = "queue_full"
	droppedDisk   = formats.DiskFull
	droppedWriter = "writer_failed"
	droppedClosed = "after_the_end"
	droppedLost   = "deleted" // written, and gone before their segment was closed
)

// NewSpool starts writing to w, which the spool then owns. source is asked for the counters of what comes before; nil counts nothing.
func NewSpool(w Segments, source func() SourceStats, o SpoolOptions) *Spool {
	if o.QueueBytes == 0 {
		o.QueueBytes = 32 << 20
	}
	if o.Every == 0 {
		o.Every = 200 * time.Millisecond
	}
	if o.RetryEvery == 0 {
		o.RetryEvery = 10 * time.Second
	}
	if source == nil {
		source = newSourceStats
	}
	s := &Spool{o: o, source: source, w: w, ended: make(chan struct{}), wake: make(chan struct{}, 1), dropped: map[string]int64{}, samples: map[string]int64{}, begun: map[*formats.Exchange]bool{}, flying: map[*formats.Exchange]int64{}}
	go s.run()
	return s
}

// Emit hands an exchange over, or drops and counts it.
func (s *Spool) Emit(x *formats.Exchange) {
	s.put(spooled{kind: spoolEmit, x: x, cost: int64(size(x))})
}

// Begin says that x is in flight; known is a copy of what it says so far, which the spool keeps.
func (s *Spool) Begin(x, known *formats.Exchange) {
	s.put(spooled{kind: spoolBegin, x: x, row: known, cost: int64(size(known))})
}

// Forget says that x, which has begun, will not be emitted.
func (s *Spool) Forget(x *formats.Exchange) {
	s.put(spooled{kind: spoolForget, x: x, cost: forgetCost})
}

// Server hands samples of the server's metrics over, which the spool then keeps, or drops and counts them: they may fill a quarter of the
// queue. It never blocks, and its error is always nil, so that sampling goes on.
func (s *Spool) Server(rows []formats.ServerSample) error {
	cost := 0
	for i := range rows {
		cost += 64 + len(rows[i].Series) + len(rows[i].Labels)
	}
	s.sample(spooled{kind: spoolSamples, server: rows, cost: int64(cost)})
	return nil
}

// GPU does for samples of GPUs what Server does for a server's.
func (s *Spool) GPU(rows []formats.GPUSample) error {
	s.sample(spooled{kind: spoolSamples, gpu: rows, cost: 512 * int64(len(rows))})
	return nil
}

func (s *Spool) sample(q spooled) {
	s.mu.Lock()
	if s.closing || s.bytes+q.cost > s.o.QueueBytes/4 {
		s.samples[samplesDropped] += int64(len(q.server) + len(q.gpu))
		s.mu.Unlock()
		return
	}
	s.queue = append(s.queue, q)
	s.bytes += q.cost
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *Spool) put(q spooled) {
	s.mu.Lock()
	known := s.begun[q.x]
	if q.kind != spoolBegin {
		delete(s.begun, q.x)
	}
	full := s.bytes+q.cost > s.o.QueueBytes && q.kind != spoolForget
	switch {
	case s.closing || full:
		if q.kind == spoolEmit {
			s.o.Bodies.forget(q.x)
			if s.closing {
				s.dropped[droppedClosed]++
			} else {
				s.dropped[droppedQueue]++
			}
		}
		if known { // its beginning stands in the journal
			q.kind, q.cost = spoolForget, forgetCost
			s.queue = append(s.queue, q)
			s.bytes += q.cost
		}
	case q.kind == spoolForget && !known:
	default:
		if q.kind == spoolBegin {
			s.begun[q.x] = true
		}
		s.queue = append(s.queue, q)
		s.bytes += q.cost
	}
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *Spool) run() {
	defer close(s.ended)
	tick := time.NewTicker(s.o.Every)
	defer tick.Stop()
	for {
		s.mu.Lock()
		queue, closing := s.queue, s.closing
		s.queue = nil
		s.mu.Unlock()
		for _, q := range queue {
			s.take(q)
			s.mu.Lock()
			s.bytes -= q.cost
			s.mu.Unlock()
		}
		s.look()
		if closing && len(queue) == 0 {
			s.finish()
			return
		}
		if len(queue) > 0 {
			continue
		}
		select {
		case <-s.wake:
		case <-tick.C:
		}
	}
}

func (s *Spool) take(q spooled) {
	defer s.room()
	if s.w == nil && !s.reopen() {
		switch q.kind {
		case spoolEmit:
			s.o.Bodies.forget(q.x)
			s.drop(droppedWriter)
		case spoolSamples:
			s.sampled(samplesDropped, q)
		}
		return
	}
	switch q.kind {
	case spoolSamples:
		if err := errors.Join(s.w.WriteServer(q.server), s.w.WriteGPU(q.gpu)); err != nil { // the exchanges go on
			s.sampled(samplesDropped, q)
			s.complain(err)
			return
		}
		s.sampled(samplesWritten, q)
	case spoolBegin:
		if err := s.w.Begin(q.row); err != nil {
			s.failed(err)
			return
		}
		s.flying[q.x] = q.row.ExchangeID
	case spoolForget:
		if id, ok := s.flying[q.x]; ok {
			delete(s.flying, q.x)
			if err := s.w.Forget(id); err != nil {
				s.failed(err)
			}
		}
	case spoolEmit:
		if id, ok := s.flying[q.x]; ok {
			delete(s.flying, q.x)
			q.x.ExchangeID = id
		}
		err := s.w.Write(q.x)
		if err == nil {
			s.o.Bodies.write(q.x)
			s.mu.Lock()
			s.written++
			if s.first == 0 || q.x.ArrivalUnixNS < s.first {
				s.first = q.x.ArrivalUnixNS
			}
			s.last = max(s.last, q.x.ArrivalUnixNS+max(q.x.EndNS.Or(0), 0))
			s.mu.Unlock()
			return
		}
		s.o.Bodies.forget(q.x)
		if errors.Is(err, formats.ErrFull) {
			s.drop(droppedDisk)
			_ = s.w.Forget(q.x.ExchangeID) // else it would stay in flight for ever
		} else {
			s.drop(droppedWriter)
		}
		s.failed(err)
	}
}

func (s *Spool) drop(reason string) {
	s.mu.Lock()
	s.dropped[reason]++
	s.mu.Unlock()
}

func (s *Spool) sampled(note string, q spooled) {
	s.mu.Lock()
	s.samples[note] += int64(len(q.server) + len(q.gpu))
	s.mu.Unlock()
}

// complain keeps an error of the writer for the user.
func (s *Spool) complain(err error) {
	s.mu.Lock()
	if text := err.Error(); len(s.errs) < 8 && (len(s.errs) == 0 || s.errs[len(s.errs)-1] != text) {
		s.errs = append(s.errs, text)
	}
	s.mu.Unlock()
}

// failed notes an error of the writer. A full disk may have room again; anything else is that writer's end.
func (s *Spool) failed(err error) {
	s.complain(err)
	if errors.Is(err, formats.ErrFull) {
		return
	}
	s.lost(s.w.Close()) // keeps the segments that it has committed
	s.base = s.Stats().Counters
	s.mu.Lock()
	s.writer = err
	s.mu.Unlock()
	s.w = nil
	clear(s.flying)
	s.tried = time.Now()
}

func (s *Spool) reopen() bool {
	if s.o.Reopen == nil || time.Since(s.tried) < s.o.RetryEvery {
		return false
	}
	s.tried = time.Now()
	w, err := s.o.Reopen()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.writer = err
		return false
	}
	s.w, s.writer = w, nil
	return true
}

// look brings the open segment's counters up to date, closes it if it is old enough, and tries a writer that failed again, now and then:
// the recorder recovers without an exchange that asks it to.
func (s *Spool) look() {
	if time.Since(s.looked) < s.o.Every {
		return
	}
	s.looked = time.Now()
	if s.w == nil && !s.reopen() {
		return
	}
	s.w.Header().Counters = minus(s.Stats().Counters, s.base)
	if err := s.w.Rotate(); err != nil {
		s.failed(err)
	}
	s.room()
}

// room notes whether the disk has any.
func (s *Spool) room() {
	full := s.w != nil && s.w.Full()
	s.mu.Lock()
	s.full = full
	s.mu.Unlock()
}

func (s *Spool) finish() {
	if s.w == nil {
		return
	}
	s.w.Header().Counters = minus(s.Stats().Counters, s.base)
	err := s.w.Close()
	s.lost(err)
	s.w = nil
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writer = err
}

// Close writes what waits and closes the trace. It returns the writer's last error: nil if the trace is complete.
func (s *Spool) Close() error {
	s.mu.Lock()
	s.closing = true
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
	<-s.ended
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.writer
}

// lost counts as dropped what a writer had taken and could not keep.
func (s *Spool) lost(err error) {
	var l *formats.LostError
	if !errors.As(err, &l) {
		return
	}
	s.complain(err)
	s.mu.Lock()
	s.written -= l.Rows
	s.dropped[droppedLost] += l.Rows
	s.mu.Unlock()
}

// Stats accounts for everything so far; Seen == Filtered + Dropped + Written. Exchanges that wait in the queue are not counted yet.
func (s *Spool) Stats() Stats {
	src := s.source()
	s.mu.Lock()
	defer s.mu.Unlock()
	return Stats{Counters: s.counters(src), Packets: src.Packets, Bytes: src.Bytes, First: s.first, Last: s.last, Warnings: append(src.Warnings, s.errs...)}
}

// Backlog returns the bytes of the exchanges that wait, and the error for which nothing is written now: formats.ErrFull while the disk is
// full, what ended the writer until another could be opened, nil while exchanges are written.
func (s *Spool) Backlog() (bytes int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.writer == nil && s.full {
		return s.bytes, formats.ErrFull
	}
	return s.bytes, s.writer
}

func (s *Spool) counters(src SourceStats) formats.Counters {
	c := formats.Counters{Written: s.written, Reasons: map[string]int64{}, Notes: maps.Clone(src.Notes)}
	for reason, n := range src.Filtered {
		c.Filtered += n
		c.Reasons["filtered_"+reason] += n
	}
	for _, m := range []map[string]int64{src.Dropped, s.dropped} {
		for reason, n := range m {
			c.Dropped += n
			c.Reasons["dropped_"+reason] += n
		}
	}
	if c.Notes == nil {
		c.Notes = map[string]int64{}
	}
	if s.o.Bodies != nil {
		maps.Copy(c.Notes, s.o.Bodies.Notes())
	}
	for note, n := range s.samples {
		c.Notes[note] += n
	}
	c.Seen = c.Filtered + c.Dropped + c.Written
	return c
}

// minus returns what c counts beyond base.
func minus(c, base formats.Counters) formats.Counters {
	c.Seen, c.Filtered, c.Dropped, c.Written = c.Seen-base.Seen, c.Filtered-base.Filtered, c.Dropped-base.Dropped, c.Written-base.Written
	c.Reasons, c.Notes = without(c.Reasons, base.Reasons), without(c.Notes, base.Notes)
	return c
}

func without(m, base map[string]int64) map[string]int64 {
	out := map[string]int64{}
	for k, n := range m {
		if n -= base[k]; n != 0 {
			out[k] = n
		}
	}
	return out
}

// RecordLive moves a live source's exchanges to a spool until the source ends, and closes the spool. Unlike Record it goes on when the
// disk does not.
func RecordLive(run func(emit func(*formats.Exchange)) error, s *Spool) (Stats, error) {
	err := run(s.Emit)
	if cerr := s.Close(); cerr != nil {
		err = errors.Join(err, fmt.Errorf("write exchanges: %w", cerr))
	}
	return s.Stats(), err
}
