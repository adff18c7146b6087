package analyzer

import (
	"fmt"
	"math"
	"sort"

	"github.com/shadowtape/shadowtape/formats"
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
}

// Value is one aggregate's number.
type Value struct {
	Unit   string `json:"unit"`
	Better string `json:"better"`
	Value  Null   `json:"value"`
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

	Window Window `json:"-"`
}

// Document is analyze's JSON.
type Document struct {
	Schema int       `json:"schema"`
	Runs   []Summary `json:"runs"`
}

// Summarize reads a run once. Its memory does not grow with the run: beyond o.ExactSamples samples of a metric a sketch takes over, and
// the figures then state its error.
func Summarize(r *Run, o Options) (Summary, error) {
	if err := o.Validate(); err != nil {
		return Summary{}, err
	}
	t := newTally(o)
	columns := append(append([]formats.Column(nil), metricColumns...), gapColumns...)
	for x, err := range r.exchanges(columns...) {
		if err != nil {
			return Summary{}, r.readError(err)
		}
		t.add(x)
	}
	w := &t.window
	w.Seconds = float64(w.ToUnixNS-w.FromUnixNS) / 1e9
	var err error
	if w.Server, err = readServer(r, w.FromUnixNS, w.ToUnixNS); err != nil {
		return Summary{}, err
	}
	s := Summary{
		Label: r.Label, Kind: r.Kind, WindowS: w.Seconds, Warmup: t.warmup, Requests: w.Requests, Metrics: map[string]Figures{},
		Aggregates: map[string]Value{}, Errors: t.errors, Dropped: t.dropped, Warnings: []string{}, Window: *w,
	}
	for i := range metrics {
		s.Metrics[metrics[i].Name] = t.figures(i)
	}
	for _, a := range aggregates {
		v := Value{Unit: a.Unit, Better: a.Better}
		if x, ok := a.Of(w); ok {
			v.Value = known(x)
		}
		s.Aggregates[a.Name] = v
	}
	s.judge(r)
	return s, nil
}

// known is a figure unless it is NaN or infinite.
func known(x float64) Null {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return Null{}
	}
	return formats.Of(x)
}

// percentiles are those that are shown, with whether a floor holds for them.
var percentiles = []struct {
	name  string
	p     float64
	floor int
}{
	{"p50", 0.5, 0}, {"p90", 0.9, stats.Floor(0.9)}, {"p95", 0.95, stats.Floor(0.95)}, {"p99", 0.99, stats.Floor(0.99)}, {"p99_9", 0.999, stats.Floor(0.999)},
}

func (t *tally) figures(i int) Figures {
	m, s := &metrics[i], &t.samples[i]
	f := Figures{
		Unit: m.Unit, Better: m.Better, N: s.N(), Mean: known(s.Mean()), Max: known(s.Max()), Undefined: t.undefined[i], Omitted: t.omitted[i],
		Source: t.source(i), Error: s.Error(),
	}
	if f.N > 1 {
		f.Std = known(s.Std())
	}
	if f.N == 0 {
		f.Source = ""
		return f
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
		*at[k] = known(s.Quantile(p.p))
	}
	return f
}

// judge decides validity and collects warnings: what the run says of itself, and what its rows say against it.
func (s *Summary) judge(r *Run) {
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
		if have != m.Requests {
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
		}
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
