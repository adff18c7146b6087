package foreign

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shadowtape/shadowtape/formats"
)

func TestMooncakeSessions(t *testing.T) {
	got := mustImport(t, "mooncake", Options{Prompts: promptsCumulative}, strings.Join([]string{
		`{"session_id":"a","timestamp":1000,"input_length":100,"output_length":5}`,
		`{"session_id":"b","timestamp":1500,"input_length":50,"output_length":5}`,
		`{"session_id":"a","delay":250.5,"input_length":120,"output_length":5}`,
		`{"session_id":"a","delay":1000,"text_input":"eight by","output_length":5}`,
		`{"session_id":"c","delay":10,"input_length":1,"output_length":5}`,
		`{"session_id":null,"delay":10,"input_length":1,"output_length":5}`,
	}, "\n"))
	if d := cmp.Diff([]int64{1000e6, 1250_500_000, 1500e6, 2250_500_000}, got.arrivals()); d != "" {
		t.Error(d)
	}
	if got.Reasons["no_time"] != 2 || got.Notes["arrival_from_delay"] != 2 {
		t.Errorf("%+v", got.Report)
	}
	x := got.rows[3]
	if x.Turn.V != 3 || x.SessionID != got.rows[0].SessionID || x.InputTokens != ns(2) || x.InputTokensSource != formats.TokensEstimated {
		t.Errorf("%+v", x)
	}
}

func TestAzureCopilot(t *testing.T) {
	got := mustImport(t, "azure-copilot", Options{}, `{"session_id":"s","date":"2026-05-01","turns":[{"turn_id":"1","llm_calls":[{"message_id":"m1","timestamp":"2026-05-01T10:00:00.5Z","duration_ms":2500,"initiator_type":"user","model":"m","result":"success","status_code":200,"tokens":{"total":110,"prompt":100,"completion":10,"cached":64,"cached_pct":64},"message_metadata":[{"type":"a"},{"type":"b"}]}],"tool_batches":[]},{"turn_id":"2","llm_calls":[{"message_id":"m2","timestamp":"2026-05-01T10:00:09Z","duration_ms":100,"model":"m","status_code":429,"tokens":{"prompt":-1}},{"message_id":"m3"}]}]}
{"session_id":"t","turns":[]}
{"session_id":"u","tur`)
	if len(got.rows) != 2 || got.Reasons["no_calls"] != 1 || got.Reasons["broken_row"] != 1 || got.Notes["calls_without_time"] != 1 {
		t.Fatalf("%+v", got.Report)
	}
	a, b := got.rows[0], got.rows[1]
	if a.InputTokens != ns(100) || a.CachedTokens != ns(64) || a.EndNS != ns(2500e6) || a.Status.V != 200 || a.Turn.V != 1 || a.MessageCount.V != 2 {
		t.Errorf("%+v", a)
	}
	if b.ErrorKind != "http_429" || b.Turn.V != 2 || b.InputTokens.Valid || a.SessionID != b.SessionID {
		t.Errorf("%+v", b)
	}
}

func TestRAGPulse(t *testing.T) {
	got := mustImport(t, "ragpulse", Options{}, `{"timestamp":"3","input_length":3000,"output_length":100,"session_id":"a","hash_ids":{"sys_prompt":[1],"passages_ids":[5,6],"history":[],"web_search":[],"user_input":[9]}}
{"timestamp":"2","input_length":2000,"output_length":50,"session_id":"b","hash_ids":{"sys_prompt":[1]}}

`)
	if d := cmp.Diff([]int64{2e9, 3e9}, got.arrivals()); d != "" {
		t.Error(d)
	}
	if got.Notes["inversions"] != 1 || got.Notes["chunks_not_blocks"] != 2 || got.rows[0].PrefixBlocks != nil || !got.rows[0].SessionID.Valid {
		t.Errorf("%+v", got.Report)
	}
}

