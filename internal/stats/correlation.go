package stats

import (
	"cmp"
	"math"
	"slices"
)

// Pearson is the correlation of two columns of one length; NaN where either is constant or fewer than two rows.
func Pearson(x, y []int32) float64 {
	if len(x) != len(y) || len(x) < 2 {
		return math.NaN()
	}
	n := float64(len(x))
	var mx, my float64
	for i := range x {
		mx += float64(x[i])
		my += float64(y[i])
	}
	mx, my = mx/n, my/n
	var sxx, syy, sxy float64
	for i := range x {
		dx, dy := float64(x[i])-mx, float64(y[i])-my
		sxx += dx * dx
		syy += dy * dy
		sxy += dx * dy
	}
	if sxx == 0 || syy == 0 {
		return math.NaN()
	}
	return sxy / math.Sqrt(sxx*syy)
}

// Spearman is Pearson's correlation of the ranks, ties sharing their average rank. It needs 4 bytes a row for each column beside its
// arguments.
func Spearman(x, y []int32) float64 {
	if len(x) != len(y) || len(x) < 2 {
		return math.NaN()
	}
	return Pearson(doubledRanks(x), doubledRanks(y))
}

// doubledRanks returns twice the average rank of every value, which is a whole number; correlation does not see the factor. Rows
// beyond 2³⁰ would overflow: a trace that long has no use for a rank correlation.
func doubledRanks(x []int32) []int32 {
	order := make([]int32, len(x))
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortFunc(order, func(a, b int32) int { return cmp.Compare(x[a], x[b]) })
	ranks := make([]int32, len(x))
	for i := 0; i < len(order); {
		j := i + 1
		for j < len(order) && x[order[j]] == x[order[i]] {
			j++
		}
		for k := i; k < j; k++ {
			ranks[order[k]] = int32(i + j + 1) // ranks i+1 … j, their sum over their number, doubled
		}
		i = j
	}
	return ranks
}

// Dispersion is the index of dispersion of counts: population variance over mean of the number of events in consecutive windows
// [t₀ + kW, t₀ + (k+1)W), complete windows only. times are sorted ascending; window is in their unit. ok is false where there is no
// complete window.
func Dispersion(times []int64, window int64) (idc float64, ok bool) {
	if len(times) < 2 || window <= 0 {
		return 0, false
	}
	t0 := times[0]
	complete := (times[len(times)-1] - t0) / window
	if complete < 1 {
		return 0, false
	}
	var m Moments
	i := 0
	for k := int64(0); k < complete; {
		end := t0 + (k+1)*window
		j := i
		for j < len(times) && times[j] < end {
			j++
		}
		m.Add(float64(j-i), 1)
		i = j
		k++
		if i < len(times) { // empty windows up to the next event, at once
			if empty := min((times[i]-t0)/window, complete) - k; empty > 0 {
				m.Add(0, float64(empty))
				k += empty
			}
		}
	}
	if m.Mean() == 0 {
		return 0, false
	}
	return m.Var() / m.Mean(), true
}
