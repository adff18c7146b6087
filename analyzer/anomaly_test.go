package analyzer

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/figure"
)

// stream is a healthy streamed request: 40 tokens, 10 ms apart.
func stream(id, at int64, ttft float64) *formats.Exchange {
	x := &formats.Exchange{
		ExchangeID: id, Phase: formats.PhaseMeasure, ArrivalUnixNS: at, SentNS: formats.Of(int64(1e5)), InputTokens: formats.Of(int64(300)), OutputTokens: formats.Of(int64(40)),
		OutputTokensSource: formats.TokensUsage, FirstTokenNS: formats.Of(int64(ttft * 1e6)), EndReason: formats.EndComplete,
	}
	for i := range int32(40) {
		x.EventGapUS = append(x.EventGapUS, min(i, 1)*10000)
		x.EventTokens = append(x.EventTokens, 1)
	}
	finish(x)
	return x
}

func finish(x *formats.Exchange) {
	total := int64(0)
	for _, g := range x.EventGapUS {
		total += int64(g)
	}
	x.LastTokenNS = formats.Of(x.FirstTokenNS.V + total*1000)
	x.EndNS = formats.Of(x.LastTokenNS.V + 1e6)
}

// TestAnomalies breaks a healthy run in one way at a time: exactly that is named, at its time; and what only looks like it is not named.
func TestAnomalies(t *testing.T) {
	for _, c := range []struct {
		name string
		want string
		at   float64 // −1: all of the run
		hurt func(i int, x *formats.Exchange)
	}{
		{"healthy", "", 0, func(int, *formats.Exchange) {}},
		{"a proxy that buffers", AnomalyBuffering, -1, func(_ int, x *formats.Exchange) {
			x.FirstTokenNS.V += 390e6
			for i := range x.EventGapUS {
				x.EventGapUS[i] = min(int32(i), 1) * 20
			}
			finish(x)
		}},
		{"a server that stops for a second", AnomalyStall, 30, func(_ int, x *formats.Exchange) {
			at, before := x.ArrivalUnixNS+x.FirstTokenNS.V-1e18, int64(0)
			for i := range x.EventGapUS { // what would have come in that second comes at its end
				at += int64(x.EventGapUS[i]) * 1000
				moved := at
				if at >= 30e9 && at < 31e9 {
					moved = 31e9
				}
				if i == 0 {
					x.FirstTokenNS.V += moved - at
				} else {
					x.EventGapUS[i] = int32((moved - before) / 1000)
				}
				before = moved
			}
			finish(x)
		}},
		{"a cold start", AnomalyColdStart, 0, func(i int, x *formats.Exchange) {
			if i < 15 {
				x.FirstTokenNS.V += 900e6
				finish(x)
			}
		}},
		{"a client that was late", AnomalyClient, 20, func(i int, x *formats.Exchange) {
			if i == 400 {
				x.SentNS.V = 90e6
			}
		}},
		{"a retry", AnomalyRetries, 10, func(i int, x *formats.Exchange) {
			if i == 200 {
				x.Attempt = formats.Of(int32(2))
			}
		}},
		{"time-outs in a cluster", AnomalyFailures, 40, func(i int, x *formats.Exchange) {
			if i >= 800 && i < 812 {
				x.ErrorKind, x.EndReason = formats.ErrorTimeout, formats.EndTimeout
				x.FirstTokenNS, x.LastTokenNS, x.EventGapUS, x.EventTokens = formats.Null[int64]{}, formats.Null[int64]{}, nil, nil
			}
		}},
		{"more than it carries", AnomalySaturation, 25, func(i int, x *formats.Exchange) {
			x.FirstTokenNS.V += int64(i) * 20e6
			finish(x)
		}},
		{"one client in three behind a proxy that buffers", "", 0, func(i int, x *formats.Exchange) {
			if i%3 > 0 {
				return
			}
			x.FirstTokenNS.V += 390e6
			for i := range x.EventGapUS {
				x.EventGapUS[i] = min(int32(i), 1) * 20
			}
			finish(x)
		}},
		{"long gaps, each stream's at its own time", "", 0, func(_ int, x *formats.Exchange) {
			x.EventGapUS[20] = 400_000
			finish(x)
		}},
		{"a service that is slow for a minute from its start", "", 0, func(i int, x *formats.Exchange) {
			if i < 300 {
				x.FirstTokenNS.V += 300e6
				finish(x)
			}
		}},
		{"a client that was late by less than matters", "", 0, func(i int, x *formats.Exchange) {
			if i == 400 {
				x.SentNS.V = 15e6
			}
		}},
		{"requests tried once", "", 0, func(_ int, x *formats.Exchange) { x.Attempt = formats.Of(int32(1)) }},
		{"time-outs spread over the run", "", 0, func(i int, x *formats.Exchange) {
			if i%100 == 50 {
				x.ErrorKind, x.EndReason = formats.ErrorTimeout, formats.EndTimeout
				x.FirstTokenNS, x.LastTokenNS, x.EventGapUS, x.EventTokens = formats.Null[int64]{}, formats.Null[int64]{}, nil, nil
			}
		}},
		{"first tokens that come later and later, and no queue", "", 0, func(i int, x *formats.Exchange) {
			x.FirstTokenNS.V += int64(i) * 1e5
			finish(x)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, 1))
			var xs []*formats.Exchange
			for i := range 1200 {
				x := stream(int64(i+1), 1e18+int64(i)*50e6, 40+r.Float64()*20)
				c.hurt(i, x)
				xs = append(xs, x)
			}
			s, err := Summarize(RunOf("r", nil, xs, nil), Options{})
			if err != nil {
				t.Fatal(err)
			}
			if c.want == "" {
				if len(s.Anomalies) > 0 {
					t.Errorf("a healthy run has %+v", s.Anomalies)
				}
				return
			}
			if len(s.Anomalies) != 1 || s.Anomalies[0].Name != c.want {
				t.Fatalf("found %+v, want %s", s.Anomalies, c.want)
			}
			a := s.Anomalies[0]
			if c.at < 0 && a.AtS.Valid || c.at >= 0 && (!a.AtS.Valid || math.Abs(a.AtS.V-c.at) > 1+0.15*c.at) {
				t.Errorf("at %v, want %v: %s", a.AtS, c.at, a.Evidence)
			}
		})
	}
}

