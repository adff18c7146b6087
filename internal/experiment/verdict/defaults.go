package verdict

// Defaults are the metrics that a comparison knows, those that gate first: the typical request's TTFT, the slow set's, the typical TPOT,
// output tokens per second of the saturated phase, failures, and the share that meets the limits where limits were given. What a
// deployment loses silently is throughput, so capacity gates wherever it was measured; the highest rate within the limits stands beside it. Resolution is what a client's clock can vouch for.
func Defaults() []Metric {
	return []Metric{
		{Name: "ttft", Of: "ttft", Kind: Centre, Unit: "ms", Better: "lower", Tolerance: 0.05, Minimum: 0.02, Resolution: 1, Gate: true},
		{Name: "ttft_slow", Of: "ttft", Kind: Slow, Unit: "ms", Better: "lower", Tolerance: 0.10, Minimum: 0.04, Resolution: 1, Gate: true},
		{Name: "tpot", Of: "tpot", Kind: Centre, Unit: "ms", Better: "lower", Tolerance: 0.05, Minimum: 0.02, Resolution: 0.1, Gate: true},
		{Name: "capacity", Of: "capacity", Kind: Level, Unit: "tokens/s", Better: "higher", Tolerance: 0.05, Minimum: 0.02, Gate: true},
		{Name: "error_rate", Of: "error_rate", Kind: Share, Unit: "share", Better: "lower", Tolerance: 0.01, Minimum: 0.002, Gate: true},
		{Name: "slo_attainment", Of: "slo_attainment", Kind: Share, Unit: "share", Better: "higher", Tolerance: 0.01, Minimum: 0.005, Gate: true},
		{Name: "slo_rate", Of: "slo_rate", Kind: Level, Unit: "requests/s", Better: "higher", Tolerance: 0.05, Minimum: 0.02},
		{Name: "e2el", Of: "e2el", Kind: Centre, Unit: "ms", Better: "lower", Tolerance: 0.05, Minimum: 0.02, Resolution: 1},
		{Name: "ttft_p99", Of: "ttft_p99", Kind: Level, Unit: "ms", Better: "lower", Tolerance: 0.15, Minimum: 0.05, Resolution: 1},
		{Name: "tpot_p99", Of: "tpot_p99", Kind: Level, Unit: "ms", Better: "lower", Tolerance: 0.15, Minimum: 0.05, Resolution: 0.1},
		{Name: "abort_rate", Of: "abort_rate", Kind: Share, Unit: "share", Better: "lower", Tolerance: 0.01, Minimum: 0.002},
		{Name: "kv_usage_mean", Of: "kv_usage_mean", Kind: Share, Unit: "share", Tolerance: 0.02},
		{Name: "kv_usage_peak", Of: "kv_usage_peak", Kind: Share, Unit: "share", Tolerance: 0.02},
		{Name: "kv_prefix_hit_rate", Of: "kv_prefix_hit_rate", Kind: Share, Unit: "share", Tolerance: 0.02},
		{Name: "kv_preemptions", Of: "kv_preemptions", Kind: Count, Unit: "count", Tolerance: 0.99},
		{Name: "mix_prefill_only", Of: "mix_prefill_only", Kind: Share, Unit: "share", Tolerance: 0.05},
		{Name: "mix_decode_only", Of: "mix_decode_only", Kind: Share, Unit: "share", Tolerance: 0.05},
		{Name: "mix_mixed", Of: "mix_mixed", Kind: Share, Unit: "share", Tolerance: 0.05},
		{Name: "server_waiting_mean", Of: "server_waiting_mean", Kind: Count, Unit: "requests", Tolerance: 0.5},
	}
}
