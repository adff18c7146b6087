package analyzer

import (
	"cmp"
	"math"
	"slices"
	"strconv"

	"github.com/shadowtape/shadowtape/analyzer/occupancy"
	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/figure"
	"github.com/shadowtape/shadowtape/internal/promtext"
	"github.com/shadowtape/shadowtape/internal/stats"
)

// ChartBins is how many intervals of time a chart has, however long the run.
const ChartBins = 400

// Points are a chart's values; NaN is a gap. In JSON they have four digits.
type Points []float64

// MarshalJSON writes null for a gap.
func (p Points) MarshalJSON() ([]byte, error) {
	b := []byte{'['}
	for i, v := range p {
		if i > 0 {
			b = append(b, ',')
		}
		if math.IsNaN(v) || math.IsInf(v, 0) {
			b = append(b, "null"...)
		} else {
			b = strconv.AppendFloat(b, v, 'g', 4, 64)
		}
	}
	return append(b, ']'), nil
}

// Slow is one of a run's slowest requests.
type Slow struct {
	ExchangeID   int64   `json:"exchange_id"`
	AtS          float64 `json:"at_s"` // scheduled, after the first
	InputTokens  int64   `json:"input_tokens"`
	OutputTokens int64   `json:"output_tokens"`
	TTFT         Null    `json:"ttft_ms"`
	TPOT         Null    `json:"tpot_ms"`
	E2EL         Null    `json:"e2el_ms"`
	SendLag      Null    `json:"send_lag_ms"`
	End          string  `json:"end"`
	Model        string  `json:"model"`
}

// Interference is what prefill did to the streams that were running, and what queue and pages did to the first token. Correlations are
// Spearman's, over the intervals of the charts.
type Interference struct {
	ITLDecodeOnly  Null   `json:"itl_decode_only_ms"` // mean gap per token while no prefill ran
	ITLMixed       Null   `json:"itl_mixed_ms"`       // and while one did
	Slowdown       Null   `json:"slowdown"`           // mixed ÷ decode only
	DecodeOnlyN    uint64 `json:"decode_only_n"`
	MixedN         uint64 `json:"mixed_n"`
	ITLPrefill     Null   `json:"itl_prefill_correlation"` // of the mean gap with the prefill tokens a second
	TTFTInFlight   Null   `json:"ttft_in_flight_correlation"`
	TTFTPagesInUse Null   `json:"ttft_pages_correlation"`
}

// Charts are a run over time and as distributions, in a size that does not depend on the run: for reports.
type Charts struct {
	FromUnixNS   int64             `json:"from_unix_ns"`
	StepS        float64           `json:"step_s"`
	Time         map[string]Points `json:"time"`  // by name; ChartBins values each
	Share        Points            `json:"share"` // the shares at which distributions are given, 0 to 1
	Quantiles    map[string]Points `json:"quantiles"`
	Throttled    []Throttled       `json:"throttled"` // by time; what a reader must not blame on the software
	Slowest      []Slow            `json:"slowest"`   // by end-to-end latency, then time to first token
	Interference Interference      `json:"interference"`
	Anomalies    []Anomaly         `json:"-"` // by time

	queue Points // least requests that waited in the server in each interval
}

// chartShares are dense in the tail.
func chartShares() Points {
	var p Points
	for i := range 100 {
		p = append(p, float64(i)/100)
	}
	for i := range 91 {
		p = append(p, 0.99+float64(i)/1e4)
	}
	return append(p, 0.9999, 1)
}

// binned collects what is charted, by interval.
type binned struct {
	from, step float64 // ns
	arrivals   []float64
	failures   []float64
	latency    [4][]stats.Sample // ttft, tpot, itl, e2el
	whole      [4]stats.Sample
	lag        []float64
	slow       []Slow
	prefilling []float64 // share of a model cell in prefill; nil where unknown
	cell       float64
	itl        [2]stats.Moments // decode only, mixed
	signs      signs

	at     int        // the interval of the row being added
	values [4]float64 // its latencies, the last of several; NaN where undefined
	yields [4]func(value, weight float64)
}

var chartLatencies = [4]string{"ttft", "tpot", "itl", "e2el"}

// chartMetrics are their lines of the table; itl's gaps are placed one by one.
var chartMetrics = func() (ms [4]*Metric) {
	for k, name := range chartLatencies {
		for i := range metrics {
			if metrics[i].Name == name && name != "itl" {
				ms[k] = &metrics[i]
			}
		}
	}
	return ms
}()

const slowest = 20

// Chart reads a run again for its charts. s is its summary.
func Chart(r *Run, s *Summary) (*Charts, error) {
	return chart(r, s, nil)
}

