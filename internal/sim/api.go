package sim

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"strings"

	"github.com/shadowtape/shadowtape/internal/kv"
	"github.com/shadowtape/shadowtape/internal/stats"
)

// route answers a request at once, or leaves it to the driver.
func (s *Server) route(ex *exchange, req *http.Request, body []byte) {
	path := req.URL.Path
	if i := strings.LastIndex(path, "/v1/"); i > 0 {
		path = path[i:] // behind a prefix, as some gateways have
	}
	switch req.Method + " " + path {
	case "POST /v1/chat/completions", "POST /v1/completions", "POST /v1/embeddings":
		s.infer(ex, strings.ReplaceAll(strings.TrimPrefix(path, "/v1/"), "/", "_"), body)
	case "GET /v1/models":
		ex.replyJSON(200, map[string]any{"object": "list", "data": []any{map[string]any{"id": s.o.Profile.Model, "object": "model", "created": s.startNS / 1e9,
			"owned_by": "shadowtape-sim", "root": s.o.Profile.Model, "parent": nil, "max_model_len": s.maxLen}}})
	case "GET /health", "GET /ping", "POST /ping":
		ex.reply(200, "text/plain", nil)
	case "GET /version":
		ex.replyJSON(200, map[string]any{"version": "0.0.0+shadowtape-sim"})
	case "GET /metrics":
		var b bytes.Buffer
		s.mu.Lock()
		_ = s.meter.WriteText(&b, s.counters(), s.started)
		s.mu.Unlock()
		ex.reply(200, "text/plain; version=0.0.4; charset=utf-8", b.Bytes())
	case "POST /tokenize":
		s.tokenize(ex, body)
	case "POST /detokenize":
		s.detokenize(ex, body)
	case "POST /reset_prefix_cache":
		s.mu.Lock()
		err := errors.New("closing")
		if s.engine != nil {
			err = s.engine.ResetPrefixCache()
		}
		s.mu.Unlock()
		if err != nil && !errors.Is(err, kv.ErrHeld) {
			ex.fail(500, "InternalServerError", err.Error())
			return
		}
		ex.replyJSON(200, map[string]any{"success": err == nil})
	default:
		ex.replyJSON(404, map[string]any{"detail": "Not Found"})
	}
}

// apiRequest is what the simulator reads of the three inference endpoints' bodies.
type apiRequest struct {
	Model         string          `json:"model"`
	Messages      []message       `json:"messages"`
	Tools         json.RawMessage `json:"tools"`
	Prompt        json.RawMessage `json:"prompt"`
	Input         json.RawMessage `json:"input"`
	Encoding      string          `json:"encoding_format"`
	Stream        bool            `json:"stream"`
	StreamOptions struct {
		Usage      bool `json:"include_usage"`
		Continuous bool `json:"continuous_usage_stats"`
	} `json:"stream_options"`
	MaxTokens           *int64 `json:"max_tokens"`
	MaxCompletionTokens *int64 `json:"max_completion_tokens"`
	MinTokens           int64  `json:"min_tokens"`
	IgnoreEOS           bool   `json:"ignore_eos"`
	N                   *int   `json:"n"`
	Seed                *int64 `json:"seed"`
	CacheSalt           string `json:"cache_salt"`
}

type message struct {
	Role      string          `json:"role"`
	Content   json.RawMessage `json:"content"`
	ToolCalls json.RawMessage `json:"tool_calls"`
}

const maxChoices = 1024

