package replayer

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/promtext"
)

// JobOptions describe a whole replay: a trace, targets, and a run directory.
type JobOptions struct {
	Trace  *formats.Trace
	Client ClientOptions
	Out    string // the run directory to make

	Model    string           // "": the first that the target lists
	Endpoint formats.Endpoint // of rows that do not say theirs; "": completions where the targets take token ids, else chat
	Dialect  string           // "": detected
	Seed     int64
	Natural  bool // output lengths are left to the model
	Greedy   bool // temperature 0 instead of what was recorded

	Selection   Selection           // what of the trace, and at which speed; its Seed is Seed
	SpreadTicks bool                // spread arrivals within the ticks of the trace's clock, whose length is detected
	MaxInFlight int                 // 0: 100,000
	KeepCache   bool                // do not empty the prefix cache first
	Scrape      time.Duration       // between scrapes of the targets' metrics; 0: 500 ms, negative: none
	Metrics     []promtext.Endpoint // more pages to watch: the engines behind a router, a GPU exporter
	Limits      Limits

	// Beside starts what is watched beside the replay (a candidate's GPUs, its container) once the run directory exists; the function it
	// returns ends it after the last answer, and may add to the manifest. nil: nothing.
	Beside func(ctx context.Context, w *formats.RunWriter) (end func(*formats.Manifest))

	ToolVersion string
	Command     []string // as given, without secrets
	Label       string   // "": the run directory's base name
}

// Validate reports every setting that cannot work.
func (o JobOptions) Validate() error {
	errs := []error{o.Client.Validate()}
	if o.Trace == nil {
		errs = append(errs, errors.New("no trace is given"))
	}
	if o.Out == "" {
		errs = append(errs, errors.New("no run directory is given"))
	}
	errs = append(errs, o.Selection.Validate())
	if o.MaxInFlight < 0 {
		errs = append(errs, fmt.Errorf("%d requests in flight at most", o.MaxInFlight))
	}
	if _, ok := DialectNamed(o.Dialect); o.Dialect != "" && !ok {
		errs = append(errs, fmt.Errorf("there is no dialect %q: %v", o.Dialect, DialectNames()))
	}
	switch o.Endpoint {
	case "", formats.EndpointChat, formats.EndpointCompletions:
	default:
		errs = append(errs, fmt.Errorf("rows cannot become %s", o.Endpoint))
	}
	return errors.Join(errs...)
}

// Plan is what a replay is about to do. Its figures leave the warm-up out.
type Plan struct {
	Requests     int64
	Warmup       int64         // requests of the preroll
	Duration     time.Duration // to the last arrival, warm-up included
	PeakRate     float64       // the most arrivals in one second
	Speed        float64       // how many times as fast as recorded
	Quantum      time.Duration // the tick of the trace's clock, where arrivals share times; 0: none
	Sessions     bool          // the trace has sessions
	InputTokens  int64
	OutputTokens int64
	Endpoints    map[formats.Endpoint]int64 // as they will be asked
	Targets      []string
	Model        string
	Dialect      string
	TokenIDs     bool
	Forced       bool // output lengths are forced
	Text         Calibration
	Warnings     []string
}

// Job is a replay that has been prepared.
type Job struct {
	Plan    Plan
	o       JobOptions
	client  *Client
	infos   []TargetInfo
	prompts *Prompts
	sha     string
	perByte float64
}

// Prepare reads the trace's times, asks the targets what they are, and calibrates the prompts. It starts nothing: an unreachable
// target, a trace without requests or a run directory that exists is an error here. The caller closes the job.
func Prepare(ctx context.Context, o JobOptions) (*Job, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o.Selection.Seed = o.Seed
	if _, err := os.Stat(o.Out); err == nil {
		return nil, fmt.Errorf("create run %s: %w", o.Out, os.ErrExist)
	}
	c, err := NewClient(o.Client)
	if err != nil {
		return nil, err
	}
	j := &Job{o: o, client: c}
	if err := j.prepare(ctx); err != nil {
		c.Close()
		return nil, err
	}
	return j, nil
}

// Close closes the connections.
func (j *Job) Close() { j.client.Close() }

