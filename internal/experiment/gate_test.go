package experiment

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shadowtape/shadowtape/analyzer"
	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/experiment/history"
	"github.com/shadowtape/shadowtape/internal/experiment/verdict"
)

// fake makes a measured run of 500 requests whose times are those of a base times a ratio.
func fake(label string, ratio float64) *Measured {
	r := rand.New(rand.NewPCG(1, 1))
	m := &Measured{Where: label, ClockMHz: math.NaN(), Manifest: formats.Manifest{Label: label, Kind: "replay", TraceSHA256: "abcdef0123", TracePath: "t", Options: map[string]any{"speed": 1.0}, Environment: map[string]any{}}}
	m.Run = &verdict.Run{Label: label, Columns: map[string][]float64{}, Figures: map[string]float64{"error_rate": 0, "capacity": 1000 / ratio}}
	for range 500 {
		v := math.Exp(5 + r.NormFloat64())
		m.Run.Columns["ttft"] = append(m.Run.Columns["ttft"], v*ratio)
		m.Run.Columns["tpot"] = append(m.Run.Columns["tpot"], v*ratio/10)
		m.input, m.output = append(m.input, 100), append(m.output, 50)
	}
	m.Summary = analyzer.Summary{Requests: analyzer.Requests{Sent: 500}}
	return m
}

// lab is a host whose launches are drawn; it writes down what was launched and keeps a clock.
type lab struct {
	r        *rand.Rand
	slower   float64 // of the candidate
	noise    float64
	launched []string
	now      time.Time
	each     time.Duration
	spoil    func(l Leg, m *Measured)
}

func newLab(slower float64) *lab {
	return &lab{r: rand.New(rand.NewPCG(2, 2)), slower: slower, noise: 0.01, now: time.Unix(1e9, 0), each: time.Minute}
}

func (b *lab) launch(_ context.Context, l Leg) (*Measured, error) {
	b.launched = append(b.launched, l.Name())
	b.now = b.now.Add(b.each)
	ratio := math.Exp(b.noise * b.r.NormFloat64())
	if l.Arm == Candidate {
		ratio *= b.slower
	}
	m := fake(l.Name(), ratio)
	m.Manifest.StartUnixNS = b.now.UnixNano()
	if b.spoil != nil {
		b.spoil(l, m)
	}
	return m, nil
}

func (b *lab) options() GateOptions {
	past := map[string]verdict.Past{}
	for _, m := range verdict.Defaults() {
		var p verdict.Past
		level, noise := fake("", 1).Run.Level(m), b.noise
		if m.Kind == verdict.Share {
			noise = 0
		}
		for range 30 {
			p.Nights = append(p.Nights, level+noise*b.r.NormFloat64())
			p.AA = append(p.AA, noise*math.Sqrt2*b.r.NormFloat64())
		}
		if !math.IsNaN(level) {
			past[m.Name] = p
		}
	}
	return GateOptions{Compare: CompareOptions{Past: past}, Now: func() time.Time { return b.now }, Each: b.each}
}

func TestGateTurnsRoundAndStops(t *testing.T) {
	b := newLab(1.2)
	r, sides, err := Gate(context.Background(), b.launch, b.options())
	if err != nil || r.Verdict != verdict.Regressed || r.Pairs != 3 {
		t.Fatalf("%v %+v", err, r)
	}
	want := []string{"p01-base", "p01-candidate", "p02-candidate", "p02-base", "p03-base", "p03-candidate"}
	if !slices.Equal(b.launched, want) {
		t.Errorf("launched %v, want %v", b.launched, want)
	}
	if len(sides.Base) != 3 || len(sides.Candidate) != 3 {
		t.Errorf("%d and %d runs", len(sides.Base), len(sides.Candidate))
	}
	if len(r.Next) == 0 || !strings.Contains(r.Next[0], "cause") {
		t.Errorf("next: %v", r.Next)
	}
}

func TestGateOfIdenticalBuilds(t *testing.T) {
	b := newLab(1)
	r, _, err := Gate(context.Background(), b.launch, b.options())
	if err != nil || r.Verdict != verdict.Unchanged {
		t.Fatalf("%v %s %+v", err, r.Verdict, r.Findings)
	}
}

