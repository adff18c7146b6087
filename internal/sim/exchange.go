package sim

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/shadowtape/shadowtape/internal/engine"
	"github.com/shadowtape/shadowtape/internal/stats"
)

// exchange is one request on its way. Its goroutine fills it, submits it and waits for done; from then on it is the driver's.
type exchange struct {
	server  *Server
	conn    *conn
	arrived time.Duration
	id      string // x-request-id
	last    bool   // the connection closes after the answer
	http10  bool
	broken  bool // a fault ended the connection
	done    chan struct{}

	endpoint     string
	object       string // of chunks or of the answer
	apiID        string
	model        []byte // as a JSON string
	chat         bool
	stream       bool
	usage        bool // a usage chunk at the end
	everyUsage   bool // usage on every chunk
	base64       bool // of embeddings
	inputTokens  int
	choices      []choice
	perPrompt    int // choices of each prompt
	open         int // choices that have not ended
	fault        string
	faultAt      int // tokens over all choices before a fault half way
	stalledUntil time.Duration
	stash        []emission // while stalled

	times     []int64 // of tokens, nanoseconds since 1970
	order     []int   // their choices
	responded int64
	how       string // end of the emission log; "" while it goes on
}

// choice is one answer among an exchange's.
type choice struct {
	exchange *exchange
	index    int
	request  engine.Request
	seed     uint64 // of its words
	finish   string // what it will end with
	words    int    // rendered
	ended    bool
	chunk    []byte // a rendered token event; its word is overwritten for each token
	at       int    // where in chunk
}

// abort tells the driver that the client has gone. It may come after the end.
func (ex *exchange) abort() {
	select {
	case <-ex.done:
		return
	default:
	}
	ex.server.mu.Lock()
	ex.server.aborts = append(ex.server.aborts, ex)
	ex.server.mu.Unlock()
	ex.server.waiter.wake()
}

// end closes the books of an exchange. Only the first end counts.
func (ex *exchange) end(how string) {
	if ex.how != "" {
		return
	}
	ex.how = how
	if ex.responded == 0 {
		ex.responded = ex.server.startNS + int64(ex.server.now())
	}
	if ex.server.o.EmissionLog != nil && ex.endpoint != "" {
		ex.server.logs <- logEntry{exchange: ex}
	}
	close(ex.done)
	if ex.last { // its connection ends with it: serve reads no further
		_ = ex.conn.net.SetReadDeadline(time.Unix(1, 0)) // fails only on a closed connection
	}
}

// reply answers an exchange that never reached the engine.
func (ex *exchange) reply(status int, contentType string, body []byte) {
	ex.conn.send(plainResponse(status, contentType, body, ex.id, ex.last))
	ex.end("complete")
}

func (ex *exchange) replyJSON(status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		b = errorBody(500, "InternalServerError", err.Error())
		status = 500
	}
	ex.reply(status, "application/json", b)
}

func (ex *exchange) fail(status int, kind, message string) {
	ex.reply(status, "application/json", errorBody(status, kind, message))
}

// errorBody is vLLM's error document.
func errorBody(status int, kind, message string) []byte {
	b, _ := json.Marshal(map[string]any{"error": map[string]any{"message": message, "type": kind, "param": nil, "code": status}})
	return b
}

// cachedTokens counts each prompt once: its first choice's.
func (ex *exchange) cachedTokens() (n int) {
	for i := 0; i < len(ex.choices); i += ex.perPrompt {
		n += ex.choices[i].request.Cached
	}
	return n
}

// emit hands one of the engine's events to the client.
func (ex *exchange) emit(e emission) {
	if ex.how != "" {
		return
	}
	if ex.stalledUntil != 0 {
		ex.stash = append(ex.stash, e)
		return
	}
	if ex.faultAt > 0 && len(ex.times) >= ex.faultAt && ex.breakOff(e) {
		return
	}
	c := e.choice
	b := ex.server.scratch[:0]
	if e.token && ex.stream && len(ex.times) == 0 {
		b = ex.appendRoles(b)
	}
	if !e.token || c.words+1 == c.request.Output {
		c.ended = true
		ex.open--
	}
	if e.token {
		if ex.stream {
			b = ex.appendToken(b, c)
		}
		c.words++
	}
	if ex.open == 0 {
		if ex.stream {
			b = ex.appendEnd(b)
		} else {
			b = ex.appendAnswer(b)
		}
	}
	now := ex.server.startNS + int64(ex.server.now())
	if len(b) > 0 {
		ex.conn.send(b)
	}
	ex.server.scratch = b
	if e.token {
		if !ex.stream {
			now = ex.server.startNS + int64(e.at)
		}
		ex.times = append(ex.times, now)
		if len(ex.choices) > 1 {
			ex.order = append(ex.order, c.index)
		}
	}
	if ex.open == 0 {
		ex.end("complete")
	}
}

