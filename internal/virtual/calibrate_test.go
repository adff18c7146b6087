package virtual_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/shadowtape/shadowtape/internal/engine"
	"github.com/shadowtape/shadowtape/internal/virtual"
)

// TestCalibrateFindsTheCoefficients gives a simulated run back to Calibrate.
func TestCalibrateFindsTheCoefficients(t *testing.T) {
	p := profile(t)
	truth := engine.Coefficients{Fixed: 0.012, PerPrefill: 6e-5, PerDecode: 4e-5, PerContext: 9e-8}
	p.Coefficients = truth
	rows := trace(11, 400, 120*time.Millisecond)
	measured, _ := simulate(t, rows, virtual.Options{Profile: p, Header: header})
	blind := profile(t)
	got, fit, err := virtual.Calibrate(t.Context(), measured, virtual.CalibrateOptions{Profile: blind, Header: header})
	if err != nil {
		t.Fatal(err)
	}
	c := got.Coefficients
	for _, k := range []struct {
		name      string
		got, want float64
	}{{"fixed", c.Fixed, truth.Fixed}, {"per prompt token", c.PerPrefill, truth.PerPrefill}, {"per sequence", c.PerDecode, truth.PerDecode}, {"per context token", c.PerContext, truth.PerContext}} {
		if math.Abs(k.got/k.want-1) > 0.05 {
			t.Errorf("%s: %g, truth %g", k.name, k.got, k.want)
		}
	}
	if fit.Requests != 400 || fit.TTFTMedian > 0.01 || fit.TPOTMedian > 0.01 || math.Abs(fit.TTFTQuantile.P99) > 0.03 {
		t.Errorf("fit %+v", fit)
	}
}

// TestCalibrateThroughNoise does the same with 2 % of noise between steps.
func TestCalibrateThroughNoise(t *testing.T) {
	p := profile(t)
	rows := trace(12, 300, 60*time.Millisecond)
	measured, _ := simulate(t, rows, virtual.Options{Profile: p, Header: header, Seed: 3, Noise: engine.Noise{Step: 0.02}})
	_, fit, err := virtual.Calibrate(t.Context(), measured, virtual.CalibrateOptions{Profile: p, Header: header, Evaluations: 250})
	if err != nil {
		t.Fatal(err)
	}
	if fit.TTFTMedian > 0.05 || fit.TPOTMedian > 0.02 || math.Abs(fit.TPOTQuantile.P50) > 0.02 {
		t.Errorf("fit %+v", fit)
	}
}

func TestCalibrateNeedsData(t *testing.T) {
	_, _, err := virtual.Calibrate(t.Context(), trace(1, 100, time.Second), virtual.CalibrateOptions{Profile: profile(t)})
	if err == nil || !strings.Contains(err.Error(), "0 of 100") {
		t.Errorf("a run without times: %v", err)
	}
}