func TestGateKeepsToItsBudget(t *testing.T) {
	b := newLab(1.02)
	b.noise = 0.05
	o := b.options()
	o.Budget = 9*time.Minute + 30*time.Second
	r, _, err := Gate(context.Background(), b.launch, o)
	if err != nil || r.Pairs != 4 || len(b.launched) != 9 {
		t.Fatalf("%v, %d pairs of %d launches", err, r.Pairs, len(b.launched))
	}
	// looked at 3 pairs, then once more with what was left: never more than the whole level
	if r.Alpha > verdict.DefaultAlpha+1e-12 || r.Alpha < verdict.DefaultAlpha-1e-12 {
		t.Errorf("level %v", r.Alpha)
	}
	b, o.Budget = newLab(1), 30*time.Second
	if _, _, err := Gate(context.Background(), b.launch, o); err == nil || len(b.launched) != 0 {
		t.Errorf("a budget of half a launch: %v, %v", err, b.launched)
	}
}

func TestGatePlan(t *testing.T) {
	b := newLab(1)
	o := b.options()
	o.Budget = 11 * time.Minute
	p := o.Plan()
	if p.Pairs != 5 || !p.Prior || len(p.Looks) != 2 {
		t.Errorf("%+v", p)
	}
	// five pairs of differences with deviation sqrt 2 × 1 % see about (t + t) × 1.4 ÷ sqrt 5
	if v := p.Detectable["ttft"]; v < 1.2 || v > 3.5 {
		t.Errorf("ttft: would see %v %%", v)
	}
	o.Compare.Past = nil
	if p := o.Plan(); p.Prior || len(p.Detectable) != 0 || p.Looks[0].Pairs != 5 {
		t.Errorf("without a history: %+v", p)
	}
}

func TestGateMakesInvalidLaunchesAgain(t *testing.T) {
	b := newLab(1.2)
	b.spoil = func(l Leg, m *Measured) {
		if l.Pair == 2 && l.Arm == Base && l.Try < 3 {
			m.Invalid = []string{"send lag"}
		}
	}
	r, _, err := Gate(context.Background(), b.launch, b.options())
	if err != nil || r.Verdict != verdict.Regressed || !slices.Contains(b.launched, "p02-base-try3") || len(r.Again) != 0 {
		t.Errorf("%v %s %v %v", err, r.Verdict, b.launched, r.Again)
	}
	b = newLab(1.2)
	b.spoil = func(l Leg, m *Measured) { m.Invalid = []string{"throttled"} }
	r, _, err = Gate(context.Background(), b.launch, b.options())
	if err != nil || r.Verdict != verdict.Invalid || len(r.Again) == 0 {
		t.Errorf("a host that throttles: %v %s", err, r.Verdict)
	}
	b = newLab(1)
	b.spoil = func(l Leg, m *Measured) { m.Invalid = []string{"throttled"} }
	o := b.options()
	o.Compare.AllowInvalid, o.MaxPairs, o.Compare.Past = true, 2, nil
	if r, _, err = Gate(context.Background(), b.launch, o); err != nil || r.Verdict != verdict.Inconclusive || len(r.Again) != 0 || len(r.Warnings) == 0 {
		t.Errorf("accepted all the same: %v %s %v %v", err, r.Verdict, r.Again, r.Warnings)
	}
	b = newLab(1.2)
	b.spoil = func(l Leg, m *Measured) {
		if l.Arm == Candidate {
			for i := range m.output {
				m.output[i] = 60
			}
		}
	}
	if r, _, err = Gate(context.Background(), b.launch, b.options()); err != nil || r.Verdict != verdict.Invalid || !strings.Contains(r.Again[0], "unequal work") {
		t.Errorf("unequal work: %v %s %v", err, r.Verdict, r.Again)
	}
}

func TestGateResumesAndIsInterrupted(t *testing.T) {
	b := newLab(1.2)
	kept := map[string]*Measured{}
	ctx, cancel := context.WithCancel(context.Background())
	o := b.options()
	o.Done = func(l Leg) (*Measured, bool, error) { m, ok := kept[l.Name()]; return m, ok, nil }
	launch := func(ctx context.Context, l Leg) (*Measured, error) {
		m, err := b.launch(ctx, l)
		kept[l.Name()] = m
		if len(b.launched) == 3 {
			cancel()
		}
		return m, err
	}
	if _, _, err := Gate(ctx, launch, o); !errors.Is(err, context.Canceled) {
		t.Fatalf("interrupted: %v", err)
	}
	r, _, err := Gate(context.Background(), launch, o)
	if err != nil || r.Verdict != verdict.Regressed || len(b.launched) != 6 {
		t.Errorf("%v %s after %d launches", err, r.Verdict, len(b.launched))
	}
	if _, _, err := Gate(context.Background(), func(context.Context, Leg) (*Measured, error) {
		return nil, errors.New("it ended before it was healthy")
	}, b.options()); err == nil || !strings.Contains(err.Error(), "pair 1, base") {
		t.Errorf("a server that does not start: %v", err)
	}
}

