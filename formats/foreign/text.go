package foreign

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/shadowtape/shadowtape/formats"
)

// maxLine is the longest line, or value of a JSON list, that is read, in bytes. A variable for tests.
var maxLine = 64 << 20

var errLineTooLong = errors.New("more than 64 MiB in one row")

// lines reads text line by line: any line end, none at the end of the file, a byte order mark, blank lines left out.
type lines struct {
	r   *bufio.Reader
	row int64 // number of the last line, from 1
	buf []byte
}

// next returns the next line that is not blank, valid until the call after. A line over the limit is skipped and is errLineTooLong.
func (l *lines) next() ([]byte, error) {
	for {
		l.buf = l.buf[:0]
		long := false
		var err error
		for {
			var part []byte
			part, err = l.r.ReadSlice('\n')
			if len(l.buf)+len(part) > maxLine {
				long = true
				l.buf = l.buf[:0]
			}
			if !long {
				l.buf = append(l.buf, part...)
			}
			if err != bufio.ErrBufferFull {
				break
			}
		}
		if err != nil && err != io.EOF {
			return nil, err
		}
		if err == io.EOF && len(l.buf) == 0 && !long {
			return nil, io.EOF
		}
		l.row++
		if long {
			return nil, errLineTooLong
		}
		b := l.buf
		if l.row == 1 {
			b = bytes.TrimPrefix(b, bom)
		}
		if b = bytes.TrimSpace(b); len(b) > 0 {
			return b, nil
		}
	}
}

// broken is a row that cannot be read.
func (l *lines) broken(err error) error {
	return &formats.RowError{Row: l.row, Reason: "broken_row", Err: err}
}

// left is a row that is left out for a reason that its format expects.
func (l *lines) left(reason string) error { return &formats.RowError{Row: l.row, Reason: reason} }

// table reads a separated text by the names in its header line, whatever their order. Fields do not run over lines.
type table struct {
	lines
	comma   byte
	columns map[string]int
	width   int
	fields  []string
}

// newTable reads the header line and refuses one that lacks a name. Names are compared without case and surrounding space.
func newTable(r *bufio.Reader, comma byte, names ...string) (*table, error) {
	t := &table{lines: lines{r: r}, comma: comma, columns: map[string]int{}}
	line, err := t.lines.next()
	if err != nil {
		return nil, early(err)
	}
	fields, err := split(nil, string(line), comma)
	if err != nil {
		return nil, fmt.Errorf("header line: %w", err)
	}
	for i, f := range fields {
		t.columns[strings.ToLower(strings.TrimSpace(f))] = i
	}
	t.width = len(fields)
	for _, n := range names {
		if _, ok := t.columns[strings.ToLower(n)]; !ok {
			return nil, fmt.Errorf("the header line has no column %q", n)
		}
	}
	return t, nil
}

func early(err error) error {
	if err == io.EOF {
		return errors.New("the file is empty")
	}
	return err
}

// next reads a row.
func (t *table) next() error {
	line, err := t.lines.next()
	if errors.Is(err, errLineTooLong) {
		return t.broken(err)
	}
	if err != nil {
		return err
	}
	if t.fields, err = split(t.fields[:0], string(line), t.comma); err != nil {
		return t.broken(err)
	}
	if len(t.fields) != t.width {
		return t.broken(fmt.Errorf("%d fields where the header has %d", len(t.fields), t.width))
	}
	return nil
}

// field is the value of a named column, "" where the table has none of that name.
func (t *table) field(name string) string {
	if i, ok := t.columns[name]; ok && i < len(t.fields) {
		return strings.TrimSpace(t.fields[i])
	}
	return ""
}

// count reads a column of counts: blank and negative are unknown.
func (t *table) count(name string) (formats.Null[int64], error) {
	n, err := count(t.field(name))
	if err != nil {
		return n, t.broken(fmt.Errorf("%s: %w", name, err))
	}
	return n, nil
}

// split cuts a line at the separators outside double quotes.
func split(dst []string, line string, comma byte) ([]string, error) {
	for {
		if !strings.HasPrefix(line, `"`) {
			i := strings.IndexByte(line, comma)
			if i < 0 {
				return append(dst, line), nil
			}
			dst, line = append(dst, line[:i]), line[i+1:]
			continue
		}
		var f strings.Builder
		line = line[1:]
		for {
			i := strings.IndexByte(line, '"')
			if i < 0 {
				return dst, errors.New("a quote is not closed")
			}
			f.WriteString(line[:i])
			line = line[i+1:]
			if !strings.HasPrefix(line, `"`) {
				break
			}
			f.WriteByte('"')
			line = line[1:]
		}
		dst = append(dst, f.String())
		if line == "" {
			return dst, nil
		}
		if line[0] != comma {
			return dst, errors.New("text behind a closing quote")
		}
		line = line[1:]
	}
}

