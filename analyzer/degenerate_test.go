package analyzer

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/shadowtape/shadowtape/formats"
)

// TestDegenerateRuns summarizes and compares runs of hardly anything, at one instant, of one value, far apart: each has a JSON document,
// in which undefined is null. JSON refuses NaN and infinity, so a figure that is one fails here.
func TestDegenerateRuns(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	for _, spacing := range []int64{0, 1, 1e3, 1e6, 1e9, 3600e9} {
		for _, n := range []int{0, 1, 2, 3, 5, 17, 64, 200} {
			for _, same := range []bool{false, true} {
				t.Run(fmt.Sprintf("%d rows %d ns apart, same %t", n, spacing, same), func(t *testing.T) {
					runs := make([]*Run, 2)
					for k := range runs {
						var xs []*formats.Exchange
						for i := range int64(n) {
							x := randomExchange(r, i+1)
							if same && i > 0 {
								c := *xs[0]
								c.ExchangeID, c.ArrivalIndex = i+1, formats.Of(i)
								x = &c
							}
							x.ArrivalUnixNS = 1e18 + i*spacing
							xs = append(xs, x)
						}
						runs[k] = RunOf(fmt.Sprint("run", k), &formats.Manifest{Valid: true}, xs, nil)
						s, err := Summarize(runs[k], Options{})
						if err != nil {
							t.Fatal(err)
						}
						if _, err := json.Marshal(Document{Runs: []Summary{s}}); err != nil {
							t.Error(err)
						}
					}
					d, err := Compare(runs[:1], runs[1:], CompareOptions{})
					if err != nil {
						return // refusing to compare is an answer
					}
					if _, err := json.Marshal(d); err != nil {
						t.Error(err)
					}
				})
			}
		}
	}
}

// An answer that came before its request, or ended before it began, as two clocks may have it, has no latency: none below 0 is one.
func TestNoLatencyIsNegative(t *testing.T) {
	var xs []*formats.Exchange
	for i, at := range [][4]int64{{0, 6e6, 4e6, 5e6}, {0, -5e6, -1e6, -9e6}, {7e6, 1e6, 4e6, 5e6}, {1e6, 2e6, 7e6, 8e6}} { // sent, first, last, end
		xs = append(xs, &formats.Exchange{ExchangeID: int64(i + 1), Phase: formats.PhaseRecord, ArrivalUnixNS: 1e18 + int64(i)*1e9, Status: formats.Of[int32](200), EndReason: formats.EndComplete,
			SentNS: formats.Of(at[0]), FirstTokenNS: formats.Of(at[1]), LastTokenNS: formats.Of(at[2]), EndNS: formats.Of(at[3]), OutputTokens: formats.Of[int64](6)})
	}
	s, err := Summarize(RunOf("r", nil, xs, nil), Options{})
	if err != nil {
		t.Fatal(err)
	}
	for name, n := range map[string]uint64{"ttft": 3, "ttft_from_send": 2, "tpot": 3, "e2el": 3, "e2el_from_send": 2, "end": 3} {
		if m := s.Metrics[name]; m.N != n || m.Mean.V < 0 {
			t.Errorf("%s: %d samples, mean %v", name, m.N, m.Mean)
		}
	}
}
