package formats

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"sync/atomic"
	"time"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/encoding"
)

// vector is a column of a batch: the values of each row, 0 or "" where unknown. Of ints, floats, strings and hashes the one of the
// column's kind is filled; a list's elements stand in ints or strings, row i in offsets[i]:offsets[i+1].
type vector struct {
	unknown int // rows that are unknown
	valid   []bool
	ints    []int64
	floats  []float64
	strings []string
	hashes  []Hash
	offsets []int32
}

func (v *vector) reset() {
	*v = vector{valid: v.valid[:0], ints: v.ints[:0], floats: v.floats[:0], strings: v.strings[:0], hashes: v.hashes[:0], offsets: v.offsets[:0]}
}

// fillUnknown appends n unknown rows.
func (v *vector) fillUnknown(c *column, n int) {
	v.unknown += n
	v.valid = appendZero(v.valid, n)
	switch {
	case c.kind.list():
		if len(v.offsets) == 0 {
			v.offsets = append(v.offsets, 0)
		}
		v.offsets = append(v.offsets, slices.Repeat(v.offsets[len(v.offsets)-1:], n)...)
	case c.kind == kindFloat:
		v.floats = appendZero(v.floats, n)
	case c.kind == kindString:
		v.strings = appendZero(v.strings, n)
	case c.kind == kindHash:
		v.hashes = appendZero(v.hashes, n)
	default:
		v.ints = appendZero(v.ints, n)
	}
}

func appendZero[T any](s []T, n int) []T {
	s = slices.Grow(s, n)
	t := s[len(s) : len(s)+n]
	clear(t)
	return s[:len(s)+n]
}

// chunk reads one column of one row group, page by page, into vectors. A column that the file does not have, or that is unknown
// throughout, has no pages.
type chunk struct {
	*column
	pages      parquet.Pages
	outer      byte // definition level of an unknown or empty list: 1 where the list itself may be unknown
	full       byte // definition level of a value
	page       parquet.Page
	defs, reps []byte
	at         int    // next level
	used       int    // next value
	vals       vector // the known values of the page
	dictionary parquet.Dictionary
	entries    vector // its values
	doubted    *atomic.Int64
}

// openChunk finds c in a row group. It refuses a column of another shape.
func openChunk(c *column, f *parquet.File, g parquet.RowGroup, doubted *atomic.Int64) (*chunk, error) {
	r := &chunk{column: c, doubted: doubted}
	field := f.Root().Column(string(c.name))
	if field == nil {
		return r, nil
	}
	if field.Optional() {
		r.outer = 1
	}
	leaf := field
	for !leaf.Leaf() {
		below := leaf.Columns()
		if len(below) != 1 {
			return nil, fmt.Errorf("column %s: a group of %d columns", c.name, len(below))
		}
		leaf = below[0]
	}
	r.full = byte(leaf.MaxDefinitionLevel())
	if leaf.Depth() > field.Depth() != c.kind.list() || leaf.MaxRepetitionLevel() > 1 || !stores(leaf.Type(), c.kind) {
		return nil, fmt.Errorf("column %s: it is stored as %s, not as %s", c.name, field.String(), c.kind)
	}
	cc := g.ColumnChunks()[leaf.Index()]
	if fc, ok := cc.(*parquet.FileColumnChunk); ok && fc.NumValues() == g.NumRows() && fc.NullCount() == g.NumRows() {
		return r, nil
	}
	r.pages = cc.Pages()
	return r, nil
}

// stores reports whether a physical type can hold a kind. Files that passed through another tool may have widened integers.
func stores(t parquet.Type, k kind) bool {
	switch t.Kind() {
	case parquet.Int64, parquet.Int32, parquet.Boolean:
		return k <= kindBool || k == kindInt64List || k == kindInt32List
	case parquet.Double, parquet.Float:
		return k == kindFloat
	case parquet.ByteArray:
		return k == kindString || k == kindStringList
	case parquet.FixedLenByteArray:
		return k == kindHash && t.Length() == len(Hash{})
	}
	return false
}

func (r *chunk) close() {
	if r.page != nil {
		parquet.Release(r.page)
		r.page = nil
	}
	if r.pages != nil {
		r.pages.Close()
		r.pages = nil
	}
}

// next loads the next page that has values. io.EOF: there is none.
func (r *chunk) next() error {
	for {
		if r.page != nil {
			parquet.Release(r.page)
			r.page = nil
		}
		p, err := r.pages.ReadPage()
		if err != nil {
			return err
		}
		r.page = p
		if p.NumValues() == 0 {
			continue
		}
		r.defs, r.reps, r.at, r.used = p.DefinitionLevels(), p.RepetitionLevels(), 0, 0
		return r.values(p)
	}
}

