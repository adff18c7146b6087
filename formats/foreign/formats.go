package foreign

// importers is the table of formats.
var importers = []Format{
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
		Fields:  "timestamp (ms), input_length, output_length, hash_ids",
		Licence: "Apache-2.0",
		detect:  keyed("timestamp", "input_length", "output_length", "!chat_id"),
		open:    mooncake,
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
}
