package foreign

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/shadowtape/shadowtape/formats"
)

// results is the table of other tools' results, in the order in which they are tried on unknown content.
var results = []Result{
	{
		Name: "vllm-bench", Summary: "vllm bench serve, Python or Rust, with --save-result --save-detailed",
		Fields:   "input_lens, output_lens, ttfts, itls, latencies, start_times, errors, date, model_id",
		Warnings: []string{"vllm bench counts from sending, not from schedule; its first token is the first chunk with choices, empty ones included"},
		detect:   looksLikeVLLMBench,
		open:     vllmBench,
	},
	{
		Name: "guidellm", Summary: "GuideLLM benchmarks.json",
		Fields:   "benchmarks, their requests: start and end, first and last token, token counts",
		Warnings: []string{"guidellm counts from sending; its ITL is our tpot, its TPOT includes the first token"},
		detect:   anywhere(`"benchmarks"`),
		open:     guideLLM,
	},
	{
		Name: "aiperf", Summary: "AIPerf profile_export.jsonl",
		Fields:   "metadata: request_start_ns, request_end_ns, phase, session; metrics: time_to_first_token, request_latency, sequence lengths",
		Warnings: []string{"aiperf counts from before the connection is made; its ITL is our tpot"},
		detect:   anywhere(`"metadata"`, `"request_start_ns"`),
		open:     aiPerf,
	},
	{
		Name: "inference-perf", Summary: "inference-perf per_request_lifecycle_metrics.json",
		Fields:   "start_time, end_time, scheduled_time, token counts, output_token_times, error",
		Warnings: []string{"inference-perf takes content only for tokens: reasoning and tool calls are missing from its times"},
		detect:   anyOf(anywhere(`"start_time"`, `"end_time"`, `"info"`), anywhere(`"start_time"`, `"end_time"`, `"request"`)), // the request's text may be long
		open:     inferencePerf,
	},
	{
		Name: "llmeter", Summary: "LLMeter responses.jsonl",
		Fields: "request_time, time_to_first_token, time_to_last_token, num_tokens_input, num_tokens_output, error",
		detect: anywhere(`"time_to_last_token"`, `"num_tokens_output"`),
		open:   llMeter,
	},
	{
		Name: "vegeta", Summary: "vegeta encode --to json",
		Fields:   "timestamp, latency, code, bytes_in, bytes_out, error",
		Warnings: []string{"vegeta knows no tokens, and its clock starts when a worker is free"},
		detect:   keyed("attack", "seq", "latency"),
		open:     vegeta,
	},
	{
		Name: "k6", Summary: "k6 run --out json",
		Fields:   "points of http_req_duration: time, value, status",
		Warnings: []string{"k6 knows no tokens"},
		detect:   anywhere(`"metric"`, `"type"`, `"data"`),
		open:     k6,
	},
}

// listed makes a decoder of rows that were read at once.
func listed(rows []*formats.Exchange) formats.Decoder {
	return func(x *formats.Exchange) error {
		if len(rows) == 0 {
			return io.EOF
		}
		*x = *rows[0]
		rows = rows[1:]
		return nil
	}
}

