package analyzer

import (
	"sort"
	"strings"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/stats"
)

// tally accumulates the measured exchanges of a run, or of a part of it, in one pass. Tallies merge in any order.
type tally struct {
	limits    []Limit
	samples   []stats.Sample // by metric
	omitted   []int64
	undefined []int64 // sent exchanges without a sample
	sources   []map[formats.TokenSource]int64
	window    Window
	errors    map[string]int64
	dropped   map[string]int64
	warmup    int64
	rows      int64
	any       bool
	time      timeline
	yields    []func(value, weight float64)
	bin       *bin // of the row being added
}

func newTally(o Options) *tally {
	t := &tally{
		limits: o.SLO, samples: make([]stats.Sample, len(metrics)), omitted: make([]int64, len(metrics)), undefined: make([]int64, len(metrics)),
		sources: make([]map[formats.TokenSource]int64, len(metrics)), errors: map[string]int64{}, dropped: map[string]int64{},
	}
	for i := range t.samples {
		t.samples[i].Limit = o.ExactSamples
	}
	t.window.Limits = len(o.SLO)
	t.time.metrics = len(metrics)
	t.yields = make([]func(value, weight float64), len(metrics))
	for i := range metrics {
		t.yields[i] = func(v, weight float64) {
			t.samples[i].Add(v, uint32(weight))
			t.bin.sum[i] += v * weight
			t.bin.n[i] += weight
		}
	}
	return t
}

// add takes one row, of which it keeps nothing.
func (t *tally) add(x *formats.Exchange) {
	t.rows++
	if x.Phase == formats.PhaseWarmup {
		t.warmup++
		return
	}
	w := &t.window
	end := x.ArrivalUnixNS + max(x.EndNS.Or(0), x.LastTokenNS.Or(0), 0)
	if !t.any {
		w.FromUnixNS, w.ToUnixNS, t.any = x.ArrivalUnixNS, end, true
	}
	w.FromUnixNS, w.ToUnixNS = min(w.FromUnixNS, x.ArrivalUnixNS), max(w.ToUnixNS, end)
	o := outcomeOf(x)
	w.Requests.add(o)
	t.bin = t.time.at(x.ArrivalUnixNS)
	counts := &t.bin.counts
	counts[countScheduled]++
	if o == outcomeDropped {
		counts[countDropped]++
		t.dropped[orUnknown(x.ErrorKind)]++
		return
	}
	counts[countSent]++
	switch o {
	case outcomeAborted:
		counts[countAborted]++
	case outcomeFailed:
		counts[countFailed]++
		kind := x.ErrorKind
		if kind == "" {
			kind = string(x.EndReason)
		}
		t.errors[kind]++
	}
	if x.InputTokens.Valid {
		w.InputTokens += x.InputTokens.V
		w.InputKnown++
		counts[countInput] += float64(x.InputTokens.V)
	}
	if x.OutputTokens.Valid {
		w.OutputTokens += x.OutputTokens.V
		w.OutputKnown++
		counts[countOutput] += float64(x.OutputTokens.V)
	}
	if len(t.limits) > 0 && o == outcomeCompleted && meets(x, t.limits) {
		w.Met++
		counts[countMet]++
	}
	for i := range metrics {
		t.sample(i, x)
	}
}

func (t *tally) sample(i int, x *formats.Exchange) {
	m := &metrics[i]
	s := &t.samples[i]
	before := s.N()
	m.Samples(x, t.yields[i])
	if s.N() == before {
		t.undefined[i]++
	} else if m.Tokens {
		if t.sources[i] == nil {
			t.sources[i] = map[formats.TokenSource]int64{}
		}
		t.sources[i][x.OutputTokensSource]++
	}
	if m.Omitted != nil {
		t.omitted[i] += m.Omitted(x)
	}
}

// merge adds what o has seen; o is spent.
func (t *tally) merge(o *tally) {
	t.rows += o.rows
	t.warmup += o.warmup
	for i := range t.samples {
		t.samples[i].Merge(&o.samples[i])
		t.omitted[i] += o.omitted[i]
		t.undefined[i] += o.undefined[i]
		for k, n := range o.sources[i] {
			if t.sources[i] == nil {
				t.sources[i] = map[formats.TokenSource]int64{}
			}
			t.sources[i][k] += n
		}
	}
	for k, n := range o.errors {
		t.errors[k] += n
	}
	for k, n := range o.dropped {
		t.dropped[k] += n
	}
	t.time.merge(&o.time)
	if !o.any {
		return
	}
	w, v := &t.window, &o.window
	if !t.any {
		w.FromUnixNS, w.ToUnixNS, t.any = v.FromUnixNS, v.ToUnixNS, true
	}
	w.FromUnixNS, w.ToUnixNS = min(w.FromUnixNS, v.FromUnixNS), max(w.ToUnixNS, v.ToUnixNS)
	w.Requests.merge(v.Requests)
	w.InputTokens += v.InputTokens
	w.InputKnown += v.InputKnown
	w.OutputTokens += v.OutputTokens
	w.OutputKnown += v.OutputKnown
	w.Met += v.Met
}

// source says where a metric's figures came from.
func (t *tally) source(i int) string {
	if !metrics[i].Tokens {
		return "measured"
	}
	if len(t.sources[i]) == 0 {
		return ""
	}
	names := make([]string, 0, len(t.sources[i]))
	for k := range t.sources[i] {
		names = append(names, orUnknown(string(k)))
	}
	sort.Strings(names)
	return strings.Join(names, "+")
}

func orUnknown(s string) string {
	if s == "" {
		return "unknown"
	}
	return s
}
