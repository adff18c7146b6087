package main

import (
	"bytes"
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shadowtape/shadowtape/formats"
)

func TestImportResultCommand(t *testing.T) {
	d := t.TempDir()
	call := func(stdin string, args ...string) (int, string, string) {
		var out, errs bytes.Buffer
		code := run(context.Background(), args, strings.NewReader(stdin), &out, &errs)
		return code, out.String(), errs.String()
	}
	result := `{"date":"20260102-030405","endpoint_type":"openai","model_id":"m","input_lens":[100,200],"output_lens":[3,2],"ttfts":[0.1,0.2],"itls":[[0.05,0.07],[0.1]],"start_times":[10.0,11.5],"errors":["",""]}`
	where := filepath.Join(d, "run")
	code, out, errs := call(result, "import-result", "vllm-bench", "-", "-o", where, "--label", "before")
	if code != exitGood || out != where+": 2 rows read, 2 kept, 0 dropped\n" || errs != "" {
		t.Errorf("exit %d, stdout %q, stderr %q", code, out, errs)
	}
	tr, err := formats.Open(where)
	if err != nil || tr.Manifest == nil || tr.Manifest.Label != "before" || tr.Manifest.Requests.Completed != 2 {
		t.Errorf("%+v, %v", tr, err)
	}
	code, out, errs = call("", "analyze", where, "--json")
	if code != exitGood || !strings.Contains(out, `"label": "before"`) || !strings.Contains(out, `"ttft"`) {
		t.Errorf("exit %d, stdout %q, stderr %q", code, out, errs)
	}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"import-result", "vllm-bench", "-", "-o", where}, exitFailed, "hint: --force"},
		{[]string{"import-result", "vllm-bench", "-"}, exitUsage, "needs -o RUN"},
		{[]string{"import-result", "nothing", "-", "-o", where}, exitUsage, `there is no format "nothing"`},
		{[]string{"import-result", "k6", "-", "-o", filepath.Join(d, "x")}, exitFailed, "it looks like vllm-bench"},
	} {
		if code, _, errs := call(result, c.args...); code != c.code || !strings.Contains(errs, c.want) {
			t.Errorf("%v: exit %d, stderr %q", c.args, code, errs)
		}
	}
}
