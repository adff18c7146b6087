package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/deploy"
	"github.com/shadowtape/shadowtape/internal/experiment"
	"github.com/shadowtape/shadowtape/internal/experiment/history"
	"github.com/shadowtape/shadowtape/internal/experiment/verdict"
	"github.com/shadowtape/shadowtape/replayer/job"
	"github.com/shadowtape/shadowtape/replayer/schedule"
)

// gateFlags are the flags of gate as given.
type gateFlags struct {
	base, candidate, trace, out, tier string
	budget, duration                  time.Duration
	each, rateStep                    time.Duration
	speed                             float64
	maxRequests                       int64
	pairs, warmUp, saturate           int
	seed                              int64
	aa, json, record, plan            bool
	notify, onRegression              string
	judge                             judgeFlags
	deploy                            deployFlags
	origin                            originFlags
	baseCommit                        string
}

func gateCommand(a *app) *cobra.Command {
	var o gateFlags
	c := &cobra.Command{
		Use:   "gate --base FILE --candidate FILE --trace TRACE -o DIR",
		Short: "Launch base and candidate in turns, replay against each, and say whether the candidate is worse",
		Long: `Gate makes pairs of fresh launches of two deployment files (docs/DEPLOY.md), in the order A B, B A, …: each is started, warmed up,
saturated for a moment to measure its capacity, replayed against, and stopped. It stops when every gated metric is decided, after the last
look (8 pairs), or when the budget does not allow one more launch; what it can see with the budget is said first. The same call goes on
where an interrupted one ended.

Exit 0 unchanged or improved, 3 regressed, 4 invalid (run it again), 5 inconclusive: the report says how many more pairs it takes.
docs/GATE.md explains the test and says how often it is wrong. --aa runs the base against itself: the gate's own false alarms.`,
		Example: `  shadowtape gate --base main.yaml --candidate pr.yaml --trace prod.trace --budget 30m \
    --db history -o gate1 --md comment.md
  shadowtape gate --base main.yaml --aa --trace prod.trace --pairs 5 --db history --record -o aa1
  shadowtape gate --tier pr --candidate pr.yaml --trace prod.trace --db history -o quick`,
		Args: exactArgs(),
		RunE: func(c *cobra.Command, _ []string) error { return a.gate(c, o) },
	}
	f := c.Flags()
	f.StringVar(&o.base, "base", "", "deployment file of the base")
	f.StringVar(&o.candidate, "candidate", "", "deployment file of the candidate")
	f.StringVar(&o.trace, "trace", "", "trace to replay")
	f.StringVar(&o.tier, "tier", "nightly", "nightly: launches in pairs, with --slo also the highest rate within it; pr: three candidate launches against the history alone")
	f.BoolVar(&o.aa, "aa", false, "run the base against itself")
	f.DurationVar(&o.budget, "budget", 0, "time that all launches may take (default: as long as it takes)")
	f.IntVar(&o.pairs, "pairs", 0, "pairs at most (default: 8, the last look)")
	f.DurationVar(&o.each, "launch-time", 0, "what one launch is expected to take, for the plan (default: the replay, the warm-up and a minute)")
	f.BoolVar(&o.plan, "plan", false, "print the plan and stop")
	f.Float64Var(&o.speed, "speed", 1, "replay so many times as fast")
	f.DurationVar(&o.duration, "duration", 0, "end arrivals after this time (default: the whole trace)")
	f.Int64Var(&o.maxRequests, "max-requests", 0, "end after so many requests (default: all)")
	f.IntVar(&o.warmUp, "warm-up", -1, "requests replayed and thrown away after each start; -1: as warm_up of the deployment file says")
	f.IntVar(&o.saturate, "saturate", 500, "requests sent at once to measure the capacity; 0: none")
	f.DurationVar(&o.rateStep, "rate-step", 30*time.Second, "nightly with --slo: how long each rate is tried in the search for the highest one within it, about eight a launch; 0: none")
	f.Int64Var(&o.seed, "seed", 1, "seed of the prompts, the same for all launches")
	f.StringVar(&o.judge.slo, "slo", "", "limits to gate the attainment of, such as ttft=500ms,tpot=50ms")
	f.BoolVar(&o.judge.allowInvalid, "allow-invalid", false, "take invalid runs as they are")
	o.judge.add(f)
	f.BoolVar(&o.record, "record", false, "add the runs to the history: of --aa both sides, else the candidate's where it is not worse")
	o.origin.add(f)
	f.StringVar(&o.baseCommit, "base-commit", "", "commit of the base: of a change that history check found, the two commits side by side confirm it or not")
	f.StringArrayVar(&o.deploy.set, "set", nil, "value of a ${matrix.NAME} in the deployment files, as `NAME=VALUE`")
	f.StringVar(&o.deploy.exclusive, "exclusive", "on", "on: lease the GPUs and refuse them where others use them; off: neither")
	f.BoolVar(&o.deploy.wait, "wait", false, "wait for GPUs that another run holds")
	f.StringVar(&o.deploy.engine, "engine", "", "address of the container engine (default: $DOCKER_HOST, else the local Docker)")
	f.StringVar(&o.deploy.lockDir, "lock-dir", "", "directory of the GPU leases")
	f.StringVarP(&o.out, "output", "o", "", "directory of the experiment")
	f.BoolVar(&o.json, "json", false, "print one JSON document (docs/CLI_JSON.md)")
	f.StringVar(&o.notify, "notify", "", "POST the verdict here as JSON on a regression (Slack takes it)")
	f.StringVar(&o.onRegression, "on-regression", "", "run this command on a regression, never on invalid or inconclusive; SHADOWTAPE_REPORT names its report.json, SHADOWTAPE_VERDICT is regressed; it is ended after 5 minutes")
	groupFlags(c,
		flagGroup{"Experiment", []string{"base", "candidate", "aa", "trace", "tier", "budget", "pairs", "plan", "launch-time"}},
		flagGroup{"Each launch", []string{"warm-up", "saturate", "rate-step", "speed", "duration", "max-requests", "seed", "set", "exclusive", "wait", "engine", "lock-dir"}},
		flagGroup{"Verdict", append([]string{"slo", "allow-invalid"}, judgeHow...)},
		flagGroup{"Result", append([]string{"output", "record", "commit", "base-commit", "branch", "team", "notify", "on-regression"}, judgeWhere...)},
	)
	return c
}

