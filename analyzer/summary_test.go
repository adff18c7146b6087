package analyzer

import (
	"bytes"
	"flag"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/stats"
)

var update = flag.Bool("update", false, "rewrite generated files")

func TestMetricsPageIsTheTable(t *testing.T) {
	const path = "../docs/METRICS.md"
	if *update {
		if err := os.WriteFile(path, []byte(MetricsPage()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != MetricsPage() {
		t.Errorf("%s is not what the tables say: go test ./analyzer -run MetricsPage -update", path)
	}
}

// randomExchange is an exchange of any kind: streamed or not, failed, aborted, dropped, without tokens, with many choices, damaged.
func randomExchange(r *rand.Rand, id int64) *formats.Exchange {
	x := &formats.Exchange{ExchangeID: id, ArrivalIndex: formats.Of(id - 1), Phase: formats.PhaseMeasure, ArrivalUnixNS: 1e18 + id*50e6}
	if r.IntN(10) == 0 {
		x.Phase = formats.PhaseWarmup
	}
	if r.IntN(12) == 0 {
		x.EndReason, x.ErrorKind = formats.EndNotSent, formats.ErrorMaxInFlight
		return x
	}
	maybe := func(v int64) formats.Null[int64] {
		if r.IntN(8) == 0 {
			return formats.Null[int64]{}
		}
		return formats.Of(v)
	}
	x.SentNS = maybe(r.Int64N(3e6))
	x.InputTokens = maybe(r.Int64N(5000))
	x.EndReason = []formats.EndReason{formats.EndComplete, formats.EndComplete, formats.EndComplete, formats.EndClientAbort, formats.EndRunEnd, formats.EndServerAbort, ""}[r.IntN(7)]
	if r.IntN(10) == 0 {
		x.ErrorKind = []string{formats.ErrorReset, formats.ErrorInStream, "http_503"}[r.IntN(3)]
	}
	if r.IntN(6) == 0 { // not streamed
		x.EndNS, x.OutputTokens = maybe(r.Int64N(2e9)), maybe(r.Int64N(300))
		return x
	}
	choices := 1
	if r.IntN(6) == 0 {
		choices = 2 + r.IntN(2)
		x.N = formats.Of(int32(choices))
		x.ChoiceOutputTokens = make([]int64, choices)
	}
	events := r.IntN(12)
	if events == 0 {
		x.EndNS = maybe(r.Int64N(2e9))
		return x
	}
	known := r.IntN(4) > 0
	at, total := int64(0), int64(0)
	x.FirstTokenNS = formats.Of(r.Int64N(500e6))
	if r.IntN(3) == 0 {
		x.EventFlags = make([]int32, events)
	}
	for i := range events {
		gap, tokens, c := int32(0), int32(1+r.IntN(4)), int32(r.IntN(choices))
		if i > 0 {
			gap = int32(r.IntN(40000))
		}
		at += int64(gap)
		x.EventGapUS = append(x.EventGapUS, gap)
		if known {
			x.EventTokens = append(x.EventTokens, tokens)
		}
		if choices > 1 {
			x.EventChoice = append(x.EventChoice, c)
			x.ChoiceOutputTokens[c] += int64(tokens)
		}
		if x.EventFlags != nil {
			x.EventFlags[i] = int32(r.IntN(32))
		}
		total += int64(tokens)
	}
	x.FirstContentNS = maybe(x.FirstTokenNS.V + 1000)
	x.LastTokenNS = formats.Of(x.FirstTokenNS.V + at*1000)
	x.EndNS = maybe(x.LastTokenNS.V + 2e6)
	x.OutputTokens = maybe(total)
	x.ClientDelayUS = maybe(r.Int64N(900))
	return x
}

// truth is a second implementation of every metric, written from the definitions and for one exchange at a time, without sharing code.
func truth(xs []*formats.Exchange) (map[string][]float64, Requests) {
	out := map[string][]float64{}
	put := func(name string, ns int64) { out[name] = append(out[name], float64(ns)/1e6) }
	var n Requests
	for _, x := range xs {
		if x.Phase == "warmup" {
			continue
		}
		n.Scheduled++
		if x.EndReason == "not_sent" {
			n.Dropped++
			continue
		}
		n.Sent++
		ok, whole := true, false
		switch {
		case x.ErrorKind != "" || x.EndReason == "server_abort" || x.EndReason == "timeout" || x.EndReason == "error_in_stream":
			n.Failed++
			ok = false
		case x.EndReason == "complete":
			n.Completed++
			whole = true
		case x.EndReason == "client_abort":
			n.Aborted++
		case x.EndReason == "run_end" || x.EndReason == "capture_cut":
			n.RunEnd++
		default:
			n.Unknown++
		}
		if x.SentNS.Valid {
			put("send_lag", x.SentNS.V)
		}
		if x.ClientDelayUS.Valid {
			put("client_delay", x.ClientDelayUS.V*1000)
		}
		if !ok {
			continue
		}
		if x.FirstTokenNS.Valid {
			put("ttft", x.FirstTokenNS.V)
			if x.SentNS.Valid {
				put("ttft_from_send", x.FirstTokenNS.V-x.SentNS.V)
			}
		}
		if x.FirstContentNS.Valid {
			put("ttfc", x.FirstContentNS.V)
			if x.SentNS.Valid {
				put("ttfc_from_send", x.FirstContentNS.V-x.SentNS.V)
			}
		}
		if whole {
			last := x.EndNS
			if x.LastTokenNS.Valid {
				last = x.LastTokenNS
			}
			if last.Valid {
				put("e2el", last.V)
				if x.SentNS.Valid {
					put("e2el_from_send", last.V-x.SentNS.V)
				}
			}
			if x.EndNS.Valid {
				put("end", x.EndNS.V)
			}
		}
		// the stream, as absolute event times by choice
		type event struct {
			at     int64
			tokens int
			bad    bool
		}
		byChoice := map[int32][]event{}
		at := int64(0)
		for i, g := range x.EventGapUS {
			at += int64(g)
			e := event{at: at, tokens: 1}
			if x.EventTokens != nil {
				e.tokens = int(x.EventTokens[i])
			}
			if x.EventFlags != nil {
				e.bad = x.EventFlags[i]&1 != 0 || x.EventFlags[i]&2 != 0 || x.EventFlags[i]&4 != 0
			}
			c := int32(0)
			if x.EventChoice != nil {
				c = x.EventChoice[i]
			}
			byChoice[c] = append(byChoice[c], e)
		}
		for c, events := range byChoice {
			for i := 1; i < len(events); i++ {
				if events[i].bad {
					continue
				}
				gap := float64(events[i].at-events[i-1].at) / 1000
				out["event_gap"] = append(out["event_gap"], gap)
				for range events[i].tokens {
					out["itl"] = append(out["itl"], gap/float64(events[i].tokens))
				}
			}
			tokens := x.OutputTokens
			if x.N.Or(1) > 1 {
				tokens = formats.Of(x.ChoiceOutputTokens[c])
			}
			if after := tokens.V - int64(events[0].tokens); tokens.Valid && after > 0 {
				out["tpot"] = append(out["tpot"], float64(events[len(events)-1].at-events[0].at)/1000/float64(after))
			}
		}
	}
	for _, v := range out {
		slices.Sort(v)
	}
	return out, n
}

func TestEveryMetricAgainstBruteForce(t *testing.T) {
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 9))
		var xs []*formats.Exchange
		for id := range int64(1 + r.IntN(900)) {
			xs = append(xs, randomExchange(r, id+1))
		}
		want, counts := truth(xs)
		s, err := Summarize(RunOf("r", nil, xs, nil), Options{})
		if err != nil {
			t.Fatal(err)
		}
		if s.Requests != counts {
			t.Fatalf("seed %d: requests %+v, want %+v", seed, s.Requests, counts)
		}
		n := s.Requests
		if n.Scheduled != n.Sent+n.Dropped || n.Sent != n.Completed+n.Failed+n.Aborted+n.RunEnd+n.Unknown {
			t.Fatalf("seed %d: not conserved: %+v", seed, n)
		}
		for _, m := range Metrics() {
			checkFigures(t, m.Name, s.Metrics[m.Name], want[m.Name])
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func checkFigures(t *testing.T, name string, f Figures, want []float64) {
	t.Helper()
	if f.N != uint64(len(want)) {
		t.Errorf("%s: %d samples, want %d", name, f.N, len(want))
		return
	}
	if len(want) == 0 {
		if f.Mean.Valid || f.P50.Valid || f.Max.Valid {
			t.Errorf("%s: a figure without a sample", name)
		}
		return
	}
	var mean, v float64
	for _, x := range want {
		mean += x / float64(len(want))
	}
	for _, x := range want {
		v += (x - mean) * (x - mean) / float64(len(want))
	}
	same := func(what string, got Null, want float64) {
		if !got.Valid || math.Abs(got.V-want) > 1e-9*max(1, math.Abs(want)) {
			t.Errorf("%s %s: %v, want %v", name, what, got, want)
		}
	}
	same("mean", f.Mean, mean)
	if len(want) > 1 {
		if math.Abs(f.Std.V-math.Sqrt(v)) > 1e-6*max(1, math.Sqrt(v)) {
			t.Errorf("%s std: %v, want %v", name, f.Std, math.Sqrt(v))
		}
	} else if f.Std.Valid {
		t.Errorf("%s: the deviation of one sample", name)
	}
	same("max", f.Max, want[len(want)-1])
	same("p50", f.P50, stats.Quantile(want, 0.5))
	for _, p := range []struct {
		got   Null
		name  string
		p     float64
		floor int
	}{{f.P90, "p90", 0.9, 64}, {f.P95, "p95", 0.95, 130}, {f.P99, "p99", 0.99, 662}, {f.P999, "p99_9", 0.999, 6636}} {
		if len(want) < p.floor {
			if p.got.Valid || f.Withheld[p.name] == "" {
				t.Errorf("%s %s of %d samples: %v, withheld %q", name, p.name, len(want), p.got, f.Withheld[p.name])
			}
			continue
		}
		same(p.name, p.got, stats.Quantile(want, p.p))
	}
}

func TestTalliesMerge(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	whole, parts := newTally(Options{}), []*tally{newTally(Options{}), newTally(Options{}), newTally(Options{})}
	for id := range int64(2000) {
		x := randomExchange(r, id+1)
		whole.add(x)
		parts[r.IntN(3)].add(x)
	}
	merged := newTally(Options{})
	for _, p := range parts {
		merged.merge(p)
	}
	if whole.window != merged.window {
		t.Errorf("window %+v, merged %+v", whole.window, merged.window)
	}
	for i := range metrics {
		a, b := whole.figures(i, whole.intervals()), merged.figures(i, merged.intervals())
		if a.N != b.N || a.P50 != b.P50 || a.P90 != b.P90 || a.Max != b.Max || a.Undefined != b.Undefined || a.Omitted != b.Omitted || math.Abs(a.Mean.V-b.Mean.V) > 1e-9 {
			t.Errorf("%s: %+v, merged %+v", metrics[i].Name, a, b)
		}
	}
}

func TestSummaryFitsATerminal(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	var xs []*formats.Exchange
	for id := range int64(3000) {
		xs = append(xs, randomExchange(r, id+1))
	}
	m := &formats.Manifest{Label: "a\x1b[31m label with control characters and a great many words in it", Kind: "replay", Invalid: []string{"late", "later", "last", strings.Repeat("x", 200)}, Warnings: []string{"one", "two", "three", "four", "five"}}
	server := []formats.ServerSample{{UnixNS: xs[0].ArrivalUnixNS, Series: "vllm:kv_cache_usage_perc", Value: 0.5}}
	s, err := Summarize(RunOf("r", m, xs, server), Options{SLO: []Limit{{"ttft", 1e9}}})
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := s.Text(&b); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimRight(b.String(), "\n"), "\n")
	if len(lines) > 25 {
		t.Errorf("%d lines:\n%s", len(lines), b.String())
	}
	for _, l := range lines {
		if utf8.RuneCountInString(l) > 80 || strings.ContainsRune(l, 0x1b) {
			t.Errorf("line %q", l)
		}
	}
	if !strings.HasPrefix(lines[0], "INVALID") || s.Valid {
		t.Errorf("the verdict is not first: %q", lines[0])
	}
}

func TestServerSeries(t *testing.T) {
	at := func(s float64) int64 { return int64(s * 1e9) }
	sample := func(s float64, series, labels string, v float64) formats.ServerSample {
		return formats.ServerSample{UnixNS: at(s), Target: "t", Series: series, Labels: labels, Value: v}
	}
	server := []formats.ServerSample{
		sample(-1, "vllm:prefix_cache_queries_total", "", 100), sample(-1, "vllm:prefix_cache_hits_total", "", 50),
		sample(0, "vllm:kv_cache_usage_perc", `engine="0"`, 0.2), sample(0, "vllm:kv_cache_usage_perc", `engine="1"`, 0.1),
		sample(0, "vllm:gpu_cache_usage_perc", `engine="0"`, 0.9), // the deprecated twin is not a second engine
		sample(0, "vllm:prefix_cache_queries_total", "", 100), sample(0, "vllm:prefix_cache_hits_total", "", 50),
		sample(6, "vllm:kv_cache_usage_perc", `engine="0"`, 0.7),
		sample(8, "vllm:prefix_cache_queries_total", "", 300), sample(8, "vllm:prefix_cache_hits_total", "", 100),
		sample(9, "vllm:prefix_cache_queries_total", "", 20), sample(9, "vllm:prefix_cache_hits_total", "", 5), // restarted
		sample(20, "vllm:kv_cache_usage_perc", `engine="0"`, 1), // after the window
	}
	s, err := readServer(RunOf("r", nil, nil, server), at(0), at(10))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := s.KVUsageMean.V, (0.2*6+0.7*4)/10; math.Abs(got-want) > 1e-12 {
		t.Errorf("mean usage %v, want %v", got, want)
	}
	if s.KVUsagePeak.V != 0.7 {
		t.Errorf("peak usage %v, want 0.7", s.KVUsagePeak.V)
	}
	if got, want := s.PrefixHitRate.V, 55.0/220; math.Abs(got-want) > 1e-12 {
		t.Errorf("hit rate %v, want %v", got, want)
	}
	if s.Preemptions.Valid {
		t.Error("preemptions of a server that does not count them")
	}
}

func TestSLO(t *testing.T) {
	for _, bad := range []string{"ttft", "ttft=fast", "itl=5ms", "nope=1s", "ttft=0s"} {
		if _, err := ParseSLO(bad); err == nil {
			t.Errorf("ParseSLO(%q) is accepted", bad)
		}
	}
	slo, err := ParseSLO("ttft=100ms, e2el=1s")
	if err != nil {
		t.Fatal(err)
	}
	x := func(id int64, ttft, last float64, end formats.EndReason) *formats.Exchange {
		return &formats.Exchange{ExchangeID: id, Phase: formats.PhaseMeasure, ArrivalUnixNS: id * 1e9, FirstTokenNS: formats.Of(int64(ttft * 1e6)), LastTokenNS: formats.Of(int64(last * 1e6)), EndReason: end}
	}
	s, err := Summarize(RunOf("r", nil, []*formats.Exchange{x(1, 100, 1000, "complete"), x(2, 101, 500, "complete"), x(3, 50, 1001, "complete"), x(4, 50, 500, "client_abort"), x(5, 50, 500, "complete")}, nil), Options{SLO: slo})
	if err != nil {
		t.Fatal(err)
	}
	if got := s.Aggregates["slo_attainment"].Value.V; got != 0.4 {
		t.Errorf("attainment %v, want 0.4", got)
	}
	if got, want := s.Aggregates["goodput"].Value.V, 2/4.5; math.Abs(got-want) > 1e-12 {
		t.Errorf("goodput %v, want %v", got, want)
	}
}
