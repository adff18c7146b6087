package recorder

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/openai"
)

// exchangeFrames makes a capture of one connection with the given requests and responses in turn.
func exchangeFrames(pairs ...[2]string) (out []frame) {
	k := newTalk(&out, 1)
	at := int64(1_700_000_000_000_000_000)
	k.open(at)
	for _, p := range pairs {
		at += 1e7
		k.send(at, client, []byte(p[0]))
		at += 1e7
		k.send(at, server, []byte(p[1]))
	}
	k.close(at + 1e7)
	slices.SortStableFunc(out, func(a, b frame) int { return int(a.at - b.at) })
	return out
}

// canaries makes words that must not be seen again, and counts them.
type canaries struct{ n int }

func (c *canaries) word() string {
	c.n++
	return fmt.Sprintf("CANARY%dx", c.n)
}

// fill replaces each @ by a new canary.
func (c *canaries) fill(s string) string {
	for strings.Contains(s, "@") {
		s = strings.Replace(s, "@", c.word(), 1)
	}
	return s
}

// TestNoTextIsKept sends canaries through every place where a client or a server can write text and looks for them in everything that the
// recorder leaves behind.
func TestNoTextIsKept(t *testing.T) {
	var c canaries
	request := func(path, body string) string {
		body = c.fill(body)
		return c.fill("POST /@"+path+"?q=@&api-version=@ HTTP/1.1\r\nHost: @\r\nAuthorization: Bearer @\r\nUser-Agent: @\r\nCookie: @=@\r\nX-@: @\r\nx-request-id: @\r\nx-session-id: @\r\nx-tenant-id: @\r\nReferer: @\r\n") +
			fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body)
	}
	response := func(status int, mime, body string) string {
		body = c.fill(body)
		return c.fill(fmt.Sprintf("HTTP/1.1 %d @\r\nServer: @\r\nSet-Cookie: @\r\nx-request-id: @\r\nX-@: @\r\nContent-Type: %s; x=@\r\n", status, mime)) + fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body)
	}
	chat := `{"model":"served","@":"@","messages":[{"role":"system","content":"@","name":"@"},{"role":"@","content":[{"type":"text","text":"@"},{"type":"image_url","image_url":{"url":"https://@/@.png","detail":"@"}},
		{"type":"input_audio","input_audio":{"data":"@","format":"@"}},{"type":"file","file":{"filename":"@","file_data":"@"}},{"type":"@","@":"@"}]},
		{"role":"assistant","content":"@","tool_calls":[{"id":"@","type":"function","function":{"name":"@","arguments":"{\"@\":\"@\"}"}}]},{"role":"tool","tool_call_id":"@","content":"@"}],
		"tools":[{"type":"function","function":{"name":"@","description":"@","parameters":{"type":"object","properties":{"@":{"type":"string","description":"@"}}}}}],"tool_choice":{"type":"function","function":{"name":"@"}},
		"stop":["@","@"],"user":"@","metadata":{"@":"@"},"cache_salt":"@","prompt_cache_key":"@","session_id":"@","safety_identifier":"@","reasoning_effort":"@","service_tier":"@","logit_bias":{"@":1},
		"response_format":{"type":"json_schema","json_schema":{"name":"@","schema":{"@":"@"}}},"guided_regex":"@","guided_choice":["@"],"structured_outputs":{"@":"@","regex":"@"},
		"chat_template":"@","chat_template_kwargs":{"enable_thinking":true,"@":true,"x":"@","@":17},"stream_options":{"include_usage":true,"@":true},"lora_path":"@","verbosity":"@","stream":true}`
	stream := ": @\nevent: @\nid: @\ndata: {\"id\":\"@\",\"object\":\"@\",\"model\":\"served\",\"system_fingerprint\":\"@\",\"@\":\"@\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"@\",\"content\":\"@\",\"reasoning\":\"@\",\"refusal\":\"@\",\"tool_calls\":[{\"id\":\"@\",\"function\":{\"name\":\"@\",\"arguments\":\"@\"}}]},\"logprobs\":{\"content\":[{\"token\":\"@\"}]},\"finish_reason\":null}]}\n\n" +
		"data: {\"choices\":[{\"index\":0,\"delta\":{\"@\":\"@\"},\"finish_reason\":\"@\",\"stop_reason\":\"@\"}]}\n\ndata: [DONE]\n\n"
	frames := exchangeFrames(
		[2]string{request("/v1/chat/completions", chat), response(200, "text/event-stream", stream)},
		[2]string{request("/v1/chat/completions", strings.Replace(chat, `"served"`, `"@"`, 1)), response(404, "application/json", `{"error":{"message":"@","type":"@","code":"@"}}`)},
		[2]string{request("/v1/chat/completions", chat), response(200, "text/html", "<html>@</html>")},
		[2]string{request("/v1/chat/completions", chat), response(200, "text/event-stream", "error: @\n\ndata: {\"error\":\"@\"}\n\n")},
		[2]string{request("/v1/chat/completions", chat), response(200, "application/json", `{"choices":[{"message":{"content":"@"},"finish_reason":"@"}],"@":`)},
		[2]string{request("/v1/completions", `{"model":"served","prompt":["@","@"],"suffix":"@","echo":true}`), response(200, "application/json", `{"choices":[{"text":"@","finish_reason":"stop"}]}`)},
		[2]string{request("/v1/responses", `{"model":"served","instructions":"@","input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"@"}]},{"type":"function_call_output","call_id":"@","output":"@"}],"previous_response_id":"@","conversation":{"id":"@"},"text":{"format":{"type":"@"}}}`),
			response(200, "application/json", `{"id":"@","status":"@","output":[{"type":"@","content":[{"text":"@"}]}]}`)},
		[2]string{request("/v1/embeddings", `{"model":"served","input":"@"}`), response(200, "application/json", `{"model":"served","data":[{"embedding":"@"}],"usage":{"prompt_tokens":3}}`)},
		[2]string{request("/v1/rerank", `{"model":"served","query":"@","documents":["@"]}`), response(200, "application/json", `{"results":[{"document":{"text":"@"}}]}`)},
		[2]string{request("/@", `{"@":"@"}`), response(500, "text/plain", "@")},
		[2]string{request("/v1/chat/completions", `{"model":"@","messages":[{"role":"user","content":"@"`), response(400, "text/plain", "@")},
	)
	if c.n < 250 {
		t.Fatalf("only %d canaries", c.n)
	}
	dir := t.TempDir()
	where := filepath.Join(dir, "trace")
	key := []byte("0123456789abcdef")
	h := formats.Header{SourceKind: "pcap"}
	Describe(&h, key, Counting{})
	w, err := formats.Create(where, h, formats.SegmentOptions{})
	if err != nil {
		t.Fatal(err)
	}
	src := &Files{Names: []string{write(t, pcapBytes(linkEthernet, frames))}, Key: key}
	st, err := Record(t.Context(), src, w, Options{})
	if err != nil {
		t.Fatal(err)
	}
	w.Header().Counters = st.Counters
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if st.Written != 10 || st.Filtered != 1 {
		t.Fatalf("%+v", st)
	}
	var all bytes.Buffer
	fmt.Fprintf(&all, "%+v\n%q\n", st, st.Warnings)
	tr, err := formats.Open(where)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	fmt.Fprintf(&all, "%+v\n", tr.Header)
	models := map[string]int{}
	for x, err := range tr.All() {
		if err != nil {
			t.Fatal(err)
		}
		models[x.RequestModel]++
		fmt.Fprintf(&all, "%+v\n", *x)
		v := reflect.ValueOf(*x)
		for i := range v.NumField() { // hashes are printed as numbers: look at their bytes too
			if hash, ok := v.Field(i).Interface().(formats.Null[formats.Hash]); ok {
				all.Write(hash.V[:])
			}
		}
	}
	if models["served"] != 8 {
		t.Errorf("models %v", models)
	}
	files, _ := filepath.Glob(filepath.Join(where, "*"))
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(b)
		all.WriteString(f)
	}
	if i := bytes.Index(bytes.ToUpper(all.Bytes()), []byte("CANARY")); i >= 0 {
		t.Errorf("a canary got out: %q", all.Bytes()[max(0, i-60):min(all.Len(), i+40)])
	}
}

