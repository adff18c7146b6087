package experiment

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/shadowtape/shadowtape/analyzer"
	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/experiment/verdict"
)

// ErrIncomparable is what an error wraps where runs are of different traffic or machines: no verdict is given on them.
var ErrIncomparable = errors.New("not comparable")

// RunRow is one run of a report.
type RunRow struct {
	Label    string       `json:"label"`
	Where    string       `json:"where"`
	Arm      string       `json:"arm"` // base or candidate
	Pair     int          `json:"pair"`
	Valid    bool         `json:"valid"`
	Invalid  []string     `json:"invalid,omitempty"`
	Requests int64        `json:"requests"`
	ClockMHz verdict.Null `json:"sm_clock_mhz"`
}

// Difference is one thing that differs between the environments of base and candidate: the likely cause of a change.
type Difference struct {
	What      string `json:"what"`
	Base      string `json:"base"`
	Candidate string `json:"candidate"`
}

// Report is what a comparison of many runs says; it is its JSON.
type Report struct {
	Schema      int                  `json:"schema"`
	Verdict     verdict.State        `json:"verdict"`
	Method      string               `json:"method"`
	Policy      string               `json:"policy,omitempty"` // a classic rule in place of the test
	PolicyNote  string               `json:"policy_note,omitempty"`
	Pairs       int                  `json:"pairs"` // valid ones
	Alpha       float64              `json:"alpha"` // one-sided, of this look
	Base        string               `json:"base"`
	Candidate   string               `json:"candidate"`
	Differences []Difference         `json:"differences"`              // of the environments
	Conditions  []analyzer.Condition `json:"gpu_conditions,omitempty"` // of the GPUs, from start to end
	Findings    []verdict.Finding    `json:"metrics"`
	Runs        []RunRow             `json:"runs"`
	Explanation []string             `json:"explanation"` // what moved beside a change, in words
	Again       []string             `json:"again"`       // what to run again
	Warnings    []string             `json:"warnings"`
	Next        []string             `json:"next"` // what to do
	FalseAlarms string               `json:"false_alarms,omitempty"`
}

// CompareOptions say how runs are judged.
type CompareOptions struct {
	Metrics      []verdict.Metric // nil: verdict.Defaults
	Past         map[string]verdict.Past
	Alpha        float64 // one-sided; 0: 2 %
	MinSamples   int     // requests of a run below which a report says so; 0: 5,000
	AllowInvalid bool    // take invalid runs as they are
	Policy       Policy
	FalseAlarms  string // of this gate on identical builds, for the footer
	Base         string // names of the sides for people; "": the labels of their runs
	Candidate    string
}

// Compare judges runs that exist: base[i] and candidate[i] are a pair.
func Compare(base, candidate []*Measured, o CompareOptions) (Report, error) {
	r, a, b, err := newReport(base, candidate, o)
	if err != nil {
		return r, err
	}
	if r.Pairs == 0 {
		r.Verdict = verdict.Invalid
		r.next()
		return r, nil
	}
	r.Alpha = cmp.Or(o.Alpha, verdict.DefaultAlpha)
	if o.Policy.Rule != "" {
		r.Policy = o.Policy.String()
		if r.Findings, r.PolicyNote, err = o.Policy.Decide(a, b, o.metrics(), o.Past); err != nil {
			return r, err
		}
	} else if r.Findings, err = verdict.Decide(a, b, verdict.Options{Metrics: o.metrics(), Past: o.Past, Alpha: o.Alpha}); err != nil {
		return r, err
	}
	r.judge()
	return r, nil
}

func (o CompareOptions) metrics() []verdict.Metric {
	if o.Metrics == nil {
		return verdict.Defaults()
	}
	return o.Metrics
}

// manifests are those of some runs.
func manifests(runs []*Measured) []*formats.Manifest {
	list := make([]*formats.Manifest, len(runs))
	for i, m := range runs {
		list[i] = &m.Manifest
	}
	return list
}