// infer queues one of the inference requests.
func (s *Server) infer(ex *exchange, endpoint string, body []byte) {
	s.mu.Lock()
	s.ordinal++
	n := s.ordinal
	s.mu.Unlock()
	ex.endpoint = endpoint
	ex.fault = s.o.Faults.draw(s.o.Seed, n)
	if code, ok := strings.CutPrefix(ex.fault, "http"); ok {
		var status int
		fmt.Sscan(code, &status)
		ex.refuse(status, "injected fault")
		return
	}
	if ex.fault == "html" {
		ex.conn.send(plainResponse(200, "text/html; charset=utf-8", []byte("<!doctype html><title>Sign in</title><p>This page is an injected fault.\n"), ex.id, ex.last))
		ex.end(ex.fault)
		return
	}
	var q apiRequest
	if err := json.Unmarshal(body, &q); err != nil {
		ex.refuse(400, "body: "+err.Error())
		return
	}
	prompts, err := q.prompts(endpoint)
	if err != nil {
		ex.refuse(400, err.Error())
		return
	}
	choices := 1
	if q.N != nil && endpoint != "embeddings" {
		choices = *q.N
	}
	if choices < 1 || choices*len(prompts) > maxChoices {
		ex.refuse(400, fmt.Sprintf("n must be at least 1 and prompts times n at most %d", maxChoices))
		return
	}
	if err := s.plan(ex, &q, prompts, choices); err != nil {
		ex.refuse(400, err.Error())
		return
	}
	if err := s.start(ex, n); err != nil { // the server closes: nothing else is left to refuse
		ex.conn.close(false)
		ex.end("abort")
	}
}

// refuse answers an inference request with an error.
func (ex *exchange) refuse(status int, message string) {
	kind := "InternalServerError"
	switch {
	case status == http.StatusTooManyRequests:
		kind = "RateLimitError"
	case status < 500:
		kind = "BadRequestError"
	}
	ex.conn.send(plainResponse(status, "application/json", errorBody(status, kind, message), ex.id, ex.last))
	ex.end(fmt.Sprintf("http%d", status))
}

// plan makes an exchange's choices: their prompts, lengths and pages.
func (s *Server) plan(ex *exchange, q *apiRequest, prompts [][]int32, choices int) error {
	ex.choices = make([]choice, len(prompts)*choices)
	ex.perPrompt, ex.open = choices, len(ex.choices)
	salt := uint64(0)
	if q.CacheSalt != "" {
		h := sha256.Sum256([]byte(q.CacheSalt))
		salt = binary.LittleEndian.Uint64(h[:])
	}
	total := 0
	for i := range ex.choices {
		prompt := prompts[i/choices]
		if i%choices == 0 {
			ex.inputTokens += len(prompt)
		}
		c := &ex.choices[i]
		c.exchange, c.index = ex, i
		c.seed = s.o.Seed
		for _, h := range pages(prompt, 0, max(len(prompt), 1), 0, 0) { // the whole prompt as one page
			c.seed = stats.Scatter(c.seed ^ h)
		}
		c.seed = stats.Scatter(c.seed + uint64(i%choices))
		if q.Seed != nil {
			c.seed = stats.Scatter(c.seed ^ uint64(*q.Seed))
		}
		if len(prompt) == 0 {
			return errors.New("the prompt holds no token")
		}
		output, finish := 0, "stop"
		if ex.endpoint != "embeddings" {
			var err error
			if output, finish, err = s.length(q, len(prompt), c.seed); err != nil {
				return err
			}
		} else if len(prompt) > s.maxLen {
			return fmt.Errorf("this model's maximum context length is %d tokens, the input has %d", s.maxLen, len(prompt))
		}
		total += output
		c.finish = finish
		c.request.Input, c.request.Output, c.request.Owner = len(prompt), output, c
		c.request.Pages = pages(prompt, salt, s.o.Profile.PageSize, c.seed, output)
	}
	if half := ex.fault; half == "stall" || half == "reset" || half == "cut" || half == "error" {
		ex.faultAt = max(total/2, 1)
	}
	ex.times = make([]int64, 0, total)
	ex.stream = q.Stream && ex.endpoint != "embeddings"
	ex.usage = q.StreamOptions.Usage
	ex.everyUsage = q.StreamOptions.Usage && q.StreamOptions.Continuous
	ex.base64 = q.Encoding == "base64"
	if q.Model == "" {
		q.Model = s.o.Profile.Model
	}
	var err error
	ex.model, err = json.Marshal(q.Model)
	return err
}

