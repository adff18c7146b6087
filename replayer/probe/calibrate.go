package probe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/stats"
	"github.com/shadowtape/shadowtape/replayer/client"
	"github.com/shadowtape/shadowtape/replayer/prompt"
)

const (
	calibrateTime = time.Minute      // of all that a calibration asks
	tokenizeTime  = 15 * time.Second // of it, until /tokenize is given up
)

// Calibrate measures, on the first target, how the words that prompts are made of are counted: by /tokenize where the server has it,
// else by the usage of two small requests. endpoint is chat_completions or completions. It takes a minute at most.
func Calibrate(ctx context.Context, c *client.Client, model string, endpoint formats.Endpoint) (prompt.Calibration, error) {
	ctx, cancel := context.WithTimeout(ctx, calibrateTime)
	defer cancel()
	t := c.Targets()[0]
	cal := prompt.Calibration{Words: prompt.Words, Method: "tokenize"}
	counting, give := context.WithTimeout(ctx, tokenizeTime)
	defer give()
	if words, ok := singleWords(counting, t, model); ok {
		cal.Words = words
	}
	const short, long = 64, 1088
	a, errA := countTokens(counting, t, model, endpoint, sample(cal.Words, short))
	b, errB := countTokens(counting, t, model, endpoint, sample(cal.Words, long))
	if errA != nil || errB != nil {
		cal.Method = "usage"
		failed := func(err error) (prompt.Calibration, error) {
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				err = fmt.Errorf("the target did not count them in %v: %w", calibrateTime, err)
			}
			return prompt.Calibration{Method: "none"}, fmt.Errorf("calibrate prompts: %w", err)
		}
		if a, errA = usageTokens(ctx, t, model, endpoint, sample(cal.Words, short)); errA != nil {
			return failed(errA)
		}
		if b, errB = usageTokens(ctx, t, model, endpoint, sample(cal.Words, long)); errB != nil {
			return failed(errB)
		}
	}
	if b <= a {
		return prompt.Calibration{Method: "none"}, fmt.Errorf("calibrate prompts: %d words are counted as %d tokens, %d words as %d", short, a, long, b)
	}
	cal.TokensPerWord = float64(b-a) / (long - short)
	cal.Overhead = float64(a) - short*cal.TokensPerWord
	if cal.Overhead < 0 {
		cal.Overhead = 0
	}
	if endpoint == formats.EndpointChat {
		third := sample(cal.Words, short/2)
		three := []any{map[string]any{"role": "user", "content": third}, map[string]any{"role": "assistant", "content": third}, map[string]any{"role": "user", "content": "time"}}
		if n, err := chatTokens(ctx, t, model, cal.Method, map[string]any{"messages": three}); err == nil {
			cal.PerMessage = max(float64(n)-cal.Overhead-(short+1)*cal.TokensPerWord, 0) / 2
		}
	}
	return cal, nil
}

// CalibrateTools measures how tool schemas are counted, by the usage of two requests; the calibration stays as it is where the server
// takes none.
func CalibrateTools(ctx context.Context, c *client.Client, model string, cal *prompt.Calibration) {
	ctx, cancel := context.WithTimeout(ctx, calibrateTime)
	defer cancel()
	t := c.Targets()[0]
	count := func(n, bytes int) (int64, error) {
		return chatTokens(ctx, t, model, "usage", map[string]any{"messages": []any{map[string]any{"role": "user", "content": sample(cal.Words, 16)}},
			"tools": json.RawMessage(prompt.ToolSchemas(n, bytes, 1, cal.Words)), "tool_choice": "none"})
	}
	a, errA := count(2, 800)
	b, errB := count(8, 8000)
	if errA != nil || errB != nil || b <= a {
		return
	}
	cal.TokensPerToolByte = float64(b-a) / float64(len(prompt.ToolSchemas(8, 8000, 1, cal.Words))-len(prompt.ToolSchemas(2, 800, 1, cal.Words)))
	cal.ToolOverhead = float64(a) - cal.Overhead - 16*cal.TokensPerWord - float64(len(prompt.ToolSchemas(2, 800, 1, cal.Words)))*cal.TokensPerToolByte
}

