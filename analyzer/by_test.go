package analyzer

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/shadowtape/shadowtape/formats"
)

// A group's and a stretch's figures are those of a run that holds nothing else.
func TestBreakdownsAndStretches(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	var xs []*formats.Exchange
	for id := range int64(1500) {
		x := randomExchange(r, id+1)
		x.Endpoint = []formats.Endpoint{"", formats.EndpointChat, formats.EndpointCompletions}[r.IntN(3)]
		x.Stream = formats.Null[bool]{V: r.IntN(2) == 0, Valid: r.IntN(5) > 0}
		x.Status = formats.Of(int32(200 + 100*r.IntN(4)))
		x.RequestModel = string(rune('a' + r.IntN(120))) // more than are told apart
		xs = append(xs, x)
	}
	start := xs[0].ArrivalUnixNS
	for _, x := range xs {
		if x.Phase != formats.PhaseWarmup {
			start = x.ArrivalUnixNS
			break
		}
	}
	for _, by := range Breakdowns() {
		s, err := Summarize(RunOf("r", nil, xs, nil), Options{By: by, From: 10 * time.Second, To: 50 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		b, _ := findBreakdown(by)
		total := Requests{}
		named := map[string]bool{}
		for _, g := range s.Groups {
			named[g.Value] = true
			total.merge(g.Requests)
		}
		if total != s.Requests {
			t.Errorf("%s: groups hold %+v, the run %+v", by, total, s.Requests)
		}
		if len(s.Groups) > maxGroups+1 {
			t.Errorf("%s: %d groups", by, len(s.Groups))
		}
		for _, g := range s.Groups {
			var only []*formats.Exchange
			for _, x := range xs {
				at := x.ArrivalUnixNS - start
				value := b.value(x)
				if !named[value] {
					value = otherGroups
				}
				if value == g.Value && at >= 10e9 && at < 50e9 {
					only = append(only, x)
				}
			}
			want, counts := truth(only)
			if g.Requests != counts {
				t.Errorf("%s=%q: %+v, want %+v", by, g.Value, g.Requests, counts)
			}
			for _, m := range Metrics() {
				checkFigures(t, m.Name, g.Metrics[m.Name], want[m.Name])
			}
		}
	}
	for _, bad := range []Options{{By: "nope"}, {From: 5, To: 5}, {From: -1}, {To: -1}} {
		if bad.Validate() == nil {
			t.Errorf("%+v is accepted", bad)
		}
	}
}

// Over many runs of a known distribution, intervals hold the truth about as often as they say, also where neighbors resemble each other.
func TestIntervalsCover(t *testing.T) {
	const trials, n = 200, 600
	for _, c := range []struct {
		name        string
		correlation float64
	}{{"independent", 0}, {"queueing", 0.8}} {
		hits, shown := map[string]int{}, map[string]int{}
		for seed := range uint64(trials) {
			r := rand.New(rand.NewPCG(seed, 77))
			var xs []*formats.Exchange
			z := r.NormFloat64()
			for i := range int64(n) {
				z = c.correlation*z + math.Sqrt(1-c.correlation*c.correlation)*r.NormFloat64()
				xs = append(xs, &formats.Exchange{ExchangeID: i + 1, Phase: formats.PhaseMeasure, ArrivalUnixNS: i * 5e8, FirstTokenNS: formats.Of(int64((100 + 10*z) * 1e6)), EndReason: formats.EndComplete})
			}
			s, err := Summarize(RunOf("r", nil, xs, nil), Options{})
			if err != nil {
				t.Fatal(err)
			}
			f := s.Metrics["ttft"]
			for name, truth := range map[string]float64{"mean": 100, "p50": 100, "p90": 112.8155, "p95": 116.4485} {
				if v, ok := f.Intervals[name]; ok {
					shown[name]++
					if v[0] <= truth && truth <= v[1] {
						hits[name]++
					}
				}
			}
		}
		for name, k := range shown {
			if share := float64(hits[name]) / float64(k); share < 0.88 {
				t.Errorf("%s: the 95 %% interval of the %s holds the truth in %.1f %% of runs", c.name, name, share*100)
			}
		}
	}
}

func TestTimelineKeepsSumsHoweverLongTheRun(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 8))
	for range 50 {
		whole, parts := timeline{metrics: 1}, [2]timeline{{metrics: 1}, {metrics: 1}}
		var sum float64
		for range 3000 {
			at, v := r.Int64N(int64(1)<<(30+r.IntN(25)))-int64(r.IntN(2))*1e12, r.Float64()
			sum += v
			whole.at(at).sum[0] += v
			parts[r.IntN(2)].at(at).sum[0] += v
		}
		parts[0].merge(&parts[1])
		for i, l := range []*timeline{&whole, &parts[0]} {
			got := 0.0
			for _, b := range l.blocks(10) {
				got += b.sum[0]
			}
			if math.Abs(got-sum) > 1e-6 || len(l.bins) > maxBins {
				t.Fatalf("timeline %d: %v in %d bins, want %v", i, got, len(l.bins), sum)
			}
		}
	}
}

func TestCapacity(t *testing.T) {
	run := func(label string, rate, attained float64, valid bool) Summary {
		v := func(x float64) Value { return Value{Value: formats.Of(x)} }
		return Summary{Label: label, Valid: valid, Aggregates: map[string]Value{"request_rate": v(rate), "output_rate": v(rate * 100), "slo_attainment": v(attained)}}
	}
	runs := []Summary{run("c", 4, 0.95, true), run("a", 1, 1, true), run("b", 2, 0.995, true), run("d", 8, 1, true), run("bad", 3, 1, false)}
	c := CapacityOf(runs, 0.99)
	if c.RequestRate.V != 2 || c.OutputRate.V != 200 || c.Label != "b" || c.NextRate.V != 4 || c.Runs != 4 || c.Invalid != 1 {
		t.Errorf("%+v: a lucky run at 8 must not count past a miss at 4", c)
	}
	if c := CapacityOf(runs, 1); c.RequestRate.V != 1 || c.NextRate.V != 2 {
		t.Errorf("%+v", c)
	}
	if c := CapacityOf(runs[:1], 0.99); c.RequestRate.Valid || c.NextRate.V != 4 {
		t.Errorf("%+v", c)
	}
}
