package client

import (
	"bytes"
	"errors"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"
)

// The limits of what an answer may make the client hold.
const (
	maxHeadBytes = 64 << 10 // status line and headers; of its body: Options.AnswerBytes
	readBytes    = 16 << 10 // one read
)

var (
	errProtocol = errors.New("the answer is no HTTP/1.1")
	errTooLong  = errors.New("the answer is too long")
)

// head is what the client needs of a response's status line and headers.
type head struct {
	status      int
	contentType string
	encoding    string // Content-Encoding, identity as ""
	length      int64  // Content-Length; -1 where the framing is another
	chunked     bool
	keepAlive   bool
	idleSeconds int // of "Keep-Alive: timeout=N"; 0 where not given
}

// parseHead reads a response's head; b ends with the empty line.
func parseHead(b []byte) (head, error) {
	h := head{length: -1}
	line, rest, _ := bytes.Cut(b, []byte("\n"))
	proto, status, ok := strings.Cut(strings.TrimSpace(string(line)), " ")
	if !ok || !strings.HasPrefix(proto, "HTTP/1.") {
		return h, errProtocol
	}
	status, _, _ = strings.Cut(status, " ")
	code, err := strconv.Atoi(status)
	if err != nil || code < 100 || code > 999 {
		return h, errProtocol
	}
	h.status = code
	h.keepAlive = proto != "HTTP/1.0"
	for len(rest) > 0 {
		line, rest, _ = bytes.Cut(rest, []byte("\n"))
		k, v, ok := bytes.Cut(line, []byte(":"))
		if !ok {
			continue
		}
		if err := h.field(k, strings.TrimSpace(string(v))); err != nil {
			return h, err
		}
	}
	if h.chunked {
		h.length = -1
	}
	if code == 204 || code == 304 || code < 200 {
		h.chunked, h.length = false, 0
	}
	if !h.chunked && h.length < 0 {
		h.keepAlive = false // the body ends with the connection
	}
	return h, nil
}

func (h *head) field(k []byte, v string) error {
	is := func(name string) bool { return len(k) == len(name) && bytes.EqualFold(k, []byte(name)) }
	switch {
	case is("content-length"):
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil || n < 0 || h.length >= 0 && h.length != n {
			return errProtocol
		}
		h.length = n
	case is("transfer-encoding"):
		h.chunked = strings.Contains(strings.ToLower(v), "chunked")
	case is("content-type"):
		h.contentType = v
	case is("content-encoding"):
		if !strings.EqualFold(v, "identity") {
			h.encoding = strings.ToLower(v)
		}
	case is("connection"):
		v = strings.ToLower(v)
		if strings.Contains(v, "close") {
			h.keepAlive = false
		} else if strings.Contains(v, "keep-alive") {
			h.keepAlive = true
		}
	case is("keep-alive"):
		if _, t, ok := strings.Cut(strings.ToLower(v), "timeout="); ok {
			t, _, _ = strings.Cut(t, ",")
			if n, err := strconv.Atoi(strings.TrimSpace(t)); err == nil && n > 0 {
				h.idleSeconds = n
			}
		}
	}
	return nil
}

// body unframes a response's body. Its decode turns the bytes of one read into body bytes in place, so that what arrived together is
// handed on together.
type body struct {
	left    int64 // of a Content-Length body or of the chunk at hand
	chunked bool
	toEOF   bool // no framing: the body ends with the connection
	state   chunkState
	size    []byte // of a chunk-size line that was cut between two reads
	done    bool
	total   int64 // body bytes so far
	most    int64 // of them
}

type chunkState uint8

const (
	chunkSize chunkState = iota
	chunkData
	chunkEnd // the line end after the data
	chunkTrailer
)

// newBody is the body behind h; it may be of so many bytes.
func newBody(h head, most int64) body {
	switch {
	case h.chunked:
		return body{chunked: true, most: most}
	case h.length >= 0:
		return body{left: h.length, done: h.length == 0, most: most}
	}
	return body{toEOF: true, most: most}
}

// decode returns the body bytes among p, moved to its front, and how many bytes of p belonged to this response.
func (b *body) decode(p []byte) (out []byte, used int, err error) {
	if b.done {
		return nil, 0, nil
	}
	if !b.chunked {
		n := len(p)
		if !b.toEOF {
			n = int(min(int64(n), b.left))
			b.left -= int64(n)
			b.done = b.left == 0
		}
		return b.count(p[:n], n)
	}
	w, i := 0, 0
	for i < len(p) && !b.done {
		switch b.state {
		case chunkData:
			n := int(min(int64(len(p)-i), b.left))
			w += copy(p[w:], p[i:i+n])
			i += n
			if b.left -= int64(n); b.left == 0 {
				b.state = chunkEnd
			}
		case chunkEnd:
			if c := p[i]; c == '\n' {
				b.state = chunkSize
			} else if c != '\r' {
				return nil, i, errProtocol
			}
			i++
		default: // a line: chunk size or trailer
			j := bytes.IndexByte(p[i:], '\n')
			part := p[i:]
			if j >= 0 {
				part = p[i : i+j]
			}
			if len(b.size)+len(part) > 4096 {
				return nil, i, errProtocol
			}
			b.size = append(b.size, part...)
			i += len(part)
			if j < 0 {
				break
			}
			i++
			if err := b.line(bytes.TrimSpace(b.size)); err != nil {
				return nil, i, err
			}
			b.size = b.size[:0]
		}
	}
	return b.count(p[:w], i)
}

