package virtual

import (
	"cmp"
	"math"
	"slices"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/engine"
)

// A step's time is linear in what the step does, and a gap between two tokens of a request is one step. regress therefore explains gaps
// by what a measured run says went on in them: how many requests were decoding, how many tokens they had behind them, and how many
// prompt tokens were computed (those of the requests whose first token ended the gap, and of long prompts on their way to theirs). Where
// a request met an idle server its TTFT is one more observation. It is what can be known without the server's own account of its steps.

// observation is a time in seconds and what was done in it: steps, prompt tokens, sequences, context tokens.
type observation struct {
	y float64
	x [4]float64
}

// maxObservations bounds the regression; gaps beyond it are left out evenly.
const maxObservations = 200_000

// change is an event of the sweep over a replica's time.
type change struct {
	at       int64
	decoding float64 // requests that begin or end to decode
	level    float64 // their context at time 0, extrapolated
	slope    float64 // its growth per nanosecond
	prefill  float64 // prompt tokens of the step that ends here
}

// regress returns the coefficients, none negative, that explain gaps with the least relative absolute error.
func regress(rows []*formats.Exchange, measured []timing, budget int) engine.Coefficients {
	servers := map[string][]int{}
	for i, x := range rows {
		if measured[i].ttft > 0 {
			servers[x.ServerID] = append(servers[x.ServerID], i)
		}
	}
	var all []observation
	names := make([]string, 0, len(servers))
	for name := range servers {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		all = observe(all, rows, servers[name], budget)
	}
	if stride := len(all)/maxObservations + 1; stride > 1 {
		kept := all[:0]
		for i := 0; i < len(all); i += stride {
			kept = append(kept, all[i])
		}
		all = kept
	}
	return leastAbsolute(all)
}

// observe appends what one server's requests say.
func observe(all []observation, rows []*formats.Exchange, which []int, budget int) []observation {
	var changes []change
	type gap struct{ from, to int64 }
	var gaps []gap
	idleBefore := int64(math.MinInt64) // the latest end among the requests so far
	zero := rows[which[0]].ArrivalUnixNS
	for _, i := range which {
		x := rows[i]
		at := x.ArrivalUnixNS - zero
		first, last := at+x.FirstTokenNS.V, at+x.LastTokenNS.Or(x.FirstTokenNS.V)
		computed := float64(x.InputTokens.Or(0) - x.CachedTokens.Or(0))
		if at > idleBefore && computed > 0 && computed <= float64(budget) {
			all = append(all, observation{float64(x.FirstTokenNS.V) / 1e9, [4]float64{1, computed, 0, float64(x.CachedTokens.Or(0))}})
		}
		idleBefore = max(idleBefore, last)
		changes = append(changes, change{at: first, prefill: computed})
		if n := float64(x.OutputTokens.Or(0) - 1); n >= 1 && last > first {
			slope := n / float64(last-first)
			level := float64(x.InputTokens.Or(0)) - slope*float64(first)
			changes = append(changes, change{at: first, decoding: 1, level: level, slope: slope}, change{at: last, decoding: -1, level: -level, slope: -slope})
		}
		if len(x.EventTokens) == len(x.EventGapUS) {
			t := first
			for k, us := range x.EventGapUS {
				from := t
				t += int64(us) * 1000
				if k > 0 && us > 0 && x.EventTokens[k] == 1 && (len(x.EventFlags) == 0 || x.EventFlags[k]&formats.FlagCoalesced == 0) {
					gaps = append(gaps, gap{from, t})
				}
			}
		}
	}
	slices.SortFunc(changes, func(a, b change) int { return cmp.Compare(a.at, b.at) })
	slices.SortFunc(gaps, func(a, b gap) int { return cmp.Compare(a.from, b.from) })
	prefilled := make([]float64, len(changes)+1) // prompt tokens up to each change
	for i, c := range changes {
		prefilled[i+1] = prefilled[i] + c.prefill
	}
	upTo := func(t int64) float64 { // prompt tokens whose request had its first token by t
		i, _ := slices.BinarySearchFunc(changes, t+1, func(c change, t int64) int { return cmp.Compare(c.at, t) })
		return prefilled[i]
	}
	var now change
	next := 0
	for _, g := range gaps {
		middle := g.from + (g.to-g.from)/2
		for next < len(changes) && changes[next].at <= middle {
			c := changes[next]
			now.decoding, now.level, now.slope = now.decoding+c.decoding, now.level+c.level, now.slope+c.slope
			next++
		}
		// Tokens of one step reach a client one after the other: what ended within a quarter of the gap around its ends counts to it.
		slack := (g.to - g.from) / 4
		prefill := upTo(g.to+slack) - upTo(g.from+slack)
		all = append(all, observation{float64(g.to-g.from) / 1e9, [4]float64{1, min(prefill, float64(budget)), now.decoding, now.level + now.slope*float64(g.from)}})
	}
	return all
}

// leastAbsolute minimizes the sum of |y - x c| / y over c >= 0 by iteratively reweighted least squares.
func leastAbsolute(all []observation) engine.Coefficients {
	c := [4]float64{}
	weights := make([]float64, len(all))
	for i := range weights {
		weights[i] = 1
	}
	for range 30 {
		var normal [4][4]float64
		var right [4]float64
		for i, o := range all {
			w := weights[i] / (o.y * o.y)
			for a := range o.x {
				right[a] += w * o.x[a] * o.y
				for b := range o.x {
					normal[a][b] += w * o.x[a] * o.x[b]
				}
			}
		}
		c = nonNegative(normal, right, c)
		for i, o := range all {
			y := 0.0
			for a := range o.x {
				y += o.x[a] * c[a]
			}
			weights[i] = 1 / max(math.Abs(o.y-y)/o.y, 1e-4)
		}
	}
	return engine.Coefficients{Fixed: c[0], PerPrefill: c[1], PerDecode: c[2], PerContext: c[3]}
}

// nonNegative solves normal equations under c >= 0 by coordinate descent, which for four unknowns is as good as any method.
func nonNegative(normal [4][4]float64, right, c [4]float64) [4]float64 {
	for range 50_000 {
		moved := 0.0
		for a := range c {
			if normal[a][a] == 0 {
				continue
			}
			r := right[a]
			for b := range c {
				r -= normal[a][b] * c[b]
			}
			old := c[a]
			c[a] = max(old+r/normal[a][a], 0)
			moved = max(moved, math.Abs(c[a]-old)/(math.Abs(old)+1e-15))
		}
		if moved < 1e-8 {
			break
		}
	}
	return c
}