// A time lies between 140 years before and after 1970, the trace's start or the arrival: what is computed of it, sums, spans and grids
// above all, must not overflow.
const farthest = 140 * 365 * 24 * int64(time.Hour)

// doubt looks at the times that were read into v from row i on. An offset that no clock has shown becomes unknown and is counted; an arrival
// cannot be unknown, and is refused.
func (r *chunk) doubt(v *vector, i int) error {
	if !r.time() {
		return nil
	}
	for ; i < len(v.ints); i++ {
		at := v.ints[i]
		if at >= -farthest && at <= farthest {
			continue
		}
		if r.required {
			return impossible(at)
		}
		v.ints[i], v.valid[i] = 0, false
		v.unknown++
		r.doubted.Add(1)
	}
	return nil
}

func impossible(ns int64) error { return fmt.Errorf("%d is no time", ns) }

// time reports whether a column holds times or durations in nanoseconds.
func (c *column) time() bool { return c.unit == "ns" && c.kind == kindInt64 }

// MostTokens is the most tokens that a request or its answer can be believed to have, whoever states it: ten times the longest context of
// any model, for batches of prompts and several choices.
const MostTokens = 100_000_000

// Possible refuses an exchange with a time that no clock has shown: more than 140 years from 1970, the trace's start or the exchange's
// arrival. Readers refuse such an arrival, and take such an offset as unknown. It refuses counts of tokens below 0 and beyond MostTokens.
func (x *Exchange) Possible() error {
	for _, c := range []Column{ColInputTokens, ColOutputTokens, ColReasoningTokens, ColCachedTokens} {
		if v, ok := c.column().getInt(x); ok && (v < 0 || v > MostTokens) {
			return fmt.Errorf("%s: no request has %d tokens", c, v)
		}
	}
	for _, c := range timeColumns {
		if v, ok := c.getInt(x); ok && (v < -farthest || v > farthest) {
			return fmt.Errorf("%s: %w", c.name, impossible(v))
		}
	}
	return nil
}

// span is from when to when x is known to have been; offsets that no clock has shown count for nothing.
func (x *Exchange) span() (from, to int64) {
	if end := x.EndNS.Or(0); end > 0 && end <= farthest && x.ArrivalUnixNS <= farthest {
		return x.ArrivalUnixNS, x.ArrivalUnixNS + end
	}
	return x.ArrivalUnixNS, x.ArrivalUnixNS
}

var timeColumns = func() (out []*column) {
	for _, c := range columns {
		if c.time() {
			out = append(out, c)
		}
	}
	return out
}()

// values unpacks the known values of a page.
func (r *chunk) values(p parquet.Page) error {
	d, known := p.Dictionary(), int(p.NumValues()-p.NumNulls())
	r.vals.reset()
	if d == nil {
		return unpack(&r.vals, p, known)
	}
	if d != r.dictionary {
		r.entries.reset()
		if err := unpack(&r.entries, d.Page(), d.Len()); err != nil {
			return err
		}
		r.dictionary = d
	}
	data := p.Data()
	index := data.Int32()
	if len(index) < known {
		return fmt.Errorf("a page of %d values holds %d", known, len(index))
	}
	var err error
	switch r.kind {
	case kindFloat:
		r.vals.floats, err = lookup(r.vals.floats, r.entries.floats, index)
	case kindString, kindStringList:
		r.vals.strings, err = lookup(r.vals.strings, r.entries.strings, index)
	case kindHash:
		r.vals.hashes, err = lookup(r.vals.hashes, r.entries.hashes, index)
	default:
		r.vals.ints, err = lookup(r.vals.ints, r.entries.ints, index)
	}
	return err
}

func lookup[T any](dst, entries []T, index []int32) ([]T, error) {
	dst = slices.Grow(dst, len(index))
	for _, i := range index {
		if uint(i) >= uint(len(entries)) {
			return nil, errors.New("a page points outside its dictionary")
		}
		dst = append(dst, entries[i])
	}
	return dst, nil
}

