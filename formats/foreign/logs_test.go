package foreign

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/parquet-go/parquet-go"

	"github.com/shadowtape/shadowtape/formats"
)

func at(t *testing.T, s string) int64 {
	t.Helper()
	v, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		t.Fatal(err)
	}
	return v.UnixNano()
}

func ns(n int64) formats.Null[int64] { return formats.Of(n) }

func TestOTelFlattened(t *testing.T) {
	got := mustImport(t, "otel", Options{}, file(t, "otel_prefix_sharing.json"))
	if got.Kept != 7 || got.Dropped != 0 {
		t.Fatalf("%+v", got.Report)
	}
	x := got.rows[1]
	if x.InputTokens != ns(45) || x.OutputTokens != ns(15) || x.InputTokensSource != formats.TokensUsage || x.RequestModel != "gpt-4o" || x.FinishReason != "stop" ||
		x.Endpoint != formats.EndpointChat || x.EndNS != ns(1e9) || x.MessageCount != formats.Of(int32(1)) || x.ArrivalUnixNS != at(t, "2026-02-26T10:00:02Z") {
		t.Errorf("%+v", x)
	}
}

func TestOTLP(t *testing.T) {
	line := func(s string) string { return strings.ReplaceAll(s, "\n", "") + "\n" }
	got := mustImport(t, "otel", Options{Prompts: promptsCumulative}, line(`{"resourceSpans":[{"resource":{"attributes":[]},"scopeSpans":[{"spans":[
{"traceId":"t","spanId":"b","parentSpanId":"a","name":"chat m","startTimeUnixNano":"1700000000500000001","endTimeUnixNano":"1700000002500000001","attributes":[
 {"key":"gen_ai.operation.name","value":{"stringValue":"chat"}},{"key":"gen_ai.usage.input_tokens","value":{"intValue":"120"}},
 {"key":"gen_ai.usage.output_tokens","value":{"intValue":7}},{"key":"gen_ai.request.temperature","value":{"doubleValue":0.2}},
 {"key":"gen_ai.request.stream","value":{"boolValue":true}},{"key":"gen_ai.response.time_to_first_chunk","value":{"doubleValue":0.25}},
 {"key":"gen_ai.response.finish_reasons","value":{"arrayValue":{"values":[{"stringValue":"length"}]}}},
 {"key":"gen_ai.conversation.id","value":{"stringValue":"c1"}},{"key":"gen_ai.usage.cache_read.input_tokens","value":{"intValue":"64"}}],"status":{}},
{"traceId":"t","spanId":"a","name":"chat m","startTimeUnixNano":"1700000000000000000","endTimeUnixNano":"1700000003000000000","attributes":[
 {"key":"gen_ai.operation.name","value":{"stringValue":"chat"}},{"key":"gen_ai.usage.prompt_tokens","value":{"intValue":"10"}},
 {"key":"gen_ai.conversation.id","value":{"stringValue":"c1"}}],"status":{"code":"STATUS_CODE_ERROR"}},
{"spanId":"c","name":"execute_tool","startTimeUnixNano":"1700000000000000000","attributes":[{"key":"gen_ai.operation.name","value":{"stringValue":"execute_tool"}}]},
{"spanId":"d","name":"chat","attributes":[{"key":"gen_ai.operation.name","value":{"stringValue":"chat"}}]}]}]}]}`)+
		line(`{"resourceSpans":[{"scopeSpans":[{"spans":[{"spanId":"e","startTimeUnixNano":"1700000010000000000","endTimeUnixNano":"1700000009000000000","status":{"code":2},
"attributes":[{"key":"gen_ai.operation.name","value":{"stringValue":"embeddings"}},{"key":"error.type","value":{"stringValue":"ReadTimeout"}}]}]}]}]}`)+
		`{"resourceSpans":[{"scopeSpans"`)
	if d := cmp.Diff(map[string]int64{"not_generation": 1, "broken_row": 2}, got.Reasons); d != "" {
		t.Error(d)
	}
	if len(got.rows) != 3 {
		t.Fatalf("%d rows", len(got.rows))
	}
	a, b, e := got.rows[0], got.rows[1], got.rows[2]
	if a.ErrorKind != "error" || a.InputTokens != ns(10) || a.Turn.V != 1 || a.OutputTokens.Valid {
		t.Errorf("%+v", a)
	}
	if b.ArrivalUnixNS != 1700000000500000001 || b.FirstTokenNS != ns(250e6) || b.EndNS != ns(2e9) || b.InputTokens != ns(120) || b.OutputTokens != ns(7) ||
		b.CachedTokens != ns(64) || b.Stream != formats.Of(true) || b.Temperature != formats.Of(0.2) || b.FinishReason != "length" || b.Turn.V != 2 ||
		b.ParentID != formats.Of(a.ExchangeID) || b.SessionID != a.SessionID || b.EndReason != formats.EndComplete {
		t.Errorf("%+v", b)
	}
	if e.Endpoint != formats.EndpointEmbeddings || e.ErrorKind != formats.ErrorTimeout || e.EndNS.Valid || got.Notes["time_before_arrival"] != 1 {
		t.Errorf("%+v, %v", e, got.Notes)
	}
}

