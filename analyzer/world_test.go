package analyzer

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/shadowtape/shadowtape/formats"
)

// world is a run whose figures are computed a second time, from the definitions and without the analyzer's code: by walking every moment
// at which anything changes, over all requests each time.
type world struct {
	run      *Run
	limit    float64 // ms, on ttft
	from, to int64
	sent     []*formats.Exchange
	dropped  int
	sizes    Sizes
	fixed    float64 // ns: the prefill speed that the model says it found
	perToken float64
	visits   []visit
}

// visit is a request in the server.
type visit struct {
	sent, late, first, last, end int64
	input, output, computed      int64
	blocks                       []int64
	tokens                       []int64 // when each came
}

func newWorld(seed uint64) *world {
	r := rand.New(rand.NewPCG(seed, 77))
	w := &world{limit: 300, sizes: Sizes{BlockSize: 16, Pages: 2500}}
	var xs []*formats.Exchange
	for id := range int64(250 + r.IntN(200)) {
		x := randomExchange(r, id+1)
		if x.Phase == formats.PhaseWarmup {
			x.Phase = formats.PhaseMeasure // it would hold pages and be no part of the window
		}
		if block := r.Int64N(6); block > 0 { // a block stands for itself and all before it
			for k := range x.InputTokens.Or(0) / 64 {
				if block = block*31 + k; k%10 == 9 {
					block = block*3 + r.Int64N(3)
				}
				x.PrefixBlocks = append(x.PrefixBlocks, block)
			}
		}
		xs = append(xs, x)
	}
	for i, x := range xs {
		end := x.ArrivalUnixNS + max(x.EndNS.Or(0), x.LastTokenNS.Or(0))
		if i == 0 {
			w.from, w.to = x.ArrivalUnixNS, end
		}
		w.from, w.to = min(w.from, x.ArrivalUnixNS), max(w.to, end)
		if x.EndReason == "not_sent" {
			w.dropped++
		} else {
			w.sent = append(w.sent, x)
		}
	}
	var server []formats.ServerSample
	queries, hits, preempted := 0.0, 0.0, 0.0
	for at := int64(1e18 - 2e9); at < w.to+2e9; at += 100e6 * (1 + r.Int64N(4)) {
		put := func(series string, v float64) {
			server = append(server, formats.ServerSample{UnixNS: at, Target: "t", Series: series, Value: v})
		}
		queries += float64(r.IntN(1000))
		hits += float64(r.IntN(300))
		preempted += float64(r.IntN(2))
		put("vllm:kv_cache_usage_perc", r.Float64())
		put("vllm:num_requests_running", float64(r.IntN(50)))
		waiting := r.IntN(4)
		if share := float64(at-w.from) / float64(w.to-w.from); share > 0.4 && share < 0.4+0.1*float64(seed%4) {
			waiting++ // a queue all the time, but in the first world
		}
		put("vllm:num_requests_waiting", float64(waiting))
		put("vllm:prefix_cache_queries_total", queries)
		put("vllm:prefix_cache_hits_total", hits)
		put("vllm:num_preemptions_total", preempted)
	}
	m := &formats.Manifest{Valid: true, Environment: map[string]any{"deployment": map[string]any{"gpu_uuids": []any{"GPU-0", "GPU-1"}}}}
	w.run = RunOf("world", m, xs, server)
	w.run.Header.PrefixBlockSize, w.run.Header.PrefixBlockUnit = 64, "tokens"
	for at := int64(1e18 - 1e9); at < w.to+1e9; at += 100e6 {
		for g := range 2 {
			s := formats.GPUSample{UnixNS: at, UUID: fmt.Sprint("GPU-", g), EnergyMJ: formats.Of((at - 1e18 + 2e9) / 1e6 * int64(200+100*g)), PowerMW: formats.Of(200_000 + r.Int64N(100_000)), Throttle: []string{}}
			if r.IntN(5) == 0 {
				s.Throttle = []string{[]string{"sw_power_cap", "idle"}[g]}
			}
			w.run.gpus = append(w.run.gpus, s)
		}
	}
	return w
}

