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

// maxAttempts bounds how often a request is sent: once, and again only where a kept connection turned out to be closed before it
// answered a byte, or an HTTP/2 server had not looked at it. Unless only its stream was refused it then goes over a new connection: where
// one kept connection was closed, others are.
const maxAttempts = 3

// stallAfter is the silence before a deadline from which an answer has stalled; half of the time will do.
const stallAfter = 10 * time.Second

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

// Wire is a request ready to be written. Over HTTP/1.1 a small one goes in one piece, a large one in two, of which the body is not
// copied.
type Wire struct {
	path, id string
	body     []byte
	head     []byte // of HTTP/1.1, with a small body behind it; nil: not made yet
}

// smallBody is up to which a body is cheaper to copy than to send apart.
const smallBody = 8 << 10

// Wire is the request of a body to an endpoint, ready to be written. It keeps body.
func (p *Target) Wire(endpoint formats.Endpoint, requestID string, body []byte) Wire {
	w := Wire{path: Path(endpoint), id: requestID, body: body}
	if !p.mayMultiplex() || p.Protocol() == "HTTP/1.1" {
		p.write1(&w)
	}
	return w
}

// write1 makes a request's head for HTTP/1.1.
func (p *Target) write1(w *Wire) {
	n := len(p.headTail) + len(p.lineStart) + len(w.path) + len(w.id) + 80
	if len(w.body) <= smallBody {
		n += len(w.body)
	}
	b := make([]byte, 0, n)
	b = append(b, p.lineStart...)
	b = append(b, w.path...)
	b = append(b, " HTTP/1.1\r\n"...)
	b = append(b, p.headTail...)
	b = append(b, "X-Request-Id: "...)
	b = append(b, w.id...)
	b = append(b, "\r\nContent-Length: "...)
	b = strconv.AppendInt(b, int64(len(w.body)), 10)
	b = append(b, "\r\n\r\n"...)
	if w.head = b; len(w.body) <= smallBody {
		w.head = append(b, w.body...)
	}
}

func (w *Wire) to(c net.Conn) error {
	if len(w.body) <= smallBody {
		_, err := c.Write(w.head)
		return err
	}
	v := net.Buffers{w.head, w.body}
	_, err := v.WriteTo(c)
	return err
}

// line is what an exchange runs on: one of the two, and whether exchanges have run on it before.
type line struct {
	one  *conn
	two  *conn2
	kept bool
}

// connect takes a connection that stands, or opens one, before the deadline; what opening took goes into the row.
func (p *Target) connect(ctx context.Context, x *formats.Exchange, deadline time.Time, fresh bool) (line, error) {
	if p.mayMultiplex() && !fresh {
		if c := p.connect2(); c != nil {
			c.mu.Lock()
			x.ConnReused = formats.Of(c.used > 0)
			c.mu.Unlock()
			return line{two: c, kept: true}, nil
		}
	}
	if !fresh {
		if k := p.get(); k != nil {
			x.ConnReused = formats.Of(k.used > 0)
			return line{one: k, kept: true}, nil
		}
	}
	x.ConnReused = formats.Of(false)
	k, s, err := p.dial(ctx, deadline)
	set(&x.DNSNS, s.dns)
	set(&x.ConnectNS, s.connect)
	set(&x.TLSNS, s.tls)
	if err != nil || !k.two {
		return line{one: k}, err
	}
	c := newConn2(k)
	p.keep2(c, true)
	return line{two: c}, nil
}