// chart makes the charts; l is nil where the run is not modelled.
func chart(r *Run, s *Summary, l *occupancy.Load) (*Charts, error) {
	w := &s.Window
	c := &Charts{FromUnixNS: w.FromUnixNS, StepS: w.Seconds / ChartBins, Time: map[string]Points{}, Share: chartShares(), Quantiles: map[string]Points{}}
	if w.Seconds <= 0 {
		return c, nil
	}
	var prefilling []float64
	if s.Mix != nil {
		prefilling = s.Mix.Prefilling()
	}
	parts := make([]*binned, workers())
	columns := append(append([]formats.Column{formats.ColExchangeID, formats.ColRequestModel, formats.ColAttempt}, metricColumns...), gapColumns...)
	err := r.each(columns, len(parts), func(i int) func(*formats.Exchange) {
		b := newBinned(w, prefilling)
		parts[i] = b
		return b.add
	})
	if err != nil {
		return nil, err
	}
	b := parts[0]
	if b == nil {
		return c, nil
	}
	for _, o := range parts[1:] {
		if o != nil {
			b.merge(o)
		}
	}
	b.fill(c)
	c.Throttled = w.Server.gpu.cuts
	chartModels(s, l, c)
	if err := chartServer(r, w, c); err != nil {
		return nil, err
	}
	if err := chartClient(r, w, c); err != nil {
		return nil, err
	}
	c.Interference.correlate(c.Time)
	c.Anomalies = append(b.signs.find(s, c, l), throttledAnomalies(w)...)
	slices.SortStableFunc(c.Anomalies, func(a, b Anomaly) int { return compareFloats(a.AtS.Or(-1), b.AtS.Or(-1)) })
	return c, nil
}

func newBinned(w *Window, prefilling []float64) *binned {
	span := float64(w.ToUnixNS - w.FromUnixNS)
	b := &binned{from: float64(w.FromUnixNS), step: span / ChartBins, arrivals: make([]float64, ChartBins), failures: make([]float64, ChartBins), lag: make([]float64, ChartBins), prefilling: prefilling, cell: span / occupancy.Cells}
	for i := range b.lag {
		b.lag[i] = math.NaN()
	}
	for k := range b.yields {
		b.yields[k] = func(v, _ float64) {
			b.latency[k][b.at].Add(v, 1)
			b.whole[k].Add(v, 1)
			b.values[k] = v
		}
	}
	for i := range b.latency {
		b.latency[i] = make([]stats.Sample, ChartBins)
		for k := range b.latency[i] {
			b.latency[i][k].Limit = 1 << 12
		}
	}
	return b
}

func (b *binned) bin(unixNS float64) int {
	return min(max(int((unixNS-b.from)/b.step), 0), ChartBins-1)
}

func (b *binned) add(x *formats.Exchange) {
	at := float64(x.ArrivalUnixNS)
	if x.Phase == formats.PhaseWarmup || at < b.from || at > b.from+b.step*ChartBins {
		return
	}
	i := b.bin(at)
	b.arrivals[i]++
	switch outcomeOf(x) {
	case outcomeFailed, outcomeDropped:
		b.failures[i]++
	}
	lag := math.NaN()
	if x.SentNS.Valid && x.Phase != formats.PhaseRecord {
		if lag = float64(x.SentNS.V) / nsPerMS; !(b.lag[i] > lag) {
			b.lag[i] = lag
		}
	}
	b.at, b.values = i, [4]float64{math.NaN(), math.NaN(), math.NaN(), math.NaN()}
	for k, m := range chartMetrics {
		if m != nil {
			m.Samples(x, b.yields[k])
		}
	}
	b.gaps(x)
	b.signs.add(x, b)
	if e2el, ttft := b.values[3], b.values[0]; finite(e2el) || finite(ttft) {
		if n := len(b.slow); n < slowest || !(e2el < b.slow[n-1].E2EL.V) { // most are not among the slowest
			b.keep(Slow{x.ExchangeID, (at - b.from) / 1e9, x.InputTokens.Or(0), x.OutputTokens.Or(0), figure.Known(ttft), figure.Known(b.values[1]), figure.Known(e2el), figure.Known(lag), string(x.EndReason), x.RequestModel})
		}
	}
}

// gaps places each gap at the moment it ended.
func (b *binned) gaps(x *formats.Exchange) {
	if !x.FirstTokenNS.Valid {
		return
	}
	first := float64(x.ArrivalUnixNS + x.FirstTokenNS.V)
	gaps(x, func(end, us int64, tokens int32, use bool) {
		at := first + float64(end)*1e3
		if !use || tokens <= 0 {
			return
		}
		v := float64(us) / 1e3 / float64(tokens)
		b.latency[2][b.bin(at)].Add(v, uint32(tokens))
		b.whole[2].Add(v, uint32(tokens))
		if len(b.prefilling) > 0 {
			middle := at - float64(us)*500
			switch p := b.prefilling[min(max(int((middle-b.from)/b.cell), 0), len(b.prefilling)-1)]; {
			case p < 0.01:
				b.itl[0].Add(v, float64(tokens))
			case p > 0.5:
				b.itl[1].Add(v, float64(tokens))
			}
		}
	})
}

