package workload

import (
	"math"
	"sort"
	"testing"
)

func drawn(l Length, n int) []float64 {
	s := source{4}
	v := make([]float64, n)
	for i := range v {
		v[i] = float64(l.draw(&s))
	}
	sort.Float64s(v)
	return v
}

func TestLengthsHaveTheirMoments(t *testing.T) {
	const n = 60000
	for _, test := range []struct {
		l                   Length
		mean, p50, p99, max float64 // 0: not checked
	}{
		{Length{Family: Fixed, Mean: 512}, 512, 512, 512, 512},
		{Length{Family: Uniform, Low: 100, High: 300}, 200, 200, 298, 300},
		{Length{Family: Exponential, Mean: 1000}, 1000, 1000 * math.Ln2, 1000 * math.Log(100), 0},
		{Length{Family: GammaLength, Mean: 1000, CV: 0.5}, 1000, 0, 0, 0},
		{Length{Family: Lognormal, P50: 700, P99: 8000}, 0, 700, 8000, 0},
		{Length{Family: Lognormal, P50: 700, P99: 8000, Max: 5000}, 0, 700, 5000, 5000},
		{Length{Family: Mixture, P50: 700, P99: 3000, Share: 0.1, Min: 4000, Alpha: 1.5}, 0, 0, 4000 * math.Pow(10, 1/1.5), 0}, // 1 % of all is 10 % of the tail
		{Length{Family: Table, Values: []float64{1, 2, 9}}, 4, 2, 9, 9},
	} {
		if err := test.l.Validate(); err != nil {
			t.Error(err)
		}
		v := drawn(test.l, n)
		mean := 0.0
		for _, x := range v {
			mean += x / n
		}
		for _, c := range []struct {
			name      string
			got, want float64
		}{{"mean", mean, test.mean}, {"p50", v[n/2], test.p50}, {"p99", v[n*99/100], test.p99}, {"max", v[n-1], test.max}} {
			if c.want != 0 && math.Abs(c.got/c.want-1) > 0.05 {
				t.Errorf("%+v: %s %v, want %v", test.l, c.name, c.got, c.want)
			}
		}
	}
}

func TestTablesKeepTheMean(t *testing.T) {
	v := drawn(Length{Family: Lognormal, P50: 500, P99: 9000}, 10007)
	mean := 0.0
	for _, x := range v {
		mean += x / float64(len(v))
	}
	table, err := TableOf(v)
	if err != nil {
		t.Fatal(err)
	}
	got := 0.0
	for _, x := range table.Values {
		got += x / float64(len(table.Values))
	}
	if len(table.Values) != 1000 || math.Abs(got/mean-1) > 0.002 {
		t.Errorf("table of %d values with mean %v, values have %v", len(table.Values), got, mean)
	}
}

func TestLengthValidate(t *testing.T) {
	for _, l := range []Length{
		{}, {Family: Fixed}, {Family: Uniform, Low: 5, High: 4}, {Family: Lognormal, P50: 5, P99: 4}, {Family: GammaLength, Mean: 3}, {Family: Table}, {Family: Table, Values: []float64{2, 1}},
		{Family: Mixture, P50: 1, P99: 2, Share: 2, Min: 1, Alpha: 1}, {Family: Fixed, Mean: math.NaN()}, {Family: Exponential, Mean: -1},
	} {
		if l.Validate() == nil {
			t.Errorf("%+v was taken", l)
		}
	}
}