// One launch a side informs: whatever it looks like, by the test or by a classic rule, it calls nothing worse.
func TestOnePairInforms(t *testing.T) {
	for _, policy := range []Policy{{}, {"threshold", 0.03}} {
		for _, known := range []bool{true, false} {
			b := newLab(2)
			o := b.options()
			if o.MaxPairs, o.Compare.Policy = 1, policy; !known {
				o.Compare.Past = nil
			}
			r, _, err := Gate(context.Background(), b.launch, o)
			if err != nil || r.Pairs != 1 || r.Verdict != verdict.Inconclusive || !strings.Contains(r.Next[len(r.Next)-1], "pairs of fresh launches") {
				t.Errorf("policy %q, a history %v: %v %s after %d pairs, next %v", policy, known, err, r.Verdict, r.Pairs, r.Next)
			}
		}
	}
}

// The footer's record of the gate on identical builds counts gates that could have been wrong, and says what the last one could see.
func TestFalseAlarmText(t *testing.T) {
	dir := t.TempDir()
	keep := func(hour, pairs int) {
		t.Helper()
		b := newLab(1)
		b.now = b.now.Add(time.Duration(hour) * time.Hour)
		o := b.options()
		o.MaxPairs = pairs
		r, sides, err := Gate(context.Background(), b.launch, o)
		if err != nil {
			t.Fatal(err)
		}
		records, err := sides.Records(r, nil, Origin{}, true, false)
		if err != nil {
			t.Fatal(err)
		}
		if err := history.Append(dir, records...); err != nil {
			t.Fatal(err)
		}
	}
	text := func() string {
		t.Helper()
		db, err := history.Load(dir)
		if err != nil {
			t.Fatal(err)
		}
		return FalseAlarmText(db)
	}
	keep(0, 1)
	if s := text(); s != "" {
		t.Errorf("a pair alone is a trial: %s", s)
	}
	keep(1, 8)
	keep(2, 8)
	keep(2, 8) // the finished gate called again is no second trial
	if s := text(); !strings.HasPrefix(s, "0 false alarms in 2 (0.0 %, 95 % interval 0.0 to ") || !strings.Contains(s, "; the last one's ") || !strings.Contains(s, " could see ttft ") {
		t.Error(s)
	}
}

func TestGateAlone(t *testing.T) {
	for _, c := range []struct {
		slower float64
		want   verdict.State
	}{{1.2, verdict.Regressed}, {1, verdict.Unchanged}, {0.8, verdict.Improved}} {
		b := newLab(c.slower)
		o := b.options()
		past := o.Compare.Past
		o.Compare.Past, o.PastOf = nil, func(*Measured) map[string]verdict.Past { return past }
		r, _, err := GateAlone(context.Background(), b.launch, o)
		if err != nil || r.Verdict != c.want || len(b.launched) != 3 {
			t.Errorf("%v: %v %s %d launches", c.slower, err, r.Verdict, len(b.launched))
		}
	}
	b := newLab(1)
	o := b.options()
	o.Compare.Past = nil
	if r, _, err := GateAlone(context.Background(), b.launch, o); err != nil || r.Verdict != verdict.Inconclusive || len(r.Warnings) == 0 {
		t.Errorf("without a history: %v %+v", err, r)
	}
}

