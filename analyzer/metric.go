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

	// Omitted counts the samples that the definition leaves out (events that shared a read, gaps touched by loss); nil where there are none.
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
		Notes:      "Role-only, empty, usage, comment and progress frames are not tokens. Defined for one-token outputs; undefined for answers that were not streamed and for failed requests.",
		Samples:    since(func(x *formats.Exchange) formats.Null[int64] { return x.FirstTokenNS }, false),
	}, {
		Name: "ttft_from_send", Unit: "ms", Better: "lower", PerRequest: true, Resolution: 1, Matters: 0.05, MattersSlow: 0.10, Informs: true,
		Definition: "ttft counted from the first request byte written",
		Notes:      "Beside ttft it shows what the client itself added. Undefined where the send time is unknown.",
		Samples:    since(func(x *formats.Exchange) formats.Null[int64] { return x.FirstTokenNS }, true),
	}, {
		Name: "ttfc", Unit: "ms", Better: "lower", Spare: 4, PerRequest: true, Resolution: 1, Matters: 0.05, MattersSlow: 0.10, Informs: true,
		Definition: "first event that carries answer content (not reasoning) − scheduled time",
		Notes:      "What a user waits for in front of a reasoning model.",
		Samples:    since(func(x *formats.Exchange) formats.Null[int64] { return x.FirstContentNS }, false),
	}, {
		Name: "ttfc_from_send", Unit: "ms", Better: "lower", PerRequest: true, Detail: true, Resolution: 1, Matters: 0.05, MattersSlow: 0.10, Informs: true,
		Definition: "ttfc counted from the first request byte written",
		Samples:    since(func(x *formats.Exchange) formats.Null[int64] { return x.FirstContentNS }, true),
	}, {
		Name: "tpot", Unit: "ms", Better: "lower", PerRequest: true, Tokens: true, Resolution: 0.1, Matters: 0.05, MattersSlow: 0.10,
		Definition: "(last token − first token) ÷ (tokens after the first event), per request",
		Notes:      "Undefined where no token came after the first event. Tokens are the usage count, not the number of events; where the first event's tokens are unknown it is taken as one. With n > 1 one sample per choice, and none where a choice's tokens are unknown.",
		Samples:    tpot,
	}, {
		Name: "itl", Unit: "ms", Better: "lower", Tokens: true, Resolution: 0.1, Matters: 0.05, MattersSlow: 0.10,
		Definition: "a gap g between events that brought k tokens gives k samples of g ÷ k",
		Notes:      "Events that shared a read or packet with the one before, and gaps touched by a retransmission or by loss, are left out and counted. With n > 1 gaps are between events of one choice. Where an event's tokens are unknown they are taken as one.",
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
		Samples:    e2el(false),
	}, {
		Name: "e2el_from_send", Unit: "ms", Better: "lower", Spare: 1, PerRequest: true, Resolution: 1, Matters: 0.05, MattersSlow: 0.10, Informs: true,
		Definition: "e2el counted from the first request byte written",
		Samples:    e2el(true),
	}, {
		Name: "end", Unit: "ms", Better: "lower", PerRequest: true, Detail: true, Resolution: 1, Matters: 0.05, MattersSlow: 0.10, Informs: true,
		Definition: "last response byte − scheduled time",
		Notes:      "Complete answers only. The difference to e2el is the tail after the last token: usage, [DONE], the end of the connection's answer.",
		Samples: func(x *formats.Exchange, yield func(value, weight float64)) {
			if complete(x) && x.EndNS.Valid {
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

// since makes the samples of a moment, from the schedule or from the send.
func since(at func(*formats.Exchange) formats.Null[int64], fromSend bool) func(*formats.Exchange, func(value, weight float64)) {
	return func(x *formats.Exchange, yield func(value, weight float64)) {
		t := at(x)
		if !t.Valid || !answered(x) {
			return
		}
		if !fromSend {
			yield(float64(t.V)/nsPerMS, 1)
		} else if x.SentNS.Valid {
			yield(float64(t.V-x.SentNS.V)/nsPerMS, 1)
		}
	}
}

func e2el(fromSend bool) func(*formats.Exchange, func(value, weight float64)) {
	return func(x *formats.Exchange, yield func(value, weight float64)) {
		t := x.LastTokenNS
		if !t.Valid {
			t = x.EndNS
		}
		if !t.Valid || !complete(x) {
			return
		}
		if !fromSend {
			yield(float64(t.V)/nsPerMS, 1)
		} else if x.SentNS.Valid {
			yield(float64(t.V-x.SentNS.V)/nsPerMS, 1)
		}
	}
}

func tpot(x *formats.Exchange, yield func(value, weight float64)) {
	if !answered(x) || !x.FirstTokenNS.Valid || !x.LastTokenNS.Valid {
		return
	}
	if x.N.Or(1) > 1 || len(x.EventChoice) > 0 {
		tpotByChoice(x, yield)
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
		yield(float64(x.LastTokenNS.V-x.FirstTokenNS.V)/nsPerMS/float64(after), 1)
	}
}

// tpotByChoice needs each choice's own tokens and events.
func tpotByChoice(x *formats.Exchange, yield func(value, weight float64)) {
	if len(x.ChoiceOutputTokens) == 0 || len(x.EventChoice) != len(x.EventGapUS) {
		return
	}
	type span struct {
		first, last int64 // µs since the first token
		tokens      int64 // of the first event
		seen        bool
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
			*s = span{first: at, tokens: 1, seen: true}
			if len(x.EventTokens) == len(x.EventGapUS) && x.EventTokens[i] > 0 {
				s.tokens = int64(x.EventTokens[i])
			}
		}
		s.last = at
	}
	for c, s := range spans {
		if after := x.ChoiceOutputTokens[c] - s.tokens; s.seen && after > 0 {
			yield(float64(s.last-s.first)/1e3/float64(after), 1)
		}
	}
}

// gapFlags mark a gap that does not say when the tokens were made.
const gapFlags = formats.FlagCoalesced | formats.FlagRetransmit | formats.FlagGap

// gaps walks the gaps between events of one choice: when each ended, in microseconds after the first token, the gap in microseconds, and the
// tokens that the event brought (1 where unknown). Flagged events come with use false.
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
	use := func(i int) bool { return len(x.EventFlags) != len(x.EventGapUS) || x.EventFlags[i]&gapFlags == 0 }
	if len(x.EventChoice) != len(x.EventGapUS) || len(x.EventGapUS) == 0 {
		at := int64(0)
		for i := 1; i < len(x.EventGapUS); i++ {
			us := int64(x.EventGapUS[i])
			at += us
			visit(at, us, tokens(i), use(i))
		}
		return
	}
	last := map[int32]int64{}
	at := int64(0)
	for i, gap := range x.EventGapUS {
		at += int64(gap)
		c := x.EventChoice[i]
		if before, seen := last[c]; seen {
			visit(at, at-before, tokens(i), use(i))
		}
		last[c] = at
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
