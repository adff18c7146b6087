// Package occupancy says how a load occupied its server, from its exchanges alone: the pages of the KV cache over time, and how prefill and
// decode met. From outside, waiting and prefill cannot be told apart, so both come as a band.
package occupancy

import (
	"cmp"
	"math"
	"slices"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/stats"
)

// Null is a figure that may be undefined.
type Null = formats.Null[float64]

// request is what the models know of one exchange that reached a server. Times are Unix ns.
type request struct {
	sent, late, first, last, end int64 // late: the latest start of its prefill; end: when its pages went back
	input, output, cached        int64 // tokens; cached −1 is unknown
	blocks                       []int64
	marks                        []int32 // µs after first of every markTokens-th token, where the stream says it; else tokens come evenly
}

const markTokens = 16

// generated is when the n-th token came, from 1.
func (q *request) generated(n int64) int64 {
	if q.output <= 1 || n <= 1 {
		return q.first
	}
	if k := int((n - 1) / markTokens); k < len(q.marks) {
		a := int64(q.marks[k]) * 1000
		b := q.last - q.first
		span := min(markTokens, q.output-1-int64(k)*markTokens)
		if k+1 < len(q.marks) {
			b, span = int64(q.marks[k+1])*1000, markTokens
		}
		if span <= 0 {
			return q.first + a
		}
		return q.first + a + (b-a)*min((n-1)%markTokens, span)/span
	}
	return q.first + int64(float64(q.last-q.first)*float64(n-1)/float64(q.output-1))
}

// mark keeps the times of every markTokens-th token of a stream with one choice.
func (q *request) mark(x *formats.Exchange) {
	if len(x.EventGapUS) < 2 || len(x.EventChoice) > 0 {
		return
	}
	known := len(x.EventTokens) == len(x.EventGapUS)
	at, tokens := int64(0), int64(0)
	for i, gap := range x.EventGapUS {
		at += int64(gap)
		if at > math.MaxInt32 {
			q.marks = nil
			return
		}
		k := int64(1)
		if known {
			k = int64(x.EventTokens[i])
		}
		for tokens += k; int64(len(q.marks))*markTokens < tokens; {
			q.marks = append(q.marks, int32(at))
		}
	}
	if tokens < q.output { // the events do not account for all tokens
		q.marks = nil
	}
}

// Load is the traffic of a run as its server saw it, between two moments. Make one with New, Add every exchange that was sent, then
// Settle; the figures come after that. About 100 bytes an exchange, 8 for each prefix block and 4 for each 16 tokens of a stream are held.
// Not safe for concurrent use; several loads of one span can be filled at once and merged.
type Load struct {
	requests  []request // by time sent
	header    formats.Header
	from, to  int64
	stretches stretches
	prefill   prefillSpeed
	left      int64 // exchanges that say too little to be modelled
	known     bool  // prefix blocks
}

// New makes a load of the time between two moments (Unix ns) out of a trace with this header, of which the models need the unit and size of
// its prefix blocks. every is how much of the time is modelled: 0 or 1 is all, k is one of k intervals, drawn.
func New(h formats.Header, from, to int64, every int) *Load {
	return &Load{header: h, from: from, to: to, stretches: newStretches(every)}
}

// Columns are what Add reads.
var Columns = []formats.Column{
	formats.ColArrival, formats.ColPhase, formats.ColSent, formats.ColFirstToken, formats.ColLastToken, formats.ColEnd, formats.ColInputTokens,
	formats.ColOutputTokens, formats.ColCachedTokens, formats.ColErrorKind, formats.ColEndReason, formats.ColPrefixBlocks,
	formats.ColEventGap, formats.ColEventTokens, formats.ColEventChoice,
}

// mostTokens is the longest request that pages are counted for, one by one; a server or a file that says more is not believed.
const mostTokens = 1 << 26

