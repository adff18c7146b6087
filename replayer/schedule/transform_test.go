package schedule

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/shadowtape/shadowtape/formats"
)

// random is a schedule of n requests of a few sessions, tenants and servers.
func random(seed uint64, n int) Arrivals {
	r := rand.New(rand.NewPCG(seed, 3))
	var all []Arrival
	at := time.Duration(0)
	for i := range n {
		at += time.Duration(r.ExpFloat64() * float64(50*ms))
		x := &formats.Exchange{ExchangeID: int64(i + 1), InputTokens: formats.Of(int64(7)), ServerID: []string{"a", "b", "c"}[r.IntN(3)], RequestModel: []string{"m", "n"}[r.IntN(2)]}
		if k := r.IntN(40); k > 0 {
			x.SessionID = formats.Of(formats.Hash{byte(k), 1})
			x.TenantID = formats.Of(formats.Hash{byte(k % 5), 2})
		}
		all = append(all, Arrival{At: at, Exchange: x})
	}
	return func(yield func(Arrival, error) bool) {
		for _, a := range all {
			if !yield(a, nil) {
				return
			}
		}
	}
}

func all(t *testing.T, s Arrivals) []Arrival {
	t.Helper()
	var out []Arrival
	for a, err := range s {
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, a)
	}
	return out
}

func TestProperties(t *testing.T) {
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 9))
		s := random(seed, 300)
		whole := all(t, s)
		a, b := 0.1+3*r.Float64(), 0.1+3*r.Float64()
		two, one := all(t, Speed(Speed(s, a), b)), all(t, Speed(s, a*b))
		for i := range one {
			if d := two[i].At - one[i].At; d > time.Duration(1+1/b) || d < -time.Duration(1+1/b) { // each rounds to a nanosecond
				t.Fatalf("seed %d: speed %v then %v is %v, at once %v", seed, a, b, two[i].At, one[i].At)
			}
		}
		// A session is kept whole or not at all, and a smaller share's sessions are among a larger one's.
		f := r.Float64()
		large, small := map[int64]bool{}, map[int64]bool{}
		kept, sessions := map[formats.Hash]int{}, map[formats.Hash]int{}
		for _, v := range whole {
			sessions[v.Exchange.SessionID.V]++
		}
		for _, v := range all(t, Thin(s, f)) {
			large[v.Exchange.ExchangeID] = true
			kept[v.Exchange.SessionID.V]++
		}
		for h, n := range kept {
			if h != (formats.Hash{}) && n != sessions[h] {
				t.Fatalf("seed %d: %d of %d requests of a session", seed, n, sessions[h])
			}
		}
		for _, v := range all(t, Thin(s, f/2)) {
			small[v.Exchange.ExchangeID] = true
			if !large[v.Exchange.ExchangeID] {
				t.Fatalf("seed %d: a smaller share keeps what a larger one drops", seed)
			}
		}
		// The servers' shares are the whole.
		n := 0
		for _, id := range []string{"a", "b", "c"} {
			n += len(all(t, Selection{Server: id}.Apply(s, 1)))
		}
		if n != len(whole) {
			t.Fatalf("seed %d: the servers' shares are %d of %d", seed, n, len(whole))
		}
		// Whatever is composed, times are in order and nothing is lost or made up.
		sel := Selection{Thin: f, From: time.Duration(r.IntN(5)) * time.Second, Loops: 1 + r.IntN(3), Spread: time.Duration(r.IntN(2)) * 500 * ms, Seed: int64(seed)}
		if r.IntN(2) == 0 {
			sel.To = sel.From + time.Duration(1+r.IntN(5))*time.Second
		}
		if sel.From > 0 {
			sel.Preroll = time.Duration(r.IntN(2)) * time.Second
		}
		got := all(t, sel.Apply(s, a))
		last := time.Duration(0)
		warm := 0
		for i, v := range got {
			if v.At < last {
				t.Fatalf("seed %d: %+v: arrival %d goes back from %v to %v", seed, sel, i, last, v.At)
			}
			if v.Warmup {
				if warm != i || v.Loop != 0 {
					t.Fatalf("seed %d: warm-up in the middle", seed)
				}
				warm++
			}
			last = v.At
		}
		want, before := 0, 0
		for _, v := range whole {
			if !large[v.Exchange.ExchangeID] {
				continue
			}
			if v.At >= sel.From && (sel.To == 0 || v.At < sel.To) {
				want++
			} else if v.At < sel.From && v.At >= sel.From-sel.Preroll {
				before++
			}
		}
		if want > 0 && len(got) != want*sel.Loops+before {
			t.Fatalf("seed %d: %+v: %d arrivals, want %d × %d + %d", seed, sel, len(got), want, sel.Loops, before)
		}
	}
}

func TestThinShare(t *testing.T) {
	n := len(all(t, Thin(every(ms, 20_000), 0.1)))
	if n < 1800 || n > 2200 {
		t.Errorf("a tenth of 20,000 is %d", n)
	}
	if len(all(t, Thin(every(ms, 100), 1))) != 100 {
		t.Error("all is not all")
	}
}