func (w *world) seconds() float64 { return float64(w.to-w.from) / 1e9 }

// enter works out when each request was where in the server, once the speed of prefill is known.
func (w *world) enter(m *Mix) {
	w.fixed, w.perToken = m.PrefillFixedMS*1e6, m.PrefillPerTokenUS*1e3
	var paces []float64
	for _, x := range w.sent {
		failed := x.ErrorKind != "" || x.EndReason == "server_abort"
		end := x.EndNS
		if x.EndReason == "complete" && !failed && x.LastTokenNS.Valid || !end.Valid {
			end = x.LastTokenNS
		}
		if !end.Valid || !x.InputTokens.Valid || failed && !x.FirstTokenNS.Valid {
			continue
		}
		v := visit{sent: x.ArrivalUnixNS + x.SentNS.Or(0), input: x.InputTokens.V, output: max(1, x.OutputTokens.Or(1)), blocks: x.PrefixBlocks}
		v.computed = max(1, v.input)
		v.end = max(v.sent, x.ArrivalUnixNS+end.V)
		if x.FirstTokenNS.Valid {
			v.first, v.last = x.ArrivalUnixNS+x.FirstTokenNS.V, x.ArrivalUnixNS+x.LastTokenNS.V
			if v.output > 1 && v.last > v.first {
				paces = append(paces, float64(v.last-v.first)/float64(v.output-1))
			}
			if at := v.first; x.EventChoice == nil {
				for i, gap := range x.EventGapUS {
					at += int64(gap) * 1000
					n := int32(1)
					if x.EventTokens != nil {
						n = x.EventTokens[i]
					}
					for range n {
						v.tokens = append(v.tokens, at)
					}
				}
			}
		}
		w.visits = append(w.visits, v)
	}
	slices.Sort(paces)
	for i := range w.visits {
		v := &w.visits[i]
		prefill := int64(w.fixed + w.perToken*float64(v.computed))
		if v.first == 0 {
			pace := 0.0
			if n := len(paces); n > 0 {
				pace = (paces[(n-1)/2] + paces[n/2]) / 2
			}
			v.last = v.end
			v.first = max(v.end-int64(pace*float64(v.output-1)), v.sent+min(prefill, v.end-v.sent))
		}
		v.first = max(v.first, v.sent)
		v.last = max(v.last, v.first)
		v.end = max(v.end, v.last)
		v.late = max(v.sent, v.first-prefill)
		if int64(len(v.tokens)) < v.output {
			v.tokens = nil
			for k := range v.output {
				v.tokens = append(v.tokens, v.first+(v.last-v.first)*k/max(v.output-1, 1))
			}
		}
		v.tokens = v.tokens[:v.output]
	}
}

// held is what the cache holds at a moment by the high end: pages with and without sharing, and tokens.
func (w *world) held(at int64) (physical, logical, tokens float64) {
	shared := map[int64]bool{}
	for _, v := range w.visits {
		if at < v.sent || at >= v.end {
			continue
		}
		whole := len(v.blocks)
		if int64(whole)*64 > v.input {
			whole--
		}
		for _, b := range v.blocks[:whole] {
			shared[b] = true
		}
		private := v.input - 64*int64(whole)
		for _, came := range v.tokens {
			if came <= at {
				private++
			}
		}
		pages := math.Ceil(float64(private) / 16)
		physical += pages
		logical += pages + 4*float64(whole)
		tokens += float64(private + 64*int64(whole))
	}
	return physical + 4*float64(len(shared)), logical, tokens
}

// over samples a figure evenly over the window: its mean and its largest.
func (w *world) over(of func(at int64) float64) (mean, peak float64) {
	const n = 2500
	for i := range n {
		v := of(w.from + (w.to-w.from)*int64(2*i+1)/(2*n))
		mean += v / n
		peak = max(peak, v)
	}
	return mean, peak
}

