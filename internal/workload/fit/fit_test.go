package fit_test

import (
	"iter"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/workload"
	"github.com/shadowtape/shadowtape/internal/workload/fit"
)

func of(rows []*formats.Exchange) iter.Seq2[*formats.Exchange, error] {
	return func(yield func(*formats.Exchange, error) bool) {
		for _, x := range rows {
			if !yield(x, nil) {
				return
			}
		}
	}
}

// generated collects what a model generates.
func generated(t *testing.T, m *workload.Model, o workload.Options) (out []*formats.Exchange) {
	t.Helper()
	rows, err := m.Generate(o)
	if err != nil {
		t.Fatal(err)
	}
	for x, err := range rows {
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, x)
	}
	return out
}

// gaps draws gaps of a process, in seconds.
func gaps(t *testing.T, a workload.Arrival, seed uint64, n int64) []float64 {
	t.Helper()
	one := workload.Length{Family: workload.Fixed, Mean: 1}
	m, err := workload.Written(a, one, one, nil)
	if err != nil {
		t.Fatal(err)
	}
	last := int64(0)
	var out []float64
	for _, x := range generated(t, m, workload.Options{Seed: seed, Requests: n}) {
		out = append(out, float64(x.ArrivalUnixNS-last)/1e9)
		last = x.ArrivalUnixNS
	}
	return out
}

// windowed is a model with windows, two clients, tables, kinds and threads.
func windowed() *workload.Model {
	temperature, stream := 0.7, true
	table := workload.Lengths{Inputs: []float64{100, 900.5, 4000}, Outputs: [][]float64{{10, 20}, {100}, {5, 700}}}
	return &workload.Model{Schema: workload.ModelSchema, Seconds: 100, Aborted: 0.1,
		Clients: []workload.Client{
			{Tenant: "00000000000000aa", Windows: []workload.Window{
				{Start: 0, Seconds: 50, Count: 200, Arrival: workload.Arrival{Family: workload.Poisson, Rate: 4}, Lengths: table},
				{Start: 50, Seconds: 50},
			}},
			{Windows: []workload.Window{
				{Start: 0, Seconds: 25, Count: 40, Arrival: workload.Arrival{Family: workload.Gamma, Rate: 1.6, CV: 3}, Lengths: table},
				{Start: 25, Seconds: 75, Count: 61, Arrival: workload.Arrival{Family: workload.MMPP, Rate: 0.8, On: 0.5, Off: 2}, Lengths: table},
			}},
		},
		Mix: []workload.Kind{{Weight: 3, Endpoint: formats.EndpointChat, Stream: &stream, Temperature: &temperature}, {Weight: 1, Endpoint: formats.EndpointCompletions, Model: "m"}},
		Threads: &workload.Threads{BlockSize: 64, Roots: []workload.Root{{Share: 0.5, Blocks: 3}}, Sessions: true, Continue: []float64{0.3, 0.6}, Bounds: []float64{500},
			Shared: [][]float64{{0.5}, {0.2, 0.8}}, Lag: []float64{1, 10}, Fanout: 1},
	}
}

// TestArrivalFindsTheFamily draws gaps from known processes and fits them again: the family and its parameters come back.
func TestArrivalFindsTheFamily(t *testing.T) {
	for _, a := range []workload.Arrival{
		{Family: workload.Poisson, Rate: 4},
		{Family: workload.Gamma, Rate: 4, CV: 0.5},
		{Family: workload.Gamma, Rate: 4, CV: 2.5},
		{Family: workload.Weibull, Rate: 4, CV: 2.5},
		{Family: workload.MMPP, Rate: 4, Burst: 12, On: 5, Off: 20},
	} {
		right, runs := 0, 4
		for seed := range runs {
			got := fit.Arrival(gaps(t, a, uint64(seed), 4000))
			if got.Family != a.Family {
				continue
			}
			right++
			// An mmpp's cycles are few (4,000 arrivals are some 40 of them), so its parameters are loose.
			tolerance := 0.12
			if a.Family == workload.MMPP {
				tolerance = 0.6
			}
			for _, p := range []struct {
				name      string
				got, want float64
			}{{"cv", got.CV, a.CV}, {"burst", got.Burst, a.Burst}, {"on", got.On, a.On}, {"off", got.Off, a.Off}} {
				if p.want != 0 && math.Abs(p.got/p.want-1) > tolerance {
					t.Errorf("%+v, seed %d: %s %v", a, seed, p.name, p.got)
				}
			}
		}
		if right < runs-1 {
			t.Errorf("%+v was found in %d of %d samples", a, right, runs)
		}
	}
}

