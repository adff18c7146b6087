package recorder

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shadowtape/shadowtape/formats"
)

// pipes is a listener of connections that are no sockets, so that a sink runs on a virtual clock.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func newPipes() *pipes { return &pipes{make(chan net.Conn), make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}
func (p *pipes) Close() error { close(p.closed); return nil }
func (p *pipes) Addr() net.Addr {
	return &net.UnixAddr{Name: "pipe", Net: "unix"}
}

func (p *pipes) dial() net.Conn {
	a, b := net.Pipe()
	p.conns <- b
	return a
}

// withSink runs a sink on pipes and a virtual clock around f, and returns what it recorded and counted.
func withSink(t *testing.T, m *Mirror, f func(p *pipes)) (rows []*formats.Exchange, s SourceStats) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipes()
		m.Listener, m.Key = p, []byte("0123456789abcdef")
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- m.Run(ctx, Filter{}, func(x *formats.Exchange) { rows = append(rows, x) }) }()
		f(p)
		cancel()
		if err := <-done; err != nil && !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
		s = m.Stats()
		if held, heads := m.backlog.held(), m.heads.Load(); held != 0 || heads != 0 {
			t.Errorf("%d bytes of requests and %d of heads are still charged", held, heads)
		}
	})
	return rows, s
}

func mirrorHeadOf(length int) string {
	return fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n", length)
}

// ended reports whether the sink closes the connection, or has closed it.
func ended(c net.Conn) bool {
	c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	_, err := io.Copy(io.Discard, c)
	return err == nil
}

