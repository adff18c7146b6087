package analyzer

import (
	"bytes"
	"flag"
	"math"
	"math/rand/v2"
	"os"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/shadowtape/shadowtape/formats"
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
			x.EventFlags[i] = int32(r.IntN(64))
		}
		total += int64(tokens)
	}
	content := int64(0)
	for _, gap := range x.EventGapUS[:1+r.IntN(events)] {
		content += int64(gap)
	}
	x.FirstContentNS = maybe(x.FirstTokenNS.V + content*1000)
	x.LastTokenNS = formats.Of(x.FirstTokenNS.V + at*1000)
	x.EndNS = maybe(x.LastTokenNS.V + 2e6)
	x.OutputTokens = maybe(total)
	if choices == 1 && id%9 == 0 { // a usage that says less than the events did
		x.OutputTokens = formats.Of(id / 9 % 4)
	}
	x.ClientDelayUS = maybe(r.Int64N(900))
	return x
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
	if !reflect.DeepEqual(whole.window, merged.window) {
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
	bad := &formats.Manifest{Label: "a\x1b[31m label with control characters and a great many words in it", Kind: "replay", Invalid: []string{"late", "later", "last", strings.Repeat("x", 200)}, Warnings: []string{"one", "two", "three", "four", "five"}}
	server := []formats.ServerSample{{UnixNS: xs[0].ArrivalUnixNS, Series: "vllm:kv_cache_usage_perc", Value: 0.5}}
	for _, c := range []struct {
		name   string
		m      *formats.Manifest
		o      Options
		begins string
		spark  int
	}{
		{"everything", bad, Options{SLO: []Limit{{"ttft", 1e9}}, GPUHourPrice: 3}, "INVALID", 0},
		{"by a column", bad, Options{SLO: []Limit{{"ttft", 1e9}}, GPUHourPrice: 3, By: "input"}, "INVALID", 2},
		{"valid", nil, Options{}, "valid", 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, err := Summarize(RunOf("r", c.m, xs, server), c.o)
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
			spark := 0
			for _, l := range lines {
				if utf8.RuneCountInString(l) > 80 || strings.ContainsRune(l, 0x1b) {
					t.Errorf("line %q", l)
				}
				if strings.Contains(l, "▁") || strings.Contains(l, "█") {
					spark++
				}
			}
			if !strings.HasPrefix(lines[0], c.begins) {
				t.Errorf("the verdict is not first: %q", lines[0])
			}
			if spark < c.spark {
				t.Errorf("%d sparklines, want %d:\n%s", spark, c.spark, b.String())
			}
		})
	}
}

func TestSparkline(t *testing.T) {
	gap := math.NaN()
	for _, c := range []struct {
		p    Points
		n    int
		want string
		top  float64
	}{
		{Points{0, 1, 2, 3, 4, 5, 6, 7}, 8, "▁▂▃▄▅▆▇█", 7},
		{Points{1, 3, gap, gap, 8, 8}, 3, "▃ █", 8},
		{Points{0, 0}, 2, "  ", 0},
		{Points{gap, gap}, 2, "  ", 0},
	} {
		if text, top := sparkline(c.p, c.n); text != c.want || top != c.top {
			t.Errorf("%v is %q up to %v, want %q up to %v", c.p, text, top, c.want, c.top)
		}
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
