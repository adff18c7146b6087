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
	Method        string   // tokenize, usage, or none
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
	return cal, nil
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
	status, _, answer, _, err := p.control(ctx, "POST", "/tokenize", body)
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
	status, kind, answer, _, err := p.control(ctx, "POST", path(endpoint), body)
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
