package openai

import (
	"fmt"
	"strings"
	"testing"

	"github.com/shadowtape/shadowtape/formats"
)

// play feeds a stream to a Response: each piece at its index in milliseconds.
func play(x *formats.Exchange, status int, contentType string, pieces ...string) *formats.Exchange {
	r := NewResponse(x, status, contentType)
	for i, p := range pieces {
		r.Write([]byte(p), int64(i+1)*1e6, 0)
	}
	r.End(int64(len(pieces))*1e6, true)
	return x
}

const sse = "text/event-stream; charset=utf-8"

func chunk(delta, finish string) string {
	if finish != "null" {
		finish = `"` + finish + `"`
	}
	return `data: {"id":"x","object":"chat.completion.chunk","model":"m","choices":[{"index":0,"delta":` + delta + `,"logprobs":null,"finish_reason":` + finish + `}]}` + "\n\n"
}

func TestStreamTimesAndUsage(t *testing.T) {
	x := play(&formats.Exchange{Endpoint: formats.EndpointChat}, 200, sse,
		chunk(`{"role":"assistant","content":""}`, "null"),
		chunk(`{"content":"a"}`, "null"),
		chunk(`{"content":"b"}`, "null")+chunk(`{"content":"c"}`, "null"),
		chunk(`{}`, "stop"),
		`data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3,"total_tokens":12,"prompt_tokens_details":{"cached_tokens":4}}}`+"\n\ndata: [DONE]\n\n")
	if x.FirstEventNS.V != 1e6 || x.FirstTokenNS.V != 2e6 || x.FirstContentNS.V != 2e6 || x.LastTokenNS.V != 3e6 || x.EndNS.V != 5e6 {
		t.Errorf("times: %+v", x)
	}
	if x.InputTokens.V != 9 || x.OutputTokens.V != 3 || x.CachedTokens.V != 4 || x.OutputTokensSource != formats.TokensUsage {
		t.Errorf("tokens: %+v", x)
	}
	if got := fmt.Sprint(x.EventGapUS, x.EventTokens, x.EventChoice, x.EventFlags); got != "[0 1000 0] [1 1 1] [] [0 0 1]" {
		t.Errorf("events: %s", got)
	}
	if x.EndReason != formats.EndComplete || x.ErrorKind != "" || x.FinishReason != "stop" || x.ResponseModel != "m" {
		t.Errorf("end: %s %q %s", x.EndReason, x.ErrorKind, x.FinishReason)
	}
}

// TestMisstatedUsage: a count that no request has is not taken, is told, and the next source speaks; the largest that one can have is.
func TestMisstatedUsage(t *testing.T) {
	for _, stated := range []string{"100000001", "9223372036854775807", "9223372036854775808", "1e15"} {
		r := NewResponse(&formats.Exchange{Endpoint: formats.EndpointChat}, 200, sse)
		r.Write([]byte(`data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop","token_ids":[5,6]}],"usage":{"prompt_tokens":`+stated+`,"completion_tokens":`+stated+`,"total_tokens":`+stated+`,"prompt_tokens_details":{"cached_tokens":`+stated+`}}}`+"\n\ndata: [DONE]\n\n"), 1, 0)
		r.End(2, true)
		x := r.x
		if x.InputTokens.Valid || x.CachedTokens.Valid || x.OutputTokensSource == formats.TokensUsage || x.OutputTokens.V > 2 || x.ErrorKind != "" || !r.Misstated() {
			t.Errorf("%s: misstated %v, %+v", stated, r.Misstated(), x)
		}
	}
	r := NewResponse(&formats.Exchange{Endpoint: formats.EndpointChat}, 200, "application/json")
	r.Write([]byte(`{"choices":[{"index":0,"message":{"content":"a"},"finish_reason":"stop"}],"usage":{"prompt_tokens":100000000,"completion_tokens":1}}`), 1, 0)
	if r.End(2, true); r.x.InputTokens.V != formats.MostTokens || r.Misstated() {
		t.Errorf("%+v", r.x)
	}
}

