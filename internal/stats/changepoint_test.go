package stats

import (
	"math"
	"math/rand/v2"
	"testing"
)

// noise draws n values around level with deviation sd.
func noise(r *rand.Rand, n int, level, sd float64) []float64 {
	x := make([]float64, n)
	for i := range x {
		x[i] = level + sd*r.NormFloat64()
	}
	return x
}

func TestEnergyAgainstDefinition(t *testing.T) {
	r := rand.New(rand.NewPCG(21, 22))
	x := noise(r, 30, 0, 1)
	e := newEnergy(x)
	for range 50 {
		a := r.IntN(10)
		at := a + 1 + r.IntN(10)
		b := at + 1 + r.IntN(len(x)-at)
		dist := func(u, v []float64) (s float64) {
			for _, p := range u {
				for _, q := range v {
					s += math.Abs(p - q)
				}
			}
			return s / float64(len(u)*len(v))
		}
		u, v := x[a:at], x[at:b]
		n, m := float64(len(u)), float64(len(v))
		want := n * m / (n + m) * (2*dist(u, v) - dist(u, u) - dist(v, v))
		if got := e.q(a, at, b); math.Abs(got-want) > 1e-9 {
			t.Fatalf("q(%d, %d, %d) = %v, want %v", a, at, b, got, want)
		}
	}
}

func TestChangesFindsSteps(t *testing.T) {
	r := rand.New(rand.NewPCG(23, 24))
	found, near := 0, 0
	const trials = 200
	for range trials {
		x := append(noise(r, 25, 0, 1), noise(r, 25, 4, 1)...)
		x = append(x, noise(r, 25, 0, 1)...)
		c := Changes(x, ChangeOptions{})
		if len(c) == 2 {
			found++
			if math.Abs(float64(c[0].At-25)) <= 1 && math.Abs(float64(c[1].At-50)) <= 1 {
				near++
			}
			if !(c[0].After > c[0].Before) || !(c[1].After < c[1].Before) {
				t.Fatalf("directions: %+v", c)
			}
		}
	}
	if found < trials*95/100 || near < trials*90/100 {
		t.Errorf("two steps of four deviations: both found in %d of %d, within one value in %d", found, trials, near)
	}
}

func TestChangesIgnoresNoiseAndSpikes(t *testing.T) {
	r := rand.New(rand.NewPCG(25, 26))
	const trials = 300
	quiet, spiky := 0, 0
	for range trials {
		x := noise(r, 60, 100, 1)
		if len(Changes(x, ChangeOptions{})) > 0 {
			quiet++
		}
		for range 3 {
			x[r.IntN(len(x))] += 15
		}
		if len(Changes(x, ChangeOptions{})) > 0 {
			spiky++
		}
	}
	if quiet > 6 || spiky > 6 {
		t.Errorf("of %d series without a change %d, with spikes %d have one", trials, quiet, spiky)
	}
}

func TestChangesIsDeterministicAndTakesAnything(t *testing.T) {
	for _, x := range [][]float64{nil, {1}, {1, 2, 3, 4, 5, 6, 7}, make([]float64, 50)} {
		if c := Changes(x, ChangeOptions{}); len(c) != 0 {
			t.Errorf("%v: %+v", x, c)
		}
	}
	step := make([]float64, 20)
	for i := 10; i < 20; i++ {
		step[i] = 1
	}
	if c := Changes(step, ChangeOptions{}); len(c) != 1 || c[0].At != 10 || c[0].P != 0 {
		t.Errorf("a step without noise: %+v", c)
	}
	long := append(make([]float64, 1500), step...)
	if c := Changes(long, ChangeOptions{}); len(c) != 1 || c[0].At != 1510 {
		t.Errorf("a step at the end of a long series: %+v", c)
	}
	if c := Changes(step, ChangeOptions{MinShift: 2}); len(c) != 0 {
		t.Errorf("a step below the smallest that counts: %+v", c)
	}
}
