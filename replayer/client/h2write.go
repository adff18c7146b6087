package client

import (
	"bytes"
	"errors"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// lastWords is how long a connection that cannot be written to any more is read.
const lastWords = time.Second

// flush writes what stands in out; wmu is held. A request's own frames, those of s, end with its exchange's time and with the run. An
// error is the connection's end: it takes no new stream, and its reader ends it, once it has read what the server had said before. A server
// that does not read has nothing to say.
func (c *conn2) flush(s *stream) error {
	deadline := time.Now().Add(c.target.c.o.Timeout)
	if s != nil {
		deadline = s.deadline
		c.asking(true)
		defer c.asking(false)
	}
	c.SetWriteDeadline(deadline) // fails only on a closed connection, which the write sees
	if s != nil && c.target.c.isCut() {
		c.interrupt()
	}
	_, err := c.Conn.Write(c.out.Bytes())
	if c.out.Reset(); c.out.Cap() > 1<<20 {
		c.out = bytes.Buffer{}
	}
	switch {
	case err == nil:
	case errors.Is(err, os.ErrDeadlineExceeded):
		if s != nil {
			s.over(err) // its own time was over; the others' connection is let down
		}
		c.stop(errUnread)
	default:
		c.mu.Lock()
		if c.closing = true; c.unsent == nil {
			c.unsent = err
		}
		c.mu.Unlock()
		c.SetReadDeadline(time.Now().Add(lastWords)) // fails only on a closed connection, whose reader has ended it
	}
	return err
}

// asking says whether a request, or a part of one, is being written.
func (c *conn2) asking(now bool) {
	c.mu.Lock()
	c.writing = now
	c.mu.Unlock()
}

// interrupt ends the write of a request.
func (c *conn2) interrupt() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.writing {
		c.SetWriteDeadline(time.Unix(1, 0)) // fails only on a closed connection
	}
}

// mostReplies bounds what a server can make us owe it: replies to pings and settings.
const mostReplies = 1024

// say has a frame written that is no request's, without waiting for it.
func (c *conn2) say(frame func(*http2.Framer) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.replies) == mostReplies {
		return errProtocol
	}
	c.replies = append(c.replies, frame)
	select {
	case c.kick <- struct{}{}:
	default:
	}
	return nil
}

// reply writes what say was told, until the connection ends.
func (c *conn2) reply() {
	for {
		select {
		case <-c.kick:
		case <-c.gone:
			return
		}
		c.wmu.Lock()
		c.mu.Lock()
		replies := c.replies
		c.replies = nil
		c.mu.Unlock()
		for _, frame := range replies {
			frame(c.fw) // into a buffer
		}
		if c.out.Len() > 0 {
			c.flush(nil) // an error shows in the reader
		}
		c.wmu.Unlock()
	}
}

// open gives a stream its id and writes its request: its head and as much of its body as the windows take, in one write. at is the
// moment before that write. rest is what of the body is left.
func (c *conn2) open(s *stream, w *Wire) (at time.Time, rest []byte, err error) {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	c.mu.Lock()
	if c.broken != nil || c.closing || c.next > 1<<31-2 {
		c.closing = true
		err = errGone
		if c.broken != nil {
			err = c.broken
		}
		c.mu.Unlock()
		return time.Now(), nil, err
	}
	s.id, s.window = c.next, c.first
	c.next += 2
	c.used++
	c.streams[s.id] = s
	n := c.grant(s, len(w.body))
	frame := c.frame
	c.head.Reset()
	c.fields(w) // under mu: settings change the encoder
	c.mu.Unlock()
	block := c.head.Bytes()
	c.fw.WriteHeaders(http2.HeadersFrameParam{StreamID: s.id, BlockFragment: block[:min(len(block), int(frame))], EndHeaders: len(block) <= int(frame), EndStream: len(w.body) == 0})
	for block = block[min(len(block), int(frame)):]; len(block) > 0; {
		part := block[:min(len(block), int(frame))]
		block = block[len(part):]
		c.fw.WriteContinuation(s.id, len(block) == 0, part)
	}
	c.put(s.id, w.body, n, frame)
	at = time.Now()
	return at, w.body[n:], c.flush(s)
}

// grant takes what of n bytes the windows let pass; mu is held.
func (c *conn2) grant(s *stream, n int) int {
	k := max(min(int64(n), c.window, s.window), 0)
	c.window -= k
	s.window -= k
	return int(k)
}

// put writes DATA frames of the first n bytes of body.
func (c *conn2) put(id uint32, body []byte, n int, frame int64) {
	for sent := 0; sent < n; {
		k := int(min(int64(n-sent), frame))
		c.fw.WriteData(id, sent+k == len(body), body[sent:sent+k])
		sent += k
	}
}

// more writes what the windows let pass of a body's rest; it does not wait.
func (c *conn2) more(s *stream, body []byte) (rest []byte, err error) {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	c.mu.Lock()
	n, frame := c.grant(s, len(body)), c.frame
	c.mu.Unlock()
	if n == 0 {
		return body, nil
	}
	c.put(s.id, body, n, frame)
	return body[n:], c.flush(s)
}

// fields encodes a request's header fields into head.
func (c *conn2) fields(w *Wire) {
	t := c.target
	put := func(name, value string, sensitive bool) {
		c.enc.WriteField(hpack.HeaderField{Name: name, Value: value, Sensitive: sensitive}) // into a buffer
	}
	put(":method", "POST", false)
	put(":scheme", t.url.Scheme, false)
	put(":authority", t.host, false)
	put(":path", t.url.EscapedPath()+w.path, false)
	put("user-agent", t.c.o.UserAgent, false)
	put("accept", "text/event-stream, application/json", false)
	put("accept-encoding", "identity", false)
	put("content-type", "application/json", false)
	if t.c.o.APIKey != "" {
		put("authorization", "Bearer "+t.c.o.APIKey, true)
	}
	for k, vs := range t.c.o.Header {
		for _, v := range vs {
			put(strings.ToLower(k), oneLine(v), true)
		}
	}
	put("x-request-id", w.id, true) // another each time: no use to index
	put("content-length", strconv.Itoa(len(w.body)), true)
}
