package experiment

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/shadowtape/shadowtape/analyzer"
	"github.com/shadowtape/shadowtape/internal/engine"
)

func TestFindRate(t *testing.T) {
	for _, limit := range []float64{0.4, 3, 10, 10.1, 77} {
		tried := 0
		// all is well up to the limit, and from there on the share falls with the logarithm of the rate
		f, err := findRate(10, 0.99, func(rate float64) (float64, error) {
			tried++
			return 0.99 - 0.5*math.Log(rate/limit), nil
		})
		if err != nil || math.Abs(f.Rate.V/limit-1) > 1e-6 || tried > 13 || len(f.Tried) != tried {
			t.Errorf("limit %v: %+v after %d tries, %v", limit, f.Rate, tried, err)
		}
	}
	for _, share := range []float64{0, 1} {
		if f, err := findRate(10, 0.99, func(float64) (float64, error) { return share, nil }); err != nil || f.Rate.Valid || len(f.Tried) != []int{4, 7}[int(share)] {
			t.Errorf("always %v: %+v %v", share, f, err)
		}
	}
	broken := errors.New("broken")
	if _, err := findRate(10, 0.99, func(float64) (float64, error) { return 0, broken }); !errors.Is(err, broken) {
		t.Error(err)
	}
}

// In virtual time a server whose steps are 20 % slower carries about that much less within the SLO.
func TestNightlyFindsTheRate(t *testing.T) {
	v := fleet(t, 300)
	slo, err := analyzer.ParseSLO("ttft=5s")
	if err != nil {
		t.Fatal(err)
	}
	v.SLO, v.Rates = slo, RateSearch{Step: 90 * time.Second, Attain: 0.9}
	v.Candidate.Slowdown = engine.Slowdown{Prefill: 1.2, Decode: 1.2}
	var rate [2]float64
	for i, arm := range []Arm{Base, Candidate} {
		m, err := v.Launch(context.Background(), Leg{Pair: 1, Arm: arm, Try: 1})
		if err != nil {
			t.Fatal(err)
		}
		rate[i] = m.Run.Figures["slo_rate"]
	}
	t.Logf("%v and %v requests/s", rate[0], rate[1])
	if r := rate[1] / rate[0]; !(r > 0.7 && r < 0.95) {
		t.Errorf("%v and %v requests/s", rate[0], rate[1])
	}
}
