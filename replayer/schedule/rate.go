package schedule

import (
	"fmt"
	"time"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/stats"
)

// minSpeed and maxSpeed bound how much a schedule is slowed down or sped up: beyond them it has no end, or no time in it.
const (
	minSpeed = 1e-3
	maxSpeed = 1e9
)

// SpeedFor is how many times as fast a schedule must be played to come to a mean rate.
func SpeedFor(s Arrivals, rate float64) (float64, error) {
	var n int64
	var first, last time.Duration
	for a, err := range s {
		if err != nil {
			return 0, err
		}
		if a.Warmup {
			continue
		}
		if n == 0 {
			first = a.At
		}
		n++
		last = a.At
	}
	if last == first {
		return 0, fmt.Errorf("%d requests at one time have no rate to scale", n)
	}
	speed := rate * (last - first).Seconds() / float64(n)
	if !(speed >= minSpeed && speed <= maxSpeed) {
		return 0, fmt.Errorf("%d requests in %v are %.3g a second: %v a second would be %.3g times as fast, which must be between %v and %v", n, last-first,
			float64(n)/(last-first).Seconds(), rate, speed, minSpeed, maxSpeed)
	}
	return speed, nil
}

// Quantum is the tick of a trace's clock: the median distance of its distinct times, where most requests share theirs with another; 0
// where they do not.
func Quantum(t *formats.Trace) (time.Duration, error) {
	if q := t.Header.TimeQuantumNS; q > 0 {
		return time.Duration(q), nil
	}
	var ticks stats.Ticks
	for b, err := range t.Scan(formats.ColArrival) {
		if err != nil {
			return 0, err
		}
		at, _ := b.Int64(formats.ColArrival)
		for _, v := range at {
			ticks.Add(v)
		}
	}
	return time.Duration(ticks.Tick()), nil
}

// Describe writes the selection into a manifest's options, as far as it says anything.
func (s Selection) Describe(o map[string]any) {
	put := func(name string, said bool, v any) {
		if said {
			o[name] = v
		}
	}
	put("server", s.Server != "", s.Server)
	put("tenant", s.Tenant != "", s.Tenant)
	put("only_model", s.Model != "", s.Model)
	put("thin", s.Thin > 0, s.Thin)
	put("window_from_s", s.From > 0 || s.To > 0, s.From.Seconds())
	put("window_to_s", s.To > 0, s.To.Seconds())
	put("preroll_s", s.Preroll > 0, s.Preroll.Seconds())
	put("spread_ms", s.Spread > 0, float64(s.Spread)/1e6)
	put("loops", s.Loops != 0, s.Loops)
	put("rate", s.Rate > 0, s.Rate)
	put("duration_s", s.Duration > 0, s.Duration.Seconds())
	put("max_requests", s.MaxRequests > 0, s.MaxRequests)
}
