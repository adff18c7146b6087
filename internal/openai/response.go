package openai

import (
	"bytes"
	"math"
	"strconv"
	"strings"

	"github.com/shadowtape/shadowtape/formats"
)

// Response follows one HTTP response and fills an Exchange from it: the one definition of first token, gaps, usage and end, used on
// the wire by the recorder and in the client by the replayer. Feed it the decoded body (no chunk framing, no compression) as it
// arrives. It keeps no text and its memory does not grow with the size of an event. Not safe for concurrent use.
type Response struct {
	x       *formats.Exchange
	mode    bodyMode
	status  int
	now     int64 // of the current Write
	written int64 // body bytes
	writes  int   // counts Writes, to see which events share one

	sse   eventLines
	json  scanner
	ev    event
	shape shape

	choices   []choiceState
	streamed  bool // the body is a stream of events: event stream or NDJSON
	several   bool // more than one choice
	contUsage triState
	misstated bool
	use       usage
	lastAt    int64 // of the last token event
	lastWrite int
	textBytes int64
	failed    bool // an error in the stream
	bad       bool // an event or body that is no JSON
	done      bool // the stream has said that it is over
	lost      bool // bytes are missing
	gapNext   bool // the next event follows a loss
	statusEnd string
	id        string // of a Responses object
	stateful  bool   // the event being read set something that outlives it
	cutList   bool
	texts     *texts // nil: no text is looked at
	first     []byte // bytes from which the mode cannot be told yet
	ended     bool
}

type bodyMode uint8

const (
	modeUnknown bodyMode = iota // not decided: no byte seen
	modeStream                  // server-sent events
	modeJSON                    // one value, or several, one a line
	modePage                    // a web page
	modeOther                   // none of these
)

type triState uint8

const (
	unset triState = iota
	yes
	no
)

// event is what is known of the event (or value) being read.
type event struct {
	data    bool // it has data
	kind    [48]byte
	kindN   int
	deltas  []delta
	open    bool  // deltas' last is open: its element has not ended
	top     delta // what stands outside choices
	str     bool  // a top-level delta string with something in it
	use     usage
	counted bool                // use has something
	each    formats.Null[int64] // usageEach
	failure bool
	done    bool
	flags   int32
	bytes   int64 // of generated text
	spans   []textSpan
	raw     []byte // the strings of spans, as they stand in the JSON
}

// delta is what one event brought to one choice.
type delta struct {
	index   int32
	answer  bool
	reason  bool
	tool    bool
	ids     int32
	probs   int32
	special bool
	finish  string
	echo    bool // it may hold the echoed prompt
}

type choiceState struct {
	seen   bool
	finish string
	usage  int64 // last continuous count
	tokens int64 // counted
	known  bool  // tokens is exact
}

type usage struct {
	in, out, total, cached, reason formats.Null[int64]
	inRest, inRead, inWritten      formats.Null[int64]
	outCount, inCount              formats.Null[int64]
}

// maxEvents bounds the event lists of one exchange; a longer stream keeps its times and counts and loses its lists.
const maxEvents = 1 << 20

// maxChoices bounds the choice index that is followed.
const maxChoices = 1024

// NewResponse starts a response to the request that x describes (its Endpoint, Stream and N steer the parser). contentType is the
// header's value.
func NewResponse(x *formats.Exchange, status int, contentType string) *Response {
	r := &Response{x: x, status: status}
	x.Status = formats.Of(int32(status))
	r.json.to, r.json.root = r, table
	r.json.reset()
	r.sse.to = r
	r.several = x.N.Or(1) > 1 || x.Endpoint == formats.EndpointCompletions && x.PromptCount.Or(1) > 1
	ct, _, _ := strings.Cut(contentType, ";")
	switch ct = strings.ToLower(strings.TrimSpace(ct)); {
	case ct == "text/event-stream":
		r.mode, r.streamed = modeStream, true
	case strings.HasSuffix(ct, "ndjson") || strings.HasSuffix(ct, "jsonl") || strings.HasSuffix(ct, "json-lines"):
		r.mode, r.streamed = modeJSON, true
	case ct == "text/html":
		r.mode = modePage
	}
	return r
}

