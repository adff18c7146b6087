package replayer

import (
	"fmt"
	"math"
	"time"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/stats"
	"github.com/shadowtape/shadowtape/replayer/schedule"
)

// asked is what the trace wanted of an exchange: what the answer is compared with.
type asked struct {
	input, output formats.Null[int64]
	stream        formats.Null[bool]
	tokensPer     float64 // tokens per event; 0: unknown
	abort         bool
	hit           formats.Null[int64] // tokens of its prefix that the schedule had brought before
}

func askedOf(x *formats.Exchange) asked {
	a := asked{input: x.InputTokens, output: x.OutputTokens, stream: x.Stream}
	if drawn := x.Drawn.Or(0); drawn != 0 { // what was not recorded is nothing to be compared with
		if drawn&formats.DrawnInput != 0 {
			a.input = none
		}
		if drawn&formats.DrawnOutput != 0 {
			a.output = none
		}
		if drawn&formats.DrawnSampling != 0 {
			a.stream = formats.Null[bool]{}
		}
	}
	a.tokensPer, _ = tokensPerEvent(x)
	return a
}

// tokensPerEvent is how many tokens a stream's events carried on average.
func tokensPerEvent(x *formats.Exchange) (float64, bool) {
	if len(x.EventGapUS) == 0 || !x.OutputTokens.Valid {
		return 0, false
	}
	return float64(x.OutputTokens.V) / float64(len(x.EventGapUS)), true
}

// Quality is how exactly a run was sent and measured. The samples are exact up to 262,144 values.
type Quality struct {
	SendLag     stats.Sample   // ms, of every request that was written
	ClientDelay stats.Sample   // ms from the kernel's stamp to the read, of every first token with one
	InputError  stats.Sample   // |used - recorded| ÷ recorded input tokens, by the server's count
	OutputError stats.Sample   // |generated - recorded| ÷ recorded output tokens, of completed answers
	PerEvent    stats.Sample   // tokens per event
	RecordedPer stats.Sample   // the same in the recording
	Drawn       schedule.Drawn // rows by what a model drew of them
	Events      int64          // token events
	Coalesced   int64          // of them, those that shared a read with the one before
	StreamKept  int64          // answers streamed as recorded
	StreamAsked int64          // answers whose recording says whether it was streamed
	Aborts      int64          // aborts that were recorded …
	AbortsKept  int64          // … and those that were replayed; the others' answers ended first
	// Of the answers whose usage says how much of the prompt was cached: prompt tokens, those cached, and those that a cache which
	// forgets nothing would have had.
	PrefixInput, PrefixObserved, PrefixExpected int64
}

func (q *Quality) limit() {
	for _, s := range []*stats.Sample{&q.SendLag, &q.ClientDelay, &q.InputError, &q.OutputError, &q.PerEvent, &q.RecordedPer} {
		s.Limit = 1 << 18
	}
}

func (q *Quality) add(x *formats.Exchange, a asked) {
	q.Drawn.Add(x)
	if x.SentNS.Valid {
		q.SendLag.Add(float64(x.SentNS.V)/1e6, 1)
	}
	if x.ClientDelayUS.Valid {
		q.ClientDelay.Add(float64(x.ClientDelayUS.V)/1e3, 1)
	}
	q.Events += int64(len(x.EventGapUS))
	for _, f := range x.EventFlags {
		if f&formats.FlagCoalesced != 0 {
			q.Coalesced++
		}
	}
	if x.InputTokensSource == formats.TokensUsage && a.input.Valid && a.input.V > 0 {
		q.InputError.Add(math.Abs(float64(x.InputTokens.V-a.input.V))/float64(a.input.V), 1)
	}
	if a.abort {
		q.Aborts++
		if x.EndReason == formats.EndClientAbort {
			q.AbortsKept++
		}
	}
	if a.hit.Valid && x.CachedTokens.Valid {
		q.PrefixInput += x.InputTokens.V
		q.PrefixObserved += x.CachedTokens.V
		q.PrefixExpected += a.hit.V
	}
	if x.EndReason != formats.EndComplete || x.Failed() {
		return
	}
	if x.OutputTokens.Valid && a.output.Valid && a.output.V > 0 {
		q.OutputError.Add(math.Abs(float64(x.OutputTokens.V-a.output.V))/float64(a.output.V), 1)
	}
	if v, ok := tokensPerEvent(x); ok {
		q.PerEvent.Add(v, 1)
	}
	if a.tokensPer > 0 {
		q.RecordedPer.Add(a.tokensPer, 1)
	}
	if a.stream.Valid {
		q.StreamAsked++
		if a.stream.V == (x.EventGapUS != nil || x.Stream.V) {
			q.StreamKept++
		}
	}
}

// Limits are what a run may fall short by before it is invalid. The zero value means the defaults.
type Limits struct {
	SendLagP99     time.Duration // 0: 10 ms
	ClientDelayP99 time.Duration // 0: 10 ms
	CoalescedShare float64       // of the token events; 0: 0.05
}

func (l *Limits) defaults() {
	if l.SendLagP99 == 0 {
		l.SendLagP99 = 10 * time.Millisecond
	}
	if l.ClientDelayP99 == 0 {
		l.ClientDelayP99 = 10 * time.Millisecond
	}
	if l.CoalescedShare == 0 {
		l.CoalescedShare = 0.05
	}
}

// Invalid says why a run does not measure what it claims, worst first; nothing where it does.
func (q *Quality) Invalid(l Limits) []string {
	l.defaults()
	type reason struct {
		over float64
		text string
	}
	var rs []reason
	check := func(s *stats.Sample, limit time.Duration, what string) {
		p := s.Quantile(0.99)
		if lim := float64(limit) / 1e6; s.N() > 0 && p > lim {
			rs = append(rs, reason{p / lim, fmt.Sprintf("%s p99 is %.3g ms, over the limit of %.3g ms", what, p, lim)})
		}
	}
	check(&q.SendLag, l.SendLagP99, "send lag")
	check(&q.ClientDelay, l.ClientDelayP99, "client delay")
	if q.Events > 0 {
		if share := float64(q.Coalesced) / float64(q.Events); share > l.CoalescedShare {
			rs = append(rs, reason{share / l.CoalescedShare, fmt.Sprintf("%.3g %% of the token events share a read with the one before, over the limit of %.3g %%", 100*share, 100*l.CoalescedShare)})
		}
	}
	var out []string
	for len(rs) > 0 {
		worst := 0
		for i := range rs {
			if rs[i].over > rs[worst].over {
				worst = i
			}
		}
		out = append(out, rs[worst].text)
		rs = append(rs[:worst], rs[worst+1:]...)
	}
	return out
}