// length is the number of tokens of an answer and what it ends with. With ignore_eos it is the limit; else it is drawn from the seed:
// log-normal, median 128, standard deviation of the logarithm 0.9, between min_tokens and the limit.
func (s *Server) length(q *apiRequest, input int, seed uint64) (int, string, error) {
	limit := int64(s.maxLen - input)
	if limit < 1 {
		return 0, "", fmt.Errorf("this model's maximum context length is %d tokens, the prompt has %d", s.maxLen, input)
	}
	asked := q.MaxCompletionTokens
	if asked == nil {
		asked = q.MaxTokens
	}
	if asked != nil {
		if *asked < 1 {
			return 0, "", fmt.Errorf("max_tokens must be at least 1, got %d", *asked)
		}
		if *asked > limit {
			return 0, "", fmt.Errorf("this model's maximum context length is %d tokens, the prompt has %d and %d are asked for", s.maxLen, input, *asked)
		}
		limit = *asked
	}
	if q.MinTokens < 0 || q.MinTokens > limit {
		return 0, "", fmt.Errorf("min_tokens must be between 0 and max_tokens=%d, got %d", limit, q.MinTokens)
	}
	if q.IgnoreEOS {
		return int(limit), "length", nil
	}
	drawn := int64(math.Exp(math.Log(128) + 0.9*rand.New(rand.NewPCG(seed, 0x6c656e)).NormFloat64()))
	if drawn = max(drawn, q.MinTokens, 1); drawn >= limit {
		return int(limit), "length", nil
	}
	return int(drawn), "stop", nil
}

// start submits a planned exchange and sends a stream's headers.
func (s *Server) start(ex *exchange, ordinal uint64) error {
	prefix := map[string]string{"chat_completions": "chatcmpl-", "completions": "cmpl-", "embeddings": "embd-"}[ex.endpoint]
	ex.chat = ex.endpoint == "chat_completions"
	ex.object = "text_completion"
	if ex.chat {
		ex.object = "chat.completion"
		if ex.stream {
			ex.object = "chat.completion.chunk"
		}
	}
	var b [16]byte
	binary.BigEndian.PutUint64(b[:], stats.Scatter(s.o.Seed^uint64(s.startNS)))
	binary.BigEndian.PutUint64(b[8:], ordinal)
	ex.apiID = prefix + hex.EncodeToString(b[:])
	if ex.stream {
		ex.conn.send(head(200, "text/event-stream; charset=utf-8", -1, ex.id, ex.last, ""))
	}
	return s.submit(ex)
}

// prompts tokenizes what a request asks about.
func (q *apiRequest) prompts(endpoint string) ([][]int32, error) {
	switch endpoint {
	case "chat_completions":
		if len(q.Messages) == 0 {
			return nil, errors.New("messages: at least one is needed")
		}
		p, err := chatTokens(q.Messages, q.Tools)
		return [][]int32{p}, err
	case "completions":
		return parsePrompts(q.Prompt)
	default:
		return parsePrompts(q.Input)
	}
}

// parsePrompts reads a string, a list of strings, a list of token ids, or a list of such lists.
func parsePrompts(raw json.RawMessage) ([][]int32, error) {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 || string(raw) == "null" {
		return nil, errors.New("a prompt is needed")
	}
	if raw[0] == '"' {
		var text string
		err := json.Unmarshal(raw, &text)
		return [][]int32{appendTokens(nil, text)}, err
	}
	if ids, ok := tokenList(raw); ok && len(ids) > 0 {
		return [][]int32{ids}, nil
	}
	var texts []string
	if json.Unmarshal(raw, &texts) == nil && len(texts) > 0 {
		prompts := make([][]int32, len(texts))
		for i, t := range texts {
			prompts[i] = appendTokens(nil, t)
		}
		return prompts, nil
	}
	var lists [][]int32
	if json.Unmarshal(raw, &lists) == nil && len(lists) > 0 {
		return lists, nil
	}
	return nil, errors.New("prompt: a string, strings, token ids or lists of token ids are understood")
}

