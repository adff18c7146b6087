package verdict

import (
	"math"

	"github.com/shadowtape/shadowtape/internal/stats"
)

// Past is what a history knows of one metric of one series, on the metric's scale. The zero value is no history.
type Past struct {
	Nights  []float64 `json:"nights,omitempty"`  // levels of the current segment, one for each night: the median of its launches
	Earlier []float64 `json:"earlier,omitempty"` // of earlier segments: nights minus their segment's median
	AA      []float64 `json:"aa,omitempty"`      // differences of pairs of launches of the same build
	Slow    []int     `json:"slow,omitempty"`    // the slow set that the levels of a Slow metric are over
}

const (
	fewestNights  = 8    // of a segment that speaks for itself
	fewestSegment = 3    // of a segment that earlier ones' residuals speak for
	boundLevel    = 0.95 // of the one-sided prediction bound
)

// spread is the robust deviation of a night around its segment, the degrees of freedom it is known with, and whether there is one.
func (p Past) spread() (sd, df float64, ok bool) {
	n := len(p.Nights)
	if n < fewestSegment || n < fewestNights && n+len(p.Earlier) < fewestNights {
		return 0, 0, false
	}
	m := stats.Median(p.Nights)
	r := make([]float64, 0, n+len(p.Earlier))
	for _, v := range p.Nights {
		r = append(r, v-m)
	}
	r = append(r, p.Earlier...)
	return stats.RobustSD(r), float64(len(r) - 1), true
}

// Bounds are the one-sided 95 % prediction bounds for one more night: what stands outside is not what this series has shown. They are
// centred on the median of many nights, not on one stored run. ok is false where the history is too short to have any.
func (p Past) Bounds() (lo, median, hi float64, ok bool) {
	sd, df, ok := p.spread()
	if !ok {
		return 0, 0, 0, false
	}
	median = stats.Median(p.Nights)
	reach := stats.StudentT(boundLevel, df) * sd * math.Sqrt(1+1/float64(len(p.Nights)))
	return median - reach, median, median + reach, true
}

// Against estimates, on the metric's scale, the difference of candidate launches from the history alone, where nothing was measured beside them: the median of
// the launches against the median of the nights. Its deviation is a night's, so it is a little wide.
func (p Past) Against(levels []float64) (stats.Estimate, bool) {
	sd, df, ok := p.spread()
	if !ok || len(levels) == 0 {
		return stats.Estimate{}, false
	}
	return stats.Estimate{
		N: 1, Mean: stats.Median(levels) - stats.Median(p.Nights), SD: sd * math.Sqrt(1+1/float64(len(p.Nights))), DF: df,
	}, true
}