func TestIncomparable(t *testing.T) {
	for name, change := range map[string]func(*Measured){
		"traces": func(m *Measured) { m.Manifest.TraceSHA256 = "other" },
		"speed":  func(m *Measured) { m.Manifest.Options = map[string]any{"speed": 2.0} },
		"replay": func(m *Measured) { m.Manifest.Kind = "simulate" },
	} {
		b := fake("b", 1)
		change(b)
		if _, err := Compare([]*Measured{fake("a", 1)}, []*Measured{b}, CompareOptions{}); !errors.Is(err, ErrIncomparable) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	a, b := fake("a", 1), fake("b", 1)
	a.Manifest.Environment = map[string]any{"client": map[string]any{"host": "x"}}
	b.Manifest.Environment = map[string]any{"client": map[string]any{"host": "y"}}
	if r, err := Compare([]*Measured{a}, []*Measured{b}, CompareOptions{}); err != nil || r.Verdict != verdict.Invalid {
		t.Errorf("two hosts: %v %s", err, r.Verdict)
	}
	a, b = fake("a", 1), fake("b", 1)
	a.ClockMHz, b.ClockMHz = 1700, 1750
	if r, err := Compare([]*Measured{a}, []*Measured{b}, CompareOptions{}); err != nil || r.Verdict != verdict.Invalid || !strings.Contains(r.Again[0], "clock") {
		t.Errorf("two clocks: %v %+v", err, r.Again)
	}
}

func TestEnvironmentDifferences(t *testing.T) {
	env := func(version, command, url string) formats.Manifest {
		return formats.Manifest{Environment: map[string]any{"targets": []any{map[string]any{"version": version, "url": url, "round_trip_ms": 0.1}}, "deployment": map[string]any{"command": command, "start_up_ms": url}}}
	}
	d := environmentDifferences(env("0.6.1", "serve --port 8000", "http://a"), env("0.6.2", "serve --port 9000", "http://b"))
	if len(d) != 1 || d[0] != (Difference{"targets.0.version", "0.6.1", "0.6.2"}) {
		t.Errorf("%+v", d)
	}
	d = environmentDifferences(env("1", "serve --listen 127.0.0.1:80 --graphs", ""), env("1", "serve --listen 127.0.0.1:81", ""))
	if len(d) != 1 || d[0].What != "deployment.command" {
		t.Errorf("%+v", d)
	}
}

func TestApart(t *testing.T) {
	for _, c := range [][4]string{
		{"0.6.1", "0.6.2", "0.6.1", "0.6.2"},
		{"serve model --max-num-seqs 256 --seed 1", "serve model --max-num-seqs 64 --seed 1", "… 256 …", "… 64 …"},
		{"serve a long model name", "serve a long model name --enforce-eager", "…", "… --enforce-eager"},
		{"one image of a long name", "another image of a long name", "one …", "another …"},
		{"a a a a a a a a a a a a a a", "a a a a a a a a a a a a a a a", "…", "… a"},
	} {
		if x, y := apart(c[0], c[1]); x != c[2] || y != c[3] {
			t.Errorf("%q and %q: %q and %q", c[0], c[1], x, y)
		}
	}
}

func TestSaturatedRate(t *testing.T) {
	// ten requests of 100 tokens, each taking 10 s, one starting every second: the middle 60 % come at 100 tokens/s
	var rows []*formats.Exchange
	for i := range 10 {
		rows = append(rows, &formats.Exchange{ArrivalUnixNS: 0, FirstTokenNS: formats.Of(int64(i) * 1e9), LastTokenNS: formats.Of(int64(i+10) * 1e9), OutputTokens: formats.Of(int64(100))})
	}
	var want float64
	{ // brute force: tokens seen by time, on a fine grid
		seen := func(at float64) (s float64) {
			for i := range 10 {
				s += 100 * min(max((at-float64(i))/10, 0), 1)
			}
			return s
		}
		var lo, hi float64
		for at := 0.0; at < 20; at += 1e-4 {
			if seen(at) < 200 {
				lo = at
			}
			if seen(at) < 800 {
				hi = at
			}
		}
		want = 600 / (hi - lo)
	}
	if got, err := saturatedRate(sequence(rows)); err != nil || math.Abs(got/want-1) > 1e-3 {
		t.Errorf("%v %v, want %v", got, err, want)
	}
	if _, err := saturatedRate(sequence(nil)); err == nil {
		t.Error("nothing has a rate")
	}
	one := []*formats.Exchange{{FirstTokenNS: formats.Of(int64(5)), LastTokenNS: formats.Of(int64(5)), OutputTokens: formats.Of(int64(100))}}
	if _, err := saturatedRate(sequence(one)); err == nil {
		t.Error("tokens at one moment have a rate")
	}
}

func TestPolicies(t *testing.T) {
	for _, s := range []string{"threshold", "threshold:3", "threshold:-3%", "sigma:3%", "median:3", "threshold:NaN%", "sigma:Inf"} {
		if _, err := ParsePolicy(s); err == nil {
			t.Errorf("%q is a policy", s)
		}
	}
	b := newLab(1)
	o := b.options()
	for text, c := range map[string]struct {
		slower float64
		want   verdict.State
	}{"threshold:3%": {1.05, verdict.Regressed}, "threshold:10%": {1.05, verdict.Unchanged}, "sigma:3": {1.2, verdict.Regressed}} {
		p, err := ParsePolicy(text)
		if err != nil || p.String() != text {
			t.Fatalf("%s: %v %v", text, p, err)
		}
		o.Compare.Policy = p
		r, err := Compare([]*Measured{fake("a1", 1), fake("a2", 1)}, []*Measured{fake("b1", c.slower), fake("b2", c.slower)}, o.Compare)
		if err != nil || r.Verdict != c.want || !strings.Contains(r.PolicyNote, "A/A") {
			t.Errorf("%s at %v: %v %s %q", text, c.slower, err, r.Verdict, r.PolicyNote)
		}
	}
}

func TestTolerances(t *testing.T) {
	m, err := ParseTolerances("ttft=8%,tpot=3%:1%", verdict.Defaults())
	if err != nil || m[0].Tolerance != 0.08 || m[2].Tolerance != 0.03 || m[2].Minimum != 0.01 || verdict.Defaults()[0].Tolerance != 0.05 {
		t.Errorf("%v %+v", err, m[:3])
	}
	for _, s := range []string{"ttft", "nothing=5%", "ttft=x", "ttft=0", "ttft=200%", "ttft=5%:x"} {
		if _, err := ParseTolerances(s, verdict.Defaults()); err == nil {
			t.Errorf("%q is taken", s)
		}
	}
}

// TestComment: whatever a report holds, its Markdown is within what GitHub takes and its table stays a table.
func TestComment(t *testing.T) {
	r := Report{Verdict: verdict.Regressed, Base: "a|b\n`c`", Candidate: "<script>", Pairs: 8}
	for i := range 400 {
		f := verdict.Finding{Metric: fmt.Sprintf("m%d", i), Unit: "ms", Better: "lower", Gated: i < 5, State: verdict.Regressed, Why: strings.Repeat("why|", 20), History: &verdict.Band{}}
		for range 50 {
			f.PairChangesPct = append(f.PairChangesPct, 1.5)
		}
		r.Findings = append(r.Findings, f)
		r.Runs = append(r.Runs, RunRow{Label: "run", Invalid: []string{"x"}})
	}
	r.Differences = []Difference{{"image", "a|b", strings.Repeat("long ", 100)}}
	var b strings.Builder
	if err := r.Markdown(&b); err != nil {
		t.Fatal(err)
	}
	text := b.String()
	if len(text) > 65536 || !strings.HasPrefix(text, Marker) || strings.Contains(text, "<script>") && !strings.Contains(text, "`<script>`") || !strings.Contains(text, "</details>") {
		t.Errorf("%d characters", len(text))
	}
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "| m") && strings.Count(strings.ReplaceAll(line, `\|`, ""), "|") != 8 && strings.Count(strings.ReplaceAll(line, `\|`, ""), "|") != 5 {
			t.Fatalf("a row of another width: %q", line)
		}
	}
}

