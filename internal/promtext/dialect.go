package promtext

import (
	"math"
	"slices"
	"strconv"
	"strings"
)

// The canonical series: what every server's page is turned into, as far as it says it. Counters only grow; a unit that is not tokens or
// pages everywhere is noted.
const (
	KVUsage         = "kv_usage"             // gauge, 0 to 1: share of the KV cache held by running requests
	KVPagesUsed     = "kv_pages_used"        // gauge
	KVPagesTotal    = "kv_pages_total"       // gauge
	PageTokens      = "kv_page_tokens"       // gauge: tokens in a page
	PrefixQueries   = "prefix_queries"       // counter: prompt tokens looked up in the prefix cache (vLLM before 0.9 and TRT-LLM's iteration statistics: pages)
	PrefixHits      = "prefix_hits"          // counter, in the unit of PrefixQueries
	Preemptions     = "preemptions"          // counter
	Running         = "running"              // gauge: requests
	Waiting         = "waiting"              // gauge: requests
	PrefillTokens   = "prefill_tokens"       // counter: prompt tokens computed, those from a cache left out where the server can tell
	DecodeTokens    = "decode_tokens"        // counter: tokens generated
	IterationTokens = "iteration_tokens_sum" // counter: tokens of all engine steps …
	Iterations      = "iterations"           // counter: … and how many steps there were
	StartTime       = "start_time_seconds"   // gauge: when the server started, seconds since 1970
)

// Reading is one canonical value of one engine of a server.
type Reading struct {
	Name    string
	Engine  string // the engine, data-parallel rank or worker; "" where there is one
	Value   float64
	Counter bool
}

// Read turns a page into canonical series by the names that are on it, never by a version, and says which servers it found, comma
// separated; "" where it knows none. Engines stay apart: gauges are not added over engines, nor over the pid label of Python's
// multiprocess mode, where the largest is the one that is alive. A reading that the page does not support is left out, not zero.
func Read(p Page) (dialect string, out []Reading) {
	var found []string
	for _, d := range dialects {
		if !slices.ContainsFunc(p.Samples, func(s Sample) bool { return strings.HasPrefix(s.Name, d.prefix) && d.is(s.Name[len(d.prefix):]) }) {
			continue
		}
		if d.outer && len(found) > 0 { // the engine's own page is better than what its frontend says of it
			continue
		}
		groups := groupsOf(p, d)
		for _, r := range d.rules {
			out = append(out, r.read(groups)...)
		}
		found = append(found, d.name)
	}
	if len(found) > 0 {
		for _, s := range p.Samples {
			if s.Name == "process_start_time_seconds" {
				out = append(out, Reading{Name: StartTime, Value: s.Value})
			}
		}
	}
	return strings.Join(found, ","), out
}

// group is the samples of one engine, by name without prefix and without _total.
type group struct {
	engine string
	series map[string][]Sample
	rest   *group // samples that name no engine: information about all of them
}

func groupsOf(p Page, d dialect) []*group {
	by := map[string]*group{}
	var order []*group
	of := func(engine string) *group {
		g := by[engine]
		if g == nil {
			g = &group{engine: engine, series: map[string][]Sample{}}
			by[engine] = g
			order = append(order, g)
		}
		return g
	}
	for _, s := range p.Samples {
		name, ok := strings.CutPrefix(s.Name, d.prefix)
		if !ok {
			continue
		}
		// Names such as iteration_tokens_total_sum end in _sum: they keep their middle.
		name = strings.TrimSuffix(name, "_total")
		engine := ""
		for _, l := range d.engine {
			if v, ok := Label(s.Labels, l); ok {
				engine = v
				break
			}
		}
		g := of(engine)
		g.series[name] = append(g.series[name], s)
	}
	for _, g := range order {
		if g.engine != "" {
			g.rest = by[""]
		}
	}
	return order
}

// rule makes one canonical series. Of its sources the first that any engine has is used for all of them.
type rule struct {
	to      string
	counter bool
	from    []source
}

type source func(*group) (float64, bool)

