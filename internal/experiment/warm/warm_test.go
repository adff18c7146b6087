package warm

import (
	"slices"
	"testing"
	"time"

	"github.com/shadowtape/shadowtape/internal/deploy"
	"github.com/shadowtape/shadowtape/internal/gpu"
)

func TestUnsteady(t *testing.T) {
	flat, rising, step := []float64{}, []float64{}, []float64{}
	for i := range 120 {
		flat = append(flat, 60+float64(i%2))
		rising = append(rising, 40+float64(i)/3)
		step = append(step, map[bool]float64{true: 1980, false: 1755}[i < 100])
	}
	got := unsteady([]gpu.Course{{UUID: "a", TemperatureC: flat, SMClockMHz: flat}, {UUID: "b", TemperatureC: rising, SMClockMHz: step}, {UUID: "c"}, {UUID: "d", TemperatureC: flat[:10]}})
	if want := []string{"temperature of b", "SM clock of b", "temperature of d"}; !slices.Equal(got, want) {
		t.Error(got)
	}
}

func TestExpected(t *testing.T) {
	d := deploy.Duration(time.Second)
	for want, w := range map[time.Duration]deploy.WarmUp{time.Second: {Duration: &d}, 2 * time.Minute: {}} {
		if got := Expected(w); got != want {
			t.Errorf("%+v: %v, want %v", w, got, want)
		}
	}
}
