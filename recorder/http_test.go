package recorder

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/zstd"

	"github.com/shadowtape/shadowtape/formats"
)

// step is bytes of one direction, or its end, at a time in milliseconds.
type step struct {
	dir  int
	at   int64
	text string
	end  string // "", "fin" or "rst"
}

func sends(at int64, text string) step   { return step{dir: fromClient, at: at, text: text} }
func replies(at int64, text string) step { return step{dir: fromServer, at: at, text: text} }

// converse drives a dialogue by hand and returns its rows.
func converse(t testing.TB, steps ...step) ([]*formats.Exchange, SourceStats) {
	t.Helper()
	var xs []*formats.Exchange
	e := testEngine(&xs)
	d := newDialogue(e, "server", true, formats.ClockPacket)
	for _, st := range steps {
		if st.text != "" {
			d.data(st.dir, []byte(st.text), st.at*1e6, 0)
		}
		switch st.end {
		case "fin":
			d.close(st.dir, closedFIN, st.at*1e6)
		case "rst":
			d.close(st.dir, closedRST, st.at*1e6)
		}
	}
	d.close(fromServer, closedCut, 1e12)
	for _, x := range d.over {
		e.emitExchange(x)
	}
	checkEmpty(e)
	return xs, e.stats
}

const (
	ask       = `{"model":"m","messages":[{"role":"user","content":"x"}]}`
	token     = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"x\"},\"finish_reason\":null}]}\n\n"
	lastToken = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"x\"},\"finish_reason\":\"stop\"}]}\n\n"
	plain     = `{"choices":[{"index":0,"message":{"content":"x"},"finish_reason":"stop"}],"usage":{"prompt_tokens":5,"completion_tokens":1}}`
)

func question() string { return string(post("/v1/chat/completions", "id", ask)) }

func answerOf(body string, headers ...string) string {
	return "HTTP/1.1 200 OK\r\n" + strings.Join(append(headers, ""), "\r\n") + fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body)
}