// breakOff does what a fault half way does, and reports whether the event that met it is dealt with.
func (ex *exchange) breakOff(e emission) bool {
	at := ex.faultAt
	ex.faultAt = 0
	s := ex.server
	switch ex.fault {
	case "stall":
		ex.stalledUntil = s.now() + s.o.StallTime
		ex.stash = append(ex.stash, e)
		time.AfterFunc(s.o.StallTime, func() {
			s.mu.Lock()
			s.resumes = append(s.resumes, ex)
			s.mu.Unlock()
			s.waiter.wake()
		})
		return true
	case "error":
		body := errorBody(500, "InternalServerError", "injected fault")
		if ex.stream {
			b := ex.appendEvent(nil, body)
			b = ex.appendEvent(b, []byte("[DONE]"))
			ex.conn.send(ex.appendLastChunk(b))
		} else {
			ex.conn.send(plainResponse(500, "application/json", body, ex.id, ex.last))
		}
	case "reset", "cut":
		ex.broken = true
		ex.conn.close(ex.fault == "reset")
	default:
		ex.faultAt = at
		return false
	}
	s.mu.Lock()
	if s.engine != nil {
		s.abandon(ex)
	}
	s.mu.Unlock()
	ex.end(ex.fault)
	return true
}

// resume ends a stall.
func (ex *exchange) resume() {
	ex.stalledUntil = 0
	stash := ex.stash
	ex.stash = nil
	for _, e := range stash {
		ex.emit(e)
	}
}

// appendEvent appends one server-sent event, as a chunk of its own where there are chunks.
func (ex *exchange) appendEvent(b, data []byte) []byte {
	if !ex.last {
		b = strconv.AppendInt(b, int64(len(data)+8), 16)
		b = append(b, "\r\n"...)
	}
	b = append(b, "data: "...)
	b = append(b, data...)
	b = append(b, "\n\n"...)
	if !ex.last {
		b = append(b, "\r\n"...)
	}
	return b
}

func (ex *exchange) appendLastChunk(b []byte) []byte {
	if ex.last {
		return b
	}
	return append(b, "0\r\n\r\n"...)
}

// appendDocument opens a chunk or answer up to its choices.
func (ex *exchange) appendDocument(b []byte) []byte {
	b = append(b, `{"id":"`...)
	b = append(b, ex.apiID...)
	b = append(b, `","object":"`...)
	b = append(b, ex.object...)
	b = append(b, `","created":`...)
	b = strconv.AppendInt(b, (ex.server.startNS+int64(ex.arrived))/1e9, 10)
	b = append(b, `,"model":`...)
	return append(b, ex.model...)
}

// appendUsage appends the usage object for n generated tokens.
func (ex *exchange) appendUsage(b []byte, n int) []byte {
	b = append(b, `"usage":{"prompt_tokens":`...)
	b = strconv.AppendInt(b, int64(ex.inputTokens), 10)
	b = append(b, `,"total_tokens":`...)
	b = strconv.AppendInt(b, int64(ex.inputTokens+n), 10)
	if ex.endpoint != "embeddings" {
		b = append(b, `,"completion_tokens":`...)
		b = strconv.AppendInt(b, int64(n), 10)
	}
	b = append(b, `,"prompt_tokens_details":{"cached_tokens":`...)
	b = strconv.AppendInt(b, int64(ex.cachedTokens()), 10)
	return append(b, `}}`...)
}

// appendRoles appends the chunks that open a chat answer, one a choice.
func (ex *exchange) appendRoles(b []byte) []byte {
	if !ex.chat {
		return b
	}
	for i := range ex.choices {
		d := ex.appendDocument(nil)
		d = append(d, `,"choices":[{"index":`...)
		d = strconv.AppendInt(d, int64(i), 10)
		d = append(d, `,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]`...)
		if ex.everyUsage {
			d = append(d, ',')
			d = ex.appendUsage(d, 0)
		}
		b = ex.appendEvent(b, append(d, '}'))
	}
	return b
}

