package engine

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"time"
)

// Profile is a model on a GPU as the engine sees it: its step times and its cache. Source says where the numbers come from.
type Profile struct {
	Name         string       `json:"name"`
	Model        string       `json:"model"` // the name it is served under
	Source       string       `json:"source"`
	Coefficients Coefficients `json:"coefficients"`
	Instant      bool         `json:"instant,omitempty"` // every token at once: for tests
	Pages        int          `json:"pages"`
	PageSize     int          `json:"page_size"` // tokens
	MaxSeqs      int          `json:"max_num_seqs"`
	TokenBudget  int          `json:"token_budget"`
	MaxModelLen  int          `json:"max_model_len"` // tokens of prompt and output together
	KVBytes      float64      `json:"kv_bytes_per_token,omitempty"`
}

// Validate reports what cannot be served.
func (p Profile) Validate() error {
	if p.MaxModelLen <= 0 {
		return fmt.Errorf("profile %q: max_model_len %d: must be positive", p.Name, p.MaxModelLen)
	}
	if err := p.Options().Validate(); err != nil {
		return fmt.Errorf("profile %q: %w", p.Name, err)
	}
	return nil
}

// Options are those of a Scheduler that serves the profile.
func (p Profile) Options() Options {
	return Options{Coefficients: p.Coefficients, Pages: p.Pages, PageSize: p.PageSize, MaxSeqs: p.MaxSeqs, TokenBudget: p.TokenBudget}
}

// card is a published GPU: its memory, its memory bandwidth and its dense tensor throughput in the precision named.
type card struct {
	name      string
	bytes     float64
	bandwidth float64 // bytes/s
	flops     float64 // per second
}

var (
	a100 = card{"A100 80GB SXM (2.039 TB/s, 312 TFLOP/s dense BF16)", 80e9, 2.039e12, 312e12}
	h100 = card{"H100 80GB SXM (3.35 TB/s, 989 TFLOP/s dense BF16)", 80e9, 3.35e12, 989e12}
	h200 = card{"H200 141GB SXM (4.8 TB/s, 1,979 TFLOP/s dense FP8)", 141e9, 4.8e12, 1979e12}
	l4   = card{"L4 24GB (300 GB/s, 121 TFLOP/s dense BF16)", 24e9, 300e9, 121e12}
)

// The shares of the data sheet's figures that derive assumes a well-tuned server reaches. They are assumptions, not measurements.
const (
	bandwidthShare = 0.8
	flopsShare     = 0.5
	memoryShare    = 0.9   // vLLM's default gpu_memory_utilization
	workspace      = 4e9   // bytes a GPU keeps for activations and graphs
	perSequence    = 20e-6 // sampling and bookkeeping, seconds
	launch         = 1e-3  // launches and scheduling of a step, seconds
	allReduce      = 15e-6 // one all-reduce of a decode batch between GPUs, seconds; two per layer
)

// derive computes a profile from data sheets: a step reads the weights once, a prompt token costs two operations per parameter,
// attention reads keys and values of its context, all spread over the GPUs.
func derive(name, model string, g card, gpus int, params, weightBytes float64, layers, kvHeads, headDim int, budget int) Profile {
	const size = 16
	n := float64(gpus)
	kv := float64(2 * 2 * layers * kvHeads * headDim) // keys and values, two bytes each
	c := Coefficients{
		Fixed:      weightBytes/(n*g.bandwidth*bandwidthShare) + launch,
		PerPrefill: 2 * params / (n * g.flops * flopsShare),
		PerDecode:  perSequence,
		PerContext: kv / (n * g.bandwidth * bandwidthShare),
	}
	if gpus > 1 {
		c.Fixed += 2 * float64(layers) * allReduce
	}
	return Profile{
		Name: name, Model: model, Coefficients: c, PageSize: size, MaxSeqs: 256, TokenBudget: budget, MaxModelLen: 131072, KVBytes: kv,
		Pages: int(math.Floor((n*(g.bytes*memoryShare-workspace) - weightBytes) / (kv * size))),
		Source: fmt.Sprintf("derived from data sheets, not measured: %d x %s, %.2fe9 parameters, %.1f GB of weights; %.0f %% of the bandwidth, %.0f %% of the throughput assumed",
			gpus, g.name, params/1e9, weightBytes/1e9, bandwidthShare*100, flopsShare*100),
	}
}

// Profiles are the built-in ones, the default first.
func Profiles() []Profile {
	return []Profile{
		derive("llama-3.1-8b-h100", "meta-llama/Llama-3.1-8B-Instruct", h100, 1, 8.03e9, 16.06e9, 32, 8, 128, 8192),
		derive("llama-3.1-8b-a100", "meta-llama/Llama-3.1-8B-Instruct", a100, 1, 8.03e9, 16.06e9, 32, 8, 128, 8192),
		derive("llama-3.1-70b-h100x4", "meta-llama/Llama-3.1-70B-Instruct", h100, 4, 70.6e9, 141.2e9, 80, 8, 128, 8192),
		derive("llama-3.1-70b-fp8-h200", "meta-llama/Llama-3.1-70B-Instruct", h200, 1, 70.6e9, 70.6e9, 80, 8, 128, 8192),
		derive("qwen2.5-7b-l4", "Qwen/Qwen2.5-7B-Instruct", l4, 1, 7.62e9, 15.24e9, 28, 4, 128, 2048),
		{Name: "instant", Model: "shadowtape/instant", Source: "no model: every token at once", Instant: true,
			Pages: 65536, PageSize: 16, MaxSeqs: 4096, TokenBudget: 1 << 20, MaxModelLen: 131072},
	}
}

// FindProfile returns the built-in profile of that name.
func FindProfile(name string) (Profile, error) {
	var names []string
	for _, p := range Profiles() {
		if p.Name == name {
			return p, nil
		}
		names = append(names, p.Name)
	}
	return Profile{}, fmt.Errorf("find profile %q: there are %s", name, strings.Join(names, ", "))
}

// ParseProfile reads a profile that calibrate wrote, or one written by hand.
func ParseProfile(data []byte) (Profile, error) {
	var p Profile
	if err := json.Unmarshal(data, &p); err != nil {
		return Profile{}, fmt.Errorf("read profile: %w", err)
	}
	return p, p.Validate()
}

// StepTime is the time of one step without noise.
func (c Coefficients) StepTime(prefill, decode, context int) time.Duration {
	return time.Duration(math.Round(c.seconds(Slowdown{}, prefill, decode, context) * 1e9))
}
