package foreign

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shadowtape/shadowtape/formats"
)

type broughtIn struct {
	Report
	rows   []*formats.Exchange
	m      *formats.Manifest
	header formats.Header
}

func bring(t *testing.T, format, text string) broughtIn {
	t.Helper()
	f, err := NamedResult(format)
	if err != nil {
		t.Fatal(err)
	}
	where := filepath.Join(t.TempDir(), "run")
	r, err := ImportResult(context.Background(), f, Source{"a.json", strings.NewReader(text)}, where, formats.Manifest{Label: "x"}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	tr, err := formats.Open(where)
	if err != nil {
		t.Fatal(err)
	}
	got := broughtIn{Report: r, m: tr.Manifest, header: tr.Header}
	for x, err := range tr.All() {
		if err != nil {
			t.Fatal(err)
		}
		got.rows = append(got.rows, x)
	}
	c := got.m.Requests
	if c.Scheduled != c.Sent+c.Dropped || c.Sent != c.Completed+c.Failed+c.Aborted+c.RunEnd || got.m.Kind != "import:"+format || got.m.Label != "x" || got.m.Interrupted {
		t.Errorf("manifest %+v", got.m)
	}
	return got
}

func TestVLLMBench(t *testing.T) {
	got := bring(t, "vllm-bench", `{"date":"20260102-030405","endpoint_type":"openai-chat","model_id":"m","completed":2,"failed":1,"input_lens":[100,200,5],"output_lens":[3,2,0],
"ttfts":[0.1,0.2,0.0],"itls":[[0.05,0.07],[0.1],[]],"start_times":[10.0,11.5,12.0],"generated_texts":["a","b",""],"errors":["","","Timeout on reading"]}`)
	a, b, c := got.rows[0], got.rows[1], got.rows[2]
	if a.ArrivalUnixNS != at(t, "2026-01-02T03:04:05Z") || b.ArrivalUnixNS-a.ArrivalUnixNS != 1500e6 || a.FirstTokenNS != ns(100e6) || a.LastTokenNS != ns(220e6) || a.OutputTokens != ns(3) ||
		a.Endpoint != formats.EndpointChat || a.ArrivalIndex != ns(0) || a.Phase != formats.PhaseMeasure {
		t.Errorf("%+v", a)
	}
	if d := cmp.Diff([]int32{0, 50_000, 70_000}, a.EventGapUS); d != "" {
		t.Error(d)
	}
	if c.ErrorKind != formats.ErrorTimeout || c.OutputTokens.Valid || c.FirstTokenNS.Valid {
		t.Errorf("%+v", c)
	}
	if r := got.m.Requests; r.Completed != 2 || r.Failed != 1 || got.m.Errors[formats.ErrorTimeout] != 1 || got.m.Model != "m" || len(got.m.Warnings) != 1 {
		t.Errorf("%+v", got.m)
	}
	old := bring(t, "vllm-bench", `{"input_lens":[1],"output_lens":[1],"ttfts":[0.1],"itls":[[]]}`)
	if len(old.m.Warnings) != 2 || old.rows[0].Drawn != ns(formats.DrawnArrival) {
		t.Errorf("%+v", old.m)
	}
	f, err := NamedResult("vllm-bench")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	_, err = ImportResult(context.Background(), f, Source{"a", strings.NewReader(`{"mean_ttft_ms":1,"input_lens":[],"ttfts":[]}`)}, filepath.Join(dir, "r"), formats.Manifest{}, Options{})
	if err == nil || !strings.Contains(err.Error(), "--save-detailed") {
		t.Errorf("error %v", err)
	}
	if es, err := os.ReadDir(dir); err != nil || len(es) != 0 {
		t.Errorf("left behind %v", es)
	}
}

// TestVLLMBenchRust: the Rust program's keys come in alphabetical order, with latencies; failures name the status, or come in the middle.
func TestVLLMBenchRust(t *testing.T) {
	got := bring(t, "vllm-bench", `{"backend":"openai-chat","burstiness":1.0,"completed":2,"date":"20260102-030405","duration":3.5,"endpoint_type":"openai-chat","errors":["","HTTP 503 Service Unavailable: busy","Stream error: reset"],
"failed":2,"failed_requests":[{"index":1,"error":"HTTP 503","itl":[]}],"generated_texts":["a","",""],"input_lens":[100,200,5],"itls":[[0.05,0.07],[],[0.1]],"latencies":[0.25,0.0,0.3],"max_concurrency":null,"model_id":"m","output_lens":[3,0,0],
"request_rate":"inf","server_ttfts":[0.09,null,null],"start_times":[0.0,1.5,2.0],"steady_state":null,"ttfts":[0.1,0.0,0.2]}
{"backend":"vllm","burstiness":1.0,"completed":0,"duration":1}`)
	a, b, c := got.rows[0], got.rows[1], got.rows[2]
	if a.LastTokenNS != ns(220e6) || a.EndNS != ns(250e6) || a.EndReason != formats.EndComplete {
		t.Errorf("%+v", a)
	}
	if b.ErrorKind != "http_503" || b.Status.V != 503 || b.FirstTokenNS.Valid || b.EndReason != "" {
		t.Errorf("%+v", b)
	}
	if c.ErrorKind != formats.ErrorUnsaid || c.FirstTokenNS != ns(200e6) || c.LastTokenNS != ns(300e6) || c.OutputTokens.Valid {
		t.Errorf("%+v", c)
	}
	if r := got.m.Requests; r.Completed != 1 || r.Failed != 2 || len(got.m.Warnings) != 2 || got.m.Warnings[1] != "the file holds 2 results; this is the first" {
		t.Errorf("%+v", got.m)
	}
	pooled := bring(t, "vllm-bench", `{"backend":"openai-embeddings","burstiness":1.0,"completed":1,"date":"20260102-030405","duration":1.0,"endpoint_type":"openai-embeddings","errors":["",""],"input_lens":[512,8],"latencies":[0.02,0.01],"model_id":"e","start_times":[0.0,0.5]}`)
	if x := pooled.rows[0]; x.Endpoint != formats.EndpointEmbeddings || x.EndNS != ns(20e6) || x.InputTokens != ns(512) || x.OutputTokens.Valid || x.FirstTokenNS.Valid || x.Stream.Valid {
		t.Errorf("%+v", x)
	}
	f, err := NamedResult("vllm-bench")
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		`{"backend":"vllm","conversations_completed":2,"mode":"multi_turn","per_turn_metrics":[]}`:         "multi-turn result",
		`{"backend":"vllm","burstiness":1.0,"completed":2,"duration":1.0,"mean_ttft_ms":1.0}`:              "--save-detailed",
		`{"backend":"openai-embeddings","burstiness":1.0,"completed":2,"duration":1.0,"input_lens":[1,2]}`: "--save-detailed",
		`{"backend":"vllm","burstiness":1.0,"completed":2,"duration":1.0,"mean_ttft_ms":1.0} {"truncated`:  "behind the first result",
	} {
		_, err = ImportResult(context.Background(), f, Source{"a", strings.NewReader(text)}, filepath.Join(t.TempDir(), "r"), formats.Manifest{}, Options{})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v", text, err)
		}
	}
	for in, want := range map[string]formats.Endpoint{"openai-embeddings-chat": formats.EndpointEmbeddings, "vllm-rerank": formats.EndpointRerank, "openai-responses": formats.EndpointResponses, "openai": formats.EndpointCompletions, "tgi": ""} {
		if got := vllmEndpoint(in); got != want {
			t.Errorf("%s is %s", in, got)
		}
	}
	long := `{"backend":"vllm","burstiness":1.0,"completed":1,"date":"x","duration":1.0,"generated_texts":["` + strings.Repeat("x", 2*headBytes) + `"],"input_lens":[1],"itls":[[]],"output_lens":[1],"start_times":[0],"ttfts":[0.1]}`
	if got := bring(t, "vllm-bench", long); len(got.rows) != 1 {
		t.Error("lists behind long texts were not found")
	}
}