// TestHTTP reads what RFC 9112 allows and what servers do.
func TestHTTP(t *testing.T) {
	stream := streamHead + string(httpChunk(token)) + string(httpChunk(lastToken)) + "0\r\n\r\n"
	for _, tc := range []struct {
		name  string
		steps []step
		want  string // per row: status, end reason, error, input tokens, events, header time, end time in ms
	}{
		{"plain", []step{sends(1, question()), replies(5, answerOf(plain))}, "200 complete  5 0 4 4"},
		{"stream", []step{sends(1, question()), replies(3, streamHead), replies(5, string(httpChunk(token))), replies(7, string(httpChunk(lastToken))+"0\r\n\r\n")}, "200 complete  - 2 2 6"},
		{"no reason phrase", []step{sends(1, question()), replies(5, strings.Replace(answerOf(plain), " OK", "", 1))}, "200 complete  5 0 4 4"},
		{"empty reason phrase", []step{sends(1, question()), replies(5, strings.Replace(answerOf(plain), " OK", " ", 1))}, "200 complete  5 0 4 4"},
		{"bare line feeds", []step{sends(1, strings.ReplaceAll(question(), "\r\n", "\n")), replies(5, strings.ReplaceAll(answerOf(plain), "\r\n", "\n"))}, "200 complete  5 0 4 4"},
		{"interim responses", []step{sends(1, question()), replies(2, "HTTP/1.1 100 Continue\r\n\r\n"), replies(3, "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"), replies(5, answerOf(plain))}, "200 complete  5 0 4 4"},
		{"interim and final in one", []step{sends(1, question()), replies(5, "HTTP/1.1 100\r\n\r\n"+answerOf(plain))}, "200 complete  5 0 4 4"},
		{"expect", []step{sends(1, strings.Replace(question(), "\r\n", "\r\nExpect: 100-continue\r\n", 1)[:150]), replies(2, "HTTP/1.1 100 Continue\r\n\r\n"),
			sends(3, strings.Replace(question(), "\r\n", "\r\nExpect: 100-continue\r\n", 1)[150:]), replies(5, answerOf(plain))}, "200 complete  5 0 4 4"},
		{"obsolete folding", []step{sends(1, strings.Replace(question(), "\r\n", "\r\nX-Long: a\r\n b\r\n\tc\r\n", 1)), replies(5, answerOf(plain, "X: a\r\n  b"))}, "200 complete  5 0 4 4"},
		{"chunk extensions and trailers", []step{sends(1, question()), replies(5, streamHead+strings.Replace(string(httpChunk(token)), "\r\n", ";a=b;c=\"d\"\r\n", 1)+strings.Replace(string(httpChunk(lastToken)), "\r\n", " \r\n", 1)+"000;x\r\nTrailer: a\r\nOther: b\r\n\r\n"),
			sends(6, question()), replies(7, answerOf(plain))}, "200 complete  - 2 4 4\n200 complete  5 0 1 1"},
		{"upper-case chunk size", []step{sends(1, question()), replies(5, streamHead+fmt.Sprintf("%X\r\n%s\r\n0\r\n\r\n", len(lastToken), lastToken))}, "200 complete  - 1 4 4"},
		{"chunks across events", []step{sends(1, question()), replies(5, streamHead+string(httpChunk(token[:20]))), replies(6, string(httpChunk(token[20:]+lastToken[:9]))), replies(7, string(httpChunk(lastToken[9:]))+"0\r\n\r\n")}, "200 complete  - 2 4 6"},
		{"request in chunks", []step{sends(1, "POST /v1/chat/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"+string(httpChunk(ask[:9]))), sends(2, string(httpChunk(ask[9:]))+"0\r\n\r\n"), replies(5, answerOf(plain))}, "200 complete  5 0 4 4"},
		{"empty lines between requests", []step{sends(1, question()), replies(2, answerOf(plain)), sends(3, "\r\n\r\n"+question()), replies(5, answerOf(plain))}, "200 complete  5 0 1 1\n200 complete  5 0 2 2"},
		{"pipelined", []step{sends(1, question()+question()+question()), replies(5, answerOf(plain)+stream), replies(7, answerOf(plain))}, "200 complete  5 0 4 4\n200 complete  - 2 4 4\n200 complete  5 0 6 6"},
		{"head and no content", []step{sends(1, "HEAD /v1/chat/completions HTTP/1.1\r\n\r\n"), replies(2, "HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n"), sends(3, "POST /x HTTP/1.1\r\nContent-Length: 0\r\n\r\n"), replies(4, "HTTP/1.1 204 No Content\r\n\r\n"),
			sends(5, "GET /y HTTP/1.1\r\n\r\n"), replies(6, "HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n"), sends(7, question()), replies(9, answerOf(plain))}, "200 complete  5 0 2 2"},
		{"to the end of the connection", []step{sends(1, question()), replies(3, "HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"+token), replies(5, lastToken), {dir: fromServer, at: 6, end: "fin"}}, "200 complete  - 2 2 5"},
		{"absolute form", []step{sends(1, strings.Replace(question(), "/v1", "http://api.example:80/v1", 1)), replies(5, answerOf(plain))}, "200 complete  5 0 4 4"},
		{"answer before the question's end", []step{sends(1, question()[:140]), replies(5, strings.Replace(answerOf(plain), "200 OK", "413 Too Large", 1))}, "413 complete http_413 5 0 4 4"},
		{"client goes away by FIN", []step{sends(1, question()), replies(3, streamHead+string(httpChunk(token))), {dir: fromClient, at: 4, end: "fin"}, replies(5, string(httpChunk(token))), {dir: fromServer, at: 6, end: "fin"}}, "200 client_abort  - 2 2 4"},
		{"client goes away by RST", []step{sends(1, question()), replies(3, streamHead+string(httpChunk(token))), {dir: fromClient, at: 4, end: "rst"}}, "200 client_abort  - 1 2 3"},
		{"client closes its half and waits", []step{sends(1, question()), {dir: fromClient, at: 2, end: "fin"}, replies(5, answerOf(plain)), {dir: fromServer, at: 6, end: "fin"}}, "200 complete  5 0 4 4"},
		{"client goes away at [DONE]", []step{sends(1, question()), replies(3, streamHead+string(httpChunk(lastToken+"data: [DONE]\n\n"))), {dir: fromClient, at: 4, end: "rst"}}, "200 complete  - 1 2 2"},
		{"server goes away", []step{sends(1, question()), replies(3, streamHead+string(httpChunk(token))), {dir: fromServer, at: 4, end: "fin"}}, "200 server_abort incomplete_stream - 1 2 3"},
		{"server resets", []step{sends(1, question()), {dir: fromServer, at: 4, end: "rst"}}, "0 server_abort reset - 0 - 3"},
		{"server closes before it answers", []step{sends(1, question()), {dir: fromServer, at: 4, end: "fin"}}, "0 server_abort reset - 0 - 3"},
		{"unstreamed answer cut", []step{sends(1, question()), replies(3, answerOf(plain)[:60]), {dir: fromServer, at: 4, end: "fin"}}, "200 server_abort reset - 0 2 3"},
		{"answer that is no HTTP", []step{sends(1, question()), replies(5, "EHLO example\r\n"), replies(6, answerOf(plain))}, "0 server_abort protocol - 0 - 4"},
		{"chunks that are none", []step{sends(1, question()), replies(5, streamHead+string(httpChunk(token))), replies(6, token), sends(7, question()), replies(8, answerOf(plain))}, "200 server_abort protocol - 1 4 5"},
		{"upgrade", []step{sends(1, strings.Replace(question(), "\r\n", "\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n", 1)), replies(5, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n\x81\x05hello")}, ""},
		{"upgrade that nobody asked for", []step{sends(1, question()), replies(5, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n\x81\x05hello")}, "0 server_abort protocol - 0 - 4"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			xs, _ := converse(t, tc.steps...)
			var rows []string
			ms := func(n formats.Null[int64]) string {
				if !n.Valid {
					return "-"
				}
				return fmt.Sprint(n.V / 1e6)
			}
			for _, x := range xs {
				in := "-"
				if x.InputTokens.Valid {
					in = fmt.Sprint(x.InputTokens.V)
				}
				rows = append(rows, fmt.Sprintf("%d %s %s %s %d %s %s", x.Status.V, x.EndReason, x.ErrorKind, in, len(x.EventGapUS), ms(x.ResponseHeaderNS), ms(x.EndNS)))
			}
			if got := strings.Join(rows, "\n"); got != tc.want {
				t.Errorf("got\n%s\nwant\n%s", got, tc.want)
			}
		})
	}
}

// flusher is a compressor that can write out what it holds.
type flusher interface {
	io.WriteCloser
	Flush() error
}

// TestContentCodings streams compressed events, each flushed: a token's time is that of the bytes that let it be decoded.
func TestContentCodings(t *testing.T) {
	for _, tc := range []struct {
		name string
		make func(io.Writer) flusher
	}{
		{"gzip", func(w io.Writer) flusher { return gzip.NewWriter(w) }},
		{"deflate", func(w io.Writer) flusher { return zlib.NewWriter(w) }},
		{"deflate", func(w io.Writer) flusher { f, _ := flate.NewWriter(w, 9); return f }}, // raw, as some servers send it
		{"br", func(w io.Writer) flusher { return brotli.NewWriter(w) }},
		{"zstd", func(w io.Writer) flusher { z, _ := zstd.NewWriter(w, zstd.WithEncoderConcurrency(1)); return z }},
		{"identity", func(w io.Writer) flusher { return nopFlusher{w} }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var b bytes.Buffer
			z := tc.make(&b)
			steps := []step{sends(0, question()), replies(10, strings.Replace(streamHead, "\r\n\r\n", "\r\nContent-Encoding: "+tc.name+"\r\n\r\n", 1))}
			size := 0
			for i, ev := range []string{token, token, lastToken, "data: [DONE]\n\n"} {
				io.WriteString(z, ev)
				z.Flush()
				size += b.Len()
				steps = append(steps, replies(int64(20+10*i), string(httpChunk(b.String()))))
				b.Reset()
			}
			z.Close()
			size += b.Len()
			if b.Len() > 0 {
				steps = append(steps, replies(60, string(httpChunk(b.String()))))
			}
			steps = append(steps, replies(70, "0\r\n\r\n"))
			xs, st := converse(t, steps...)
			if len(xs) != 1 || xs[0].ErrorKind != "" || xs[0].FirstTokenNS.V != 20e6 || xs[0].LastTokenNS.V != 40e6 || fmt.Sprint(xs[0].EventGapUS) != "[0 10000 10000]" || xs[0].ResponseBytes.V != int64(size) || len(st.Notes) != 0 {
				t.Errorf("%v %+v", st.Notes, xs)
			}
		})
	}
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	io.WriteString(z, ask)
	z.Close()
	req := fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%s", b.Len(), b.String())
	if xs, _ := converse(t, sends(0, req), replies(1, answerOf(plain))); len(xs) != 1 || xs[0].MessageCount.V != 1 || xs[0].RequestBytes.V != int64(b.Len()) {
		t.Errorf("compressed request: %+v", xs)
	}
	// What cannot be decoded is counted, and its row says that nothing is known of it.
	for _, enc := range []string{"gzip", "br", "zstd", "deflate", "made-up"} {
		xs, st := converse(t, sends(0, question()), replies(1, answerOf("this is not compressed at all", "Content-Encoding: "+enc)))
		if len(xs) != 1 || xs[0].OutputTokens.Valid || xs[0].FirstTokenNS.Valid || st.Notes["response_undecodable"] != 1 || xs[0].ErrorKind == "" {
			t.Errorf("%s: %v %+v", enc, st.Notes, xs[0])
		}
	}
}

type nopFlusher struct{ io.Writer }

func (nopFlusher) Flush() error { return nil }
func (nopFlusher) Close() error { return nil }

// TestNotHTTP recognizes what it cannot read and counts it.
func TestNotHTTP(t *testing.T) {
	for name, tc := range map[string]struct{ client, server, note string }{
		"tls":      {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "\x16\x03\x03\x00z", "tls_connections"},
		"http2":    {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "\x00\x00\x00\x04", "http2_connections"},
		"redis":    {"*1\r\n$4\r\nPING\r\n", "+PONG\r\n", "not_http_connections"},
		"conflict": {"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello", "HTTP/1.1 400 Bad Request\r\n\r\n", "protocol_errors"},
	} {
		xs, st := converse(t, sends(1, tc.client), replies(2, tc.server), sends(3, tc.client), step{dir: fromServer, at: 4, end: "fin"})
		if len(xs) != 0 || st.Notes[tc.note] != 1 {
			t.Errorf("%s: %d rows, %v", name, len(xs), st.Notes)
		}
	}
}
