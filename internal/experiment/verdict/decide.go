package verdict

import (
	"fmt"
	"math"
	"slices"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/stats"
)

// State is what is known of a metric, or of everything.
type State string

// The states, worst first. Small is a sure change for the worse that is too small to matter.
const (
	Invalid      State = "invalid"
	Regressed    State = "regressed"
	Inconclusive State = "inconclusive"
	Small        State = "small"
	Unchanged    State = "unchanged"
	Improved     State = "improved"
	Explains     State = "explains" // of a metric whose change is neither better nor worse
)

// Null is a figure that may be unknown.
type Null = formats.Null[float64]

// Finding is one metric of two sides.
type Finding struct {
	Metric         string            `json:"metric"`
	Unit           string            `json:"unit"`
	Better         string            `json:"better"`
	Statistic      string            `json:"statistic"` // what base and candidate are
	Gated          bool              `json:"gated"`
	State          State             `json:"state"`
	Base           Null              `json:"base"`
	Candidate      Null              `json:"candidate"`
	ChangePct      Null              `json:"change_pct"`   // relative, in percent; of a share in percentage points, of a count as it is
	Interval       [2]Null           `json:"interval_pct"` // two-sided, at 1 − 2 alpha
	TolerancePct   float64           `json:"tolerance_pct"`
	MinimumPct     float64           `json:"minimum_pct"`
	WithinPct      Null              `json:"within_pct"`     // of an unchanged metric: the change is smaller than this
	DetectablePct  Null              `json:"detectable_pct"` // the change that these pairs find with 80 % power
	MorePairs      formats.Null[int] `json:"more_pairs"`     // to see the tolerance with 80 % power; null where nothing is known
	P              Null              `json:"p_worse"`        // one-sided, of a change for the worse
	Pairs          int               `json:"pairs"`
	PairChangesPct []float64         `json:"pair_changes_pct"` // each pair's own, in order
	History        *Band             `json:"history"`          // null without one
	WorthALook     bool              `json:"worth_a_look"`     // of a metric that does not gate: its change is no chance (a false discovery rate of 5 %; of one that explains, at 1 %)
	Why            string            `json:"why"`              // in words, where the state needs some
}

// Band is what the history allows, in the metric's unit.
type Band struct {
	Low     float64 `json:"low"`
	Median  float64 `json:"median"`
	High    float64 `json:"high"`
	Nights  int     `json:"nights"`
	Outside bool    `json:"outside"` // the candidate stands outside on the side that its change points to
}

// Look is a moment of a sequential test.
type Look struct {
	Pairs int     `json:"pairs"`
	Alpha float64 `json:"alpha"`
}

// Looks are the sequential test's moments, whose levels sum up to 2 %; without a prior of A/A pairs the first is later, since three
// differences do not know their own deviation.
func Looks(prior bool) []Look {
	if prior {
		return []Look{{3, 0.008}, {5, 0.006}, {8, 0.006}}
	}
	return []Look{{5, 0.014}, {8, 0.006}}
}

// DefaultAlpha is the one-sided level of a comparison that is looked at once.
const DefaultAlpha = 0.02

// equivalence is the one-sided level of the bound that says unchanged.
const equivalence = 0.02

// fewestPairs is how many pairs decide without a prior of A/A pairs.
const fewestPairs = 5

// power is what detectable changes and needed pairs are stated at.
const power = 0.8

// uncorrected is how many gated metrics the two-source rule stands without a correction.
const uncorrected = 6

// Options of Decide.
type Options struct {
	Metrics []Metric
	Alpha   float64            // one-sided level of this look; 0: DefaultAlpha
	Past    map[string]Past    // by metric name
	Fixed   map[string]Finding // by metric name: what was decided already
}