// TakesImages tries a request with a small picture.
func TakesImages(ctx context.Context, c *client.Client, model string) bool {
	p, err := prompt.New(prompt.Options{Model: model, Images: true, Natural: true})
	if err != nil {
		return false
	}
	body, err := p.Body(&formats.Exchange{Endpoint: formats.EndpointChat, Stream: formats.Of(false), InputTokens: formats.Of(int64(20)), MaxTokens: formats.Of(int64(1)),
		ImageCount: formats.Of(int32(1)), ImagePixels: formats.Of(int64(64 * 64))})
	if err != nil {
		return false
	}
	r, err := c.Targets()[0].Ask(ctx, "POST", client.Path(formats.EndpointChat), json.RawMessage(body))
	return err == nil && r.OK()
}

// chatTokens is how a chat request is counted, by /tokenize or by the usage of an answer of one token.
func chatTokens(ctx context.Context, t *client.Target, model, method string, body map[string]any) (int64, error) {
	body["model"] = model
	if method == "tokenize" {
		return tokenize(ctx, t, body)
	}
	body["max_tokens"] = 1
	return usageOf(ctx, t, formats.EndpointChat, body)
}

// sample is n words as text, each as often as the others, in an order that is not the list's.
func sample(words []string, n int) string {
	out := make([]string, n)
	for i := range out {
		out[i] = words[stats.Mix(uint64(i))%uint64(len(words))]
	}
	return strings.Join(out, " ")
}

// singleWords leaves the words that the server counts as one token each. ok is false where the server does not say.
func singleWords(ctx context.Context, t *client.Target, model string) (words []string, ok bool) {
	// A common word before them all, so that each has its space.
	base, err := tokenize(ctx, t, map[string]any{"model": model, "prompt": "the"})
	if err != nil {
		return nil, false
	}
	calls := 0
	var keep func([]string) bool
	keep = func(w []string) bool {
		if calls++; calls > 400 {
			return false
		}
		n, err := tokenize(ctx, t, map[string]any{"model": model, "prompt": "the " + strings.Join(w, " ")})
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
	if !keep(prompt.Words) || len(words) < 64 {
		return nil, false
	}
	return words, true
}

var errNoCount = errors.New("the server counts no tokens for us")

func tokenize(ctx context.Context, t *client.Target, body map[string]any) (int64, error) {
	r, err := t.Insist(ctx, "POST", "/tokenize", body)
	if err != nil {
		return 0, err
	}
	var a struct {
		Count  *int64 `json:"count"`
		Tokens []any  `json:"tokens"`
	}
	if r.Status != http.StatusOK || json.Unmarshal(r.Body, &a) != nil {
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
func countTokens(ctx context.Context, t *client.Target, model string, endpoint formats.Endpoint, text string) (int64, error) {
	body := map[string]any{"model": model, "prompt": text}
	if endpoint == formats.EndpointChat {
		body = map[string]any{"model": model, "messages": []any{map[string]any{"role": "user", "content": text}}}
	}
	return tokenize(ctx, t, body)
}

// usageTokens sends a request for one token and reads the count of the prompt from its usage.
func usageTokens(ctx context.Context, t *client.Target, model string, endpoint formats.Endpoint, text string) (int64, error) {
	body := map[string]any{"model": model, "max_tokens": 1}
	if endpoint == formats.EndpointChat {
		body["messages"] = []any{map[string]any{"role": "user", "content": text}}
	} else {
		body["prompt"] = text
	}
	return usageOf(ctx, t, endpoint, body)
}

func usageOf(ctx context.Context, t *client.Target, endpoint formats.Endpoint, body map[string]any) (int64, error) {
	path := client.Path(endpoint)
	r, err := t.Insist(ctx, "POST", path, body)
	if err != nil {
		return 0, err
	}
	if r.HTML() {
		return 0, fmt.Errorf("%s answers HTML (HTTP %d)", path, r.Status)
	}
	if r.Status != http.StatusOK {
		return 0, fmt.Errorf("%s answers HTTP %d", path, r.Status)
	}
	var a usageAnswer
	if json.Unmarshal(r.Body, &a) != nil || a.Usage == nil {
		return 0, errNoCount
	}
	return a.Usage.PromptTokens, nil
}
