package analyzer

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/figure"
)

// Condition is how one quantity of the GPUs stood at the start and at the end of what was measured, a mean over the GPUs and runs of each
// side: beside the candidate, heat and clocks move figures too. Null where no run says.
type Condition struct {
	What           string                `json:"what"` // temperature, sm_clock, mem_clock, power
	Unit           string                `json:"unit"`
	BaseStart      formats.Null[float64] `json:"base_start"`
	BaseEnd        formats.Null[float64] `json:"base_end"`
	CandidateStart formats.Null[float64] `json:"candidate_start"`
	CandidateEnd   formats.Null[float64] `json:"candidate_end"`
}

// conditions are the quantities, by their keys in run.json's gpus.
var conditions = []struct{ key, what, unit string }{
	{"temperature_c", "temperature", "°C"}, {"sm_clock_mhz", "sm_clock", "MHz"}, {"mem_clock_mhz", "mem_clock", "MHz"}, {"power_w", "power", "W"},
}

// Conditions reads them from the covariates in the manifests, which may be nil. A quantity that no run has is left out.
func Conditions(base, candidate []*formats.Manifest) []Condition {
	var out []Condition
	for _, q := range conditions {
		c := Condition{What: q.what, Unit: q.unit}
		c.BaseStart, c.BaseEnd = meanSpan(base, q.key)
		c.CandidateStart, c.CandidateEnd = meanSpan(candidate, q.key)
		if c.BaseStart.Valid || c.CandidateStart.Valid {
			out = append(out, c)
		}
	}
	return out
}

// meanSpan is the mean of a quantity's first and last values over the GPUs of all runs.
func meanSpan(runs []*formats.Manifest, key string) (start, end formats.Null[float64]) {
	n := 0.0
	for _, m := range runs {
		if m == nil || m.GPUs == nil {
			continue
		}
		b, err := json.Marshal(m.GPUs) // read from a file or made in this process
		if err != nil {
			continue
		}
		var gpus []map[string]json.RawMessage
		if json.Unmarshal(b, &gpus) != nil {
			continue
		}
		for _, g := range gpus {
			var s struct{ Start, End formats.Null[float64] }
			if json.Unmarshal(g[key], &s) != nil || !s.Start.Valid || !s.End.Valid {
				continue
			}
			n++
			start.V, end.V = start.V+s.Start.V, end.V+s.End.V
		}
	}
	if n == 0 {
		return formats.Null[float64]{}, formats.Null[float64]{}
	}
	return formats.Of(start.V / n), formats.Of(end.V / n)
}

// ConditionText says in a line how the GPUs of one side stood from start to end; "" where nothing is known.
func ConditionText(list []Condition, candidate bool) string {
	var parts []string
	for _, c := range list {
		start, end := c.BaseStart, c.BaseEnd
		if candidate {
			start, end = c.CandidateStart, c.CandidateEnd
		}
		if start.Valid && c.What != "mem_clock" {
			parts = append(parts, fmt.Sprintf("%s to %s %s", figure.Number(math.Round(start.V)), figure.Number(math.Round(end.V)), c.Unit))
		}
	}
	return strings.Join(parts, ", ")
}
