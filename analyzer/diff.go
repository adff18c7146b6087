package analyzer

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/figure"
	"github.com/shadowtape/shadowtape/internal/stats"
)

// CompareOptions say how two sides are compared. The zero value means the defaults.
type CompareOptions struct {
	SLO          []Limit
	MinEffect    float64 // smallest relative change of a typical request that matters; 0: as the metric table says
	MinTail      float64 // the same for the slow requests and for percentiles; 0: likewise
	MinPoints    float64 // smallest difference of a share that matters, as a share; 0: likewise
	Confidence   float64 // of the intervals; default 0.95
	Draws        int     // of the bootstrap; default 2000
	Seed         int64   // of the bootstrap
	AllowInvalid bool    // give a verdict although a side is invalid
	FleetGPUs    int     // with a price: what the change costs a fleet of so many in a month
	GPUHourPrice float64 // in any currency
}

// Validate reports every option that cannot be used.
func (o CompareOptions) Validate() error {
	err := Options{SLO: o.SLO}.Validate()
	for _, v := range []struct {
		name string
		v    float64
	}{{"min effect", o.MinEffect}, {"min tail effect", o.MinTail}, {"min points", o.MinPoints}, {"confidence", o.Confidence}} {
		if v.v < 0 || v.v >= 1 || math.IsNaN(v.v) {
			err = errors.Join(err, fmt.Errorf("%s: %v is not in [0, 1)", v.name, v.v))
		}
	}
	if !(o.GPUHourPrice >= 0) || math.IsInf(o.GPUHourPrice, 0) || o.FleetGPUs < 0 {
		err = errors.Join(err, fmt.Errorf("%d GPUs at %v an hour: neither may be negative", o.FleetGPUs, o.GPUHourPrice))
	}
	if o.Draws < 0 {
		err = errors.Join(err, fmt.Errorf("draws: %d is below 0", o.Draws))
	}
	return err
}

func (o CompareOptions) withDefaults() CompareOptions {
	set := func(v *float64, d float64) {
		if *v == 0 {
			*v = d
		}
	}
	set(&o.Confidence, 0.95)
	if o.Draws == 0 {
		o.Draws = 2000
	}
	return o
}

// Verdict is what a comparison says of a metric, or of everything.
type Verdict string

// The verdicts. Same is "no difference that this measurement can vouch for", printed as ~; it does not prove that there is none.
const (
	Worse   Verdict = "worse"
	Better  Verdict = "better"
	Same    Verdict = "~"
	Invalid Verdict = "invalid"
)

// Change is one metric of two sides.
type Change struct {
	Name      string  `json:"name"`
	Unit      string  `json:"unit"`
	Better    string  `json:"better"`
	Statistic string  `json:"statistic"` // what base and candidate are
	Base      Null    `json:"base"`
	Candidate Null    `json:"candidate"`
	ChangePct Null    `json:"change_pct"`     // relative, in percent; of a share, in percentage points
	Interval  [2]Null `json:"interval_pct"`   // of the change, at the stated confidence
	MinPct    float64 `json:"min_effect_pct"` // smaller changes are no verdict
	Verdict   Verdict `json:"verdict"`
	Gates     bool    `json:"gates"` // counts for the verdict; the others explain
	Pairs     int     `json:"pairs"`
}

// Side is one side's run.
type Side struct {
	Label    string   `json:"label"`
	Kind     string   `json:"kind"`
	Valid    bool     `json:"valid"`
	Invalid  []string `json:"invalid,omitempty"`
	Requests Requests `json:"requests"`
}