// check says what is wrong with the flags.
func (o *gateFlags) check() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if o.aa && o.candidate == "" {
		o.candidate = o.base
	}
	if o.tier == "pr" && o.base == "" {
		o.base = o.candidate
	}
	for _, v := range []struct{ name, value string }{{"--base", o.base}, {"--candidate", o.candidate}, {"--trace", o.trace}, {"-o", o.out}} {
		if v.value == "" {
			bad("%s is missing", v.name)
		}
	}
	if formats.Remote(o.out) {
		errs = append(errs, localOnly(o.out))
	}
	switch {
	case o.tier != "nightly" && o.tier != "pr":
		bad("--tier is nightly or pr, not %q", o.tier)
	case o.tier == "pr" && o.judge.db == "":
		bad("--tier pr needs --db: the history is what it compares with")
	case o.tier == "pr" && o.aa:
		bad("--tier pr has no pairs: --aa needs them")
	}
	if o.aa && o.candidate != o.base {
		bad("--aa runs the base against itself: --candidate is another")
	}
	if o.record && o.judge.db == "" {
		bad("--record needs --db")
	}
	if !(o.speed > 0) || math.IsInf(o.speed, 0) {
		bad("--speed is a positive number, not %v", o.speed)
	}
	if o.warmUp < -1 {
		bad("--warm-up is a number of requests, or -1, not %d", o.warmUp)
	}
	for _, v := range []struct {
		name  string
		value int64
	}{{"--budget", int64(o.budget)}, {"--duration", int64(o.duration)}, {"--max-requests", o.maxRequests}, {"--pairs", int64(o.pairs)}, {"--saturate", int64(o.saturate)}, {"--launch-time", int64(o.each)}, {"--rate-step", int64(o.rateStep)}} {
		if v.value < 0 {
			bad("%s is negative", v.name)
		}
	}
	if o.notify != "" && !experiment.IsURL(o.notify) {
		bad("--notify is no http or https URL")
	}
	return errors.Join(errs...)
}

