package analyzer

// Window is what is known about a run's measured exchanges as a whole: what aggregates are computed from.
type Window struct {
	FromUnixNS, ToUnixNS int64   // first arrival; last end or arrival
	Seconds              float64 // between them; 0 where there is one moment
	Requests             Requests
	InputTokens          int64 // of requests sent, where known
	InputKnown           int64 // requests that the sum is over
	OutputTokens         int64 // of requests sent, where known, whatever became of them
	OutputKnown          int64
	Limits               int   // SLO limits that were given
	Met                  int64 // requests that completed and met every limit
	Server               Server
	Pages                *Pages        // nil where they are not modelled
	Mix                  *Mix          // likewise
	Interference         *Interference // likewise
	GPUs                 int           // that served the run; 0 is unknown
	CapacityRate         Null          // output tokens per second while saturated
}

// Aggregate is a property of a window and not of one row: a line of the table.
type Aggregate struct {
	Name       string
	Unit       string
	Better     string // lower, higher, or "" where a change is neither
	Definition string
	Matters    float64                       // smallest change that a diff calls one: of a share in its own unit (0.01 is a point), else relative; 0: it explains and never decides
	Of         func(*Window) (float64, bool) // false: undefined

	Explains bool // a diff shows it beside what decides

	// Part is what a stretch of time contributes to the numerator, so that an interval can be made; nil where there is none.
	Part func(*bin) float64
	// Share is the count that is the denominator where the figure is a share; else it is a rate and the denominator is time.
	Share int
}

// countIs reads one count of a bin.
func countIs(i int) func(*bin) float64 { return func(b *bin) float64 { return b.counts[i] } }

// whole is the denominator of a stretch of time.
func (a *Aggregate) whole(t *tally, v intervals) func(*bin) float64 {
	if a.Unit == "share" {
		return countIs(a.Share)
	}
	each := t.window.Seconds / float64(max(len(v.blocks), 1))
	return func(*bin) float64 { return each }
}

// Aggregates returns the table, in the order in which it is shown. The slice is the caller's.
func Aggregates() []Aggregate { return append([]Aggregate(nil), aggregates...) }