func TestTraceLab(t *testing.T) {
	got := mustImport(t, "tracelab", Options{}, `{"provider":"claude","session_id":"s","round_index":0,"round_id":"r1","model":"m","input_tokens_total":1000,"prefix_tokens":900,"newly_append_tokens":100,"claude_cache_read_input_tokens":880,"output_tokens":50,"timing_events":[{"event_type":"response_end","timestamp":"2026-01-01T00:00:05.250Z"},{"event_type":"request_start","timestamp":"2026-01-01T00:00:01.000Z"}],"tools":[]}
{"provider":"codex","session_id":"s","round_index":1,"model":"m","input_tokens_total":1100,"prefix_tokens":1000,"claude_cache_read_input_tokens":null,"output_tokens":5,"reasoning_output_tokens":3,"timing_events":[{"event_type":"user_message","timestamp":"2026-01-01T00:00:09Z"}]}
{"provider":"codex","session_id":"s","input_tokens_total":1,"timing_events":[]}`)
	if len(got.rows) != 2 || got.Reasons["no_time"] != 1 {
		t.Fatalf("%+v", got.Report)
	}
	a, b := got.rows[0], got.rows[1]
	if a.EndNS != ns(4250e6) || a.CachedTokens != ns(880) || a.Turn.V != 1 || a.InputTokens != ns(1000) {
		t.Errorf("%+v", a)
	}
	if b.EndNS.Valid || b.CachedTokens != ns(1000) || b.ReasoningTokens != ns(3) || b.Turn.V != 2 {
		t.Errorf("%+v", b)
	}
}

func TestShareGPT(t *testing.T) {
	got := mustImport(t, "sharegpt", Options{}, `[{"id":"x","conversations":[{"from":"gpt","value":"unasked"},{"from":"human","value":"four"},{"from":"gpt","value":"eight by"},{"from":"human","value":"more"},{"from":"gpt","value":"ok"}]},
{"id":"y","conversations":[{"from":"human","value":"alone"}]},{"id":"z","conversations":null}]`)
	if got.Reasons["no_answer"] != 2 || len(got.rows) != 2 {
		t.Fatalf("%+v", got.Report)
	}
	a, b := got.rows[0], got.rows[1]
	if a.InputTokens != ns(3) || a.OutputTokens != ns(2) || b.InputTokens != ns(6) || b.OutputTokens != ns(1) || b.Turn.V != 2 || a.ArrivalUnixNS != 0 || a.InputTokensSource != formats.TokensEstimated {
		t.Errorf("%+v %+v", a, b)
	}
}

