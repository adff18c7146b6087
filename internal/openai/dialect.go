package openai

import "strings"

// field is what a JSON value in a response means.
type field uint8

const (
	none           field = iota
	choice               // an element of choices: opens and closes a delta
	choiceIndex          // position of the delta's choice
	content              // non-empty: generated answer text
	sound                // non-empty: generated answer, no text
	reasoning            // non-empty: generated reasoning
	tool                 // non-empty: part of a tool call
	refusal              // non-empty: a refusal
	tokenID              // each: one generated token
	logprob              // each: one generated token with its log probability
	cumulative           // the whole text so far (SGLang's native stream)
	eventDelta           // a delta whose kind is the event's type (Responses)
	finish               // why generation ended
	objectKind           // "error" makes the object an error
	eventType            // the event's type (Responses, Messages)
	failure              // anything but null: an error
	doneFlag             // true: the stream is over (Ollama)
	stopFlag             // true: generation is over (llama.cpp)
	status               // of a Responses object
	incomplete           // why a Responses object is incomplete
	modelName            // the model that answered
	answerID             // the id that a later request continues from
	usageIn              // input tokens, cached ones included
	usageInRest          // input tokens, cached ones not included (Anthropic)
	usageOut             // output tokens
	usageTotal           // input and output tokens
	usageCached          // input tokens read from a cache
	usageCachedAdd       // input tokens read from a cache that usageInRest leaves out
	usageWritten         // input tokens written to a cache that usageInRest leaves out
	usageReason          // reasoning tokens among the output
	usageEach            // output tokens so far, in every event (SGLang's native stream)
	generated            // output tokens by the server's own count, without a usage object
	prompted             // input tokens by the server's own count, without a usage object
)

// text reports whether a string there matters only by whether it is empty, and how long it is.
func (f field) text() bool {
	return f == content || f == reasoning || f == tool || f == refusal || f == eventDelta || f == cumulative
}

// dialect is one place where a server may put one thing. The paths use the JSON names; [] is any element of an array.
type dialect struct {
	path  string
	field field
	who   string
}

// dialects is the one list of response fields: every server that speaks one of these is understood, streamed or not, by the same
// parser. An unknown field is skipped.
var dialects = []dialect{
	{"model", modelName, "OpenAI"},
	{"object", objectKind, "vLLM and SGLang errors"},
	{"error", failure, "all; TGI, llama.cpp: also a string"},
	{"type", eventType, "Responses, Messages"},

	{"choices[]", choice, "OpenAI"},
	{"choices[].index", choiceIndex, "OpenAI"},
	{"choices[].finish_reason", finish, "OpenAI"},
	{"choices[].text", content, "completions"},
	{"choices[].token_ids[]", tokenID, "vLLM, TRT-LLM"},
	{"choices[].output_ids[]", tokenID, "LMDeploy"},
	{"choices[].logprobs.content[]", logprob, "chat"},
	{"choices[].logprobs.tokens[]", logprob, "completions"},
	// choices[].delta and choices[].message follow in init, as they are alike

	{"delta", eventDelta, "Responses"},
	{"logprobs[]", logprob, "Responses"},
	{"id", answerID, "Responses, not streamed"},
	{"response.id", answerID, "Responses"},
	{"response.model", modelName, "Responses"},
	{"response.status", status, "Responses"},
	{"response.incomplete_details.reason", incomplete, "Responses"},
	{"status", status, "Responses, not streamed"},
	{"incomplete_details.reason", incomplete, "Responses, not streamed"},
	{"output[].content[].text", content, "Responses, not streamed"},
	{"output[].content[].refusal", refusal, "Responses, not streamed"},
	{"output[].summary[].text", reasoning, "Responses, not streamed"},
	{"output[].arguments", tool, "Responses, not streamed"},
	{"output[].input", tool, "Responses, not streamed"},
	{"output[].name", tool, "Responses, not streamed"},

	{"message.model", modelName, "Messages"},
	{"delta.text", content, "Messages"},
	{"delta.thinking", reasoning, "Messages"},
	{"delta.partial_json", tool, "Messages"},
	{"delta.stop_reason", finish, "Messages"},
	{"stop_reason", finish, "Messages, not streamed"},
	{"content[].text", content, "Messages, not streamed"},
	{"content[].thinking", reasoning, "Messages, not streamed"},
	{"content[].name", tool, "Messages, not streamed"},

	{"message.content", content, "Ollama chat"},
	{"message.thinking", reasoning, "Ollama chat"},
	{"message.tool_calls[].function.name", tool, "Ollama chat"},
	{"response", content, "Ollama generate"},
	{"thinking", reasoning, "Ollama generate"},
	{"done", doneFlag, "Ollama"},
	{"done_reason", finish, "Ollama"},
	{"prompt_eval_count", prompted, "Ollama"},
	{"eval_count", generated, "Ollama"},

	{"token.id", tokenID, "TGI"},
	{"token.text", content, "TGI"},
	{"generated_text", cumulative, "TGI, not streamed"},
	{"details.finish_reason", finish, "TGI"},
	{"details.generated_tokens", generated, "TGI"},
	{"error_type", failure, "TGI"},

	{"text", cumulative, "SGLang generate"},
	{"meta_info.prompt_tokens", usageIn, "SGLang generate"},
	{"meta_info.completion_tokens", usageEach, "SGLang generate"},
	{"meta_info.cached_tokens", usageCached, "SGLang generate"},
	{"meta_info.finish_reason.type", finish, "SGLang generate"},

	{"content", content, "llama.cpp completion"},
	{"tokens[]", tokenID, "llama.cpp completion"},
	{"stop", stopFlag, "llama.cpp completion"},
	{"stop_type", finish, "llama.cpp completion"},
	{"tokens_evaluated", prompted, "llama.cpp completion"},
	{"tokens_predicted", generated, "llama.cpp completion"},
	{"timings.predicted_n", generated, "llama.cpp"},

	{"meta.tokens.input_tokens", prompted, "Cohere rerank"},
}

