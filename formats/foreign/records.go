package foreign

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/shadowtape/shadowtape/formats"
)

// record is one row of a log or export that comes as CSV or JSON. Names are matched without case.
type record map[string]json.RawMessage

// records reads a CSV with a header line, JSON lines, one JSON array, or one JSON object that holds the array under a name.
type records struct {
	row   int64
	under string // where the rows of a single object are
	value *portion
	csv   *csv.Reader
	names []string
	json  *json.Decoder
	lines *lines
	list  []json.RawMessage // rows of an object or array that were read whole
	whole bool
}

// newRecords looks at the content to see which it is.
func newRecords(in *input, under string) (*records, error) {
	r := &records{under: under, value: &portion{r: in.r}}
	in.row = func() int64 { return r.row }
	head := bytes.TrimLeft(in.peek(), " \t\r\n")
	if len(head) == 0 {
		return nil, errors.New("the file is empty")
	}
	if b, _ := in.r.Peek(len(bom)); bytes.Equal(b, bom) {
		in.r.Discard(len(bom))
	}
	switch first := firstObject(head); {
	case head[0] == '[':
		r.json = json.NewDecoder(r.value)
		r.value.next()
		if _, err := r.json.Token(); err != nil {
			return nil, plainJSON(err)
		}
	case head[0] == '{' && hasKey(first, under):
		whole, err := readWhole(in)
		if err != nil {
			return nil, err
		}
		var object map[string]json.RawMessage
		if err := json.Unmarshal(whole, &object); err != nil {
			return nil, plainJSON(err)
		}
		if err := json.Unmarshal(object[under], &r.list); err != nil {
			return nil, fmt.Errorf("%s: %w", under, plainJSON(err))
		}
		r.whole = true
	case head[0] == '{':
		r.lines = &lines{r: in.r}
	default:
		r.csv = csv.NewReader(r.value)
		r.csv.FieldsPerRecord = -1
		r.value.next()
		names, err := r.csv.Read()
		if err != nil {
			return nil, fmt.Errorf("header line: %w", err)
		}
		for _, n := range names {
			r.names = append(r.names, strings.ToLower(strings.TrimSpace(n)))
		}
		r.row = 1
	}
	return r, nil
}

// portion is a reader out of which one value, a row of JSON or CSV, takes no more than a line may have.
type portion struct {
	r    io.Reader
	left int
}

// next begins another value.
func (p *portion) next() { p.left = maxLine }

func (p *portion) Read(b []byte) (int, error) {
	if p.left <= 0 {
		return 0, errLineTooLong
	}
	n, err := p.r.Read(b[:min(len(b), p.left)])
	p.left -= n
	return n, err
}

const maxWhole = 1 << 30

// readWhole reads a document that cannot be read in pieces.
func readWhole(in *input) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(in.r, maxWhole+1))
	if err == nil && len(b) > maxWhole {
		err = fmt.Errorf("one JSON document of more than %d MiB", maxWhole>>20)
	}
	return bytes.TrimPrefix(b, bom), err
}

func hasKey(m map[string]json.RawMessage, key string) bool {
	_, ok := m[key]
	return ok && key != ""
}

// next reads a row. A broken one is a *formats.RowError.
func (r *records) next() (record, error) {
	r.value.next()
	switch {
	case r.csv != nil:
		return r.nextCSV()
	case r.whole:
		if len(r.list) == 0 {
			return nil, io.EOF
		}
		b := r.list[0]
		r.list = r.list[1:]
		r.row++
		return r.parse(b)
	case r.json != nil:
		if !r.json.More() {
			return nil, io.EOF
		}
		var b json.RawMessage
		r.row++
		if err := r.json.Decode(&b); err != nil { // nothing behind it can be found again
			if r.json.More() || err != io.EOF {
				r.json, r.whole, r.list = nil, true, nil
			}
			return nil, r.broken(plainJSON(err))
		}
		return r.parse(b)
	}
	line, err := r.lines.next()
	r.row = r.lines.row
	if errors.Is(err, errLineTooLong) {
		return nil, r.broken(err)
	}
	if err != nil {
		return nil, err
	}
	return r.parse(line)
}

func (r *records) nextCSV() (record, error) {
	fields, err := r.csv.Read()
	if err == io.EOF {
		return nil, err
	}
	var bad *csv.ParseError
	if errors.As(err, &bad) {
		r.row = int64(bad.Line)
		return nil, r.broken(bad.Err)
	}
	if errors.Is(err, errLineTooLong) { // the end of the row cannot be found
		r.row++
		r.csv, r.whole, r.list = nil, true, nil
		return nil, r.broken(err)
	}
	if err != nil {
		return nil, err
	}
	line, _ := r.csv.FieldPos(0)
	r.row = int64(line)
	if len(fields) != len(r.names) {
		return nil, r.broken(fmt.Errorf("%d fields where the header has %d", len(fields), len(r.names)))
	}
	rec := make(record, len(fields))
	for i, f := range fields {
		if f == "" {
			continue
		}
		if trimmed := strings.TrimSpace(f); strings.HasPrefix(trimmed, "{") && json.Valid([]byte(trimmed)) {
			rec[r.names[i]] = json.RawMessage(trimmed)
			continue
		}
		b, err := json.Marshal(f)
		if err != nil {
			return nil, r.broken(err)
		}
		rec[r.names[i]] = b
	}
	return rec, nil
}

