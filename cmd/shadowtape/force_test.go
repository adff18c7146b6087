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
