package experiment

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shadowtape/shadowtape/analyzer"
	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/engine"
	"github.com/shadowtape/shadowtape/internal/experiment/verdict"
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

// TestDamageBesideALeg: a leg whose manifest or rates are not what was written is neither judged nor thrown away.
func TestDamageBesideALeg(t *testing.T) {
	leg := Leg{Pair: 1, Arm: Base, Try: 1}
	v := &Live{Dir: t.TempDir()}
	out := filepath.Join(v.Dir, leg.Name())
	put := func(name string, doc any, was, is string) {
		b, err := formats.MarshalDocument(doc, "")
		if err == nil && !strings.Contains(string(b), was) {
			err = errors.New("there is nothing to change")
		}
		if err := errors.Join(err, os.MkdirAll(out, 0o755), os.WriteFile(name, []byte(strings.Replace(string(b), was, is, 1)), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	put(filepath.Join(out, "run.json"), formats.Manifest{Schema: 1, EndUnixNS: 5}, `"valid":false`, `"valid":true`)
	if _, done, err := v.Done(leg); done || !errors.Is(err, formats.ErrChanged) {
		t.Errorf("%v, %v", done, err)
	}
	if _, err := os.Stat(filepath.Join(out, "run.json")); err != nil {
		t.Error(err)
	}
	m := &Measured{Run: &verdict.Run{Figures: map[string]float64{}}}
	put(out+ratesSuffix, RateFound{Schema: 1, Rate: formats.Of(12.5)}, "12.5", "12.5")
	if err := m.readRates(out); err != nil || m.Run.Figures["slo_rate"] != 12.5 {
		t.Errorf("%v, %v", m.Run.Figures, err)
	}
	put(out+ratesSuffix, RateFound{Schema: 1, Rate: formats.Of(12.5)}, "12.5", "72.5")
	if err := m.readRates(out); !errors.Is(err, formats.ErrChanged) {
		t.Error(err)
	}
}
