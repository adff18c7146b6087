package fit

import (
	"cmp"
	"math"
	"slices"
	"sort"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/workload"
)

const (
	threadParts  = 8   // parts of the requests by input length
	lagPoints    = 101 // of the table of lags
	sharedPoints = 21  // of each table of shares
	maxRoots     = 100
	rootShare    = 0.005 // of all requests; what fewer have in common is no root
	rootSamples  = 4     // chains looked at to find how long a root is
)

// seenBlock is what is known of a prefix block.
type seenBlock struct {
	at      int64
	request int32 // the last that had it
	count   int32
}

// link is how a request hangs on earlier ones.
type link struct {
	input  float64
	hit    int32 // leading blocks that were seen before
	kept   int32 // and those that the parent had
	blocks int32
	lag    float64
	parent int32 // -1: none
	root   int64 // first block
	later  bool  // by its session it continues another
}

// threadFit collects what requests share.
type threadFit struct {
	h        formats.Header
	blocks   map[int64]seenBlock
	sessions map[formats.Hash]seenBlock
	links    []link
	blank    []int32             // input lengths of requests with neither blocks nor session
	chains   map[int64][][]int64 // samples by first block
	known    bool                // prefix blocks
	named    int                 // requests with a session
}

func newThreadFit(h formats.Header) *threadFit {
	return &threadFit{h: h, blocks: map[int64]seenBlock{}, sessions: map[formats.Hash]seenBlock{}, chains: map[int64][][]int64{}}
}

func (f *threadFit) add(x *formats.Exchange) {
	if len(x.PrefixBlocks) == 0 && !x.SessionID.Valid {
		f.blank = append(f.blank, int32(min(max(x.InputTokens.V, 0), 1<<31-1)))
		return
	}
	l := link{input: float64(x.InputTokens.V), parent: -1, blocks: int32(len(x.PrefixBlocks))}
	me := int32(len(f.links))
	if len(x.PrefixBlocks) > 0 {
		f.known = true
		for _, b := range x.PrefixBlocks {
			old, ok := f.blocks[b]
			if !ok {
				break
			}
			l.hit++
			l.parent, l.lag = old.request, float64(x.ArrivalUnixNS-old.at)/1e9
		}
		l.kept = l.hit
	}
	if x.SessionID.Valid {
		f.named++
		if old, ok := f.sessions[x.SessionID.V]; ok {
			l.later, l.parent, l.lag = true, old.request, float64(x.ArrivalUnixNS-old.at)/1e9
			l.kept = f.keptOf(x, old.request)
		}
		f.sessions[x.SessionID.V] = seenBlock{x.ArrivalUnixNS, me, f.sessions[x.SessionID.V].count + 1}
	}
	if len(x.PrefixBlocks) > 0 {
		for _, b := range x.PrefixBlocks {
			old := f.blocks[b]
			f.blocks[b] = seenBlock{x.ArrivalUnixNS, me, old.count + 1}
		}
		l.root = x.PrefixBlocks[0]
		if c := f.chains[l.root]; len(c) < rootSamples {
			f.chains[l.root] = append(c, slices.Clone(x.PrefixBlocks[:min(len(x.PrefixBlocks), 4096)]))
		}
	}
	f.links = append(f.links, l)
}

// tokens is the size of a block in tokens.
func (f *threadFit) tokens() float64 {
	if f.h.PrefixBlockUnit == "bytes" {
		return float64(f.h.PrefixBlockSize) / bytesPerToken
	}
	return float64(f.h.PrefixBlockSize)
}

// bytesPerToken turns blocks that are measured in bytes into tokens.
const bytesPerToken = 4

