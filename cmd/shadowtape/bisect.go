package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/deploy"
	"github.com/shadowtape/shadowtape/internal/experiment"
	"github.com/shadowtape/shadowtape/internal/experiment/verdict"
	"github.com/shadowtape/shadowtape/replayer/job"
	"github.com/shadowtape/shadowtape/replayer/schedule"
)

// bisectFlags are the flags of bisect as given.
type bisectFlags struct {
	good, bad, trace, file, build, metric, out string
	duration                                   time.Duration
	speed                                      float64
	maxRequests                                int64
	pairs, warmUp, saturate                    int
	seed                                       int64
	allowInvalid, firstParent, step            bool
	deploy                                     deployFlags
}

func bisectCommand(a *app) *cobra.Command {
	var o bisectFlags
	c := &cobra.Command{
		Use:   "bisect --good REF --bad REF --deploy FILE --trace TRACE -o DIR",
		Short: "Find the commit that made a metric worse: fresh launches of each commit until the odds decide",
		Long: `Bisect lets git search the repository it is called in ("git bisect run"), in a worktree of its own; what is checked out stays as it is. First
the two ends are launched in pairs: where they do not differ, or by less than twice what these launches can see, it says so and stops. Then
each commit that git checks out is built and launched, by its own deployment file, until the odds for one end are 99 to 1. A commit that does not
build or start, or whose runs are invalid, is skipped (125). At the end the culprit and the commit before it are launched in pairs.

An interrupted bisection goes on with the same call: launches that were made are used again. DIR/search.log is git's own log of it.`,
		Example: `  shadowtape bisect --good v1.4 --bad main --build "make image" \
    --deploy deploy/main.yaml --trace prod.trace -o bisect1
  shadowtape bisect --good 3f2c1ab --bad HEAD --metric ttft --duration 2m \
    --deploy deploy/main.yaml --trace prod.trace -o bisect2
  shadowtape bisect --good main~20 --bad main --metric capacity --saturate 1000 \
    --deploy deploy/main.yaml --trace prod.trace -o bisect3`,
		Args: exactArgs(),
		RunE: func(c *cobra.Command, _ []string) error {
			if o.step {
				if o.out == "" {
					return usageError(errors.New("-o is missing"), "shadowtape bisect --help")
				}
				return a.bisectStep(c.Context(), o.out)
			}
			return a.bisect(c, o)
		},
	}
	f := c.Flags()
	f.StringVar(&o.good, "good", "", "commit where the metric was well")
	f.StringVar(&o.bad, "bad", "HEAD", "commit where it is not")
	f.StringVar(&o.build, "build", "", "command to build a commit, run in its worktree (default: nothing is built)")
	f.StringVar(&o.file, "deploy", "", "deployment file, relative to the repository's root: each commit's own is used")
	f.StringVar(&o.metric, "metric", "tpot", "metric that got worse: ttft, ttft_slow, tpot, capacity, e2el")
	f.IntVar(&o.pairs, "pairs", 5, "pairs of launches of the two ends, and of the culprit and its parent; 5 or 8")
	f.StringVar(&o.trace, "trace", "", "trace to replay")
	f.Float64Var(&o.speed, "speed", 1, "replay so many times as fast")
	f.DurationVar(&o.duration, "duration", 0, "end arrivals after this time (default: the whole trace)")
	f.Int64Var(&o.maxRequests, "max-requests", 0, "end after so many requests (default: all)")
	f.IntVar(&o.warmUp, "warm-up", 50, "requests replayed and thrown away after each start")
	f.IntVar(&o.saturate, "saturate", 0, "requests sent at once to measure the capacity; 0: none")
	f.Int64Var(&o.seed, "seed", 1, "seed of the prompts, the same for all launches")
	f.BoolVar(&o.firstParent, "first-parent", false, "search only the mainline: a merge is one change")
	f.BoolVar(&o.step, "step", false, "classify what is checked out by the ends under -o, as git bisect run is told to: exit 0 good, 1 bad, 125 cannot be told, 128 stop")
	f.BoolVar(&o.allowInvalid, "allow-invalid", false, "take invalid runs as they are")
	f.StringVarP(&o.out, "output", "o", "", "directory of worktrees and runs")
	f.StringVar(&o.deploy.exclusive, "exclusive", "on", "on: lease the GPUs and refuse them where others use them; off: neither")
	f.BoolVar(&o.deploy.wait, "wait", false, "wait for GPUs that another run holds")
	f.StringVar(&o.deploy.engine, "engine", "", "address of the container engine (default: $DOCKER_HOST, else the local Docker)")
	f.StringVar(&o.deploy.lockDir, "lock-dir", "", "directory of the GPU leases")
	groupFlags(c,
		flagGroup{"Search", []string{"good", "bad", "build", "deploy", "metric", "pairs", "first-parent", "step"}},
		flagGroup{"Each launch", []string{"trace", "warm-up", "saturate", "speed", "duration", "max-requests", "seed", "allow-invalid", "exclusive", "wait", "engine", "lock-dir"}},
		flagGroup{"Result", []string{"output"}},
	)
	return c
}

