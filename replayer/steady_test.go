package replayer

import (
	"math"
	"math/rand/v2"
	"testing"
)

// mserByHand is the rule written down as it is published.
func mserByHand(series []float64) int {
	n := len(series) / 5
	best, at := math.Inf(1), 0
	for d := 0; n-d >= 5; d++ {
		var mean, z float64
		k := float64(n - d)
		for j := d; j < n; j++ {
			mean += (series[5*j] + series[5*j+1] + series[5*j+2] + series[5*j+3] + series[5*j+4]) / 5 / k
		}
		for j := d; j < n; j++ {
			y := (series[5*j] + series[5*j+1] + series[5*j+2] + series[5*j+3] + series[5*j+4]) / 5
			z += (y - mean) * (y - mean)
		}
		if z /= k * k; z < best {
			best, at = z, d
		}
	}
	return 5 * at
}

func TestMSER5(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 50 {
		n := 50 + r.IntN(300)
		rise := r.IntN(n / 2)
		series := make([]float64, n)
		for i := range series {
			series[i] = 100 + r.NormFloat64()
			if i < rise {
				series[i] += 50 * (1 - float64(i)/float64(rise))
			}
		}
		got, _ := MSER5(series)
		if want := mserByHand(series); got != want {
			t.Errorf("leaves out %d of %d, by hand %d", got, n, want)
		}
		if rise > 30 && got < rise/2 {
			t.Errorf("a rise of %d is cut at %d", rise, got)
		}
	}
	trend := make([]float64, 200)
	for i := range trend {
		trend[i] = float64(i)
	}
	if _, ok := MSER5(trend); ok {
		t.Error("what grows all the time is called steady")
	}
	if _, ok := MSER5(make([]float64, 49)); ok {
		t.Error("49 observations are enough")
	}
	if k, ok := MSER5(make([]float64, 100)); !ok || k != 0 {
		t.Errorf("a constant is cut at %d", k)
	}
}
