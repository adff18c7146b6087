package figure

import (
	"math"
	"strings"
	"testing"

	"github.com/shadowtape/shadowtape/formats"
)

func TestFigures(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{Number(0), "0"}, {Number(12), "12"}, {Number(0.12345), "0.123"}, {Number(-3.14159), "-3.142"}, {Number(31.4159), "31.42"}, {Number(314.159), "314.2"},
		{Number(31415.9), "31416"}, {Number(4_620_000.5), "4.62M"}, {Number(4.62e12), "4.62e+12"},
		{Count(0), "0"}, {Count(999), "999"}, {Count(1000), "1,000"}, {Count(-1000), "-1,000"}, {Count(123456), "123,456"}, {Count(12_345_678), "12.35M"},
		{Percent(formats.Of(0.5)), "50 %"}, {Percent(formats.Of(0.01234)), "1.23 %"}, {Percent(formats.Null[float64]{}), "–"},
		{Cell(Known(2)), "2"}, {Cell(Known(math.NaN())), "–"}, {Cell(Known(math.Inf(-1))), "–"},
		{Clip("a\x1b[31mb\n", 80), "a [31mb"}, {Clip("abcdef", 4), "abc…"}, {Clip("abcd  ", 4), "abcd"}, {Clip(strings.Repeat("–", 90), 80), strings.Repeat("–", 79) + "…"},
	} {
		if c.got != c.want {
			t.Errorf("%q, want %q", c.got, c.want)
		}
	}
}