// keep holds the slowest requests.
func (b *binned) keep(s Slow) {
	order := func(a, b Slow) int {
		return cmp.Or(cmp.Compare(b.E2EL.V, a.E2EL.V), cmp.Compare(b.TTFT.V, a.TTFT.V), cmp.Compare(a.ExchangeID, b.ExchangeID))
	}
	if len(b.slow) == slowest && order(b.slow[slowest-1], s) <= 0 {
		return
	}
	i, _ := slices.BinarySearchFunc(b.slow, s, order)
	b.slow = slices.Insert(b.slow, i, s)
	b.slow = b.slow[:min(len(b.slow), slowest)]
}

func (b *binned) merge(o *binned) {
	for i := range b.arrivals {
		b.arrivals[i] += o.arrivals[i]
		b.failures[i] += o.failures[i]
		if !math.IsNaN(o.lag[i]) && !(b.lag[i] > o.lag[i]) {
			b.lag[i] = o.lag[i]
		}
		for k := range b.latency {
			b.latency[k][i].Merge(&o.latency[k][i])
		}
	}
	for k := range b.whole {
		b.whole[k].Merge(&o.whole[k])
	}
	for i := range b.itl {
		b.itl[i].Merge(o.itl[i])
	}
	for _, s := range o.slow {
		b.keep(s)
	}
	b.signs.merge(&o.signs)
}

func (b *binned) fill(c *Charts) {
	rate := func(counts []float64) Points {
		p := make(Points, len(counts))
		for i, n := range counts {
			p[i] = n / (b.step / 1e9)
		}
		return p
	}
	c.Time["arrivals"], c.Time["failures"], c.Time["send_lag_max"] = rate(b.arrivals), rate(b.failures), b.lag
	for k, name := range chartLatencies {
		p50, p95 := make(Points, ChartBins), make(Points, ChartBins)
		for i := range p50 {
			p50[i], p95[i] = b.latency[k][i].Quantile(0.5), b.latency[k][i].Quantile(0.95)
		}
		if b.whole[k].N() == 0 {
			continue
		}
		c.Time[name+"_p50"], c.Time[name+"_p95"] = p50, p95
		q := make(Points, len(c.Share))
		for i, p := range c.Share {
			q[i] = b.whole[k].Quantile(p)
		}
		c.Quantiles[name] = q
	}
	c.Slowest = b.slow
	in := &c.Interference
	in.DecodeOnlyN, in.MixedN = uint64(b.itl[0].N()), uint64(b.itl[1].N())
	in.ITLDecodeOnly, in.ITLMixed = figure.Known(b.itl[0].Mean()), figure.Known(b.itl[1].Mean())
	if in.ITLDecodeOnly.V > 0 && in.ITLMixed.Valid {
		in.Slowdown = figure.Known(in.ITLMixed.V / in.ITLDecodeOnly.V)
	}
}

// chartModels adds in flight, token rates, pages and mix.
func chartModels(s *Summary, l *occupancy.Load, c *Charts) {
	if s.Mix == nil || l == nil {
		return
	}
	set := func(name string, cells []float64) {
		if cells != nil {
			c.Time[name] = cells
		}
	}
	inFlight, prefill, output := l.Rates(ChartBins)
	set("in_flight", inFlight)
	set("prefill_rate", prefill)
	set("output_rate", output)
	low, high, fill := s.Pages.Over(ChartBins)
	set("pages_low", low)
	set("pages_high", high)
	set("page_fill", fill)
	for i, cells := range s.Mix.States(ChartBins) {
		set([]string{"mix_idle", "mix_prefill", "mix_decode", "mix_mixed"}[i], cells)
	}
}

