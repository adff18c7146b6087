package kv_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/shadowtape/shadowtape/internal/kv"
)

func newPool(t *testing.T, n int) *kv.Pool {
	t.Helper()
	p, err := kv.New(n)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestSharedPagesCountOnce(t *testing.T) {
	p := newPool(t, 10)
	var a, b kv.Sequence
	if shared, ok := p.Hold(&a, []uint64{1, 2, 3}, 4); shared != 0 || !ok {
		t.Fatalf("first: shared %d, ok %t", shared, ok)
	}
	p.Name(&a, []uint64{1, 2, 3})
	if shared, ok := p.Hold(&b, []uint64{1, 2, 9}, 5); shared != 2 || !ok {
		t.Fatalf("second: shared %d, ok %t", shared, ok)
	}
	if p.Held() != 7 || a.Pages()+b.Pages() != 9 {
		t.Errorf("held %d, by sequence %d; want 7 and 9", p.Held(), a.Pages()+b.Pages())
	}
	p.Release(&a)
	if p.Held() != 5 || p.Lookup([]uint64{1, 2, 3}) != 3 {
		t.Errorf("after release: held %d, cached run %d; want 5 and 3", p.Held(), p.Lookup([]uint64{1, 2, 3}))
	}
	if err := p.Reset(); !errors.Is(err, kv.ErrHeld) {
		t.Errorf("reset while held: %v", err)
	}
	p.Release(&b)
	if err := p.Reset(); err != nil || p.Cached() != 0 || p.Free() != 10 {
		t.Errorf("reset: %v, cached %d, free %d", err, p.Cached(), p.Free())
	}
}

func TestTailIsEvictedFirst(t *testing.T) {
	p := newPool(t, 4)
	var a, b kv.Sequence
	p.Hold(&a, nil, 4)
	p.Name(&a, []uint64{1, 2, 3, 4})
	p.Release(&a)
	p.Hold(&b, nil, 2) // takes the pages of blocks 4 and 3
	if got := p.Lookup([]uint64{1, 2, 3, 4}); got != 2 {
		t.Errorf("cached run after eviction %d, want 2", got)
	}
}

func TestHoldThatDoesNotFitChangesNothing(t *testing.T) {
	p := newPool(t, 4)
	var a, b, c kv.Sequence
	p.Hold(&a, nil, 2)
	p.Name(&a, []uint64{1, 2})
	p.Hold(&b, nil, 2)
	p.Release(&a)
	// Both free pages are the shared ones: nothing is left for the third page.
	if shared, ok := p.Hold(&c, []uint64{1, 2}, 3); ok || shared != 0 || c.Pages() != 0 {
		t.Errorf("shared %d, ok %t, pages %d", shared, ok, c.Pages())
	}
	if p.Free() != 2 || p.Lookup([]uint64{1, 2}) != 2 {
		t.Errorf("free %d, cached run %d; want 2 and 2", p.Free(), p.Lookup([]uint64{1, 2}))
	}
	if shared, ok := p.Hold(&c, []uint64{1, 2}, 2); !ok || shared != 2 {
		t.Errorf("shared %d, ok %t", shared, ok)
	}
	if p.Grow(&c, 3) {
		t.Error("grew into a full pool")
	}
}

// TestAgainstModel runs random sequences through the pool and through a model that keeps sets and lists, and compares what both hold,
// share and evict after every operation.
func TestAgainstModel(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	const n = 40
	p := newPool(t, n)
	m := model{free: make([]mpage, 0, n)}
	for i := range n {
		m.free = append(m.free, mpage{id: i})
	}
	type live struct {
		s kv.Sequence
		m []int
		h []uint64
	}
	var running []*live
	for step := range 20000 {
		switch rng.IntN(4) {
		case 0, 1:
			l := &live{}
			h := uint64(rng.IntN(3))
			for range rng.IntN(8) {
				h = h*7 + uint64(rng.IntN(2)) + 3
				l.h = append(l.h, h)
			}
			total := len(l.h) + rng.IntN(3)
			shared, ok := p.Hold(&l.s, l.h, total)
			mshared, mok := m.hold(&l.m, l.h, total)
			if shared != mshared || ok != mok {
				t.Fatalf("step %d: hold %d %t, model %d %t", step, shared, ok, mshared, mok)
			}
			if ok {
				p.Name(&l.s, l.h)
				m.name(l.m, l.h)
				running = append(running, l)
			}
		case 2:
			if len(running) > 0 {
				l := running[rng.IntN(len(running))]
				total := len(l.m) + rng.IntN(3)
				if ok, mok := p.Grow(&l.s, total), m.grow(&l.m, total); ok != mok {
					t.Fatalf("step %d: grow %t, model %t", step, ok, mok)
				}
			}
		case 3:
			if len(running) > 0 {
				i := rng.IntN(len(running))
				p.Release(&running[i].s)
				m.release(running[i].m)
				running = slices.Delete(running, i, i+1)
			}
		}
		if p.Free() != len(m.free) || p.Held()+p.Free() != n || p.Cached() != m.cached() {
			t.Fatalf("step %d: free %d held %d cached %d; model free %d cached %d", step, p.Free(), p.Held(), p.Cached(), len(m.free), m.cached())
		}
	}
	if p.Stats().Evicted == 0 || p.Stats().Shared == 0 {
		t.Errorf("the walk evicted %d and shared %d pages: it tested nothing", p.Stats().Evicted, p.Stats().Shared)
	}
}

type mpage struct {
	id, refs int
	hash     uint64
	named    bool
}

// model is the pool in the plainest form: lists that are searched from end to end.
type model struct {
	free []mpage // least recently freed first
	held []mpage
}

func (m *model) cached() int {
	n := 0
	for _, g := range slices.Concat(m.free, m.held) {
		if g.named {
			n++
		}
	}
	return n
}

func (m *model) find(h uint64) (inFree, inHeld int) {
	is := func(g mpage) bool { return g.named && g.hash == h }
	return slices.IndexFunc(m.free, is), slices.IndexFunc(m.held, is)
}

func (m *model) hold(ids *[]int, hashes []uint64, total int) (int, bool) {
	run, revived := 0, 0
	for _, h := range hashes {
		f, u := m.find(h)
		if f < 0 && u < 0 {
			break
		}
		if f >= 0 {
			revived++
		}
		run++
	}
	if total-run+revived > len(m.free) {
		return 0, false
	}
	for _, h := range hashes[:run] {
		f, u := m.find(h)
		if f >= 0 {
			g := m.free[f]
			m.free = slices.Delete(m.free, f, f+1)
			g.refs = 1
			m.held = append(m.held, g)
			*ids = append(*ids, g.id)
		} else {
			m.held[u].refs++
			*ids = append(*ids, m.held[u].id)
		}
	}
	return run, m.grow(ids, total)
}

func (m *model) grow(ids *[]int, total int) bool {
	if total-len(*ids) > len(m.free) {
		return false
	}
	for len(*ids) < total {
		m.held = append(m.held, mpage{id: m.free[0].id, refs: 1})
		*ids = append(*ids, m.free[0].id)
		m.free = m.free[1:]
	}
	return true
}

func (m *model) name(ids []int, hashes []uint64) {
	for k, h := range hashes {
		if f, u := m.find(h); f < 0 && u < 0 {
			i := slices.IndexFunc(m.held, func(g mpage) bool { return g.id == ids[k] })
			if !m.held[i].named {
				m.held[i].hash, m.held[i].named = h, true
			}
		}
	}
}

func (m *model) release(ids []int) {
	for _, id := range slices.Backward(ids) {
		i := slices.IndexFunc(m.held, func(g mpage) bool { return g.id == id })
		m.held[i].refs--
		if m.held[i].refs == 0 {
			m.free = append(m.free, m.held[i])
			m.held = slices.Delete(m.held, i, i+1)
		}
	}
}

// serve runs the block lists of a trace through a pool one request at a time and returns the share of blocks found cached.
func serve(t *testing.T, requests [][]uint64, pages int) float64 {
	p := newPool(t, pages)
	var hits, refs int
	for _, h := range requests {
		var s kv.Sequence
		shared, ok := p.Hold(&s, h, len(h))
		if !ok {
			t.Fatalf("%d blocks do not fit %d pages", len(h), pages)
		}
		p.Name(&s, h)
		p.Release(&s)
		hits += shared
		refs += len(h)
	}
	return float64(hits) / float64(refs)
}

// lru is the brute-force hit rate of a cache of n blocks: a list, most recent first; after the lookup all blocks of the request move to
// its front, the root last.
func lru(requests [][]uint64, n int) float64 {
	var list []uint64
	var hits, refs int
	for _, h := range requests {
		run := 0
		for run < len(h) && slices.Contains(list, h[run]) {
			run++
		}
		hits += run
		refs += len(h)
		list = slices.DeleteFunc(list, func(x uint64) bool { return slices.Contains(h, x) })
		list = append(slices.Clone(h), list...)
		list = list[:min(n, len(list))]
	}
	return float64(hits) / float64(refs)
}

func readBlocks(t *testing.T, name string) (requests [][]uint64) {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for sc := bufio.NewScanner(bufio.NewReaderSize(f, 1<<20)); sc.Scan(); {
		var row struct {
			HashIDs []uint64 `json:"hash_ids"`
		}
		if err := json.Unmarshal(sc.Bytes(), &row); err != nil {
			t.Fatal(err)
		}
		requests = append(requests, row.HashIDs)
	}
	return requests
}

func TestHitRateIsLRU(t *testing.T) {
	requests := readBlocks(t, "testdata/mooncake_extract.jsonl")
	for _, n := range []int{250, 400, 800, 2000} {
		got, want := serve(t, requests, n), lru(requests, n)
		if got != want || got == 0 {
			t.Errorf("%d pages: hit rate %v, brute force %v", n, got, want)
		}
	}
}

// TestPublishedHitRates needs the whole Mooncake conversation trace; SHADOWTAPE_MOONCAKE names it. The rates were computed by an
// independent program.
func TestPublishedHitRates(t *testing.T) {
	name := os.Getenv("SHADOWTAPE_MOONCAKE")
	if name == "" {
		t.Skip("SKIPPED: set SHADOWTAPE_MOONCAKE to conversation_trace.jsonl to check the whole trace; TestHitRateIsLRU checks an extract")
	}
	requests := readBlocks(t, name)
	var c kv.Curve
	for _, h := range requests {
		c.Use(h)
	}
	for n, want := range map[int]float64{1000: 0.04453032929, 8000: 0.1780519931, 32000: 0.3319965338, 200000: 0.3664124783} {
		if got := serve(t, requests, n); math.Abs(got-want) > 1e-10 {
			t.Errorf("%d pages: hit rate %.10f, want %.10f", n, got, want)
		}
		if got := c.HitRate(n); math.Abs(got-want) > 1e-10 {
			t.Errorf("%d blocks: the curve says %.10f, want %.10f", n, got, want)
		}
	}
}

// TestCurveIsLRUAtEveryCapacity compares one pass of stack distances with a simulated cache for each capacity.
func TestCurveIsLRUAtEveryCapacity(t *testing.T) {
	requests := readBlocks(t, "testdata/mooncake_extract.jsonl")
	var c kv.Curve
	if c.HitRate(10) != 0 {
		t.Error("an unused curve has hits")
	}
	distinct := map[uint64]bool{}
	for _, h := range requests {
		c.Use(h)
		for _, b := range h {
			distinct[b] = true
		}
	}
	for _, n := range []int{1, 10, 50, 250, 400, 800, 2000, 100000} {
		if got, want := c.HitRate(n), lru(requests, n); got != want {
			t.Errorf("%d blocks: hit rate %v, brute force %v", n, got, want)
		}
	}
	if c.Blocks() != len(distinct) || c.HitRate(0) != c.HitRate(100000) {
		t.Errorf("%d blocks, want %d", c.Blocks(), len(distinct))
	}
}
