package openai

import "bytes"

// eventLines cuts a byte stream into the lines of server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html)
// and hands data to the Response's scanner as it comes: \n, \r\n and \r end a line, also mixed; the space after the colon may be
// missing; a line may be of any length.
type eventLines struct {
	to       *Response
	state    lineState
	afterCR  bool // a \n now belongs to the line end before
	field    [8]byte
	fieldN   int
	name     [48]byte // the event field
	nameN    int
	tag      [8]byte // the first bytes of a data line that starts with '[': "[DONE]" or an array
	tagN     int
	skip     bool // bytes were lost: skip to the end of the line
	anyField bool // the event has a field other than a comment
	toEnd    bool // the piece of a line being read reaches to the line's end
}

type lineState uint8

const (
	lineStart  lineState = iota
	lineField            // in the field's name
	lineSpace            // after the colon: one space may follow
	lineData             // in the data of a data line
	lineTag              // in data that may be [DONE]
	lineAfter            // after [DONE]
	lineName             // in the value of an event line
	lineIgnore           // in a comment or another field
)

func (l *eventLines) write(p []byte, flags int32) {
	if l.skip && l.state == lineIgnore && (bytes.HasPrefix(p, []byte("data:")) || bytes.HasPrefix(p, []byte("event:"))) {
		l.skip, l.state = false, lineStart // what was lost ended with an event
	}
	newline := -1 // position of the next \n, len(p) where there is none: found once, also where \r ends the lines
	for pos := 0; pos < len(p); {
		if l.afterCR {
			l.afterCR = false
			if p[pos] == '\n' {
				pos++
				continue
			}
		}
		if newline < pos {
			if newline = bytes.IndexByte(p[pos:], '\n'); newline >= 0 {
				newline += pos
			} else {
				newline = len(p)
			}
		}
		end := newline
		if cr := bytes.IndexByte(p[pos:end], '\r'); cr >= 0 {
			end = pos + cr
		}
		l.toEnd = end < len(p)
		l.line(p[pos:end])
		if end == len(p) {
			return
		}
		l.afterCR = p[end] == '\r'
		pos = end + 1
		if l.lineEnd(); pos < len(p) {
			l.to.ev.flags |= flags // an event that begins here is touched by what these bytes are
		}
	}
}

// line takes a piece of a line, without its end.
func (l *eventLines) line(p []byte) {
	for len(p) > 0 {
		switch l.state {
		case lineStart:
			switch {
			case l.skip:
				l.state = lineIgnore
			case len(p) > 5 && string(p[:5]) == "data:":
				p = p[5:]
				l.dataLine()
			default:
				l.state, l.fieldN = lineField, 0
			}
		case lineField:
			c := p[0]
			p = p[1:]
			if c != ':' {
				if c != 0xef && c != 0xbb && c != 0xbf && l.fieldN < len(l.field) { // a byte order mark is no part of the name
					l.field[l.fieldN] = c
					l.fieldN++
				}
				continue
			}
			l.named()
		case lineSpace:
			if p[0] == ' ' {
				p = p[1:]
			}
			l.state = lineData
			if len(p) > 0 && p[0] == '[' && !l.to.json.wrote {
				l.state, l.tagN = lineTag, 0
			} else if len(p) == 0 {
				l.state = lineSpace
				return
			}
		case lineTag:
			k := copy(l.tag[l.tagN:6], p)
			l.tagN += k
			p = p[k:]
			if l.tagN < 6 {
				return
			}
			if string(l.tag[:6]) == "[DONE]" {
				l.state = lineAfter
				l.to.done = true
				l.to.ev.data = false
				continue
			}
			l.state = lineData
			l.data(l.tag[:6])
		case lineData:
			l.data(p)
			return
		case lineName:
			if l.nameN == 0 && p[0] == ' ' {
				p = p[1:]
			}
			l.nameN += copy(l.name[l.nameN:], p)
			return
		default:
			return
		}
	}
}

// dataLine starts a data line. Some servers end an event with one line end only: where the data so far is a whole value, it was an
// event.
func (l *eventLines) dataLine() {
	if l.to.ev.data && l.to.json.complete() {
		l.dispatch()
	}
	l.state = lineSpace
	l.anyField = true
}

// named acts on the name of a field, whose colon was just read.
func (l *eventLines) named() {
	l.state = lineIgnore
	switch string(l.field[:l.fieldN]) {
	case "data":
		l.dataLine()
	case "event":
		l.state, l.nameN, l.anyField = lineName, 0, true
	case "error": // llama.cpp until 2025
		l.to.ev.failure, l.anyField = true, true
	}
}

func (l *eventLines) data(p []byte) {
	r := l.to
	if l.toEnd && !r.ev.data && r.whole(p) {
		return
	}
	n := r.json.feed(p)
	r.ev.data = true
	if r.json.state == valueDone && len(bytes.TrimLeft(p[n:], " \t")) > 0 {
		r.json.state = valueBad
	}
}

func (l *eventLines) lineEnd() {
	empty := l.state == lineStart
	if l.state == lineTag {
		l.data(l.tag[:l.tagN])
	}
	if l.state == lineField { // a name without a colon is a field without a value
		l.named()
	}
	if l.state == lineSpace { // data without a value
		l.anyField = true
	}
	l.state = lineStart
	if l.skip {
		l.skip = false
		return
	}
	if empty {
		l.dispatch()
	}
}

// dispatch ends an event.
func (l *eventLines) dispatch() {
	r := l.to
	if l.nameN > 0 {
		if _, typed := eventTypes[string(r.ev.kind[:r.ev.kindN])]; !typed {
			r.setKind(l.name[:l.nameN])
		}
	}
	if r.ev.data || r.ev.failure || r.ev.kindN > 0 {
		r.dispatch()
	}
	l.nameN, l.anyField = 0, false
}

// lost drops the line and the event being read.
func (l *eventLines) lost() {
	l.skip = true
	l.state = lineIgnore
	l.afterCR = false
	l.nameN, l.anyField = 0, false
}

// end closes the stream: an event without its last empty line still counts where its data is whole.
func (l *eventLines) end() {
	if l.state == lineTag {
		l.data(l.tag[:l.tagN])
	}
	l.to.json.end()
	if l.to.ev.failure || l.to.ev.data && l.to.json.complete() {
		l.dispatch()
	}
}
