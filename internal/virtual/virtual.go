// Package virtual sends a trace through simulated servers in virtual time: the engine without a clock, so that a day of traffic takes
// seconds. What comes out is what a replay of the trace against such servers would have measured, without client and network.
package virtual

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/engine"
	"github.com/shadowtape/shadowtape/internal/kv"
	"github.com/shadowtape/shadowtape/internal/sim"
	"github.com/shadowtape/shadowtape/replayer/schedule"
)

// Options describe the servers and the time.
type Options struct {
	Profile     engine.Profile
	Replicas    int    // 0 is 1
	Route       Route  // "" is round-robin
	Seed        uint64 // of the noise; each replica draws its own
	Slowdown    engine.Slowdown
	Noise       engine.Noise
	Sample      time.Duration  // between samples of the servers' metrics; 0 is none
	Header      formats.Header // the trace's: what its prefix blocks are
	Turns       bool           // arrivals may wait for the end of others (schedule.ThinkTime)
	Users       int            // not 0: a closed loop of so many users, which takes the arrivals without their times
	Ramp, Think time.Duration  // of Users: over which they begin; from an answer to their next request
	End         time.Duration  // nothing is sent from then on that waited for another's end; 0: no limit
}

// Validate reports every option that cannot be used.
func (o Options) Validate() error {
	errs := []error{o.Profile.Validate(), o.Route.validate()}
	if o.Replicas < 0 || o.Replicas > 10_000 {
		errs = append(errs, fmt.Errorf("replicas %d: between 1 and 10,000", o.Replicas))
	}
	if o.Users > maxUsers {
		errs = append(errs, fmt.Errorf("users %d: at most %d", o.Users, maxUsers))
	}
	if o.Think > maxPause || o.Ramp > maxPause {
		errs = append(errs, fmt.Errorf("%v to think and %v to begin: at most %v", o.Think, o.Ramp, maxPause))
	}
	if o.Profile.Pages > kv.MaxPages {
		errs = append(errs, fmt.Errorf("pages %d: at most %d", o.Profile.Pages, kv.MaxPages))
	}
	if o.Sample > 0 && o.Sample < minSample {
		errs = append(errs, fmt.Errorf("sampling every %v: at least %v apart, or 0 for none", o.Sample, minSample))
	}
	if o.Sample < 0 || o.Users < 0 || o.Ramp < 0 || o.Think < 0 || o.End < 0 {
		errs = append(errs, errors.New("sampling interval, users, ramp, think time and end must not be negative"))
	}
	if o.Users > 0 && o.Turns {
		errs = append(errs, errors.New("a closed loop of users has not the trace's sessions"))
	}
	return errors.Join(errs...)
}

const (
	maxUsers  = 1_000_000 // each is kept in memory
	minSample = time.Millisecond
	maxPause  = 24 * time.Hour
)

// Output takes what a simulation produces. Each function may be nil; none may keep what it is given. An error ends the simulation.
type Output struct {
	Exchange func(*formats.Exchange) error      // in the order of arrivals
	Server   func([]formats.ServerSample) error // in the order of time
	// Step takes a replica's steps; their times are since zero, the first arrival in nanoseconds since 1970.
	Step func(replica int, zero int64, s engine.Step) error
}

// Stats account for a simulation: Scheduled == Sent + Dropped and Sent == Completed + Failed + Aborted.
type Stats struct {
	formats.RequestCounts                       // warm-up left out
	Warmup                formats.RequestCounts // of arrivals before the measured ones
	DropReasons           map[string]int64      // of Dropped
	Unordered             int64                 // arrivals before their predecessor, moved to its time
	Unsent                int64                 // arrivals that waited for another's end when the run's came; they are not scheduled
	StartUnixNS           int64                 // the first arrival
	EndUnixNS             int64                 // the last event
	Steps                 int64
	Preemptions           int64
	InputTokens           int64 // of all that were served and are measured
	CachedTokens          int64 // of these found in prefix caches
	OutputTokens          int64
}

// replica is one server.
type replica struct {
	engine *engine.Scheduler
	meter  *sim.Meter
	name   string
	sent   int64
}

// run is a simulation on its way.
type run struct {
	o         Options
	out       Output
	replicas  []*replica
	stats     Stats
	now       time.Duration
	tick      time.Duration // the next sample
	feed      *feed
	index     int64 // of the next arrival
	translate translator
	flights   []*flight // in the order of arrivals
	head      int       // the first that has not been written
	err       error     // of an output
	samples   []formats.ServerSample
	ones      []int32
}