// TestOTelEstimates: a span without usage has its text measured; no word of it is kept.
func TestOTelEstimates(t *testing.T) {
	got := mustImport(t, "otel", Options{}, `[{"span_id":"a","start_time":"2026-02-25T10:00:00.000000","end_time":"2026-02-25T10:00:02.500000","attributes":{"gen_ai.operation.name":"chat",
"gen_ai.input.messages":"[{\"role\": \"user\", \"content\": \"Where is the secret?\"},{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"Tell me!\"}]}]","gen_ai.output.text":"Elsewhere"}}]`)
	x := got.rows[0]
	if x.InputTokens != ns((20+8+3)/4) || x.InputTokensSource != formats.TokensEstimated || x.OutputTokens != ns(3) || x.MessageCount.V != 2 || got.Notes["tokens_estimated"] != 2 {
		t.Errorf("%+v, %v", x, got.Notes)
	}
	if x.ArrivalUnixNS != at(t, "2026-02-25T10:00:00Z") {
		t.Error("a time without zone is UTC")
	}
}

func TestLiteLLM(t *testing.T) {
	want := func(t *testing.T, got imported) {
		t.Helper()
		if d := cmp.Diff(map[string]int64{"cache_hit": 1, "no_time": 1, "broken_row": 1}, got.Reasons); d != "" {
			t.Error(d)
		}
		if len(got.rows) != 3 {
			t.Fatalf("%d rows", len(got.rows))
		}
		a, b, c := got.rows[0], got.rows[1], got.rows[2]
		if a.FirstTokenNS != ns(400e6) || a.EndNS != ns(2e9) || a.Stream != formats.Of(true) || a.InputTokens != ns(11) || a.OutputTokens != ns(7) || a.RequestModel != "group-a" ||
			a.ResponseModel != "gpt-x" || a.Endpoint != formats.EndpointChat || !a.SessionID.Valid || !a.TenantID.Valid || a.EndReason != formats.EndComplete {
			t.Errorf("%+v", a)
		}
		if b.FirstTokenNS.Valid || b.Stream.Valid || b.Endpoint != formats.EndpointEmbeddings {
			t.Errorf("not streamed: %+v", b)
		}
		if c.ErrorKind != "error" || c.InputTokens.Valid || c.OutputTokens.Valid {
			t.Errorf("a failed call's 0 tokens are unknown: %+v", c)
		}
	}
	t.Run("json lines", func(t *testing.T) {
		want(t, mustImport(t, "litellm", Options{}, strings.Join([]string{
			`{"request_id":"r1","call_type":"acompletion","api_key":"hash","prompt_tokens":11,"completion_tokens":7,"startTime":"2024-05-10T00:00:00.100Z","endTime":"2024-05-10T00:00:02.100Z","completionStartTime":"2024-05-10T00:00:00.500Z","model":"gpt-x","model_group":"group-a","cache_hit":"False","session_id":"s","status":"success"}`,
			`{"request_id":"r2","call_type":"aembedding","prompt_tokens":5,"completion_tokens":0,"startTime":"2024-05-10T00:00:01Z","endTime":"2024-05-10T00:00:02Z","completionStartTime":"2024-05-10T00:00:02Z","model":"e","cache_hit":"None","status":"success"}`,
			`{"request_id":"r3","call_type":"acompletion","prompt_tokens":0,"completion_tokens":0,"startTime":"2024-05-10T00:00:03Z","endTime":"2024-05-10T00:00:04Z","model":"gpt-x","status":"failure"}`,
			`{"request_id":"r4","call_type":"acompletion","prompt_tokens":9,"completion_tokens":9,"startTime":"2024-05-10T00:00:05Z","cache_hit":"True"}`,
			`{"request_id":"r5","call_type":"acompletion","prompt_tokens":9}`,
			`{"request_id":"r6","call_type":"acompl`,
		}, "\n")))
	})
	t.Run("csv", func(t *testing.T) {
		want(t, mustImport(t, "litellm", Options{}, "request_id,call_type,api_key,prompt_tokens,completion_tokens,startTime,endTime,completionStartTime,model,model_group,cache_hit,session_id,status,messages\r\n"+
			"r1,acompletion,hash,11,7,2024-05-10 00:00:00.1,2024-05-10 00:00:02.1,2024-05-10 00:00:00.5,gpt-x,group-a,False,s,success,\"{\"\"a\"\": \"\"two\r\nlines\"\"}\"\r\n"+
			"r2,aembedding,,5,0,2024-05-10 00:00:01,2024-05-10 00:00:02,2024-05-10 00:00:02,e,,,,success,{}\r\n"+
			"r3,acompletion,,0,0,2024-05-10 00:00:03,2024-05-10 00:00:04,,gpt-x,,,,failure,{}\r\n"+
			"r4,acompletion,,9,9,2024-05-10 00:00:05,,,,,True,,success,{}\r\n"+
			"r5,acompletion,,9,9,,,,,,,,success,{}\r\n"+
			"r6,acompletion"))
	})
}

