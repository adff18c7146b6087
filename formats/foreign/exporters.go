package foreign

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/shadowtape/shadowtape/formats"
)

// lengths are the columns of formats that hold arrivals and lengths, and what decides whether a row is part of the load.
var lengths = []formats.Column{formats.ColPhase, formats.ColArrival, formats.ColInputTokens, formats.ColOutputTokens, formats.ColPrefixBlocks, formats.ColPrefixTailTokens, formats.ColSessionID}

// exporters is the table of formats that can be written.
var exporters = []Target{
	{
		Name: "mooncake", Summary: "Mooncake's JSON lines: Mooncake, AIPerf, Dynamo, SGLang",
		Fields:  "timestamp (ms), input_length, output_length, hash_ids",
		Hint:    "blocks of %d tokens",
		open:    mooncakeLines(mooncakeForm{unit: 1e6}),
		columns: lengths,
	},
	{
		Name: "vllm-timed-trace", Summary: "vllm bench serve --dataset-name timed_trace",
		Fields:  "timestamp (s), input_length, output_length, hash_ids; prompts that share nothing get ids of their own",
		Hint:    "vllm bench serve --dataset-name timed_trace --self-timed --timed-trace-chunk-hash-size %d --ignore-eos",
		open:    mooncakeLines(mooncakeForm{unit: 1e9, fresh: true}),
		columns: lengths,
	},
	{
		Name: "aiperf", Summary: "AIPerf's mooncake_trace with sessions",
		Fields:  "timestamp (ms), input_length, output_length, hash_ids, session_id",
		Hint:    "aiperf profile --input-file FILE --custom-dataset-type mooncake_trace --fixed-schedule --isl-block-size %d --extra-inputs ignore_eos:true",
		open:    mooncakeLines(mooncakeForm{unit: 1e6, sessions: true}),
		columns: lengths,
	},
	{
		Name: "guidellm", Summary: "GuideLLM's trace_synthetic",
		Fields:  "timestamp (s), input_length, output_length",
		Hint:    "guidellm run --profile kind=replay --data kind=trace_synthetic,source.kind=json_file,source.path=FILE.jsonl",
		open:    mooncakeLines(mooncakeForm{unit: 1e9, noBlocks: true}),
		columns: lengths,
	},
	{
		Name: "inference-perf", Summary: "inference-perf's trace replay (Azure CSV)",
		Fields:  "TIMESTAMP, ContextTokens, GeneratedTokens; always seven digits of a second",
		open:    azureCSV,
		columns: lengths,
	},
	{
		Name: "csv", Summary: "every column, for spreadsheets and data frames",
		Fields: "the columns of docs/FORMAT.md; unknown is empty, lists are JSON",
		open:   ownCSV,
	},
	{
		Name: "jsonl", Summary: "every column, a JSON object a row",
		Fields: "the columns of docs/FORMAT.md; unknown is null",
		open:   ownJSONL,
	},
	{
		Name: "otel", Summary: "OpenTelemetry GenAI spans, OTLP JSON lines",
		Fields: "gen_ai.* attributes, span times, session, parent",
		open:   otlp,
	},
}

// mooncakeForm is what differs between the readers of Mooncake's lines.
type mooncakeForm struct {
	unit     int64 // nanoseconds of a timestamp's unit
	fresh    bool
	noBlocks bool
	sessions bool
}

func mooncakeLines(form mooncakeForm) func(*output) (formats.Encoder, func() error, error) {
	return func(out *output) (formats.Encoder, func() error, error) {
		var blocks *blockLists
		if !form.noBlocks {
			var err error
			if blocks, err = newBlockLists(out, form.fresh); err != nil {
				return nil, nil, err
			}
		}
		base := out.base()
		var line []byte
		return func(x *formats.Exchange) error {
			if err := sized(x); err != nil {
				return err
			}
			at, err := later(x.ArrivalUnixNS, -base)
			if err != nil {
				return err
			}
			line = append(line[:0], `{"timestamp": `...)
			line = appendDecimal(line, at, form.unit)
			line = append(line, `, "input_length": `...)
			line = strconv.AppendInt(line, x.InputTokens.V, 10)
			line = append(line, `, "output_length": `...)
			line = strconv.AppendInt(line, x.OutputTokens.V, 10)
			if blocks != nil {
				list, err := blocks.list(x)
				if err != nil {
					return err
				}
				if list != nil {
					line = append(line, `, "hash_ids": [`...)
					for i, id := range list {
						if i > 0 {
							line = append(line, ", "...)
						}
						line = strconv.AppendInt(line, id, 10)
					}
					line = append(line, ']')
				}
			}
			if form.sessions && x.SessionID.Valid {
				line = append(line, `, "session_id": "`...)
				line = hex.AppendEncode(line, x.SessionID.V[:])
				line = append(line, '"')
			}
			line = append(line, "}\n"...)
			_, err = out.w.Write(line)
			return err
		}, nil, nil
	}
}

