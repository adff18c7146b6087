package foreign

import (
	"bufio"
	"io"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/shadowtape/shadowtape/formats"
)

func itoa(n int) string { return strconv.Itoa(n) }

func TestClock(t *testing.T) {
	base := time.Date(2024, 5, 10, 0, 0, 0, 0, time.UTC).UnixNano()
	for _, c := range []struct {
		text string
		want int64 // from base
	}{
		{"2024-05-10 00:00:00", 0},
		{"2024-05-10 00:00:00+00:00", 0},
		{"2024-05-10T00:00:00Z", 0},
		{"2024-05-10 00:00:00.001", 1e6},
		{"2024-05-10 00:00:00.002Z", 2e6},
		{"2024-05-10 00:00:00.009+00:00", 9e6},
		{"2024-05-10 00:00:00.011", 11e6},
		{"2024-05-10 00:00:00.1", 1e8},
		{"2024-05-10 00:00:00.9799600", 979_960_000},
		{"2024-05-10 00:00:00.123456789", 123_456_789},
		{"2024-05-10 00:00:00.1234567899", 123_456_789},
		{"2024-05-10 02:00:00+02:00", 0},
		{"2024-05-10 02:00:00 +0200", 0},
		{"2024-05-09 22:30:00-01:30", 0},
		{"2024-05-10 02:00:00+02", 0},
		{"2024-05-10T00:00:00,5Z", 5e8},
		{" 2024-05-10 00:00:01 ", 1e9},
	} {
		if got, err := clock(c.text); err != nil || got-base != c.want {
			t.Errorf("%q: %d, %v; want %d", c.text, got-base, err, c.want)
		}
	}
	for _, bad := range []string{"", "yesterday", "2024-05-10", "2024-05-10 00:00", "2024-13-10 00:00:00", "2024-04-31 00:00:00", "2024-05-10 00:00:00.",
		"2024-05-10 00:00:00 CEST", "2024-05-10 00:00:00+0", "2024-05-10 00:00:00+99:00", "2024/05/10 00:00:00", "2024-05-10 24:00:00", "0001-01-01 00:00:00"} {
		if got, err := clock(bad); err == nil {
			t.Errorf("%q is %d", bad, got)
		}
	}
}

func TestScaled(t *testing.T) {
	for _, c := range []struct {
		text string
		unit int64
		want int64
	}{
		{"0", 1e6, 0}, {"27482", 1e6, 27_482_000_000}, {"61.114", 1e9, 61_114_000_000}, {"0.1", 1e9, 1e8}, {"19440110.0", 1e9, 19_440_110_000_000_000},
		{"1.5", 1e6, 1_500_000}, {"0.0000004", 1e6, 0}, {"0.0000005", 1e6, 1}, {"1e3", 1e6, 1_000_000_000}, {"-2.5", 1e9, -2_500_000_000},
		{"1700000000123.456", 1e6, 1_700_000_000_123_456_000}, {"7", 1, 7},
	} {
		if got, err := scaled(c.text, c.unit); err != nil || got != c.want {
			t.Errorf("%q by %d: %d, %v; want %d", c.text, c.unit, got, err, c.want)
		}
	}
	for _, bad := range []string{"", "x", "1.x", "nan", "inf", "99999999999999999999", "1e300", ".", "1.2.3"} {
		if got, err := scaled(bad, 1e9); err == nil {
			t.Errorf("%q is %d", bad, got)
		}
	}
}

func TestCount(t *testing.T) {
	unknown := formats.Null[int64]{}
	for _, c := range []struct {
		text string
		want formats.Null[int64]
	}{
		{"12", formats.Of(int64(12))}, {"12.0", formats.Of(int64(12))}, {"0", formats.Of(int64(0))}, {"1.2e1", formats.Of(int64(12))},
		{"", unknown}, {"-1", unknown}, {"-1.0", unknown}, {"null", unknown}, {"None", unknown}, {"NaN", unknown},
	} {
		if got, err := count(c.text); err != nil || got != c.want {
			t.Errorf("%q: %v, %v", c.text, got, err)
		}
	}
	for _, bad := range []string{"x", "1.5", "12 tokens", "1e40"} {
		if got, err := count(bad); err == nil {
			t.Errorf("%q is %v", bad, got)
		}
	}
}

func TestLines(t *testing.T) {
	l := lines{r: bufio.NewReaderSize(strings.NewReader("\xef\xbb\xbfa\r\n\r\n \t\nlong "+strings.Repeat("x", 5000)+"\nlast"), 16)}
	var got []string
	for {
		b, err := l.next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, itoa(int(l.row))+" "+string(b))
	}
	if d := cmp.Diff([]string{"1 a", "4 long " + strings.Repeat("x", 5000), "5 last"}, got); d != "" {
		t.Error(d)
	}
}

func TestSplit(t *testing.T) {
	for _, c := range []struct {
		line string
		want []string
	}{
		{"a,b", []string{"a", "b"}}, {"", []string{""}}, {",", []string{"", ""}}, {`"a,b",c`, []string{"a,b", "c"}}, {`"a""b"`, []string{`a"b`}}, {`a"b,c`, []string{`a"b`, "c"}},
	} {
		if got, err := split(nil, c.line, ','); err != nil || cmp.Diff(c.want, got) != "" {
			t.Errorf("%q: %q, %v", c.line, got, err)
		}
	}
	for _, bad := range []string{`"a`, `"a"b,c`} {
		if got, err := split(nil, bad, ','); err == nil {
			t.Errorf("%q: %q", bad, got)
		}
	}
}

func TestIDs(t *testing.T) {
	for _, c := range []struct {
		text string
		want ids
	}{
		{"[]", ids{}}, {"null", nil}, {"[1, 2]", ids{1, 2}}, {"[4294967297,1]", ids{4294967297, 1}}, {"[18446744073709551615]", ids{-1}}, {`["7"]`, ids{7}},
		{"[9007199254740993]", ids{9007199254740993}},
	} {
		var got ids
		if err := got.UnmarshalJSON([]byte(c.text)); err != nil || cmp.Diff(c.want, got) != "" {
			t.Errorf("%s: %v, %v", c.text, got, err)
		}
	}
	for _, bad := range []string{"7", "[x]", "[1,]", "[99999999999999999999]", "[1.5]"} {
		var got ids
		if err := got.UnmarshalJSON([]byte(bad)); err == nil {
			t.Errorf("%s: %v", bad, got)
		}
	}
}