// newReport checks that the runs can be compared at all, and returns the valid pairs.
func newReport(base, candidate []*Measured, o CompareOptions) (r Report, a, b []*verdict.Run, err error) {
	r = Report{Schema: 1, Method: "pairs of runs: matched requests, moderated t over pairs", Verdict: verdict.Inconclusive, Findings: []verdict.Finding{}, Runs: []RunRow{},
		Differences: []Difference{}, Explanation: []string{}, Again: []string{}, Warnings: []string{}, Next: []string{}, FalseAlarms: o.FalseAlarms}
	if len(base) == 0 || len(candidate) == 0 {
		return r, nil, nil, errors.New("compare runs: a side has none")
	}
	all := append(slices.Clone(base), candidate...)
	for _, m := range all[1:] {
		if err := sameTraffic(all[0], m); err != nil {
			return r, nil, nil, err
		}
	}
	if err := onceEach(all); err != nil {
		return r, nil, nil, fmt.Errorf("compare runs: %w", err)
	}
	r.Base, r.Candidate = cmp.Or(o.Base, names(base)), cmp.Or(o.Candidate, names(candidate))
	r.Differences = environmentDifferences(base[0].Manifest, candidate[0].Manifest)
	r.Conditions = analyzer.Conditions(manifests(base), manifests(candidate))
	if len(base) != len(candidate) {
		r.Warnings = append(r.Warnings, fmt.Sprintf("%d base and %d candidate runs: the first %d of each are pairs, the others are left out", len(base), len(candidate), min(len(base), len(candidate))))
	}
	few := o.MinSamples
	if few == 0 {
		few = 5000
	}
	least := int64(math.MaxInt64)
	for i := range min(len(base), len(candidate)) {
		x, y := base[i], candidate[i]
		both := pairInvalid(x, y)
		ok := len(both) == 0
		for _, s := range []struct {
			m   *Measured
			arm string
		}{{x, "base"}, {y, "candidate"}} {
			reasons := append(slices.Clone(s.m.Invalid), both...)
			row := RunRow{Label: s.m.Run.Label, Where: s.m.Where, Arm: s.arm, Pair: i + 1, Valid: len(reasons) == 0, Invalid: reasons, Requests: s.m.Summary.Requests.Sent}
			if !math.IsNaN(s.m.ClockMHz) {
				row.ClockMHz = formats.Of(s.m.ClockMHz)
			}
			r.Runs = append(r.Runs, row)
			if len(s.m.Invalid) > 0 {
				ok = false
				r.Again = append(r.Again, fmt.Sprintf("pair %d, %s: %s", i+1, s.arm, s.m.Invalid[0]))
			}
			least = min(least, s.m.Summary.Requests.Sent)
		}
		if len(both) > 0 {
			r.Again = append(r.Again, fmt.Sprintf("pair %d, both: %s", i+1, both[0]))
		}
		if ok || o.AllowInvalid {
			r.Pairs++
			a, b = append(a, x.Run), append(b, y.Run)
		}
	}
	if len(r.Again) > 0 && o.AllowInvalid {
		r.tookInvalid()
	}
	if least < int64(few) {
		r.Warnings = append(r.Warnings, fmt.Sprintf("%d requests in the smallest run, below %d: figures of slow requests are coarse", least, few))
	}
	return r, a, b, nil
}

// tookInvalid says that invalid runs count as they are: nothing has to be made again for it.
func (r *Report) tookInvalid() {
	r.Again = r.Again[:0]
	r.Warnings = append(r.Warnings, "invalid runs are taken as they are")
}

// judge gives the report its verdict and what to do next.
func (r *Report) judge() {
	if r.Pairs == 1 && r.Method != againstBaseline {
		for i := range r.Findings {
			if f := &r.Findings[i]; f.Gated && f.State == verdict.Regressed {
				f.State, f.Why = verdict.Inconclusive, "it looks worse, but one launch a side informs and decides nothing: launches of one build differ too"
			}
		}
	}
	r.Verdict = verdict.Overall(r.Findings)
	r.explain()
	if len(r.Again) > 0 && r.Verdict == verdict.Inconclusive {
		r.Verdict = verdict.Invalid
	}
	r.next()
}

// explain says in words what moved beside a change of latency or capacity: what fills the cache, what waits, which phase grew more.
func (r *Report) explain() {
	at := map[string]verdict.Finding{}
	changed := false
	for _, f := range r.Findings {
		at[f.Metric] = f
		changed = changed || f.Gated && (f.State == verdict.Regressed || f.State == verdict.Improved)
	}
	if !changed {
		return
	}
	for _, f := range r.Findings {
		if f.State == verdict.Explains && f.WorthALook {
			r.Explanation = append(r.Explanation, fmt.Sprintf("%s %s -> %s", words(f.Metric), number(f.Base, f), number(f.Candidate, f)))
		}
	}
	ttft, tpot := at["ttft"], at["tpot"]
	if at["capacity"].State == verdict.Regressed && tpot.State != verdict.Regressed && tpot.ChangePct.Valid {
		r.Explanation = append(r.Explanation, "capacity fell while tokens come as fast as before: fewer requests run at once")
	}
	if ttft.State != verdict.Regressed && tpot.State != verdict.Regressed || !ttft.ChangePct.Valid || !tpot.ChangePct.Valid {
		return
	}
	switch t, p := ttft.ChangePct.V, tpot.ChangePct.V; {
	case t > 1.25*p:
		r.Explanation = append(r.Explanation, "TTFT grew more than TPOT: prefill or waiting rather than decode")
	case p > 1.25*t:
		r.Explanation = append(r.Explanation, "TPOT grew more than TTFT: decode rather than prefill")
	default:
		r.Explanation = append(r.Explanation, "TTFT and TPOT grew alike: every step rather than one phase")
	}
}

