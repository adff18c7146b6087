package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// toy is a repository for searches.
type toy struct {
	t   *testing.T
	dir string
}

func newToy(t *testing.T) toy {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("SKIPPED: needs git")
	}
	r := toy{t, t.TempDir()}
	r.git("init", "-q", "-b", "main", ".")
	return r
}

func (r toy) git(args ...string) string {
	r.t.Helper()
	s, err := git(r.t.Context(), r.dir, append([]string{"-c", "user.name=t", "-c", "user.email=t@example.org"}, args...)...)
	if err != nil {
		r.t.Fatal(err)
	}
	return s
}

// commit adds files, or removes those with a minus before them, and returns the commit.
func (r toy) commit(name string, files ...string) string {
	r.t.Helper()
	for _, f := range append(files, name) {
		if gone, ok := strings.CutPrefix(f, "-"); ok {
			if err := os.Remove(filepath.Join(r.dir, gone)); err != nil {
				r.t.Fatal(err)
			}
			continue
		}
		write(r.t, filepath.Join(r.dir, f), name)
	}
	r.git("add", "-A")
	r.git("commit", "-qm", name)
	return r.git("rev-parse", "HEAD")
}

// search finds the commit that brought the file slow; one with the file broken cannot be told.
func (r toy) search(good, bad string, firstParent bool) (culprit, string, error) {
	r.t.Helper()
	var told bytes.Buffer
	c, err := gitSearch(r.t.Context(), r.dir, filepath.Join(r.t.TempDir(), "search"), good, bad, firstParent, []string{"sh", "-c", "test -e stop && exit 128; test -e broken && exit 125; ! test -e slow"}, &told)
	if trees := r.git("worktree", "list"); strings.Contains(trees, "\n") {
		r.t.Errorf("a worktree is left: %s", trees)
	}
	return c, told.String(), err
}

