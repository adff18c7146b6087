package foreign

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/shadowtape/shadowtape/formats"
)

// openAIBatch reads the input and the output files of OpenAI's batch API. There are no times: all requests arrive at once, in the order
// of the file. An input states no token counts; they are estimated from its text, and marked so.
func openAIBatch(in *input) (formats.Decoder, error) {
	l := in.lines()
	in.header.TimeBase = "relative"
	if in.header.Extra == nil {
		in.header.Extra = map[string]any{}
	}
	in.header.Extra["arrivals"] = "order only"
	return func(x *formats.Exchange) error {
		line, err := l.next()
		if errors.Is(err, errLineTooLong) {
			return l.broken(err)
		}
		if err != nil {
			return err
		}
		var row struct {
			CustomID string          `json:"custom_id"`
			URL      string          `json:"url"`
			Body     json.RawMessage `json:"body"`
			Response *struct {
				StatusCode scalar `json:"status_code"`
				Body       record `json:"body"`
			} `json:"response"`
			Error *struct {
				Code scalar `json:"code"`
			} `json:"error"`
		}
		if err := l.object(line, &row); err != nil {
			return err
		}
		x.CorrelationID = in.hash.of("request", row.CustomID)
		switch {
		case row.Response != nil:
			return batchAnswer(x, string(row.Response.StatusCode), row.Response.Body, in)
		case row.Error != nil:
			x.ErrorKind = formats.ErrorUnsaid
			return nil
		case len(row.Body) > 0:
			return batchRequest(x, l, row.URL, row.Body, in)
		}
		return l.left("no_body")
	}, nil
}

// pathEndpoint names the API behind a path.
func pathEndpoint(path string) formats.Endpoint {
	path, _, _ = strings.Cut(path, "?")
	switch {
	case strings.HasSuffix(path, "/chat/completions"):
		return formats.EndpointChat
	case strings.HasSuffix(path, "/completions"):
		return formats.EndpointCompletions
	case strings.HasSuffix(path, "/responses"):
		return formats.EndpointResponses
	case strings.HasSuffix(path, "/embeddings"):
		return formats.EndpointEmbeddings
	case strings.HasSuffix(path, "/messages"):
		return formats.EndpointMessages
	case strings.HasSuffix(path, "/rerank"):
		return formats.EndpointRerank
	}
	return formats.EndpointOther
}

func batchRequest(x *formats.Exchange, l *lines, url string, body json.RawMessage, in *input) error {
	var p record
	if err := json.Unmarshal(body, &p); err != nil {
		return l.broken(plainJSON(err))
	}
	x.Endpoint, x.RequestModel, x.RequestBytes = pathEndpoint(url), p.text("model"), formats.Of(int64(len(body)))
	x.Stream = formats.Of(false)
	sampling(x, p)
	n := 0
	for _, k := range []string{"messages", "prompt", "input", "instructions"} {
		if v := p[k]; len(v) > 0 {
			var messages formats.Null[int32]
			if v[0] == '[' {
				n += messageText(string(v), &messages)
			} else {
				n += textBytes(v)
			}
			if k == "messages" {
				x.MessageCount = messages
			}
		}
	}
	var tools []json.RawMessage
	if json.Unmarshal(p["tools"], &tools) == nil {
		x.ToolCount, x.ToolBytes = formats.Of(int32(len(tools))), formats.Of(int64(len(p["tools"])))
		n += len(p["tools"])
	}
	if n > 0 {
		x.InputTokens, x.InputTokensSource = formats.Of(int64(n+3)/4), formats.TokensEstimated
		in.notes["tokens_estimated"]++
	}
	return nil
}

func batchAnswer(x *formats.Exchange, status string, body record, in *input) error {
	if n, err := count(status); err == nil && n.Valid && n.V < 1000 {
		x.Status = formats.Of(int32(n.V))
	}
	if x.Status.V >= 400 {
		x.ErrorKind = fmt.Sprintf("http_%d", x.Status.V)
		return nil
	}
	x.EndReason = formats.EndComplete
	x.ResponseModel = body.text("model")
	answered(x, body)
	return nil
}

// answered reads usage and finish reason of an OpenAI answer: chat completions, completions, responses, embeddings, messages.
func answered(x *formats.Exchange, body record) {
	u := body.object("usage")
	x.InputTokens, x.OutputTokens = u.count("prompt_tokens", "input_tokens"), u.count("completion_tokens", "output_tokens")
	x.CachedTokens = u.object("prompt_tokens_details").count("cached_tokens")
	if !x.CachedTokens.Valid {
		x.CachedTokens = u.object("input_tokens_details").count("cached_tokens")
	}
	x.ReasoningTokens = u.object("completion_tokens_details").count("reasoning_tokens")
	if !x.ReasoningTokens.Valid {
		x.ReasoningTokens = u.object("output_tokens_details").count("reasoning_tokens")
	}
	used(x)
	switch body.text("object") {
	case "chat.completion":
		x.Endpoint = formats.EndpointChat
	case "text_completion":
		x.Endpoint = formats.EndpointCompletions
	case "response":
		x.Endpoint = formats.EndpointResponses
	case "list":
		x.Endpoint = formats.EndpointEmbeddings
	}
	var choices []struct {
		FinishReason string `json:"finish_reason"`
	}
	if json.Unmarshal(body["choices"], &choices) == nil && len(choices) > 0 {
		x.FinishReason = choices[0].FinishReason
	}
}