// TestLikelihoodOfPlainProcesses compares the forward recursion with closed forms: two equal rates are a workload.Poisson process.
func TestLikelihoodOfPlainProcesses(t *testing.T) {
	gaps := []float64{0.1, 0.5, 2, 0.01, 0.3}
	sum := 0.0
	for _, g := range gaps {
		sum += g
	}
	want := float64(len(gaps))*math.Log(3) - 3*sum
	if got := fit.Likelihood(gaps, workload.Arrival{Family: workload.MMPP, Rate: 3, Burst: 1, On: 2, Off: 7}); math.Abs(got-want) > 1e-9 {
		t.Errorf("log-likelihood %v, want %v", got, want)
	}
}

// TestFitGivesAModelBack generates from a windowed model and fits the trace: counts, families' rates, lengths, kinds, aborts and threads.
func TestFitGivesAModelBack(t *testing.T) {
	m := windowed()
	m.Quantum = 0
	for i := range m.Clients { // enough requests to know them by
		for k := range m.Clients[i].Windows {
			m.Clients[i].Windows[k].Count = math.Round(m.Clients[i].Windows[k].Count) * 20
		}
	}
	m.Clients[1].Windows[1].Arrival.On, m.Clients[1].Windows[1].Arrival.Off = 0.5, 2 // enough cycles
	m.Threads.Fanout = 1                                                             // sessions are chains
	rows := generated(t, m, workload.Options{Seed: 8})
	got, err := fit.Trace(of(rows), fit.Options{Window: 25, Header: m.Header()})
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Clients) != 2 || got.Clients[0].Tenant != "00000000000000aa" || len(got.Clients[0].Windows) != 4 {
		t.Fatalf("%d clients, %+v", len(got.Clients), got.Clients[0].Tenant)
	}
	tenant, others := got.Clients[0].Windows, got.Clients[1].Windows
	if n := tenant[0].Count + tenant[1].Count; n != 4000 || tenant[2].Count+tenant[3].Count != 0 || others[0].Count < 795 || others[0].Count > 805 {
		t.Errorf("counts %v and %v", tenant[0].Count+tenant[1].Count, others[0].Count)
	}
	if tenant[0].Arrival.Family != workload.Poisson || others[0].Arrival.Family != workload.Gamma || math.Abs(others[0].Arrival.CV-3) > 0.3 || others[1].Arrival.Family != workload.MMPP {
		t.Errorf("families %+v, %+v, %+v", tenant[0].Arrival, others[0].Arrival, others[1].Arrival)
	}
	mean, out := 0.0, 0.0
	for i, x := range tenant[0].Lengths.Inputs {
		mean += x / float64(len(tenant[0].Lengths.Inputs))
		for _, o := range tenant[0].Lengths.Outputs[i] {
			out += o / float64(len(tenant[0].Lengths.Outputs[i])*len(tenant[0].Lengths.Inputs))
		}
	}
	if math.Abs(mean/((100+900.5+4000)/3)-1) > 0.03 || math.Abs(out/((15+100+352.5)/3)-1) > 0.05 {
		t.Errorf("mean lengths %v and %v", mean, out)
	}
	if math.Abs(got.Aborted-0.1) > 0.02 || len(got.Mix) != 2 || math.Abs(got.Mix[0].Weight/(got.Mix[0].Weight+got.Mix[1].Weight)-0.75) > 0.02 || *got.Mix[0].Temperature != 0.7 {
		t.Errorf("aborted %v, mix %+v", got.Aborted, got.Mix)
	}
	th := got.Threads
	if th == nil || th.BlockSize != 64 || !th.Sessions || len(th.Roots) != 1 || th.Roots[0].Blocks != 3 || math.Abs(th.Roots[0].Share-0.5) > 0.03 || th.Fanout != 1 {
		t.Fatalf("threads %+v", th)
	}
	first, last := th.Continue[0], th.Continue[len(th.Continue)-1]
	if math.Abs(first-0.3) > 0.04 || math.Abs(last-0.6) > 0.04 {
		t.Errorf("continue %v", th.Continue)
	}
}

// TestPrefixReuseComesBack fits a trace with shared prefixes, generates from the model, and compares the hit rates of an endless cache.
func TestPrefixReuseComesBack(t *testing.T) {
	m := windowed()
	m.Threads.Sessions, m.Quantum = false, 0
	hits := func(rows []*formats.Exchange) float64 {
		seen := map[int64]bool{}
		hit, all := 0.0, 0.0
		for _, x := range rows {
			for _, b := range x.PrefixBlocks {
				if seen[b] {
					hit++
				}
				all++
				seen[b] = true
			}
		}
		return hit / all
	}
	rows := generated(t, m, workload.Options{Seed: 3, Seconds: 2000})
	fitted, err := fit.Trace(of(rows), fit.Options{Header: m.Header()})
	if err != nil {
		t.Fatal(err)
	}
	again := generated(t, fitted, workload.Options{Seed: 4})
	if a, b := hits(rows), hits(again); math.Abs(a-b) > 0.03 || a < 0.1 {
		t.Errorf("hit rate %v, of the model's trace %v", a, b)
	}
}

