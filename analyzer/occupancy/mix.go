package occupancy

import (
	"cmp"
	"slices"
	"sync"

	"github.com/shadowtape/shadowtape/internal/figure"
)

// Mix is how prefill and decode met on the server, as the exchanges imply it. A request is in prefill from the start of its prefill to its
// first token, and in decode from there to its last.
type Mix struct {
	Early              Shares  `json:"early"`                // prefill began when the request was sent: waiting counts as prefill
	Late               Shares  `json:"late"`                 // prefill began as late as its length and the observed speed allow
	DecodeRequests     Null    `json:"decode_requests"`      // in decode, mean over time
	PrefillTokensPerS  Null    `json:"prefill_tokens_per_s"` // without those known to come from a cache
	DecodeTokensPerS   Null    `json:"decode_tokens_per_s"`
	PrefillFixedMS     float64 `json:"prefill_fixed_ms"`     // of the fastest prefills: fixed + tokens × per token
	PrefillPerTokenUS  float64 `json:"prefill_per_token_us"` // the speed that the late start is made from
	ServerPrefillPerS  Null    `json:"server_prefill_tokens_per_s"`
	ServerDecodePerS   Null    `json:"server_decode_tokens_per_s"`
	ServerTokensPerRun Null    `json:"server_tokens_per_iteration"`

	early, late timeShares
}

// Shares are shares of time, which sum to 1, and how often one gave way to another.
type Shares struct {
	Idle            Null `json:"idle"`
	PrefillOnly     Null `json:"prefill_only"`
	DecodeOnly      Null `json:"decode_only"`
	Mixed           Null `json:"mixed"`
	SwitchesPerS    Null `json:"switches_per_s"`
	PrefillRequests Null `json:"prefill_requests"` // in prefill, mean over time
}

// The states of a server.
const (
	stateIdle = iota
	statePrefill
	stateDecode
	stateMixed
	states
)

// edge is a request entering or leaving a phase.
type edge struct {
	at      int64
	prefill int32
	decode  int32
}

// timeShares are the times spent in each state.
type timeShares struct {
	ns       [states]int64
	switches int64
	prefill  float64 // request-ns
	decode   float64
	charts   [states]*grid
}

// sameInstant joins what a server does in one step but a client sees spread: events closer than this are one.
const sameInstant = int64(200e3) // ns

// mix walks the edges in order of time.
func (l *Load) mix(late bool) timeShares {
	edges := make([]edge, 0, 3*len(l.requests))
	for i := range l.requests {
		q := &l.requests[i]
		start := q.sent
		if late {
			start = q.late
		}
		edges = append(edges, edge{start, 1, 0}, edge{q.first, -1, 1}, edge{q.last, 0, -1})
	}
	if l.stretches.before != nil { // no state reaches over the border of what is modelled
		for i := range stretchesOfSpan {
			edges = append(edges, edge{at: l.from + int64(float64(l.to-l.from)*float64(i)/stretchesOfSpan)})
		}
	}
	slices.SortFunc(edges, func(a, b edge) int { return cmp.Compare(a.at, b.at) })
	var t timeShares
	for s := range t.charts {
		t.charts[s] = l.grid()
	}
	var prefill, decode int32
	state, at := stateIdle, l.from
	before := -1
	for i := 0; i <= len(edges); {
		next := l.to
		if i < len(edges) {
			next = edges[i].at
		}
		a, b := max(at, l.from), min(next, l.to)
		switch {
		case b <= a:
		case !l.stretches.has(min(int(l.share(a+(b-a)/2)*stretchesOfSpan), stretchesOfSpan-1)):
			before = -1
		default:
			t.ns[state] += b - a
			t.prefill += float64(prefill) * float64(b-a)
			t.decode += float64(decode) * float64(b-a)
			t.charts[state].add(a, b, 1)
			if before >= 0 && before != state && b-a > sameInstant {
				t.switches++
			}
			if b-a > sameInstant {
				before = state
			}
		}
		if i == len(edges) {
			break
		}
		at = next
		for i < len(edges) && edges[i].at == at {
			prefill += edges[i].prefill
			decode += edges[i].decode
			i++
		}
		state = stateIdle
		if prefill > 0 {
			state += statePrefill
		}
		if decode > 0 {
			state += stateDecode
		}
	}
	return t
}

func (t *timeShares) shares() Shares {
	total := float64(t.ns[0] + t.ns[1] + t.ns[2] + t.ns[3])
	of := func(s int) Null { return figure.Known(float64(t.ns[s]) / total) }
	return Shares{of(stateIdle), of(statePrefill), of(stateDecode), of(stateMixed), figure.Known(float64(t.switches) / (total / 1e9)), figure.Known(t.prefill / total)}
}

// Mix makes the figures of the mix but for the server's.
func (l *Load) Mix() Mix {
	var m Mix
	var both sync.WaitGroup
	both.Go(func() { m.early = l.mix(false) })
	both.Go(func() { m.late = l.mix(true) })
	both.Wait()
	if l.to <= l.from || len(l.requests) == 0 {
		return m
	}
	m.Early, m.Late = m.early.shares(), m.late.shares()
	total := float64(l.to-l.from) * l.stretches.covered()
	m.DecodeRequests = figure.Known(m.early.decode / total)
	computed := int64(0)
	for i := range l.requests {
		if q := &l.requests[i]; q.first >= l.from && q.first <= l.to && l.stretches.meet(l.share(q.first), l.share(q.first)) {
			computed += q.computed()
		}
	}
	m.PrefillTokensPerS = figure.Known(float64(computed) / (total / 1e9))
	m.PrefillFixedMS, m.PrefillPerTokenUS = l.prefill.fixed/1e6, l.prefill.perToken/1e3
	return m
}

// States is the share of each of n equal parts of the span that was idle, in prefill only, in decode only, and mixed, where waiting counts
// as prefill; NaN where that time is not modelled. Nil for a mix that no Load made.
func (m *Mix) States(n int) (shares [4][]float64) {
	if m.early.charts[0] == nil {
		return shares
	}
	for i := range shares {
		shares[i] = shrink(m.early.charts[i].cells(), n)
	}
	return shares
}

// Prefilling is the share of each of Cells equal parts of the span in which a prefill ran, by the late end of the band; NaN where that time
// is not modelled. Nil for a mix that no Load made.
func (m *Mix) Prefilling() []float64 {
	if m.late.charts[0] == nil {
		return nil
	}
	cells := m.late.charts[statePrefill].cells()
	for i, v := range m.late.charts[stateMixed].cells() {
		cells[i] += v
	}
	return cells
}
