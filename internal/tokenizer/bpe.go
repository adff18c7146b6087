package tokenizer

import (
	"math"
	"unicode/utf8"
)

// bpe is a byte-pair encoding: a piece begins as single bytes (or characters), and the neighbors whose pair has the lowest rank are
// joined, the first of equals first, until no pair has a rank.
type bpe struct {
	byByte  bool             // symbols begin as bytes, else as characters
	bytes   [256]int32       // the token of each byte; −1: none. Where symbols are characters: what a character that is no token falls back to
	chars   map[rune]int32   // the token of each character
	whole   map[string]int32 // pieces that are a token as they are; nil: all are joined from their beginnings
	pairs   pairTable
	unknown int32 // −1: what is no token is left out
	fuse    bool  // unknown characters side by side are one token
	seams   *seams
}

// pair is what two neighbors become.
type pair struct{ rank, id uint32 }

// pairTable finds pairs of tokens: an open hash table, filled once.
type pairTable struct {
	keys  []uint64 // left and right token, plus 1; 0 is empty
	pairs []pair
	mask  uint64
}

func newPairTable(n int) pairTable {
	size := 8
	for size < n+n/2 {
		size *= 2
	}
	return pairTable{keys: make([]uint64, size), pairs: make([]pair, size), mask: uint64(size - 1)}
}

func pairKey(a, b int32) uint64 { return (uint64(uint32(a))<<32 | uint64(uint32(b))) + 1 }

func (t *pairTable) slot(key uint64) uint64 {
	i := (key * 0x9e3779b97f4a7c15) >> 20 & t.mask
	for t.keys[i] != 0 && t.keys[i] != key {
		i = (i + 1) & t.mask
	}
	return i
}

// put keeps the lowest rank of a pair.
func (t *pairTable) put(a, b int32, p pair) {
	i := t.slot(pairKey(a, b))
	if t.keys[i] == 0 || p.rank < t.pairs[i].rank {
		t.keys[i], t.pairs[i] = pairKey(a, b), p
	}
}

func (t *pairTable) get(a, b int32) (pair, bool) {
	i := t.slot(pairKey(a, b))
	return t.pairs[i], t.keys[i] != 0
}

const noRank = math.MaxUint32

// maxPiece is the longest piece that is joined in one: a longer one, which no prose has, is cut. It bounds the memory that text can claim.
const maxPiece = 1 << 17

// symbol is a token of a piece that is being joined.
type symbol struct {
	id         int32
	prev, next int32 // positions of the neighbors, −1: none
	dead       bool
}

// candidate is a pair that could be joined.
type candidate struct {
	rank uint32
	at   int32 // position of the left one
	id   uint32
}

// merger joins symbols; its memory is used again. Not safe for concurrent use.
type merger struct {
	ids     []int32
	ranks   []pair
	symbols []symbol
	heap    []candidate
}

// begin returns a piece's first symbols. The slice is the merger's.
func (m *merger) begin(b *bpe, piece []byte) []int32 {
	ids := m.ids[:0]
	if b.byByte {
		for _, c := range piece {
			if id := b.bytes[c]; id >= 0 {
				ids = append(ids, id)
			} else if b.unknown >= 0 {
				ids = append(ids, b.unknown)
			}
		}
		m.ids = ids
		return ids
	}
	open := false // the last symbol stands for unknown characters that more may join
	for i := 0; i < len(piece); {
		r, n := utf8.DecodeRune(piece[i:])
		part := piece[i : i+n]
		i += n
		if id, ok := b.chars[r]; ok && (r != utf8.RuneError || n > 1) {
			ids, open = append(ids, id), false
			continue
		}
		known := b.bytes[part[0]] >= 0
		for _, c := range part[1:] {
			known = known && b.bytes[c] >= 0
		}
		switch {
		case known:
			for _, c := range part {
				ids = append(ids, b.bytes[c])
			}
			open = false
		case b.unknown >= 0 && !(open && b.fuse):
			ids, open = append(ids, b.unknown), true
		}
	}
	m.ids = ids
	return ids
}

// join joins symbols until none can be joined any more, and returns what is left, in ids' memory.
func (m *merger) join(b *bpe, ids []int32) []int32 {
	if len(ids) <= fewSymbols {
		return m.joinFew(b, ids)
	}
	return m.joinMany(b, ids)
}

// fewSymbols is up to which length looking at all pairs each time is the quickest.
const fewSymbols = 48

