package probe

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"image/png"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/replayer/client"
	"github.com/shadowtape/shadowtape/replayer/prompt"
)

// counter is a server that counts tokens in a known way: one a word, two for words on its list of rare ones, five around a chat, three
// around each message, a quarter a byte of tools.
type counter struct {
	rare     map[string]bool
	each     int // tokens of a word that is not rare; 0: one
	tokenize bool
	images   bool
	ids      bool
	asked    []string
	busy     int // answers 429 to so many POSTs first
}

func (c *counter) words(s string) (n int) {
	for _, w := range strings.Fields(s) {
		n += max(c.each, 1)
		if c.rare[w] {
			n++
		}
	}
	return n
}

func (c *counter) chat(m map[string]any) int {
	n := 5
	for _, v := range m["messages"].([]any) {
		n += 3
		switch t := v.(map[string]any)["content"].(type) {
		case string:
			n += c.words(t)
		case []any:
			n += c.words(t[0].(map[string]any)["text"].(string))
		}
	}
	if t, ok := m["tools"]; ok {
		b, _ := json.Marshal(t)
		n += 10 + len(b)/4
	}
	return n
}

func (c *counter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.asked = append(c.asked, r.URL.Path)
	var m map[string]any
	if r.Method == "POST" {
		b, _ := io.ReadAll(r.Body)
		json.Unmarshal(b, &m)
	}
	if r.Method == "POST" && c.busy > 0 {
		c.busy--
		http.Error(w, "busy", http.StatusTooManyRequests)
		return
	}
	usage := func(n int) {
		fmt.Fprintf(w, `{"choices":[],"system_fingerprint":"fp-1","usage":{"prompt_tokens":%d,"completion_tokens":1}}`, n)
	}
	switch r.URL.Path {
	case "/v1/models":
		io.WriteString(w, `{"data":[{"id":"m1","owned_by":"vllm","max_model_len":4096},{"id":"m2"}]}`)
	case "/health":
	case "/version":
		io.WriteString(w, `{"version":"9.9"}`)
	case "/server_info":
		io.WriteString(w, `{"tensor_parallel":2,"api_key":"hunter2","nested":{"hf_token":"hunter2","dtype":"bf16"}}`)
	case "/tokenizer_info":
		io.WriteString(w, `{"chat_template":"{{x}}"}`)
	case "/reset_prefix_cache":
		io.WriteString(w, `{"success":true}`)
	case "/tokenize":
		if !c.tokenize {
			http.NotFound(w, r)
			return
		}
		n := 0
		if _, ok := m["messages"]; ok {
			n = c.chat(m)
		} else {
			n = 1 + c.words(m["prompt"].(string))
		}
		fmt.Fprintf(w, `{"count":%d}`, n)
	case "/v1/chat/completions":
		if b, _ := json.Marshal(m); strings.Contains(string(b), "image_url") && !c.images {
			http.Error(w, "no images", 400)
			return
		}
		usage(c.chat(m))
	case "/v1/completions":
		switch p := m["prompt"].(type) {
		case []any:
			if !c.ids {
				http.Error(w, "text only", 400)
				return
			}
			usage(len(p))
		case string:
			usage(1 + c.words(p))
		}
	default:
		http.NotFound(w, r)
	}
}

