package virtual

import (
	"fmt"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/stats"
)

// Route says which replica a request goes to.
type Route string

// The routes.
const (
	RoundRobin  Route = "round-robin"
	LeastLoaded Route = "least-loaded" // fewest requests running and waiting
	// Prefix goes where most of the prompt is cached if that is more than half of it, else where least is running and waiting; where the
	// most loaded replica is far ahead of the least loaded it goes to the latter in any case. The rule and its two limits are those of
	// SGLang's cache-aware router.
	Prefix Route = "prefix"
)

// Routes are all of them, the default first.
func Routes() []Route { return []Route{RoundRobin, LeastLoaded, Prefix} }

func (r Route) validate() error {
	switch r {
	case "", RoundRobin, LeastLoaded, Prefix:
		return nil
	}
	return fmt.Errorf("route %q: there are %v", string(r), Routes())
}

// The limits of Prefix: loads are unbalanced where the highest is above the lowest by both.
const (
	unbalancedBy    = 32
	unbalancedTimes = 1.5
	prefixShare     = 0.5
)

// route chooses the replica for a prompt with the given pages.
func (r *run) route(pages []uint64) int {
	if r.o.Route == "" || r.o.Route == RoundRobin || len(r.replicas) == 1 {
		return int((r.index - 1) % int64(len(r.replicas)))
	}
	least, low, high := 0, 0, 0
	for i, p := range r.replicas {
		c := p.engine.Counters()
		load := c.Running + c.Waiting
		if i == 0 || load < low || load == low && p.sent < r.replicas[least].sent {
			least, low = i, load
		}
		high = max(high, load)
	}
	if r.o.Route == LeastLoaded || high-low > unbalancedBy && float64(high) > unbalancedTimes*float64(low) {
		return least
	}
	best, longest := least, r.replicas[least].engine.CachedPages(pages)
	for i, p := range r.replicas {
		if n := p.engine.CachedPages(pages); n > longest {
			best, longest = i, n
		}
	}
	if float64(longest) > prefixShare*float64(len(pages)) {
		return best
	}
	return least
}

// bytesPerToken turns prefix blocks that are measured in bytes into tokens. It only has to be the same for all requests.
const bytesPerToken = 4

// translator turns a trace's prefix blocks into hashes of pages.
type translator struct {
	block float64 // tokens in a prefix block; 0: the trace has none
	page  int
}

func newTranslator(h formats.Header, page int) translator {
	t := translator{page: page}
	switch h.PrefixBlockUnit {
	case "tokens":
		t.block = float64(h.PrefixBlockSize)
	case "bytes":
		t.block = float64(h.PrefixBlockSize) / bytesPerToken
	}
	return t
}

// pages names the leading full pages of a prompt: a page holds what the block with its last token holds up to there, blocks being
// chained, so two prompts share a page where they share that block.
func (t translator) pages(x *formats.Exchange) []uint64 {
	if t.block <= 0 || len(x.PrefixBlocks) == 0 {
		return nil
	}
	n := min(int(x.InputTokens.V)/t.page, int(float64(len(x.PrefixBlocks))*t.block)/t.page)
	pages := make([]uint64, n)
	b, end := 0, t.block
	for j := range pages {
		for float64((j+1)*t.page) > end {
			b++
			end = float64(b+1) * t.block
		}
		pages[j] = stats.Mix(uint64(x.PrefixBlocks[b]) ^ stats.Mix(uint64(j+1)))
	}
	return pages
}