// appendDecimal writes n nanoseconds in a larger unit, exactly, without trailing zeros.
func appendDecimal(b []byte, n, unit int64) []byte {
	if n == math.MinInt64 {
		n++ // has no negative; a nanosecond in 292 years
	}
	if n < 0 {
		b, n = append(b, '-'), -n
	}
	b = strconv.AppendInt(b, n/unit, 10)
	if n %= unit; n != 0 {
		digits := strconv.FormatInt(unit+n, 10)[1:] // zero-padded to the unit's width
		b = append(b, '.')
		b = append(b, strings.TrimRight(digits, "0")...)
	}
	return b
}

// azureCSV writes Azure's form of 2023, with LF line ends. A relative trace is put at the start of 2000.
func azureCSV(out *output) (formats.Encoder, func() error, error) {
	shift := int64(0)
	if out.t.Header.TimeBase == "relative" {
		shift = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).UnixNano()
	}
	if _, err := out.w.WriteString("TIMESTAMP,ContextTokens,GeneratedTokens\n"); err != nil {
		return nil, nil, err
	}
	return func(x *formats.Exchange) error {
		if err := sized(x); err != nil {
			return err
		}
		ns, err := later(x.ArrivalUnixNS, shift)
		if err != nil {
			return err
		}
		at := time.Unix(0, ns).UTC().Format("2006-01-02 15:04:05.0000000")
		_, err = fmt.Fprintf(out.w, "%s,%d,%d\n", at, x.InputTokens.V, x.OutputTokens.V)
		return err
	}, nil, nil
}

func ownCSV(out *output) (formats.Encoder, func() error, error) {
	columns := formats.Columns()
	for i, c := range columns {
		if i > 0 {
			out.w.WriteByte(',')
		}
		out.w.WriteString(string(c))
	}
	out.w.WriteByte('\n') // the writer keeps the first error
	return func(x *formats.Exchange) error {
		for i, c := range columns {
			if i > 0 {
				out.w.WriteByte(',')
			}
			s, known := c.Text(x)
			if !known {
				continue
			}
			if strings.ContainsAny(s, ",\"\r\n") {
				s = `"` + strings.ReplaceAll(s, `"`, `""`) + `"`
			}
			out.w.WriteString(s)
		}
		return out.w.WriteByte('\n')
	}, nil, nil
}

func ownJSONL(out *output) (formats.Encoder, func() error, error) {
	columns := formats.Columns()
	return func(x *formats.Exchange) error {
		for i, c := range columns {
			sep := byte(',')
			if i == 0 {
				sep = '{'
			}
			out.w.WriteByte(sep)
			out.w.WriteByte('"')
			out.w.WriteString(string(c))
			out.w.WriteString(`":`)
			s, known := c.Text(x)
			switch {
			case !known:
				s = "null"
			case s == "NaN" || s == "+Inf" || s == "-Inf":
				if !c.Quoted() {
					s = "null" // a number that JSON cannot hold
					break
				}
				fallthrough
			case c.Quoted():
				b, err := json.Marshal(s)
				if err != nil {
					return err
				}
				s = string(b)
			}
			out.w.WriteString(s)
		}
		_, err := out.w.WriteString("}\n")
		return err
	}, nil, nil
}

