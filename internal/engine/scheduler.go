package engine

import (
	"errors"
	"fmt"
	"time"

	"github.com/shadowtape/shadowtape/internal/kv"
)

// Options describe a Scheduler. Validate says what is missing.
type Options struct {
	Coefficients  Coefficients
	Slowdown      Slowdown
	Noise         Noise
	Seed          uint64 // of the noise
	Pages         int    // of the cache
	PageSize      int    // tokens in a page
	MaxSeqs       int    // sequences that run at once
	TokenBudget   int    // tokens computed in one step
	NoPrefixCache bool   // nothing is shared
	Callbacks     Callbacks
}

// Validate reports every option that cannot be used.
func (o Options) Validate() error {
	errs := []error{o.Coefficients.validate(), validateNoise(o.Slowdown, o.Noise)}
	for _, v := range []struct {
		name  string
		value int
	}{{"pages", o.Pages}, {"page size", o.PageSize}, {"sequences", o.MaxSeqs}, {"token budget", o.TokenBudget}} {
		if v.value <= 0 {
			errs = append(errs, fmt.Errorf("%s %d: must be positive", v.name, v.value))
		}
	}
	return errors.Join(errs...)
}

// Scheduler serves requests in steps. Not safe for concurrent use.
type Scheduler struct {
	o       Options
	pool    *kv.Pool
	noise   jitter
	waiting queue
	running []*Request // in the order of their admission
	count   Counters
	step    Step // in flight, or the last one
	flying  bool
}

// NewScheduler returns an idle engine at time 0.
func NewScheduler(o Options) (*Scheduler, error) {
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("make engine: %w", err)
	}
	pool, err := kv.New(o.Pages)
	if err != nil {
		return nil, fmt.Errorf("make engine: %w", err)
	}
	return &Scheduler{o: o, pool: pool, noise: newJitter(o.Noise, o.Seed)}, nil
}

// Submit queues a request; it joins the first step that begins at or after its arrival. ErrTooLong is returned for one that could
// never run.
func (s *Scheduler) Submit(r *Request) error {
	if err := check(r, s.o.Pages, s.o.PageSize); err != nil {
		return err
	}
	r.state = stateWaiting
	s.waiting.push(r)
	s.count.Waiting++
	return nil
}

// Abort gives a request up: a waiting one at once, a running one when the step in flight ends. No callback follows for it.
func (s *Scheduler) Abort(r *Request) {
	switch r.state {
	case stateWaiting:
		s.count.Waiting--
		r.state = stateAborted
	case stateRunning:
		r.state = stateAborted
	}
}

// Next is the time of the next event, or false where nothing is running or waiting.
func (s *Scheduler) Next() (time.Duration, bool) {
	if s.flying {
		return s.step.End, true
	}
	if r := s.waiting.front(); r != nil {
		return max(s.step.End, r.Arrival), true
	}
	return 0, false
}

// Advance performs every event that is due at or before now.
func (s *Scheduler) Advance(now time.Duration) {
	for {
		at, ok := s.Next()
		if !ok || at > now {
			return
		}
		if s.flying {
			s.finish()
		}
		if len(s.running) > 0 {
			s.begin(s.step.End)
		} else if r := s.waiting.front(); r != nil {
			if start := max(s.step.End, r.Arrival); start <= now {
				s.begin(start)
			}
		}
	}
}

// Counters returns levels and totals as of the last event.
func (s *Scheduler) Counters() Counters {
	c := s.count
	c.Running, c.Pages = len(s.running), s.pool.Held()
	return c
}

// CachedPages is how many of the leading pages a request with these hashes would find in the cache now.
func (s *Scheduler) CachedPages(hashes []uint64) int { return s.pool.Lookup(hashes) }

// ResetPrefixCache forgets cached content; it returns kv.ErrHeld while any sequence runs.
func (s *Scheduler) ResetPrefixCache() error { return s.pool.Reset() }

// begin plans the step that starts now: who computes how many tokens.
func (s *Scheduler) begin(now time.Duration) {
	st := Step{Start: now}
	budget := s.o.TokenBudget
	for i := 0; i < len(s.running); i++ {
		r := s.running[i]
		n := min(r.Input+r.Generated-r.computed, budget)
		r.inStep = n
		if n == 0 {
			continue
		}
		for !s.pool.Grow(&r.held, divUp(r.computed+n, s.o.PageSize)) {
			last := s.running[len(s.running)-1]
			s.running = s.running[:len(s.running)-1]
			s.preempt(last)
			st.Preempted++
			if last == r {
				break
			}
		}
		if r.state != stateRunning {
			break
		}
		budget -= n
		s.plan(&st, r, n)
	}
	for st.Preempted == 0 && budget > 0 && len(s.running) < s.o.MaxSeqs {
		r := s.waiting.front()
		if r == nil || r.Arrival > now {
			break
		}
		n, ok := s.admit(r, budget)
		if !ok {
			break
		}
		if r.Generated == 0 && r.Preempted == 0 {
			r.Scheduled = now
		}
		s.waiting.pop()
		s.count.Waiting--
		s.running = append(s.running, r)
		budget -= n
		s.plan(&st, r, n)
	}
	if st.Prefill+st.Decode == 0 {
		panic("engine: a step without work") // Submit lets nothing in that could not run alone
	}
	st.Running, st.Waiting, st.Pages = len(s.running), s.count.Waiting-s.waiting.after(now), s.pool.Held()
	st.End = now + s.noise.duration(s.o.Coefficients.seconds(s.o.Slowdown, st.Prefill, st.Decode, st.Context))
	s.step, s.flying = st, true
}