// An event may bring several tokens: where nobody says how many, how many there were is not known, and is not the number of events.
func TestEventsAreNoTokens(t *testing.T) {
	events := []string{chunk(`{"content":"a b c"}`, "null"), chunk(`{"content":"d"}`, "null"), chunk(`{"content":"e f g"}`, "stop")}
	usage := `data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":7}}` + "\n\n"
	ids := func(list string) string {
		return `data: {"choices":[{"index":0,"text":"x","token_ids":` + list + `,"finish_reason":null}]}` + "\n\n"
	}
	for _, c := range []struct {
		name   string
		pieces []string
		want   formats.Null[int64]
		tokens string
	}{
		{"usage", append(events[:3:3], usage), formats.Of(int64(7)), "[]"},
		{"nobody says", events, formats.Null[int64]{}, "[]"},
		{"token ids", []string{ids("[1,2,3]"), ids("[4]"), ids("[5,6,7]")}, formats.Of(int64(7)), "[3 1 3]"},
	} {
		x := play(&formats.Exchange{Endpoint: formats.EndpointChat}, 200, sse, append(c.pieces[:len(c.pieces):len(c.pieces)], "data: [DONE]\n\n")...)
		if got := fmt.Sprint(x.EventTokens); x.OutputTokens != c.want || len(x.EventGapUS) != 3 || got != c.tokens {
			t.Errorf("%s: %+v tokens in %d events, %s", c.name, x.OutputTokens, len(x.EventGapUS), got)
		}
	}
}

// TestSplitAnywhere cuts one stream at every pair of byte positions: nothing but the times may depend on where reads end.
func TestSplitAnywhere(t *testing.T) {
	for _, sep := range []string{"\n", "\r\n", "\r"} {
		s := ": ping" + sep + sep + strings.ReplaceAll(chunk(`{"role":"assistant"}`, "null")+chunk(`{"content":"h\"\\"}`, "null")+"event: x\ndata:"+chunk(`{"reasoning":"b"}`, "length")[6:]+
			`data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2}} `+"\n\ndata: [DONE]\n\n", "\n", sep)
		want := ""
		for i := 0; i <= len(s); i++ {
			for j := i; j <= len(s); j += 7 {
				x := &formats.Exchange{Endpoint: formats.EndpointChat}
				r := NewResponse(x, 200, sse)
				r.Write([]byte(s[:i]), 1, 0)
				r.Write([]byte(s[i:j]), 1, 0)
				r.Write([]byte(s[j:]), 1, 0)
				r.End(1, true)
				got := fmt.Sprint(x.FirstTokenNS.Valid, x.InputTokens, x.OutputTokens, x.EventTokens, x.EventFlags, x.ErrorKind, x.FinishReason)
				if want == "" {
					want = got
				}
				if got != want || x.OutputTokens.V != 2 || len(x.EventGapUS) != 2 || x.ErrorKind != "" {
					t.Fatalf("sep %q split %d %d: %s, want %s", sep, i, j, got, want)
				}
			}
		}
	}
}

func TestEnds(t *testing.T) {
	usage := `data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":1}}` + "\n\n"
	for _, c := range []struct {
		name, contentType, body string
		status                  int
		complete                bool
		end                     formats.EndReason
		kind                    string
	}{
		{"no finish", sse, chunk(`{"content":"a"}`, "null"), 200, true, formats.EndComplete, formats.ErrorIncomplete},
		{"cut", sse, chunk(`{"content":"a"}`, "null"), 200, false, formats.EndServerAbort, formats.ErrorIncomplete},
		{"cut after the end", sse, chunk(`{"content":"a"}`, "stop") + "data: [DONE]\n\n", 200, false, formats.EndComplete, ""},
		{"no done", sse, chunk(`{"content":"a"}`, "stop") + usage, 200, true, formats.EndComplete, ""},
		{"error object", sse, chunk(`{"content":"a"}`, "null") + "data: {\"error\":{\"message\":\"x\"}}\n\ndata: [DONE]\n\n", 200, true, formats.EndErrorInStream, formats.ErrorInStream},
		{"error string", sse, "data: {\"error\":\"x\",\"error_type\":\"generation\"}\n\n", 200, true, formats.EndErrorInStream, formats.ErrorInStream},
		{"error null", sse, "data: {\"error\":null,\"choices\":[{\"index\":0,\"text\":\"a\",\"finish_reason\":\"stop\"}]}\n\n", 200, true, formats.EndComplete, ""},
		{"error field", sse, "error: {\"code\":500}\n\n", 200, true, formats.EndErrorInStream, formats.ErrorInStream},
		{"error event", sse, "event: error\ndata: {\"type\":\"x\"}\n\n", 200, true, formats.EndErrorInStream, formats.ErrorInStream},
		{"no token", sse, chunk(`{}`, "stop"), 200, true, formats.EndComplete, formats.ErrorNoTokens},
		{"html", "text/html", "<html>data: {}</html>", 200, true, formats.EndComplete, formats.ErrorHTML},
		{"html as json", "application/json", "<html></html>", 200, true, formats.EndComplete, formats.ErrorHTML},
		{"500", "application/json", `{"error":{}}`, 500, true, formats.EndComplete, "http_500"},
		{"half json", "application/json", `{"choices":[{"message":{"content":"a"`, 200, true, formats.EndComplete, formats.ErrorProtocol},
		{"bad event", sse, chunk(`{"content":"a"}`, "stop") + "data: {\"choices\":[}\n\n", 200, true, formats.EndComplete, formats.ErrorProtocol},
		{"nothing", sse, "", 200, true, formats.EndComplete, formats.ErrorNoTokens},
		{"reset", "application/json", "", 200, false, formats.EndServerAbort, formats.ErrorReset},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := &formats.Exchange{Endpoint: formats.EndpointChat}
			r := NewResponse(x, c.status, c.contentType)
			r.Write([]byte(c.body), 1e6, 0)
			r.End(2e6, c.complete)
			if x.EndReason != c.end || x.ErrorKind != c.kind {
				t.Errorf("%s %q, want %s %q", x.EndReason, x.ErrorKind, c.end, c.kind)
			}
		})
	}
}

