package proxy

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// patience is how long something may take that must come: far longer than on any machine, since running out of it is a failure.
const patience = 2 * time.Minute

// start runs a proxy on a loopback port. stop ends its context and waits for Serve.
func start(t *testing.T, o Options) (p *Proxy, address string, stop func()) {
	t.Helper()
	p, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address = l.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Serve(ctx, l) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				t.Errorf("Serve: %v", err)
			}
		})
	}
	t.Cleanup(stop)
	return p, address, stop
}

// upstream runs f on each connection that it accepts.
func upstream(t *testing.T, f func(*net.TCPConn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { defer c.Close(); f(c.(*net.TCPConn)) }()
		}
	}()
	return l.Addr().String()
}

func dial(t *testing.T, address string) *net.TCPConn {
	t.Helper()
	c, err := net.DialTimeout("tcp", address, patience)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(patience))
	return c.(*net.TCPConn)
}

// note is one thing that a consumer was told.
type note struct {
	kind string
	side Side
	at   int64
	data string
	n    int64
}

// notebook is a consumer that writes down everything.
type notebook struct {
	mu     sync.Mutex
	notes  []note
	isBusy atomic.Bool
	head   atomic.Int64
}

func (b *notebook) add(n note) { b.mu.Lock(); defer b.mu.Unlock(); b.notes = append(b.notes, n) }

func (b *notebook) Bytes(s Side, at int64, p []byte) {
	b.add(note{kind: "bytes", side: s, at: at, data: string(p)})
}
func (b *notebook) Lost(s Side, at, n int64) { b.add(note{kind: "lost", side: s, at: at, n: n}) }
func (b *notebook) End(s Side, at int64, reset bool) {
	kind := "end"
	if reset {
		kind = "reset"
	}
	b.add(note{kind: kind, side: s, at: at})
}
func (b *notebook) Close(at int64) { b.add(note{kind: "close", at: at}) }
func (b *notebook) Busy() bool     { return b.isBusy.Load() }
func (b *notebook) Heading() int64 { return b.head.Load() }

func (b *notebook) all() []note {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]note(nil), b.notes...)
}

func (b *notebook) text(s Side) string {
	var out strings.Builder
	for _, n := range b.all() {
		if n.side == s {
			out.WriteString(n.data)
		}
	}
	return out.String()
}

func (b *notebook) count(kind string) (c int) {
	for _, n := range b.all() {
		if n.kind == kind {
			c++
		}
	}
	return c
}

func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !f(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s did not come true", what)
		}
	}
}