// admit gives a waiting request the cached pages of its prompt and pages for its first chunk, and returns the chunk's tokens; false where
// the pages do not suffice.
func (s *Scheduler) admit(r *Request, budget int) (n int, ok bool) {
	total := r.Input + r.Generated
	var hashes []uint64
	if !s.o.NoPrefixCache {
		// The last token is always computed: its output is what the next token is drawn from.
		hashes = r.Pages[:min(len(r.Pages), (total-1)/s.o.PageSize)]
		hashes = hashes[:s.pool.Lookup(hashes)]
	}
	hit := len(hashes) * s.o.PageSize
	n = min(total-hit, budget)
	if _, ok := s.pool.Hold(&r.held, hashes, divUp(hit+n, s.o.PageSize)); !ok {
		return 0, false
	}
	r.computed, r.inStep, r.state = hit, n, stateRunning
	if r.Preempted == 0 {
		r.Cached = hit
		if !s.o.NoPrefixCache {
			s.count.PrefixQueries += int64(total)
			s.count.PrefixHits += int64(hit)
		}
	}
	return n, true
}

// plan books n tokens of r, which holds pages for them, on the step.
func (s *Scheduler) plan(st *Step, r *Request, n int) {
	if n == 1 && r.Generated > 0 && r.computed >= r.Input {
		st.Decode++
	} else {
		st.Prefill += n
	}
	st.Context += r.computed
	if !s.o.NoPrefixCache {
		if full := min(len(r.Pages), (r.computed+n)/s.o.PageSize); full > 0 {
			s.pool.Name(&r.held, r.Pages[:full])
		}
	}
}

// preempt takes a running request's pages; it starts over when it is admitted again, ahead of all that wait.
func (s *Scheduler) preempt(r *Request) {
	s.pool.Release(&r.held)
	r.computed, r.inStep = 0, 0
	r.state = stateWaiting
	r.Preempted++
	s.count.Preemptions++
	s.count.Waiting++
	s.waiting.pushFront(r)
}

// finish ends the step in flight: tokens come out, ended sequences let go of their pages.
func (s *Scheduler) finish() {
	s.flying = false
	s.count.Steps++
	at := s.step.End
	kept := s.running[:0]
	for _, r := range s.running {
		if r.state == stateAborted {
			s.pool.Release(&r.held)
			r.state = stateDone
			continue
		}
		r.computed += r.inStep
		if r.inStep == 0 || r.computed < r.Input+r.Generated {
			kept = append(kept, r)
			continue
		}
		if r.Generated == 0 {
			s.count.Prompt += int64(r.Input)
			s.count.PromptCached += int64(r.Cached)
		}
		if r.Output > 0 {
			r.Generated++
			s.count.Generated++
			if r.Generated == 1 {
				r.First, r.Last = at, at
			}
			if s.o.Callbacks.Token != nil {
				s.o.Callbacks.Token(r, at)
			}
			r.Last = at
		}
		if r.Generated < r.Output {
			kept = append(kept, r)
			continue
		}
		s.pool.Release(&r.held)
		r.state = stateDone
		if s.o.Callbacks.Done != nil {
			s.o.Callbacks.Done(r, at)
		}
	}
	clear(s.running[len(kept):])
	s.running = kept
	if s.o.Callbacks.Step != nil {
		s.o.Callbacks.Step(s.step)
	}
}

// queue holds the waiting requests, first to be admitted first. Aborted ones stay until they reach the front.
type queue struct {
	items []*Request
	head  int
}

func (q *queue) push(r *Request) { q.items = append(q.items, r) }

func (q *queue) pushFront(r *Request) {
	if q.head == 0 {
		grown := make([]*Request, 64+len(q.items))
		copy(grown[64:], q.items)
		q.items, q.head = grown, 64
	}
	q.head--
	q.items[q.head] = r
}

// front is the first request that still waits, or nil.
func (q *queue) front() *Request {
	for q.head < len(q.items) {
		if r := q.items[q.head]; r.state == stateWaiting {
			return r
		}
		q.pop()
	}
	return nil
}

func (q *queue) pop() {
	q.items[q.head] = nil
	q.head++
	if q.head > 1024 && q.head*2 > len(q.items) {
		n := copy(q.items, q.items[q.head:])
		clear(q.items[n:])
		q.items, q.head = q.items[:n], 0
	}
}

// after counts the requests that wait and arrive later than t.
func (q *queue) after(t time.Duration) (n int) {
	for i := len(q.items) - 1; i >= q.head; i-- {
		if r := q.items[i]; r.state == stateWaiting {
			if r.Arrival <= t {
				break
			}
			n++
		}
	}
	return n
}