// words are a figure's name for people.
func words(metric string) string {
	switch metric {
	case "kv_usage_mean":
		return "mean use of the KV cache"
	case "kv_usage_peak":
		return "peak use of the KV cache"
	case "kv_prefix_hit_rate":
		return "prefix cache hits"
	case "kv_preemptions":
		return "preemptions"
	case "mix_prefill_only":
		return "time with prefill only"
	case "mix_decode_only":
		return "time with decode only"
	case "mix_mixed":
		return "time with prefill and decode at once"
	case "server_waiting_mean":
		return "requests waiting in the server"
	}
	return metric
}

// next says what to do, in the order of its worth.
func (r *Report) next() {
	r.Next = r.Next[:0]
	for i, a := range r.Again {
		if i == 3 && len(r.Again) > 4 {
			r.Next = append(r.Next, fmt.Sprintf("run again: %d more (--json lists them)", len(r.Again)-3))
			break
		}
		r.Next = append(r.Next, "run again: "+a)
	}
	for _, f := range r.Findings {
		if f.Gated && f.State == verdict.Regressed {
			r.Next = append(r.Next, "find the cause: "+r.cause())
			break
		}
	}
	more := 0
	for _, f := range r.Findings {
		if f.Gated && f.State == verdict.Inconclusive && f.MorePairs.Valid {
			more = max(more, f.MorePairs.V)
		}
	}
	switch {
	case more > 50:
		r.Next = append(r.Next, fmt.Sprintf("it would take %d more pairs to see a change of the tolerance's size: make the host quieter, or the runs longer", more))
	case more > 0:
		r.Next = append(r.Next, fmt.Sprintf("%d more pairs of fresh launches would see a change of the tolerance's size", more))
	case r.Verdict == verdict.Inconclusive && r.Pairs < 5:
		r.Next = append(r.Next, "at least 5 pairs of fresh launches; 3 with a history of A/A pairs")
	}
}

// cause names the likely one: what differs between the environments.
func (r *Report) cause() string {
	if len(r.Differences) == 0 {
		return "the environments do not differ in what was recorded"
	}
	var parts []string
	for _, d := range r.Differences[:min(3, len(r.Differences))] {
		a, b := apart(d.Base, d.Candidate)
		parts = append(parts, d.What+" "+a+" -> "+b)
	}
	return strings.Join(parts, "; ")
}

func names(runs []*Measured) string {
	seen := []string{}
	for _, m := range runs {
		if !slices.Contains(seen, m.Run.Label) {
			seen = append(seen, m.Run.Label)
		}
	}
	if len(seen) > 3 {
		return fmt.Sprintf("%s … %s (%d runs)", seen[0], seen[len(seen)-1], len(seen))
	}
	return strings.Join(seen, ", ")
}

// ErrTwice is what an error wraps where one launch is given as two.
var ErrTwice = errors.New("one launch counts once")

// onceEach refuses a run that is given twice, as it is or as a copy: it would make launches look more alike than they are.
func onceEach(runs []*Measured) error {
	seen := map[string]string{}
	for _, m := range runs {
		id := m.id()
		if first, ok := seen[id]; ok {
			if first == m.Where {
				return fmt.Errorf("%s is given twice: %w", first, ErrTwice)
			}
			return fmt.Errorf("%s and %s are one run: %w", first, m.Where, ErrTwice)
		}
		seen[id] = m.Where
	}
	return nil
}

// scheduleOptions are the options of a replay that change what is asked for.
var scheduleOptions = []string{"speed", "duration_s", "max_requests", "output_lengths", "sessions", "sampling", "loop", "window", "thin", "rate"}

// sameTraffic refuses runs of different traces or schedules.
func sameTraffic(a, b *Measured) error {
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("compare %s with %s: %w: %s", a.Where, b.Where, ErrIncomparable, fmt.Sprintf(format, args...))
	}
	if x, y := a.Manifest.TraceSHA256, b.Manifest.TraceSHA256; x != y {
		return refuse("their traces differ (%s %.8s and %s %.8s)", a.Manifest.TracePath, x, b.Manifest.TracePath, y)
	}
	if a.Manifest.Kind != b.Manifest.Kind {
		return refuse("one is a %s, the other a %s", a.Manifest.Kind, b.Manifest.Kind)
	}
	for _, k := range scheduleOptions {
		if x, y := fmt.Sprint(a.Manifest.Options[k]), fmt.Sprint(b.Manifest.Options[k]); x != y {
			return refuse("their %s differs (%s and %s)", k, x, y)
		}
	}
	return nil
}

