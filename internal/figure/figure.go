// Package figure says how numbers read where people read them: in four digits, in columns that stay, a dash for what is unknown.
package figure

import (
	"math"
	"strconv"
	"strings"

	"github.com/shadowtape/shadowtape/formats"
)

// Width is the columns of a summary in a terminal.
const Width = 80

// Known is a figure unless it is NaN or infinite.
func Known(x float64) formats.Null[float64] {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return formats.Null[float64]{}
	}
	return formats.Of(x)
}

// Cell is a figure in a table, a dash where it is undefined or withheld.
func Cell(v formats.Null[float64]) string {
	if !v.Valid {
		return "–"
	}
	return Number(v.V)
}

// Percent is a share in percent, to three digits; a dash where it is undefined.
func Percent(v formats.Null[float64]) string {
	if !v.Valid {
		return "–"
	}
	return strconv.FormatFloat(v.V*100, 'g', 3, 64) + " %"
}

// Number is a figure to four digits, in at most eight columns up to 10⁹.
func Number(v float64) string {
	switch a := math.Abs(v); {
	case a == math.Trunc(a) && a < 1e6:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case a < 10:
		return strconv.FormatFloat(v, 'f', 3, 64)
	case a < 100:
		return strconv.FormatFloat(v, 'f', 2, 64)
	case a < 1000:
		return strconv.FormatFloat(v, 'f', 1, 64)
	case a < 1e6:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case a < 1e9:
		return strconv.FormatFloat(v/1e6, 'f', 2, 64) + "M"
	default:
		return strconv.FormatFloat(v, 'g', 3, 64)
	}
}

// Count is a whole number with thousands separated, shortened beyond a million.
func Count(n int64) string {
	if n >= 1e6 {
		return strconv.FormatFloat(float64(n)/1e6, 'f', 2, 64) + "M"
	}
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// Clip cuts a line to a number of columns and drops control characters, which a label may bring.
func Clip(s string, columns int) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, s)
	runes := []rune(strings.TrimRight(s, " "))
	if len(runes) > columns {
		return string(runes[:columns-1]) + "…"
	}
	return string(runes)
}
