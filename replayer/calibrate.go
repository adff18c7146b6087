package replayer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/shadowtape/shadowtape/formats"
)

// Calibration says how text becomes tokens on a server: a prompt of w of its words has Overhead + w × TokensPerWord tokens.
type Calibration struct {
	Words         []string // none: the built-in list
	TokensPerWord float64  // 0: 1
	Overhead      float64  // tokens of the chat template, or of a beginning-of-text token
	PerMessage    float64  // tokens of the template around each message but the first
	// Tools add ToolOverhead + bytes × TokensPerToolByte tokens. 0: the server was not asked, or takes none.
	TokensPerToolByte, ToolOverhead float64
	Method                          string // tokenize, usage, or none
}

func (c *Calibration) defaults() {
	if len(c.Words) == 0 {
		c.Words = candidateWords
	}
	if c.TokensPerWord == 0 {
		c.TokensPerWord = 1
	}
}

// Calibrate measures, on the first target, how the words that prompts are made of are counted: by /tokenize where the server has it,
// else by the usage of two small requests. endpoint is chat_completions or completions.
func (c *Client) Calibrate(ctx context.Context, model string, endpoint formats.Endpoint) (Calibration, error) {
	p := c.targets[0]
	cal := Calibration{Words: candidateWords, Method: "tokenize"}
	if words, ok := p.singleWords(ctx, model); ok {
		cal.Words = words
	}
	const short, long = 64, 1088
	a, errA := p.countTokens(ctx, model, endpoint, sample(cal.Words, short))
	b, errB := p.countTokens(ctx, model, endpoint, sample(cal.Words, long))
	if errA != nil || errB != nil {
		cal.Method = "usage"
		if a, errA = p.usageTokens(ctx, model, endpoint, sample(cal.Words, short)); errA != nil {
			return Calibration{Method: "none"}, fmt.Errorf("calibrate prompts: %w", errA)
		}
		if b, errB = p.usageTokens(ctx, model, endpoint, sample(cal.Words, long)); errB != nil {
			return Calibration{Method: "none"}, fmt.Errorf("calibrate prompts: %w", errB)
		}
	}
	if b <= a {
		return Calibration{Method: "none"}, fmt.Errorf("calibrate prompts: %d words are counted as %d tokens, %d words as %d", short, a, long, b)
	}
	cal.TokensPerWord = float64(b-a) / (long - short)
	cal.Overhead = float64(a) - short*cal.TokensPerWord
	if cal.Overhead < 0 {
		cal.Overhead = 0
	}
	if endpoint == formats.EndpointChat {
		third := sample(cal.Words, short/2)
		three := []any{map[string]any{"role": "user", "content": third}, map[string]any{"role": "assistant", "content": third}, map[string]any{"role": "user", "content": "time"}}
		if n, err := p.chatTokens(ctx, model, cal.Method, map[string]any{"messages": three}); err == nil {
			cal.PerMessage = max(float64(n)-cal.Overhead-(short+1)*cal.TokensPerWord, 0) / 2
		}
	}
	return cal, nil
}

// CalibrateTools measures how tool schemas are counted, by the usage of two requests; the calibration stays as it is where the server
// takes none.
func (c *Client) CalibrateTools(ctx context.Context, model string, cal *Calibration) {
	p := c.targets[0]
	count := func(n, bytes int) (int64, error) {
		return p.chatTokens(ctx, model, "usage", map[string]any{"messages": []any{map[string]any{"role": "user", "content": sample(cal.Words, 16)}},
			"tools": json.RawMessage(toolSchemas(n, bytes, 1, cal.Words)), "tool_choice": "none"})
	}
	a, errA := count(2, 800)
	b, errB := count(8, 8000)
	if errA != nil || errB != nil || b <= a {
		return
	}
	cal.TokensPerToolByte = float64(b-a) / float64(len(toolSchemas(8, 8000, 1, cal.Words))-len(toolSchemas(2, 800, 1, cal.Words)))
	cal.ToolOverhead = float64(a) - cal.Overhead - 16*cal.TokensPerWord - float64(len(toolSchemas(2, 800, 1, cal.Words)))*cal.TokensPerToolByte
}

