package analyzer

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/figure"
)

// Traffic tells different traffic from a different server, for two recordings that have no request in common. Requests are matched
// coarsely on what they met (coarsened exact matching: Iacus, King and Porro, 2012): prompt length, tokens left after the cache, requests in
// flight. What is left of their differences inside a match is taken off by a regression. The change of a metric then falls into parts
// that multiply to the whole.
type Traffic struct {
	Base      TrafficSide `json:"base"`
	Candidate TrafficSide `json:"candidate"`
	Width     float64     `json:"width"` // of a match, natural logarithm: 0.25 is a factor of 1.28
	Metrics   []Split     `json:"metrics"`
}

// TrafficSide is what one recording's clients asked for and found.
type TrafficSide struct {
	Requests     int  `json:"requests"`
	RequestRate  Null `json:"requests_per_s"`
	InputRate    Null `json:"input_tokens_per_s"`
	OutputRate   Null `json:"output_tokens_per_s"`
	InFlight     Null `json:"in_flight"`     // mean at arrivals, on the server that answered
	CachedShare  Null `json:"cached_share"`  // of input tokens; null where the server does not say
	MatchedShare Null `json:"matched_share"` // of requests that have a like on the other side
}

// Split is a metric's change and its parts.
type Split struct {
	Name      string  `json:"name"`
	Unit      string  `json:"unit"`
	Base      Null    `json:"base"` // geometric means of all requests
	Candidate Null    `json:"candidate"`
	ChangePct Null    `json:"change_pct"`
	Interval  [2]Null `json:"interval_pct"`
	Parts     []Part  `json:"parts"`
	// TrafficShare is how much of the change, on a logarithmic scale, is not the server's; null where there may be no change, or where
	// traffic and server work against each other.
	TrafficShare Null `json:"traffic_share"`
}

// Part is one cause's share of a change: (1 + part) multiplied over all parts is 1 + change.
type Part struct {
	Name      string  `json:"name"` // unmatched, lengths, cache, load, server
	ChangePct Null    `json:"change_pct"`
	Interval  [2]Null `json:"interval_pct"`
}

// The parts of a change, in the order in which requests are made equal.
const (
	partUnmatched = "unmatched" // requests without a like on the other side
	partLengths   = "lengths"   // prompts, for tpot answers too, of other lengths
	partCache     = "cache"     // more or fewer of their tokens found in the cache
	partLoad      = "load"      // more or fewer requests in flight, and prompts to prefill, when they came or, for tpot, while they ran
	partServer    = "server"    // what is left where all of that is equal
)

// The least share of requests that must be matched for the server's part to be judged, and how many requests of a side are looked at.
const (
	leastMatched = 0.5
	mostMatched  = 200_000
)

// widths are those of matches that are tried, the narrowest first; the first that matches wellMatched of both sides is taken.
var widths = []float64{0.125, 0.25, 0.5, 1}

const wellMatched = 0.8

// met is a request and what it met.
type met struct {
	server         string
	at, first, end int64   // Unix ns; first and end are at where they are unknown
	input, cached  float64 // tokens; −1 unknown
	output         float64
	flight, queued float64 // requests in flight, and their prompt tokens that await a first token, when it came
	beside, mixed  float64 // while its tokens came: requests in flight on average, and prompt tokens prefilled a second
	values         [2]float64
	block          int32
}

// trafficMetrics are the metrics that are split.
var trafficMetrics = [2]string{"ttft", "tpot"}

// compareTraffic compares two recordings.
func compareTraffic(d Diff, a, b *Run, sa, sb Summary, o CompareOptions) (Diff, error) {
	x, err := loadMet(a)
	if err != nil {
		return d, err
	}
	y, err := loadMet(b)
	if err != nil {
		return d, err
	}
	d.Method = "two recordings: requests matched on prompt length, cached tokens and load in flight, block bootstrap over time"
	if len(x.all) == 0 || len(y.all) == 0 {
		return d, fmt.Errorf("compare %s with %s: %w: one of them has no request that was answered and timed", a.Label, b.Label, ErrIncomparable)
	}
	cache := x.cached && y.cached
	if !cache {
		d.Warnings = append(d.Warnings, "cached tokens are not known of both: what a cache gives counts as the server's")
	}
	t := &Traffic{Base: x.side(a), Candidate: y.side(b)}
	d.Traffic, d.Blocks = t, min(x.blocks, y.blocks)
	for i, name := range trafficMetrics {
		s := newSplit(x, y, i, cache)
		if s == nil {
			continue
		}
		metric, _ := MetricNamed(name)
		split, server := s.parts(metric, o)
		t.Metrics = append(t.Metrics, split)
		whole := change(&metric, name, "geometric mean of all requests", split.Base.V, split.Candidate.V, split.ChangePct.V/100, math.NaN(), math.NaN(), 0, s.n[0]+s.n[1])
		whole.Verdict = Same
		if share := min(s.matched[0], s.matched[1]); share < leastMatched {
			server.Verdict = Same
			d.Warnings = append(d.Warnings, fmt.Sprintf("%s: only %.0f %% of the requests have a like on the other side: what the server did cannot be told", name, share*100))
		}
		d.Metrics = append(d.Metrics, whole, server)
		if i == 0 {
			t.Width, t.Base.MatchedShare, t.Candidate.MatchedShare, d.Pairs = s.width, figure.Known(s.matched[0]), figure.Known(s.matched[1]), s.pairs
		}
	}
	if len(t.Metrics) == 0 {
		return d, fmt.Errorf("compare %s with %s: %w: they have no metric in common", a.Label, b.Label, ErrIncomparable)
	}
	d.Metrics = append(d.Metrics, unpaired(sa, sb)...)
	d.Warnings = append(d.Warnings, "two recordings inform and never gate: they are of two times, and load and cache are partly the server's own doing")
	return d, nil
}

