package recorder

import (
	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/openai"
)

// The two directions of a connection.
const (
	fromClient = 0
	fromServer = 1
)

// closing says how a direction ended.
type closing uint8

const (
	closedFIN closing = iota
	closedRST
	closedCut    // the capture ended, or the connection was given up
	closedIdle   // nothing came for longer than the idle limit
	closedBroken // the server's answer is no HTTP
)

// dialogue turns a connection's two byte streams into exchanges. It knows no packets: whoever has the bytes of the two directions in
// order, with their times, can drive it (see the package comment). Times are nanoseconds since 1970 and must not run backwards within
// a direction. Not safe for concurrent use.
type dialogue struct {
	e        *engine
	id       uint64
	half     [2]halfHTTP
	server   string // the answering address
	opened   bool   // the connection's start was seen
	count    int    // requests so far
	req      *exchange
	open     []*exchange // requests whose response has not ended, oldest first
	skip     bool        // the response being read has no request
	closed   [2]bool
	closedAt [2]int64
	respAt   int64 // first byte of the response being read
	reqAt    int64 // first byte of the request being read
	marks    eventMarks
	over     []*exchange // finished, oldest first, for the owner to take
	deaf     bool        // nothing was ever heard of the server: a capture of one side
	unheard  bool        // answers are not read any more: too many requests waited for one
	heads    int         // bytes of heads that are not whole
	holes    bool        // bytes of the client's are missing between messages
}

// exchange is one request and response being put together.
type exchange struct {
	x         *formats.Exchange
	method    string
	path      string
	encoding  string
	body      []byte
	bodySize  int64
	overCap   bool
	damaged   bool // bytes of the request are missing
	upgrade   bool // it asks for another protocol
	reqDone   bool
	keep      bool // it is of an endpoint that is recorded, and admitted
	left      verdictOf
	begun     bool // a journal knows of it
	answered  bool // a final response head came
	respBytes int64
	status    int
	prompt    int64 // bytes of the canonical prompt
	charged   int   // bytes that it holds of the engine's budget for bodies
	echo      *openai.Echo

	promptTokens int64 // of the prompt's texts; −1: not counted
	talk         *conversation
	resp         *openai.Response
	decode       *bodyDecoder
	last         int64 // last byte of either direction
	live         bool  // on the engine's list
	older        *exchange
	newer        *exchange
}

func newDialogue(e *engine, server string, opened bool, clock formats.Clock) *dialogue {
	e.dialogues++
	d := &dialogue{e: e, id: e.dialogues, server: server, opened: opened}
	for i := range d.half {
		d.half[i].to = d
		d.half[i].request = i == fromClient
		if !opened {
			d.half[i].state, d.half[i].resync = searching, true
		}
	}
	return d
}

// data takes bytes of one direction that became available in order at the given time.
func (d *dialogue) data(dir int, p []byte, at int64, flags int32) { d.half[dir].data(p, at, flags) }

// gap says that n bytes of one direction are missing. truncated: the snap length cut them, they were not lost.
func (d *dialogue) gap(dir int, n int64, truncated bool) {
	note := func(x *exchange) {
		if truncated {
			x.x.Truncated = formats.Of(true)
		} else {
			x.x.GapBytes = formats.Of(x.x.GapBytes.Or(0) + n)
		}
	}
	inside := d.half[dir].within(n)
	for i, x := range d.open { // unless it is inside a body, a whole message may be missing among them
		if !inside || dir == fromServer && i == 0 || dir == fromClient && x == d.req {
			note(x)
		}
	}
	if dir == fromClient && !inside {
		d.holes = true
	}
	d.half[dir].lost(n)
}

// begin is the first byte of a message.
func (d *dialogue) begin(request bool, at int64) {
	if !request {
		d.respAt = at
		return
	}
	if d.req != nil { // its end was lost
		d.req.damaged = true
		d.endRequest(at)
	}
	if d.unheard {
		d.cutOpen(at)
	}
	if !d.half[fromServer].framed() {
		// A client sends its next request when it has the answer: what is still open has ended inside the loss.
		d.cutOpen(d.half[fromServer].lostAt)
		d.half[fromServer].state = searching
	}
	d.reqAt = at
}

// cutOpen ends the exchanges that are open where no more is seen of them.
func (d *dialogue) cutOpen(at int64) {
	for len(d.open) > 0 {
		d.finish(d.open[0], at, closedCut, fromServer)
	}
}

// Requests of one connection that wait for answers are so many at most; fewer where those of all connections take much memory.
const (
	maxPipelined = 1024
	fewPipelined = 8
)