// aiPerf reads a record a line.
func aiPerf(in *input, m *formats.Manifest) (formats.Decoder, error) {
	l := lines{r: in.r}
	return func(x *formats.Exchange) error {
		line, err := l.next()
		if errors.Is(err, errLineTooLong) {
			return l.broken(err)
		}
		if err != nil {
			return err
		}
		var r struct {
			Metadata record `json:"metadata"`
			Metrics  map[string]struct {
				Value json.RawMessage `json:"value"`
				Unit  string          `json:"unit"`
			} `json:"metrics"`
			Error record `json:"error"`
		}
		if err := l.object(line, &r); err != nil {
			return err
		}
		start := r.Metadata.count("request_start_ns")
		if !start.Valid {
			return l.left("no_time")
		}
		metric := func(name string) formats.Null[float64] {
			v, ok := r.Metrics[name]
			var f float64
			if !ok || json.Unmarshal(v.Value, &f) != nil {
				return formats.Null[float64]{}
			}
			switch v.Unit {
			case "ms":
				f *= 1e6
			case "sec", "s":
				f *= 1e9
			case "us":
				f *= 1e3
			}
			return formats.Of(f)
		}
		whole := func(name string) formats.Null[int64] {
			f := metric(name)
			if !f.Valid || !(f.V >= 0 && f.V < 1<<62) {
				return formats.Null[int64]{}
			}
			return formats.Of(int64(math.Round(f.V)))
		}
		x.ArrivalUnixNS = start.V // when it was sent: the schedule is not in the record, nor is the lag
		if strings.EqualFold(r.Metadata.text("benchmark_phase"), "warmup") {
			x.Phase = formats.PhaseWarmup
		}
		end := r.Metadata.count("request_end_ns")
		x.EndNS = in.since(x, end.V, end.Valid)
		x.SessionID = in.hash.of("session", r.Metadata.text("conversation_id"))
		if t := r.Metadata.small("turn_index"); t.Valid {
			x.Turn = formats.Of(t.V + 1)
		}
		x.CorrelationID = in.hash.of("request", r.Metadata.text("x_request_id"))
		x.ServerID = r.Metadata.text("url")
		x.InputTokens, x.OutputTokens = whole("input_sequence_length"), whole("output_sequence_length")
		if x.ReasoningTokens = whole("reasoning_token_count"); !x.OutputTokens.Valid {
			x.OutputTokens = whole("output_token_count")
		}
		counts(x, formats.TokensTokenizer)
		x.DNSNS, x.ConnectNS = whole("http_req_dns_lookup"), whole("http_req_connecting")
		if reused := metric("http_req_connection_reused"); reused.Valid {
			x.ConnReused = formats.Of(reused.V > 0)
		}
		if x.FirstTokenNS = whole("time_to_first_token"); x.FirstTokenNS.Valid {
			x.Stream = formats.Of(true)
			x.LastTokenNS = whole("request_latency") // to its last content chunk
		}
		switch {
		case r.Error != nil:
			failed(x, r.Error.small("code"), strings.Contains(strings.ToLower(r.Error.text("type")), "timeout"))
		case r.Metadata.truth("was_cancelled").V:
			x.EndReason = formats.EndClientAbort
		default:
			x.EndReason = formats.EndComplete
		}
		return nil
	}, nil
}

// counts says where both token counts came from.
func counts(x *formats.Exchange, s formats.TokenSource) {
	if x.InputTokens.Valid {
		x.InputTokensSource = s
	}
	if x.OutputTokens.Valid {
		x.OutputTokensSource = s
	}
}

// inferencePerf reads its list of requests. Times are of a clock of its own: they count from the first request.
func inferencePerf(in *input, m *formats.Manifest) (formats.Decoder, error) {
	rs, err := newRecords(in, "")
	if err != nil {
		return nil, err
	}
	in.header.TimeBase = "relative"
	type metrics struct {
		Output scalar    `json:"output_tokens"`
		Times  []float64 `json:"output_token_times"`
	}
	return func(x *formats.Exchange) error {
		r, err := rs.next()
		if err != nil {
			return err
		}
		start, end, scheduled := r.number("start_time"), r.number("end_time"), r.number("scheduled_time")
		if !start.Valid {
			return rs.left("no_time")
		}
		from := start.V
		if scheduled.Valid && scheduled.V > 0 && scheduled.V <= start.V {
			from = scheduled.V
			x.SentNS = seconds(start.V - from)
		}
		x.ArrivalUnixNS = atSeconds(from)
		x.EndNS = seconds(end.V - from)
		var info struct {
			metrics
			Input    scalar  `json:"input_tokens"`
			Response metrics `json:"response_metrics"`
			Request  struct {
				Text struct {
					Input scalar `json:"input_tokens"`
				} `json:"text"`
			} `json:"request_metrics"`
		}
		if err := json.Unmarshal(r["info"], &info); err != nil && len(r["info"]) > 0 {
			return rs.broken(plainJSON(err))
		}
		times := info.Times
		if len(times) == 0 {
			times = info.Response.Times
		}
		if x.InputTokens, err = count(either(string(info.Input), string(info.Request.Text.Input))); err != nil {
			return rs.broken(err)
		}
		if x.OutputTokens, err = count(either(string(info.Output), string(info.Response.Output))); err != nil {
			return rs.broken(err)
		}
		counts(x, formats.TokensTokenizer)
		if len(times) > 0 {
			gaps := make([]float64, 0, len(times)-1)
			for i := range times[1:] {
				gaps = append(gaps, times[i+1]-times[i])
			}
			streamed(x, times[0]-from, gaps)
		}
		if e := r.object("error"); e != nil {
			failed(x, formats.Null[int32]{}, strings.Contains(strings.ToLower(e.text("error_type")), "timeout"))
			return nil
		}
		x.EndReason = formats.EndComplete
		return nil
	}, nil
}

