package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/promtext"
	"github.com/shadowtape/shadowtape/replayer"
)

// startSim serves the simulator in process and returns its address and its emission log.
func startSim(t *testing.T, args ...string) (url, log string) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	r, w := io.Pipe()
	done := make(chan struct{})
	log = filepath.Join(t.TempDir(), "emitted.jsonl")
	go func() {
		defer close(done)
		run(ctx, append([]string{"sim", "--listen", "127.0.0.1:0", "--emission-log", log}, args...), strings.NewReader(""), w, io.Discard)
		w.Close()
	}()
	line, err := bufio.NewReader(r).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(); <-done })
	return strings.TrimSpace(line), log
}

// shadowtape runs a command line and returns its exit code and streams.
func shadowtape(t *testing.T, args ...string) (code int, out, errs string) {
	t.Helper()
	var o, e bytes.Buffer
	code = run(t.Context(), args, strings.NewReader(""), &o, &e)
	return code, o.String(), e.String()
}

// smallTrace writes a trace of n requests, gap apart, and returns its name.
func smallTrace(t *testing.T, n int, gap time.Duration, change func(i int, x *formats.Exchange)) string {
	t.Helper()
	where := filepath.Join(t.TempDir(), "trace")
	w, err := formats.Create(where, formats.Header{SourceKind: "synth", TimeBase: "relative", PrefixBlockUnit: "tokens", PrefixBlockSize: 16, PrefixBlockRule: "floor"}, formats.SegmentOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		x := &formats.Exchange{Phase: formats.PhaseRecord, ArrivalUnixNS: int64(i) * int64(gap), InputTokens: formats.Of(int64(100 + i)), InputTokensSource: formats.TokensTrace,
			OutputTokens: formats.Of(int64(3 + i%5)), OutputTokensSource: formats.TokensTrace}
		if change != nil {
			change(i, x)
		}
		if err := w.Write(x); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return where
}

func readRun(t *testing.T, where string) (m formats.Manifest, rows []*formats.Exchange) {
	t.Helper()
	tr, err := formats.Open(where)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	for x, err := range tr.All() {
		if err != nil {
			t.Fatal(err)
		}
		rows = append(rows, x)
	}
	if tr.Manifest == nil {
		t.Fatalf("%s is no run", where)
	}
	return *tr.Manifest, rows
}

// The whole path: a trace is replayed, the run is replayed, and both joined with the server's own log. Nothing here depends on how fast
// the machine is but the order of cause and effect.
func TestReplayAndReplayAgain(t *testing.T) {
	url, log := startSim(t, "--profile", "instant")
	trace := smallTrace(t, 40, 5*time.Millisecond, func(i int, x *formats.Exchange) {
		if i%4 == 0 {
			x.Endpoint, x.Stream = formats.EndpointChat, formats.Of(i%8 == 0)
		}
		if i%2 == 1 {
			x.PrefixBlocks, x.PrefixTailTokens = []int64{1, 2, 3, 4}, formats.Of(int64(36+i))
		}
	})
	run1, run2 := filepath.Join(t.TempDir(), "run1"), filepath.Join(t.TempDir(), "run2")
	code, out, errs := shadowtape(t, "replay", trace, "--target", url, "-o", run1, "--header", "X-Secret: hunter2", "--allow-invalid")
	if code != exitGood || !strings.Contains(out, "scheduled 40 = sent 40 + dropped 0; completed 40") || !strings.Contains(errs, "plan: 40 requests") {
		t.Fatalf("exit %d\n%s%s", code, out, errs)
	}
	m, rows := readRun(t, run1)
	if m.Requests.Completed != 40 || m.PrefixReset != "done" || m.Interrupted || m.Seed != 1 || m.TraceSHA256 == "" || len(rows) != 40 {
		t.Errorf("manifest %+v", m)
	}
	if b, err := os.ReadFile(filepath.Join(run1, "run.json")); err != nil || strings.Contains(string(b), "hunter2") || !strings.Contains(string(b), "X-Secret") {
		t.Errorf("run.json keeps a header's value, or lost its name: %v", err)
	}
	type emitted struct {
		ID     string  `json:"x_request_id"`
		Tokens []int64 `json:"token_unix_ns"`
		Input  int64   `json:"input_tokens"`
	}
	truth := map[formats.Hash]emitted{}
	prefix := m.Options["request_ids"].(string)
	b, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(strings.TrimSpace(string(b)), "\n") {
		var e emitted
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		truth[replayer.CorrelationID(prefix, e.ID)] = e
	}
	cached := false
	for _, x := range rows {
		e, ok := truth[x.CorrelationID.V]
		if !ok || int64(len(e.Tokens)) != x.OutputTokens.V || e.Input != x.InputTokens.V {
			t.Fatalf("row %d: no such request, or other counts, in the server's log", x.ExchangeID)
		}
		first := x.ArrivalUnixNS + x.FirstTokenNS.V
		if x.Stream.V && (!x.FirstTokenNS.Valid || first < e.Tokens[0]) {
			t.Errorf("row %d: first token %d ns before it was emitted", x.ExchangeID, e.Tokens[0]-first)
		}
		i := x.SourceID.V - 1
		if want := 3 + i%5; x.OutputTokens.V != want {
			t.Errorf("row %d: %d tokens came, %d were recorded", x.ExchangeID, x.OutputTokens.V, want)
		}
		if x.Endpoint == formats.EndpointCompletions && x.InputTokens.V != 100+i {
			t.Errorf("row %d: a prompt of %d tokens, recorded %d", x.ExchangeID, x.InputTokens.V, 100+i)
		}
		if d := x.InputTokens.V - 100 - i; x.Endpoint == formats.EndpointChat && math.Abs(float64(d)) > 2 {
			t.Errorf("row %d: a chat prompt off by %d tokens", x.ExchangeID, d)
		}
		if x.Stream.V == (i%8 == 4) {
			t.Errorf("row %d: streamed %t", x.ExchangeID, x.Stream.V)
		}
		cached = cached || x.CachedTokens.V >= 64
	}
	if !cached {
		t.Error("the shared prefix was never hit")
	}

	code, out, errs = shadowtape(t, "replay", run1, "--target", url, "-o", run2, "--speed", "2", "--allow-invalid")
	if code != exitGood || !strings.Contains(out, "completed 40") {
		t.Fatalf("replay of a run: exit %d\n%s%s", code, out, errs)
	}
	_, again := readRun(t, run2)
	old := map[int64]*formats.Exchange{}
	for _, x := range rows {
		old[x.ArrivalIndex.V] = x
	}
	for _, x := range again {
		o := old[x.ArrivalIndex.V]
		if x.SourceID != o.SourceID || x.OutputTokens != o.OutputTokens || x.Endpoint != o.Endpoint || x.CorrelationID == o.CorrelationID || x.InputTokens != o.InputTokens {
			t.Errorf("arrival %d: source %v and %v, output %v and %v, input %v and %v", x.ArrivalIndex.V, o.SourceID, x.SourceID, o.OutputTokens, x.OutputTokens, o.InputTokens, x.InputTokens)
		}
	}
	if code, _, errs = shadowtape(t, "replay", run1, "--target", url, "-o", run2); code != exitFailed || !strings.Contains(errs, "--force") {
		t.Errorf("overwriting: exit %d, %s", code, errs)
	}
	if code, _, errs = shadowtape(t, "replay", run1, "--target", url, "-o", run2, "--force", "--max-requests", "3", "--allow-invalid"); code != exitGood {
		t.Errorf("--force: exit %d, %s", code, errs)
	}
}

func TestReplayRefuses(t *testing.T) {
	trace := smallTrace(t, 3, time.Hour, nil)
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		io.WriteString(w, "<html>hello</html>")
	}))
	defer page.Close()
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	url, _ := startSim(t, "--profile", "instant")
	out := filepath.Join(t.TempDir(), "run")
	for _, c := range []struct {
		name string
		args []string
		code int
		says string
	}{
		{"no target", []string{trace, "-o", out}, exitUsage, "--target"},
		{"no output", []string{trace, "--target", url}, exitUsage, "-o is missing"},
		{"no trace", []string{"--target", url, "-o", out}, exitUsage, "TRACE"},
		{"no such trace", []string{trace + "x", "--target", url, "-o", out}, exitFailed, "no such file"},
		{"unreachable", []string{trace, "--target", gone.URL, "-o", out}, exitFailed, "connection refused"},
		{"a web page", []string{trace, "--target", page.URL, "-o", out}, exitFailed, "HTML"},
		{"no URL", []string{trace, "--target", "host:80", "-o", out}, exitUsage, "no http or https URL"},
		{"bad speed", []string{trace, "--target", url, "-o", out, "--speed", "-1"}, exitUsage, "--speed"},
		{"bad dialect", []string{trace, "--target", url, "-o", out, "--dialect", "klingon"}, exitUsage, "klingon"},
		{"key not set", []string{trace, "--target", url, "-o", out, "--api-key-env", "SHADOWTAPE_NO_SUCH"}, exitUsage, "SHADOWTAPE_NO_SUCH"},
		{"a ramp of nobody", []string{trace, "--target", url, "-o", out, "--ramp", "1s"}, exitUsage, "--ramp is of --users"},
		{"thoughts of nobody", []string{trace, "--target", url, "-o", out, "--think", "1s"}, exitUsage, "--think is of --users"},
		{"users beyond number", []string{trace, "--target", url, "-o", out, "--users", "1000000000"}, exitUsage, "100000 requests in flight"},
		{"over an hour", []string{trace, "--target", url, "-o", out}, exitUsage, "--duration"},
		{"nothing in it", []string{trace, "--target", url, "-o", filepath.Join(trace, "trace.json")}, exitFailed, "exists"},
	} {
		code, stdout, errs := shadowtape(t, append([]string{"replay"}, c.args...)...)
		last := strings.Split(strings.TrimSpace(errs), "\n")
		if code != c.code || !strings.Contains(errs, c.says) || stdout != "" || !strings.HasPrefix(last[max(0, len(last)-2)], "shadowtape: ") && !strings.HasPrefix(last[len(last)-1], "shadowtape: ") {
			t.Errorf("%s: exit %d, %q, stdout %q", c.name, code, errs, stdout)
		}
		if _, err := os.Stat(out); err == nil {
			t.Fatalf("%s: a run directory was made", c.name)
		}
	}
}

