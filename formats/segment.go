package formats

import (
	"encoding/json"
	"io"
	"slices"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/encoding"
)

const (
	batchRows     = 2048    // rows collected before they go to the Parquet column writers
	batchValues   = 1 << 16 // list elements collected before they do
	groupRows     = 1 << 17 // rows of a row group
	groupBytes    = 32 << 20
	runGroup      = 1 << 15 // and of a run: a row group is in memory until it is whole, beside a load that must not be disturbed
	runGroupBytes = 4 << 20
	pageBytes     = 256 << 10    // of a page before compression; a writer holds a page of each column
	headerKey     = "shadowtape" // Parquet key-value metadata: the Header as JSON
	segmentPrefix = "exchanges-"
	segmentSuffix = ".parquet"
)

// inOrder is a Parquet group whose fields keep the order of the column table.
type inOrder struct {
	parquet.Group
	fields []parquet.Field
}

func (g inOrder) Fields() []parquet.Field { return g.fields }

// schema is the Parquet schema of a segment; hashedSchema is the same with another encoding of prefix_blocks.
var schema, hashedSchema = newSchema(delta), newSchema(plain)

// newSchema makes the schema out of the column table. Block ids that are counted up, as public traces have them, are smallest as deltas;
// hashes have no neighbors, and repeat as whole runs, which only shows where each stands on its eight bytes.
func newSchema(blocks encoding.Encoding) *parquet.Schema {
	g := inOrder{Group: parquet.Group{}}
	for _, c := range columns {
		e := c.encoding
		if c.name == ColPrefixBlocks {
			e = blocks
		}
		n := parquet.Encoded(c.kind.node(), e)
		if c.kind.list() {
			n = parquet.List(n)
		}
		if !c.required {
			n = parquet.Optional(n)
		}
		g.Group[string(c.name)] = n
	}
	byName := map[string]parquet.Field{}
	for _, f := range g.Group.Fields() {
		byName[f.Name()] = f
	}
	for _, c := range columns {
		g.fields = append(g.fields, byName[string(c.name)])
	}
	return parquet.NewSchema("exchange", g)
}

// segment writes the rows of one Parquet file. Rows are collected by column and handed to the column writers in batches; a column that
// is unknown throughout a batch costs one slice of shared nulls.
type segment struct {
	out        io.Writer
	version    string
	w          *sealed[any] // nil before the first batch, whose block ids choose the encoding
	columns    []pending
	nulls      []parquet.Value
	batch      int // rows in the open batch
	values     int // list elements in it
	group      int64
	groupBytes int64
	rows       int64
	bytes      int64 // uncompressed

	maxGroup, maxGroupBytes int64
}

// pending is one column of the open batch. values stays empty until a row has a value.
type pending struct {
	*column
	index  int
	values []parquet.Value
	hashes []byte
	text   string // the last string and its bytes, so that runs of one value allocate nothing
	bytes  []byte
}

func newSegment(out io.Writer, toolVersion string) *segment {
	s := &segment{out: out, version: toolVersion, nulls: make([]parquet.Value, batchRows), maxGroup: groupRows, maxGroupBytes: groupBytes}
	for i, c := range columns {
		s.columns = append(s.columns, pending{column: c, index: i})
	}
	for i := range s.nulls {
		s.nulls[i] = parquet.NullValue().Level(0, 0, 0)
	}
	return s
}

// start opens the Parquet writer.
func (s *segment) start() {
	chosen := schema
	for i := range s.columns {
		p := &s.columns[i]
		if p.name != ColPrefixBlocks {
			continue
		}
		for _, v := range p.values {
			if n := v.Int64(); !v.IsNull() && (n < 0 || n >= 1<<40) {
				chosen = hashedSchema
				break
			}
		}
	}
	s.w = newSealed[any](s.out, chosen, parquet.Compression(pages), parquet.PageBufferSize(pageBytes),
		parquet.CreatedBy(createdBy, s.version, ""), parquet.DataPageStatistics(false), parquet.DictionaryMaxBytes(1<<20))
}

func (s *segment) write(x *Exchange) error {
	size := int64(0)
	for i := range s.columns {
		size += s.columns[i].append(x, s)
	}
	s.batch++
	s.rows++
	s.group++
	s.bytes += size
	s.groupBytes += size
	if s.batch == batchRows || s.values >= batchValues {
		if err := s.flushBatch(); err != nil {
			return err
		}
	}
	if s.group >= s.maxGroup || s.groupBytes >= s.maxGroupBytes {
		return s.flushGroup()
	}
	return nil
}