func (a *app) gate(c *cobra.Command, o gateFlags) (err error) {
	if err := o.check(); err != nil {
		return usageError(err, "shadowtape gate --help")
	}
	g, err := o.judge.resolve(a, "gate")
	if err != nil {
		return err
	}
	o.judge.force = o.judge.force || isFile(filepath.Join(o.out, "gate.json")) // a call that goes on replaces the reports of the one before
	if err := o.judge.writable(o.out); err != nil {
		return err
	}
	if o.tier == "pr" && g.db == nil {
		return withHint(fmt.Errorf("gate --tier pr: read history %s: %w: there is nothing to compare with", o.judge.db, history.ErrEmpty), "shadowtape gate --aa --record makes one; --tier nightly needs none")
	}
	trace, err := a.openTrace(o.trace)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, trace.Close()) }()
	live, err := o.live(a, c, trace)
	if err != nil {
		return err
	}
	live.SLO = g.slo
	g.options.Base, g.options.Candidate = sideNames(live.Base, live.Candidate, o)
	if o.tier == "nightly" && len(g.slo) > 0 {
		live.Rates.Step = o.rateStep
	}
	span := time.Duration(trace.Header.EndUnixNS - trace.Header.StartUnixNS)
	if span = time.Duration(float64(span) / o.speed); o.duration > 0 {
		span = min(span, o.duration)
	}
	if o.each == 0 {
		o.each = span + time.Minute + live.Expected() + experiment.RateSteps*live.Rates.Step
	}
	resumed, err := live.Claim(o.base, o.candidate, o.plan)
	if err != nil {
		return withHint(err, "another -o, or the same files and options")
	}
	plan := experiment.GateOptions{Compare: g.options, Budget: o.budget, Each: o.each, MaxPairs: o.pairs, Done: live.Done}
	sha, err := trace.SHA256()
	if err != nil {
		return err
	}
	plan.Compare.Past = experiment.PastOfTrace(g.db, sha, g.options.Metrics, g.window)
	plan.PastOf = func(m *experiment.Measured) map[string]verdict.Past {
		return experiment.PastOf(g.db, m, g.options.Metrics, g.window)
	}
	if err := a.printGatePlan(plan.Plan(), o, resumed); err != nil || o.plan {
		return err
	}
	plan.Progress = func(p experiment.GateProgress) {
		switch {
		case p.Findings != nil:
			r := experiment.Report{Findings: p.Findings, Verdict: verdict.Overall(p.Findings)}
			fmt.Fprintf(a.err, "look after %d pairs: %s\n", p.Leg.Pair, r.Headline())
		case p.Resumed:
			fmt.Fprintf(a.err, "pair %d, %s: there already\n", p.Leg.Pair, p.Leg.Arm)
		default:
			fmt.Fprintf(a.err, "pair %d, %s: launching; %s of %s used\n", p.Leg.Pair, p.Leg.Arm, p.Elapsed.Round(time.Second), budgetText(o.budget))
		}
	}
	run := experiment.Gate
	if o.tier == "pr" {
		run = experiment.GateAlone
	}
	r, sides, err := run(c.Context(), live.Launch, plan)
	if errors.Is(err, context.Canceled) {
		return exitWith(exitInterrupted, errors.New("gate interrupted: what was measured is kept"), "the same call goes on from there")
	}
	if err != nil {
		return a.startError(err, filepath.Join(o.out, "*.candidate.log"))
	}
	return a.gated(o, r, sides, g.db)
}

func budgetText(d time.Duration) string {
	if d == 0 {
		return "no limit"
	}
	return d.String()
}

// live makes the launcher of the flags.
func (o *gateFlags) live(a *app, c *cobra.Command, trace *formats.Trace) (*experiment.Live, error) {
	d := o.deploy
	d.allowInvalid = o.judge.allowInvalid
	files := [2]*deploy.File{}
	for i, path := range []string{o.base, o.candidate} {
		d.file = path
		var err error
		if files[i], err = d.load(); err != nil {
			return nil, err
		}
	}
	return &experiment.Live{
		Dir: filepath.Clean(o.out), Base: files[0], Candidate: files[1], Start: d.options(a, "gate"), WarmUp: o.warmUp, Warming: (&startLine{a: a}).warming, Saturate: o.saturate,
		Job: job.Options{Trace: trace, Seed: o.seed, ToolVersion: readBuildInfo().Version, Command: commandLine(c),
			Selection: schedule.Selection{Speed: o.speed, Duration: o.duration, MaxRequests: o.maxRequests}},
	}, nil
}

// sideNames are the names of the two files, or, where they have one name, what was given.
func sideNames(base, candidate *deploy.File, o gateFlags) (string, string) {
	if base.Name == candidate.Name {
		return o.base, o.candidate
	}
	return base.Name, candidate.Name
}