// Add takes an exchange that was sent, of which it keeps no memory; warm-up is among them, for it held pages too. completed and failed say
// what became of it: neither is an answer that was broken off.
func (l *Load) Add(x *formats.Exchange, completed, failed bool) {
	if x.ArrivalUnixNS > l.to {
		return
	}
	end := x.LastTokenNS
	if !end.Valid || !completed {
		end = x.EndNS
		if !end.Valid {
			end = x.LastTokenNS
		}
	}
	if !end.Valid || !x.InputTokens.Valid || x.InputTokens.V < 0 || max(x.InputTokens.V, x.OutputTokens.V) > mostTokens || failed && !x.FirstTokenNS.Valid {
		l.left++
		return
	}
	at := x.ArrivalUnixNS
	if at+end.V < l.from || !l.stretches.meet(l.share(at), l.share(at+end.V)) {
		return
	}
	q := request{sent: at + max(x.SentNS.Or(0), 0), end: at + end.V, input: x.InputTokens.V, output: max(x.OutputTokens.Or(1), 1), cached: x.CachedTokens.Or(-1)}
	if x.FirstTokenNS.Valid {
		q.first = at + x.FirstTokenNS.V
		q.last = at + x.LastTokenNS.Or(x.FirstTokenNS.V)
		q.mark(x)
	}
	q.end = max(q.end, q.sent)
	if x.PrefixBlocks != nil {
		l.known = true
		q.blocks = slices.Clone(x.PrefixBlocks)
	}
	l.requests = append(l.requests, q)
}

// share is where in the span a moment lies, from 0 to 1.
func (l *Load) share(unixNS int64) float64 {
	return min(max(float64(unixNS-l.from)/max(float64(l.to-l.from), 1), 0), 1)
}

// Merge takes the exchanges of another load of the same span; o is spent.
func (l *Load) Merge(o *Load) {
	l.requests = append(l.requests, o.requests...)
	l.left += o.left
	l.known = l.known || o.known
	o.requests = nil
}

// Settle puts the exchanges in order and finds the speed of prefill. It is called once, after the last Add.
func (l *Load) Settle() {
	slices.SortStableFunc(l.requests, func(a, b request) int { return cmp.Or(cmp.Compare(a.sent, b.sent), cmp.Compare(a.end, b.end)) })
	l.estimate()
}

// Requests is how many exchanges are modelled.
func (l *Load) Requests() int64 { return int64(len(l.requests)) }

// Modelled is how much of the time is modelled, from 0 to 1.
func (l *Load) Modelled() float64 { return l.stretches.covered() }

// Streams is how many streams were in decode at a moment (Unix ns), the mean of its cell; NaN where that time is not modelled. It makes a
// table of all moments, so it is called once.
func (l *Load) Streams() func(unixNS float64) float64 {
	g := l.grid()
	for i := range l.requests {
		g.add(l.requests[i].first, l.requests[i].last, 1)
	}
	cells := g.cells()
	return func(unixNS float64) float64 { return cells[min(max(int((unixNS-g.from)/g.width), 0), len(cells)-1)] }
}

// Rates are the requests in flight and the tokens of prefill and output a second over time, each of n equal parts of the span; NaN where
// that time is not modelled.
func (l *Load) Rates(n int) (inFlight, prefill, output []float64) {
	a, b, c := l.grid(), l.grid(), l.grid()
	for i := range l.requests {
		q := &l.requests[i]
		a.add(q.sent, q.end, 1)
		b.spread(q.late, q.first, float64(q.computed()))
		c.spread(q.first, q.last, float64(q.output))
	}
	return shrink(a.cells(), n), shrink(b.cells(), n), shrink(c.cells(), n)
}

// prefillSpeed is the time that a prefill takes where nothing is in its way: fixed + tokens × perToken, in ns.
type prefillSpeed struct{ fixed, perToken float64 }

func (p prefillSpeed) of(tokens int64) int64 { return int64(p.fixed + p.perToken*float64(tokens)) }