func accepted(t *testing.T, c net.Conn) {
	t.Helper()
	c.SetReadDeadline(time.Now().Add(time.Second))
	if r, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || r.StatusCode != http.StatusAccepted {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestSinkConnections: at most so many connections are open; more are closed at once and counted, and make no difference later.
func TestSinkConnections(t *testing.T) {
	rows, s := withSink(t, &Mirror{Connections: 3}, func(p *pipes) {
		var open []net.Conn
		for range 3 {
			open = append(open, p.dial())
		}
		for range 2 {
			if !ended(p.dial()) {
				t.Error("a connection too many stays open")
			}
		}
		open[0].Close()
		synctest.Wait()
		c := p.dial()
		io.WriteString(c, mirrorHeadOf(2)+"{}")
		accepted(t, c)
		for _, c := range append(open, c) {
			c.Close()
		}
	})
	if len(rows) != 1 || s.Notes["connections_refused"] != 2 {
		t.Errorf("%d rows, %v", len(rows), s.Notes)
	}
}

// TestSinkSlow: whoever sends a head or a body drop by drop, or not to its end, is cut in time and counted; a body that came in part is
// recorded as one of unknown length.
func TestSinkSlow(t *testing.T) {
	rows, s := withSink(t, &Mirror{ReadTimeout: time.Minute}, func(p *pipes) {
		head, body, drops, good := p.dial(), p.dial(), p.dial(), p.dial()
		io.WriteString(head, mirrorHeadOf(5)[:30])
		io.WriteString(body, mirrorHeadOf(100)+`{"model":`)
		io.WriteString(drops, mirrorHeadOf(1000))
		io.WriteString(good, mirrorHeadOf(2)+"{}")
		accepted(t, good)
		start := time.Now()
		for time.Since(start) < 53*time.Second {
			time.Sleep(5 * time.Second)
			io.WriteString(drops, " ")
			if time.Since(start) == 10*time.Second {
				if !ended(head) {
					t.Error("half a head keeps its connection for longer than ten seconds")
				}
			}
			if time.Since(start) == 20*time.Second {
				accepted(t, body)
			}
		}
		time.Sleep(10 * time.Second)
		accepted(t, drops)
		for _, c := range []net.Conn{head, body, drops, good} {
			c.Close()
		}
	})
	if len(rows) != 3 || s.Notes["heads_unfinished"] != 1 || s.Notes["requests_cut"] != 2 {
		t.Fatalf("%d rows, %v", len(rows), s.Notes)
	}
	for _, x := range rows {
		if x.RequestBytes.Valid != (x.RequestBytes.V == 2) {
			t.Errorf("%+v", x)
		}
	}
}

// TestSinkHeads: a head of any length costs no more than its bound, many of them together no more than theirs; those that hold most are
// closed, the others served.
func TestSinkHeads(t *testing.T) {
	const most = 64 << 10
	_, s := withSink(t, &Mirror{headLimit: most, Connections: 64}, func(p *pipes) {
		var small, large []net.Conn
		for range 20 {
			c := p.dial()
			io.WriteString(c, mirrorHeadOf(2)[:60])
			small = append(small, c)
		}
		for range 20 {
			c := p.dial()
			io.WriteString(c, "POST /v1/chat/completions HTTP/1.1\r\nX: ")
			large = append(large, c)
		}
		for range 8 {
			for _, c := range large {
				c.SetWriteDeadline(time.Now().Add(time.Millisecond)) // what is given up is read no more
				io.WriteString(c, strings.Repeat("x", 1000))
			}
		}
		closed := 0
		synctest.Wait()
		for _, c := range large {
			c.SetWriteDeadline(time.Now().Add(time.Millisecond))
			if _, err := io.WriteString(c, "x"); err != nil {
				closed++
			}
		}
		if closed < 10 {
			t.Errorf("%d of 20 connections with 8 kB of a head are closed, of which %d kB are held together", closed, most>>10)
		}
		for _, c := range small {
			io.WriteString(c, mirrorHeadOf(2)[60:]+"{}")
			accepted(t, c)
		}
		for _, c := range append(small, large...) {
			c.Close()
		}
	})
	if s.Notes["heads_over_memory"] < 10 || s.Notes["requests"] != 20 {
		t.Errorf("%v", s.Notes)
	}
	_, s = withSink(t, &Mirror{}, func(p *pipes) {
		c := p.dial()
		go io.WriteString(c, "POST / HTTP/1.1\r\nX: "+strings.Repeat("x", 3*mirrorHead))
		if r, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || r.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
			t.Errorf("%+v, %v", r, err)
		}
		c.Close()
	})
	if s.Notes["heads_too_large"] != 1 || s.Notes["requests"] != 0 {
		t.Errorf("%v", s.Notes)
	}
}

// TestSinkWorstPays: who announces much takes no memory before it sends it; where memory is short the request that holds most is given up,
// and small ones go on being recorded.
func TestSinkWorstPays(t *testing.T) {
	m := &Mirror{BacklogBytes: 512 << 10}
	rows, s := withSink(t, m, func(p *pipes) {
		announces := p.dial()
		io.WriteString(announces, mirrorHeadOf(30<<20))
		greedy := p.dial()
		io.WriteString(greedy, mirrorHeadOf(1<<20)+strings.Repeat(" ", 400<<10))
		synctest.Wait()
		m.working.Lock() // the recorder is busy: what has been read waits
		for i := range 30 {
			c := p.dial()
			body := fmt.Sprintf(`{"model":"m","max_tokens":%d,"messages":[{"role":"user","content":%q}]}`, i+1, strings.Repeat("x", 8000))
			io.WriteString(c, mirrorHeadOf(len(body))+body)
			accepted(t, c)
			c.Close()
		}
		if held := m.backlog.held(); held > 512<<10 {
			t.Errorf("%d bytes are held", held)
		}
		m.working.Unlock()
		accepted(t, greedy) // it is answered all the same
		greedy.Close()
		announces.Close()
		time.Sleep(time.Second)
	})
	whole := 0
	for _, x := range rows {
		if x.MaxTokens.Valid {
			whole++
		}
	}
	if whole != 30 || s.Dropped[droppedBacklog] != 1 || s.Notes["requests_cut"] != 1 {
		t.Errorf("%d of 30 small requests are recorded; dropped %v, %v", whole, s.Dropped, s.Notes)
	}
}
