package openai

import "bytes"

// shape is the form of the event before: the events of a stream differ in little more than their text. An event with the same bytes around
// its first generated string has the same meaning but for the string's length, so it need not be read again. This is four fifths of the
// cost of a stream.
type shape struct {
	before, after []byte // up to and from the string's quotes
	ev            event  // as it was when the event had been read; its deltas are shape's own
	model         string
	known         bool
	misses        int
}

const (
	maxShape  = 4096
	maxMisses = 16 // in a row: this stream's events have no shape
)

// match reports whether p is an event of this shape, and how long its string is.
func (s *shape) match(p []byte) (size int, ok bool) {
	if !s.known || len(p) <= len(s.before)+len(s.after) || !bytes.HasPrefix(p, s.before) || !bytes.HasSuffix(p, s.after) {
		return 0, false
	}
	text := p[len(s.before) : len(p)-len(s.after)]
	if bytes.IndexByte(text, '"') < 0 && bytes.IndexByte(text, '\\') < 0 {
		return len(text), true
	}
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '"':
			return 0, false
		case '\\':
			if i++; i == len(text) {
				return 0, false
			}
		}
	}
	return len(text), true
}

// learn keeps the shape of an event that has been read from p, whose first generated string is p[from:to].
func (s *shape) learn(p []byte, from, to int, ev *event, model string) {
	if s.misses++; s.misses > maxMisses || len(p) > maxShape {
		s.known = false
		return
	}
	deltas, spans := s.ev.deltas[:0], s.ev.spans[:0]
	s.before, s.after = append(s.before[:0], p[:from]...), append(s.after[:0], p[to:]...)
	s.ev = *ev
	s.ev.deltas = append(deltas, ev.deltas...)
	s.ev.raw, s.ev.spans = nil, append(spans, ev.spans...)
	s.ev.bytes -= int64(to - from)
	s.model, s.known = model, true
}

// whole reads an event's data that is wholly in p. It reports whether it did.
func (r *Response) whole(p []byte) bool {
	s := &r.shape
	if size, ok := s.match(p); ok {
		s.misses = 0
		deltas, flags, failure := append(r.ev.deltas[:0], s.ev.deltas...), r.ev.flags, r.ev.failure
		spans, raw := append(r.ev.spans[:0], s.ev.spans...), r.ev.raw[:0]
		if len(spans) == 1 {
			raw = append(raw, p[len(s.before):len(s.before)+size]...)
			spans[0].end = len(raw)
		}
		r.ev = s.ev
		r.ev.deltas, r.ev.flags, r.ev.failure, r.ev.spans, r.ev.raw = deltas, flags, failure, spans, raw
		r.ev.bytes += int64(size)
		r.ev.data = true
		r.json.state = valueDone
		if s.model != "" {
			r.x.ResponseModel = s.model
		}
		return true
	}
	if s.misses > maxMisses {
		return false
	}
	r.json.genFrom, r.json.genTo = 0, 0
	r.stateful = false
	n := r.json.feed(p)
	r.ev.data = true
	if !r.json.complete() || len(bytes.TrimLeft(p[n:], " \t")) > 0 {
		if r.json.complete() {
			r.json.state = valueBad
		}
		return true
	}
	if r.json.genTo > r.json.genFrom && !r.stateful && !r.ev.failure && r.shapely() { // an error is worth reading each time
		s.learn(p, r.json.genFrom, r.json.genTo, &r.ev, r.x.ResponseModel)
	}
	return true
}
