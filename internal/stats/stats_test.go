package stats

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestFloorIsMLPerfsTable(t *testing.T) {
	for p, want := range map[float64]int{0.90: 64, 0.95: 130, 0.99: 662, 0.999: 6636} {
		if got := Floor(p); got != want {
			t.Errorf("Floor(%v) = %d, want %d", p, got, want)
		}
	}
}

func TestQuantileType7(t *testing.T) {
	x := []float64{1, 2, 4, 8}
	for _, c := range []struct{ p, want float64 }{{0, 1}, {1, 8}, {0.5, 3}, {0.25, 1.75}, {0.9, 6.8}} {
		if got := Quantile(x, c.p); math.Abs(got-c.want) > 1e-12 {
			t.Errorf("Quantile(%v) = %v, want %v", c.p, got, c.want)
		}
	}
	if !math.IsNaN(Quantile(nil, 0.5)) {
		t.Error("the quantile of nothing is not NaN")
	}
}

// expand is the brute-force reading of a weight.
func expand(x []float64, w []uint32) []float64 {
	var all []float64
	for i := range x {
		for range w[i] {
			all = append(all, x[i])
		}
	}
	slices.Sort(all)
	return all
}

func TestSampleAgainstBruteForce(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for trial := range 200 {
		n := 1 + r.IntN(300)
		x, w := make([]float64, n), make([]uint32, n)
		var whole Sample
		parts := [3]Sample{}
		for i := range x {
			x[i] = math.Exp(r.NormFloat64()*3) * float64(1-2*(trial%2)*r.IntN(2))
			w[i] = 1
			if trial%3 == 0 {
				w[i] = uint32(r.IntN(5))
			}
			whole.Add(x[i], w[i])
			parts[r.IntN(3)].Add(x[i], w[i])
		}
		var merged Sample
		for i := range parts {
			merged.Merge(&parts[i])
		}
		sketched := Sample{Limit: n / 2}
		for i := range x {
			sketched.Add(x[i], w[i])
		}
		all := expand(x, w)
		if len(all) == 0 {
			continue
		}
		var mean, m2 float64
		for _, v := range all {
			mean += v / float64(len(all))
		}
		for _, v := range all {
			m2 += (v - mean) * (v - mean) / float64(len(all))
		}
		for name, s := range map[string]*Sample{"whole": &whole, "merged": &merged, "sketched": &sketched} {
			if s.N() != uint64(len(all)) || !near(s.Mean(), mean, 1e-9) || !near(s.Std(), math.Sqrt(m2), 1e-9) || s.Min() != all[0] || s.Max() != all[len(all)-1] {
				t.Fatalf("trial %d, %s: n %d mean %v std %v, want %d %v %v", trial, name, s.N(), s.Mean(), s.Std(), len(all), mean, math.Sqrt(m2))
			}
			for _, p := range []float64{0, 0.1, 0.5, 0.9, 0.95, 0.99, 1} {
				got, want := s.Quantile(p), Quantile(all, p)
				tol := 1e-12
				if s.Error() > 0 {
					// interpolating between neighbours of opposite sign, the bound is on the neighbours
					lo, hi := all[int(float64(len(all)-1)*p)], all[min(int(float64(len(all)-1)*p)+1, len(all)-1)]
					if math.Abs(got-want) > SketchError*max(math.Abs(lo), math.Abs(hi))*(1+1e-9) {
						t.Fatalf("trial %d, %s: p%v %v, want %v within %v", trial, name, p*100, got, want, SketchError)
					}
					continue
				}
				if !near(got, want, tol) {
					t.Fatalf("trial %d, %s: p%v %v, want %v", trial, name, p*100, got, want)
				}
			}
		}
	}
}

func near(a, b, tol float64) bool { return math.Abs(a-b) <= tol*max(1, math.Abs(a), math.Abs(b)) }

func TestSketchMergesInAnyOrder(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	var a, b, ab, ba, whole Sketch
	for range 5000 {
		x := math.Exp(r.NormFloat64() * 8)
		if r.IntN(2) == 0 {
			a.Add(x, 1)
		} else {
			b.Add(x, 1)
		}
		whole.Add(x, 1)
	}
	ab.Merge(&a)
	ab.Merge(&b)
	ba.Merge(&b)
	ba.Merge(&a)
	for p := 0.0; p <= 1; p += 0.01 {
		if ab.Quantile(p) != ba.Quantile(p) || ab.Quantile(p) != whole.Quantile(p) {
			t.Fatalf("p%v: %v, %v, %v", p*100, ab.Quantile(p), ba.Quantile(p), whole.Quantile(p))
		}
	}
}