// Diff is everything that diff says; it is its JSON.
type Diff struct {
	Schema     int      `json:"schema"`
	Verdict    Verdict  `json:"verdict"`
	Base       []Side   `json:"base"`
	Candidate  []Side   `json:"candidate"`
	Method     string   `json:"method"`
	Confidence float64  `json:"confidence"`
	Pairs      int      `json:"pairs"`  // requests matched
	Blocks     int      `json:"blocks"` // of time that the interval resamples
	Metrics    []Change `json:"metrics"`
	Warnings   []string `json:"warnings"`

	Differences []Difference `json:"differences"`              // of the environments, what is served first
	Conditions  []Condition  `json:"gpu_conditions,omitempty"` // of the GPUs, from start to end

	Cost    *FleetCost `json:"cost,omitempty"`
	Traffic *Traffic   `json:"traffic,omitempty"` // of two recordings, which have no request in common
}

// ErrIncomparable is what Compare's error wraps where two runs are of different traffic.
var ErrIncomparable = errors.New("different traffic")

// ErrOtherGPU is what Compare's error wraps where the two candidates had GPUs of different models: no figure of one says anything about
// the other's software.
var ErrOtherGPU = errors.New("different GPU models")

// Compare says whether the candidate is worse than the base. Requests are matched on their place in the schedule, so that what a
// request asks for cancels out; intervals resample blocks of time, since neighbors share a queue. One run a side speaks for these two
// runs: it is blind to what differs from one start of a server to the next, so it informs and does not gate.
func Compare(base, candidate []*Run, o CompareOptions) (Diff, error) {
	if err := o.Validate(); err != nil {
		return Diff{}, err
	}
	o = o.withDefaults()
	if len(base) != 1 || len(candidate) != 1 {
		return Diff{}, fmt.Errorf("compare %d with %d runs: one run a side is what this comparison takes", len(base), len(candidate))
	}
	a, b := base[0], candidate[0]
	if p, q := gpuModel(a.Manifest), gpuModel(b.Manifest); p != q && p != "" && q != "" && !o.AllowInvalid {
		return Diff{}, fmt.Errorf("compare %s with %s: %w: %s and %s", a.Label, b.Label, ErrOtherGPU, p, q)
	}
	d := Diff{Differences: Differences(a.Manifest, b.Manifest), Conditions: Conditions([]*formats.Manifest{a.Manifest}, []*formats.Manifest{b.Manifest}), Schema: 1, Method: "matched requests, block bootstrap over time, within one run a side", Confidence: o.Confidence, Warnings: []string{}, Metrics: []Change{}}
	sa, err := Summarize(a, Options{SLO: o.SLO, NoModels: true})
	if err != nil {
		return d, err
	}
	sb, err := Summarize(b, Options{SLO: o.SLO, NoModels: true})
	if err != nil {
		return d, err
	}
	d.Base, d.Candidate = []Side{sideOf(sa)}, []Side{sideOf(sb)}
	for _, r := range []*Run{a, b} {
		for _, w := range r.Warnings() {
			d.Warnings = append(d.Warnings, r.Label+": "+w)
		}
	}
	m, err := match(a, b, o)
	if errors.Is(err, ErrIncomparable) && a.Manifest == nil && b.Manifest == nil {
		if d, err = compareTraffic(d, a, b, sa, sb, o); err == nil {
			d.judge(o)
		}
		return d, err
	}
	if err != nil {
		return d, err
	}
	d.Pairs, d.Blocks = len(m.pairs), m.blocks
	if p := placement(a, b); p != "" {
		d.Warnings = append(d.Warnings, p)
	}
	d.Warnings = append(d.Warnings, m.warnings...)
	for _, i := range pairedMetrics {
		d.Metrics = append(d.Metrics, m.compare(i, o)...)
	}
	if q := sb.Requests; len(d.Metrics) == 0 && (q.Completed > 0 || q.Failed+q.Aborted+q.Dropped == 0) {
		silent := a
		if sa.Metrics["e2el"].N > 0 {
			silent = b
		}
		return d, fmt.Errorf("compare %s with %s: %w: %s does not say when its answers came", a.Label, b.Label, ErrIncomparable, silent.Label)
	}
	d.Metrics = append(d.Metrics, m.failures(sa, sb, o))
	if sa.Requests.Dropped > 0 || sb.Requests.Dropped > 0 {
		d.Metrics = append(d.Metrics, m.drops(sa, sb, a.Manifest != nil && b.Manifest != nil, o))
	}
	if len(o.SLO) > 0 {
		d.Metrics = append(d.Metrics, m.attainment(sa, sb, o))
	}
	d.Metrics = append(d.Metrics, unpaired(sa, sb)...)
	d.Cost = fleetCost(o.FleetGPUs, o.GPUHourPrice, sa, sb)
	d.judge(o)
	return d, nil
}