// TestTwoRecordersAgree records the two halves of a session on two machines: with one key their hashes are the same, with two they are not,
// and without the key a list of likely prompts finds nothing.
func TestTwoRecordersAgree(t *testing.T) {
	body := func(n int) string {
		m := `{"role":"system","content":"` + strings.Repeat("You are a helpful assistant. ", 20) + `"},{"role":"user","content":"first question"}`
		for i := range n {
			m += fmt.Sprintf(`,{"role":"assistant","content":"answer %d"},{"role":"user","content":"question %d"}`, i, i)
		}
		return `{"model":"m","user":"bob","messages":[` + m + `]}`
	}
	answer := "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 70\r\n\r\n" + `{"choices":[{"index":0,"message":{"content":"x"},"finish_reason":"stop"}]}`[:70]
	one := exchangeFrames([2]string{string(post("/v1/chat/completions", "a", body(0))), answer}, [2]string{string(post("/v1/chat/completions", "b", body(1))), answer})
	run := func(key string) collect {
		var c collect
		if _, err := Record(t.Context(), &Files{Names: []string{write(t, pcapBytes(linkEthernet, one))}, Key: []byte(key)}, &c, Options{}); err != nil {
			t.Fatal(err)
		}
		return c
	}
	a, b, other := run("key of both nodes"), run("key of both nodes"), run("another key")
	for i := range a {
		if d := difference(a[i], b[i], 0); d != "" {
			t.Errorf("one key: row %d differs in %s", i, d)
		}
		x, y := a[i], other[i]
		if x.TenantID == y.TenantID || x.SessionID == y.SessionID || x.CorrelationID == y.CorrelationID || x.PrefixBlocks[0] == y.PrefixBlocks[0] {
			t.Errorf("two keys: row %d has the same hashes", i)
		}
	}
	if a[0].SessionID != a[1].SessionID || a[0].Turn.V != 1 || a[1].Turn.V != 2 {
		t.Errorf("turns: %v %v, %v %v", a[0].SessionID, a[0].Turn, a[1].SessionID, a[1].Turn)
	}
	if len(a[0].PrefixBlocks) == 0 || !slices.Equal(a[0].PrefixBlocks, a[1].PrefixBlocks[:len(a[0].PrefixBlocks)]) {
		t.Errorf("prefix %v is not shared: %v", a[0].PrefixBlocks, a[1].PrefixBlocks)
	}
	// The dictionary: the very prompt, hashed with every key that an attacker may think of.
	for _, guess := range []string{"", "key", "shadowtape", "password", "0123456789abcdef"} {
		x := &formats.Exchange{}
		if err := openai.ReadRequest(x, "/v1/chat/completions", []byte(body(0)), openai.NewHasher([]byte(guess))); err != nil {
			t.Fatal(err)
		}
		if x.PrefixBlocks[0] == a[0].PrefixBlocks[0] || x.TenantID == a[0].TenantID {
			t.Errorf("key %q finds the prompt", guess)
		}
	}
}