var aggregates = []Aggregate{
	{
		Name: "request_rate", Unit: "1/s", Definition: "requests sent ÷ seconds of the measured window (first arrival to last end)",
		Part: countIs(countSent),
		Of:   func(w *Window) (float64, bool) { return perSecond(w, w.Requests.Sent, true) },
	}, {
		Name: "input_rate", Unit: "tokens/s", Definition: "input tokens of the requests sent ÷ seconds of the measured window",
		Part: countIs(countInput),
		Of:   func(w *Window) (float64, bool) { return perSecond(w, w.InputTokens, w.InputKnown > 0) },
	}, {
		Name: "output_rate", Explains: true, Unit: "tokens/s", Better: "higher", Definition: "output tokens received ÷ seconds of the measured window; below saturation an open loop's throughput is an input, not a result",
		Part: countIs(countOutput),
		Of:   func(w *Window) (float64, bool) { return perSecond(w, w.OutputTokens, w.OutputKnown > 0) },
	}, {
		Name: "goodput", Unit: "1/s", Better: "higher", Definition: "requests that completed and met every SLO given ÷ seconds of the measured window; undefined without an SLO. A limit on a metric that is undefined for a request does not count against it; a token that a retransmission or a loss touched counts with the time at which it was seen",
		Part: countIs(countMet),
		Of:   func(w *Window) (float64, bool) { return perSecond(w, w.Met, w.Limits > 0) },
	}, {
		Name: "slo_attainment", Unit: "share", Better: "higher", Matters: 0.002, Definition: "requests that completed and met every SLO given ÷ requests scheduled: a failed or dropped request misses",
		Part: countIs(countMet), Share: countScheduled,
		Of: func(w *Window) (float64, bool) { return share(w.Met, w.Requests.Scheduled, w.Limits > 0) },
	}, {
		Name: "error_rate", Unit: "share", Better: "lower", Matters: 0.002, Definition: "requests that failed ÷ requests sent; HTTP 200 with an error in the stream is a failure",
		Part: countIs(countFailed), Share: countSent,
		Of: func(w *Window) (float64, bool) {
			return share(w.Requests.Failed, w.Requests.Sent, w.Requests.Unknown < w.Requests.Sent)
		},
	}, {
		Name: "abort_rate", Unit: "share", Definition: "requests that the client gave up ÷ requests sent",
		Part: countIs(countAborted), Share: countSent,
		Of: func(w *Window) (float64, bool) {
			return share(w.Requests.Aborted, w.Requests.Sent, w.Requests.Unknown < w.Requests.Sent)
		},
	}, {
		Name: "drop_rate", Unit: "share", Better: "lower", Matters: 0.002, Definition: "scheduled requests that the client did not send ÷ requests scheduled",
		Part: countIs(countDropped), Share: countScheduled,
		Of: func(w *Window) (float64, bool) { return share(w.Requests.Dropped, w.Requests.Scheduled, true) },
	}, {
		Name: "capacity", Unit: "tokens/s/GPU", Better: "higher", Definition: "output tokens per second and GPU while the service was saturated: in the replay's --saturate phase, else in the longest stretch in which the server's queue was never empty (a twentieth of the run at least). The highest rate within an SLO is of several runs (analyze RUN… --slo)",
		Of: func(w *Window) (float64, bool) {
			return w.CapacityRate.V / float64(max(w.GPUs, 1)), w.CapacityRate.Valid
		},
	}, {
		Name: "kv_pages_low", Unit: "pages", Definition: "pages in use, shared ones once, time-weighted mean, by the model's low end: prefill began as late as its length and the observed speed allow",
		Of: ofPages(func(p *Pages) Null { return p.InUse.Low.Mean }),
	}, {
		Name: "kv_pages_high", Unit: "pages", Definition: "likewise by its high end: prefill began when the request was sent",
		Of: ofPages(func(p *Pages) Null { return p.InUse.High.Mean }),
	}, {
		Name: "kv_peak_demand", Unit: "pages", Definition: "the most pages that were wanted at once, by the model's high end, above the cache's capacity too",
		Of: ofPages(func(p *Pages) Null { return p.PeakDemand }),
	}, {
		Name: "kv_peak_share", Unit: "share", Definition: "peak demand ÷ pages of the cache; above 1 it does not fit",
		Of: ofPages(func(p *Pages) Null { return p.PeakShare }),
	}, {
		Name: "kv_page_fill", Unit: "share", Definition: "tokens ÷ page slots of the pages that requests hold: the rest is internal fragmentation",
		Of: ofPages(func(p *Pages) Null { return p.Fill }),
	}, {
		Name: "kv_sharing", Unit: "ratio", Definition: "logical ÷ physical pages: how many requests hold a page; undefined without prefix blocks",
		Of: ofPages(func(p *Pages) Null { return p.Sharing }),
	}, {
		Name: "kv_lru_hit_rate", Unit: "share", Definition: "share of prompt blocks that an LRU cache of the server's capacity would have held, in order of arrival",
		Of: ofPages(func(p *Pages) Null { return p.LRUHitRate }),
	}, {
		Name: "mix_idle", Unit: "share", Definition: "time with neither prefill nor decode; of this and the next three mix's early end: waiting counts as prefill",
		Of: ofMix(func(m *Mix) Null { return m.Early.Idle }),
	}, {
		Name: "mix_prefill_only", Unit: "share", Definition: "time with prefill only",
		Of: ofMix(func(m *Mix) Null { return m.Early.PrefillOnly }),
	}, {
		Name: "mix_decode_only", Unit: "share", Definition: "time with decode only",
		Of: ofMix(func(m *Mix) Null { return m.Early.DecodeOnly }),
	}, {
		Name: "mix_mixed", Unit: "share", Definition: "time with prefill and decode at once",
		Of: ofMix(func(m *Mix) Null { return m.Early.Mixed }),
	}, {
		Name: "mix_switches", Unit: "1/s", Definition: "changes between those four a second",
		Of: ofMix(func(m *Mix) Null { return m.Early.SwitchesPerS }),
	}, {
		Name: "mix_prefill_rate", Unit: "tokens/s", Definition: "input computed a second: without what is known to come from a cache",
		Of: ofMix(func(m *Mix) Null { return m.PrefillTokensPerS }),
	}, {
		Name: "mix_decode_rate", Unit: "tokens/s", Definition: "output a second",
		Of: ofMix(func(m *Mix) Null { return m.DecodeTokensPerS }),
	}, {
		Name: "mix_slowdown", Unit: "ratio", Better: "lower", Definition: "mean gap per token while a prefill ran ÷ while none did",
		Of: func(w *Window) (float64, bool) {
			if w.Interference == nil {
				return 0, false
			}
			return w.Interference.Slowdown.V, w.Interference.Slowdown.Valid
		},
	}, {
		Name: "kv_usage_mean", Explains: true, Unit: "share", Definition: "pages in use ÷ pages of the cache by the server's gauge, time-weighted mean of the fullest engine",
		Of: func(w *Window) (float64, bool) { return w.Server.KVUsageMean.V, w.Server.KVUsageMean.Valid },
	}, {
		Name: "kv_usage_p95", Unit: "share", Definition: "the same gauge's time-weighted 95th percentile",
		Of: func(w *Window) (float64, bool) { return w.Server.KVUsageP95.V, w.Server.KVUsageP95.Valid },
	}, {
		Name: "kv_usage_peak", Unit: "share", Definition: "the same gauge's highest sample, of any engine",
		Of: func(w *Window) (float64, bool) { return w.Server.KVUsagePeak.V, w.Server.KVUsagePeak.Valid },
	}, {
		Name: "kv_prefix_hit_rate", Explains: true, Unit: "share", Better: "higher", Definition: "prefix cache hits ÷ queries from the deltas of the server's counters",
		Of: func(w *Window) (float64, bool) { return w.Server.PrefixHitRate.V, w.Server.PrefixHitRate.Valid },
	}, {
		Name: "kv_preemptions", Explains: true, Unit: "count", Better: "lower", Definition: "requests that the server preempted in the measured window, by its counter",
		Of: func(w *Window) (float64, bool) { return w.Server.Preemptions.V, w.Server.Preemptions.Valid },
	}, {
		Name: "server_running_mean", Unit: "requests", Definition: "requests in the server's batch, time-weighted mean of its gauge, summed over engines",
		Of: func(w *Window) (float64, bool) { return w.Server.RunningMean.V, w.Server.RunningMean.Valid },
	}, {
		Name: "server_waiting_mean", Unit: "requests", Better: "lower", Definition: "requests in the server's queue, time-weighted mean of its gauge, summed over engines",
		Of: func(w *Window) (float64, bool) { return w.Server.WaitingMean.V, w.Server.WaitingMean.Valid },
	}, {
		Name: "gpu_energy_per_token", Unit: "J/token", Better: "lower", Definition: "joules of all watched GPUs in the measured window, from their energy counters ÷ output tokens received",
		Of: func(w *Window) (float64, bool) {
			if !w.Server.gpu.energyJ.Valid || w.OutputKnown == 0 || w.OutputTokens == 0 {
				return 0, false
			}
			return w.Server.gpu.energyJ.V / float64(w.OutputTokens), true
		},
	}, {
		Name: "gpu_power", Unit: "W", Definition: "mean power of the watched GPUs, summed over them",
		Of: func(w *Window) (float64, bool) { return w.Server.gpu.powerW.V, w.Server.gpu.powerW.Valid },
	}, {
		Name: "gpu_throttled", Unit: "share", Definition: "readings in which a GPU's clocks were cut by its power limit, by heat or by the hardware ÷ readings, of the worst GPU",
		Of: func(w *Window) (float64, bool) { return w.Server.gpu.throttled.V, w.Server.gpu.throttled.Valid },
	},
}

// aggregateNamed finds an aggregate.
func aggregateNamed(name string) (Aggregate, bool) {
	for _, a := range aggregates {
		if a.Name == name {
			return a, true
		}
	}
	return Aggregate{}, false
}

func ofPages(of func(*Pages) Null) func(*Window) (float64, bool) {
	return func(w *Window) (float64, bool) {
		if w.Pages == nil {
			return 0, false
		}
		v := of(w.Pages)
		return v.V, v.Valid
	}
}

func ofMix(of func(*Mix) Null) func(*Window) (float64, bool) {
	return func(w *Window) (float64, bool) {
		if w.Mix == nil {
			return 0, false
		}
		v := of(w.Mix)
		return v.V, v.Valid
	}
}

func perSecond(w *Window, n int64, known bool) (float64, bool) {
	if !known || w.Seconds <= 0 {
		return 0, false
	}
	return float64(n) / w.Seconds, true
}

func share(part, whole int64, known bool) (float64, bool) {
	if !known || whole == 0 {
		return 0, false
	}
	return float64(part) / float64(whole), true
}
