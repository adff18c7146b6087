package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestExportCommand(t *testing.T) {
	d := t.TempDir()
	call := func(stdin string, args ...string) (int, string, string) {
		var out, errs bytes.Buffer
		code := run(context.Background(), args, strings.NewReader(stdin), &out, &errs)
		return code, out.String(), errs.String()
	}
	trace, file := filepath.Join(d, "t"), filepath.Join(d, "t.jsonl")
	rows := `{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}` + "\n" + `{"timestamp": 7, "input_length": 10, "output_length": 1, "hash_ids": [2]}` + "\n"
	if code, _, errs := call(rows, "import", "mooncake", "-", "-o", trace); code != exitGood {
		t.Fatal(errs)
	}
	code, out, errs := call("", "export", "mooncake", trace, "-o", file)
	if code != exitGood || out != file+": 2 rows read, 2 written, 0 left out\n  read it with: blocks of 512 tokens\n" || errs != "" {
		t.Errorf("exit %d, stdout %q, stderr %q", code, out, errs)
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != rows {
		t.Errorf("%q, %v", b, err)
	}
	code, out, errs = call("", "export", "mooncake", trace, "-o", "-")
	if code != exitGood || out != rows || !strings.Contains(errs, "2 rows read") {
		t.Errorf("exit %d, stdout %q, stderr %q", code, out, errs)
	}
	if code, out, _ = call("", "export", "csv", trace, "-o", file, "--force", "--json"); code != exitGood || !strings.Contains(out, `"kept":2`) {
		t.Errorf("exit %d, stdout %q", code, out)
	}
	documentedKeys(t, "export", out)
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"export", "csv", trace, "-o", file}, exitFailed, "file already exists"},
		{[]string{"export", "csv", trace}, exitUsage, "export needs -o FILE"},
		{[]string{"export", "nothing", trace, "-o", file}, exitUsage, `there is no format "nothing"`},
		{[]string{"export", "csv", filepath.Join(d, "absent"), "-o", file}, exitFailed, "no such file"},
		{[]string{"export", "mooncake", trace, "-o", filepath.Join(d, "x"), "--block-size", "16"}, exitFailed, "cannot be cut to 16"},
		{[]string{"export", "csv"}, exitUsage, "export takes FORMAT TRACE"},
	} {
		if code, _, errs := call("", c.args...); code != c.code || !strings.Contains(errs, c.want) {
			t.Errorf("%v: exit %d, stderr %q", c.args, code, errs)
		}
	}
	if es, err := os.ReadDir(d); err != nil || len(es) != 2 {
		t.Errorf("left behind: %v", es)
	}
}
