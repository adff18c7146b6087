package analyzer

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/shadowtape/shadowtape/internal/figure"
	"github.com/shadowtape/shadowtape/internal/stats"
)

// sample is one request as a split sees it.
type sample struct {
	y     float64    // ln of the metric
	z     [5]float64 // ln(1 + …)
	side  int        // 0 base, 1 candidate
	block int32      // of its side
}

// The coordinates of sample.z.
const (
	zInput    = iota // prompt tokens
	zOutput          // answer tokens
	zComputed        // prompt tokens that were not cached
	zFlight          // requests in flight
	zWork            // prompt tokens to prefill before the first token, its own too; for tpot, those prefilled a second beside its tokens
)

// level is a stage of making requests equal: what they are matched on, and what a regression takes off inside a match.
type level struct {
	match, adjust []int
	estimate      *standardized
}

// splitting is a metric of two recordings on its way into parts.
type splitting struct {
	all     []sample
	in      []sample // matched
	n       [2]int   // of all
	matched [2]float64
	pairs   int // of the smaller side, matched
	blocks  [2]int
	width   float64
	levels  []level // lengths, cache, load
}

// newSplit matches the requests that have the metric; nil where a side has none.
func newSplit(x, y *metRun, metric int, cache bool) *splitting {
	s := &splitting{blocks: [2]int{x.blocks, y.blocks}}
	tpot := trafficMetrics[metric] == "tpot"
	for side, r := range []*metRun{x, y} {
		for i := range r.all {
			m := &r.all[i]
			if math.IsNaN(m.values[metric]) {
				continue
			}
			v := sample{y: m.values[metric], side: side, block: m.block}
			v.z = [5]float64{zInput: math.Log1p(m.input), zOutput: math.Log1p(max(m.output, 0)), zFlight: math.Log1p(max(m.flight, 0))}
			computed := m.input
			if cache {
				computed = max(m.input-max(m.cached, 0), 0)
				v.z[zComputed] = math.Log1p(computed)
			}
			v.z[zWork] = math.Log1p(computed + max(m.queued, 0))
			if tpot {
				v.z[zFlight], v.z[zWork] = math.Log1p(max(m.beside, 0)), math.Log1p(max(m.mixed, 0))
			}
			s.all = append(s.all, v)
			s.n[side]++
		}
	}
	if s.n[0] == 0 || s.n[1] == 0 {
		return nil
	}
	s.levels = []level{{match: []int{zInput}, adjust: []int{zInput}}, {match: []int{zInput, zComputed}, adjust: []int{zInput, zComputed}},
		{match: []int{zWork, zComputed, zFlight}, adjust: []int{zInput, zComputed, zFlight, zWork}}}
	if tpot {
		for i := range s.levels {
			s.levels[i].adjust = append(s.levels[i].adjust, zOutput)
		}
	}
	for _, w := range widths {
		s.match(w)
		if min(s.matched[0], s.matched[1]) >= wellMatched {
			break
		}
	}
	for i := range s.levels {
		s.levels[i].estimate = standardize(s.in, s.levels[i], s.width)
	}
	return s
}

// box is a match: the requests of one box of the coordinates that a level matches on.
type box [3]int32

func boxOf(v *sample, l level, width float64) (c box) {
	for i, k := range l.match {
		c[i] = int32(math.Floor(v.z[k] / width))
	}
	return c
}

// match keeps the requests whose cell at the last level holds two of each side at least.
func (s *splitting) match(width float64) {
	s.width, s.in = width, nil
	last := s.levels[len(s.levels)-1]
	counts := map[box][2]int{}
	for i := range s.all {
		c := boxOf(&s.all[i], last, width)
		n := counts[c]
		n[s.all[i].side]++
		counts[c] = n
	}
	var kept [2]int
	for i := range s.all {
		if n := counts[boxOf(&s.all[i], last, width)]; n[0] >= 2 && n[1] >= 2 {
			s.in = append(s.in, s.all[i])
			kept[s.all[i].side]++
		}
	}
	s.matched = [2]float64{float64(kept[0]) / float64(s.n[0]), float64(kept[1]) / float64(s.n[1])}
	s.pairs = min(kept[0], kept[1])
}

// sums are a cell's requests of one side in one block of time.
type sums struct {
	cell, side, block int32
	n, y              float64
}

// standardized is the difference of two sides with their requests weighted alike: cell by cell, each cell as often as it comes on both
// sides on average (Kitagawa, 1955).
type standardized struct {
	cells  int
	of     []sums
	n, y   [][2]float64 // by cell, of one draw
	totals [2]float64
}

