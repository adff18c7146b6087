package analyzer

import (
	"cmp"
	"slices"
	"strings"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/figure"
)

// gpuFigures are what gpu.parquet says about the measured window. Every field is unknown where there is no such file.
type gpuFigures struct {
	gpus      int                   // watched
	energyJ   formats.Null[float64] // of all GPUs together, from their energy counters
	powerW    formats.Null[float64] // of all GPUs together: the sum of their mean readings
	throttled formats.Null[float64] // share of the readings whose clocks were cut, of the worst GPU
	cuts      []Throttled
}

// Throttled is a stretch of a run in which the clocks of a GPU were cut by its power limit, by heat or by the hardware. Stretches that touch
// are one.
type Throttled struct {
	FromS   float64  `json:"from_s"` // after the first arrival
	ToS     float64  `json:"to_s"`
	Reasons []string `json:"reasons"` // sorted
	GPUs    int      `json:"gpus"`    // to which it happened
}

// cutReasons lower a GPU's clocks because of power or heat. An idle GPU and one under a chosen clock are not cut.
var cutReasons = []string{"sw_power_cap", "hw_slowdown", "sw_thermal", "hw_thermal", "hw_power_brake"}

// gpuState is what is known of one GPU while its readings pass.
type gpuState struct {
	first, last formats.Null[int64] // of the energy counter, mJ
	power       float64
	powers      int
	n, known    int // readings in the window; those that say why clocks are low
	cut         int
	at          int64    // of the last reading
	reasons     []string // that the last reading gave
	usual       int64    // shortest time between readings
}

// cutSpan is a stretch of Unix ns in which one GPU's clocks were cut.
type cutSpan struct {
	from, to int64
	uuid     string
	reasons  []string
}

// readGPUs sums the telemetry of the measured window up. The energy of a GPU is the difference of its counter between the last readings
// at or before the window's ends, or its first reading in the window where it was not watched before. A cut lasts until the GPU's next reading.
func readGPUs(r *Run, from, to int64) (gpuFigures, error) {
	var f gpuFigures
	gpus := map[string]*gpuState{}
	var spans []cutSpan
	for s, err := range r.gpuSamples() {
		if err != nil {
			return f, r.readError(err)
		}
		g := gpus[s.UUID]
		if g == nil {
			g = &gpuState{}
			gpus[s.UUID] = g
		}
		spans = g.add(s, from, to, spans)
	}
	for uuid, g := range gpus {
		spans = g.close(uuid, g.at+g.usual, from, to, spans)
		if g.n > 0 {
			f.gpus++
		}
		if g.n > 0 && g.first.Valid && g.last.V > g.first.V {
			f.energyJ = formats.Of(f.energyJ.V + float64(g.last.V-g.first.V)/1e3)
		}
		if g.powers > 0 {
			f.powerW = formats.Of(f.powerW.V + g.power/float64(g.powers))
		}
		if g.known > 0 {
			f.throttled = formats.Of(max(f.throttled.V, float64(g.cut)/float64(g.known)))
		}
	}
	f.cuts = joinCuts(spans, from)
	return f, nil
}

func (g *gpuState) add(s formats.GPUSample, from, to int64, spans []cutSpan) []cutSpan {
	spans = g.close(s.UUID, s.UnixNS, from, to, spans)
	if d := s.UnixNS - g.at; g.at > 0 && d > 0 && (g.usual == 0 || d < g.usual) {
		g.usual = d
	}
	g.at, g.reasons = s.UnixNS, nil
	for _, reason := range s.Throttle {
		if slices.Contains(cutReasons, reason) {
			g.reasons = append(g.reasons, reason)
		}
	}
	if s.UnixNS > to {
		return spans
	}
	if s.EnergyMJ.Valid {
		if s.UnixNS <= from || !g.first.Valid {
			g.first = s.EnergyMJ
		}
		g.last = s.EnergyMJ
	}
	if s.UnixNS < from {
		return spans
	}
	g.n++
	if s.PowerMW.Valid {
		g.power += float64(s.PowerMW.V) / 1e3
		g.powers++
	}
	if s.Throttle != nil {
		g.known++
		if len(g.reasons) > 0 {
			g.cut++
		}
	}
	return spans
}

// close ends the stretch that the last reading began, if it was one.
func (g *gpuState) close(uuid string, at, from, to int64, spans []cutSpan) []cutSpan {
	if a, b := max(g.at, from), min(at, to); len(g.reasons) > 0 && b > a {
		spans = append(spans, cutSpan{a, b, uuid, g.reasons})
	}
	return spans
}

// mostCuts is how many stretches a report has at most: of more, those that are nearest each other are joined.
const mostCuts = 200

// joinCuts makes stretches of time out of those of single GPUs.
func joinCuts(spans []cutSpan, origin int64) []Throttled {
	slices.SortFunc(spans, func(a, b cutSpan) int { return cmp.Or(cmp.Compare(a.from, b.from), strings.Compare(a.uuid, b.uuid)) })
	for gap := int64(0); ; gap = max(2*gap, 1e6) {
		var out []Throttled
		var end int64
		gpus, reasons := map[string]bool{}, map[string]bool{}
		for i, s := range spans {
			if i == 0 || s.from > end+gap {
				out = append(out, Throttled{FromS: float64(s.from-origin) / 1e9})
				end = s.to
				clear(gpus)
				clear(reasons)
			}
			end = max(end, s.to)
			gpus[s.uuid] = true
			for _, reason := range s.reasons {
				reasons[reason] = true
			}
			last := &out[len(out)-1]
			last.ToS, last.GPUs, last.Reasons = float64(end-origin)/1e9, len(gpus), sortedKeys(reasons)
		}
		if len(out) <= mostCuts {
			return out
		}
	}
}

// throttledAnomalies says for each reason when it first cut a clock, and how much of the window.
func throttledAnomalies(w *Window) []Anomaly {
	type total struct{ first, seconds float64 }
	totals := map[string]*total{}
	for _, c := range w.Server.gpu.cuts {
		for _, reason := range c.Reasons {
			if totals[reason] == nil {
				totals[reason] = &total{first: c.FromS}
			}
			totals[reason].seconds += c.ToS - c.FromS
		}
	}
	var all []Anomaly
	for _, reason := range sortedKeys(totals) {
		t := totals[reason]
		all = append(all, Anomaly{AnomalyThrottling, figure.Known(t.first), "clocks were cut by " + reason + " for " + figure.Number(t.seconds) + " of " + figure.Number(w.Seconds) + " s"})
	}
	return all
}

// throttleWarning says in one line how much of the window is not the software's doing; "" where no clock was cut.
func throttleWarning(w *Window) string {
	cuts := w.Server.gpu.cuts
	if len(cuts) == 0 {
		return ""
	}
	seconds, reasons := 0.0, map[string]bool{}
	for _, c := range cuts {
		seconds += c.ToS - c.FromS
		for _, reason := range c.Reasons {
			reasons[reason] = true
		}
	}
	return "GPU clocks were cut for " + figure.Number(seconds) + " of " + figure.Number(w.Seconds) + " s (" + strings.Join(sortedKeys(reasons), ", ") + "): what is slow then is not the software"
}