// Run serves a trace's requests, in their order and each at its distance from the first. See Play.
func Run(ctx context.Context, requests iter.Seq2[*formats.Exchange, error], o Options, out Output) (Stats, error) {
	return Play(ctx, schedule.FromRows(requests), o, out)
}

// Play serves a schedule's requests, and returns when the last has ended. Their recorded outcome is what they ask for: the recorded number
// of tokens, and an end there where the client had gone. A request of unknown length is dropped and counted.
func Play(ctx context.Context, arrivals schedule.Arrivals, o Options, out Output) (Stats, error) {
	if err := o.Validate(); err != nil {
		return Stats{}, fmt.Errorf("simulate: %w", err)
	}
	o.Replicas = max(o.Replicas, 1)
	r := &run{o: o, out: out, translate: newTranslator(o.Header, o.Profile.PageSize)}
	r.stats.DropReasons = map[string]int64{}
	for i := range o.Replicas {
		if err := r.add(i); err != nil {
			return Stats{}, fmt.Errorf("simulate: %w", err)
		}
	}
	r.feed = newFeed(arrivals, o)
	defer r.feed.stop()
	if err := r.arrivals(ctx); err != nil {
		return r.stats, fmt.Errorf("simulate: %w", err)
	}
	if err := r.drain(ctx); err != nil {
		return r.stats, fmt.Errorf("simulate: %w", err)
	}
	for _, p := range r.replicas {
		c := p.engine.Counters()
		r.stats.Steps += c.Steps
		r.stats.Preemptions += c.Preemptions
	}
	r.stats.EndUnixNS = r.stats.StartUnixNS + int64(r.now)
	return r.stats, r.err
}

// add starts a replica.
func (r *run) add(i int) error {
	p := &replica{meter: sim.NewMeter(r.o.Profile), name: fmt.Sprintf("replica-%d", i)}
	metered := r.out.Server != nil && r.o.Sample > 0
	eo := r.o.Profile.Options()
	eo.Slowdown, eo.Noise, eo.Seed = r.o.Slowdown, r.o.Noise, r.o.Seed+uint64(i)*0x9e3779b97f4a7c15
	eo.Callbacks = engine.Callbacks{
		Token: func(q *engine.Request, at time.Duration) {
			if metered {
				p.meter.Token(q, at)
			}
			q.Owner.(*flight).token(q, at)
		},
		Done: func(q *engine.Request, at time.Duration) {
			if metered {
				p.meter.Done(q, at, "length")
			}
			q.Owner.(*flight).ended(at)
		},
		Step: func(s engine.Step) {
			if metered {
				p.meter.Step(s)
			}
			if r.out.Step != nil && r.err == nil {
				r.err = r.out.Step(i, r.stats.StartUnixNS, s)
			}
		},
	}
	var err error
	p.engine, err = engine.NewScheduler(eo)
	r.replicas = append(r.replicas, p)
	return err
}

// arrivals submits all requests, time running along.
func (r *run) arrivals(ctx context.Context) error {
	for n := 0; r.err == nil; n++ {
		if n%1024 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		due, ok, err := r.feed.peek(r.now)
		if err != nil {
			return err
		}
		if r.feed.follows() { // the next arrival may come of an end before it
			if at, busy := r.nextEvent(); busy && (!ok || at < due) {
				r.advance(at)
				continue
			}
		}
		if !ok {
			break
		}
		a, due := r.feed.pop(), max(due, r.now) // a turn that was read too late is sent now
		if n == 0 {
			r.stats.StartUnixNS = a.Exchange.ArrivalUnixNS - int64(a.At)
		}
		r.advance(due - 1)
		r.submit(a, due)
	}
	r.stats.Unordered, r.stats.Unsent = r.feed.unordered, r.feed.unsent
	return r.err
}

// nextEvent is the time of the replicas' next event; false where all are idle.
func (r *run) nextEvent() (next time.Duration, busy bool) {
	for _, p := range r.replicas {
		if at, ok := p.engine.Next(); ok && (!busy || at < next) {
			next, busy = at, true
		}
	}
	return next, busy
}

// drain runs until every request has ended.
func (r *run) drain(ctx context.Context) error {
	for n := 0; r.err == nil; n++ {
		next, busy := r.nextEvent()
		if !busy {
			break
		}
		r.advance(next)
		if n%4096 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
	}
	r.sample(r.now, true)
	return r.write()
}