// Validate reports metrics that cannot be decided on.
func (o Options) Validate() error {
	if !(o.Alpha >= 0 && o.Alpha < 0.5) {
		return fmt.Errorf("alpha %v is not in [0, 0.5)", o.Alpha)
	}
	for _, m := range o.Metrics {
		switch {
		case m.Better != "lower" && m.Better != "higher" && (m.Gate || m.Better != ""):
			return fmt.Errorf("metric %s: better is lower or higher, not %q", m.Name, m.Better)
		case !(m.Tolerance >= 0) || !(m.Minimum >= 0) || m.Tolerance >= 1 || m.Minimum >= 1:
			return fmt.Errorf("metric %s: a tolerance of %v and a minimum of %v: want shares between 0 and 1", m.Name, m.Tolerance, m.Minimum)
		}
	}
	return nil
}

// Decide compares pairs of runs: base[i] with candidate[i]. Findings stand in the order of the metrics; a metric that is defined in no
// pair has none. What o.Fixed holds was decided at an earlier look and stays.
func Decide(base, candidate []*Run, o Options) ([]Finding, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if o.Alpha == 0 {
		o.Alpha = DefaultAlpha
	}
	var rows []*row
	for _, m := range o.Metrics {
		if f, ok := o.Fixed[m.Name]; ok {
			rows = append(rows, &row{m: m, f: f, fixed: true})
			continue
		}
		if s := o.Past[m.Name].Slow; s != nil {
			m.Set = s
		}
		d, a, b := Differences(m, base, candidate)
		if len(d) == 0 {
			continue
		}
		past := o.Past[m.Name]
		prior := stats.PriorOf(past.AA)
		e := stats.Moderate(scaled(d, m.sign()), prior)
		var levels []float64
		for _, r := range candidate {
			if v := r.Level(m); !math.IsNaN(v) {
				levels = append(levels, v)
			}
		}
		w := newRow(m, e, a, b, o.Alpha)
		w.blind = prior.DF == 0 && len(d) < fewestPairs
		for _, v := range d {
			w.f.PairChangesPct = append(w.f.PairChangesPct, m.percent(v))
		}
		w.band(past, levels)
		rows = append(rows, w)
	}
	correct(rows, o.Alpha)
	return findings(rows), nil
}

// Alone is what DecideAlone asks of whatever stands in for base runs: the difference of candidate levels from it, on the metric's scale,
// its deviation, and the level that it stands for.
type Alone func(m Metric, candidate []float64) (e stats.Estimate, base float64, ok bool)

// DecideAlone compares candidate launches with something that was not measured beside them: the history where against is nil, or a
// baseline. Metrics that it knows nothing of have no finding.
func DecideAlone(candidate []*Run, against Alone, o Options) ([]Finding, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if o.Alpha == 0 {
		o.Alpha = AloneAlpha
	}
	if against == nil {
		against = func(m Metric, levels []float64) (stats.Estimate, float64, bool) {
			e, ok := o.Past[m.Name].Against(levels)
			return e, stats.Median(o.Past[m.Name].Nights), ok
		}
	}
	var rows []*row
	for _, m := range o.Metrics {
		if s := o.Past[m.Name].Slow; s != nil {
			m.Set = s
		}
		var levels []float64
		for _, r := range candidate {
			if v := r.Level(m); !math.IsNaN(v) {
				levels = append(levels, v)
			}
		}
		if len(levels) == 0 {
			continue
		}
		e, base, ok := against(m, levels)
		if !ok {
			continue
		}
		e.Mean *= m.sign()
		w := newRow(m, e, m.figure([]float64{base}), m.figure([]float64{stats.Median(levels)}), o.Alpha)
		w.f.Pairs, w.f.MorePairs, w.f.Statistic = 0, formats.Null[int]{}, "of each run, median over runs"
		w.band(o.Past[m.Name], levels)
		rows = append(rows, w)
	}
	correct(rows, o.Alpha)
	return findings(rows), nil
}

// AloneAlpha is the one-sided level of a comparison with what was not measured beside: about three deviations, since nothing cancels the
// host's own moods.
const AloneAlpha = 0.005

