package analyzer

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"sort"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/figure"
	"github.com/shadowtape/shadowtape/internal/stats"
)

// Null is a figure that may be undefined.
type Null = formats.Null[float64]

// Figures are one metric's numbers over a run, in its unit. A percentile below its sample floor is null, and Withheld says why.
type Figures struct {
	Unit      string            `json:"unit"`
	Better    string            `json:"better"`
	N         uint64            `json:"n"`
	Mean      Null              `json:"mean"`
	Std       Null              `json:"std"` // population; null for fewer than two samples
	P50       Null              `json:"p50"`
	P90       Null              `json:"p90"`
	P95       Null              `json:"p95"`
	P99       Null              `json:"p99"`
	P999      Null              `json:"p99_9"`
	Max       Null              `json:"max"`
	Undefined int64             `json:"undefined"`             // exchanges sent for which the metric is not defined
	Omitted   int64             `json:"omitted,omitempty"`     // samples that the definition leaves out
	Source    string            `json:"source,omitempty"`      // measured, or where the token counts came from
	Error     float64           `json:"error_bound,omitempty"` // largest relative error of a percentile; 0 is exact
	Withheld  map[string]string `json:"withheld,omitempty"`    // percentile → why it is null

	EffectiveN float64               `json:"effective_n"` // independent samples that n is worth
	Intervals  map[string][2]float64 `json:"intervals"`   // within this run: of the mean by resampling blocks of time, of percentiles by order statistics
}

// Value is one aggregate's number.
type Value struct {
	Unit   string `json:"unit"`
	Better string `json:"better"`
	Value  Null   `json:"value"`

	Interval *[2]float64 `json:"interval"` // within this run; null where there is none
}

// Summary is everything that analyze says about one run.
type Summary struct {
	Label      string             `json:"label"`
	Kind       string             `json:"kind"`
	Valid      bool               `json:"valid"`
	Invalid    []string           `json:"invalid,omitempty"` // reasons, worst first
	WindowS    float64            `json:"window_s"`
	Warmup     int64              `json:"warmup"` // exchanges left out
	Requests   Requests           `json:"requests"`
	Metrics    map[string]Figures `json:"metrics"`
	Aggregates map[string]Value   `json:"aggregates"`
	Errors     map[string]int64   `json:"errors"`
	Dropped    map[string]int64   `json:"dropped"`
	Warnings   []string           `json:"warnings"`
	Confidence float64            `json:"interval_confidence"`
	By         string             `json:"by,omitempty"`
	Groups     []Group            `json:"groups,omitempty"` // the most frequent first
	Pages      *Pages             `json:"pages,omitempty"`  // the KV cache as the exchanges imply it
	Mix        *Mix               `json:"mix,omitempty"`    // prefill and decode as the exchanges imply them

	Interference *Interference `json:"interference,omitempty"` // what prefill did to running streams
	Anomalies    []Anomaly     `json:"anomalies"`              // by time
	Cost         *Cost         `json:"cost,omitempty"`         // where a price was given
	Charts       *Charts       `json:"-"`                      // for reports; nil where the run is not modelled

	Window Window `json:"-"`
}

// Summarize reads a run once. Its memory does not grow with the run: beyond o.ExactSamples samples of a metric a sketch takes over, and
// the figures then state its error.
func Summarize(r *Run, o Options) (Summary, error) {
	if err := o.Validate(); err != nil {
		return Summary{}, err
	}
	t, groups, err := read(r, o)
	if err != nil {
		return Summary{}, err
	}
	w := &t.window
	w.Seconds = float64(w.ToUnixNS-w.FromUnixNS) / 1e9
	if w.Server, err = readServer(r, w.FromUnixNS, w.ToUnixNS); err != nil {
		return Summary{}, err
	}
	if w.Server.gpu, err = readGPUs(r, w.FromUnixNS, w.ToUnixNS); err != nil {
		return Summary{}, err
	}
	s := Summary{
		Label: r.Label, Kind: r.Kind, WindowS: w.Seconds, Warmup: t.warmup, Requests: w.Requests, Confidence: intervalConfidence,
		Errors: t.errors, Dropped: t.dropped, Warnings: []string{}, Anomalies: []Anomaly{}, By: o.By, Window: *w,
	}
	s.Metrics, s.Aggregates = t.tables()
	for _, value := range sortedKeys(groups) {
		g := groups[value]
		g.window.FromUnixNS, g.window.ToUnixNS, g.window.Seconds = w.FromUnixNS, w.ToUnixNS, w.Seconds
		if g.window.Requests.Scheduled == 0 {
			continue
		}
		group := Group{Value: value, Requests: g.window.Requests, Errors: g.errors}
		group.Metrics, group.Aggregates = g.tables()
		s.Groups = append(s.Groups, group)
	}
	slices.SortStableFunc(s.Groups, func(a, b Group) int { return cmp.Compare(b.Requests.Scheduled, a.Requests.Scheduled) })
	if err := s.model(r, o); err != nil {
		return Summary{}, err
	}
	w = &s.Window
	w.Pages, w.Mix, w.Interference, w.GPUs = s.Pages, s.Mix, s.Interference, gpusOf(r, o, w.Server.gpu.gpus)
	w.CapacityRate = saturatedRate(r, s.Charts)
	for i := range aggregates { // what only the models say
		if a := &aggregates[i]; !s.Aggregates[a.Name].Value.Valid {
			if v, ok := a.Of(w); ok {
				s.Aggregates[a.Name] = Value{Unit: a.Unit, Better: a.Better, Value: figure.Known(v)}
			}
		}
	}
	s.Cost = costOf(o, w.GPUs, s.Aggregates["output_rate"].Value, s.Aggregates["capacity"].Value)
	s.judge(r, o)
	return s, nil
}

