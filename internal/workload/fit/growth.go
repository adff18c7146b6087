package fit

import (
	"cmp"
	"slices"
	"sort"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/workload"
)

const (
	growthParts  = 4   // parts of the steps by the length of the earlier prompt
	growthPoints = 101 // of the table of what is added to all
	keptParts    = 16  // of the table of what is kept
	afterOutputs = 8   // of each part, what is added after it
)

// keptScale makes shares numbers that tables, which round to tenths, tell apart.
const keptScale = 1e5

// step is how one prompt came out of another, in tokens.
type step struct {
	before, after float64
	kept          float64 // of before; what after has beyond it was added
	dropped       bool
}

// step is the step to l from the request that it continues; false where their lengths are not known.
func (f *threadFit) step(l link) (s step, ok bool) {
	p := f.links[l.parent]
	s = step{before: p.input, after: l.input}
	if s.before < 1 || s.after < 1 || s.before > longest || s.after > longest {
		return s, false
	}
	// Without blocks a prompt that is not shorter is taken to keep all.
	s.kept = min(s.before, s.after)
	s.dropped = s.after < s.before
	if size := f.tokens(); p.blocks > 0 && l.blocks > 0 && size >= 1 {
		full := float64(p.blocks)
		if f.h.PrefixBlockRule == "ceil" && full*size > s.before {
			full-- // a part of a block becomes another when more follows
		}
		if kept := float64(l.kept); kept < full {
			s.dropped, s.kept = true, min(kept*size, s.kept)
		}
	}
	return s, true
}

// growth makes the tables of steps; nil where there are none.
func growth(steps []step) *workload.Growth {
	if len(steps) == 0 {
		return nil
	}
	g := &workload.Growth{Bounds: []float64{}, Added: []float64{}}
	slices.SortFunc(steps, func(a, b step) int { return cmp.Compare(a.before, b.before) })
	shrunk, drops := 0.0, 0.0
	var kept [][2]float64
	for _, s := range steps {
		if s.dropped {
			drops++
		}
	}
	for i := range growthParts {
		part := steps[i*len(steps)/growthParts : (i+1)*len(steps)/growthParts]
		if i > 0 {
			g.Bounds = append(g.Bounds, steps[i*len(steps)/growthParts].before)
		}
		dropped := 0.0
		for _, s := range part {
			if s.after < s.before {
				shrunk++
			}
			if !s.dropped {
				g.Added = append(g.Added, s.after-s.before)
				continue
			}
			dropped++
			kept = append(kept, [2]float64{s.kept / s.before * keptScale, s.after - s.kept})
		}
		share := drops / float64(len(steps))
		if len(part) > 0 {
			share = dropped / float64(len(part))
		}
		g.Drop = append(g.Drop, significant(share, 6))
	}
	sort.Float64s(g.Added)
	g.Added = points(g.Added, growthPoints)
	if len(kept) > 0 {
		table := workload.LengthsOf(kept, keptParts, afterOutputs)
		g.Kept, g.After = table.Inputs, table.Outputs
		for i := range g.Kept {
			g.Kept[i] = min(significant(g.Kept[i]/keptScale, 5), 1)
		}
	}
	g.Shrink = significant(shrunk/float64(len(steps)), 6)
	return g
}

// keptOf is how many leading blocks of x the request at an index had: blocks that were last seen then or later.
func (f *threadFit) keptOf(x *formats.Exchange, parent int32) (n int32) {
	for _, b := range x.PrefixBlocks {
		if old, ok := f.blocks[b]; !ok || old.request < parent {
			break
		}
		n++
	}
	return n
}

// continued are the shares of requests that are parents, by parts of all requests' lengths.
func (f *threadFit) continued(bounds, total []float64, parents map[int32]bool) []float64 {
	shares := make([]float64, len(total))
	for p := range parents {
		shares[sort.SearchFloat64s(bounds, f.links[p].input)]++
	}
	for i := range shares {
		shares[i] = significant(shares[i]/max(total[i], 1), 6)
	}
	return shares
}
