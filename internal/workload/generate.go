package workload

import (
	"container/heap"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/stats"
)

// Options say how much of a model is wanted.
type Options struct {
	Seed        uint64
	Seconds     float64 // of arrivals; 0: the model's own, or until Requests
	Requests    int64   // 0: as many as come
	Rate        float64 // mean, per second, the bursts scaled with it; 0: the model's
	KeepQuantum bool    // put arrivals at multiples of the model's quantum, as its source has them
}

// maxRate is one request a nanosecond: above it time does not move, and a duration has no end.
const maxRate = 1e9

// minRate is one request in a fortnight.
const minRate = 1e-6

// maxSeconds are three decades.
const maxSeconds = 1e9

// lastSecond is the end of times that nanoseconds can count.
const lastSecond = 9e9

// Validate reports what cannot be generated.
func (o Options) Validate() error {
	var errs []error
	if !(o.Seconds >= 0 && o.Seconds <= maxSeconds) {
		errs = append(errs, fmt.Errorf("%v seconds: must be between 0 and %v", o.Seconds, maxSeconds))
	}
	if o.Requests < 0 {
		errs = append(errs, fmt.Errorf("%d requests: must not be negative", o.Requests))
	}
	if !(o.Rate == 0 || o.Rate >= minRate && o.Rate <= maxRate) {
		errs = append(errs, fmt.Errorf("rate %v: must be between %v and %v a second", o.Rate, minRate, maxRate))
	}
	return errors.Join(errs...)
}

// Generate yields the requests of a model in the order of their arrivals, the first counted from time 0. The same model, options and
// seed give the same rows on every machine. The memory does not grow with their number. An exchange is the receiver's to keep.
func (m *Model) Generate(o Options) (iter.Seq2[*formats.Exchange, error], error) {
	if err := errors.Join(m.Validate(), o.Validate()); err != nil {
		return nil, fmt.Errorf("generate: %w", err)
	}
	if m.Seconds == 0 && o.Seconds == 0 && o.Requests == 0 {
		return nil, errors.New("generate: an endless model needs a duration or a number of requests")
	}
	if o.Seconds == 0 && o.Requests == 0 {
		o.Seconds = m.Seconds
	}
	factor := 1.0
	if o.Rate > 0 {
		if m.Rate() <= 0 {
			return nil, errors.New("generate: the model has no requests, and so no rate to scale")
		}
		factor = o.Rate / m.Rate()
	}
	return func(yield func(*formats.Exchange, error) bool) {
		g := newGenerator(m, o, factor)
		for n := int64(0); o.Requests == 0 || n < o.Requests; n++ {
			x := g.next()
			if x == nil {
				return
			}
			x.ExchangeID = n + 1
			if !yield(x, nil) {
				return
			}
		}
	}, nil
}

// generator merges the streams of all clients.
type generator struct {
	m       *Model
	o       Options
	streams streams
	kinds   kindPicker
	threads *threader
	talks   *sessions
	src     source
	slab    []formats.Exchange // to hand out
}

// slabRows is how many exchanges are allocated together: one of them that is kept keeps them all.
const slabRows = 32

// fresh is an empty exchange.
func (g *generator) fresh() *formats.Exchange {
	if len(g.slab) == 0 {
		g.slab = make([]formats.Exchange, slabRows)
	}
	x := &g.slab[0]
	g.slab = g.slab[1:]
	return x
}

func newGenerator(m *Model, o Options, factor float64) *generator {
	root := source{stats.Mix(o.Seed)}
	g := &generator{m: m, o: o, src: root.fork(1), kinds: newKindPicker(m.Mix)}
	for i := range m.Clients {
		s := newStream(m, &m.Clients[i], root.fork(uint64(i)+1000), factor, o)
		if s.advance() {
			g.streams = append(g.streams, s)
		}
	}
	heap.Init(&g.streams)
	if m.Threads != nil {
		g.threads = newThreader(m.Threads, root.fork(2))
	}
	if m.Sessions != nil {
		g.talks = newSessions(m.Sessions, root.fork(3), o)
	}
	return g
}

// next is the next request, or nil at the end.
func (g *generator) next() *formats.Exchange {
	if g.talks != nil {
		return g.nextTurn()
	}
	if len(g.streams) == 0 {
		return nil
	}
	s := g.streams[0]
	x := g.fresh()
	var todo *plan
	if s.pool.beginners+s.pool.followers > 0 {
		p := g.threads.plan(s.at, s.tenant, &s.pool)
		s.planned(x, p)
		todo = &p
	} else {
		s.request(x)
	}
	if s.advance() {
		heap.Fix(&g.streams, 0)
	} else {
		heap.Pop(&g.streams)
	}
	g.finish(x)
	switch {
	case todo != nil:
		g.threads.follow(x, *todo)
	case g.threads != nil:
		g.threads.weave(x)
	}
	return x
}