func serve(t *testing.T, h http.Handler) *client.Client {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	c, err := client.New(client.Options{Targets: []string{s.URL + "/v1/"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestProbe(t *testing.T) {
	h := &counter{ids: true, busy: 2}
	c := serve(t, h)
	infos, err := Targets(t.Context(), c, "")
	if err != nil {
		t.Fatal(err)
	}
	i := infos[0]
	if i.Models[1] != "m2" || i.MaxModelLen != 4096 || i.Version != "9.9" || i.Dialect.Name != "vllm" || !i.TokenIDs || i.Fingerprint != "fp-1" || i.RoundTrip <= 0 || i.Metrics {
		t.Errorf("%+v", i)
	}
	b, err := json.Marshal(i.Config)
	if err != nil || strings.Contains(string(b), "hunter2") || !strings.Contains(string(b), "bf16") || len(i.TemplateDigest) != 64 {
		t.Errorf("config %s, template %q, %v", b, i.TemplateDigest, err)
	}
	if r := ResetPrefixCache(t.Context(), c, infos); r != "done" {
		t.Errorf("reset: %s", r)
	}
	if r := ResetPrefixCache(t.Context(), serve(t, http.NotFoundHandler()), infos); r != "unsupported" {
		t.Errorf("reset without the endpoint: %s", r)
	}
	// A server without a list of models and without health is a server all the same.
	infos, err = Targets(t.Context(), serve(t, http.NotFoundHandler()), "m")
	if err != nil || infos[0].Dialect.Name != "unknown" || infos[0].TokenIDs {
		t.Errorf("%+v, %v", infos, err)
	}
}

func TestCalibrate(t *testing.T) {
	for _, c := range []struct {
		tokenize bool
		each     int
	}{{true, 1}, {false, 1}, {false, 3}} {
		tokenize, each := c.tokenize, c.each
		h := &counter{tokenize: tokenize, images: true, each: each}
		if tokenize {
			h.rare = map[string]bool{"able": true, "zone": true, "hunt": true}
		}
		c := serve(t, h)
		cal, err := Calibrate(t.Context(), c, "m1", formats.EndpointChat)
		if err != nil {
			t.Fatal(err)
		}
		want := len(prompt.Words) - len(h.rare)
		if cal.TokensPerWord != float64(each) || cal.Overhead != 8 || cal.PerMessage != 3 || len(cal.Words) != want || (cal.Method == "tokenize") != tokenize {
			t.Errorf("tokenize %t: %v a word, %v over, %v a message, %d words, by %s", tokenize, cal.TokensPerWord, cal.Overhead, cal.PerMessage, len(cal.Words), cal.Method)
		}
		CalibrateTools(t.Context(), c, "m1", &cal)
		if cal.TokensPerToolByte < 0.24 || cal.TokensPerToolByte > 0.26 || !TakesImages(t.Context(), c, "m1") {
			t.Errorf("%v tokens a tool byte", cal.TokensPerToolByte)
		}
		// What is made with the calibration is counted as was recorded.
		p, err := prompt.New(prompt.Options{Model: "m", Text: cal, Images: true})
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range []formats.Exchange{
			{ExchangeID: 1, InputTokens: formats.Of(int64(500))},
			{ExchangeID: 2, InputTokens: formats.Of(int64(501)), MessageCount: formats.Of(int32(6))},
			{ExchangeID: 3, InputTokens: formats.Of(int64(900)), MessageCount: formats.Of(int32(3)), ToolCount: formats.Of(int32(5)), ToolBytes: formats.Of(int64(1700))},
			{ExchangeID: 4, InputTokens: formats.Of(int64(333)), ImageCount: formats.Of(int32(2)), ImagePixels: formats.Of(int64(2 * 100 * 100))},
		} {
			b, err := p.Body(&x)
			if err != nil {
				t.Fatal(err)
			}
			var m map[string]any
			if err := json.Unmarshal(b, &m); err != nil {
				t.Fatalf("%v: %s", err, b)
			}
			n := h.chat(m)
			if d := n - int(x.InputTokens.V); d < -3 || d > 3 || x.ToolCount.V == 0 && each == 1 && d != 0 {
				t.Errorf("request %d is counted as %d, recorded %v", x.ExchangeID, n, x.InputTokens)
			}
			msgs := m["messages"].([]any)
			if len(msgs) != int(x.MessageCount.Or(1)) || x.MessageCount.V != int32(len(msgs)) || msgs[len(msgs)-1].(map[string]any)["role"] != "user" {
				t.Errorf("request %d has %d messages", x.ExchangeID, len(msgs))
			}
			if x.ToolCount.V > 0 {
				b, _ := json.Marshal(m["tools"])
				if len(m["tools"].([]any)) != 5 || len(b) < 1500 || len(b) > 1900 {
					t.Errorf("%d tools of %d bytes", len(m["tools"].([]any)), len(b))
				}
			}
			if x.ImageCount.V > 0 {
				parts := msgs[0].(map[string]any)["content"].([]any)
				if len(parts) != 3 {
					t.Fatalf("%d parts", len(parts))
				}
				url := parts[2].(map[string]any)["image_url"].(map[string]any)["url"].(string)
				img, err := png.Decode(base64.NewDecoder(base64.StdEncoding, strings.NewReader(strings.TrimPrefix(url, "data:image/png;base64,"))))
				if err != nil || img.Bounds().Dx() != 100 {
					t.Errorf("picture: %v", err)
				}
			}
		}
	}
}
