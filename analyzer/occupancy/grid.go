package occupancy

import (
	"math"
	"slices"

	"github.com/shadowtape/shadowtape/internal/figure"
	"github.com/shadowtape/shadowtape/internal/stats"
)

// Cells is into how many equal parts of time a span is cut.
const Cells = 80 * stretchesOfSpan

// grid is a quantity over time: each cell holds its time-weighted mean. Means over the whole are exact; peaks and percentiles are of cells.
type grid struct {
	from, width float64
	edge, diff  []float64 // of cells partly covered; of runs of whole cells
	stretches   stretches
}

func (l *Load) grid() *grid {
	return &grid{float64(l.from), max(float64(l.to-l.from), 1) / Cells, make([]float64, Cells+1), make([]float64, Cells+1), l.stretches}
}

// add holds v from a to b (Unix ns); what lies outside the grid is cut.
func (g *grid) add(a, b int64, v float64) {
	x, y := (float64(a)-g.from)/g.width, (float64(b)-g.from)/g.width
	x, y = max(x, 0), min(y, Cells)
	if !(y > x) || v == 0 {
		return
	}
	i, j := int(x), int(y)
	if i == j {
		g.edge[i] += v * (y - x)
		return
	}
	g.edge[i] += v * (float64(i+1) - x)
	g.edge[j] += v * (y - float64(j))
	g.diff[i+1] += v
	g.diff[j] -= v
}

// cells returns the level of each cell; NaN where that time is not modelled.
func (g *grid) cells() []float64 {
	out := make([]float64, Cells)
	level := 0.0
	for i := range out {
		level += g.diff[i]
		out[i] = max(level+g.edge[i], 0)
		if !g.stretches.has(i / (Cells / stretchesOfSpan)) {
			out[i] = math.NaN()
		}
	}
	return out
}

// Level is a quantity over time.
type Level struct {
	Mean Null `json:"mean"` // weighted by time
	P95  Null `json:"p95"`
	Peak Null `json:"peak"`
}

func levelOf(cells []float64) Level {
	if len(cells) == 0 {
		return Level{}
	}
	sorted := slices.DeleteFunc(slices.Clone(cells), math.IsNaN)
	if len(sorted) == 0 {
		return Level{}
	}
	slices.Sort(sorted)
	return Level{figure.Known(mean(sorted)), figure.Known(stats.Quantile(sorted, 0.95)), figure.Known(sorted[len(sorted)-1])}
}

// Band is what lies between two models of the moment that prefill began.
type Band struct {
	Low  Level `json:"low"`  // prefill began as late as its length and the observed speed allow
	High Level `json:"high"` // prefill began when the request was sent
}

// ratioOf divides two levels cell by cell where the second is above 0, and weighs by the second.
func ratioOf(a, b []float64) Null {
	var x, y float64
	for i := range a {
		if b[i] > 0 {
			x += a[i]
			y += b[i]
		}
	}
	if y == 0 {
		return Null{}
	}
	return figure.Known(x / y)
}

// shrink averages cells into n points for a chart.
func shrink(cells []float64, n int) []float64 {
	if len(cells) <= n {
		return cells
	}
	out := make([]float64, n)
	for i := range out {
		a, b := i*len(cells)/n, (i+1)*len(cells)/n
		out[i] = mean(cells[a:b])
	}
	return out
}

// spread deals a total out evenly from a to b, as a rate per second; where they are one moment it falls into one cell.
func (g *grid) spread(a, b int64, total float64) {
	if least := int64(g.width) + 1; b-a < least {
		a = b - least
	}
	g.add(a, b, total/(float64(b-a)/1e9))
}

// mean is NaN where a value is, or there is none.
func mean(x []float64) float64 {
	sum := 0.0
	for _, v := range x {
		sum += v
	}
	return sum / float64(len(x))
}
