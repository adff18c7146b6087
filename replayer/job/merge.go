package job

import (
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/replayer"
	"github.com/shadowtape/shadowtape/replayer/schedule"
)

// own are the options in which the shards of one replay differ.
var own = []string{"request_ids", "planned_requests", "prompt_text"}

// attempt is one run of a shard.
type attempt struct {
	t *formats.Trace
	m *formats.Manifest
	s formats.Shard
}

// name is what a shard's run is called in messages.
func (a *attempt) name() string {
	return fmt.Sprintf("%s (shard %d of %d)", a.t.Name, a.s.Index, a.s.Of)
}

// Merge joins the runs of the shards of one replay: the rows are theirs, and every figure is the one that a single replayer would have
// given. Where a shard was run again after it was cut short, the run that was not is taken, and Manifest.Shards says what was left out. It
// refuses shards of different schedules, a shard that is missing, and two whole runs of one shard, by name. Nothing is written before that
// is known. Of the servers' metrics, which every shard has watched, the first shard's are kept; the clients' health is added up.
func Merge(runs []*formats.Trace, out, label, toolVersion string, command []string) (formats.Manifest, error) {
	taken, all, err := choose(runs)
	if err != nil {
		return formats.Manifest{}, err
	}
	g := replayer.NewGathering()
	m := *taken[0].m
	m.Label, m.ToolVersion, m.Command, m.Shard, m.Shards, m.Warnings = label, toolVersion, command, nil, all, nil
	m.Options = maps.Clone(m.Options)
	delete(m.Options, "request_ids")
	ids := []any{}
	for _, a := range taken {
		ids = append(ids, a.m.Options["request_ids"])
	}
	m.Options["request_ids_of_shards"], m.Options["planned_requests"], m.Options["server_samples_of_shard"] = ids, taken[0].s.Schedule, taken[0].s.Index
	w, err := formats.CreateRun(out, m)
	if err != nil {
		return m, err
	}
	w.SetHeader(taken[0].t.Header)
	if err := mergeRows(taken, g, w); err != nil {
		return m, errors.Join(err, w.Close(m))
	}
	w.BatchSamples(1024)
	if err := mergeSamples(taken, w); err != nil {
		return m, errors.Join(err, w.Close(m))
	}
	plan, err := remainders(taken, g)
	if err != nil {
		return m, errors.Join(err, w.Close(m))
	}
	finishMerged(&m, taken, all, g.Done(), plan)
	return m, w.Close(m)
}

// Mergeable says why Merge would refuse the runs, or nil.
func Mergeable(runs []*formats.Trace) error {
	_, _, err := choose(runs)
	return err
}

// choose checks that the runs are the shards of one replay and says which are taken, by index.
func choose(runs []*formats.Trace) ([]*attempt, []formats.Shard, error) {
	var attempts []*attempt
	for _, t := range runs {
		if t.Manifest == nil || t.Manifest.Shard == nil {
			return nil, nil, fmt.Errorf("%s is not the run of a shard (replay --shard)", t.Name)
		}
		attempts = append(attempts, &attempt{t, t.Manifest, *t.Manifest.Shard})
	}
	if len(attempts) == 0 {
		return nil, nil, errors.New("no runs are given")
	}
	for _, a := range attempts[1:] {
		if err := alike(attempts[0], a); err != nil {
			return nil, nil, err
		}
	}
	n := attempts[0].s.Of
	taken := make([]*attempt, n)
	left := map[*attempt]string{}
	for _, a := range attempts {
		if a.s.Index < 1 || a.s.Index > n {
			return nil, nil, fmt.Errorf("%s: there is no such shard", a.name())
		}
		switch at := &taken[a.s.Index-1]; {
		case *at == nil:
			*at = a
		case (*at).m.Interrupted && !a.m.Interrupted:
			left[*at] = "it was cut short; " + a.t.Name + " ran the shard again"
			*at = a
		case a.m.Interrupted && !(*at).m.Interrupted:
			left[a] = "it was cut short; " + (*at).t.Name + " ran the shard again"
		case a.m.Interrupted:
			return nil, nil, fmt.Errorf("shard %d was cut short in both %s and %s: one may be merged", a.s.Index, (*at).t.Name, a.t.Name)
		default:
			return nil, nil, fmt.Errorf("shard %d is there twice: %s and %s: its load was sent twice, or one is of another replay", a.s.Index, (*at).t.Name, a.t.Name)
		}
	}
	var missing []string
	for i, a := range taken {
		if a == nil {
			missing = append(missing, fmt.Sprint(i+1))
		}
	}
	if len(missing) > 0 {
		return nil, nil, fmt.Errorf("of %d shards %s missing", n, map[bool]string{true: "number " + strings.Join(missing, "") + " is", false: "numbers " + strings.Join(missing, ", ") + " are"}[len(missing) == 1])
	}
	for _, a := range taken {
		if a.m.RowsLost > 0 {
			return nil, nil, fmt.Errorf("%s has lost %d rows to a slow disk: the whole cannot be made of what is left, run the shard again", a.name(), a.m.RowsLost)
		}
	}
	slices.SortStableFunc(attempts, func(a, b *attempt) int { return a.s.Index - b.s.Index })
	var all []formats.Shard
	for _, a := range attempts {
		s := a.s
		s.Remainder, s.Label, s.Interrupted, s.LeftOut = nil, a.m.Label, a.m.Interrupted, left[a]
		if c, ok := a.m.Environment["client"].(map[string]any); ok {
			s.Host, _ = c["host"].(string)
		}
		all = append(all, s)
	}
	return taken, all, nil
}

