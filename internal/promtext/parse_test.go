package promtext

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

func page(t *testing.T, name string) Page {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return Parse(b)
}

func find(p Page, name, labels string) []float64 {
	var out []float64
	for _, s := range p.Samples {
		if s.Name == name && (labels == "" || s.Labels == labels) {
			out = append(out, s.Value)
		}
	}
	return out
}

// Every line of every page that is no comment is a sample, by a count that shares no code with the parser.
func TestEveryLineOfEveryPage(t *testing.T) {
	files, _ := filepath.Glob("testdata/*.txt")
	if len(files) < 20 {
		t.Fatalf("only %d pages", len(files))
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		want := 0
		for _, l := range strings.Split(string(b), "\n") {
			if l = strings.TrimSpace(l); l != "" && !strings.HasPrefix(l, "#") {
				want++
			}
		}
		p := Parse(b)
		if cut := strings.Contains(f, "truncated"); cut != p.Truncated {
			t.Errorf("%s: truncated %t", f, p.Truncated)
		} else if cut {
			want--
		}
		if len(p.Samples) != want || p.Bad != 0 {
			t.Errorf("%s: %d samples and %d bad lines of %d", f, len(p.Samples), p.Bad, want)
		}
	}
}

func TestCRLFEscapesTimestamps(t *testing.T) {
	p := page(t, "edge_crlf_escapes_nan_timestamps.txt")
	s := p.Samples[0]
	if s.Value != 0.5 || s.UnixMS != 1735001900123 {
		t.Errorf("got %+v", s)
	}
	if v, ok := Label(s.Labels, "model_name"); !ok || v != "C:\\models\\qwen \"7b\"\nnewline" {
		t.Errorf("model_name is %q", v)
	}
	if v, _ := Label(s.Labels, "engine"); v != "0" {
		t.Errorf("engine is %q", v)
	}
	if p.Types["vllm:kv_cache_usage_perc"] != "gauge" {
		t.Errorf("type is %q", p.Types["vllm:kv_cache_usage_perc"])
	}
	if v := find(p, "weird_untyped", `a="1"`); len(v) != 1 || !math.IsInf(v[0], 1) {
		t.Errorf("trailing comma: %v", v)
	}
	if v := find(p, "weird_nan", ""); len(v) != 1 || !math.IsNaN(v[0]) {
		t.Errorf("NaN: %v", v)
	}
	if v := find(p, "weird_neg", ""); len(v) != 1 || !math.IsInf(v[0], -1) {
		t.Errorf("-Inf: %v", v)
	}
}

func TestOpenMetrics(t *testing.T) {
	p := page(t, "edge_openmetrics_exemplar.txt")
	if !p.EOF || len(p.Samples) != 6 {
		t.Fatalf("EOF %t, %d samples", p.EOF, len(p.Samples))
	}
	if v := find(p, "ttft_seconds_bucket", `le="0.1"`); len(v) != 1 || v[0] != 3 {
		t.Errorf("bucket with exemplar: %v", v)
	}
	if p := page(t, "vllm_rust_frontend_openmetrics_2026-08.txt"); !p.EOF {
		t.Error("the page's EOF was not seen")
	}
}

func TestLabelsAreSorted(t *testing.T) {
	p := Parse([]byte("a{z=\"1\",b=\"2\"} 3\n{\"x.y\",k=\"v\"} 4\nb{c=\"}{,=\"} 5\n"))
	if p.Samples[0].Labels != `b="2",z="1"` || p.Samples[1].Name != "x.y" || p.Samples[1].Labels != `k="v"` || p.Samples[2].Value != 5 {
		t.Errorf("got %+v", p.Samples)
	}
}

func TestBadLinesAreCounted(t *testing.T) {
	p := Parse([]byte("good 1\nno_value\nbad{a=1} 2\n1bad 3\nbad 0x10\nbad 1 2 3\nbad{a=\"b\" 1\nlast 9"))
	if len(p.Samples) != 2 || p.Bad != 6 || p.Truncated {
		t.Errorf("%d samples, %d bad, truncated %t", len(p.Samples), p.Bad, p.Truncated)
	}
}

func FuzzParse(f *testing.F) {
	files, _ := filepath.Glob("testdata/edge_*.txt")
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		p := Parse(b)
		for _, s := range p.Samples {
			if s.Name == "" {
				t.Error("a sample without a name")
			}
			s.Bucket()
		}
	})
}

// TestHugePage: whatever a page of many megabytes holds, reading it takes a few times its size at most, and what was left out is counted.
func TestHugePage(t *testing.T) {
	const size = 4 << 20
	fill := func(line func(i int) string) []byte {
		var b bytes.Buffer
		for i := 0; b.Len() < size; i++ {
			b.WriteString(line(i))
		}
		return b.Bytes()[:size]
	}
	for name, c := range map[string]struct {
		line func(i int) string
		ok   func(p Page) bool
	}{
		"short samples": {func(i int) string { return "a 1\n" }, func(p Page) bool { return len(p.Samples) == MaxSamples && p.Over == size/4-MaxSamples }},
		"series":        {func(i int) string { return fmt.Sprintf("m{n=\"%d\"} 1\n", i) }, func(p Page) bool { return len(p.Samples) == MaxSamples && p.Over > 100_000 }},
		"types":         {func(i int) string { return fmt.Sprintf("# TYPE m%d gauge\n", i) }, func(p Page) bool { return len(p.Types) == MaxSamples && p.Over > 50_000 }},
		"labels":        {func(i int) string { return map[bool]string{true: "m{", false: `a="",`}[i == 0] }, func(p Page) bool { return len(p.Samples) == 0 && p.Truncated }},
		"many labels":   {func(i int) string { return "m{" + strings.Repeat(`a="",`, 1000) + "} 1\n" }, func(p Page) bool { return len(p.Samples) == 0 && p.Bad > 500 }},
		"long values":   {func(i int) string { return `m{a="` + strings.Repeat("x", 60_000) + "\"} 1\n" }, func(p Page) bool { return len(p.Samples) > 60 && p.Over == 0 }},
	} {
		body := fill(c.line)
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		p := Parse(body)
		runtime.GC()
		runtime.ReadMemStats(&after)
		if held := int64(after.HeapAlloc) - int64(before.HeapAlloc); !c.ok(p) || held > 32<<20 {
			t.Errorf("%s: %d samples, %d types, %d bad, %d over, truncated %t, %d bytes held", name, len(p.Samples), len(p.Types), p.Bad, p.Over, p.Truncated, held)
		}
		runtime.KeepAlive(p)
	}
}
