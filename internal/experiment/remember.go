package experiment

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/shadowtape/shadowtape/internal/experiment/history"
	"github.com/shadowtape/shadowtape/internal/experiment/verdict"
	"github.com/shadowtape/shadowtape/internal/stats"
)

// KeyOf is the identity of a run's series: what must be equal for two runs to be compared over time. The engine's version and the image
// are not in it, since they are what a history is there to judge; they are provenance.
func (m *Measured) KeyOf() history.Key {
	f := flatten(m.Manifest.Environment)
	k := history.Key{
		"estimator": fmt.Sprint(history.Estimator), "kind": m.Manifest.Kind, "trace": m.Manifest.TraceSHA256, "model": m.Manifest.Model,
	}
	put := func(name, v string) {
		if v != "" {
			k[name] = v
		}
	}
	for _, o := range scheduleOptions {
		if v, ok := m.Manifest.Options[o]; ok {
			put(o, fmt.Sprint(v))
		}
	}
	if m.Manifest.Kind == "simulate" {
		for name, v := range flatten(m.Manifest.Options) {
			if strings.HasPrefix(name, "profile.") || name == "replicas" || name == "route" {
				put(name, v)
			}
		}
	}
	put("client_host", f["client.host"])
	put("client_cpus", f["client.cpus"])
	put("dialect", f["targets.0.dialect"])
	for _, name := range []string{"deployment.host.hostname", "deployment.host.cpu", "deployment.gpu_uuids", "deployment.gpu_names", "deployment.driver", "deployment.command", "deployment.entrypoint", "deployment.kind"} {
		v := f[name]
		if name == "deployment.command" {
			v = withoutPort(v)
		}
		put(name, v)
	}
	if f["deployment.kind"] == "" {
		put("target_count", fmt.Sprint(len(m.Manifest.Targets)))
	}
	return k
}

// withoutPort takes the listening port out of a command line: it differs from launch to launch and means nothing.
func withoutPort(command string) string {
	words := strings.Fields(command)
	for i, w := range words {
		if _, port, ok := strings.Cut(w, "127.0.0.1:"); ok && port != "" {
			words[i] = strings.TrimSuffix(w, port) + "PORT"
		}
		if i > 0 && words[i-1] == "--port" {
			words[i] = "PORT"
		}
		if strings.HasPrefix(w, "--port=") {
			words[i] = "--port=PORT"
		}
	}
	return strings.Join(words, " ")
}

// id is a run's own name: the same run is the same wherever it is copied.
func (m *Measured) id() string {
	h := sha256.Sum256(fmt.Appendf(nil, "%s %s %d %d %d %v %v", m.Run.Label, m.Manifest.TraceSHA256, m.Manifest.StartUnixNS, m.Manifest.EndUnixNS, m.Manifest.Seed,
		m.Manifest.Options["request_ids"], m.Run.Columns["ttft"]))
	return hex.EncodeToString(h[:6])
}

// Origin says where a run comes from.
type Origin struct {
	Commit, Branch, Team string
	Against              string // of a gate: the base's commit
}

// at is when the run began. A simulated one's times are its trace's, by which every run of it would be of one night: it is of now.
func (m *Measured) at() time.Time {
	if m.Manifest.Kind == "simulate" {
		return time.Now().UTC()
	}
	return time.Unix(0, m.Manifest.StartUnixNS).UTC()
}

// RecordOf makes a run's record. slow is the series' slow set; nil leaves the slow metrics' levels to the run's own.
func (m *Measured) RecordOf(o Origin, slow []int) history.Record {
	key := m.KeyOf()
	f := flatten(m.Manifest.Environment)
	r := history.Record{
		Kind: history.RunKind, At: m.at(), Series: key.ID(), ID: m.id(), Label: m.Run.Label, Commit: o.Commit, Branch: o.Branch, Team: o.Team, Key: key,
		Invalid: m.Invalid, Levels: map[string]float64{}, Figures: map[string]float64{}, Quantiles: map[string]map[string]float64{}, Provenance: map[string]string{},
	}
	for _, metric := range verdict.Defaults() {
		metric.Set = nil
		if metric.Kind == verdict.Slow {
			metric.Set = slow
		}
		if v := m.Run.Level(metric); !math.IsNaN(v) && !math.IsInf(v, 0) {
			r.Levels[metric.Name] = v
		}
	}
	for name, v := range m.Run.Figures {
		r.Figures[name] = v
	}
	for _, name := range []string{"ttft", "tpot"} {
		x := make([]float64, 0, len(m.Run.Columns[name]))
		for _, v := range m.Run.Columns[name] {
			if !math.IsNaN(v) {
				x = append(x, v)
			}
		}
		slices.Sort(x)
		if len(x) == 0 {
			continue
		}
		q := map[string]float64{}
		for _, p := range []float64{0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1} {
			q[fmt.Sprintf("p%g", p*100)] = stats.Quantile(x, p)
		}
		r.Quantiles[name] = q
	}
	for name, at := range map[string]string{
		"host": "client.host", "server_host": "deployment.host.hostname", "engine": "targets.0.server", "engine_version": "targets.0.version", "image": "deployment.image",
		"image_digest": "deployment.image_digest", "executable_sha256": "deployment.executable_sha256", "driver": "deployment.driver",
	} {
		if v := f[at]; v != "" {
			r.Provenance[name] = v
		}
	}
	r.Provenance["shadowtape"] = m.Manifest.ToolVersion
	return r
}

