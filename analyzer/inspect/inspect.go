// Package inspect says what a trace holds, whatever became of its requests: how they arrive, how long they are, what they share, every string
// in it, and one exchange by its request id.
package inspect

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/shadowtape/shadowtape/analyzer"
	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/figure"
	"github.com/shadowtape/shadowtape/internal/stats"
)

// Lengths are token counts of the requests that state one. Percentiles describe the trace as it is: no sample floor applies.
type Lengths struct {
	Mean analyzer.Null `json:"mean"`
	P50  analyzer.Null `json:"p50"`
	P90  analyzer.Null `json:"p90"`
	P95  analyzer.Null `json:"p95"`
	P99  analyzer.Null `json:"p99"`
	Max  analyzer.Null `json:"max"`
}

// Dispersions are indices of dispersion of arrival counts: population variance ÷ mean over complete windows from the first arrival.
// 1 is Poisson. analyzer.Null where the trace has no complete window.
type Dispersions struct {
	OneS   analyzer.Null `json:"1s"`
	TenS   analyzer.Null `json:"10s"`
	SixtyS analyzer.Null `json:"60s"`
}

// PrefixReuse is what an infinite prefix cache would have hit: the leading run of a request's blocks that an earlier request had.
type PrefixReuse struct {
	BlockHitRate analyzer.Null `json:"block_hit_rate"`
	TokenHitRate analyzer.Null `json:"token_hit_rate"`
}

// TokenSources are how many exchanges have their token counts from where; those without a count are unknown.
type TokenSources struct {
	Input  map[string]int64 `json:"input"`
	Output map[string]int64 `json:"output"`
}

// Profile says what a trace is like; it is inspect's JSON. Warm-up is left out.
type Profile struct {
	Schema         int              `json:"schema"`
	Exchanges      int64            `json:"exchanges"`
	SpanS          analyzer.Null    `json:"span_s"`          // last arrival − first
	RatePerS       analyzer.Null    `json:"rate_per_s"`      // n ÷ span
	InterarrivalCV analyzer.Null    `json:"interarrival_cv"` // population deviation ÷ mean of the gaps between sorted arrivals
	IDC            Dispersions      `json:"idc"`
	InputTokens    Lengths          `json:"input_tokens"`
	OutputTokens   Lengths          `json:"output_tokens"`
	TokenSources   TokenSources     `json:"token_sources"`
	Pearson        analyzer.Null    `json:"pearson"`  // of input and output tokens
	Spearman       analyzer.Null    `json:"spearman"` // ties share their average rank
	Prefix         PrefixReuse      `json:"prefix"`
	TimeQuantumMS  analyzer.Null    `json:"time_quantum_ms"`   // median spacing of the distinct times, where most are shared; else null
	Sessions       *int64           `json:"sessions"`          // distinct; null where the trace has none
	Overlapping    *int64           `json:"overlapping_turns"` // turns that came before an answer before them in their session had ended; null without sessions or ends
	Counters       formats.Counters `json:"counters"`          // what the recorder or importer met
	KeptBodies     string           `json:"kept_bodies"`       // the file in which the text of requests was kept; "" where there is none

	Label    string   `json:"-"`
	Source   string   `json:"-"`
	Warnings []string `json:"-"`
}

// Trace reads a trace once (twice where it is stored out of arrival order and has prefix blocks). It holds 8 bytes a row for arrival
// times, 8 for two lengths, 16 more while ranks are made, 32 for each distinct prefix block, 8 for each session and 24 for each of its turns.
func Trace(r *analyzer.Run) (Profile, error) {
	p := Profile{Schema: 1, Counters: r.Header.Counters, Label: r.Label, Source: r.Header.SourceKind}
	p.KeptBodies, p.Warnings = r.Header.KeptBodies, r.Warnings()
	p.TokenSources = TokenSources{map[string]int64{}, map[string]int64{}}
	in := inspection{header: r.Header, sessions: map[formats.Hash]int32{}}
	for x, err := range r.Exchanges(formats.ColArrival, formats.ColPhase, formats.ColInputTokens, formats.ColInputTokensSource,
		formats.ColOutputTokens, formats.ColOutputTokensSource, formats.ColPrefixBlocks, formats.ColPrefixTailTokens, formats.ColSessionID, formats.ColEnd) {
		if err != nil {
			return p, fmt.Errorf("inspect %s: %w", r.Name, err)
		}
		if x.Phase != formats.PhaseWarmup {
			in.add(x)
			p.TokenSources.Input[source(x.InputTokens, x.InputTokensSource)]++
			p.TokenSources.Output[source(x.OutputTokens, x.OutputTokensSource)]++
		}
	}
	if in.unsorted && in.prefix.requests > 0 {
		in.prefix = in.prefix.again()
		for x, err := range r.Exchanges(formats.ColArrival, formats.ColPhase, formats.ColInputTokens, formats.ColPrefixBlocks, formats.ColPrefixTailTokens) {
			if err != nil {
				return p, fmt.Errorf("inspect %s: %w", r.Name, err)
			}
			if x.Phase != formats.PhaseWarmup {
				in.prefix.add(x, r.Header)
			}
		}
	}
	in.fill(&p)
	return p, nil
}

