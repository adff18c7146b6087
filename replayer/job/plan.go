package job

import (
	"fmt"
	"time"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/replayer"
	"github.com/shadowtape/shadowtape/replayer/schedule"
)

// count goes through the schedule as it will be replayed, reading only the columns that the plan needs.
func (j *Job) count(endpoint formats.Endpoint) error {
	sel := &j.o.Selection
	columns := []formats.Column{formats.ColExchangeID, formats.ColArrival, formats.ColPhase, formats.ColArrivalIndex, formats.ColInputTokens, formats.ColOutputTokens, formats.ColEndpoint,
		formats.ColServerID, formats.ColTenantID, formats.ColRequestModel, formats.ColSessionID, formats.ColSourceID, formats.ColToolCount, formats.ColImageCount, formats.ColEnd}
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
		if pl.Speed, err = schedule.SpeedFor(sel.Part(rows), sel.Rate); err != nil {
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
	turns := recordedTurns{}
	for a, err := range once.Apply(rows, pl.Speed) {
		if err != nil {
			return err
		}
		pl.Duration = a.At
		pl.Arrivals++
		x := a.Exchange
		if !a.Warmup {
			pl.Schedule++
		}
		if e := x.Endpoint; e == formats.EndpointChat || e == "" && endpoint == formats.EndpointChat { // prompts are made alike in every shard
			j.tools = j.tools || x.ToolCount.V > 0
			j.images = j.images || x.ImageCount.V > 0
		}
		if bytes && !a.Warmup && x.PrefixBlocks != nil && x.InputTokens.Valid {
			prompt += float64(int64(len(x.PrefixBlocks))*int64(h.PrefixBlockSize) + x.PrefixTailTokens.V)
			tokens += float64(x.InputTokens.V)
		}
		if a.Other {
			continue
		}
		if a.Warmup {
			pl.Warmup++
			continue
		}
		pl.Requests++
		pl.InputTokens += x.InputTokens.V
		pl.OutputTokens += x.OutputTokens.V
		pl.Sessions = pl.Sessions || x.SessionID.Valid
		e := x.Endpoint
		if e == "" {
			e = endpoint
		}
		pl.Endpoints[e]++
		pl.Drawn.Add(x)
		turns.add(a, pl)
		if !x.InputTokens.Valid {
			noInput++
		}
		if s := int64(a.At / time.Second); s != second || pl.Requests == 1 {
			second, inSecond = s, 0
		}
		inSecond++
		pl.PeakRate = max(pl.PeakRate, float64(inSecond))
	}
	if pl.Users > 0 {
		pl.Duration, pl.PeakRate = sel.Duration, 0
	}
	if pl.Schedule == 0 {
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

// recordedTurns follows when the recorded answer before a session's turn would end in the replay: as long after its arrival as in the
// recording, whatever the speed.
type recordedTurns map[session]time.Duration

type session struct {
	id   formats.Hash
	loop int32
}

func (r recordedTurns) add(a replayer.Arrival, pl *Plan) {
	x := a.Exchange
	if !x.SessionID.Valid {
		return
	}
	k := session{x.SessionID.V, a.Loop}
	end, follows := r[k]
	if follows && end > a.At {
		pl.Overlapping++
	}
	if x.EndNS.Valid {
		end = max(end, a.At+time.Duration(x.EndNS.V))
	}
	r[k] = end
}