// judge makes the whole's verdict of the rows'.
func (d *Diff) judge(o CompareOptions) {
	d.Verdict = Same
	for _, c := range d.Metrics {
		if c.Gates && c.Verdict == Worse {
			d.Verdict = Worse
		} else if c.Gates && c.Verdict == Better && d.Verdict == Same {
			d.Verdict = Better
		}
	}
	for _, s := range append(slices.Clone(d.Base), d.Candidate...) {
		if !s.Valid && !o.AllowInvalid {
			d.Verdict = Invalid
		}
	}
}

func sideOf(s Summary) Side { return Side{s.Label, s.Kind, s.Valid, s.Invalid, s.Requests} }

// decide gives a change its verdict: the interval excludes no change, on the metric's bad or good side, and the change matters.
func decide(better string, change, lo, hi, minimum float64) Verdict {
	if math.IsNaN(change) || math.IsNaN(lo) || math.IsNaN(hi) || math.Abs(change) < minimum {
		return Same
	}
	switch {
	case lo > 0 && better == "lower", hi < 0 && better == "higher":
		return Worse
	case hi < 0 && better == "lower", lo > 0 && better == "higher":
		return Better
	}
	return Same
}

// compare makes a metric's rows: the typical request, the slow set of ttft, and the 99th percentile.
func (m *matched) compare(metric int, o CompareOptions) []Change {
	t := &metrics[metric]
	var pairs []pairedValue
	for _, p := range m.pairs {
		x, y := p.base[m.column[metric]], p.candidate[m.column[metric]]
		if x > 0 && y > 0 { // both defined; a latency of 0 has no ratio
			pairs = append(pairs, pairedValue{float64(x), float64(y), p.block})
		}
	}
	if len(pairs) == 0 {
		return nil
	}
	gates := !t.Informs
	rows := []Change{m.typical(t, pairs, o)}
	rows[0].Gates = gates
	if len(pairs) >= stats.Floor(0.95) && t.Name == "ttft" {
		tail := m.slowest(t, pairs, o)
		tail.Gates = gates
		rows = append(rows, tail)
	}
	if len(pairs) >= stats.Floor(0.99) && gates {
		rows = append(rows, m.percentile(t, pairs, 0.99, o))
	}
	return rows
}

// pairedValue is a metric of one matched request on both sides.
type pairedValue struct {
	base, candidate float64
	block           int32
}

// typical compares geometric means: exp of the mean ln ratio over matched requests.
func (m *matched) typical(t *Metric, pairs []pairedValue, o CompareOptions) Change {
	sum, n := make([]float64, m.blocks), make([]float64, m.blocks)
	var la, lb float64
	for _, p := range pairs {
		a, b := math.Log(p.base), math.Log(p.candidate)
		la, lb = la+a, lb+b
		sum[p.block] += b - a
		n[p.block]++
	}
	k := float64(len(pairs))
	lo, hi := stats.BlockBootstrap(m.blocks, o.Draws, o.Seed, o.Confidence, func(times []int32) float64 {
		var s, c float64
		for i, w := range times {
			s += float64(w) * sum[i]
			c += float64(w) * n[i]
		}
		return math.Expm1(s / c)
	})
	return change(t, t.Name, "geometric mean of matched requests", math.Exp(la/k), math.Exp(lb/k), math.Expm1((lb-la)/k), lo, hi, cmp.Or(o.MinEffect, t.Matters), len(pairs))
}

