package sim

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// conn is one client connection. Answers are written by the server's driver, which must never wait for a client: what the kernel does
// not take at once goes to a backlog that a goroutine of its own writes.
type conn struct {
	net    net.Conn
	raw    syscall.RawConn // nil where there is no descriptor to write to
	write  func(fd uintptr) bool
	buf    []byte // what write writes
	n      int    // what it wrote
	err    error
	mu     sync.Mutex
	closed bool
	queue  []byte // the backlog
	busy   bool   // a goroutine writes the backlog
	idle   sync.Cond
}

func newConn(c net.Conn) *conn {
	k := &conn{net: c}
	k.idle.L = &k.mu
	if sc, ok := c.(syscall.Conn); ok && rawWrites {
		if raw, err := sc.SyscallConn(); err == nil {
			k.raw = raw
			k.write = func(fd uintptr) bool {
				k.n, k.err = writeNow(fd, k.buf)
				return true
			}
		}
	}
	return k
}

// send writes b or queues it. It never blocks and does not keep b.
func (k *conn) send(b []byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return
	}
	if !k.busy && k.raw != nil {
		k.buf = b
		if err := k.raw.Write(k.write); err != nil {
			k.shut()
			return
		}
		k.buf = nil
		if k.err != nil && k.err != syscall.EAGAIN && k.err != syscall.EINTR {
			k.shut()
			return
		}
		b = b[max(k.n, 0):]
		if len(b) == 0 {
			return
		}
	}
	k.queue = append(k.queue, b...)
	if !k.busy {
		k.busy = true
		go k.drain()
	}
}

// drain writes the backlog until it is empty or the connection fails.
func (k *conn) drain() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for len(k.queue) > 0 && !k.closed {
		b := k.queue
		k.queue = nil
		k.mu.Unlock()
		_, err := k.net.Write(b)
		k.mu.Lock()
		if err != nil {
			k.shut()
		}
	}
	k.busy = false
	k.idle.Broadcast()
}

// flushed waits until the backlog is empty.
func (k *conn) flushed() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for k.busy {
		k.idle.Wait()
	}
}

// shut closes the connection; k.mu is held.
func (k *conn) shut() {
	if !k.closed {
		k.closed = true
		k.queue = nil
		k.net.Close()
	}
}

// close closes the connection, with a reset where one is asked for and the connection can send one.
func (k *conn) close(reset bool) {
	if t, ok := k.net.(*net.TCPConn); ok && reset {
		_ = t.SetLinger(0)
	}
	k.mu.Lock()
	k.shut()
	k.mu.Unlock()
}

// maxBody bounds request bodies, in bytes.
const maxBody = 256 << 20

// serve reads requests from a connection until it ends.
func (s *Server) serve(k *conn) {
	defer k.close(false)
	br := bufio.NewReaderSize(k.net, 32<<10)
	for {
		req, err := http.ReadRequest(br)
		if err != nil {
			if err != io.EOF && strings.HasPrefix(err.Error(), "malformed") {
				k.send(plainResponse(400, "text/plain; charset=utf-8", []byte("Invalid HTTP request received.\n"), "", true))
				k.flushed()
			}
			return
		}
		if req.Header.Get("Expect") == "100-continue" {
			k.send([]byte("HTTP/1.1 100 Continue\r\n\r\n"))
		}
		body, err := readBody(req)
		if err != nil {
			k.send(plainResponse(400, "application/json", errorBody(400, "BadRequestError", err.Error()), "", true))
			k.flushed()
			return
		}
		last := req.Close || !req.ProtoAtLeast(1, 1)
		ex := &exchange{server: s, conn: k, arrived: s.now(), id: req.Header.Get("X-Request-Id"), last: last, http10: !req.ProtoAtLeast(1, 1), done: make(chan struct{})}
		s.route(ex, req, body)
		// The driver answers. Meanwhile a read tells of a client that goes away; what a client sends early stays in the buffer.
		_, err = br.Peek(1)
		if err != nil {
			ex.abort()
		}
		<-ex.done
		if last || ex.broken {
			k.flushed()
			return
		}
		if err != nil {
			return
		}
	}
}

func readBody(req *http.Request) ([]byte, error) {
	if req.ContentLength > maxBody {
		return nil, errors.New("the body is too large")
	}
	if n := req.ContentLength; n >= 0 && n <= 1<<20 {
		b := make([]byte, n)
		_, err := io.ReadFull(req.Body, b)
		return b, err
	}
	return io.ReadAll(io.LimitReader(req.Body, maxBody))
}

// head renders a status line and headers. A negative length means chunks.
func head(status int, contentType string, length int, id string, last bool, extra string) []byte {
	b := make([]byte, 0, 256)
	b = append(b, "HTTP/1.1 "...)
	b = strconv.AppendInt(b, int64(status), 10)
	b = append(b, ' ')
	b = append(b, http.StatusText(status)...)
	b = append(b, "\r\ndate: "...)
	b = time.Now().UTC().AppendFormat(b, http.TimeFormat)
	b = append(b, "\r\nserver: shadowtape-sim\r\ncontent-type: "...)
	b = append(b, contentType...)
	if length >= 0 {
		b = append(b, "\r\ncontent-length: "...)
		b = strconv.AppendInt(b, int64(length), 10)
	} else {
		b = append(b, "\r\ncache-control: no-cache"...)
		if !last {
			b = append(b, "\r\ntransfer-encoding: chunked"...)
		}
	}
	if id != "" {
		b = append(b, "\r\nx-request-id: "...)
		b = append(b, headerValue(id)...)
	}
	if last {
		b = append(b, "\r\nconnection: close"...)
	}
	b = append(b, extra...)
	return append(b, "\r\n\r\n"...)
}

// headerValue keeps an echoed value from ending its header.
func headerValue(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, s)
}

// plainResponse is a whole answer.
func plainResponse(status int, contentType string, body []byte, id string, last bool) []byte {
	extra := ""
	if status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable {
		extra = "\r\nretry-after: 1"
	}
	return append(head(status, contentType, len(body), id, last, extra), body...)
}
