package analyzer

import (
	"slices"

	"github.com/shadowtape/shadowtape/formats"
)

// gpuFigures are what gpu.parquet says about the measured window. Every field is unknown where there is no such file.
type gpuFigures struct {
	energyJ   formats.Null[float64] // of all GPUs together, from their energy counters
	powerW    formats.Null[float64] // of all GPUs together: the sum of their mean readings
	throttled formats.Null[float64] // share of the readings whose clocks were cut, of the worst GPU
}

// cutReasons lower a GPU's clocks because of power or heat. An idle GPU and one under a chosen clock are not cut.
var cutReasons = []string{"sw_power_cap", "hw_slowdown", "sw_thermal", "hw_thermal", "hw_power_brake"}

// readGPUs sums the telemetry of the measured window up. The energy of a GPU is the difference of its counter between the last readings
// at or before the window's ends, or its first reading in the window where it was not watched before.
func readGPUs(r *Run, from, to int64) (gpuFigures, error) {
	type state struct {
		first, last         formats.Null[int64] // of the energy counter, mJ
		power               float64
		powers, readings, n int
		cut                 int
	}
	var f gpuFigures
	if r.trace == nil {
		return f, nil
	}
	gpus := map[string]*state{}
	for s, err := range r.trace.GPUSamples() {
		if err != nil {
			return f, r.readError(err)
		}
		if s.UnixNS > to {
			continue
		}
		g := gpus[s.UUID]
		if g == nil {
			g = &state{}
			gpus[s.UUID] = g
		}
		if s.EnergyMJ.Valid {
			if s.UnixNS <= from || !g.first.Valid {
				g.first = s.EnergyMJ
			}
			g.last = s.EnergyMJ
		}
		if s.UnixNS < from {
			continue
		}
		g.n++
		if s.PowerMW.Valid {
			g.power += float64(s.PowerMW.V) / 1e3
			g.powers++
		}
		if s.Throttle != nil {
			g.readings++
			if slices.ContainsFunc(s.Throttle, func(reason string) bool { return slices.Contains(cutReasons, reason) }) {
				g.cut++
			}
		}
	}
	for _, g := range gpus {
		if g.n > 0 && g.first.Valid && g.last.V > g.first.V {
			f.energyJ = formats.Of(f.energyJ.V + float64(g.last.V-g.first.V)/1e3)
		}
		if g.powers > 0 {
			f.powerW = formats.Of(f.powerW.V + g.power/float64(g.powers))
		}
		if g.readings > 0 {
			f.throttled = formats.Of(max(f.throttled.V, float64(g.cut)/float64(g.readings)))
		}
	}
	return f, nil
}
