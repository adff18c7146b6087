package analyzer

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/shadowtape/shadowtape/analyzer/occupancy"
	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/figure"
	"github.com/shadowtape/shadowtape/internal/stats"
)

// Anomaly is something in a run that a reader should look at before trusting a figure or blaming a server.
type Anomaly struct {
	Name     string `json:"name"`
	AtS      Null   `json:"at_s"` // seconds after the first arrival; null where it is all of the run
	Evidence string `json:"evidence"`
}

// The names of anomalies.
const (
	AnomalyBuffering  = "buffering"     // something between server and client holds streams back and lets them go at once
	AnomalyStall      = "server_stall"  // most running streams stood still at one instant
	AnomalyColdStart  = "cold_start"    // the first requests waited far longer than the rest
	AnomalySaturation = "saturation"    // requests in flight and times to first token grew together
	AnomalyClient     = "client"        // the client was late
	AnomalyRetries    = "retries"       // requests were tried again
	AnomalyFailures   = "failures"      // failures that came close together
	AnomalyThrottling = "gpu_throttled" // clocks were below what they could be
)

// arrived is a request's arrival (Unix ns) and its time to first token (ms).
type arrived struct{ at, ttft float64 }

// longGap is a gap that may be part of a stall.
type longGap struct{ from, to float64 } // Unix ns

const maxLongGaps = 1 << 16

// signs are what anomalies are found from, beside the charts. They merge.
type signs struct {
	streams, atOnce  int64 // streams of more than 20 tokens; those whose tokens came in the last tenth of their time, faster than any model makes them: a millisecond each
	events, together int64 // events after the first; those that shared a read
	retried          int64
	retriedAt        float64
	first            []arrived // arrival, ttft: the earliest requests
	long             []longGap
	kinds            map[string][]float64 // failures by kind, per bin
}

// stallGap is how long a gap must be to count for a stall, in ms.
const stallGap = 250

func (g *signs) add(x *formats.Exchange, b *binned) {
	if x.Attempt.Or(1) > 1 {
		if g.retried == 0 {
			g.retriedAt = float64(x.ArrivalUnixNS)
		}
		g.retried++
	}
	if o := outcomeOf(x); o == outcomeFailed {
		if g.kinds == nil {
			g.kinds = map[string][]float64{}
		}
		kind := cmp.Or(x.ErrorKind, string(x.EndReason))
		if g.kinds[kind] == nil {
			if len(g.kinds) >= 50 {
				return
			}
			g.kinds[kind] = make([]float64, ChartBins)
		}
		g.kinds[kind][b.bin(float64(x.ArrivalUnixNS))]++
		return
	}
	if !x.FirstTokenNS.Valid || !x.LastTokenNS.Valid {
		return
	}
	if _, use := firstToken(x); use {
		g.first = append(g.first, arrived{float64(x.ArrivalUnixNS), float64(x.FirstTokenNS.V) / nsPerMS})
	}
	if len(g.first) >= 512 {
		g.earliest()
	}
	if x.OutputTokens.Or(0) > 20 && len(x.EventGapUS) > 5 && complete(x) {
		g.streams++
		if span := x.LastTokenNS.V - x.FirstTokenNS.V; span < x.LastTokenNS.V/10 && span < (x.OutputTokens.V-1)*1e6 {
			g.atOnce++
		}
	}
	at := float64(x.ArrivalUnixNS + x.FirstTokenNS.V)
	for i, gap := range x.EventGapUS {
		if i == 0 {
			continue
		}
		g.events++
		if i < len(x.EventFlags) && x.EventFlags[i]&formats.FlagCoalesced != 0 {
			g.together++
		}
		from := at
		at += float64(gap) * 1e3
		if gap >= stallGap*1000 && len(g.long) < maxLongGaps {
			g.long = append(g.long, longGap{from, at})
		}
	}
}