func TestAIPerf(t *testing.T) {
	got := bring(t, "aiperf", `{"metadata":{"session_num":0,"x_request_id":"r","conversation_id":"c","turn_index":0,"request_start_ns":1700000000000000000,"request_end_ns":1700000001000000000,"benchmark_phase":"profiling","was_cancelled":false},"metrics":{"http_req_connecting":{"value":23.25,"unit":"ms"},"http_req_connection_reused":{"value":0,"unit":"ratio"},"time_to_first_token":{"value":125.5,"unit":"ms"},"request_latency":{"value":990.25,"unit":"ms"},"input_sequence_length":{"value":550,"unit":"tokens"},"output_sequence_length":{"value":48,"unit":"tokens"},"reasoning_token_count":{"value":8,"unit":"tokens"},"inter_chunk_latency":{"value":[1.5,2.5],"unit":"ms"}},"error":null}
{"metadata":{"request_start_ns":1700000000500000000,"request_end_ns":1700000000600000000,"benchmark_phase":"warmup"},"metrics":{},"error":null}
{"metadata":{"request_start_ns":1700000002000000000,"request_end_ns":1700000002100000000,"benchmark_phase":"profiling"},"metrics":{},"error":{"code":503,"type":"Service Unavailable","message":"secret"}}
{"metadata":{"request_start_ns":1700000003000000000,"benchmark_phase":"profiling","was_cancelled":true},"metrics":{},"error":null}
{"metadata":{"benchmark_phase":"profiling"},"metrics":{}}`)
	a := got.rows[0]
	if a.FirstTokenNS != ns(125_500_000) || a.LastTokenNS != ns(990_250_000) || a.EndNS != ns(1e9) || a.InputTokens != ns(550) || a.OutputTokens != ns(48) || a.ReasoningTokens != ns(8) || a.ConnectNS != ns(23_250_000) || a.ConnReused != formats.Of(false) || a.Turn.V != 1 || !a.SessionID.Valid {
		t.Errorf("%+v", a)
	}
	if got.rows[1].Phase != formats.PhaseWarmup || got.rows[2].ErrorKind != "http_503" || got.rows[3].EndReason != formats.EndClientAbort {
		t.Error("phases and outcomes")
	}
	if r := got.m.Requests; r.Sent != 3 || r.Completed != 1 || r.Failed != 1 || r.Aborted != 1 || got.Reasons["no_time"] != 1 {
		t.Errorf("%+v %+v", r, got.Report)
	}
}

