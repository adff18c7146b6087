package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/experiment/sweep"
)

func TestSweepEndToEnd(t *testing.T) {
	url, _ := startSim(t, "--profile", "instant")
	dir := t.TempDir()
	out := filepath.Join(dir, "sweep")
	args := []string{"sweep", "--target", url, "--input", "16,32", "--output", "4", "--rate", "100,200", "--requests", "10", "--allow-invalid", "-o", out}
	if code, text, errs := invoke(append(args, "--dry-run")...); code != exitGood || strings.Count(text, "\n") != 4 || !strings.Contains(errs, "4 cells") {
		t.Errorf("dry run: exit %d\n%s%s", code, text, errs)
	}
	code, text, errs := invoke(args...)
	if code != exitGood || strings.Count(text, "input ") != 4 {
		t.Fatalf("sweep: exit %d\n%s%s", code, text, errs)
	}
	for _, f := range []string{"index.html", "results.parquet", "results.csv", "results.json"} {
		if s, err := os.Stat(filepath.Join(out, f)); err != nil || s.Size() == 0 {
			t.Errorf("%s: %v", f, err)
		}
	}
	if code, _, errs := invoke(args...); code != exitGood || strings.Count(errs, "there already") != 4 {
		t.Errorf("again: exit %d\n%s", code, errs)
	}
	if code, _, _ := invoke("sweep", "--target", url, "--input", "16", "--output", "4", "--users", "1,4", "--requests", "20", "--allow-invalid", "-o", filepath.Join(dir, "users")); code != exitGood {
		t.Errorf("users: exit %d", code)
	}
	code, text, errs = invoke("sweep", "--target", url, "--input", "16", "--output", "4", "--search", "100..200", "--slo", "ttft=1h", "--requests", "5", "--repeats", "2", "--allow-invalid", "--json", "-o", filepath.Join(dir, "search"))
	if code != exitGood || !strings.Contains(text, `"confidence": 0.95`) {
		t.Fatalf("search: exit %d\n%s%s", code, text, errs)
	}
	checkDocumented(t, "sweep", text)
}

// A sweep of 3 × 2 × 3 cells is killed in the middle, with no time to tidy up, and called again: what was finished is kept as it is, the
// rest is measured, and nothing of the killed run is left.
func TestSweepKilled(t *testing.T) {
	if testing.Short() {
		t.Skip("skipped by -short: measures 18 cells")
	}
	url, _ := startSim(t, "--profile", "instant")
	out := filepath.Join(t.TempDir(), "sweep")
	args := []string{"sweep", "--target", url, "--input", "16,32,64", "--output", "2,4", "--rate", "50,100,200", "--requests", "20", "--allow-invalid", "-o", out}
	cmd := exec.Command(program(t), args...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	started := func() []string {
		names, _ := filepath.Glob(filepath.Join(out, "cells", "*", "run.json"))
		return names
	}
	for len(started()) < 8 {
		select {
		case err := <-ended:
			t.Fatalf("it ended by itself: %v", err)
		case <-time.After(time.Millisecond):
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-ended
	finished := map[string]time.Time{}
	for _, name := range started() {
		var m formats.Manifest
		if b, err := os.ReadFile(name); err != nil || json.Unmarshal(b, &m) != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if m.EndUnixNS > 0 {
			s, err := os.Stat(name)
			if err != nil {
				t.Fatal(err)
			}
			finished[name] = s.ModTime()
		}
	}
	if len(finished) < 7 || len(finished) > 17 {
		t.Fatalf("%d cells were finished", len(finished))
	}
	code, text, errs := invoke(args...)
	if code != exitGood || strings.Count(text, "input ") != 18 || strings.Count(errs, "there already") != len(finished) {
		t.Fatalf("again: exit %d, %d finished before\n%s%s", code, len(finished), text, errs)
	}
	for name, was := range finished {
		if s, err := os.Stat(name); err != nil || !s.ModTime().Equal(was) {
			t.Errorf("%s was measured again: %v", name, err)
		}
	}
	if names := started(); len(names) != 18 {
		t.Errorf("%d runs", len(names))
	}
	if left, _ := filepath.Glob(filepath.Join(out, "cells", "*", "*.tmp")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestSweepRefuses(t *testing.T) {
	full := t.TempDir()
	thesis := filepath.Join(full, "thesis.txt")
	if err := os.WriteFile(thesis, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	base := []string{"sweep", "--target", "http://127.0.0.1:1", "--model", "m", "--input", "16", "--output", "4"}
	for _, c := range []struct {
		name string
		args []string
		code int
		want string
	}{
		{"a length of 0", []string{"sweep", "--target", "http://x", "--input", "0", "--output", "4", "--rate", "1", "-o", "x"}, exitUsage, `input "0"`},
		{"no load", append(base, "-o", "x"), exitUsage, "the load is missing"},
		{"no such arrivals", append(base, "--rate", "1", "--arrival", "often", "-o", "x"), exitUsage, `arrival "often"`},
		{"a search without limits", append(base, "--search", "1..2", "-o", "x"), exitUsage, "needs an SLO"},
		{"a directory of something else", append(base, "--rate", "1", "-o", full), exitFailed, "it is no sweep's"},
		{"nobody listens", append(base, "--rate", "1", "-o", filepath.Join(full, "s")), exitFailed, "no cell could be measured"},
	} {
		if code, _, errs := invoke(c.args...); code != c.code || !strings.Contains(errs, c.want) {
			t.Errorf("%s: exit %d, want %d\n%s", c.name, code, c.code, errs)
		}
	}
	if _, err := os.Stat(thesis); err != nil {
		t.Error(err)
	}
}

func TestSweepVerdict(t *testing.T) {
	good, bad, failed := sweep.Result{Valid: true}, sweep.Result{Invalid: []string{"late"}}, sweep.Result{Error: "no"}
	for _, c := range []struct {
		name    string
		medians []sweep.Result
		allow   bool
		want    int
	}{
		{"all valid", []sweep.Result{good, good}, false, exitGood},
		{"one valid is a result", []sweep.Result{failed, bad, good}, false, exitGood},
		{"none valid", []sweep.Result{failed, bad}, false, exitInvalid},
		{"its only cell invalid", []sweep.Result{bad}, false, exitInvalid},
		{"none valid, accepted", []sweep.Result{failed, bad}, true, exitGood},
		{"all failed", []sweep.Result{failed, failed}, true, exitFailed},
	} {
		err := (&sweepFlags{allowInvalid: c.allow}).verdict(&sweep.Table{Medians: c.medians})
		got := exitGood
		if e, ok := err.(*exitError); ok {
			got = e.code
		}
		if got != c.want {
			t.Errorf("%s: exit %d, want %d", c.name, got, c.want)
		}
	}
}
