package client

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/shadowtape/shadowtape/formats"
)

// streaming answers each request of a listener's connections with n token events, a write each.
func streaming(b *testing.B, n int) (where string) {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { l.Close() })
	event := `data: {"id":"cmpl-1","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":"word","finish_reason":null}]}` + "\n\n"
	last := strings.Replace(event, "null", `"stop"`, 1) + "data: [DONE]\n\n"
	chunk := func(s string) []byte { return fmt.Appendf(nil, "%x\r\n%s\r\n", len(s), s) }
	head, each, end := []byte("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"), chunk(event), append(chunk(last), "0\r\n\r\n"...)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				r := bufio.NewReader(c)
				for {
					q, err := http.ReadRequest(r)
					if err != nil {
						return
					}
					io.Copy(io.Discard, q.Body)
					c.Write(head)
					for range n - 1 {
						if _, err := c.Write(each); err != nil {
							return
						}
					}
					c.Write(end)
				}
			}()
		}
	}()
	return "http://" + l.Addr().String()
}

// BenchmarkExchange is what an exchange of 200 token events costs over a socket, the server's writes included.
func BenchmarkExchange(b *testing.B) {
	c, err := New(Options{Targets: []string{streaming(b, 200)}})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	t := c.Targets()[0]
	clk := NewClock(time.Now())
	body := []byte(`{"model":"m","prompt":[1,2,3],"stream":true}`)
	b.ReportAllocs()
	for b.Loop() {
		x := &formats.Exchange{Endpoint: formats.EndpointCompletions, Stream: formats.Of(true)}
		w := t.Wire(formats.EndpointCompletions, "st-1", body)
		t.Exchange(context.Background(), x, &w, clk, clk.Now(), Cut{}, func(int64) {})
		if x.ErrorKind != "" || len(x.EventGapUS) != 200 {
			b.Fatalf("%s, %d events", x.ErrorKind, len(x.EventGapUS))
		}
	}
}
