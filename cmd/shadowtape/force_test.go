package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shadowtape/shadowtape/formats"
)

// What --force replaces is not what the verb reads, and is not removed for a result that can be seen not to come.
func TestForceKeepsWhatIsRead(t *testing.T) {
	dir := t.TempDir()
	trace, run, other, file, link := filepath.Join(dir, "trace"), filepath.Join(dir, "run"), filepath.Join(dir, "other"), filepath.Join(dir, "one.parquet"), filepath.Join(dir, "link")
	writeTrace(t, trace, 30)
	writeTrace(t, file, 30)
	must(t, "simulate", trace, "-o", run)
	must(t, "simulate", trace, "-o", other)
	if err := os.Symlink(trace, link); err != nil {
		t.Fatal(err)
	}
	for _, v := range []struct {
		kept, says string
		code       int
		args       []string
	}{
		{trace, "which is read", exitUsage, []string{"simulate", trace, "-o", trace + "/", "--force"}},
		{trace, "which is read", exitUsage, []string{"simulate", link, "-o", trace, "--force"}},
		{file, "which is read", exitUsage, []string{"simulate", file, "-o", file, "--force"}},
		{run, "which is read", exitUsage, []string{"replay", run, "--target", "http://127.0.0.1:1", "-o", run, "--force"}},
		{run, "which is read", exitUsage, []string{"merge", run, "-o", run, "--force"}},
		{other, "not the run of a shard", exitFailed, []string{"merge", run, "-o", other, "--force"}},
		{trace, "no such file", exitFailed, []string{"import", "azure-llm", filepath.Join(dir, "none.csv"), "-o", trace, "--force"}},
		{trace, "which is read", exitUsage, []string{"import", "rows", filepath.Join(trace, "trace.json"), "-o", trace, "--force"}},
	} {
		if code, _, errs := invoke(v.args...); code != v.code || !strings.Contains(errs, v.says) {
			t.Errorf("%v: exit %d, %s", v.args, code, errs)
		}
		tr, err := formats.Open(v.kept)
		if err != nil || tr.Rows != 30 {
			t.Fatalf("%v: what was there is gone: %v", v.args, err)
		}
		tr.Close()
	}
	must(t, "simulate", trace, "-o", run, "--force")
}

// Nothing is said of a candidate that has no answers, whichever side it stands on; a load without end is refused; a trace is not exported into
// itself.
func TestNonsenseIsRefused(t *testing.T) {
	dir := t.TempDir()
	csv, trace, run := filepath.Join(dir, "a.csv"), filepath.Join(dir, "trace"), filepath.Join(dir, "run")
	if err := os.WriteFile(csv, []byte("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:47.6805900,374,44\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	must(t, "import", "azure-llm", csv, "-o", trace)
	must(t, "simulate", trace, "-o", run)
	for _, v := range []struct {
		says string
		code int
		args []string
	}{
		{"trace does not say when its answers came", exitFailed, []string{"diff", run, trace}},
		{"trace does not say when its answers came", exitFailed, []string{"diff", trace, run}},
		{"--policy is for launches", exitUsage, []string{"diff", "--base", run, "--candidate", run, "--policy", "threshold:x"}},
		{"--db is for launches", exitUsage, []string{"diff", run, run, "--db", "/nope"}},
		{"negative", exitUsage, []string{"diff", run, run, "--gpu-hour-price", "NaN"}},
		{"a second", exitUsage, []string{"synth", "--preset", "short", "--rate", "1e308", "--duration", "1s", "-o", filepath.Join(dir, "s")}},
		{"which is read", exitUsage, []string{"export", "jsonl", trace, "-o", filepath.Join(trace, "exchanges-00001.parquet"), "--force"}},
	} {
		if code, _, errs := invoke(v.args...); code != v.code || !strings.Contains(errs, v.says) {
			t.Errorf("%v: exit %d, %s", v.args, code, errs)
		}
	}
	if tr, err := formats.Open(trace); err != nil || tr.Rows != 2 {
		t.Errorf("the trace is gone: %v", err)
	}
}