// otlp writes spans as the OpenTelemetry Collector's file exporter does: a document a line, a span each.
func otlp(out *output) (formats.Encoder, func() error, error) {
	type value map[string]any
	type attribute struct {
		Key   string `json:"key"`
		Value value  `json:"value"`
	}
	operations := map[formats.Endpoint]string{formats.EndpointCompletions: "text_completion", formats.EndpointEmbeddings: "embeddings", formats.EndpointOther: "generate_content"}
	return func(x *formats.Exchange) error {
		if err := scheduled(x); err != nil {
			return err
		}
		operation, ok := operations[x.Endpoint]
		if !ok {
			operation = "chat"
		}
		var as []attribute
		add := func(key, kind string, v any) { as = append(as, attribute{key, value{kind: v}}) }
		whole := func(key string, n formats.Null[int64]) {
			if n.Valid {
				add(key, "intValue", strconv.FormatInt(n.V, 10)) // OTLP JSON carries 64-bit integers as strings
			}
		}
		real := func(key string, f formats.Null[float64]) {
			if f.Valid && !math.IsNaN(f.V) && !math.IsInf(f.V, 0) {
				add(key, "doubleValue", f.V)
			}
		}
		said := func(key, s string) {
			if s != "" {
				add(key, "stringValue", s)
			}
		}
		said("gen_ai.operation.name", operation)
		said("gen_ai.request.model", x.RequestModel)
		said("gen_ai.response.model", x.ResponseModel)
		if x.Stream.Valid {
			add("gen_ai.request.stream", "boolValue", x.Stream.V)
		}
		whole("gen_ai.usage.input_tokens", x.InputTokens)
		whole("gen_ai.usage.output_tokens", x.OutputTokens)
		whole("gen_ai.usage.cache_read.input_tokens", x.CachedTokens)
		whole("gen_ai.usage.reasoning.output_tokens", x.ReasoningTokens)
		whole("gen_ai.request.max_tokens", x.MaxTokens)
		whole("gen_ai.request.seed", x.Seed)
		whole("gen_ai.request.top_k", x.TopK)
		real("gen_ai.request.temperature", x.Temperature)
		real("gen_ai.request.top_p", x.TopP)
		real("gen_ai.request.frequency_penalty", x.FrequencyPenalty)
		real("gen_ai.request.presence_penalty", x.PresencePenalty)
		if x.FirstTokenNS.Valid {
			add("gen_ai.response.time_to_first_chunk", "doubleValue", json.Number(appendDecimal(nil, x.FirstTokenNS.V, 1e9)))
		}
		if x.FinishReason != "" {
			add("gen_ai.response.finish_reasons", "arrayValue", value{"values": []value{{"stringValue": x.FinishReason}}})
		}
		if x.SessionID.Valid {
			said("gen_ai.conversation.id", hex.EncodeToString(x.SessionID.V[:]))
		}
		if x.Status.Valid {
			whole("http.response.status_code", formats.Of(int64(x.Status.V)))
		}
		said("error.type", x.ErrorKind)
		status := map[string]any{}
		if x.ErrorKind != "" {
			status["code"] = 2
		}
		span := map[string]any{
			"traceId": fmt.Sprintf("%016x%016x", uint64(out.t.Header.StartUnixNS), uint64(x.ExchangeID)), "spanId": fmt.Sprintf("%016x", uint64(x.ExchangeID)),
			"name": strings.TrimSpace(operation + " " + x.RequestModel), "kind": 3,
			"startTimeUnixNano": strconv.FormatInt(x.ArrivalUnixNS, 10), "attributes": as, "status": status,
		}
		if x.EndNS.Valid {
			end, err := later(x.ArrivalUnixNS, x.EndNS.V)
			if err != nil {
				return err
			}
			span["endTimeUnixNano"] = strconv.FormatInt(end, 10)
		}
		if x.ParentID.Valid {
			span["parentSpanId"] = fmt.Sprintf("%016x", uint64(x.ParentID.V))
		}
		b, err := json.Marshal(map[string]any{"resourceSpans": []any{map[string]any{
			"resource":   map[string]any{"attributes": []attribute{{"service.name", value{"stringValue": "shadowtape"}}}},
			"scopeSpans": []any{map[string]any{"scope": map[string]any{"name": "shadowtape"}, "spans": []any{span}}},
		}}})
		if err != nil {
			return err
		}
		_, err = out.w.Write(append(b, '\n'))
		return err
	}, nil, nil
}
