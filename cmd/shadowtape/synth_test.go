package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/shadowtape/shadowtape/formats"
)

// must runs a command that has to succeed and returns its answer.
func must(t *testing.T, args ...string) string {
	t.Helper()
	var out, errs bytes.Buffer
	if code := run(t.Context(), args, strings.NewReader(""), &out, &errs); code != exitGood {
		t.Fatalf("%v: exit %d: %s", args, code, errs.String())
	}
	return out.String()
}

func TestSynthFitSynthAndCompare(t *testing.T) {
	dir := t.TempDir()
	first, model, second, sim := filepath.Join(dir, "a.parquet"), filepath.Join(dir, "w.json"), filepath.Join(dir, "b.parquet"), filepath.Join(dir, "run")
	must(t, "synth", "--arrival", "gamma:cv=2", "--rate", "4", "--input", "lognormal:p50=500,p99=4000", "--output", "exponential:mean=80", "--prefix", "roots=5,share=50%,block=64",
		"--sessions", "turns=3,think=5s", "--duration", "10m", "--seed", "3", "-o", first)
	tr, err := formats.Open(first)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	if tr.Rows < 1800 || tr.Rows > 3000 || tr.Header.SourceKind != "synth" || tr.Header.PrefixBlockSize != 64 || tr.Header.Counters.Written != tr.Rows || tr.Header.Counters.Seen != tr.Rows {
		t.Errorf("%d rows, header %+v", tr.Rows, tr.Header)
	}
	if out := must(t, "fit", first, "-o", model); !strings.Contains(out, "1 clients, 10 windows") || !strings.Contains(out, "sharing: ") {
		t.Errorf("fit says %s", out)
	}
	must(t, "synth", model, "--rate", "8", "--duration", "5m", "-o", second)
	again, err := formats.Open(second)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if rate := float64(again.Rows) / 300; rate < 6.5 || rate > 9.5 {
		t.Errorf("%v requests a second, want about 8", rate)
	}
	if out := must(t, "inspect", first, model); !strings.Contains(out, "w.json against ") || !strings.Contains(out, "prefix hits, endless") || !strings.Contains(out, "served at load") {
		t.Errorf("inspect says %s", out)
	}
	var report struct {
		Schema int
		Input  struct{ KS float64 } `json:"input_tokens"`
		Queue  []struct {
			Load  float64
			Ratio float64 `json:"ttft_p99_ratio"`
		}
	}
	if err := json.Unmarshal([]byte(must(t, "inspect", first, first, "--json")), &report); err != nil {
		t.Fatal(err)
	}
	if report.Schema != 1 || report.Input.KS != 0 || len(report.Queue) != 3 || report.Queue[2].Ratio != 1 {
		t.Errorf("a trace against itself: %+v", report)
	}
	checkDocumented(t, "inspect A B", must(t, "inspect", first, second, "--json"))
	if out := must(t, "simulate", model, "--duration", "1m", "-o", sim); !strings.Contains(out, "completed") {
		t.Errorf("simulate says %s", out)
	}
}

// checkDocumented compares a JSON answer's keys with the section of docs/CLI_JSON.md that describes it.
func checkDocumented(t *testing.T, heading, answer string) {
	t.Helper()
	page, err := os.ReadFile("../../docs/CLI_JSON.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(page), "\n## "+heading+"\n")
	if !found {
		t.Fatalf("docs/CLI_JSON.md has no section %q", heading)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	var documented []string
	for line := range strings.Lines(section) {
		if cells := strings.Split(line, "|"); len(cells) > 2 {
			for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cells[1], -1) {
				documented = append(documented, m[1])
			}
		}
	}
	var doc any
	if err := json.Unmarshal([]byte(answer), &doc); err != nil {
		t.Fatal(err)
	}
	printed := map[string]bool{}
	keys(doc, "", printed)
	for k := range printed {
		if !slices.ContainsFunc(documented, func(d string) bool { return covers(d, k) }) {
			t.Errorf("%s prints %q, which docs/CLI_JSON.md does not have", heading, k)
		}
	}
	for _, d := range documented {
		used := false
		for k := range printed {
			used = used || covers(d, k)
		}
		if !used && !strings.HasSuffix(d, "?") {
			t.Errorf("docs/CLI_JSON.md has %s %q, which is not printed", heading, d)
		}
	}
}

func TestSynthUsage(t *testing.T) {
	dir := t.TempDir()
	numbers := filepath.Join(dir, "n.txt")
	if err := os.WriteFile(numbers, []byte("100\n\n200\nx\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, "t.parquet")
	for _, test := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"--preset", "short", "--rate", "1"}, exitUsage, "-o is missing"},
		{[]string{"--preset", "short", "-o", out}, exitUsage, "--rate"},
		{[]string{"--preset", "tiny", "--rate", "1", "-o", out}, exitUsage, "medium"},
		{[]string{"--preset", "short", "--rate", "1", "-o", out}, exitUsage, "duration"},
		{[]string{"--rate", "1", "--input", "5", "--duration", "1s", "-o", out}, exitUsage, "--output"},
		{[]string{"--arrival", "burst", "--rate", "1", "--preset", "short", "--duration", "1s", "-o", out}, exitUsage, "mmpp"},
		{[]string{"--input", "file:" + numbers, "--output", "5", "--rate", "1", "--duration", "1s", "-o", out}, exitUsage, "line 4"},
		{[]string{"--preset", "short", "--rate", "1", "--duration", "1s", "--sessions", "turns=0", "-o", out}, exitUsage, "turns"},
		{[]string{filepath.Join(dir, "none.json"), "-o", out}, exitFailed, "none.json"},
		{[]string{numbers, "-o", out}, exitFailed, "read workload model"},
		{[]string{numbers, "--input", "5", "-o", out}, exitUsage, "--input"},
	} {
		var stdout, errs bytes.Buffer
		if code := run(t.Context(), append([]string{"synth"}, test.args...), strings.NewReader(""), &stdout, &errs); code != test.code || !strings.Contains(errs.String(), test.says) {
			t.Errorf("%v: exit %d, %q", test.args, code, errs.String())
		}
	}
	must(t, "synth", "--preset", "short", "--rate", "5", "--requests", "10", "-o", out)
	var stdout, errs bytes.Buffer
	if code := run(t.Context(), []string{"synth", "--preset", "short", "--rate", "5", "--requests", "10", "-o", out}, strings.NewReader(""), &stdout, &errs); code != exitFailed || !strings.Contains(errs.String(), "--force") {
		t.Errorf("overwriting: exit %d, %s", code, errs.String())
	}
	must(t, "synth", "--preset", "long", "--rate", "5", "--requests", "20", "--force", "-o", out)
	if code := run(t.Context(), []string{"fit", out, "-o", filepath.Join(dir, "m.json"), "--lengths", "zipf"}, strings.NewReader(""), &stdout, &errs); code != exitUsage {
		t.Errorf("an unknown family: exit %d, %s", code, errs.String())
	}
	if code := run(t.Context(), []string{"inspect", out, out, out}, strings.NewReader(""), &stdout, &errs); code != exitUsage {
		t.Errorf("three traces: exit %d", code)
	}
}
