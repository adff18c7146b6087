// Package experiment makes many runs in a row and judges them together: pairs of fresh launches for the gate, comparisons of runs that
// exist.
package experiment

import (
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"strings"

	"github.com/shadowtape/shadowtape/analyzer"
	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/experiment/verdict"
	"github.com/shadowtape/shadowtape/internal/stats"
)

// columns are the per-request metrics that a measured run holds, and what the pairing checks.
var columns = []string{"ttft", "tpot", "e2el"}

// Measured is a run as the gate sees it.
type Measured struct {
	Where    string
	Run      *verdict.Run
	Summary  analyzer.Summary
	Manifest formats.Manifest
	ClockMHz float64  // median SM clock while the run lasted; NaN where unknown
	Invalid  []string // why it cannot be used

	input, output []float64 // tokens by place in the schedule; NaN where unknown
}

// LoadOptions say how runs are read.
type LoadOptions struct {
	SLO       []analyzer.Limit
	Saturated string // run directory of the saturated phase; "": none was measured
}

// ErrNotARun is what Load's error wraps where there is no manifest.
var ErrNotARun = errors.New("it has no manifest (run.json)")

// Load reads a run. A run that is not valid is returned with its reasons; only one that cannot be read is an error.
func Load(where string, o LoadOptions) (*Measured, error) {
	t, err := formats.Open(where)
	if err != nil {
		return nil, err
	}
	defer t.Close()
	if t.Manifest == nil {
		return nil, fmt.Errorf("read run %s: %w", where, ErrNotARun)
	}
	r, err := analyzer.OpenRun(where)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	m, err := measure(where, r, t.All(rowColumns...), o)
	if err != nil {
		return nil, err
	}
	if err := m.readGPUs(t); err != nil {
		return nil, err
	}
	if err := m.readRates(where); err != nil {
		return nil, err
	}
	if o.Saturated != "" {
		rate, err := SaturatedRate(o.Saturated)
		if err != nil {
			return nil, err
		}
		m.Run.Figures["capacity"] = rate / m.gpus()
	}
	return m, nil
}

// rowColumns are what measure reads of each row.
var rowColumns = []formats.Column{
	formats.ColArrivalIndex, formats.ColArrival, formats.ColPhase, formats.ColSent, formats.ColFirstToken, formats.ColFirstContent, formats.ColLastToken, formats.ColEnd,
	formats.ColN, formats.ColOutputTokens, formats.ColInputTokens, formats.ColErrorKind, formats.ColEndReason, formats.ColEventTokens,
	formats.ColEventGap, formats.ColEventChoice, formats.ColChoiceOutputTokens,
}

// measure makes what a decision needs of a run and its rows.
func measure(where string, r *analyzer.Run, rows iter.Seq2[*formats.Exchange, error], o LoadOptions) (*Measured, error) {
	m := &Measured{Where: where, Manifest: *r.Manifest, ClockMHz: math.NaN()}
	m.Run = &verdict.Run{Label: r.Label, Columns: map[string][]float64{}, Figures: map[string]float64{}}
	if err := m.readRows(rows); err != nil {
		return nil, err
	}
	var err error
	if m.Summary, err = analyzer.Summarize(r, analyzer.Options{SLO: o.SLO}); err != nil {
		return nil, err
	}
	m.figures()
	m.Invalid = slices.Clone(m.Summary.Invalid)
	if !m.Summary.Valid && len(m.Invalid) == 0 {
		m.Invalid = append(m.Invalid, "its own manifest says so")
	}
	return m, nil
}

// readRows fills the columns, by arrival index.
func (m *Measured) readRows(rows iter.Seq2[*formats.Exchange, error]) error {
	metrics := make([]analyzer.Metric, len(columns))
	for i, name := range columns {
		metrics[i], _ = analyzer.MetricNamed(name)
	}
	cols := make([][]float64, len(columns)+2)
	put := func(c int, i int64, v float64) {
		for int64(len(cols[c])) <= i {
			cols[c] = append(cols[c], math.NaN())
		}
		cols[c][i] = v
	}
	indexed := false
	for x, err := range rows {
		if err != nil {
			return err
		}
		if x.Phase == formats.PhaseWarmup || !x.ArrivalIndex.Valid || x.ArrivalIndex.V < 0 || x.ArrivalIndex.V > 1<<31 {
			continue
		}
		indexed = true
		i := x.ArrivalIndex.V
		for c := range metrics {
			var sum, n float64
			metrics[c].Samples(x, func(v, w float64) { sum, n = sum+v*w, n+w })
			if n > 0 {
				put(c, i, sum/n)
			}
		}
		if x.InputTokens.Valid {
			put(len(columns), i, float64(x.InputTokens.V))
		}
		if x.OutputTokens.Valid && x.EndReason == formats.EndComplete && x.ErrorKind == "" {
			put(len(columns)+1, i, float64(x.OutputTokens.V))
		}
	}
	if !indexed {
		return fmt.Errorf("read run %s: no request says its place in the schedule (arrival_index)", m.Where)
	}
	for i, name := range columns {
		m.Run.Columns[name] = cols[i]
	}
	m.input, m.output = cols[len(columns)], cols[len(columns)+1]
	return nil
}

