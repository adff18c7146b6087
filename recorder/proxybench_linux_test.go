package recorder

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/recorder/proxy"
)

// BenchmarkProxyEvent is the cost of one event of a stream on its way through the proxy, the peers' own work included; "read along" adds the
// parser's.
func BenchmarkProxyEvent(b *testing.B) {
	for _, follow := range []bool{false, true} {
		b.Run(map[bool]string{false: "pass", true: "read along"}[follow], func(b *testing.B) {
			up, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				b.Fatal(err)
			}
			defer up.Close()
			event := `data: {"id":"c","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[{"index":0,"delta":{"content":" word"},"finish_reason":null}]}` + "\n\n"
			chunk := []byte(fmt.Sprintf("%x\r\n%s\r\n", len(event), event))
			go func() {
				c, err := up.Accept()
				if err != nil {
					return
				}
				defer c.Close()
				r := bufio.NewReader(c)
				for range 5 {
					r.ReadString('\n')
				}
				io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
				one := make([]byte, 1)
				for {
					if _, err := io.ReadFull(r, one); err != nil {
						return
					}
					c.Write(chunk)
				}
			}()
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				b.Fatal(err)
			}
			p := &Proxy{Listener: l, Options: proxy.Options{Upstream: up.Addr().String()}, Key: liveKey}
			run := func() { p.Run(b.Context(), Filter{}, func(*formats.Exchange) {}) }
			if !follow {
				bare, err := proxy.New(p.Options)
				if err != nil {
					b.Fatal(err)
				}
				run = func() { bare.Serve(b.Context(), l) }
			}
			go run()
			c, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			io.WriteString(c, "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nX: \r\n\r\n")
			r := bufio.NewReader(c)
			for range 4 {
				r.ReadString('\n')
			}
			in := make([]byte, len(chunk))
			cpu := cpuTime()
			for b.Loop() {
				c.Write([]byte("x")) // the peer's cue: an answer to each
				if _, err := io.ReadFull(r, in); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64((cpuTime()-cpu).Nanoseconds())/float64(b.N), "cpu-ns/op")
		})
	}
}