func TestLangfuse(t *testing.T) {
	got := mustImport(t, "langfuse", Options{}, `{"data":[
{"id":"1","traceId":"t","type":"SPAN","startTime":"2024-05-10T00:00:00.000Z"},
{"id":"2","traceId":"t","type":"GENERATION","startTime":"2024-05-10T00:00:00.000Z","completionStartTime":"2024-05-10T00:00:00.250Z","endTime":"2024-05-10T00:00:01.500Z",
 "model":"m","modelParameters":{"temperature":0.5,"max_tokens":100},"usageDetails":{"input":50,"output":8,"input_cached_tokens":32},"latency":1500,"timeToFirstToken":0.25,"level":"DEFAULT","sessionId":"s"},
{"id":"3","traceId":"t","type":"GENERATION","startTime":"2024-05-10T00:00:02.000Z","model":"m","usage":{"input":0,"output":0},"level":"ERROR"}],"meta":{"page":1}}`)
	if got.Reasons["not_generation"] != 1 || len(got.rows) != 2 {
		t.Fatalf("%+v", got.Report)
	}
	x := got.rows[0]
	if x.FirstTokenNS != ns(250e6) || x.EndNS != ns(1500e6) || x.InputTokens != ns(50) || x.OutputTokens != ns(8) || x.CachedTokens != ns(32) || x.Temperature != formats.Of(0.5) || x.MaxTokens != ns(100) {
		t.Errorf("%+v", x)
	}
	if x := got.rows[1]; x.ErrorKind != "error" || x.InputTokens.Valid {
		t.Errorf("%+v", x)
	}
	csv := mustImport(t, "langfuse", Options{}, "id,traceId,type,startTime,endTime,usageDetails\n1,t,GENERATION,2024-05-10T00:00:00.000Z,2024-05-10T00:00:01Z,\"{\"\"input\"\":3,\"\"output\"\":4}\"\n")
	if x := csv.rows[0]; x.InputTokens != ns(3) || x.OutputTokens != ns(4) {
		t.Errorf("%+v", x)
	}
}

func TestOpenAIBatch(t *testing.T) {
	got := mustImport(t, "openai-batch", Options{}, `{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{"model":"m","max_tokens":50,"messages":[{"role":"user","content":"eight by"}]}}
{"custom_id":"b","method":"POST","url":"/v1/embeddings","body":{"model":"e","input":["four"]}}
{"custom_id":"c","method":"POST","url":"/v1/embeddings"}`)
	if len(got.rows) != 2 || got.Reasons["no_body"] != 1 || got.header.Extra["arrivals"] != "order only" || got.header.TimeQuantumNS != 0 {
		t.Fatalf("%+v, %+v", got.Report, got.header)
	}
	a, b := got.rows[0], got.rows[1]
	if a.ArrivalUnixNS != 0 || a.Endpoint != formats.EndpointChat || a.MaxTokens != ns(50) || a.InputTokens != ns(2) || a.InputTokensSource != formats.TokensEstimated || a.MessageCount.V != 1 || a.Stream != formats.Of(false) {
		t.Errorf("%+v", a)
	}
	if b.Endpoint != formats.EndpointEmbeddings || b.InputTokens != ns(1) {
		t.Errorf("%+v", b)
	}
	got = mustImport(t, "openai-batch", Options{}, `{"id":"1","custom_id":"a","response":{"status_code":200,"request_id":"q","body":{"object":"chat.completion","model":"m","usage":{"prompt_tokens":12,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":8}},"choices":[{"finish_reason":"stop"}]}},"error":null}
{"id":"2","custom_id":"b","response":{"status_code":429,"body":{"error":{}}},"error":null}`)
	a, b = got.rows[0], got.rows[1]
	if a.InputTokens != ns(12) || a.OutputTokens != ns(3) || a.CachedTokens != ns(8) || a.FinishReason != "stop" || a.Status.V != 200 || a.InputTokensSource != formats.TokensUsage {
		t.Errorf("%+v", a)
	}
	if b.ErrorKind != "http_429" || b.InputTokens.Valid {
		t.Errorf("%+v", b)
	}
}