// alike says in what two runs are not shards of one replay.
func alike(a, b *attempt) error {
	no := func(what string, x, y any) error {
		return fmt.Errorf("%s and %s are not of one replay: %s %v and %v", a.t.Name, b.t.Name, what, x, y)
	}
	x, y := a.m, b.m
	switch {
	case x.Kind != y.Kind:
		return no("kind", x.Kind, y.Kind)
	case x.TraceSHA256 != y.TraceSHA256:
		return no("the traces' checksums are", short(x.TraceSHA256), short(y.TraceSHA256))
	case x.Seed != y.Seed:
		return no("seeds", x.Seed, y.Seed)
	case a.s.Of != b.s.Of:
		return no("numbers of shards", a.s.Of, b.s.Of)
	case a.s.StartAtUnixNS != b.s.StartAtUnixNS:
		return no("starts", time.Unix(0, a.s.StartAtUnixNS).UTC().Format(time.RFC3339Nano), time.Unix(0, b.s.StartAtUnixNS).UTC().Format(time.RFC3339Nano))
	case a.s.Schedule != b.s.Schedule:
		return no("schedules of", fmt.Sprint(a.s.Schedule, " requests"), b.s.Schedule)
	case x.Model != y.Model:
		return no("models", x.Model, y.Model)
	case !slices.Equal(x.Targets, y.Targets):
		return no("targets", x.Targets, y.Targets)
	case x.ToolVersion != y.ToolVersion:
		return no("versions", x.ToolVersion, y.ToolVersion)
	}
	for _, k := range slices.Sorted(maps.Keys(merged(x.Options, y.Options))) {
		if slices.Contains(own, k) {
			continue
		}
		p, err1 := json.Marshal(x.Options[k])
		q, err2 := json.Marshal(y.Options[k])
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		if string(p) != string(q) {
			return no("the option "+k+" is", string(p), string(q))
		}
	}
	return nil
}

func short(sum string) string { return sum[:min(len(sum), 12)] }

func merged(a, b map[string]any) map[string]any {
	m := maps.Clone(a)
	if m == nil {
		m = map[string]any{}
	}
	maps.Copy(m, b)
	return m
}

