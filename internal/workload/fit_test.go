package workload

import (
	"encoding/json"
	"iter"
	"math"
	"math/rand/v2"
	"reflect"
	"sort"
	"testing"

	"github.com/shadowtape/shadowtape/formats"
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

// TestFitArrivalFindsTheFamily draws gaps from known processes and fits them again: the family and its parameters come back.
func TestFitArrivalFindsTheFamily(t *testing.T) {
	for _, a := range []Arrival{
		{Family: Poisson, Rate: 4},
		{Family: Gamma, Rate: 4, CV: 0.5},
		{Family: Gamma, Rate: 4, CV: 2.5},
		{Family: Weibull, Rate: 4, CV: 2.5},
		{Family: MMPP, Rate: 4, Burst: 12, On: 5, Off: 20},
	} {
		right, runs := 0, 5
		for seed := range runs {
			c := newClock(a, source{uint64(seed)})
			gaps := make([]float64, 2000)
			for i := range gaps {
				gaps[i] = c.gap()
			}
			got := FitArrival(gaps)
			if got.Family != a.Family {
				continue
			}
			right++
			// An mmpp's cycles are few (2,000 arrivals are some 20 of them), so its parameters are loose.
			tolerance := 0.12
			if a.Family == MMPP {
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

// TestLikelihoodOfPlainProcesses compares the forward recursion with closed forms: two equal rates are a Poisson process.
func TestLikelihoodOfPlainProcesses(t *testing.T) {
	gaps := []float64{0.1, 0.5, 2, 0.01, 0.3}
	sum := 0.0
	for _, g := range gaps {
		sum += g
	}
	want := float64(len(gaps))*math.Log(3) - 3*sum
	if got := likelihood(gaps, Arrival{Family: MMPP, Rate: 3, Burst: 1, On: 2, Off: 7}); math.Abs(got-want) > 1e-9 {
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
	rows := generated(t, m, Options{Seed: 8})
	got, err := Fit(of(rows), FitOptions{Window: 25, Header: m.Header()})
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
	if tenant[0].Arrival.Family != Poisson || others[0].Arrival.Family != Gamma || math.Abs(others[0].Arrival.CV-3) > 0.3 || others[1].Arrival.Family != MMPP {
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
	rows := generated(t, m, Options{Seed: 3, Seconds: 2000})
	fitted, err := Fit(of(rows), FitOptions{Header: m.Header()})
	if err != nil {
		t.Fatal(err)
	}
	again := generated(t, fitted, Options{Seed: 4})
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
	m, err := Fit(of(rows), FitOptions{})
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
	m, err := Fit(of(rows), FitOptions{Header: formats.Header{TimeQuantumNS: 3e9}})
	if err != nil {
		t.Fatal(err)
	}
	if m.Quantum != 3 {
		t.Errorf("quantum %v", m.Quantum)
	}
}

func TestModelsSurviveJSON(t *testing.T) {
	m := windowed()
	data, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	back, err := Parse(data)
	if err != nil || !reflect.DeepEqual(m, back) {
		t.Errorf("%v: %+v", err, back)
	}
}

func TestFitRefuses(t *testing.T) {
	x := &formats.Exchange{ArrivalUnixNS: 1}
	if _, err := Fit(of([]*formats.Exchange{x}), FitOptions{}); err == nil {
		t.Error("one request was fitted")
	}
	if _, err := Fit(of([]*formats.Exchange{x, {ArrivalUnixNS: 5e9}}), FitOptions{}); err == nil {
		t.Error("requests without lengths were fitted")
	}
	if err := (FitOptions{Family: "zipf", Window: math.NaN()}).Validate(); err == nil {
		t.Error("bad options were taken")
	}
}

// TestFillKeepsWhatIsKnown takes lengths and kinds away from a trace and draws them again.
func TestFillKeepsWhatIsKnown(t *testing.T) {
	m := windowed()
	m.Quantum = 0
	rows := generated(t, m, Options{Seed: 9, Seconds: 3000})
	f, err := m.Filler(1, 0)
	if err != nil {
		t.Fatal(err)
	}
	var realOut, drawnOut, realIn, drawnIn [3]float64
	var n [3]float64
	part := func(in int64) int { return sort.SearchInts([]int{500, 2000}, int(in)) }
	for i, x := range rows {
		lacking := *x
		lacking.Drawn = formats.Null[int64]{}
		switch i % 4 {
		case 0:
			lacking.OutputTokens = formats.Null[int64]{}
		case 1:
			lacking.InputTokens = formats.Null[int64]{}
		case 2:
			lacking.Temperature, lacking.Endpoint, lacking.RequestModel, lacking.Stream = formats.Null[float64]{}, "", "", formats.Null[bool]{}
		}
		y := lacking
		drawn := f.Fill(&y)
		switch i % 4 {
		case 0:
			if drawn&formats.DrawnOutput == 0 || y.InputTokens != x.InputTokens || y.OutputTokensSource != formats.TokensDrawn {
				t.Fatalf("%+v became %+v (%b)", lacking, y, drawn)
			}
			k := part(x.InputTokens.V)
			realOut[k] += float64(x.OutputTokens.V)
			drawnOut[k] += float64(y.OutputTokens.V)
			n[k]++
		case 1:
			if drawn&formats.DrawnInput == 0 || y.OutputTokens != x.OutputTokens {
				t.Fatalf("%+v became %+v (%b)", lacking, y, drawn)
			}
			k := sort.SearchInts([]int{50, 300}, int(x.OutputTokens.V))
			realIn[k] += float64(x.InputTokens.V)
			drawnIn[k] += float64(y.InputTokens.V)
		case 2:
			if drawn&formats.DrawnSampling == 0 || y.Endpoint == "" || y.InputTokens != x.InputTokens || y.OutputTokens != x.OutputTokens {
				t.Fatalf("%+v became %+v (%b)", lacking, y, drawn)
			}
		case 3:
			if drawn != 0 && x.Temperature.Valid {
				t.Fatalf("a complete request was filled: %b", drawn)
			}
		}
		if !reflect.DeepEqual(y.PrefixBlocks, x.PrefixBlocks) || y.SessionID != x.SessionID || y.Turn != x.Turn || y.ArrivalUnixNS != x.ArrivalUnixNS {
			t.Fatalf("what was known changed: %+v became %+v", lacking, y)
		}
	}
	for k := range n {
		if math.Abs(drawnOut[k]/realOut[k]-1) > 0.2 {
			t.Errorf("part %d: drawn outputs add up to %v, real ones to %v", k, drawnOut[k], realOut[k])
		}
		if math.Abs(drawnIn[k]/realIn[k]-1) > 0.2 {
			t.Errorf("outputs of part %d: drawn inputs add up to %v, real ones to %v", k, drawnIn[k], realIn[k])
		}
	}
}

func TestFillArrivals(t *testing.T) {
	m := windowed()
	f, err := m.Filler(1, 1000e9)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	want := generated(t, m, Options{Seed: 5, Seconds: 200})
	for i := 0; ; i++ {
		x := &formats.Exchange{}
		ok, err := f.Arrival(x, Options{Seed: 5, Seconds: 200})
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			if i != len(want) {
				t.Errorf("%d arrivals, want %d", i, len(want))
			}
			return
		}
		if x.ArrivalUnixNS != 1000e9+want[i].ArrivalUnixNS || x.Drawn.V != formats.DrawnArrival {
			t.Fatalf("arrival %d at %d, want %d", i, x.ArrivalUnixNS, want[i].ArrivalUnixNS)
		}
	}
}

// FuzzParse feeds the model reader: it may refuse, not fail, and what it takes can be generated.
func FuzzParse(f *testing.F) {
	good, err := json.Marshal(windowed())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte(`{"schema":1,"clients":[{"windows":[{"arrival":{"family":"poisson","rate_per_s":1},"lengths":{"input_law":{"family":"fixed","mean":1},"output_law":{"family":"table","values":[1,2]}}}]}]}`))
	f.Add([]byte(`{"schema":1,"seconds":10,"clients":[{"windows":[{"start_s":0,"seconds":10}]}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := Parse(data)
		if err != nil {
			return
		}
		rows, err := m.Generate(Options{Seed: 1, Requests: 20, Seconds: 100})
		if err != nil {
			return
		}
		for range rows {
		}
	})
}