// pairInvalid says why two runs that are valid by themselves do not make a pair.
func pairInvalid(a, b *Measured) []string {
	var why []string
	if d, ok := workDifference(a.input, b.input); ok && math.Abs(d) > 0.01 {
		why = append(why, fmt.Sprintf("unequal work: input tokens differ by %+.1f %%", 100*d))
	}
	if d, ok := workDifference(a.output, b.output); ok && math.Abs(d) > 0.02 {
		why = append(why, fmt.Sprintf("unequal work: output tokens differ by %+.1f %%", 100*d))
	}
	if d := b.ClockMHz/a.ClockMHz - 1; math.Abs(d) > 0.01 {
		why = append(why, fmt.Sprintf("the GPU's clock differs by %+.1f %%", 100*d))
	}
	for _, k := range machineKeys {
		x, y := flatten(a.Manifest.Environment)[k], flatten(b.Manifest.Environment)[k]
		if x != y && x != "" && y != "" {
			why = append(why, fmt.Sprintf("different machines: %s is %s and %s", k, x, y))
		}
	}
	return why
}

// machineKeys are what must be equal on both sides of a pair.
var machineKeys = []string{"client.host", "client.cpus", "deployment.host.hostname", "deployment.gpu_uuids"}

// workDifference is the relative difference of the tokens of the requests that both runs have.
func workDifference(x, y []float64) (float64, bool) {
	var a, b float64
	for i := range min(len(x), len(y)) {
		if !math.IsNaN(x[i]) && !math.IsNaN(y[i]) {
			a, b = a+x[i], b+y[i]
		}
	}
	return b/a - 1, a > 0
}

// volatile are environment values that differ from launch to launch and mean nothing.
var volatile = []string{"url", "round_trip_ms", "round_trip_after_ms", "start_up_ms", "id", "container", "pid", "port", "metrics", "log", "name", "created", "hostname_container"}

// environmentDifferences lists what differs between two environments and the options of the simulation, engine first.
func environmentDifferences(a, b formats.Manifest) []Difference {
	x, y := flatten(a.Environment), flatten(b.Environment)
	for _, m := range []struct {
		from map[string]any
		to   map[string]string
	}{{a.Options, x}, {b.Options, y}} {
		for k, v := range flatten(m.from) {
			if strings.HasPrefix(k, "profile") || strings.HasPrefix(k, "slowdown") || strings.HasPrefix(k, "noise") || k == "replicas" || k == "route" {
				m.to["simulator."+k] = v
			}
		}
	}
	for _, m := range []map[string]string{x, y} {
		if c, ok := m["deployment.command"]; ok {
			m["deployment.command"] = withoutPort(c)
		}
	}
	if a.Model != b.Model {
		x["model"], y["model"] = a.Model, b.Model
	}
	if a.ToolVersion != b.ToolVersion {
		x["shadowtape"], y["shadowtape"] = a.ToolVersion, b.ToolVersion
	}
	keys := map[string]bool{}
	for k := range x {
		keys[k] = true
	}
	for k := range y {
		keys[k] = true
	}
	out := []Difference{}
	for _, k := range slices.Sorted(maps.Keys(keys)) {
		last := k[strings.LastIndexByte(k, '.')+1:]
		if x[k] == y[k] || slices.Contains(volatile, last) {
			continue
		}
		out = append(out, Difference{k, cmp.Or(x[k], "absent"), cmp.Or(y[k], "absent")})
	}
	slices.SortStableFunc(out, func(p, q Difference) int { return cmp.Compare(weight(p.What), weight(q.What)) })
	return out
}

// weight orders differences: what is served before where.
func weight(k string) int {
	for i, part := range []string{"model", "version", "image", "command", "args", "slowdown", "profile", "env", "executable"} {
		if strings.Contains(k, part) {
			return i
		}
	}
	return 100
}

// flatten writes a document's leaves under dotted paths; lists whose elements are no documents are one value.
func flatten(m map[string]any) map[string]string {
	out := map[string]string{}
	var walk func(prefix string, v any)
	walk = func(prefix string, v any) {
		switch v := v.(type) {
		case map[string]any:
			for k, e := range v {
				if prefix != "" {
					k = prefix + "." + k
				}
				walk(k, e)
			}
		case []any:
			plain := true
			for _, e := range v {
				if _, ok := e.(map[string]any); ok {
					plain = false
				}
			}
			if plain {
				parts := make([]string, len(v))
				for i, e := range v {
					parts[i] = fmt.Sprint(e)
				}
				out[prefix] = strings.Join(parts, " ")
				return
			}
			for i, e := range v {
				walk(fmt.Sprintf("%s.%d", prefix, i), e)
			}
		case nil:
		default:
			out[prefix] = fmt.Sprint(v)
		}
	}
	walk("", map[string]any(m))
	return out
}