// Write takes body bytes that all became available at one instant: at is in nanoseconds from x.ArrivalUnixNS, flags are formats.Flag
// bits of the packets or read they came in. It keeps no reference to p. Events that complete in one Write, or at one time, are
// coalesced.
func (r *Response) Write(p []byte, at int64, flags int32) {
	if len(p) == 0 || r.ended {
		return
	}
	r.now = at
	r.writes++
	r.written += int64(len(p))
	r.ev.flags |= flags
	if r.mode == modeUnknown {
		r.first = append(r.first, p...)
		r.first = append(r.first[:0], r.first[leading(r.first):]...)
		if r.mode = sniff(r.first); r.mode == modeUnknown {
			return
		}
		p, r.first = r.first, nil
		r.streamed = r.mode == modeStream
	}
	switch r.mode {
	case modeStream:
		r.sse.write(p, flags)
	case modeJSON:
		r.values(p, flags)
	}
}

// leading is how many bytes of white space and byte order mark a body starts with.
func leading(p []byte) int {
	for i, c := range p {
		switch c {
		case ' ', '\t', '\r', '\n', 0xef, 0xbb, 0xbf:
		default:
			return i
		}
	}
	return len(p)
}

// sniff decides by the first bytes of a body that is not declared an event stream.
func sniff(p []byte) bodyMode {
	if len(p) == 0 {
		return modeUnknown
	}
	switch p[0] {
	case '{', '[', '"':
		return modeJSON
	case ':':
		return modeStream
	case '<':
		return modePage
	}
	for _, s := range [...]string{"data:", "event:", "error:", "id:", "retry:"} {
		n := min(len(p), len(s))
		if string(p[:n]) != s[:n] {
			continue
		}
		if n < len(s) {
			return modeUnknown
		}
		return modeStream
	}
	return modeOther
}

// Lost says that n body bytes are missing here (0: an unknown number). A stream goes on at the next event that is whole; a JSON body
// cannot be read any more.
func (r *Response) Lost(n int64) {
	r.lost = true
	r.gapNext = true
	r.ev.flags |= formats.FlagGap
	if r.mode == modeStream {
		r.sse.lost()
		r.resetEvent()
		r.ev.flags |= formats.FlagGap
		return
	}
	r.json.state = valueBad
}

// values reads a body of one or several JSON values.
func (r *Response) values(p []byte, flags int32) {
	for len(p) > 0 {
		if r.json.state == valueDone {
			p = bytes.TrimLeft(p, " \t\r\n")
			if len(p) == 0 {
				return
			}
			r.dispatch()
			r.ev.flags = flags
		}
		n := r.json.feed(p)
		r.ev.data = r.ev.data || r.json.wrote
		if r.json.state == valueBad {
			return
		}
		p = p[n:]
		// A value that a newline follows is an event of its own at once (NDJSON); the only value of a body is closed by End.
		if r.json.state == valueDone && len(p) > 0 && (p[0] == '\n' || p[0] == '\r') {
			if r.dispatch(); len(p) > 1 {
				r.ev.flags |= flags
			}
		}
	}
}

func (r *Response) resetEvent() {
	r.ev = event{deltas: r.ev.deltas[:0], spans: r.ev.spans[:0], raw: r.ev.raw[:0]}
	r.json.reset()
}

// cur is the delta that a field belongs to.
func (r *Response) cur() *delta {
	if r.ev.open {
		return &r.ev.deltas[len(r.ev.deltas)-1]
	}
	return &r.ev.top
}

// open is called when a container at a table position opens.
func (r *Response) open(f field) {
	switch f {
	case choice:
		if len(r.ev.deltas) < maxChoices {
			r.ev.deltas = append(r.ev.deltas, delta{})
			r.ev.open = true
		}
	case failure:
		r.ev.failure = true
	case logprob:
		r.cur().probs++
	}
}

// close is called when it closes.
func (r *Response) close(f field) {
	if f == choice {
		r.ev.open = false
	}
}

