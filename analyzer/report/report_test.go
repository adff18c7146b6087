package report

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/shadowtape/shadowtape/analyzer"
	"github.com/shadowtape/shadowtape/formats"
)

const hostile = `</script><script>document.title="owned"</script><img src=x onerror=alert(1)>`

// sample is a run of n streamed requests with hostile names in it.
func sample(label string, n int64) *analyzer.Run {
	r := rand.New(rand.NewPCG(uint64(n), 1))
	m := &formats.Manifest{Label: label, Kind: "replay", Valid: true, Warnings: []string{"beware of " + hostile}, Requests: formats.RequestCounts{Scheduled: n, Sent: n, Completed: n}}
	var xs []*formats.Exchange
	for i := range n {
		ttft := 20e6 + r.Int64N(80e6)
		x := &formats.Exchange{
			ExchangeID: i + 1, ArrivalIndex: formats.Of(i), Phase: formats.PhaseMeasure, ArrivalUnixNS: 1e18 + i*30e6, SentNS: formats.Of(r.Int64N(1e5)), RequestModel: hostile,
			InputTokens: formats.Of(500 + r.Int64N(500)), OutputTokens: formats.Of(int64(21)), OutputTokensSource: formats.TokensUsage, FirstTokenNS: formats.Of(ttft),
			LastTokenNS: formats.Of(ttft + 200e6), EndNS: formats.Of(ttft + 201e6), EndReason: formats.EndComplete, PrefixBlocks: []int64{1, i % 7, i},
		}
		for k := range int32(21) {
			x.EventGapUS = append(x.EventGapUS, min(k, 1)*10000)
			x.EventTokens = append(x.EventTokens, 1)
		}
		xs = append(xs, x)
	}
	run := analyzer.RunOf(label, m, xs, []formats.ServerSample{{UnixNS: 1e18 + 1e9, Target: "t", Series: "vllm:kv_cache_usage_perc", Value: 0.5}})
	run.Header.PrefixBlockSize, run.Header.PrefixBlockUnit, run.Header.PrefixBlockRule = 256, "tokens", "floor"
	return run
}

func render(t *testing.T, r Report) string {
	t.Helper()
	var b bytes.Buffer
	if err := r.HTML(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func mustRead(t *testing.T, runs ...*analyzer.Run) Report {
	t.Helper()
	r, err := Read(runs, analyzer.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestPageIsHarmlessAndSelfContained(t *testing.T) {
	html := render(t, mustRead(t, sample("a "+hostile, 300)))
	if strings.Contains(html, "<script>document") || strings.Contains(html, "<img src=x") {
		t.Error("what a trace brought became markup")
	}
	if n := strings.Count(html, "<script"); n != 2 {
		t.Errorf("%d script elements, want the data and ours", n)
	}
	if !strings.Contains(html, "default-src &#39;none&#39;") && !strings.Contains(html, "default-src 'none'") {
		t.Error("the page has no Content-Security-Policy")
	}
	for _, m := range regexp.MustCompile(`(?i)(src|href)\s*=\s*"([^"]*)"`).FindAllStringSubmatch(html, -1) {
		if !strings.HasPrefix(m[2], "data:") {
			t.Errorf("the page asks for %q", m[2])
		}
	}
	data := regexp.MustCompile(`(?s)id="data">(.*?)</script>`).FindStringSubmatch(html)
	var back struct{ Runs []any }
	if err := json.Unmarshal([]byte(data[1]), &back); err != nil || len(back.Runs) != 1 {
		t.Errorf("the page's data: %v", err)
	}
}

func TestPageDoesNotGrowWithTheRun(t *testing.T) {
	small, large := render(t, mustRead(t, sample("a", 2000))), render(t, mustRead(t, sample("a", 40000)))
	if d := len(large) - len(small); d > 20_000 || len(large) > 500_000 {
		t.Errorf("%d bytes for 2,000 requests, %d for 40,000", len(small), len(large))
	}
}

// A browser draws it without an error. Runs where a Chromium is installed.
func TestPageInChromium(t *testing.T) {
	browser := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			browser = path
			break
		}
	}
	if browser == "" {
		t.Skip("skipped: no chromium on PATH, the page is not opened")
	}
	a, b := sample("base", 500), sample("candidate "+hostile, 500)
	d, err := analyzer.Compare([]*analyzer.Run{a}, []*analyzer.Run{b}, analyzer.CompareOptions{Draws: 50})
	if err != nil {
		t.Fatal(err)
	}
	r := mustRead(t, a, b)
	r.Diff = &d
	dir := t.TempDir()
	path := filepath.Join(dir, "page.html")
	if err := os.WriteFile(path, []byte(render(t, r)), 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	args := []string{"--headless", "--disable-gpu", "--no-first-run", "--user-data-dir=" + dir, "--virtual-time-budget=3000", "--enable-logging=stderr", "--dump-dom", "file://" + path}
	if os.Getuid() == 0 {
		args = append([]string{"--no-sandbox"}, args...)
	}
	c := exec.CommandContext(ctx, browser, args...)
	c.WaitDelay = 5 * time.Second
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	if err := c.Run(); err != nil {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			t.Skip("skipped: the browser did not finish in 90 s")
		}
		t.Fatalf("%v\n%s", err, errs.String())
	}
	if strings.Contains(errs.String(), "CONSOLE") {
		t.Errorf("the console says:\n%s", errs.String())
	}
	dom := out.String()
	if !strings.Contains(dom, `data-ready="yes"`) {
		t.Error("the page's script did not reach its end")
	}
	if n := strings.Count(dom, "<canvas"); n < 10 {
		t.Errorf("%d charts drawn", n)
	}
	if strings.Contains(dom, "owned") && strings.Contains(dom, "<title>owned") {
		t.Error("a name ran as a script")
	}
}