func randomBytes(seed uint64, n int) []byte {
	r := rand.New(rand.NewPCG(seed, 1))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

func TestBytesUnchanged(t *testing.T) {
	question, answer := randomBytes(1, 3<<20), randomBytes(2, 5<<20)
	got := make(chan []byte, 1)
	up := upstream(t, func(c *net.TCPConn) {
		written := make(chan struct{})
		go func() { defer close(written); c.Write(answer) }()
		b, _ := io.ReadAll(c)
		got <- b
		<-written // returning closes the connection
	})
	book := &notebook{}
	_, address, stop := start(t, Options{Upstream: up, Follow: func(Connection) Consumer { return book }})
	c := dial(t, address)
	go func() { c.Write(question); c.CloseWrite() }()
	back := make([]byte, len(answer))
	if _, err := io.ReadFull(c, back); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(back, answer) || !bytes.Equal(<-got, question) {
		t.Error("bytes were changed")
	}
	c.Close()
	stop()
	if book.text(FromClient) != string(question) || book.text(FromServer) != string(answer) {
		t.Error("the consumer saw other bytes than the peers")
	}
	if book.count("lost") != 0 || book.count("close") != 1 {
		t.Errorf("lost %d, close %d", book.count("lost"), book.count("close"))
	}
	last := map[Side]int64{}
	for _, n := range book.all() {
		if n.at < last[n.side] {
			t.Fatal("stamps run backwards")
		}
		last[n.side] = n.at
	}
}

// TestLetter sends HTTP that clients and servers rarely write, and wants it through to the letter.
func TestLetter(t *testing.T) {
	exchanges := []struct{ name, question, answer string }{
		{"odd headers", "POST /v1/chat/completions?x=%20 HTTP/1.1\r\nHOST: a\r\nx-UPPER:  two  spaces \r\nX-Folded: a\r\n b\r\nContent-Length: 2\r\n\r\n{}",
			"HTTP/1.1 200\r\nsErVeR: x\r\nContent-Length: 0\r\n\r\n"},
		{"chunks, extensions and trailers", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2;a=b\r\n{}\r\n0\r\nX-Trailer: 1\r\n\r\n",
			"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: T\r\n\r\n1;x=\"y\"\r\nz\r\n000\r\nT: 2\r\n\r\n"},
		{"continue", "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\nx",
			"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n"},
		{"two at once", "GET /a HTTP/1.1\r\nHost: a\r\n\r\nGET /b HTTP/1.1\r\nHost: a\r\n\r\n",
			"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\naHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nb"},
		{"upgrade", "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: raw\r\n\r\n\x00\xff\x00raw",
			"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: raw\r\n\r\n\xff\x00\xffraw"},
		{"h2 with prior knowledge", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00", "\x00\x00\x00\x04\x00\x00\x00\x00\x00"},
		{"not HTTP", "\x16\x03\x01\x00", "\x15\x03"},
	}
	for _, x := range exchanges {
		t.Run(x.name, func(t *testing.T) {
			got := make(chan string, 1)
			up := upstream(t, func(c *net.TCPConn) {
				b := make([]byte, len(x.question))
				n, _ := io.ReadFull(c, b)
				got <- string(b[:n])
				io.WriteString(c, x.answer)
			})
			_, address, _ := start(t, Options{Upstream: up})
			c := dial(t, address)
			io.WriteString(c, x.question)
			if q := <-got; q != x.question {
				t.Errorf("the server got\n%q", q)
			}
			if a, err := io.ReadAll(c); string(a) != x.answer || err != nil {
				t.Errorf("the client got\n%q, %v", a, err)
			}
		})
	}
}

// TestFlushed: neither side says its next word before it has heard the other's.
func TestFlushed(t *testing.T) {
	const words = 200
	up := upstream(t, func(c *net.TCPConn) {
		b := make([]byte, 1)
		for range words {
			if _, err := io.ReadFull(c, b); err != nil {
				return
			}
			c.Write(b)
		}
	})
	_, address, _ := start(t, Options{Upstream: up})
	c := dial(t, address)
	for i := range words {
		b := []byte{byte(i)}
		c.Write(b)
		if _, err := io.ReadFull(c, b); err != nil || b[0] != byte(i) {
			t.Fatalf("word %d: %v, %v", i, b, err)
		}
	}
}

func TestClientAbortReachesUpstream(t *testing.T) {
	for name, abort := range map[string]func(*net.TCPConn){
		"close": func(c *net.TCPConn) { c.Close() },
		"reset": func(c *net.TCPConn) { c.SetLinger(0); c.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			gone := make(chan struct{})
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				io.WriteString(w, "data: 1\n\n")
				w.(http.Flusher).Flush()
				select {
				case <-r.Context().Done():
					close(gone)
				case <-time.After(patience):
				}
			}))
			defer server.Close()
			book := &notebook{}
			_, address, _ := start(t, Options{Upstream: server.Listener.Addr().String(), Follow: func(Connection) Consumer { return book }})
			c := dial(t, address)
			io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
			br := bufio.NewReader(c)
			for left := -1; left != 0; left-- { // to the end of the chunk: closing with something unread resets
				line, err := br.ReadString('\n')
				if err != nil {
					t.Fatal(err)
				}
				if line == "data: 1\n" {
					left = 3
				}
			}
			abort(c)
			select {
			case <-gone:
			case <-time.After(patience):
				t.Fatal("the server did not learn of it")
			}
			eventually(t, "the consumer learns that the connection is over", func() bool { return book.count("close") == 1 })
			kind := map[string]string{"close": "end", "reset": "reset"}[name]
			if book.count(kind) == 0 {
				t.Errorf("no %s was noted: %+v", kind, book.all())
			}
		})
	}
}

