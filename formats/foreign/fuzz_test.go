package foreign

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/shadowtape/shadowtape/formats"
)

// Each importer has a target of its own, so that a fuzzer's time is not spent on nineteen others. All hold the same: no input makes a decoder
// panic or go on for ever, what it cannot read is a counted row or ends it, and what it gives out is a row that can be written and exported.

func FuzzImportRows(f *testing.F)         { fuzzImport(f, "rows") }
func FuzzImportAzureLLM(f *testing.F)     { fuzzImport(f, "azure-llm") }
func FuzzImportAzureLMM(f *testing.F)     { fuzzImport(f, "azure-lmm") }
func FuzzImportMooncake(f *testing.F)     { fuzzImport(f, "mooncake") }
func FuzzImportRAGPulse(f *testing.F)     { fuzzImport(f, "ragpulse") }
func FuzzImportAzureCopilot(f *testing.F) { fuzzImport(f, "azure-copilot") }
func FuzzImportTraceLab(f *testing.F)     { fuzzImport(f, "tracelab") }
func FuzzImportShareGPT(f *testing.F)     { fuzzImport(f, "sharegpt") }
func FuzzImportHAR(f *testing.F)          { fuzzImport(f, "har") }
func FuzzImportBailian(f *testing.F)      { fuzzImport(f, "bailian") }
func FuzzImportBurstGPT(f *testing.F)     { fuzzImport(f, "burstgpt") }
func FuzzImportWeka(f *testing.F)         { fuzzImport(f, "weka") }
func FuzzImportServeGen(f *testing.F)     { fuzzImport(f, "servegen") }
func FuzzImportDynamo(f *testing.F)       { fuzzImport(f, "dynamo") }
func FuzzImportOTel(f *testing.F)         { fuzzImport(f, "otel") }
func FuzzImportLiteLLM(f *testing.F)      { fuzzImport(f, "litellm") }
func FuzzImportLangfuse(f *testing.F)     { fuzzImport(f, "langfuse") }
func FuzzImportOpenAIBatch(f *testing.F)  { fuzzImport(f, "openai-batch") }
func FuzzImportBaseten(f *testing.F)      { fuzzImport(f, "baseten") }
func FuzzImportNginx(f *testing.F)        { fuzzImport(f, "nginx") }
func FuzzImportEnvoy(f *testing.F)        { fuzzImport(f, "envoy") }

func FuzzResultVLLMBench(f *testing.F)     { fuzzResult(f, "vllm-bench") }
func FuzzResultGuideLLM(f *testing.F)      { fuzzResult(f, "guidellm") }
func FuzzResultAIPerf(f *testing.F)        { fuzzResult(f, "aiperf") }
func FuzzResultInferencePerf(f *testing.F) { fuzzResult(f, "inference-perf") }
func FuzzResultLLMeter(f *testing.F)       { fuzzResult(f, "llmeter") }
func FuzzResultVegeta(f *testing.F)        { fuzzResult(f, "vegeta") }
func FuzzResultK6(f *testing.F)            { fuzzResult(f, "k6") }

// FuzzDecompressed: what is taken for compressed ends, and within the limits.
func FuzzDecompressed(f *testing.F) {
	f.Add([]byte("\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff\x4b\x4c\x04\x00\x07\xe7\x71\x0d\x02\x00\x00\x00"))
	f.Add([]byte("\x28\xb5\x2f\xfd\x00\x58\x11\x00\x00aa"))
	f.Add([]byte("plain"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := decompressed(strings.NewReader(string(b)))
		if err != nil {
			return
		}
		if _, err := io.Copy(io.Discard, io.LimitReader(r, 64<<20)); err != nil {
			return
		}
	})
}

