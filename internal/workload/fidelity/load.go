// Package fidelity says how far one trace's load is from another's: distances of gaps and lengths, dispersion at several time scales, drift,
// shared prefixes, and what an engine in virtual time makes of both. Marginal distances alone do not tell loads apart: a stationary model
// with the right histograms can give a fiftieth of the waiting of the trace it was made from.
package fidelity

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"sort"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/kv"
)

// Load is what is kept of a trace's requests, in the order of their arrivals.
type Load struct {
	at     []float64 // seconds since the first
	input  []float64 // tokens; only of requests whose lengths are both known
	output []float64
	of     []int // the arrival of each length
	curve  kv.Curve
	blocks bool
	turns  map[formats.Hash]int
	think  []float64
	last   map[formats.Hash]turn
	change []float64 // tokens from the prompt of each turn to the next one's
}

// turn is a session's last.
type turn struct{ at, input float64 }

// minimum is the least number of requests that can be compared.
const minimum = 10

// Read keeps what is compared of a trace. About 40 bytes a request stay in memory, and the distinct prefix blocks.
func Read(rows iter.Seq2[*formats.Exchange, error]) (*Load, error) {
	l := &Load{turns: map[formats.Hash]int{}, last: map[formats.Hash]turn{}}
	first, lastAt := int64(0), math.Inf(-1)
	ordered := true
	var blocks []uint64
	for x, err := range rows {
		if err != nil {
			return nil, fmt.Errorf("read load: %w", err)
		}
		if len(l.at) == 0 {
			first = x.ArrivalUnixNS
		}
		t := float64(x.ArrivalUnixNS-first) / 1e9
		ordered = ordered && t >= lastAt
		lastAt = t
		if x.InputTokens.Valid && x.OutputTokens.Valid {
			l.input, l.output = append(l.input, float64(x.InputTokens.V)), append(l.output, float64(x.OutputTokens.V))
			l.of = append(l.of, len(l.at))
		}
		l.at = append(l.at, t)
		if x.PrefixBlocks != nil {
			l.blocks = true
			blocks = blocks[:0]
			for _, b := range x.PrefixBlocks {
				blocks = append(blocks, uint64(b))
			}
			l.curve.Use(blocks)
		}
		if x.SessionID.Valid {
			if old, ok := l.last[x.SessionID.V]; ok {
				l.think = append(l.think, t-old.at)
				if old.input > 0 && x.InputTokens.Valid {
					l.change = append(l.change, float64(x.InputTokens.V)-old.input)
				}
			}
			l.turns[x.SessionID.V]++
			l.last[x.SessionID.V] = turn{t, float64(x.InputTokens.V)}
		}
	}
	if len(l.at) < minimum {
		return nil, fmt.Errorf("read load: %d requests are too few to compare", len(l.at))
	}
	if !ordered {
		l.sort()
	}
	sort.Float64s(l.think)
	sort.Float64s(l.change)
	l.last = nil
	return l, nil
}

// sort puts requests in the order of their arrivals.
func (l *Load) sort() {
	order := make([]int, len(l.at))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(l.at[a], l.at[b]) })
	rank, at := make([]int, len(order)), make([]float64, len(order))
	for i, o := range order {
		rank[o], at[i] = i, l.at[o]-l.at[order[0]]
	}
	l.at = at
	byArrival := make([]int, len(l.of))
	for i := range byArrival {
		byArrival[i] = i
	}
	slices.SortStableFunc(byArrival, func(a, b int) int { return cmp.Compare(rank[l.of[a]], rank[l.of[b]]) })
	input, output, of := make([]float64, len(l.of)), make([]float64, len(l.of)), make([]int, len(l.of))
	for i, k := range byArrival {
		input[i], output[i], of[i] = l.input[k], l.output[k], rank[l.of[k]]
	}
	l.input, l.output, l.of = input, output, of
}

// span is the time from the first to the last arrival, in seconds.
func (l *Load) span() float64 { return l.at[len(l.at)-1] }

func (l *Load) gaps() []float64 {
	g := make([]float64, len(l.at)-1)
	for i := range g {
		g[i] = l.at[i+1] - l.at[i]
	}
	return g
}