func gauge(to string, from ...source) rule   { return rule{to, false, from} }
func counter(to string, from ...source) rule { return rule{to, true, from} }

func (r rule) read(groups []*group) (out []Reading) {
	for _, from := range r.from {
		for _, g := range groups {
			if v, ok := from(g); ok && !math.IsNaN(v) && !math.IsInf(v, 0) {
				out = append(out, Reading{r.to, g.engine, v, r.counter})
			}
		}
		if out != nil {
			return out
		}
	}
	return nil
}

// fold joins the samples of a series that differ in other labels.
func (g *group) fold(name string, where []string, join func(a, b float64) float64) (float64, bool) {
	v, any := 0.0, false
	for _, s := range g.series[name] {
		if math.IsNaN(s.Value) {
			continue
		}
		match := true
		for i := 0; i+1 < len(where); i += 2 {
			l, _ := Label(s.Labels, where[i])
			match = match && l == where[i+1]
		}
		if !match {
			continue
		}
		if any {
			v = join(v, s.Value)
		} else {
			v, any = s.Value, true
		}
	}
	return v, any
}

// sum adds a counter over its labels; where is label, value, … that samples must have.
func sum(name string, where ...string) source {
	return func(g *group) (float64, bool) {
		return g.fold(name, where, func(a, b float64) float64 { return a + b })
	}
}

// top is the largest of a gauge over its labels.
func top(name string, where ...string) source {
	return func(g *group) (float64, bool) { return g.fold(name, where, math.Max) }
}

// info is a number in a label of an information series.
func info(name, label string) source {
	return func(g *group) (float64, bool) {
		for ; g != nil; g = g.rest {
			for _, s := range g.series[name] {
				t, _ := Label(s.Labels, label)
				if v, err := strconv.ParseFloat(t, 64); err == nil {
					return v, true
				}
			}
		}
		return 0, false
	}
}

func both(a, b source, f func(x, y float64) float64) source {
	return func(g *group) (float64, bool) {
		x, ok := a(g)
		y, ok2 := b(g)
		return f(x, y), ok && ok2
	}
}

func plus(a, b source) source  { return both(a, b, func(x, y float64) float64 { return x + y }) }
func minus(a, b source) source { return both(a, b, func(x, y float64) float64 { return x - y }) }
func over(a, b source) source  { return both(a, b, func(x, y float64) float64 { return x / y }) }

// pinned is how many pages a share of vLLM's cache is: its block 0 is never used (vllm/v1/core/block_pool.py).
func pinned(usage, total source) source {
	return both(usage, total, func(u, n float64) float64 { return math.Round(u * (n - 1)) })
}

// first takes the first source that a group has.
func first(from ...source) source {
	return func(g *group) (float64, bool) {
		for _, s := range from {
			if v, ok := s(g); ok {
				return v, true
			}
		}
		return 0, false
	}
}

// dialect is how one server names things.
type dialect struct {
	name   string
	prefix string
	only   []string // names that tell it, where the prefix alone does not
	engine []string // labels that tell engines apart
	outer  bool     // a frontend: used only where no engine is on the page
	rules  []rule
}

func (d dialect) is(name string) bool {
	return len(d.only) == 0 || slices.Contains(d.only, strings.TrimSuffix(name, "_total"))
}

var vllmUsage = first(top("kv_cache_usage_perc"), top("gpu_cache_usage_perc"))