// samplesOf are seeds of each format: good rows, and the oddities that its tests name.
var samplesOf = map[string][]string{
	"rows":          {"exchange_id,phase,arrival_unix_ns,input_tokens,prefix_blocks\n1,record,5,7,\"[1,2]\"\n", `{"exchange_id":1,"phase":"record","arrival_unix_ns":5,"temperature":0.5,"session_id":"0123456789abcdef"}`},
	"azure-llm":     {"TIMESTAMP,ContextTokens,GeneratedTokens\r\n2024-05-12 00:00:00+00:00,10,2\r\n2023-11-16 18:17:03.9799600,4808,10.0"},
	"azure-lmm":     {"TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n2024-10-15T12:00:00.269Z,1,10,2\n"},
	"mooncake":      {`{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}` + "\n" + `{"session_id":"a","delay":5.5,"text_input":"abc","output_length":1}`},
	"ragpulse":      {`{"timestamp":"7","input_length":100,"output_length":1,"session_id":"s","hash_ids":{"sys_prompt":[1]}}`},
	"azure-copilot": {`{"session_id":"s","turns":[{"llm_calls":[{"message_id":"m","timestamp":"2026-01-02T03:04:05Z","duration_ms":5,"status_code":200,"tokens":{"prompt":5,"completion":1,"cached":2}}]}]}`},
	"tracelab":      {`{"session_id":"s","round_id":"1","model":"m","input_tokens_total":10,"output_tokens":2,"timing_events":[{"event_type":"request_end","timestamp":"2026-01-02T03:04:05.000Z"}]}`},
	"sharegpt":      {`[{"id":"a","conversations":[{"from":"human","value":"hi"},{"from":"gpt","value":"hello"}]}]`},
	"har":           {`{"log":{"entries":[{"startedDateTime":"2024-05-10T10:00:00Z","time":5.5,"timings":{"dns":-1,"wait":3},"request":{"method":"POST","url":"/v1/completions","postData":{"text":"{\"prompt\":[1]}"}},"response":{"status":200,"content":{"text":"data: {\"usage\":{\"prompt_tokens\":1}}\n\n"}}}]}}`},
	"bailian":       {`{"chat_id":159,"parent_chat_id":55,"timestamp":61.114,"input_length":21,"output_length":132,"type":"text","turn":2,"hash_ids":[1089,7]}`},
	"burstgpt":      {"Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n19440110.0,,3,GPT-4,5,6,11,API log\n"},
	"weka":          {wekaSessions},
	"servegen":      {"0,1.5,8.59,Weibull,0.375,0.39\n600,0,0,,,\n", `{"0":{"input_tokens":"{60: 0.5, 61: 0.5}","output_tokens":"{5: 1}","reason_ratio":"{0.0: 1}"}}`},
	"dynamo":        {`{"schema":"dynamo.request.trace.v1","event_type":"request_end","event_time_unix_ms":1700000001500,"request":{"request_id":"r","output_tokens":8,"request_received_ms":1700000000000,"replay":{"trace_block_size":64,"input_length":130,"input_sequence_hashes":[18446744073709551615,2]}}}`},
	"otel":          {`{"resourceSpans":[{"scopeSpans":[{"spans":[{"spanId":"a","startTimeUnixNano":"1700000000000000000","endTimeUnixNano":"1700000003000000000","attributes":[{"key":"gen_ai.operation.name","value":{"stringValue":"chat"}},{"key":"gen_ai.usage.input_tokens","value":{"intValue":"10"}}]}]}]}]}`, `[{"span_id":"a","start_time":"2024-05-10T00:00:00","attributes":{"gen_ai.operation.name":"chat","gen_ai.input.messages":"[{\"role\":\"user\",\"parts\":[]}]"}}]`},
	"litellm":       {`{"call_type":"acompletion","startTime":"2024-05-10T00:00:00Z","endTime":"2024-05-10T00:00:01Z","prompt_tokens":5,"completion_tokens":2}`, "call_type,startTime,prompt_tokens\n\"a\n\"\"b\",1715299205123,1\n"},
	"langfuse":      {`{"data":[{"id":"2","traceId":"t","type":"GENERATION","startTime":"2024-05-10T00:00:00.000Z","usageDetails":"{\"input\":1}"}]}`, "traceid,starttime\n\"a\n\"\"b\",1715299205123\n"},
	"openai-batch":  {`{"custom_id":"a","url":"/v1/chat/completions","body":{"messages":[{"role":"user","content":"x"}],"tools":[{}]}}`, `{"custom_id":"a","response":{"status_code":200,"body":{"usage":{"prompt_tokens":1}}}}`},
	"baseten":       {"PAR1\x15\x04\x15\x04PAR1"},
	"nginx":         {`10.0.0.1 - - [10/May/2024:02:00:05 +0200] "POST /v1/chat/completions HTTP/1.1" 200 1234 "-" "python"` + "\n"},
	"envoy":         {`[2024-05-10T00:00:05.123Z] "POST /v1/chat/completions HTTP/1.1" 200 - 512 2048 1500 120 "-" "python" "req-1" "gw" "10.0.0.7:8000"` + "\n"},

	"vllm-bench":     {`{"date":"20260102-030405","input_lens":[100],"output_lens":[3],"ttfts":[0.1],"itls":[[0.05]],"start_times":[1]}`, `{"backend":"vllm","burstiness":1,"completed":1,"duration":1,"errors":["HTTP 503"],"input_lens":[1],"latencies":[0.1]}` + "\n{}"},
	"guidellm":       {`{"benchmarks":[{"requests":{"successful":[{"info":{"timings":{"request_start":1}}}],"errored":[{"start_time":5,"end_time":6}]}}]}`},
	"aiperf":         {`{"metadata":{"request_start_ns":1,"benchmark_phase":"warmup"},"metrics":{"request_latency":{"value":1,"unit":"ms"}},"error":{"code":503}}`},
	"inference-perf": {`[{"start_time":1,"end_time":2,"info":{"output_tokens":2,"output_token_times":[1,2]},"error":null}]`},
	"llmeter":        {`{"time_to_first_token":0.25,"time_to_last_token":1.5,"num_tokens_input":10,"num_tokens_output":20,"request_time":"2026-01-02T03:04:05+00:00"}`},
	"vegeta":         {`{"attack":"","seq":0,"code":200,"timestamp":"2026-01-02T03:04:05.123456789Z","latency":2500000,"bytes_out":10,"bytes_in":90,"error":""}`},
	"k6":             {`{"metric":"http_req_duration","type":"Point","data":{"time":"2026-01-02T03:04:05.5Z","value":500,"tags":{"status":"200"}}}`},
}

