package engine

import (
	"errors"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/shadowtape/shadowtape/internal/kv"
)

const ms = time.Millisecond

// log is everything an engine said.
type log struct {
	tokens map[*Request][]time.Duration
	done   map[*Request]time.Duration
	steps  []Step
}

func (l *log) callbacks() Callbacks {
	l.tokens, l.done = map[*Request][]time.Duration{}, map[*Request]time.Duration{}
	return Callbacks{
		Token: func(r *Request, at time.Duration) { l.tokens[r] = append(l.tokens[r], at) },
		Done:  func(r *Request, at time.Duration) { l.done[r] = at },
		Step:  func(s Step) { l.steps = append(l.steps, s) },
	}
}

func plain() Options {
	return Options{
		Coefficients: Coefficients{Fixed: 0.010, PerPrefill: 0.000_1, PerDecode: 0.001, PerContext: 0.000_01},
		Pages:        1000, PageSize: 16, MaxSeqs: 8, TokenBudget: 100,
	}
}

func scheduler(t *testing.T, o Options) (*Scheduler, *log) {
	t.Helper()
	l := &log{}
	o.Callbacks = l.callbacks()
	s, err := NewScheduler(o)
	if err != nil {
		t.Fatal(err)
	}
	return s, l
}

func submit(t *testing.T, s interface{ Submit(*Request) error }, rs ...*Request) {
	t.Helper()
	for _, r := range rs {
		if err := s.Submit(r); err != nil {
			t.Fatal(err)
		}
	}
}

func TestOneRequest(t *testing.T) {
	s, l := scheduler(t, plain())
	r := &Request{Arrival: 5 * ms, Input: 250, Output: 3}
	submit(t, s, r)
	s.Advance(time.Hour)
	// Chunks of 100, 100, 50 tokens, each with what was computed before as context, then two decode steps with contexts 250 and 251.
	want := []time.Duration{
		5*ms + (10+10+0)*ms + (10+10+1)*ms + (10+5+2)*ms,
	}
	want = append(want, want[0]+10*ms+1*ms+2500*time.Microsecond)
	want = append(want, want[1]+10*ms+1*ms+2510*time.Microsecond)
	if !reflect.DeepEqual(l.tokens[r], want) || l.done[r] != want[2] {
		t.Errorf("tokens at %v, done at %v; want %v", l.tokens[r], l.done[r], want)
	}
	if c := s.Counters(); c.Prompt != 250 || c.Generated != 3 || c.Steps != 5 || c.Pages != 0 || c.Running != 0 {
		t.Errorf("counters %+v", c)
	}
}

func TestDecodeAndPrefillShareAStep(t *testing.T) {
	s, l := scheduler(t, plain())
	a := &Request{Input: 10, Output: 10}
	b := &Request{Arrival: 1 * ms, Input: 150, Output: 1}
	submit(t, s, a, b)
	s.Advance(time.Hour)
	want := []Step{
		{Prefill: 10, Running: 1, Pages: 1},
		{Decode: 1, Prefill: 99, Context: 10, Running: 2, Pages: 1 + 7},       // the budget of 100 leaves 99 for the prompt
		{Decode: 1, Prefill: 51, Context: 11 + 99, Running: 2, Pages: 1 + 10}, // the rest of it
		{Decode: 1, Context: 12, Running: 1, Pages: 1},
	}
	for i, w := range want {
		got := l.steps[i]
		got.Start, got.End = 0, 0
		if got != w {
			t.Errorf("step %d: %+v, want %+v", i, got, w)
		}
	}
	if at := l.tokens[b][0]; at != l.steps[2].End {
		t.Errorf("the long prompt's token came at %v, its last chunk ended at %v", at, l.steps[2].End)
	}
}

