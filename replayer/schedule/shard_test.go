package schedule

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/shadowtape/shadowtape/formats"
)

// agents yields n arrivals: sessions of several turns, requests without a session, sub-agents with callers.
func agents(n int, seed uint64) Arrivals {
	return func(yield func(Arrival, error) bool) {
		r := rand.New(rand.NewPCG(seed, 1))
		at := time.Duration(0)
		for i := range n {
			at += time.Duration(r.IntN(3)) * time.Millisecond
			x := &formats.Exchange{ExchangeID: int64(i + 1), Phase: formats.PhaseRecord, InputTokens: formats.Of(int64(7)), OutputTokens: formats.Of(int64(1)), EndNS: formats.Of(int64(time.Microsecond))}
			if k := r.IntN(10); k > 2 {
				x.SessionID = formats.Of(formats.Hash{1, byte(r.IntN(40))})
				if k == 9 && i > 0 {
					x.ParentID = formats.Of(int64(1 + r.IntN(i)))
				}
			}
			if !yield(Arrival{At: at, Exchange: x}, nil) {
				return
			}
		}
	}
}

// TestShardsAreTheWhole: for every way to select, the shards' arrivals together are the whole schedule's, each at its place and time, none
// twice, and no session is in two shards.
func TestShardsAreTheWhole(t *testing.T) {
	for name, sel := range map[string]Selection{
		"all":         {},
		"thin":        {Thin: 0.4},
		"window":      {From: 100 * time.Millisecond, To: 300 * time.Millisecond, Preroll: 50 * time.Millisecond},
		"loop, rate":  {Loops: 3, Rate: 5000},
		"spread":      {Spread: 5 * time.Millisecond, Seed: 4},
		"ends":        {Loops: -1, MaxRequests: 777, Speed: 2},
		"duration":    {Loops: -1, Duration: 900 * time.Millisecond},
		"think times": {ThinkTime: true, Thin: 0.7, Loops: 2},
		"everything":  {Thin: 0.8, From: 50 * time.Millisecond, To: 400 * time.Millisecond, Loops: 2, Spread: 3 * time.Millisecond, Speed: 3, MaxRequests: 500},
	} {
		t.Run(name, func(t *testing.T) {
			var whole []Arrival
			for a, err := range sel.Apply(agents(600, 2), sel.Speed) {
				if err != nil {
					t.Fatal(err)
				}
				whole = append(whole, a)
			}
			for _, n := range []int{1, 2, 4, 7} {
				seen := make([]int, len(whole))
				home := map[formats.Hash]int{}
				for i := 1; i <= n; i++ {
					s := sel
					s.Shard, s.Shards = i, n
					at := 0
					for a, err := range s.Apply(agents(600, 2), sel.Speed) {
						if err != nil {
							t.Fatal(err)
						}
						w := whole[at]
						if a.At != w.At || a.Loop != w.Loop || a.Warmup != w.Warmup || a.Exchange.ExchangeID != w.Exchange.ExchangeID {
							t.Fatalf("shard %d of %d, place %d: %+v, in the whole %+v", i, n, at, a, w)
						}
						if !a.Other {
							seen[at]++
							if x := a.Exchange; x.SessionID.Valid {
								if h, ok := home[x.SessionID.V]; ok && h != i {
									t.Fatalf("session %v is in shards %d and %d", x.SessionID.V, h, i)
								}
								home[x.SessionID.V] = i
							}
							if a.After != w.After && (a.After != 0 || !a.Exchange.ParentID.Valid) {
								t.Fatalf("place %d waits for %d, in the whole for %d", at, a.After, w.After)
							}
						}
						at++
					}
					if at != len(whole) {
						t.Fatalf("shard %d of %d goes through %d arrivals of %d", i, n, at, len(whole))
					}
				}
				for at, k := range seen {
					if k != 1 {
						t.Fatalf("of %d shards %d send arrival %d", n, k, at)
					}
				}
			}
		})
	}
}

// TestShardsWaitForTheirOwn: what an arrival of a shard waits for is the shard's own, earlier in it.
func TestShardsWaitForTheirOwn(t *testing.T) {
	waits := 0
	for i := 1; i <= 3; i++ {
		own := map[string]bool{}
		sel := Selection{ThinkTime: true, Loops: 2, Shard: i, Shards: 3}
		for a, err := range sel.Apply(agents(2000, 5), 1) {
			if err != nil {
				t.Fatal(err)
			}
			if a.Other {
				continue
			}
			if a.After != 0 {
				waits++
				if !own[fmt.Sprint(a.Loop, a.After)] {
					t.Fatalf("exchange %d of shard %d waits for %d, which is not its own", a.Exchange.ExchangeID, i, a.After)
				}
			}
			own[fmt.Sprint(a.Loop, a.Exchange.ExchangeID)] = true
		}
	}
	if waits == 0 {
		t.Error("nothing waits: the test tests nothing")
	}
}

// TestShardsAreEven: shards hold about the same, also of a trace that was thinned.
func TestShardsAreEven(t *testing.T) {
	const n = 4
	for _, thin := range []float64{0, 0.3} {
		var counts [n + 1]int
		all := 0
		for a, err := range (Selection{Thin: thin}).Apply(func(yield func(Arrival, error) bool) {
			for i := range 40_000 {
				if !yield(Arrival{Exchange: &formats.Exchange{ExchangeID: int64(i + 1)}}, nil) {
					return
				}
			}
		}, 1) {
			if err != nil {
				t.Fatal(err)
			}
			counts[ShardOf(a.Exchange, n)]++
			all++
		}
		for i, c := range counts[1:] {
			if share := float64(c) / float64(all); share < 0.23 || share > 0.27 { // six standard deviations of 12,000 draws
				t.Errorf("thinned to %v: shard %d holds %.3f", thin, i+1, share)
			}
		}
	}
}