// standardize adjusts the metric inside each cell for what its requests still differ in, and sums it up by cell, side and block. The slopes of a cell
// are drawn towards those of all cells, by as much as slopeWeight requests weigh.
func standardize(in []sample, l level, width float64) *standardized {
	cells := map[box][]int{}
	var order []box
	for i := range in {
		c := boxOf(&in[i], l, width)
		if cells[c] == nil {
			order = append(order, c)
		}
		cells[c] = append(cells[c], i)
	}
	p := len(l.adjust)
	moments := make([]*moment, len(order))
	whole := newMoment(p)
	for k, c := range order {
		moments[k] = momentOf(in, cells[c], l)
		whole.add(moments[k])
	}
	common := whole.slopes(nil, nil)
	out := &standardized{cells: len(order)}
	type key struct{ cell, side, block int32 }
	at := map[key]int{}
	for k, c := range order {
		m := moments[k]
		slopes := m.slopes(whole, common)
		for _, i := range cells[c] {
			v := &in[i]
			y := v.y
			for j, a := range l.adjust {
				y -= slopes[j] * (v.z[a] - m.centre[j])
			}
			q := key{int32(k), int32(v.side), v.block}
			e, ok := at[q]
			if !ok {
				e = len(out.of)
				at[q] = e
				out.of = append(out.of, sums{cell: q.cell, side: q.side, block: q.block})
			}
			out.of[e].n++
			out.of[e].y += y
		}
	}
	out.n, out.y = make([][2]float64, out.cells), make([][2]float64, out.cells)
	return out
}

const slopeWeight = 20

// moment are the products of a cell's deviations from the means of their side.
type moment struct {
	n      float64
	zz     [][]float64
	zy     []float64
	centre []float64 // between the means of the sides
}

func newMoment(p int) *moment {
	m := &moment{zy: make([]float64, p), centre: make([]float64, p), zz: make([][]float64, p)}
	for i := range m.zz {
		m.zz[i] = make([]float64, p)
	}
	return m
}

func momentOf(in []sample, of []int, l level) *moment {
	m := newMoment(len(l.adjust))
	var n [2]float64
	var y [2]float64
	z := [2][]float64{make([]float64, len(l.adjust)), make([]float64, len(l.adjust))}
	for _, i := range of {
		v := &in[i]
		n[v.side]++
		y[v.side] += v.y
		for j, a := range l.adjust {
			z[v.side][j] += v.z[a]
		}
	}
	sides := 0.0
	for side := range n {
		if n[side] == 0 {
			continue
		}
		sides++
		y[side] /= n[side]
		for j := range z[side] {
			z[side][j] /= n[side]
			m.centre[j] += z[side][j]
		}
	}
	for j := range m.centre {
		m.centre[j] /= sides
	}
	d := make([]float64, len(l.adjust))
	for _, i := range of {
		v := &in[i]
		m.n++
		for j, a := range l.adjust {
			d[j] = v.z[a] - z[v.side][j]
		}
		for j := range d {
			m.zy[j] += d[j] * (v.y - y[v.side])
			for k := range d {
				m.zz[j][k] += d[j] * d[k]
			}
		}
	}
	return m
}

func (m *moment) add(c *moment) {
	m.n += c.n
	for j := range m.zy {
		m.zy[j] += c.zy[j]
		for k := range m.zy {
			m.zz[j][k] += c.zz[j][k]
		}
	}
}

// slopes solves for the slopes, drawn to the common ones by as much as slopeWeight requests of the whole weigh. A coordinate that does not
// vary has none.
func (m *moment) slopes(whole *moment, common []float64) []float64 {
	p := len(m.zy)
	a := make([][]float64, p)
	for i := range a {
		a[i] = append(slices.Clone(m.zz[i]), m.zy[i])
	}
	for i := range p {
		ridge := 1e-9 * (1 + a[i][i])
		if whole != nil {
			ridge += slopeWeight * whole.zz[i][i] / whole.n
			a[i][p] += ridge * common[i]
		}
		a[i][i] += ridge
	}
	for i := range p { // Gauss, Jordan; positive definite by the ridge
		best := i
		for k := i + 1; k < p; k++ {
			if math.Abs(a[k][i]) > math.Abs(a[best][i]) {
				best = k
			}
		}
		a[i], a[best] = a[best], a[i]
		for k := range p {
			if k == i {
				continue
			}
			f := a[k][i] / a[i][i]
			for j := i; j <= p; j++ {
				a[k][j] -= f * a[i][j]
			}
		}
	}
	out := make([]float64, p)
	for i := range p {
		out[i] = a[i][p] / a[i][i]
	}
	return out
}