// An interrupted replay writes what it measured.
func TestReplayInterrupted(t *testing.T) {
	url, _ := startSim(t, "--ttft", "10ms", "--itl", "5ms")
	trace := smallTrace(t, 1000, 20*time.Millisecond, func(_ int, x *formats.Exchange) { x.OutputTokens = formats.Of(int64(400)) })
	where := filepath.Join(t.TempDir(), "run")
	ctx, stop := context.WithCancel(t.Context())
	go func() { // half way: some answers are under way
		defer stop()
		for range 6000 {
			if resp, err := http.Get(url + "/metrics"); err == nil {
				b, _ := io.ReadAll(resp.Body)
				resp.Body.Close()
				if n := promtext.Parse(b); slices.ContainsFunc(n.Samples, func(s promtext.Sample) bool { return s.Name == "vllm:num_requests_running" && s.Value > 3 }) {
					return
				}
			}
			time.Sleep(20 * time.Millisecond)
		}
	}()
	var out, errs bytes.Buffer
	if code := run(ctx, []string{"replay", trace, "--target", url, "-o", where}, strings.NewReader(""), &out, &errs); code != exitInterrupted {
		t.Fatalf("exit %d: %s%s", code, out.String(), errs.String())
	}
	m, rows := readRun(t, where)
	r := m.Requests
	if !m.Interrupted || r.RunEnd == 0 || r.Scheduled != int64(len(rows)) || r.Sent != r.Completed+r.Failed+r.Aborted+r.RunEnd {
		t.Errorf("%+v, %d rows", r, len(rows))
	}
	for _, x := range rows {
		if x.EndReason == formats.EndRunEnd && x.ErrorKind != "" {
			t.Errorf("a request cut by the end is called %s", x.ErrorKind)
		}
	}
}

