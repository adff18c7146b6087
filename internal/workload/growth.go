package workload

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"

	"github.com/shadowtape/shadowtape/formats"
)

// Growth is how a prompt comes out of the one that it continues, a step: it keeps a beginning of that prompt, all of it or a part, and
// adds tokens of its own. Where it keeps little and adds little the prompt shrinks: a context that was cut or summarized.
type Growth struct {
	Next   []float64 `json:"continued_share"` // of requests: those that another continues; by the parts of Threads, by input length
	Drop   []float64 `json:"drop_share"`      // of steps: those that drop some of the earlier prompt; by equal parts of the steps, by its length
	Bounds []float64 `json:"drop_bounds"`     // lengths of earlier prompts between these parts, one fewer, tokens
	Added  []float64 `json:"added_tokens"`    // where nothing is dropped, ascending
	// Where something is: means of equal parts of the shares of the earlier prompt that are kept, ascending, and of each part the tokens
	// that are added after them, ascending.
	Kept   []float64   `json:"dropped_kept_share"`
	After  [][]float64 `json:"dropped_added_tokens"`
	Shrink float64     `json:"shrink_share"` // of steps: those that end shorter than they began; for the reader, it follows from the others
}

// mostTokens bounds what a step adds, as the tables of lengths are bounded.
const mostTokens = 1e12

func (g *Growth) validate(parts int) error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("growth: "+format, args...)) }
	if len(g.Drop) == 0 || len(g.Bounds) != len(g.Drop)-1 || !sort.Float64sAreSorted(g.Bounds) {
		bad("%d drop shares with %d bounds that ascend", len(g.Drop), len(g.Bounds))
	}
	for _, c := range g.Next {
		if !(c >= 0 && c <= 1) {
			bad("continued_share: %v is no share", c)
		}
	}
	if len(g.Next) != parts {
		bad("continued_share: %d values for %d parts", len(g.Next), parts)
	}
	for i, d := range g.Drop {
		if !(d >= 0 && d <= 1) || d > 0 && len(g.Kept) == 0 || d < 1 && len(g.Added) == 0 {
			bad("part %d: share %v drops, with %d values of what is kept and %d of what is added to all", i, d, len(g.Kept), len(g.Added))
		}
	}
	if len(g.Kept) != len(g.After) {
		bad("%d shares that are kept, with %d tables of what is added", len(g.Kept), len(g.After))
	}
	table := func(name string, values []float64, most float64) {
		if n := len(values); !sort.Float64sAreSorted(values) || n > 0 && !(values[0] >= 0 && values[n-1] <= most) {
			bad("%s: must ascend from 0 to at most %v", name, most)
		}
	}
	table("dropped_kept_share", g.Kept, 1)
	table("added_tokens", g.Added, mostTokens)
	for i, a := range g.After {
		if table("dropped_added_tokens", a, mostTokens); len(a) == 0 {
			bad("dropped_added_tokens: part %d is empty", i)
		}
	}
	return errors.Join(errs...)
}

// step is how a prompt of so many tokens goes on, by three draws in [0, 1): tokens kept of it, and tokens that the next prompt has.
func (g *Growth) step(tokens float64, u [3]float64) (kept, next float64) {
	if u[0] >= g.Drop[sort.SearchFloat64s(g.Bounds, tokens)] {
		return tokens, tokens + along(g.Added, u[1])
	}
	part := int(u[1] * float64(len(g.Kept)))
	kept = float64(tokens * g.Kept[part])
	return kept, kept + along(g.After[part], u[2])
}

// pool is what is left of a window's requests by the parts of its input lengths: those that begin threads and those that continue one.
type pool struct {
	begin, follow        []int
	beginners, followers int
	inputs               []float64
}

// refill makes a pool of n requests, spread over the parts of the table as evenly as they go.
func (p *pool) refill(n int, inputs []float64, continues func(input float64) float64, s *source) {
	parts := len(inputs)
	p.inputs = inputs
	p.begin, p.follow = append(p.begin[:0], make([]int, parts)...), append(p.follow[:0], make([]int, parts)...)
	p.beginners, p.followers = 0, 0
	for i := range n {
		part := min(int((float64(i)+s.uniform())/float64(n)*float64(parts)), parts-1)
		if s.uniform() < continues(inputs[part]) {
			p.follow[part]++
			p.followers++
		} else {
			p.begin[part]++
			p.beginners++
		}
	}
}