// llMeter reads its responses. Versions before request_time do not say when a request was sent.
func llMeter(in *input, m *formats.Manifest) (formats.Decoder, error) {
	rs, err := newRecords(in, "")
	if err != nil {
		return nil, err
	}
	warned := false
	return func(x *formats.Exchange) error {
		r, err := rs.next()
		if err != nil {
			return err
		}
		at, ok, err := r.instant("request_time")
		if err != nil {
			return rs.broken(err)
		}
		if !ok {
			x.Drawn = formats.Of(formats.DrawnArrival)
			if !warned {
				m.Warnings = append(m.Warnings, "the file does not say when requests started: rates and what was in flight mean nothing")
				warned = true
			}
		}
		x.ArrivalUnixNS = at
		if ttft := r.number("time_to_first_token"); ttft.Valid {
			streamed(x, ttft.V, nil)
			x.EventGapUS = nil
		}
		last := r.number("time_to_last_token")
		if last.Valid {
			x.EndNS = seconds(last.V)
			if x.FirstTokenNS.Valid {
				x.LastTokenNS = x.EndNS
			}
		}
		x.InputTokens, x.OutputTokens = r.count("num_tokens_input"), r.count("num_tokens_output")
		x.CachedTokens, x.ReasoningTokens = r.count("num_tokens_input_cached"), r.count("num_tokens_output_reasoning")
		used(x)
		if r.text("error") != "" {
			failed(x, formats.Null[int32]{}, strings.Contains(strings.ToLower(r.text("error")), "timeout"))
			return nil
		}
		x.EndReason = formats.EndComplete
		return nil
	}, nil
}

// vegeta reads its results as JSON lines.
func vegeta(in *input, m *formats.Manifest) (formats.Decoder, error) {
	rs, err := newRecords(in, "")
	if err != nil {
		return nil, err
	}
	return func(x *formats.Exchange) error {
		r, err := rs.next()
		if err != nil {
			return err
		}
		at, ok, err := r.instant("timestamp")
		switch {
		case err != nil:
			return rs.broken(err)
		case !ok:
			return rs.left("no_time")
		}
		x.ArrivalUnixNS, x.EndNS = at, r.count("latency")
		x.RequestBytes, x.ResponseBytes = r.count("bytes_out"), r.count("bytes_in")
		return httpOutcome(x, r.small("code"), r.text("error"))
	}, nil
}

// httpOutcome ends an exchange of which only the status and an error's text are known.
func httpOutcome(x *formats.Exchange, status formats.Null[int32], problem string) error {
	if status.V == 0 {
		status = formats.Null[int32]{}
	}
	x.Status = status
	if status.V >= 400 || problem != "" {
		failed(x, status, strings.Contains(strings.ToLower(problem), "timeout"))
		return nil
	}
	x.EndReason = formats.EndComplete
	return nil
}

