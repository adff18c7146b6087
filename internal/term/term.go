package term

import (
	"io"
	"os"

	"golang.org/x/term"
)

// Columns is the width assumed where it is not known.
const Columns = 80

// Is reports whether w is a terminal.
func Is(w io.Writer) bool {
	f, ok := Raw(w).(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Width is how many columns w shows; Columns where it is no terminal.
func Width(w io.Writer) int {
	if f, ok := Raw(w).(*os.File); ok {
		if n, _, err := term.GetSize(int(f.Fd())); err == nil && n > 0 {
			return n
		}
	}
	return Columns
}

// Color reports whether to color what goes to w. getenv is os.Getenv: NO_COLOR (https://no-color.org) and TERM=dumb say no.
func Color(w io.Writer, getenv func(string) string) bool {
	return Is(w) && getenv("NO_COLOR") == "" && getenv("TERM") != "dumb"
}
