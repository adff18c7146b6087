package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"

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

// fullPage is a report with everything on it: two runs, their diff, money, cut clocks, hostile names. It returns the file.
func fullPage(t *testing.T) string {
	t.Helper()
	a, b := sample("base", 800), sample("candidate "+hostile, 800)
	d, err := analyzer.Compare([]*analyzer.Run{a}, []*analyzer.Run{b}, analyzer.CompareOptions{Draws: 50, FleetGPUs: 100, GPUHourPrice: 2})
	if err != nil {
		t.Fatal(err)
	}
	r, err := Read([]*analyzer.Run{a, b}, analyzer.Options{GPUHourPrice: 2})
	if err != nil {
		t.Fatal(err)
	}
	r.Diff = &d
	for i, c := range []*analyzer.Charts{r.Runs[0].Charts, r.Runs[1].Charts} {
		c.Throttled = []analyzer.Throttled{{FromS: 5 + float64(i), ToS: 8, Reasons: []string{"hw_thermal"}, GPUs: 1}}
	}
	path := filepath.Join(t.TempDir(), "page.html")
	if err := os.WriteFile(path, []byte(render(t, r)), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// ink counts the colors of each canvas but one: a chart that was drawn has many.
const ink = `[...document.querySelectorAll("canvas")].map((c) => { const d = c.getContext("2d").getImageData(0, 0, c.width, c.height).data, s = new Set(); for (let i = 0; i < d.length; i += 4) s.add(d[i] << 24 | d[i + 1] << 16 | d[i + 2] << 8 | d[i + 3]); return s.size; })`

// A browser draws the page on a wide screen and on a phone, light and dark, without a word on the console, and nothing is wider than the
// screen; dragging over one chart zooms all of them; paper is light. Runs where a Chromium is installed.
func TestPageInChromium(t *testing.T) {
	b := openBrowser(t)
	path := fullPage(t)
	for _, width := range []int{1280, 390} {
		for _, scheme := range []string{"light", "dark"} {
			b.open(path, width, scheme)
			drawn := b.eval(ink).([]any)
			if len(drawn) < 15 {
				t.Errorf("%d %s: %d charts", width, scheme, len(drawn))
			}
			for i, colors := range drawn {
				if colors.(float64) < 8 {
					t.Errorf("%d %s: chart %d is empty", width, scheme, i)
				}
			}
			if wide := b.eval(`document.documentElement.scrollWidth`).(float64); wide > float64(width) {
				t.Errorf("%d %s: the page is %v pixels wide", width, scheme, wide)
			}
			for _, text := range []string{"hw_thermal", "Side by side", "Of the whole run", "candidate"} {
				if b.eval(`document.body.innerText.includes(`+strconv.Quote(text)+`)`) != true {
					t.Errorf("%d %s: the page does not say %q", width, scheme, text)
				}
			}
			b.shoot(fmt.Sprintf("report-%d-%s", width, scheme))
		}
	}
	if b.eval(`document.title`).(string) == "owned" {
		t.Error("a name ran as a script")
	}

	// zoom: on the wide screen, over the first chart
	b.open(path, 1280, "light")
	b.eval(`window.shadowtape.over().scrollIntoView({block: "center"})`)
	before := b.eval(`window.shadowtape.ranges()`).([]any)[0].([]any)
	narrow := fmt.Sprintf(`window.shadowtape.ranges()[0][1] - window.shadowtape.ranges()[0][0] < %v`, 0.3*(before[1].(float64)-before[0].(float64)))
	for b.eval(narrow) != true { // a slow machine may lay the page out once more under the mouse
		if b.ctx.Err() != nil {
			t.Fatal("dragging over a chart does not zoom it")
		}
		at := b.eval(`(() => { const r = window.shadowtape.over().getBoundingClientRect(); return [r.left, r.top, r.width, r.height]; })()`).([]any)
		x, y, w, h := at[0].(float64), at[1].(float64), at[2].(float64), at[3].(float64)
		b.drag(x+w*0.25, y+h/2, x+w*0.5, y+h/2)
	}
	ranges := b.eval(`window.shadowtape.ranges()`).([]any)
	for i, r := range ranges {
		if !reflect.DeepEqual(r, ranges[0]) {
			t.Errorf("chart %d shows %v, the first %v", i, r, ranges[0])
		}
	}

	// paper
	b.open(path, 1280, "dark")
	dark := b.eval(`getComputedStyle(document.body).backgroundColor`)
	pdf := b.print()
	if len(pdf) < 20_000 || !bytes.HasPrefix(pdf, []byte("%PDF")) {
		t.Errorf("printed: %d bytes", len(pdf))
	}
	if dir := os.Getenv("SHADOWTAPE_SHOTS"); dir != "" {
		if err := os.WriteFile(filepath.Join(dir, "report.pdf"), pdf, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	b.eval(`dispatchEvent(new Event("beforeprint"))`)
	if paper := b.eval(`getComputedStyle(document.body).backgroundColor`); paper != "rgb(255, 255, 255)" || paper == dark {
		t.Errorf("paper is %v, the dark screen %v", paper, dark)
	}
	if fits := b.eval(`[...document.querySelectorAll("canvas")].every((c) => c.getBoundingClientRect().right <= document.querySelector("main").getBoundingClientRect().left + 701)`); fits != true {
		t.Error("a chart is wider than the paper")
	}
	b.eval(`dispatchEvent(new Event("afterprint"))`)
	if again := b.eval(`getComputedStyle(document.body).backgroundColor`); again != dark {
		t.Errorf("after printing the screen is %v, was %v", again, dark)
	}
	for _, line := range b.console {
		t.Errorf("the console says %s", line)
	}
}