func TestHAR(t *testing.T) {
	got := mustImport(t, "har", Options{}, `{"log":{"version":"1.2","entries":[
{"startedDateTime":"2024-05-10T10:00:00.250+02:00","time":1500.5,"request":{"method":"POST","url":"https://api.example/v1/chat/completions","headers":[{"name":"X-Request-Id","value":"r"}],"bodySize":100,"postData":{"text":"{\"model\":\"m\",\"stream\":true,\"temperature\":0.3,\"messages\":[{\"role\":\"user\",\"content\":\"hello to you\"}]}"}},
 "response":{"status":200,"bodySize":900,"content":{"text":"data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\ndata: {\"choices\":[{\"finish_reason\":\"stop\"}]}\n\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":4}}\n\ndata: [DONE]\n"}},"timings":{"blocked":1,"dns":2,"connect":10,"ssl":6,"send":0.5,"wait":200,"receive":1287}},
{"startedDateTime":"2024-05-10T10:00:01Z","time":5,"request":{"method":"GET","url":"https://api.example/index.html"},"response":{"status":200}},
{"startedDateTime":"2024-05-10T10:00:02Z","time":5,"request":{"method":"POST","url":"https://api.example/v1/responses","postData":{"text":"{\"model\":\"m\",\"input\":\"four\"}"}},"response":{"status":500,"content":{}},"timings":{"dns":-1,"connect":-1,"ssl":-1,"send":1,"wait":3}},
{"startedDateTime":"soon","request":{"method":"POST","url":"/v1/responses"}}]}}`)
	if d := cmp.Diff(map[string]int64{"not_generation": 1, "broken_row": 1}, got.Reasons); d != "" {
		t.Error(d)
	}
	a, b := got.rows[0], got.rows[1]
	if a.ArrivalUnixNS != at(t, "2024-05-10T08:00:00.25Z") || a.EndNS != ns(1_500_500_000) || a.DNSNS != ns(2e6) || a.TLSNS != ns(6e6) || a.RequestEndNS != ns(13_500_000) ||
		a.ResponseHeaderNS != ns(213_500_000) || a.InputTokens != ns(9) || a.InputTokensSource != formats.TokensUsage || a.OutputTokens != ns(4) || a.FinishReason != "stop" ||
		a.Stream != formats.Of(true) || a.Temperature != formats.Of(0.3) || a.Endpoint != formats.EndpointChat || !a.CorrelationID.Valid {
		t.Errorf("%+v", a)
	}
	if b.ErrorKind != "http_500" || b.DNSNS.Valid || b.InputTokens != ns(1) || b.InputTokensSource != formats.TokensEstimated || b.Stream != formats.Of(false) {
		t.Errorf("%+v", b)
	}
}

// TestDetection: each format's own example looks like it, and like no other that comes before it in the table.
func TestDetection(t *testing.T) {
	for name, text := range map[string]string{
		"azure-llm": "TIMESTAMP,ContextTokens,GeneratedTokens\n", "azure-lmm": "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n",
		"mooncake":      `{"timestamp": 0, "input_length": 1, "output_length": 2, "hash_ids": [1]}`,
		"ragpulse":      `{"timestamp": "0", "input_length": 1, "output_length": 2, "session_id": "a", "hash_ids": {"sys_prompt": []}}`,
		"azure-copilot": `{"session_id":"s","date":"d","turns":[{"turn_id":"1"`,
		"tracelab":      `{"session_id":"s","round_index":0,"input_tokens_total":1}`,
		"bailian":       `{"chat_id":1,"parent_chat_id":-1,"timestamp":1,"input_length":1,"output_length":1,"turn":1,"hash_ids":[]}`,
		"burstgpt":      "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n",
		"weka":          `{"id":"a","models":[],"block_size":64,"hash_id_scope":"local","requests":[{"t":0`,
		"dynamo":        `{"schema":"dynamo.request.trace.v1","event_type":"request_end"}`,
		"otel":          `{"resourceSpans":[]}`,
		"litellm":       `{"request_id":"r","call_type":"acompletion","prompt_tokens":1,"startTime":"x"}`,
		"langfuse":      `{"data":[{"id":"1","traceId":"t","type":"SPAN","startTime":"x"}]}`,
		"openai-batch":  `{"custom_id":"a","method":"POST","url":"/v1/x","body":{}}`,
		"baseten":       "PAR1\x15\x04",
		"nginx":         `10.0.0.1 - - [x] "POST /v1/completions HTTP/1.1" 200 1 "-" "-"`,
		"sharegpt":      `[{"id":"x","conversations":[{"from":"human","value":"a"}]}]`,
		"har":           `{"log":{"version":"1.2","entries":[]}}`,
	} {
		found := ""
		for _, f := range importers {
			if f.detect([]byte(text)) {
				found = f.Name
				break
			}
		}
		if found != name {
			t.Errorf("%s is taken for %q", name, found)
		}
	}
	for _, f := range importers {
		for _, junk := range []string{"", "hello world\n", "{}", "[]", "[1,2", "\x00\x01", "a,b,c\n1,2,3\n"} {
			if f.detect([]byte(junk)) {
				t.Errorf("%s takes %q for its own", f.Name, junk)
			}
		}
	}
}
