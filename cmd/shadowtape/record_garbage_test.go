package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// garbage is what scanners, broken clients and attackers send to a port.
func garbage() map[string][]byte {
	r := rand.New(rand.NewPCG(3, 4))
	noise := make([]byte, 1<<20)
	for i := range noise {
		noise[i] = byte(r.Uint32())
	}
	return map[string][]byte{
		"noise":                noise,
		"zeros":                make([]byte, 1<<20),
		"a TLS hello":          append([]byte{22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3}, noise[:600]...),
		"HTTP/2":               append([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), noise[:600]...),
		"a huge header":        []byte("POST /v1/chat/completions HTTP/1.1\r\nX: " + strings.Repeat("a", 4<<20)),
		"a million headers":    []byte("POST /v1/chat/completions HTTP/1.1\r\n" + strings.Repeat("A: b\r\n", 1<<20)),
		"a head that stops":    []byte("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Le"),
		"a body that stops":    []byte("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n{\"model\":"),
		"a length of nonsense": []byte("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n{}"),
		"two lengths":          []byte("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n{}"),
		"chunks of nonsense":   []byte("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n{}"),
		"deep JSON":            []byte("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 400000\r\n\r\n" + strings.Repeat("[", 400000)),
		"nothing":              nil,
	}
}

// throw sends bytes, drop by drop at the end, and reads what comes back until the other side or the clock ends it.
func throw(t *testing.T, base string, b []byte) {
	c, err := net.DialTimeout("tcp", strings.TrimPrefix(base, "http://"), 10*time.Second)
	if err != nil {
		t.Error(err)
		return
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Minute))
	go io.Copy(io.Discard, c)
	tail := b[max(0, len(b)-20):]
	if _, err := c.Write(b[:len(b)-len(tail)]); err != nil {
		return // it has had enough
	}
	for i := range tail {
		if _, err := c.Write(tail[i : i+1]); err != nil {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// TestGarbage throws what is no request at the sink and at the proxy, slowly and all at once, while real requests pass: these are all served and
// recorded, nothing else is, and everything is accounted for.
func TestGarbage(t *testing.T) {
	target, _ := startSim(t, "--ttft", "2ms", "--itl", "1ms")
	for _, mode := range []string{"sink", "proxy"} {
		t.Run(mode, func(t *testing.T) {
			args, status := []string{"--sink", "127.0.0.1:0"}, http.StatusAccepted
			if mode == "proxy" {
				args, status = []string{"--listen", "127.0.0.1:0", "--upstream", target}, http.StatusOK
			}
			s := startRecording(t, append(args, "-o", filepath.Join(t.TempDir(), "rec"), "--json", "--grace", "1s")...)
			var thrown sync.WaitGroup
			for _, b := range garbage() {
				thrown.Go(func() { throw(t, s.base, b) })
			}
			// Connections that say nothing more while the others work.
			for range 50 {
				c, err := net.Dial("tcp", strings.TrimPrefix(s.base, "http://"))
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				io.WriteString(c, "POST /v1/chat/comp")
			}
			const n = 30
			for i := range n {
				resp, err := http.Post(s.base+"/v1/chat/completions", "application/json", strings.NewReader(fmt.Sprintf(`{"model":"m","max_tokens":2,"messages":[{"role":"user","content":"question %d"}]}`, i)))
				if err != nil {
					t.Fatal(err)
				}
				io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				if resp.StatusCode != status {
					t.Errorf("request %d: %s", i, resp.Status)
				}
			}
			thrown.Wait()
			code, out, errs := s.end()
			var a recordAnswer
			if err := json.Unmarshal([]byte(out), &a); err != nil || code != exitGood || strings.Contains(errs, "panic") {
				t.Fatalf("exit %d, %v\n%s%s", code, err, out, errs)
			}
			if a.Seen != a.Filtered+a.Dropped+a.Written || a.Written < n || a.Written > n+8 || a.Reasons["dropped_parser_panic"] != 0 { // some of the garbage has a whole head
				t.Errorf("%+v", a)
			}
			t.Logf("%+v", a)
		})
	}
}