func TestInferencePerf(t *testing.T) {
	got := bring(t, "inference-perf", `[{"stage_id":0,"start_time":100.5,"end_time":102.0,"request":"{}","response":"","info":{"input_tokens":591,"output_tokens":3,"output_token_times":[101.0,101.1,101.3]},"error":null},
{"scheduled_time":100.0,"start_time":100.25,"end_time":103.0,"info":{"request_metrics":{"text":{"input_tokens":5}},"response_metrics":{"output_tokens":2,"output_token_times":[101.0,102.0]}},"error":null},
{"start_time":104,"end_time":105,"info":{},"error":{"error_type":"TimeoutError","error_msg":"secret"}}]`)
	a, b, c := got.rows[0], got.rows[1], got.rows[2]
	if a.ArrivalUnixNS != 100_000_000_000 || a.SentNS != ns(250e6) || a.FirstTokenNS != ns(1e9) || a.LastTokenNS != ns(2e9) || a.InputTokens != ns(5) || a.OutputTokens != ns(2) {
		t.Errorf("%+v", a)
	}
	if b.FirstTokenNS != ns(500e6) || b.LastTokenNS != ns(800e6) || b.EndNS != ns(1500e6) || b.InputTokens != ns(591) {
		t.Errorf("%+v", b)
	}
	if c.ErrorKind != formats.ErrorTimeout || got.header.TimeBase != "relative" {
		t.Errorf("%+v", c)
	}
	if a.ErrorKind != "" || a.EndReason != formats.EndComplete || b.ErrorKind != "" || got.m.Requests.Completed != 2 || got.m.Requests.Failed != 1 {
		t.Errorf("an error of null is none: %+v", got.m.Requests)
	}
}

func TestLLMeter(t *testing.T) {
	got := bring(t, "llmeter", `{"response_text":"secret","id":"1","time_to_first_token":0.25,"time_to_last_token":1.5,"num_tokens_input":10,"num_tokens_output":20,"num_tokens_input_cached":4,"error":null,"request_time":"2026-01-02T03:04:05+00:00"}
{"response_text":null,"id":"2","time_to_last_token":null,"num_tokens_output":null,"error":"read timeout","request_time":"2026-01-02T03:04:06+00:00"}`)
	a := got.rows[0]
	if a.FirstTokenNS != ns(250e6) || a.LastTokenNS != ns(1500e6) || a.CachedTokens != ns(4) || a.ArrivalUnixNS != at(t, "2026-01-02T03:04:05Z") || a.EventGapUS != nil {
		t.Errorf("%+v", a)
	}
	if got.rows[1].ErrorKind != formats.ErrorTimeout || got.m.Requests.Failed != 1 {
		t.Errorf("%+v", got.rows[1])
	}
}

