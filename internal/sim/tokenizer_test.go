package sim

import (
	"bufio"
	"bytes"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func FuzzTokenizer(f *testing.F) {
	for _, s := range []string{"", "hello you", "  two\n\n\tspaces ", "żółw 語", "\x00\xff"} {
		f.Add(s, "more")
	}
	f.Fuzz(func(t *testing.T, text, more string) {
		tokens := appendTokens(nil, text)
		if got := string(appendText(nil, tokens)); got != text {
			t.Fatalf("%q comes back as %q", text, got)
		}
		longer := appendTokens(nil, text+more)
		if n := len(tokens); n > 1 && !slices.Equal(tokens[:n-1], longer[:n-1]) {
			t.Fatalf("%q is no beginning of %q", text, text+more)
		}
		for _, k := range tokens {
			if k < 0 || k >= firstSpecial {
				t.Fatalf("token %d", k)
			}
		}
	})
}

// FuzzRequests feeds bodies to the request parser: it may refuse, not fail.
func FuzzRequests(f *testing.F) {
	for _, s := range []string{
		`{"prompt":[1,2,3]}`, `{"prompt":[[1],[2,3]]}`, `{"prompt":["a","b"]}`, `{"prompt":"x","n":3,"max_tokens":1}`, `{"prompt":[1,]}`, `{"prompt":[99999999999]}`,
		`{"messages":[{"role":"user","content":[{"type":"text","text":"x"},{"type":"image_url"}]}],"tools":[{}]}`, `{"messages":[{"content":3}]}`, `{"input":"x","encoding_format":"base64"}`, `[]`, `{`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var q apiRequest
		if json.Unmarshal(body, &q) != nil {
			return
		}
		for _, endpoint := range []string{"chat_completions", "completions", "embeddings"} {
			prompts, err := q.prompts(endpoint)
			if err == nil && len(prompts) == 0 {
				t.Fatalf("%s: neither prompts nor an error", endpoint)
			}
		}
	})
}

func TestAnswersTokenizeIntoTheirTokens(t *testing.T) {
	var text []byte
	var want []int32
	for k := range 500 {
		a, b := word(9, k)
		text = append(text, ' ', a, b)
		want = append(want, wordToken(a, b))
	}
	if got := appendTokens(nil, string(text)); !slices.Equal(got, want) {
		t.Error("an answer tokenizes into other tokens")
	}
}

func TestTokenizeAgreesWithUsage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, l, stop := serving(t, Options{Profile: instant(t)})
		defer stop()
		c := l.dial()
		defer c.Close()
		br := bufio.NewReader(c)
		type answer struct {
			Count  int
			Tokens []int32
			Prompt string
		}
		ask := func(path, body string) (a answer) {
			t.Helper()
			post(c, path, "", body)
			resp, err := http.ReadResponse(br, nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := json.NewDecoder(resp.Body).Decode(&a); err != nil {
				t.Fatal(err)
			}
			return a
		}
		const messages = `"messages":[{"role":"system","content":"be brief"},{"role":"user","content":"how far is the moon?"}]`
		post(c, "/v1/chat/completions", "", `{`+messages+`,"max_tokens":1}`)
		_, d := readDoc(t, br)
		if a := ask("/tokenize", `{`+messages+`}`); a.Count != d.Usage.Prompt || len(a.Tokens) != a.Count {
			t.Errorf("tokenize says %d, usage %d", a.Count, d.Usage.Prompt)
		}
		a := ask("/tokenize", `{"prompt":"how far is the moon?"}`)
		ids, _ := json.Marshal(a.Tokens)
		if back := ask("/detokenize", `{"tokens":`+string(ids)+`}`); back.Prompt != "how far is the moon?" {
			t.Errorf("detokenize says %q", back.Prompt)
		}
		post(c, "/v1/completions", "", `{"prompt":`+string(ids)+`,"max_tokens":1}`)
		if _, d := readDoc(t, br); d.Usage.Prompt != a.Count {
			t.Errorf("as ids: usage %d, tokenize %d", d.Usage.Prompt, a.Count)
		}
	})
}

func TestMetricsPage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, l, stop := serving(t, Options{Profile: instant(t), Fixed: true, TTFT: 50 * time.Millisecond, ITL: 10 * time.Millisecond})
		defer stop()
		c := l.dial()
		defer c.Close()
		br := bufio.NewReader(c)
		post(c, "/v1/completions", "", `{"prompt":"`+strings.Repeat("abc", 40)+`","max_tokens":4,"ignore_eos":true}`)
		readDoc(t, br)
		post(c, "/v1/completions", "", `{"prompt":"`+strings.Repeat("abc", 40)+`","max_tokens":4,"ignore_eos":true}`)
		readDoc(t, br)
		var page bytes.Buffer
		s.mu.Lock()
		err := s.meter.WriteText(&page, s.counters(), s.started)
		s.mu.Unlock()
		if err != nil {
			t.Fatal(err)
		}
		const labels = `{engine="0",model_name="shadowtape/instant"} `
		for _, want := range []string{
			"vllm:prompt_tokens_total" + labels + "80.0\n",
			"vllm:prefix_cache_queries_total" + labels + "80.0\n",
			"vllm:prefix_cache_hits_total" + labels + "32.0\n",
			"vllm:generation_tokens_total" + labels + "8.0\n",
			"vllm:num_requests_running" + labels + "0.0\n",
			"vllm:kv_cache_usage_perc" + labels + "0.0\n",
			`vllm:request_success_total{engine="0",finished_reason="length",model_name="shadowtape/instant"} 2.0` + "\n",
			`vllm:time_to_first_token_seconds_bucket{engine="0",le="0.04",model_name="shadowtape/instant"} 0.0` + "\n",
			`vllm:time_to_first_token_seconds_bucket{engine="0",le="0.06",model_name="shadowtape/instant"} 2.0` + "\n",
			"vllm:inter_token_latency_seconds_count" + labels + "6.0\n",
			"# TYPE vllm:iteration_tokens_total histogram\n",
			`num_gpu_blocks="65537"`,
		} {
			if !strings.Contains(page.String(), want) {
				t.Errorf("the page lacks %q", want)
			}
		}
	})
}