// count reads a count of tokens or the like: blank, "null", "None", "nan" and negative are unknown; 12.0 and 1.2e1 are 12.
func count(s string) (formats.Null[int64], error) {
	switch strings.ToLower(s) {
	case "", "null", "none", "nan", "-", "n/a":
		return formats.Null[int64]{}, nil
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		f, ferr := strconv.ParseFloat(s, 64)
		if ferr != nil || f != math.Trunc(f) || math.Abs(f) > 1<<53 {
			return formats.Null[int64]{}, fmt.Errorf("%q is no count", shortened(s))
		}
		n = int64(f)
	}
	if n < 0 {
		return formats.Null[int64]{}, nil
	}
	return formats.Of(n), nil
}

// scaled reads a decimal number in units of unit nanoseconds, exactly: "61.114" seconds are 61,114,000,000 ns.
func scaled(s string, unit int64) (int64, error) {
	t := strings.TrimSpace(s)
	negative := strings.HasPrefix(t, "-")
	t = strings.TrimLeft(t, "+-")
	whole, fraction, _ := strings.Cut(t, ".")
	if strings.ContainsAny(t, "eE") || whole == "" {
		f, err := strconv.ParseFloat(s, 64)
		if err != nil || !(math.Abs(f*float64(unit)) <= farthest) {
			return 0, noTime(s)
		}
		return int64(math.Round(f * float64(unit))), nil
	}
	n, err := strconv.ParseInt(whole, 10, 64)
	if err != nil || n > farthest/unit {
		return 0, noTime(s)
	}
	n *= unit
	part := unit
	for i := range len(fraction) {
		d := fraction[i]
		if d < '0' || d > '9' {
			return 0, noTime(s)
		}
		if part%10 != 0 { // below a nanosecond: rounded once, at the first digit lost
			if d >= '5' {
				n++
			}
			for _, d := range fraction[i:] {
				if d < '0' || d > '9' {
					return 0, noTime(s)
				}
			}
			break
		}
		part /= 10
		n += int64(d-'0') * part
	}
	if negative {
		n = -n
	}
	return n, nil
}

// farthest is how far from 1970, or a trace's start, a time may be, in nanoseconds (126 years): two such times and an offset can be added.
const farthest = 4e18

func noTime(s string) error { return fmt.Errorf("%q is no time", shortened(s)) }

// clock reads a date and time: "2006-01-02", a space or T, "15:04:05", 0 to 9 digits of fraction, then nothing (UTC), Z or an offset.
func clock(s string) (int64, error) {
	s = strings.TrimSpace(s)
	if len(s) < 19 || (s[10] != ' ' && s[10] != 'T' && s[10] != 't') {
		return 0, noClock(s)
	}
	num := func(i, j, low, high int) int {
		n := 0
		for _, c := range []byte(s[i:j]) {
			if c < '0' || c > '9' {
				return -1
			}
			n = 10*n + int(c-'0')
		}
		if n < low || n > high {
			return -1
		}
		return n
	}
	y, mo, d, h, mi, sec := num(0, 4, 1900, 2095), num(5, 7, 1, 12), num(8, 10, 1, 31), num(11, 13, 0, 23), num(14, 16, 0, 59), num(17, 19, 0, 60)
	if min(y, mo, d, h, mi, sec) < 0 || s[4] != '-' || s[7] != '-' || s[13] != ':' || s[16] != ':' {
		return 0, noClock(s)
	}
	rest := s[19:]
	ns := int64(0)
	if rest != "" && (rest[0] == '.' || rest[0] == ',') {
		unit := int64(100_000_000)
		i := 1
		for ; i < len(rest) && rest[i] >= '0' && rest[i] <= '9'; i++ {
			ns += int64(rest[i]-'0') * unit
			unit /= 10
		}
		if i == 1 {
			return 0, noClock(s)
		}
		rest = rest[i:]
	}
	offset, ok := zone(strings.TrimSpace(rest))
	if !ok {
		return 0, noClock(s)
	}
	date := time.Date(y, time.Month(mo), d, h, mi, sec, 0, time.UTC)
	if date.Day() != d {
		return 0, noClock(s) // 31 April
	}
	return date.UnixNano() + ns - offset*int64(time.Second), nil
}

func noClock(s string) error { return fmt.Errorf("%q is no date and time", shortened(s)) }

// zone reads "", Z, UTC, +hh, +hhmm or +hh:mm, in seconds east.
func zone(s string) (int64, bool) {
	switch s {
	case "", "Z", "z", "UTC":
		return 0, true
	}
	sign := int64(1)
	switch s[0] {
	case '-':
		sign = -1
	case '+':
	default:
		return 0, false
	}
	digits := strings.ReplaceAll(s[1:], ":", "")
	if len(digits) == 2 {
		digits += "00"
	}
	n, err := strconv.ParseUint(digits, 10, 16)
	if err != nil || len(digits) != 4 || n%100 > 59 || n > 1500 {
		return 0, false
	}
	return sign * int64(n/100*3600+n%100*60), true
}

// shortened keeps a quoted value in a message short.
func shortened(s string) string {
	if len(s) > 40 {
		return strings.ToValidUTF8(s[:40], "") + "…"
	}
	return s
}