func TestUpstreamResetReachesClient(t *testing.T) {
	heard := make(chan struct{})
	up := upstream(t, func(c *net.TCPConn) {
		io.ReadFull(c, make([]byte, 1))
		c.Write([]byte("x"))
		<-heard // a reset overtakes what was not read
		c.SetLinger(0)
	})
	_, address, _ := start(t, Options{Upstream: up})
	c := dial(t, address)
	c.Write([]byte("q"))
	b := make([]byte, 1)
	if _, err := io.ReadFull(c, b); err != nil || b[0] != 'x' {
		t.Errorf("the client got %q, %v; want x", b, err)
	}
	close(heard)
	if b, err := io.ReadAll(c); !errors.Is(err, syscall.ECONNRESET) || len(b) != 0 {
		t.Errorf("the client got %q, %v; want a reset", b, err)
	}
}

func TestHalfClose(t *testing.T) {
	up := upstream(t, func(c *net.TCPConn) {
		b, _ := io.ReadAll(c)
		time.Sleep(50 * time.Millisecond)
		fmt.Fprintf(c, "got %d", len(b))
	})
	_, address, _ := start(t, Options{Upstream: up})
	c := dial(t, address)
	io.WriteString(c, "hello")
	c.CloseWrite()
	if b, err := io.ReadAll(c); string(b) != "got 5" || err != nil {
		t.Errorf("%q, %v", b, err)
	}
}

func TestUpstreamDown(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	p, address, _ := start(t, Options{Upstream: l.Addr().String()})
	resp, err := http.Post("http://"+address, "application/json", bytes.NewReader(make([]byte, 100_000)))
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if resp.StatusCode != http.StatusBadGateway || !strings.Contains(string(body), "cannot be reached") || err != nil {
		t.Errorf("%s %q %v", resp.Status, body, err)
	}
	if s := p.Stats(); s.DialFailed != 1 {
		t.Errorf("%+v", s)
	}
}

func TestTLSBothWays(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s %d", r.Proto, r.Host, len(b))
	}))
	defer server.Close()
	trust := server.Client().Transport.(*http.Transport).TLSClientConfig
	book := &notebook{}
	p, address, _ := start(t, Options{
		Upstream:    server.Listener.Addr().String(),
		UpstreamTLS: &tls.Config{RootCAs: trust.RootCAs, ServerName: "example.com", NextProtos: []string{"http/1.1"}},
		ListenTLS:   &tls.Config{Certificates: server.TLS.Certificates, NextProtos: []string{"http/1.1"}},
		Follow:      func(Connection) Consumer { return book },
	})
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trust.RootCAs, ServerName: "example.com"}, ForceAttemptHTTP2: true}, Timeout: patience}
	resp, err := client.Post("https://"+address+"/", "text/plain", bytes.NewReader(make([]byte, 200_000)))
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	if want := "HTTP/1.1 " + address + " 200000"; string(body) != want {
		t.Errorf("%q, want %q", body, want)
	}
	client.CloseIdleConnections()
	eventually(t, "the consumer sees the end", func() bool { return book.count("close") == 1 })
	if !strings.HasPrefix(book.text(FromClient), "POST / HTTP/1.1\r\n") || !strings.HasPrefix(book.text(FromServer), "HTTP/1.1 200 OK\r\n") {
		t.Errorf("the consumer did not see the plain text: %.40q", book.text(FromClient))
	}
	// A client that does not speak TLS, and an upstream that cannot be trusted.
	c := dial(t, address)
	io.WriteString(c, "GET / HTTP/1.1\r\n\r\n")
	io.ReadAll(c)
	eventually(t, "a failed handshake is counted", func() bool { return p.Stats().Handshakes == 1 })
}

