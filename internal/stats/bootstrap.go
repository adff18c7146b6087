package stats

import (
	"math"
	"math/rand/v2"
	"slices"
)

// BlockBootstrap resamples blocks of time with replacement and returns the percentile interval of a statistic. blocks is their number;
// statistic gets how often each block was drawn (they sum to blocks; the slice is reused) and may return NaN, which is left out.
// The draw depends on the seed alone. lo and hi are NaN for fewer than two blocks or where most draws were NaN.
//
// Note: the interval speaks for this run. It is blind to what differs from one start of a server to the next.
func BlockBootstrap(blocks, draws int, seed int64, confidence float64, statistic func(times []int32) float64) (lo, hi float64) {
	if blocks < 2 || draws < 2 {
		return math.NaN(), math.NaN()
	}
	r := rand.New(rand.NewPCG(uint64(seed), 0x5ad07a9e))
	times := make([]int32, blocks)
	got := make([]float64, 0, draws)
	for range draws {
		clear(times)
		for range blocks {
			times[r.IntN(blocks)]++
		}
		if v := statistic(times); !math.IsNaN(v) {
			got = append(got, v)
		}
	}
	if len(got) < draws/2 {
		return math.NaN(), math.NaN()
	}
	slices.Sort(got)
	tail := (1 - confidence) / 2
	return Quantile(got, tail), Quantile(got, 1-tail)
}
