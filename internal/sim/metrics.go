package sim

import (
	"fmt"
	"io"
	"math"
	"sort"
	"strconv"
	"time"

	"github.com/shadowtape/shadowtape/internal/engine"
)

// Meter keeps what vLLM's metrics page shows (names and labels as of vLLM V1 in mid-2026), fed from an engine's callbacks. Not safe for
// concurrent use.
type Meter struct {
	profile                                                 engine.Profile
	ttft, itl, tpot, e2e, queue, inference, prefill, decode histogram // seconds
	iteration, promptLen, outputLen, computed               histogram // tokens
	finished                                                map[string]int64
}

// NewMeter returns a meter that has seen nothing.
func NewMeter(p engine.Profile) *Meter {
	seconds := func(b ...float64) histogram { return newHistogram(b) }
	request := []float64{0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680}
	token := []float64{0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}
	lengths := []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000}
	return &Meter{
		profile: p,
		ttft:    seconds(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
		itl:     seconds(token...), tpot: seconds(token...),
		e2e: seconds(request...), queue: seconds(request...), inference: seconds(request...), prefill: seconds(request...), decode: seconds(request...),
		iteration: newHistogram([]float64{1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384}),
		promptLen: newHistogram(lengths), outputLen: newHistogram(lengths), computed: newHistogram(lengths),
		finished: map[string]int64{"stop": 0, "length": 0, "abort": 0, "error": 0, "repetition": 0},
	}
}

// Token books a token at its time.
func (m *Meter) Token(r *engine.Request, at time.Duration) {
	if r.Generated == 1 {
		m.ttft.observe((at - r.Arrival).Seconds())
	} else {
		m.itl.observe((at - r.Last).Seconds())
	}
}

// Done books the end of a request with its finish reason.
func (m *Meter) Done(r *engine.Request, at time.Duration, reason string) {
	m.finished[reason]++
	if r.Generated > 0 {
		m.queue.observe((r.Scheduled - r.Arrival).Seconds())
		m.prefill.observe((r.First - r.Scheduled).Seconds())
		m.decode.observe((at - r.First).Seconds())
		m.inference.observe((at - r.Scheduled).Seconds())
		if r.Generated > 1 {
			m.tpot.observe((at - r.First).Seconds() / float64(r.Generated-1))
		}
	}
	m.e2e.observe((at - r.Arrival).Seconds())
	m.promptLen.observe(float64(r.Input))
	m.outputLen.observe(float64(r.Generated))
	m.computed.observe(float64(r.Input - r.Cached))
}

// Step books a step.
func (m *Meter) Step(s engine.Step) { m.iteration.observe(float64(s.Prefill + s.Decode)) }

// Abort books a request that was given up.
func (m *Meter) Abort() {
	m.finished["abort"]++
}

// family is one metric of the page.
type family struct {
	name, kind, help string
	samples          func(emit func(suffix, labels string, value float64))
}

// Samples yields the samples of the page: the series' name, its labels as in the page but for the braces, and its value. Histograms are
// left out unless whole is set.
func (m *Meter) Samples(c engine.Counters, whole bool, yield func(series, labels string, value float64)) {
	for _, f := range m.families(c) {
		if f.kind == "histogram" && !whole {
			continue
		}
		f.samples(func(suffix, labels string, value float64) { yield(f.name+suffix, labels, value) })
	}
}

// WriteText writes the page in the text exposition format.
func (m *Meter) WriteText(w io.Writer, c engine.Counters, started time.Time) error {
	b := make([]byte, 0, 32<<10)
	for _, f := range m.families(c) {
		b = fmt.Appendf(b, "# HELP %s %s\n# TYPE %s %s\n", f.name, f.help, f.name, f.kind)
		f.samples(func(suffix, labels string, value float64) {
			b = fmt.Appendf(b, "%s%s{%s} %s\n", f.name, suffix, labels, number(value))
		})
	}
	b = fmt.Appendf(b, "# HELP process_start_time_seconds Start time of the process since unix epoch in seconds.\n# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds %.2f\n",
		float64(started.UnixNano())/1e9)
	_, err := w.Write(b)
	return err
}

// number prints a value as the Python client does: always as a floating-point number.
func number(v float64) string {
	if v == math.Trunc(v) && math.Abs(v) < 1e15 {
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'g', -1, 64)
}

