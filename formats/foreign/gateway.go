package foreign

import (
	"strconv"
	"strings"

	"github.com/shadowtape/shadowtape/formats"
)

// liteLLM reads rows of LiteLLM's table of spend logs, as CSV or JSON. Answers from its own cache never reached a backend and are left
// out. The token counts of a failed call are 0 there, and unknown here.
func liteLLM(in *input) (formats.Decoder, error) {
	rs, err := newRecords(in, "data")
	if err != nil {
		return nil, err
	}
	in.header.TimeBase = "absolute"
	return func(x *formats.Exchange) error {
		r, err := rs.next()
		if err != nil {
			return err
		}
		if strings.EqualFold(r.text("cache_hit"), "true") {
			return rs.left("cache_hit")
		}
		at, ok, err := r.instant("starttime")
		switch {
		case err != nil:
			return rs.broken(err)
		case !ok:
			return rs.left("no_time")
		}
		x.ArrivalUnixNS = at
		end, ended, err := r.instant("endtime")
		if err != nil {
			return rs.broken(err)
		}
		x.EndNS = in.since(x, end, ended)
		if first, ok, err := r.instant("completionstarttime"); err == nil && ok && first != end { // the two are equal where nothing was streamed
			x.FirstTokenNS = in.since(x, first, true)
			x.Stream = formats.Of(true)
		}
		x.Endpoint = callEndpoint(r.text("call_type"))
		x.RequestModel, x.ResponseModel = r.text("model_group", "model"), r.text("model")
		x.ServerID = r.text("api_base")
		x.SessionID = in.hash.of("session", r.text("session_id"))
		x.TenantID = in.hash.of("tenant", r.text("team_id", "api_key", "user"))
		x.CorrelationID = in.hash.of("request", r.text("request_id"))
		x.InputTokens, x.OutputTokens = r.count("prompt_tokens"), r.count("completion_tokens")
		if status := strings.ToLower(r.text("status")); status == "failure" || status == "error" {
			x.ErrorKind = formats.ErrorUnsaid
			x.InputTokens, x.OutputTokens = unlessZero(x.InputTokens), unlessZero(x.OutputTokens)
		} else if ended {
			x.EndReason = formats.EndComplete
		}
		used(x)
		return nil
	}, nil
}

// used marks token counts as the server's own.
func used(x *formats.Exchange) {
	if x.InputTokens.Valid {
		x.InputTokensSource = formats.TokensUsage
	}
	if x.OutputTokens.Valid {
		x.OutputTokensSource = formats.TokensUsage
	}
}

func unlessZero(n formats.Null[int64]) formats.Null[int64] {
	if n.V == 0 {
		return formats.Null[int64]{}
	}
	return n
}

// callEndpoint reads LiteLLM's names of calls; an "a" before one is its asynchronous form.
func callEndpoint(s string) formats.Endpoint {
	s = strings.TrimPrefix(s, "_")
	switch strings.TrimPrefix(s, "a") {
	case "completion":
		return formats.EndpointChat
	case "text_completion":
		return formats.EndpointCompletions
	case "embedding":
		return formats.EndpointEmbeddings
	case "responses":
		return formats.EndpointResponses
	case "nthropic_messages": // anthropic_messages
		return formats.EndpointMessages
	case "rerank":
		return formats.EndpointRerank
	case "":
		return ""
	}
	return formats.EndpointOther
}

// langfuse reads observations as Langfuse exports them, CSV or JSON: those of type GENERATION. Durations are taken from the three times,
// never from latency and timeToFirstToken, whose unit depends on where the export came from.
func langfuse(in *input) (formats.Decoder, error) {
	rs, err := newRecords(in, "data")
	if err != nil {
		return nil, err
	}
	in.header.TimeBase = "absolute"
	return func(x *formats.Exchange) error {
		r, err := rs.next()
		if err != nil {
			return err
		}
		if kind := r.text("type"); kind != "" && !strings.EqualFold(kind, "GENERATION") {
			return rs.left("not_generation")
		}
		at, ok, err := r.instant("starttime", "start_time")
		switch {
		case err != nil:
			return rs.broken(err)
		case !ok:
			return rs.left("no_time")
		}
		x.ArrivalUnixNS = at
		end, ended, err := r.instant("endtime", "end_time")
		if err != nil {
			return rs.broken(err)
		}
		x.EndNS = in.since(x, end, ended)
		if first, ok, err := r.instant("completionstarttime", "completion_start_time"); err == nil && ok {
			x.FirstTokenNS = in.since(x, first, true)
			x.Stream = formats.Of(true)
		}
		x.RequestModel = r.text("model", "providedmodelname", "provided_model_name")
		x.SessionID = in.hash.of("session", r.text("sessionid", "session_id"))
		x.TenantID = in.hash.of("tenant", r.text("userid", "user_id"))
		x.CorrelationID = in.hash.of("request", r.text("id"))
		usage := r.object("usagedetails")
		if usage == nil {
			usage = r.object("usage_details")
		}
		if usage == nil {
			usage = r.object("usage")
		}
		x.InputTokens, x.OutputTokens = usage.count("input", "prompt_tokens", "input_tokens"), usage.count("output", "completion_tokens", "output_tokens")
		x.CachedTokens = usage.count("input_cached_tokens", "cache_read_input_tokens", "input_cache_read")
		x.ReasoningTokens = usage.count("output_reasoning_tokens", "output_reasoning")
		if !x.InputTokens.Valid {
			x.InputTokens = r.count("prompttokens", "inputtokens", "input_tokens")
		}
		if !x.OutputTokens.Valid {
			x.OutputTokens = r.count("completiontokens", "outputtokens", "output_tokens")
		}
		parameters := r.object("modelparameters")
		if parameters == nil {
			parameters = r.object("model_parameters")
		}
		sampling(x, parameters)
		if strings.EqualFold(r.text("level"), "ERROR") {
			x.ErrorKind = formats.ErrorUnsaid
			x.InputTokens, x.OutputTokens = unlessZero(x.InputTokens), unlessZero(x.OutputTokens)
		} else if ended {
			x.EndReason = formats.EndComplete
		}
		used(x)
		return nil
	}, nil
}

// sampling reads the OpenAI API's parameters of a request.
func sampling(x *formats.Exchange, p record) {
	if p == nil {
		return
	}
	x.Temperature, x.TopP, x.TopK, x.MinP = p.number("temperature"), p.number("top_p"), p.count("top_k"), p.number("min_p")
	x.PresencePenalty, x.FrequencyPenalty = p.number("presence_penalty"), p.number("frequency_penalty")
	x.RepetitionPenalty = p.number("repetition_penalty")
	if s, err := strconv.ParseInt(p.text("seed"), 10, 64); err == nil {
		x.Seed = formats.Of(s)
	}
	x.N, x.BestOf = p.small("n"), p.small("best_of")
	x.MaxTokens, x.MinTokens = p.count("max_completion_tokens", "max_output_tokens", "max_tokens"), p.count("min_tokens")
	x.IgnoreEOS = p.truth("ignore_eos")
	if s := p.truth("stream"); s.Valid {
		x.Stream = s
	}
	switch e := p.text("reasoning_effort"); e {
	case "", "none", "minimal", "low", "medium", "high":
		x.ReasoningEffort = e
	default:
		x.ReasoningEffort = "other"
	}
}