func TestNginx(t *testing.T) {
	got := mustImport(t, "nginx", Options{}, `10.0.0.1 - - [10/May/2024:02:00:05 +0200] "POST /v1/chat/completions HTTP/1.1" 200 1234 "-" "python"
10.0.0.1 - - [10/May/2024:02:00:06 +0200] "GET /health HTTP/1.1" 200 2 "-" "kube-probe"
10.0.0.1 - - [10/May/2024:02:00:07 +0200] "POST /v1/completions HTTP/1.1" 499 0 "-" "curl"
10.0.0.1 - - [10/May/2024:02:00:0`)
	if d := cmp.Diff(map[string]int64{"not_generation": 1, "broken_row": 1}, got.Reasons); d != "" {
		t.Error(d)
	}
	a, b := got.rows[0], got.rows[1]
	if a.ArrivalUnixNS != at(t, "2024-05-10T00:00:05Z") || a.EndNS.Valid || a.ResponseBytes != ns(1234) || a.EndReason != formats.EndComplete || a.InputTokens.Valid {
		t.Errorf("%+v", a)
	}
	if b.EndReason != formats.EndClientAbort || b.Status.Valid || b.ErrorKind != "" {
		t.Errorf("%+v", b)
	}
	own := Options{LogFormat: `$msec $request_method $request_uri $status $request_time "$upstream_addr" "$upstream_header_time" $request_id`}
	got = mustImport(t, "nginx", own, `1715299205.250 POST /v1/chat/completions 200 1.250 "10.0.0.7:8000, 10.0.0.8:8000" "-, 0.300" abc
1715299206.000 POST /v1/chat/completions 503 0.001 "-" "-" def`)
	a, b = got.rows[0], got.rows[1]
	if a.ArrivalUnixNS != 1715299204_000_000_000 || a.EndNS != ns(1250e6) || a.ResponseHeaderNS != ns(300e6) || a.ServerID != "10.0.0.8:8000" || !a.CorrelationID.Valid {
		t.Errorf("%+v", a)
	}
	if b.ErrorKind != "http_503" || b.ServerID != "" || b.ResponseHeaderNS.Valid {
		t.Errorf("%+v", b)
	}
	for _, bad := range []string{"no variables", "$a$b", "${a", "$ x"} {
		if _, err := importText(t, "nginx", Options{LogFormat: bad}, "x\n"); err == nil {
			t.Errorf("format %q was taken", bad)
		}
	}
}

func TestEnvoy(t *testing.T) {
	got := mustImport(t, "envoy", Options{}, `[2024-05-10T00:00:05.123Z] "POST /v1/chat/completions HTTP/1.1" 200 - 512 2048 1500 120 "-" "python" "req-1" "gw" "10.0.0.7:8000"
[2024-05-10T00:00:06.000Z] "POST /v1/responses HTTP/2" 0 DC 100 0 30 - "-" "-" "-" "gw" "10.0.0.8:8000"
[2024-05-10T00:00:07.000Z] "POST /v1/messages HTTP/2" 504 UT 100 24 15000 - "-" "-" "-" "gw" "10.0.0.8:8000"
[2024-05-10T00:00:08.000Z] "GET /metrics HTTP/1.1" 200 - 0 99 1 - "-" "-" "-" "gw" "10.0.0.8:8000"
`)
	if len(got.rows) != 3 || got.Reasons["not_generation"] != 1 {
		t.Fatalf("%+v", got.Report)
	}
	a, b, c := got.rows[0], got.rows[1], got.rows[2]
	if a.ArrivalUnixNS != at(t, "2024-05-10T00:00:05.123Z") || a.EndNS != ns(1500e6) || a.RequestBytes != ns(512) || a.ResponseBytes != ns(2048) || a.ServerID != "10.0.0.7:8000" || a.Status.V != 200 || !a.CorrelationID.Valid {
		t.Errorf("%+v", a)
	}
	if b.EndReason != formats.EndClientAbort || b.ErrorKind != "" || b.Endpoint != formats.EndpointResponses {
		t.Errorf("%+v", b)
	}
	if c.EndReason != formats.EndTimeout || c.ErrorKind != formats.ErrorTimeout {
		t.Errorf("%+v", c)
	}
	own := Options{LogFormat: `%START_TIME(%s.%3f)% %REQ(:METHOD)% %REQ(:PATH):200% %RESPONSE_CODE% %DURATION% %RESPONSE_DURATION%`}
	got = mustImport(t, "envoy", own, "1715299205.123 POST /v1/completions?x=1 200 900 250\n")
	if x := got.rows[0]; x.ArrivalUnixNS != 1715299205_123_000_000 || x.ResponseHeaderNS != ns(250e6) || x.Endpoint != formats.EndpointCompletions {
		t.Errorf("%+v", x)
	}
	for _, bad := range []string{"plain", "%A%%B%", "%A"} {
		if _, err := importText(t, "envoy", Options{LogFormat: bad}, "x\n"); err == nil {
			t.Errorf("format %q was taken", bad)
		}
	}
}