// sglang's names stand after "sglang:" on /metrics and after "sglang_" in /v1/loads.
var sglangRules = []rule{
	gauge(KVUsage, top("full_token_usage"), top("token_usage")),
	gauge(KVPagesUsed, over(first(top("kv_used_tokens"), top("num_used_tokens")), first(top("page_size"), info("cache_config_info", "page_size")))),
	gauge(KVPagesTotal, top("num_pages"), info("cache_config_info", "num_pages"), over(top("max_total_num_tokens"), top("page_size"))),
	gauge(PageTokens, top("page_size"), info("cache_config_info", "page_size")),
	// cache_hit_rate is the last prefill's and is set to 0 by every decode report: it is never read.
	counter(PrefixQueries, plus(sum("realtime_tokens", "mode", "prefill_compute"), sum("realtime_tokens", "mode", "prefill_cache")), sum("prompt_tokens")),
	counter(PrefixHits, sum("realtime_tokens", "mode", "prefill_cache"), sum("cached_tokens")),
	counter(Preemptions, sum("num_retracted_requests"), sum("total_retracted_reqs")),
	gauge(Running, top("num_running_reqs")),
	gauge(Waiting, top("num_queue_reqs"), top("num_waiting_reqs")),
	counter(PrefillTokens, sum("realtime_tokens", "mode", "prefill_compute"), minus(sum("prompt_tokens"), sum("cached_tokens")), sum("prompt_tokens")),
	counter(DecodeTokens, sum("realtime_tokens", "mode", "decode"), sum("generation_tokens")),
}