// The parts of a run around the measured one: warm-up, cooldown, saturation, users, think time; and all flags out of a file.
// A run that left a part of its load out measures another load: it says so and exits with 4, as does one that sent nothing.
func TestReplayOfALighterLoadIsInvalid(t *testing.T) {
	url, _ := startSim(t, "--ttft", "2s")
	for name, c := range map[string]struct {
		trace string
		why   string
	}{
		"max-in-flight": {smallTrace(t, 5, time.Millisecond, nil), "4 of 5 requests were not sent because too many were in flight"},
		"nothing sent":  {smallTrace(t, 5, time.Millisecond, func(_ int, x *formats.Exchange) { x.InputTokens = formats.Null[int64]{} }), "nothing was sent"},
	} {
		where := filepath.Join(t.TempDir(), "run")
		code, out, errs := shadowtape(t, "replay", c.trace, "--target", url, "--max-in-flight", "1", "-o", where)
		m, rows := readRun(t, where)
		if code != exitInvalid || !strings.Contains(out, c.why) || m.Valid || len(rows) != 5 || m.Requests.Scheduled != m.Requests.Sent+m.Requests.Dropped {
			t.Errorf("%s: exit %d, %d rows, %+v, %q, %s", name, code, len(rows), m.Requests, out, errs)
		}
	}
}