func (b *body) count(out []byte, used int) ([]byte, int, error) {
	if b.total += int64(len(out)); b.total > b.most {
		return nil, used, errTooLong
	}
	return out, used, nil
}

// line takes a whole chunk-size or trailer line.
func (b *body) line(l []byte) error {
	if b.state == chunkTrailer {
		b.done = len(l) == 0
		return nil
	}
	l, _, _ = bytes.Cut(l, []byte(";"))
	n, err := strconv.ParseUint(string(bytes.TrimSpace(l)), 16, 62)
	if err != nil {
		return errProtocol
	}
	if b.left = int64(n); n == 0 {
		b.state = chunkTrailer
	} else {
		b.state = chunkData
	}
	return nil
}

// conn is one HTTP/1.1 connection. One goroutine at a time uses it.
type conn struct {
	net.Conn
	socket net.Conn // what Conn goes over: it without TLS
	stamp  stamper  // nil where the kernel gives no receive times
	tls    bool
	two    bool       // it speaks HTTP/2
	reads  func() int // counts reads of the socket; nil where nobody asks
	target *Target
	buf    []byte
	r, w   int   // unread bytes are buf[r:w]
	readAt int64 // when the bytes of the last read were there, by the run's clock
	heard  int64 // readAt of the last read that brought anything
	kernel bool  // readAt is the kernel's
	delay  int64 // nanoseconds from readAt to the return of the read; only where kernel
	used   int   // exchanges so far
	spent  bool  // not fit for another exchange
}

// cutNow ends what is being read and written.
func (c *conn) cutNow() {
	c.SetDeadline(time.Unix(1, 0)) // fails only on a closed connection, whose exchange is ending anyway
}

// buffers are read buffers that no connection uses: connections wait idle in their hundreds once there was a peak.
var buffers = sync.Pool{New: func() any { return new([readBytes]byte) }}

// rest gives the read buffer of a connection back that waits for its next exchange.
func (c *conn) rest() {
	if c.r == c.w && len(c.buf) == readBytes {
		buffers.Put((*[readBytes]byte)(c.buf))
		c.buf, c.r, c.w = nil, 0, 0
	}
}

// room is where the next read goes; what is unread stays. It is nil where an answer's head has no end.
func (c *conn) room() []byte {
	if c.buf == nil {
		c.buf = buffers.Get().(*[readBytes]byte)[:]
	}
	if c.r == c.w {
		c.r, c.w = 0, 0
	} else if c.w == len(c.buf) {
		if c.r > 0 {
			c.w = copy(c.buf, c.buf[c.r:c.w])
			c.r = 0
		} else if len(c.buf) < maxHeadBytes {
			c.buf = append(c.buf, make([]byte, len(c.buf))...)
		} else {
			return nil
		}
	}
	return c.buf[c.w:]
}

// took notes n bytes that a read has put into room, and their time.
func (c *conn) took(clk Clock, n int) {
	t := time.Now()
	now := int64(t.Sub(clk.start))
	c.w += n
	c.readAt, c.kernel, c.delay = now, false, 0
	if c.stamp != nil && n > 0 {
		if unixNS, ok := c.stamp.received(); ok {
			if c.readAt, c.kernel = clk.stamp(unixNS, t); c.kernel {
				c.delay = now - c.readAt
			}
		}
	}
	if n > 0 {
		c.heard = c.readAt
	}
}

// fill reads once more into the buffer.
func (c *conn) fill(clk Clock) error {
	p := c.room()
	if p == nil {
		return errProtocol
	}
	n, err := c.Read(p)
	c.took(clk, n)
	if n > 0 {
		return nil
	}
	if err == nil {
		err = io.ErrNoProgress
	}
	return err
}

// pump reads until handle returns true or the connection fails. handle takes all that is unread.
func (c *conn) pump(clk Clock, handle func() bool) (err error) {
	if c.stamp == nil || c.tls {
		for {
			if err := c.fill(clk); err != nil {
				return err
			}
			if handle() {
				return nil
			}
		}
	}
	c.stamp.each(c.room, func(n int, e error) bool {
		c.took(clk, n)
		if n == 0 {
			err = e
			return true
		}
		return handle()
	})
	return err
}

// readHead reads up to the end of a final response's head. started says whether any byte of an answer came; firstAt is when.
func (c *conn) readHead(clk Clock) (h head, firstAt int64, started bool, err error) {
	for {
		if end := headEnd(c.buf[c.r:c.w]); end > 0 {
			h, err = parseHead(c.buf[c.r : c.r+end])
			c.r += end
			if err != nil || h.status >= 200 {
				return h, firstAt, true, err
			}
			continue // 1xx
		}
		if c.w-c.r >= maxHeadBytes {
			return h, firstAt, true, errProtocol
		}
		if err := c.fill(clk); err != nil {
			return h, firstAt, started, err
		}
		if !started {
			started, firstAt = true, c.readAt
		}
		if b := c.buf[c.r:c.w]; len(b) >= 5 && string(b[:5]) != "HTTP/" {
			return h, firstAt, true, errProtocol
		}
	}
}

// headEnd is the length of the head that b starts with, its empty line included, or 0.
func headEnd(b []byte) int {
	for i := 0; ; {
		j := bytes.IndexByte(b[i:], '\n')
		if j < 0 {
			return 0
		}
		i += j + 1
		if i < len(b) && b[i] == '\n' {
			return i + 1
		}
		if i+1 < len(b) && b[i] == '\r' && b[i+1] == '\n' {
			return i + 2
		}
	}
}