// fuzzImport runs the fuzzer on one importer.
func fuzzImport(f *testing.F, name string) {
	for _, s := range samplesOf[name] {
		f.Add(s)
	}
	format, err := Named(name)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text string) {
		next, err := openAny(format, newInput(text))
		if err == nil {
			readAll(t, next, name != "rows")
		}
	})
}

// fuzzResult runs the fuzzer on one reader of results.
func fuzzResult(f *testing.F, name string) {
	for _, s := range samplesOf[name] {
		f.Add(s)
	}
	format, err := NamedResult(name)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text string) {
		next, err := format.open(newInput(text), &formats.Manifest{})
		if err == nil {
			readAll(t, next, true)
		}
	})
}

func openAny(f Format, in *input) (formats.Decoder, error) {
	if f.pool != nil {
		return f.pool([]*input{in})
	}
	return f.open(in)
}

// readAll reads a decoder to its end, or for ten thousand rows, and looks at what it gives; theirs says that it does not come out of our own
// export, which may hold anything.
func readAll(t *testing.T, next formats.Decoder, theirs bool) {
	for range 10_000 {
		x := &formats.Exchange{}
		err := next(x)
		if err == nil {
			err = possible(x, 1)
		}
		if _, ok := err.(*formats.RowError); ok {
			continue
		}
		if err != nil {
			return // io.EOF, or the file cannot be read on
		}
		if !theirs {
			continue
		}
		if x.InputTokens.V < 0 || x.OutputTokens.V < 0 || x.CachedTokens.V < 0 || x.ReasoningTokens.V < 0 {
			t.Fatalf("negative tokens: %+v", x)
		}
		if x.InputTokens.Valid != (x.InputTokensSource != "") || x.OutputTokens.Valid != (x.OutputTokensSource != "") {
			t.Fatalf("tokens without their source, or the other way round: %+v", x)
		}
		if n := len(x.EventGapUS); x.EventTokens != nil && len(x.EventTokens) != n || x.EventChoice != nil && len(x.EventChoice) != n || x.EventFlags != nil && len(x.EventFlags) != n {
			t.Fatalf("event lists of different lengths: %+v", x)
		}
	}
}

// TestSamples: the fuzzers' seeds are what they claim to be.
func TestSamples(t *testing.T) {
	for _, f := range Formats() {
		if len(samplesOf[f.Name]) == 0 {
			t.Errorf("%s has no sample", f.Name)
		}
		for _, s := range samplesOf[f.Name] {
			if found, err := guess([]byte(s)); err != nil || found.Name != f.Name {
				t.Errorf("%s: %q is taken for %q", f.Name, shortened(s), found.Name)
			}
		}
	}
	for _, r := range Results() {
		for _, s := range samplesOf[r.Name] {
			if _, err := ImportResult(context.Background(), r, Source{"a", strings.NewReader(s)}, t.TempDir()+"/r", formats.Manifest{}, Options{}); err != nil {
				t.Errorf("%s: %v", r.Name, err)
			}
		}
		if len(samplesOf[r.Name]) == 0 {
			t.Errorf("%s has no sample", r.Name)
		}
	}
}