func (r *records) parse(b []byte) (record, error) {
	var object map[string]json.RawMessage
	if err := json.Unmarshal(b, &object); err != nil {
		return nil, r.broken(plainJSON(err))
	}
	rec := make(record, len(object))
	for k, v := range object {
		rec[strings.ToLower(k)] = v
	}
	return rec, nil
}

func (r *records) broken(err error) error {
	return &formats.RowError{Row: r.row, Reason: "broken_row", Err: err}
}

func (r *records) left(reason string) error { return &formats.RowError{Row: r.row, Reason: reason} }

// text is the first of some fields that says anything; an object or list is its JSON.
func (r record) text(names ...string) string {
	for _, n := range names {
		v, ok := r[n]
		if !ok || len(v) == 0 || string(v) == "null" {
			continue
		}
		if v[0] != '"' {
			return string(v)
		}
		var s string
		if json.Unmarshal(v, &s) == nil && strings.TrimSpace(s) != "" {
			return strings.TrimSpace(s)
		}
	}
	return ""
}

// object is a field that holds an object, or a string that holds one; nil where there is none.
func (r record) object(name string) record {
	v := r[name]
	if len(v) > 0 && v[0] == '"' {
		var s string
		if json.Unmarshal(v, &s) != nil {
			return nil
		}
		v = json.RawMessage(s)
	}
	var o map[string]json.RawMessage
	if json.Unmarshal(v, &o) != nil || o == nil { // null is no object either
		return nil
	}
	out := make(record, len(o))
	for k, v := range o {
		out[strings.ToLower(k)] = v
	}
	return out
}

// count is the first of some fields that says anything, as a count. Text that is no count is unknown.
func (r record) count(names ...string) formats.Null[int64] {
	n, err := count(r.text(names...))
	if err != nil {
		return formats.Null[int64]{}
	}
	return n
}

// small is count cut to 32 bits; what does not fit is unknown.
func (r record) small(names ...string) formats.Null[int32] {
	n := r.count(names...)
	if !n.Valid || n.V > math.MaxInt32 {
		return formats.Null[int32]{}
	}
	return formats.Of(int32(n.V))
}

// number is the first of some fields that says anything, as a number.
func (r record) number(names ...string) formats.Null[float64] {
	var f float64
	if s := r.text(names...); s == "" || json.Unmarshal([]byte(s), &f) != nil {
		return formats.Null[float64]{}
	}
	return formats.Of(f)
}

// truth is the first of some fields that says anything, as a truth value.
func (r record) truth(names ...string) formats.Null[bool] {
	switch strings.ToLower(r.text(names...)) {
	case "true", "t", "1", "yes":
		return formats.Of(true)
	case "false", "f", "0", "no":
		return formats.Of(false)
	}
	return formats.Null[bool]{}
}

// instant is the first of some fields that says anything, as nanoseconds since 1970: a date and time, or a number of seconds,
// milliseconds, microseconds or nanoseconds, told apart by its size (a time between 2001 and 2286 in seconds). ok is false where there
// is none.
func (r record) instant(names ...string) (ns int64, ok bool, err error) {
	s := r.text(names...)
	if s == "" {
		return 0, false, nil
	}
	if at, err := clock(s); err == nil {
		return at, true, nil
	}
	f, err := parseFloat(s)
	if err != nil || f < 1e9 {
		return 0, true, fmt.Errorf("%q is no date and time", shortened(s))
	}
	unit := int64(1e9)
	for limit := 1e10; f >= limit && unit > 1; limit *= 1e3 {
		unit /= 1e3
	}
	ns, err = scaled(s, unit)
	return ns, true, err
}

func parseFloat(s string) (float64, error) {
	var f float64
	err := json.Unmarshal([]byte(s), &f)
	return f, err
}

// since is the offset of a time from x's arrival; one before it is unknown and counted.
func (in *input) since(x *formats.Exchange, at int64, ok bool) formats.Null[int64] {
	if !ok {
		return formats.Null[int64]{}
	}
	if at < x.ArrivalUnixNS {
		in.notes["time_before_arrival"]++
		return formats.Null[int64]{}
	}
	return formats.Of(at - x.ArrivalUnixNS)
}

// duration is a number in some unit, as nanoseconds; unknown where it is negative or no number.
func duration(s string, unit int64) formats.Null[int64] {
	n, err := scaled(s, unit)
	if s == "" || err != nil || n < 0 {
		return formats.Null[int64]{}
	}
	return formats.Of(n)
}
