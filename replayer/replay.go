package replayer

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/replayer/client"
	"github.com/shadowtape/shadowtape/replayer/prompt"
	"github.com/shadowtape/shadowtape/replayer/schedule"
)

// RequestID is the x-request-id of the arrival with an index, of a run whose ids start with prefix.
func RequestID(prefix string, arrivalIndex int64) string {
	return prefix + "-" + strconv.FormatInt(arrivalIndex, 10)
}

// CorrelationID is what stands in a run's correlation_id column for an x-request-id: the keyed hash of the id, with the run's prefix
// as key. The prefix stands in run.json (options.request_ids), so a run can be joined with a server's log.
func CorrelationID(prefix, requestID string) formats.Hash {
	m := hmac.New(sha256.New, []byte(prefix))
	m.Write([]byte(requestID))
	var h formats.Hash
	copy(h[:], m.Sum(nil))
	return h
}

// errDone ends the reading of a schedule that nobody waits for any more.
var errDone = errors.New("the run is over")

// job is an arrival on its way from the schedule to the connection.
type job struct {
	due   time.Duration
	live  *Live // the counters it belongs to
	id    schedule.ID
	after Arrival // its At, After, Think and NotBefore
	x     *formats.Exchange
	asked asked
	abort client.Cut
	pool  *client.Target
	wire  client.Wire
	err   error         // of the prompter
	ready chan struct{} // closed when wire or err stands
	cost  int64
}

// replay is the state of one Replay.
type replay struct {
	o       Options
	c       *client.Client
	p       Prompter
	live    *Live // of what is measured
	warmup  Live  // of the warm-up
	clk     client.Clock
	started chan struct{} // closed when clk stands

	order chan *job // in the schedule's order, for the dispatcher
	work  chan *job // the same, for the builders

	budget   sync.Mutex
	freed    *sync.Cond
	waiting  int64 // bytes of bodies that were made and not sent
	readErr  error // of the schedule
	inFlight sync.WaitGroup
	out      *rowQueue
	warm     *warmer
	turns    *schedule.Turns[*job]
	overlap  overlap
	steady   Course
	lastDue  atomic.Int64
	stats    Stats
	statsMu  sync.Mutex
}

// Replay sends a schedule's requests at their times and writes one row for each to dst, sent or not. One goroutine keeps the times, on
// absolute monotonic deadlines; it waits for no answer and for no body: a body that is not ready in time is sent by its own goroutine
// when it is, late and counted. When the client itself was stalled, everything overdue goes out at once; the schedule is never moved.
// A cancelled context ends what is in flight (run_end), and Stats says Interrupted with a nil error. Always Scheduled == Sent +
// Dropped and Sent == Completed + Failed + Aborted + RunEnd, whether or not the sink takes the rows: where it is too slow for them, some
// are lost (Stats.RowsLost), and no request waits. An error of the schedule or the sink ends the run and is returned with
// the stats so far.
func Replay(ctx context.Context, s Schedule, p Prompter, c *client.Client, dst Sink, o Options) (Stats, error) {
	if err := o.Validate(); err != nil {
		return Stats{}, err
	}
	o.defaults(c)
	r := &replay{o: o, c: c, p: p, live: o.Live, started: make(chan struct{}), order: make(chan *job, o.AheadCount), work: make(chan *job, o.AheadCount), out: newRowQueue(o.RowBytes)}
	r.freed = sync.NewCond(&r.budget)
	r.warm, r.turns = &warmer{pools: c.Targets()}, schedule.NewTurns[*job]()
	r.stats.Errors, r.stats.Dropped = map[string]int64{}, map[string]int64{}
	r.stats.Quality.limit()
	parent := ctx
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c.Revive()

	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { r.read(ctx, s) })
	for range o.Builders {
		wg.Go(r.build)
	}
	writeErr := make(chan error, 1)
	go func() { writeErr <- r.out.drain(dst, cancel) }()

	first := <-r.order // nil where the schedule is empty
	r.clk = client.NewClock(r.zero(ctx, first))
	if !o.Cold {
		wg.Go(func() { r.warm.run(ctx, r.clk) })
	}
	close(r.started)
	r.live.Start.Store(r.clk.Unix())
	r.stats.Start = r.clk.Start()
	var interrupted bool
	if o.Users > 0 {
		interrupted = r.users(ctx, first)
	} else {
		interrupted = r.dispatch(ctx, first)
	}
	if !interrupted {
		interrupted = r.wait(ctx)
	}
	r.stats.Interrupted = interrupted && parent.Err() != nil
	cancel()
	c.CutAll()
	r.budget.Lock()
	r.freed.Broadcast()
	r.budget.Unlock()
	for range r.order { // what the reader had put there; none of it was scheduled yet
	}
	r.inFlight.Wait()
	wg.Wait()
	r.out.close()
	err := <-writeErr
	r.stats.End = time.Now()
	r.stats.Requests, r.stats.Warmup = r.live.Counts(), r.warmup.Counts()
	r.stats.Late, r.stats.RowsLost = r.live.Late.Load(), r.out.lost
	r.stats.Overlapped = r.overlap.n
	r.stats.Steady = r.steady.Judge(time.Duration(r.lastDue.Load()))
	r.stats.WarmupTokens = r.warmup.Tokens.Load()
	r.stats.ClockSteps = r.clk.Steps()
	if err != nil {
		return r.stats, fmt.Errorf("write run: %w", err)
	}
	if r.readErr != nil {
		return r.stats, fmt.Errorf("read schedule: %w", r.readErr)
	}
	return r.stats, nil
}

