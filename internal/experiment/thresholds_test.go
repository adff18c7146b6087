package experiment

import (
	"testing"

	"github.com/shadowtape/shadowtape/analyzer"
	"github.com/shadowtape/shadowtape/internal/experiment/verdict"
)

// The gate judges launches and a diff judges requests, with other tests; a metric's unit, direction, resolution and the change that matters are
// the same for both.
func TestGateAndDiffHaveOneTable(t *testing.T) {
	seen := 0
	for _, d := range verdict.Defaults() {
		m, ok := analyzer.MetricNamed(d.Of)
		if !ok {
			continue
		}
		seen++
		matters := m.Matters
		if d.Kind == verdict.Slow {
			matters = m.MattersSlow
		}
		if d.Unit != m.Unit || d.Better != m.Better || d.Resolution != m.Resolution || d.Tolerance != matters {
			t.Errorf("%s: the gate has %s, %s, resolution %v, %v matters; the metric table has %s, %s, %v, %v", d.Name, d.Unit, d.Better, d.Resolution, d.Tolerance, m.Unit, m.Better, m.Resolution, matters)
		}
	}
	if seen < 4 {
		t.Errorf("%d metrics of the gate are in the metric table", seen)
	}
}
