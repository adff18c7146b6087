package client

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// However a chunked body is cut into reads, its bytes come out the same, and what follows it is left alone.
func TestChunkedAtEveryCut(t *testing.T) {
	const Wire = "5;ext=1\r\nhello\r\n1\r\n \r\n00c\r\n world\r\nabcd\r\n0\r\nTrailer: x\r\n\r\nHTTP/1.1"
	const want = "hello  world\r\nabcd"
	for cut := range len(Wire) {
		b := newBody(head{chunked: true, length: -1}, 1<<20)
		var got []byte
		used := 0
		for _, part := range []string{Wire[:cut], Wire[cut:]} {
			p := []byte(part)
			for len(p) > 0 && !b.done {
				out, n, err := b.decode(p)
				if err != nil {
					t.Fatalf("cut at %d: %v", cut, err)
				}
				got = append(got, out...)
				used += n
				p = p[n:]
			}
		}
		if string(got) != want || !b.done || Wire[used:] != "HTTP/1.1" || b.total != int64(len(want)) {
			t.Fatalf("cut at %d: %q, done %t, rest %q", cut, got, b.done, Wire[used:])
		}
	}
}

func TestParseHead(t *testing.T) {
	for _, c := range []struct {
		in   string
		want head
		bad  bool
	}{
		{in: "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", want: head{status: 200, length: 5, keepAlive: true}},
		{in: "HTTP/1.1 200\ncontent-type: a; b=c\ntransfer-encoding: gzip, Chunked\ncontent-length: 7\n\n", want: head{status: 200, length: -1, chunked: true, contentType: "a; b=c", keepAlive: true}},
		{in: "HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 0\r\n\r\n", want: head{status: 200, keepAlive: true}},
		{in: "HTTP/1.0 200 OK\r\n\r\n", want: head{status: 200, length: -1}},
		{in: "HTTP/1.1 200 OK\r\n\r\n", want: head{status: 200, length: -1}},
		{in: "HTTP/1.1 204 No\r\nContent-Length: 9\r\n\r\n", want: head{status: 204, keepAlive: true}},
		{in: "HTTP/1.1 503 No\r\nConnection: close\r\nRetry-After: 2\r\nKeep-Alive: max=3, timeout=7\r\nContent-Length: 1\r\n\r\n", want: head{status: 503, length: 1, idleSeconds: 7}},
		{in: "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", bad: true},
		{in: "HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n", bad: true},
		{in: "HTTP/2 200 OK\r\n\r\n", bad: true},
		{in: "HTTP/1.1 abc\r\n\r\n", bad: true},
		{in: "\r\n\r\n", bad: true},
	} {
		h, err := parseHead([]byte(c.in))
		if (err != nil) != c.bad || !c.bad && h != c.want {
			t.Errorf("%q: %+v, %v", c.in, h, err)
		}
	}
}

// FuzzAnswer feeds arbitrary bytes as an answer, cut in two. What net/http reads the same way must come out the same.
func FuzzAnswer(f *testing.F) {
	f.Add([]byte("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"), uint16(50))
	f.Add([]byte("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc"), uint16(9))
	f.Add([]byte("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n\r\nabc"), uint16(30))
	f.Add([]byte("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n7fffffffffffffff\r\nabc"), uint16(60))
	f.Fuzz(func(t *testing.T, in []byte, cut uint16) {
		end := headEnd(in)
		if end == 0 {
			return
		}
		h, err := parseHead(in[:end])
		if err != nil || h.status < 200 {
			return
		}
		b := newBody(h, 1<<20)
		var got []byte
		rest := in[end:]
		k := min(int(cut), len(rest))
		var failed error
		for _, part := range [][]byte{rest[:k], rest[k:]} {
			p := bytes.Clone(part)
			for len(p) > 0 && !b.done && failed == nil {
				out, n, err := b.decode(p)
				if n == 0 && err == nil {
					t.Fatal("no progress")
				}
				got = append(got, out...)
				p, failed = p[n:], err
			}
		}
		res, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(in)), httptest.NewRequest("POST", "/", nil))
		if err != nil || failed != nil || !b.done || res.StatusCode < 200 {
			return
		}
		want, err := io.ReadAll(res.Body)
		if err == nil && len(res.TransferEncoding) <= 1 && !strings.Contains(string(in[:end]), "\t") && string(want) != string(got) {
			t.Errorf("%q: %q, net/http reads %q", in, got, want)
		}
	})
}
