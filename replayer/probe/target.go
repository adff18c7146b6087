package probe

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/shadowtape/shadowtape/replayer/client"
	"github.com/shadowtape/shadowtape/replayer/prompt"
)

// Info is what a target's endpoints say about it before a run.
type Info struct {
	URL         string
	Models      []string
	MaxModelLen int64          // tokens; 0: unknown
	OwnedBy     string         // of the first model
	Version     string         // "": not said
	Dialect     prompt.Dialect // detected
	TokenIDs    bool           // completions took a prompt of token ids
	RoundTrip   time.Duration  // the shortest of a few small requests
	Metrics     bool           // /metrics answers with series
	Server      string         // the Server header
	Fingerprint string         // the system_fingerprint of an answer
	// TemplateDigest is the SHA-256 of the chat template, in hex, where the server shows it; the template itself is not kept.
	TemplateDigest string
	Config         any // the engine's configuration as its endpoint says it, secrets left out; nil where it does not
}

// Targets asks each target what it is, and fails with one clear error where a target cannot be replayed against: it is unreachable, or
// it is no inference server. model is what will be asked for; "" takes the first that the server lists. A server may lack /health and
// /v1/models; it may not answer them with HTML.
func Targets(ctx context.Context, c *client.Client, model string) ([]Info, error) {
	var out []Info
	for _, t := range c.Targets() {
		info, err := ask(ctx, t, model)
		var op *net.OpError // of a connection that was not made: it says so itself
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil && (!errors.As(err, &op) || op.Op == "read") {
			err = fmt.Errorf("it accepts connections, but has not said what it is in %v: %w", patience, err)
		}
		if err != nil {
			return nil, fmt.Errorf("reach %s: %w", t.URL(), err)
		}
		out = append(out, info)
	}
	return out, nil
}

const (
	patience = 30 * time.Second // how long a target may take to say what it is
	courtesy = 5 * time.Second  // of it, for each thing that it need not say
)

func ask(ctx context.Context, t *client.Target, model string) (Info, error) {
	info := Info{URL: t.URL()}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	r, err := t.Ask(ctx, "GET", "/v1/models", nil)
	if err != nil {
		return info, err
	}
	info.Server = r.Header.Get("Server")
	switch {
	case r.HTML():
		return info, fmt.Errorf("/v1/models answers HTML (HTTP %d): this is no inference server", r.Status)
	case r.Status == http.StatusUnauthorized || r.Status == http.StatusForbidden:
		return info, fmt.Errorf("/v1/models answers HTTP %d: it wants a key (--api-key-env, --header)", r.Status)
	case r.Status == http.StatusOK:
		if err := info.readModels(r.Body); err != nil {
			return info, fmt.Errorf("/v1/models: %w", err)
		}
	case r.Status >= 500:
		return info, fmt.Errorf("/v1/models answers HTTP %d: the server is not ready", r.Status)
	}
	if r, err = t.Ask(ctx, "GET", "/health", nil); err != nil {
		return info, fmt.Errorf("/health: %w", err)
	} else if r.Status == http.StatusServiceUnavailable {
		return info, errors.New("/health answers HTTP 503: the server is not ready")
	} else if r.Status == http.StatusOK && len(info.Models) == 0 && r.HTML() {
		return info, errors.New("/health answers HTML: this is no inference server")
	}
	info.RoundTrip = RoundTrip(ctx, t)
	if r, err := politely(ctx, t, "/version"); err == nil && r.OK() {
		var v struct{ Version string }
		if json.Unmarshal(r.Body, &v) == nil {
			info.Version = v.Version
		}
	}
	var page []byte
	if r, err := politely(ctx, t, "/metrics"); err == nil && r.OK() {
		page, info.Metrics = r.Body, len(r.Body) > 0
	}
	info.Dialect = detect(info, page)
	if model == "" && len(info.Models) > 0 {
		model = info.Models[0]
	}
	if info.Dialect.TokenIDs || info.Dialect.Name == "unknown" {
		if info.TokenIDs, info.Fingerprint, err = takesTokenIDs(ctx, t, model); err != nil {
			return info, fmt.Errorf("a completion of seven token ids: %w", err)
		}
	}
	describe(ctx, t, &info)
	return info, nil
}

// politely asks for what a target need not say.
func politely(ctx context.Context, t *client.Target, path string) (client.Reply, error) {
	ctx, cancel := context.WithTimeout(ctx, courtesy)
	defer cancel()
	return t.Ask(ctx, "GET", path, nil)
}

