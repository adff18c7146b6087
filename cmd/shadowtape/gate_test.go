package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shadowtape/shadowtape/internal/experiment"
	"github.com/shadowtape/shadowtape/internal/experiment/verdict"
)

// TestGateEndToEnd launches two simulated deployments as processes, in pairs; an interrupted gate goes on; the verdict, the history and the
// report are there. The simulator gives fixed times, one of them twice the other: that stands out of any machine's noise.
func TestGateEndToEnd(t *testing.T) {
	if testing.Short() {
		t.Skip("skipped by -short: starts three servers")
	}
	path, trace, dir := program(t), shortTrace(t), t.TempDir()
	file := func(name, itl string) string {
		return write(t, filepath.Join(dir, name+".yaml"), `process: ["${self}", sim, --listen, "127.0.0.1:${port}", --ttft, 20ms, --itl, `+itl+`, --force, --emission-log, "`+filepath.Join(dir, name+".log")+`"]
dialect: sim
warm_up: {requests: 30, duration: 0s, steady: false}
`)
	}
	base, slow := file("base", "2ms"), file("slow", "14ms")
	out, db := filepath.Join(dir, "gate"), filepath.Join(dir, "history")
	args := []string{"gate", "--base", base, "--candidate", slow, "--trace", trace, "--pairs", "2", "--policy", "threshold:50%", "--saturate", "8", "--speed", "10", "--max-requests", "30", "--allow-invalid", "--db", db, "-o", out, "--md", filepath.Join(dir, "c.md")}
	if code, _, errs := separately(t, path, nil, append(args, "--plan")...); code != exitGood || !strings.Contains(errs, "2 pairs at most") {
		t.Fatalf("plan: exit %d\n%s", code, errs)
	}
	code, text, errs := separately(t, path, nil, args...)
	if code != exitWorse || !strings.Contains(text, "tpot") || !strings.Contains(text, "deployment.command") {
		t.Fatalf("gate: exit %d\n%s%s", code, text, errs)
	}
	if log, err := os.ReadFile(filepath.Join(dir, "base.log")); err != nil || strings.Count(string(log), "\n") < 30+8+30 {
		t.Errorf("the base served %d requests, %v: the warm-up of its file is not among them", strings.Count(string(log), "\n"), err)
	}
	for _, f := range []string{"gate.json", "report.json", "p01-base/run.json", "p01-base-saturated/run.json", "p01-candidate.candidate.log"} {
		if _, err := os.Stat(filepath.Join(out, f)); err != nil {
			t.Error(err)
		}
	}
	// the same call finds everything, but for what is removed here as a crash would leave it
	if err := os.Remove(filepath.Join(out, "p01-base", "run.json")); err != nil {
		t.Fatal(err)
	}
	code, _, errs = separately(t, path, nil, args...)
	if code != exitWorse || strings.Count(errs, "there already") != 3 || strings.Count(errs, "launching") != 1 {
		t.Errorf("again: exit %d\n%s", code, errs)
	}
	if code, _, errs = separately(t, path, nil, append(args, "--speed", "4")...); code != exitFailed || !strings.Contains(errs, "other options") {
		t.Errorf("other options: exit %d\n%s", code, errs)
	}
}