// nextTurn is the next turn of a conversation, or the first of a new one, whichever is earlier.
func (g *generator) nextTurn() *formats.Exchange {
	for {
		var x *formats.Exchange
		if len(g.streams) > 0 && (len(g.talks.due) == 0 || g.streams[0].at <= g.talks.due[0].at) {
			s := g.streams[0]
			x = s.request(g.fresh())
			if s.advance() {
				heap.Fix(&g.streams, 0)
			} else {
				heap.Pop(&g.streams)
			}
			g.kinds.apply(x, &g.src)
			g.talks.open(x)
		} else if len(g.talks.due) > 0 {
			x = g.talks.resume()
		} else {
			return nil
		}
		if x == nil {
			continue // past the end
		}
		g.finish(x)
		return x
	}
}

// finish gives a request its kind and says whether its client will go away.
func (g *generator) finish(x *formats.Exchange) {
	if g.talks == nil { // the turns of a conversation are of one kind
		g.kinds.apply(x, &g.src)
	}
	if g.m.Aborted > 0 && g.src.uniform() < g.m.Aborted {
		x.EndReason = formats.EndClientAbort
	}
}

// streams is a heap of clients by the time of their next request.
type streams []*stream

func (h streams) Len() int { return len(h) }
func (h streams) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].order < h[j].order
}
func (h streams) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *streams) Push(x any)   { *h = append(*h, x.(*stream)) }
func (h *streams) Pop() any {
	s := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return s
}

// stream is one client's requests.
type stream struct {
	m      *Model
	client *Client
	tenant formats.Null[formats.Hash]
	o      Options
	order  int
	factor float64
	src    source
	end    int64 // nanoseconds; the first time that is too late
	at     int64 // the next request's, nanoseconds
	window *Window

	clock *clock // of an endless window
	cycle int64
	index int     // of the window
	times []int64 // left in the window
	ranks []int   // of their lengths, or
	pool  pool    // those of a model that says how prompts follow one another
	count int     // of all requests in the window
}

func newStream(m *Model, c *Client, src source, factor float64, o Options) *stream {
	s := &stream{m: m, client: c, o: o, factor: factor, src: src, end: math.MaxInt64, index: -1}
	s.tenant, _ = parseHash(c.Tenant) // validated
	if o.Seconds > 0 {
		s.end = int64(math.Round(o.Seconds * 1e9))
	}
	if m.Seconds == 0 {
		a := c.Windows[0].Arrival
		a.Rate *= factor
		s.clock, s.window = newClock(a, s.src.fork(7)), &c.Windows[0]
	}
	return s
}

// advance finds the next request's time; false at the end.
func (s *stream) advance() bool {
	if s.clock != nil {
		g := s.clock.gap()
		if g > 1e9 {
			return false
		}
		s.at += int64(math.Round(float64(g * 1e9)))
		return s.at < s.end
	}
	for len(s.times) == 0 {
		if s.index++; s.index == len(s.client.Windows) {
			if s.cycle++; s.empty() {
				return false
			}
			s.index = 0
		}
		if !s.fill() {
			return false
		}
	}
	s.at = s.times[0]
	s.times = s.times[1:]
	return s.at < s.end
}

// empty reports whether no window of the client has a request: a cycle of nothing would never end.
func (s *stream) empty() bool {
	return !slices.ContainsFunc(s.client.Windows, func(w Window) bool { return w.Count > 0 })
}

// fill places the requests of the current window; false where it begins after the end.
func (s *stream) fill() bool {
	w := &s.client.Windows[s.index]
	from := float64(float64(s.cycle)*s.m.Seconds) + w.Start
	if from >= lastSecond {
		return false
	}
	start := int64(math.Round(from * 1e9))
	if start >= s.end {
		return false
	}
	want := float64(w.Count * s.factor)
	n := int(want)
	if s.src.uniform() < want-float64(n) {
		n++
	}
	s.window, s.count = w, n
	s.times = s.times[:0]
	for _, u := range place(w.Arrival, n, w.Seconds, &s.src) {
		t := start + int64(float64(u*w.Seconds)*1e9)
		if s.o.KeepQuantum && s.m.Quantum > 0 {
			q := int64(math.Round(s.m.Quantum * 1e9))
			t -= t % q
		}
		s.times = append(s.times, t)
	}
	s.ranks = s.ranks[:0]
	if t := s.m.Threads; t != nil && t.Growth != nil && w.Lengths.InputLaw == nil {
		s.pool.refill(n, w.Lengths.Inputs, t.continues, &s.src)
		return true
	}
	for i := range n {
		s.ranks = append(s.ranks, i)
		j := s.src.below(i + 1)
		s.ranks[i], s.ranks[j] = s.ranks[j], s.ranks[i]
	}
	return true
}

