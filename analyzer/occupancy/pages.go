package occupancy

import (
	"cmp"
	"slices"
	"sync"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/figure"
)

// Pages is the KV cache as the exchanges imply it, beside what the server says. A request holds ceil((input + generated so far) ÷ block
// size) pages from the start of its prefill to its end; pages of a shared prefix count once. From outside, waiting and prefill cannot be
// told apart, so the model is a band.
type Pages struct {
	BlockSize       int                 `json:"block_size"` // tokens in a page
	BlockSizeSource string              `json:"block_size_source"`
	Capacity        formats.Null[int64] `json:"capacity"` // pages
	CapacitySource  string              `json:"capacity_source,omitempty"`
	InUse           Band                `json:"in_use"`       // pages, shared ones once; never more than the capacity
	PeakDemand      Null                `json:"peak_demand"`  // high, without that limit
	PeakShare       Null                `json:"peak_share"`   // peak demand ÷ capacity; above 1 does not fit
	Fill            Null                `json:"fill"`         // tokens ÷ page slots, of logical pages (high)
	Sharing         Null                `json:"sharing"`      // logical ÷ physical pages (high); null where prefix blocks are unknown
	LRUHitRate      Null                `json:"lru_hit_rate"` // share of prompt blocks that an LRU cache of the capacity holds
	Curve           []CachePoint        `json:"curve"`        // the same for other capacities
	CurveSample     float64             `json:"curve_sample"` // share of the prompt blocks that the curve is from
	Server          Null                `json:"server_mean"`  // pages in use by the server's gauge, mean
	Difference      Null                `json:"difference"`   // server ÷ middle of the band − 1
	Modelled        int64               `json:"modelled"`     // exchanges
	LeftOut         int64               `json:"left_out"`     // exchanges that say too little

	high, low, tokens, slots []float64 // cells, for charts
}

// CachePoint is one capacity of the miss-ratio curve.
type CachePoint struct {
	Pages   int64   `json:"pages"`
	HitRate float64 `json:"hit_rate"`
}

// sharedUnit is what sharing is counted in: the trace's prefix blocks.
type sharedUnit struct {
	pages  float64 // of one block
	tokens float64
}

// unit finds the pages of one of a request's prefix blocks, and how many of them are whole.
func (l *Load) unit(q *request, blockSize int) (u sharedUnit, whole int) {
	whole = len(q.blocks)
	if whole == 0 || l.header.PrefixBlockSize <= 0 {
		return u, 0
	}
	u.tokens = float64(l.header.PrefixBlockSize)
	switch {
	case l.header.PrefixBlockUnit == "bytes":
		u.tokens = float64(q.input) / float64(whole+1) // about: the tail is not known in tokens
	case float64(whole)*u.tokens > float64(q.input):
		whole-- // the last block is the partial tail
	}
	u.pages = u.tokens / float64(blockSize)
	return u, whole
}

// Pages runs the page model with blocks of so many tokens and a cache of so many pages; 0 pages is unknown. The server's own figures, the
// cache's curve and where the sizes came from are left to the caller.
func (l *Load) Pages(blockSize int, capacity int64) (p Pages) {
	p.Modelled, p.LeftOut, p.BlockSize = int64(len(l.requests)), l.left, blockSize
	if len(l.requests) == 0 {
		return p
	}
	var high, low *occupancy
	var both sync.WaitGroup
	both.Go(func() { high = l.occupancy(blockSize, false) })
	both.Go(func() { low = l.occupancy(blockSize, true) })
	both.Wait()
	p.high, p.low = high.physical.cells(), low.physical.cells()
	p.InUse = Band{levelOf(p.low), levelOf(p.high)}
	p.PeakDemand = p.InUse.High.Peak
	if capacity > 0 { // a server that has no page left lets requests wait
		p.Capacity = formats.Of(capacity)
		p.PeakShare = figure.Known(p.PeakDemand.V / float64(capacity))
	}
	logical := high.logical.cells()
	p.tokens, p.slots = high.tokens.cells(), scaled(logical, float64(blockSize))
	p.Fill = ratioOf(p.tokens, p.slots)
	if l.known {
		p.Sharing = ratioOf(logical, p.high)
	}
	if capacity > 0 {
		for _, cells := range [][]float64{p.low, p.high} {
			for i := range cells {
				cells[i] = min(cells[i], float64(capacity))
			}
		}
		p.InUse = Band{levelOf(p.low), levelOf(p.high)}
	}
	return p
}

