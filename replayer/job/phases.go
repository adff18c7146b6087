package job

import (
	"context"
	"math"
	"time"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/stats"
	"github.com/shadowtape/shadowtape/replayer"
	"github.com/shadowtape/shadowtape/replayer/probe"
	"github.com/shadowtape/shadowtape/replayer/prompt"
	"github.com/shadowtape/shadowtape/replayer/schedule"
)

// phaseResults are what the parts of a run around the measured one came to.
type phaseResults struct {
	warmup   formats.RequestCounts
	rowsLost int64 // of all of them
	capacity *capacity
}

// capacity is what a saturated phase found.
type capacity struct {
	best  step
	steps []step
	grew  bool // throughput was still growing when the time was over: the capacity is higher

	rowsLost int64
}

// step is a closed loop of so many users.
type step struct {
	users   int
	tokens  float64 // generated a second
	seconds float64
}

// phases runs what comes before the schedule, the schedule, and what comes after it.
func (j *Job) phases(ctx context.Context, m *formats.Manifest, w replayer.Sink, ids, node string, live *replayer.Live) (replayer.Stats, phaseResults, error) {
	var p phaseResults
	o := &j.o
	base := replayer.Options{Node: node, MaxInFlight: o.MaxInFlight, NoAborts: o.NoAborts, BySession: o.BySession, Turns: o.Selection.ThinkTime, RowBytes: o.RowBytes}
	next := j.Plan.Arrivals // exchange ids of what is not the schedule come after the schedule's
	if j.Plan.Users > 0 {
		next = j.Plan.Requests + j.Plan.Warmup
	}
	sel := o.Selection
	if o.Users > 0 {
		sel.Duration = 0 // ends the users, not the requests that they take from
	}
	rows := func() replayer.Schedule { return sel.Apply(o.rows(), j.Plan.Speed) }
	if o.Warmup > 0 || o.WarmupTime > 0 {
		s := schedule.MaxRequests(schedule.Until(rows(), o.WarmupTime), o.Warmup)
		wo := base
		wo.RequestIDs, wo.FirstID = ids+"-warmup", next
		st, err := j.other(ctx, "warm-up", asWarmup(s), w, wo)
		p.warmup, p.rowsLost = st.Warmup, p.rowsLost+st.RowsLost
		next += st.Warmup.Scheduled
		if err != nil || st.Interrupted {
			return st, p, err
		}
		if !o.KeepCache {
			m.PrefixReset = probe.ResetPrefixCache(ctx, j.client, j.infos)
		}
	}
	if !o.WarmRule.none() && o.Warmup == 0 && o.WarmupTime == 0 && o.Selection.Preroll == 0 {
		wo := base
		wo.RequestIDs, wo.FirstID = ids+"-warmup", next
		st, warm, err := j.warmByRule(ctx, rows(), w, wo)
		p.warmup, p.rowsLost = st.Warmup, p.rowsLost+st.RowsLost
		next += st.Warmup.Scheduled
		warm.describe(m)
		if err != nil || st.Interrupted {
			return st, p, err
		}
		if !o.KeepCache {
			m.PrefixReset = probe.ResetPrefixCache(ctx, j.client, j.infos)
		}
	}
	if o.Measured != nil {
		o.Measured()
	}
	mo := base
	mo.RequestIDs, mo.Live, mo.BlockTokens = ids, live, j.blockTokens()
	mo.Users, mo.Ramp, mo.Think = o.Users, o.Ramp, o.Think
	mo.Start = j.start()
	s := rows()
	if o.Users > 0 || o.Selection.ThinkTime {
		mo.End = o.Selection.Duration
	}
	if o.Cooldown > 0 {
		s = cool(s, j.Plan.Duration-o.Cooldown)
	}
	st, err := replayer.Replay(ctx, s, j.prompter, j.client, w, mo)
	p.rowsLost += st.RowsLost
	if err != nil || st.Interrupted || o.Saturate == 0 {
		return st, p, err
	}
	c, err := j.saturate(ctx, w, ids, base, next)
	p.capacity, p.rowsLost = &c, p.rowsLost+c.rowsLost
	return st, p, err
}

