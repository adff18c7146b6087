package recorder

import (
	"bytes"
	"strconv"
	"strings"
)

// head is what is needed of a request's or response's head. Values are kept only until the exchange's columns are filled.
type head struct {
	method string // of a request
	path   string
	status int // of a response
	minor  byte

	length    int64 // Content-Length, -1 where there is none
	chunked   bool
	badTE     bool // a Transfer-Encoding that does not end in chunked
	encoding  string
	mime      string
	close     bool
	keepAlive bool
	upgrade   bool

	requestID, auth, tenant, session string
}

const maxHead = 256 << 10

// headEnd returns the length of the head at the start of b, its empty line included, or -1 while it is not whole.
func headEnd(b []byte, from int) int {
	for i := max(from-3, 0); i < len(b); {
		n := bytes.IndexByte(b[i:], '\n')
		if n < 0 {
			return -1
		}
		i += n + 1
		if i < len(b) && b[i] == '\n' {
			return i + 1
		}
		if i+1 < len(b) && b[i] == '\r' && b[i+1] == '\n' {
			return i + 2
		}
	}
	return -1
}

// parseHead reads a whole head; false where it is no HTTP/1 message of that direction.
func parseHead(b []byte, request bool) (h head, ok bool) {
	h.length = -1
	line, rest := cutLine(b)
	if request {
		method, target, found := bytes.Cut(line, []byte(" "))
		i := bytes.LastIndexByte(target, ' ')
		if !found || i < 0 || !isVersion(target[i+1:]) || !isToken(method) {
			return h, false
		}
		h.method, h.path, h.minor = methodName(method), string(bytes.TrimSpace(target[:i])), target[len(target)-1]
		if scheme := strings.Index(h.path, "://"); scheme > 0 && scheme < 8 { // absolute form, as sent to a proxy
			if slash := strings.IndexByte(h.path[scheme+3:], '/'); slash >= 0 {
				h.path = h.path[scheme+3+slash:]
			}
		}
	} else {
		if len(line) < 12 || !isVersion(line[:8]) || line[8] != ' ' {
			return h, false
		}
		n, err := strconv.Atoi(string(line[9:12]))
		if err != nil || n < 100 || len(line) > 12 && line[12] != ' ' { // the reason may be missing
			return h, false
		}
		h.status, h.minor = n, line[7]
	}
	h.keepAlive = h.minor != '0'
	for len(rest) > 0 {
		line, rest = cutLine(rest)
		if len(line) == 0 {
			break
		}
		var folded []byte
		for len(rest) > 0 && (rest[0] == ' ' || rest[0] == '\t') { // obsolete folding
			var more []byte
			more, rest = cutLine(rest)
			folded = append(append(folded, ' '), bytes.TrimSpace(more)...)
		}
		if folded != nil {
			line = append(append([]byte(nil), line...), folded...)
		}
		name, value, found := bytes.Cut(line, []byte(":"))
		if !found {
			continue
		}
		if !h.field(bytes.TrimRight(name, " \t"), bytes.TrimSpace(value)) {
			return h, false
		}
	}
	return h, true
}

func cutLine(b []byte) (line, rest []byte) {
	i := bytes.IndexByte(b, '\n')
	if i < 0 {
		return b, nil
	}
	line, rest = b[:i], b[i+1:]
	if len(line) > 0 && line[len(line)-1] == '\r' {
		line = line[:len(line)-1]
	}
	return line, rest
}

func isVersion(b []byte) bool {
	return len(b) == 8 && string(b[:7]) == "HTTP/1." && (b[7] == '0' || b[7] == '1')
}

func isToken(b []byte) bool {
	for _, c := range b {
		if c <= ' ' || c >= 0x7f || strings.IndexByte(`()<>@,;:\"/[]?={}`, c) >= 0 {
			return false
		}
	}
	return len(b) > 0 && len(b) <= 32
}

// methods are the requests that a stream is recognized by; others are read where a connection's start was seen.
var methods = []string{"POST", "GET", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "CONNECT", "TRACE"}

func methodName(b []byte) string {
	for _, m := range methods {
		if string(b) == m {
			return m
		}
	}
	return "other"
}

// field takes one header field; false where the message's framing cannot be trusted.
func (h *head) field(name, value []byte) bool {
	is := func(s string) bool { return len(name) == len(s) && strings.EqualFold(string(name), s) }
	switch len(name) {
	case 7:
		switch {
		case is("api-key"):
			h.auth = string(value)
		case is("upgrade"):
			h.upgrade = true
		}
	case 9:
		if is("x-api-key") {
			h.auth = string(value)
		}
	case 10:
		if is("connection") {
			for _, v := range bytes.Split(value, []byte(",")) {
				switch v = bytes.TrimSpace(v); {
				case bytes.EqualFold(v, []byte("close")):
					h.close = true
				case bytes.EqualFold(v, []byte("keep-alive")):
					h.keepAlive = true
				}
			}
		}
	case 11:
		if is("x-tenant-id") {
			h.tenant = string(value)
		}
	case 12:
		switch {
		case is("content-type"):
			h.mime = string(value)
		case is("x-request-id"):
			h.requestID = string(value)
		case is("x-session-id"):
			h.session = string(value)
		}
	case 13:
		if is("authorization") {
			h.auth = string(value)
		}
	case 14:
		if is("content-length") {
			for _, v := range bytes.Split(value, []byte(",")) { // the same number may stand there twice, another may not (RFC 9110 8.6)
				n, err := strconv.ParseUint(string(bytes.TrimSpace(v)), 10, 63) // digits alone: no sign
				if err != nil || h.length >= 0 && h.length != int64(n) {
					return false
				}
				h.length = int64(n)
			}
		}
	case 16:
		if is("content-encoding") {
			h.encoding = strings.ToLower(string(value))
		}
	case 17:
		if is("transfer-encoding") {
			codings := bytes.Split(bytes.ToLower(value), []byte(","))
			for i, c := range codings {
				switch c = bytes.TrimSpace(c); {
				case string(c) == "chunked":
					h.chunked = i == len(codings)-1
				case string(c) != "identity" && len(c) > 0:
					h.encoding = string(c)
				}
			}
			h.badTE = !h.chunked
		}
	}
	return true
}

// malformed reports whether bytes that cannot be read as a request begin as one does.
func malformed(b []byte) bool {
	line, _ := cutLine(b)
	return len(line) > 9 && isVersion(line[len(line)-8:])
}

// couldBeRequest reports whether a request line may begin so: with a known method, or with another word and a path. What it says of a line
// it says of each beginning of it.
func couldBeRequest(b []byte) bool {
	if yes, _ := looksLikeRequest(b); yes {
		return true
	}
	word, rest, found := bytes.Cut(b, []byte(" "))
	return len(word) <= 24 && isToken(word) && (!found || len(rest) == 0 || rest[0] == '/')
}

// looksLikeRequest reports whether a message's first bytes may begin a request; whole says that enough of them are there.
func looksLikeRequest(b []byte) (yes, whole bool) {
	for _, m := range methods {
		n := min(len(b), len(m)+1)
		if string(b[:n]) == (m + " ")[:n] {
			return true, n == len(m)+1
		}
	}
	return false, true
}

func looksLikeResponse(b []byte) (yes, whole bool) {
	const s = "HTTP/1."
	n := min(len(b), len(s))
	return string(b[:n]) == s[:n], n == len(s)
}
