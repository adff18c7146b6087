package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/shadowtape/shadowtape/analyzer"
	"github.com/shadowtape/shadowtape/internal/experiment"
	"github.com/shadowtape/shadowtape/internal/experiment/history"
	"github.com/shadowtape/shadowtape/internal/experiment/verdict"
)

// judgeFlags say how launches are judged and where the verdict goes: diff of many runs and gate share them.
type judgeFlags struct {
	slo, rules, tolerance, policy  string
	db, window                     string
	minSamples                     int
	allowInvalid                   bool
	md, junit, openmetrics, influx string
	remoteWrite, pushTokenEnv      string
	annotations, annotate, html    string
	force                          bool // replace files that are there
}

// add registers the flags.
func (j *judgeFlags) add(f *pflag.FlagSet) {
	f.StringVar(&j.rules, "rules", "", "gate.yaml: tolerance, minimum and gate of metrics")
	f.StringVar(&j.tolerance, "tolerance", "", "acceptable changes, such as ttft=5%,tpot=3%:1% (after the colon the smallest that counts)")
	f.StringVar(&j.policy, "policy", "", "a classic rule in place of the test: threshold:3% or sigma:3")
	f.StringVar(&j.db, "db", "", "history to hold the candidate against, and to take the variance of A/A pairs from")
	f.StringVar(&j.window, "history", "30d", "how far back the history counts; 0 is all of it")
	f.IntVar(&j.minSamples, "min-samples", 5000, "requests of a run below which the report says so")
	f.StringVar(&j.md, "md", "", "write the verdict as Markdown, for a pull request comment")
	f.StringVar(&j.html, "html", "", "write a report to this file: one page that opens offline")
	f.BoolVar(&j.force, "force", false, "replace reports that are there")
	f.StringVar(&j.junit, "junit", "", "write it as JUnit XML")
	f.StringVar(&j.annotations, "annotations", "", "write it as workflow commands of GitHub Actions, an annotation for each gated metric that changed or is undecided")
	f.StringVar(&j.openmetrics, "openmetrics", "", "write it as OpenMetrics text (node_exporter's textfile collector reads it)")
	f.StringVar(&j.influx, "influx", "", "write it in InfluxDB's line protocol, to a file or to an address such as http://host:8086/write?db=perf")
	f.StringVar(&j.remoteWrite, "remote-write", "", "send it to a Prometheus remote-write receiver, such as http://host:9090/api/v1/write")
	f.StringVar(&j.pushTokenEnv, "push-token-env", "", "environment variable with the token for --remote-write and --influx addresses")
}

// judgeNames are the flags of add, for help.
var (
	judgeHow   = []string{"rules", "tolerance", "policy", "db", "history", "min-samples"}
	judgeWhere = []string{"json", "md", "html", "force", "junit", "annotations", "openmetrics", "influx", "remote-write", "push-token-env"}
)

// parseDays reads a duration that may be in days: 30d, 12h, 0.
func parseDays(s string) (time.Duration, error) {
	if s == "" || s == "0" {
		return 0, nil
	}
	if days, ok := strings.CutSuffix(s, "d"); ok {
		n, err := strconv.ParseFloat(days, 64)
		if err == nil && n >= 0 && n < 36500 {
			return time.Duration(n * 24 * float64(time.Hour)), nil
		}
	} else if d, err := time.ParseDuration(s); err == nil && d >= 0 {
		return d, nil
	}
	return 0, fmt.Errorf("%q is no time span such as 30d or 12h", s)
}

// judging is what the flags come to.
type judging struct {
	options experiment.CompareOptions
	slo     []analyzer.Limit
	db      *history.DB
	window  time.Duration
}

// files are the reports that are asked for: HTML, Markdown, JUnit, annotations, OpenMetrics, InfluxDB; "" is none.
func (j *judgeFlags) files() []string {
	influx := j.influx
	if experiment.IsURL(influx) {
		influx = ""
	}
	return []string{j.html, j.md, j.junit, j.annotations, j.openmetrics, influx}
}

// writable says before the work what is in the way of the reports. Those that go into the verb's own directory, "" where it has none, have
// their place when it is made.
func (j *judgeFlags) writable(own string) error {
	for _, path := range j.files() {
		if path == "" || own != "" && strings.HasPrefix(located(path), located(own)+"/") && !isFile(path) {
			continue
		}
		if err := writable(path, j.force); err != nil {
			return err
		}
	}
	return nil
}

// resolve reads what the flags of a verb name, and says what of the history could not be read.
func (j *judgeFlags) resolve(a *app, verb string) (out judging, err error) {
	usage := func(err error) (judging, error) { return out, usageError(err, "shadowtape "+verb+" --help") }
	if out.slo, err = analyzer.ParseSLO(j.slo); err != nil {
		return usage(err)
	}
	o := &out.options
	o.Metrics = verdict.Defaults()
	if j.rules != "" {
		if o.Metrics, err = experiment.LoadRules(j.rules, o.Metrics); err != nil {
			return usage(err)
		}
	}
	if o.Metrics, err = experiment.ParseTolerances(j.tolerance, o.Metrics); err != nil {
		return usage(err)
	}
	if o.Policy, err = experiment.ParsePolicy(j.policy); err != nil {
		return usage(err)
	}
	if out.window, err = parseDays(j.window); err != nil {
		return usage(fmt.Errorf("--history: %w", err))
	}
	if j.remoteWrite != "" && !experiment.IsURL(j.remoteWrite) {
		return usage(errors.New("--remote-write is no http or https URL"))
	}
	if j.pushTokenEnv != "" && os.Getenv(j.pushTokenEnv) == "" {
		return usage(fmt.Errorf("--push-token-env: %s is not set", j.pushTokenEnv))
	}
	if j.minSamples < 0 {
		return usage(errors.New("--min-samples is negative"))
	}
	o.MinSamples, o.AllowInvalid = j.minSamples, j.allowInvalid
	if j.db != "" {
		if out.db, err = history.Load(j.db); errors.Is(err, history.ErrEmpty) {
			err = nil // the first night has none
		}
		if err != nil {
			return out, err
		}
		a.warnHistory(out.db)
	}
	o.FalseAlarms = experiment.FalseAlarmText(out.db)
	return out, nil
}

