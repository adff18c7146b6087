package stats

import (
	"math"
	"slices"

	"gonum.org/v1/gonum/stat/distuv"
)

// ChangeOptions say which changes of a series count. The zero value takes the defaults.
type ChangeOptions struct {
	MaxP       float64 // largest p-value of the t test between neighboring segments; 0: 1e-4
	MinSegment int     // values of a segment at least; 0: 4
	MinShift   float64 // smallest difference of neighboring means that counts; 0: any
	MinSDs     float64 // the same in robust deviations of a step; 0: 1.2, negative: any
}

func (o ChangeOptions) withDefaults() ChangeOptions {
	if o.MaxP == 0 {
		o.MaxP = 1e-4
	}
	if o.MinSegment == 0 {
		o.MinSegment = 4
	}
	if o.MinSDs == 0 {
		o.MinSDs = 1.2
	}
	return o
}

// Change is a place where a series changed its level.
type Change struct {
	At            int     // index of the first value of the new level
	Before, After float64 // means of the segments beside it, spikes pulled in
	P             float64 // of the t test between them
}

// Changes finds where a series changed its level, in order: spikes are pulled in, candidates found by divisive clustering on the
// energy distance, and kept where the neighboring segments differ by a t test and by enough. It draws nothing at random, so the same
// series gives the same answer. Quadratic in the series' length, which is cut to its last thousand values.
//
// Sources: Matteson and James, A nonparametric approach for multiple change point analysis, JASA 109 (2014); the t test in place of
// permutations and the merge from below as in Fleming et al., Hunter, ICPE 2023.
func Changes(series []float64, o ChangeOptions) []Change {
	o = o.withDefaults()
	skipped := max(0, len(series)-1000)
	x := Winsorize(series[skipped:], 7, 3)
	if len(x) < 2*o.MinSegment {
		return nil
	}
	if o.MinSDs > 0 {
		o.MinShift = max(o.MinShift, o.MinSDs*StepSD(x))
	}
	e := newEnergy(x)
	cuts := []int{0, len(x)}
	e.split(0, len(x), o, &cuts)
	slices.Sort(cuts)
	cuts = merge(x, cuts, o)
	var out []Change
	for i := 1; i+1 < len(cuts); i++ {
		a, b := x[cuts[i-1]:cuts[i]], x[cuts[i]:cuts[i+1]]
		out = append(out, Change{cuts[i] + skipped, mean(a), mean(b), pooledP(a, b)})
	}
	return out
}

// Winsorize pulls values that stand out of the running median of width w by more than k robust deviations of a step back to that
// bound, so that single spikes are no levels.
func Winsorize(x []float64, w int, k float64) []float64 {
	out := slices.Clone(x)
	reach := k * StepSD(x)
	if math.IsNaN(reach) || reach == 0 {
		return out
	}
	for i := range x {
		lo, hi := max(0, i-w/2), min(len(x), i+w/2+1)
		m := Median(x[lo:hi])
		out[i] = min(max(x[i], m-reach), m+reach)
	}
	return out
}

// StepSD is the robust deviation of one value around its level, from the differences of neighbors, which a change of level hardly
// touches; NaN below two values.
func StepSD(x []float64) float64 {
	if len(x) < 2 {
		return math.NaN()
	}
	d := make([]float64, len(x)-1)
	for i := range d {
		d[i] = x[i+1] - x[i]
	}
	return RobustSD(d) / math.Sqrt2
}

// energy sums distances between values: sum[i][j] is over the first i and the first j.
type energy struct {
	x   []float64
	sum [][]float64
}

func newEnergy(x []float64) *energy {
	e := &energy{x: x, sum: make([][]float64, len(x)+1)}
	e.sum[0] = make([]float64, len(x)+1)
	for i, a := range x {
		row := make([]float64, len(x)+1)
		acc := 0.0
		for j, b := range x {
			acc += math.Abs(a - b)
			row[j+1] = e.sum[i][j+1] + acc
		}
		e.sum[i+1] = row
	}
	return e
}

// block is the sum of distances between x[a:b] and x[c:d].
func (e *energy) block(a, b, c, d int) float64 {
	return e.sum[b][d] - e.sum[a][d] - e.sum[b][c] + e.sum[a][c]
}

// q is the scaled energy distance between x[a:t] and x[t:b].
func (e *energy) q(a, t, b int) float64 {
	n, m := float64(t-a), float64(b-t)
	between := 2 * e.block(a, t, t, b) / (n * m)
	left := e.block(a, t, a, t) / (n * n)
	right := e.block(t, b, t, b) / (m * m)
	return n * m / (n + m) * (between - left - right)
}

// split looks for the best cut of x[a:b], the second part ending at b or before, and goes on in what it leaves. Candidates are taken at
// ten times the p-value; merge then removes what does not hold.
func (e *energy) split(a, b int, o ChangeOptions, cuts *[]int) {
	if b-a < 2*o.MinSegment {
		return
	}
	best, at, end := math.Inf(-1), 0, 0
	for t := a + o.MinSegment; t+o.MinSegment <= b; t++ {
		for k := t + o.MinSegment; k <= b; k++ {
			if q := e.q(a, t, k); q > best {
				best, at, end = q, t, k
			}
		}
	}
	if pooledP(e.x[a:at], e.x[at:end]) > 10*o.MaxP {
		return
	}
	*cuts = append(*cuts, at)
	e.split(a, at, o, cuts)
	e.split(at, b, o, cuts)
}

// merge removes the weakest cut until all hold.
func merge(x []float64, cuts []int, o ChangeOptions) []int {
	for len(cuts) > 2 {
		worst, at := -1.0, 0
		for i := 1; i+1 < len(cuts); i++ {
			a, b := x[cuts[i-1]:cuts[i]], x[cuts[i]:cuts[i+1]]
			p := pooledP(a, b)
			if math.Abs(mean(a)-mean(b)) < o.MinShift {
				p = 2 // weaker than any
			}
			if p > worst {
				worst, at = p, i
			}
		}
		if worst <= o.MaxP {
			break
		}
		cuts = slices.Delete(cuts, at, at+1)
	}
	return cuts
}

func mean(x []float64) float64 {
	var m Moments
	for _, v := range x {
		m.Add(v, 1)
	}
	return m.Mean()
}

// pooledP is the two-sided p-value of Student's t test with pooled variance.
func pooledP(a, b []float64) float64 {
	var ma, mb Moments
	for _, v := range a {
		ma.Add(v, 1)
	}
	for _, v := range b {
		mb.Add(v, 1)
	}
	n, m := float64(len(a)), float64(len(b))
	df := n + m - 2
	if df < 1 {
		return 1
	}
	se := math.Sqrt((ma.m2 + mb.m2) / df * (1/n + 1/m))
	d := math.Abs(ma.Mean() - mb.Mean())
	if se == 0 {
		if d == 0 {
			return 1
		}
		return 0
	}
	return 2 * distuv.StudentsT{Mu: 0, Sigma: 1, Nu: df}.Survival(d/se)
}
