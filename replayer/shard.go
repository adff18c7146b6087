package replayer

import (
	"fmt"
	"time"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/stats"
)

// Remainder is what Stats know and the rows of a run do not say: with it, the stats of several shards' rows are those of one replayer.
type Remainder struct {
	InputError     []stats.Bin `json:"input_error"`
	OutputError    []stats.Bin `json:"output_error"`
	RecordedPer    []stats.Bin `json:"tokens_per_event_recorded"`
	TooMany        bool        `json:"too_many,omitempty"` // more distinct values than are kept: the three above are unknown of the whole
	StreamKept     int64       `json:"stream_kept"`
	StreamAsked    int64       `json:"stream_asked"`
	PrefixInput    int64       `json:"prefix_input"`
	PrefixObserved int64       `json:"prefix_observed"`
	PrefixExpected int64       `json:"prefix_expected"`
	Late           int64       `json:"late"`
	Retried        int64       `json:"retried"`
	Overlapped     int64       `json:"overlapped"`
	ClockSteps     int64       `json:"clock_steps"`
}

// mostBins is how many distinct values of a figure a Remainder keeps.
const mostBins = 1 << 16

// Remainder is the part of s that no row says.
func (s *Stats) Remainder() Remainder {
	q := &s.Quality
	r := Remainder{StreamKept: q.StreamKept, StreamAsked: q.StreamAsked, PrefixInput: q.PrefixInput, PrefixObserved: q.PrefixObserved, PrefixExpected: q.PrefixExpected,
		Late: s.Late, Retried: s.Retried, Overlapped: s.Overlapped, ClockSteps: s.ClockSteps}
	for _, b := range []struct {
		to   *[]stats.Bin
		from *stats.Sample
	}{{&r.InputError, &q.InputError}, {&r.OutputError, &q.OutputError}, {&r.RecordedPer, &q.RecordedPer}} {
		bins, ok := b.from.Bins(mostBins)
		if !ok {
			r.TooMany = true
		}
		*b.to = bins
	}
	return r
}

// Gathering makes Stats of runs that are done. The zero value is not ready; use NewGathering.
type Gathering struct {
	Stats
	course  Course
	last    time.Duration
	tooMany bool
}

// NewGathering starts with nothing.
func NewGathering() *Gathering {
	g := &Gathering{Stats: Stats{Errors: map[string]int64{}, Dropped: map[string]int64{}}}
	g.Quality.limit()
	return g
}

// Row takes a row in, as the replayer did that wrote it; start is the run's, nanoseconds since 1970. A row that no replayer writes is an
// error.
func (g *Gathering) Row(x *formats.Exchange, start int64) error {
	c := &g.Requests
	if x.Phase == formats.PhaseWarmup {
		c = &g.Warmup
	}
	measured := c == &g.Requests
	c.Scheduled++
	if x.EndReason == formats.EndNotSent {
		c.Dropped++
		if measured {
			g.Dropped[x.ErrorKind]++
		}
		return nil
	}
	if x.EndReason == "" {
		return fmt.Errorf("exchange %d has no end", x.ExchangeID)
	}
	c.Sent++
	switch {
	case x.EndReason == formats.EndRunEnd:
		c.RunEnd++
	case x.EndReason == formats.EndClientAbort:
		c.Aborted++
	case x.Failed():
		c.Failed++
	default:
		c.Completed++
	}
	if !measured {
		return nil
	}
	if x.Failed() {
		g.Errors[x.ErrorKind]++
	}
	due := time.Duration(x.ArrivalUnixNS - start)
	g.course.Add(x, int64(due))
	g.last = max(g.last, due)
	g.Quality.add(x, asked{abort: x.PlannedAbort.V})
	return nil
}

// Remainder takes in what a shard's rows do not say.
func (g *Gathering) Remainder(r Remainder) {
	q := &g.Quality
	for _, b := range []struct {
		to   *stats.Sample
		from []stats.Bin
	}{{&q.InputError, r.InputError}, {&q.OutputError, r.OutputError}, {&q.RecordedPer, r.RecordedPer}} {
		if g.tooMany = g.tooMany || r.TooMany; g.tooMany {
			*b.to = stats.Sample{}
			continue
		}
		for _, v := range b.from {
			b.to.Add(v.Value, uint32(v.N))
		}
	}
	q.StreamKept += r.StreamKept
	q.StreamAsked += r.StreamAsked
	q.PrefixInput += r.PrefixInput
	q.PrefixObserved += r.PrefixObserved
	q.PrefixExpected += r.PrefixExpected
	g.Late += r.Late
	g.Retried += r.Retried
	g.Overlapped += r.Overlapped
	g.ClockSteps += r.ClockSteps
}

// Done are the stats of what was taken in.
func (g *Gathering) Done() Stats {
	g.Steady = g.course.Judge(g.last)
	return g.Stats
}