// source is where a count came from.
func source(n formats.Null[int64], s formats.TokenSource) string {
	switch {
	case !n.Valid:
		return "unknown"
	case s == "":
		return "unsaid"
	}
	return string(s)
}

// inspection is what one pass keeps.
type inspection struct {
	header   formats.Header
	arrivals []int64
	unsorted bool
	input    []int32 // of all rows; −1 is unknown
	output   []int32
	prefix   prefixScan
	sessions map[formats.Hash]int32
	turns    []turn
	ends     bool // some turns say when they ended
}

// turn is one of a session's requests.
type turn struct {
	at, end int64 // ns; an end that is not known is at
	session int32
}

func (in *inspection) add(x *formats.Exchange) {
	if n := len(in.arrivals); n > 0 && x.ArrivalUnixNS < in.arrivals[n-1] {
		in.unsorted = true
	}
	in.arrivals = append(in.arrivals, x.ArrivalUnixNS)
	in.input = append(in.input, length(x.InputTokens))
	in.output = append(in.output, length(x.OutputTokens))
	if x.SessionID.Valid {
		n, known := in.sessions[x.SessionID.V]
		if !known {
			n = int32(len(in.sessions))
			in.sessions[x.SessionID.V] = n
		}
		in.turns = append(in.turns, turn{x.ArrivalUnixNS, x.ArrivalUnixNS + x.EndNS.Or(0), n})
		in.ends = in.ends || x.EndNS.Valid
	}
	in.prefix.add(x, in.header)
}

func length(n formats.Null[int64]) int32 {
	if !n.Valid || n.V < 0 {
		return -1
	}
	return int32(min(n.V, math.MaxInt32))
}

func (in *inspection) fill(p *Profile) {
	n := len(in.arrivals)
	p.Exchanges = int64(n)
	if len(in.sessions) > 0 {
		s := int64(len(in.sessions))
		p.Sessions = &s
		if in.ends {
			n := overlapping(in.turns)
			p.Overlapping = &n
		}
	}
	if b := in.prefix; b.blocks > 0 {
		p.Prefix.BlockHitRate = figure.Known(float64(b.hits) / float64(b.blocks))
		if b.tokens > 0 {
			p.Prefix.TokenHitRate = figure.Known(float64(b.hitTokens) / float64(b.tokens))
		}
	}
	p.InputTokens, p.OutputTokens = lengthsOf(in.input), lengthsOf(in.output)
	a, b := in.input[:0:0], in.output[:0:0]
	for i := range in.input {
		if in.input[i] >= 0 && in.output[i] >= 0 {
			a, b = append(a, in.input[i]), append(b, in.output[i])
		}
	}
	in.input, in.output = nil, nil
	p.Pearson, p.Spearman = figure.Known(stats.Pearson(a, b)), figure.Known(stats.Spearman(a, b))
	if n == 0 {
		return
	}
	if in.unsorted {
		slices.Sort(in.arrivals)
	}
	span := in.arrivals[n-1] - in.arrivals[0]
	p.SpanS = figure.Known(float64(span) / 1e9)
	if span == 0 {
		return
	}
	p.RatePerS = figure.Known(float64(n) / (float64(span) / 1e9))
	var m stats.Moments
	for i := 1; i < n; i++ {
		m.Add(float64(in.arrivals[i]-in.arrivals[i-1]), 1)
	}
	p.InterarrivalCV = figure.Known(m.Std() / m.Mean())
	for seconds, at := range map[int64]*analyzer.Null{1: &p.IDC.OneS, 10: &p.IDC.TenS, 60: &p.IDC.SixtyS} {
		if idc, ok := stats.Dispersion(in.arrivals, seconds*1e9); ok {
			*at = figure.Known(idc)
		}
	}
	p.TimeQuantumMS = timeQuantum(in.arrivals)
	if p.TimeQuantumMS.Valid {
		p.Warnings = append(p.Warnings, fmt.Sprintf("arrivals stand on a %s ms clock: dispersion below that is the clock's", figure.Number(p.TimeQuantumMS.V)))
	}
}

