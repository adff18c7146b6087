package stats

import "slices"

// Holm says which of the hypotheses with these p-values are rejected at a family-wise level alpha, by Holm's step-down procedure: in
// ascending order, p(j) ≤ alpha ÷ (m − j + 1), up to the first that fails.
func Holm(p []float64, alpha float64) []bool {
	out := make([]bool, len(p))
	for j, i := range ascending(p) {
		if !(p[i] <= alpha/float64(len(p)-j)) {
			break
		}
		out[i] = true
	}
	return out
}

// BenjaminiHochberg says which hypotheses are rejected with a false discovery rate of q: all up to the largest j with
// p(j) ≤ q j ÷ m.
func BenjaminiHochberg(p []float64, q float64) []bool {
	out := make([]bool, len(p))
	order := ascending(p)
	last := -1
	for j, i := range order {
		if p[i] <= q*float64(j+1)/float64(len(p)) {
			last = j
		}
	}
	for _, i := range order[:last+1] {
		out[i] = true
	}
	return out
}

// ascending are the indices of p in ascending order, equal ones in theirs.
func ascending(p []float64) []int {
	order := make([]int, len(p))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		switch {
		case p[a] < p[b]:
			return -1
		case p[a] > p[b]:
			return 1
		}
		return 0
	})
	return order
}
