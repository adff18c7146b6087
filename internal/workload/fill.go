package workload

import (
	"fmt"
	"iter"
	"math"
	"sort"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/stats"
)

// Filler draws what a trace does not say from a model, conditional on what it says. Not safe for concurrent use.
type Filler struct {
	m     *Model
	src   source
	kinds kindPicker
	weave *threader
	start int64
	times func() (int64, bool)
	stop  func()
}

// Filler returns a filler whose draws depend on the seed and on each request's own fields and place, not on other requests' fields.
// start is the trace's first arrival: the model's windows count from there.
func (m *Model) Filler(seed uint64, start int64) (*Filler, error) {
	if err := m.Validate(); err != nil {
		return nil, fmt.Errorf("fill: %w", err)
	}
	root := source{stats.Mix(seed)}
	f := &Filler{m: m, src: root.fork(11), kinds: newKindPicker(m.Mix), start: start}
	if m.Threads != nil {
		f.weave = newThreader(m.Threads, root.fork(12))
	}
	return f, nil
}

// Fill draws x's missing input and output tokens, its endpoint, stream flag and sampling parameters where it has none of them, and, where
// the model knows sessions or prefixes and x has neither, its session and prefix blocks. It sets Drawn's bits for what it drew and
// returns them. Requests come in the order of their arrivals. An embedding gets no output tokens.
func (f *Filler) Fill(x *formats.Exchange) int64 {
	drawn := int64(0)
	// What is drawn for one request must not depend on what others lacked.
	src := f.src.fork(f.src.next())
	input, output := !x.InputTokens.Valid, !x.OutputTokens.Valid
	if x.Endpoint == formats.EndpointEmbeddings || x.Endpoint == formats.EndpointRerank {
		output = false
	}
	if input || output {
		l := f.lengths(x)
		switch {
		case input && output:
			x.InputTokens.V, x.OutputTokens.V = l.draw(src.uniform(), &src)
		case output:
			x.OutputTokens.V = l.outputFor(x.InputTokens.V, &src)
		default:
			x.InputTokens.V = l.inputFor(x.OutputTokens, &src)
		}
		if input {
			x.InputTokens.Valid, x.InputTokensSource = true, formats.TokensDrawn
			drawn |= formats.DrawnInput
		}
		if output {
			x.OutputTokens.Valid, x.OutputTokensSource = true, formats.TokensDrawn
			drawn |= formats.DrawnOutput
		}
	}
	if f.fillKind(x, &src) {
		drawn |= formats.DrawnSampling
	}
	if f.weave != nil {
		before := *x
		f.weave.weave(x)
		if before.SessionID.Valid {
			x.SessionID, x.Turn = before.SessionID, before.Turn
		} else if x.SessionID.Valid {
			drawn |= formats.DrawnSession
		}
		if before.PrefixBlocks != nil {
			x.PrefixBlocks, x.PrefixTailTokens = before.PrefixBlocks, before.PrefixTailTokens
		} else if x.PrefixBlocks != nil {
			drawn |= formats.DrawnSession
		}
		x.Drawn = before.Drawn
	}
	if drawn != 0 {
		x.Drawn = formats.Of(x.Drawn.Or(0) | drawn)
	}
	return drawn
}

// lengths are those of the window and client that x belongs to.
func (f *Filler) lengths(x *formats.Exchange) Lengths {
	c := &f.m.Clients[0]
	for i := range f.m.Clients {
		tenant, _ := parseHash(f.m.Clients[i].Tenant) // validated
		if tenant == x.TenantID {
			c = &f.m.Clients[i]
			break
		}
	}
	if f.m.Seconds == 0 {
		return c.Windows[0].Lengths
	}
	t := float64(x.ArrivalUnixNS-f.start) / 1e9
	t -= math.Floor(t/f.m.Seconds) * f.m.Seconds
	at := max(sort.Search(len(c.Windows), func(i int) bool { return c.Windows[i].Start > t })-1, 0)
	for d := range len(c.Windows) { // the nearest window that has requests
		for _, i := range [2]int{at + d, at - d} {
			if i >= 0 && i < len(c.Windows) && c.Windows[i].Count > 0 {
				return c.Windows[i].Lengths
			}
		}
	}
	fixed := Length{Family: Fixed, Mean: 1}
	return Lengths{InputLaw: &fixed, OutputLaw: &fixed}
}