func (j *Job) prepare(ctx context.Context) error {
	infos, err := j.client.Probe(ctx, j.o.Model)
	if err != nil {
		return err
	}
	j.infos = infos
	pl := &j.Plan
	pl.Targets = j.client.Targets()
	if pl.Model = j.o.Model; pl.Model == "" {
		if len(infos[0].Models) == 0 {
			return fmt.Errorf("choose a model: %s lists none (--model names it)", infos[0].URL)
		}
		pl.Model = infos[0].Models[0]
	}
	dialect := infos[0].Dialect
	if j.o.Dialect != "" {
		dialect, _ = DialectNamed(j.o.Dialect)
	}
	pl.Dialect = dialect.Name
	pl.TokenIDs = true
	for i := range j.infos {
		pl.TokenIDs = pl.TokenIDs && infos[i].TokenIDs
		if j.o.Dialect != "" {
			infos[i].Dialect = dialect
		} else if infos[i].Dialect.Name != dialect.Name {
			pl.Warnings = append(pl.Warnings, fmt.Sprintf("the targets are different servers: %s and %s", dialect.Name, infos[i].Dialect.Name))
		}
	}
	endpoint := j.o.Endpoint
	if endpoint == "" {
		if endpoint = formats.EndpointChat; pl.TokenIDs {
			endpoint = formats.EndpointCompletions
		}
	}
	if err := j.count(endpoint); err != nil {
		return err
	}
	if pl.Forced = dialect.Forces() && !j.o.Natural; !pl.Forced && !j.o.Natural {
		pl.Warnings = append(pl.Warnings, fmt.Sprintf("the server is %s: output lengths cannot be forced, max_tokens is all that is sent", dialect.Name))
	}
	po := PromptOptions{Seed: j.o.Seed, Model: pl.Model, Endpoint: endpoint, TokenIDs: pl.TokenIDs, Dialect: dialect, Natural: j.o.Natural, Greedy: j.o.Greedy, TokensPerByte: j.perByte}
	h := j.o.Trace.Header
	if h.PrefixBlockSize > 0 && (h.PrefixBlockUnit == "tokens" || h.PrefixBlockUnit == "bytes") {
		po.BlockUnit, po.BlockSize, po.BlockRule = h.PrefixBlockUnit, h.PrefixBlockSize, h.PrefixBlockRule
	}
	po.Cumulative = h.Prompts == "cumulative"
	if text := pl.Requests - pl.Endpoints[formats.EndpointCompletions] - pl.Endpoints[formats.EndpointEmbeddings]; text > 0 {
		if po.Text, err = j.client.Calibrate(ctx, pl.Model, formats.EndpointChat); err != nil {
			return err
		}
		pl.Text = po.Text
	}
	if !pl.TokenIDs && pl.Endpoints[formats.EndpointCompletions] > 0 {
		if po.CompletionText, err = j.client.Calibrate(ctx, pl.Model, formats.EndpointCompletions); err != nil {
			return err
		}
		if pl.Text.Method == "" {
			pl.Text = po.CompletionText
		}
	}
	if j.prompts, err = NewPrompts(po); err != nil {
		return err
	}
	j.sha, err = j.o.Trace.SHA256()
	return err
}