// append adds x's value and returns its uncompressed size in bytes.
func (p *pending) append(x *Exchange, s *segment) int64 {
	level := 1
	if p.required {
		level = 0
	}
	var v parquet.Value
	var size int64
	switch p.kind {
	case kindInt64, kindInt32, kindBool:
		n, ok := p.getInt(x)
		if !ok {
			return p.null(s)
		}
		switch p.kind {
		case kindInt64:
			v, size = parquet.Int64Value(n), 8
		case kindInt32:
			v, size = parquet.Int32Value(int32(n)), 4
		default:
			v, size = parquet.BooleanValue(n != 0), 1
		}
	case kindFloat:
		f := p.float(x)
		if !f.Valid {
			return p.null(s)
		}
		v, size = parquet.DoubleValue(f.V), 8
	case kindString:
		t := p.getString(x)
		if t == "" && !p.required {
			return p.null(s)
		}
		if t != p.text || p.bytes == nil {
			p.text, p.bytes = t, []byte(t)
		}
		v, size = parquet.ByteArrayValue(p.bytes), int64(len(t))+4
	case kindHash:
		h := p.hash(x)
		if !h.Valid {
			return p.null(s)
		}
		p.hashes = append(p.hashes, h.V[:]...)
		v, size = parquet.FixedLenByteArrayValue(p.hashes[len(p.hashes)-len(h.V):]), 8
	default:
		return p.appendList(x, s)
	}
	p.start(s)
	p.values = append(p.values, v.Level(0, level, p.index))
	return size
}

func (p *pending) appendList(x *Exchange, s *segment) int64 {
	known, n, size := false, 0, 0
	switch p.kind {
	case kindInt64List:
		l := *p.longs(x)
		known, n, size = l != nil, len(l), 8*len(l)
	case kindInt32List:
		l := *p.ints(x)
		known, n, size = l != nil, len(l), 4*len(l)
	default:
		l := *p.strings(x)
		known, n, size = l != nil, len(l), 16*len(l)
	}
	if !known {
		return p.null(s)
	}
	p.start(s)
	if n == 0 {
		p.values = append(p.values, parquet.NullValue().Level(0, 1, p.index))
		return 1
	}
	s.values += n
	first := len(p.values)
	p.values = slices.Grow(p.values, n)
	switch p.kind { // a loop for each: a recording's events are most of its values
	case kindInt64List:
		for _, v := range *p.longs(x) {
			p.values = append(p.values, parquet.Int64Value(v).Level(1, 2, p.index))
		}
	case kindInt32List:
		for _, v := range *p.ints(x) {
			p.values = append(p.values, parquet.Int32Value(v).Level(1, 2, p.index))
		}
	default:
		for _, v := range *p.strings(x) {
			p.values = append(p.values, parquet.ByteArrayValue([]byte(v)).Level(1, 2, p.index))
		}
	}
	p.values[first] = p.values[first].Level(0, 2, p.index) // a list begins
	return int64(size)
}

// null adds an unknown value.
func (p *pending) null(s *segment) int64 {
	if len(p.values) > 0 {
		p.values = append(p.values, s.nulls[0])
	}
	return 0
}

// start fills up the unknown values of the batch before the first known one.
func (p *pending) start(s *segment) {
	if len(p.values) == 0 {
		p.values = append(p.values, s.nulls[:s.batch]...)
	}
}

func (s *segment) flushBatch() error {
	if s.w == nil {
		s.start()
	}
	if s.batch == 0 {
		return nil
	}
	writers := s.w.ColumnWriters()
	for i := range s.columns {
		p := &s.columns[i]
		values := p.values
		if len(values) == 0 {
			values = s.nulls[:s.batch]
		}
		if _, err := writers[i].WriteRowValues(values); err != nil {
			return err
		}
		p.values, p.hashes = p.values[:0], p.hashes[:0]
	}
	s.batch, s.values = 0, 0
	return nil
}

func (s *segment) flushGroup() error {
	if err := s.flushBatch(); err != nil {
		return err
	}
	s.group, s.groupBytes = 0, 0
	return s.w.Flush()
}

// close writes what is open, the header and the footer.
func (s *segment) close(h Header) error {
	if err := s.flushBatch(); err != nil {
		return err
	}
	b, err := json.Marshal(h)
	if err != nil {
		return err
	}
	s.w.SetKeyValueMetadata(headerKey, string(b))
	return s.w.Close()
}