// done makes the tables, or nil where nothing is known.
func (f *threadFit) done() *workload.Threads {
	size := f.tokens()
	all := len(f.links) + len(f.blank)
	bySession := f.named*2 > all
	if !(f.known && size >= 1) && !bySession {
		return nil
	}
	t := &workload.Threads{Sessions: bySession, CeilRule: f.h.PrefixBlockRule == "ceil"}
	if f.known && size >= 1 {
		t.BlockSize = int(math.Round(size))
	}
	roots := f.roots()
	inputs := make([]float64, 0, all)
	for _, l := range f.links {
		inputs = append(inputs, l.input)
	}
	for _, n := range f.blank {
		inputs = append(inputs, float64(n))
	}
	sort.Float64s(inputs)
	for i := 1; i < threadParts; i++ {
		t.Bounds = append(t.Bounds, inputs[i*len(inputs)/threadParts])
	}
	t.Continue = make([]float64, threadParts)
	total := make([]float64, threadParts)
	shared := make([][]float64, threadParts)
	parents := map[int32]bool{}
	begun := map[int64]float64{} // new threads by first block
	var steps []step
	threads, continued := float64(len(f.blank)), 0.0
	for _, n := range f.blank {
		total[sort.SearchFloat64s(t.Bounds, float64(n))]++
	}
	for _, l := range f.links {
		part := sort.SearchFloat64s(t.Bounds, l.input)
		total[part]++
		continues := l.later
		if !bySession {
			continues = int(l.hit) > roots[l.root]
		}
		if !continues {
			threads++
			begun[l.root]++
			continue
		}
		continued++
		parents[l.parent] = true
		t.Continue[part]++
		shared[part] = append(shared[part], min(float64(l.hit)/max(float64(l.blocks), 1), 1))
		t.Lag = append(t.Lag, max(l.lag, 0))
		if s, ok := f.step(l); ok {
			steps = append(steps, s)
		}
	}
	if t.Growth = growth(steps); t.Growth != nil {
		t.Growth.Next = f.continued(t.Bounds, total, parents)
	}
	t.Shared = make([][]float64, threadParts)
	for i := range t.Continue {
		t.Continue[i] = significant(t.Continue[i]/max(total[i], 1), 6)
		sort.Float64s(shared[i])
		t.Shared[i] = condenseShares(shared[i], sharedPoints)
		if t.Shared[i] == nil {
			t.Shared[i] = []float64{}
		}
		if i > 0 && total[i] == 0 { // equal lengths fill no part between them
			t.Continue[i], t.Shared[i] = t.Continue[i-1], t.Shared[i-1]
		}
	}
	sort.Float64s(t.Lag)
	t.Lag = points(t.Lag, lagPoints)
	t.Fanout = significant(max(continued/max(float64(len(parents)), 1), 1), 6)
	for first, blocks := range roots {
		if share := begun[first] / max(threads, 1); blocks > 0 && share >= rootShare {
			t.Roots = append(t.Roots, workload.Root{Share: significant(share, 6), Blocks: blocks})
		}
	}
	slices.SortFunc(t.Roots, func(a, b workload.Root) int {
		return cmp.Or(cmp.Compare(b.Share, a.Share), cmp.Compare(b.Blocks, a.Blocks))
	})
	t.Roots = t.Roots[:min(len(t.Roots), maxRoots)]
	t.Rest = 1
	for _, r := range t.Roots {
		t.Rest -= r.Share
	}
	t.Rest = max(significant(t.Rest, 6), 0)
	if bySession {
		for _, s := range f.sessions {
			t.Turns = append(t.Turns, float64(s.count))
		}
		sort.Float64s(t.Turns)
		t.Turns = points(t.Turns, sharedPoints)
	}
	return t
}

// roots are the first blocks that many requests have, with the number of blocks that most of these have in common.
func (f *threadFit) roots() map[int64]int {
	roots := map[int64]int{}
	for first, chains := range f.chains {
		n := float64(f.blocks[first].count)
		if n < max(rootShare*float64(len(f.links)+len(f.blank)), 3) {
			continue
		}
		for _, c := range chains {
			depth := 0
			for depth < len(c) && float64(f.blocks[c[depth]].count) >= 0.5*n {
				depth++
			}
			roots[first] = max(roots[first], depth)
		}
	}
	return roots
}

// points are k values at equal steps of rank, ends included.
func points(sorted []float64, k int) []float64 {
	if len(sorted) <= k {
		return sorted
	}
	out := make([]float64, k)
	for i := range out {
		out[i] = significant(sorted[i*(len(sorted)-1)/(k-1)], 6)
	}
	return out
}

// condenseShares is condense for numbers below 1.
func condenseShares(sorted []float64, k int) []float64 {
	big := make([]float64, len(sorted))
	for i, v := range sorted {
		big[i] = v * keptScale
	}
	out := workload.Condense(big, k)
	for i := range out {
		out[i] = min(significant(out[i]/keptScale, 5), 1)
	}
	return out
}