// pipelined meets requests upon requests without an answer, as a capture of one side has them, or somebody who means harm: from then on
// the answers are not read, which could not be told apart.
func (d *dialogue) pipelined(at int64) {
	if n := len(d.open); n <= fewPipelined || n <= maxPipelined && !d.e.crowded() {
		return
	}
	d.e.stats.Notes["pipelined_over_cap"]++
	d.unheard = true
	d.half[fromServer].forget()
	d.half[fromServer].state = opaque
	for len(d.open) > 1 {
		d.finish(d.open[0], at, closedCut, fromServer)
	}
}

// hold counts what is held of heads that are not whole. Where those of all connections take too much, the connection that holds most is
// read no further.
func (d *dialogue) hold(n int) {
	if d.heads += n; d.heads > 0 {
		d.e.heading[d] = struct{}{}
	} else {
		delete(d.e.heading, d)
	}
	for d.e.heads += n; n > 0 && d.e.heads > d.e.mostHeads(); {
		worst := d
		for other := range d.e.heading {
			if other.heads > worst.heads {
				worst = other
			}
		}
		d.e.stats.Notes["heads_over_memory"]++
		worst.giveUp()
	}
}

// forgetHeads lets go of heads that will not be whole any more.
func (d *dialogue) forgetHeads() {
	for i := range d.half {
		d.half[i].forget()
	}
}

// giveUp reads no more of the connection.
func (d *dialogue) giveUp() {
	for i := range d.half {
		d.half[i].forget()
		d.half[i].state = opaque
	}
	d.cutOpen(d.half[fromServer].lostAt)
}

// head is a whole head.
func (d *dialogue) head(request bool, h *head, at int64) framing {
	if request {
		return d.requestHead(h, at)
	}
	return d.responseHead(h, at)
}

func (d *dialogue) requestHead(h *head, at int64) framing {
	d.count++
	e := &exchange{method: h.method, path: h.path, encoding: h.encoding, upgrade: h.upgrade, last: at, promptTokens: -1}
	x := &formats.Exchange{Phase: formats.PhaseRecord, ArrivalUnixNS: d.reqAt, SentNS: formats.Of[int64](0), ServerID: d.server, Node: d.e.o.Node, Clock: d.e.o.clock}
	e.x = x
	x.Endpoint = openai.Endpoint(h.path)
	e.keep = x.Endpoint != formats.EndpointOther && h.method == "POST"
	if d.opened || d.holes || d.count > 1 {
		x.ConnReused = formats.Of(d.holes || d.count > 1) // bytes that are missing before it were of an earlier request
	}
	x.Midstream = formats.Of(!d.opened)
	if k := d.e.hash; k != nil {
		if h.requestID != "" {
			x.CorrelationID = formats.Of(k.Sum("request", h.requestID))
		}
		switch {
		case h.tenant != "":
			x.TenantID = formats.Of(k.Sum("tenant", h.tenant))
		case h.auth != "":
			x.TenantID = formats.Of(k.Sum("tenant", h.auth))
		}
		if h.session != "" {
			x.SessionID = formats.Of(k.Sum("session", h.session))
		}
	}
	if e.keep {
		d.refuse(e, d.e.o.admit.head(h.path, x, d.id))
	}
	d.req = e
	d.open = append(d.open, e)
	d.e.opened(e)
	d.pipelined(at)
	switch {
	case h.method == "CONNECT":
		return framing{kind: bodyOpaque}
	case h.chunked:
		return framing{kind: bodyChunked}
	case h.badTE:
		return framing{kind: bodyOpaque}
	case h.length > 0:
		return framing{kind: bodyLength, length: h.length}
	}
	return framing{kind: bodyNone}
}

func (d *dialogue) responseHead(h *head, at int64) framing {
	if h.status == 101 {
		if len(d.open) > 0 && !d.open[0].upgrade { // nobody asked for it
			d.broken(false, nil, at)
			return framing{kind: bodyOpaque}
		}
		for len(d.open) > 0 {
			d.refuse(d.open[0], verdictOf{droppedUpgrade, true})
			d.finish(d.open[0], at, closedFIN, fromServer)
		}
		d.half[fromClient].state = opaque
		return framing{kind: bodyOpaque}
	}
	if h.status < 200 {
		return framing{kind: bodySkipHead}
	}
	d.skip = len(d.open) == 0
	method := ""
	if d.skip {
		d.e.stats.Dropped["no_request"]++
	} else {
		e := d.open[0]
		if e.answered { // the end of the response before was lost, and with it perhaps this one's request
			d.finish(e, d.half[fromServer].lostAt, closedCut, fromServer)
			if d.skip = len(d.open) == 0; !d.skip {
				e = d.open[0]
			}
		}
		if !d.skip {
			method = e.method
			d.startResponse(e, h)
		}
	}
	switch {
	case method == "HEAD" || h.status == 204 || h.status == 304:
		return framing{kind: bodyNone}
	case h.chunked:
		return framing{kind: bodyChunked}
	case h.length >= 0 && !h.badTE:
		return framing{kind: bodyLength, length: h.length}
	}
	return framing{kind: bodyToClose}
}