// Gaps double while another request is in prefill: the figures say so.
func TestInterference(t *testing.T) {
	var xs []*formats.Exchange
	for i := range int64(200) {
		long := stream(2*i+1, 1e18+i*2e9, 50)
		long.EventGapUS, long.EventTokens = nil, nil
		for k := range int32(101) { // 1 s of decode, with a prefill of another request in its middle
			gap := min(k, 1) * 10000
			if k >= 40 && k < 60 {
				gap = 20000
			}
			long.EventGapUS, long.EventTokens = append(long.EventGapUS, gap), append(long.EventTokens, 1)
		}
		long.OutputTokens = formats.Of(int64(101))
		finish(long)
		at := long.ArrivalUnixNS + 50e6 + 390e6
		other := stream(2*i+2, at, 410)
		other.InputTokens = formats.Of(int64(8000))
		other.OutputTokens, other.EventGapUS, other.EventTokens = formats.Of(int64(1)), []int32{0}, []int32{1}
		finish(other)
		xs = append(xs, long, other)
	}
	s, err := Summarize(RunOf("r", nil, xs, nil), Options{})
	if err != nil {
		t.Fatal(err)
	}
	in := s.Interference
	if math.Abs(in.ITLDecodeOnly.V-10) > 0.3 || math.Abs(in.ITLMixed.V-20) > 1 || math.Abs(in.Slowdown.V-2) > 0.15 {
		t.Errorf("%+v", in)
	}
}

func TestCost(t *testing.T) {
	c := costOf(Options{GPUHourPrice: 2.5}, 4, figure.Known(1000), figure.Known(500))
	if want := 4 * 2.5 / 3600 / 1000 * 1e6; math.Abs(c.PerMillionOutputTokens.V-want) > 1e-12 {
		t.Errorf("%v, want %v", c.PerMillionOutputTokens, want)
	}
	if want := 2.5 / 3600 / 500 * 1e6; math.Abs(c.Saturated.V-want) > 1e-12 {
		t.Errorf("saturated %v, want %v", c.Saturated, want)
	}
	side := func(rate, waiting float64) Summary {
		return Summary{Aggregates: map[string]Value{"output_rate": {Value: figure.Known(rate)}, "server_waiting_mean": {Value: figure.Known(waiting)}}}
	}
	if f := fleetCost(100, 2, side(1000, 5), side(800, 9)); math.Abs(f.ChangePerMonth.V-100*2*730.5*0.25) > 1e-6 {
		t.Errorf("%+v", f)
	}
	if f := fleetCost(100, 2, side(1000, 5), side(800, 0)); f.ChangePerMonth.Valid || f.Reason == "" {
		t.Errorf("below saturation: %+v", f)
	}
}