// Remember turns runs into records: each run, the slow set where the series has none yet, and with aa the differences of neighboring
// runs, which then must be launches of one build. db is what is known already; nil is nothing.
func Remember(runs []*Measured, db *history.DB, o Origin, aa bool) ([]history.Record, error) {
	if len(runs) == 0 {
		return nil, errors.New("add to a history: no run is given")
	}
	if err := onceEach(runs); err != nil {
		return nil, fmt.Errorf("take runs: %w", err)
	}
	var out []history.Record
	byKey := map[string][]*Measured{}
	var order []string
	for _, m := range runs {
		id := m.KeyOf().ID()
		if byKey[id] == nil {
			order = append(order, id)
		}
		byKey[id] = append(byKey[id], m)
	}
	for _, id := range order {
		var slow []int
		if db != nil {
			if s := db.Find(id); s != nil {
				slow = s.Slow
			}
		}
		var valid []*verdict.Run
		for _, m := range byKey[id] {
			if len(m.Invalid) == 0 {
				valid = append(valid, m.Run)
			}
		}
		first := byKey[id][0].RecordOf(o, slow)
		if slow == nil {
			if slow = verdict.Slowest("ttft", valid); slow != nil {
				out = append(out, history.Record{Kind: history.SlowKind, At: first.At, Series: id, Slow: slow})
			}
		}
		for _, m := range byKey[id] {
			out = append(out, m.RecordOf(o, slow))
		}
		if aa {
			out = append(out, pairsOf(byKey[id], slow)...)
		}
	}
	return out, nil
}

// pairsOf makes records of A/A pairs of neighboring valid runs: first with second, third with fourth.
func pairsOf(runs []*Measured, slow []int) []history.Record {
	var out []history.Record
	for i := 0; i+1 < len(runs); i += 2 {
		a, b := runs[i], runs[i+1]
		if len(a.Invalid) > 0 || len(b.Invalid) > 0 {
			continue
		}
		out = append(out, pairRecord(a, b, slow))
	}
	return out
}

func pairRecord(a, b *Measured, slow []int) history.Record {
	first := a.RecordOf(Origin{}, slow)
	r := history.Record{Kind: history.AAKind, At: first.At, Series: first.Series, Pair: []string{a.id(), b.id()}, Differences: map[string]float64{}}
	for _, m := range verdict.Defaults() {
		if m.Kind == verdict.Slow {
			m.Set = slow
		}
		if d, _, _ := verdict.Differences(m, []*verdict.Run{a.Run}, []*verdict.Run{b.Run}); len(d) == 1 {
			r.Differences[m.Name] = d[0]
		}
	}
	return r
}

// fewestTested is how many pairs can call a metric worse whatever the history holds; fewer can where they have decided something.
const fewestTested = 5

