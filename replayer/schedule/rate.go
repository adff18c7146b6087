package schedule

import (
	"fmt"
	"math"
	"time"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/stats"
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
	if !(speed > 0) || math.IsInf(speed, 0) {
		return 0, fmt.Errorf("%d requests in %v cannot be scaled to %v a second", n, last-first, rate)
	}
	return speed, nil
}

// Quantum is the tick of a trace's clock: the median distance of its distinct times, where most requests share theirs with another; 0
// where they do not.
func Quantum(t *formats.Trace) (time.Duration, error) {
	if q := t.Header.TimeQuantumNS; q > 0 {
		return time.Duration(q), nil
	}
	var rows, shared int64
	last, run := int64(math.MinInt64), int64(0)
	gaps := stats.Sample{Limit: 1 << 17}
	for b, err := range t.Scan(formats.ColArrival) {
		if err != nil {
			return 0, err
		}
		at, _ := b.Int64(formats.ColArrival)
		for _, v := range at {
			rows++
			if v == last {
				if run++; run == 1 {
					shared++ // the first of them
				}
				shared++
				continue
			}
			if run = 0; last != math.MinInt64 && v > last {
				gaps.Add(float64(v-last), 1)
			}
			last = v
		}
	}
	if 2*shared <= rows || gaps.N() == 0 {
		return 0, nil
	}
	return time.Duration(math.Round(gaps.Quantile(0.5))), nil
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
