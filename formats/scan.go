package formats

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"slices"

	"github.com/parquet-go/parquet-go"
)

const scanRows = 8192 // rows of a batch

// Batch is up to a few thousand rows of some columns. Asking for a column that was not scanned, or by the method of another kind,
// panics: it is a mistake in the program.
type Batch struct {
	Rows    int
	vectors map[Column]*vector
}

// vector finds a scanned column of one of the kinds.
func (b *Batch) vector(c Column, kinds ...kind) *vector {
	v, ok := b.vectors[c]
	if !ok {
		panic(fmt.Sprintf("column %s was not scanned", c))
	}
	if !slices.Contains(kinds, c.column().kind) {
		panic(fmt.Sprintf("column %s holds %s", c, c.column().kind))
	}
	return v
}

// known is the validity of a vector, nil where every row is known.
func (v *vector) known() []bool {
	if v.unknown == 0 {
		return nil
	}
	return v.valid
}

// Int64 returns a column of integers (of any width), of booleans as 0 and 1, or of microsecond and nanosecond times; valid is nil where
// every value is known.
func (b *Batch) Int64(c Column) (values []int64, valid []bool) {
	v := b.vector(c, kindInt64, kindInt32, kindBool)
	return v.ints, v.known()
}

// Float64 returns a column of floating-point numbers.
func (b *Batch) Float64(c Column) (values []float64, valid []bool) {
	v := b.vector(c, kindFloat)
	return v.floats, v.known()
}

// String returns a column of strings; unknown is "".
func (b *Batch) String(c Column) []string { return b.vector(c, kindString).strings }

// Hash returns a column of hashes; valid is nil where every value is known.
func (b *Batch) Hash(c Column) (values []Hash, valid []bool) {
	v := b.vector(c, kindHash)
	return v.hashes, v.known()
}

// List returns a column of integer lists: row i is values[offsets[i]:offsets[i+1]]. Unknown and empty are told apart by valid, which is
// nil where every list is known.
func (b *Batch) List(c Column) (offsets []int32, values []int64, valid []bool) {
	v := b.vector(c, kindInt64List, kindInt32List)
	return v.offsets, v.ints, v.known()
}

// Scan yields batches of columns in stored order. A batch is valid until the next one. An error ends the sequence.
func (t *Trace) Scan(columns ...Column) iter.Seq2[*Batch, error] { return t.batches(scanRows, columns) }

func (t *Trace) batches(rows int, names []Column) iter.Seq2[*Batch, error] {
	return func(yield func(*Batch, error) bool) {
		s := scan{t: t, rows: rows}
		defer s.close()
		for _, n := range names {
			c := n.column()
			if c == nil {
				yield(nil, fmt.Errorf("read trace %s: there is no column %q", t.Name, n))
				return
			}
			s.columns = append(s.columns, c)
		}
		if t.traces != nil {
			t.merge(rows, names, s.columns)(yield)
			return
		}
		for {
			b, err := s.next()
			if err == io.EOF {
				return
			}
			if err != nil {
				yield(nil, fmt.Errorf("read trace %s: %w", t.Name, err))
				return
			}
			if !yield(b, nil) {
				return
			}
		}
	}
}

// scan is one pass over a trace.
type scan struct {
	t       *Trace
	rows    int
	columns []*column
	part    int   // next part
	left    int64 // rows left in the open one
	name    string
	reader  ObjectReader
	file    *parquet.File
	sums    *checked
	chunks  []*chunk
	batch   Batch
}

func (s *scan) next() (b *Batch, err error) {
	defer recovered(&err)
	for s.left == 0 {
		if s.part == len(s.t.parts) {
			return nil, io.EOF
		}
		if err := s.openPart(s.t.parts[s.part]); err != nil {
			return nil, err
		}
		s.part++
	}
	n := int(min(int64(s.rows), s.left))
	s.left -= int64(n)
	if s.batch.vectors == nil {
		s.batch.vectors = make(map[Column]*vector, len(s.columns))
		for _, c := range s.columns {
			s.batch.vectors[c.name] = &vector{}
		}
	}
	s.batch.Rows = n
	for _, c := range s.chunks {
		v := s.batch.vectors[c.name]
		v.reset()
		if err := c.read(v, n); err != nil {
			return nil, fmt.Errorf("%s, column %s: %w", s.name, c.name, s.sums.damage(err))
		}
	}
	return &s.batch, nil
}

func (s *scan) openPart(p part) error {
	for _, c := range s.chunks {
		c.close()
	}
	s.chunks = s.chunks[:0]
	if p.segment != s.name {
		if err := s.closeFile(); err != nil {
			return err
		}
		r, err := s.t.store.Open(p.segment)
		if err != nil {
			return err
		}
		s.reader = r
		if s.file, s.sums, err = openParquet(r); err != nil {
			return fmt.Errorf("%s: %w", p.segment, err)
		}
		s.name = p.segment
	}
	groups := s.file.RowGroups()
	if p.group >= len(groups) || groups[p.group].NumRows() != p.rows {
		return fmt.Errorf("%s has changed since it was opened", p.segment)
	}
	for _, c := range s.columns {
		r, err := openChunk(c, s.file, groups[p.group], s.t.doubted)
		if err != nil {
			return fmt.Errorf("%s: %w", p.segment, s.sums.damage(err))
		}
		s.chunks = append(s.chunks, r)
	}
	s.left = p.rows
	return nil
}