// states are the shares of time idle, in prefill, in decode, mixed, and the switches a second between stretches that last.
func (w *world) states() (shares [4]float64, switches float64) {
	times := []int64{w.from, w.to}
	for _, v := range w.visits {
		times = append(times, v.sent, v.first, v.last)
	}
	times = slices.DeleteFunc(times, func(at int64) bool { return at < w.from || at > w.to })
	slices.Sort(times)
	before := -1
	for i, at := range times[:len(times)-1] {
		length := times[i+1] - at
		state := 0
		for _, v := range w.visits {
			if at >= v.sent && at < v.first {
				state |= 1
			}
			if at >= v.first && at < v.last {
				state |= 2
			}
		}
		shares[state] += float64(length) / float64(w.to-w.from)
		if length > 200e3 {
			if before >= 0 && state != before {
				switches++
			}
			before = state
		}
	}
	return shares, switches / w.seconds()
}

// gauge is a series' level at a moment.
func (w *world) gauge(series string, at int64) (v float64) {
	for _, s := range w.run.server {
		if s.Series == series && s.UnixNS <= at {
			v = s.Value
		}
	}
	return v
}

// grown is by how much a counter grew in the window: from its last reading before to its last in it, and what is read first after.
func (w *world) grown(series string) float64 {
	var before, after float64
	for _, s := range w.run.server {
		if s.Series == series && s.UnixNS <= w.from {
			before = s.Value
		}
		if s.Series == series && after == 0 && s.UnixNS >= w.to {
			after = s.Value
		}
	}
	return after - before
}

// prefilling is how much of the 32,000th of the window around a moment had a prefill in it.
func (w *world) prefilling(at int64) (share float64) {
	width := float64(w.to-w.from) / 32000
	a := math.Floor(float64(at-w.from)/width) * width
	var spans [][2]float64
	for _, v := range w.visits {
		if b, c := max(float64(v.late-w.from), a), min(float64(v.first-w.from), a+width); c > b {
			spans = append(spans, [2]float64{b, c})
		}
	}
	slices.SortFunc(spans, func(p, q [2]float64) int { return cmp.Compare(p[0], q[0]) })
	for _, s := range spans {
		share += max(0, s[1]-max(a, s[0])) / width
		a = max(a, s[1])
	}
	return share
}

// slowdown is the mean gap per token around whose middle a request was in prefill over that around which none was.
func (w *world) slowdown() (float64, bool) {
	var sum, n [2]float64
	for _, x := range w.sent {
		if x.ErrorKind != "" || x.EndReason == "server_abort" || !x.FirstTokenNS.Valid {
			continue
		}
		last, flags := map[int32]int64{}, map[int32]int32{}
		at := int64(0)
		for i, gap := range x.EventGapUS {
			at += int64(gap)
			c, tokens := int32(0), 1.0
			if x.EventChoice != nil {
				c = x.EventChoice[i]
			}
			if x.EventTokens != nil {
				tokens = float64(x.EventTokens[i])
			}
			before, seen := last[c]
			last[c] = at
			spoilt := flags[c]&(2|32) != 0
			if x.EventFlags != nil {
				flags[c] = x.EventFlags[i]
				spoilt = spoilt || x.EventFlags[i]&(1|2|4|32) != 0
			}
			if !seen || spoilt {
				continue
			}
			middle := x.ArrivalUnixNS + x.FirstTokenNS.V + (before+at)*500
			k := 0
			if p := w.prefilling(middle); p > 0.5 {
				k = 1
			} else if p >= 0.01 {
				continue
			}
			sum[k] += float64(at-before) / 1000
			n[k] += tokens
		}
	}
	if n[0] == 0 || n[1] == 0 || sum[0] == 0 {
		return 0, false
	}
	return (sum[1] / n[1]) / (sum[0] / n[0]), true
}