// read makes the tally of a run, and of each value of the column it is split by.
func read(r *Run, o Options) (*tally, map[string]*tally, error) {
	columns := append(slices.Clone(metricColumns), gapColumns...)
	n := workers()
	from, to := int64(math.MinInt64), int64(math.MaxInt64)
	if o.From > 0 || o.To > 0 {
		first, err := firstArrival(r)
		if err != nil {
			return nil, nil, err
		}
		if first == math.MaxInt64 { // nothing was measured
			first = 0
		}
		from = first + int64(o.From)
		if o.To > 0 {
			to = first + int64(o.To)
		}
	}
	var by breakdown
	var keep map[string]bool
	if o.By != "" {
		var err error
		if by, err = findBreakdown(o.By); err != nil {
			return nil, nil, err
		}
		if keep, err = frequent(r, by, []formats.Column{by.column}); err != nil {
			return nil, nil, err
		}
		if !slices.Contains(columns, by.column) {
			columns = append(columns, by.column)
		}
	}
	whole, groups := make([]*tally, n), make([]map[string]*tally, n)
	err := r.each(columns, n, func(w int) func(*formats.Exchange) {
		t, g := newTally(o), map[string]*tally{}
		whole[w], groups[w] = t, g
		return func(x *formats.Exchange) {
			if x.ArrivalUnixNS < from || x.ArrivalUnixNS >= to {
				return
			}
			t.add(x)
			if keep == nil {
				return
			}
			value := by.value(x)
			if !keep[value] {
				value = otherGroups
			}
			part := g[value]
			if part == nil {
				part = newTally(Options{SLO: o.SLO, ExactSamples: groupSamples})
				g[value] = part
			}
			part.add(x)
		}
	})
	if err != nil {
		return nil, nil, err
	}
	for w := 1; w < n && whole[w] != nil; w++ {
		whole[0].merge(whole[w])
		for value, g := range groups[w] {
			if groups[0][value] == nil {
				groups[0][value] = g
			} else {
				groups[0][value].merge(g)
			}
		}
	}
	if whole[0] == nil { // no row group at all
		whole[0] = newTally(o)
	}
	return whole[0], groups[0], nil
}

// groupSamples is how many samples of a metric each value of a column keeps exactly.
const groupSamples = 1 << 14

// firstArrival finds the first measured arrival.
func firstArrival(r *Run) (int64, error) {
	first := slices.Repeat([]int64{math.MaxInt64}, workers())
	err := r.each([]formats.Column{formats.ColArrival, formats.ColPhase}, len(first), func(w int) func(*formats.Exchange) {
		return func(x *formats.Exchange) {
			if x.Phase != formats.PhaseWarmup {
				first[w] = min(first[w], x.ArrivalUnixNS)
			}
		}
	})
	return slices.Min(first), err
}

// tables computes every figure.
func (t *tally) tables() (map[string]Figures, map[string]Value) {
	figures, values := map[string]Figures{}, map[string]Value{}
	v := t.intervals()
	for i := range metrics {
		figures[metrics[i].Name] = t.figures(i, v)
	}
	for _, a := range aggregates {
		out := Value{Unit: a.Unit, Better: a.Better}
		if x, ok := a.Of(&t.window); ok {
			out.Value = figure.Known(x)
			if a.Part != nil {
				out.Interval = v.ratio(a.Part, a.whole(t, v))
			}
		}
		values[a.Name] = out
	}
	return figures, values
}

// percentiles are those that are shown, with whether a floor holds for them.
var percentiles = []struct {
	name  string
	p     float64
	floor int
}{
	{"p50", 0.5, 0}, {"p90", 0.9, stats.Floor(0.9)}, {"p95", 0.95, stats.Floor(0.95)}, {"p99", 0.99, stats.Floor(0.99)}, {"p99_9", 0.999, stats.Floor(0.999)},
}