func (d *dialogue) startResponse(e *exchange, h *head) {
	x := e.x
	e.answered, e.status = true, h.status
	x.ResponseHeaderNS = formats.Of(d.respAt - x.ArrivalUnixNS)
	x.Status = formats.Of(int32(h.status))
	if k := d.e.hash; k != nil && h.requestID != "" && !x.CorrelationID.Valid {
		x.CorrelationID = formats.Of(k.Sum("request", h.requestID))
	}
	d.marks.reset()
	if e.keep {
		e.resp = openai.NewResponse(x, h.status, h.mime)
		e.resp.Expect(e.echo)
		if d.e.lengths.counter != nil && answers(x) {
			e.resp.KeepText(maxAnswerText)
		}
		if h.encoding != "" && h.encoding != "identity" {
			e.decode = newBodyDecoder(h.encoding)
		}
	}
}

// body takes bytes of a body.
func (d *dialogue) body(request bool, p []byte, at int64, flags int32) {
	if request {
		e := d.req
		if e == nil {
			return
		}
		e.last = at
		e.bodySize += int64(len(p))
		if !e.keep || e.overCap || e.damaged {
			return
		}
		if len(e.body)+len(p) > d.e.o.MaxBody || d.e.bodies+len(p) > d.e.o.MaxBodies {
			d.letGo(e)
			e.overCap = true
			d.e.stats.Notes["request_over_cap"]++
			return
		}
		d.charge(e, len(p))
		e.body = append(e.body, p...)
		return
	}
	if d.skip || len(d.open) == 0 {
		return
	}
	e := d.open[0]
	e.last = at
	e.respBytes += int64(len(p))
	if e.resp == nil {
		return
	}
	at -= e.x.ArrivalUnixNS
	before := e.resp.TextSize()
	if e.decode != nil {
		e.decode.write(p, func(out []byte) { e.resp.Write(out, at, flags) })
	} else {
		e.resp.Write(p, at, flags)
	}
	if more := e.resp.TextSize() - before; more != 0 {
		if d.charge(e, more); d.e.bodies > d.e.o.MaxBodies {
			d.charge(e, -e.resp.TextSize())
			e.resp.DropText()
			d.e.stats.Notes["answer_over_cap"]++
		}
	}
}

// lost says that bytes of a body are missing.
func (d *dialogue) lost(request bool, n int64) {
	if request {
		if d.req != nil {
			d.req.damaged = true
			d.req.bodySize += n
		}
		return
	}
	if d.skip || len(d.open) == 0 {
		return
	}
	if e := d.open[0]; e.resp != nil {
		if e.decode != nil {
			e.decode.close()
			e.decode = brokenDecoder()
		}
		e.resp.Lost(n)
	}
}

// end is the last byte of a message.
func (d *dialogue) end(request bool, at int64) {
	if request {
		d.endRequest(at)
		return
	}
	if !d.skip && len(d.open) > 0 {
		d.finish(d.open[0], at, closedFIN, fromServer)
	}
	d.skip = false
}

// endRequest reads the request's columns and lets its body go.
func (d *dialogue) endRequest(at int64) {
	e := d.req
	d.req = nil
	if e == nil {
		return
	}
	e.reqDone = true
	x := e.x
	if !e.damaged {
		x.RequestEndNS = formats.Of(at - x.ArrivalUnixNS)
	}
	d.readRequest(e)
}

func (d *dialogue) readRequest(e *exchange) {
	if !e.keep {
		return
	}
	x, body := e.x, e.body
	d.letGo(e)
	if e.damaged || e.overCap {
		body = nil
	} else if e.encoding != "" && e.encoding != "identity" {
		body = decodeAll(e.encoding, body, d.e.o.MaxBody)
	}
	if err := openai.ReadRequest(x, e.path, body, d.e.hash); err != nil && !e.damaged {
		d.e.stats.Notes["request_unreadable"]++
	} else if err == nil {
		if d.e.hash != nil {
			e.prompt = d.e.hash.PromptBytes()
			e.promptTokens = -1
			if n, ok := d.e.hash.PromptTokens(); ok {
				e.promptTokens = n
			}
		}
		if e.echo = openai.Echoed(x.Endpoint, body); d.e.bodies+e.echo.Size() <= d.e.o.MaxBodies {
			d.charge(e, e.echo.Size())
		} else {
			e.echo = e.echo.Unknown()
		}
		e.talk = d.e.o.talks.assign(x, d.e.hash)
	}
	x.RequestBytes = formats.Of(e.bodySize)
	if e.damaged {
		x.RequestBytes.Valid = false
	}
	if d.refuse(e, d.e.o.admit.request(x, d.id)); e.keep {
		d.e.o.keep.take(x, body, e.overCap)
	}
	d.begun(e)
}

