package main

import (
	"encoding/json"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shadowtape/shadowtape/analyzer"
)

// The three-way page, rebuilt from five minutes of the shipped trace: the replay is like production, and the fixed-length load of the same
// means is not.
func TestFixedLengthPage(t *testing.T) {
	if testing.Short() {
		t.Skip("skipped by -short: simulates three loads")
	}
	for _, tool := range []string{"bash", "awk", "sed", "sort", "grep"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("skipped: no %s on PATH, samples/fixed-length/compare.sh is not run", tool)
		}
	}
	self, err := exec.LookPath("shadowtape")
	if err != nil {
		t.Fatalf("the test binary is not on PATH as shadowtape: %v", err)
	}
	out := t.TempDir()
	c := exec.CommandContext(t.Context(), "bash", "../../samples/fixed-length/compare.sh", "../../samples/traces/mooncake-conversation.parquet", out)
	c.Env = append(os.Environ(), "SHADOWTAPE="+self, "DURATION=5m", "SERVERS=3", "LIVE=0")
	text, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	if !strings.Contains(string(text), "side by side") || !strings.Contains(string(text), "spread within its ticks") {
		t.Errorf("it says\n%s", text)
	}
	page, err := os.ReadFile(filepath.Join(out, "report.html"))
	if err != nil || len(page) > 500_000 {
		t.Errorf("the page has %d bytes: %v", len(page), err)
	}
	code, doc, errs := invoke("analyze", filepath.Join(out, "production"), filepath.Join(out, "replay"), filepath.Join(out, "fixed"), "--json")
	if code != exitGood {
		t.Fatalf("exit %d: %s", code, errs)
	}
	var d analyzer.Document
	if err := json.Unmarshal([]byte(doc), &d); err != nil {
		t.Fatal(err)
	}
	production, replay, fixed := d.Runs[0], d.Runs[1], d.Runs[2]
	of := func(s analyzer.Summary, name string) float64 { return s.Aggregates[name].Value.V }
	near := func(name string, a, b, within float64) {
		if math.Abs(b/a-1) > within {
			t.Errorf("%s: %v against %v", name, a, b)
		}
	}
	for _, rate := range []string{"request_rate", "input_rate", "output_rate"} {
		near(rate+" of the replay", of(production, rate), of(replay, rate), 0.01)
		near(rate+" of the fixed load", of(production, rate), of(fixed, rate), 0.1)
	}
	near("ttft p99 of the replay", production.Metrics["ttft"].P99.V, replay.Metrics["ttft"].P99.V, 0.1)
	near("sharing of the replay", of(production, "kv_sharing"), of(replay, "kv_sharing"), 0.01)
	if p, f := production.Metrics["ttft"].P99.V, fixed.Metrics["ttft"].P99.V; f > 0.6*p {
		t.Errorf("the fixed-length load's p99 ttft is %v ms, production's %v: it does not show what it is for", f, p)
	}
	if s := of(fixed, "kv_sharing"); s != 1 || of(production, "kv_sharing") <= 1.01 || of(fixed, "kv_lru_hit_rate") != 0 {
		t.Errorf("sharing: fixed %v, production %v", s, of(production, "kv_sharing"))
	}
}