// windows sums a value of each arrival over whole windows of so many seconds; nil where there are fewer than two, or so many that the
// trace spans years.
func (l *Load) windows(seconds float64, value func(lengthIndex int) float64) []float64 {
	n := int(l.span() / seconds)
	if n < 2 || n > 1<<26 {
		return nil
	}
	w := make([]float64, n)
	for i, k := range l.of {
		if j := int(l.at[k] / seconds); j < n {
			w[j] += value(i)
		}
	}
	return w
}

// Figures describe one load. What cannot be known is unknown.
type Figures struct {
	Requests        int                `json:"requests"`
	Rate            float64            `json:"rate_per_s"`
	GapCV           float64            `json:"gap_cv"`
	IDC             map[string]Null    `json:"idc"`                   // of counts, by window: "1s", "10s", "60s", "300s"
	GapLag1         Null               `json:"gap_lag1"`              // autocorrelation of consecutive gaps
	InputLag1       Null               `json:"input_lag1"`            // and of consecutive input lengths
	InputMean       Null               `json:"input_mean"`            // tokens
	OutputMean      Null               `json:"output_mean"`           // tokens
	MeanLengthRatio Null               `json:"window_mean_ratio_60s"` // variance of 60 s windows' mean input ÷ what independent lengths would give
	WorkIDC         map[string]Null    `json:"work_idc"`              // of tokens, by window; 1 is a Poisson process with independent lengths
	WorkLag1        Null               `json:"work_lag1_60s"`         // autocorrelation of consecutive 60 s windows' tokens
	PrefixHits      map[string]float64 `json:"prefix_hits,omitempty"` // share of blocks that an LRU cache finds, by capacity in blocks; "inf" is endless
	Sessions        int                `json:"sessions,omitempty"`
	Turns           Null               `json:"turns_mean"`
	Between         Null               `json:"turn_gap_p50_s"`
	Growth          Null               `json:"turn_growth_p50"`    // tokens by which a session's prompt grows from one turn to the next
	Shrinking       Null               `json:"turn_shrinks_share"` // of later turns: those whose prompt is shorter than the one before
}

// Null is a figure that may be unknown.
type Null = formats.Null[float64]

// the time scales of dispersion, in seconds, and the capacities of the hit curve, in blocks.
var (
	scales     = []float64{1, 10, 60, 300}
	capacities = []int{1000, 2000, 4000, 8000, 16000, 32000, 64000}
)

func scaleName(s float64) string { return fmt.Sprintf("%gs", s) }

// Figures computes what describes a load.
func (l *Load) Figures() Figures {
	f := Figures{Requests: len(l.at), IDC: map[string]Null{}, WorkIDC: map[string]Null{}}
	gaps := l.gaps()
	f.Rate = float64(len(l.at)) / max(l.span(), 1e-9)
	mean, variance := moments(gaps)
	f.GapCV = math.Sqrt(variance) / max(mean, 1e-12)
	f.GapLag1 = lag1(gaps)
	f.InputLag1 = lag1(l.input)
	for _, s := range scales {
		f.IDC[scaleName(s)] = l.dispersion(s)
		f.WorkIDC[scaleName(s)] = l.workDispersion(s)
	}
	if len(l.input) > 0 {
		in, _ := moments(l.input)
		out, _ := moments(l.output)
		f.InputMean, f.OutputMean = formats.Of(in), formats.Of(out)
	}
	f.MeanLengthRatio = l.drift(60)
	f.WorkLag1 = lag1(l.windows(60, func(i int) float64 { return l.input[i] + l.output[i] }))
	if l.blocks {
		f.PrefixHits = map[string]float64{"inf": l.curve.HitRate(0)}
		for _, n := range capacities {
			f.PrefixHits[fmt.Sprint(n)] = l.curve.HitRate(n)
		}
	}
	if f.Sessions = len(l.turns); f.Sessions > 0 {
		n := 0
		for _, t := range l.turns {
			n += t
		}
		f.Turns = formats.Of(float64(n) / float64(len(l.turns)))
		if len(l.think) > 0 {
			f.Between = formats.Of(l.think[len(l.think)/2])
		}
		if n := len(l.change); n > 0 {
			f.Growth = formats.Of(l.change[n/2])
			f.Shrinking = formats.Of(float64(sort.SearchFloat64s(l.change, 0)) / float64(n))
		}
	}
	return f
}