// outputFor draws an output for a known input: from the part of the table that the input belongs to.
func (l Lengths) outputFor(input int64, s *source) int64 {
	if l.OutputLaw != nil {
		return l.OutputLaw.draw(s)
	}
	i := sort.SearchFloat64s(l.Inputs, float64(input))
	if i == len(l.Inputs) || i > 0 && float64(input)-l.Inputs[i-1] < l.Inputs[i]-float64(input) {
		i--
	}
	return whole(l.Outputs[i][s.below(len(l.Outputs[i]))], s)
}

// inputFor draws an input for an output that may be known: a part of the table, each as likely as its outputs are near the known one.
func (l Lengths) inputFor(output formats.Null[int64], s *source) int64 {
	if l.InputLaw != nil {
		return l.InputLaw.draw(s)
	}
	i := s.below(len(l.Inputs))
	if output.Valid && output.V > 0 {
		sums, sum := make([]float64, len(l.Inputs)), 0.0
		for k, outputs := range l.Outputs {
			near := 0.0
			for _, o := range outputs {
				// A quarter of a logarithm: outputs within some 30 % count as the same.
				d := ln(max(o, 1)/float64(output.V)) / 0.25
				near += exp(-float64(d*d) / 2)
			}
			sum += near/float64(len(outputs)) + 1e-9
			sums[k] = sum
		}
		i = min(sort.SearchFloat64s(sums, float64(s.uniform()*sum)), len(sums)-1)
	}
	return whole(l.Inputs[i], s)
}

// fillKind draws what is unknown of a request's kind, among the kinds that agree with what is known; false where nothing was drawn.
func (f *Filler) fillKind(x *formats.Exchange, s *source) bool {
	if len(f.m.Mix) == 0 || x.Temperature.Valid || x.TopP.Valid || x.TopK.Valid || x.PresencePenalty.Valid || x.FrequencyPenalty.Valid || x.RepetitionPenalty.Valid || x.N.Valid {
		return false
	}
	agree := func(k *Kind) bool {
		return (x.Endpoint == "" || x.Endpoint == k.Endpoint) && (!x.Stream.Valid || k.Stream != nil && *k.Stream == x.Stream.V) && (x.RequestModel == "" || x.RequestModel == k.Model)
	}
	sum := 0.0
	for i := range f.m.Mix {
		if agree(&f.m.Mix[i]) {
			sum += f.m.Mix[i].Weight
		}
	}
	u := float64(s.uniform() * sum)
	for i := range f.m.Mix {
		k := &f.m.Mix[i]
		if !agree(k) {
			continue
		}
		if u -= k.Weight; u < 0 {
			before := keyOf(x)
			k.apply(x)
			return keyOf(x) != before
		}
	}
	return false
}

// Arrival gives x the next arrival of the model, for a trace without times, counted from start; false at the model's end, where the
// options give it one. The first call fixes the options.
func (f *Filler) Arrival(x *formats.Exchange, o Options) (bool, error) {
	if f.times == nil {
		rows, err := f.m.Generate(o)
		if err != nil {
			return false, err
		}
		next, stop := pull(rows)
		f.times, f.stop = next, stop
	}
	at, ok := f.times()
	if !ok {
		return false, nil
	}
	x.ArrivalUnixNS = f.start + at
	x.Drawn = formats.Of(x.Drawn.Or(0) | formats.DrawnArrival)
	return true, nil
}

// Close releases what Arrival holds.
func (f *Filler) Close() {
	if f.stop != nil {
		f.stop()
	}
}

// pull turns requests into a function that returns the next arrival.
func pull(rows iter.Seq2[*formats.Exchange, error]) (next func() (int64, bool), stop func()) {
	step, stop := iter.Pull2(rows)
	return func() (int64, bool) {
		x, err, ok := step()
		if !ok || err != nil {
			return 0, false
		}
		return x.ArrivalUnixNS, true
	}, stop
}
