package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/shadowtape/shadowtape/internal/experiment/history"
)

// launches makes runs of one build, a little apart from one another.
func launches(t *testing.T, n int, slow float64) []string {
	t.Helper()
	var out []string
	for i := range n {
		out = append(out, writeRun(t, 500, slow*(1+0.002*float64(i%3)), true))
	}
	return out
}

func TestDiffOfLaunches(t *testing.T) {
	a, b, same := launches(t, 5, 1), launches(t, 5, 1.2), launches(t, 5, 1)
	args := func(candidate []string, more ...string) []string {
		return append(append(append(append([]string{"diff", "--base"}, a...), "--candidate"), candidate...), more...)
	}
	dir := t.TempDir()
	page := filepath.Join(dir, "c.html")
	md, xml, prom, line := filepath.Join(dir, "c.md"), filepath.Join(dir, "j.xml"), filepath.Join(dir, "o.prom"), filepath.Join(dir, "o.influx")
	code, out, errs := invoke(args(b, "--md", md, "--junit", xml, "--openmetrics", prom, "--influx", line, "--html", page)...)
	if code != exitWorse || !strings.HasPrefix(out, "REGRESSED: ttft +") || !strings.Contains(out, "5 pairs") || errs != "" {
		t.Errorf("slower: exit %d\n%s%s", code, out, errs)
	}
	for _, f := range []string{md, xml, prom, line, page} {
		if s, err := os.Stat(f); err != nil || s.Size() < 100 {
			t.Errorf("%s: %v", f, err)
		}
	}
	if code, out, _ := invoke(args(same)...); code != exitGood || !strings.HasPrefix(out, "UNCHANGED") {
		t.Errorf("the same: exit %d\n%s", code, out)
	}
	if code, out, _ := invoke(args(b[:2])...); code != exitInconclusive || !strings.Contains(out, "2 pairs") {
		t.Errorf("two pairs without a history: exit %d\n%s", code, out)
	}
	if code, out, _ := invoke(args(b, "--tolerance", "ttft=30%,tpot=30%,ttft_slow=30%,capacity=30%")...); code != exitWorse {
		t.Errorf("a tolerance is no minimum: exit %d\n%s", code, out)
	}
	if code, _, _ := invoke(args(b, "--tolerance", "ttft=30%:25%,tpot=30%:25%,ttft_slow=30%:25%")...); code != exitGood {
		t.Errorf("below the smallest change that counts: exit %d", code)
	}
	if code, out, _ := invoke(args(same, "--policy", "threshold:3%")...); code != exitGood || !strings.Contains(out, "policy threshold:3%") {
		t.Errorf("policy: exit %d\n%s", code, out)
	}
	bad := writeRun(t, 500, 1, false)
	if code, out, _ := invoke(append(args(same[:4]), bad)...); code != exitGood || !strings.Contains(out, "run again: pair 5, candidate") {
		t.Errorf("an invalid pair of five: exit %d\n%s", code, out)
	}
	code, out, _ = invoke(args(b, "--json")...)
	if code != exitWorse {
		t.Errorf("--json: exit %d", code)
	}
	documentedKeys(t, "launches", out)
}

// onPurpose is a document of ours that may be edited: without its checksum.
func onPurpose(document []byte) string {
	return regexp.MustCompile(`,\s*"checksum": "[^"]*"`).ReplaceAllString(string(document), "")
}