func (m *Meter) families(c engine.Counters) []family {
	model := strconv.Quote(m.profile.Model)
	base := `engine="0",model_name=` + model
	one := func(name, kind, help string, value float64) family {
		return family{name, kind, help, func(emit func(string, string, float64)) { emit("", base, value) }}
	}
	labelled := func(name, kind, help string, before, after string, values []string, of func(string) float64) family {
		return family{name, kind, help, func(emit func(string, string, float64)) {
			for _, v := range values {
				emit("", `engine="0",`+before+strconv.Quote(v)+after, of(v))
			}
		}}
	}
	hist := func(name, help string, h *histogram) family {
		return family{name, "histogram", help, func(emit func(string, string, float64)) { h.samples(model, emit) }}
	}
	p := m.profile
	tokens := p.Pages * p.PageSize
	config := fmt.Sprintf(`block_size="%d",cache_dtype="auto",enable_prefix_caching="True",engine="0",gpu_memory_utilization="0.9",kv_cache_max_concurrency="%.2f",kv_cache_size_tokens="%d",num_cpu_blocks="None",num_gpu_blocks="%d",prefix_caching_hash_algo="sha256",sliding_window="None"`,
		p.PageSize, float64(tokens)/float64(p.MaxModelLen), tokens, p.Pages+1)
	reasons := make([]string, 0, len(m.finished))
	for r := range m.finished {
		reasons = append(reasons, r)
	}
	sort.Strings(reasons)
	return []family{
		one("vllm:num_requests_running", "gauge", "Number of requests in model execution batches.", float64(c.Running)),
		one("vllm:num_requests_waiting", "gauge", "Number of requests waiting to be processed.", float64(c.Waiting)),
		labelled("vllm:num_requests_waiting_by_reason", "gauge", "Number of waiting requests by reason.", "model_name="+model+",reason=", "", []string{"capacity", "deferred"},
			func(r string) float64 {
				if r == "capacity" {
					return float64(c.Waiting)
				}
				return 0
			}),
		one("vllm:kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage.", float64(c.Pages)/float64(p.Pages)),
		one("vllm:prefix_cache_queries_total", "counter", "Prefix cache queries, in terms of number of queried tokens.", float64(c.PrefixQueries)),
		one("vllm:prefix_cache_hits_total", "counter", "Prefix cache hits, in terms of number of cached tokens.", float64(c.PrefixHits)),
		one("vllm:num_preemptions_total", "counter", "Cumulative number of preemption from the engine.", float64(c.Preemptions)),
		one("vllm:prompt_tokens_total", "counter", "Number of prefill tokens processed.", float64(c.Prompt)),
		labelled("vllm:prompt_tokens_by_source_total", "counter", "Number of prompt tokens by source.", "model_name="+model+",source=", "", []string{"local_compute", "local_cache_hit", "external_kv_transfer"},
			func(s string) float64 {
				switch s {
				case "local_compute":
					return float64(c.Prompt - c.PromptCached)
				case "local_cache_hit":
					return float64(c.PromptCached)
				}
				return 0
			}),
		one("vllm:prompt_tokens_cached_total", "counter", "Number of cached prompt tokens (local + external).", float64(c.PromptCached)),
		one("vllm:generation_tokens_total", "counter", "Number of generation tokens processed.", float64(c.Generated)),
		labelled("vllm:request_success_total", "counter", "Count of successfully processed requests.", "finished_reason=", ",model_name="+model, reasons,
			func(r string) float64 { return float64(m.finished[r]) }),
		hist("vllm:iteration_tokens_total", "Histogram of number of tokens per engine_step.", &m.iteration),
		hist("vllm:time_to_first_token_seconds", "Histogram of time to first token in seconds.", &m.ttft),
		hist("vllm:inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", &m.itl),
		hist("vllm:request_time_per_output_token_seconds", "Histogram of time_per_output_token_seconds per request.", &m.tpot),
		hist("vllm:e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", &m.e2e),
		hist("vllm:request_queue_time_seconds", "Histogram of time spent in WAITING phase for request.", &m.queue),
		hist("vllm:request_inference_time_seconds", "Histogram of time spent in RUNNING phase for request.", &m.inference),
		hist("vllm:request_prefill_time_seconds", "Histogram of time spent in PREFILL phase for request.", &m.prefill),
		hist("vllm:request_decode_time_seconds", "Histogram of time spent in DECODE phase for request.", &m.decode),
		hist("vllm:request_prompt_tokens", "Number of prefill tokens processed.", &m.promptLen),
		hist("vllm:request_generation_tokens", "Number of generation tokens processed.", &m.outputLen),
		hist("vllm:request_prefill_kv_computed_tokens", "Histogram of new KV tokens computed during prefill (excluding cached tokens).", &m.computed),
		{"vllm:cache_config_info", "gauge", "Information of the LLMEngine CacheConfig", func(emit func(string, string, float64)) { emit("", config, 1) }},
	}
}

// histogram counts values by upper bound.
type histogram struct {
	bounds []float64
	counts []int64 // one more than bounds
	sum    float64
}

func newHistogram(bounds []float64) histogram {
	return histogram{bounds: bounds, counts: make([]int64, len(bounds)+1)}
}

func (h *histogram) observe(v float64) {
	h.counts[sort.SearchFloat64s(h.bounds, v)]++
	h.sum += v
}

func (h *histogram) samples(model string, emit func(suffix, labels string, value float64)) {
	total := int64(0)
	for i, n := range h.counts {
		total += n
		le := "+Inf"
		if i < len(h.bounds) {
			le = number(h.bounds[i])
		}
		emit("_bucket", `engine="0",le="`+le+`",model_name=`+model, float64(total))
	}
	emit("_count", `engine="0",model_name=`+model, float64(total))
	emit("_sum", `engine="0",model_name=`+model, h.sum)
}
