// Package fit makes workload models of traces: windows with their counts, arrivals and lengths, what requests share, and their kinds.
package fit

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/stats"
	"github.com/shadowtape/shadowtape/internal/workload"
)

// Options say how finely a trace is looked at.
type Options struct {
	Window  float64 // seconds; 0: 60, more where a window would hold fewer than 30 requests, 10 where traffic is on and off within a minute
	Fold    float64 // seconds after which windows of an hour repeat; 0: a day for traces of 2 days or more, a week for 14 days or more; negative: never
	Tenants int     // that get windows of their own, the busiest; 0 is 50
	Family  string  // of lengths; "" or table: as they were seen, with their dependence; else a family of Length, input and output apart
	Header  formats.Header
	Source  string // the trace's name
}

// Validate reports options that cannot be used.
func (o Options) Validate() error {
	var errs []error
	if !(o.Window >= 0) || math.IsInf(o.Window, 0) || math.IsNaN(o.Fold) || o.Tenants < 0 {
		errs = append(errs, fmt.Errorf("window %v, fold %v, %d tenants: must be numbers, window and tenants not negative", o.Window, o.Fold, o.Tenants))
	}
	if o.Fold > 0 && !(o.Fold >= hour && o.Fold <= 366*day) {
		errs = append(errs, fmt.Errorf("fold %v s: between an hour and a year", o.Fold))
	}
	if o.Family != "" && o.Family != workload.Table {
		if _, err := Length(o.Family, []float64{1, 2}); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

const (
	defaultWindow  = 60.0
	windowRequests = 30 // a window should hold so many
	// Where traffic is on and off inside a window, its counts over burstWindow seconds disperse by more than burstDispersion within windows;
	// then windows are that short, if they hold burstRequests on average. No renewal process inside a longer window has such bursts.
	burstWindow     = 10.0
	burstDispersion = 3.0
	burstRequests   = 10
	tableParts      = 32 // parts of a window's input lengths
	tableOutputs    = 8  // outputs kept of each part
	defaultTenants  = 50
	longest         = 1 << 24   // tokens; what is said to be longer is unknown
	maxWindows      = 1_000_000 // of all clients together
	allGaps         = 1_000_000 // that families are fitted to, of all windows together; a window gets some in any case
	leastGaps       = 200
	hour            = 3600.0
	day             = 24 * hour
)

// sample is what is kept of a request while fitting.
type sample struct {
	at     int64 // nanoseconds
	in     float64
	out    float64 // negative: one of the two is unknown
	client int32
}

// Columns are those that Trace looks at.
func Columns() []formats.Column {
	return []formats.Column{formats.ColArrival, formats.ColPhase, formats.ColTenantID, formats.ColSessionID, formats.ColInputTokens, formats.ColOutputTokens, formats.ColPrefixBlocks,
		formats.ColEndReason, formats.ColEndpoint, formats.ColRequestModel, formats.ColResponseFormat, formats.ColStream, formats.ColTemperature, formats.ColTopP, formats.ColTopK,
		formats.ColPresencePenalty, formats.ColFrequencyPenalty, formats.ColRepetitionPenalty, formats.ColN}
}

// Trace makes a model of a trace's requests, which come in the order of their arrivals; warm-up is left out. Rows out of order are moved to
// where they belong. A request of unknown or impossible length counts as an arrival, and a window where no length is known takes those of
// the whole trace. Some 30 bytes a request stay in memory meanwhile, 50 more where it says what it shares, and the distinct prefix blocks.
func Trace(rows iter.Seq2[*formats.Exchange, error], o Options) (*workload.Model, error) {
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("fit: %w", err)
	}
	var samples []sample
	tenants := map[formats.Null[formats.Hash]]int32{}
	var names []string
	var kinds workload.KindCounter
	threads := newThreadFit(o.Header)
	aborted, unknown := 0.0, 0
	for x, err := range rows {
		if err != nil {
			return nil, fmt.Errorf("fit: %w", err)
		}
		if x.Phase == formats.PhaseWarmup {
			continue
		}
		id, ok := tenants[x.TenantID]
		if !ok {
			id = int32(len(names))
			tenants[x.TenantID] = id
			name := ""
			if x.TenantID.Valid {
				name = fmt.Sprintf("%x", x.TenantID.V)
			}
			names = append(names, name)
		}
		s := sample{at: x.ArrivalUnixNS, in: float64(x.InputTokens.V), out: float64(x.OutputTokens.V), client: id}
		if !x.InputTokens.Valid || !x.OutputTokens.Valid || x.InputTokens.V < 1 || x.OutputTokens.V < 1 || x.InputTokens.V > longest || x.OutputTokens.V > longest {
			s.out = -1
			unknown++
		}
		samples = append(samples, s)
		kinds.Add(x)
		if x.EndReason == formats.EndClientAbort {
			aborted++
		}
		threads.add(x)
	}
	if len(samples) < 2 {
		return nil, fmt.Errorf("fit: %d requests are too few", len(samples))
	}
	slices.SortStableFunc(samples, func(a, b sample) int { return cmp.Compare(a.at, b.at) })
	m := &workload.Model{Schema: workload.ModelSchema, Source: o.Source, Mix: kinds.Mix(), Threads: threads.done(), Aborted: math.Round(aborted/float64(len(samples))*1e6) / 1e6}
	if unknown > 0 {
		m.Extra = map[string]any{"requests": len(samples), "requests_without_lengths": unknown}
	}
	m.Quantum = quantum(samples, o.Header)
	spread(samples, m.Quantum)
	if err := windows(m, samples, names, o); err != nil {
		return nil, fmt.Errorf("fit: %w", err)
	}
	if err := m.Validate(); err != nil {
		return nil, fmt.Errorf("fit: the model does not hold: %w", err)
	}
	return m, nil
}

// quantum is the clock's tick in seconds where the trace says it or shows it: most times are shared, and the distinct ones are spaced by it.
func quantum(samples []sample, h formats.Header) float64 {
	if h.TimeQuantumNS > 0 {
		return float64(h.TimeQuantumNS) / 1e9
	}
	var ticks stats.Ticks
	for _, s := range samples {
		ticks.Add(s.at)
	}
	return math.Round(float64(ticks.Tick())/1e6) / 1e3
}

// spread moves arrivals that share a tick apart, evenly over the tick's length.
func spread(samples []sample, quantum float64) {
	if quantum == 0 {
		return
	}
	for i := 0; i < len(samples); {
		j := i
		for j < len(samples) && samples[j].at == samples[i].at {
			j++
		}
		rng := rand.New(rand.NewPCG(uint64(samples[i].at), 0))
		at := make([]float64, j-i)
		for k := range at {
			at[k] = rng.Float64()
		}
		slices.Sort(at)
		for k := range at {
			samples[i+k].at += int64(at[k] * quantum * 1e9)
		}
		i = j
	}
	slices.SortStableFunc(samples, func(a, b sample) int { return cmp.Compare(a.at, b.at) })
}

// fitWindows cuts the samples into windows and fits each.
func windows(m *workload.Model, samples []sample, names []string, o Options) error {
	first, last := samples[0].at, samples[len(samples)-1].at
	span := float64(last-first) / 1e9
	width, cycle := o.Window, o.Fold
	if cycle == 0 {
		switch {
		case span >= 14*day:
			cycle = 7 * day
		case span >= 2*day:
			cycle = day
		}
	}
	folded := cycle > 0
	if folded {
		width = hour
	} else if width == 0 {
		width = defaultWindow
		for _, w := range []float64{60, 300, 900, 3600} {
			width = w
			if float64(len(samples))*w/max(span, 1) >= windowRequests {
				break
			}
		}
		if width == defaultWindow && float64(len(samples))*burstWindow/max(span, 1) >= burstRequests && within(samples, width, burstWindow) > burstDispersion {
			width = burstWindow
		}
	}
	if !folded {
		// The last window ends with the trace, so that a repeated model has no gap.
		if cycle = max(span+span/float64(len(samples)), 1e-3); span == 0 {
			cycle = 1 // one instant says nothing of a rate
		}
	}
	m.Seconds = math.Round(cycle*1e6) / 1e6
	rounds := 1.0
	if folded {
		rounds = max(span/cycle, 1)
	}
	client := busiest(samples, names, o.Tenants)
	if n := m.Seconds / width * float64(len(client.names)); n > maxWindows {
		return fmt.Errorf("%v s of %d clients make %.0f windows of %v s: take longer ones, or fewer tenants", m.Seconds, len(client.names), n, width)
	}
	count := max(int(m.Seconds/width+0.9), 1) // the last window takes up to a tenth of another
	gaps := min(max(allGaps/(count*len(client.names)), leastGaps), maxGaps)
	var anyLengths [][2]float64 // of the whole trace, where a window does not know its own
	for i, name := range client.names {
		windows := make([]window, count)
		for _, s := range samples {
			if client.of[s.client] != i {
				continue
			}
			t := float64(s.at-first) / 1e9
			round := math.Floor(t / m.Seconds)
			w := &windows[min(int((t-round*m.Seconds)/width), count-1)]
			w.add(s, round)
		}
		c := workload.Client{Tenant: name}
		for k := range windows {
			start := float64(k) * width
			end := start + width
			if k == count-1 {
				end = m.Seconds
			}
			w := &windows[k]
			if w.count > 0 && len(w.pairs) == 0 {
				if anyLengths == nil {
					if anyLengths = lengths(samples); len(anyLengths) == 0 {
						return errors.New("no request says how long it is")
					}
				}
				w.pairs = anyLengths
			}
			w.gaps = w.gaps[:min(len(w.gaps), gaps)]
			f, err := w.fit(start, end-start, rounds, o.Family)
			if err != nil {
				return err
			}
			c.Windows = append(c.Windows, f)
		}
		m.Clients = append(m.Clients, c)
	}
	return nil
}

// lengths are those of all requests that say theirs, evenly thinned to as many as tables can tell apart.
func lengths(samples []sample) (pairs [][2]float64) {
	const most = 100_000
	stride := len(samples)/most + 1
	for pass := range stride { // the first pass that finds some: those that say theirs may be few
		for i := pass; i < len(samples); i += stride {
			if s := samples[i]; s.out > 0 {
				pairs = append(pairs, [2]float64{s.in, s.out})
			}
		}
		if len(pairs) > 0 {
			break
		}
	}
	return pairs
}

// maxCounts bounds the grid that arrivals are counted on.
const maxCounts = 1 << 24

// within is the index of dispersion of counts over short windows around the mean of the long window that holds them.
func within(samples []sample, long, short float64) float64 {
	first := samples[0].at
	per := int(long / short)
	windows := float64(samples[len(samples)-1].at-first) / 1e9 / long
	if windows*float64(per) > maxCounts { // years: no trace, but two that share a directory
		return 0
	}
	counts := make([]float64, int(windows)*per)
	for _, s := range samples {
		if i := int(float64(s.at-first) / 1e9 / short); i < len(counts) {
			counts[i]++
		}
	}
	squares, total := 0.0, 0.0
	for i := 0; i+per <= len(counts); i += per {
		mean := 0.0
		for _, n := range counts[i : i+per] {
			mean += n / float64(per)
		}
		for _, n := range counts[i : i+per] {
			squares += (n - mean) * (n - mean) * float64(per) / float64(per-1)
		}
		total += mean * float64(per)
	}
	return squares / max(total, 1)
}

// clients are the tenants that get windows of their own, and one for the others.
type clients struct {
	names []string
	of    []int // by tenant
}

func busiest(samples []sample, names []string, limit int) clients {
	if limit == 0 {
		limit = defaultTenants
	}
	counts := make([]int, len(names))
	for _, s := range samples {
		counts[s.client]++
	}
	order := make([]int, len(names))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(counts[b], counts[a]) })
	c := clients{of: make([]int, len(names))}
	rest := -1
	for rank, t := range order {
		if rank < limit && names[t] != "" {
			c.of[t] = len(c.names)
			c.names = append(c.names, names[t])
			continue
		}
		if rest < 0 {
			rest = len(c.names)
			c.names = append(c.names, "")
		}
		c.of[t] = rest
	}
	return c
}