// zero decides when the schedule starts: as given, or when the first body is ready and connections stand, with a moment for what is
// right behind.
func (r *replay) zero(ctx context.Context, first *job) time.Time {
	if !r.o.Start.IsZero() {
		return r.o.Start
	}
	const moment = 50 * time.Millisecond
	if first == nil {
		return time.Now()
	}
	<-first.ready
	SleepTimer(time.Now().Add(moment), ctx.Done())
	if !r.o.Cold {
		ctx, cancel := context.WithTimeout(ctx, warmStart)
		r.warm.fill(ctx, -1)
		cancel()
	}
	return time.Now().Add(moment)
}

// read takes the schedule into the queues, no further ahead than the options allow.
func (r *replay) read(ctx context.Context, s Schedule) {
	defer close(r.order)
	defer close(r.work)
	var index int64
	seen := seenBlocks{per: r.o.BlockTokens}
	for a, err := range s {
		if err == nil && ctx.Err() != nil {
			err = errDone
		}
		if err == nil && a.Other && a.Exchange != nil { // it keeps its place, and warms the cache that is shared
			seen.hit(a.Exchange, a.Loop)
			index++
			continue
		}
		if err == nil && a.Exchange == nil {
			err = errors.New("an arrival without an exchange")
		}
		if err != nil {
			if err != errDone {
				r.readErr = err
			}
			return
		}
		if r.o.Users > 0 {
			a.At = 0 // a closed loop has no times
		}
		if !r.ahead(ctx, a.At, index) {
			return
		}
		j := &job{due: a.At, asked: askedOf(a.Exchange), ready: make(chan struct{}), pool: r.route(a, index)}
		j.asked.hit = seen.hit(a.Exchange, a.Loop)
		j.cost, j.live = bodyCost(a.Exchange), r.live
		if a.Warmup {
			j.live = &r.warmup
		}
		j.x = r.row(a, index, j.pool)
		if j.abort = client.CutOf(a.Exchange); j.abort.Planned() && !r.o.NoAborts {
			j.x.PlannedAbort = formats.Of(true)
			j.asked.abort = true
		} else {
			j.abort = client.Cut{}
		}
		index++
		if r.o.Turns {
			j.id = schedule.IDOf(a)
			r.turns.Expect(j.id)
			if a.After != 0 {
				j.after = Arrival{At: a.At, After: a.After, Think: a.Think, NotBefore: a.NotBefore}
			}
		}
		if !r.take(ctx, j.cost) {
			return
		}
		if !r.o.Cold && r.o.Users == 0 {
			r.warm.add(a.At)
		}
		select {
		case r.order <- j:
		case <-ctx.Done():
			return
		}
		r.work <- j // as deep as order
	}
}

// route deals arrivals to the targets in turn, or keeps a session where it is.
func (r *replay) route(a Arrival, index int64) *client.Target {
	n := uint64(len(r.c.Targets()))
	if r.o.BySession && a.Exchange.SessionID.Valid {
		return r.c.Targets()[schedule.SessionKey(a.Exchange)%n]
	}
	return r.c.Targets()[uint64(index)%n]
}

// ahead waits until an arrival is near enough to be prepared. The first arrivals pass at once: they define the start.
func (r *replay) ahead(ctx context.Context, at time.Duration, index int64) bool {
	if at <= r.o.Ahead {
		return true
	}
	select {
	case <-r.started:
	case <-ctx.Done():
		return false
	}
	SleepTimer(r.clk.At(at-r.o.Ahead), ctx.Done())
	return ctx.Err() == nil
}

// bodyCost estimates what a body holds, before it is made: token ids in text take about six bytes each.
func bodyCost(x *formats.Exchange) int64 {
	return 2048 + 6*max(x.InputTokens.V, 0)
}