// Records are what a gate leaves in a history: its verdict; with runs also the launches, of identical builds both sides and their
// differences, else the candidate's where it is not worse: so the history moves by itself only where all is well.
func (s Sides) Records(r Report, db *history.DB, o Origin, aa, runs bool) ([]history.Record, error) {
	all := append(slices.Clone(s.Base), s.Candidate...)
	if len(all) == 0 {
		return nil, nil
	}
	// The hour of the last launch, so that the same gate called again leaves the same line, which counts once.
	at := slices.MaxFunc(all, func(a, b *Measured) int { return a.at().Compare(b.at()) }).at()
	verdicts := history.Record{Kind: history.GateKind, At: at, Series: all[0].KeyOf().ID(), AA: aa, Verdict: string(r.Verdict), States: map[string]string{}, Detectable: map[string]float64{}, Pairs: r.Pairs, Tested: r.Pairs >= fewestTested, Commit: o.Commit, Against: o.Against, Branch: o.Branch}
	for _, f := range r.Findings {
		if f.Gated {
			verdicts.States[f.Metric] = string(f.State)
			verdicts.Tested = verdicts.Tested || r.Pairs > 1 && f.State != verdict.Inconclusive
			if f.DetectablePct.Valid {
				verdicts.Detectable[f.Metric] = f.DetectablePct.V
			}
		}
	}
	out := []history.Record{verdicts}
	if !runs {
		return out, nil
	}
	var keep []*Measured
	switch {
	case aa:
		keep = all
	case r.Verdict == verdict.Unchanged || r.Verdict == verdict.Improved || r.Verdict == verdict.Small:
		keep = s.Candidate
	default:
		return out, nil
	}
	records, err := Remember(keep, db, o, false)
	if err != nil || !aa {
		return append(out, records...), err
	}
	slow := slowSet(records, db, verdicts.Series)
	for i := range min(len(s.Base), len(s.Candidate)) {
		if usable(s.Base[i], s.Candidate[i], false) {
			records = append(records, pairRecord(s.Base[i], s.Candidate[i], slow))
		}
	}
	return append(out, records...), nil
}

func slowSet(records []history.Record, db *history.DB, series string) []int {
	if s := db.Find(series); s != nil && s.Slow != nil {
		return s.Slow
	}
	for _, r := range records {
		if r.Kind == history.SlowKind && r.Series == series {
			return r.Slow
		}
	}
	return nil
}

// PastOfTrace is what a history says of the one series of a trace; nil where it has none or several. It is for a plan, before a run says
// which series it is.
func PastOfTrace(db *history.DB, sha256 string, metrics []verdict.Metric, window time.Duration) map[string]verdict.Past {
	if db == nil {
		return nil
	}
	var found *history.Series
	for _, s := range db.Series() {
		if s.Key["trace"] == sha256 {
			if found != nil {
				return nil
			}
			found = s
		}
	}
	if found == nil {
		return nil
	}
	out := map[string]verdict.Past{}
	for _, m := range metrics {
		out[m.Name] = found.Past(m, time.Now(), window)
	}
	return out
}

// PastOf is what a history says of the runs' series, by metric, over a window before the first run.
func PastOf(db *history.DB, m *Measured, metrics []verdict.Metric, window time.Duration) map[string]verdict.Past {
	if db == nil {
		return nil
	}
	s := db.Find(m.KeyOf().ID())
	if s == nil {
		return nil
	}
	at := m.at()
	out := map[string]verdict.Past{}
	for _, metric := range metrics {
		out[metric.Name] = s.Past(metric, at, window)
	}
	return out
}

// BaselineOf makes a baseline of runs of one identity.
func BaselineOf(runs []*Measured, db *history.DB, o Origin, window time.Duration) (history.Baseline, error) {
	records, err := Remember(runs, db, o, false)
	if err != nil {
		return history.Baseline{}, err
	}
	b := history.Baseline{Key: runs[0].KeyOf(), Saved: time.Now().UTC().Truncate(time.Second), Commit: o.Commit}
	b.Series = b.Key.ID()
	if s := db.Find(b.Series); s != nil {
		b.Slow = s.Slow
	}
	for _, m := range runs {
		if d := b.Key.Differs(m.KeyOf()); len(d) > 0 {
			return b, fmt.Errorf("save a baseline of %s and %s: %w: %s", runs[0].Where, m.Where, ErrIncomparable, strings.Join(d, ", "))
		}
		if len(m.Invalid) > 0 {
			return b, fmt.Errorf("save a baseline: run %s is invalid: %s", m.Where, m.Invalid[0])
		}
	}
	for _, r := range records {
		switch r.Kind {
		case history.RunKind:
			r.Key = nil // said once
			b.Runs = append(b.Runs, r)
		case history.SlowKind:
			b.Slow = r.Slow
		}
	}
	b.Past = PastOf(db, runs[0], verdict.Defaults(), window)
	return b, nil
}

const againstBaseline = "levels of launches against a baseline that was measured in another session"