// appendToken appends the chunk of a choice's next token. All but the last are alike: they are rendered once and their word overwritten.
func (ex *exchange) appendToken(b []byte, c *choice) []byte {
	first, second := word(c.seed, c.words)
	if c.ended || ex.everyUsage {
		d, _ := ex.tokenDocument(c, first, second)
		return ex.appendEvent(b, d)
	}
	if c.chunk == nil {
		d, at := ex.tokenDocument(c, first, second)
		c.chunk = ex.appendEvent(nil, d)
		c.at = len(c.chunk) - len(d) - 2 + at
		if !ex.last {
			c.at -= 2
		}
	}
	c.chunk[c.at], c.chunk[c.at+1] = first, second
	return append(b, c.chunk...)
}

// tokenDocument renders a token's chunk and says where its letters stand.
func (ex *exchange) tokenDocument(c *choice, first, second byte) (d []byte, at int) {
	d = ex.appendDocument(make([]byte, 0, 256))
	d = append(d, `,"choices":[{"index":`...)
	d = strconv.AppendInt(d, int64(c.index), 10)
	if ex.chat {
		d = append(d, `,"delta":{"content":" `...)
	} else {
		d = append(d, `,"text":" `...)
	}
	at = len(d)
	d = append(d, first, second, '"')
	if ex.chat {
		d = append(d, '}')
	}
	d = append(d, `,"logprobs":null,"finish_reason":`...)
	d = c.appendFinish(d)
	d = append(d, `,"token_ids":null}]`...)
	if ex.everyUsage {
		d = append(d, ',')
		d = ex.appendUsage(d, len(ex.times)+1)
	}
	return append(d, '}'), at
}

// appendFinish appends the finish reason, and the stop reason after one.
func (c *choice) appendFinish(d []byte) []byte {
	if !c.ended {
		return append(d, "null"...)
	}
	d = append(d, '"')
	d = append(d, c.finish...)
	return append(d, `","stop_reason":null`...)
}

// appendEnd appends what follows a stream's last token.
func (ex *exchange) appendEnd(b []byte) []byte {
	if ex.usage {
		d := ex.appendDocument(nil)
		d = append(d, `,"choices":[],`...)
		d = ex.appendUsage(d, len(ex.times)+1)
		b = ex.appendEvent(b, append(d, '}'))
	}
	return ex.appendLastChunk(ex.appendEvent(b, []byte("[DONE]")))
}

// appendAnswer appends the whole answer of an exchange that is not streamed.
func (ex *exchange) appendAnswer(b []byte) []byte {
	var d []byte
	if ex.endpoint == "embeddings" {
		d = ex.embeddings()
	} else {
		d = ex.appendDocument(nil)
		d = append(d, `,"choices":[`...)
		total := 0
		for i := range ex.choices {
			c := &ex.choices[i]
			total += c.words
			if i > 0 {
				d = append(d, ',')
			}
			d = append(d, `{"index":`...)
			d = strconv.AppendInt(d, int64(i), 10)
			if ex.chat {
				d = append(d, `,"message":{"role":"assistant","content":"`...)
			} else {
				d = append(d, `,"text":"`...)
			}
			for k := range c.words {
				first, second := word(c.seed, k)
				d = append(d, ' ', first, second)
			}
			d = append(d, '"')
			if ex.chat {
				d = append(d, '}')
			}
			d = append(d, `,"logprobs":null,"finish_reason":`...)
			d = append(c.appendFinish(d), '}')
		}
		d = append(d, `],`...)
		d = append(ex.appendUsage(d, total), '}')
	}
	b = append(b, head(200, "application/json", len(d), ex.id, ex.last, "")...)
	return append(b, d...)
}

// embeddings renders a list of small vectors, a function of each prompt.
func (ex *exchange) embeddings() []byte {
	const dimensions = 16
	type vector struct {
		Object    string `json:"object"`
		Index     int    `json:"index"`
		Embedding any    `json:"embedding"`
	}
	data := make([]vector, len(ex.choices))
	for i := range ex.choices {
		v := make([]float32, dimensions)
		for k := range v {
			v[k] = float32(stats.Scatter(ex.choices[i].seed+uint64(k))>>40)/(1<<23) - 1
		}
		data[i] = vector{"embedding", i, v}
		if ex.base64 {
			raw := make([]byte, 0, 4*dimensions)
			for _, x := range v {
				raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(x))
			}
			data[i].Embedding = base64.StdEncoding.EncodeToString(raw)
		}
	}
	list, _ := json.Marshal(data)
	d := fmt.Appendf(nil, `{"id":"%s","object":"list","created":%d,"model":%s,"data":%s,`, ex.apiID, ex.server.startNS/1e9, ex.model, list)
	return append(ex.appendUsage(d, 0), '}')
}