// overlapping counts the turns that came before an earlier one of their session had ended. It sorts them.
func overlapping(turns []turn) (n int64) {
	slices.SortStableFunc(turns, func(a, b turn) int { return cmp.Or(cmp.Compare(a.session, b.session), cmp.Compare(a.at, b.at)) })
	for i, end := 1, int64(0); i < len(turns); i++ {
		if a, b := turns[i-1], turns[i]; a.session == b.session {
			if end = max(end, a.end); end > b.at {
				n++
			}
		} else {
			end = 0
		}
	}
	return n
}

func lengthsOf(column []int32) Lengths {
	known := make([]float64, 0, len(column))
	var m stats.Moments
	for _, v := range column {
		if v >= 0 {
			known = append(known, float64(v))
			m.Add(float64(v), 1)
		}
	}
	if len(known) == 0 {
		return Lengths{}
	}
	slices.Sort(known)
	at := func(p float64) analyzer.Null { return formats.Of(stats.Quantile(known, p)) }
	return Lengths{Mean: formats.Of(m.Mean()), P50: at(0.5), P90: at(0.9), P95: at(0.95), P99: at(0.99), Max: at(1)}
}

// timeQuantum is the median spacing of the distinct times in milliseconds, where more than half of the arrivals share theirs with
// another.
func timeQuantum(sorted []int64) analyzer.Null {
	var ticks stats.Ticks
	for _, at := range sorted {
		ticks.Add(at)
	}
	if t := ticks.Tick(); t > 0 {
		return figure.Known(float64(t) / 1e6)
	}
	return analyzer.Null{}
}

// arrivalKey orders requests by arrival, then as stored.
type arrivalKey struct{ at, row int64 }

func (k arrivalKey) before(o arrivalKey) bool { return k.at < o.at || k.at == o.at && k.row < o.row }

// prefixScan counts hits of an infinite cache. A block is a hit where an earlier request had it; in arrival order one pass is enough,
// else a second pass counts against the first appearances that the first pass found.
type prefixScan struct {
	first             map[int64]arrivalKey
	row               int64
	requests          int64
	blocks, hits      int64
	tokens, hitTokens int64
	known             bool // first is final
}

// again starts the second pass.
func (s prefixScan) again() prefixScan { return prefixScan{first: s.first, known: true} }

func (s *prefixScan) add(x *formats.Exchange, h formats.Header) {
	key := arrivalKey{x.ArrivalUnixNS, s.row}
	s.row++
	if x.PrefixBlocks == nil {
		return
	}
	s.requests++
	if s.first == nil {
		s.first = map[int64]arrivalKey{}
	}
	k := len(x.PrefixBlocks)
	s.blocks += int64(k)
	leading := 0
	for leading < k {
		first, seen := s.first[x.PrefixBlocks[leading]]
		if !seen || !first.before(key) {
			break
		}
		leading++
	}
	s.hits += int64(leading)
	whole, hit := blockTokens(x, h, leading)
	s.tokens += whole
	s.hitTokens += hit
	if s.known {
		return
	}
	for _, b := range x.PrefixBlocks {
		if first, seen := s.first[b]; !seen || key.before(first) {
			s.first[b] = key
		}
	}
}