// slowest compares the twentieth of the requests that were slowest over both sides: chosen on both, so that chance on one side cannot
// look like a change; the median ln ratio, so that one hiccup does not decide.
func (m *matched) slowest(t *Metric, pairs []pairedValue, o CompareOptions) Change {
	tail := slices.Clone(pairs)
	slices.SortStableFunc(tail, func(x, y pairedValue) int { return compareFloats(y.base+y.candidate, x.base+x.candidate) })
	tail = tail[:max(1, len(tail)/20)]
	ratios := make([]blockValue, len(tail))
	var a, b []float64
	for i, p := range tail {
		ratios[i] = blockValue{math.Log(p.candidate / p.base), p.block}
		a, b = append(a, p.base), append(b, p.candidate)
	}
	slices.Sort(a)
	slices.Sort(b)
	sortBlockValues(ratios)
	lo, hi := stats.BlockBootstrap(m.blocks, o.Draws, o.Seed, o.Confidence, func(times []int32) float64 { return math.Expm1(weightedQuantile(ratios, times, 0.5)) })
	if spread(ratios) < fewestTailBlocks {
		lo, hi = math.NaN(), math.NaN()
	}
	med := weightedQuantile(ratios, nil, 0.5)
	return change(t, t.Name+"_slow", "median of the slowest 5 % of matched requests; change is the median ratio", stats.Quantile(a, 0.5), stats.Quantile(b, 0.5), math.Expm1(med), lo, hi, cmp.Or(o.MinTail, t.MattersSlow), len(tail))
}

// fewestTailBlocks is in how many blocks of time the slow requests must lie: fewer are one or two incidents, which resampling blocks
// cannot put an interval around.
const fewestTailBlocks = 5

// spread counts the blocks that values lie in.
func spread(x []blockValue) int {
	blocks := map[int32]struct{}{}
	for _, v := range x {
		blocks[v.block] = struct{}{}
	}
	return len(blocks)
}

// percentile compares a percentile of both sides' matched requests.
func (m *matched) percentile(t *Metric, pairs []pairedValue, p float64, o CompareOptions) Change {
	a, b := make([]blockValue, len(pairs)), make([]blockValue, len(pairs))
	for i, v := range pairs {
		a[i], b[i] = blockValue{v.base, v.block}, blockValue{v.candidate, v.block}
	}
	sortBlockValues(a)
	sortBlockValues(b)
	lo, hi := stats.BlockBootstrap(m.blocks, o.Draws, o.Seed, o.Confidence, func(times []int32) float64 {
		return weightedQuantile(b, times, p)/weightedQuantile(a, times, p) - 1
	})
	qa, qb := weightedQuantile(a, nil, p), weightedQuantile(b, nil, p)
	above := func(x []blockValue) int { return spread(x[len(x)-max(len(x)-int(p*float64(len(x))), 1):]) }
	if min(above(a), above(b)) < fewestTailBlocks {
		lo, hi = math.NaN(), math.NaN()
	}
	return change(t, fmt.Sprintf("%s_p%g", t.Name, p*100), fmt.Sprintf("p%g of matched requests", p*100), qa, qb, qb/qa-1, lo, hi, cmp.Or(o.MinTail, t.MattersSlow), len(pairs))
}

// change makes a row of relative figures. A change below what the client's clock can vouch for is none.
func change(t *Metric, name, statistic string, a, b, rel, lo, hi, minimum float64, pairs int) Change {
	if a > 0 {
		minimum = max(minimum, t.Resolution/a)
	}
	return Change{
		Name: name, Unit: t.Unit, Better: t.Better, Statistic: statistic, Base: figure.Known(a), Candidate: figure.Known(b), ChangePct: figure.Known(rel * 100),
		Interval: [2]Null{figure.Known(lo * 100), figure.Known(hi * 100)}, MinPct: minimum * 100, Verdict: decide(t.Better, rel, lo, hi, minimum), Pairs: pairs,
	}
}

