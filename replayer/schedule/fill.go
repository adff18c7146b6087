package schedule

import (
	"fmt"
	"iter"
	"math/bits"
	"slices"
	"strings"
	"time"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/workload"
	"github.com/shadowtape/shadowtape/internal/workload/fit"
)

// Fill says how what a trace does not say is drawn. The zero value fits a model to the trace itself.
type Fill struct {
	Off   bool            // draw nothing
	Model *workload.Model // draw from this one instead; it may also give a trace arrivals, sessions and prefixes
	Rate  float64         // arrivals a second of a trace that has no times: the model's scaled to it, or a Poisson process; 0: the model's
	Seed  int64
}

// Filling draws what a trace does not say: lengths, and of imported traces the kind of a request (endpoint, stream, sampling), from the
// model's window that the request falls into, conditional on what is known of it. What a recorder saw is not missing: a parameter that
// a recorded request did not carry stays away. Nor is the length of an answer that its client broke off. Each drawn value is marked in
// its row (Drawn, and the source of a length).
type Filling struct {
	Model    *workload.Model // nil: none could be made, and no length is drawn
	Arrivals bool            // the trace has no times, and gets them
	Warnings []string        // what is missing and cannot be drawn

	o        Fill
	rows     int64
	kinds    bool // what is not known of a request's kind is drawn
	sessions bool
	times    *workload.Model // of arrivals
}

// mostFitted bounds how many rows a model is fitted to: 32 bytes are held of each.
const mostFitted = 1 << 21

// Lacking looks at what a trace does not say, and makes ready to draw it; nil where nothing is to be drawn or said.
func (o Fill) Lacking(t *formats.Trace) (*Filling, error) {
	if o.Off {
		return nil, nil
	}
	f := &Filling{o: o}
	var lengths, unkind, kind, related int64
	for b, err := range t.Scan(formats.ColPhase, formats.ColEndpoint, formats.ColEndReason, formats.ColStream, formats.ColInputTokens, formats.ColOutputTokens, formats.ColSessionID, formats.ColPrefixBlocks) {
		if err != nil {
			return nil, err
		}
		phase, endpoint, end := b.String(formats.ColPhase), b.String(formats.ColEndpoint), b.String(formats.ColEndReason)
		known := func(valid []bool, i int) bool { return valid == nil || valid[i] }
		_, input := b.Int64(formats.ColInputTokens)
		_, output := b.Int64(formats.ColOutputTokens)
		_, stream := b.Int64(formats.ColStream)
		_, session := b.Hash(formats.ColSessionID)
		_, _, blocks := b.List(formats.ColPrefixBlocks)
		for i := range phase {
			if !scheduled(formats.Phase(phase[i])) {
				continue
			}
			f.rows++
			if !known(input, i) || !known(output, i) && answers(formats.Endpoint(endpoint[i]), formats.EndReason(end[i])) {
				lengths++
			}
			if endpoint[i] == "" && !known(stream, i) {
				unkind++
			} else {
				kind++
			}
			if known(session, i) || known(blocks, i) {
				related++
			}
		}
	}
	imported := strings.HasPrefix(t.Header.SourceKind, "import:")
	f.kinds = imported && unkind > 0 && (kind > 0 || o.Model != nil)
	f.sessions = o.Model != nil && o.Model.Threads != nil && related == 0
	times := t.Header.Extra["arrivals"] == "order only" && f.rows > 1
	if err := f.prepare(t, times, lengths); err != nil {
		return nil, err
	}
	if f.Model == nil && !f.Arrivals && len(f.Warnings) == 0 {
		return nil, nil
	}
	return f, nil
}

// answers says whether an answer has a length that counts.
func answers(e formats.Endpoint, end formats.EndReason) bool {
	return e != formats.EndpointEmbeddings && e != formats.EndpointRerank && end != formats.EndClientAbort
}

func (f *Filling) prepare(t *formats.Trace, times bool, lengths int64) error {
	o := &f.o
	if times {
		switch {
		case o.Model != nil:
			f.times, f.Arrivals = o.Model, true
		case o.Rate > 0:
			law, err := workload.ParseArrival("poisson", o.Rate, 0)
			if err != nil {
				return err
			}
			one := workload.Length{Family: workload.Fixed, Mean: 1}
			if f.times, err = workload.Written(law, one, one, nil); err != nil {
				return err
			}
			f.Arrivals = true
		default:
			f.Warnings = append(f.Warnings, fmt.Sprintf("the trace has an order but no times: its %d requests are all due at once (--rate or --fill give them times, --users does without)", f.rows))
		}
	}
	if lengths == 0 && !f.kinds && !f.sessions {
		return nil
	}
	if f.Model = o.Model; f.Model != nil {
		return f.Model.Validate()
	}
	m, err := fitted(t, times)
	if err != nil {
		f.Warnings = append(f.Warnings, fmt.Sprintf("%d of %d requests do not say how long they are, and no model can be made of the others: %v", lengths, f.rows, err))
		f.kinds = false
		return nil
	}
	m.Mix = slices.DeleteFunc(m.Mix, func(k workload.Kind) bool { return k.Endpoint == "" && k.Stream == nil }) // what is not known is no kind
	f.Model = m
	return nil
}