// bisection is a bisection on its way.
type bisection struct {
	a      *app
	o      bisectFlags
	metric verdict.Metric
	trace  *formats.Trace
	trees  map[string]*tree
	repo   string
	counts map[string]int
}

// tree is a commit's worktree; err says why it cannot be launched.
type tree struct {
	dir, path string
	file      *deploy.File
	err       error
}

func (a *app) bisect(c *cobra.Command, o bisectFlags) (err error) {
	var bad []error
	for _, v := range []struct{ name, value string }{{"--good", o.good}, {"--bad", o.bad}, {"--deploy", o.file}, {"--trace", o.trace}, {"-o", o.out}} {
		if v.value == "" {
			bad = append(bad, fmt.Errorf("%s is missing", v.name))
		}
	}
	if formats.Remote(o.out) {
		bad = append(bad, localOnly(o.out))
	}
	b := &bisection{a: a, o: o, trees: map[string]*tree{}, counts: map[string]int{}}
	for _, m := range verdict.Defaults() {
		if m.Name == o.metric && (m.Kind == verdict.Centre || m.Kind == verdict.Slow || m.Name == "capacity") {
			m.Gate = true
			b.metric = m
		}
	}
	if b.metric.Name == "" {
		bad = append(bad, fmt.Errorf("--metric is ttft, ttft_slow, tpot, capacity or e2el, not %q", o.metric))
	}
	if b.metric.Name == "capacity" && o.saturate == 0 {
		bad = append(bad, errors.New("--metric capacity needs --saturate"))
	}
	if o.pairs < 5 {
		bad = append(bad, errors.New("--pairs is at least 5: fewer do not know their own deviation"))
	}
	if err := errors.Join(bad...); err != nil {
		return usageError(err, "shadowtape bisect --help")
	}
	if b.repo, err = git(c.Context(), ".", "rev-parse", "--show-toplevel"); err != nil {
		return withHint(err, "call it inside the repository to search")
	}
	good, err := commitOf(c.Context(), b.repo, "--good", o.good)
	if err != nil {
		return err
	}
	last, err := commitOf(c.Context(), b.repo, "--bad", o.bad)
	if err != nil {
		return err
	}
	if _, err := git(c.Context(), b.repo, "merge-base", good, last); err != nil {
		return withHint(fmt.Errorf("bisect: %s (--good) and %s (--bad) have no commit in common", o.good, o.bad), "a shallow clone has only the last commits: git fetch --unshallow")
	}
	n, err := git(c.Context(), b.repo, "rev-list", "--count", good+".."+last)
	if err != nil {
		return err
	}
	if n == "0" {
		return usageError(fmt.Errorf("%s (--bad) holds no commit that %s (--good) does not", o.bad, o.good), "are they swapped?")
	}
	if changed, err := git(c.Context(), b.repo, "status", "--porcelain", "--untracked-files=no"); err == nil && changed != "" {
		fmt.Fprintln(a.err, "what is changed here and not committed is no part of the search")
	}
	if b.trace, err = a.openTrace(o.trace); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.trace.Close()) }()
	if b.o.out, err = filepath.Abs(o.out); err != nil {
		return err
	}
	if err := os.MkdirAll(b.o.out, 0o755); err != nil {
		return err
	}
	defer b.clean()
	err = b.search(c.Context(), good, last, n)
	if errors.Is(err, context.Canceled) {
		return exitWith(exitInterrupted, errors.New("bisect interrupted: runs are kept"), "the same call goes on from there")
	}
	return err
}