// CompareBaseline judges candidate runs against a baseline, beside which they were not measured.
func CompareBaseline(b history.Baseline, path string, candidate []*Measured, o CompareOptions) (Report, error) {
	r := Report{Schema: 1, Method: againstBaseline, Verdict: verdict.Inconclusive, Findings: []verdict.Finding{}, Runs: []RunRow{},
		Differences: []Difference{}, Explanation: []string{}, Again: []string{}, Warnings: []string{}, Next: []string{}, FalseAlarms: o.FalseAlarms, Base: path, Candidate: names(candidate)}
	if err := onceEach(candidate); err != nil {
		return r, fmt.Errorf("compare runs: %w", err)
	}
	var runs []*verdict.Run
	for i, m := range candidate {
		if slices.ContainsFunc(b.Runs, func(r history.Record) bool { return r.ID == m.id() }) {
			return r, fmt.Errorf("compare %s with baseline %s, which holds it: %w", m.Where, path, ErrTwice)
		}
		if d := b.Key.Differs(m.KeyOf()); len(d) > 0 {
			return r, fmt.Errorf("compare %s with baseline %s: %w: %s", m.Where, path, ErrIncomparable, strings.Join(d, ", "))
		}
		r.Runs = append(r.Runs, RunRow{Label: m.Run.Label, Where: m.Where, Arm: "candidate", Pair: i + 1, Valid: len(m.Invalid) == 0, Invalid: m.Invalid, Requests: m.Summary.Requests.Sent})
		if len(m.Invalid) > 0 {
			r.Again = append(r.Again, m.Where+": "+m.Invalid[0])
			if !o.AllowInvalid {
				continue
			}
		}
		runs = append(runs, m.Run)
	}
	if len(r.Again) > 0 && o.AllowInvalid {
		r.tookInvalid()
	}
	if len(runs) == 0 {
		r.Verdict = verdict.Invalid
		r.next()
		return r, nil
	}
	r.Pairs, r.Alpha = len(runs), cmp.Or(o.Alpha, verdict.AloneAlpha)
	alone := false
	past := map[string]verdict.Past{}
	for name, p := range b.Past {
		past[name] = p
	}
	p := past["ttft_slow"]
	p.Slow = b.Slow
	past["ttft_slow"] = p
	var err error
	r.Findings, err = verdict.DecideAlone(runs, func(m verdict.Metric, levels []float64) (stats.Estimate, float64, bool) {
		e, base, own, ok := b.Against(m, levels)
		alone = alone || own && ok
		return e, base, ok
	}, verdict.Options{Metrics: o.metrics(), Past: past, Alpha: r.Alpha})
	if err != nil {
		return r, err
	}
	if alone {
		r.Warnings = append(r.Warnings, "the baseline has fewer than 8 nights beside it: what differs from session to session is not known and not in the intervals")
	}
	r.judge()
	return r, nil
}

// FalseAlarmText is the gate's record on identical builds in a history, for a report's footer: "" where it was never tried.
func FalseAlarmText(db *history.DB) string {
	if db == nil {
		return ""
	}
	wrong, all, last := db.FalseAlarms()
	if all == 0 {
		return ""
	}
	lo, hi := stats.BinomialInterval(wrong, all, 0.95)
	text := fmt.Sprintf("%d false alarms in %d (%.1f %%, 95 %% interval %.1f to %.1f %%)", wrong, all, 100*float64(wrong)/float64(all), 100*lo, 100*hi)
	var see []string
	for _, m := range verdict.Defaults() {
		if v, ok := last.Detectable[m.Name]; ok {
			see = append(see, fmt.Sprintf("%s %.1f %s", m.Name, v, per(verdict.Finding{Unit: m.Unit})))
		}
	}
	if len(see) > 0 {
		text += fmt.Sprintf("; the last one's %s could see %s", count(last.Pairs, "pair"), strings.Join(see, ", "))
	}
	return text
}

// Level is a level of a metric for people, in its unit.
func Level(m verdict.Metric, level float64) string {
	f := verdict.Finding{Unit: m.Unit}
	s := number(verdict.Null{V: show(m, level), Valid: true}, f)
	if m.Unit != "ms" && m.Unit != "share" {
		s += " " + m.Unit
	}
	return s
}

// SaturatedOf is where a gate puts the saturated phase of a run: beside it. It is "" where there is none.
func SaturatedOf(run string) string {
	path := strings.TrimRight(run, "/") + saturatedSuffix
	if _, err := os.Stat(path); err != nil {
		return ""
	}
	return path
}

const saturatedSuffix = "-saturated"
