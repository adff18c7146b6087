package openai

import (
	"bytes"
	"errors"
	"strconv"
	"unicode/utf8"
)

var errJSON = errors.New("read request body: not a JSON object")

// value is one JSON value inside a request body that is wholly in memory.
type value []byte

func space(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\r' || b[i] == '\t') {
		i++
	}
	return i
}

// skipString returns the index after the string that starts at b[i], or -1.
func skipString(b []byte, i int) int {
	for i++; i < len(b); {
		q := bytes.IndexByte(b[i:], '"')
		if q < 0 {
			return -1
		}
		run := b[i : i+q]
		esc := 0
		for esc < len(run) && run[len(run)-1-esc] == '\\' {
			esc++
		}
		i += q + 1
		if esc%2 == 0 {
			return i
		}
	}
	return -1
}

// skipValue returns the index after the value that starts at b[i], or -1.
func skipValue(b []byte, i int) int {
	if i >= len(b) {
		return -1
	}
	switch c := b[i]; {
	case c == '"':
		return skipString(b, i)
	case c == '{' || c == '[':
		depth := 0
		for i < len(b) {
			switch b[i] {
			case '"':
				if i = skipString(b, i); i < 0 {
					return -1
				}
				continue
			case '{', '[':
				depth++
			case '}', ']':
				if depth--; depth == 0 {
					return i + 1
				}
			}
			i++
		}
		return -1
	case isBare(c):
		for i < len(b) && isBare(b[i]) {
			i++
		}
		return i
	}
	return -1
}

// members calls f for each member of an object and reports whether it was one, whole.
func (v value) members(f func(key []byte, val value)) bool {
	i := space(v, 0)
	if i >= len(v) || v[i] != '{' {
		return false
	}
	if i = space(v, i+1); i < len(v) && v[i] == '}' {
		return true
	}
	for {
		if i >= len(v) || v[i] != '"' {
			return false
		}
		end := skipString(v, i)
		if end < 0 {
			return false
		}
		key := v[i+1 : end-1]
		if i = space(v, end); i >= len(v) || v[i] != ':' {
			return false
		}
		i = space(v, i+1)
		if end = skipValue(v, i); end < 0 {
			return false
		}
		if bytes.IndexByte(key, '\\') >= 0 {
			f([]byte(v.unescape(key)), v[i:end])
		} else {
			f(key, v[i:end])
		}
		if i = space(v, end); i >= len(v) {
			return false
		}
		if v[i] == '}' {
			return true
		}
		if v[i] != ',' {
			return false
		}
		i = space(v, i+1)
	}
}

// elements calls f for each element of an array and reports whether it was one, whole.
func (v value) elements(f func(value)) bool {
	i := space(v, 0)
	if i >= len(v) || v[i] != '[' {
		return false
	}
	if i = space(v, i+1); i < len(v) && v[i] == ']' {
		return true
	}
	for {
		end := skipValue(v, i)
		if end < 0 {
			return false
		}
		f(v[i:end])
		if i = space(v, end); i >= len(v) {
			return false
		}
		if v[i] == ']' {
			return true
		}
		if v[i] != ',' {
			return false
		}
		i = space(v, i+1)
	}
}

func (v value) count() int {
	n := 0
	v.elements(func(value) { n++ })
	return n
}

func (v value) kind() byte {
	if len(v) == 0 {
		return 0
	}
	if c := v[0]; c == '-' || c >= '0' && c <= '9' {
		return '0'
	}
	return v[0]
}

func (v value) null() bool { return v.kind() == 'n' || len(v) == 0 }

func (v value) float() (float64, bool) {
	if v.kind() != '0' {
		return 0, false
	}
	f, err := strconv.ParseFloat(string(v), 64)
	return f, err == nil
}

func (v value) integer() (int64, bool) {
	if v.kind() != '0' {
		return 0, false
	}
	if n, err := strconv.ParseInt(string(v), 10, 64); err == nil {
		return n, true
	}
	f, err := strconv.ParseFloat(string(v), 64)
	return int64(f), err == nil && f == float64(int64(f)) && f > -1<<53 && f < 1<<53
}

// str is a short string's text, "" for anything else or where it is longer than limit bytes.
func (v value) str(limit int) string {
	if v.kind() != '"' || len(v)-2 > limit {
		return ""
	}
	if bytes.IndexByte(v, '\\') < 0 {
		return string(v[1 : len(v)-1])
	}
	return v.unescape(v[1 : len(v)-1])
}

func (value) unescape(raw []byte) string {
	var b []byte
	unescape(raw, func(p []byte) { b = append(b, p...) })
	return string(b)
}

// unescape hands out the text of a JSON string (without its quotes) in pieces: the same text however it was escaped.
func unescape(raw []byte, out func([]byte)) {
	for len(raw) > 0 {
		i := bytes.IndexByte(raw, '\\')
		if i < 0 || i+1 >= len(raw) {
			out(raw)
			return
		}
		if i > 0 {
			out(raw[:i])
		}
		var one [utf8.UTFMax]byte
		c := raw[i+1]
		raw = raw[i+2:]
		switch c {
		case 'n':
			one[0] = '\n'
		case 't':
			one[0] = '\t'
		case 'r':
			one[0] = '\r'
		case 'b':
			one[0] = '\b'
		case 'f':
			one[0] = '\f'
		case 'u':
			r, n := unicodeEscape(raw)
			raw = raw[n:]
			out(one[:utf8.EncodeRune(one[:], r)])
			continue
		default:
			one[0] = c
		}
		out(one[:1])
	}
}

// unicodeEscape reads what follows \u: four hex digits, and a second half where the first is a surrogate.
func unicodeEscape(b []byte) (rune, int) {
	r, ok := hex4(b)
	if !ok {
		return utf8.RuneError, 0
	}
	if r < 0xd800 || r > 0xdfff {
		return r, 4
	}
	if len(b) >= 10 && b[4] == '\\' && b[5] == 'u' {
		if low, ok := hex4(b[6:]); ok && r < 0xdc00 && low >= 0xdc00 && low <= 0xdfff {
			return (r-0xd800)<<10 + (low - 0xdc00) + 0x10000, 10
		}
	}
	return utf8.RuneError, 4
}

func hex4(b []byte) (rune, bool) {
	if len(b) < 4 {
		return 0, false
	}
	n, err := strconv.ParseUint(string(b[:4]), 16, 32)
	return rune(n), err == nil
}