// TestSessions follows conversations by their messages alone.
func TestSessions(t *testing.T) {
	h := openai.NewHasher([]byte("k"))
	s := newSessions()
	ask := func(user string, said ...string) *formats.Exchange {
		var m []string
		for i, w := range said {
			m = append(m, fmt.Sprintf(`{"role":"%s","content":"%s"}`, []string{"user", "assistant"}[i%2], w))
		}
		x := &formats.Exchange{}
		if err := openai.ReadRequest(x, "/v1/chat/completions", []byte(`{"user":"`+user+`","messages":[`+strings.Join(m, ",")+`]}`), h); err != nil {
			t.Fatal(err)
		}
		s.assign(x, h)
		return x
	}
	a1 := ask("a", "hi")
	b1 := ask("a", "hi")
	c1 := ask("c", "hi")
	a2 := ask("a", "hi", "hello", "how are you")
	b2 := ask("a", "hi", "yes?", "what time is it")
	a3 := ask("a", "hi", "hello", "how are you", "fine", "good")
	again := ask("a", "hi", "hello", "how are you", "well", "good")
	if a1.SessionID == b1.SessionID || a1.SessionID == c1.SessionID {
		t.Error("strangers who say the same words share a session")
	}
	if a2.SessionID != a1.SessionID || a3.SessionID != a1.SessionID || a2.Turn.V != 2 || a3.Turn.V != 3 {
		t.Errorf("turns of a: %v %v %v", a1.Turn, a2.Turn, a3.Turn)
	}
	if b2.SessionID != b1.SessionID || b2.Turn.V != 2 {
		t.Errorf("turns of b: %v %v", b1.SessionID == b2.SessionID, b2.Turn)
	}
	if again.SessionID != a1.SessionID || again.Turn.V != 4 {
		t.Errorf("asked again: %v %v", again.SessionID == a1.SessionID, again.Turn)
	}
	// Responses continue by the id of the answer before, also of one that was not seen.
	respond := func(body, id string) *formats.Exchange {
		x := &formats.Exchange{}
		if err := openai.ReadRequest(x, "/v1/responses", []byte(body), h); err != nil {
			t.Fatal(err)
		}
		if c := s.assign(x, h); c != nil {
			s.answer(h.Sum("response", id), c, x)
		}
		return x
	}
	r1, r2 := respond(`{"input":"hi"}`, "resp_1"), respond(`{"input":"and now","previous_response_id":"resp_1"}`, "resp_2")
	r3, strange := respond(`{"input":"more","previous_response_id":"resp_2"}`, "resp_3"), respond(`{"input":"x","previous_response_id":"resp_0"}`, "resp_9")
	if r1.SessionID != r2.SessionID || r3.SessionID != r1.SessionID || r1.Turn.V != 1 || r3.Turn.V != 3 || strange.SessionID == r1.SessionID || !strange.SessionID.Valid {
		t.Errorf("responses: %v %v %v %v", r1.Turn, r2.Turn, r3.Turn, strange.Turn)
	}
	// The table stays bounded.
	rng := rand.New(rand.NewPCG(1, 1))
	for range 10 {
		ask("z", fmt.Sprint(rng.Uint64()))
	}
	if len(s.now) > maxTurns {
		t.Error("too many")
	}
}
