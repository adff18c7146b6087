package replayer

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// maxControlBytes bounds what is read of an answer to a question about the server itself.
const maxControlBytes = 8 << 20

// TargetInfo is what a target's endpoints say about it before a run.
type TargetInfo struct {
	URL         string
	Models      []string
	MaxModelLen int64         // tokens; 0: unknown
	OwnedBy     string        // of the first model
	Version     string        // "": not said
	Dialect     Dialect       // detected
	TokenIDs    bool          // completions took a prompt of token ids
	RoundTrip   time.Duration // the shortest of a few small requests
	Metrics     bool          // /metrics answers with series
	Server      string        // the Server header
	Fingerprint string        // the system_fingerprint of an answer
	// TemplateDigest is the SHA-256 of the chat template, in hex, where the server shows it; the template itself is not kept.
	TemplateDigest string
	Config         any // the engine's configuration as its endpoint says it, secrets left out; nil where it does not
}

// control asks the target something that is no part of the load.
func (p *pool) control(ctx context.Context, method, path string, body any) (status int, contentType string, answer []byte, header http.Header, err error) {
	var in io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return 0, "", nil, nil, err
		}
		in = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, p.url.String()+path, in)
	if err != nil {
		return 0, "", nil, nil, err
	}
	for k, v := range p.c.o.Header {
		req.Header[http.CanonicalHeaderKey(k)] = v
	}
	req.Header.Set("User-Agent", p.c.o.UserAgent)
	req.Header.Set("Accept", "application/json, text/plain;version=0.0.4;q=0.9, */*;q=0.1")
	if path == "/metrics" {
		req.Header.Set("Accept", "text/plain;version=0.0.4")
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if p.c.o.APIKey != "" {
		req.Header.Set("Authorization", "Bearer "+p.c.o.APIKey)
	}
	res, err := p.ctl.Do(req)
	if err != nil {
		return 0, "", nil, nil, bare(err)
	}
	defer res.Body.Close()
	answer, err = io.ReadAll(io.LimitReader(res.Body, maxControlBytes))
	return res.StatusCode, res.Header.Get("Content-Type"), answer, res.Header, err
}

// insist is control for questions whose answer decides how the run goes: a server that is busy or breaks off is asked again.
func (p *pool) insist(ctx context.Context, method, path string, body any) (status int, contentType string, answer []byte, err error) {
	for try := 0; ; try++ {
		status, contentType, answer, _, err = p.control(ctx, method, path, body)
		busy := err != nil || status == http.StatusTooManyRequests || status >= 500 || status == http.StatusOK && (html(contentType, answer) || !json.Valid(answer))
		if !busy || try == 3 || ctx.Err() != nil {
			return status, contentType, answer, err
		}
		SleepTimer(time.Now().Add(200*time.Millisecond), ctx.Done())
	}
}

// bare takes the method and URL off an error of net/http: who asks knows them.
func bare(err error) error {
	for {
		u := errors.Unwrap(err)
		if u == nil || !strings.Contains(err.Error(), `"`) {
			return err
		}
		err = u
	}
}

// Probe asks each target what it is, and fails with one clear error where a target cannot be replayed against: it is unreachable, or
// it is no inference server. model is what will be asked for; "" takes the first that the server lists. A server may lack /health and
// /v1/models; it may not answer them with HTML.
func (c *Client) Probe(ctx context.Context, model string) ([]TargetInfo, error) {
	var out []TargetInfo
	for _, p := range c.targets {
		t, err := p.probe(ctx, model)
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			err = fmt.Errorf("it accepts connections, but has not said what it is in %v: %w", probeTimeout, err)
		}
		if err != nil {
			return nil, fmt.Errorf("reach %s: %w", p.url.Redacted(), err)
		}
		out = append(out, t)
	}
	return out, nil
}

// probeTimeout is how long a target may take to say what it is.
const probeTimeout = 30 * time.Second

