package kv

import "slices"

// Curve measures the hit rate of an LRU cache of every capacity at once, by stack distances (Mattson et al. 1970): a block is found in a
// cache of n blocks if fewer than n others were used since its last use. After a request all its blocks count as used, the last first, so
// that the root is the most recent; hits are therefore always a beginning of the request. The zero value is ready. Not safe for concurrent use.
type Curve struct {
	last   map[uint64]int // the slot of a block's last use
	tree   []int          // Fenwick tree over slots: 1 where a block's last use is
	slots  int            // used so far
	counts []int64        // hits by distance, the first being 1
	refs   int64
}

// Use looks the blocks of a request up and uses them. A block must not occur twice in it.
func (c *Curve) Use(blocks []uint64) {
	if c.last == nil {
		c.last = map[uint64]int{}
	}
	if c.slots+len(blocks) > len(c.tree)-1 {
		c.rebuild(len(blocks))
	}
	c.refs += int64(len(blocks))
	for _, b := range blocks {
		s, ok := c.last[b]
		if !ok {
			break
		}
		distance := len(c.last) - c.sum(s-1) // blocks used at this slot or later
		for len(c.counts) < distance {
			c.counts = append(c.counts, make([]int64, max(1024, len(c.counts)))...)
		}
		c.counts[distance-1]++
	}
	for _, b := range slices.Backward(blocks) {
		if s, ok := c.last[b]; ok {
			c.add(s, -1)
		}
		c.slots++
		c.last[b] = c.slots
		c.add(c.slots, 1)
	}
}

// rebuild makes room for n more uses by closing the gaps that blocks left when they were used again.
func (c *Curve) rebuild(n int) {
	type use struct {
		block uint64
		slot  int
	}
	uses := make([]use, 0, len(c.last))
	for b, s := range c.last {
		uses = append(uses, use{b, s})
	}
	slices.SortFunc(uses, func(a, b use) int { return a.slot - b.slot })
	c.tree = make([]int, max(1024, 2*(len(uses)+n))+1)
	c.slots = len(uses)
	for i, u := range uses {
		c.last[u.block] = i + 1
		c.add(i+1, 1)
	}
}

func (c *Curve) add(i, v int) {
	for ; i < len(c.tree); i += i & -i {
		c.tree[i] += v
	}
}

// sum is the number of blocks whose last use is at slot i or before.
func (c *Curve) sum(i int) (n int) {
	for ; i > 0; i -= i & -i {
		n += c.tree[i]
	}
	return n
}

// Blocks is the number of distinct blocks so far.
func (c *Curve) Blocks() int { return len(c.last) }

// HitRate is the share of blocks that a cache of the given capacity would have found; capacity 0 or less stands for an endless cache. It
// is 0 where nothing was used.
func (c *Curve) HitRate(capacity int) float64 {
	if capacity <= 0 || capacity > len(c.counts) {
		capacity = len(c.counts)
	}
	hits := int64(0)
	for _, n := range c.counts[:capacity] {
		hits += n
	}
	if c.refs == 0 {
		return 0
	}
	return float64(hits) / float64(c.refs)
}