// load reads the runs of one side.
func (j *judging) load(where []string) ([]*experiment.Measured, error) {
	var out []*experiment.Measured
	for _, w := range where {
		m, err := experiment.Load(w, experiment.LoadOptions{SLO: j.slo, Saturated: experiment.SaturatedOf(w)})
		if errors.Is(err, experiment.ErrNotARun) {
			return nil, withHint(err, "a verdict over launches takes runs of replay or simulate; diff BASE CANDIDATE compares a recording with its replay")
		}
		if err != nil {
			return nil, err
		}
		out = append(out, m)
	}
	return out, nil
}

// report writes a verdict where the flags say and turns it into an exit code.
func (a *app) reportVerdict(r experiment.Report, j judgeFlags, asJSON bool) error {
	var err error
	if asJSON {
		err = printJSON(a.out, &r)
	} else {
		err = r.Text(a.out)
	}
	if err != nil {
		return err
	}
	writes := []func(io.Writer) error{r.HTML, r.Markdown, r.JUnit, func(w io.Writer) error { return r.Annotations(w, j.annotate) }, r.OpenMetrics, func(w io.Writer) error { return r.Influx(w, time.Now()) }}
	for i, path := range j.files() {
		if path != "" {
			if err := writeNew(path, j.force, writes[i]); err != nil {
				return err
			}
		}
	}
	a.push(&r, j)
	return verdictExit(r.Verdict)
}

// push sends a verdict to the databases that the flags name. One that cannot be reached is a warning: it changes no verdict.
func (a *app) push(r *experiment.Report, j judgeFlags) {
	p := experiment.Pusher{Agent: "shadowtape/" + version}
	if j.pushTokenEnv != "" {
		p.Token = os.Getenv(j.pushTokenEnv)
	}
	now := time.Now()
	for _, to := range []struct {
		address string
		send    func(context.Context, string, *experiment.Report, time.Time) error
	}{{j.remoteWrite, p.RemoteWrite}, {j.influx, p.Influx}} {
		if to.address == j.influx && !experiment.IsURL(j.influx) || to.address == "" {
			continue
		}
		if err := to.send(context.Background(), to.address, r, now); err != nil {
			fmt.Fprintf(a.err, "warning: %s\n", oneLine(err.Error()))
		}
	}
}

func verdictExit(s verdict.State) error {
	switch s {
	case verdict.Regressed:
		return exitWith(exitWorse, nil, "")
	case verdict.Invalid:
		return exitWith(exitInvalid, nil, "")
	case verdict.Inconclusive:
		return exitWith(exitInconclusive, nil, "")
	}
	return nil
}

// diffMany compares runs by the launch: pairs of them, or candidates with a baseline file.
func (a *app) diffMany(base, candidate []string, baseline string, j judgeFlags, asJSON bool) error {
	if err := j.writable(""); err != nil {
		return err
	}
	g, err := j.resolve(a, "diff")
	if err != nil {
		return err
	}
	c, err := g.load(candidate)
	if err != nil {
		return err
	}
	var r experiment.Report
	if baseline != "" {
		b, err := history.ReadBaseline(baseline)
		if err != nil {
			return err
		}
		if r, err = experiment.CompareBaseline(b, baseline, c, g.options); err != nil {
			return hintIncomparable(err, "replay the baseline's trace with its options on its machine, or save another baseline")
		}
		return a.reportVerdict(r, j, asJSON)
	}
	b, err := g.load(base)
	if err != nil {
		return err
	}
	g.options.Past = experiment.PastOf(g.db, b[0], g.options.Metrics, g.window)
	if r, err = experiment.Compare(b, c, g.options); err != nil {
		return hintIncomparable(err, "replay one trace with the same options against both sides")
	}
	return a.reportVerdict(r, j, asJSON)
}

// hintIncomparable adds a hint where runs cannot be compared.
func hintIncomparable(err error, hint string) error {
	switch {
	case errors.Is(err, experiment.ErrIncomparable):
		return withHint(err, hint)
	case errors.Is(err, experiment.ErrTwice):
		return withHint(err, "each run is a launch of its own")
	}
	return err
}

// spread lets a list follow a flag of diff: --base a b c becomes --base a --base b --base c, up to the next flag.
func spread(args []string) []string {
	if len(args) == 0 || args[0] != "diff" {
		return args
	}
	var out []string
	list := ""
	for _, s := range args {
		switch {
		case s == "--base" || s == "--candidate":
			list = s
		case strings.HasPrefix(s, "-") && s != "-":
			list = ""
			out = append(out, s)
		case list != "":
			out = append(out, list, s)
		default:
			out = append(out, s)
		}
	}
	return out
}
