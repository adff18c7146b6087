package formats

import (
	"strconv"
	"unicode"
	"unicode/utf8"
)

// PlainJSON replaces control characters, line ends among them, in the strings of a JSON document of ours (trace.json, run.json, a history,
// a baseline) by U+FFFD: its names end up in terminals, pages, tables and comments, where they must not begin a line or a command. What is
// no JSON stays none. It may return b itself.
func PlainJSON(b []byte) []byte {
	var out []byte // nil until something is replaced
	from := 0
	replace := func(at, n int) {
		out = append(append(out, b[from:at]...), "\ufffd"...)
		from = at + n
	}
	inside := false
	for i := 0; i < len(b); {
		switch c := b[i]; {
		case c == '"':
			inside = !inside
		case !inside:
		case c == '\\' && i+1 < len(b):
			n := 2
			switch b[i+1] {
			case 'n', 'r', 't', 'b', 'f':
				replace(i, n)
			case 'u':
				if n = 6; i+n > len(b) {
					break
				}
				if r, err := strconv.ParseUint(string(b[i+2:i+n]), 16, 16); err == nil && commands(rune(r)) {
					replace(i, n)
				}
			}
			i += n
			continue
		case c >= 0x7f:
			r, n := utf8.DecodeRune(b[i:])
			if commands(r) {
				replace(i, n)
			}
			i += n
			continue
		}
		i++
	}
	if out == nil {
		return b
	}
	return append(out, b[from:]...)
}

// commands reports whether a terminal may obey a character, or a page show the text after it backwards.
func commands(r rune) bool {
	return unicode.IsControl(r) || r == '\u2028' || r == '\u2029' || r >= '\u202a' && r <= '\u202e' || r >= '\u2066' && r <= '\u2069'
}