func (m *merger) joinFew(b *bpe, ids []int32) []int32 {
	if len(ids) < 2 {
		return ids
	}
	m.ranks = m.ranks[:0]
	rank := func(i int) pair {
		if i+1 < len(ids) {
			if p, ok := b.pairs.get(ids[i], ids[i+1]); ok {
				return p
			}
		}
		return pair{rank: noRank}
	}
	for i := range ids {
		m.ranks = append(m.ranks, rank(i))
	}
	for {
		best := 0
		for i, p := range m.ranks {
			if p.rank < m.ranks[best].rank {
				best = i
			}
		}
		if m.ranks[best].rank == noRank {
			return ids
		}
		ids[best] = int32(m.ranks[best].id)
		ids = append(ids[:best+1], ids[best+2:]...)
		m.ranks = append(m.ranks[:best+1], m.ranks[best+2:]...)
		if m.ranks[best] = rank(best); best > 0 {
			m.ranks[best-1] = rank(best - 1)
		}
	}
}

// joinMany takes time in proportion to n·log n.
func (m *merger) joinMany(b *bpe, ids []int32) []int32 {
	s, h := m.symbols[:0], m.heap[:0]
	for i, id := range ids {
		s = append(s, symbol{id: id, prev: int32(i - 1), next: int32(i + 1)})
		if i+1 < len(ids) {
			if p, ok := b.pairs.get(id, ids[i+1]); ok {
				h = append(h, candidate{p.rank, int32(i), p.id})
			}
		}
	}
	s[len(s)-1].next = -1
	for i := len(h)/2 - 1; i >= 0; i-- {
		sink(h, i)
	}
	for len(h) > 0 {
		top := h[0]
		h[0] = h[len(h)-1]
		h = h[:len(h)-1]
		sink(h, 0)
		left := &s[top.at]
		if left.dead || left.next < 0 {
			continue
		}
		right := &s[left.next]
		if p, ok := b.pairs.get(left.id, right.id); !ok || p.id != top.id || p.rank != top.rank {
			continue // it was about neighbors that are gone
		}
		left.id = int32(top.id)
		right.dead = true
		if left.next = right.next; left.next >= 0 {
			s[left.next].prev = top.at
			if p, ok := b.pairs.get(left.id, s[left.next].id); ok {
				h = rise(h, candidate{p.rank, top.at, p.id})
			}
		}
		if left.prev >= 0 {
			if p, ok := b.pairs.get(s[left.prev].id, left.id); ok {
				h = rise(h, candidate{p.rank, left.prev, p.id})
			}
		}
	}
	m.symbols, m.heap = s, h
	ids = ids[:0]
	for i := int32(0); i >= 0; i = s[i].next {
		ids = append(ids, s[i].id)
	}
	return ids
}

func (c candidate) before(d candidate) bool {
	return c.rank < d.rank || c.rank == d.rank && c.at < d.at
}

func sink(h []candidate, i int) {
	for {
		k := 2*i + 1
		if k >= len(h) {
			return
		}
		if k+1 < len(h) && h[k+1].before(h[k]) {
			k++
		}
		if !h[k].before(h[i]) {
			return
		}
		h[i], h[k] = h[k], h[i]
		i = k
	}
}

func rise(h []candidate, c candidate) []candidate {
	h = append(h, c)
	for i := len(h) - 1; i > 0; {
		up := (i - 1) / 2
		if !h[i].before(h[up]) {
			break
		}
		h[i], h[up] = h[up], h[i]
		i = up
	}
	return h
}

// seams knows which neighboring characters stand side by side in no token: there a text can be cut without changing its tokens.
// Models without a pre-tokenizer join whole texts; seams give them back their words.
type seams struct {
	ascii [128][2]uint64
	other map[uint64]struct{} // two characters of which one is not ASCII
}

func newSeams() *seams { return &seams{other: map[uint64]struct{}{}} }

// token notes the neighbors in a token.
func (s *seams) token(t string) {
	prev := rune(-1)
	for _, r := range t {
		if prev >= 0 {
			if prev < 128 && r < 128 {
				s.ascii[prev][r>>6] |= 1 << (r & 63)
			} else {
				s.other[uint64(prev)<<32|uint64(r)] = struct{}{}
			}
		}
		prev = r
	}
}

func (s *seams) between(a, b rune) bool {
	if a < 128 && b < 128 {
		return s.ascii[a][b>>6]>>(b&63)&1 == 0
	}
	_, inside := s.other[uint64(a)<<32|uint64(b)]
	return !inside
}

// cut returns where the first part of text that no token reaches beyond ends.
func (s *seams) cut(text []byte) int {
	prev, n := utf8.DecodeRune(text)
	for i := n; i < len(text); {
		r, n := utf8.DecodeRune(text[i:])
		if s.between(prev, r) {
			return i
		}
		prev = r
		i += n
	}
	return len(text)
}
