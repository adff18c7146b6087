package replayer

import (
	"fmt"
	"math"
	"time"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/stats"
)

// count goes through the schedule as it will be replayed, reading only the columns that the plan needs.
func (j *Job) count(endpoint formats.Endpoint) error {
	sel := &j.o.Selection
	columns := []formats.Column{formats.ColExchangeID, formats.ColArrival, formats.ColPhase, formats.ColArrivalIndex, formats.ColInputTokens, formats.ColOutputTokens, formats.ColEndpoint,
		formats.ColServerID, formats.ColTenantID, formats.ColRequestModel, formats.ColSessionID, formats.ColSourceID, formats.ColToolCount, formats.ColImageCount}
	h := j.o.header()
	bytes := h.PrefixBlockUnit == "bytes"
	if bytes {
		columns = append(columns, formats.ColPrefixBlocks, formats.ColPrefixTailTokens)
	}
	pl := &j.Plan
	var err error
	if pl.Quantum, err = j.o.quantum(); err != nil {
		return err
	}
	if j.o.SpreadTicks {
		if pl.Quantum == 0 {
			pl.Warnings = append(pl.Warnings, "the trace's times share no tick: there is nothing to spread")
		}
		sel.Spread = pl.Quantum
	} else if pl.Quantum >= 100*time.Millisecond {
		pl.Warnings = append(pl.Warnings, fmt.Sprintf("the trace's clock ticks every %v, so arrivals come in bursts that were none (--spread uniform)", pl.Quantum))
	}
	rows := j.o.rows(columns...)
	if pl.Speed = sel.Speed; pl.Speed == 0 {
		pl.Speed = 1
	}
	if sel.Rate > 0 {
		if pl.Speed, err = speedFor(sel.part(rows), sel.Rate); err != nil {
			return fmt.Errorf("plan the replay of %s: %w", j.o.name(), err)
		}
	}
	pl.Endpoints = map[formats.Endpoint]int64{}
	once := *sel
	if pl.Users = j.o.Users; pl.Users > 0 { // how often they go round depends on the candidate
		once.Duration, once.Loops = 0, 1
	}
	var second, inSecond, noInput int64
	var prompt, tokens float64
	for a, err := range once.Apply(rows, pl.Speed) {
		if err != nil {
			return err
		}
		pl.Duration = a.At
		if a.Warmup {
			pl.Warmup++
			continue
		}
		x := a.Exchange
		pl.Requests++
		pl.InputTokens += x.InputTokens.V
		pl.OutputTokens += x.OutputTokens.V
		pl.Sessions = pl.Sessions || x.SessionID.Valid
		e := x.Endpoint
		if e == "" {
			e = endpoint
		}
		pl.Endpoints[e]++
		if !x.InputTokens.Valid {
			noInput++
		}
		if e == formats.EndpointChat {
			j.tools = j.tools || x.ToolCount.V > 0
			j.images = j.images || x.ImageCount.V > 0
		}
		if s := int64(a.At / time.Second); s != second || pl.Requests == 1 {
			second, inSecond = s, 0
		}
		inSecond++
		pl.PeakRate = max(pl.PeakRate, float64(inSecond))
		if bytes && x.PrefixBlocks != nil && x.InputTokens.Valid {
			prompt += float64(int64(len(x.PrefixBlocks))*int64(h.PrefixBlockSize) + x.PrefixTailTokens.V)
			tokens += float64(x.InputTokens.V)
		}
	}
	if pl.Users > 0 {
		pl.Duration, pl.PeakRate = sel.Duration, 0
	}
	if pl.Requests == 0 {
		return fmt.Errorf("plan the replay of %s: no request of the trace falls into it", j.o.name())
	}
	if prompt > 0 {
		j.perByte = tokens / prompt
	}
	if noInput > 0 {
		pl.Warnings = append(pl.Warnings, fmt.Sprintf("%d of %d requests do not say how long their prompt was, and will not be sent", noInput, pl.Requests))
	}
	return nil
}

// speedFor is how many times as fast a schedule must be played to come to a mean rate.
func speedFor(s Schedule, rate float64) (float64, error) {
	var n int64
	var first, last time.Duration
	for a, err := range s {
		if err != nil {
			return 0, err
		}
		if a.Warmup {
			continue
		}
		if n == 0 {
			first = a.At
		}
		n++
		last = a.At
	}
	if last == first {
		return 0, fmt.Errorf("%d requests at one time have no rate to scale", n)
	}
	return rate * (last - first).Seconds() / float64(n), nil
}

// quantum is the tick of a trace's clock: the median distance of its distinct times, where most requests share theirs with another; 0
// where they do not.
func quantum(t *formats.Trace) (time.Duration, error) {
	if q := t.Header.TimeQuantumNS; q > 0 {
		return time.Duration(q), nil
	}
	var rows, shared int64
	last, run := int64(math.MinInt64), int64(0)
	gaps := stats.Sample{Limit: 1 << 17}
	for b, err := range t.Scan(formats.ColArrival) {
		if err != nil {
			return 0, err
		}
		at, _ := b.Int64(formats.ColArrival)
		for _, v := range at {
			rows++
			if v == last {
				if run++; run == 1 {
					shared++ // the first of them
				}
				shared++
				continue
			}
			if run = 0; last != math.MinInt64 && v > last {
				gaps.Add(float64(v-last), 1)
			}
			last = v
		}
	}
	if 2*shared <= rows || gaps.N() == 0 {
		return 0, nil
	}
	return time.Duration(math.Round(gaps.Quantile(0.5))), nil
}

// describe writes the selection into a manifest's options, as far as it says anything.
func (s Selection) describe(o map[string]any) {
	put := func(name string, said bool, v any) {
		if said {
			o[name] = v
		}
	}
	put("server", s.Server != "", s.Server)
	put("tenant", s.Tenant != "", s.Tenant)
	put("only_model", s.Model != "", s.Model)
	put("thin", s.Thin > 0, s.Thin)
	put("window_from_s", s.From > 0 || s.To > 0, s.From.Seconds())
	put("window_to_s", s.To > 0, s.To.Seconds())
	put("preroll_s", s.Preroll > 0, s.Preroll.Seconds())
	put("spread_ms", s.Spread > 0, float64(s.Spread)/1e6)
	put("loops", s.Loops != 0, s.Loops)
	put("rate", s.Rate > 0, s.Rate)
	put("duration_s", s.Duration > 0, s.Duration.Seconds())
	put("max_requests", s.MaxRequests > 0, s.MaxRequests)
}