// fitted is a model of a trace's rows, in windows as fine as its lengths allow.
func fitted(t *formats.Trace, times bool) (*workload.Model, error) {
	rows := func(yield func(*formats.Exchange, error) bool) {
		n := int64(0)
		for a, err := range FromTrace(t) {
			x := a.Exchange
			if err == nil && times { // an order is all there is
				y := *x
				y.ArrivalUnixNS = n * int64(time.Second)
				x = &y
			}
			if !yield(x, err) {
				return
			}
			if n++; n == mostFitted {
				return
			}
		}
	}
	var m *workload.Model
	var err error
	for _, window := range []float64{0, 600, 7200, 1e6, 1e9} {
		if times {
			window = 1e9
		}
		if m, err = fit.Trace(iter.Seq2[*formats.Exchange, error](rows), fit.Options{Window: window, Fold: -1, Header: t.Header, Source: t.Name}); err == nil || times {
			break
		}
	}
	return m, err
}

// Apply draws what a schedule's requests lack. It must be the trace's whole schedule, in order; each pass over it draws the same.
func (f *Filling) Apply(s Arrivals) Arrivals {
	if f == nil || f.Model == nil && !f.Arrivals {
		return s
	}
	return func(yield func(Arrival, error) bool) {
		var lengths, times *workload.Filler
		for a, err := range s {
			if err == nil && lengths == nil && times == nil {
				start := a.Exchange.ArrivalUnixNS
				if f.Model != nil {
					lengths, err = f.Model.Filler(uint64(f.o.Seed), start)
				}
				if err == nil && f.Arrivals {
					if times, err = f.times.Filler(uint64(f.o.Seed), start); err == nil {
						defer times.Close()
					}
				}
			}
			if err == nil {
				a, err = f.draw(a, lengths, times)
			}
			if !yield(a, err) || err != nil {
				return
			}
		}
	}
}

// draw fills one arrival.
func (f *Filling) draw(a Arrival, lengths, times *workload.Filler) (Arrival, error) {
	y := *a.Exchange // not ours to change
	if times != nil {
		start := y.ArrivalUnixNS
		ok, err := times.Arrival(&y, workload.Options{Seed: uint64(f.o.Seed), Requests: f.rows, Rate: f.o.Rate})
		if err == nil && !ok {
			err = fmt.Errorf("the model ends before the trace's %d requests", f.rows)
		}
		if err != nil {
			return a, fmt.Errorf("draw arrivals: %w", err)
		}
		a.At = time.Duration(y.ArrivalUnixNS - start)
	}
	if lengths != nil {
		z := y
		bits := lengths.Fill(&z)
		keep := int64(0)
		if bits&formats.DrawnInput != 0 {
			y.InputTokens, y.InputTokensSource = z.InputTokens, z.InputTokensSource
			keep |= formats.DrawnInput
		}
		if bits&formats.DrawnOutput != 0 && answers(y.Endpoint, y.EndReason) {
			y.OutputTokens, y.OutputTokensSource = z.OutputTokens, z.OutputTokensSource
			keep |= formats.DrawnOutput
		}
		if bits&formats.DrawnSampling != 0 && f.kinds && y.Endpoint == "" && !y.Stream.Valid {
			y.Endpoint, y.RequestModel, y.ResponseFormat, y.Stream, y.Temperature, y.TopP, y.TopK = z.Endpoint, z.RequestModel, z.ResponseFormat, z.Stream, z.Temperature, z.TopP, z.TopK
			y.PresencePenalty, y.FrequencyPenalty, y.RepetitionPenalty, y.N = z.PresencePenalty, z.FrequencyPenalty, z.RepetitionPenalty, z.N
			keep |= formats.DrawnSampling
		}
		if bits&formats.DrawnSession != 0 && f.sessions {
			y.SessionID, y.Turn, y.PrefixBlocks, y.PrefixTailTokens = z.SessionID, z.Turn, z.PrefixBlocks, z.PrefixTailTokens
			keep |= formats.DrawnSession
		}
		if keep != 0 {
			y.Drawn = formats.Of(y.Drawn.Or(0) | keep)
		}
	}
	a.Exchange = &y
	return a, nil
}

// Drawn counts rows by what was drawn of them.
type Drawn [5]int64

// Add counts a row's Drawn bits.
func (d *Drawn) Add(x *formats.Exchange) {
	for b := uint64(x.Drawn.Or(0)); b != 0; b &= b - 1 {
		if i := bits.TrailingZeros64(b); i < len(d) {
			d[i]++
		}
	}
}

// Counts names what was drawn, as run.json does: arrivals, input_tokens, output_tokens, sampling, sessions; what was not is left out.
func (d *Drawn) Counts() map[string]int64 {
	m := map[string]int64{}
	for i, name := range [...]string{"arrivals", "input_tokens", "output_tokens", "sampling", "sessions"} {
		if d[i] > 0 {
			m[name] = d[i]
		}
	}
	return m
}

// String is Counts as text, in that order; "" where nothing was drawn.
func (d *Drawn) String() string {
	var out []string
	for i, name := range [...]string{"arrivals", "input lengths", "output lengths", "sampling", "sessions"} {
		if d[i] > 0 {
			out = append(out, fmt.Sprintf("%d %s", d[i], name))
		}
	}
	return strings.Join(out, ", ")
}