// capacity is the output in the longest stretch in which the queue was never empty, for each of two GPUs.
func (w *world) capacity() (float64, bool) {
	const parts = 400
	var sum, most float64
	var n, longest int
	for p := range parts {
		a, b := w.from+(w.to-w.from)*int64(p)/parts, w.from+(w.to-w.from)*int64(p+1)/parts
		queued, inside := w.gauge("vllm:num_requests_waiting", a-1) >= 1, false
		for _, s := range w.run.server {
			if s.Series == "vllm:num_requests_waiting" && s.UnixNS >= a && s.UnixNS < b {
				if !inside { // a reading in the part counts, not what stood before it
					queued, inside = true, true
				}
				queued = queued && s.Value >= 1
			}
		}
		if !queued {
			sum, n = 0, 0
			continue
		}
		n++
		for _, v := range w.visits {
			first := min(v.first, v.last-1) // tokens that come at once
			if inside := min(v.last, b) - max(first, a); inside > 0 {
				sum += float64(v.output) * float64(inside) / float64(v.last-first) / (float64(b-a) / 1e9)
			}
		}
		if n > longest {
			longest, most = n, sum/float64(n)
		}
	}
	return most / 2, longest >= 20
}

// lru is the share of blocks that a cache of the capacity hits.
func (w *world) lru() float64 {
	room := w.sizes.Pages * int64(w.sizes.BlockSize) / 64
	var cache []int64 // least recent first
	hits, all := 0.0, 0.0
	xs := slices.Clone(w.sent)
	slices.SortStableFunc(xs, func(a, b *formats.Exchange) int { return cmp.Compare(a.ArrivalUnixNS, b.ArrivalUnixNS) })
	for _, x := range xs {
		all += float64(len(x.PrefixBlocks))
		for _, b := range x.PrefixBlocks {
			if !slices.Contains(cache, b) {
				break
			}
			hits++
		}
		for _, b := range slices.Backward(x.PrefixBlocks) {
			if i := slices.Index(cache, b); i >= 0 {
				cache = slices.Delete(cache, i, i+1)
			}
			cache = append(cache, b)
		}
		cache = cache[max(0, int64(len(cache))-room):]
	}
	return hits / all
}

