package job

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"time"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/promtext"
	"github.com/shadowtape/shadowtape/replayer"
	"github.com/shadowtape/shadowtape/replayer/client"
	"github.com/shadowtape/shadowtape/replayer/schedule"
)

func (j *Job) manifest(ids string) formats.Manifest {
	o := j.o
	label := o.Label
	if label == "" {
		label = filepath.Base(filepath.Clean(o.Out))
	}
	opts := map[string]any{
		"request_ids": ids, "speed": j.Plan.Speed, "sessions": "absolute", "dialect": j.Plan.Dialect, "token_ids": j.Plan.TokenIDs,
		"output_lengths": map[bool]string{true: "forced", false: "natural"}[j.Plan.Forced], "request_timeout_s": j.client.Timeout().Seconds(),
		"planned_requests": j.Plan.Requests, "planned_duration_s": j.Plan.Duration.Seconds(),
	}
	if o.Selection.ThinkTime {
		opts["sessions"] = "think-time"
	}
	if o.Users > 0 {
		opts["sessions"], opts["users"], opts["ramp_s"], opts["think_s"] = "users", o.Users, o.Ramp.Seconds(), o.Think.Seconds()
	}
	if o.Warmup > 0 {
		opts["warmup_requests"] = o.Warmup
	}
	for name, d := range map[string]time.Duration{"warmup_s": o.WarmupTime, "cooldown_s": o.Cooldown, "saturate_s": o.Saturate} {
		if d > 0 {
			opts[name] = d.Seconds()
		}
	}
	if o.NoAborts {
		opts["aborts"] = "none"
	}
	if o.Client.ConnectTimeout > 0 {
		opts["connect_timeout_s"] = o.Client.ConnectTimeout.Seconds()
	}
	if o.Client.HTTP != "" {
		opts["http"] = o.Client.HTTP
	}
	if o.Greedy {
		opts["sampling"] = "greedy"
	}
	o.Selection.Describe(opts)
	if o.MaxInFlight > 0 {
		opts["max_in_flight"] = o.MaxInFlight
	}
	if j.Plan.Text.Method != "" {
		opts["prompt_text"] = map[string]any{"method": j.Plan.Text.Method, "tokens_per_word": j.Plan.Text.TokensPerWord, "overhead_tokens": j.Plan.Text.Overhead, "tokens_per_message": j.Plan.Text.PerMessage,
			"tokens_per_tool_byte": j.Plan.Text.TokensPerToolByte}
	}
	return formats.Manifest{
		Schema: 1, Label: label, ToolVersion: o.ToolVersion, Command: o.Command, Kind: "replay", StartUnixNS: time.Now().UnixNano(), Seed: o.Seed,
		TracePath: filepath.Base(filepath.Clean(o.name())), TraceSHA256: j.sha, Targets: j.Plan.Targets, Model: j.Plan.Model, Options: opts,
		Environment: j.environment(), Warnings: j.Plan.Warnings,
	}
}

// mostDropped is the share of the schedule that may be dropped at the limit of requests in flight: what is left is another, lighter load.
const mostDropped = 0.01