func scaled(x []float64, f float64) []float64 {
	out := slices.Clone(x)
	for i := range out {
		out[i] *= f
	}
	return out
}

// occupancy is one model of the pages over time.
type occupancy struct {
	physical, logical, tokens *grid
	held                      map[int64]int64 // shared block → until when it is held
	size                      int
	late                      bool
}

func (l *Load) occupancy(blockSize int, late bool) *occupancy {
	o := &occupancy{l.grid(), l.grid(), l.grid(), map[int64]int64{}, blockSize, late}
	order := make([]int32, len(l.requests))
	for i := range order {
		order[i] = int32(i)
	}
	if late { // sharing is counted in order of start
		slices.SortStableFunc(order, func(a, b int32) int {
			return cmp.Or(cmp.Compare(l.requests[a].late, l.requests[b].late), cmp.Compare(a, b))
		})
	}
	for _, i := range order {
		q := &l.requests[i]
		u, whole := l.unit(q, blockSize)
		o.add(q, u, whole)
	}
	return o
}

func (o *occupancy) add(q *request, u sharedUnit, whole int) {
	start := q.sent
	if o.late {
		start = q.late
	}
	for i, b := range q.blocks[:whole] {
		at := start
		if o.late {
			at = q.chunk(start, int64(float64(i)*u.tokens))
		}
		o.logical.add(at, q.end, u.pages)
		o.tokens.add(at, q.end, u.tokens)
		from := at
		if until, seen := o.held[b]; seen {
			from = max(at, until)
		}
		if q.end > from {
			o.physical.add(from, q.end, u.pages)
			o.held[b] = q.end
		}
	}
	o.private(q, start, max(q.input-int64(u.tokens*float64(whole)), 0))
}

// chunkTokens is the smallest chunk of a prefill: pages are taken when their chunk starts. vLLM's smallest default token budget is 2048.
const chunkTokens = 2048

// chunk is when the chunk that holds a token of the prompt started, where its prefill began at start and was as fast as it could be.
func (q *request) chunk(start, token int64) int64 {
	token -= token % chunkTokens
	return start + int64(float64(q.first-start)*float64(token)/float64(max(q.input, 1)))
}

// private adds the pages that no other request can have: the tail of the prompt and what was generated, token by token.
func (o *occupancy) private(q *request, start, tokens int64) {
	size := int64(o.size)
	held := (tokens + size - 1) / size
	if o.late { // after the shared blocks, chunk by chunk
		for done := int64(0); done < tokens; {
			k := min(tokens-done, chunkTokens)
			at := q.chunk(start, q.input-tokens+done)
			pages := (done+k+size-1)/size - (done+size-1)/size
			o.both(at, q.end, float64(pages))
			o.tokens.add(at, q.end, float64(k))
			done += k
		}
	} else {
		o.both(start, q.end, float64(held))
		o.tokens.add(start, q.end, float64(tokens))
	}
	for n := int64(0); n < q.output; { // a page at a time
		room := held*size - tokens - n
		if room <= 0 {
			o.both(q.generated(n+1), q.end, 1)
			held++
			continue
		}
		k := min(room, q.output-n)
		mean := float64(k+1) / 2
		a, b := q.generated(n+1), q.generated(n+k)
		o.tokens.add(a, b, mean)
		o.tokens.add(b, q.end, float64(k))
		n += k
	}
}

func (o *occupancy) both(a, b int64, pages float64) {
	o.physical.add(a, b, pages)
	o.logical.add(a, b, pages)
}

// Over is the pages in use over time by both ends of the band, and the page fill, in each of n equal parts of the span; NaN where that time is
// not modelled. Nil for pages that no Load made.
func (p *Pages) Over(n int) (low, high, fill []float64) {
	if p.high == nil {
		return nil, nil, nil
	}
	fill = shrink(p.tokens, n)
	for i, slots := range shrink(p.slots, n) {
		fill[i] /= slots // NaN where there are none
	}
	return shrink(p.low, n), shrink(p.high, n), fill
}
