package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/openai"
)

// maxAttempts bounds how often a request is sent: once, and again only while a kept connection turned out to be closed before it
// answered a byte.
const maxAttempts = 3

// doneGrace is how long after the stream has said that it is over its framing may take to end.
const doneGrace = time.Second

// Path is where an endpoint's requests go.
func Path(e formats.Endpoint) string {
	switch e {
	case formats.EndpointCompletions:
		return "/v1/completions"
	case formats.EndpointResponses:
		return "/v1/responses"
	case formats.EndpointEmbeddings:
		return "/v1/embeddings"
	case formats.EndpointMessages:
		return "/v1/messages"
	case formats.EndpointRerank:
		return "/v1/rerank"
	}
	return "/v1/chat/completions"
}

// Wire is a request as it goes over the connection, in one write: a small one in one piece, a large one in two, of which the body is
// not copied.
type Wire struct{ head, body []byte }

// smallBody is up to which a body is cheaper to copy than to send apart.
const smallBody = 8 << 10

// Wire is the request of a body to an endpoint, ready to be written.
func (p *Target) Wire(endpoint formats.Endpoint, requestID string, body []byte) Wire {
	path := Path(endpoint)
	n := len(p.headTail) + len(p.lineStart) + len(path) + len(requestID) + 80
	if len(body) <= smallBody {
		n += len(body)
	}
	b := make([]byte, 0, n)
	b = append(b, p.lineStart...)
	b = append(b, path...)
	b = append(b, " HTTP/1.1\r\n"...)
	b = append(b, p.headTail...)
	b = append(b, "X-Request-Id: "...)
	b = append(b, requestID...)
	b = append(b, "\r\nContent-Length: "...)
	b = strconv.AppendInt(b, int64(len(body)), 10)
	b = append(b, "\r\n\r\n"...)
	if len(body) <= smallBody {
		return Wire{head: append(b, body...)}
	}
	return Wire{b, body}
}

func (w *Wire) to(c net.Conn) error {
	if w.body == nil {
		_, err := c.Write(w.head)
		return err
	}
	v := net.Buffers{w.head, w.body}
	_, err := v.WriteTo(c)
	return err
}

// Exchange sends one request and follows its answer, filling x. due is the scheduled time by clk; x's times become offsets from it.
// sent is told once, when the first byte is handed to the kernel, or with -1 where none was. w is let go once it is answered.
func (p *Target) Exchange(ctx context.Context, x *formats.Exchange, w *Wire, clk Clock, due int64, cut Cut, sent func(at int64)) {
	deadline := time.Now().Add(p.c.o.Timeout)
	if at := clk.At(time.Duration(due) + cut.after); cut.after > 0 && at.Before(deadline) {
		deadline = at
	}
	for attempt := int32(1); ; attempt++ {
		x.Attempt = formats.Of(attempt)
		k := p.get()
		kept := k != nil
		if kept {
			x.ConnReused = formats.Of(k.used > 0)
		} else {
			x.ConnReused = formats.Of(false)
			var s setup
			var err error
			k, s, err = p.dial(ctx)
			set(&x.DNSNS, s.dns)
			set(&x.ConnectNS, s.connect)
			set(&x.TLSNS, s.tls)
			if err != nil {
				if attempt == 1 {
					sent(-1)
				}
				fail(x, clk.Now()-due, formats.ErrorConnect, formats.EndServerAbort)
				if ctx.Err() != nil {
					fail(x, clk.Now()-due, "", formats.EndRunEnd)
				}
				return
			}
		}
		if !p.c.enter(k) {
			k.Close()
			if attempt == 1 {
				sent(-1)
			}
			fail(x, clk.Now()-due, "", formats.EndRunEnd)
			return
		}
		k.SetDeadline(deadline) // an error here shows in the write
		at := clk.Now()
		if attempt == 1 {
			x.SentNS = formats.Of(at - due)
			sent(at)
		}
		werr := w.to(k.Conn)
		x.RequestEndNS = formats.Of(clk.Now() - due)
		again := k.answer(x, clk, due, werr, attempt < maxAttempts && kept, cut, w)
		p.c.leave(k)
		if !again {
			if x.EndReason == formats.EndTimeout && p.c.isCut() {
				x.ErrorKind, x.EndReason = "", formats.EndRunEnd
			} else if x.EndReason == formats.EndTimeout && cut.after > 0 && !time.Now().Before(deadline) {
				x.ErrorKind, x.EndReason = "", formats.EndClientAbort
			}
			if x.EndReason != formats.EndClientAbort {
				x.PlannedAbort = formats.Null[bool]{}
			}
			return
		}
	}
}

