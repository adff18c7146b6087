//go:build unix

package foreign

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/shadowtape/shadowtape/formats"
)

// generated is a text of n rows that is made while it is read.
type generated struct {
	head   string
	row    func(i int) string
	tail   string
	per    int // rows of a file, where a trace is many files; 0: all are in one
	n, i   int
	buf    string
	tailed bool
}

func (g *generated) Read(p []byte) (int, error) {
	g.buf, g.head = g.head+g.buf, ""
	for g.buf == "" {
		if g.i == g.n && g.tailed {
			return 0, io.EOF
		}
		if g.i == g.n {
			g.buf, g.tailed = g.tail, true
			continue
		}
		g.buf = g.row(g.i)
		g.i++
	}
	n := copy(p, g.buf)
	g.buf = g.buf[n:]
	return n, nil
}

// rowsOf makes a row of each text format.
var rowsOf = map[string]generated{
	"azure-llm": {head: "TIMESTAMP,ContextTokens,GeneratedTokens\r\n", row: func(i int) string {
		return fmt.Sprintf("2024-05-10 %02d:%02d:%02d.%06d+00:00,%d,%d\r\n", i/36000%24, i/600%60, i/10%60, i%10*100000+i%977, 100+i%3000, 1+i%400)
	}},
	"mooncake": {row: func(i int) string {
		return fmt.Sprintf(`{"timestamp": %d, "input_length": %d, "output_length": %d, "hash_ids": [0, %d, %d, %d]}`+"\n", i*3, 1600+i%400, 1+i%400, i*3+1, i*3+2, i*3+3)
	}},
	"burstgpt": {head: "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n", row: func(i int) string {
		return fmt.Sprintf("%d,ChatGPT,%d,%d,0,API log\n", i/3, 100+i%3000, 1+i%400)
	}},
	"bailian": {row: func(i int) string {
		return fmt.Sprintf(`{"chat_id":%d,"parent_chat_id":%d,"timestamp":%d.%03d,"input_length":60,"output_length":%d,"type":"text","turn":2,"hash_ids":[1,2,3,%d]}`+"\n", i, i-7, i/100, i%1000, 1+i%400, i)
	}},
	"dynamo": {row: func(i int) string {
		return fmt.Sprintf(`{"schema":"dynamo.request.trace.v1","event_type":"request_end","event_time_unix_ms":%d,"agent_context":{"session_id":"s%d"},"request":{"request_id":"r%d","model":"m","output_tokens":%d,"request_received_ms":%d,"ttft_ms":10.5,"total_time_ms":1500,"replay":{"trace_block_size":64,"input_length":130,"input_sequence_hashes":[%d,%d]}}}`+"\n",
			1700000000000+i, i/4, i, 1+i%400, 1700000000000+i, uint64(i)*0x9e3779b97f4a7c15, uint64(i)*0xbf58476d1ce4e5b9)
	}},
	"otel": {row: func(i int) string {
		return fmt.Sprintf(`{"resourceSpans":[{"scopeSpans":[{"spans":[{"spanId":"%016x","startTimeUnixNano":"%d","endTimeUnixNano":"%d","attributes":[{"key":"gen_ai.operation.name","value":{"stringValue":"chat"}},{"key":"gen_ai.request.model","value":{"stringValue":"m"}},{"key":"gen_ai.usage.input_tokens","value":{"intValue":"%d"}},{"key":"gen_ai.usage.output_tokens","value":{"intValue":"%d"}}]}]}]}]}`+"\n",
			i, 1700000000000000000+i*1000000, 1700000001000000000+i*1000000, 100+i%3000, 1+i%400)
	}},
	"litellm": {row: func(i int) string {
		at := time.Unix(1700000000, 0).UTC().Add(time.Duration(i) * 10 * time.Millisecond)
		return fmt.Sprintf(`{"request_id":"r%d","call_type":"acompletion","api_key":"k%d","prompt_tokens":%d,"completion_tokens":%d,"startTime":"%s","endTime":"%s","model":"gpt-x","cache_hit":"False","status":"success"}`+"\n",
			i, i%50, 100+i%3000, 1+i%400, at.Format(time.RFC3339Nano), at.Add(time.Second).Format(time.RFC3339Nano))
	}},
	"openai-batch": {row: func(i int) string {
		return fmt.Sprintf(`{"id":"b%d","custom_id":"c%d","response":{"status_code":200,"body":{"object":"chat.completion","model":"m","usage":{"prompt_tokens":%d,"completion_tokens":%d},"choices":[{"finish_reason":"stop"}]}},"error":null}`+"\n", i, i, 100+i%3000, 1+i%400)
	}},
	"nginx": {row: func(i int) string {
		return fmt.Sprintf(`10.0.0.1 - - [10/May/2024:%02d:%02d:%02d +0000] "POST /v1/chat/completions HTTP/1.1" 200 %d "-" "python"`+"\n", i/360000%24, i/6000%60, i/100%60, i%9000)
	}},
	"envoy": {row: func(i int) string {
		return fmt.Sprintf(`[2024-05-10T%02d:%02d:%02d.%03dZ] "POST /v1/chat/completions HTTP/1.1" 200 - 512 2048 1500 120 "-" "python" "req-%d" "gw" "10.0.0.7:8000"`+"\n", i/360000%24, i/6000%60, i/100%60, i%100*10, i)
	}},
	"tracelab": {row: func(i int) string {
		return fmt.Sprintf(`{"session_id":"s%d","round_id":"%d","model":"m","input_tokens_total":%d,"output_tokens":%d,"timing_events":[{"event_type":"request_start","timestamp":"2026-01-%02dT%02d:%02d:%02d.000Z"}]}`+"\n", i/9, i, 100+i%3000, 1+i%400, 1+i/86400%28, i/3600%24, i/60%60, i%60)
	}},
	"azure-lmm": {head: "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n", row: func(i int) string {
		return fmt.Sprintf("2024-10-%02dT%02d:%02d:%02d.%03dZ,%d,%d,%d\n", 15+i/864000%7, i/36000%24, i/600%60, i/10%60, i%10*100, i%3, 100+i%3000, 1+i%400)
	}},
	"azure-copilot": {row: func(i int) string { // a session of one call a line
		return fmt.Sprintf(`{"session_id":"s%d","date":"2026-05-01","turns":[{"turn_id":1,"llm_calls":[{"message_id":"m%d","timestamp":"2026-05-01T%02d:%02d:%02d.000Z","duration_ms":1500,"model":"m","status_code":200,"tokens":{"total":%d,"prompt":%d,"completion":%d,"cached":%d}}],"tool_batches":[]}]}`+"\n",
			i, i, i/3600%24, i/60%60, i%60, 101+i%3400, 100+i%3000, 1+i%400, i%100)
	}},
	"weka": {head: `{"id":"a","models":["m"],"block_size":64,"hash_id_scope":"local","requests":[`, tail: `{"t":1e6,"type":"n","in":1,"out":1}]}`, per: 1000, row: func(i int) string {
		return fmt.Sprintf(`{"t":%d.5,"type":"s","model":"m","in":%d,"out":%d,"hash_ids":[1,2,3,%d],"stop":"end_turn","ttft":0.5,"api_time":2.5},`, i%1000, 256+i%64, 1+i%400, i%1000+4)
	}},
	"langfuse": {row: func(i int) string {
		at := time.Unix(1700000000, 0).UTC().Add(time.Duration(i) * 10 * time.Millisecond)
		return fmt.Sprintf(`{"id":"g%d","traceId":"t%d","type":"GENERATION","startTime":"%s","completionStartTime":"%s","endTime":"%s","model":"m","modelParameters":{"temperature":0.5},"usageDetails":{"input":%d,"output":%d},"level":"DEFAULT"}`+"\n",
			i, i, at.Format(time.RFC3339Nano), at.Add(time.Second/4).Format(time.RFC3339Nano), at.Add(time.Second).Format(time.RFC3339Nano), 100+i%3000, 1+i%400)
	}},
	"sharegpt": {head: "[", tail: `{"id":"z","conversations":[{"from":"human","value":"a"},{"from":"gpt","value":"b"}]}]`, row: func(i int) string {
		return fmt.Sprintf(`{"id":"c%d","conversations":[{"from":"human","value":"%0*d"},{"from":"gpt","value":"%0*d"}]},`, i, 20+i%200, i, 10+i%300, i)
	}},
	"har": {head: `{"log":{"version":"1.2","entries":[`, per: 1000,
		tail: `{"startedDateTime":"2024-05-10T10:00:00Z","time":5,"request":{"method":"POST","url":"http://a/v1/completions"},"response":{"status":200,"content":{}},"timings":{}}]}}`, row: func(i int) string {
			return fmt.Sprintf(`{"startedDateTime":"2024-05-10T%02d:%02d:%02d.%03dZ","time":1500.5,"request":{"method":"POST","url":"http://a/v1/chat/completions","headers":[{"name":"x-request-id","value":"r%d"}],"bodySize":90,"postData":{"text":"{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"some words to answer\"}]}"}},"response":{"status":200,"bodySize":300,"content":{"text":"{\"object\":\"chat.completion\",\"model\":\"m\",\"usage\":{\"prompt_tokens\":%d,\"completion_tokens\":%d}}"}},"timings":{"blocked":1,"dns":-1,"connect":-1,"ssl":-1,"send":0.5,"wait":300}},`,
				i/360000%24, i/6000%60, i/100%60, i%100*10, i, 100+i%3000, 1+i%400)
		}},
	"rows": {head: "exchange_id,phase,arrival_unix_ns,endpoint,stream,input_tokens,input_tokens_source,output_tokens,output_tokens_source,first_token_ns,end_ns,status\n", row: func(i int) string {
		return fmt.Sprintf("%d,record,%d,chat_completions,true,%d,usage,%d,usage,250000000,1500000000,200\n", i+1, 1700000000000000000+int64(i)*10000000, 100+i%3000, 1+i%400)
	}},
	"ragpulse": {row: func(i int) string {
		return fmt.Sprintf(`{"timestamp":"%d","input_length":%d,"output_length":%d,"session_id":"s%d","hash_ids":{"sys_prompt":[1],"passages_ids":[%d]}}`+"\n", i/10, 100+i%3000, 1+i%400, i/3, i)
	}},
}

// processor is the processor time that the process has used.
func processor(b *testing.B) time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		b.Fatal(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// BenchmarkImport measures a million rows of each text format with
//
//	make bench-import
func BenchmarkImport(b *testing.B) {
	for _, f := range importers {
		g, ok := rowsOf[f.Name]
		if !ok {
			continue
		}
		b.Run(f.Name, func(b *testing.B) {
			var sources []Source
			more := int64(0) // rows in the tails
			for from, per := 0, b.N; from < b.N; from += per {
				g := g
				if g.per > 0 {
					per = g.per
				}
				g.i, g.n = from, min(from+per, b.N)
				if sources = append(sources, Source{"generated", &g}); g.tail != "" {
					more++
				}
			}
			before := processor(b)
			r, err := Import(context.Background(), f, sources, filepath.Join(b.TempDir(), "t"), formats.Header{}, Options{Prompts: promptsPerTurn})
			if err != nil {
				b.Fatal(err)
			}
			if r.Kept != int64(b.N)+more || r.Dropped != 0 {
				b.Fatalf("%+v", r)
			}
			b.ReportMetric(float64(b.N)/(processor(b)-before).Seconds(), "rows/cpu-s") // making the rows included
		})
	}
}