// take reserves bytes of the look-ahead, waiting for bodies to be sent; a single body is always let through.
func (r *replay) take(ctx context.Context, n int64) bool {
	r.budget.Lock()
	defer r.budget.Unlock()
	for r.waiting > 0 && r.waiting+n > r.o.AheadBytes && ctx.Err() == nil {
		r.freed.Wait()
	}
	r.waiting += n
	return ctx.Err() == nil
}

func (r *replay) give(n int64) {
	r.budget.Lock()
	r.waiting -= n
	r.freed.Signal()
	r.budget.Unlock()
}

// row is the run's row for an arrival: the recorded request, the run's identity, nothing of the recorded outcome.
func (r *replay) row(a Arrival, index int64, p *client.Target) *formats.Exchange {
	x := *a.Exchange
	x.ExchangeID = r.o.FirstID + index + 1
	if !x.SourceID.Valid {
		x.SourceID = formats.Of(a.Exchange.ExchangeID)
	}
	x.ArrivalIndex, x.Loop = formats.Of(index), formats.Of(a.Loop)
	x.CorrelationID = formats.Of(CorrelationID(r.o.RequestIDs, RequestID(r.o.RequestIDs, index)))
	x.ServerID, x.Node, x.Phase = p.URL(), r.o.Node, formats.PhaseMeasure
	if a.Warmup {
		x.Phase = formats.PhaseWarmup
	}
	clearOutcome(&x)
	return &x
}

// clearOutcome removes what belongs to the answer that was recorded. What was asked for stays, output length included, until the
// answer replaces it: the prompter needs it.
func clearOutcome(x *formats.Exchange) {
	x.SentNS, x.RequestEndNS, x.ResponseHeaderNS, x.FirstEventNS, x.FirstTokenNS = none, none, none, none, none
	x.FirstContentNS, x.LastTokenNS, x.EndNS, x.DNSNS, x.ConnectNS, x.TLSNS, x.ClientDelayUS = none, none, none, none, none, none, none
	x.ConnReused = formats.Null[bool]{}
	x.RequestBytes = none
	x.Status, x.Attempt = formats.Null[int32]{}, formats.Null[int32]{}
	x.ErrorKind, x.FinishReason, x.EndReason, x.ResponseModel = "", "", "", ""
	x.PlannedAbort = formats.Null[bool]{}
	x.ResponseBytes, x.ReasoningTokens, x.CachedTokens, x.GapBytes = none, none, none, none
	x.Retransmits, x.Midstream, x.Truncated = formats.Null[int32]{}, formats.Null[bool]{}, formats.Null[bool]{}
	x.EventGapUS, x.EventTokens, x.EventChoice, x.EventFlags = nil, nil, nil, nil
	x.Clock = ""
}

var none formats.Null[int64]

// build makes bodies until there are no more.
func (r *replay) build() {
	for j := range r.work {
		body, err := r.p.Body(j.x)
		if err != nil {
			j.err = err
		} else {
			j.x.RequestBytes = formats.Of(int64(len(body)))
			j.wire = j.pool.Wire(j.x.Endpoint, RequestID(r.o.RequestIDs, j.x.ArrivalIndex.V), body)
		}
		// What the answer will say; until then unknown.
		j.x.OutputTokens, j.x.OutputTokensSource, j.x.ChoiceOutputTokens = none, "", nil
		close(j.ready)
	}
}

// dispatch is the one keeper of time. It returns true when the run was cut short.
func (r *replay) dispatch(ctx context.Context, first *job) bool {
	runtime.LockOSThread() // its waits are in the kernel
	defer runtime.UnlockOSThread()
	late := time.Duration(0)
	if !r.o.Start.IsZero() { // a start that has passed: the schedule is not moved for it
		late = max(time.Duration(r.clk.Now()), 0)
		r.stats.Joined = late
	}
	for j := first; j != nil; j = <-r.order {
		if j.due < late && j.after.After == 0 {
			j.x.ArrivalUnixNS = r.clk.Unix() + int64(j.due)
			j.live.Scheduled.Add(1)
			r.drop(j, formats.ErrorLateStart)
			r.ended(ctx, j)
			continue
		}
		if j.after.After != 0 {
			if end, held := r.turns.Hold(schedule.ID{Loop: j.id.Loop, Exchange: j.after.After}, j); !held {
				r.release(ctx, j, end)
			}
			continue
		}
		r.o.Sleep(r.clk.At(j.due), ctx.Done())
		if ctx.Err() != nil {
			return true
		}
		r.launch(ctx, j)
	}
	return ctx.Err() != nil
}

// launch sends a job that is due, or drops it. It does not wait.
func (r *replay) launch(ctx context.Context, j *job) {
	j.x.ArrivalUnixNS = r.clk.Unix() + int64(j.due)
	j.live.Scheduled.Add(1)
	if r.live.InFlight.Load() >= int64(r.o.MaxInFlight) {
		r.drop(j, formats.ErrorMaxInFlight)
		r.ended(ctx, j)
		return
	}
	r.live.InFlight.Add(1)
	r.inFlight.Add(1)
	go r.send(ctx, j)
}

