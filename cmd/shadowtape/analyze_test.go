package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/openai"
)

// invoke runs the program in process.
func invoke(args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = run(context.Background(), args, strings.NewReader(""), &out, &errs)
	return code, out.String(), errs.String()
}

// writeRun makes a run of n requests, every latency times slow.
func writeRun(t *testing.T, n int, slow float64, valid bool) string {
	t.Helper()
	where := filepath.Join(t.TempDir(), "run")
	m := formats.Manifest{Schema: 1, Kind: "replay", Label: filepath.Base(t.TempDir()), Valid: valid, Requests: formats.RequestCounts{Scheduled: int64(n), Sent: int64(n), Completed: int64(n)}}
	if !valid {
		m.Invalid = []string{"the client fell behind"}
	}
	w, err := formats.CreateRun(where, m)
	if err != nil {
		t.Fatal(err)
	}
	for i := range int64(n) {
		ttft := int64(float64(30e6+i%50*1e6) * slow)
		tpot := int64(10e6 * slow)
		x := &formats.Exchange{
			ArrivalIndex: formats.Of(i), Phase: formats.PhaseMeasure, ArrivalUnixNS: 1e18 + i*100e6, SentNS: formats.Of(int64(20e3)), Endpoint: formats.EndpointChat,
			InputTokens: formats.Of(100 + i%50), OutputTokens: formats.Of(int64(11)), OutputTokensSource: formats.TokensUsage, Stream: formats.Of(true),
			FirstTokenNS: formats.Of(ttft), FirstContentNS: formats.Of(ttft), LastTokenNS: formats.Of(ttft + 10*tpot), EndNS: formats.Of(ttft + 10*tpot + 1e5), EndReason: formats.EndComplete,
			EventGapUS: []int32{0, int32(tpot * 10 / 1000)}, EventTokens: []int32{1, 10},
		}
		if err := w.Write(x); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.WriteServer([]formats.ServerSample{{UnixNS: 1e18, Target: "t", Series: "vllm:kv_cache_usage_perc", Value: 0.25}, {UnixNS: 1e18 + 5e9, Target: "t", Series: "vllm:kv_cache_usage_perc", Value: 0.25}}); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(m); err != nil {
		t.Fatal(err)
	}
	return where
}

func TestAnalyze(t *testing.T) {
	good, bad := writeRun(t, 200, 1, true), writeRun(t, 100, 1, false)
	code, out, errs := invoke("analyze", good)
	if code != exitGood || errs != "" || !strings.HasPrefix(out, "valid ") || !strings.Contains(out, "ttft ") {
		t.Errorf("exit %d, stderr %q:\n%s", code, errs, out)
	}
	code, out, _ = invoke("analyze", good, bad, "--json")
	if code != exitInvalid {
		t.Errorf("an invalid run exits %d", code)
	}
	var doc struct {
		Schema int
		Runs   []struct {
			Valid    bool
			Requests map[string]int64
			Metrics  map[string]map[string]any
		}
	}
	if err := json.Unmarshal([]byte(out), &doc); err != nil {
		t.Fatalf("%v in:\n%s", err, out)
	}
	if doc.Schema != 1 || len(doc.Runs) != 2 || !doc.Runs[0].Valid || doc.Runs[1].Valid || doc.Runs[0].Requests["completed"] != 200 {
		t.Errorf("document: %+v", doc)
	}
	ttft := doc.Runs[0].Metrics["ttft"]
	if ttft["p50"] != 54.5 || ttft["n"] != 200.0 || ttft["p99"] != nil || ttft["unit"] != "ms" || ttft["better"] != "lower" {
		t.Errorf("ttft: %v", ttft)
	}
	if _, there := ttft["p99"]; !there {
		t.Error("a figure below its floor has no key")
	}
	if code, _, _ := invoke("analyze", bad, "--allow-invalid"); code != exitGood {
		t.Errorf("--allow-invalid exits %d", code)
	}
	if code, out, errs := invoke("analyze", filepath.Join(t.TempDir(), "nothing")); code != exitFailed || out != "" || strings.Count(errs, "\n") > 2 || !strings.HasPrefix(errs, "shadowtape: ") {
		t.Errorf("exit %d, stdout %q, stderr %q", code, out, errs)
	}
	if code, _, errs := invoke("analyze", good, "--slo", "itl=5ms"); code != exitUsage {
		t.Errorf("a limit on itl exits %d: %s", code, errs)
	}
	if code, _, _ := invoke("analyze"); code != exitUsage {
		t.Errorf("no run exits %d", code)
	}
}

func TestDiff(t *testing.T) {
	base, same, slow, bad := writeRun(t, 300, 1, true), writeRun(t, 300, 1.001, true), writeRun(t, 300, 1.15, true), writeRun(t, 300, 1.15, false)
	other := writeRun(t, 100, 1, true)
	for _, c := range []struct {
		name string
		args []string
		want int
	}{
		{"same", []string{"diff", base, same}, exitGood},
		{"slower", []string{"diff", base, slow}, exitInconclusive},
		{"slower, single run", []string{"diff", base, slow, "--single-run"}, exitWorse},
		{"faster", []string{"diff", slow, base, "--single-run"}, exitGood},
		{"invalid", []string{"diff", base, bad}, exitInvalid},
		{"invalid but accepted", []string{"diff", base, bad, "--allow-invalid", "--single-run"}, exitWorse},
		{"other traffic", []string{"diff", base, other}, exitFailed},
		{"one argument", []string{"diff", base}, exitUsage},
		{"senseless", []string{"diff", base, slow, "--min-effect", "200"}, exitUsage},
	} {
		code, out, errs := invoke(c.args...)
		if code != c.want || strings.Count(errs, "\n") > 2 {
			t.Errorf("%s: exit %d, want %d; stderr %q, stdout:\n%s", c.name, code, c.want, errs, out)
		}
	}
}

func TestInspect(t *testing.T) {
	where := writeRun(t, 100, 1, true)
	code, out, errs := invoke("inspect", where)
	if code != exitGood || errs != "" || !strings.Contains(out, "100 exchanges") {
		t.Errorf("exit %d, stderr %q:\n%s", code, errs, out)
	}
	code, out, _ = invoke("inspect", where, "--privacy")
	if code != exitGood || !strings.Contains(out, `"chat_completions"`) || !strings.Contains(out, `"vllm:kv_cache_usage_perc"`) {
		t.Errorf("exit %d:\n%s", code, out)
	}
}

// TestJSONIsDocumented compares the keys that analyze, inspect and diff print with docs/CLI_JSON.md: each key stands there in code type
// under the verb's heading, and each documented key is printed.
func TestJSONIsDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/CLI_JSON.md")
	if err != nil {
		t.Fatal(err)
	}
	base, slow, bad := writeRun(t, 300, 1, true), writeRun(t, 300, 1.15, true), writeRun(t, 300, 1, false)
	for verb, args := range map[string][]string{
		"analyze": {"analyze", base, slow, bad, "--json", "--by", "endpoint", "--slo", "ttft=60ms", "--gpu-hour-price", "2"},
		"inspect": {"inspect", base, "--json"},
		"diff":    {"diff", base, bad, "--json", "--gpu-hour-price", "2", "--fleet-gpus", "8"},
	} {
		section := string(page)
		if i := strings.Index(section, "\n## "+verb+"\n"); i < 0 {
			t.Errorf("docs/CLI_JSON.md has no section %q", verb)
			continue
		} else {
			section = section[i+5:]
		}
		if i := strings.Index(section, "\n## "); i >= 0 {
			section = section[:i]
		}
		var documented []string
		for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+)`").FindAllStringSubmatch(section, -1) {
			documented = append(documented, m[1])
		}
		_, out, errs := invoke(args...)
		var doc any
		if err := json.Unmarshal([]byte(out), &doc); err != nil {
			t.Fatalf("%s: %v, stderr %s", verb, err, errs)
		}
		printed := map[string]bool{}
		keys(doc, "", printed)
		for k := range printed {
			if !slices.ContainsFunc(documented, func(d string) bool { return covers(d, k) }) {
				t.Errorf("%s prints %q, which docs/CLI_JSON.md does not have", verb, k)
			}
		}
		for _, d := range documented {
			if strings.HasSuffix(d, "?") {
				continue // printed where there is something to say
			}
			found := false
			for k := range printed {
				found = found || covers(d, k)
			}
			if !found {
				t.Errorf("docs/CLI_JSON.md has %s %q, which is not printed", verb, d)
			}
		}
	}
}

// keys collects the paths of all keys: a.b, and a[].b through arrays.
func keys(v any, path string, into map[string]bool) {
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			p := strings.TrimPrefix(path+"."+k, ".")
			into[p] = true
			keys(e, p, into)
		}
	case []any:
		for _, e := range v {
			keys(e, path+"[]", into)
		}
	}
}

// covers reports whether a documented path, in which * stands for any one key, a final ** for all below and a final ? for "may be missing", names a printed one.
func covers(documented, printed string) bool {
	documented = strings.TrimSuffix(documented, "?")
	if above, ok := strings.CutSuffix(documented, ".**"); ok {
		return strings.HasPrefix(printed, above+".")
	}
	d, p := strings.Split(documented, "."), strings.Split(printed, ".")
	if len(d) != len(p) {
		return false
	}
	for i := range d {
		if d[i] != "*" && d[i] != p[i] {
			return false
		}
	}
	return true
}

func TestFind(t *testing.T) {
	dir := t.TempDir()
	key := filepath.Join(dir, "key")
	if err := os.WriteFile(key, []byte("0123456789abcdef0123456789abcdef\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	h := openai.NewHasher([]byte("0123456789abcdef0123456789abcdef"))
	trace := filepath.Join(dir, "trace.parquet")
	w, err := formats.Create(trace, formats.Header{SourceKind: "proxy", HashKeyID: h.KeyID()}, formats.SegmentOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range int64(50) {
		x := &formats.Exchange{Phase: formats.PhaseRecord, ArrivalUnixNS: 1e18 + i, InputTokens: formats.Of(i), CorrelationID: formats.Of(h.Sum("request", "req-"+strconv.FormatInt(i, 10)))}
		if err := w.Write(x); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	code, out, errs := invoke("inspect", trace, "--find", "req-33", "--key-file", key)
	if code != exitGood || !regexp.MustCompile(`(?m)^input_tokens +33$`).MatchString(out) {
		t.Errorf("exit %d, stderr %q:\n%s", code, errs, out)
	}
	if code, out, errs := invoke("inspect", trace, "--find", "req-99", "--key-file", key); code != exitFailed || out != "" || !strings.Contains(errs, "no exchange") {
		t.Errorf("an unknown id: exit %d, %q", code, errs)
	}
	if code, _, _ := invoke("inspect", trace, "--find", "req-33"); code != exitUsage {
		t.Errorf("without a key: exit %d", code)
	}
	other := filepath.Join(dir, "other")
	if err := os.WriteFile(other, []byte("another key, as long as one has to be"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, errs := invoke("inspect", trace, "--find", "req-33", "--key-file", other); code != exitFailed || !strings.Contains(errs, "another key") {
		t.Errorf("another key: exit %d, %q", code, errs)
	}
}

// TestDiffOfRecordings: two recordings without a common request inform, with 5 at most.
func TestDiffOfRecordings(t *testing.T) {
	day := func(name string, shift int64, slow float64) string {
		where := filepath.Join(t.TempDir(), name)
		w, err := formats.Create(where, formats.Header{SourceKind: "proxy", TimeBase: "absolute"}, formats.SegmentOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range int64(1500) {
			input := 100 + (i*7919+shift)%400
			ttft := int64((20e6 + 50e3*float64(input)) * slow)
			x := &formats.Exchange{Phase: formats.PhaseRecord, ArrivalUnixNS: 1e18 + shift*1e15 + i*(100e6+shift*1e6), SentNS: formats.Of(int64(0)), Endpoint: formats.EndpointChat, Stream: formats.Of(true),
				InputTokens: formats.Of(input), CachedTokens: formats.Of(int64(0)), OutputTokens: formats.Of(int64(11)), OutputTokensSource: formats.TokensUsage, Status: formats.Of(int32(200)),
				FirstTokenNS: formats.Of(ttft), LastTokenNS: formats.Of(ttft + int64(100e6*slow)), EndNS: formats.Of(ttft + int64(100e6*slow)), EndReason: formats.EndComplete}
			if err := w.Write(x); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return where
	}
	monday, tuesday, slow := day("monday", 0, 1), day("tuesday", 5, 1), day("slow", 5, 1.3)
	if code, out, errs := invoke("diff", monday, tuesday); code != exitGood || !strings.Contains(out, "the server itself") {
		t.Errorf("another day: exit %d\n%s%s", code, out, errs)
	}
	page := filepath.Join(t.TempDir(), "d.html")
	code, out, errs := invoke("diff", monday, slow, "--single-run", "--html", page)
	if code != exitInconclusive || !strings.HasPrefix(out, "WORSE") || !strings.Contains(out, "ttft_server") {
		t.Errorf("a slower server: exit %d\n%s%s", code, out, errs)
	}
	if _, err := os.Stat(page); err != nil {
		t.Error(err)
	}
	_, out, _ = invoke("diff", monday, slow, "--json")
	documentedKeys(t, "diff", out)
}