// finish fills the manifest with what happened.
func (j *Job) finish(m *formats.Manifest, s replayer.Stats, ws promtext.WatchStats, p phaseResults) {
	m.StartUnixNS, m.EndUnixNS = s.Start.UnixNano(), s.End.UnixNano()
	m.RowsLost = p.rowsLost
	judge(m, s, j.o.Limits, j.Plan.Requests)
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
	if s.Overlapped > 0 && !j.o.Selection.ThinkTime && j.o.Users == 0 {
		warn("%d turns were sent before their session's last answer was there: the recorded times are kept (--sessions think-time waits)", s.Overlapped)
	}
	if s.Retried > 0 {
		warn("%d requests were sent again: the server had closed their connection, or refused them, before it looked at them", s.Retried)
	}
	for what, n := range j.prompts.Notes() {
		warn("%d of %d requests: %s", min(n, s.Requests.Scheduled), s.Requests.Scheduled, noteTexts[what])
	}
	if d := &s.Quality.Drawn; *d != (schedule.Drawn{}) {
		warn("a model drew what nobody recorded: %s", d)
	}
	if q := &s.Quality.InputError; q.N() > 0 && q.Quantile(0.5) > 0.01 {
		warn("prompts are off their recorded length by %.1f %% at the median", 100*q.Quantile(0.5))
	}
	if a, b := &s.Quality.PerEvent, &s.Quality.RecordedPer; a.N() > 0 && b.N() > 0 && math.Abs(a.Mean()/b.Mean()-1) > 0.1 {
		warn("an event brings %.3g tokens here and brought %.3g in the recording: TPOT is not comparable with it", a.Mean(), b.Mean())
	}
	if q := &s.Quality; 20*q.Coalesced > q.Events && j.o.Client.HTTP == "2" && slices.ContainsFunc(j.client.Targets(), func(t *client.Target) bool { return t.Protocol() == "HTTP/2" }) {
		warn("answers shared connections over HTTP/2, so what came in one read cannot be timed apart: --http auto gives each its own")
	}
	if n := j.client.Misstated(); n > 0 {
		warn("%d answers stated more than %d tokens: their usage was not taken", n, formats.MostTokens)
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
	m.Fidelity = fidelity(&s, j.Plan)
	if n := s.Warmup.Scheduled; n > 0 {
		m.Fidelity["unmeasured_requests"] = n
	}
	p.describe(m.Fidelity)
}

// judge fills in the counts and the verdict; the lost rows stand in m.
func judge(m *formats.Manifest, s replayer.Stats, limits replayer.Limits, planned int64) {
	m.Requests, m.Errors, m.Dropped = s.Requests, s.Errors, s.Dropped
	m.Interrupted = s.Interrupted
	m.Invalid = s.Quality.Invalid(limits)
	if s.Requests.Sent > 0 && s.Requests.Completed == 0 && !s.Interrupted {
		m.Invalid = append([]string{"no request completed"}, m.Invalid...)
	}
	if n, of := s.Dropped[formats.ErrorMaxInFlight], s.Requests.Scheduled; float64(n) > mostDropped*float64(of) {
		m.Invalid = append([]string{fmt.Sprintf("%d of %d requests were not sent because too many were in flight, over the limit of %g %%", n, of, 100*mostDropped)}, m.Invalid...)
	}
	if n, of := s.Dropped[formats.ErrorLateStart], s.Requests.Scheduled; float64(n) > mostDropped*float64(of) {
		m.Invalid = append([]string{fmt.Sprintf("%d of %d requests were not sent because the replay began after their time, over the limit of %g %%", n, of, 100*mostDropped)}, m.Invalid...)
	}
	if s.Requests.Sent == 0 && s.Requests.Scheduled+planned > 0 && !s.Interrupted {
		m.Invalid = append([]string{"nothing was sent"}, m.Invalid...)
	}
	if m.RowsLost > 0 {
		m.Invalid = append([]string{fmt.Sprintf("%d rows are lost: the run directory's disk did not take them as fast as answers ended", m.RowsLost)}, m.Invalid...)
	}
	m.Valid = len(m.Invalid) == 0
}

// noteTexts say what Prompts.Notes counts.
var noteTexts = map[string]string{
	"tools_left_out":           "the recorded tools were left out",
	"images_left_out":          "recorded images were left out, as the server takes none; text makes up their tokens",
	"audio_left_out":           "recorded audio was left out, as its length is not recorded; text makes up its tokens",
	"prompts_divided":          "several prompts in one request got equal shares of its tokens, as theirs are not recorded",
	"stream_unknown":           "the trace does not say whether the answer was streamed, so it was",
	"output_unknown":           "the trace does not say how long the answer was, so the model decided",
	"output_not_forced":        "the answer's length was limited but not forced",
	"stop_left_out":            "stop strings were left out, as the length is forced",
	"response_format_left_out": "the response format was left out, as the length is forced",
	"cache_salt_left_out":      "the cache salt was left out, as the server takes none",
}