// TestLongTracesFold fits four days whose hours differ and finds one day of hours.
func TestLongTracesFold(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	var rows []*formats.Exchange
	for second := 0.0; second < 4*86400; {
		hourOfDay := math.Mod(second/3600, 24)
		rate := 0.02
		if hourOfDay >= 9 && hourOfDay < 17 {
			rate = 0.2
		}
		second += rng.ExpFloat64() / rate
		rows = append(rows, &formats.Exchange{ArrivalUnixNS: int64(second * 1e9), InputTokens: formats.Of[int64](100), OutputTokens: formats.Of[int64](10)})
	}
	m, err := fit.Trace(of(rows), fit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if m.Seconds != 86400 || len(m.Clients[0].Windows) != 24 {
		t.Fatalf("%v s in %d windows", m.Seconds, len(m.Clients[0].Windows))
	}
	if busy, quiet := m.Clients[0].Windows[12].Count, m.Clients[0].Windows[3].Count; math.Abs(busy-720) > 60 || math.Abs(quiet-72) > 20 {
		t.Errorf("%v requests at noon, %v at night; want 720 and 72", busy, quiet)
	}
}

func TestFitFindsTheTick(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 4))
	var rows []*formats.Exchange
	for tick := range 600 {
		for range 1 + rng.IntN(20) {
			rows = append(rows, &formats.Exchange{ArrivalUnixNS: int64(tick)*3e9 + int64(rng.IntN(2))*1e6, InputTokens: formats.Of[int64](100), OutputTokens: formats.Of[int64](10)})
		}
	}
	for i := range rows { // times within a tick differ by a millisecond
		for j := i; j > 0 && rows[j].ArrivalUnixNS < rows[j-1].ArrivalUnixNS; j-- {
			rows[j], rows[j-1] = rows[j-1], rows[j]
		}
	}
	m, err := fit.Trace(of(rows), fit.Options{Header: formats.Header{TimeQuantumNS: 3e9}})
	if err != nil {
		t.Fatal(err)
	}
	if m.Quantum != 3 {
		t.Errorf("quantum %v", m.Quantum)
	}
}

func TestFitRefuses(t *testing.T) {
	x := &formats.Exchange{ArrivalUnixNS: 1}
	if _, err := fit.Trace(of([]*formats.Exchange{x}), fit.Options{}); err == nil {
		t.Error("one request was fitted")
	}
	if _, err := fit.Trace(of([]*formats.Exchange{x, {ArrivalUnixNS: 5e9}}), fit.Options{}); err == nil {
		t.Error("requests without lengths were fitted")
	}
	if err := (fit.Options{Family: "zipf", Window: math.NaN()}).Validate(); err == nil {
		t.Error("bad options were taken")
	}
}

// drawn draws lengths.
func drawn(t *testing.T, l workload.Length, n int64) []float64 {
	t.Helper()
	m, err := workload.Written(workload.Arrival{Family: workload.Constant, Rate: 1}, l, l, nil)
	if err != nil {
		t.Fatal(err)
	}
	var out []float64
	for _, x := range generated(t, m, workload.Options{Seed: 4, Requests: n}) {
		out = append(out, float64(x.InputTokens.V))
	}
	return out
}

// TestLengthGivesTheFamilyBack draws from known parameters and fits them again.
func TestLengthGivesTheFamilyBack(t *testing.T) {
	for _, l := range []workload.Length{
		{Family: workload.Exponential, Mean: 900}, {Family: workload.GammaLength, Mean: 900, CV: 0.6}, {Family: workload.Lognormal, P50: 500, P99: 9000},
		{Family: workload.Mixture, P50: 300, P99: 2000, Share: 0.05, Min: 6000, Alpha: 2},
	} {
		tolerance := 0.05
		if l.Family == workload.Mixture {
			tolerance = 0.2 // where the tail begins is not in the data: body and tail overlap
		}
		got, err := fit.Length(l.Family, drawn(t, l, 40000))
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			name      string
			got, want float64
		}{{"mean", got.Mean, l.Mean}, {"cv", got.CV, l.CV}, {"p50", got.P50, l.P50}, {"p99", got.P99, l.P99}, {"share", got.Share, l.Share}, {"min", got.Min, l.Min}, {"alpha", got.Alpha, l.Alpha}} {
			if c.want != 0 && math.Abs(c.got/c.want-1) > tolerance {
				t.Errorf("%s: %s %v, want %v", l.Family, c.name, c.got, c.want)
			}
		}
	}
}