func (b *bisection) search(ctx context.Context, good, last, commits string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	fmt.Fprintf(b.a.err, "%s commits; first the ends, %d pairs of launches\n", commits, b.o.pairs)
	sides, f, err := b.pairs(ctx, "ends", good, last)
	if err != nil {
		return err
	}
	ends, err := experiment.EndsOf(sides, f, b.metric, b.o.allowInvalid)
	if err != nil {
		return exitWith(exitInconclusive, err, "")
	}
	fmt.Fprintf(b.a.err, "ends: %s %s is %s, %s is %s\n", b.metric.Name, short(good), experiment.Level(b.metric, ends.Good), short(last), experiment.Level(b.metric, ends.Bad))
	if err := b.keepEnds(good, last, ends); err != nil {
		return err
	}
	found, err := gitSearch(ctx, b.repo, filepath.Join(b.o.out, "search"), good, last, b.o.firstParent, []string{self, "bisect", "--step", "-o", b.o.out}, b.a.err)
	if err != nil {
		return err
	}
	_, f, err = b.pairs(ctx, "final", found.Before, found.Commit)
	if err != nil {
		return err
	}
	subject, err := git(ctx, b.repo, "log", "-1", "--format=%h %an, %ad: %s", "--date=short", found.Commit)
	if err != nil {
		return err
	}
	fmt.Fprintf(b.a.out, "first bad commit: %s\n%s\n", found.Commit, subject)
	for _, u := range found.Unsure {
		fmt.Fprintf(b.a.out, "could not be measured, may be it too: %s\n", u)
	}
	_, err = fmt.Fprintf(b.a.out, "against %s before it, %d pairs of launches: %s is %s, %+.1f %%\n", short(found.Before), f.Pairs, b.metric.Name, f.State, f.ChangePct.V)
	if err == nil && f.State != verdict.Regressed {
		return exitWith(exitInconclusive, errors.New("bisect: the last comparison does not confirm it"), "more --pairs, or a quieter host")
	}
	return err
}

func (b *bisection) told(commit string, c experiment.Class, n int, odds float64) {
	fmt.Fprintf(b.a.err, "%s: %s after %d launches, odds %.3g to 1\n", short(commit), c, n, odds)
}

// pairs launches two commits in pairs and returns the finding.
func (b *bisection) pairs(ctx context.Context, name, base, candidate string) (experiment.Sides, verdict.Finding, error) {
	x, y := b.tree(ctx, base), b.tree(ctx, candidate)
	for _, t := range []*tree{x, y} {
		if t.err != nil {
			return experiment.Sides{}, verdict.Finding{}, withHint(fmt.Errorf("bisect: %s cannot be launched: %w", strings.TrimPrefix(filepath.Base(t.dir), "tree-"), t.err), "both ends have to build and start")
		}
	}
	live := b.live(filepath.Join(b.o.out, name+"-"+short(base)+"-"+short(candidate)), x.file, y.file)
	if _, err := live.Claim(x.path, y.path, false); err != nil { // what is there of these two commits and these options is used again
		return experiment.Sides{}, verdict.Finding{}, withHint(err, "another -o, or the same options")
	}
	r, sides, err := experiment.Gate(ctx, live.Launch, experiment.GateOptions{
		Compare:  experiment.CompareOptions{Metrics: []verdict.Metric{b.metric}, MinSamples: 1, AllowInvalid: b.o.allowInvalid},
		MaxPairs: b.o.pairs, Done: live.Done,
	})
	if err != nil {
		return sides, verdict.Finding{}, b.a.startError(err, filepath.Join(live.Dir, "*.candidate.log"))
	}
	if len(r.Findings) == 0 {
		return sides, verdict.Finding{}, exitWith(exitInvalid, fmt.Errorf("bisect: %s: no pair can be used: %s", name, strings.Join(r.Again, "; ")), "--allow-invalid takes them as they are")
	}
	return sides, r.Findings[0], nil
}

