package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shadowtape/shadowtape/formats"
)

func TestImportCommand(t *testing.T) {
	d := t.TempDir()
	csv := filepath.Join(d, "week.csv")
	text := "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2024-05-12 00:00:01+00:00,10,2\r\n2024-05-12 00:00:00.5+00:00,20,3\r\nbroken\r\n,1,1"
	if err := os.WriteFile(csv, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
	call := func(stdin string, args ...string) (code int, out, errs string) {
		var o, e bytes.Buffer
		code = run(context.Background(), args, strings.NewReader(stdin), &o, &e)
		return code, o.String(), e.String()
	}
	trace := filepath.Join(d, "week")
	code, out, errs := call("", "import", "azure-llm", csv, "-o", trace)
	wantOut := trace + ": 4 rows read, 2 kept, 2 dropped\n  dropped  broken_row               1\n  dropped  no_time                  1\n  kept     inversions               1\n"
	if code != exitGood || out != wantOut {
		t.Errorf("exit %d, stdout %s", code, cmp.Diff(wantOut, out))
	}
	if want := "shadowtape: warning: week.csv, row 4: 1 fields where the header has 3: left out\n"; errs != want {
		t.Errorf("stderr %q", errs)
	}
	tr, err := formats.Open(trace)
	if err != nil || tr.Rows != 2 || tr.Header.Source != "week.csv" {
		t.Errorf("%+v, %v", tr, err)
	}
	if code, _, errs = call("", "import", "azure-llm", csv, "-o", trace); code != exitFailed || !strings.Contains(errs, "hint: --force") {
		t.Errorf("exit %d, stderr %q", code, errs)
	}
	code, out, _ = call(text, "import", "azure-llm", "-", "-o", trace, "--force", "--json")
	var answer importAnswer
	if err := json.Unmarshal([]byte(out), &answer); err != nil || code != exitGood || answer.Read != 4 || answer.Kept != 2 {
		t.Errorf("exit %d, %q, %v", code, out, err)
	}
	documentedKeys(t, "import", out)
	auto := filepath.Join(d, "auto")
	if code, _, errs := call("", "import", "auto", csv, "-o", auto); code != exitGood {
		t.Errorf("exit %d, stderr %q", code, errs)
	}
	if tr, err := formats.Open(auto); err != nil || tr.Header.SourceKind != "import:azure-llm" || tr.Header.Licence != "CC-BY-4.0" {
		t.Errorf("%+v, %v", tr, err)
	}
	noTrace := filepath.Join(d, "notes.txt")
	if err := os.WriteFile(noTrace, []byte("mine"), 0o666); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"import", "auto", "main.go", "-o", filepath.Join(d, "m")}, exitFailed, "it looks like no format that is known here"},
		{[]string{"import"}, exitUsage, "import needs FORMAT and FILE"},
		{[]string{"import", "azure-llm", csv}, exitUsage, "import needs -o TRACE"},
		{[]string{"import", "nothing", csv, "-o", trace}, exitUsage, `there is no format "nothing"`},
		{[]string{"import", "mooncake", csv, "-o", filepath.Join(d, "m")}, exitFailed, "this is no mooncake: it looks like azure-llm"},
		{[]string{"import", "azure-llm", filepath.Join(d, "absent.csv"), "-o", filepath.Join(d, "m")}, exitFailed, "no such file"},
		{[]string{"import", "azure-llm", csv, "-o", filepath.Join(d, "m"), "--strict"}, exitFailed, "row 4: 1 fields where the header has 3"},
		{[]string{"import", "azure-llm", csv, "-o", csv, "--force"}, exitUsage, "which is read"},
		{[]string{"import", "azure-llm", csv, "-o", noTrace, "--force"}, exitFailed, "not a Parquet file"},
	} {
		code, out, errs := call("", c.args...)
		if code != c.code || out != "" || !strings.Contains(errs, c.want) || strings.Count(strings.TrimSpace(errs), "\n") > 1 {
			t.Errorf("%v: exit %d, stdout %q, stderr %q", c.args, code, out, errs)
		}
	}
	if _, err := os.Stat(noTrace); err != nil {
		t.Error("--force took a file that is no trace")
	}
}