// aggregateTruths are the second implementations, by name, and how far from them a figure may be, as a share of it: 0 where the definition is
// exact, more where it is sampled here or there.
var aggregateTruths = map[string]struct {
	within float64
	of     func(*world) (float64, bool)
}{
	"request_rate": {0, func(w *world) (float64, bool) { return float64(len(w.sent)) / w.seconds(), true }},
	"input_rate": {0, func(w *world) (float64, bool) {
		return w.sum(func(x *formats.Exchange) int64 { return x.InputTokens.Or(0) }) / w.seconds(), true
	}},
	"output_rate": {0, func(w *world) (float64, bool) {
		return w.sum(func(x *formats.Exchange) int64 { return x.OutputTokens.Or(0) }) / w.seconds(), true
	}},
	"goodput": {0, func(w *world) (float64, bool) { return w.met() / w.seconds(), true }},
	"slo_attainment": {0, func(w *world) (float64, bool) {
		return w.met() / float64(len(w.sent)+w.dropped), true
	}},
	"error_rate": {0, func(w *world) (float64, bool) {
		return w.share(func(x *formats.Exchange) bool { return x.ErrorKind != "" || x.EndReason == "server_abort" }), true
	}},
	"abort_rate": {0, func(w *world) (float64, bool) {
		return w.share(func(x *formats.Exchange) bool { return x.ErrorKind == "" && x.EndReason == "client_abort" }), true
	}},
	"drop_rate": {0, func(w *world) (float64, bool) { return float64(w.dropped) / float64(w.dropped+len(w.sent)), true }},
	"capacity":  {0.01, (*world).capacity},
	"kv_pages_low": {0.02, func(w *world) (float64, bool) { // prefill in chunks of 2,048 from its late start
		mean, _ := w.over(func(at int64) float64 {
			shared, private := map[int64]bool{}, 0.0
			for _, v := range w.visits {
				if at < v.late || at >= v.end {
					continue
				}
				started := v.input
				if at < v.first {
					chunk := int64(float64(v.input) * float64(at-v.late) / float64(v.first-v.late) / 2048)
					started = min(v.input, 2048*(chunk+1))
				}
				whole := len(v.blocks)
				if int64(whole)*64 > v.input {
					whole--
				}
				for i, b := range v.blocks[:whole] {
					if int64(i)*64 < started {
						shared[b] = true
					}
				}
				n := max(0, started-64*int64(whole))
				for _, came := range v.tokens {
					if came <= at {
						n++
					}
				}
				private += math.Ceil(float64(n) / 16)
			}
			return min(private+4*float64(len(shared)), float64(w.sizes.Pages))
		})
		return mean, true
	}},
	"kv_pages_high": {0.01, func(w *world) (float64, bool) {
		mean, _ := w.over(func(at int64) float64 { p, _, _ := w.held(at); return min(p, float64(w.sizes.Pages)) })
		return mean, true
	}},
	"kv_peak_demand": {0.02, func(w *world) (float64, bool) {
		_, peak := w.over(func(at int64) float64 { p, _, _ := w.held(at); return p })
		return peak, true
	}},
	"kv_peak_share": {0.02, func(w *world) (float64, bool) {
		_, peak := w.over(func(at int64) float64 { p, _, _ := w.held(at); return p })
		return peak / float64(w.sizes.Pages), true
	}},
	"kv_page_fill": {0.01, func(w *world) (float64, bool) {
		tokens, _ := w.over(func(at int64) float64 { _, _, n := w.held(at); return n })
		logical, _ := w.over(func(at int64) float64 { _, n, _ := w.held(at); return n })
		return tokens / (16 * logical), true
	}},
	"kv_sharing": {0.01, func(w *world) (float64, bool) {
		physical, _ := w.over(func(at int64) float64 { n, _, _ := w.held(at); return n })
		logical, _ := w.over(func(at int64) float64 { _, n, _ := w.held(at); return n })
		return logical / physical, true
	}},
	"kv_lru_hit_rate":  {0, func(w *world) (float64, bool) { return w.lru(), true }},
	"mix_idle":         {0, func(w *world) (float64, bool) { s, _ := w.states(); return s[0], true }},
	"mix_prefill_only": {0, func(w *world) (float64, bool) { s, _ := w.states(); return s[1], true }},
	"mix_decode_only":  {0, func(w *world) (float64, bool) { s, _ := w.states(); return s[2], true }},
	"mix_mixed":        {0, func(w *world) (float64, bool) { s, _ := w.states(); return s[3], true }},
	"mix_switches":     {0, func(w *world) (float64, bool) { _, n := w.states(); return n, true }},
	"mix_prefill_rate": {0, func(w *world) (float64, bool) {
		sum := 0.0
		for _, v := range w.visits {
			sum += float64(v.computed)
		}
		return sum / w.seconds(), true
	}},
	"mix_decode_rate": {0, func(w *world) (float64, bool) {
		return w.sum(func(x *formats.Exchange) int64 { return x.OutputTokens.Or(0) }) / w.seconds(), true
	}},
	"mix_slowdown": {0.05, (*world).slowdown},
	"kv_usage_mean": {0.01, func(w *world) (float64, bool) {
		mean, _ := w.over(func(at int64) float64 { return w.gauge("vllm:kv_cache_usage_perc", at) })
		return mean, true
	}},
	"kv_usage_p95": {0.02, func(w *world) (float64, bool) {
		var all []float64
		w.over(func(at int64) float64 { all = append(all, w.gauge("vllm:kv_cache_usage_perc", at)); return 0 })
		slices.Sort(all)
		return all[len(all)*95/100], true
	}},
	"kv_usage_peak": {0, func(w *world) (float64, bool) {
		peak := w.gauge("vllm:kv_cache_usage_perc", w.from)
		for _, s := range w.run.server {
			if s.Series == "vllm:kv_cache_usage_perc" && s.UnixNS >= w.from && s.UnixNS <= w.to {
				peak = max(peak, s.Value)
			}
		}
		return peak, true
	}},
	"kv_prefix_hit_rate": {0, func(w *world) (float64, bool) {
		return w.grown("vllm:prefix_cache_hits_total") / w.grown("vllm:prefix_cache_queries_total"), true
	}},
	"kv_preemptions": {0, func(w *world) (float64, bool) { return w.grown("vllm:num_preemptions_total"), true }},
	"server_running_mean": {0.01, func(w *world) (float64, bool) {
		mean, _ := w.over(func(at int64) float64 { return w.gauge("vllm:num_requests_running", at) })
		return mean, true
	}},
	"server_waiting_mean": {0.02, func(w *world) (float64, bool) {
		mean, _ := w.over(func(at int64) float64 { return w.gauge("vllm:num_requests_waiting", at) })
		return mean, true
	}},
	"gpu_energy_per_token": {0.02, func(w *world) (float64, bool) {
		return 500 * w.seconds() / w.sum(func(x *formats.Exchange) int64 { return x.OutputTokens.Or(0) }), true
	}},
	"gpu_power": {0, func(w *world) (float64, bool) {
		sum, n := 0.0, 0.0
		for _, s := range w.run.gpus {
			if s.UnixNS >= w.from && s.UnixNS <= w.to {
				sum, n = sum+float64(s.PowerMW.V)/1000, n+1
			}
		}
		return 2 * sum / n, true
	}},
	"gpu_throttled": {0, func(w *world) (float64, bool) {
		cut, n := 0.0, 0.0
		for _, s := range w.run.gpus {
			if s.UUID == "GPU-0" && s.UnixNS >= w.from && s.UnixNS <= w.to {
				cut, n = cut+float64(len(s.Throttle)), n+1
			}
		}
		return cut / n, true
	}},
}