func TestOutputs(t *testing.T) {
	b := newLab(1.2)
	r, _, err := Gate(context.Background(), b.launch, b.options())
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		write func(*strings.Builder) error
		want  []string
	}{
		"text":        {func(w *strings.Builder) error { return r.Text(w) }, []string{"REGRESSED: ttft +", "could see", "next: find the cause"}},
		"junit":       {func(w *strings.Builder) error { return r.JUnit(w) }, []string{`failures="4"`, `name="tpot"`, "<failure message="}},
		"openmetrics": {func(w *strings.Builder) error { return r.OpenMetrics(w) }, []string{"# TYPE shadowtape_gate_state gauge", `metric="ttft"`, "# EOF\n"}},
		"annotations": {func(w *strings.Builder) error { return r.Annotations(w, "deploy/a,b.yaml") }, []string{"::error file=deploy/a%2Cb.yaml,title=TPOT%2C typical request regressed::+", "could have seen"}},
		"html":        {func(w *strings.Builder) error { return r.HTML(w) }, []string{"<h1>❌ REGRESSED: ttft", "<circle ", "p03-candidate", "TPOT, typical request", "</html>"}},
		"influx":      {func(w *strings.Builder) error { return r.Influx(w, time.Unix(1, 5)) }, []string{"shadowtape_gate,", " 1000000005\n", "change_percent="}},
	} {
		var out strings.Builder
		if err := c.write(&out); err != nil {
			t.Fatal(err)
		}
		for _, w := range c.want {
			if !strings.Contains(out.String(), w) {
				t.Errorf("%s lacks %q:\n%s", name, w, out.String())
			}
		}
		if name == "html" && (strings.Contains(out.String(), "http") || strings.Contains(out.String(), "ZgotmplZ") || strings.Contains(out.String(), "<script")) {
			t.Error("the page needs something from elsewhere")
		}
		if name == "text" && (strings.Count(out.String(), "\n") > 25) {
			t.Errorf("the text has %d lines", strings.Count(out.String(), "\n"))
		}
	}
}