// row is a metric being decided.
type row struct {
	m       Metric
	e       stats.Estimate // worse is positive
	f       Finding
	past    bool // there are bounds of a history
	outside bool // the candidate stands outside them on the side of its change
	fixed   bool
	blind   bool // too few pairs to know their own deviation, and no prior
}

func scaled(d []float64, s float64) []float64 {
	out := make([]float64, len(d))
	for i, v := range d {
		out[i] = s * v
	}
	return out
}

// percent is a difference in percent, of a share in points, of a count as it is.
func (m Metric) percent(d float64) float64 {
	switch m.Kind {
	case Share:
		return 100 * d
	case Count:
		return d
	}
	return 100 * math.Expm1(d)
}

// scale is a share of change on the metric's scale.
func (m Metric) scale(share float64) float64 {
	if m.plain() {
		return share
	}
	return math.Log1p(share)
}

func known(x float64) Null {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return Null{}
	}
	return formats.Of(x)
}

var statistics = map[Kind]string{
	Centre: "geometric mean of matched requests",
	Slow:   "median of the slowest 5 % of matched requests",
	Level:  "of the whole run, geometric mean over runs",
	Share:  "share of requests, mean over runs",
	Count:  "of the whole run, mean over runs",
}

func newRow(m Metric, e stats.Estimate, a, b, alpha float64) *row {
	if !m.plain() && a > 0 {
		m.Minimum = max(m.Minimum, m.Resolution/a)
		m.Tolerance = max(m.Tolerance, m.Resolution/a)
	}
	f := Finding{
		Metric: m.Name, Unit: m.Unit, Better: m.Better, Statistic: statistics[m.Kind], Gated: m.Gate, State: Inconclusive, Base: known(a), Candidate: known(b),
		TolerancePct: 100 * m.Tolerance, MinimumPct: 100 * m.Minimum, Pairs: e.N, P: known(e.P()), PairChangesPct: []float64{},
	}
	s := m.sign()
	f.ChangePct = known(m.percent(s * e.Mean))
	lo, hi := m.percent(s*e.Lower(alpha)), m.percent(s*e.Upper(alpha))
	if s < 0 {
		lo, hi = hi, lo
	}
	if !math.IsInf(e.Lower(alpha), 0) {
		f.Interval = [2]Null{known(lo), known(hi)}
	}
	f.DetectablePct = known(m.percent(e.Detectable(alpha, power)))
	if n := e.Needed(m.scale(m.Tolerance), alpha, power); n > 0 {
		f.MorePairs = formats.Of(max(0, n-e.N))
	}
	return &row{m: m, e: e, f: f}
}

// band compares the candidate with the history.
func (w *row) band(p Past, levels []float64) {
	lo, median, hi, ok := p.Bounds()
	if !ok || len(levels) == 0 {
		return
	}
	w.past = true
	at := stats.Median(levels)
	up := at > hi
	down := at < lo
	w.outside = up && w.m.sign()*w.e.Mean > 0 || down && w.m.sign()*w.e.Mean < 0
	w.f.History = &Band{Low: w.m.figure([]float64{lo}), Median: w.m.figure([]float64{median}), High: w.m.figure([]float64{hi}), Nights: len(p.Nights), Outside: w.outside}
}