// window collects the requests of one window, in the order of time; folded windows are visited in several rounds.
type window struct {
	pairs [][2]float64
	gaps  []float64
	last  int64
	round float64
	count float64
}

func (w *window) add(s sample, round float64) {
	if w.count > 0 && round == w.round {
		w.gaps = append(w.gaps, float64(s.at-w.last)/1e9)
	}
	w.last, w.round = s.at, round
	w.count++
	if s.out > 0 {
		w.pairs = append(w.pairs, [2]float64{s.in, s.out})
	}
}

func (w *window) fit(start, seconds, rounds float64, family string) (workload.Window, error) {
	out := workload.Window{Start: start, Seconds: math.Round(seconds*1e6) / 1e6, Count: significant(w.count/rounds, 7)}
	if out.Count == 0 {
		return out, nil
	}
	out.Arrival = Arrival(w.gaps)
	out.Arrival.Rate = out.Count / out.Seconds
	a := &out.Arrival
	for _, v := range []*float64{&a.Rate, &a.CV, &a.Burst, &a.On, &a.Off} {
		*v = significant(*v, 6)
	}
	if family == "" || family == workload.Table {
		parts, outputs := tableParts, tableOutputs
		if rounds > 1 {
			parts, outputs = 4*tableParts, 2*tableOutputs
		}
		out.Lengths = workload.LengthsOf(w.pairs, parts, outputs)
		return out, nil
	}
	var laws [2]workload.Length
	for k := range laws {
		values := make([]float64, len(w.pairs))
		for i, p := range w.pairs {
			values[i] = p[k]
		}
		var err error
		if laws[k], err = Length(family, values); err != nil {
			return out, err
		}
	}
	out.Lengths = workload.Lengths{InputLaw: &laws[0], OutputLaw: &laws[1]}
	return out, nil
}

// significant rounds to so many digits.
func significant(x float64, digits int) float64 {
	if x == 0 || math.IsInf(x, 0) || math.IsNaN(x) {
		return x
	}
	scale := math.Pow(10, float64(digits)-math.Ceil(math.Log10(math.Abs(x))))
	return math.Round(x*scale) / scale
}
