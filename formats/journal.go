package formats

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"os"
	"strings"
)

// The journal of an open segment is a file exchanges-NNNNN.journal beside it: the magic, then records. A record is the length of its body
// and the body's CRC-32C, four bytes each, little endian, then the body: a letter and what it says.
//
//	h  JSON: the header, and the names of the columns, which rows refer to by position
//	r  a row that ended
//	b  a row that is in flight: the same exchange comes again as r or f, or its recording was cut
//	f  varint: the exchange that was in flight is forgotten
//
// A row is, for each known column, its position as uvarint and its value: integers as varint, floats as eight bytes, strings and lists
// behind their length. Records are handed to the kernel one by one, so that they outlive the process, though not the machine; a torn
// record at the end is where the process died.
const (
	journalSuffix = ".journal"
	journalMagic  = "shadowtape journal 1\n"
	maxRecord     = 64 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// appendFile is what a journal needs of a file.
type appendFile interface {
	io.WriteCloser
	Truncate(size int64) error
}

// journal appends records to a file.
type journal struct {
	f    appendFile
	size int64
	buf  []byte
}

// journalHead is the body of the first record.
type journalHead struct {
	Header  Header   `json:"header"`
	Columns []Column `json:"columns"`
}

// openAppend creates a journal's file; tests put a full disk in its place.
var openAppend = func(name string) (appendFile, error) {
	return os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|os.O_APPEND, 0o666)
}

func newJournal(name string, h Header) (*journal, error) {
	head, err := json.Marshal(journalHead{h, Columns()})
	if err != nil {
		return nil, err
	}
	f, err := openAppend(name)
	if err != nil {
		return nil, err
	}
	j := &journal{f: f, buf: []byte(journalMagic)}
	j.begin('h')
	j.buf = append(j.buf, head...)
	if err := j.end(len(journalMagic)); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return j, nil
}

// row appends an exchange as a record of kind r or b and returns the record's body, valid until the next call.
func (j *journal) row(kind byte, x *Exchange) ([]byte, error) {
	j.buf = j.buf[:0]
	j.begin(kind)
	j.buf = appendRow(j.buf, x)
	return j.buf[8:], j.end(0)
}

// raw appends a body that row returned.
func (j *journal) raw(body []byte) error {
	j.buf = append(j.buf[:0], 0, 0, 0, 0, 0, 0, 0, 0)
	j.buf = append(j.buf, body...)
	return j.end(0)
}

func (j *journal) forget(id int64) error {
	j.buf = j.buf[:0]
	j.begin('f')
	j.buf = binary.AppendVarint(j.buf, id)
	return j.end(0)
}

func (j *journal) begin(kind byte) {
	j.buf = append(j.buf, 0, 0, 0, 0, 0, 0, 0, 0, kind)
}

// end fills in the record that starts at buf[at:] and writes the buffer in one call. What was written of it in part is taken back, so
// that a full disk leaves whole records.
func (j *journal) end(at int) error {
	body := j.buf[at+8:]
	binary.LittleEndian.PutUint32(j.buf[at:], uint32(len(body)))
	binary.LittleEndian.PutUint32(j.buf[at+4:], crc32.Checksum(body, castagnoli))
	n, err := j.f.Write(j.buf)
	if err != nil {
		if n > 0 {
			err = errors.Join(err, j.f.Truncate(j.size))
		}
		return err
	}
	j.size += int64(n)
	return nil
}