func (b *bisection) live(dir string, base, candidate *deploy.File) *experiment.Live {
	d := b.o.deploy
	d.allowInvalid = b.o.allowInvalid
	return &experiment.Live{
		Dir: dir, Base: base, Candidate: candidate, Start: d.options(b.a, "bisect"), WarmUp: b.o.warmUp, Saturate: b.o.saturate,
		Job: job.Options{Trace: b.trace, Seed: b.o.seed, ToolVersion: readBuildInfo().Version,
			Selection: schedule.Selection{Speed: b.o.speed, Duration: b.o.duration, MaxRequests: b.o.maxRequests}},
	}
}

// launch measures one launch of a commit.
func (b *bisection) launch(ctx context.Context, commit string) (float64, error) {
	t := b.tree(ctx, commit)
	if t.err != nil {
		fmt.Fprintf(b.a.err, "%s: %s\n", short(commit), oneLine(t.err.Error()))
		return 0, fmt.Errorf("%w: %w", experiment.ErrSkip, t.err)
	}
	live := b.live(filepath.Join(b.o.out, "commit-"+short(commit)), t.file, t.file)
	if _, err := live.Claim(t.path, t.path, false); err != nil {
		return 0, err
	}
	for range 3 {
		b.counts[commit]++
		l := experiment.Leg{Pair: b.counts[commit], Arm: experiment.Base, Try: 1}
		m, there, err := live.Done(l)
		if err != nil {
			return 0, err
		}
		if !there {
			m, err = live.Launch(ctx, l)
		}
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
		if err != nil {
			fmt.Fprintf(b.a.err, "%s: %s\n", short(commit), oneLine(err.Error()))
			return 0, fmt.Errorf("%w: %w", experiment.ErrSkip, err)
		}
		if len(m.Invalid) > 0 && !b.o.allowInvalid {
			fmt.Fprintf(b.a.err, "%s: invalid: %s\n", short(commit), oneLine(m.Invalid[0]))
			continue
		}
		v := m.Run.Level(b.metric)
		if math.IsNaN(v) {
			fmt.Fprintf(b.a.err, "%s: its run has no %s\n", short(commit), b.metric.Name)
			return 0, fmt.Errorf("%w: its run has no %s", experiment.ErrSkip, b.metric.Name)
		}
		return v, nil
	}
	return 0, fmt.Errorf("%w: three invalid launches", experiment.ErrSkip)
}

// tree checks a commit out and builds it, once.
func (b *bisection) tree(ctx context.Context, commit string) *tree {
	if t := b.trees[commit]; t != nil {
		return t
	}
	t := &tree{dir: filepath.Join(b.o.out, "tree-"+short(commit))}
	b.trees[commit] = t
	git(ctx, b.repo, "worktree", "remove", "--force", t.dir) // of an interrupted call, whether its directory is still there or not
	if _, t.err = git(ctx, b.repo, "worktree", "add", "--detach", t.dir, commit); t.err != nil {
		return t
	}
	missing, err := fillSubmodules(ctx, b.repo, t.dir)
	if t.err = err; err != nil {
		return t
	}
	if b.o.build != "" {
		c := exec.CommandContext(ctx, "sh", "-c", b.o.build)
		c.Dir, c.Env, c.WaitDelay = t.dir, gitEnvironment(), 5*time.Second
		out, err := c.CombinedOutput()
		if err != nil {
			lines := strings.Split(strings.TrimSpace(string(out)), "\n")
			t.err = fmt.Errorf("build: %w", err)
			if said := lines[len(lines)-1]; said != "" {
				t.err = fmt.Errorf("build: %w: %s", err, said)
			}
			if len(missing) > 0 {
				t.err = fmt.Errorf("%w (its tree lacks the submodules %s, which this repository has not checked out: git submodule update --init)", t.err, strings.Join(missing, ", "))
			}
			return t
		}
	}
	t.path = filepath.Join(t.dir, b.o.file)
	if _, err := os.Stat(t.path); err != nil {
		t.err = fmt.Errorf("it has no %s", b.o.file)
		return t
	}
	t.file, t.err = deploy.Load(t.path, nil)
	return t
}

// clean removes the worktrees; the runs stay.
func (b *bisection) clean() {
	for _, t := range b.trees {
		if _, err := git(context.Background(), b.repo, "worktree", "remove", "--force", t.dir); err != nil {
			fmt.Fprintf(b.a.err, "warning: %s\n", oneLine(err.Error()))
		}
	}
}

func short(commit string) string { return commit[:min(9, len(commit))] }
