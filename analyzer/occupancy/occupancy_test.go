package occupancy

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/shadowtape/shadowtape/formats"
)

// traffic is an hour of requests whose rate drifts, in prompts that share beginnings.
func traffic(n int) []*formats.Exchange {
	r := rand.New(rand.NewPCG(4, 2))
	var xs []*formats.Exchange
	for range n {
		u := r.Float64()
		x := &formats.Exchange{ArrivalUnixNS: 1e18 + int64(3600e9*(u+0.1*math.Sin(2*math.Pi*u))/1.1), SentNS: formats.Of(int64(1e5)), EndReason: formats.EndComplete}
		in, out := 200+r.Int64N(3000), 2+r.Int64N(300)
		ttft := int64(20e6 + float64(in)*2e4*(1+r.ExpFloat64()/4))
		x.InputTokens, x.OutputTokens = formats.Of(in), formats.Of(out)
		x.FirstTokenNS, x.LastTokenNS = formats.Of(ttft), formats.Of(ttft+out*12e6)
		x.EndNS = formats.Of(x.LastTokenNS.V + 1e6)
		root := r.Int64N(50)
		for k := range in / 512 {
			x.PrefixBlocks = append(x.PrefixBlocks, root*1000+k*(1+k/2*int64(r.IntN(2))))
		}
		xs = append(xs, x)
	}
	return xs
}

func loadOf(xs []*formats.Exchange, every int) *Load {
	h := formats.Header{PrefixBlockUnit: "tokens", PrefixBlockSize: 512}
	l, other := New(h, 1e18, 1e18+3600e9, every), New(h, 1e18, 1e18+3600e9, every)
	for i, x := range xs {
		if i%3 == 0 {
			other.Add(x, true, false)
		} else {
			l.Add(x, true, false)
		}
	}
	l.Merge(other)
	l.Settle()
	return l
}

// What is modelled of a part of the time is there what the model of all of it says, cell by cell; elsewhere nothing is said; and the means
// come close.
func TestStretchesAreWhole(t *testing.T) {
	xs := traffic(40_000)
	all := loadOf(xs, 0)
	whole, wholeMix := all.Pages(16, 0), all.Mix()
	if all.Modelled() != 1 || all.Requests() != int64(len(xs)) {
		t.Fatalf("%v of the time, %d requests", all.Modelled(), all.Requests())
	}
	for _, every := range []int{2, 7, 20} {
		l := loadOf(xs, every)
		if m := l.Modelled(); math.Abs(m*float64(every)-1) > 0.2 {
			t.Errorf("one of %d: %v of the time is modelled", every, m)
		}
		if got, most := float64(l.Requests()), 1.6*float64(len(xs))/float64(every); got > most {
			t.Errorf("one of %d holds %v requests of %d", every, got, len(xs))
		}
		part, mix := l.Pages(16, 0), l.Mix()
		seen := 0
		for i, v := range part.high {
			if math.IsNaN(v) {
				continue
			}
			seen++
			if math.Abs(v-whole.high[i]) > 1e-6*whole.high[i] || math.Abs(part.tokens[i]-whole.tokens[i]) > 1e-6*whole.tokens[i] {
				t.Fatalf("one of %d, cell %d: %v pages, the whole has %v", every, i, v, whole.high[i])
			}
		}
		if got := float64(seen) / Cells; math.Abs(got-l.Modelled()) > 1e-9 {
			t.Errorf("%v of the cells say something, %v are modelled", got, l.Modelled())
		}
		states, wholeStates := mix.States(stretchesOfSpan), wholeMix.States(stretchesOfSpan)
		for k := range states {
			for i, v := range states[k] {
				if !math.IsNaN(v) && math.Abs(v-wholeStates[k][i]) > 1e-9 {
					t.Fatalf("one of %d, interval %d, state %d: share %v, the whole has %v", every, i, k, v, wholeStates[k][i])
				}
			}
		}
		for _, c := range []struct {
			name      string
			got, want Null
		}{
			{"high", part.InUse.High.Mean, whole.InUse.High.Mean}, {"low", part.InUse.Low.Mean, whole.InUse.Low.Mean}, {"fill", part.Fill, whole.Fill}, {"sharing", part.Sharing, whole.Sharing},
			{"mixed", mix.Early.Mixed, wholeMix.Early.Mixed}, {"switches", mix.Early.SwitchesPerS, wholeMix.Early.SwitchesPerS}, {"decoding", mix.DecodeRequests, wholeMix.DecodeRequests}, {"prefill rate", mix.PrefillTokensPerS, wholeMix.PrefillTokensPerS},
		} {
			if !c.got.Valid || math.Abs(c.got.V/c.want.V-1) > 0.15 {
				t.Errorf("one of %d: %s %v, the whole has %v", every, c.name, c.got, c.want)
			}
		}
	}
}

// A run of any size has an interval that is modelled.
func TestStretchesAreNeverNone(t *testing.T) {
	for _, every := range []int{1, 2, 3, 133, 399, 400, 401, 100_000} {
		s := newStretches(every)
		if c := s.covered(); c <= 0 || c > 1 {
			t.Errorf("one of %d: %v is modelled", every, c)
		}
	}
}