func TestVegetaAndK6(t *testing.T) {
	got := bring(t, "vegeta", `{"attack":"","seq":0,"code":200,"timestamp":"2026-01-02T03:04:05.123456789Z","latency":2500000,"bytes_out":10,"bytes_in":90,"error":"","method":"POST","url":"http://a/v1/x"}
{"attack":"","seq":1,"code":0,"timestamp":"2026-01-02T03:04:06Z","latency":30000000000,"bytes_out":0,"bytes_in":0,"error":"context deadline exceeded (Client.Timeout exceeded)"}
{"attack":"","seq":2,"code":503,"timestamp":"2026-01-02T03:04:07Z","latency":1000,"error":"503 Service Unavailable"}`)
	if a := got.rows[0]; a.EndNS != ns(2_500_000) || a.ArrivalUnixNS%1e9 != 123_456_789 || a.Status.V != 200 || a.FirstTokenNS.Valid || a.InputTokens.Valid {
		t.Errorf("%+v", a)
	}
	if got.rows[1].ErrorKind != formats.ErrorTimeout || got.rows[2].ErrorKind != "http_503" {
		t.Error("outcomes")
	}
	got = bring(t, "k6", `{"metric":"http_req_duration","type":"Metric","data":{"name":"http_req_duration"}}
{"metric":"http_reqs","type":"Point","data":{"time":"2026-01-02T03:04:05Z","value":1,"tags":{}}}
{"metric":"http_req_duration","type":"Point","data":{"time":"2026-01-02T03:04:05.5Z","value":500,"tags":{"status":"200","url":"http://a/v1/chat/completions"}}}
{"metric":"http_req_duration","type":"Point","data":{"time":"2026-01-02T03:04:06Z","value":1.5,"tags":{"status":"429"}}}`)
	if a := got.rows[0]; a.EndNS != ns(500e6) || a.ArrivalUnixNS != at(t, "2026-01-02T03:04:05Z") || a.Endpoint != formats.EndpointChat || a.Status.V != 200 {
		t.Errorf("%+v", a)
	}
	if got.rows[1].ErrorKind != "http_429" || got.Read != 2 {
		t.Errorf("%+v", got.Report)
	}
}

func TestGuideLLM(t *testing.T) {
	got := bring(t, "guidellm", `{"benchmarks":[{"type_":"generative_benchmark","requests":{"successful":[
{"request_id":"a","prompt_tokens":10,"output_tokens":4,"info":{"timings":{"targeted_start":1700000000.0,"request_start":1700000000.25,"first_iteration":1700000000.5,"last_iteration":1700000001.0,"request_end":1700000001.25}}},
{"request_id":"b","prompt_tokens":11,"output_tokens":5,"start_time":1700000002.0,"first_token_time":1700000002.5,"last_token_time":1700000003.0,"end_time":1700000003.5}],
"incomplete":[{"request_id":"c","info":{"timings":{"request_start":1700000004.0}}},{"request_id":"d","info":{"timings":{}}}],
"errored":[{"request_id":"e","start_time":1700000005.0,"end_time":1700000006.0}]}},{"requests":{}}]}`)
	if len(got.rows) != 4 || got.Notes["requests_without_time"] != 1 || len(got.m.Warnings) != 2 {
		t.Fatalf("%+v %+v", got.Report, got.m)
	}
	a, b := got.rows[0], got.rows[1]
	if a.ArrivalUnixNS != 1_700_000_000_000_000_000 || a.SentNS != ns(250e6) || a.FirstTokenNS != ns(500e6) || a.LastTokenNS != ns(1e9) || a.EndNS != ns(1250e6) || a.InputTokens != ns(10) || a.OutputTokens != ns(4) {
		t.Errorf("%+v", a)
	}
	if b.FirstTokenNS != ns(500e6) || b.EndNS != ns(1500e6) || b.OutputTokens != ns(5) {
		t.Errorf("%+v", b)
	}
	if r := got.m.Requests; r.Completed != 2 || r.RunEnd != 1 || r.Failed != 1 {
		t.Errorf("%+v", r)
	}
}

func TestResultsAreToldApart(t *testing.T) {
	f, err := NamedResult("aiperf")
	if err != nil {
		t.Fatal(err)
	}
	where := filepath.Join(t.TempDir(), "r")
	_, err = ImportResult(context.Background(), f, Source{"a", strings.NewReader(`{"input_lens":[1],"ttfts":[1]}`)}, where, formats.Manifest{}, Options{})
	if err == nil || !strings.Contains(err.Error(), "it looks like vllm-bench") {
		t.Errorf("error %v", err)
	}
	if _, err := NamedResult("nothing"); err == nil {
		t.Error("there is a format nothing")
	}
	for _, f := range results {
		for _, junk := range []string{"", "{}", "[]", "a,b\n"} {
			if f.detect([]byte(junk)) {
				t.Errorf("%s takes %q for its own", f.Name, junk)
			}
		}
	}
}