func (w *world) sum(of func(*formats.Exchange) int64) (n float64) {
	for _, x := range w.sent {
		n += float64(of(x))
	}
	return n
}

func (w *world) share(is func(*formats.Exchange) bool) float64 {
	return w.sum(func(x *formats.Exchange) int64 {
		if is(x) {
			return 1
		}
		return 0
	}) / float64(len(w.sent))
}

func (w *world) met() float64 {
	return w.share(func(x *formats.Exchange) bool {
		return x.ErrorKind == "" && x.EndReason == "complete" && (!x.FirstTokenNS.Valid || float64(x.FirstTokenNS.V)/1e6 <= w.limit)
	}) * float64(len(w.sent))
}

func TestEveryAggregateAgainstBruteForce(t *testing.T) {
	for seed := range uint64(3) {
		w := newWorld(seed)
		slo, err := ParseSLO("ttft=300ms")
		if err != nil {
			t.Fatal(err)
		}
		s, err := Summarize(w.run, Options{SLO: slo, Sizes: w.sizes})
		if err != nil {
			t.Fatal(err)
		}
		w.enter(s.Mix)
		if int64(len(w.visits)) != s.Pages.Modelled {
			t.Fatalf("seed %d: %d requests are modelled, want %d", seed, s.Pages.Modelled, len(w.visits))
		}
		for _, a := range Aggregates() {
			truth, there := aggregateTruths[a.Name]
			if !there {
				t.Errorf("%s has no second implementation", a.Name)
				continue
			}
			want, defined := truth.of(w)
			got := s.Aggregates[a.Name].Value
			if got.Valid != defined || defined && math.Abs(got.V-want) > truth.within*math.Abs(want)+1e-9*max(1, math.Abs(want)) {
				t.Errorf("seed %d: %s is %v, want %v (%t)", seed, a.Name, got, want, defined)
			}
		}
	}
}