// chartServer adds the server's gauges: of each interval the mean reading of each engine, summed over engines, of the page usage averaged.
func chartServer(r *Run, w *Window, c *Charts) error {
	type level struct{ sum, n float64 }
	names := map[string]string{promtext.KVUsage: "server_pages", promtext.Waiting: "server_waiting", promtext.Running: "server_running"}
	levels := map[engineSeries][]level{}
	queue := map[engineSeries]float64{} // of each engine, now
	c.queue = make(Points, ChartBins)
	stands := make([]float64, ChartBins) // the last reading of each interval
	for i := range c.queue {
		c.queue[i], stands[i] = math.NaN(), math.NaN()
	}
	err := r.readings(func(unixNS int64, target string, all []promtext.Reading) {
		for _, g := range all {
			if g.Name == promtext.Waiting {
				queue[engineSeries{g.Name, target, g.Engine}] = g.Value
			}
		}
		if unixNS < w.FromUnixNS || unixNS > w.ToUnixNS {
			return
		}
		i := min(int(float64(unixNS-w.FromUnixNS)/float64(w.ToUnixNS-w.FromUnixNS)*ChartBins), ChartBins-1)
		for _, g := range all {
			if names[g.Name] == "" {
				continue
			}
			key := engineSeries{g.Name, target, g.Engine}
			if levels[key] == nil {
				levels[key] = make([]level, ChartBins)
			}
			levels[key][i].sum += g.Value
			levels[key][i].n++
		}
		if len(queue) > 0 {
			stands[i] = sumValues(queue)
			if !(c.queue[i] <= stands[i]) {
				c.queue[i] = stands[i]
			}
		}
	})
	if err != nil {
		return err
	}
	for i := 1; i < ChartBins; i++ { // a gauge stands until its next reading
		if math.IsNaN(c.queue[i]) {
			c.queue[i], stands[i] = stands[i-1], stands[i-1]
		}
	}
	for quantity, name := range names {
		p := make(Points, ChartBins)
		for i := range p {
			sum, n := 0.0, 0.0
			for key, of := range levels {
				if l := of[i]; key.name == quantity && l.n > 0 {
					sum += l.sum / l.n
					n++
				}
			}
			if p[i] = sum; n == 0 {
				p[i] = math.NaN()
			} else if quantity == promtext.KVUsage {
				p[i] = sum / n
			}
		}
		if slices.ContainsFunc(p, finite) {
			c.Time[name] = p
		}
	}
	return nil
}

// chartClient adds the client's and the GPUs' health.
func chartClient(r *Run, w *Window, c *Charts) error {
	if r.trace == nil {
		return nil
	}
	bin := func(unixNS int64) int {
		if unixNS < w.FromUnixNS || unixNS > w.ToUnixNS {
			return -1
		}
		return min(int(float64(unixNS-w.FromUnixNS)/float64(w.ToUnixNS-w.FromUnixNS)*ChartBins), ChartBins-1)
	}
	set := func(name string, i int, v float64) {
		if c.Time[name] == nil {
			p := make(Points, ChartBins)
			for i := range p {
				p[i] = math.NaN()
			}
			c.Time[name] = p
		}
		if !(c.Time[name][i] > v) {
			c.Time[name][i] = v
		}
	}
	var before formats.ClientSample
	for s, err := range r.trace.ClientSamples() {
		if err != nil {
			return r.readError(err)
		}
		if i := bin(s.UnixNS); i >= 0 && before.UnixNS > 0 && s.UnixNS > before.UnixNS {
			set("client_cpu", i, (s.CPUSeconds-before.CPUSeconds)/(float64(s.UnixNS-before.UnixNS)/1e9))
			set("client_sched", i, float64(s.SchedLatencyNS)/nsPerMS)
		}
		before = s
	}
	for s, err := range r.trace.GPUSamples() {
		if err != nil {
			return r.readError(err)
		}
		i := bin(s.UnixNS)
		if i < 0 {
			continue
		}
		if s.SMUtil.Valid {
			set("gpu_util", i, s.SMUtil.V)
		}
		if s.PowerMW.Valid {
			set("gpu_power", i, float64(s.PowerMW.V)/1e3)
		}
		if s.SMClockMHz.Valid {
			set("gpu_clock", i, float64(s.SMClockMHz.V))
		}
		if s.TemperatureC.Valid {
			set("gpu_temperature", i, float64(s.TemperatureC.V))
		}
	}
	return nil
}

// correlate fills in the correlations between charts.
func (in *Interference) correlate(time map[string]Points) {
	in.ITLPrefill = correlation(time["prefill_rate"], time["itl_p50"])
	in.TTFTInFlight = correlation(time["in_flight"], time["ttft_p50"])
	in.TTFTPagesInUse = correlation(time["pages_high"], time["ttft_p50"])
}

// correlation is Spearman's over the intervals in which both have a value; null for fewer than ten.
func correlation(a, b Points) Null {
	if len(a) == 0 || len(b) == 0 {
		return Null{}
	}
	var x, y []float64
	for i := range a {
		if !math.IsNaN(a[i]) && !math.IsNaN(b[i]) {
			x, y = append(x, a[i]), append(y, b[i])
		}
	}
	if len(x) < 10 {
		return Null{}
	}
	return figure.Known(stats.Spearman(ordinal(x), ordinal(y)))
}

// ordinal replaces values by their order, equal values alike.
func ordinal(x []float64) []int32 {
	sorted := slices.Clone(x)
	slices.Sort(sorted)
	sorted = slices.Compact(sorted)
	out := make([]int32, len(x))
	for i, v := range x {
		k, _ := slices.BinarySearch(sorted, v)
		out[i] = int32(k)
	}
	return out
}