// figures copies the summary's figures of the whole run, those that are defined.
func (m *Measured) figures() {
	for name, v := range m.Summary.Aggregates {
		if v.Value.Valid {
			m.Run.Figures[name] = v.Value.V
		}
	}
	for name, f := range m.Summary.Metrics {
		for _, p := range []struct {
			suffix string
			v      analyzer.Null
		}{{"_p50", f.P50}, {"_p90", f.P90}, {"_p99", f.P99}} {
			if p.v.Valid {
				m.Run.Figures[name+p.suffix] = p.v.V
			}
		}
	}
}

// readGPUs takes the clock of the run's GPUs, and finds what makes a launch useless: clocks cut by heat or by the hardware.
func (m *Measured) readGPUs(t *formats.Trace) error {
	var clocks []float64
	slow, all := 0, 0
	why := map[string]int{}
	for s, err := range t.GPUSamples() {
		if err != nil {
			return err
		}
		if s.SMClockMHz.Valid {
			clocks = append(clocks, float64(s.SMClockMHz.V))
		}
		all++
		cut := false
		for _, reason := range s.Throttle {
			if strings.Contains(reason, "thermal") || strings.Contains(reason, "hw_slowdown") || strings.Contains(reason, "hw_power_brake") {
				why[reason]++
				cut = true
			}
		}
		if cut {
			slow++
		}
	}
	if len(clocks) > 0 {
		m.ClockMHz = stats.Median(clocks)
	}
	if slow > 0 {
		reasons := make([]string, 0, len(why))
		for r := range why {
			reasons = append(reasons, r)
		}
		slices.Sort(reasons)
		m.Invalid = append(m.Invalid, fmt.Sprintf("the GPU's clock was cut in %d of %d samples: %s", slow, all, strings.Join(reasons, ", ")))
	}
	return nil
}

// gpus is how many GPUs the deployment has, at least 1.
func (m *Measured) gpus() float64 {
	for _, at := range []string{"deployment", "candidate"} {
		if d, ok := m.Manifest.Environment[at].(map[string]any); ok {
			if list, ok := d["gpu_uuids"].([]any); ok && len(list) > 0 {
				return float64(len(list))
			}
		}
	}
	return 1
}

// SaturatedRate is the output tokens per second of a run that kept its server full: over the stretch in which the middle 60 % of its
// tokens came, so that neither the filling nor the emptying of the queue counts. A request's tokens are taken as evenly spread between
// its first and its last.
func SaturatedRate(where string) (float64, error) {
	t, err := formats.Open(where)
	if err != nil {
		return 0, err
	}
	defer t.Close()
	rate, err := saturatedRate(t.All(formats.ColArrival, formats.ColPhase, formats.ColFirstToken, formats.ColLastToken, formats.ColOutputTokens))
	if err != nil {
		return 0, fmt.Errorf("measure the capacity of %s: %w", where, err)
	}
	return rate, nil
}

func saturatedRate(rows iter.Seq2[*formats.Exchange, error]) (float64, error) {
	type edge struct {
		at   int64   // ns
		rate float64 // change of tokens per ns
		all  float64 // tokens at once
	}
	var edges []edge
	total := 0.0
	for x, err := range rows {
		if err != nil {
			return 0, err
		}
		if x.Phase == formats.PhaseWarmup || !x.FirstTokenNS.Valid || !x.LastTokenNS.Valid || x.OutputTokens.V <= 0 {
			continue
		}
		n := float64(x.OutputTokens.V)
		from, to := x.ArrivalUnixNS+x.FirstTokenNS.V, x.ArrivalUnixNS+x.LastTokenNS.V
		total += n
		if to <= from {
			edges = append(edges, edge{at: from, all: n})
			continue
		}
		r := n / float64(to-from)
		edges = append(edges, edge{at: from, rate: r}, edge{at: to, rate: -r})
	}
	if total == 0 {
		return 0, errors.New("no request has tokens and times")
	}
	slices.SortFunc(edges, func(a, b edge) int {
		switch {
		case a.at < b.at:
			return -1
		case a.at > b.at:
			return 1
		}
		return 0
	})
	lo, hi := 0.2*total, 0.8*total
	var seen, rate float64
	start, end := math.NaN(), math.NaN()
	origin, at := edges[0].at, edges[0].at
	reach := func(target float64) float64 { // when the count passes target, after at
		return float64(at-origin) + (target-seen)/rate
	}
	for _, e := range edges {
		grown := rate * float64(e.at-at)
		if math.IsNaN(start) && seen+grown >= lo && rate > 0 {
			start = reach(lo)
		}
		if math.IsNaN(end) && seen+grown >= hi && rate > 0 {
			end = reach(hi)
		}
		seen, at = seen+grown, e.at
		if e.all > 0 {
			seen += e.all
			if math.IsNaN(start) && seen >= lo {
				start = float64(at - origin)
			}
			if math.IsNaN(end) && seen >= hi {
				end = float64(at - origin)
			}
		}
		rate = max(0, rate+e.rate)
	}
	if math.IsNaN(start) || math.IsNaN(end) || end <= start {
		return 0, errors.New("all tokens came at once")
	}
	return (hi - lo) / (end - start) * 1e9, nil
}