// mergeRows writes the rows in the order their answers ended, and counts them.
func mergeRows(taken []*attempt, g *replayer.Gathering, w *formats.RunWriter) error {
	type source struct {
		a    *attempt
		x    *formats.Exchange
		next func() (*formats.Exchange, error, bool)
	}
	ended := func(x *formats.Exchange) int64 { return x.ArrivalUnixNS + x.EndNS.V }
	var live []*source
	for _, a := range taken {
		next, stop := iter.Pull2(a.t.All())
		defer stop()
		live = append(live, &source{a: a, next: next})
	}
	step := func(s *source) (bool, error) {
		x, err, ok := s.next()
		s.x = x
		return ok, err
	}
	left := live[:0:0]
	for _, s := range live {
		ok, err := step(s)
		if err != nil {
			return err
		}
		if ok {
			left = append(left, s)
		}
	}
	for len(left) > 0 {
		first := 0
		for i := range left {
			if ended(left[i].x) < ended(left[first].x) {
				first = i
			}
		}
		s := left[first]
		if err := g.Row(s.x, s.a.m.StartUnixNS); err != nil {
			return fmt.Errorf("%s: %w", s.a.name(), err)
		}
		if err := w.Write(s.x); err != nil {
			return err
		}
		ok, err := step(s)
		if err != nil {
			return err
		}
		if !ok {
			left = slices.Delete(left, first, first+1)
		}
	}
	var sum formats.RequestCounts
	for _, a := range taken {
		c := a.m.Requests
		sum = formats.RequestCounts{Scheduled: sum.Scheduled + c.Scheduled, Sent: sum.Sent + c.Sent, Completed: sum.Completed + c.Completed, Failed: sum.Failed + c.Failed,
			Aborted: sum.Aborted + c.Aborted, RunEnd: sum.RunEnd + c.RunEnd, Dropped: sum.Dropped + c.Dropped}
	}
	if sum != g.Requests {
		return fmt.Errorf("the shards say that they had %+v, their rows are %+v", sum, g.Requests)
	}
	return nil
}

// mergeSamples copies the first shard's view of the servers and adds up the clients' health, at the first shard's times.
func mergeSamples(taken []*attempt, w *formats.RunWriter) error {
	first := taken[0].t
	for s, err := range first.ServerSamples() {
		if err != nil {
			return err
		}
		if err := w.WriteServer([]formats.ServerSample{s}); err != nil {
			return err
		}
	}
	for s, err := range first.GPUSamples() {
		if err != nil {
			return err
		}
		if err := w.WriteGPU([]formats.GPUSample{s}); err != nil {
			return err
		}
	}
	type source struct {
		next func() (formats.ClientSample, error, bool)
		now  formats.ClientSample // the last that was taken
		then formats.ClientSample // the next
		more bool
		lag  int64 // the largest since the sum before
	}
	var others []*source
	for _, a := range taken[1:] {
		next, stop := iter.Pull2(a.t.ClientSamples())
		defer stop()
		s := &source{next: next}
		var err error
		if s.then, err, s.more = next(); err != nil {
			return err
		}
		others = append(others, s)
	}
	for c, err := range first.ClientSamples() {
		if err != nil {
			return err
		}
		for _, o := range others {
			for o.lag = 0; o.more && o.then.UnixNS <= c.UnixNS; {
				o.now, o.lag = o.then, max(o.lag, o.then.SendLagMaxNS)
				var err error
				if o.then, err, o.more = o.next(); err != nil {
					return err
				}
			}
			c.InFlight, c.Sent, c.Late, c.CPUSeconds, c.GCPauseNS = c.InFlight+o.now.InFlight, c.Sent+o.now.Sent, c.Late+o.now.Late, c.CPUSeconds+o.now.CPUSeconds, c.GCPauseNS+o.now.GCPauseNS
			c.Goroutines, c.HeapBytes = c.Goroutines+o.now.Goroutines, c.HeapBytes+o.now.HeapBytes
			c.SendLagMaxNS, c.SchedLatencyNS = max(c.SendLagMaxNS, o.lag), max(c.SchedLatencyNS, o.now.SchedLatencyNS)
		}
		if err := w.WriteClient(c); err != nil {
			return err
		}
	}
	return nil
}

// remainders takes in what the rows do not say. The plan says what fidelity asks of one.
func remainders(taken []*attempt, g *replayer.Gathering) (Plan, error) {
	p := Plan{Requests: taken[0].s.Schedule}
	for _, a := range taken {
		var r replayer.Remainder
		if err := json.Unmarshal(a.s.Remainder, &r); err != nil {
			return p, fmt.Errorf("%s: what merging needs of it cannot be read: %w", a.name(), err)
		}
		g.Remainder(r)
		_, overlapped := a.m.Fidelity["overlapping_turns"]
		p.Sessions = p.Sessions || overlapped
	}
	return p, nil
}

