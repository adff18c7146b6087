// Package kv is the paged key-value cache of an inference server: a pool of equal pages, shared between requests whose prompts begin
// alike, freed pages keeping their content until the page is needed again.
//
// It knows pages and the hashes of the blocks they hold, no tokens and no text: a caller names the content of a full block by a 64-bit
// hash that stands for the block and everything before it (an imported trace's block ids serve as they are). The order in which pages
// are taken, shared, freed and evicted is that of vLLM's BlockPool and KVCacheManager (vllm/v1/core): least recently freed first, and
// of one request the last page first, so that a shared beginning outlives the tails that hung on it.
package kv

import (
	"errors"
	"fmt"
)

// MaxPages is how many pages a pool can have.
const MaxPages = 1 << 30

const none = int32(-1)

type page struct {
	hash       uint64
	prev, next int32 // neighbors in the queue of free pages
	refs       int32
	hashed     bool // findable by its hash
}

// Pool is a fixed number of pages. A page is held (by one or more sequences), or free; a free page may still be cached, which means
// that its content is known and can be shared again. The zero value has no pages: use New. Not safe for concurrent use.
type Pool struct {
	pages []page
	index index // of cached pages by hash
	head  int32 // next page to be taken: the least recently freed
	tail  int32 // the most recently freed
	free  int
	stats Stats
}

// Stats counts what a pool has done since New or Reset.
type Stats struct {
	Evicted int64 // cached pages whose content was given up for another
	Shared  int64 // pages that Hold took from the cache
	Taken   int64 // pages that Hold and Grow took from the free pages without their content
}

// New returns a pool of n pages, all free, none cached. n must be positive.
func New(n int) (*Pool, error) {
	if n <= 0 || n > MaxPages {
		return nil, fmt.Errorf("make a pool of %d pages: between 1 and %d are possible", n, MaxPages)
	}
	p := &Pool{pages: make([]page, n)}
	p.clear()
	return p, nil
}

func (p *Pool) clear() {
	n := len(p.pages)
	for i := range p.pages {
		p.pages[i] = page{prev: int32(i) - 1, next: int32(i) + 1}
	}
	p.pages[n-1].next = none
	p.head, p.tail, p.free = 0, int32(n-1), n
	p.index.reset(n)
	p.stats = Stats{}
}

// ErrHeld says that pages are held.
var ErrHeld = errors.New("pages are held")

// Reset forgets all cached content. It does nothing and returns ErrHeld while any page is held.
func (p *Pool) Reset() error {
	if p.free != len(p.pages) {
		return ErrHeld
	}
	p.clear()
	return nil
}

// Pages is the number of all pages.
func (p *Pool) Pages() int { return len(p.pages) }

// Free is the number of pages that no sequence holds, cached ones among them.
func (p *Pool) Free() int { return p.free }

// Held is the number of pages that at least one sequence holds; a shared page counts once.
func (p *Pool) Held() int { return len(p.pages) - p.free }

// Cached is the number of pages, held or free, whose content can be found by its hash.
func (p *Pool) Cached() int { return p.index.n }

// Stats returns what the pool has done since New or Reset.
func (p *Pool) Stats() Stats { return p.stats }

// Sequence is the page table of one request: its pages in the order of its tokens. The zero value holds nothing. It belongs to one pool.
type Sequence struct {
	pages []int32
	named int // leading pages whose hash was given to the pool
}

// Pages is the number of pages that s holds, shared ones included.
func (s *Sequence) Pages() int { return len(s.pages) }

// Lookup returns how many of the leading blocks are cached. It changes nothing.
func (p *Pool) Lookup(hashes []uint64) int {
	for i, h := range hashes {
		if p.index.find(p.pages, h) == none {
			return i
		}
	}
	return len(hashes)
}

// Hold gives an empty sequence the pages of the leading cached blocks and then free pages up to total. It returns the number of shared
// pages and true, or changes nothing and returns false where the pool has too few free pages. hashes must not be longer than total.
func (p *Pool) Hold(s *Sequence, hashes []uint64, total int) (shared int, ok bool) {
	if len(s.pages) != 0 || len(hashes) > total {
		panic("kv: Hold of a sequence that holds pages, or of more blocks than pages")
	}
	revived := 0 // shared pages that stand among the free ones
	for _, h := range hashes {
		i := p.index.find(p.pages, h)
		if i == none {
			break
		}
		s.pages = append(s.pages, i)
		if p.pages[i].refs == 0 {
			revived++
		}
	}
	shared = len(s.pages)
	if total-shared+revived > p.free {
		s.pages = s.pages[:0]
		return 0, false
	}
	for _, i := range s.pages {
		if p.pages[i].refs == 0 {
			p.unlink(i)
		}
		p.pages[i].refs++
	}
	p.stats.Shared += int64(shared)
	s.named = shared
	p.take(s, total)
	return shared, true
}

// Grow gives s free pages until it holds total; it changes nothing and returns false where there are too few. A total below what s
// holds is no change.
func (p *Pool) Grow(s *Sequence, total int) bool {
	if total-len(s.pages) > p.free {
		return false
	}
	p.take(s, total)
	return true
}

// take appends free pages to s until it holds total, evicting what they cached.
func (p *Pool) take(s *Sequence, total int) {
	for len(s.pages) < total {
		i := p.head
		p.unlink(i)
		g := &p.pages[i]
		if g.hashed {
			p.index.remove(p.pages, i)
			g.hashed = false
			p.stats.Evicted++
		}
		g.refs = 1
		s.pages = append(s.pages, i)
		p.stats.Taken++
	}
}

// Name says that the leading pages of s hold the blocks of these hashes, so that others can share them. Pages that were shared or named
// before keep their name. A hash that another page already has stays with that page: the copy cannot be found. hashes must not be longer
// than s.Pages().
func (p *Pool) Name(s *Sequence, hashes []uint64) {
	for k := s.named; k < len(hashes); k++ {
		i := s.pages[k]
		if p.index.find(p.pages, hashes[k]) == none {
			p.pages[i].hash, p.pages[i].hashed = hashes[k], true
			p.index.add(p.pages, i)
		}
	}
	s.named = max(s.named, len(hashes))
}

// Release lets go of all pages of s, the last first. Pages that nobody else holds become free and are evicted after those that were
// freed before; they stay cached until then.
func (p *Pool) Release(s *Sequence) {
	for k := len(s.pages) - 1; k >= 0; k-- {
		i := s.pages[k]
		p.pages[i].refs--
		if p.pages[i].refs == 0 {
			p.push(i)
		}
	}
	s.pages, s.named = s.pages[:0], 0
}

// push appends a page to the queue of free pages.
func (p *Pool) push(i int32) {
	g := &p.pages[i]
	g.prev, g.next = p.tail, none
	if p.tail == none {
		p.head = i
	} else {
		p.pages[p.tail].next = i
	}
	p.tail = i
	p.free++
}

// unlink takes a page out of the queue of free pages.
func (p *Pool) unlink(i int32) {
	g := &p.pages[i]
	if g.prev == none {
		p.head = g.next
	} else {
		p.pages[g.prev].next = g.next
	}
	if g.next == none {
		p.tail = g.prev
	} else {
		p.pages[g.next].prev = g.prev
	}
	p.free--
}