// Run replays, and writes the run directory. live may be nil. A cancelled context ends it early: the run directory holds what was
// measured, the manifest says Interrupted, and the error is nil.
func (j *Job) Run(ctx context.Context, live *Live) (formats.Manifest, error) {
	if live == nil {
		live = &Live{}
	}
	var id [6]byte
	if _, err := rand.Read(id[:]); err != nil {
		return formats.Manifest{}, err
	}
	ids := "st-" + hex.EncodeToString(id[:])
	m := j.manifest(ids)
	m.PrefixReset = "skipped"
	if !j.o.KeepCache {
		m.PrefixReset = j.client.ResetPrefixCache(ctx, j.infos)
	}
	w, err := formats.CreateRun(j.o.Out, m)
	if err != nil {
		return m, err
	}
	w.SetHeader(j.o.Trace.Header)
	node, _ := os.Hostname() // unknown is unknown
	end := func(*formats.Manifest) {}
	if j.o.Beside != nil {
		end = j.o.Beside(ctx, w)
	}

	watching, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var wg sync.WaitGroup
	var ws promtext.WatchStats
	var watchErr, clientErr error
	if every := j.o.Scrape; every >= 0 {
		if every == 0 {
			every = 500 * time.Millisecond
		}
		wg.Go(func() { ws, watchErr = j.client.WatchServers(watching, every, j.o.Metrics, w.WriteServer) })
	}
	wg.Go(func() { clientErr = watchClient(watching, live, w.WriteClient) })
	stats, err := Replay(ctx, j.o.Selection.Apply(FromTrace(j.o.Trace), j.Plan.Speed), j.prompts, j.client, w, Options{
		RequestIDs: ids, Node: node, MaxInFlight: j.o.MaxInFlight, Live: live,
	})
	stop()
	wg.Wait()
	j.finish(&m, stats, ws)
	if err = errors.Join(err, watchErr, clientErr); err != nil {
		m.Valid, m.Invalid = false, append([]string{err.Error()}, m.Invalid...)
	}
	end(&m)
	return m, errors.Join(err, w.Close(m))
}

func (j *Job) manifest(ids string) formats.Manifest {
	o := j.o
	label := o.Label
	if label == "" {
		label = filepath.Base(filepath.Clean(o.Out))
	}
	opts := map[string]any{
		"request_ids": ids, "speed": j.Plan.Speed, "sessions": "absolute", "dialect": j.Plan.Dialect, "token_ids": j.Plan.TokenIDs,
		"output_lengths": map[bool]string{true: "forced", false: "natural"}[j.Plan.Forced], "request_timeout_s": j.client.o.Timeout.Seconds(),
		"planned_requests": j.Plan.Requests, "planned_duration_s": j.Plan.Duration.Seconds(),
	}
	if o.Greedy {
		opts["sampling"] = "greedy"
	}
	o.Selection.describe(opts)
	if o.MaxInFlight > 0 {
		opts["max_in_flight"] = o.MaxInFlight
	}
	if j.Plan.Text.Method != "" {
		opts["prompt_text"] = map[string]any{"method": j.Plan.Text.Method, "tokens_per_word": j.Plan.Text.TokensPerWord, "overhead_tokens": j.Plan.Text.Overhead}
	}
	return formats.Manifest{
		Schema: 1, Label: label, ToolVersion: o.ToolVersion, Command: o.Command, Kind: "replay", StartUnixNS: time.Now().UnixNano(), Seed: o.Seed,
		TracePath: filepath.Base(filepath.Clean(o.Trace.Name)), TraceSHA256: j.sha, Targets: j.Plan.Targets, Model: j.Plan.Model, Options: opts,
		Environment: j.environment(), Warnings: j.Plan.Warnings,
	}
}

// environment is what run.json says of the machines and the target.
func (j *Job) environment() map[string]any {
	host, _ := os.Hostname()
	targets := []any{}
	for _, t := range j.infos {
		targets = append(targets, map[string]any{
			"url": t.URL, "models": t.Models, "max_model_len": t.MaxModelLen, "owned_by": t.OwnedBy, "version": t.Version, "server": t.Server,
			"dialect": t.Dialect.Name, "round_trip_ms": float64(t.RoundTrip) / 1e6, "metrics": t.Metrics,
		})
	}
	return map[string]any{
		"client":  map[string]any{"host": host, "os": runtime.GOOS, "arch": runtime.GOARCH, "cpus": runtime.NumCPU(), "go": runtime.Version()},
		"targets": targets,
	}
}

