package analyzer

import (
	"cmp"
	"math"
	"slices"

	"github.com/shadowtape/shadowtape/analyzer/occupancy"
	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/figure"
	"github.com/shadowtape/shadowtape/internal/kv"
	"github.com/shadowtape/shadowtape/internal/stats"
)

// mostBlocks is how many references to prompt blocks are held, 8 bytes each; of more a sample is kept.
const mostBlocks = 1 << 24

// reuse holds the prompt blocks of exchanges until they can be put in order of arrival. Where they are very many it keeps those whose hash lies
// below a threshold that halves as need be: each block is in the sample always or never, so its reuse is seen whole, and the distance
// between two uses is the sample's over the share of blocks in it (Waldspurger et al., SHARDS, 2015).
type reuse struct {
	uses   []blockUse
	blocks []uint64
	halved uint    // the share is 2^-halved
	seen   float64 // blocks, sampled or not
}

// blockUse is a request and where its blocks end.
type blockUse struct {
	at       int64
	from, to int
}

// sampled spreads hashes that need not be even: imported ones count from 0.
func (u *reuse) sampled(b uint64) bool { return stats.Scatter(b) <= math.MaxUint64>>u.halved }

func (u *reuse) add(x *formats.Exchange) {
	if len(x.PrefixBlocks) == 0 {
		return
	}
	u.seen += float64(len(x.PrefixBlocks))
	from := len(u.blocks)
	for _, b := range x.PrefixBlocks {
		if u.sampled(uint64(b)) {
			u.blocks = append(u.blocks, uint64(b))
		}
	}
	if len(u.blocks) > from {
		u.uses = append(u.uses, blockUse{x.ArrivalUnixNS, from, len(u.blocks)})
	}
	u.bound()
}

// bound halves the sample while it is too large.
func (u *reuse) bound() {
	for len(u.blocks) > mostBlocks {
		u.thin(u.halved + 1)
	}
}

// thin keeps the blocks of a smaller sample.
func (u *reuse) thin(halved uint) {
	if halved == u.halved {
		return
	}
	u.halved = halved
	n, kept := 0, u.uses[:0]
	for _, use := range u.uses {
		from := n
		for _, b := range u.blocks[use.from:use.to] {
			if u.sampled(b) {
				u.blocks[n] = b
				n++
			}
		}
		if n > from {
			kept = append(kept, blockUse{use.at, from, n})
		}
	}
	u.uses, u.blocks = kept, u.blocks[:n]
}

// merge takes what o holds; o is spent.
func (u *reuse) merge(o *reuse) {
	halved := max(u.halved, o.halved)
	u.thin(halved)
	o.thin(halved)
	u.seen += o.seen
	n := len(u.blocks)
	for _, use := range o.uses {
		u.uses = append(u.uses, blockUse{use.at, use.from + n, use.to + n})
	}
	u.blocks = append(u.blocks, o.blocks...)
	u.bound()
}

// fill says what LRU caches of the capacity, its halves and its doubles would have hit, in order of arrival.
func (u *reuse) fill(p *Pages, h formats.Header, s Sizes) {
	if len(u.uses) == 0 {
		return
	}
	slices.SortStableFunc(u.uses, func(a, b blockUse) int { return cmp.Compare(a.at, b.at) })
	var c kv.Curve
	for _, use := range u.uses {
		c.Use(u.blocks[use.from:use.to])
	}
	per := float64(h.PrefixBlockSize) / float64(s.BlockSize) // pages of a prefix block
	if per <= 0 || h.PrefixBlockUnit == "bytes" {
		per = 1
	}
	share := 1 / float64(uint64(1)<<u.halved)
	// Misses are counted, not hits: whether the few blocks that everyone shares are in the sample changes the hits, hardly the misses.
	misses := float64(len(u.blocks)) / (u.seen * share)
	rate := func(pages int64) float64 { return 1 - (1-c.HitRate(int(max(float64(pages)/per*share, 1))))*misses }
	p.CurveSample = share
	if s.Pages > 0 {
		p.LRUHitRate = figure.Known(rate(s.Pages))
	}
	all := 1 - (1-c.HitRate(0))*misses
	for n := int64(1024); ; n *= 2 {
		p.Curve = append(p.Curve, occupancy.CachePoint{Pages: n, HitRate: rate(n)})
		if rate(n) >= all {
			break
		}
	}
}
