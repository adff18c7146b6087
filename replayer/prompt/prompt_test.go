package prompt

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/shadowtape/shadowtape/formats"
)

func prompts(t *testing.T, o Options) *Maker {
	t.Helper()
	if o.Model == "" {
		o.Model = "m"
	}
	p, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// body makes a body and reads it back.
func made(t *testing.T, p *Maker, x formats.Exchange) (map[string]any, *formats.Exchange) {
	t.Helper()
	b, err := p.Body(&x)
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(b, &m); err != nil {
		t.Fatalf("%v: %s", err, b)
	}
	return m, &x
}

func ids(t *testing.T, m map[string]any) []int {
	t.Helper()
	var out []int
	for _, v := range m["prompt"].([]any) {
		out = append(out, int(v.(float64)))
	}
	return out
}

func same(a, b []int) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

func TestSameBlocksSameTokens(t *testing.T) {
	blocks := func(n int64, b ...int64) formats.Exchange {
		return formats.Exchange{ExchangeID: n, Endpoint: formats.EndpointCompletions, InputTokens: formats.Of(int64(len(b))*16 + n), PrefixBlocks: b}
	}
	o := Options{TokenIDs: true, BlockUnit: "tokens", BlockSize: 16, Seed: 3}
	p := prompts(t, o)
	m1, x1 := made(t, p, blocks(5, 11, 22, 33))
	m2, _ := made(t, p, blocks(7, 11, 22, 44))
	a, b := ids(t, m1), ids(t, m2)
	if len(a) != 53 || len(b) != 55 || x1.InputTokensSource != formats.TokensTokenizer {
		t.Fatalf("%d and %d ids, source %s", len(a), len(b), x1.InputTokensSource)
	}
	if n := same(a, b); n != 32 {
		t.Errorf("%d leading tokens are shared, want 32", n)
	}
	again, _ := made(t, prompts(t, o), blocks(5, 11, 22, 33))
	if n := same(a, ids(t, again)); n != 53 {
		t.Errorf("another run with the same seed agrees for %d tokens", n)
	}
	o.Seed = 4
	other, _ := made(t, prompts(t, o), blocks(5, 11, 22, 33))
	if n := same(a, ids(t, other)); n != 0 {
		t.Errorf("another seed agrees for %d tokens", n)
	}
	next := blocks(5, 11, 22, 33)
	next.Loop = formats.Of(int32(1))
	second, _ := made(t, p, next)
	if n := same(a, ids(t, second)); n != 0 {
		t.Errorf("the second pass agrees with the first for %d tokens", n)
	}
	for _, id := range a {
		if id < 1000 || id >= 30_000 {
			t.Errorf("token id %d", id)
		}
	}
}

// A block list that counts its partial tail as a block has no tail of its own: equal prompts are equal to the last token.
func TestCeilBlocks(t *testing.T) {
	p := prompts(t, Options{TokenIDs: true, BlockUnit: "tokens", BlockSize: 512, BlockRule: "ceil"})
	x := formats.Exchange{ExchangeID: 1, Endpoint: formats.EndpointCompletions, InputTokens: formats.Of(int64(700)), PrefixBlocks: []int64{1, 2}}
	a, _ := made(t, p, x)
	x.ExchangeID = 2
	b, _ := made(t, p, x)
	if n := same(ids(t, a), ids(t, b)); n != 700 {
		t.Errorf("%d of 700 tokens agree", n)
	}
}

// Blocks of bytes keep their boundaries whatever the prompt's own ratio of tokens to bytes.
func TestByteBlocks(t *testing.T) {
	p := prompts(t, Options{TokenIDs: true, BlockUnit: "bytes", BlockSize: 100, TokensPerByte: 0.237})
	x := formats.Exchange{ExchangeID: 1, Endpoint: formats.EndpointCompletions, InputTokens: formats.Of(int64(80)), PrefixBlocks: []int64{1, 2, 3}}
	y := formats.Exchange{ExchangeID: 2, Endpoint: formats.EndpointCompletions, InputTokens: formats.Of(int64(90)), PrefixBlocks: []int64{1, 2, 4}}
	a, _ := made(t, p, x)
	b, _ := made(t, p, y)
	if n := same(ids(t, a), ids(t, b)); n != 47 { // floor(2 × 100 × 0.237)
		t.Errorf("%d leading tokens are shared, want 47", n)
	}
	if len(ids(t, a)) != 80 || len(ids(t, b)) != 90 {
		t.Error("a length is wrong")
	}
}

func TestCumulativeSessions(t *testing.T) {
	p := prompts(t, Options{TokenIDs: true, Cumulative: true})
	x := formats.Exchange{ExchangeID: 1, Endpoint: formats.EndpointCompletions, InputTokens: formats.Of(int64(100)), SessionID: formats.Of(formats.Hash{1})}
	y := x
	y.ExchangeID, y.InputTokens = 2, formats.Of(int64(250))
	a, _ := made(t, p, x)
	b, _ := made(t, p, y)
	if n := same(ids(t, a), ids(t, b)); n != 100 {
		t.Errorf("%d of 100 tokens are a prefix of the next turn", n)
	}
	p = prompts(t, Options{TokenIDs: true}) // its turns are their own
	a, _ = made(t, p, x)
	b, _ = made(t, p, y)
	if n := same(ids(t, a), ids(t, b)); n != 0 {
		t.Errorf("%d tokens of a turn are a prefix of the next, which does not hold it", n)
	}
}

func TestChatText(t *testing.T) {
	words := strings.Fields("aaaa bbbb cccc dddd eeee ffff gggg hhhh")
	p := prompts(t, Options{Text: Calibration{Words: words, TokensPerWord: 1.25, Overhead: 10}, BlockUnit: "tokens", BlockSize: 50})
	text := func(x formats.Exchange) []string {
		m, _ := made(t, p, x)
		return strings.Fields(m["messages"].([]any)[0].(map[string]any)["content"].(string))
	}
	a := text(formats.Exchange{ExchangeID: 1, InputTokens: formats.Of(int64(210)), PrefixBlocks: []int64{1, 2, 3}})
	b := text(formats.Exchange{ExchangeID: 2, InputTokens: formats.Of(int64(210)), PrefixBlocks: []int64{1, 2, 9}})
	if len(a) != 160 || len(b) != 160 { // (210 - 10) / 1.25
		t.Fatalf("%d and %d words", len(a), len(b))
	}
	n := 0
	for n < len(a) && a[n] == b[n] {
		n++
	}
	if n < 80 || n > 83 {
		t.Errorf("%d words are shared, want 80 and perhaps a few by chance", n)
	}
}

func TestParametersAreSentAsRecorded(t *testing.T) {
	vllm, _ := DialectNamed("vllm")
	x := formats.Exchange{ExchangeID: 1, Endpoint: formats.EndpointChat, Stream: formats.Of(false), InputTokens: formats.Of(int64(20)), OutputTokens: formats.Of(int64(33)),
		Temperature: formats.Of(0.7), TopP: formats.Of(0.95), TopK: formats.Of(int64(40)), Seed: formats.Of(int64(9)), Logprobs: formats.Of(int32(2)), MaxTokens: formats.Of(int64(4096)),
		StopCount: formats.Of(int32(1)), ReasoningEffort: "low", TemplateFlags: []string{"enable_thinking=false", "budget=12"}, CacheSalted: formats.Of(true), Priority: formats.Of(int32(-1)), RequestModel: "theirs"}
	m, y := made(t, prompts(t, Options{Dialect: vllm, Model: "ours"}), x)
	want := map[string]any{"model": "ours", "stream": false, "temperature": 0.7, "top_p": 0.95, "top_k": 40.0, "seed": 9.0, "logprobs": true, "top_logprobs": 2.0,
		"max_tokens": 33.0, "min_tokens": 33.0, "ignore_eos": true, "reasoning_effort": "low", "priority": -1.0}
	for k, v := range want {
		if m[k] != v {
			t.Errorf("%s is %v, want %v", k, m[k], v)
		}
	}
	if k := m["chat_template_kwargs"].(map[string]any); k["enable_thinking"] != false || k["budget"] != 12.0 {
		t.Errorf("template flags %v", k)
	}
	if m["cache_salt"] == nil || m["stream_options"] != nil || y.MaxTokens.V != 33 || y.RequestModel != "ours" || !y.IgnoreEOS.V {
		t.Errorf("salt %v, stream options %v, max tokens %v", m["cache_salt"], m["stream_options"], y.MaxTokens)
	}
	p := prompts(t, Options{})
	x.Stream = formats.Null[bool]{}
	m, y = made(t, p, x)
	if m["max_tokens"] != 33.0 || m["ignore_eos"] != nil || m["min_tokens"] != nil || m["top_k"] != nil || m["stream"] != true || m["stream_options"].(map[string]any)["include_usage"] != true || !y.Stream.V {
		t.Errorf("an unknown server was asked %v", m)
	}
	if n := p.Notes(); n["output_not_forced"] != 1 || n["stream_unknown"] != 1 || n["cache_salt_left_out"] != 1 {
		t.Errorf("notes %v", n)
	}
}

func TestWhatCannotBeAsked(t *testing.T) {
	p := prompts(t, Options{})
	if _, err := p.Body(&formats.Exchange{Endpoint: formats.EndpointChat}); err == nil {
		t.Error("a prompt of unknown length was made")
	}
	if _, err := p.Body(&formats.Exchange{Endpoint: formats.EndpointOther, InputTokens: formats.Of(int64(3))}); err == nil {
		t.Error("a request to an unknown endpoint was made")
	}
}

func TestCandidateWords(t *testing.T) {
	seen := map[string]bool{}
	for _, w := range Words {
		if len(w) != 4 || seen[w] {
			t.Errorf("word %q", w)
		}
		seen[w] = true
	}
}

func TestStatefulIsRefused(t *testing.T) {
	p := prompts(t, Options{})
	if _, err := p.Body(&formats.Exchange{InputTokens: formats.Of(int64(5)), ExtraParams: []string{"previous_response_id"}}); err != ErrStateful {
		t.Errorf("%v", err)
	}
}

// A longer conversation begins as the shorter one did, templates aside.
func TestMessagesKeepThePrefix(t *testing.T) {
	p := prompts(t, Options{BlockUnit: "tokens", BlockSize: 32, Text: Calibration{PerMessage: 4, Overhead: 5}})
	first := func(x formats.Exchange) []string {
		m, _ := made(t, p, x)
		return strings.Fields(m["messages"].([]any)[0].(map[string]any)["content"].(string))
	}
	a := first(formats.Exchange{ExchangeID: 1, InputTokens: formats.Of(int64(150)), PrefixBlocks: []int64{1, 2, 3, 4}})
	b := first(formats.Exchange{ExchangeID: 2, InputTokens: formats.Of(int64(300)), MessageCount: formats.Of(int32(3)), PrefixBlocks: []int64{1, 2, 3, 4, 5, 6, 7, 8, 9}})
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	if n < 128 {
		t.Errorf("%d words are shared, want 128", n)
	}
}
