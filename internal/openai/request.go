package openai

import (
	"sort"
	"strings"

	"github.com/shadowtape/shadowtape/formats"
)

// Endpoint returns the API that a request path belongs to, by its end: gateways put prefixes before it. A query is ignored. Native
// paths of Ollama, TGI, SGLang and llama.cpp count as chat completions, completions or embeddings.
func Endpoint(path string) formats.Endpoint {
	path, _, _ = strings.Cut(path, "?")
	path = strings.TrimRight(path, "/")
	for _, e := range endpoints {
		if strings.HasSuffix(path, e.suffix) {
			return e.endpoint
		}
	}
	return formats.EndpointOther
}

var endpoints = []struct {
	suffix   string
	endpoint formats.Endpoint
}{
	{"/chat/completions", formats.EndpointChat},
	{"/completions", formats.EndpointCompletions},
	{"/responses", formats.EndpointResponses},
	{"/embeddings", formats.EndpointEmbeddings},
	{"/messages", formats.EndpointMessages},
	{"/rerank", formats.EndpointRerank},
	{"/api/chat", formats.EndpointChat},
	{"/api/generate", formats.EndpointCompletions},
	{"/api/embed", formats.EndpointEmbeddings},
	{"/generate_stream", formats.EndpointCompletions},
	{"/generate", formats.EndpointCompletions},
	{"/completion", formats.EndpointCompletions},
	{"/invocations", formats.EndpointChat},
}

// ReadRequest fills the request and sampling columns of x from a request's path and body, without keeping any text. hash makes keyed
// hashes of identifiers and prompt blocks; nil leaves them unknown. A body that is no JSON object, or is cut, is an error; what
// stood before the damage is filled in.
func ReadRequest(x *formats.Exchange, path string, body []byte, hash *Hasher) error {
	x.Endpoint = Endpoint(path)
	x.RequestBytes = formats.Of(int64(len(body)))
	q := reader{x: x, h: hash}
	if hash != nil {
		hash.turns, hash.prompt, hash.previous, hash.tokens = hash.turns[:0], 0, "", -1
		hash.segment = hash.segment[:0]
	}
	ok := value(body).members(q.member)
	if ok && !x.Stream.Valid {
		plain, _, _ := strings.Cut(path, "?")
		// Ollama's native API streams unless told not to.
		x.Stream = formats.Of(strings.HasSuffix(plain, "/generate_stream") || strings.HasSuffix(plain, "/api/chat") || strings.HasSuffix(plain, "/api/generate"))
	}
	q.prompt()
	sort.Strings(q.extra)
	x.ExtraParams = q.extra
	sort.Strings(x.TemplateFlags)
	if !ok {
		return errJSON
	}
	return nil
}

// reader reads one request body.
type reader struct {
	x     *formats.Exchange
	h     *Hasher
	extra []string

	messages, system, tools, functions, input, ids value
	topLogprobs                                    int64
}

// member takes one top-level member.
func (q *reader) member(key []byte, v value) {
	if v.null() {
		return
	}
	x := q.x
	switch string(key) {
	case "model":
		x.RequestModel = v.str(maxText)
	case "stream":
		x.Stream = formats.Of(v.kind() == 't')
	case "messages":
		q.messages = v
	case "system", "instructions":
		q.system = v
	case "tools":
		q.tools = v
	case "functions":
		q.functions = v
	case "prompt", "input", "inputs", "text":
		switch {
		case string(key) == "text" && v.kind() == '{': // Responses
			v.members(func(k []byte, v value) {
				if string(k) == "format" {
					q.format(v)
				}
			})
		case string(key) == "prompt" && v.kind() == '{': // a stored prompt's id
			q.unknown(key)
		default:
			q.input = v
		}
	case "previous_response_id":
		if q.h != nil {
			q.h.previous = v.str(256)
		}
		q.extra = append(q.extra, "previous_response_id")
	case "input_ids":
		q.ids = v
	case "query":
		q.input = v
	case "documents":
		if x.Endpoint == formats.EndpointRerank {
			x.PromptCount = formats.Of(int32(v.count()))
		} else {
			q.extra = append(q.extra, "documents")
		}
	case "chat_template_kwargs":
		v.members(q.templateFlag)
	case "stream_options":
		v.members(func(k []byte, v value) {
			switch s := string(k); {
			case v.kind() == 't' && (s == "include_usage" || s == "continuous_usage_stats"):
				q.extra = append(q.extra, "stream_options."+s)
			case s != "include_usage" && s != "continuous_usage_stats" && s != "include_obfuscation":
				q.unknown(k)
			}
		})
	case "options", "parameters", "sampling_params":
		if v.kind() == '{' {
			v.members(q.param)
		}
	default:
		q.param(key, v)
	}
}