// TestMaxConnections: beyond the limit a connection waits while those that are open are of use; then the one that has been of none longest
// makes room for it.
func TestMaxConnections(t *testing.T) {
	up := upstream(t, func(c *net.TCPConn) {
		for b := make([]byte, 1); ; {
			if _, err := io.ReadFull(c, b); err != nil {
				return
			}
			if b[0] != 'h' { // of a head
				c.Write(b)
			}
		}
	})
	var mu sync.Mutex
	books := map[string]*notebook{}
	p, address, _ := start(t, Options{Upstream: up, MaxConnections: 2, Follow: func(c Connection) Consumer {
		b := &notebook{}
		b.isBusy.Store(true)
		mu.Lock()
		defer mu.Unlock()
		books[c.Client] = b
		return b
	}})
	say := func(c *net.TCPConn) error {
		c.Write([]byte("x"))
		_, err := io.ReadFull(c, make([]byte, 1))
		return err
	}
	book := func(c *net.TCPConn) *notebook {
		eventually(t, "it has a consumer", func() bool { mu.Lock(); defer mu.Unlock(); return books[c.LocalAddr().String()] != nil })
		mu.Lock()
		defer mu.Unlock()
		return books[c.LocalAddr().String()]
	}
	a, b := dial(t, address), dial(t, address)
	if err := errors.Join(say(a), say(b)); err != nil {
		t.Fatal(err)
	}
	third := dial(t, address)
	third.SetReadDeadline(time.Now().Add(3 * quietTime))
	if err := say(third); err == nil {
		t.Error("a third connection got through")
	}
	third.SetReadDeadline(time.Now().Add(patience))
	book(b).isBusy.Store(false)
	if err := say(b); err != nil { // its consumer is asked again
		t.Fatal(err)
	}
	if _, err := io.ReadFull(third, make([]byte, 1)); err != nil {
		t.Errorf("the third connection did not get its turn: %v", err)
	}
	if rest, err := io.ReadAll(b); len(rest) != 0 || err != nil {
		t.Errorf("the one that made room got %q, %v; want an ordinary close", rest, err)
	}
	if err := say(a); err != nil {
		t.Errorf("the one that is busy: %v", err)
	}
	if s := p.Stats(); s.Open != 2 || s.Evicted != 1 || s.Accepted != 3 {
		t.Errorf("%+v", s)
	}
	// A head that has been begun and not ended, for long.
	book(third).isBusy.Store(false)
	book(third).head.Store(time.Now().Add(-time.Hour).UnixNano())
	third.Write([]byte("h"))
	fourth := dial(t, address)
	if err := say(fourth); err != nil {
		t.Errorf("the fourth connection did not get its turn: %v", err)
	}
	if s := p.Stats(); s.Open != 2 || s.Evicted != 2 {
		t.Errorf("%+v", s)
	}
}

func TestIdleTimeout(t *testing.T) {
	t.Parallel()
	up := upstream(t, func(c *net.TCPConn) { io.Copy(c, c) })
	_, address, _ := start(t, Options{Upstream: up, IdleTimeout: 3 * time.Second}) // the x must be through before
	c := dial(t, address)
	c.Write([]byte("x"))
	if b, err := io.ReadAll(c); string(b) != "x" || err != nil {
		t.Errorf("%q, %v; want x and an ordinary close", b, err)
	}
}

func TestOptions(t *testing.T) {
	_, err := New(Options{Upstream: "nowhere", Grace: -1, MaxConnections: -1, BacklogBytes: -1})
	for _, want := range []string{"host:port", "grace", "connections", "backlog"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
}