// advance moves all replicas to a time, samples being taken on the way.
func (r *run) advance(to time.Duration) {
	for r.o.Sample > 0 && r.tick <= to {
		for _, p := range r.replicas {
			p.engine.Advance(r.tick)
		}
		r.sample(r.tick, false)
		r.tick += r.o.Sample
	}
	for _, p := range r.replicas {
		p.engine.Advance(to)
	}
	r.now = max(r.now, to)
	if r.err == nil {
		r.err = r.write()
	}
}

// sample reads the replicas' metrics; histograms only at the end.
func (r *run) sample(at time.Duration, whole bool) {
	if r.out.Server == nil || r.o.Sample == 0 || r.err != nil {
		return
	}
	r.samples = r.samples[:0]
	ns := r.stats.StartUnixNS + int64(at)
	for _, p := range r.replicas {
		r.samples = append(r.samples, formats.ServerSample{UnixNS: ns, Target: p.name, Series: "up", Value: 1})
		p.meter.Samples(p.engine.Counters(), whole, func(series, labels string, value float64) {
			r.samples = append(r.samples, formats.ServerSample{UnixNS: ns, Target: p.name, Series: series, Labels: labels, Value: value})
		})
	}
	r.err = r.out.Server(r.samples)
}

// submit sends a request to a replica, or ends it at once.
func (r *run) submit(a schedule.Arrival, at time.Duration) {
	x := a.Exchange
	f := &flight{run: r, at: at, id: schedule.IDOf(a)}
	f.row = requested(x)
	f.row.ArrivalIndex, f.row.Loop = formats.Of(r.index), formats.Of(a.Loop)
	if r.index++; a.Warmup {
		f.row.Phase = formats.PhaseWarmup
	}
	f.row.ArrivalUnixNS = r.stats.StartUnixNS + int64(at)
	r.flights = append(r.flights, f)
	lengths, reason := outputs(x)
	if reason != "" {
		f.drop(reason)
		return
	}
	input := int(x.InputTokens.V)
	longest := 0
	for _, n := range lengths {
		longest = max(longest, n)
	}
	limit := min(r.o.Profile.MaxModelLen, r.o.Profile.Pages*r.o.Profile.PageSize)
	if input+longest > limit {
		f.refuse()
		return
	}
	pages := r.translate.pages(x)
	p := r.replicas[r.route(pages)]
	p.sent++
	f.row.ServerID = p.name
	f.aborts = x.EndReason == formats.EndClientAbort
	f.open = len(lengths)
	f.requests = make([]engine.Request, len(lengths))
	for i, n := range lengths {
		f.requests[i] = engine.Request{Arrival: at, Input: input, Output: n, Pages: pages, Owner: f}
		if err := p.engine.Submit(&f.requests[i]); err != nil && r.err == nil {
			r.err = err // cannot be: lengths were checked
		}
	}
}

// write hands over what has ended, in the order of arrivals.
func (r *run) write() error {
	for r.head < len(r.flights) && r.flights[r.head].done {
		f := r.flights[r.head]
		r.flights[r.head] = nil
		r.head++
		r.count(f)
		if r.out.Exchange != nil {
			if err := r.out.Exchange(f.row); err != nil {
				return err
			}
		}
	}
	if r.head > 1024 && r.head*2 > len(r.flights) {
		n := copy(r.flights, r.flights[r.head:])
		clear(r.flights[n:])
		r.flights, r.head = r.flights[:n], 0
	}
	return nil
}

func (r *run) count(f *flight) {
	c := &r.stats.RequestCounts
	if f.row.Phase == formats.PhaseWarmup {
		c = &r.stats.Warmup
	}
	c.Scheduled++
	switch {
	case f.row.EndReason == formats.EndNotSent:
		c.Dropped++
		r.stats.DropReasons[f.row.ErrorKind]++
		return
	case f.row.ErrorKind != "":
		c.Failed++
	case f.row.EndReason == formats.EndClientAbort:
		c.Aborted++
	default:
		c.Completed++
	}
	c.Sent++
	if f.row.ErrorKind == "" && f.row.Phase != formats.PhaseWarmup {
		r.stats.InputTokens += f.row.InputTokens.V
		r.stats.CachedTokens += f.row.CachedTokens.V
		r.stats.OutputTokens += f.row.OutputTokens.V
	}
}
