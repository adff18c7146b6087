// Package warm says when a candidate that was just started may be measured.
package warm

import (
	"math"
	"slices"
	"time"

	"github.com/shadowtape/shadowtape/internal/candidate"
	"github.com/shadowtape/shadowtape/internal/deploy"
	"github.com/shadowtape/shadowtape/internal/gpu"
	"github.com/shadowtape/shadowtape/replayer"
	"github.com/shadowtape/shadowtape/replayer/job"
)

// The warm-up of a candidate that was just started, where its file says nothing else: long enough for caches, compilers and heat.
const (
	warmRequests = 500
	warmTime     = 2 * time.Minute
	warmMost     = 10 * time.Minute
)

// Rule is the warm-up that a deployment file asks for: so many requests and so long, and then until TTFT, temperatures and clocks are
// steady. What the file leaves out is 500 requests, two minutes, steady, ten minutes at most. told is told how it stands, once a second; nil:
// nobody is.
func Rule(w deploy.WarmUp, r *candidate.Running, told func(line string)) *job.WarmRule {
	rule := &job.WarmRule{Requests: warmRequests, Time: warmTime, Most: warmMost, Steady: true, Also: func() []string { return unsteady(r.Courses()) }, Told: told}
	if w.Requests != nil {
		rule.Requests = *w.Requests
	}
	if w.Duration != nil {
		rule.Time = time.Duration(*w.Duration)
	}
	if w.Steady != nil {
		rule.Steady = *w.Steady
	}
	if w.Timeout != nil {
		rule.Most = time.Duration(*w.Timeout)
	}
	return rule
}

// unsteady names the temperatures and clocks that are not steady: by MSER-5, or because the last half minute is off the one before. A
// course that hardly moves is steady: the rule would find trends in the noise of a degree or a few megahertz.
func unsteady(courses []gpu.Course) []string {
	const half = 30
	var out []string
	for _, c := range courses {
		for _, s := range []struct {
			name   string
			course []float64
			hardly float64
		}{{"temperature", c.TemperatureC, 2}, {"SM clock", c.SMClockMHz, 15}} {
			n := len(s.course)
			if n == 0 { // the driver does not say
				continue
			}
			if n < 2*half {
				out = append(out, s.name+" of "+c.UUID)
				continue
			}
			last, before := s.course[n-half:], s.course[n-2*half:n-half]
			if recent := s.course[n-2*half:]; slices.Max(recent)-slices.Min(recent) <= s.hardly {
				continue
			}
			if _, ok := replayer.MSER5(s.course); !ok || math.Abs(mean(last)-mean(before)) > s.hardly {
				out = append(out, s.name+" of "+c.UUID)
			}
		}
	}
	return out
}

func mean(list []float64) float64 {
	sum := 0.0
	for _, v := range list {
		sum += v
	}
	return sum / float64(len(list))
}

// Expected is how long the warm-up takes at least, for a plan.
func Expected(w deploy.WarmUp) time.Duration {
	if w.Duration != nil {
		return time.Duration(*w.Duration)
	}
	return warmTime
}
