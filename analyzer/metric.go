package analyzer

import (
	"github.com/shadowtape/shadowtape/formats"
)

// Metric is a property of one exchange: a line of the table that drives text, JSON, thresholds and docs/METRICS.md.
type Metric struct {
	Name       string
	Unit       string // of the samples: ms
	Better     string // lower, higher, or "" where a change is neither
	Definition string
	Notes      string

	// Samples yields the exchange's samples; a weight of k (a whole number) is k samples of one value. It yields nothing where the
	// metric is not defined.
	Samples func(x *formats.Exchange, yield func(value, weight float64))

	// Omitted counts the samples that the definition leaves out (events that shared a read, what loss or a retransmission touched, echoed prompts); nil where there are none.
	Omitted func(x *formats.Exchange) int64

	// PerRequest is set where an exchange has one sample at most (n = 1): what an SLO can be set on and what runs are paired on.
	PerRequest bool

	// Tokens is set where the value depends on a token count, whose source is then said.
	Tokens bool

	// Resolution is the smallest difference, in the metric's unit, that a client's clock and scheduler can vouch for; a diff never calls less a change.
	Resolution float64

	// Matters is the smallest relative change of a typical request that a diff calls one, and MattersSlow that of slow requests and percentiles.
	Matters, MattersSlow float64

	// Detail is set where the terminal summary leaves the metric to JSON.
	Detail bool

	// Spare is how soon the terminal summary leaves the metric out where it has too many lines; 0 is never.
	Spare int

	// Informs is set where the metric explains and never decides a diff.
	Informs bool
}

const nsPerMS = 1e6

// Metrics returns the table, in the order in which it is shown. The slice is the caller's.
func Metrics() []Metric { return append([]Metric(nil), metrics...) }

// MetricNamed finds a metric.
func MetricNamed(name string) (Metric, bool) {
	for _, m := range metrics {
		if m.Name == name {
			return m, true
		}
	}
	return Metric{}, false
}

var metrics = []Metric{
	{
		Name: "ttft", Unit: "ms", Better: "lower", PerRequest: true, Resolution: 1, Matters: 0.05, MattersSlow: 0.10,
		Definition: "first event that carries a generated token (content, reasoning, refusal, tool call) − scheduled time",
		Notes:      "Role-only, empty, usage, comment and progress frames are not tokens. Defined for one-token outputs; undefined for answers that were not streamed and for failed requests. A first token that was touched by a retransmission or by loss, or that may be the echoed prompt, is left out and counted; so in every metric that begins or ends with such a token.",
		Samples:    since(firstToken, answered, false), Omitted: omitted(firstToken, answered, false),
	}, {
		Name: "ttft_from_send", Unit: "ms", Better: "lower", PerRequest: true, Resolution: 1, Matters: 0.05, MattersSlow: 0.10, Informs: true,
		Definition: "ttft counted from the first request byte written",
		Notes:      "Beside ttft it shows what the client itself added. Undefined where the send time is unknown.",
		Samples:    since(firstToken, answered, true), Omitted: omitted(firstToken, answered, true),
	}, {
		Name: "ttfc", Unit: "ms", Better: "lower", Spare: 4, PerRequest: true, Resolution: 1, Matters: 0.05, MattersSlow: 0.10, Informs: true,
		Definition: "first event that carries answer content (not reasoning) − scheduled time",
		Notes:      "What a user waits for in front of a reasoning model.",
		Samples:    since(firstContent, answered, false), Omitted: omitted(firstContent, answered, false),
	}, {
		Name: "ttfc_from_send", Unit: "ms", Better: "lower", PerRequest: true, Detail: true, Resolution: 1, Matters: 0.05, MattersSlow: 0.10, Informs: true,
		Definition: "ttfc counted from the first request byte written",
		Samples:    since(firstContent, answered, true), Omitted: omitted(firstContent, answered, true),
	}, {
		Name: "tpot", Unit: "ms", Better: "lower", PerRequest: true, Tokens: true, Resolution: 0.1, Matters: 0.05, MattersSlow: 0.10,
		Definition: "(last token − first token) ÷ (tokens after the first event), per request",
		Notes:      "Undefined where no token came after the first event. Tokens are the usage count, not the number of events; where the first event's tokens are unknown it is taken as one. With n > 1 one sample per choice, and none where a choice's tokens are unknown.",
		Samples:    tpot, Omitted: func(x *formats.Exchange) (n int64) {
			spans(x, func(_ float64, use bool) {
				if !use {
					n++
				}
			})
			return n
		},
	}, {
		Name: "itl", Unit: "ms", Better: "lower", Tokens: true, Resolution: 0.1, Matters: 0.05, MattersSlow: 0.10,
		Definition: "a gap g between events that brought k tokens gives k samples of g ÷ k",
		Notes:      "Events that shared a read or packet with the one before, and gaps touched by a retransmission, by loss or by an echoed prompt, are left out and counted. With n > 1 gaps are between events of one choice. Where an event's tokens are unknown they are taken as one.",
		Samples:    itl, Omitted: omittedGaps,
	}, {
		Name: "event_gap", Unit: "ms", Better: "lower", Spare: 3, Resolution: 0.1, Matters: 0.05, MattersSlow: 0.10, Informs: true,
		Definition: "a gap g between events gives one sample of g",
		Notes:      "What a user sees stutter. The same events are left out as for itl.",
		Samples:    eventGaps, Omitted: omittedGaps,
	}, {
		Name: "e2el", Unit: "ms", Better: "lower", PerRequest: true, Resolution: 1, Matters: 0.05, MattersSlow: 0.10,
		Definition: "last token − scheduled time; the last body byte where there were no token events",
		Notes:      "Complete answers only.",
		Samples:    since(lastToken, complete, false), Omitted: omitted(lastToken, complete, false),
	}, {
		Name: "e2el_from_send", Unit: "ms", Better: "lower", Spare: 1, PerRequest: true, Resolution: 1, Matters: 0.05, MattersSlow: 0.10, Informs: true,
		Definition: "e2el counted from the first request byte written",
		Samples:    since(lastToken, complete, true), Omitted: omitted(lastToken, complete, true),
	}, {
		Name: "end", Unit: "ms", Better: "lower", PerRequest: true, Detail: true, Resolution: 1, Matters: 0.05, MattersSlow: 0.10, Informs: true,
		Definition: "last response byte − scheduled time",
		Notes:      "Complete answers only. The difference to e2el is the tail after the last token: usage, [DONE], the end of the connection's answer.",
		Samples: func(x *formats.Exchange, yield func(value, weight float64)) {
			if complete(x) && x.EndNS.Valid && x.EndNS.V >= 0 {
				yield(float64(x.EndNS.V)/nsPerMS, 1)
			}
		},
	}, {
		Name: "send_lag", Unit: "ms", Better: "lower", PerRequest: true, Resolution: 1, Matters: 0.05, MattersSlow: 0.10, Informs: true,
		Definition: "first request byte written − scheduled time",
		Notes:      "The client's own failure, measured. Defined for replays.",
		Samples: func(x *formats.Exchange, yield func(value, weight float64)) {
			if x.Phase != formats.PhaseRecord && x.SentNS.Valid {
				yield(float64(x.SentNS.V)/nsPerMS, 1)
			}
		},
	}, {
		Name: "client_delay", Unit: "ms", Better: "lower", Spare: 2, PerRequest: true, Resolution: 1, Matters: 0.05, MattersSlow: 0.10, Informs: true,
		Definition: "user-space read of the first token − the kernel's receive stamp",
		Notes:      "A read's stamp is that of its newest segment, so this is an upper bound for the events before it in the same read.",
		Samples: func(x *formats.Exchange, yield func(value, weight float64)) {
			if x.ClientDelayUS.Valid {
				yield(float64(x.ClientDelayUS.V)/1e3, 1)
			}
		},
	},
}