// param takes one parameter, of the body or of a native API's parameter object.
func (q *reader) param(key []byte, v value) {
	if v.null() {
		return
	}
	x := q.x
	switch s := string(key); s {
	case "temperature":
		setFloat(&x.Temperature, v)
	case "top_p":
		setFloat(&x.TopP, v)
	case "min_p":
		setFloat(&x.MinP, v)
	case "presence_penalty":
		setFloat(&x.PresencePenalty, v)
	case "frequency_penalty":
		setFloat(&x.FrequencyPenalty, v)
	case "repetition_penalty", "repeat_penalty":
		setFloat(&x.RepetitionPenalty, v)
	case "top_k":
		setInt(&x.TopK, v)
	case "seed":
		setInt(&x.Seed, v)
	case "n":
		setInt32(&x.N, v)
	case "best_of":
		setInt32(&x.BestOf, v)
	case "priority":
		setInt32(&x.Priority, v)
	case "max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens", "n_predict", "num_predict":
		if n, ok := v.integer(); ok && n >= 0 {
			x.MaxTokens = formats.Of(n)
		}
	case "min_tokens", "min_new_tokens":
		setInt(&x.MinTokens, v)
	case "ignore_eos":
		x.IgnoreEOS = formats.Of(v.kind() == 't')
	case "logprobs":
		switch v.kind() {
		case 't':
			x.Logprobs = formats.Of(int32(q.topLogprobs))
		case '0':
			setInt32(&x.Logprobs, v)
		}
	case "top_logprobs", "n_probs":
		if n, ok := v.integer(); ok && n >= 0 && n < 1<<16 {
			q.topLogprobs = n
			if x.Logprobs.Valid || s == "n_probs" || x.Endpoint == formats.EndpointResponses {
				x.Logprobs = formats.Of(int32(n))
			}
		}
	case "stop", "stop_sequences":
		n := 1
		if v.kind() == '[' {
			n = v.count()
		}
		x.StopCount = formats.Of(int32(n))
	case "reasoning_effort":
		q.effort(v)
	case "reasoning":
		v.members(func(k []byte, v value) {
			if string(k) == "effort" {
				q.effort(v)
			}
		})
	case "service_tier":
		x.ServiceTier = known(v.str(16), "auto", "default", "flex", "scale", "priority", "fast", "standard_only")
	case "cache_salt":
		x.CacheSalted = formats.Of(v.kind() == '"' && len(v) > 2)
	case "user", "safety_identifier":
		if q.h != nil && !x.TenantID.Valid && v.kind() == '"' {
			x.TenantID = formats.Of(q.h.Sum("tenant", v.str(1<<16)))
		}
	case "session_id", "conversation": // a conversation may be an object with an id
		if name := v.str(1 << 16); q.h != nil && !x.SessionID.Valid {
			if name == "" {
				name = string(v)
			}
			x.SessionID = formats.Of(q.h.Sum("session", name))
		}
		q.extra = append(q.extra, s)
	case "response_format":
		q.format(v)
	case "format", "guided_json", "json_schema":
		x.ResponseFormat = "json_schema"
		if v.kind() == '"' && s == "format" {
			x.ResponseFormat = "json_object"
		}
	case "guided_regex", "regex":
		x.ResponseFormat = "regex"
	case "guided_grammar", "grammar", "ebnf":
		if v.kind() == '{' { // TGI: {"type":"json"|"regex"}
			q.format(v)
		} else {
			x.ResponseFormat = "grammar"
		}
	case "guided_choice":
		x.ResponseFormat = "choice"
	case "structured_outputs":
		v.members(func(k []byte, v value) {
			if f := known(string(k), "json", "regex", "choice", "grammar", "json_object", "structural_tag"); !v.null() && f != "other" {
				x.ResponseFormat = strings.Replace(f, "json", "json_schema", 1)
				if f == "json_object" {
					x.ResponseFormat = f
				}
			}
		})
	default:
		if knownParams[s] {
			q.extra = append(q.extra, s)
			return
		}
		q.unknown(key)
	}
}