// release launches a job whose turn it is: the exchange before it ended at end.
func (r *replay) release(ctx context.Context, j *job, end int64) {
	j.due = time.Duration(j.after.Due(end))
	r.inFlight.Add(1) // the run is not over while turns are to come
	go func() {
		defer r.inFlight.Done()
		SleepTimer(r.clk.At(j.due), ctx.Done())
		if ctx.Err() != nil || r.o.End > 0 && j.due >= r.o.End {
			r.discard(j)
			return
		}
		r.launch(ctx, j)
	}()
}

// ended lets those go on that waited for a job.
func (r *replay) ended(ctx context.Context, j *job) {
	if !r.o.Turns {
		return
	}
	at := r.clk.Now()
	for _, next := range r.turns.End(j.id, at) {
		r.release(ctx, next, at)
	}
}

// discard forgets an arrival that the run's end came before; it was not scheduled. Those that wait for it go with it.
func (r *replay) discard(j *job) {
	r.give(j.cost)
	if r.o.Turns {
		for _, next := range r.turns.End(j.id, r.clk.Now()) {
			r.discard(next)
		}
	}
}

// drop writes the row of an arrival that is not sent.
func (r *replay) drop(j *job, why string) {
	j.live.Dropped.Add(1)
	if j.live == r.live {
		r.statsMu.Lock()
		r.stats.Dropped[why]++
		r.statsMu.Unlock()
	}
	x := j.x
	r.inFlight.Add(1)
	go func() { // the builder may still be at work on the row
		defer r.inFlight.Done()
		<-j.ready
		r.give(j.cost)
		x.ErrorKind, x.EndReason = why, formats.EndNotSent
		r.out.put(x)
	}()
}

// send runs one exchange to its end.
func (r *replay) send(ctx context.Context, j *job) {
	defer r.inFlight.Done()
	defer r.live.InFlight.Add(-1)
	defer r.ended(ctx, j)
	select {
	case <-j.ready:
	default:
		<-j.ready
	}
	if j.err != nil {
		why := formats.ErrorPrompt
		if errors.Is(j.err, prompt.ErrStateful) {
			why = formats.ErrorStateful
		}
		r.drop(j, why)
		return
	}
	x, due := j.x, int64(j.due)
	r.overlap.start(x)
	defer r.overlap.end(x)
	j.pool.Exchange(ctx, x, &j.wire, r.clk, due, j.abort, func(at int64) {
		j.live.Sent.Add(1)
		r.give(j.cost)
		if at < 0 {
			return
		}
		lag := at - due
		if lag > int64(r.o.LateAfter) {
			j.live.Late.Add(1)
		}
		storeMax(&j.live.LagMaxNS, lag)
	})
	r.finish(j)
}

// finish counts an exchange that was sent, and hands its row on.
func (r *replay) finish(j *job) {
	l, x := j.live, j.x
	switch {
	case x.EndReason == formats.EndRunEnd:
		l.RunEnd.Add(1)
	case x.EndReason == formats.EndClientAbort:
		l.Aborted.Add(1)
	case x.Failed():
		l.Failed.Add(1)
	default:
		l.Completed.Add(1)
	}
	if x.FirstTokenNS.Valid {
		l.TTFTSumNS.Add(x.FirstTokenNS.V)
		l.TTFTCount.Add(1)
	}
	if x.OutputTokens.Valid {
		l.Tokens.Add(x.OutputTokens.V)
	}
	if l == r.live {
		r.steady.Add(x, int64(j.due))
		storeMax(&r.lastDue, int64(j.due))
		r.statsMu.Lock()
		if x.Failed() {
			r.stats.Errors[x.ErrorKind]++
		}
		if x.Attempt.V > 1 {
			r.stats.Retried++
		}
		r.stats.Quality.add(x, j.asked)
		r.statsMu.Unlock()
	}
	r.out.put(x)
}

// wait lets what is in flight end, and the turns that wait for it; once nothing more is to be sent, only as long as Drain allows. It
// returns true when the run was cut short.
func (r *replay) wait(ctx context.Context) bool {
	idle := make(chan struct{})
	go func() {
		r.inFlight.Wait()
		close(idle)
	}()
	t := time.NewTimer(r.o.Drain)
	defer t.Stop()
	for {
		select {
		case <-idle:
			return false
		case <-t.C:
			if r.turns.Waiting() == 0 {
				return false
			}
			t.Reset(r.o.Drain)
		case <-ctx.Done():
			return true
		}
	}
}