// difference is candidate less base where block b of side s counts times[s][b] times; NaN where no cell has both.
func (e *standardized) difference(times *[2][]int32) float64 {
	clear(e.n)
	clear(e.y)
	e.totals = [2]float64{}
	for i := range e.of {
		v := &e.of[i]
		w := float64(times[v.side][v.block])
		e.n[v.cell][v.side] += w * v.n
		e.y[v.cell][v.side] += w * v.y
	}
	for c := range e.n {
		if e.n[c][0] > 0 && e.n[c][1] > 0 {
			e.totals[0] += e.n[c][0]
			e.totals[1] += e.n[c][1]
		}
	}
	sum := 0.0
	for c := range e.n {
		if n := e.n[c]; n[0] > 0 && n[1] > 0 {
			w := (n[0]/e.totals[0] + n[1]/e.totals[1]) / 2
			sum += w * (e.y[c][1]/n[1] - e.y[c][0]/n[0])
		}
	}
	if e.totals[0] == 0 || e.totals[1] == 0 {
		return math.NaN()
	}
	return sum
}

// plain is the difference of the sides' means, no request weighted.
func plain(in []sample) *standardized {
	e := &standardized{cells: 1, n: make([][2]float64, 1), y: make([][2]float64, 1)}
	at := map[[2]int32]int{}
	for i := range in {
		k := [2]int32{int32(in[i].side), in[i].block}
		j, ok := at[k]
		if !ok {
			j = len(e.of)
			at[k] = j
			e.of = append(e.of, sums{side: k[0], block: k[1]})
		}
		e.of[j].n++
		e.of[j].y += in[i].y
	}
	return e
}

// parts splits the change, and gives the server's part as a row with its verdict.
func (s *splitting) parts(t Metric, o CompareOptions) (Split, Change) {
	raw, matched := plain(s.all), plain(s.in)
	names := []string{"", partUnmatched, partLengths, partCache, partLoad, partServer}
	of := func(times *[2][]int32) (v [6]float64) {
		e := [5]float64{raw.difference(times), matched.difference(times), s.levels[0].estimate.difference(times), s.levels[1].estimate.difference(times), s.levels[2].estimate.difference(times)}
		v[0] = e[0]
		for i := range 4 {
			v[i+1] = e[i] - e[i+1]
		}
		v[5] = e[4]
		return v
	}
	once := [2][]int32{slices.Repeat([]int32{1}, s.blocks[0]), slices.Repeat([]int32{1}, s.blocks[1])}
	point := of(&once)
	draws := [6][]float64{}
	r := rand.New(rand.NewPCG(uint64(o.Seed), 0x7af1c))
	times := [2][]int32{make([]int32, s.blocks[0]), make([]int32, s.blocks[1])}
	for range o.Draws / 4 {
		for side := range times {
			clear(times[side])
			for range s.blocks[side] {
				times[side][r.IntN(s.blocks[side])]++
			}
		}
		for i, v := range of(&times) {
			if !math.IsNaN(v) {
				draws[i] = append(draws[i], v)
			}
		}
	}
	pct := func(v float64) float64 { return 100 * math.Expm1(v) }
	interval := func(i int) (lo, hi float64) {
		if len(draws[i]) < o.Draws/8 || min(s.blocks[0], s.blocks[1]) < 2 {
			return math.NaN(), math.NaN()
		}
		slices.Sort(draws[i])
		tail := (1 - o.Confidence) / 2
		return pct(stats.Quantile(draws[i], tail)), pct(stats.Quantile(draws[i], 1-tail))
	}
	var mean [2]float64
	for i := range s.all {
		mean[s.all[i].side] += s.all[i].y / float64(s.n[s.all[i].side])
	}
	out := Split{Name: t.Name, Unit: t.Unit, Base: figure.Known(math.Exp(mean[0])), Candidate: figure.Known(math.Exp(mean[1])), ChangePct: figure.Known(pct(point[0])), Parts: []Part{}}
	lo, hi := interval(0)
	out.Interval = [2]Null{figure.Known(lo), figure.Known(hi)}
	for i := 1; i < len(names); i++ {
		lo, hi := interval(i)
		out.Parts = append(out.Parts, Part{names[i], figure.Known(pct(point[i])), [2]Null{figure.Known(lo), figure.Known(hi)}})
	}
	if share := 1 - point[5]/point[0]; lo*hi > 0 && share >= 0 && share <= 1 {
		out.TrafficShare = figure.Known(share)
	}
	last := out.Parts[4]
	server := change(&t, t.Name+"_server", "at equal lengths, cached tokens and load", math.Exp(mean[0]), math.Exp(mean[0]+point[5]), last.ChangePct.V/100,
		orNaN(last.Interval[0])/100, orNaN(last.Interval[1])/100, cmp.Or(o.MinEffect, t.Matters), s.pairs)
	server.Gates = true
	return out, server
}

func orNaN(v Null) float64 {
	if !v.Valid {
		return math.NaN()
	}
	return v.V
}
