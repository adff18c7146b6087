package analyzer

import (
	"math"
	"sort"
	"strings"

	"github.com/shadowtape/shadowtape/formats"
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
	PromptTokens  formats.Null[float64] `json:"prompt_tokens"`
	OutputTokens  formats.Null[float64] `json:"output_tokens"`

	ComputedTokens  formats.Null[float64] `json:"computed_tokens"`  // prompt tokens that no cache had
	IterationTokens formats.Null[float64] `json:"iteration_tokens"` // tokens of a step, mean
	KVUsageSum      formats.Null[float64] `json:"-"`                // mean usage, summed over engines
	Engines         int                   `json:"-"`

	gpu gpuFigures
}

// quantity is what a series means to us, whatever its server calls it.
type quantity uint8

const (
	noQuantity quantity = iota
	kvUsage
	requestsRunning
	requestsWaiting
	prefixHits
	prefixQueries
	preemptions
	promptTokens
	outputTokens
	computedTokens
	iterationTokens
	iterations
)

// serverSeries maps series to quantities, without "_total": counters appear with and without it. vLLM's names change with its versions.
var serverSeries = map[string]quantity{
	"vllm:kv_cache_usage_perc":      kvUsage,
	"vllm:gpu_cache_usage_perc":     kvUsage,
	"vllm:num_requests_running":     requestsRunning,
	"vllm:num_requests_waiting":     requestsWaiting,
	"vllm:prefix_cache_hits":        prefixHits,
	"vllm:gpu_prefix_cache_hits":    prefixHits,
	"vllm:prefix_cache_queries":     prefixQueries,
	"vllm:gpu_prefix_cache_queries": prefixQueries,
	"vllm:num_preemptions":          preemptions,
	"vllm:prompt_tokens":            promptTokens,
	"vllm:generation_tokens":        outputTokens,
	"vllm:iteration_tokens_sum":     iterationTokens, // vllm:iteration_tokens_total is a histogram
	"vllm:iteration_tokens_count":   iterations,
	computedBySource:                computedTokens,
}

// computedBySource is labelled by where a prompt's tokens came from; only those that were computed count.
const computedBySource = "vllm:prompt_tokens_by_source"

// quantityOf says what a sample means to us; noQuantity where it means nothing.
func quantityOf(s formats.ServerSample) quantity {
	name := strings.Replace(s.Series, "_total", "", 1)
	q := serverSeries[name]
	if math.IsNaN(s.Value) || name == computedBySource && !strings.Contains(s.Labels, `source="local_compute"`) {
		return noQuantity
	}
	return q
}

// series is one engine's one series over the window.
type series struct {
	quantity   quantity
	lastAt     int64
	last       float64
	sum        float64 // counters: increase; gauges: value × seconds
	seconds    float64
	peak       float64
	levels     stats.Sample // gauges, weighted by milliseconds
	seen       bool
	increments int
}

// readServer walks the samples between two times (Unix ns). A gauge holds until its next sample; a counter that falls was reset and
// counts from zero.
func readServer(r *Run, from, to int64) (Server, error) {
	all := map[string]*series{}
	var s Server
	for sample, err := range r.serverSamples() {
		if err != nil {
			return s, r.readError(err)
		}
		q := quantityOf(sample)
		if q == noQuantity {
			continue
		}
		key := sample.Target + "\x00" + sample.Series + "\x00" + sample.Labels
		x := all[key]
		if x == nil {
			x = &series{quantity: q}
			all[key] = x
		}
		x.add(sample.UnixNS, sample.Value, from, to)
		if sample.UnixNS >= from && sample.UnixNS <= to {
			s.Samples++
		}
	}
	for _, x := range all {
		x.hold(to, from, to)
	}
	s.fill(all)
	var err error
	s.gpu, err = readGPUs(r, from, to)
	return s, err
}

func (x *series) add(at int64, v float64, from, to int64) {
	if x.gauge() {
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
	if !x.seen || !x.gauge() {
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

func (x *series) gauge() bool {
	return x.quantity == kvUsage || x.quantity == requestsRunning || x.quantity == requestsWaiting
}

// fill turns series into figures: counters and queue lengths are summed over engines and targets, page usage is the fullest engine's.
// A quantity that a server reports under two names at once is taken from one of them.
func (s *Server) fill(all map[string]*series) {
	byName := map[quantity]map[string][]*series{}
	for key, x := range all {
		name := strings.SplitN(key, "\x00", 3)[1]
		if byName[x.quantity] == nil {
			byName[x.quantity] = map[string][]*series{}
		}
		byName[x.quantity][name] = append(byName[x.quantity][name], x)
	}
	pick := func(q quantity) []*series {
		names := make([]string, 0, len(byName[q]))
		for n := range byName[q] {
			names = append(names, n)
		}
		sort.Slice(names, func(i, j int) bool { return preferred(names[i]) < preferred(names[j]) })
		if len(names) == 0 {
			return nil
		}
		return byName[q][names[0]]
	}
	for _, x := range pick(kvUsage) {
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
	mean := func(q quantity) (mean, peak formats.Null[float64]) {
		for _, x := range pick(q) {
			if x.seconds > 0 {
				mean = formats.Of(mean.V + x.sum/x.seconds)
				peak = formats.Of(peak.V + x.peak)
			}
		}
		return mean, peak
	}
	s.RunningMean, _ = mean(requestsRunning)
	s.WaitingMean, s.WaitingPeak = mean(requestsWaiting)
	increase := func(q quantity) (v formats.Null[float64]) {
		for _, x := range pick(q) {
			if x.increments > 0 {
				v = formats.Of(v.V + x.sum)
			}
		}
		return v
	}
	s.Preemptions = increase(preemptions)
	s.PromptTokens = increase(promptTokens)
	s.OutputTokens = increase(outputTokens)
	s.ComputedTokens = increase(computedTokens)
	if n := increase(iterations); n.Valid && n.V > 0 {
		s.IterationTokens = formats.Of(increase(iterationTokens).V / n.V)
	}
	if q := increase(prefixQueries); q.Valid && q.V > 0 {
		if h := increase(prefixHits); h.Valid {
			s.PrefixHitRate = formats.Of(h.V / q.V)
			if !s.ComputedTokens.Valid && s.PromptTokens.Valid {
				s.ComputedTokens = formats.Of(s.PromptTokens.V - h.V)
			}
		}
	}
}

// preferred orders two names of one quantity: the current one before the deprecated.
func preferred(name string) string {
	if strings.HasPrefix(name, "vllm:gpu_") {
		return "~" + name
	}
	return name
}