// dispersion is the variance of counts ÷ their mean over whole windows.
func (l *Load) dispersion(seconds float64) Null {
	n := int(l.span() / seconds)
	if n < 2 {
		return Null{}
	}
	w := make([]float64, n)
	for _, t := range l.at {
		if j := int(t / seconds); j < n {
			w[j]++
		}
	}
	mean, variance := moments(w)
	return formats.Of(variance / mean)
}

// workDispersion is the variance of tokens per window ÷ what a Poisson process with independent lengths of the same distribution has.
func (l *Load) workDispersion(seconds float64) Null {
	w := l.windows(seconds, func(i int) float64 { return l.input[i] + l.output[i] })
	if w == nil || len(l.input) == 0 {
		return Null{}
	}
	_, variance := moments(w)
	square, n := 0.0, 0.0
	for i := range l.input {
		x := l.input[i] + l.output[i]
		square += x * x
		n++
	}
	perWindow := n * seconds / l.span()
	return formats.Of(variance / (perWindow * square / n))
}

// drift compares the variance of windows' mean input with that of as many independent draws. The last, partial window counts too.
func (l *Load) drift(seconds float64) Null {
	n := int(l.span()/seconds) + 1
	sums, counts := make([]float64, n), make([]float64, n)
	for i, k := range l.of {
		j := min(int(l.at[k]/seconds), n-1)
		sums[j] += l.input[i]
		counts[j]++
	}
	var means []float64
	inverse := 0.0
	for i, n := range counts {
		if n > 0 {
			means = append(means, sums[i]/n)
			inverse += 1 / n
		}
	}
	if len(means) < 2 {
		return Null{}
	}
	_, between := moments(means)
	_, all := moments(l.input)
	if all == 0 {
		return Null{}
	}
	return formats.Of(between / (all * inverse / float64(len(means))))
}

// moments are mean and population variance.
func moments(v []float64) (mean, variance float64) {
	for _, x := range v {
		mean += x / float64(len(v))
	}
	for _, x := range v {
		variance += (x - mean) * (x - mean) / float64(len(v))
	}
	return mean, variance
}

// lag1 is the correlation of consecutive values.
func lag1(v []float64) Null {
	if len(v) < 3 {
		return Null{}
	}
	mean, variance := moments(v)
	if variance == 0 {
		return Null{}
	}
	sum := 0.0
	for i := 1; i < len(v); i++ {
		sum += (v[i] - mean) * (v[i-1] - mean)
	}
	return formats.Of(sum / variance / float64(len(v)))
}

// Distance is how far two distributions are apart.
type Distance struct {
	KS          float64 `json:"ks"`          // greatest difference of the distribution functions
	Wasserstein float64 `json:"wasserstein"` // area between them ÷ the mean of the first: the relative amount by which values differ
}

// Report compares two loads; B against A.
type Report struct {
	Schema int      `json:"schema"`
	A      Figures  `json:"a"`
	B      Figures  `json:"b"`
	Gaps   Distance `json:"gaps"` // of each load's gaps ÷ their mean: the shape, not the rate
	Input  Distance `json:"input_tokens"`
	Output Distance `json:"output_tokens"`
	Joint  Null     `json:"joint_ks"` // of input and output together: greatest difference over a grid of A's quantiles
	// Of sessions; nil where one load has none, or none of a second turn.
	Turns   *Distance `json:"turns,omitempty"`       // a session
	Between *Distance `json:"turn_gap,omitempty"`    // seconds from a turn's arrival to the next one's
	Growth  *Distance `json:"turn_growth,omitempty"` // tokens by which prompts grow
	Queue   []Queue   `json:"queue,omitempty"`       // what an engine makes of both
	Hits    Null      `json:"prefix_hits_distance"`  // greatest difference of the hit curves
}