func TestBaseten(t *testing.T) {
	type exported struct {
		Start    int64   `parquet:"timestamp_start_unix_ms"`
		Prompt   string  `parquet:"prompt"`
		Input    int32   `parquet:"input_tokens"`
		Output   int64   `parquet:"output_tokens"`
		Session  *string `parquet:"provided_session_id"`
		Hashes   []int64 `parquet:"total_hashes,list"`
		Block    int64   `parquet:"block_size"`
		Canceled bool    `parquet:"request_canceled"`
		E2E      float64 `parquet:"duration_e2e_ms"`
	}
	s := "x"
	var b bytes.Buffer
	w := parquet.NewGenericWriter[exported](&b)
	if _, err := w.Write([]exported{
		{1715299205123, "a secret prompt", 40, 7, &s, []int64{11, 12}, 16, false, 1500.25},
		{1715299206000, "another", 20, 0, nil, []int64{11}, 16, true, 30},
	}); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	got := mustImport(t, "baseten", Options{}, b.String())
	if len(got.rows) != 2 {
		t.Fatalf("%+v", got.Report)
	}
	x, y := got.rows[0], got.rows[1]
	if x.ArrivalUnixNS != 1715299205_123_000_000 || x.InputTokens != ns(40) || x.OutputTokens != ns(7) || !x.SessionID.Valid || x.EndNS != ns(1_500_250_000) || x.PrefixTailTokens != ns(8) || len(x.PrefixBlocks) != 2 {
		t.Errorf("%+v", x)
	}
	if y.EndReason != formats.EndClientAbort || y.OutputTokens != ns(0) || y.SessionID.Valid {
		t.Errorf("a canceled request keeps its 0: %+v", y)
	}
	if h := got.header; h.PrefixBlockSize != 16 || h.PrefixBlockRule != "floor" {
		t.Errorf("%+v", h)
	}
	if _, err := importText(t, "baseten", Options{}, b.String()[:b.Len()-20]); err == nil {
		t.Error("a cut file was read")
	}
}

func TestDynamo(t *testing.T) {
	got := mustImport(t, "dynamo", Options{}, `{"schema":"dynamo.request.trace.v1","event_type":"request_end","event_time_unix_ms":1700000001500,"agent_context":{"session_id":"s","trajectory_id":"s:a"},"request":{"request_id":"r","model":"m","output_tokens":8,"request_received_ms":1700000000000,"ttft_ms":10.5,"total_time_ms":1500,"replay":{"trace_block_size":64,"input_length":130,"input_sequence_hashes":[18446744073709551615,2]}}}
{"schema":"dynamo.request.trace.v1","event_type":"tool_start","event_time_unix_ms":1700000001600}
{"schema":"dynamo.request.trace.v1","event_type":"request_end","event_time_unix_ms":1700000003000,"request":{"request_id":"q","input_tokens":5,"output_tokens":1,"total_time_ms":1000}}
{"schema":"dynamo.request.trace.v1","event_type":"request_end","event_time_unix_ms":1700000003000,"request":{"request_id":"q","output_tokens":1}}`)
	if d := cmp.Diff(map[string]int64{"not_generation": 1, "no_time": 1}, got.Reasons); d != "" {
		t.Error(d)
	}
	x, y := got.rows[0], got.rows[1]
	if x.InputTokens != ns(130) || x.PrefixBlocks[0] != -1 || x.PrefixTailTokens != ns(2) || x.FirstTokenNS != ns(10_500_000) || x.EndNS != ns(1500e6) || !x.SessionID.Valid {
		t.Errorf("%+v", x)
	}
	if y.ArrivalUnixNS != 1700000002_000_000_000 || y.InputTokens != ns(5) {
		t.Errorf("%+v", y)
	}
}