// earliest keeps the 256 requests that came first.
func (g *signs) earliest() {
	slices.SortFunc(g.first, func(a, b arrived) int { return compareFloats(a.at, b.at) })
	g.first = g.first[:min(len(g.first), 256)]
}

func (g *signs) merge(o *signs) {
	g.streams += o.streams
	g.atOnce += o.atOnce
	g.events += o.events
	g.together += o.together
	if o.retried > 0 && (g.retried == 0 || o.retriedAt < g.retriedAt) {
		g.retriedAt = o.retriedAt
	}
	g.retried += o.retried
	g.first = append(g.first, o.first...)
	g.earliest()
	g.long = append(g.long, o.long...)
	for kind, bins := range o.kinds {
		if g.kinds == nil {
			g.kinds = map[string][]float64{}
		}
		if g.kinds[kind] == nil {
			g.kinds[kind] = make([]float64, ChartBins)
		}
		for i, n := range bins {
			g.kinds[kind][i] += n
		}
	}
}

// find names what stands out, in order of time.
func (g *signs) find(s *Summary, c *Charts, l *occupancy.Load) []Anomaly {
	all := []Anomaly{}
	add := func(name string, at Null, format string, args ...any) {
		all = append(all, Anomaly{name, at, fmt.Sprintf(format, args...)})
	}
	when := func(unixNS float64) Null { return figure.Known((unixNS - float64(c.FromUnixNS)) / 1e9) }
	if g.streams >= 10 && 2*g.atOnce > g.streams {
		add(AnomalyBuffering, Null{}, "%d of %d streams brought all their tokens in the last tenth of their time: something between server and client buffers them", g.atOnce, g.streams)
	} else if g.events >= 100 && 2*g.together > g.events {
		add(AnomalyBuffering, Null{}, "%.0f %% of events shared a read or packet with the one before", 100*float64(g.together)/float64(g.events))
	}
	g.coldStart(s, add, when)
	g.stalls(s, l, add, when)
	saturation(c, add)
	if lag := s.Metrics["send_lag"]; lag.Max.Valid && lag.Max.V > 20 {
		i := peakOf(c.Time["send_lag_max"])
		add(AnomalyClient, figure.Known(float64(i)*c.StepS), "a request was sent %s ms late; the mean is %s ms", figure.Number(lag.Max.V), figure.Cell(lag.Mean))
	}
	if g.retried > 0 {
		add(AnomalyRetries, when(g.retriedAt), "%d requests were tried again on a fresh connection, the first one here", g.retried)
	}
	for _, kind := range sortedKeys(g.kinds) {
		bins := g.kinds[kind]
		windows := make([]float64, ChartBins)
		for i := range windows {
			windows[i] = sumOf(bins[i:min(i+clusterBins, ChartBins)])
		}
		if i, total := peakOf(windows), sumOf(bins); windows[i] >= 5 && windows[i] >= 0.3*total {
			add(AnomalyFailures, figure.Known(float64(i)*c.StepS), "%.0f of %.0f failures of kind %s came within %s s", windows[i], total, kind, figure.Number(c.StepS*clusterBins))
		}
	}
	slices.SortStableFunc(all, func(a, b Anomaly) int { return compareFloats(a.AtS.Or(-1), b.AtS.Or(-1)) })
	return all
}

// clusterBins is how many intervals a cluster of failures may last: a fiftieth of the run.
const clusterBins = ChartBins / 50

type finder func(name string, at Null, format string, args ...any)

// coldStart compares the first requests with all: three times the median wait, for at least five of the first twenty.
func (g *signs) coldStart(s *Summary, add finder, when func(float64) Null) {
	g.earliest()
	median := s.Metrics["ttft"].P50
	if len(g.first) < 20 || s.Metrics["ttft"].N < 100 || !median.Valid || median.V <= 0 {
		return
	}
	first, later := g.first[:20], g.first[20:min(len(g.first), 60)]
	slow := func(ps []arrived) (n int) {
		for _, p := range ps {
			if p.ttft > 3*median.V {
				n++
			}
		}
		return n
	}
	if n := slow(first); n >= 5 && float64(slow(later))/float64(max(len(later), 1)) < float64(n)/20/2 {
		add(AnomalyColdStart, when(first[0].at), "%d of the first 20 requests waited more than three times the median of %s ms for their first token", n, figure.Number(median.V))
	}
}

