package benchreport

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseGo(t *testing.T) {
	got, err := ParseGo("recorder", strings.NewReader(`goos: linux
cpu: X
BenchmarkRecordFile-2   	       3	 120000000 ns/op	 276.10 MB/s	2500000 packets/cpu-s	 11 cpu-ns/op
BenchmarkImport/azure-llm-16 	 1000	 5.5 ns/op
BenchmarkSplit/size-100 	 10	 7 ns/op
PASS
`))
	if err != nil {
		t.Fatal(err)
	}
	want := []Figure{
		{"recorder", "RecordFile, ns/op", 120000000, "ns/op", "lower", ""},
		{"recorder", "RecordFile, MB/s", 276.1, "MB/s", "higher", ""},
		{"recorder", "RecordFile, packets/cpu-s", 2500000, "packets/cpu-s", "higher", ""},
		{"recorder", "RecordFile, cpu-ns/op", 11, "cpu-ns/op", "lower", ""},
		{"recorder", "Import/azure-llm, ns/op", 5.5, "ns/op", "lower", ""},
		{"recorder", "Split/size, ns/op", 7, "ns/op", "lower", ""}, // the testing package leaves no way to tell it from processors
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if _, err := ParseGo("g", strings.NewReader("BenchmarkA 1 x ns/op")); err == nil {
		t.Error("a value that is no number was read")
	}
}

func TestReplace(t *testing.T) {
	d := Document{Date: "2026-11-30 15:00", Machine: "two cores", Load: "0.1", Commit: "abc", Groups: []Group{{Name: "size", What: "bytes", Command: "go test"}, {Name: "proxy", What: "p", Command: "q", Failed: "no nginx"}},
		Figures: []Figure{{"size", "a row", 51, "disk-B/row", "lower", "recorded"}}}
	page := "# Head\n" + begin + "\nold\n" + end + "\ntail\n"
	got, err := Replace(page, d.Markdown())
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"# Head\n", "| a row | 51 disk-B/row | lower | recorded |", "It failed: no nginx.", "two cores, load average 0.1", "\ntail\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if strings.Contains(got, "old") {
		t.Error("the old tables are still there")
	}
	again, err := Replace(got, d.Markdown())
	if err != nil || again != got {
		t.Errorf("not the same the second time: %v", err)
	}
	if _, err := Replace("nothing", ""); err == nil {
		t.Error("a page without markers")
	}
}

func TestGate(t *testing.T) {
	two, ten := 2.0, 10.0
	figures := []Figure{{"a", "r", 3, Ratio, "", ""}, {"a", "s", 50, "disk-B/row", "", ""}, {"a", "ms", 1, "ms", "", ""}}
	for name, c := range map[string]struct {
		l    Limit
		want string
	}{
		"kept":           {Limit{Group: "a", Name: "r", Min: &two, Max: &ten}, ""},
		"under":          {Limit{Group: "a", Name: "r", Min: &ten, Why: "slow"}, "is 3x, under 10: slow"},
		"over":           {Limit{Group: "a", Name: "s", Max: &ten}, "is 50 disk-B/row, over 10"},
		"not measured":   {Limit{Group: "b", Name: "r", Max: &ten}, "was not measured"},
		"by machine":     {Limit{Group: "a", Name: "ms", Max: &ten}, "another on every machine"},
		"limits nothing": {Limit{Group: "a", Name: "r"}, "limits nothing"},
	} {
		got := Gate(figures, []Limit{c.l})
		if (len(got) == 0) != (c.want == "") || len(got) > 0 && !strings.Contains(got[0], c.want) {
			t.Errorf("%s: %q", name, got)
		}
	}
}
