package workload

import (
	"errors"
	"fmt"
	"math"
	"sort"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/stats"
)

// Threads say what requests share: the beginnings that many have in common, and the earlier requests that they continue. They are a
// fitted model's account of a prefix forest and of sessions; a request that continues another begins with its prompt's blocks.
type Threads struct {
	BlockSize int     `json:"block_size"` // tokens in a prefix block; 0: prefix blocks were unknown
	CeilRule  bool    `json:"ceil_rule,omitempty"`
	Sessions  bool    `json:"sessions,omitempty"` // requests that continue others belong to their session
	Roots     []Root  `json:"roots,omitempty"`
	Rest      float64 `json:"rest,omitempty"` // share of new threads that begin with no root
	// The following tables are by equal parts of the requests, by input length.
	Continue []float64   `json:"continue"`        // share of requests that continue another
	Bounds   []float64   `json:"bounds"`          // input lengths between the parts, one fewer
	Shared   [][]float64 `json:"shared"`          // of those: shared ÷ own blocks, ascending
	Lag      []float64   `json:"lag_s"`           // seconds since the request that is continued, ascending
	Fanout   float64     `json:"fanout"`          // continuing requests ÷ requests that are continued: 1 is a chain, more a tree
	Turns    []float64   `json:"turns,omitempty"` // turns of sessions, for the reader
	// Growth is how prompts follow one another. Without it, and where lengths are laws or the trace's own, they follow by Shared.
	Growth *Growth `json:"growth,omitempty"`
}

// Root is a beginning that many threads have in common.
type Root struct {
	Share  float64 `json:"share"` // of new threads
	Blocks int     `json:"blocks"`
}

func (t *Threads) validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("threads: "+format, args...)) }
	if t.BlockSize < 0 || len(t.Continue) == 0 || len(t.Bounds) != len(t.Continue)-1 || len(t.Shared) != len(t.Continue) {
		bad("block size %d, %d parts with %d bounds and %d tables", t.BlockSize, len(t.Continue), len(t.Bounds), len(t.Shared))
	}
	share := func(v float64) bool { return v >= 0 && v <= 1 }
	for i, c := range t.Continue {
		if !share(c) || i < len(t.Shared) && c > 0 && (len(t.Shared[i]) == 0 || len(t.Lag) == 0) {
			bad("part %d: %v continue, with %d shared and %d lags", i, c, len(t.Shared[i]), len(t.Lag))
		}
	}
	for _, s := range t.Shared {
		if !sort.Float64sAreSorted(s) || len(s) > 0 && !(share(s[0]) && share(s[len(s)-1])) {
			bad("shared %v are no ascending shares", s)
		}
	}
	if !sort.Float64sAreSorted(t.Lag) || len(t.Lag) > 0 && !(t.Lag[0] >= 0 && t.Lag[len(t.Lag)-1] < 1e9) || !sort.Float64sAreSorted(t.Bounds) {
		bad("lags or bounds do not ascend")
	}
	for _, r := range t.Roots {
		if !share(r.Share) || r.Blocks < 0 || r.Blocks > 1<<20 {
			bad("root %+v", r)
		}
	}
	if t.Growth != nil {
		errs = append(errs, t.Growth.validate(len(t.Continue)))
	}
	return errors.Join(errs...)
}

// chain is a prompt's blocks: those before from are its parent's, the others are its own.
type chain struct {
	parent *chain
	from   int
	blocks int
	id     uint64
}

// block is the hash of block i.
func (c *chain) block(i int) int64 {
	for c.parent != nil && i < c.from {
		c = c.parent
	}
	return int64(stats.Mix(c.id + uint64(i)))
}

// past is a request that later ones may continue.
type past struct {
	at      int64 // nanoseconds
	tokens  int64 // of its prompt
	tenant  formats.Null[formats.Hash]
	chain   *chain
	session formats.Null[formats.Hash]
	turn    int32
	taken   bool
}

// memory bounds how many requests can be continued; older ones cannot.
const memory = 1 << 16

// threader gives requests what they share.
type threader struct {
	t     *Threads
	src   source
	base  uint64 // of identities
	roots []*chain
	ring  []past // the last requests, oldest at first
	first int
	next  uint64
}

func newThreader(t *Threads, src source) *threader {
	w := &threader{t: t, src: src, base: src.state}
	for i, r := range t.Roots {
		w.roots = append(w.roots, &chain{blocks: r.Blocks, id: stats.Mix(src.state + uint64(i))})
	}
	return w
}

// at returns the i-th of the remembered requests, the oldest being 0.
func (w *threader) at(i int) *past { return &w.ring[(w.first+i)%len(w.ring)] }

// continues is the share of requests of an input length that continue another.
func (t *Threads) continues(input float64) float64 {
	return t.Continue[sort.SearchFloat64s(t.Bounds, input)]
}