// farStarts is how far apart the shards may have begun before it is warned of.
const farStarts = 10 * time.Millisecond

// finishMerged fills the manifest with what the whole came to.
func finishMerged(m *formats.Manifest, taken []*attempt, all []formats.Shard, s replayer.Stats, p Plan) {
	m.StartUnixNS, m.EndUnixNS = taken[0].m.StartUnixNS, taken[0].m.EndUnixNS
	for _, a := range taken {
		m.StartUnixNS, m.EndUnixNS = min(m.StartUnixNS, a.m.StartUnixNS), max(m.EndUnixNS, a.m.EndUnixNS)
	}
	judge(m, s, replayer.Limits{}, p.Requests)
	warn := func(format string, args ...any) { m.Warnings = append(m.Warnings, fmt.Sprintf(format, args...)) }
	for _, a := range taken {
		if a.m.Interrupted {
			m.Interrupted, m.Valid = true, false
			m.Invalid = append([]string{fmt.Sprintf("shard %d was cut short", a.s.Index)}, m.Invalid...)
		}
		for _, why := range a.m.Invalid {
			warn("shard %d by itself is invalid: %s", a.s.Index, why)
		}
	}
	if m.Requests.Scheduled < p.Requests && !m.Interrupted {
		m.Valid = false
		m.Invalid = append([]string{fmt.Sprintf("the shards were to send %d requests and scheduled %d", p.Requests, m.Requests.Scheduled)}, m.Invalid...)
	}
	for _, sh := range all {
		if sh.LeftOut != "" {
			warn("shard %d was run again: %s was left out: %s", sh.Index, sh.Label, sh.LeftOut)
		}
		if sh.LateNS > 0 {
			warn("shard %d began %v after the agreed start: what was due before was not sent", sh.Index, time.Duration(sh.LateNS).Round(time.Millisecond))
		}
	}
	m.Fidelity = fidelity(&s, p)
	spread, known := startSpread(taken)
	if known.Valid {
		m.Fidelity["start_spread_ms"], m.Fidelity["start_spread_error_ms"] = spread, known.V
		if spread-known.V > float64(farStarts)/1e6 {
			warn("the shards began %.3g ms apart by the target's clock (± %.2g ms): their machines' clocks differ", spread, known.V)
		}
	} else if len(taken) > 1 {
		warn("how far apart the shards began is not known: the target's clock could not be measured")
	}
	if s.Late > 0 {
		warn("%d of %d requests were sent more than a millisecond late", s.Late, s.Requests.Sent)
	}
	for _, why := range slices.Sorted(maps.Keys(s.Dropped)) {
		warn("%d requests were not sent: %s", s.Dropped[why], why)
	}
	const drawn = "a model drew what nobody recorded: "
	if d := &s.Quality.Drawn; *d != (schedule.Drawn{}) {
		warn("%s%s", drawn, d)
	}
	for _, a := range taken { // what each was warned of itself, once
		for _, text := range a.m.Warnings {
			if strings.Contains(text, "more than a millisecond late") || strings.Contains(text, "were not sent: ") || strings.Contains(text, "after the agreed start") || strings.HasPrefix(text, drawn) {
				continue // counted above
			}
			if !slices.Contains(m.Warnings, text) {
				m.Warnings = append(m.Warnings, text)
			}
		}
	}
}

// startSpread is how far apart the first and the last shard began, by the first target's clock, in milliseconds, and the error of that;
// unknown where one of them could not measure it.
func startSpread(taken []*attempt) (ms float64, wrong formats.Null[float64]) {
	low, high, e := math.Inf(1), math.Inf(-1), 0.0
	for _, a := range taken {
		if len(a.s.Clocks) == 0 || a.s.Clocks[0].Unknown != "" {
			return 0, wrong
		}
		c := a.s.Clocks[0]
		low, high, e = min(low, c.OffsetMS), max(high, c.OffsetMS), max(e, c.ErrorMS)
	}
	return high - low, formats.Of(2 * e)
}