// k6 reads the points of http_req_duration; a point's time is when its request ended.
func k6(in *input, m *formats.Manifest) (formats.Decoder, error) {
	l := lines{r: in.r}
	return func(x *formats.Exchange) error {
		for {
			line, err := l.next()
			if errors.Is(err, errLineTooLong) {
				return l.broken(err)
			}
			if err != nil {
				return err
			}
			var p struct {
				Type   string `json:"type"`
				Metric string `json:"metric"`
				Data   struct {
					Time  scalar  `json:"time"`
					Value float64 `json:"value"`
					Tags  record  `json:"tags"`
				} `json:"data"`
			}
			if err := l.object(line, &p); err != nil {
				return err
			}
			if p.Type != "Point" || p.Metric != "http_req_duration" { // other metrics of the same requests
				continue
			}
			end, err := clock(string(p.Data.Time))
			if err != nil {
				return l.broken(err)
			}
			x.EndNS = seconds(p.Data.Value / 1e3)
			x.ArrivalUnixNS = end - x.EndNS.V
			x.Endpoint = pathEndpoint(p.Data.Tags.text("url"))
			return httpOutcome(x, p.Data.Tags.small("status"), p.Data.Tags.text("error"))
		}
	}, nil
}

// guideLLM reads the requests of one benchmark, of one report. Where a report holds several, each is a run of its own: the first is read,
// and the rest are named.
func guideLLM(in *input, m *formats.Manifest) (formats.Decoder, error) {
	b, err := readWhole(in)
	if err != nil {
		return nil, err
	}
	var doc struct {
		Benchmarks []struct {
			Requests map[string][]record `json:"requests"`
		} `json:"benchmarks"`
	}
	if err := json.Unmarshal(b, &doc); err != nil {
		return nil, plainJSON(err)
	}
	if len(doc.Benchmarks) == 0 {
		return nil, errors.New("it holds no benchmark")
	}
	if n := len(doc.Benchmarks); n > 1 {
		m.Warnings = append(m.Warnings, fmt.Sprintf("the report holds %d benchmarks; this is the first", n))
	}
	var rows []*formats.Exchange
	for _, kind := range []string{"successful", "incomplete", "errored"} {
		for _, r := range doc.Benchmarks[0].Requests[kind] {
			x := guideRequest(r, in)
			if x == nil {
				in.notes["requests_without_time"]++
				continue
			}
			switch kind {
			case "successful":
				x.EndReason = formats.EndComplete
			case "incomplete":
				x.EndReason = formats.EndRunEnd
			default:
				failed(x, formats.Null[int32]{}, false)
			}
			rows = append(rows, x)
		}
	}
	return listed(rows), nil
}

// guideRequest reads a request under the names of its versions; nil where it was never sent.
func guideRequest(r record, in *input) *formats.Exchange {
	t := record{}
	for _, place := range []record{r, r.object("info"), r.object("scheduler_info"), r.object("info").object("timings")} {
		for k, v := range place {
			if string(v) != "null" {
				t[k] = v
			}
		}
	}
	start := t.number("request_start", "start_time")
	if !start.Valid || start.V == 0 {
		return nil
	}
	x := &formats.Exchange{}
	from := start.V
	if s := t.number("targeted_start", "scheduled_time"); s.Valid && s.V > 0 && s.V <= start.V {
		from = s.V
		x.SentNS = seconds(start.V - from)
	}
	x.ArrivalUnixNS = atSeconds(from)
	after := func(names ...string) formats.Null[int64] {
		v := t.number(names...)
		if !v.Valid || v.V < from {
			return formats.Null[int64]{}
		}
		return seconds(v.V - from)
	}
	x.EndNS = after("request_end", "end_time")
	if x.FirstTokenNS = after("first_token_iteration", "first_iteration", "first_token_time"); x.FirstTokenNS.Valid {
		x.Stream = formats.Of(true)
		x.LastTokenNS = after("last_token_iteration", "last_iteration", "last_token_time")
	}
	x.InputTokens, x.OutputTokens = t.count("prompt_tokens", "value_prompt_tokens"), t.count("output_tokens", "value_output_tokens")
	x.CachedTokens = t.count("cached_tokens")
	used(x)
	x.CorrelationID = in.hash.of("request", t.text("request_id"))
	return x
}
