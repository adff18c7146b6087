package analyzer

import (
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/shadowtape/shadowtape/formats"
)

// recordedDay makes a recording whose times follow from what each request asks for and meets: ttft is 20 ms + 40 µs for each prompt token
// that is not cached and 2 ms for each request in flight, tpot 10 ms + 0.1 ms for each in flight, all times slow.
func recordedDay(label string, seed uint64, n int, median, gap, slow float64, change func(*formats.Exchange)) *Run {
	r := rand.New(rand.NewPCG(seed, 1))
	var rows []*formats.Exchange
	var ends []int64
	at := 0.0
	for i := range n {
		at += r.ExpFloat64() * gap
		now := int64(1e18 + at*1e9)
		flight := 0
		for _, e := range ends[max(0, len(ends)-200):] {
			if e > now {
				flight++
			}
		}
		input := 20 + int64(median*math.Exp(0.7*r.NormFloat64()))
		cached := input / 4 * int64(r.IntN(3))
		ttft := slow * (20e6 + 40e3*float64(input-cached) + 2e6*float64(flight)) * math.Exp(0.1*r.NormFloat64())
		tpot := slow * (10e6 + 1e5*float64(flight)) * math.Exp(0.05*r.NormFloat64())
		last := int64(ttft + 20*tpot)
		x := &formats.Exchange{ExchangeID: int64(i + 1), Phase: formats.PhaseRecord, ArrivalUnixNS: now, SentNS: formats.Of(int64(0)), Stream: formats.Of(true), EndReason: formats.EndComplete,
			InputTokens: formats.Of(input), CachedTokens: formats.Of(cached), OutputTokens: formats.Of(int64(21)), OutputTokensSource: formats.TokensUsage,
			FirstTokenNS: formats.Of(int64(ttft)), LastTokenNS: formats.Of(last), EndNS: formats.Of(last), EventGapUS: []int32{0, int32(20 * tpot / 1000)}, EventTokens: []int32{1, 20}}
		if change != nil {
			change(x)
		}
		ends = append(ends, now+last)
		rows = append(rows, x)
	}
	return RunOf(label, nil, rows, nil)
}

func part(s Split, name string) float64 {
	for _, p := range s.Parts {
		if p.Name == name {
			return p.ChangePct.V
		}
	}
	return math.NaN()
}

func TestTwoRecordings(t *testing.T) {
	monday := recordedDay("monday", 1, 4000, 400, 0.05, 1, nil)
	for _, c := range []struct {
		name        string
		other       *Run
		verdict     Verdict
		low, high   float64 // of the server's part of ttft
		part        string
		atLeast     float64 // of that part
		says        string
		unmatchable bool
	}{
		{"the same again", recordedDay("b", 2, 4000, 400, 0.05, 1, nil), Same, -2, 2, "", 0, "", false},
		{"longer prompts", recordedDay("b", 2, 4000, 600, 0.05, 1, nil), Same, -2, 2, partLengths, 10, "", false},
		{"more requests", recordedDay("b", 2, 4000, 400, 0.03, 1, nil), Same, -3, 3, partLoad, 5, "", false},
		{"another cache", recordedDay("b", 2, 4000, 400, 0.05, 1, func(x *formats.Exchange) {
			x.FirstTokenNS.V += 40e3 * x.CachedTokens.V
			x.CachedTokens.V = 0
		}), Same, -3, 3, partCache, 5, "", false},
		{"a slower server", recordedDay("b", 2, 4000, 400, 0.05, 1.2, nil), Worse, 17, 22, "", 0, "", false},
		{"a slower server and longer prompts", recordedDay("b", 2, 4000, 600, 0.05, 1.2, nil), Worse, 17, 22, partLengths, 10, "", false},
		{"a faster server and longer prompts", recordedDay("b", 2, 4000, 600, 0.05, 0.8, nil), Better, -22, -17, partLengths, 10, "", false},
		{"quite other prompts", recordedDay("b", 2, 4000, 40000, 0.9, 1, nil), Same, -100, 1e9, "", 0, "cannot be told", true},
		{"a silent cache", recordedDay("b", 2, 4000, 400, 0.05, 1, func(x *formats.Exchange) { x.CachedTokens = formats.Null[int64]{} }), Same, -4, 4, "", 0, "cached tokens are not known", false},
	} {
		d, err := Compare([]*Run{monday}, []*Run{c.other}, CompareOptions{Draws: 400})
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		s := d.Traffic.Metrics[0]
		if v := part(s, partServer); d.Verdict != c.verdict || v < c.low || v > c.high || c.part != "" && part(s, c.part) < c.atLeast || !strings.Contains(strings.Join(d.Warnings, "; "), c.says) {
			t.Errorf("%s: %s, %+v, %q", c.name, d.Verdict, s, d.Warnings)
		}
		if m := d.Traffic.Base.MatchedShare.V; (m < leastMatched) != c.unmatchable {
			t.Errorf("%s: %v are matched", c.name, m)
		}
		var text strings.Builder
		if err := d.Text(&text); err != nil || strings.Count(text.String(), "\n") > 35 || !strings.Contains(text.String(), "the server itself") {
			t.Errorf("%s: %v\n%s", c.name, err, text.String())
		}
	}
	untimed := recordedDay("b", 2, 100, 400, 0.05, 1, func(x *formats.Exchange) {
		x.FirstTokenNS, x.LastTokenNS, x.EventGapUS = formats.Null[int64]{}, formats.Null[int64]{}, nil
	})
	if _, err := Compare([]*Run{monday}, []*Run{untimed}, CompareOptions{}); !errors.Is(err, ErrIncomparable) || !strings.Contains(err.Error(), "answered and timed") {
		t.Errorf("%v", err)
	}
}

// What a request meets, against counting it anew for each.
func TestSee(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 4))
	var all []met
	for range 300 {
		m := met{server: []string{"a", "b"}[r.IntN(2)], at: r.Int64N(1e6), input: float64(r.IntN(100)), cached: -1}
		m.first = m.at + r.Int64N(50000)
		m.end = m.first + r.Int64N(50000)
		all = append(all, m)
	}
	see(all, 0.5)
	for i, m := range all {
		flight, queued, beside := 0.0, 0.0, 0.0
		for j, o := range all {
			if o.server != m.server {
				continue
			}
			beside += float64(max(0, min(o.end, m.end)-max(o.at, m.first)))
			if i == j || o.at > m.at || o.at == m.at && j > i || o.end <= m.at {
				continue
			}
			flight++
			if o.first > m.at {
				queued += o.input
			}
		}
		if m.flight != 2*flight || math.Abs(m.queued-2*queued) > 1e-6 || m.end > m.first && math.Abs(m.beside-2*beside/float64(m.end-m.first)) > 1e-6 {
			t.Errorf("request %d met %v, %v and %v beside, want %v, %v and %v", i, m.flight, m.queued, m.beside, 2*flight, 2*queued, 2*beside/float64(m.end-m.first))
		}
	}
}

func TestPlacementOfARecording(t *testing.T) {
	rec := &Run{Label: "rec", Kind: "recording", Header: formats.Header{SourceKind: "proxy"}}
	rep := &Run{Label: "rep", Kind: "replay", Manifest: environmentOf("0.10.0", "x", "c2", 3)}
	for _, p := range []string{placement(rec, rep), placement(rep, rec)} {
		if p != "rec was timed at a proxy, rep by its client on c2: the way between them is part of the difference" {
			t.Error(p)
		}
	}
	if p := placement(rec, rec); p != "" {
		t.Error(p)
	}
}
