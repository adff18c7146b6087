package analyzer

import (
	"slices"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/kv"
	"github.com/shadowtape/shadowtape/internal/promtext"
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

// Sizes are what the page model needs to know of the server; a zero is unknown.
type Sizes struct {
	BlockSize int   // tokens in a page
	Pages     int64 // of the cache, of all servers together
}

const assumedBlockSize = 16 // vLLM's default

// findSizes takes the page size and capacity from the options, the server's own page, or the manifest, in this order.
func findSizes(r *Run, given Sizes) (s Sizes, blockSource, pagesSource string, err error) {
	s = given
	if s.BlockSize > 0 {
		blockSource = "flag"
	}
	if s.Pages > 0 {
		pagesSource = "flag"
	}
	if s.BlockSize == 0 || s.Pages == 0 {
		engines := map[engineSeries]int64{}
		block := 0
		err := r.readings(func(_ int64, target string, all []promtext.Reading) {
			for _, g := range all {
				switch g.Name {
				case promtext.PageTokens:
					block = int(g.Value)
				case promtext.KVPagesTotal:
					engines[engineSeries{g.Name, target, g.Engine}] = int64(g.Value)
				}
			}
		})
		if err != nil {
			return s, "", "", err
		}
		if s.BlockSize == 0 && block > 0 {
			s.BlockSize, blockSource = block, "server"
		}
		if total := sumValues(engines); s.Pages == 0 && total > 0 {
			s.Pages, pagesSource = total, "server"
		}
	}
	if r.Manifest != nil {
		profile, _ := r.Manifest.Options["profile"].(map[string]any)
		size, _ := profile["page_size"].(float64)
		pages, _ := profile["pages"].(float64)
		if s.BlockSize == 0 && size > 0 {
			s.BlockSize, blockSource = int(size), "manifest"
		}
		if s.Pages == 0 && pages > 0 {
			s.Pages, pagesSource = int64(pages)*max(int64(len(r.Manifest.Targets)), 1), "manifest"
		}
	}
	if s.BlockSize == 0 {
		s.BlockSize, blockSource = assumedBlockSize, "assumed"
	}
	return s, blockSource, pagesSource, nil
}

func sumValues[K comparable](m map[K]int64) (n int64) {
	for _, v := range m {
		n += v
	}
	return n
}

// sharedUnit is what sharing is counted in: the trace's prefix blocks.
type sharedUnit struct {
	pages  float64 // of one block
	tokens float64
}

// unit finds the pages of one of a request's prefix blocks, and how many of them are whole.
func (l *load) unit(q *request, blockSize int) (u sharedUnit, whole int) {
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

// pages runs the model. blockSize is in tokens.
func (l *load) pages(blockSize int) (p Pages) {
	p.Modelled, p.LeftOut, p.BlockSize = int64(len(l.requests)), l.left, blockSize
	if len(l.requests) == 0 {
		return p
	}
	high, low := l.occupancy(blockSize, false), l.occupancy(blockSize, true)
	p.high, p.low = high.physical.cells(), low.physical.cells()
	p.InUse = Band{levelOf(p.low), levelOf(p.high)}
	p.PeakDemand = p.InUse.High.Peak
	logical := high.logical.cells()
	p.tokens, p.slots = high.tokens.cells(), scaled(logical, float64(blockSize))
	p.Fill = ratioOf(p.tokens, p.slots)
	if l.known {
		p.Sharing = ratioOf(logical, p.high)
	}
	return p
}

// limit cuts what is in use at the capacity: a server that has no page left lets requests wait.
func (p *Pages) limit(capacity float64) {
	for _, cells := range [][]float64{p.low, p.high} {
		for i := range cells {
			cells[i] = min(cells[i], capacity)
		}
	}
	p.InUse = Band{levelOf(p.low), levelOf(p.high)}
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

func (l *load) occupancy(blockSize int, late bool) *occupancy {
	o := &occupancy{newGrid(l.from, l.to), newGrid(l.from, l.to), newGrid(l.from, l.to), map[int64]int64{}, blockSize, late}
	order := make([]int32, len(l.requests))
	for i := range order {
		order[i] = int32(i)
	}
	if late { // sharing is counted in order of start
		slices.SortStableFunc(order, func(a, b int32) int {
			return compareInts(l.requests[a].late, l.requests[b].late, int64(a), int64(b))
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

// modelPages is the page model of a run with its server beside it.
func modelPages(r *Run, l *load, given Sizes, w *Window) (*Pages, error) {
	sizes, blockSource, pagesSource, err := findSizes(r, given)
	if err != nil {
		return nil, err
	}
	p := l.pages(sizes.BlockSize)
	p.BlockSizeSource, p.CapacitySource = blockSource, pagesSource
	if sizes.Pages > 0 {
		p.Capacity = formats.Of(sizes.Pages)
		if p.PeakDemand.Valid {
			p.PeakShare = known(p.PeakDemand.V / float64(sizes.Pages))
		}
		p.limit(float64(sizes.Pages))
		if w.Server.KVUsageMean.Valid && w.Server.Engines > 0 {
			p.Server = known(w.Server.KVUsageSum.V * float64(sizes.Pages) / float64(w.Server.Engines))
			if middle := (p.InUse.Low.Mean.V + p.InUse.High.Mean.V) / 2; middle > 0 {
				p.Difference = known(p.Server.V/middle - 1)
			}
		}
	}
	p.curve(r, sizes)
	return &p, nil
}

// curve fills in what LRU caches of the capacity, its halves and its doubles would have hit, in order of arrival.
func (p *Pages) curve(r *Run, sizes Sizes) {
	var u kv.Curve
	per := float64(r.Header.PrefixBlockSize) / float64(sizes.BlockSize) // pages of a prefix block
	if per <= 0 || r.Header.PrefixBlockUnit == "bytes" {
		per = 1
	}
	if err := arrivalOrder(r, u.Use); err != nil || u.Blocks() == 0 {
		return
	}
	all := u.HitRate(0)
	if sizes.Pages > 0 {
		p.LRUHitRate = known(u.HitRate(int(max(float64(sizes.Pages)/per, 1))))
	}
	for n := int64(1024); ; n *= 2 {
		rate := u.HitRate(int(max(float64(n)/per, 1)))
		p.Curve = append(p.Curve, CachePoint{n, rate})
		if rate >= all {
			break
		}
	}
}

// arrivalOrder walks the prefix blocks of the measured exchanges in order of arrival. It holds them where they are stored in another.
func arrivalOrder(r *Run, visit func(blocks []uint64)) error {
	type late struct {
		at     int64
		blocks []uint64
	}
	var held []late
	sorted := true
	last := int64(-1 << 63)
	for x, err := range r.exchanges(formats.ColArrival, formats.ColPhase, formats.ColEndReason, formats.ColPrefixBlocks) {
		if err != nil {
			return r.readError(err)
		}
		if x.PrefixBlocks == nil || x.EndReason == formats.EndNotSent {
			continue
		}
		sorted = sorted && x.ArrivalUnixNS >= last
		last = x.ArrivalUnixNS
		blocks := make([]uint64, len(x.PrefixBlocks))
		for i, b := range x.PrefixBlocks {
			blocks[i] = uint64(b)
		}
		held = append(held, late{x.ArrivalUnixNS, blocks})
	}
	if !sorted {
		slices.SortStableFunc(held, func(a, b late) int { return compareInts(a.at, b.at, 0, 0) })
	}
	for _, h := range held {
		visit(h.blocks)
	}
	return nil
}