func TestGitSearch(t *testing.T) {
	t.Run("a line", func(t *testing.T) {
		r := newToy(t)
		first := r.commit("c0")
		r.commit("c1")
		before := r.commit("c2")
		slow := r.commit("c3", "slow")
		r.commit("c4")
		write(t, filepath.Join(r.dir, "c4"), "edited, not committed")
		c, told, err := r.search(first, r.git("rev-parse", "HEAD"), false)
		if err != nil || c.Commit != slow || c.Before != before || len(c.Unsure) != 0 {
			t.Errorf("%+v %v\n%s", c, err, told)
		}
		if b, err := os.ReadFile(filepath.Join(r.dir, "c4")); err != nil || string(b) != "edited, not committed" {
			t.Errorf("what was checked out has changed: %q %v", b, err)
		}
	})
	t.Run("merges", func(t *testing.T) {
		r := newToy(t)
		first := r.commit("c0")
		r.commit("c1")
		r.git("checkout", "-qb", "side")
		before := r.commit("s1")
		slow := r.commit("s2", "slow")
		r.commit("s3")
		r.git("checkout", "-q", "main")
		main := r.commit("c2")
		r.git("merge", "-q", "--no-ff", "-m", "merge", "side")
		merge := r.git("rev-parse", "HEAD")
		last := r.commit("c3")
		if c, told, err := r.search(first, last, false); err != nil || c.Commit != slow || c.Before != before {
			t.Errorf("%+v %v\n%s", c, err, told)
		}
		if c, told, err := r.search(first, last, true); err != nil || c.Commit != merge || c.Before != main {
			t.Errorf("first parents: %+v %v\n%s", c, err, told)
		}
	})
	t.Run("builds that fail", func(t *testing.T) {
		r := newToy(t)
		first := r.commit("c0")
		good := r.commit("c1")
		broken := []string{r.commit("c2", "broken"), r.commit("c3")}
		slow := r.commit("c4", "slow", "-broken")
		last := r.commit("c5")
		c, told, err := r.search(first, last, false)
		slices.Sort(c.Unsure)
		slices.Sort(broken)
		if err != nil || c.Commit != slow || c.Before != good || !slices.Equal(c.Unsure, broken) {
			t.Errorf("%+v %v, want %s after %s, unsure %v\n%s", c, err, slow, good, broken, told)
		}
	})
	t.Run("a good commit that is on another branch", func(t *testing.T) {
		r := newToy(t)
		r.commit("c0", "slow")
		last := r.commit("c1")
		r.git("checkout", "-qb", "fixed", "HEAD~1")
		good := r.commit("f1", "-slow")
		if _, told, err := r.search(good, last, false); err == nil || !strings.HasPrefix(err.Error(), "git bisect run: ") || !strings.Contains(told, "has been fixed between") {
			t.Errorf("%v\n%s", err, told)
		}
	})
	t.Run("a step that stops", func(t *testing.T) {
		r := newToy(t)
		first := r.commit("c0")
		r.commit("c1", "stop")
		last := r.commit("c2")
		if _, told, err := r.search(first, last, false); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v\n%s", err, told)
		}
	})
	t.Run("an interrupt", func(t *testing.T) {
		r := newToy(t)
		first := r.commit("c0")
		r.commit("c1")
		last := r.commit("c2")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		mark := filepath.Join(t.TempDir(), "mark")
		step := []string{"sh", "-c", `trap 'echo interrupted >` + mark + `; exit 130' INT; echo ready; while :; do sleep 0.05; done`}
		_, err := gitSearch(ctx, r.dir, filepath.Join(t.TempDir(), "search"), first, last, false, step, &whenSaid{text: "ready\n", do: cancel})
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		for range 500 { // git does not wait for its command
			if b, _ := os.ReadFile(mark); string(b) == "interrupted\n" {
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
		t.Error("the step has not heard of it")
	})
}

// whenSaid does something once a text was written to it.
type whenSaid struct {
	text string
	do   func()
	b    bytes.Buffer
}

func (w *whenSaid) Write(p []byte) (int, error) {
	w.b.Write(p)
	if strings.Contains(w.b.String(), w.text) {
		w.do()
	}
	return len(p), nil
}

// TestBisectDrivesGit: the whole of it on a repository whose commits change the simulator's time to the first token by more than a busy machine
// could: the ends in pairs, git's search with a build that fails, the culprit and the commit before it in pairs; ends that are alike are refused;
// the same call again uses what is there.
func TestBisectDrivesGit(t *testing.T) {
	if testing.Short() {
		t.Skip("skipped by -short: starts servers")
	}
	t.Parallel() // it waits, for servers and their answers
	path, trace, r := program(t), shortTrace(t), newToy(t)
	out := filepath.Join(t.TempDir(), "out")
	var commits []string
	for i, c := range []struct{ ttft, build string }{{"5ms", "0"}, {"5ms", "0"}, {"5ms", "1"}, {"2s", "0"}, {"2s", "0"}} {
		write(t, filepath.Join(r.dir, "d.yaml"), `process: ["${self}", sim, --listen, "127.0.0.1:${port}", --itl, 0s, --ttft, `+c.ttft+"]\ndialect: sim\n")
		write(t, filepath.Join(r.dir, "build.sh"), "echo no compiler; exit "+c.build+"\n")
		commits = append(commits, r.commit("c"+string(rune('0'+i))))
	}
	call := func(good, bad, out string) (int, string, string) {
		c := exec.Command(path, "bisect", "--good", good, "--bad", bad, "--metric", "ttft", "--build", "sh build.sh", "--deploy", "d.yaml", "--trace", trace, "--speed", "20", "--max-requests", "4", "--warm-up", "0", "--allow-invalid", "-o", out)
		c.Dir = r.dir
		var o, e bytes.Buffer
		c.Stdout, c.Stderr = &o, &e
		err := c.Run()
		if c.ProcessState == nil {
			t.Fatal(err)
		}
		return c.ProcessState.ExitCode(), o.String(), e.String()
	}
	code, said, errs := call(commits[0], "HEAD", out)
	if code != exitGood || !strings.HasPrefix(said, "first bad commit: "+commits[3]+"\n") || !strings.Contains(said, "may be it too: "+commits[2]) || !strings.Contains(said, "against "+short(commits[1])+" before it, 5 pairs of launches: ttft is regressed") {
		t.Fatalf("exit %d\n%s%s", code, said, errs)
	}
	if !strings.Contains(errs, "build: exit status 1: no compiler") {
		t.Errorf("why a commit was skipped is not said:\n%s", errs)
	}
	if log, err := os.ReadFile(filepath.Join(out, "search.log")); err != nil || !strings.Contains(string(log), "git bisect skip "+commits[2]) {
		t.Errorf("git's log: %v\n%s", err, log)
	}
	if trees := r.git("worktree", "list"); strings.Contains(trees, "\n") {
		t.Errorf("worktrees are left: %s", trees)
	}
	before := runsOf(t, out)
	if code, again, errs := call(commits[0], "HEAD", out); code != exitGood || again != said {
		t.Errorf("again: exit %d\n%s%s", code, again, errs)
	}
	if after := runsOf(t, out); !slices.Equal(before, after) {
		t.Errorf("%d runs have become %d", len(before), len(after))
	}
	if code, _, errs := call(commits[0], commits[1], out+"2"); code != exitInconclusive || !strings.Contains(errs, "the ends do not reproduce") && !strings.Contains(errs, "under twice") {
		t.Errorf("ends that are alike: exit %d\n%s", code, errs)
	}
}

// runsOf lists the runs under a directory with when they were made.
func runsOf(t *testing.T, dir string) (all []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*", "*", "run.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no runs under %s: %v", dir, err)
	}
	for _, f := range files {
		s, err := os.Stat(f)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, f+s.ModTime().String())
	}
	return all
}