// TakesImages tries a request with a small picture.
func (c *Client) TakesImages(ctx context.Context, model string) bool {
	p, err := NewPrompts(PromptOptions{Model: model, Images: true, Natural: true})
	if err != nil {
		return false
	}
	body, err := p.Body(&formats.Exchange{Endpoint: formats.EndpointChat, Stream: formats.Of(false), InputTokens: formats.Of(int64(20)), MaxTokens: formats.Of(int64(1)),
		ImageCount: formats.Of(int32(1)), ImagePixels: formats.Of(int64(64 * 64))})
	if err != nil {
		return false
	}
	status, kind, answer, _, err := c.targets[0].control(ctx, "POST", path(formats.EndpointChat), json.RawMessage(body))
	return err == nil && status == http.StatusOK && !html(kind, answer)
}

// chatTokens is how a chat request is counted, by /tokenize or by the usage of an answer of one token.
func (p *pool) chatTokens(ctx context.Context, model, method string, body map[string]any) (int64, error) {
	body["model"] = model
	if method == "tokenize" {
		return p.tokenize(ctx, body)
	}
	body["max_tokens"] = 1
	return p.usageOf(ctx, formats.EndpointChat, body)
}

// sample is n words as text, each as often as the others, in an order that is not the list's.
func sample(words []string, n int) string {
	out := make([]string, n)
	for i := range out {
		out[i] = words[mix(uint64(i))%uint64(len(words))]
	}
	return strings.Join(out, " ")
}

// singleWords leaves the words that the server counts as one token each. ok is false where the server does not say.
func (p *pool) singleWords(ctx context.Context, model string) (words []string, ok bool) {
	// A common word before them all, so that each has its space.
	base, err := p.tokenize(ctx, map[string]any{"model": model, "prompt": "the"})
	if err != nil {
		return nil, false
	}
	calls := 0
	var keep func([]string) bool
	keep = func(w []string) bool {
		if calls++; calls > 400 {
			return false
		}
		n, err := p.tokenize(ctx, map[string]any{"model": model, "prompt": "the " + strings.Join(w, " ")})
		if err != nil {
			return false
		}
		if n-base == int64(len(w)) {
			words = append(words, w...)
			return true
		}
		if len(w) == 1 {
			return true
		}
		return keep(w[:len(w)/2]) && keep(w[len(w)/2:])
	}
	if !keep(candidateWords) || len(words) < 64 {
		return nil, false
	}
	return words, true
}

var errNoCount = errors.New("the server counts no tokens for us")

func (p *pool) tokenize(ctx context.Context, body map[string]any) (int64, error) {
	status, _, answer, err := p.insist(ctx, "POST", "/tokenize", body)
	if err != nil {
		return 0, err
	}
	var a struct {
		Count  *int64 `json:"count"`
		Tokens []any  `json:"tokens"`
	}
	if status != http.StatusOK || json.Unmarshal(answer, &a) != nil {
		return 0, errNoCount
	}
	if a.Count != nil {
		return *a.Count, nil
	}
	if a.Tokens != nil {
		return int64(len(a.Tokens)), nil
	}
	return 0, errNoCount
}

// countTokens asks /tokenize for a prompt as the endpoint would build it.
func (p *pool) countTokens(ctx context.Context, model string, endpoint formats.Endpoint, text string) (int64, error) {
	body := map[string]any{"model": model, "prompt": text}
	if endpoint == formats.EndpointChat {
		body = map[string]any{"model": model, "messages": []any{map[string]any{"role": "user", "content": text}}}
	}
	return p.tokenize(ctx, body)
}

// usageTokens sends a request for one token and reads the count of the prompt from its usage.
func (p *pool) usageTokens(ctx context.Context, model string, endpoint formats.Endpoint, text string) (int64, error) {
	body := map[string]any{"model": model, "max_tokens": 1}
	if endpoint == formats.EndpointChat {
		body["messages"] = []any{map[string]any{"role": "user", "content": text}}
	} else {
		body["prompt"] = text
	}
	return p.usageOf(ctx, endpoint, body)
}

func (p *pool) usageOf(ctx context.Context, endpoint formats.Endpoint, body map[string]any) (int64, error) {
	status, kind, answer, err := p.insist(ctx, "POST", path(endpoint), body)
	if err != nil {
		return 0, err
	}
	if html(kind, answer) {
		return 0, fmt.Errorf("%s answers HTML (HTTP %d)", path(endpoint), status)
	}
	if status != http.StatusOK {
		return 0, fmt.Errorf("%s answers HTTP %d", path(endpoint), status)
	}
	var a usageAnswer
	if json.Unmarshal(answer, &a) != nil || a.Usage == nil {
		return 0, errNoCount
	}
	return a.Usage.PromptTokens, nil
}