// Ctrl-C before there is anything to write is an interruption, not a failure.
func TestReplayInterruptedWhileProbing(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	h := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		stop()
		<-r.Context().Done()
	}))
	defer h.Close()
	where := filepath.Join(t.TempDir(), "run")
	var out, errs bytes.Buffer
	code := run(ctx, []string{"replay", smallTrace(t, 1, 0, nil), "--target", h.URL, "-o", where}, strings.NewReader(""), &out, &errs)
	if _, err := os.Stat(where); code != exitInterrupted || out.Len() > 0 || !os.IsNotExist(err) {
		t.Errorf("exit %d, %q, %q, run: %v", code, out.String(), errs.String(), err)
	}
}

func TestReplayPhases(t *testing.T) {
	url, _ := startSim(t, "--ttft", "5ms", "--itl", "1ms")
	session := func(i int, x *formats.Exchange) {
		x.SessionID, x.EndNS = formats.Of(formats.Hash{byte(i % 4), 1}), formats.Of(int64(8*time.Millisecond))
		x.PrefixBlocks = []int64{1, 2, int64(i)}
	}
	trace := smallTrace(t, 60, 10*time.Millisecond, session)
	config := filepath.Join(t.TempDir(), "replay.yaml")
	if err := os.WriteFile(config, []byte("target: ["+url+"]\nwarmup: 7\ncooldown: 95ms\nsaturate: 1600ms\nallow-invalid: true\nseed: 5\nsessions: think-time\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	where := filepath.Join(t.TempDir(), "run")
	code, out, errs := shadowtape(t, "replay", trace, "-o", where, "--config", config, "--seed", "6")
	if code != exitGood {
		t.Fatalf("exit %d: %s%s", code, out, errs)
	}
	m, rows := readRun(t, where)
	measured, warm := 0, 0
	seen := map[int64]bool{}
	for _, x := range rows {
		if seen[x.ExchangeID] {
			t.Errorf("exchange %d stands twice", x.ExchangeID)
		}
		seen[x.ExchangeID] = true
		if x.Phase == formats.PhaseMeasure {
			measured++
		} else {
			warm++
		}
	}
	if measured != 50 || m.Requests.Scheduled != 50 || warm < 7+10+4 || m.Seed != 6 || m.Options["sessions"] != "think-time" || m.Fidelity["warmup_requests"] != 7.0 {
		t.Errorf("%d measured, %d not, seed %d, %v, %v", measured, warm, m.Seed, m.Options["sessions"], m.Fidelity["warmup_requests"])
	}
	c, ok := m.Fidelity["capacity"].(map[string]any)
	if !ok || !(c["output_tokens_per_s"].(float64) > 0) {
		t.Errorf("capacity %v", m.Fidelity["capacity"])
	}
	if e, o := m.Fidelity["prefix_hit_share_expected"], m.Fidelity["prefix_hit_share"]; e == nil || o == nil || math.Abs(e.(float64)-o.(float64)) > 0.02 {
		t.Errorf("prefix hits: expected %v, observed %v", e, o)
	}
	// The warm-up's prompts are not the trace's: the first measured request finds nothing in the cache, even where that is kept.
	code, out, errs = shadowtape(t, "replay", trace, "-o", where, "--target", url, "--force", "--warmup", "50ms", "--keep-cache", "--users", "1", "--max-requests", "20", "--seed", "77", "--allow-invalid")
	if code != exitGood {
		t.Fatalf("exit %d: %s%s", code, out, errs)
	}
	m, rows = readRun(t, where)
	for _, x := range rows {
		if x.ArrivalIndex.V == 0 && x.Phase == formats.PhaseMeasure && x.CachedTokens.V != 0 {
			t.Errorf("the first request hit %d tokens", x.CachedTokens.V)
		}
	}
	if m.Requests.Completed != 20 || m.Options["users"] != 1.0 {
		t.Errorf("%+v", m.Requests)
	}
	if err := os.WriteFile(config, []byte("tarrget: x\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	if code, _, errs = shadowtape(t, "replay", trace, "-o", where, "--config", config); code != exitUsage || !strings.Contains(errs, "tarrget") {
		t.Errorf("a flag that does not exist: exit %d, %s", code, errs)
	}
}

// A workload model is replayed without a trace between; and --force removes nothing before the target has been seen.
func TestReplayWorkload(t *testing.T) {
	url, _ := startSim(t, "--profile", "instant")
	trace := smallTrace(t, 400, 20*time.Millisecond, nil)
	model, where := filepath.Join(t.TempDir(), "w.json"), filepath.Join(t.TempDir(), "run")
	if code, _, errs := shadowtape(t, "fit", trace, "-o", model); code != exitGood {
		t.Fatalf("fit: exit %d, %s", code, errs)
	}
	code, out, errs := shadowtape(t, "replay", model, "--target", url, "-o", where, "--rate", "100", "--max-requests", "50", "--allow-invalid")
	if code != exitGood || !strings.Contains(out, "completed 50") {
		t.Fatalf("exit %d: %s%s", code, out, errs)
	}
	if code, _, errs = shadowtape(t, "replay", trace, "--target", "http://127.0.0.1:1", "-o", where, "--force"); code != exitFailed {
		t.Fatalf("exit %d: %s", code, errs)
	}
	if m, rows := readRun(t, where); m.Requests.Completed != 50 || len(rows) != 50 {
		t.Errorf("the old run is gone, though nothing replaced it: %+v", m.Requests)
	}
}

// What a trace does not say is drawn, marked in its row, and counted where a reader looks; a batch, which has no times, gets them from
// a rate or a model.
func TestReplayDrawsWhatIsMissing(t *testing.T) {
	url, _ := startSim(t, "--profile", "instant")
	trace := smallTrace(t, 60, 2*time.Millisecond, func(i int, x *formats.Exchange) {
		if i%3 == 0 {
			x.OutputTokens, x.OutputTokensSource = formats.Null[int64]{}, ""
		}
	})
	dir := filepath.Join(t.TempDir(), "run")
	code, out, errs := shadowtape(t, "replay", trace, "--target", url, "-o", dir, "--allow-invalid")
	if code != exitGood || strings.Count(errs, "20 output lengths") != 2 || !strings.Contains(errs, "a model drew what nobody recorded: 20 output lengths") {
		t.Fatalf("exit %d\n%s%s", code, out, errs)
	}
	m, rows := readRun(t, dir)
	if d, ok := m.Fidelity["drawn"].(map[string]any); !ok || d["output_tokens"] != 20.0 || len(d) != 1 {
		t.Errorf("fidelity %v", m.Fidelity["drawn"])
	}
	for _, x := range rows {
		if drawn := x.Drawn.V == formats.DrawnOutput; drawn != ((x.SourceID.V-1)%3 == 0) || x.OutputTokens.V < 3 || x.OutputTokens.V > 7 {
			t.Errorf("row %d: %d tokens, marks %b", x.SourceID.V, x.OutputTokens.V, x.Drawn.V)
		}
	}
	// The same rows are drawn in virtual time.
	sim := filepath.Join(t.TempDir(), "sim")
	code, out, errs = shadowtape(t, "simulate", trace, "--profile", "instant", "-o", sim)
	if code != exitGood || !strings.Contains(errs, "a model drew what nobody recorded: 20 output lengths") {
		t.Fatalf("exit %d\n%s%s", code, out, errs)
	}
	ms, simulated := readRun(t, sim)
	if d, ok := ms.Fidelity["drawn"].(map[string]any); !ok || d["output_tokens"] != 20.0 {
		t.Errorf("fidelity %v", ms.Fidelity)
	}
	want := map[int64]int64{}
	for _, x := range rows {
		want[x.SourceID.V] = x.OutputTokens.V
	}
	for _, x := range simulated {
		if x.OutputTokens.V != want[x.SourceID.V] {
			t.Errorf("row %d: %d tokens simulated, %d replayed", x.SourceID.V, x.OutputTokens.V, want[x.SourceID.V])
		}
	}

	file := filepath.Join(t.TempDir(), "batch.jsonl")
	var b strings.Builder
	for range 40 {
		b.WriteString(`{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"` + strings.Repeat("word ", 40) + `"}]}}` + "\n")
	}
	if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	batch, model := filepath.Join(t.TempDir(), "batch"), filepath.Join(t.TempDir(), "model.json")
	if code, out, errs = shadowtape(t, "import", "openai-batch", file, "-o", batch); code != exitGood {
		t.Fatalf("exit %d\n%s%s", code, out, errs)
	}
	full := smallTrace(t, 400, 5*time.Millisecond, nil)
	if code, out, errs = shadowtape(t, "fit", full, "-o", model); code != exitGood {
		t.Fatalf("exit %d\n%s%s", code, out, errs)
	}
	for _, c := range []struct {
		args []string
		bits int64
		says string
	}{
		{[]string{"--rate", "100"}, formats.DrawnArrival, "no model can be made of the others"},
		{[]string{"--fill", model}, formats.DrawnArrival | formats.DrawnOutput, "40 arrivals, 40 output lengths"},
		{[]string{"--fill", "none"}, 0, "completed"},
		{nil, 0, "all due at once"},
	} {
		dir := filepath.Join(t.TempDir(), "run")
		code, out, errs := shadowtape(t, append([]string{"replay", batch, "--target", url, "-o", dir, "--allow-invalid"}, c.args...)...)
		if code != exitGood || !strings.Contains(out+errs, c.says) {
			t.Fatalf("%v: exit %d\n%s%s", c.args, code, out, errs)
		}
		_, rows := readRun(t, dir)
		times := map[int64]bool{}
		for _, x := range rows {
			times[x.ArrivalUnixNS] = true
			if x.Drawn.Or(0) != c.bits {
				t.Errorf("%v: marks %b", c.args, x.Drawn.V)
			}
		}
		if len(rows) != 40 || (len(times) > 30) != (c.bits&formats.DrawnArrival != 0) {
			t.Errorf("%v: %d rows at %d times", c.args, len(rows), len(times))
		}
	}
}

// Nothing secret of an address reaches run.json, server.parquet or an error.
func TestAddressesLoseTheirSecrets(t *testing.T) {
	for in, want := range map[string]string{
		"http://user:hunter2@host:1/metrics?token=hunter2#hunter2": "http://host:1/metrics",
		"https://host/v1":              "https://host/v1",
		"http://a:hun/ter2@host:bad/x": "http://host:bad/x",
		"16":                           "16",
	} {
		if got := withoutSecrets(in); got != want {
			t.Errorf("%s becomes %s, want %s", in, got, want)
		}
	}
	target, _ := startSim(t, "--profile", "instant")
	dir := filepath.Join(t.TempDir(), "run")
	secret := strings.Replace(target, "http://", "http://user:hunter2@", 1) + "/metrics?token=hunter2"
	code, out, errs := shadowtape(t, "replay", smallTrace(t, 5, time.Millisecond, nil), "--target", target, "--metrics", secret, "--gpu-metrics", "http://user:hunter2@127.0.0.1:1/metrics?k=hunter2", "-o", dir, "--allow-invalid")
	if code != exitGood || strings.Contains(out+errs, "hunter2") {
		t.Fatalf("exit %d\n%s%s", code, out, errs)
	}
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		if strings.Contains(string(b), "hunter2") {
			t.Errorf("%s holds a secret", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	for _, args := range [][]string{{"--metrics", "ftp://user:hunter2@host"}, {"--proxy", "http://user:hunter2@host:bad"}, {"--proxy", "socks5://user:hunter2@host"}, {"--target", "http://user:hunter2@host:bad"}, {"--target", "http://user:hunter2@host"}} {
		code, out, errs := shadowtape(t, append([]string{"replay", "x", "--target", "http://127.0.0.1:1", "-o", dir}, args...)...)
		if code == exitGood || strings.Contains(out+errs, "hunter2") {
			t.Errorf("%v: exit %d\n%s%s", args, code, out, errs)
		}
	}
}

// The plan says how many turns would come before the answer before them, at the replay's speed.
func TestReplayPlansOverlaps(t *testing.T) {
	target, _ := startSim(t, "--profile", "instant")
	// Four sessions of five turns, 40 ms apart, each answered in 30 ms: none overlaps at the recorded speed, all but the first do at twice that.
	trace := smallTrace(t, 20, 10*time.Millisecond, func(i int, x *formats.Exchange) {
		x.SessionID, x.EndNS = formats.Of(formats.Hash{byte(i % 4)}), formats.Of(int64(30*time.Millisecond))
	})
	for _, c := range []struct {
		args []string
		want float64
		says string
	}{
		{nil, 0, "plan: 20 requests"},
		{[]string{"--speed", "2"}, 16, "16 turns come at their recorded times before the answer before them, if answers take as long as they did\n"},
		{[]string{"--speed", "2", "--sessions", "think-time"}, 16, "if answers take as long as they did: they wait\n"},
	} {
		dir := filepath.Join(t.TempDir(), "run")
		code, out, errs := shadowtape(t, append([]string{"replay", trace, "--target", target, "-o", dir, "--allow-invalid"}, c.args...)...)
		if code != exitGood || !strings.Contains(errs, c.says) {
			t.Fatalf("%v: exit %d\n%s%s", c.args, code, out, errs)
		}
		if m, _ := readRun(t, dir); m.Fidelity["overlapping_turns_planned"] != c.want {
			t.Errorf("%v: %v planned", c.args, m.Fidelity["overlapping_turns_planned"])
		}
	}
}