func (s *scan) closeFile() error {
	if s.reader == nil {
		return nil
	}
	err := s.reader.Close()
	s.reader = nil
	return err
}

func (s *scan) close() {
	for _, c := range s.chunks {
		c.close()
	}
	s.chunks = nil
	s.closeFile()
}

// All yields the rows in stored order; with columns only those are filled. Each row is the caller's to keep. An error ends the sequence.
func (t *Trace) All(names ...Column) iter.Seq2[*Exchange, error] {
	if len(names) == 0 {
		names = Columns()
	}
	return func(yield func(*Exchange, error) bool) {
		for b, err := range t.batches(1024, names) {
			if err != nil {
				yield(nil, err)
				return
			}
			vs := make([]*vector, 0, len(names))
			cs := make([]*column, 0, len(names))
			for _, n := range names {
				if v := b.vectors[n]; v.unknown < b.Rows {
					vs, cs = append(vs, v), append(cs, n.column())
				}
			}
			for i := range b.Rows {
				x := &Exchange{}
				for j, c := range cs {
					c.fill(x, vs[j], i)
				}
				if !yield(x, nil) {
					return
				}
			}
		}
	}
}

// fill sets x's field from row i.
func (c *column) fill(x *Exchange, v *vector, i int) {
	if !v.valid[i] {
		return
	}
	switch c.kind {
	case kindInt64, kindInt32, kindBool:
		c.setInt(x, v.ints[i])
	case kindFloat:
		*c.float(x) = Of(v.floats[i])
	case kindString:
		c.setString(x, v.strings[i])
	case kindHash:
		*c.hash(x) = Of(v.hashes[i])
	case kindInt64List:
		*c.longs(x) = append([]int64{}, v.ints[v.offsets[i]:v.offsets[i+1]]...)
	case kindInt32List:
		l := v.ints[v.offsets[i]:v.offsets[i+1]]
		s := make([]int32, len(l))
		for j, n := range l {
			s[j] = int32(n)
		}
		*c.ints(x) = s
	case kindStringList:
		*c.strings(x) = append([]string{}, v.strings[v.offsets[i]:v.offsets[i+1]]...)
	}
}

// ServerSamples yields the rows of server.parquet and of the parts after it, in order, or none where there is no such file.
func (t *Trace) ServerSamples() iter.Seq2[ServerSample, error] {
	return samples(t, serverKind, func(s ServerSample) int64 { return s.UnixNS })
}

// ClientSamples yields the rows of client.parquet, or none where there is no such file.
func (t *Trace) ClientSamples() iter.Seq2[ClientSample, error] {
	return samples(t, clientKind, func(s ClientSample) int64 { return s.UnixNS })
}

// samples reads the series files of one kind beside the exchanges; at is a sample's time.
func samples[T any](t *Trace, kind string, at func(T) int64) iter.Seq2[T, error] {
	if t.traces != nil {
		return mergeSamples(t, kind, at)
	}
	return func(yield func(T, error) bool) {
		parts, err := sampleParts(t.store, kind, segmentSuffix)
		bad := func(err error) bool {
			var zero T
			return yield(zero, fmt.Errorf("read %s: %w", t.Name, err))
		}
		if err != nil {
			bad(err)
			return
		}
		more := true
		for _, p := range parts {
			err := eachSample(t.store, p.Name, func(v T) bool { more = yield(v, nil); return more })
			if err != nil && !errors.Is(err, fs.ErrNotExist) { // a quota may have deleted it since
				more = bad(fmt.Errorf("%s: %w", p.Name, err))
			}
			if !more {
				return
			}
		}
	}
}

// eachSample calls f for each row until it returns false.
func eachSample[T any](s Store, name string, f func(T) bool) error {
	o, err := s.Open(name)
	if err != nil {
		return err
	}
	defer o.Close()
	return eachRow(o, f)
}

// eachRow is eachSample of an object that is open.
func eachRow[T any](o ObjectReader, f func(T) bool) error {
	file, sums, err := openParquet(o)
	if err != nil {
		return err
	}
	if sums != nil { // all at once: rows of which a column is damaged would come without it
		if err := sums.whole(); err != nil {
			return err
		}
	}
	r, err := rowsIn[T](file)
	if err != nil {
		return err
	}
	defer r.Close()
	rows := make([]T, 1024)
	read := func() (n int, err error) {
		defer recovered(&err)
		return r.Read(rows)
	}
	for {
		n, err := read()
		for i, v := range rows[:n] {
			if at := sampledAt(&rows[i]); at < -farthest || at > farthest {
				return fmt.Errorf("unix_ns: %w", impossible(at))
			}
			if !f(v) {
				return nil
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// rowsIn reads a file as rows of a kind. A file of other columns is an error, never a panic.
func rowsIn[T any](file *parquet.File) (r *parquet.GenericReader[T], err error) {
	defer recovered(&err)
	return parquet.NewGenericReader[T](file), nil
}
