package schedule

import (
	"iter"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/shadowtape/shadowtape/formats"
)

func offsets(t *testing.T, s Arrivals) []time.Duration {
	t.Helper()
	var out []time.Duration
	for a, err := range s {
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, a.At)
	}
	return out
}

func TestTransforms(t *testing.T) {
	s := at(0, 10*ms, 20*ms, 20*ms, 50*ms)
	for _, c := range []struct {
		name string
		s    Arrivals
		want []time.Duration
	}{
		{"speed 2", Speed(s, 2), []time.Duration{0, 5 * ms, 10 * ms, 10 * ms, 25 * ms}},
		{"speed of speed", Speed(Speed(s, 0.25), 8), []time.Duration{0, 5 * ms, 10 * ms, 10 * ms, 25 * ms}},
		{"until", Until(s, 20*ms), []time.Duration{0, 10 * ms}},
		{"at most", MaxRequests(s, 3), []time.Duration{0, 10 * ms, 20 * ms}},
		{"until after speed", Until(Speed(s, 2), 20*ms), []time.Duration{0, 5 * ms, 10 * ms, 10 * ms}},
		{"no limits", MaxRequests(Until(Speed(s, 1), 0), 0), offsets(t, s)},
	} {
		if got := offsets(t, c.s); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
		for range c.s { // a consumer that stops early stops the source
			break
		}
	}
}

// Rows stored in any order come out in the order of time, those of one instant by arrival index, and no more are held than the trace
// is out of order.
func TestRowsAreSorted(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var rows []*formats.Exchange
	for i := range 2000 {
		rows = append(rows, &formats.Exchange{ExchangeID: int64(i + 1), ArrivalIndex: formats.Of(int64(i)), ArrivalUnixNS: 1e18 + int64(i/3)*1000, Phase: formats.PhaseMeasure})
	}
	want := slices.Clone(rows)
	rows = append(rows, &formats.Exchange{Phase: formats.PhaseWarmup, ArrivalUnixNS: 5})
	for i := range rows { // each moves at most 40 places
		j := min(i+r.IntN(40), len(rows)-1)
		rows[i], rows[j] = rows[j], rows[i]
	}
	o := order{first: 1e18}
	last := int64(0)
	for _, x := range rows {
		if x.Phase == formats.PhaseMeasure {
			o.disorder = max(o.disorder, last-x.ArrivalUnixNS)
			last = max(last, x.ArrivalUnixNS)
		}
	}
	pulled, yielded, held := 0, 0, 0
	source := func(yield func(*formats.Exchange, error) bool) {
		for _, x := range rows {
			pulled++
			if !yield(x, nil) {
				return
			}
		}
	}
	var got []*formats.Exchange
	fromRows(iter.Seq2[*formats.Exchange, error](source), o, func(a Arrival, err error) bool {
		yielded++
		held = max(held, pulled-yielded)
		if a.At != time.Duration(a.Exchange.ArrivalUnixNS-1e18) {
			t.Fatalf("at %v", a.At)
		}
		got = append(got, a.Exchange)
		return true
	})
	if !slices.Equal(got, want) {
		t.Error("the order is wrong")
	}
	if held > 1000 {
		t.Errorf("%d rows were held", held)
	}
}