// unpack appends the n values of a page without dictionary.
func unpack(v *vector, p parquet.Page, n int) error {
	data := p.Data()
	have := 0
	switch data.Kind() {
	case encoding.Int64:
		v.ints = append(v.ints, data.Int64()...)
		have = len(v.ints)
	case encoding.Int32:
		for _, i := range data.Int32() {
			v.ints = append(v.ints, int64(i))
		}
		have = len(v.ints)
	case encoding.Boolean:
		bits := data.Boolean()
		have = min(n, 8*len(bits))
		for i := range have {
			v.ints = append(v.ints, int64(bits[i/8]>>(i%8)&1))
		}
	case encoding.Double:
		v.floats = append(v.floats, data.Double()...)
		have = len(v.floats)
	case encoding.Float:
		for _, f := range data.Float() {
			v.floats = append(v.floats, float64(f))
		}
		have = len(v.floats)
	case encoding.ByteArray:
		b, offsets := data.ByteArray()
		for i := range max(len(offsets)-1, 0) {
			v.strings = append(v.strings, string(b[offsets[i]:offsets[i+1]]))
		}
		have = len(v.strings)
	case encoding.FixedLenByteArray:
		b, size := data.FixedLenByteArray()
		for ; size == len(Hash{}) && len(b) >= size; b = b[size:] {
			v.hashes = append(v.hashes, Hash(b))
		}
		have = len(v.hashes)
	}
	if have < n {
		return fmt.Errorf("a page of %d values holds %d", n, have)
	}
	return nil
}

// read appends n rows to v.
func (r *chunk) read(v *vector, n int) error {
	if r.pages == nil {
		v.fillUnknown(r.column, n)
		return nil
	}
	if r.kind.list() {
		return r.readLists(v, n)
	}
	for n > 0 {
		if r.page == nil || r.at == int(r.page.NumValues()) {
			if err := r.next(); err != nil {
				return early(err)
			}
		}
		k := min(n, int(r.page.NumValues())-r.at)
		switch r.kind {
		case kindFloat:
			v.floats = spread(r, v, v.floats, r.vals.floats, k)
		case kindString:
			v.strings = spread(r, v, v.strings, r.vals.strings, k)
		case kindHash:
			v.hashes = spread(r, v, v.hashes, r.vals.hashes, k)
		default:
			from := len(v.ints)
			v.ints = spread(r, v, v.ints, r.vals.ints, k)
			if err := r.doubt(v, from); err != nil {
				return err
			}
		}
		n -= k
	}
	return nil
}

// early says that a column ended before its row group did.
func early(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// spread appends the next k rows: known values where the definition level says so, zero values elsewhere.
func spread[T any](r *chunk, v *vector, dst, known []T, k int) []T {
	v.valid = slices.Grow(v.valid, k)
	if len(r.defs) == 0 {
		for range k {
			v.valid = append(v.valid, true)
		}
		dst = append(dst, known[r.used:r.used+k]...)
		r.at, r.used = r.at+k, r.used+k
		return dst
	}
	dst = slices.Grow(dst, k)
	var zero T
	for _, d := range r.defs[r.at : r.at+k] {
		if d == r.full {
			dst = append(dst, known[r.used])
			v.valid = append(v.valid, true)
			r.used++
			continue
		}
		dst = append(dst, zero)
		v.valid = append(v.valid, false)
		v.unknown++
	}
	r.at += k
	return dst
}

// readLists appends n rows of a list column. A row may run over the end of a page in files that other tools wrote.
func (r *chunk) readLists(v *vector, n int) error {
	if len(v.offsets) == 0 {
		v.offsets = append(v.offsets, 0)
	}
	open := false // a row is open
	for {
		if r.page == nil || r.at == int(r.page.NumValues()) {
			err := r.next()
			if err == io.EOF && open && n == 1 {
				v.endRow(r.kind)
				return nil
			}
			if err != nil {
				return early(err)
			}
		}
		for ; r.at < len(r.defs) && r.at < len(r.reps); r.at++ {
			d := r.defs[r.at]
			if r.reps[r.at] == 0 {
				if open {
					v.endRow(r.kind)
					if n--; n == 0 {
						return nil
					}
				}
				open = true
				v.valid = append(v.valid, r.outer == 0 || d > 0)
				if r.outer == 1 && d == 0 {
					v.unknown++
				}
			}
			switch {
			case d == r.full && r.kind == kindStringList:
				v.strings = append(v.strings, r.vals.strings[r.used])
				r.used++
			case d == r.full:
				v.ints = append(v.ints, r.vals.ints[r.used])
				r.used++
			}
		}
		if r.at != int(r.page.NumValues()) {
			return errors.New("a page has too few levels")
		}
	}
}

func (v *vector) endRow(k kind) {
	n := len(v.ints)
	if k == kindStringList {
		n = len(v.strings)
	}
	v.offsets = append(v.offsets, int32(n))
}