// asWarmup marks a schedule as not measured.
func asWarmup(s replayer.Schedule) replayer.Schedule {
	return func(yield func(replayer.Arrival, error) bool) {
		for a, err := range s {
			a.Warmup = true
			if !yield(a, err) {
				return
			}
		}
	}
}

// cool marks what comes at or after a time as not measured.
func cool(s replayer.Schedule, from time.Duration) replayer.Schedule {
	return func(yield func(replayer.Arrival, error) bool) {
		for a, err := range s {
			a.Warmup = a.Warmup || a.At >= from
			if !yield(a, err) {
				return
			}
		}
	}
}

// other replays a schedule with the trace's lengths but other tokens; what names the tokens.
func (j *Job) other(ctx context.Context, what string, s replayer.Schedule, w replayer.Sink, o replayer.Options) (replayer.Stats, error) {
	po := j.prompts.Options()
	for _, c := range what {
		po.Seed = int64(stats.Mix(uint64(po.Seed) ^ uint64(c)))
	}
	p, err := prompt.New(po)
	if err != nil {
		return replayer.Stats{}, err
	}
	return replayer.Replay(ctx, s, p, j.client, w, o)
}

const (
	firstUsers = 4
	growth     = 1.02 // less than this is no growth
	mostUsers  = 1 << 14
)

// saturate doubles the users of a closed loop until the tokens a second grow no more. Steps are an eighth of the time; the figure of a
// step is what it generated over its whole length, its start included, and is therefore low by the share of the first prefills.
func (j *Job) saturate(ctx context.Context, w replayer.Sink, ids string, base replayer.Options, next int64) (capacity, error) {
	var c capacity
	each := j.o.Saturate / 8
	c.grew = true
	flat := 0
	for users, spent := firstUsers, time.Duration(0); spent+each <= j.o.Saturate && users <= mostUsers; users, spent = users*2, spent+each {
		so := base
		so.Turns, so.Users, so.End, so.Drain, so.Ramp = false, users, each, time.Millisecond, min(each/8, time.Second)
		so.RequestIDs, so.FirstID = ids+"-saturate", next
		start := time.Now()
		st, err := j.other(ctx, "saturate"+string(rune(users)), asWarmup(schedule.Loop(j.o.Selection.Part(j.o.rows()), 0)), w, so)
		next += st.Warmup.Scheduled
		c.rowsLost += st.RowsLost
		if err != nil || st.Interrupted {
			return c, err
		}
		v := step{users: users, seconds: st.End.Sub(st.Start).Seconds()}
		if v.seconds <= 0 {
			v.seconds = time.Since(start).Seconds()
		}
		v.tokens = float64(st.WarmupTokens) / v.seconds
		c.steps = append(c.steps, v)
		if v.tokens < c.best.tokens*growth {
			flat++
		} else {
			flat = 0
		}
		if v.tokens > c.best.tokens {
			c.best = v
		}
		if flat == 2 { // one step may be noise
			c.grew = false
			return c, nil
		}
	}
	return c, nil
}

// blockTokens is how many tokens a prefix block of the trace is, 0 where it has none.
func (j *Job) blockTokens() float64 {
	o := j.prompts.Options()
	switch o.BlockUnit {
	case "tokens":
		return float64(o.BlockSize)
	case "bytes":
		return float64(o.BlockSize) * o.TokensPerByte
	}
	return 0
}

// describe adds the results to a manifest's fidelity.
func (p phaseResults) describe(f map[string]any) {
	if p.warmup.Scheduled > 0 {
		f["warmup_requests"], f["warmup_failed"] = p.warmup.Scheduled, p.warmup.Failed
	}
	if c := p.capacity; c != nil {
		steps := []any{}
		for _, s := range c.steps {
			steps = append(steps, map[string]any{"users": s.users, "output_tokens_per_s": math.Round(10*s.tokens) / 10, "seconds": s.seconds})
		}
		f["capacity"] = map[string]any{"output_tokens_per_s": c.best.tokens, "users": c.best.users, "still_growing": c.grew, "steps": steps}
	}
}
