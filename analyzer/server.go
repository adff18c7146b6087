package analyzer

import (
	"math"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/promtext"
	"github.com/shadowtape/shadowtape/internal/stats"
)

// Server is what the server's own metrics say about the measured window. Every field is unknown where the server does not tell.
type Server struct {
	Samples       int64                 `json:"samples"`
	KVUsageMean   formats.Null[float64] `json:"kv_usage_mean"` // time-weighted, of the fullest engine
	KVUsageP95    formats.Null[float64] `json:"kv_usage_p95"`
	KVUsagePeak   formats.Null[float64] `json:"kv_usage_peak"`
	PrefixHitRate formats.Null[float64] `json:"prefix_hit_rate"` // hits ÷ queries, from counter deltas
	Preemptions   formats.Null[float64] `json:"preemptions"`
	RunningMean   formats.Null[float64] `json:"running_mean"`
	WaitingMean   formats.Null[float64] `json:"waiting_mean"`
	WaitingPeak   formats.Null[float64] `json:"waiting_peak"`
	OutputTokens  formats.Null[float64] `json:"output_tokens"`

	ComputedTokens  formats.Null[float64] `json:"computed_tokens"`  // prompt tokens that no cache had
	IterationTokens formats.Null[float64] `json:"iteration_tokens"` // tokens of a step, mean
	KVUsageSum      formats.Null[float64] `json:"-"`                // mean usage, summed over engines
	Engines         int                   `json:"-"`

	gpu gpuFigures
}

// series is one engine's one canonical series over the window.
type series struct {
	counter    bool
	lastAt     int64
	last       float64
	sum        float64 // counters: increase; gauges: value × seconds
	seconds    float64
	peak       float64
	levels     stats.Sample // gauges, weighted by milliseconds
	seen       bool
	increments int
}

// readings turns the scraped pages into canonical readings, page by page in stored order; which server's names they were does not matter
// beyond this.
func (r *Run) readings(visit func(unixNS int64, target string, all []promtext.Reading)) error {
	pages := map[string]*promtext.Page{}
	times := map[string]int64{}
	flush := func(target string) {
		if p := pages[target]; p != nil && len(p.Samples) > 0 {
			_, all := promtext.Read(*p)
			visit(times[target], target, all)
			p.Samples = p.Samples[:0]
		}
	}
	for s, err := range r.ServerSamples() {
		if err != nil {
			return r.readError(err)
		}
		if times[s.Target] != s.UnixNS {
			flush(s.Target)
			times[s.Target] = s.UnixNS
		}
		if pages[s.Target] == nil {
			pages[s.Target] = &promtext.Page{}
		}
		pages[s.Target].Samples = append(pages[s.Target].Samples, promtext.Sample{Name: s.Series, Labels: s.Labels, Value: s.Value})
	}
	for _, target := range sortedKeys(pages) {
		flush(target)
	}
	return nil
}

// engineSeries names a canonical series of one engine of one server.
type engineSeries struct{ name, target, engine string }

// readServer walks the readings between two times (Unix ns). A gauge holds until its next reading; a counter that falls was reset and
// counts from zero.
func readServer(r *Run, from, to int64) (Server, error) {
	all := map[engineSeries]*series{}
	var s Server
	err := r.readings(func(at int64, target string, readings []promtext.Reading) {
		for _, g := range readings {
			key := engineSeries{g.Name, target, g.Engine}
			x := all[key]
			if x == nil {
				x = &series{counter: g.Counter}
				all[key] = x
			}
			x.add(at, g.Value, from, to)
			if at >= from && at <= to {
				s.Samples++
			}
		}
	})
	if err != nil {
		return s, err
	}
	for _, x := range all {
		x.hold(to, from, to)
	}
	s.fill(all)
	return s, nil
}

func (x *series) add(at int64, v float64, from, to int64) {
	if !x.counter {
		x.hold(at, from, to)
		if at >= from && at <= to {
			x.peak = max(x.peak, v)
		}
	} else if x.seen && at > from && x.lastAt < to {
		d := v - x.last
		if d < 0 {
			d = v
		}
		x.sum += d
		x.increments++
	}
	x.lastAt, x.last, x.seen = at, v, true
}

// hold adds the time that the last level stood, up to at.
func (x *series) hold(at, from, to int64) {
	if !x.seen || x.counter {
		return
	}
	a, b := max(x.lastAt, from), min(at, to)
	if b <= a {
		return
	}
	ns := b - a
	x.sum += x.last * float64(ns) / 1e9
	x.seconds += float64(ns) / 1e9
	x.peak = max(x.peak, x.last)
	x.levels.Add(x.last, uint32(min(ns/1e6+1, math.MaxUint32)))
}

// fill turns series into figures: counters and queue lengths are summed over engines and servers, page usage is the fullest engine's.
func (s *Server) fill(all map[engineSeries]*series) {
	byName := map[string][]*series{}
	for key, x := range all {
		byName[key.name] = append(byName[key.name], x)
	}
	for _, x := range byName[promtext.KVUsage] {
		if x.seconds == 0 {
			continue
		}
		if mean := x.sum / x.seconds; !s.KVUsageMean.Valid || mean > s.KVUsageMean.V {
			s.KVUsageMean = formats.Of(mean)
			s.KVUsageP95 = formats.Of(x.levels.Quantile(0.95))
		}
		s.KVUsageSum = formats.Of(s.KVUsageSum.V + x.sum/x.seconds)
		s.Engines++
		s.KVUsagePeak = formats.Of(max(s.KVUsagePeak.V, x.peak))
	}
	mean := func(name string) (mean, peak formats.Null[float64]) {
		for _, x := range byName[name] {
			if x.seconds > 0 {
				mean = formats.Of(mean.V + x.sum/x.seconds)
				peak = formats.Of(peak.V + x.peak)
			}
		}
		return mean, peak
	}
	s.RunningMean, _ = mean(promtext.Running)
	s.WaitingMean, s.WaitingPeak = mean(promtext.Waiting)
	increase := func(name string) (v formats.Null[float64]) {
		for _, x := range byName[name] {
			if x.increments > 0 {
				v = formats.Of(v.V + x.sum)
			}
		}
		return v
	}
	s.Preemptions = increase(promtext.Preemptions)
	s.OutputTokens = increase(promtext.DecodeTokens)
	s.ComputedTokens = increase(promtext.PrefillTokens)
	if n := increase(promtext.Iterations); n.Valid && n.V > 0 {
		s.IterationTokens = formats.Of(increase(promtext.IterationTokens).V / n.V)
	}
	if q := increase(promtext.PrefixQueries); q.Valid && q.V > 0 {
		if h := increase(promtext.PrefixHits); h.Valid {
			s.PrefixHitRate = formats.Of(h.V / q.V)
		}
	}
}
