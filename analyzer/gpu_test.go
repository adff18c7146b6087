package analyzer

import (
	"math"
	"path/filepath"
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
