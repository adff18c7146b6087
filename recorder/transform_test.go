package recorder

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/shadowtape/shadowtape/formats"
)

// retold is the real capture told in another dialect: the same packets at the same times, with other words in them. It is given, for each
// packet of the server, its HTTP head or how many content events it holds, whether it holds the last of them, and whether it ends the stream.
func retold(t *testing.T, path, body string, say func(head bool, contents int, last, done bool) string) []frame {
	t.Helper()
	var out []frame
	k := newTalk(&out, 1)
	k.noAcks = true
	frames := readFrames(t, "testdata/openai_stream_usage.pcap")
	asked := false
	for _, f := range frames {
		off := 34 + int(f.data[46]>>4)*4
		p := string(f.data[off:])
		fromServer := binary.BigEndian.Uint16(f.data[34:]) == 8000
		switch {
		case f.data[47]&tcpSYN != 0 && !fromServer:
			k.packet(f.at, client, tcpSYN, nil)
		case f.data[47]&tcpSYN != 0:
			k.packet(f.at, server, tcpSYN|tcpACK, nil)
		case f.data[47]&tcpFIN != 0 && fromServer:
			k.packet(f.at, server, tcpFIN|tcpACK, nil)
		case f.data[47]&tcpFIN != 0:
			k.packet(f.at, client, tcpFIN|tcpACK, nil)
		case p == "" && !fromServer:
			k.packet(f.at, client, tcpACK, nil)
		case p == "":
		case !asked:
			asked = true
			k.packet(f.at, client, tcpACK|tcpPSH, post(path, "id", body))
		default:
			n := strings.Count(p, `"delta":{"content":`)
			said := say(strings.HasPrefix(p, "HTTP/"), n, strings.Contains(p, `"finish_reason":"length"`), strings.Contains(p, "[DONE]"))
			if said != "" {
				k.packet(f.at, server, tcpACK|tcpPSH, []byte(said))
			}
		}
	}
	return out
}

// TestRetold: first token, last token, gaps and counts do not depend on the dialect in which they were streamed.
func TestRetold(t *testing.T) {
	chunks := func(head string, event func(last bool) string, before, after string) func(bool, int, bool, bool) string {
		first := true
		return func(isHead bool, n int, last, done bool) string {
			if isHead {
				return head
			}
			s := ""
			if first {
				s, first = string(httpChunk(before)), false
			}
			for i := range n {
				s += string(httpChunk(event(last && i == n-1)))
			}
			if done {
				s += string(httpChunk(after)) + "0\r\n\r\n"
			}
			return s
		}
	}
	chat := func(delta string) func(bool) string {
		return func(last bool) string {
			finish := "null"
			if last {
				finish = `"length"`
			}
			return `data: {"choices":[{"index":0,"delta":` + delta + `,"finish_reason":` + finish + "}]}\n\n"
		}
	}
	usage := "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":18,\"completion_tokens\":512,\"total_tokens\":530}}\n\ndata: [DONE]\n\n"
	role := "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}]}\n\n"
	ask := func(more string) string {
		return `{"model":"m","stream":true,"messages":[{"role":"user","content":"x"}],"max_tokens":512` + more + `}`
	}
	var z bytes.Buffer
	gz := gzip.NewWriter(&z)
	flushed := func(s string) string {
		gz.Write([]byte(s))
		gz.Flush()
		defer z.Reset()
		return string(httpChunk(z.String()))
	}
	compressed := func(isHead bool, n int, last, done bool) string {
		if isHead {
			return strings.Replace(streamHead, "\r\n\r\n", "\r\nContent-Encoding: gzip\r\n\r\n", 1)
		}
		s := ""
		for i := range n {
			s += chat(`{"content":"x"}`)(last && i == n-1)
		}
		if !done {
			return flushed(s)
		}
		s = flushed(s + usage)
		gz.Close()
		return s + string(httpChunk(z.String())) + "0\r\n\r\n"
	}
	lines := strings.Replace(streamHead, "text/event-stream; charset=utf-8", "application/x-ndjson", 1)
	for _, c := range []struct {
		name, path, body string
		say              func(bool, int, bool, bool) string
		content          bool // answer content, not reasoning
	}{
		{"chat", "/v1/chat/completions", ask(""), chunks(streamHead, chat(`{"content":"x"}`), role, usage), true},
		{"reasoning", "/v1/chat/completions", ask(""), chunks(streamHead, chat(`{"reasoning":"x"}`), role, usage), false},
		{"reasoning_content", "/v1/chat/completions", ask(""), chunks(streamHead, chat(`{"reasoning_content":"x","content":null}`), role, usage), false},
		{"tools", "/v1/chat/completions", ask(`,"tools":[{"type":"function"}]`), chunks(streamHead, chat(`{"tool_calls":[{"index":0,"function":{"arguments":"x"}}]}`), role, usage), true},
		{"gzip", "/v1/chat/completions", ask(""), compressed, true},
		{"completions", "/v1/completions", `{"model":"m","stream":true,"prompt":"x","max_tokens":512}`, chunks(streamHead, func(last bool) string {
			return strings.Replace(chat(`0`)(last), `"delta":0`, `"text":"x"`, 1)
		}, ": ping\n\n", usage), true},
		{"responses", "/v1/responses", `{"model":"m","stream":true,"input":"x","max_output_tokens":512}`, chunks(streamHead, func(bool) string {
			return "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"x\"}\n\n"
		}, "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"status\":\"in_progress\"}}\n\n",
			"event: response.incomplete\ndata: {\"type\":\"response.incomplete\",\"response\":{\"status\":\"incomplete\",\"incomplete_details\":{\"reason\":\"max_output_tokens\"},\"usage\":{\"input_tokens\":18,\"output_tokens\":512}}}\n\n"), true},
		{"messages", "/v1/messages", ask(""), chunks(streamHead, func(bool) string {
			return "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"x\"}}\n\n"
		}, "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":18,\"output_tokens\":1}}}\n\n",
			"event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"max_tokens\"},\"usage\":{\"output_tokens\":512}}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"), true},
		{"ollama", "/api/chat", ask(""), chunks(lines, func(bool) string { return `{"message":{"role":"assistant","content":"x"},"done":false}` + "\n" },
			`{"message":{"role":"assistant","content":""},"done":false}`+"\n", `{"message":{"content":""},"done":true,"done_reason":"length","prompt_eval_count":18,"eval_count":512}`+"\n"), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			x, st := one(t, retold(t, c.path, c.body, c.say))
			near(t, "first token", x.FirstTokenNS.V, 30.810)
			near(t, "last token", x.LastTokenNS.V, 2348.341)
			if x.InputTokens.V != 18 || x.OutputTokens.V != 512 || len(x.EventGapUS) != 512 || x.FinishReason != "length" || x.EndReason != formats.EndComplete || x.ErrorKind != "" || x.MaxTokens.V != 512 {
				t.Fatalf("%+v %+v", st, x)
			}
			gaps := slices.Sorted(slices.Values(x.EventGapUS[1:]))
			if math.Abs(float64(gaps[255])/1000-4.542) > 0.01 || fmt.Sprint(x.EventTokens) != fmt.Sprint(slices.Repeat([]int32{1}, 512)) {
				t.Errorf("median gap %d us, tokens %v", gaps[255], x.EventTokens[:9])
			}
			if x.FirstContentNS.Valid != c.content {
				t.Errorf("first content %v", x.FirstContentNS)
			}
		})
	}
}