// side says what was asked for.
func (r *metRun) side(run *Run) TrafficSide {
	s := TrafficSide{Requests: r.sent}
	if sec := float64(r.span) / 1e9; sec > 0 {
		k := 1 / sec / r.fraction
		s.RequestRate, s.InputRate, s.OutputRate = figure.Known(float64(r.sent)*k), figure.Known(r.inputs*k), figure.Known(r.outputs*k)
	}
	flight := 0.0
	for i := range r.all {
		flight += r.all[i].flight
	}
	s.InFlight = figure.Known(flight / float64(len(r.all)))
	if r.cached && r.inputs > 0 {
		s.CachedShare = figure.Known(r.hits / r.inputs)
	}
	return s
}

// metRun is a recording as a comparison of traffic sees it.
type metRun struct {
	all                   []met // answered whole and timed, in the order of their arrival
	blocks                int
	sent                  int
	span                  int64
	inputs, outputs, hits float64
	cached                bool    // the server says what it found in its cache
	fraction              float64 // of the traffic that was recorded
}

// loadMet reads a recording and sees what each request met.
func loadMet(r *Run) (*metRun, error) {
	out := &metRun{fraction: cmp.Or(r.Header.SamplingFraction, 1)}
	columns := append(slices.Clone(gapColumns), metricColumns...)
	var all []met
	var answered []bool // completed, of known length and with a time to the first token
	for x, err := range r.Exchanges(append(columns, formats.ColServerID, formats.ColCachedTokens)...) {
		if err != nil {
			return nil, r.readError(err)
		}
		oc := outcomeOf(x)
		if x.Phase == formats.PhaseWarmup || oc == outcomeDropped {
			continue
		}
		m := met{server: x.ServerID, at: x.ArrivalUnixNS, input: float64(x.InputTokens.Or(-1)), output: float64(x.OutputTokens.Or(-1)), cached: float64(x.CachedTokens.Or(-1))}
		m.end = m.at + x.EndNS.Or(x.LastTokenNS.Or(0))
		m.first = m.at + x.FirstTokenNS.Or(m.end-m.at)
		for i, name := range trafficMetrics {
			m.values[i] = math.NaN()
			t, _ := MetricNamed(name)
			var sum, n float64
			t.Samples(x, func(v, w float64) { sum, n = sum+v*w, n+w })
			if n > 0 && sum > 0 {
				m.values[i] = math.Log(sum / n)
			}
		}
		answered = append(answered, oc == outcomeCompleted && m.input >= 0 && !math.IsNaN(m.values[0]))
		all = append(all, m)
		out.sent++
		out.inputs, out.outputs = out.inputs+max(m.input, 0), out.outputs+max(m.output, 0)
		if m.cached >= 0 {
			out.hits += m.cached
			out.cached = true
		}
	}
	if len(all) == 0 {
		return out, nil
	}
	see(all, out.fraction)
	first, last := all[0].at, all[0].at
	for i := range all {
		first, last = min(first, all[i].at), max(last, all[i].at)
	}
	out.span = last - first
	out.blocks = blocksFor(len(all), out.span)
	every := 1 + len(all)/mostMatched
	for i := range all {
		if !answered[i] || i%every != 0 {
			continue
		}
		m := all[i]
		if out.span > 0 {
			m.block = min(int32(float64(m.at-first)/float64(out.span+1)*float64(out.blocks)), int32(out.blocks-1))
		}
		out.all = append(out.all, m)
	}
	return out, nil
}

// see fills what was in flight on its server when each request came, itself left out.
func see(all []met, fraction float64) {
	type event struct {
		at    int64
		kind  int8 // at one time ends come first, then first tokens, then arrivals
		which int32
	}
	events := make([]event, 0, 3*len(all))
	for i := range all {
		events = append(events, event{all[i].at, 2, int32(i)}, event{all[i].first, 1, int32(i)}, event{all[i].end, 0, int32(i)})
	}
	slices.SortFunc(events, func(a, b event) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.kind, b.kind), cmp.Compare(a.which, b.which))
	})
	type load struct {
		at                        int64
		flight, queued, rate      float64 // rate: prompt tokens a nanosecond, each prompt spread over its time to the first token
		flightTime, prefillTokens float64 // integrals of flight and rate
	}
	servers := map[string]*load{}
	for _, e := range events {
		m := &all[e.which]
		s := servers[m.server]
		if s == nil {
			s = &load{at: e.at}
			servers[m.server] = s
		}
		dt := float64(e.at - s.at)
		s.at, s.flightTime, s.prefillTokens = e.at, s.flightTime+s.flight*dt, s.prefillTokens+s.rate*dt
		computed := max(m.input, 0) - max(m.cached, 0)
		switch {
		case e.kind == 2:
			m.flight, m.queued = s.flight/fraction, s.queued/fraction
			if m.end > m.at {
				s.flight++
			}
			if m.first > m.at {
				s.queued += computed
				s.rate += computed / float64(m.first-m.at)
			}
		case e.kind == 1 && m.first > m.at:
			s.queued -= computed
			s.rate -= computed / float64(m.first-m.at)
			m.beside, m.mixed = s.flightTime, s.prefillTokens
		case e.kind == 0 && m.end > m.at:
			s.flight--
			if d := float64(m.end - m.first); d > 0 {
				m.beside, m.mixed = (s.flightTime-m.beside)/d/fraction, 1e9*(s.prefillTokens-m.mixed)/d/fraction
			} else {
				m.beside, m.mixed = m.flight, 0
			}
		}
	}
}