// dialects is the table of servers, engines before frontends. Names and meanings were read in each server's source.
var dialects = []dialect{
	{name: "vllm", prefix: "vllm:", engine: []string{"engine"}, rules: []rule{
		gauge(KVUsage, vllmUsage),
		gauge(KVPagesUsed, pinned(vllmUsage, info("cache_config_info", "num_gpu_blocks"))),
		gauge(KVPagesTotal, info("cache_config_info", "num_gpu_blocks")),
		gauge(PageTokens, info("cache_config_info", "block_size")),
		counter(PrefixQueries, sum("prefix_cache_queries"), sum("gpu_prefix_cache_queries")),
		counter(PrefixHits, sum("prefix_cache_hits"), sum("gpu_prefix_cache_hits")),
		counter(Preemptions, sum("num_preemptions")),
		gauge(Running, top("num_requests_running")),
		gauge(Waiting, top("num_requests_waiting")),
		counter(PrefillTokens, sum("prompt_tokens_by_source", "source", "local_compute"), sum("request_prefill_kv_computed_tokens_sum"),
			minus(sum("prompt_tokens"), sum("prefix_cache_hits")), sum("prompt_tokens")),
		counter(DecodeTokens, sum("generation_tokens")),
		counter(IterationTokens, sum("iteration_tokens_total_sum")),
		counter(Iterations, sum("iteration_tokens_total_count")),
	}},
	{name: "sglang", prefix: "sglang:", engine: []string{"dp_rank"}, rules: sglangRules},
	{name: "sglang", prefix: "sglang_", engine: []string{"dp_rank"}, rules: sglangRules},
	{name: "trtllm", prefix: "trtllm_", rules: trtllmRules},
	{name: "trtllm", prefix: "trtllm:", rules: trtllmRules},
	{name: "triton", prefix: "nv_trt_llm_", engine: []string{"model"}, rules: []rule{
		gauge(KVUsage, top("kv_cache_block_metrics", "kv_cache_block_type", "fraction")),
		gauge(KVPagesUsed, top("kv_cache_block_metrics", "kv_cache_block_type", "used")),
		gauge(KVPagesTotal, top("kv_cache_block_metrics", "kv_cache_block_type", "max")),
		gauge(PageTokens, top("kv_cache_block_metrics", "kv_cache_block_type", "tokens_per")),
		gauge(Running, top("request_metrics", "request_type", "scheduled")),
		gauge(Waiting, top("request_metrics", "request_type", "waiting")),
		counter(Iterations, top("general_metrics", "general_type", "iteration_counter")),
	}},
	{name: "tgi", prefix: "tgi_", rules: []rule{
		gauge(Running, top("batch_current_size")),
		gauge(Waiting, top("queue_size")),
		counter(PrefillTokens, sum("request_input_length_sum")),
		counter(DecodeTokens, sum("request_generated_tokens_sum")),
		counter(Iterations, sum("batch_inference_count")),
	}},
	{name: "llamacpp", prefix: "llamacpp:", rules: []rule{
		gauge(KVUsage, top("kv_cache_usage_ratio")),
		gauge(Running, top("requests_processing")),
		gauge(Waiting, top("requests_deferred")),
		// prompt_tokens leaves cached tokens out since they have a series of their own.
		counter(PrefixQueries, plus(sum("prompt_tokens"), sum("prompt_tokens_cached"))),
		counter(PrefixHits, sum("prompt_tokens_cached")),
		counter(PrefillTokens, sum("prompt_tokens")),
		counter(DecodeTokens, sum("tokens_predicted")),
		counter(Iterations, sum("n_decode")),
	}},
	{name: "lmdeploy", prefix: "lmdeploy:", engine: []string{"engine"}, rules: []rule{
		gauge(KVUsage, top("gpu_cache_usage_perc")),
		gauge(Running, top("num_requests_running")),
		gauge(Waiting, top("num_requests_waiting")),
		counter(PrefixQueries, both(sum("prompt_tokens"), sum("cached_tokens"), func(p, _ float64) float64 { return p })),
		counter(PrefixHits, sum("cached_tokens")),
		counter(PrefillTokens, minus(sum("prompt_tokens"), sum("cached_tokens")), sum("prompt_tokens")),
		counter(DecodeTokens, sum("generation_tokens")),
		counter(IterationTokens, sum("iteration_tokens_total_sum")),
		counter(Iterations, sum("iteration_tokens_total_count")),
	}},
	{name: "dynamo_worker", prefix: "dynamo_component_", outer: true, rules: []rule{
		gauge(KVUsage, top("kvstats_gpu_cache_usage_percent"), top("gpu_cache_usage_percent")),
		gauge(KVPagesUsed, top("kvstats_active_blocks")),
		gauge(KVPagesTotal, top("kvstats_total_blocks")),
		gauge(Running, top("inflight_requests")),
	}},
	{name: "dynamo", prefix: "dynamo_frontend_", engine: []string{"worker_id"}, outer: true, rules: []rule{
		gauge(KVPagesUsed, top("worker_active_decode_blocks")),
		gauge(KVPagesTotal, top("model_total_kv_blocks")),
		gauge(PageTokens, top("model_kv_cache_block_size")),
		gauge(Running, top("inflight_requests")),
		gauge(Waiting, top("queued_requests")),
		counter(PrefixQueries, both(sum("input_sequence_tokens_sum"), sum("cached_tokens_sum"), func(n, _ float64) float64 { return n })),
		counter(PrefixHits, sum("cached_tokens_sum")),
		counter(PrefillTokens, minus(sum("input_sequence_tokens_sum"), sum("cached_tokens_sum")), sum("input_sequence_tokens_sum")),
		counter(DecodeTokens, sum("output_tokens")),
	}},
	{name: "nim", prefix: "", only: []string{"num_request_max", "gpu_cache_usage_perc"}, outer: true, rules: []rule{
		gauge(KVUsage, top("gpu_cache_usage_perc")),
		gauge(Running, top("num_requests_running")),
		gauge(Waiting, top("num_requests_waiting")),
		counter(PrefillTokens, sum("prompt_tokens")),
		counter(DecodeTokens, sum("generation_tokens")),
	}},
}

// trtllmRules: every gauge carries the pid of Python's multiprocess mode.
var trtllmRules = []rule{
	gauge(KVUsage, top("kv_cache_utilization")),
	gauge(KVPagesUsed, top("kv_cache_used_blocks")),
	gauge(KVPagesTotal, top("kv_cache_max_blocks")),
	gauge(PageTokens, top("kv_cache_tokens_per_block"), info("kv_cache_config_info", "page_size")),
	counter(PrefixQueries, sum("prompt_tokens")),
	counter(PrefixHits, sum("prompt_cached_tokens")),
	gauge(Running, top("num_requests_running")),
	gauge(Waiting, top("num_requests_waiting")),
	counter(PrefillTokens, minus(sum("prompt_tokens"), sum("prompt_cached_tokens")), sum("prompt_tokens")),
	counter(DecodeTokens, sum("generation_tokens")),
}