// appendRow appends the known columns of x.
func appendRow(b []byte, x *Exchange) []byte {
	for i, c := range columns {
		at := func() { b = binary.AppendUvarint(b, uint64(i)) }
		switch c.kind {
		case kindInt64, kindInt32, kindBool:
			if v, ok := c.getInt(x); ok {
				at()
				b = binary.AppendVarint(b, v)
			}
		case kindFloat:
			if v := c.float(x); v.Valid {
				at()
				b = binary.LittleEndian.AppendUint64(b, math.Float64bits(v.V))
			}
		case kindString:
			if s := c.getString(x); s != "" {
				at()
				b = appendText(b, s)
			}
		case kindHash:
			if v := c.hash(x); v.Valid {
				at()
				b = append(b, v.V[:]...)
			}
		case kindInt64List:
			if l := *c.longs(x); l != nil {
				at()
				b = binary.AppendUvarint(b, uint64(len(l)))
				for _, v := range l {
					b = binary.AppendVarint(b, v)
				}
			}
		case kindInt32List:
			if l := *c.ints(x); l != nil {
				at()
				b = binary.AppendUvarint(b, uint64(len(l)))
				for _, v := range l {
					b = binary.AppendVarint(b, int64(v))
				}
			}
		case kindStringList:
			if l := *c.strings(x); l != nil {
				at()
				b = binary.AppendUvarint(b, uint64(len(l)))
				for _, s := range l {
					b = appendText(b, s)
				}
			}
		}
	}
	return b
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// rowReader takes a row's body apart. bad is set by the first thing that is not there.
type rowReader struct {
	b   []byte
	bad bool
}

func (r *rowReader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.bad, r.b = true, nil
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *rowReader) varint() int64 {
	v, n := binary.Varint(r.b)
	if n <= 0 {
		r.bad, r.b = true, nil
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *rowReader) take(n uint64) []byte {
	if n > uint64(len(r.b)) {
		r.bad, r.b = true, nil
		return make([]byte, 8)
	}
	v := r.b[:n]
	r.b = r.b[n:]
	return v
}

// length reads a list's length; each element takes at least a byte, so that a false length cannot make a large allocation.
func (r *rowReader) length() int {
	n := r.uvarint()
	if n > uint64(len(r.b)) {
		r.bad, r.b = true, nil
		return 0
	}
	return int(n)
}

// readRow fills x from a body whose columns are those of the journal's head.
func readRow(b []byte, names []*column, x *Exchange) error {
	r := rowReader{b: b}
	for len(r.b) > 0 && !r.bad {
		i := r.uvarint()
		if r.bad || i >= uint64(len(names)) {
			return errors.New("a row names a column that is not there")
		}
		switch c := names[i]; c.kind {
		case kindInt64, kindInt32, kindBool:
			c.setInt(x, r.varint())
		case kindFloat:
			*c.float(x) = Of(math.Float64frombits(binary.LittleEndian.Uint64(r.take(8))))
		case kindString:
			c.setString(x, string(r.take(r.uvarint())))
		case kindHash:
			*c.hash(x) = Of(Hash(r.take(8)))
		case kindInt64List:
			l := make([]int64, r.length())
			for i := range l {
				l[i] = r.varint()
			}
			*c.longs(x) = l
		case kindInt32List:
			l := make([]int32, r.length())
			for i := range l {
				l[i] = int32(r.varint())
			}
			*c.ints(x) = l
		case kindStringList:
			l := make([]string, r.length())
			for i := range l {
				l[i] = string(r.take(r.uvarint()))
			}
			*c.strings(x) = l
		}
	}
	if r.bad {
		return errors.New("a row is cut short")
	}
	return nil
}

// readJournal replays a journal: row is called for each row that ended, in order, and the rows still in flight at the end are returned
// as they were when they began. What follows a torn or damaged record is left out; torn says so.
func readJournal(b []byte, row func(*Exchange) error) (h Header, flying []*Exchange, torn bool, err error) {
	rest, ok := bytes.CutPrefix(b, []byte(journalMagic))
	if !ok {
		return h, nil, len(b) > 0, nil // died before the first record
	}
	var names []*column
	begun := map[int64]*Exchange{}
	var order []int64
	for len(rest) > 0 {
		body, next, ok := record(rest)
		if !ok {
			torn = true
			break
		}
		rest = next
		kind, body := body[0], body[1:]
		switch kind {
		case 'h':
			var head journalHead
			if err := json.Unmarshal(PlainJSON(body), &head); err != nil {
				return h, nil, true, fmt.Errorf("journal head: %w", err)
			}
			if err := readable(head.Header); err != nil {
				return h, nil, true, err
			}
			h = head.Header
			names = names[:0]
			for _, n := range head.Columns {
				c := n.column()
				if c == nil {
					return h, nil, true, fmt.Errorf("journal of another version: it has a column %q", n)
				}
				names = append(names, c)
			}
		case 'f':
			r := rowReader{b: body}
			delete(begun, r.varint())
		case 'r', 'b':
			x := &Exchange{}
			if err := readRow(body, names, x); err != nil {
				return h, nil, true, err
			}
			if kind == 'b' {
				if begun[x.ExchangeID] == nil {
					order = append(order, x.ExchangeID)
				}
				begun[x.ExchangeID] = x
				continue
			}
			delete(begun, x.ExchangeID)
			if err := row(x); err != nil {
				return h, nil, torn, err
			}
		}
	}
	for _, id := range order {
		if x := begun[id]; x != nil {
			flying = append(flying, x)
			delete(begun, id)
		}
	}
	return h, flying, torn, nil
}

// record cuts the next record off.
func record(b []byte) (body, rest []byte, ok bool) {
	if len(b) < 9 {
		return nil, nil, false
	}
	n := binary.LittleEndian.Uint32(b)
	if n == 0 || n > maxRecord || uint64(n) > uint64(len(b)-8) {
		return nil, nil, false
	}
	body = b[8 : 8+n]
	if crc32.Checksum(body, castagnoli) != binary.LittleEndian.Uint32(b[4:]) {
		return nil, nil, false
	}
	return body, b[8+n:], true
}

// journalOf names the journal of a segment.
func journalOf(segment string) string {
	return strings.TrimSuffix(segment, segmentSuffix) + journalSuffix
}