// request makes an empty exchange the request at s.at.
func (s *stream) request(x *formats.Exchange) *formats.Exchange {
	u := 0.0
	if s.clock != nil {
		u = s.src.uniform()
	} else {
		// Each request takes another stratum of the window's lengths, so that the window's work is kept.
		k := len(s.ranks) - 1
		u = (float64(s.ranks[k]) + s.src.uniform()) / float64(s.count)
		s.ranks = s.ranks[:k]
	}
	input, output := s.window.Lengths.draw(u, &s.src)
	s.put(x, input, output)
	return x
}

// planned makes an empty exchange the request at s.at, whose lengths were planned.
func (s *stream) planned(x *formats.Exchange, p plan) {
	input, output := s.window.Lengths.drawPart(p.part, &s.src)
	if p.input > 0 {
		input = whole(p.input, &s.src)
	}
	s.put(x, input, output)
}

func (s *stream) put(x *formats.Exchange, input, output int64) {
	x.Phase, x.ArrivalUnixNS, x.TenantID = formats.PhaseRecord, s.at, s.tenant
	x.InputTokens, x.InputTokensSource, x.OutputTokens, x.OutputTokensSource = formats.Of(input), formats.TokensDrawn, formats.Of(output), formats.TokensDrawn
	x.Drawn = formats.Of(formats.DrawnArrival | formats.DrawnInput | formats.DrawnOutput)
}

// draw returns a pair of lengths; u in [0, 1) chooses the input where there is a table.
func (l Lengths) draw(u float64, s *source) (input, output int64) {
	if l.InputLaw != nil {
		return l.InputLaw.draw(s), l.OutputLaw.draw(s)
	}
	return l.drawPart(min(int(float64(u*float64(len(l.Inputs)))), len(l.Inputs)-1), s)
}

// drawPart draws from a part of the table.
func (l Lengths) drawPart(i int, s *source) (input, output int64) {
	outputs := l.Outputs[i]
	return whole(l.Inputs[i], s), whole(outputs[s.below(len(outputs))], s)
}

// whole rounds up or down at random so that the mean is kept; at least 1.
func whole(v float64, s *source) int64 {
	return max(1, int64(math.Floor(v+s.uniform())))
}

// place returns n ascending times in [0, 1) that a process has, given that it has n of them in a window of so many seconds.
func place(a Arrival, n int, seconds float64, s *source) []float64 {
	if n == 0 {
		return nil
	}
	if a.Family == MMPP {
		return placeModulated(a, n, seconds, s)
	}
	// Gaps of a renewal process, the one after the last arrival among them, scaled to the window. For a Poisson process this is exact.
	t := make([]float64, n)
	c := newClock(Arrival{Family: a.Family, Rate: 1, CV: a.CV}, s.fork(s.next()))
	if a.Family != Gamma && a.Family != Weibull && a.Family != Constant {
		c.a.Family = Poisson
	}
	sum := 0.0
	for i := range t {
		sum += c.gap()
		t[i] = sum
	}
	sum += c.gap()
	// Where in the first gap the window begins is as likely as where in the last gap it ends.
	shift := float64(s.uniform() * t[0])
	for i := range t {
		t[i] = min(max((t[i]-shift)/sum, 0), 0x1.fffffffffffffp-1)
	}
	return t
}

// placeModulated places arrivals with the rate of a random path through the states.
func placeModulated(a Arrival, n int, seconds float64, s *source) []float64 {
	off, on := a.Rates()
	type piece struct{ from, mass, rate float64 } // mass: expected arrivals before from
	var path []piece
	mass, t, isOn := 0.0, 0.0, s.uniform() < a.On/(a.On+a.Off)
	for t < seconds {
		rate, stay := off, a.Off
		if isOn {
			rate, stay = on, a.On
		}
		path = append(path, piece{t, mass, rate})
		stay = min(float64(s.exponential()*stay), seconds-t)
		mass += float64(rate * stay)
		t += stay
		isOn = !isOn
	}
	out := make([]float64, n)
	for i := range out {
		u := float64(s.uniform() * mass)
		k, _ := slices.BinarySearchFunc(path, u, func(p piece, u float64) int {
			if p.mass <= u {
				return -1
			}
			return 1
		})
		p := path[max(k-1, 0)]
		if mass == 0 || p.rate == 0 { // never on: anywhere
			out[i] = s.uniform()
			continue
		}
		out[i] = min((p.from+(u-p.mass)/p.rate)/seconds, 0x1.fffffffffffffp-1)
	}
	slices.Sort(out)
	return out
}