// tokenList reads a flat list of non-negative integers; long prompts are worth a reader of their own.
func tokenList(raw []byte) ([]int32, bool) {
	if len(raw) < 2 || raw[0] != '[' || raw[len(raw)-1] != ']' {
		return nil, false
	}
	ids := make([]int32, 0, len(raw)/4)
	v, digits := int64(0), 0
	for _, c := range raw[1:] {
		switch {
		case c >= '0' && c <= '9':
			v = v*10 + int64(c-'0')
			if digits++; v > math.MaxInt32 {
				return nil, false
			}
		case c == ',' || c == ']':
			if digits == 0 {
				return nil, false
			}
			ids = append(ids, int32(v))
			v, digits = 0, 0
		case c == ' ' || c == '\n' || c == '\t' || c == '\r':
		default:
			return nil, false
		}
	}
	return ids, true
}

// chatTokens renders messages through the chat template.
func chatTokens(messages []message, tools json.RawMessage) ([]int32, error) {
	t := []int32{tokenBegin}
	if len(tools) > 0 && string(tools) != "null" {
		t = append(t, tokenStart, tokenTool, tokenHeader)
		t = append(appendTokens(t, string(tools)), tokenEnd)
	}
	for i, m := range messages {
		t = append(t, tokenStart, roleToken(m.Role), tokenHeader)
		var err error
		if t, err = contentTokens(t, m.Content); err != nil {
			return nil, fmt.Errorf("messages[%d]: %w", i, err)
		}
		if len(m.ToolCalls) > 0 && string(m.ToolCalls) != "null" {
			t = appendTokens(t, string(m.ToolCalls))
		}
		t = append(t, tokenEnd)
	}
	return append(t, tokenStart, tokenAssistant, tokenHeader), nil
}

// contentTokens appends the tokens of a message's content: a string, or parts of which images cost imageTokens each.
func contentTokens(t []int32, raw json.RawMessage) ([]int32, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return t, nil
	}
	var text string
	if raw[0] == '"' {
		err := json.Unmarshal(raw, &text)
		return appendTokens(t, text), err
	}
	var parts []struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	if err := json.Unmarshal(raw, &parts); err != nil {
		return nil, errors.New("content is neither a string nor a list of parts")
	}
	for _, p := range parts {
		if p.Type == "text" {
			t = appendTokens(t, p.Text)
			continue
		}
		for range imageTokens {
			t = append(t, tokenImage)
		}
	}
	return t, nil
}

func (s *Server) tokenize(ex *exchange, body []byte) {
	var q struct {
		Prompt       *string   `json:"prompt"`
		Messages     []message `json:"messages"`
		Tools        json.RawMessage
		TokenStrings bool `json:"return_token_strs"`
	}
	err := json.Unmarshal(body, &q)
	var tokens []int32
	switch {
	case err != nil:
	case q.Prompt != nil:
		tokens = appendTokens([]int32{}, *q.Prompt)
	case len(q.Messages) > 0:
		tokens, err = chatTokens(q.Messages, q.Tools)
	default:
		err = errors.New("prompt or messages are needed")
	}
	if err != nil {
		ex.fail(400, "BadRequestError", err.Error())
		return
	}
	answer := map[string]any{"count": len(tokens), "max_model_len": s.maxLen, "tokens": tokens, "token_strs": nil}
	if q.TokenStrings {
		texts := make([]string, len(tokens))
		for i := range tokens {
			texts[i] = string(appendText(nil, tokens[i:i+1]))
		}
		answer["token_strs"] = texts
	}
	ex.replyJSON(200, answer)
}

func (s *Server) detokenize(ex *exchange, body []byte) {
	var q struct {
		Tokens []int32 `json:"tokens"`
	}
	if err := json.Unmarshal(body, &q); err != nil {
		ex.fail(400, "BadRequestError", err.Error())
		return
	}
	ex.replyJSON(200, map[string]any{"prompt": string(appendText(nil, q.Tokens))})
}