// stalls finds instants at which most running streams stood still for a quarter of a second and three times the p99 gap: at least five
// streams, and four fifths of those in decode.
func (g *signs) stalls(s *Summary, l *occupancy.Load, add finder, when func(float64) Null) {
	if len(g.long) < 5 || l == nil {
		return
	}
	usual := s.Metrics["event_gap"].P99
	if !usual.Valid {
		usual = s.Metrics["event_gap"].Max
	}
	g.long = slices.DeleteFunc(g.long, func(l longGap) bool { return l.to-l.from < 3*usual.V*nsPerMS })
	if len(g.long) < 5 {
		return
	}
	slices.SortFunc(g.long, func(a, b longGap) int { return compareFloats(a.from, b.from) })
	streams := l.Streams()
	type stall struct {
		at, length float64
		streams    int
		of         float64
	}
	var found []stall
	for i := 0; i < len(g.long); {
		// the gaps that span the middle of this one
		middle := (g.long[i].from + g.long[i].to) / 2
		n, to := 0, g.long[i].to
		j := i
		for ; j < len(g.long) && g.long[j].from < middle; j++ {
			if g.long[j].to > middle {
				n++
				to = min(to, g.long[j].to)
			}
		}
		if running := streams(middle); n >= 5 && float64(n) >= 0.8*running { // never where it is unknown
			found = append(found, stall{g.long[i].from, to - g.long[i].from, n, running})
			i = j
			continue
		}
		i++
	}
	// A server whose every step is long has long gaps all the time: that is load, not a stall.
	if len(found) == 0 || len(found) > 50 {
		return
	}
	slices.SortStableFunc(found, func(a, b stall) int { return compareFloats(b.length, a.length) })
	for i, f := range found {
		if i == 3 {
			add(AnomalyStall, when(f.at), "and %d more stalls, this one the next longest", len(found)-3)
			break
		}
		add(AnomalyStall, when(f.at), "%d of %.0f running streams stood still for %s ms", f.streams, max(f.of, float64(f.streams)), figure.Number(f.length/1e6))
	}
}

// saturation compares the first and the last third of a run.
func saturation(c *Charts, add finder) {
	flight, ttft := c.Time["in_flight"], c.Time["ttft_p50"]
	if len(flight) == 0 || len(ttft) == 0 {
		return
	}
	third := func(p Points, k int) float64 {
		var x []float64
		for _, v := range p[k*len(p)/3 : (k+1)*len(p)/3] {
			if !math.IsNaN(v) {
				x = append(x, v)
			}
		}
		slices.Sort(x)
		return stats.Quantile(x, 0.5)
	}
	// the end of a run drains: its last tenth says nothing
	flight, ttft = flight[:len(flight)*9/10], ttft[:len(ttft)*9/10]
	f0, f1, f2, t0, t2 := third(flight, 0), third(flight, 1), third(flight, 2), third(ttft, 0), third(ttft, 2)
	if f1 > 1.2*f0 && f2 > 2*f0 && f2 > f1 && f2 > 4 && t2 > 2*t0 {
		add(AnomalySaturation, figure.Known(float64(len(ttft))/3*c.StepS), "requests in flight grew from %s to %s and the time to first token from %s to %s ms: more came than the service carries", figure.Number(f0), figure.Number(f2), figure.Number(t0), figure.Number(t2))
	}
}

// peakOf is the index of the largest value.
func peakOf(x []float64) int {
	at, top := 0, math.Inf(-1)
	for i, v := range x {
		if v > top {
			at, top = i, v
		}
	}
	return at
}