func (p *pool) probe(ctx context.Context, model string) (TargetInfo, error) {
	t := TargetInfo{URL: p.url.String()}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	status, kind, body, header, err := p.control(ctx, "GET", "/v1/models", nil)
	if err != nil {
		return t, err
	}
	t.Server = header.Get("Server")
	switch {
	case html(kind, body):
		return t, fmt.Errorf("/v1/models answers HTML (HTTP %d): this is no inference server", status)
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return t, fmt.Errorf("/v1/models answers HTTP %d: it wants a key (--api-key-env, --header)", status)
	case status == http.StatusOK:
		if err := t.readModels(body); err != nil {
			return t, fmt.Errorf("/v1/models: %w", err)
		}
	case status >= 500:
		return t, fmt.Errorf("/v1/models answers HTTP %d: the server is not ready", status)
	}
	if status, kind, body, _, err = p.control(ctx, "GET", "/health", nil); err != nil {
		return t, fmt.Errorf("/health: %w", err)
	} else if status == http.StatusServiceUnavailable {
		return t, errors.New("/health answers HTTP 503: the server is not ready")
	} else if status == http.StatusOK && len(t.Models) == 0 && html(kind, body) {
		return t, errors.New("/health answers HTML: this is no inference server")
	}
	t.RoundTrip = p.roundTrip(ctx)
	if status, kind, body, _, err := p.control(ctx, "GET", "/version", nil); err == nil && status == http.StatusOK && !html(kind, body) {
		var v struct{ Version string }
		if json.Unmarshal(body, &v) == nil {
			t.Version = v.Version
		}
	}
	var page []byte
	if status, kind, body, _, err := p.control(ctx, "GET", "/metrics", nil); err == nil && status == http.StatusOK && !html(kind, body) {
		page, t.Metrics = body, len(body) > 0
	}
	t.Dialect = detect(t, page)
	if model == "" && len(t.Models) > 0 {
		model = t.Models[0]
	}
	if t.Dialect.TokenIDs || t.Dialect.Name == "unknown" {
		t.TokenIDs, t.Fingerprint = p.takesTokenIDs(ctx, model)
	}
	p.describe(ctx, &t)
	return t, nil
}

// readModels reads the list of models; anything but such a list is an error.
func (t *TargetInfo) readModels(body []byte) error {
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

// html says whether an answer is a web page.
func html(contentType string, body []byte) bool {
	start := strings.ToLower(string(bytes.TrimSpace(body[:min(len(body), 256)])))
	return strings.HasPrefix(strings.ToLower(contentType), "text/html") || strings.HasPrefix(start, "<!doctype html") || strings.HasPrefix(start, "<html")
}

// detect names the server by what it offers, never by its version.
func detect(t TargetInfo, page []byte) Dialect {
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
	d, _ := DialectNamed(name)
	return d
}

// takesTokenIDs tries a completion of a prompt of token ids.
func (p *pool) takesTokenIDs(ctx context.Context, model string) (takes bool, fingerprint string) {
	status, kind, body, err := p.insist(ctx, "POST", "/v1/completions", map[string]any{"model": model, "prompt": []int{1001, 1002, 1003, 1004, 1005, 1006, 1007}, "max_tokens": 1})
	if err != nil || status != http.StatusOK || html(kind, body) {
		return false, ""
	}
	var a usageAnswer
	if json.Unmarshal(body, &a) != nil || a.Usage == nil {
		return false, ""
	}
	return a.Usage.PromptTokens == 7 || a.Usage.PromptTokens == 8, a.Fingerprint // some put their own first token before it
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
func (p *pool) describe(ctx context.Context, t *TargetInfo) {
	ask := func(path string) []byte {
		status, kind, body, _, err := p.control(ctx, "GET", path, nil)
		if err != nil || status != http.StatusOK || html(kind, body) {
			return nil
		}
		return body
	}
	for _, path := range configPaths[t.Dialect.Name] {
		if t.Config = readConfig(ask(path)); t.Config != nil {
			break
		}
	}
	if path := templatePaths[t.Dialect.Name]; path != "" {
		var v struct {
			Template string `json:"chat_template"`
		}
		if json.Unmarshal(ask(path), &v) == nil && v.Template != "" {
			t.TemplateDigest = fmt.Sprintf("%x", sha256.Sum256([]byte(v.Template)))
		}
	}
}

// roundTrip is the shortest time of five small requests over a connection that stands.
func (p *pool) roundTrip(ctx context.Context) time.Duration {
	var best time.Duration
	for range 5 {
		start := time.Now()
		if _, _, _, _, err := p.control(ctx, "GET", "/health", nil); err != nil {
			return best
		}
		if d := time.Since(start); best == 0 || d < best {
			best = d
		}
	}
	return best
}

// ResetPrefixCache empties each target's prefix cache where the dialect says how. The result is the manifest's: done, unsupported (a
// server has no such endpoint), or failed.
func (c *Client) ResetPrefixCache(ctx context.Context, infos []TargetInfo) string {
	result := "done"
	for i, p := range c.targets {
		path := infos[i].Dialect.ResetCache
		if path == "" {
			return "unsupported"
		}
		switch p.reset(ctx, path) {
		case "unsupported":
			return "unsupported"
		case "failed":
			result = "failed"
		}
	}
	return result
}

// reset tries for a few seconds: servers refuse while blocks are held.
func (p *pool) reset(ctx context.Context, path string) string {
	for try := 0; ; try++ {
		status, _, body, _, err := p.control(ctx, "POST", path, nil)
		if err != nil {
			return "failed"
		}
		if status == http.StatusNotFound || status == http.StatusMethodNotAllowed {
			return "unsupported"
		}
		var a struct{ Success *bool }
		if status == http.StatusOK && (json.Unmarshal(body, &a) != nil || a.Success == nil || *a.Success) {
			return "done"
		}
		if try == 10 {
			return "failed"
		}
		t := time.NewTimer(300 * time.Millisecond)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return "failed"
		}
	}
}
