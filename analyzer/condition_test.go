package analyzer

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shadowtape/shadowtape/formats"
)

func TestConditions(t *testing.T) {
	of := func(text string) *formats.Manifest {
		m := &formats.Manifest{}
		if err := json.Unmarshal([]byte(`{"gpus":`+text+`}`), m); err != nil {
			t.Fatal(err)
		}
		return m
	}
	span := func(start, end float64) formats.Null[float64] { return formats.Of((start + end) / 2) }
	base := []*formats.Manifest{
		of(`[{"uuid":"GPU-a","temperature_c":{"start":40,"end":60},"power_w":{"start":100,"end":600},"mem_clock_mhz":{"start":3201,"end":3201}},{"uuid":"GPU-b","temperature_c":{"start":44,"end":62},"power_w":{"start":120,"end":640}}]`),
		nil, {}, of(`"something else"`),
	}
	candidate := []*formats.Manifest{{GPUs: []map[string]any{{"temperature_c": map[string]any{"start": 50.0, "end": 70.5}, "sm_clock_mhz": map[string]any{"start": nil, "end": nil}}}}}
	got := Conditions(base, candidate)
	want := []Condition{
		{"temperature", "°C", span(40, 44), span(60, 62), formats.Of(50.0), formats.Of(70.5)},
		{What: "mem_clock", Unit: "MHz", BaseStart: formats.Of(3201.0), BaseEnd: formats.Of(3201.0)},
		{What: "power", Unit: "W", BaseStart: span(100, 120), BaseEnd: span(600, 640)},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if a, b := ConditionText(got, false), ConditionText(got, true); a != "42 to 61 °C, 110 to 620 W" || b != "50 to 71 °C" {
		t.Errorf("%q %q", a, b)
	}
	if got := Conditions(nil, []*formats.Manifest{{}}); got != nil || ConditionText(got, true) != "" {
		t.Error(got)
	}
}