// scalar is called for a scalar at a table position: kind is the first byte of its text ('0' for a number, '"' for a string), size the
// length of the whole text, of which text is the beginning.
func (r *Response) scalar(f field, kind byte, text []byte, size int) {
	if kind == 'n' {
		return
	}
	some := kind == '"' && size > 0
	switch f {
	case content, refusal, sound:
		if some {
			r.cur().answer = true
			r.ev.bytes += int64(size)
		}
	case reasoning:
		if some {
			r.cur().reason = true
			r.ev.bytes += int64(size)
		}
	case tool:
		if some {
			r.cur().tool = true
			r.ev.bytes += int64(size)
		}
	case cumulative:
		if some {
			r.cur().special = true
		}
	case eventDelta:
		r.ev.str = some
		if some {
			r.ev.bytes += int64(size)
		}
	case tokenID:
		r.cur().ids++
	case logprob:
		r.cur().probs++
	case choiceIndex:
		if n, ok := integer(text); ok && kind == '0' {
			r.cur().index = int32(min(n, maxChoices))
		}
	case finish:
		if w := finishReason(text); kind == '"' && w != "" {
			r.cur().finish = w
		}
	case status, incomplete:
		r.stateful = true
		if kind == '"' {
			r.statusEnd = responseStatus(f, text, r.statusEnd)
		}
	case objectKind:
		r.ev.failure = r.ev.failure || string(text) == "error"
	case eventType:
		r.setKind(text)
	case failure:
		r.ev.failure = true
	case doneFlag:
		if kind == 't' {
			r.ev.done = true
			if r.ev.top.finish == "" {
				r.ev.top.finish = "stop"
			}
		}
	case stopFlag:
		if kind == 't' && r.cur().finish == "" {
			r.cur().finish = "stop"
		}
	case answerID:
		if some && size <= maxText && r.x.Endpoint == formats.EndpointResponses {
			r.id = string(text)
		}
	case modelName:
		if some && size <= maxText {
			r.x.ResponseModel = string(text)
		}
	default:
		r.usageField(f, kind, text)
	}
}

func (r *Response) usageField(f field, kind byte, text []byte) {
	if kind != '0' {
		return
	}
	if n, _ := strconv.ParseFloat(string(text), 64); n > formats.MostTokens {
		r.misstated = true // the next source is asked
		return
	}
	n, ok := integer(text)
	if !ok {
		return
	}
	v, u := formats.Of(n), &r.ev.use
	r.ev.counted = true
	switch f {
	case usageIn:
		u.in = v
	case usageInRest:
		u.inRest = v
	case usageCachedAdd:
		u.inRead = v
	case usageWritten:
		u.inWritten = v
	case usageOut:
		u.out = v
	case usageTotal:
		u.total = v
	case usageCached:
		u.cached = v
	case usageReason:
		u.reason = v
	case usageEach:
		r.ev.each = v
	case generated:
		u.outCount = v
	case prompted:
		u.inCount = v
	}
}

func (r *Response) setKind(text []byte) { r.ev.kindN = copy(r.ev.kind[:], text) }

// finishReason returns the vocabulary's word, "" for a reason that says that generation goes on.
func finishReason(text []byte) string {
	if notFinished[string(text)] {
		return ""
	}
	if w := finishReasons[string(text)]; w != "" {
		return w
	}
	return "other"
}

// responseStatus joins a Responses object's status and its incomplete details: the latter say why.
func responseStatus(f field, text []byte, was string) string {
	switch s := string(text); {
	case f == incomplete:
		return finishReason(text)
	case s == "completed":
		return "stop"
	case s == "failed":
		return "error"
	case s == "cancelled":
		return "abort"
	case s == "incomplete" && was == "":
		return "length"
	}
	return was
}

// Misstated reports whether the server stated a count of tokens beyond formats.MostTokens, which was not taken.
func (r *Response) Misstated() bool { return r.misstated }

func integer(text []byte) (int64, bool) {
	n, err := strconv.ParseInt(string(text), 10, 64)
	if err != nil {
		f, ferr := strconv.ParseFloat(string(text), 64)
		if ferr != nil || f != math.Trunc(f) || math.Abs(f) > 1<<53 {
			return 0, false
		}
		n = int64(f)
	}
	return n, n >= 0
}

// Done reports whether the stream has said that it is over ([DONE], response.completed, message_stop).
func (r *Response) Done() bool { return r.done }

// ID is the id of a Responses object, which a later request may continue from; "" for other endpoints. It is text of the server's: hash it.
func (r *Response) ID() string { return r.id }

// TextBytes is how many bytes of JSON text were generated so far, as they stood on the wire: what a token count can be estimated from
// where the server gave none. 0 where an echoed prompt may be among it.
func (r *Response) TextBytes() int64 {
	if r.texts != nil && r.texts.mixed {
		return 0
	}
	return r.textBytes
}
