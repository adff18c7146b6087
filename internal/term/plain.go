package term

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// Plain returns a writer to w that shows control characters, and those that turn the direction of text, as \u001b instead of sending
// them: names in a trace, a server's answers and a file's errors must not command a terminal. A line feed and a tab pass. JSON keeps its
// meaning. It is as safe for concurrent use as w is, where a character is not split over two calls.
func Plain(w io.Writer) io.Writer { return plain{w} }

// Raw returns what Plain was given; any other writer as it is.
func Raw(w io.Writer) io.Writer {
	if p, ok := w.(plain); ok {
		return p.w
	}
	return w
}

type plain struct{ w io.Writer }

func (p plain) Write(b []byte) (int, error) {
	i := commanding(b)
	if i < 0 {
		return p.w.Write(b)
	}
	out := make([]byte, 0, len(b)+64)
	for from := 0; from < len(b); {
		if i < 0 {
			out = append(out, b[from:]...)
			break
		}
		r, n := utf8.DecodeRune(b[from+i:])
		if r == utf8.RuneError {
			r = rune(b[from+i])
		}
		out = fmt.Appendf(append(out, b[from:from+i]...), `\u%04x`, r)
		from += i + n
		i = commanding(b[from:])
	}
	if _, err := p.w.Write(out); err != nil {
		return 0, err
	}
	return len(b), nil
}

// Clean returns s as Plain writes it.
func Clean(s string) string {
	var b strings.Builder
	plain{&b}.Write([]byte(s)) // a Builder takes everything
	return b.String()
}

// commanding returns where in b the first character stands that a terminal may obey, or -1: C0 but line feed and tab, delete, C1 (in
// UTF-8, or as a byte of its own), and the overrides of direction.
func commanding(b []byte) int {
	for i := 0; i < len(b); i++ {
		switch c := b[i]; {
		case c < ' ' && c != '\n' && c != '\t', c == 0x7f:
			return i
		case c < utf8.RuneSelf:
		default:
			r, n := utf8.DecodeRune(b[i:])
			switch {
			case n == 1 && c < 0xa0, r >= 0x80 && r < 0xa0, r >= 0x202a && r <= 0x202e, r >= 0x2066 && r <= 0x2069:
				return i
			}
			i += n - 1
		}
	}
	return -1
}