// failures compares the share of sent requests that failed, in percentage points. A request that one side never sent says nothing.
func (m *matched) failures(sa, sb Summary, o CompareOptions) Change {
	return m.shares("error_rate", "lower", "share of requests sent that failed", sa, sb, func(p *pair) (bool, bool, bool) {
		return p.failedBase, p.failedCandidate, !p.dropBase && !p.dropCandidate
	}, o)
}

// drops compares the share of the schedule that was never sent: what a slower server's latencies leave out. It decides between two
// replays only: a recording drops nothing, and its replay drops what cannot be asked again.
func (m *matched) drops(sa, sb Summary, replays bool, o CompareOptions) Change {
	c := m.shares("drop_rate", "lower", "share of requests that were not sent", sa, sb, func(p *pair) (bool, bool, bool) {
		return p.dropBase, p.dropCandidate, true
	}, o)
	c.Gates = replays
	return c
}

// attainment compares the share of requests that complete and meet every limit.
func (m *matched) attainment(sa, sb Summary, o CompareOptions) Change {
	return m.shares("slo_attainment", "higher", "share of requests that meet every limit", sa, sb, func(p *pair) (bool, bool, bool) { return p.metBase, p.metCandidate, true }, o)
}

func (m *matched) shares(name, better, statistic string, sa, sb Summary, of func(*pair) (base, candidate, counts bool), o CompareOptions) Change {
	sum, n := make([]float64, m.blocks), make([]float64, m.blocks)
	for i := range m.pairs {
		p := &m.pairs[i]
		a, b, counts := of(p)
		if !counts {
			continue
		}
		if b {
			sum[p.block]++
		}
		if a {
			sum[p.block]--
		}
		n[p.block]++
	}
	lo, hi := stats.BlockBootstrap(m.blocks, o.Draws, o.Seed, o.Confidence, func(times []int32) float64 {
		var s, c float64
		for i, w := range times {
			s += float64(w) * sum[i]
			c += float64(w) * n[i]
		}
		if c == 0 {
			return 0
		}
		return s / c
	})
	a, _ := aggregateNamed(name)
	matters := cmp.Or(o.MinPoints, a.Matters)
	c := Change{Name: name, Unit: "share", Better: better, Statistic: statistic, Base: sa.Aggregates[name].Value, Candidate: sb.Aggregates[name].Value, Verdict: Same, Gates: true, Pairs: len(m.pairs), MinPct: matters * 100}
	if c.Base.Valid && c.Candidate.Valid {
		d := c.Candidate.V - c.Base.V
		c.ChangePct = figure.Known(d * 100)
		c.Interval = [2]Null{figure.Known(lo * 100), figure.Known(hi * 100)}
		c.Verdict = decide(better, d, lo, hi, matters)
	}
	return c
}

// unpaired lists the figures that are no property of a request: without an interval they explain and decide nothing.
func unpaired(sa, sb Summary) []Change {
	var rows []Change
	for _, t := range aggregates {
		name, a, b := t.Name, sa.Aggregates[t.Name], sb.Aggregates[t.Name]
		if !t.Explains || !a.Value.Valid || !b.Value.Valid {
			continue
		}
		c := Change{Name: name, Unit: a.Unit, Better: a.Better, Statistic: "of the whole run", Base: a.Value, Candidate: b.Value, Verdict: Same}
		if a.Unit == "share" {
			c.ChangePct = figure.Known((b.Value.V - a.Value.V) * 100)
		} else if a.Value.V != 0 {
			c.ChangePct = figure.Known((b.Value.V/a.Value.V - 1) * 100)
		}
		rows = append(rows, c)
	}
	return rows
}