func TestReadRequest(t *testing.T) {
	h := NewHasher([]byte("k"))
	x := &formats.Exchange{}
	body := `{"model":"m","stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"` + strings.Repeat("long ", 100) + `"}],
	 "temperature":0.2,"max_tokens":512,"top_p":1.0,"stop":["a","b"],"user":"u","secret_key":1,"tools":[{"type":"function"}],"cache_salt":"s","chat_template_kwargs":{"enable_thinking":false,"x":true,"t":"text"}}`
	if err := ReadRequest(x, "/v1/chat/completions?x=1", []byte(body), h); err != nil {
		t.Fatal(err)
	}
	if x.Endpoint != formats.EndpointChat || !x.Stream.V || x.Temperature.V != 0.2 || x.MaxTokens.V != 512 || x.TopP.V != 1 || x.StopCount.V != 2 || x.ToolCount.V != 1 ||
		!x.CacheSalted.V || x.MessageCount.V != 1 || x.PromptCount.V != 1 || !x.TenantID.Valid || len(x.PrefixBlocks) != 4 || len(h.Turns()) != 1 {
		t.Errorf("%+v", x)
	}
	if len(x.ExtraParams) != 2 || x.ExtraParams[1] != "stream_options.include_usage" || len(x.ExtraParams[0]) != 16 {
		t.Errorf("extra %q", x.ExtraParams)
	}
	if len(x.TemplateFlags) != 2 || x.TemplateFlags[1] != "enable_thinking=false" && x.TemplateFlags[0] != "enable_thinking=false" {
		t.Errorf("flags %q", x.TemplateFlags)
	}
	y := &formats.Exchange{}
	ReadRequest(y, "/v1/chat/completions", []byte(strings.ReplaceAll(body, "long ", `l\u006fng `)), NewHasher([]byte("k")))
	if fmt.Sprint(x.PrefixBlocks) != fmt.Sprint(y.PrefixBlocks) {
		t.Error("escapes change the prefix blocks")
	}
	ReadRequest(y, "/v1/chat/completions", []byte(body), NewHasher([]byte("other")))
	if x.PrefixBlocks[0] == y.PrefixBlocks[0] {
		t.Error("another key gives the same blocks")
	}
	if err := ReadRequest(y, "/v1/completions", []byte(`{"prompt":[1,2,3],"n":2`), nil); err == nil || y.InputTokens.V != 3 {
		t.Errorf("cut body: %v %v", err, y.InputTokens)
	}
}

func BenchmarkEvent(b *testing.B) {
	ev := []byte(`data: {"id":"chatcmpl-97cea5a9f6d26651","object":"chat.completion.chunk","created":1779162158,"model":"Qwen3.6-0.8B","choices":[{"index":0,"delta":{"content":"**"},"logprobs":null,"finish_reason":null,"token_ids":null}]}` + "\n\n")
	b.SetBytes(int64(len(ev)))
	b.ReportAllocs()
	x := &formats.Exchange{Endpoint: formats.EndpointChat}
	r := NewResponse(x, 200, sse)
	for i := 0; b.Loop(); i++ {
		r.Write(ev, int64(i)*1000, 0)
		if len(x.EventGapUS) > 1000 {
			x.EventGapUS, x.EventTokens, x.EventChoice, x.EventFlags = x.EventGapUS[:0], x.EventTokens[:0], x.EventChoice[:0], x.EventFlags[:0]
		}
	}
}