func TestPrefixIsComputedOnce(t *testing.T) {
	s, l := scheduler(t, plain())
	hashes := []uint64{11, 12, 13, 14}
	a := &Request{Input: 64, Output: 1, Pages: hashes}
	b := &Request{Arrival: time.Second, Input: 64, Output: 1, Pages: hashes}               // fully cached: one page is computed again for its last token
	c := &Request{Arrival: 2 * time.Second, Input: 100, Output: 1, Pages: hashes}          // continues it
	d := &Request{Arrival: 3 * time.Second, Input: 100, Output: 1, Pages: []uint64{1, 12}} // another root
	submit(t, s, a, b, c, d)
	s.Advance(time.Hour)
	for i, want := range []int{64, 16, 36, 100} {
		if l.steps[i].Prefill != want {
			t.Errorf("request %d computed %d tokens, want %d", i, l.steps[i].Prefill, want)
		}
	}
	if a.Cached != 0 || b.Cached != 48 || c.Cached != 64 || d.Cached != 0 {
		t.Errorf("cached %d %d %d %d", a.Cached, b.Cached, c.Cached, d.Cached)
	}
	if n := s.Counters(); n.PrefixQueries != 64+64+100+100 || n.PrefixHits != 48+64 || n.PromptCached != 48+64 {
		t.Errorf("counters %+v", n)
	}
	if err := s.ResetPrefixCache(); err != nil {
		t.Error(err)
	}
}

func TestPreemptionTakesTheLatest(t *testing.T) {
	o := plain()
	o.Pages, o.PageSize = 4, 10
	s, l := scheduler(t, o)
	a := &Request{Input: 15, Output: 20} // grows from 2 to 4 pages
	b := &Request{Input: 15, Output: 10}
	submit(t, s, a, b)
	s.Advance(time.Hour)
	if a.Preempted != 0 || b.Preempted != 1 || s.Counters().Preemptions != 1 {
		t.Errorf("preempted %d %d, counted %d", a.Preempted, b.Preempted, s.Counters().Preemptions)
	}
	if len(l.tokens[a]) != 20 || len(l.tokens[b]) != 10 {
		t.Errorf("tokens %d %d", len(l.tokens[a]), len(l.tokens[b]))
	}
	if l.done[b] < l.done[a] {
		t.Error("the preempted request overtook")
	}
	recomputed := 0
	for _, st := range l.steps {
		recomputed += st.Prefill
	}
	if recomputed != 15+15+15+6 { // b had 6 tokens when a needed its third page
		t.Errorf("prefill tokens %d", recomputed)
	}
}

func TestRefusals(t *testing.T) {
	s, _ := scheduler(t, plain())
	if err := s.Submit(&Request{Input: 16000, Output: 1}); !errors.Is(err, ErrTooLong) {
		t.Errorf("too long: %v", err)
	}
	if err := s.Submit(&Request{Output: 1}); err == nil {
		t.Error("an empty prompt was taken")
	}
	r := &Request{Input: 1}
	submit(t, s, r)
	if err := s.Submit(r); err == nil {
		t.Error("a request was taken twice")
	}
	if err := s.Submit(&Request{Input: 16000}); err != nil {
		t.Errorf("a request that just fits: %v", err)
	}
	s.Advance(time.Minute)
	if _, err := NewScheduler(Options{}); err == nil {
		t.Error("empty options made an engine")
	}
}

func TestAbortFreesPages(t *testing.T) {
	s, l := scheduler(t, plain())
	a := &Request{Input: 50, Output: 1000}
	b := &Request{Input: 50, Output: 3}
	w := &Request{Arrival: time.Hour, Input: 5, Output: 1}
	submit(t, s, a, b, w)
	s.Advance(30 * ms)
	s.Abort(a)
	s.Abort(w)
	s.Abort(w)
	s.Advance(2 * time.Hour)
	if len(l.tokens[a]) > 2 || len(l.tokens[b]) != 3 || len(l.tokens[w]) != 0 {
		t.Errorf("tokens %d %d %d", len(l.tokens[a]), len(l.tokens[b]), len(l.tokens[w]))
	}
	if _, ended := l.done[a]; ended {
		t.Error("an aborted request was called done")
	}
	if c := s.Counters(); c.Pages != 0 || c.Running != 0 || c.Waiting != 0 {
		t.Errorf("left over: %+v", c)
	}
}