// set fills a duration that happened.
func set(n *formats.Null[int64], v int64) {
	if v >= 0 {
		*n = formats.Of(v)
	}
}

// fail ends an exchange at a time that is an offset from its arrival.
func fail(x *formats.Exchange, at int64, kind string, reason formats.EndReason) {
	x.EndNS, x.ErrorKind, x.EndReason = formats.Of(at), kind, reason
}

// answer reads the response; werr is how the writing ended. It returns true where the request may be sent again: the connection was
// closed before it answered, and retry allows it. The connection is kept or closed by then.
func (k *conn) answer(x *formats.Exchange, clk Clock, due int64, werr error, retry bool, cut Cut, w *Wire) (again bool) {
	k.used++
	h, first, started, err := k.readHead(clk)
	if err != nil {
		k.Close()
		if werr != nil && !started {
			err = werr
		}
		if !started && retry && closed(err) {
			return true
		}
		kind, reason := classify(err)
		if started {
			x.ResponseHeaderNS = formats.Of(first - due)
		}
		fail(x, clk.Now()-due, kind, reason)
		return false
	}
	*w = Wire{} // answered: it will not be sent again, and the answer may be long
	x.Status = formats.Of(int32(h.status))
	x.ResponseHeaderNS = formats.Of(first - due)
	x.Clock = formats.ClockUser
	if k.kernel {
		x.Clock = formats.ClockKernel
	}
	b := newBody(h)
	r := openai.NewResponse(x, h.status, h.contentType)
	err = k.body(x, clk, due, &b, r, cut)
	x.ResponseBytes = formats.Of(b.total)
	r.End(k.readAt-due, b.done)
	if err == errAborted {
		x.ErrorKind, x.EndReason = "", formats.EndClientAbort
	} else if h.status >= 300 {
		x.ErrorKind = fmt.Sprintf("http_%d", h.status)
	} else if h.encoding != "" {
		x.ErrorKind = formats.ErrorContentType // we asked for identity
	} else if err != nil && !errors.Is(err, io.EOF) && x.EndReason != formats.EndErrorInStream { // of an end too early r knows more
		x.ErrorKind, x.EndReason = classify(err)
		if x.EndReason == formats.EndTimeout {
			x.EndNS = formats.Of(clk.Now() - due) // when it was given up
		}
	}
	if err == nil && b.done && h.keepAlive && !k.spent && k.r == k.w {
		k.target.put(k, h)
	} else {
		k.Close()
	}
	return false
}

// body feeds the response's body to r until it ends.
func (k *conn) body(x *formats.Exchange, clk Clock, due int64, b *body, r *openai.Response, cut Cut) error {
	hinted, first := false, true
	var last int64 // the stamp of the bytes before
	var failed error
	handle := func() bool { // of what one read brought; true: the body has ended
		if !k.kernel {
			x.Clock = formats.ClockUser
		}
		var flags int32
		if !first && k.kernel && k.readAt == last {
			flags = formats.FlagCoalesced // one segment, read in two pieces
		}
		first, last = false, k.readAt
		out, used, err := b.decode(k.buf[k.r:k.w])
		k.r += used
		if err != nil {
			failed = err
			return true
		}
		if len(out) > 0 {
			before := x.FirstTokenNS.Valid
			r.Write(out, k.readAt-due, flags)
			if !before && x.FirstTokenNS.Valid && k.kernel {
				x.ClientDelayUS = formats.Of(k.delay / 1000)
			}
			if cut.tokens > 0 && !r.Done() && cut.reached(x) {
				failed = errAborted
				return true
			}
		}
		if !hinted && !b.done && r.Done() {
			hinted = true
			k.SetReadDeadline(time.Now().Add(doneGrace)) // fails only on a closed connection, which the next read sees
		}
		return b.done
	}
	if b.done || k.r < k.w && handle() {
		return failed
	}
	err := k.pump(clk, handle)
	switch {
	case failed != nil:
		return failed
	case errors.Is(err, io.EOF) && b.toEOF:
		b.done = true
		return nil
	case err != nil && r.Done() && (errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, io.EOF)):
		b.done, k.spent = true, true // it said that it was over
		return nil
	}
	return err
}

// closed says whether an error means that the other side had closed the connection.
func closed(err error) bool {
	var ne net.Error
	return !(errors.As(err, &ne) && ne.Timeout()) && !errors.Is(err, errProtocol)
}

// classify names a transport error.
func classify(err error) (kind string, reason formats.EndReason) {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return formats.ErrorTimeout, formats.EndTimeout
	case errors.Is(err, errProtocol), errors.Is(err, errTooLong):
		return formats.ErrorProtocol, formats.EndServerAbort
	}
	return formats.ErrorReset, formats.EndServerAbort
}