// deltas are the members of choices[].delta and choices[].message.
var deltas = []dialect{
	{"content", content, "OpenAI"},
	{"content[].text", content, "Mistral"},
	{"reasoning_content", reasoning, "SGLang, DeepSeek, older vLLM"},
	{"reasoning", reasoning, "vLLM, Ollama, OpenRouter"},
	{"thinking", reasoning, "proxies"},
	{"refusal", refusal, "OpenAI"},
	{"tool_calls[].function.name", tool, "OpenAI"},
	{"tool_calls[].function.arguments", tool, "OpenAI"},
	{"tool_calls[].custom.name", tool, "OpenAI"},
	{"tool_calls[].custom.input", tool, "OpenAI"},
	{"function_call.name", tool, "OpenAI, older"},
	{"function_call.arguments", tool, "OpenAI, older"},
	{"audio.data", sound, "OpenAI"},
	{"audio.transcript", content, "OpenAI"},
	{"output_ids[]", tokenID, "LMDeploy"},
}

// usages are the members of a usage object.
var usages = []dialect{
	{"prompt_tokens", usageIn, "OpenAI"},
	{"completion_tokens", usageOut, "OpenAI"},
	{"total_tokens", usageTotal, "OpenAI"},
	{"output_tokens", usageOut, "Responses, Messages"},
	{"prompt_tokens_details.cached_tokens", usageCached, "OpenAI"},
	{"completion_tokens_details.reasoning_tokens", usageReason, "OpenAI"},
	{"input_tokens_details.cached_tokens", usageCached, "Responses"},
	{"output_tokens_details.reasoning_tokens", usageReason, "Responses"},
	{"reasoning_tokens", usageReason, "SGLang"},
	{"prompt_cache_hit_tokens", usageCached, "DeepSeek"},
	{"input_tokens", usageInRest, "Responses, Messages"},
	{"cache_read_input_tokens", usageCachedAdd, "Messages"},
	{"cache_creation_input_tokens", usageWritten, "Messages"},
}

// node is a position in the table.
type node struct {
	field field
	elem  *node // any element, where the value is an array
	keys  []string
	kids  []*node
}

func (n *node) to(key string) *node {
	for i, k := range n.keys {
		if k == key {
			return n.kids[i]
		}
	}
	kid := &node{}
	n.keys, n.kids = append(n.keys, key), append(n.kids, kid)
	return kid
}

func (n *node) add(prefix string, table []dialect) {
	for _, d := range table {
		at := n
		for _, part := range strings.Split(prefix+d.path, ".") {
			name, array := strings.CutSuffix(part, "[]")
			at = at.to(name)
			if array {
				if at.elem == nil {
					at.elem = &node{}
				}
				at = at.elem
			}
		}
		at.field = d.field
	}
}

var table = buildTable()

func buildTable() *node {
	n := &node{}
	n.add("", dialects)
	n.add("choices[].delta.", deltas)
	n.add("choices[].message.", deltas)
	for _, where := range []string{"usage.", "response.usage.", "message.usage."} {
		n.add(where, usages)
	}
	n.to("message").to("usage").to("output_tokens").field = none // of message_start: nothing has been generated yet
	n.elem = n                                                   // TGI: the answer may stand in an array
	return n
}

// finishReasons maps what servers say to one vocabulary, OpenAI's where it has a word. Anything else is "other": a reason is never
// stored as text.
var finishReasons = map[string]string{
	"stop": "stop", "length": "length", "tool_calls": "tool_calls", "content_filter": "content_filter", "function_call": "function_call",
	"abort": "abort", "error": "error", "cancelled": "abort", "repetition": "repetition", "parse_error": "parse_error", "insufficient_system_resource": "error",
	"eos_token": "stop", "eos": "stop", "stop_sequence": "stop", "end_turn": "stop", "completed": "stop", "word": "stop", "load": "load", "unload": "load",
	"max_tokens": "length", "max_output_tokens": "length", "limit": "length", "model_length": "length", "model_context_window_exceeded": "length",
	"tool_use": "tool_calls", "refusal": "refusal", "pause_turn": "pause_turn",
}

// notFinished are reasons that say that generation goes on.
var notFinished = map[string]bool{"": true, "not_finished": true, "none": true, "in_progress": true, "queued": true}

// eventTypes are the typed events of Responses and Messages that mean something; the meaning of a delta comes from its event's type.
var eventTypes = map[string]field{
	"response.output_text.delta":                content,
	"response.refusal.delta":                    refusal,
	"response.audio.delta":                      content,
	"response.audio.transcript.delta":           content,
	"response.reasoning_text.delta":             reasoning,
	"response.reasoning_summary_text.delta":     reasoning,
	"response.reasoning.delta":                  reasoning,
	"response.function_call_arguments.delta":    tool,
	"response.custom_tool_call_input.delta":     tool,
	"response.mcp_call_arguments.delta":         tool,
	"response.code_interpreter_call_code.delta": tool,
	"response.completed":                        doneFlag,
	"response.incomplete":                       doneFlag,
	"response.failed":                           failure,
	"message_stop":                              doneFlag,
	"error":                                     failure,
}