// unframed says that a direction is in the middle of something whose beginning is missing.
func (d *dialogue) unframed(bool) {
	for _, e := range d.open {
		if !e.x.GapBytes.Valid && !e.x.Truncated.Valid {
			e.x.Midstream = formats.Of(true) // its beginning was not lost in a known place: the capture joined after it
		}
	}
}

// broken says that a direction's bytes are no HTTP.
func (d *dialogue) broken(request bool, b []byte, at int64) {
	notes := d.e.stats.Notes
	switch {
	case d.count > 0:
		notes["protocol_errors"]++
		if !request {
			for len(d.open) > 0 {
				d.finish(d.open[0], at, closedBroken, fromServer)
			}
			d.half[fromClient].state = opaque
		}
		return
	case len(b) > 2 && b[0] == 0x16 && b[1] == 3:
		notes["tls_connections"]++
	case len(b) >= 14 && string(b[:14]) == "PRI * HTTP/2.0":
		notes["http2_connections"]++
	case request && len(b) > maxHead:
		notes["heads_too_large"]++
	case request && malformed(b):
		notes["protocol_errors"]++
	default:
		notes["not_http_connections"]++
	}
	d.half[fromClient].state, d.half[fromServer].state = opaque, opaque
}

// close ends one direction.
func (d *dialogue) close(dir int, how closing, at int64) {
	if d.closed[dir] && how == closedFIN {
		return
	}
	if !d.closed[dir] {
		d.closed[dir], d.closedAt[dir] = true, at
	}
	for i := range d.half { // what came of a head is all that comes
		if i == dir || how != closedFIN {
			d.half[i].forget()
		}
	}
	if how == closedFIN && dir == fromClient {
		if d.req != nil { // it sent half a request
			d.req.damaged = true
			d.endRequest(at)
		}
		return // it may still read
	}
	if d.half[fromServer].state == toClose && how == closedFIN && len(d.open) > 0 && !d.skip {
		d.half[fromServer].state = atMessage
		d.finish(d.open[0], at, closedFIN, fromServer)
	}
	for len(d.open) > 0 {
		d.finish(d.open[0], at, how, dir)
	}
	d.req = nil
}

// finish ends the oldest exchange. how and who say what ended it where its response is not whole.
func (d *dialogue) finish(e *exchange, at int64, how closing, who int) {
	d.open = d.open[1:]
	if e == d.req {
		d.req = nil
		if !e.reqDone {
			e.damaged = true // as far as we saw
			d.readRequest(e)
		}
	}
	if e.decode != nil {
		defer e.decode.close()
	}
	if !e.keep {
		d.leaveOut(e)
		return
	}
	x := e.x
	srv := &d.half[fromServer]
	whole := e.answered && srv.state == atMessage && how == closedFIN
	if e.answered {
		x.ResponseBytes = formats.Of(e.respBytes)
	}
	end := at - x.ArrivalUnixNS
	switch {
	case whole:
	case how == closedBroken:
		x.EndReason, x.ErrorKind = formats.EndServerAbort, formats.ErrorProtocol
	case e.resp != nil && e.resp.Done():
		end, whole = e.last-x.ArrivalUnixNS, true // the stream said that it was over; only its framing is cut
	case how == closedCut || how == closedIdle || d.deaf && !e.answered:
		x.EndReason = formats.EndCaptureCut
		end = e.last - x.ArrivalUnixNS
	case who == fromClient || d.closed[fromClient]:
		x.EndReason = formats.EndClientAbort
		if d.closed[fromClient] {
			end = max(d.closedAt[fromClient], e.last) - x.ArrivalUnixNS
		}
	case !srv.framed():
		x.EndReason = formats.EndCaptureCut
		end = e.last - x.ArrivalUnixNS
	}
	if e.resp != nil {
		if e.decode != nil && !e.decode.finish(func(out []byte) { e.resp.Write(out, end, 0) }) && whole {
			d.e.stats.Notes["response_undecodable"]++
		}
		e.resp.End(end, whole)
		if e.resp.Misstated() {
			d.e.stats.Notes["usage_misstated"]++
		}
		if id := e.resp.ID(); id != "" && e.talk != nil {
			d.e.o.talks.answer(d.e.hash.Sum("response", id), e.talk, x)
		}
	} else if x.EndReason == "" {
		x.EndReason, x.ErrorKind = formats.EndServerAbort, formats.ErrorReset
		x.EndNS = formats.Of(end)
	} else {
		x.EndNS = formats.Of(end)
	}
	if d.refuse(e, d.e.o.admit.over(x)); !e.keep {
		d.leaveOut(e)
		return
	}
	d.over = append(d.over, e)
}