// blockTokens returns the size of a prompt and of its first blocks, in the header's unit: every block is full but, where a partial tail
// counts as one, the last.
func blockTokens(x *formats.Exchange, h formats.Header, leading int) (whole, hit int64) {
	k, size := int64(len(x.PrefixBlocks)), int64(h.PrefixBlockSize)
	if size <= 0 {
		return 0, 0
	}
	last := size
	whole = k*size + max(x.PrefixTailTokens.Or(0), 0)
	if h.PrefixBlockRule == "ceil" && k > 0 {
		switch {
		case h.PrefixBlockUnit == "tokens" && x.InputTokens.Valid:
			last = x.InputTokens.V - (k-1)*size
		case x.PrefixTailTokens.Valid && x.PrefixTailTokens.V > 0:
			last = x.PrefixTailTokens.V
		}
		whole = (k-1)*size + last
	}
	hit = int64(leading) * size
	if int64(leading) == k && k > 0 {
		hit = (k-1)*size + last
	}
	return whole, hit
}

// Text writes the profile for a terminal, at most 25 lines of 80 columns.
func (p Profile) Text(w io.Writer) error {
	b := bufio.NewWriter(w)
	line := func(format string, args ...any) {
		fmt.Fprintln(b, figure.Clip(fmt.Sprintf(format, args...), figure.Width))
	}
	if p.KeptBodies != "" {
		line("WARNING: the text of this trace's requests was kept, in %s", p.KeptBodies)
	}
	line("%s  %s exchanges over %s s, %s a second", p.Label, figure.Count(p.Exchanges), figure.Cell(p.SpanS), figure.Cell(p.RatePerS))
	if c := p.Counters; c.Seen > 0 {
		line("seen %s, filtered %s, dropped %s, written %s", figure.Count(c.Seen), figure.Count(c.Filtered), figure.Count(c.Dropped), figure.Count(c.Written))
		for _, k := range slices.Sorted(maps.Keys(c.Reasons)) {
			line("  left out: %s %s", k, figure.Count(c.Reasons[k]))
		}
		for _, k := range slices.Sorted(maps.Keys(c.Notes)) {
			line("  noted: %s %s", k, figure.Count(c.Notes[k]))
		}
	}
	if p.Exchanges == 0 {
		line("it is empty: there is no exchange to describe")
		for _, warning := range p.Warnings {
			line("warning: %s", warning)
		}
		return b.Flush()
	}
	line("arrivals       gaps vary by %s (1 is Poisson)", figure.Cell(p.InterarrivalCV))
	line("               counts disperse by %s at 1 s, %s at 10 s, %s at 60 s", figure.Cell(p.IDC.OneS), figure.Cell(p.IDC.TenS), figure.Cell(p.IDC.SixtyS))
	line("%-14s%9s%9s%9s%9s%9s%9s", "tokens", "mean", "p50", "p90", "p95", "p99", "max")
	for _, l := range []struct {
		name string
		l    Lengths
	}{{"input", p.InputTokens}, {"output", p.OutputTokens}} {
		line("%-14s%9s%9s%9s%9s%9s%9s", l.name, figure.Cell(l.l.Mean), figure.Cell(l.l.P50), figure.Cell(l.l.P90), figure.Cell(l.l.P95), figure.Cell(l.l.P99), figure.Cell(l.l.Max))
	}
	for _, f := range []struct {
		name string
		from map[string]int64
	}{{"input from", p.TokenSources.Input}, {"output from", p.TokenSources.Output}} {
		line("%-14s %s", f.name, shares(f.from, p.Exchanges))
	}
	line("correlation    pearson %s, spearman %s", figure.Cell(p.Pearson), figure.Cell(p.Spearman))
	if p.Prefix.BlockHitRate.Valid {
		line("prefix reuse   %s of blocks, %s of tokens with an endless cache", figure.Percent(p.Prefix.BlockHitRate), figure.Percent(p.Prefix.TokenHitRate))
	} else {
		line("prefix reuse   unknown: the trace has no prefix blocks")
	}
	if p.Sessions != nil {
		turns := ""
		if p.Overlapping != nil {
			turns = "; " + figure.Count(*p.Overlapping) + " turns came before the answer before them had ended"
		}
		line("sessions       %s%s", figure.Count(*p.Sessions), turns)
	}
	for _, warning := range p.Warnings {
		line("warning: %s", warning)
	}
	return b.Flush()
}

// shares lists what counts are of a whole, the largest first.
func shares(counts map[string]int64, whole int64) string {
	names := slices.Sorted(maps.Keys(counts))
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(counts[b], counts[a]) })
	for i, n := range names {
		names[i] = n + " " + figure.Percent(formats.Of(float64(counts[n])/float64(whole)))
	}
	return strings.Join(names, ", ")
}