func (t *tally) figures(i int, v intervals) Figures {
	m, s := &metrics[i], &t.samples[i]
	f := Figures{
		Unit: m.Unit, Better: m.Better, N: s.N(), Mean: figure.Known(s.Mean()), Max: figure.Known(s.Max()), Undefined: t.undefined[i], Omitted: t.omitted[i],
		Source: t.source(i), Error: s.Error(), Intervals: map[string][2]float64{},
	}
	if f.N > 1 {
		f.Std = figure.Known(s.Std())
	}
	if f.N == 0 {
		f.Source = ""
		return f
	}
	f.EffectiveN = v.effective(i, s.Mean(), s.Std())
	if mean := v.ratio(func(b *bin) float64 { return b.sum[i] }, func(b *bin) float64 { return b.n[i] }); mean != nil {
		f.Intervals["mean"] = *mean
	}
	at := []*Null{&f.P50, &f.P90, &f.P95, &f.P99, &f.P999}
	for k, p := range percentiles {
		if s.N() < uint64(p.floor) {
			if f.Withheld == nil {
				f.Withheld = map[string]string{}
			}
			f.Withheld[p.name] = fmt.Sprintf("needs %d samples, has %d", p.floor, s.N())
			continue
		}
		*at[k] = figure.Known(s.Quantile(p.p))
		if lo, hi, ok := orderInterval(s, p.p, f.EffectiveN); ok {
			f.Intervals[p.name] = [2]float64{lo, hi}
		}
	}
	return f
}

// orderInterval encloses a percentile between two samples. Neighbors in time resemble each other, so the ranks are those of as many
// independent samples as the sample is worth, spread over all of it.
func orderInterval(s *stats.Sample, p, effective float64) (lo, hi float64, ok bool) {
	n := int(effective)
	l, u, ok := stats.OrderInterval(n, p, intervalConfidence)
	if !ok {
		return 0, 0, false
	}
	scale := float64(s.N()-1) / float64(n-1)
	return s.AtRank(uint64(float64(l) * scale)), s.AtRank(min(uint64(math.Ceil(float64(u)*scale)), s.N()-1)), true
}

// judge decides validity and collects warnings: what the run says of itself, and what its rows say against it.
func (s *Summary) judge(r *Run, o Options) {
	if n := r.doubted(); n > 0 {
		s.Warnings = append(s.Warnings, fmt.Sprintf("%d times that no clock has shown, more than 140 years from their arrival, are taken as unknown", n))
	}
	if r.Manifest == nil {
		s.Warnings = append(s.Warnings, r.Warnings()...)
	} else { // its rows are all that was measured
		s.Invalid = append(s.Invalid, r.Warnings()...)
	}
	if m := r.Manifest; m != nil {
		s.Warnings = append(s.Warnings, m.Warnings...)
		if !m.Valid {
			s.Invalid = append(s.Invalid, m.Invalid...)
			if len(m.Invalid) == 0 {
				s.Invalid = append(s.Invalid, "run.json says so without a reason")
			}
		}
		if m.Interrupted {
			s.Warnings = append(s.Warnings, "the run was interrupted")
		}
		have := formats.RequestCounts{
			Scheduled: s.Requests.Scheduled, Sent: s.Requests.Sent, Completed: s.Requests.Completed, Failed: s.Requests.Failed,
			Aborted: s.Requests.Aborted, RunEnd: s.Requests.RunEnd, Dropped: s.Requests.Dropped,
		}
		if whole := o.From == 0 && o.To == 0; whole && have != m.Requests {
			s.Invalid = append(s.Invalid, fmt.Sprintf("run.json counts %d sent, %d completed, %d dropped; the rows hold %d, %d, %d",
				m.Requests.Sent, m.Requests.Completed, m.Requests.Dropped, have.Sent, have.Completed, have.Dropped))
		}
	}
	if s.Requests.Scheduled == 0 {
		s.Invalid = append(s.Invalid, "no measured exchange")
	}
	if n := s.Requests.Unknown; n > 0 {
		s.Warnings = append(s.Warnings, fmt.Sprintf("%d of %d exchanges do not say how they ended", n, s.Requests.Sent))
	}
	for _, name := range sortedKeys(s.Metrics) {
		if f := s.Metrics[name]; f.Omitted > 0 && name == "itl" {
			s.Warnings = append(s.Warnings, fmt.Sprintf("itl leaves out %d gaps of coalesced, retransmitted or lost events", f.Omitted))
		} else if f.Omitted > 0 && name == "ttft" {
			s.Warnings = append(s.Warnings, fmt.Sprintf("ttft leaves out %d first tokens touched by a retransmission or a loss, or that may be the echoed prompt", f.Omitted))
		}
	}
	if text := throttleWarning(&s.Window); text != "" {
		s.Warnings = append(s.Warnings, text)
	}
	s.Valid = len(s.Invalid) == 0
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}
