package foreign

import "bytes"

// importers is the table of formats.
var importers = []Format{
	{
		Name: "rows", Summary: "what export csv and export jsonl wrote",
		Fields: "the columns of docs/FORMAT.md by name, exchange_id and arrival_unix_ns at least",
		detect: looksLikeOwn,
		open:   ownRows,
	},
	{
		Name: "azure-llm", Summary: "Azure LLM inference traces of 2023 and 2024 (CSV)",
		Fields:  "TIMESTAMP, ContextTokens, GeneratedTokens",
		Licence: "CC-BY-4.0",
		detect:  headed(",", "timestamp", "contexttokens", "generatedtokens", "!numimages"),
		open:    azure("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
	},
	{
		Name: "azure-lmm", Summary: "Azure multimodal inference trace of 2025 (CSV)",
		Fields:  "TIMESTAMP, NumImages, ContextTokens, GeneratedTokens",
		Licence: "CC-BY-4.0",
		detect:  headed(",", "timestamp", "contexttokens", "generatedtokens", "numimages"),
		open:    azure("TIMESTAMP", "NumImages", "ContextTokens", "GeneratedTokens"),
	},
	{
		Name: "mooncake", Summary: "Mooncake traces and what is written like them (JSON lines)",
		Fields:  "timestamp (ms), input_length, output_length, hash_ids; session_id, delay (ms), text_input",
		Licence: "Apache-2.0",
		detect:  looksLikeMooncake,
		open:    mooncake,
	},
	{
		Name: "ragpulse", Summary: "RAGPulse (JSON lines)",
		Fields:  "timestamp (s), input_length, output_length, session_id",
		Licence: "MIT",
		detect: func(head []byte) bool {
			first := firstObject(head)
			return hasKey(first, "input_length") && bytes.HasPrefix(first["hash_ids"], []byte("{"))
		},
		open: ragPulse,
	},
	{
		Name: "azure-copilot", Summary: "Azure's GitHub Copilot agent traces of 2026 (JSON lines)",
		Fields:  "turns, llm_calls: timestamp, duration_ms, model, status_code, tokens",
		Licence: "CC-BY-4.0",
		detect:  keyed("session_id", "turns"),
		open:    azureCopilot,
	},
	{
		Name: "tracelab", Summary: "TraceLab rounds of coding agents (JSON lines)",
		Fields:  "timing_events, input_tokens_total, output_tokens, reasoning_output_tokens, cache reads, session_id",
		Licence: "CC-BY-4.0",
		detect:  keyed("session_id", "input_tokens_total"),
		open:    traceLab,
	},
	{
		Name: "sharegpt", Summary: "ShareGPT conversations, for their lengths only (JSON)",
		Fields: "conversations: from, value. No times: all arrive at once; lengths estimated",
		detect: anyOf(anywhere(`"conversations"`, `"from"`), anywhere(`"conversation"`, `"role"`)),
		open:   shareGPT,
	},
	{
		Name: "har", Summary: "HTTP archives of browsers and proxies (JSON)",
		Fields: "entries that call a model: startedDateTime, timings, status, usage in the answer",
		detect: anywhere(`"log"`, `"entries"`),
		open:   har,
	},
	{
		Name: "bailian", Summary: "Qwen-Bailian traces A, B, thinking, coder (JSON lines)",
		Fields:  "timestamp (s), input_length, output_length, hash_ids, chat_id, parent_chat_id, turn",
		Licence: "Apache-2.0",
		detect:  keyed("timestamp", "input_length", "output_length", "chat_id"),
		open:    bailian,
	},
	{
		Name: "burstgpt", Summary: "BurstGPT 1, 2 and 3 (CSV)",
		Fields:  "Timestamp (s), Model, Request tokens, Response tokens; Session ID, Elapsed time",
		Licence: "CC-BY-4.0",
		detect:  headed(",", "timestamp", "model", "request tokens", "response tokens"),
		open:    burstGPT,
	},
	{
		Name: "weka", Summary: "kv-cache-tester sessions, one file each (JSON)",
		Fields:  "requests: t (s), type, in, out, hash_ids, model, stop, ttft, api_time; sub-agents",
		Licence: "Apache-2.0",
		detect:  keyed("id", "block_size", "requests"),
		open:    weka,
	},
	{
		Name: "servegen", Summary: "ServeGen client pools, expanded to requests (CSV and JSON, two files a client)",
		Fields:  "chunk-N-trace.csv: windows, rates, distributions; chunk-N-dataset.json: lengths. --seed, --from, --duration (default 1h)",
		Licence: "Apache-2.0",
		detect:  looksLikeServeGen,
		pool:    serveGen,
	},
	{
		Name: "dynamo", Summary: "NVIDIA Dynamo request traces (JSON lines)",
		Fields: "request_end events: request_received_ms, input_tokens, output_tokens, ttft_ms, total_time_ms, replay hashes, session",
		detect: looksLikeDynamo,
		open:   dynamo,
	},
	{
		Name: "otel", Summary: "OpenTelemetry GenAI spans (OTLP JSON, or flattened)",
		Fields: "gen_ai.* attributes, span times, sessions, parents; token counts estimated from text where there are none",
		detect: looksLikeOTel,
		open:   otel,
	},
	{
		Name: "litellm", Summary: "LiteLLM spend logs (CSV or JSON)",
		Fields: "startTime, endTime, completionStartTime, prompt_tokens, completion_tokens, model, status, session_id, cache_hit",
		detect: anyOf(headed(",", "starttime", "prompt_tokens", "call_type"), anywhere(`"call_type"`, `"startTime"`, `"prompt_tokens"`)),
		open:   liteLLM,
	},
	{
		Name: "langfuse", Summary: "Langfuse observations (CSV or JSON)",
		Fields: "type GENERATION: startTime, completionStartTime, endTime, model, modelParameters, usageDetails, level, sessionId",
		detect: anyOf(headed(",", "traceid", "starttime"), anyOf(headed(",", "trace_id", "start_time"), anywhere(`"traceId"`, `"startTime"`, `"type"`))),
		open:   langfuse,
	},
	{
		Name: "openai-batch", Summary: "OpenAI batch files, input or output (JSON lines)",
		Fields: "custom_id, url, body; response.status_code, usage. No times: all arrive at once",
		detect: anyOf(keyed("custom_id", "url"), keyed("custom_id", "response")),
		open:   openAIBatch,
	},
	{
		Name: "baseten", Summary: "Baseten's export (Parquet)",
		Fields: "timestamp_start_unix_ms, input_tokens, output_tokens; sessions, hashes, durations, request_canceled",
		detect: func(head []byte) bool { return string(head[:min(4, len(head))]) == "PAR1" },
		open:   baseten,
	},
	{
		Name: "nginx", Summary: "nginx access logs (--log-format, default combined)",
		Fields: "time_local, msec or time_iso8601, request, status, request_time, upstream_*, body_bytes_sent, request_id",
		detect: looksLikeAccessLog,
		open:   nginx,
	},
	{
		Name: "envoy", Summary: "Envoy access logs (--log-format, default Envoy's)",
		Fields: "START_TIME, REQ(:METHOD), REQ(:PATH), RESPONSE_CODE, RESPONSE_FLAGS, BYTES_*, *DURATION, UPSTREAM_HOST",
		detect: func(head []byte) bool { return looksLikeEnvoyLog(head) || looksLikeAccessLog(head) },
		open:   envoy,
	},
}

// anyOf detects by one way or the other.
func anyOf(a, b func([]byte) bool) func([]byte) bool {
	return func(head []byte) bool { return a(head) || b(head) }
}

// anywhere detects JSON by names that occur in its head.
func anywhere(names ...string) func([]byte) bool {
	return func(head []byte) bool {
		head = bytes.TrimLeft(head, " \t\r\n")
		if len(head) == 0 || head[0] != '{' && head[0] != '[' {
			return false
		}
		for _, n := range names {
			if !bytes.Contains(head, []byte(n)) {
				return false
			}
		}
		return true
	}
}