// printGatePlan says what is about to happen and what it could see.
func (a *app) printGatePlan(p experiment.GatePlan, o gateFlags, resumed bool) error {
	b := &strings.Builder{}
	fmt.Fprintf(b, "plan: %s against %s, %s; a launch takes about %s\n", o.candidate, o.base, o.trace, p.Each.Round(time.Second))
	if resumed {
		fmt.Fprintf(b, "      going on in %s\n", o.out)
	}
	switch {
	case o.tier == "pr":
		fmt.Fprintf(b, "      three candidate launches against the history in %s\n", o.judge.db)
	case p.Pairs == 0:
		fmt.Fprintf(b, "      the budget of %s affords no pair\n", o.budget)
	default:
		fmt.Fprintf(b, "      %d pairs at most, about %s in all\n", p.Pairs, (2 * time.Duration(p.Pairs) * p.Each).Round(time.Second))
	}
	if len(p.Looks) > 0 && o.tier != "pr" {
		var at []string
		for _, l := range p.Looks {
			at = append(at, fmt.Sprint(l.Pairs))
		}
		fmt.Fprintf(b, "      looks after %s pairs\n", strings.Join(at, ", "))
	}
	if len(p.Detectable) > 0 {
		var see []string
		for _, m := range verdict.Defaults() {
			if v, ok := p.Detectable[m.Name]; ok {
				see = append(see, fmt.Sprintf("%s %.1f %%", m.Name, v))
			}
		}
		fmt.Fprintf(b, "      would see: %s\n", strings.Join(see, ", "))
	} else if o.tier != "pr" {
		fmt.Fprintf(b, "      what it can see is not known: fewer than 10 A/A pairs of this series are in\n      a history (--aa --record makes them)\n")
	}
	_, err := io.WriteString(a.err, b.String())
	return err
}

// gated keeps a gate's report and turns it into an exit code.
func (a *app) gated(o gateFlags, r experiment.Report, sides experiment.Sides, db *history.DB) error {
	path := filepath.Join(o.out, "report.json")
	if err := writeFile(path, func(w io.Writer) error { return printJSON(w, &r) }); err != nil {
		return err
	}
	if o.judge.db != "" {
		from := experiment.Origin(o.origin)
		from.Against = o.baseCommit
		records, err := sides.Records(r, db, from, o.aa, o.record)
		if err != nil {
			return err
		}
		if err := history.Append(o.judge.db, records...); err != nil {
			return err
		}
	}
	o.judge.annotate = o.candidate
	verdictErr := a.reportVerdict(r, o.judge, o.json)
	if r.Verdict != verdict.Regressed || o.aa {
		return verdictErr
	}
	if err := a.alarm(o, r, path); err != nil {
		fmt.Fprintf(a.err, "warning: %s\n", oneLine(err.Error()))
	}
	return verdictErr
}

// alarm tells others of a regression.
func (a *app) alarm(o gateFlags, r experiment.Report, path string) error {
	var errs []error
	if o.notify != "" {
		errs = append(errs, notify(o.notify, r))
	}
	if o.onRegression != "" {
		c := exec.Command("sh", "-c", o.onRegression)
		c.Env = append(os.Environ(), "SHADOWTAPE_REPORT="+path, "SHADOWTAPE_VERDICT="+string(r.Verdict))
		c.Stdout, c.Stderr = a.err, a.err
		if err := runWithin(onRegressionLimit, c); err != nil {
			errs = append(errs, fmt.Errorf("run the command on a regression: %w", err))
		}
	}
	return errors.Join(errs...)
}

// onRegressionLimit is how long the command on a regression may take: the verdict waits for it. Tests have less patience.
var onRegressionLimit = 5 * time.Minute

// runWithin runs a command, and ends it and what it has started after a time.
func runWithin(limit time.Duration, c *exec.Cmd) error {
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.WaitDelay = time.Second // for what it started and left behind, which may hold its output open
	if err := c.Start(); err != nil {
		return err
	}
	end := time.AfterFunc(limit, func() { syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }) // of a group that has ended there is nothing to end
	err := c.Wait()
	if !end.Stop() {
		return fmt.Errorf("it did not end within %v and was ended", limit)
	}
	return err
}

// notify posts a verdict; text is what Slack shows.
func notify(url string, r experiment.Report) error {
	text := r.Headline() + "\n" + r.Candidate + " against " + r.Base
	if len(r.Next) > 0 {
		text += "\n" + strings.Join(r.Next, "\n")
	}
	b, err := json.Marshal(map[string]any{"text": text, "verdict": r.Verdict, "pairs": r.Pairs})
	if err != nil {
		return err
	}
	client := &http.Client{Timeout: 10 * time.Second}
	resp, err := client.Post(url, "application/json", bytes.NewReader(b))
	if err != nil {
		return errors.New("notify of a regression: no answer from the address given") // the address may hold a secret
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("notify of a regression: the answer was HTTP %d", resp.StatusCode)
	}
	return nil
}