func TestFixedTimes(t *testing.T) {
	l := &log{}
	f, err := NewFixed(FixedOptions{TTFT: 50 * ms, ITL: 10 * ms, Pages: 100, PageSize: 16, Callbacks: l.callbacks()})
	if err != nil {
		t.Fatal(err)
	}
	a := &Request{Input: 40, Output: 3, Pages: []uint64{1, 2}}
	b := &Request{Arrival: 7 * ms, Input: 40, Output: 2, Pages: []uint64{1, 2}}
	e := &Request{Arrival: 8 * ms, Input: 4}
	submit(t, f, a, b, e)
	f.Advance(time.Second)
	if want := []time.Duration{50 * ms, 60 * ms, 70 * ms}; !reflect.DeepEqual(l.tokens[a], want) {
		t.Errorf("a: %v", l.tokens[a])
	}
	if want := []time.Duration{57 * ms, 67 * ms}; !reflect.DeepEqual(l.tokens[b], want) {
		t.Errorf("b: %v", l.tokens[b])
	}
	if l.done[e] != 58*ms || b.Cached != 32 || f.Counters().Pages != 0 {
		t.Errorf("embedding done at %v, b found %d cached, %d pages held", l.done[e], b.Cached, f.Counters().Pages)
	}
}

// TestFIFOQueue compares a server of one sequence and one token with the recursion of a single-server queue.
func TestFIFOQueue(t *testing.T) {
	o := plain()
	o.MaxSeqs, o.TokenBudget = 1, 1<<20
	s, l := scheduler(t, o)
	rng := rand.New(rand.NewPCG(7, 7))
	var at, free time.Duration
	for range 2000 {
		at += time.Duration(rng.ExpFloat64() * float64(40*ms))
		r := &Request{Arrival: at, Input: 1 + rng.IntN(500), Output: 1}
		s.Advance(at - 1)
		submit(t, s, r)
		free = max(free, at) + 10*ms + time.Duration(r.Input)*100*time.Microsecond
		defer func(want time.Duration) {
			if l.done[r] != want {
				t.Errorf("done at %v, want %v", l.done[r], want)
			}
		}(free)
	}
	s.Advance(1 << 62)
}

// random makes a load that queues, shares and preempts.
func random(seed uint64, n int) []*Request {
	rng := rand.New(rand.NewPCG(seed, 1))
	var at time.Duration
	rs := make([]*Request, n)
	for i := range rs {
		at += time.Duration(rng.ExpFloat64() * float64(20*ms))
		r := &Request{Arrival: at, Input: 1 + rng.IntN(300), Output: rng.IntN(60)}
		h := uint64(1 + rng.IntN(4))
		for range r.Input / 16 {
			r.Pages = append(r.Pages, h)
			h = h*31 + uint64(rng.IntN(2))
		}
		rs[i] = r
	}
	return rs
}

func tight() Options {
	o := plain()
	o.Coefficients = Coefficients{Fixed: 0.004, PerPrefill: 0.000_01, PerDecode: 0.000_1, PerContext: 1e-8}
	o.Pages, o.MaxSeqs = 60, 6
	o.Noise, o.Seed = Noise{Launch: 0.05, Step: 0.05}, 3
	return o
}

func TestConservation(t *testing.T) {
	for seed := range uint64(20) {
		s, l := scheduler(t, tight())
		rs := random(seed, 400)
		submit(t, s, rs...)
		s.Advance(1 << 62)
		var prompt, cached, generated, computed int64
		for _, r := range rs {
			if len(l.tokens[r]) != r.Output || r.Generated != r.Output {
				t.Fatalf("seed %d: %d tokens of %d", seed, len(l.tokens[r]), r.Output)
			}
			last := r.Arrival
			for _, at := range l.tokens[r] {
				if at <= last {
					t.Fatalf("seed %d: token at %v after %v", seed, at, last)
				}
				last = at
			}
			prompt += int64(r.Input)
			cached += int64(r.Cached)
			generated += int64(r.Output)
		}
		for i, st := range l.steps {
			computed += int64(st.Prefill)
			if st.Prefill+st.Decode > 100 || st.Running > 6 || st.Pages > 60 || (i > 0 && st.Start < l.steps[i-1].End) {
				t.Fatalf("seed %d: step %d breaks a limit: %+v", seed, i, st)
			}
		}
		c := s.Counters()
		if c.Prompt != prompt || c.PromptCached != cached || c.Generated != generated || c.Pages != 0 || c.Waiting != 0 || c.Running != 0 {
			t.Errorf("seed %d: counters %+v, want prompt %d cached %d generated %d", seed, c, prompt, cached, generated)
		}
		if c.Preemptions == 0 && computed != prompt-cached {
			t.Errorf("seed %d: computed %d of %d-%d", seed, computed, prompt, cached)
		}
		if cached == 0 {
			t.Errorf("seed %d shared nothing: it tested nothing", seed)
		}
		if err := s.ResetPrefixCache(); errors.Is(err, kv.ErrHeld) {
			t.Errorf("seed %d: pages leaked", seed)
		}
	}
}