// metricColumns are the columns that the metrics and the counters read.
var metricColumns = []formats.Column{
	formats.ColArrival, formats.ColPhase, formats.ColSent, formats.ColFirstToken, formats.ColFirstContent, formats.ColLastToken,
	formats.ColEnd, formats.ColClientDelay, formats.ColStream, formats.ColInputTokens, formats.ColInputTokensSource,
	formats.ColOutputTokens, formats.ColOutputTokensSource, formats.ColErrorKind, formats.ColEndReason, formats.ColN,
}

// gapColumns are the columns that itl and event gaps read beside those; they are most of a recording's bytes.
var gapColumns = []formats.Column{
	formats.ColChoiceOutputTokens, formats.ColEventGap, formats.ColEventTokens, formats.ColEventChoice, formats.ColEventFlags,
}

// complete reports whether the answer came whole and without an error.
func complete(x *formats.Exchange) bool { return outcomeOf(x) == outcomeCompleted }

// answered reports whether the times of an exchange are those of a service doing its work: it did not fail. What a client gave up, or
// the end of a run cut, still has its first token.
func answered(x *formats.Exchange) bool {
	o := outcomeOf(x)
	return o != outcomeFailed && o != outcomeDropped
}

// since makes the samples of a moment, from the schedule or from the send. A moment that is not that of a token is left out.
func since(at func(*formats.Exchange) (formats.Null[int64], bool), counts func(*formats.Exchange) bool, fromSend bool) func(*formats.Exchange, func(value, weight float64)) {
	return func(x *formats.Exchange, yield func(value, weight float64)) {
		t, use := at(x)
		start := formats.Of(int64(0))
		if fromSend {
			start = x.SentNS
		}
		if !use || !t.Valid || !counts(x) || !start.Valid || t.V < start.V { // a moment before its start was seen by two clocks: it says nothing
			return
		}
		yield(float64(t.V-start.V)/nsPerMS, 1)
	}
}

