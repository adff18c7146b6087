package analyzer

import "testing"

// TestIntervalsOfLittle asks for intervals where there is next to nothing to resample: an answer or none, never NaN.
func TestIntervalsOfLittle(t *testing.T) {
	for n := range 8 {
		for _, fill := range []float64{0, 1} {
			v := intervals{blocks: make([]*bin, n), draws: 100}
			for i := range v.blocks {
				v.blocks[i] = &bin{}
				if i%3 == 0 {
					v.blocks[i].counts[countSent] = fill
				}
			}
			got := v.ratio(func(b *bin) float64 { return b.counts[countSent] }, func(b *bin) float64 { return b.counts[countSent] })
			if got != nil && (!finite(got[0]) || !finite(got[1])) {
				t.Errorf("%d blocks of %v: %v", n, fill, *got)
			}
		}
	}
}