// TestLeapsAndStepsAgree serves one load in a single leap, event by event, and in small ticks with arrivals submitted as they come.
func TestLeapsAndStepsAgree(t *testing.T) {
	serve := func(drive func(s *Scheduler, rs []*Request)) [][]time.Duration {
		s, l := scheduler(t, tight())
		rs := random(5, 300)
		drive(s, rs)
		out := make([][]time.Duration, len(rs))
		for i, r := range rs {
			out[i] = l.tokens[r]
		}
		return out
	}
	leap := serve(func(s *Scheduler, rs []*Request) {
		submit(t, s, rs...)
		s.Advance(1 << 62)
	})
	events := serve(func(s *Scheduler, rs []*Request) {
		for _, r := range rs {
			s.Advance(r.Arrival - 1)
			submit(t, s, r)
		}
		for at, ok := s.Next(); ok; at, ok = s.Next() {
			s.Advance(at)
		}
	})
	late := serve(func(s *Scheduler, rs []*Request) { // as a driver does that wakes late
		for now := time.Duration(0); ; now += 3 * ms {
			for len(rs) > 0 && rs[0].Arrival <= now {
				submit(t, s, rs[0])
				rs = rs[1:]
			}
			s.Advance(now)
			if _, busy := s.Next(); !busy && len(rs) == 0 {
				return
			}
		}
	})
	if !reflect.DeepEqual(leap, events) {
		t.Error("event by event differs from one leap")
	}
	if !reflect.DeepEqual(leap, late) {
		t.Error("late ticks differ from one leap")
	}
}

func TestSlowdown(t *testing.T) {
	c := Coefficients{Fixed: 1, PerPrefill: 10, PerDecode: 100, PerContext: 1000}
	for _, test := range []struct {
		name                     string
		s                        Slowdown
		prefill, decode, context int
		want                     float64
	}{
		{"none", Slowdown{}, 1, 1, 1, 1111},
		{"prefill step", Slowdown{Prefill: 2, Decode: 3}, 1, 0, 0, 22},
		{"mixed step", Slowdown{Prefill: 2, Decode: 3}, 1, 1, 1, 3 + 20 + 300 + 3000},
	} {
		if got := c.seconds(test.s, test.prefill, test.decode, test.context); got != test.want {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
}

func TestNoiseIsSeeded(t *testing.T) {
	n := Noise{Launch: 0.02, Step: 0.01}
	a, b, c := newJitter(n, 1), newJitter(n, 1), newJitter(n, 2)
	if a.launch != b.launch || a.launch == c.launch || a.duration(1) != b.duration(1) {
		t.Error("the same seed must give the same noise, another seed another")
	}
	var sum, squares float64
	const draws = 20000
	for range draws {
		f := a.factor(0.1)
		sum += f
		squares += (f - 1) * (f - 1)
	}
	if mean := sum / draws; mean < 0.997 || mean > 1.003 {
		t.Errorf("mean factor %v", mean)
	}
	if v := squares / draws; v < 0.0095 || v > 0.0106 { // exp(0.01)-1
		t.Errorf("variance %v", v)
	}
}

func TestProfiles(t *testing.T) {
	for _, p := range Profiles() {
		if err := p.Validate(); err != nil {
			t.Errorf("%s: %v", p.Name, err)
		}
		if p.Source == "" || p.Model == "" {
			t.Errorf("%s has no source or model", p.Name)
		}
	}
	// By hand: 16.06 GB over 80 % of 3.35 TB/s and a millisecond; 16.06 GFLOP over half of 989 TFLOP/s.
	p, err := FindProfile("llama-3.1-8b-h100")
	if err != nil {
		t.Fatal(err)
	}
	if got := p.Coefficients.StepTime(0, 0, 0); got.Round(time.Microsecond) != 6993*time.Microsecond {
		t.Errorf("fixed %v", got)
	}
	if got := p.Coefficients.PerPrefill; got < 32.4e-6 || got > 32.6e-6 {
		t.Errorf("per prompt token %v", got)
	}
	if _, err := FindProfile("none"); err == nil {
		t.Error("an unknown profile was found")
	}
}