// unknown notes a parameter whose name may be anything: only its keyed hash is kept.
func (q *reader) unknown(key []byte) {
	if q.h != nil && len(q.extra) < 64 {
		q.extra = append(q.extra, q.h.Hex("param", string(key)))
	}
}

func (q *reader) effort(v value) {
	q.x.ReasoningEffort = known(v.str(16), "none", "minimal", "low", "medium", "high")
}

func (q *reader) format(v value) {
	v.members(func(k []byte, v value) {
		if string(k) != "type" {
			return
		}
		switch f := known(v.str(16), "text", "json_object", "json_schema", "json", "structural_tag", "regex", "grammar", "choice"); f {
		case "json":
			q.x.ResponseFormat = "json_schema"
		default:
			q.x.ResponseFormat = f
		}
	})
}

// templateFlag takes one chat template argument: those that are boolean or numeric, names that are not well known as hashes.
func (q *reader) templateFlag(key []byte, v value) {
	k := v.kind()
	if k != 't' && k != 'f' && k != '0' || len(v) > 24 || len(q.x.TemplateFlags) >= 32 {
		return
	}
	name := string(key)
	if !templateFlags[name] {
		if q.h == nil {
			return
		}
		name = q.h.Hex("template", name)
	}
	q.x.TemplateFlags = append(q.x.TemplateFlags, name+"="+string(v))
}

// known returns s where it is one of the words, "other" where it is anything else, and "" where it is empty.
func known(s string, words ...string) string {
	for _, w := range words {
		if s == w {
			return w
		}
	}
	return "other"
}

func setFloat(n *formats.Null[float64], v value) {
	if f, ok := v.float(); ok {
		*n = formats.Of(f)
	}
}

func setInt(n *formats.Null[int64], v value) {
	if i, ok := v.integer(); ok {
		*n = formats.Of(i)
	}
}

func setInt32(n *formats.Null[int32], v value) {
	if i, ok := v.integer(); ok && i >= -1<<31 && i < 1<<31 {
		*n = formats.Of(int32(i))
	}
}

var templateFlags = set("enable_thinking thinking add_generation_prompt continue_final_message add_vision_id thinking_budget add_special_tokens preserve_thinking clear_thinking")

// knownParams are parameters without a column of their own whose names are public.
var knownParams = set(`logit_bias verbosity tool_choice parallel_tool_calls function_call web_search_options modalities audio prediction
	prompt_cache_key prompt_cache_retention prompt_cache_options store metadata moderation echo suffix max_tool_calls previous_response_id truncation include
	background context_management thinking cache_control output_config container use_beam_search length_penalty bad_words allowed_token_ids
	logprob_token_ids prompt_logprobs skip_special_tokens spaces_between_special_tokens include_stop_str_in_output stop_token_ids
	repetition_detection truncate_prompt_tokens truncation_side thinking_token_budget include_reasoning guided_decoding_backend chat_template
	add_generation_prompt continue_final_message add_special_tokens mm_processor_kwargs media_io_kwargs prompt_embeds kv_transfer_params
	ec_transfer_params request_id vllm_xargs stream_interval return_token_ids return_tokens_as_token_ids return_prompt_text stop_regex
	no_stop_trim lora_path session_params separate_reasoning stream_reasoning custom_logit_processor custom_params rid extra_key
	bootstrap_host bootstrap_port bootstrap_room routed_dp_rank disagg_prefill_dp_rank data_parallel_rank return_hidden_states
	return_cached_tokens_details return_prompt_token_ids return_meta_info images_config use_audio_in_video task end_id detokenize
	disaggregated_params tool_prompt do_sample typical_p watermark truncate adapter_id top_n_tokens details return_full_text
	decoder_input_details cache_prompt id_slot return_tokens timings_per_token return_progress post_sampling_probs response_fields samplers
	mirostat mirostat_tau mirostat_eta dry_multiplier dry_base dry_allowed_length dry_penalty_last_n dry_sequence_breakers xtc_probability
	xtc_threshold t_max_predict_ms lora sse_ping_interval do_preprocess enable_thinking keep_alive num_ctx num_keep raw template images
	encoding_format dimensions input_type top_n return_documents normalize top_a stream_response_default_include_usage repeat_last_n tfs_z`)

func set(words string) map[string]bool {
	m := map[string]bool{}
	for _, w := range strings.Fields(words) {
		m[w] = true
	}
	return m
}
