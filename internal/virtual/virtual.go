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
	"github.com/shadowtape/shadowtape/internal/sim"
)

// Options describe the servers and the time.
type Options struct {
	Profile     engine.Profile
	Replicas    int    // 0 is 1
	Route       Route  // "" is round-robin
	Seed        uint64 // of the noise; each replica draws its own
	Slowdown    engine.Slowdown
	Noise       engine.Noise
	Speed       float64        // arrivals so many times as fast; 0 is 1
	Duration    time.Duration  // of arrivals, after Speed; 0 is all
	MaxRequests int64          // 0 is all
	Sample      time.Duration  // between samples of the servers' metrics; 0 is none
	Header      formats.Header // the trace's: what its prefix blocks are
}

// Validate reports every option that cannot be used.
func (o Options) Validate() error {
	errs := []error{o.Profile.Validate(), o.Route.validate()}
	if o.Replicas < 0 || o.Replicas > 10_000 {
		errs = append(errs, fmt.Errorf("replicas %d: between 1 and 10,000", o.Replicas))
	}
	if o.Speed < 0 || o.Duration < 0 || o.MaxRequests < 0 || o.Sample < 0 {
		errs = append(errs, errors.New("speed, duration, number of requests and sampling interval must not be negative"))
	}
	return errors.Join(errs...)
}

// Output takes what a simulation produces. Each function may be nil; none may keep what it is given. An error ends the simulation.
type Output struct {
	Exchange func(*formats.Exchange) error      // in the order of arrivals
	Server   func([]formats.ServerSample) error // in the order of time
	// Step takes a replica's steps; their times are since zero, the first arrival in nanoseconds since 1970.
	Step func(replica int, zero int64, s engine.Step) error
}

// Stats account for a simulation: Scheduled == Sent + Dropped and Sent == Completed + Failed + Aborted.
type Stats struct {
	formats.RequestCounts
	DropReasons  map[string]int64 // of Dropped
	Unordered    int64            // arrivals before their predecessor, moved to its time
	StartUnixNS  int64            // the first arrival
	EndUnixNS    int64            // the last event
	Steps        int64
	Preemptions  int64
	InputTokens  int64 // of all sent that were served
	CachedTokens int64 // of these found in prefix caches
	OutputTokens int64
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
	translate translator
	flights   []*flight // in the order of arrivals
	head      int       // the first that has not been written
	err       error     // of an output
	samples   []formats.ServerSample
	ones      []int32
}

// Run serves a trace's requests, in their order, and returns when the last has ended. Their recorded outcome is what they ask for: the
// recorded number of tokens, and an end there where the client had gone. A request of unknown length is dropped and counted.
func Run(ctx context.Context, requests iter.Seq2[*formats.Exchange, error], o Options, out Output) (Stats, error) {
	if err := o.Validate(); err != nil {
		return Stats{}, fmt.Errorf("simulate: %w", err)
	}
	o.Replicas = max(o.Replicas, 1)
	if o.Speed == 0 {
		o.Speed = 1
	}
	r := &run{o: o, out: out, translate: newTranslator(o.Header, o.Profile.PageSize)}
	r.stats.DropReasons = map[string]int64{}
	for i := range o.Replicas {
		if err := r.add(i); err != nil {
			return Stats{}, fmt.Errorf("simulate: %w", err)
		}
	}
	if err := r.arrivals(ctx, requests); err != nil {
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
func (r *run) arrivals(ctx context.Context, requests iter.Seq2[*formats.Exchange, error]) error {
	var last time.Duration
	first := true
	for x, err := range requests {
		if err != nil {
			return err
		}
		if first {
			r.stats.StartUnixNS, first = x.ArrivalUnixNS, false
		}
		at := time.Duration(float64(x.ArrivalUnixNS-r.stats.StartUnixNS) / r.o.Speed)
		if r.o.Speed == 1 {
			at = time.Duration(x.ArrivalUnixNS - r.stats.StartUnixNS)
		}
		if at < last {
			at = last
			r.stats.Unordered++
		}
		last = at
		if r.o.Duration > 0 && at >= r.o.Duration || r.o.MaxRequests > 0 && r.stats.Scheduled >= r.o.MaxRequests {
			break
		}
		r.advance(at - 1)
		r.submit(x, at)
		if r.err != nil {
			return r.err
		}
		if r.stats.Scheduled%1024 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}

// drain runs until every request has ended.
func (r *run) drain(ctx context.Context) error {
	for n := 0; r.err == nil; n++ {
		next, busy := time.Duration(0), false
		for _, p := range r.replicas {
			if at, ok := p.engine.Next(); ok && (!busy || at < next) {
				next, busy = at, true
			}
		}
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
func (r *run) submit(x *formats.Exchange, at time.Duration) {
	index := r.stats.Scheduled
	r.stats.Scheduled++
	f := &flight{run: r, at: at}
	f.row = requested(x)
	f.row.ArrivalIndex = formats.Of(index)
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
	switch {
	case f.row.EndReason == formats.EndNotSent:
		r.stats.Dropped++
		r.stats.DropReasons[f.row.ErrorKind]++
		return
	case f.row.ErrorKind != "":
		r.stats.Failed++
	case f.row.EndReason == formats.EndClientAbort:
		r.stats.Aborted++
	default:
		r.stats.Completed++
	}
	r.stats.Sent++
	if f.row.ErrorKind == "" {
		r.stats.InputTokens += f.row.InputTokens.V
		r.stats.CachedTokens += f.row.CachedTokens.V
		r.stats.OutputTokens += f.row.OutputTokens.V
	}
}