// any takes one of those that begin a thread or, where none is left, of the others, and returns its part.
func (p *pool) any(s *source) int {
	left, total := p.begin, &p.beginners
	if *total == 0 {
		left, total = p.follow, &p.followers
	}
	k := s.below(*total)
	for i := range left {
		if k -= left[i]; k < 0 {
			left[i]--
			*total--
			return i
		}
	}
	return -1 // not reached: the parts add up
}

// nearest is the part of those that continue a thread whose length comes nearest to a wanted one, and the length it can give. A length
// that has no room for what is to be kept counts as farther than any other.
func (p *pool) nearest(want, kept float64) (part int, length, miss float64) {
	part, miss = -1, math.Inf(1)
	for i, n := range p.follow {
		if n == 0 {
			continue
		}
		l := p.within(i, want)
		m := math.Abs(l-want) / max(want, 1)
		if l < kept {
			m += noRoom
		}
		if m < miss {
			part, length, miss = i, l, m
		}
	}
	return part, length, miss
}

// noRoom is more than relative differences of lengths come to.
const noRoom = 1e6

// within is the length nearest to a wanted one that a part of the table stands for: halfway to its neighbors.
func (p *pool) within(i int, want float64) float64 {
	low, high := 0.0, 0.0
	if i > 0 {
		low = (p.inputs[i] - p.inputs[i-1]) / 2
	}
	if i+1 < len(p.inputs) {
		high = (p.inputs[i+1] - p.inputs[i]) / 2
	}
	switch {
	case i == 0:
		low = min(high, p.inputs[i])
	case i+1 == len(p.inputs):
		high = low
	}
	return min(max(want, p.inputs[i]-low), p.inputs[i]+high)
}

const (
	stepTries = 8    // earlier requests looked at for one that the window's lengths can continue
	stepFit   = 0.05 // relative difference of a length from the wanted one that is good enough
)

// plan is what a request is to be.
type plan struct {
	part   int     // of the window's inputs
	input  float64 // tokens; 0: what the part says
	from   *past   // nil: it begins a thread
	shared float64 // tokens
}

// plan decides whether the request at a time begins a thread or continues one, and which of the window's lengths it takes: where it
// continues, the one that the step from the earlier prompt wants. So each window has its lengths and each part of them its share of
// continuations, and the prompts of a thread follow one another as the model's do.
func (w *threader) plan(at int64, tenant formats.Null[formats.Hash], p *pool) plan {
	if len(w.ring) == 0 || w.src.below(p.beginners+p.followers) < p.beginners {
		return plan{part: p.any(&w.src)}
	}
	target := at - int64(float64(between(w.t.Lag, &w.src)*1e9))
	taken := w.branches()
	// One step, tried on several: drawn anew for each, those that fit easily would come too often.
	step := [3]float64{w.src.uniform(), w.src.uniform(), w.src.uniform()}
	most := slices.Max(w.t.Growth.Next)
	var best plan
	for _, strict := range [2]bool{true, false} {
		miss, tries := math.Inf(1), 0
		w.nearby(target, func(c *past) bool {
			if c.taken != taken && (strict || w.t.Fanout <= 1) || w.t.Sessions && c.tenant != tenant {
				return true
			}
			if next := w.t.Growth.Next[sort.SearchFloat64s(w.t.Bounds, float64(c.tokens))]; strict && float64(w.src.uniform()*most) >= next {
				return true
			}
			tries++
			kept, next := w.t.Growth.step(float64(c.tokens), step)
			if part, length, m := p.nearest(next, kept); m < miss {
				miss, best = m, plan{part, length, c, min(kept, length)}
			}
			return miss > stepFit && tries < stepTries
		})
		if best.from != nil {
			best.from.taken = true
			p.follow[best.part]--
			p.followers--
			return best
		}
	}
	return plan{part: p.any(&w.src)}
}

// follow makes x what was planned: it shares whole blocks with the one that it continues.
func (w *threader) follow(x *formats.Exchange, p plan) {
	shared := 0
	if p.from != nil && w.t.BlockSize > 0 {
		size := float64(w.t.BlockSize)
		shared = min(int(math.Round(p.shared/size)), int(float64(p.from.tokens)/size), w.blocks(x.InputTokens.V))
	}
	w.join(x, p.from, shared)
}