// weave decides whether x begins a thread or continues one, by its length.
func (w *threader) weave(x *formats.Exchange) {
	parent, shared := w.parent(x, sort.SearchFloat64s(w.t.Bounds, float64(x.InputTokens.V)), w.blocks(x.InputTokens.V))
	w.join(x, parent, shared)
}

// blocks is how many blocks a prompt of so many tokens has; 0 where they are unknown.
func (w *threader) blocks(tokens int64) int {
	switch size := int64(w.t.BlockSize); {
	case size == 0:
		return 0
	case w.t.CeilRule:
		return int((tokens + size - 1) / size)
	default:
		return int(tokens / size)
	}
}

// join makes x continue an earlier request whose first blocks it shares, or, where that is nil, begin a thread.
func (w *threader) join(x *formats.Exchange, parent *past, shared int) {
	blocks := w.blocks(x.InputTokens.V)
	if w.t.BlockSize > 0 {
		tail := x.InputTokens.V - int64(blocks)*int64(w.t.BlockSize)
		if w.t.CeilRule {
			tail += int64(w.t.BlockSize)
		}
		x.PrefixTailTokens = formats.Of(tail)
	}
	c := &chain{blocks: blocks, id: w.identity()}
	p := past{at: x.ArrivalUnixNS, tokens: x.InputTokens.V, tenant: x.TenantID, chain: c, turn: 1}
	if parent != nil {
		c.parent, c.from = parent.chain, shared
		if c.from == 0 {
			c.parent = nil
		}
		p.session, p.turn = parent.session, parent.turn+1
	} else {
		if r := w.root(); r != nil && blocks > 0 {
			c.parent, c.from = r, min(r.blocks, blocks)
		}
		p.session = formats.Of(hashOf(w.identity()))
	}
	if w.t.Sessions {
		x.SessionID, x.Turn = p.session, formats.Of(p.turn)
		x.Drawn.V |= formats.DrawnSession
	}
	if w.t.BlockSize > 0 {
		x.PrefixBlocks = make([]int64, blocks)
		for i := range x.PrefixBlocks {
			x.PrefixBlocks[i] = c.block(i)
		}
	}
	if len(w.ring) < memory {
		w.ring = append(w.ring, p)
		return
	}
	w.ring[w.first] = p
	w.first = (w.first + 1) % len(w.ring)
}

func (w *threader) identity() uint64 {
	w.next++
	return stats.Mix(w.base ^ w.next<<20)
}

func (w *threader) root() *chain {
	u := w.src.uniform()
	for i, r := range w.t.Roots {
		if u -= r.Share; u < 0 {
			return w.roots[i]
		}
	}
	return nil
}

// parent chooses the request that x continues and how many blocks they share; nil where x begins a thread. It is the one nearest to a lag
// drawn from the table among those long enough that nobody has continued, or, as often as the source's fanout says, any of them.
func (w *threader) parent(x *formats.Exchange, part, blocks int) (*past, int) {
	if w.src.uniform() >= w.t.Continue[part] || len(w.ring) == 0 {
		return nil, 0
	}
	shares := w.t.Shared[part]
	need := min(int(math.Round(float64(shares[w.src.below(len(shares))]*float64(blocks)))), blocks)
	lag := between(w.t.Lag, &w.src)
	taken := w.branches()
	var chosen, fallback *past
	w.nearby(x.ArrivalUnixNS-int64(lag*1e9), func(p *past) bool {
		if p.chain.blocks < need || w.t.Sessions && p.tenant != x.TenantID {
			return true
		}
		if p.taken == taken {
			chosen = p
			return false
		}
		if fallback == nil {
			fallback = p
		}
		return true
	})
	if chosen == nil {
		chosen = fallback
	}
	if chosen != nil {
		chosen.taken = true
	}
	return chosen, need
}

// branches draws whether a request continues one that was continued before.
func (w *threader) branches() bool { return w.t.Fanout > 1 && w.src.uniform() < 1-1/w.t.Fanout }

// nearby calls f with the remembered requests nearest to a time, until it returns false.
func (w *threader) nearby(target int64, f func(*past) bool) {
	n := len(w.ring)
	at := sort.Search(n, func(i int) bool { return w.at(i).at >= target })
	for d := range 512 {
		for _, i := range [2]int{at + d, at - 1 - d} {
			if i >= 0 && i < n && !f(w.at(i)) {
				return
			}
		}
	}
}

// between draws from a table of ascending values, linearly between them.
func between(table []float64, s *source) float64 {
	if len(table) == 1 {
		return table[0]
	}
	return along(table, s.uniform())
}

// along is the value of a table of ascending values at u in [0, 1), linearly between them.
func along(table []float64, u float64) float64 {
	if len(table) == 1 {
		return table[0]
	}
	u *= float64(len(table) - 1)
	i := int(u)
	return table[i] + float64((table[i+1]-table[i])*float64(u-float64(i)))
}