// TestSweepDeploys: each cell is a launch of its own, warmed up as its file says; one that never gets healthy is a failed row.
func TestSweepDeploys(t *testing.T) {
	path, dir := program(t), t.TempDir()
	write(t, filepath.Join(dir, "cell.yaml"), `process: ["${self}", sim, --listen, "127.0.0.1:${port}", --profile, instant, --ttft, "${matrix.ttft}", --force, --emission-log, "`+dir+`/${matrix.ttft}.log"]
dialect: sim
health: {path: "${matrix.path}", interval: 20ms, timeout: 3s}
warm_up: {requests: 25, duration: 0s, steady: false}
`)
	matrix := write(t, filepath.Join(dir, "matrix.yaml"), "deploy: cell.yaml\nmatrix: {input: [16], output: [4], rate: [50], ttft: [1ms, 30ms], path: [/health, /never]}\nexclude: [{ttft: 30ms, path: /never}]\nrequests: 10\n")
	code, out, errs := separately(t, path, nil, "sweep", matrix, "-o", filepath.Join(dir, "sweep"), "--json", "--allow-invalid")
	var table struct {
		Results []struct {
			Values map[string]string
			Error  string
			Run    string
		}
	}
	if err := json.Unmarshal([]byte(out), &table); err != nil || len(table.Results) != 3 || code != exitGood {
		t.Fatalf("exit %d, %v\n%s%s", code, err, out, errs)
	}
	targets := map[string]bool{}
	for _, r := range table.Results {
		if r.Values["path"] == "/never" {
			if !strings.Contains(r.Error, "is not healthy after 3s") {
				t.Errorf("%+v", r)
			}
			continue
		}
		m := manifest(t, filepath.Join(dir, "sweep", r.Run))
		targets[m.Targets[0]] = true
		if w, ok := m.Options["warmup"].(map[string]any); r.Error != "" || !ok || w["answers"].(float64) < 25 {
			t.Errorf("%+v, warm-up %v", r, m.Options["warmup"])
		}
	}
	if len(targets) != 2 {
		t.Errorf("launches %v", targets)
	}
}

// TestAlarm: a regression is posted and the command runs, with the report's path; an answer that is no success is said without the address.
func TestAlarm(t *testing.T) {
	status := http.StatusOK
	got := ""
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		got = string(b)
		w.WriteHeader(status)
	}))
	defer s.Close()
	marker := filepath.Join(t.TempDir(), "ran")
	a := &app{err: os.Stderr}
	r := experiment.Report{Verdict: verdict.Regressed, Findings: []verdict.Finding{}, Base: "a", Candidate: "b"}
	if err := a.alarm(gateFlags{notify: s.URL, onRegression: fmt.Sprintf(`echo "$SHADOWTAPE_REPORT" > %s`, marker)}, r, "the/report.json"); err != nil {
		t.Error(err)
	}
	if b, err := os.ReadFile(marker); err != nil || strings.TrimSpace(string(b)) != "the/report.json" {
		t.Errorf("the command: %q %v", b, err)
	}
	if !strings.Contains(got, `"text":"REGRESSED`) {
		t.Errorf("posted %q", got)
	}
	defer func(d time.Duration) { onRegressionLimit = d }(onRegressionLimit)
	onRegressionLimit = 10 * time.Millisecond
	endless := &app{err: io.Discard} // its output is a pipe, which what the command starts holds open
	if err := endless.alarm(gateFlags{onRegression: `sleep 3600 & echo $! >` + marker + `; wait`}, r, ""); err == nil || !strings.Contains(err.Error(), "did not end within 10ms and was ended") {
		t.Errorf("a command without end: %v", err)
	}
	status = http.StatusForbidden
	if err := a.alarm(gateFlags{notify: s.URL + "/secret"}, r, ""); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("a refusal: %v", err)
	}
}

// TestAlarmOnRegressionOnly: nobody is told and nothing is rolled back on any other verdict, nor on identical builds, nor on one launch a side.
func TestAlarmOnRegressionOnly(t *testing.T) {
	posts := 0
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { posts++ }))
	defer s.Close()
	for _, c := range []struct {
		verdict verdict.State
		aa      bool
		calls   int
	}{{verdict.Regressed, false, 1}, {verdict.Regressed, true, 0}, {verdict.Invalid, false, 0}, {verdict.Inconclusive, false, 0}, {verdict.Unchanged, false, 0}, {verdict.Small, false, 0}, {verdict.Improved, false, 0}} {
		dir := t.TempDir()
		ran := filepath.Join(dir, "ran")
		posts = 0
		a := &app{out: io.Discard, err: io.Discard}
		o := gateFlags{out: dir, aa: c.aa, notify: s.URL, onRegression: `test -s "$SHADOWTAPE_REPORT" && echo "$SHADOWTAPE_VERDICT" >> ` + ran}
		err := a.gated(o, experiment.Report{Verdict: c.verdict, Findings: []verdict.Finding{}, Base: "a", Candidate: "b"}, experiment.Sides{}, nil)
		b, _ := os.ReadFile(ran)
		if got := strings.Count(string(b), "regressed\n"); posts != c.calls || got != c.calls || len(b) != got*len("regressed\n") {
			t.Errorf("%s, identical builds %v: posted %d times, the command ran %q; want %d", c.verdict, c.aa, posts, b, c.calls)
		}
		var exit *exitError
		if want := map[verdict.State]int{verdict.Regressed: exitWorse, verdict.Invalid: exitInvalid, verdict.Inconclusive: exitInconclusive}[c.verdict]; want != 0 && (!errors.As(err, &exit) || exit.code != want) || want == 0 && err != nil {
			t.Errorf("%s: %v, want exit %d", c.verdict, err, want)
		}
	}
}