func TestWindowAndPreroll(t *testing.T) {
	s := every(time.Second, 10)
	got := all(t, Window(s, 4*time.Second, 7*time.Second, 2*time.Second))
	var at []time.Duration
	warm := 0
	for _, a := range got {
		at = append(at, a.At)
		if a.Warmup {
			warm++
		}
	}
	if !slices.Equal(at, []time.Duration{0, time.Second, 2 * time.Second, 3 * time.Second, 4 * time.Second}) || warm != 2 || got[0].Exchange.ExchangeID != 3 {
		t.Errorf("at %v, %d warm-up, from %d", at, warm, got[0].Exchange.ExchangeID)
	}
	// The duration is that of what is measured; the preroll comes before it, both in the replay's time.
	if n := len(all(t, Selection{From: 4 * time.Second, Preroll: 2 * time.Second, Duration: 1500 * ms}.Apply(s, 2))); n != 2+3 {
		t.Errorf("%d arrivals, want 2 of warm-up and 3", n)
	}
}

func TestLoop(t *testing.T) {
	s := at(0, 10*ms, 30*ms)
	got := all(t, Loop(s, 3))
	want := []time.Duration{0, 10 * ms, 30 * ms, 45 * ms, 55 * ms, 75 * ms, 90 * ms, 100 * ms, 120 * ms} // a mean gap of 15 ms between passes
	for i, a := range got {
		if a.At != want[i] || a.Loop != int32(i/3) {
			t.Errorf("arrival %d: %v in pass %d", i, a.At, a.Loop)
		}
	}
	if len(got) != 9 || len(all(t, MaxRequests(Loop(s, 0), 1000))) != 1000 {
		t.Errorf("%d arrivals in three passes", len(got))
	}
	if len(all(t, Loop(at(), 0))) != 0 || len(all(t, MaxRequests(Loop(at(0), 0), 5))) != 5 {
		t.Error("loops of nothing and of one")
	}
}

// A real clock's ticks come a little early and late: each is spread up to the next and no further.
func TestSpreadOfUnevenTicks(t *testing.T) {
	var ticks []time.Duration
	starts := []time.Duration{0, 2997 * ms, 5994 * ms, 8997 * ms, 15_000 * ms}
	for _, s := range starts {
		for range 10 {
			ticks = append(ticks, s)
		}
	}
	got := all(t, Spread(at(ticks...), 3*time.Second, 5))
	for i, a := range got {
		k := i / 10
		end := starts[k] + 3*time.Second
		if k+1 < len(starts) {
			end = min(end, starts[k+1])
		}
		if a.At < starts[k] || a.At >= end || i > 0 && a.At < got[i-1].At {
			t.Errorf("arrival %d of the tick at %v is at %v", i%10, starts[k], a.At)
		}
	}
}

func TestSpread(t *testing.T) {
	var ticks []time.Duration
	for i := range 300 {
		ticks = append(ticks, time.Duration(i/10)*3*time.Second)
	}
	got := all(t, Spread(at(ticks...), 3*time.Second, 5))
	sum := 0.0
	for i, a := range got {
		if a.At < ticks[i] || a.At >= ticks[i]+3*time.Second || a.Exchange.ExchangeID != int64(i+1) {
			t.Fatalf("arrival %d moved from %v to %v", i, ticks[i], a.At)
		}
		sum += (a.At - ticks[i]).Seconds()
	}
	if mean := sum / 300; math.Abs(mean-1.5) > 0.15 { // three standard errors
		t.Errorf("the mean within a tick is %v s", mean)
	}
	if !slices.EqualFunc(got, all(t, Spread(at(ticks...), 3*time.Second, 5)), func(a, b Arrival) bool { return a.At == b.At }) {
		t.Error("the same seed spreads otherwise")
	}
}

func TestRate(t *testing.T) {
	s := random(1, 500)
	speed, err := SpeedFor(s, 40)
	if err != nil {
		t.Fatal(err)
	}
	got := all(t, Speed(s, speed))
	if rate := 500 / (got[499].At - got[0].At).Seconds(); math.Abs(rate-40) > 1e-6 {
		t.Errorf("the rate came to %v", rate)
	}
	if _, err := SpeedFor(at(0, 0), 1); err == nil {
		t.Error("a burst has a rate")
	}
	for _, rate := range []float64{math.MaxFloat64, math.SmallestNonzeroFloat64} {
		if speed, err := SpeedFor(at(0, 500*time.Second), rate); err == nil && (speed == 0 || math.IsInf(speed, 0)) {
			t.Errorf("%v a second is a speed of %v", rate, speed)
		}
	}
}

func TestSelectionValidate(t *testing.T) {
	for _, s := range []Selection{{Thin: 2}, {Speed: -1}, {Rate: math.NaN()}, {Speed: 2, Rate: 3}, {From: 5, To: 4}, {Preroll: 1}, {Loops: -1}, {Tenant: "x"}, {MaxRequests: -1}, {Duration: -1}} {
		if s.Validate() == nil {
			t.Errorf("%+v is accepted", s)
		}
	}
	if err := (Selection{}).Validate(); err != nil {
		t.Error(err)
	}
}
