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
}