func TestSpearmanAgainstBruteForce(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	rank := func(x []int32) []float64 {
		out := make([]float64, len(x))
		for i, v := range x {
			less, same := 0, 0
			for _, u := range x {
				if u < v {
					less++
				} else if u == v {
					same++
				}
			}
			out[i] = float64(less) + float64(same+1)/2
		}
		return out
	}
	for range 100 {
		n := 2 + r.IntN(60)
		x, y := make([]int32, n), make([]int32, n)
		for i := range x {
			x[i], y[i] = int32(r.IntN(20)), int32(r.IntN(10))
		}
		rx, ry := rank(x), rank(y)
		var mx, my, sxx, syy, sxy float64
		for i := range rx {
			mx += rx[i] / float64(n)
			my += ry[i] / float64(n)
		}
		for i := range rx {
			sxx += (rx[i] - mx) * (rx[i] - mx)
			syy += (ry[i] - my) * (ry[i] - my)
			sxy += (rx[i] - mx) * (ry[i] - my)
		}
		got, want := Spearman(x, y), sxy/math.Sqrt(sxx*syy)
		if math.IsNaN(want) != math.IsNaN(got) || !math.IsNaN(want) && !near(got, want, 1e-9) {
			t.Fatalf("Spearman %v, want %v for %v %v", got, want, x, y)
		}
	}
}

func TestDispersionAgainstBruteForce(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	for range 200 {
		n := 2 + r.IntN(100)
		times := make([]int64, n)
		for i := range times {
			times[i] = int64(r.IntN(1000))
		}
		slices.Sort(times)
		w := int64(1 + r.IntN(100))
		complete := (times[n-1] - times[0]) / w
		counts := make([]float64, complete)
		for _, at := range times {
			if k := (at - times[0]) / w; k < complete {
				counts[k]++
			}
		}
		var mean, v float64
		for _, c := range counts {
			mean += c / float64(len(counts))
		}
		for _, c := range counts {
			v += (c - mean) * (c - mean) / float64(len(counts))
		}
		got, ok := Dispersion(times, w)
		if ok != (complete > 0) || ok && !near(got, v/mean, 1e-9) {
			t.Fatalf("Dispersion %v %v, want %v", got, ok, v/mean)
		}
	}
}

func TestOrderIntervalCovers(t *testing.T) {
	// The published ranks of a 95 % interval of the median of 10 values: the 2nd and the 9th (coverage 97.85 %).
	if lo, hi, ok := OrderInterval(10, 0.5, 0.95); !ok || lo != 1 || hi != 8 {
		t.Fatalf("median of 10: %d %d %v, want 1 8", lo, hi, ok)
	}
	// The largest of n values lies above the 99th percentile with 1 − 0.99ⁿ, which passes 97.5 % at n = 368.
	if _, hi, ok := OrderInterval(368, 0.99, 0.95); !ok || hi != 367 {
		t.Error("p99 of 368 has no interval")
	}
	if _, _, ok := OrderInterval(367, 0.99, 0.95); ok {
		t.Error("p99 of 367 has an interval")
	}
}

func TestBlockBootstrapIsSeededAndCovers(t *testing.T) {
	means := []float64{1, 2, 3, 4, 5, 6, 7, 8}
	stat := func(times []int32) float64 {
		var sum, n float64
		for i, k := range times {
			sum += means[i] * float64(k)
			n += float64(k)
		}
		return sum / n
	}
	lo, hi := BlockBootstrap(len(means), 2000, 7, 0.95, stat)
	lo2, hi2 := BlockBootstrap(len(means), 2000, 7, 0.95, stat)
	if lo != lo2 || hi != hi2 {
		t.Fatal("the same seed gives another interval")
	}
	// the bootstrap deviation of the mean is sd/sqrt(8) = 0.81
	if math.Abs(lo-(4.5-1.59)) > 0.15 || math.Abs(hi-(4.5+1.59)) > 0.15 {
		t.Errorf("interval %v %v, want about 2.9 and 6.1", lo, hi)
	}
}

func TestNormalQuantile(t *testing.T) {
	if got := NormalQuantile(0.975); math.Abs(got-1.959964) > 1e-6 {
		t.Errorf("z(0.975) = %v", got)
	}
}
