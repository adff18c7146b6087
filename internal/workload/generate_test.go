package workload

import (
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"testing"

	"github.com/shadowtape/shadowtape/formats"
)

// generated collects what a model generates.
func generated(t *testing.T, m *Model, o Options) []*formats.Exchange {
	t.Helper()
	rows, err := m.Generate(o)
	if err != nil {
		t.Fatal(err)
	}
	var out []*formats.Exchange
	last := int64(0)
	for x, err := range rows {
		if err != nil {
			t.Fatal(err)
		}
		if x.ArrivalUnixNS < last || x.ExchangeID != int64(len(out)+1) || x.InputTokens.V < 1 || x.OutputTokens.V < 1 {
			t.Fatalf("row %d: %+v after %d", len(out), x, last)
		}
		last = x.ArrivalUnixNS
		out = append(out, x)
	}
	return out
}

func written(t *testing.T, arrival string, rate float64, sessions, prefix string) *Model {
	t.Helper()
	a, err := ParseArrival(arrival, rate, 1000)
	if err != nil {
		t.Fatal(err)
	}
	in, err := ParseLength("lognormal:p50=600,p99=6000,max=20000", nil)
	if err != nil {
		t.Fatal(err)
	}
	out, err := ParseLength("exponential:mean=150", nil)
	if err != nil {
		t.Fatal(err)
	}
	law, err := ParseSessions(sessions, prefix)
	if err != nil {
		t.Fatal(err)
	}
	m, err := Written(a, in, out, law)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// windowed is a small model with windows, two clients, tables, kinds and threads.
func windowed() *Model {
	temperature, stream := 0.7, true
	table := Lengths{Inputs: []float64{100, 900.5, 4000}, Outputs: [][]float64{{10, 20}, {100}, {5, 700}}}
	return &Model{Schema: ModelSchema, Seconds: 100, Aborted: 0.1, Quantum: 2,
		Clients: []Client{
			{Tenant: "00000000000000aa", Windows: []Window{
				{Start: 0, Seconds: 50, Count: 200, Arrival: Arrival{Family: Poisson, Rate: 4}, Lengths: table},
				{Start: 50, Seconds: 50},
			}},
			{Windows: []Window{
				{Start: 0, Seconds: 25, Count: 40, Arrival: Arrival{Family: Gamma, Rate: 1.6, CV: 3}, Lengths: table},
				{Start: 25, Seconds: 75, Count: 60.5, Arrival: Arrival{Family: MMPP, Rate: 0.8, On: 5, Off: 20}, Lengths: table},
			}},
		},
		Mix: []Kind{{Weight: 3, Endpoint: formats.EndpointChat, Stream: &stream, Temperature: &temperature}, {Weight: 1, Endpoint: formats.EndpointCompletions, Model: "m"}},
		Threads: &Threads{BlockSize: 64, Roots: []Root{{Share: 0.5, Blocks: 3}}, Sessions: true, Continue: []float64{0.3, 0.6}, Bounds: []float64{500},
			Shared: [][]float64{{0.5}, {0.2, 0.8}}, Lag: []float64{1, 10}, Fanout: 1.2},
	}
}

// TestTracesNeverChange holds checksums: a seed must give the same rows on every machine and in every version that does not say otherwise.
func TestTracesNeverChange(t *testing.T) {
	for _, test := range []struct {
		name string
		m    *Model
		want uint64
	}{
		{"poisson", written(t, "poisson", 5, "", ""), 0x3cdf003a1686b003},
		{"gamma", written(t, "gamma:cv=3", 5, "", "roots=10,share=40%"), 0x7b41b5712a581554},
		{"weibull", written(t, "weibull:cv=2", 5, "", ""), 0x4aa0e8a37d693e76},
		{"mmpp", written(t, "mmpp", 5, "turns=4,think=10s", "roots=3,share=50%,block=32"), 0xd1fff075b2de5abf},
		{"ramp", written(t, "ramp:from=0.2,to=3", 5, "", ""), 0xbb2b5d4714b7cab8},
		{"diurnal", written(t, "diurnal:peak=4,period=300s", 5, "", ""), 0x5b1ca98a57721d7d},
		{"windows", windowed(), 0xc357bcdba1939c71},
	} {
		h := fnv.New64a()
		for _, x := range generated(t, test.m, Options{Seed: 3, Seconds: 1000}) {
			fmt.Fprint(h, x.ArrivalUnixNS, x.InputTokens.V, x.OutputTokens.V, x.SessionID, x.Turn, x.TenantID, x.PrefixBlocks, x.Endpoint, x.RequestModel, x.EndReason, "\n")
		}
		if got := h.Sum64(); got != test.want {
			t.Errorf("%s: checksum %#x, was %#x", test.name, got, test.want)
		}
	}
}

func TestWindowsKeepTheirCounts(t *testing.T) {
	m := windowed()
	for _, factor := range []float64{1, 0.5, 3} {
		rows := generated(t, m, Options{Seed: 1, Seconds: 300, Rate: m.Rate() * factor})
		count := map[string]float64{}
		for _, x := range rows {
			cycle, at := x.ArrivalUnixNS/100e9, float64(x.ArrivalUnixNS%100e9)/1e9
			switch {
			case x.TenantID.Valid && at < 50:
				count[fmt.Sprint("tenant ", cycle)]++
			case x.TenantID.Valid:
				t.Fatalf("the tenant is silent at %v", at)
			case at < 25:
				count[fmt.Sprint("first ", cycle)]++
			default:
				count[fmt.Sprint("second ", cycle)]++
			}
		}
		for cycle := range 3 {
			for name, want := range map[string]float64{"tenant": 200, "first": 40, "second": 60.5} {
				if got := count[fmt.Sprint(name, " ", cycle)]; math.Abs(got-want*factor) >= 1 {
					t.Errorf("factor %v, cycle %d: %s has %v arrivals, want %v", factor, cycle, name, got, want*factor)
				}
			}
		}
		// The work of a window is kept: each part of the table is as frequent as the others.
		long := 0
		for _, x := range rows {
			if x.InputTokens.V == 4000 {
				long++
			}
		}
		if share := float64(long) / float64(len(rows)); math.Abs(share-1.0/3) > 0.02 {
			t.Errorf("factor %v: a third of the requests should be long, %v are", factor, share)
		}
	}
	for _, x := range generated(t, m, Options{Seed: 1, KeepQuantum: true}) {
		if x.ArrivalUnixNS%2e9 != 0 {
			t.Fatalf("arrival at %d is at no tick", x.ArrivalUnixNS)
		}
	}
	if n := len(generated(t, m, Options{Seed: 1, Requests: 17})); n != 17 {
		t.Errorf("%d requests, want 17", n)
	}
}

func TestKindsAndAborts(t *testing.T) {
	m := windowed()
	rows := generated(t, m, Options{Seed: 2, Seconds: 2000})
	chat, aborted := 0.0, 0.0
	for _, x := range rows {
		if x.Endpoint == formats.EndpointChat {
			chat++
			if x.Temperature.V != 0.7 || !x.Stream.V {
				t.Fatalf("a chat request of another kind: %+v", x)
			}
		} else if x.Temperature.Valid || x.Stream.Valid || x.RequestModel != "m" {
			t.Fatalf("unknown became known: %+v", x)
		}
		if x.EndReason == formats.EndClientAbort {
			aborted++
		}
		if x.Drawn.V != formats.DrawnArrival|formats.DrawnInput|formats.DrawnOutput|formats.DrawnSampling|formats.DrawnSession {
			t.Fatalf("drawn %b", x.Drawn.V)
		}
	}
	n := float64(len(rows))
	if math.Abs(chat/n-0.75) > 0.03 || math.Abs(aborted/n-0.1) > 0.02 {
		t.Errorf("%v chat, %v aborted of %v", chat, aborted, n)
	}
}

// TestThreadsShareBlocks follows sessions: a turn begins with blocks of the turn before it, new threads with a root or nothing.
func TestThreadsShareBlocks(t *testing.T) {
	rows := generated(t, windowed(), Options{Seed: 5, Seconds: 1000})
	type turn struct {
		n      int32
		blocks []int64
	}
	last := map[formats.Hash]turn{}
	seen := map[int64]bool{}
	continued, rooted := 0.0, 0.0
	for _, x := range rows {
		if len(x.PrefixBlocks) != int(x.InputTokens.V)/64 || x.PrefixTailTokens.V != x.InputTokens.V%64 {
			t.Fatalf("%d blocks and %d more tokens of %d", len(x.PrefixBlocks), x.PrefixTailTokens.V, x.InputTokens.V)
		}
		hit := 0
		for hit < len(x.PrefixBlocks) && seen[x.PrefixBlocks[hit]] {
			hit++
		}
		for _, b := range x.PrefixBlocks[hit:] {
			if seen[b] {
				t.Fatal("a block is shared whose predecessor is not")
			}
			seen[b] = true
		}
		if x.Turn.V > 1 {
			continued++
		} else if hit > 0 {
			rooted++
			if hit > 3 {
				t.Fatalf("a new thread shares %d blocks, its root has 3", hit)
			}
		}
		last[x.SessionID.V] = turn{x.Turn.V, x.PrefixBlocks}
	}
	n := float64(len(rows))
	// A third of the requests are in the first part, two thirds in the second: 0.3/3 + 0.6 2/3.
	if got := continued / n; math.Abs(got-0.5) > 0.03 {
		t.Errorf("%v of the requests continue others, want 0.5", got)
	}
	if rooted == 0 || len(last) < 100 {
		t.Errorf("%v rooted threads, %d sessions", rooted, len(last))
	}
}

// TestConversationsGrow follows the sessions of a written model.
func TestConversationsGrow(t *testing.T) {
	rows := generated(t, written(t, "poisson", 5, "turns=4,think=10s", "roots=3,share=50%"), Options{Seed: 6, Seconds: 4000})
	last := map[formats.Hash]*formats.Exchange{}
	turns := map[formats.Hash]float64{}
	roots := map[int64]int{}
	for _, x := range rows {
		turns[x.SessionID.V]++
		if old := last[x.SessionID.V]; old != nil {
			if x.Turn.V != old.Turn.V+1 || x.InputTokens.V <= old.InputTokens.V+old.OutputTokens.V-1 || !slices.Equal(x.PrefixBlocks[:len(old.PrefixBlocks)], old.PrefixBlocks) {
				t.Fatalf("turn %d of %d tokens follows turn %d of %d and %d", x.Turn.V, x.InputTokens.V, old.Turn.V, old.InputTokens.V, old.OutputTokens.V)
			}
			if float64(x.ArrivalUnixNS-old.ArrivalUnixNS) < 0.02e9*float64(old.OutputTokens.V) {
				t.Fatal("a turn comes before the answer to the one before it")
			}
		} else if x.Turn.V != 1 {
			t.Fatalf("a session begins with turn %d", x.Turn.V)
		} else if x.InputTokens.V >= 2*16 {
			roots[x.PrefixBlocks[0]]++
		}
		last[x.SessionID.V] = x
	}
	if rate := float64(len(rows)) / 4000; math.Abs(rate-5) > 0.4 {
		t.Errorf("%v requests a second, want about 5", rate)
	}
	mean := float64(len(rows)) / float64(len(turns))
	if math.Abs(mean-4) > 0.4 || len(roots) != 3 {
		t.Errorf("%v turns a session, %d roots", mean, len(roots))
	}
}

func TestModelsAreChecked(t *testing.T) {
	good := windowed()
	for name, spoil := range map[string]func(m *Model){
		"schema":       func(m *Model) { m.Schema = 9 },
		"no clients":   func(m *Model) { m.Clients = nil },
		"tenant":       func(m *Model) { m.Clients[0].Tenant = "x" },
		"no windows":   func(m *Model) { m.Clients[0].Windows = nil },
		"overlap":      func(m *Model) { m.Clients[0].Windows[1].Start = 10 },
		"past the end": func(m *Model) { m.Clients[0].Windows[1].Seconds = 60 },
		"count":        func(m *Model) { m.Clients[0].Windows[0].Count = math.NaN() },
		"family":       func(m *Model) { m.Clients[0].Windows[0].Arrival.Family = "x" },
		"lengths":      func(m *Model) { m.Clients[0].Windows[0].Lengths.Outputs = nil },
		"descending":   func(m *Model) { m.Clients[0].Windows[0].Lengths.Outputs = [][]float64{{2, 1}, {1}, {1}} },
		"weights":      func(m *Model) { m.Mix[0].Weight, m.Mix[1].Weight = 0, 0 },
		"aborted":      func(m *Model) { m.Aborted = 2 },
		"bounds":       func(m *Model) { m.Threads.Bounds = nil },
		"no lag":       func(m *Model) { m.Threads.Lag = nil },
		"sessions":     func(m *Model) { m.Sessions = &SessionLaw{} },
	} {
		m := windowed()
		spoil(m)
		if m.Validate() == nil {
			t.Errorf("%s: taken", name)
		}
	}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	if _, err := written(t, "poisson", 1, "", "").Generate(Options{}); err == nil {
		t.Error("an endless model without an end was generated")
	}
	if _, err := Parse([]byte(`{"schema":1`)); err == nil {
		t.Error("half a model was read")
	}
}

func TestShortForms(t *testing.T) {
	for _, bad := range []string{"", "burst", "gamma:cv=0", "gamma:shape=2", "poisson:cv=2", "gamma:cv=2,cv=3", "gamma:cv=x", "mmpp:on=-1"} {
		if _, err := ParseArrival(bad, 1, 10); err == nil {
			t.Errorf("arrival %q was taken", bad)
		}
	}
	for _, bad := range []string{"", "x", "uniform:9-3", "lognormal:p50=5", "fixed", "exponential:mean=-3", "lognormal:p50=5,p99=9,cv=2"} {
		if _, err := ParseLength(bad, nil); err == nil {
			t.Errorf("length %q was taken", bad)
		}
	}
	for _, bad := range []string{"turns=0", "think=-1", "x=1", "max=-3"} {
		if _, err := ParseSessions(bad, ""); err == nil {
			t.Errorf("sessions %q were taken", bad)
		}
	}
	l, err := ParseLength("uniform:100-2000", nil)
	if err != nil || l.Low != 100 || l.High != 2000 {
		t.Errorf("uniform: %+v, %v", l, err)
	}
	if l, err = ParseLength("file:x", func(string) ([]float64, error) { return []float64{3, 1, 2}, nil }); err != nil || !slices.Equal(l.Values, []float64{1, 2, 3}) {
		t.Errorf("file: %+v, %v", l, err)
	}
	if in, out, err := Preset("medium"); err != nil || in.Mean != 2048 || out.Mean != 128 {
		t.Errorf("preset: %v %v %v", in, out, err)
	}
}
