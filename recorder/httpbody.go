package recorder

import "bytes"

// halfHTTP reads one direction of an HTTP/1.1 connection as bytes arrive: heads, bodies by length, in chunks or to the end of the
// connection, pipelined messages. It hands what it finds to its to.
type halfHTTP struct {
	to      httpEvents
	request bool
	state   httpState
	head    []byte // of a head or chunk line that is not whole yet
	remain  int64  // bytes left of the body or chunk
	skipped int    // bytes dropped while looking for a message
	lostAt  int64  // time of the last byte before a loss
	resync  bool   // bytes of this direction are missing: framing may be lost without anybody's fault
}

// httpEvents is what one direction of a connection tells: a head (which returns how its body is framed), body bytes without framing,
// the end of a message.
type httpEvents interface {
	begin(request bool, at int64)                       // the first byte of a message
	head(request bool, h *head, at int64) framing       // a whole head
	body(request bool, p []byte, at int64, flags int32) // bytes of the body
	lost(request bool, n int64)                         // n bytes of the body are missing; 0: an unknown number
	unframed(request bool)                              // no message, but bytes are missing before it: one is looked for
	end(request bool, at int64)                         // the last byte of a message
	broken(request bool, b []byte, at int64)            // no HTTP here, though nothing is missing: the direction is read no further
	hold(n int)                                         // so many bytes more, or fewer, are held of a head or line that is not whole
}

// framing says how a message's body ends.
type framing struct {
	kind   framingKind
	length int64
}

type framingKind uint8

const (
	bodyNone framingKind = iota
	bodyLength
	bodyChunked
	bodyToClose
	bodySkipHead // an interim response: another head follows for the same request
	bodyOpaque   // no HTTP any more
)

type httpState uint8

const (
	atMessage httpState = iota // between messages
	inHead
	inBody
	inChunkLine
	inChunk
	atChunkEnd
	atChunkLF
	inTrailer
	toClose
	searching      // framing is lost: looking for the start of a message
	searchingChunk // framing is lost in a chunked body: looking for a chunk, or for a message
	opaque
)

// data takes bytes that became available at one time.
func (d *halfHTTP) data(p []byte, at int64, flags int32) {
	d.lostAt = at
	start := true // p begins a segment: where messages and chunks begin, nearly always
	for len(p) > 0 {
		switch d.state {
		case opaque:
			return
		case searching:
			if !start || !d.found(p) {
				d.skipped += len(p)
				return
			}
		case searchingChunk:
			if !start || !d.found(p) && !d.foundChunk(p) {
				d.skipped += len(p)
				return
			}
		case atMessage:
			if p[0] == '\r' || p[0] == '\n' { // RFC 9112 2.2
				p = p[1:]
				break
			}
			d.to.begin(d.request, at)
			d.forget()
			d.state = inHead
		case inHead:
			p = d.inHead(p, at)
		case inBody, inChunk:
			n := int(min(d.remain, int64(len(p))))
			d.to.body(d.request, p[:n], at, flags)
			d.remain -= int64(n)
			p = p[n:]
			if d.remain == 0 {
				if d.state == inChunk {
					d.state = atChunkEnd
				} else {
					d.endMessage(at)
				}
			}
		case atChunkEnd:
			if p[0] == '\r' {
				p, d.state = p[1:], atChunkLF
				break
			}
			fallthrough
		case atChunkLF:
			if p[0] != '\n' {
				p = d.broken(p, at)
				break
			}
			p, d.state = p[1:], inChunkLine
		case inChunkLine:
			p = d.chunkLine(p, at)
		case inTrailer:
			p = d.trailer(p, at)
		case toClose:
			d.to.body(d.request, p, at, flags)
			return
		}
		start = false
	}
}

func (d *halfHTTP) inHead(p []byte, at int64) []byte {
	b := p
	had := len(d.head)
	if had > 0 {
		d.keep(p)
		if b = d.head; d.state == opaque { // there was no room
			return nil
		}
	}
	n := headEnd(b, had)
	is := d.request && couldBeRequest(b)
	if !d.request {
		is, _ = looksLikeResponse(b)
	}
	if !is || n < 0 && len(b) > maxHead {
		return d.broken(b, at)
	}
	if n < 0 {
		if had == 0 {
			d.keep(p)
		}
		return nil
	}
	h, ok := parseHead(b[:n], d.request)
	if !ok {
		return d.broken(b, at)
	}
	p = p[n-had:]
	d.forget()
	f := d.to.head(d.request, &h, at)
	switch f.kind {
	case bodyLength:
		d.state, d.remain = inBody, f.length
		if f.length == 0 {
			d.endMessage(at)
		}
	case bodyChunked:
		d.state = inChunkLine
	case bodyToClose:
		d.state = toClose
	case bodyOpaque:
		d.state = opaque
	case bodySkipHead:
		d.state = atMessage
	default:
		d.endMessage(at)
	}
	return p
}

// broken meets bytes that are no HTTP. After a loss, or in the middle of a connection, a message is looked for; otherwise they are what the
// peer said, and no more of it can be read.
func (d *halfHTTP) broken(b []byte, at int64) []byte {
	if d.resync {
		d.to.unframed(d.request)
		d.lose()
		return nil
	}
	d.state = opaque
	d.to.broken(d.request, b, at)
	d.forget()
	return nil
}