// readModels reads the list of models; anything but such a list is an error.
func (t *Info) readModels(body []byte) error {
	var list struct {
		Data []struct {
			ID          string `json:"id"`
			OwnedBy     string `json:"owned_by"`
			MaxModelLen int64  `json:"max_model_len"`
		} `json:"data"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return errors.New("the answer is no list of models")
	}
	for i, m := range list.Data {
		t.Models = append(t.Models, m.ID)
		if i == 0 {
			t.OwnedBy, t.MaxModelLen = m.OwnedBy, m.MaxModelLen
		}
	}
	return nil
}

// detect names the server by what it offers, never by its version.
func detect(t Info, page []byte) prompt.Dialect {
	has := func(s string) bool { return bytes.Contains(page, []byte(s)) }
	name := "unknown"
	owner := strings.ToLower(t.OwnedBy)
	switch {
	case has("\nsglang:") || owner == "sglang":
		name = "sglang"
	case has("\nlmdeploy:") || owner == "lmdeploy":
		name = "lmdeploy"
	case has("\nllamacpp:") || owner == "llamacpp":
		name = "llamacpp"
	case has("\ntgi_"):
		name = "tgi"
	case has("\nvllm:") || owner == "vllm":
		name = "vllm"
	case has("trtllm_") || owner == "tensorrt_llm" || bytes.Contains(page, []byte(`"inflightBatchingStats"`)):
		name = "trtllm"
	case owner == "library" || strings.Contains(strings.ToLower(t.Server), "ollama"):
		name = "ollama"
	case owner == "openai" || owner == "system":
		name = "openai"
	}
	d, _ := prompt.DialectNamed(name)
	return d
}

// takesTokenIDs tries a completion of a prompt of token ids. No answer in time is an error: to take it for a no would change the load.
func takesTokenIDs(ctx context.Context, t *client.Target, model string) (takes bool, fingerprint string, err error) {
	r, err := t.Insist(ctx, "POST", "/v1/completions", map[string]any{"model": model, "prompt": []int{1001, 1002, 1003, 1004, 1005, 1006, 1007}, "max_tokens": 1})
	if errors.Is(err, context.DeadlineExceeded) {
		return false, "", err
	}
	if err != nil || !r.OK() {
		return false, "", nil
	}
	var a usageAnswer
	if json.Unmarshal(r.Body, &a) != nil || a.Usage == nil {
		return false, "", nil
	}
	return a.Usage.PromptTokens == 7 || a.Usage.PromptTokens == 8, a.Fingerprint, nil // some put their own first token before it
}

type usageAnswer struct {
	Usage *struct {
		PromptTokens int64 `json:"prompt_tokens"`
	} `json:"usage"`
	Fingerprint string `json:"system_fingerprint"`
}

// configPaths are where servers say how they were started; most only where they are asked to.
var configPaths = map[string][]string{
	"vllm":     {"/server_info?config_format=json"},
	"sglang":   {"/server_info", "/get_server_info"},
	"trtllm":   {"/server_info"},
	"tgi":      {"/info"},
	"llamacpp": {"/props"},
	"lmdeploy": {"/distserve/engine_info"},
}

// templatePaths are where servers show the chat template.
var templatePaths = map[string]string{"vllm": "/tokenizer_info", "llamacpp": "/props"}

// describe asks what only some servers say.
func describe(ctx context.Context, t *client.Target, info *Info) {
	show := func(path string) []byte {
		r, err := politely(ctx, t, path)
		if err != nil || !r.OK() {
			return nil
		}
		return r.Body
	}
	for _, path := range configPaths[info.Dialect.Name] {
		if info.Config = readConfig(show(path)); info.Config != nil {
			break
		}
	}
	if path := templatePaths[info.Dialect.Name]; path != "" {
		var v struct {
			Template string `json:"chat_template"`
		}
		if json.Unmarshal(show(path), &v) == nil && v.Template != "" {
			info.TemplateDigest = fmt.Sprintf("%x", sha256.Sum256([]byte(v.Template)))
		}
	}
}

// RoundTrip is the shortest time of five small requests over a connection that stands; 0 where the target does not answer.
func RoundTrip(ctx context.Context, t *client.Target) time.Duration {
	ctx, cancel := context.WithTimeout(ctx, courtesy)
	defer cancel()
	var best time.Duration
	for range 5 {
		start := time.Now()
		if _, err := t.Ask(ctx, "GET", "/health", nil); err != nil {
			return best
		}
		if d := time.Since(start); best == 0 || d < best {
			best = d
		}
	}
	return best
}

// ResetPrefixCache empties each target's prefix cache where the dialect of its info says how. The result is the manifest's: done,
// unsupported (a server has no such endpoint), or failed.
func ResetPrefixCache(ctx context.Context, c *client.Client, infos []Info) string {
	result := "done"
	for i, t := range c.Targets() {
		path := infos[i].Dialect.ResetCache
		if path == "" {
			return "unsupported"
		}
		switch reset(ctx, t, path) {
		case "unsupported":
			return "unsupported"
		case "failed":
			result = "failed"
		}
	}
	return result
}

// reset tries for a few seconds: servers refuse while blocks are held.
func reset(ctx context.Context, t *client.Target, path string) string {
	ctx, cancel := context.WithTimeout(ctx, client.AskTime)
	defer cancel()
	for try := 0; ; try++ {
		r, err := t.Ask(ctx, "POST", path, nil)
		if err != nil {
			return "failed"
		}
		if r.Status == http.StatusNotFound || r.Status == http.StatusMethodNotAllowed {
			return "unsupported"
		}
		var a struct{ Success *bool }
		if r.Status == http.StatusOK && (json.Unmarshal(r.Body, &a) != nil || a.Success == nil || *a.Success) {
			return "done"
		}
		if try == 10 {
			return "failed"
		}
		select {
		case <-time.After(300 * time.Millisecond):
		case <-ctx.Done():
			return "failed"
		}
	}
}