// omitted counts the moments that since leaves out.
func omitted(at func(*formats.Exchange) (formats.Null[int64], bool), counts func(*formats.Exchange) bool, fromSend bool) func(*formats.Exchange) int64 {
	return func(x *formats.Exchange) int64 {
		if t, use := at(x); use || !t.Valid || !counts(x) || fromSend && !x.SentNS.Valid {
			return 0
		}
		return 1
	}
}

func tpot(x *formats.Exchange, yield func(value, weight float64)) {
	spans(x, func(perToken float64, use bool) {
		if use {
			yield(perToken, 1)
		}
	})
}

// spans visits milliseconds a token after the first event, of each choice; use is false where its first or last event is untimely.
func spans(x *formats.Exchange, visit func(perToken float64, use bool)) {
	if !answered(x) || !x.FirstTokenNS.Valid || !x.LastTokenNS.Valid || x.LastTokenNS.V < x.FirstTokenNS.V {
		return
	}
	if x.N.Or(1) > 1 || len(x.EventChoice) > 0 {
		spansByChoice(x, visit)
		return
	}
	if !x.OutputTokens.Valid {
		return
	}
	first := int64(1)
	if len(x.EventTokens) > 0 && x.EventTokens[0] > 0 {
		first = int64(x.EventTokens[0])
	}
	if after := x.OutputTokens.V - first; after > 0 {
		use := !flagged(x, 0, untimely) && !flagged(x, len(x.EventGapUS)-1, untimely)
		visit(float64(x.LastTokenNS.V-x.FirstTokenNS.V)/nsPerMS/float64(after), use)
	}
}

// spansByChoice needs each choice's own tokens and events.
func spansByChoice(x *formats.Exchange, visit func(perToken float64, use bool)) {
	if len(x.ChoiceOutputTokens) == 0 || len(x.EventChoice) != len(x.EventGapUS) {
		return
	}
	type span struct {
		first, last int64 // µs since the first token
		tokens      int64 // of the first event
		seen        bool
		from, to    int // the events
	}
	spans := make([]span, len(x.ChoiceOutputTokens))
	at := int64(0)
	for i, gap := range x.EventGapUS {
		at += int64(gap)
		c := int(x.EventChoice[i])
		if c < 0 || c >= len(spans) {
			continue
		}
		s := &spans[c]
		if !s.seen {
			*s = span{first: at, tokens: 1, seen: true, from: i}
			if len(x.EventTokens) == len(x.EventGapUS) && x.EventTokens[i] > 0 {
				s.tokens = int64(x.EventTokens[i])
			}
		}
		s.last, s.to = at, i
	}
	for c, s := range spans {
		if after := x.ChoiceOutputTokens[c] - s.tokens; s.seen && after > 0 {
			visit(float64(s.last-s.first)/1e3/float64(after), !flagged(x, s.from, untimely) && !flagged(x, s.to, untimely))
		}
	}
}

// A gap does not say how long tokens took where the event that ends it came together with the one before, or where either is untimely:
// what was late, or the prompt, makes the next gap as wrong as its own. What was lost is in the gap that ends behind it only.
const (
	gapEnds   = formats.FlagCoalesced | untimely
	gapBegins = formats.FlagRetransmit | formats.FlagEcho
)

// gaps walks the gaps between events of one choice: when each ended, in microseconds after the first token, the gap in microseconds, and the
// tokens that the event brought (1 where unknown). Gaps that say nothing come with use false.
func gaps(x *formats.Exchange, visit func(end, us int64, tokens int32, use bool)) {
	if !answered(x) {
		return
	}
	tokens := func(i int) int32 {
		if len(x.EventTokens) == len(x.EventGapUS) {
			return x.EventTokens[i]
		}
		return 1
	}
	use := func(before, i int) bool { return !flagged(x, i, gapEnds) && !flagged(x, before, gapBegins) }
	if len(x.EventChoice) != len(x.EventGapUS) || len(x.EventGapUS) == 0 {
		at := int64(0)
		for i := 1; i < len(x.EventGapUS); i++ {
			us := int64(x.EventGapUS[i])
			at += us
			visit(at, us, tokens(i), use(i-1, i))
		}
		return
	}
	type event struct {
		at    int64
		index int
	}
	last := map[int32]event{}
	at := int64(0)
	for i, gap := range x.EventGapUS {
		at += int64(gap)
		c := x.EventChoice[i]
		if before, seen := last[c]; seen {
			visit(at, at-before.at, tokens(i), use(before.index, i))
		}
		last[c] = event{at, i}
	}
}

func itl(x *formats.Exchange, yield func(value, weight float64)) {
	gaps(x, func(_, us int64, tokens int32, use bool) {
		if use && tokens > 0 {
			yield(float64(us)/1e3/float64(tokens), float64(tokens))
		}
	})
}

func eventGaps(x *formats.Exchange, yield func(value, weight float64)) {
	gaps(x, func(_, us int64, _ int32, use bool) {
		if use {
			yield(float64(us)/1e3, 1)
		}
	})
}

func omittedGaps(x *formats.Exchange) int64 {
	n := int64(0)
	gaps(x, func(_, _ int64, _ int32, use bool) {
		if !use {
			n++
		}
	})
	return n
}
