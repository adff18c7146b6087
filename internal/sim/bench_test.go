package sim

import (
	"bytes"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/shadowtape/shadowtape/internal/engine"
)

// BenchmarkStreams serves 200 streams of 10 ms a token over loopback and reports the process's CPU time per token, client included.
func BenchmarkStreams(b *testing.B) {
	p, err := engine.FindProfile("instant")
	if err != nil {
		b.Fatal(err)
	}
	s, err := New(Options{Profile: p, Fixed: true, TTFT: 50 * time.Millisecond, ITL: 10 * time.Millisecond, Precise: true})
	if err != nil {
		b.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	go s.Serve(l)
	defer s.Close()
	const streams, tokens = 200, 100
	before := cpuTime(b)
	n := 0
	for b.Loop() {
		var wg sync.WaitGroup
		for i := range streams {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * 10 * time.Millisecond / streams)
				c, err := net.Dial("tcp", l.Addr().String())
				if err != nil {
					b.Error(err)
					return
				}
				defer c.Close()
				post(c, "/v1/completions", "", `{"prompt":[1,2,3],"stream":true,"ignore_eos":true,"max_tokens":100}`)
				buf := make([]byte, 4096)
				for {
					k, err := c.Read(buf)
					if err != nil {
						b.Error(err)
						return
					}
					if bytes.HasSuffix(buf[:k], []byte("[DONE]\n\n\r\n0\r\n\r\n")) {
						return
					}
				}
			})
		}
		wg.Wait()
		n += streams * tokens
	}
	b.ReportMetric(float64((cpuTime(b)-before).Nanoseconds())/float64(n), "cpu-ns/token")
}

func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