// correct decides all rows, the levels of the gated ones corrected for their number where the history does not stand beside them or
// they are many; the others are marked where they are worth a look.
func correct(rows []*row, alpha float64) {
	var gated, rest []*row
	for _, w := range rows {
		switch {
		case w.fixed:
		case w.m.Gate && w.e.SD == 0 && w.e.Mean == 0: // nothing differed at all: there is no hypothesis to correct for
			w.decide(false, false)
		case w.m.Gate:
			gated = append(gated, w)
		case w.m.Better != "":
			rest = append(rest, w)
		}
	}
	holm := len(gated) > uncorrected || slices.ContainsFunc(gated, func(w *row) bool { return !w.past })
	worse, better := make([]float64, len(gated)), make([]float64, len(gated))
	for i, w := range gated {
		worse[i], better[i] = w.e.P(), 1-w.e.P()
	}
	isWorse, isBetter := stats.Holm(worse, alpha), stats.Holm(better, alpha)
	for i, w := range gated {
		if !holm {
			isWorse[i], isBetter[i] = worse[i] <= alpha, better[i] <= alpha
		}
		w.decide(isWorse[i], isBetter[i])
	}
	p := make([]float64, len(rest))
	for i, w := range rest {
		p[i] = 2 * min(w.e.P(), 1-w.e.P())
	}
	marked := stats.BenjaminiHochberg(p, 0.05)
	for i, w := range rest {
		w.decide(w.e.P() <= alpha, 1-w.e.P() <= alpha)
		w.f.WorthALook = marked[i] && math.Abs(w.e.Mean) >= w.m.scale(w.m.Minimum)
	}
	for _, w := range rows {
		if w.m.Better == "" && !w.fixed { // marked where it moved: more than its tolerance, and not by chance
			w.f.State, w.f.P = Explains, Null{}
			w.f.WorthALook = math.Abs(w.e.Mean) >= w.m.scale(w.m.Tolerance) && 2*min(w.e.P(), 1-w.e.P()) < 0.01
		}
	}
}

// decide gives a row its state. sure says that the change is no chance, at the level that is left for this metric.
func (w *row) decide(sureWorse, sureBetter bool) {
	tol, least := w.m.scale(w.m.Tolerance), w.m.scale(w.m.Minimum)
	allowed := w.outside || !w.past
	upper, lower := w.e.Upper(equivalence), w.e.Lower(equivalence)
	f := &w.f
	switch {
	case w.blind && !(w.e.SD == 0 && w.e.Mean == 0):
		f.MorePairs = formats.Null[int]{} // nor how many it takes
		f.State, f.Why = Inconclusive, fmt.Sprintf("without A/A pairs in a history, fewer than %d pairs do not know their own deviation", fewestPairs)
	case sureWorse && w.e.Mean >= least && allowed:
		f.State = Regressed
	case sureBetter && w.e.Mean <= -least && allowed:
		f.State = Improved
	case upper < tol:
		f.State = Unchanged
		if lower > -tol {
			f.WithinPct = known(max(math.Abs(w.m.percent(upper)), math.Abs(w.m.percent(lower))))
		} else {
			f.Why = fmt.Sprintf("not worse by %.3g %% or more", f.TolerancePct)
		}
	case sureWorse && w.e.Mean < least:
		f.State = Small
	default:
		f.State = Inconclusive
		switch {
		case sureWorse && !allowed:
			f.Why = "worse than its base, but within what the history of this series shows"
		case sureBetter && !allowed:
			f.Why = "better than its base, but within what the history of this series shows"
		}
	}
	if w.e.Noisy && f.Why == "" {
		f.Why = "the pairs vary more than the history's"
	}
}

func findings(rows []*row) []Finding {
	out := make([]Finding, len(rows))
	for i, w := range rows {
		out[i] = w.f
	}
	return out
}

// Overall is the state of everything: the worst of the gated metrics; a metric is decided unless it is inconclusive. Without a gated
// metric it is inconclusive.
func Overall(f []Finding) State {
	order := []State{Invalid, Regressed, Inconclusive, Small, Unchanged, Improved}
	best := len(order)
	for _, x := range f {
		if x.Gated {
			best = min(best, slices.Index(order, x.State))
		}
	}
	if best == len(order) {
		return Inconclusive
	}
	if order[best] == Unchanged && slices.ContainsFunc(f, func(x Finding) bool { return x.Gated && x.State == Improved }) {
		return Improved
	}
	return order[best]
}