// keep adds to what is held of a head or line that is not whole.
func (d *halfHTTP) keep(p []byte) {
	d.head = append(d.head, p...)
	d.to.hold(len(p))
}

// forget lets it go. A small buffer stays for the next.
func (d *halfHTTP) forget() {
	if len(d.head) == 0 {
		return
	}
	d.to.hold(-len(d.head))
	if d.head = d.head[:0]; cap(d.head) > 1<<10 {
		d.head = nil
	}
}

func (d *halfHTTP) endMessage(at int64) {
	d.state = atMessage
	d.to.end(d.request, at)
}

// chunkLine reads a chunk's size line; extensions are ignored.
func (d *halfHTTP) chunkLine(p []byte, at int64) []byte {
	b := p
	i := bytes.IndexByte(p, '\n')
	if had := len(d.head); had > 0 || i < 0 {
		take := p
		if i >= 0 {
			take = p[:i+1]
		}
		if d.keep(take); d.state == opaque {
			return nil
		}
		if i < 0 {
			if len(d.head) > 4096 {
				return d.broken(d.head, at)
			}
			return nil
		}
		b = d.head
	} else {
		b = p[:i+1]
	}
	p = p[i+1:]
	n, ok := chunkSize(b)
	if !ok {
		return d.broken(b, at)
	}
	d.forget()
	switch {
	case n == 0:
		d.state = inTrailer
	default:
		d.state, d.remain = inChunk, n
	}
	return p
}

// chunkSize reads the hexadecimal number at the start of a chunk line.
func chunkSize(b []byte) (int64, bool) {
	n, i := int64(0), 0
	for ; i < len(b) && i < 16; i++ {
		c := b[i]
		switch {
		case c >= '0' && c <= '9':
			n = n<<4 | int64(c-'0')
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			n = n<<4 | int64(c|0x20-'a'+10)
		default:
			return n, i > 0 && (c == '\r' || c == '\n' || c == ';' || c == ' ' || c == '\t')
		}
		if n > 1<<40 {
			return 0, false
		}
	}
	return 0, false
}

// trailer reads the lines after the last chunk, up to the empty one.
func (d *halfHTTP) trailer(p []byte, at int64) []byte {
	i := bytes.IndexByte(p, '\n')
	if i < 0 {
		if len(d.head)+len(p) > maxHead {
			return d.broken(d.head, at)
		}
		d.keep(p)
		return nil
	}
	line := p[:i]
	if len(d.head) > 0 {
		if d.keep(line); d.state == opaque {
			return nil
		}
		line = d.head
	}
	empty := len(bytes.TrimRight(line, "\r")) == 0
	d.forget()
	if empty {
		d.endMessage(at)
	}
	return p[i+1:]
}

// lose gives up the framing: nothing more is read until a message is found at the start of a segment.
func (d *halfHTTP) lose() {
	d.state = searching
	d.forget()
	d.skipped = 0
}

// found looks for the start of a message.
func (d *halfHTTP) found(p []byte) bool {
	var is, whole bool
	if d.request {
		is, whole = looksLikeRequest(p)
	} else {
		is, whole = looksLikeResponse(p)
	}
	if is && whole {
		d.state = atMessage
		return true
	}
	return false
}

// foundChunk looks for a chunk that holds server-sent events, or for the last one. Servers write an event as a chunk of its own, so that
// it starts a segment.
func (d *halfHTTP) foundChunk(p []byte) bool {
	n, ok := chunkSize(p)
	eol := bytes.IndexByte(p, '\n')
	if !ok || eol < 0 || eol > 64 {
		return false
	}
	rest := p[eol+1:]
	switch {
	case n == 0:
		if len(rest) < 2 || rest[0] != '\r' && rest[0] != '\n' {
			return false
		}
	case int64(len(rest)) > n+1 && (rest[n] != '\r' || rest[n+1] != '\n'):
		return false
	case !bytes.HasPrefix(rest, []byte("data:")) && !bytes.HasPrefix(rest, []byte("event:")) && !bytes.HasPrefix(rest, []byte(":")):
		return false
	}
	d.state = inChunkLine
	return true
}

// lost says that n bytes are missing here. Inside a body of known length the framing survives; elsewhere a message, or in a chunked body
// a chunk, is looked for.
func (d *halfHTTP) lost(n int64) {
	d.resync = true
	switch d.state {
	case inBody, inChunk:
		d.to.lost(d.request, min(n, d.remain))
		switch {
		case n < d.remain:
			d.remain -= n
		case n == d.remain && d.state == inChunk:
			d.state = atChunkEnd
		case d.state == inChunk:
			d.lose()
			d.state = searchingChunk
		default:
			over := n > d.remain
			d.endMessage(d.lostAt)
			if over {
				d.lose()
			}
		}
	case inChunkLine, atChunkEnd, atChunkLF, inTrailer, searchingChunk:
		d.to.lost(d.request, 0)
		d.lose()
		d.state = searchingChunk
	case toClose:
		d.to.lost(d.request, n)
	case opaque:
	default:
		d.to.lost(d.request, 0)
		d.lose()
	}
}

// within reports whether n bytes that are missing here all belong to the body being read.
func (d *halfHTTP) within(n int64) bool {
	return d.state == toClose || (d.state == inBody || d.state == inChunk) && n <= d.remain
}

// framed reports whether it is known where the message being read ends.
func (d *halfHTTP) framed() bool { return d.state != searching && d.state != searchingChunk }
