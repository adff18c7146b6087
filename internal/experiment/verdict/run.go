// Package verdict decides from pairs of runs whether a candidate is worse than its base. The unit is a launch of the server: requests
// only make the difference between the two runs of a pair precise.
package verdict

import (
	"math"
	"slices"

	"github.com/shadowtape/shadowtape/internal/stats"
)

// Kind is how two runs are compared on a metric.
type Kind string

// The kinds. On all but Share the scale is the natural logarithm, so that a difference is a ratio.
const (
	Centre Kind = "centre" // mean ln ratio over matched requests: the typical request
	Slow   Kind = "slow"   // median ln ratio over the requests that are slowest over all runs of both sides
	Level  Kind = "level"  // ln ratio of a figure of the whole run
	Share  Kind = "share"  // difference of a share of the whole run
	Count  Kind = "count"  // difference of a number of the whole run that may be 0
)

// Metric is what is compared and what counts.
type Metric struct {
	Name       string  // ttft, ttft_slow, tpot, capacity, …
	Of         string  // the column or figure that it is made of
	Kind       Kind    //
	Unit       string  // of the figure shown
	Better     string  // lower or higher; "": a change is neither, and the metric only explains
	Tolerance  float64 // a change below it is acceptable: 0.05 is 5 %, of a share 5 points
	Minimum    float64 // a smaller change is no regression, however sure it is
	Resolution float64 // in Unit: a smaller difference is below what the client's clock can vouch for
	Gate       bool    // counts for the verdict; the others are worth a look
	Set        []int   // of a Slow metric: the slow set, by place in the schedule; nil: chosen anew over all runs compared
}

// sign makes worse positive.
func (m Metric) sign() float64 {
	if m.Better == "higher" {
		return -1
	}
	return 1
}

// plain reports whether the metric's scale is its unit, not the logarithm.
func (m Metric) plain() bool { return m.Kind == Share || m.Kind == Count }

// Run is what a decision needs of one run.
type Run struct {
	Label   string
	Columns map[string][]float64 // by metric: the value of each request, by its place in the schedule; NaN where it is not defined
	Figures map[string]float64   // by name: figures of the whole run; absent where unknown
}

// slowShare is how many of the requests are the slow set.
const slowShare = 0.05

// Level is a run's own figure on the metric's scale: what a history holds. It is NaN where it is not defined. A Slow metric's is the
// median logarithm over its set, or over the run's own slowest where it has none.
func (r *Run) Level(m Metric) float64 {
	switch m.Kind {
	case Centre:
		return meanLog(r.Columns[m.Of])
	case Slow:
		if m.Set != nil {
			_, _, level := matchedMedian(r.Columns[m.Of], r.Columns[m.Of], m.Set)
			return level
		}
		x := make([]float64, 0, len(r.Columns[m.Of]))
		for _, v := range r.Columns[m.Of] {
			if v > 0 {
				x = append(x, v)
			}
		}
		slices.Sort(x)
		return math.Log(stats.Quantile(x, 1-slowShare/2))
	}
	v, ok := r.Figures[m.Of]
	switch {
	case !ok:
		return math.NaN()
	case m.plain():
		return v
	case !(v > 0):
		return math.NaN()
	}
	return math.Log(v)
}

func meanLog(x []float64) float64 {
	sum, n := 0.0, 0
	for _, v := range x {
		if v > 0 {
			sum += math.Log(v)
			n++
		}
	}
	return sum / float64(n) // NaN for none
}

// Differences are the differences of pairs of runs on the metric's scale, one for each pair in which it is defined, and the levels of
// both sides, in the metric's unit. They are the candidate's minus the base's: not yet turned so that worse is positive.
func Differences(m Metric, base, candidate []*Run) (d []float64, a, b float64) {
	n := min(len(base), len(candidate))
	var la, lb []float64
	set := m.Set
	if m.Kind == Slow && set == nil {
		set = Slowest(m.Of, base[:n], candidate[:n])
	}
	for i := range n {
		x, y := base[i].Level(m), candidate[i].Level(m)
		var diff float64
		switch m.Kind {
		case Centre:
			diff, x, y = matchedMean(base[i].Columns[m.Of], candidate[i].Columns[m.Of])
		case Slow:
			diff, x, y = matchedMedian(base[i].Columns[m.Of], candidate[i].Columns[m.Of], set)
		default:
			diff = y - x
		}
		if math.IsNaN(diff) || math.IsInf(diff, 0) {
			continue
		}
		d, la, lb = append(d, diff), append(la, x), append(lb, y)
	}
	return d, m.figure(la), m.figure(lb)
}

// figure is the middle of levels, in the metric's unit.
func (m Metric) figure(levels []float64) float64 {
	var s float64
	for _, v := range levels {
		s += v
	}
	s /= float64(len(levels)) // NaN for none
	if m.plain() {
		return s
	}
	return math.Exp(s)
}

// matchedMean is the mean ln ratio over the requests that both runs have, and both sides' mean logarithms.
func matchedMean(x, y []float64) (d, a, b float64) {
	n := 0
	for i := range min(len(x), len(y)) {
		if x[i] > 0 && y[i] > 0 {
			u, v := math.Log(x[i]), math.Log(y[i])
			a, b, n = a+u, b+v, n+1
		}
	}
	k := float64(n)
	return (b - a) / k, a / k, b / k
}

// matchedMedian is the median ln ratio over a set of requests, and the logarithms of both sides' medians.
func matchedMedian(x, y []float64, set []int) (d, a, b float64) {
	var ratios, u, v []float64
	for _, i := range set {
		if i < len(x) && i < len(y) && x[i] > 0 && y[i] > 0 {
			p, q := math.Log(x[i]), math.Log(y[i])
			ratios, u, v = append(ratios, q-p), append(u, p), append(v, q)
		}
	}
	return stats.Median(ratios), stats.Median(u), stats.Median(v)
}

// Slowest are the 5 % of the requests with the largest median over all runs of all sides: chosen on all, so that chance on one side cannot
// look like a change. Fewer than twenty are none. A history chooses its set once, from its first runs, so that its nights compare and
// neither side of a later comparison has a part in the choice.
func Slowest(column string, sides ...[]*Run) []int {
	var all [][]float64
	n := 0
	for _, runs := range sides {
		for _, r := range runs {
			all = append(all, r.Columns[column])
			n = max(n, len(r.Columns[column]))
		}
	}
	type request struct {
		i int
		v float64
	}
	found := make([]request, 0, n)
	values := make([]float64, 0, len(all))
	for i := range n {
		values = values[:0]
		for _, c := range all {
			if i < len(c) && c[i] > 0 {
				values = append(values, c[i])
			}
		}
		if 2*len(values) > len(all) {
			slices.Sort(values)
			found = append(found, request{i, stats.Quantile(values, 0.5)})
		}
	}
	k := int(float64(len(found)) * slowShare)
	if k < 20 {
		return nil
	}
	slices.SortFunc(found, func(a, b request) int {
		switch {
		case a.v > b.v, a.v == b.v && a.i < b.i:
			return -1
		case a == b:
			return 0
		}
		return 1
	})
	out := make([]int, k)
	for i := range out {
		out[i] = found[i].i
	}
	return out
}