// Exchange sends one request and follows its answer, filling x. due is the scheduled time by clk; x's times become offsets from it.
// sent is told once, when the first byte is handed to the kernel, or with -1 where none was. w is let go once it is answered.
func (p *Target) Exchange(ctx context.Context, x *formats.Exchange, w *Wire, clk Clock, due int64, cut Cut, sent func(at int64)) {
	deadline := time.Now().Add(p.c.o.Timeout)
	if at := clk.At(time.Duration(due) + cut.after); cut.after > 0 && at.Before(deadline) {
		deadline = at
	}
	told := false
	tell := func(at int64) {
		if told {
			return
		}
		if told = true; at >= 0 {
			x.SentNS = formats.Of(at - due)
		}
		sent(at)
	}
	fresh := false
	for attempt := int32(1); ; attempt++ {
		x.Attempt = formats.Of(attempt)
		on, err := p.connect(ctx, x, deadline, fresh)
		if err != nil {
			tell(-1)
			kind, reason := formats.ErrorConnect, formats.EndServerAbort
			if !closed(err) {
				kind, reason = formats.ErrorConnectTime, formats.EndTimeout
			}
			switch fail(x, clk.Now()-due, kind, reason); {
			case ctx.Err() != nil:
				x.ErrorKind, x.EndReason = "", formats.EndRunEnd
			case cut.after > 0 && !time.Now().Before(deadline):
				x.ErrorKind, x.EndReason = "", formats.EndClientAbort
				return
			}
			x.PlannedAbort = formats.Null[bool]{}
			return
		}
		var again bool
		if retry := attempt < maxAttempts; on.two != nil {
			again = on.two.exchange(x, w, clk, due, deadline, retry, on.kept, cut, tell)
		} else {
			again = on.one.exchange(x, w, clk, due, deadline, retry && on.kept, cut, tell)
		}
		fresh = again && (on.one != nil || on.two.over())
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

// exchange runs one exchange over HTTP/1.1; again says that it may be sent once more.
func (k *conn) exchange(x *formats.Exchange, w *Wire, clk Clock, due int64, deadline time.Time, retry bool, cut Cut, sent func(at int64)) (again bool) {
	c := k.target.c
	if !c.enter(k) {
		k.Close()
		sent(-1)
		fail(x, clk.Now()-due, "", formats.EndRunEnd)
		return false
	}
	defer c.leave(k)
	if w.head == nil {
		k.target.write1(w)
	}
	k.SetDeadline(deadline) // an error here shows in the write
	sent(clk.Now())
	err := w.to(k.Conn)
	x.RequestEndNS = formats.Of(clk.Now() - due)
	return k.answer(x, clk, due, err, retry, cut, w)
}

// set fills a duration that happened. Those of several attempts add up: the request has waited for all of them.
func set(n *formats.Null[int64], v int64) {
	if v >= 0 {
		*n = formats.Of(n.V + v)
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
	b := newBody(h, k.target.c.o.AnswerBytes)
	r := openai.NewResponse(x, h.status, h.contentType)
	err = k.body(x, clk, due, &b, r, cut)
	x.ResponseBytes = formats.Of(b.total)
	end := k.readAt
	if k.spent && err == nil { // the wait for its framing is no part of it
		end = k.heard
	}
	r.End(end-due, b.done)
	k.target.c.note(r)
	verdict(x, &h, err, k.heard-due, clk.Now()-due)
	if err == nil && b.done && h.keepAlive && !k.spent && k.r == k.w {
		k.target.put(k, h)
	} else {
		k.Close()
	}
	return false
}

// verdict names what went wrong with an answer whose head came, beyond what its body says. heard is when the last
// of it came, and now is now, as offsets from the arrival.
func verdict(x *formats.Exchange, h *head, err error, heard, now int64) {
	switch {
	case err == errAborted:
		x.ErrorKind, x.EndReason = "", formats.EndClientAbort
	case h.status >= 300:
		x.ErrorKind = fmt.Sprintf("http_%d", h.status)
	case h.encoding != "":
		x.ErrorKind = formats.ErrorContentType // we asked for identity
	case err != nil && !errors.Is(err, io.EOF) && x.EndReason != formats.EndErrorInStream: // of an end too early the body knows more
		x.ErrorKind, x.EndReason = classify(err)
		if x.EndReason == formats.EndTimeout {
			x.ErrorKind = formats.ErrorEndless
			if silent := time.Duration(now - heard); silent >= stallAfter || 2*silent >= time.Duration(now) {
				x.ErrorKind = formats.ErrorStall
			}
			x.EndNS = formats.Of(now) // when it was given up
		}
	}
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
	case errors.Is(err, errTooLong):
		return formats.ErrorEndless, formats.EndServerAbort
	case errors.Is(err, errProtocol):
		return formats.ErrorProtocol, formats.EndServerAbort
	}
	return formats.ErrorReset, formats.EndServerAbort
}