// ErrNoLengths says that a trace does not say how long its requests are.
var ErrNoLengths = errors.New("no request says how long it is")

// Compare computes the distances of b from a, but for Queue.
func Compare(a, b *Load) (Report, error) {
	r := Report{Schema: 1, A: a.Figures(), B: b.Figures()}
	if len(a.input) == 0 || len(b.input) == 0 {
		return r, fmt.Errorf("compare loads: %w", ErrNoLengths)
	}
	relative := func(g []float64) []float64 {
		mean, _ := moments(g)
		for i := range g {
			g[i] /= max(mean, 1e-12)
		}
		return g
	}
	r.Gaps = distance(relative(a.gaps()), relative(b.gaps()))
	r.Input = distance(slices.Clone(a.input), slices.Clone(b.input))
	r.Output = distance(slices.Clone(a.output), slices.Clone(b.output))
	r.Joint = formats.Of(joint(a, b))
	r.Turns = distances(a.turnCounts(), b.turnCounts())
	r.Between = distances(slices.Clone(a.think), slices.Clone(b.think))
	r.Growth = distances(slices.Clone(a.change), slices.Clone(b.change))
	if a.blocks && b.blocks {
		most := 0.0
		for k, v := range r.A.PrefixHits {
			most = max(most, math.Abs(v-r.B.PrefixHits[k]))
		}
		r.Hits = formats.Of(most)
	}
	return r, nil
}

// turnCounts is how many turns each session has.
func (l *Load) turnCounts() []float64 {
	counts := make([]float64, 0, len(l.turns))
	for _, n := range l.turns {
		counts = append(counts, float64(n))
	}
	return counts
}

// distances is nil where one side has no values; it sorts both.
func distances(a, b []float64) *Distance {
	if len(a) == 0 || len(b) == 0 {
		return nil
	}
	d := distance(a, b)
	return &d
}

// distance sorts both.
func distance(a, b []float64) (d Distance) {
	sort.Float64s(a)
	sort.Float64s(b)
	mean, _ := moments(a)
	i, j := 0, 0
	last := math.Min(a[0], b[0])
	area := 0.0
	for i < len(a) || j < len(b) {
		x := math.Inf(1)
		if i < len(a) {
			x = a[i]
		}
		if j < len(b) {
			x = math.Min(x, b[j])
		}
		area += math.Abs(float64(i)/float64(len(a))-float64(j)/float64(len(b))) * (x - last)
		for i < len(a) && a[i] == x {
			i++
		}
		for j < len(b) && b[j] == x {
			j++
		}
		d.KS = math.Max(d.KS, math.Abs(float64(i)/float64(len(a))-float64(j)/float64(len(b))))
		last = x
	}
	d.Wasserstein = area / max(math.Abs(mean), 1e-12)
	return d
}

// joint is the greatest difference of the two joint distribution functions over a grid of 16 by 16 of a's quantiles.
func joint(a, b *Load) float64 {
	const k = 16
	edges := func(v []float64) []float64 {
		s := slices.Clone(v)
		sort.Float64s(s)
		e := make([]float64, k)
		for i := range e {
			e[i] = s[(i+1)*(len(s)-1)/k]
		}
		return e
	}
	ei, eo := edges(a.input), edges(a.output)
	cdf := func(l *Load) (c [k][k]float64) {
		for n := range l.input {
			i, o := sort.SearchFloat64s(ei, l.input[n]), sort.SearchFloat64s(eo, l.output[n])
			if i < k && o < k {
				c[i][o] += 1 / float64(len(l.input))
			}
		}
		for i := range c {
			for o := range c[i] {
				if i > 0 {
					c[i][o] += c[i-1][o]
				}
				if o > 0 {
					c[i][o] += c[i][o-1]
				}
				if i > 0 && o > 0 {
					c[i][o] -= c[i-1][o-1]
				}
			}
		}
		return c
	}
	ca, cb := cdf(a), cdf(b)
	most := 0.0
	for i := range ca {
		for o := range ca[i] {
			most = math.Max(most, math.Abs(ca[i][o]-cb[i][o]))
		}
	}
	return most
}