// estimate finds the prefill speed from the fastest requests of each length and places the starts of prefill and decode.
func (l *Load) estimate() {
	var tpot []float64
	for i := range l.requests {
		if q := &l.requests[i]; q.first > 0 && q.output > 1 && q.last > q.first {
			tpot = append(tpot, float64(q.last-q.first)/float64(q.output-1))
		}
	}
	slices.Sort(tpot)
	l.prefill = l.fastest()
	if burst, mean := l.burst(), l.meanInput(); burst > 0 && float64(l.prefill.of(mean)) > 1.2*burst*float64(mean) {
		// Every request waited, so none shows the speed. The server did no less than in its best burst, in which decodes took part of the steps.
		l.prefill = prefillSpeed{0, burst / 2}
	}
	for i := range l.requests {
		q := &l.requests[i]
		computed := q.computed()
		if q.first == 0 { // not streamed: a typical decode before its end
			decode := int64(0)
			if len(tpot) > 0 {
				decode = int64(stats.Quantile(tpot, 0.5) * float64(q.output-1))
			}
			q.last = q.end
			q.first = max(q.end-decode, q.sent+min(l.prefill.of(computed), q.end-q.sent))
		}
		q.first = max(q.first, q.sent)
		q.last = max(q.last, q.first)
		q.end = max(q.end, q.last)
		q.late = max(q.sent, q.first-l.prefill.of(computed))
	}
}

// meanInput is the mean of the computed input.
func (l *Load) meanInput() int64 {
	var sum int64
	for i := range l.requests {
		sum += l.requests[i].computed()
	}
	return sum / max(int64(len(l.requests)), 1)
}

// burst is the shortest time per token of input, in ns, in which many prompts in a row were brought to their first tokens; 0 where there
// were too few. Where every request waits, it bounds the prefill speed that times to first token no longer show.
func (l *Load) burst() float64 {
	many := float64(1 << 16) // tokens: several steps of a server and several prompts, so that what a step brings at once does not look like speed
	ends := make([]point, 0, len(l.requests))
	for i := range l.requests {
		if q := &l.requests[i]; q.first > 0 {
			ends = append(ends, point{float64(q.first - l.from), float64(q.computed())})
			many = max(many, 10*float64(q.computed()))
		}
	}
	slices.SortFunc(ends, func(a, b point) int { return cmp.Compare(a.x, b.x) })
	best, sum, i := 0.0, 0.0, 0
	for j := 1; j < len(ends); j++ { // the prompts after the i-th, up to the j-th, were computed between their first tokens
		for sum += ends[j].y; sum-ends[i+1].y >= many; i++ {
			sum -= ends[i+1].y
		}
		if per := (ends[j].x - ends[i].x) / sum; sum >= many && per > 0 && (best == 0 || per < best) {
			best = per
		}
	}
	return best
}

// computed is the input that was not known to come from a cache.
func (q *request) computed() int64 {
	if q.cached > 0 {
		return max(q.input-q.cached, 1)
	}
	return max(q.input, 1)
}

// fastest fits a line below the times to first token: requests are put into classes of length, the fastest twentieth of each class
// stands for it, and the line is the lower hull's edge that spans the mean length. A request that met an idle server took that long.
func (l *Load) fastest() prefillSpeed {
	classes := map[int][]point{}
	for i := range l.requests {
		q := &l.requests[i]
		if q.first <= q.sent {
			continue
		}
		n := q.computed()
		class := int(math.Log2(float64(n)) * 4)
		classes[class] = append(classes[class], point{float64(n), float64(q.first - q.sent)})
	}
	var low []point
	var mean, total float64
	for _, ps := range classes {
		slices.SortFunc(ps, func(a, b point) int { return cmp.Compare(a.y/(a.x+100), b.y/(b.x+100)) })
		p := ps[len(ps)/20]
		low = append(low, p)
		mean += p.x * float64(len(ps))
		total += float64(len(ps))
	}
	if len(low) == 0 {
		return prefillSpeed{}
	}
	slices.SortFunc(low, func(a, b point) int { return cmp.Compare(a.x, b.x) })
	mean /= total
	best := prefillSpeed{0, low[len(low)-1].y / low[len(low)-1].x}
	for i := range low { // the edge of the lower hull over the mean length: through two points, none below it
		for j := i + 1; j < len(low); j++ {
			slope := (low[j].y - low[i].y) / (low[j].x - low[i].x)
			fixed := low[i].y - slope*low[i].x
			if slope < 0 || fixed < 0 || low[i].x > mean || low[j].x < mean {
				continue
			}
			if !slices.ContainsFunc(low, func(p point) bool { return p.y < (fixed+slope*p.x)*(1-1e-9) }) {
				return prefillSpeed{fixed, slope}
			}
		}
	}
	for _, p := range low {
		best.perToken = min(best.perToken, p.y/p.x)
	}
	return best
}

type point struct{ x, y float64 }
