package analyzer

import (
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shadowtape/shadowtape/formats"
)

// Two GPUs over a window of two seconds: energy from the counters' differences, not from readings before or after.
func TestGPUFigures(t *testing.T) {
	where := filepath.Join(t.TempDir(), "run")
	w, err := formats.CreateRun(where, formats.Manifest{Schema: 1, Kind: "replay", Valid: true})
	if err != nil {
		t.Fatal(err)
	}
	const second = int64(1e9)
	for i := range 3 { // arrivals at 10, 11 and 12 s; 50 tokens each
		x := &formats.Exchange{Phase: formats.PhaseMeasure, ArrivalUnixNS: (10 + int64(i)) * second, SentNS: formats.Of[int64](0), EndNS: formats.Of[int64](0), Status: formats.Of[int32](200),
			EndReason: formats.EndComplete, OutputTokens: formats.Of[int64](50), OutputTokensSource: formats.TokensUsage}
		if err := w.Write(x); err != nil {
			t.Fatal(err)
		}
	}
	for i := range int64(30) { // every half second from 0 to 14.5 s
		at := i * second / 2
		cut := []string{}
		if at == 10*second {
			cut = []string{"sw_power_cap"}
		}
		err := w.WriteGPU([]formats.GPUSample{
			{UnixNS: at, UUID: "GPU-a", EnergyMJ: formats.Of(1000 * i * 100), PowerMW: formats.Of[int64](200_000), Throttle: cut}, // 100 J each half second: 200 W
			{UnixNS: at, UUID: "GPU-b", EnergyMJ: formats.Of(1000 * i * 50), PowerMW: formats.Of[int64](100_000), Throttle: []string{"idle"}},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(formats.Manifest{Schema: 1, Kind: "replay", Valid: true}); err != nil {
		t.Fatal(err)
	}
	tr, err := formats.Open(where)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	f, err := readGPUs(&Run{Name: "x", trace: tr}, 10*second, 12*second)
	if err != nil {
		t.Fatal(err)
	}
	if f.energyJ != formats.Of(600.0) || f.powerW != formats.Of(300.0) || math.Abs(f.throttled.V-0.2) > 1e-12 {
		t.Errorf("%+v", f)
	}
	window := &Window{OutputTokens: 150, OutputKnown: 3, Server: Server{gpu: f}}
	for _, a := range Aggregates() {
		v, ok := a.Of(window)
		want := map[string]float64{"gpu_energy_per_token": 4, "gpu_power": 300, "gpu_throttled": 0.2}
		if w, mine := want[a.Name]; mine && (!ok || math.Abs(v-w) > 1e-12) {
			t.Errorf("%s is %v %t, want %v", a.Name, v, ok, w)
		}
		if _, mine := want[a.Name]; mine {
			if _, ok := a.Of(&Window{OutputTokens: 150, OutputKnown: 3}); ok {
				t.Errorf("%s is defined without telemetry", a.Name)
			}
		}
	}
}

// writeGPURun writes a run of 60 s, ten streams a second, and what throttle says of each of two GPUs at each second.
func writeGPURun(t *testing.T, throttle func(second, gpu int) []string) string {
	t.Helper()
	where := filepath.Join(t.TempDir(), "run")
	m := formats.Manifest{Schema: 1, Kind: "replay", Valid: true, Requests: formats.RequestCounts{Scheduled: 600, Sent: 600, Completed: 600}}
	w, err := formats.CreateRun(where, m)
	if err != nil {
		t.Fatal(err)
	}
	for i := range int64(600) {
		if err := w.Write(stream(i+1, 1e18+i*100e6, 50)); err != nil {
			t.Fatal(err)
		}
	}
	for second := -5; second < 70; second++ {
		for gpu := range 2 {
			s := formats.GPUSample{UnixNS: 1e18 + int64(second)*1e9, UUID: []string{"GPU-a", "GPU-b"}[gpu], PowerMW: formats.Of[int64](300_000), EnergyMJ: formats.Of(int64(second+5) * 300_000), Throttle: throttle(second, gpu)}
			if err := w.WriteGPU([]formats.GPUSample{s}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(m); err != nil {
		t.Fatal(err)
	}
	return where
}

// Clocks that power or heat cut are on the charts, among the anomalies, the warnings and the figures; idle GPUs and chosen clocks are not.
func TestThrottledTime(t *testing.T) {
	for _, c := range []struct {
		name     string
		throttle func(second, gpu int) []string
		want     []Throttled
		share    float64
	}{
		{"idle and chosen clocks", func(int, int) []string { return []string{"application_clocks", "idle", "sync_boost"} }, nil, 0},
		{"nobody knows", func(int, int) []string { return nil }, nil, -1},
		{"heat on one GPU, then power on both", func(second, gpu int) []string {
			switch {
			case second >= 10 && second < 14 && gpu == 1:
				return []string{"hw_thermal"}
			case second >= 13 && second < 15 && gpu == 0, second == 40:
				return []string{"application_clocks", "sw_power_cap"}
			}
			return []string{}
		}, []Throttled{{10, 15, []string{"hw_thermal", "sw_power_cap"}, 2}, {40, 41, []string{"sw_power_cap"}, 2}}, 5.0 / 61},
		{"from before the window to after it", func(int, int) []string { return []string{"sw_power_cap"} }, []Throttled{{0, 60.341, []string{"sw_power_cap"}, 2}}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			run, err := OpenRun(writeGPURun(t, c.throttle))
			if err != nil {
				t.Fatal(err)
			}
			defer run.Close()
			s, err := Summarize(run, Options{})
			if err != nil {
				t.Fatal(err)
			}
			if len(s.Charts.Throttled) != len(c.want) {
				t.Fatalf("%+v, want %+v", s.Charts.Throttled, c.want)
			}
			for i, got := range s.Charts.Throttled {
				want := c.want[i]
				if math.Abs(got.FromS-want.FromS) > 1e-6 || math.Abs(got.ToS-want.ToS) > 1e-6 || !slices.Equal(got.Reasons, want.Reasons) || got.GPUs != want.GPUs {
					t.Errorf("%+v, want %+v", got, want)
				}
			}
			named := slices.ContainsFunc(s.Anomalies, func(a Anomaly) bool { return a.Name == AnomalyThrottling })
			warned := slices.ContainsFunc(s.Warnings, func(w string) bool { return strings.Contains(w, "GPU clocks were cut") })
			if want := len(c.want) > 0; named != want || warned != want {
				t.Errorf("named %t, warned of %t, want %t: %v", named, warned, want, s.Warnings)
			}
			if v := s.Aggregates["gpu_throttled"].Value; c.share < 0 == v.Valid || c.share >= 0 && math.Abs(v.V-c.share) > 0.01 {
				t.Errorf("gpu_throttled %v, want %v", v, c.share)
			}
			if v := s.Aggregates["gpu_power"].Value; v.V != 600 {
				t.Errorf("gpu_power %v, want 600", v)
			}
			if v := s.Aggregates["gpu_energy_per_token"].Value; math.Abs(v.V-600*60/24000.0) > 0.05 {
				t.Errorf("gpu_energy_per_token %v, want %v", v, 600*60/24000.0)
			}
		})
	}
}