func TestDiffOfLaunchesRefuses(t *testing.T) {
	a := launches(t, 2, 1)
	other := writeRun(t, 500, 1, true)
	m, err := os.ReadFile(filepath.Join(other, "run.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(other, "run.json"), []byte(strings.Replace(onPurpose(m), `"trace_sha256": ""`, `"trace_sha256": "other"`, 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	rules := filepath.Join(t.TempDir(), "gate.yaml")
	if err := os.WriteFile(rules, []byte("metrics:\n  ttft:\n    tolerence: 5%\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	trace := filepath.Join(a[0], "exchanges-00001.parquet")
	copied := filepath.Join(t.TempDir(), "copy")
	if err := os.CopyFS(copied, os.DirFS(a[0])); err != nil {
		t.Fatal(err)
	}
	noted := write(t, filepath.Join(t.TempDir(), "baseline.json"), "")
	if code, _, errs := invoke("baseline", "save", "--force", "-o", noted, a[0]); code != exitGood {
		t.Fatal(errs)
	}
	text, err := os.ReadFile(noted)
	if err != nil {
		t.Fatal(err)
	}
	later := write(t, filepath.Join(t.TempDir(), "later.json"), strings.Replace(onPurpose(text), `"schema": 1`, `"schema": 7`, 1))
	flipped := write(t, filepath.Join(t.TempDir(), "flipped.json"), strings.Replace(string(text), `"pinned": false`, `"pinned": true`, 1))
	struck := filepath.Join(t.TempDir(), "struck")
	if err := os.CopyFS(struck, os.DirFS(a[1])); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(struck, "run.json"), []byte(strings.Replace(string(m), `"valid": true`, `"valid": false`, 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	conflict := write(t, filepath.Join(t.TempDir(), "conflict.json"), "<<<<<<< HEAD\n"+string(text)+"=======\n>>>>>>> other\n")
	unread := t.TempDir()
	write(t, filepath.Join(unread, "2026-01-01.jsonl"), `{"schema":1,"kind":"run","series":"x","levels":{"tpot":NaN}}`+"\n")
	none, explains := write(t, filepath.Join(t.TempDir(), "a.yaml"), "metrics: {ttft: {gate: false}, ttft_slow: {gate: false}, tpot: {gate: false}, capacity: {gate: false}, error_rate: {gate: false}, slo_attainment: {gate: false}}\n"), write(t, filepath.Join(t.TempDir(), "b.yaml"), "metrics: {kv_usage_mean: {gate: true}}\n")
	for name, c := range map[string]struct {
		args []string
		code int
		says string
	}{
		"another trace":        {[]string{"diff", "--base", a[0], a[1], "--candidate", a[0], other}, exitFailed, "not comparable"},
		"no manifest":          {[]string{"diff", "--base", trace, trace, "--candidate", a[0], a[1]}, exitFailed, "no manifest"},
		"a run on both sides":  {[]string{"diff", "--base", a[0], a[1], "--candidate", a[1], a[0]}, exitFailed, "given twice"},
		"a copy of a run":      {[]string{"diff", "--base", a[0], a[1], "--candidate", copied, other}, exitFailed, "not comparable"},
		"a copy as its base":   {[]string{"diff", "--base", a[0], a[0], "--candidate", copied, a[1]}, exitFailed, "one launch counts once"},
		"its own baseline":     {[]string{"diff", "--baseline", noted, a[0]}, exitFailed, "which holds it"},
		"a later baseline":     {[]string{"diff", "--baseline", later, a[1]}, exitFailed, "schema 7, this build reads up to 1"},
		"a flipped baseline":   {[]string{"diff", "--baseline", flipped, a[1]}, exitFailed, "flipped.json: damaged: it does not say what it said"},
		"a flipped run":        {[]string{"diff", a[0], struck}, exitFailed, "run.json: damaged: it does not say what it said"},
		"a flipped launch":     {[]string{"diff", "--base", a[0], a[0], "--candidate", a[1], struck}, exitFailed, "run.json: damaged: it does not say what it said"},
		"a flipped recording":  {[]string{"replay", struck, "--target", "http://127.0.0.1:1", "-o", filepath.Join(t.TempDir(), "r")}, exitFailed, "run.json: damaged: it does not say what it said"},
		"a baseline in merge":  {[]string{"diff", "--baseline", conflict, a[1]}, exitFailed, "it is no baseline"},
		"a pair of one run":    {[]string{"history", "add", a[0], a[0], "--aa", "--db", t.TempDir()}, exitFailed, "given twice"},
		"a baseline of twins":  {[]string{"baseline", "save", a[0], copied, "-o", noted + "2"}, exitFailed, "are one run"},
		"NaN in a history":     {[]string{"history", "check", "--db", unread}, exitFailed, "2026-01-01.jsonl line 1 is no record"},
		"NaN beside launches":  {[]string{"diff", "--base", a[0], a[1], "--candidate", a[0], a[1], "--db", unread}, exitFailed, "it holds no record"},
		"nothing gates":        {[]string{"diff", "--base", a[0], a[0], "--candidate", a[1], a[1], "--rules", none}, exitUsage, "no metric gates"},
		"what explains gates":  {[]string{"diff", "--base", a[0], a[0], "--candidate", a[1], a[1], "--rules", explains}, exitUsage, "cannot gate"},
		"one side":             {[]string{"diff", "--base", a[0], a[1]}, exitUsage, "--candidate"},
		"a misspelled rule":    {[]string{"diff", "--base", a[0], a[0], "--candidate", a[1], a[1], "--rules", rules}, exitUsage, "tolerence"},
		"no such baseline":     {[]string{"diff", "--baseline", "absent.json", a[0]}, exitFailed, "absent.json"},
		"another file":         {[]string{"diff", "--baseline", rules, a[0]}, exitFailed, "no baseline"},
		"a policy of no kind":  {[]string{"diff", "--base", a[0], a[0], "--candidate", a[1], a[1], "--policy", "vibes"}, exitUsage, "threshold:3%"},
		"an empty history":     {[]string{"history", "check", "--db", t.TempDir()}, exitFailed, "empty"},
		"an unknown tolerance": {[]string{"diff", "--base", a[0], a[0], "--candidate", a[1], a[1], "--tolerance", "speed=5%"}, exitUsage, "speed"},
	} {
		code, _, errs := invoke(c.args...)
		if code != c.code || !strings.Contains(errs, c.says) || strings.Count(errs, "\n") > 2 {
			t.Errorf("%s: exit %d, want %d: %s", name, code, c.code, errs)
		}
	}
}

func TestBaselineAndHistory(t *testing.T) {
	a := launches(t, 5, 1)
	dir := t.TempDir()
	file, db := filepath.Join(dir, "baseline.json"), filepath.Join(dir, "history")
	if code, out, errs := invoke(append([]string{"baseline", "save", "-o", file, "--commit", "abc"}, a...)...); code != exitGood || !strings.Contains(out, "5 runs") {
		t.Fatalf("save: exit %d %s%s", code, out, errs)
	}
	if code, _, errs := invoke(append([]string{"baseline", "save", "-o", file}, a...)...); code != exitFailed || !strings.Contains(errs, "--force") {
		t.Errorf("save over it: exit %d %s", code, errs)
	}
	if s, err := os.Stat(file); err != nil || s.Size() > 64<<10 {
		t.Errorf("the baseline has %d bytes", s.Size())
	}
	if code, out, errs := invoke(append([]string{"diff", "--baseline", file}, launches(t, 5, 1.2)...)...); code != exitWorse {
		t.Errorf("slower than the baseline: exit %d\n%s%s", code, out, errs)
	}
	if code, out, _ := invoke(append([]string{"diff", "--baseline", file}, launches(t, 5, 1)...)...); code != exitGood {
		t.Errorf("as the baseline: exit %d\n%s", code, out)
	}
	if code, out, errs := invoke(append([]string{"history", "add", "--db", db, "--aa", "--commit", "c1"}, a...)...); code != exitGood || !strings.Contains(out, "2 A/A pairs") {
		t.Fatalf("add: exit %d %s%s", code, out, errs)
	}
	if code, out, _ := invoke("history", "list", "--db", db); code != exitGood || !strings.Contains(out, "5 runs") || !strings.Contains(out, "tpot") {
		t.Errorf("list: exit %d %s", code, out)
	}
	if code, out, _ := invoke("history", "list", "--db", db, "--csv"); code != exitGood || strings.Count(out, "\n") < 50 {
		t.Errorf("list --csv: exit %d %s", code, out)
	}
	// twenty-four nights more, the last ten of them slower
	h, err := history.Load(db)
	if err != nil {
		t.Fatal(err)
	}
	series := h.Series()[0]
	var more []history.Record
	for night := range 24 {
		for k := range 2 {
			r := series.Runs[0]
			r.ID, r.At, r.Commit = fmt.Sprintf("n%d-%d", night, k), series.Runs[0].At.AddDate(0, 0, night+1), fmt.Sprintf("c%02d", night)
			r.Levels = map[string]float64{}
			for name, v := range series.Runs[(night+k)%5].Levels {
				r.Levels[name] = v
			}
			if night >= 14 {
				r.Levels["tpot"] += 0.08
			}
			more = append(more, r)
		}
	}
	if err := history.Append(db, more...); err != nil {
		t.Fatal(err)
	}
	code, out, _ := invoke("history", "check", "--db", db)
	if code != exitWorse || !strings.Contains(out, "commits c13..c14") {
		t.Errorf("check: exit %d\n%s", code, out)
	}
	code, out, _ = invoke("history", "check", "--db", db, "--json")
	if code != exitWorse {
		t.Errorf("check --json: exit %d", code)
	}
	documentedKeys(t, "history check", out)
	if code, _, errs := invoke("history", "accept", "tpot", "--db", db, "--commit", "nope", "--reason", "x"); code != exitUsage || !strings.Contains(errs, "nope") {
		t.Errorf("accept of a commit that is not there: exit %d %s", code, errs)
	}
	if code, out, errs := invoke("history", "accept", "tpot", "--db", db, "--commit", "c14", "--reason", "larger model"); code != exitGood {
		t.Errorf("accept: exit %d %s%s", code, out, errs)
	}
	if code, out, _ := invoke("history", "check", "--db", db); code != exitGood || !strings.Contains(out, "larger model") {
		t.Errorf("check after it: exit %d\n%s", code, out)
	}
	if code, out, _ := invoke("history", "anchor", "--db", db, "--nights", "3"); code != exitGood || !strings.Contains(out, "3 nights") {
		t.Errorf("anchor: exit %d %s", code, out)
	}
	page := filepath.Join(dir, "trend.html")
	if code, _, errs := invoke("history", "trend", "--db", db, "--html", page); code != exitGood {
		t.Errorf("trend: exit %d %s", code, errs)
	}
	if b, err := os.ReadFile(page); err != nil || !strings.Contains(string(b), "<svg") {
		t.Errorf("the page: %v", err)
	}
	if code, out, _ := invoke("history", "digest", "--db", db, "--since", "36500d"); code == exitGood && !strings.Contains(out, "# Performance") {
		t.Errorf("digest: exit %d %s", code, out)
	}
	var doc map[string]any
	if _, out, _ := invoke("history", "list", "--db", db, "--json"); json.Unmarshal([]byte(out), &doc) != nil || doc["schema"] != 1.0 {
		t.Errorf("list --json: %.200s", out)
	}
}

func TestGateRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		says string
	}{
		"nothing":         {[]string{"gate"}, "--base is missing"},
		"pr and no db":    {[]string{"gate", "--tier", "pr", "--candidate", "a.yaml", "--trace", "t", "-o", "x"}, "--db"},
		"aa of two":       {[]string{"gate", "--aa", "--base", "a.yaml", "--candidate", "b.yaml", "--trace", "t", "-o", "x"}, "--aa"},
		"an unknown tier": {[]string{"gate", "--tier", "best", "--base", "a", "--candidate", "b", "--trace", "t", "-o", "x"}, "best"},
		"a speed of 0":    {[]string{"gate", "--speed", "0", "--base", "a", "--candidate", "b", "--trace", "t", "-o", "x"}, "--speed is a positive number"},
		"no end of speed": {[]string{"gate", "--speed", "Inf", "--base", "a", "--candidate", "b", "--trace", "t", "-o", "x"}, "--speed is a positive number"},
		"a budget of -5m": {[]string{"gate", "--budget", "-5m", "--base", "a", "--candidate", "b", "--trace", "t", "-o", "x"}, "--budget is negative"},
		"no address":      {[]string{"gate", "--notify", "slack", "--base", "a", "--candidate", "b", "--trace", "t", "-o", "x"}, "--notify"},
	} {
		if code, _, errs := invoke(c.args...); code != exitUsage || !strings.Contains(errs, c.says) {
			t.Errorf("%s: exit %d: %s", name, code, errs)
		}
	}
}

// TestGateWithoutAHistory: the tier that has nothing but a history says that there is none before it launches anything; a plan makes nothing.
func TestGateWithoutAHistory(t *testing.T) {
	dir, trace := t.TempDir(), shortTrace(t)
	file := write(t, filepath.Join(dir, "d.yaml"), `process: ["${self}", sim, --listen, "127.0.0.1:${port}"]`+"\ndialect: sim\n")
	out := filepath.Join(dir, "out")
	if code, _, errs := invoke("gate", "--tier", "pr", "--candidate", file, "--trace", trace, "--db", filepath.Join(dir, "none"), "-o", out); code != exitFailed || !strings.Contains(errs, "the history is empty") {
		t.Errorf("exit %d: %s", code, errs)
	}
	if code, _, errs := invoke("gate", "--base", file, "--candidate", file, "--trace", trace, "-o", out, "--plan"); code != exitGood || !strings.Contains(errs, "8 pairs at most") {
		t.Errorf("plan: exit %d: %s", code, errs)
	}
	if _, err := os.Stat(out); err == nil {
		t.Error("a plan has made the experiment's directory")
	}
}

// TestVerdictIsPushed: a verdict goes to both kinds of database; one that refuses is a warning and changes nothing.
func TestVerdictIsPushed(t *testing.T) {
	var mu sync.Mutex
	got := map[string]string{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		got[r.URL.String()] = r.Header.Get("Authorization")
		if len(b) == 0 || r.URL.Path == "/refuses" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	}))
	defer s.Close()
	a, b := launches(t, 5, 1), launches(t, 5, 1.2)
	args := append(append(append(append([]string{"diff", "--base"}, a...), "--candidate"), b...), "--push-token-env", "PUSH_TEST_TOKEN")
	t.Setenv("PUSH_TEST_TOKEN", "hush")
	code, _, errs := invoke(append(args, "--remote-write", s.URL+"/api/v1/write", "--influx", s.URL+"/write?db=perf")...)
	if code != exitWorse || errs != "" || got["/api/v1/write"] != "Bearer hush" || got["/write?db=perf"] != "Token hush" {
		t.Errorf("exit %d, %s, %v", code, errs, got)
	}
	code, _, errs = invoke(append(args, "--remote-write", s.URL+"/refuses")...)
	if code != exitWorse || strings.Count(errs, "\n") != 1 || !strings.HasPrefix(errs, "warning: remote write to 127.0.0.1:") || !strings.Contains(errs, "HTTP 403") {
		t.Errorf("refused: exit %d, %s", code, errs)
	}
	for _, bad := range [][]string{{"--remote-write", "somewhere"}, {"--push-token-env", "PUSH_TEST_UNSET"}} {
		if code, _, errs := invoke(append(args, bad...)...); code != exitUsage || !strings.Contains(errs, bad[0]) {
			t.Errorf("%v: exit %d, %s", bad, code, errs)
		}
	}
}