// TestGateNightly: the nightly tier searches the highest rate within the SLO in each launch, and says it in its text, its comment and its JSON. A
// server of two places whose tokens take three times as long carries less.
func TestGateNightly(t *testing.T) {
	if testing.Short() {
		t.Skip("skipped by -short: starts two servers")
	}
	path, dir := program(t), t.TempDir()
	trace := filepath.Join(dir, "trace")
	if code, _, errs := invoke("synth", "--arrival", "poisson", "--rate", "4", "--input", "16", "--output", "8", "--duration", "4s", "-o", trace); code != exitGood {
		t.Fatal(errs)
	}
	file := func(name, slowdown string) string {
		return write(t, filepath.Join(dir, name+".yaml"), `process: ["${self}", sim, --listen, "127.0.0.1:${port}", --max-num-seqs, "2", --slowdown, "decode=`+slowdown+`"]`+"\ndialect: sim\n")
	}
	ran, md, out := filepath.Join(dir, "ran"), filepath.Join(dir, "c.md"), filepath.Join(dir, "gate")
	args := []string{"gate", "--tier", "nightly", "--base", file("main", "3"), "--candidate", file("pr", "12"), "--trace", trace, "--slo", "ttft=500ms", "--rate-step", "1s", "--pairs", "1", "--warm-up", "0", "--saturate", "8",
		"--on-regression", "echo >" + ran, "--allow-invalid", "-o", out, "--md", md, "--json"}
	code, text, errs := separately(t, path, nil, args...)
	if code != exitInconclusive {
		t.Fatalf("one launch a side: exit %d\n%s%s", code, text, errs)
	}
	documentedKeys(t, "launches", text)
	var r experiment.Report
	if err := json.Unmarshal([]byte(text), &r); err != nil || r.Base != "main" || r.Candidate != "pr" {
		t.Errorf("%v, %q against %q", err, r.Candidate, r.Base)
	}
	found := false
	for _, f := range r.Findings {
		if f.Metric == "slo_rate" {
			found = true
			if !f.Base.Valid || !f.Candidate.Valid || f.Candidate.V >= f.Base.V || f.Unit != "requests/s" {
				t.Errorf("%+v", f)
			}
		}
	}
	if !found {
		t.Errorf("no slo_rate in\n%s", text)
	}
	if b, err := os.ReadFile(md); err != nil || !strings.Contains(string(b), "| highest rate within the SLO | ") || !strings.Contains(string(b), "`pr` against `main`") {
		t.Errorf("%v\n%s", err, b)
	}
	var tried experiment.RateFound
	if b, err := os.ReadFile(filepath.Join(out, "p01-base.rates.json")); err != nil || json.Unmarshal(b, &tried) != nil || len(tried.Tried) < 2 {
		t.Errorf("what was tried: %v %+v", err, tried)
	}
	if _, err := os.Stat(ran); err == nil {
		t.Error("the command for a regression ran on one launch a side")
	}
}

func TestBisectRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		says string
	}{
		"nothing":             {[]string{"bisect"}, "--good is missing"},
		"a metric of no run":  {[]string{"bisect", "--good", "a", "--deploy", "d", "--trace", "t", "-o", "x", "--metric", "kv_usage_mean"}, "--metric"},
		"capacity unmeasured": {[]string{"bisect", "--good", "a", "--deploy", "d", "--trace", "t", "-o", "x", "--metric", "capacity"}, "--saturate"},
		"too few pairs":       {[]string{"bisect", "--good", "a", "--deploy", "d", "--trace", "t", "-o", "x", "--pairs", "3"}, "at least 5"},
	} {
		if code, _, errs := invoke(c.args...); code != exitUsage || !strings.Contains(errs, c.says) {
			t.Errorf("%s: exit %d: %s", name, code, errs)
		}
	}
	for flag, args := range map[string][]string{"--good": {"--good", "no-such-ref"}, "--bad": {"--good", "HEAD", "--bad", "no-such-ref"}} {
		code, _, errs := invoke(append([]string{"bisect", "--deploy", "d", "--trace", "t", "-o", "x"}, args...)...)
		if code != exitFailed || !strings.HasPrefix(errs, "shadowtape: bisect: "+flag+` "no-such-ref" is no commit of `) || strings.Count(errs, "\n") != 2 {
			t.Errorf("%s is an unknown commit: exit %d: %s", flag, code, errs)
		}
	}
	if code, _, errs := invoke("bisect", "--good", "HEAD", "--bad", "HEAD", "--deploy", "d", "--trace", "t", "-o", "x"); code != exitUsage || !strings.Contains(errs, "are they swapped?") {
		t.Errorf("no commit between: exit %d: %s", code, errs)
	}
}

// TestBisectStep: what `git bisect run` takes, on a repository whose commits change the simulator's time to the first token, by more than a busy machine could: 0 of a good commit, 1
// of a bad one, 125 of one that does not build, 128 where no ends are known.
func TestBisectStep(t *testing.T) {
	if testing.Short() {
		t.Skip("skipped by -short: starts servers")
	}
	t.Parallel() // it waits, for servers and their answers
	path, trace, repo := program(t), shortTrace(t), t.TempDir()
	out := filepath.Join(t.TempDir(), "out")
	run := func(args ...string) string {
		t.Helper()
		s, err := git(t.Context(), repo, args...)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	run("init", "-q", "-b", "main", ".")
	var commits []string
	for _, c := range []struct{ ttft, build string }{{"5ms", "0"}, {"5ms", "1"}, {"2s", "0"}} {
		write(t, filepath.Join(repo, "d.yaml"), `process: ["${self}", sim, --listen, "127.0.0.1:${port}", --itl, 0s, --ttft, `+c.ttft+"]\ndialect: sim\n")
		write(t, filepath.Join(repo, "build.sh"), "exit "+c.build+"\n")
		run("add", "-A")
		run("-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-qm", c.ttft+c.build)
		commits = append(commits, run("rev-parse", "HEAD"))
	}
	step := func() int {
		c := exec.Command(path, "bisect", "--step", "-o", out)
		c.Dir = repo
		b, err := c.CombinedOutput()
		if err == nil {
			return 0
		}
		t.Logf("%s", b)
		return c.ProcessState.ExitCode()
	}
	if code := step(); code != stepAbort {
		t.Errorf("without ends: exit %d", code)
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		t.Fatal(err)
	}
	b := &bisection{a: &app{out: io.Discard, err: io.Discard}, o: bisectFlags{metric: "ttft", build: "sh build.sh", file: "d.yaml", trace: trace, speed: 10, maxRequests: 5, allowInvalid: true, seed: 1, out: out, deploy: deployFlags{exclusive: "on"}}}
	if err := b.keepEnds(commits[0], commits[2], experiment.Ends{Good: math.Log(5), Bad: math.Log(2000), SD: 0.5}); err != nil {
		t.Fatal(err)
	}
	for i, want := range []int{stepGood, stepSkip, stepBad} {
		run("checkout", "-q", commits[i])
		if code := step(); code != want {
			t.Errorf("commit %d: exit %d, want %d", i, code, want)
		}
	}
	if trees := run("worktree", "list"); strings.Count(trees, "\n") != 0 {
		t.Errorf("worktrees are left: %s", trees)
	}
}