// finish fills the manifest with what happened.
func (j *Job) finish(m *formats.Manifest, s Stats, ws promtext.WatchStats) {
	m.StartUnixNS, m.EndUnixNS = s.Start.UnixNano(), s.End.UnixNano()
	m.Requests, m.Errors, m.Dropped = s.Requests, s.Errors, s.Dropped
	m.Interrupted = s.Interrupted
	m.Invalid = s.Quality.Invalid(j.o.Limits)
	if s.Requests.Sent > 0 && s.Requests.Completed == 0 && !s.Interrupted {
		m.Invalid = append([]string{"no request completed"}, m.Invalid...)
	}
	m.Valid = len(m.Invalid) == 0
	planned := len(m.Warnings)
	warn := func(format string, args ...any) { m.Warnings = append(m.Warnings, fmt.Sprintf(format, args...)) }
	if s.Late > 0 {
		warn("%d of %d requests were sent more than a millisecond late", s.Late, s.Requests.Sent)
	}
	for why, n := range s.Dropped {
		warn("%d requests were not sent: %s", n, why)
	}
	if s.ClockSteps > 0 {
		warn("the wall clock was set %d times: answers around it are timed when they were read", s.ClockSteps)
	}
	if s.Retried > 0 {
		warn("%d requests were sent again because the server had closed a kept connection", s.Retried)
	}
	for what, n := range j.prompts.Notes() {
		warn("%d of %d requests: %s", min(n, s.Requests.Scheduled), s.Requests.Scheduled, noteTexts[what])
	}
	if q := &s.Quality.InputError; q.N() > 0 && q.Quantile(0.5) > 0.01 {
		warn("prompts are off their recorded length by %.1f %% at the median", 100*q.Quantile(0.5))
	}
	if ws.Scrapes > 0 && ws.Failed == ws.Scrapes {
		warn("the server offers no metrics: %s", ws.LastError)
	} else if ws.Failed > 0 {
		warn("%d of %d scrapes of the server's metrics failed: %s", ws.Failed, ws.Scrapes, ws.LastError)
	}
	if ws.Failed < ws.Scrapes && !slices.ContainsFunc(ws.Dialects, func(d string) bool { return d != "" }) {
		warn("the server's metrics say nothing of its cache and its queue")
	}
	if ws.Resets > 0 {
		warn("%d counters of the server started anew during the run: it was restarted", ws.Resets)
	}
	switch m.PrefixReset {
	case "unsupported":
		warn("the server cannot empty its prefix cache: what an earlier run left there may be hit")
	case "failed":
		warn("the server did not empty its prefix cache")
	}
	slices.Sort(m.Warnings[planned:])
	m.Fidelity = s.Quality.fidelity()
}

// noteTexts say what Prompts.Notes counts.
var noteTexts = map[string]string{
	"tools_left_out":           "the recorded tools were left out",
	"media_left_out":           "the recorded images and audio were left out",
	"stream_unknown":           "the trace does not say whether the answer was streamed, so it was",
	"output_unknown":           "the trace does not say how long the answer was, so the model decided",
	"output_not_forced":        "the answer's length was limited but not forced",
	"stop_left_out":            "stop strings were left out, as the length is forced",
	"response_format_left_out": "the response format was left out, as the length is forced",
	"cache_salt_left_out":      "the cache salt was left out, as the server takes none",
}

// fidelity are the figures of how faithful a run was.
func (q *Quality) fidelity() map[string]any {
	f := map[string]any{}
	put := func(name string, n uint64, v float64) {
		if n > 0 {
			f[name] = v
		}
	}
	put("send_lag_p99_ms", q.SendLag.N(), q.SendLag.Quantile(0.99))
	put("send_lag_max_ms", q.SendLag.N(), q.SendLag.Max())
	put("client_delay_p99_ms", q.ClientDelay.N(), q.ClientDelay.Quantile(0.99))
	put("input_error_p50", q.InputError.N(), q.InputError.Quantile(0.5))
	put("input_error_p99", q.InputError.N(), q.InputError.Quantile(0.99))
	put("output_error_p50", q.OutputError.N(), q.OutputError.Quantile(0.5))
	put("output_error_p99", q.OutputError.N(), q.OutputError.Quantile(0.99))
	put("tokens_per_event", q.PerEvent.N(), q.PerEvent.Mean())
	put("tokens_per_event_recorded", q.RecordedPer.N(), q.RecordedPer.Mean())
	if q.Events > 0 {
		f["coalesced_share"] = float64(q.Coalesced) / float64(q.Events)
	}
	if q.StreamAsked > 0 {
		f["stream_kept_share"] = float64(q.StreamKept) / float64(q.StreamAsked)
	}
	return f
}
