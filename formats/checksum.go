package formats

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"strings"
	"sync"

	"github.com/parquet-go/parquet-go"
)

// A Parquet file of ours carries checksums of all its bytes. Parquet's own, which the pages have too, leave out what stands around the
// pages: a flipped bit in a page's header, in a column's name or in the place where a column begins makes other values of them, or none.
//
// Before the footer, where no other reader looks, stand the CRC-32C of each block of sumBlock bytes from the file's start, four bytes each,
// little endian (the last block may be shorter), and then a trailer: sumMagic, the size of a block, the number of blocks, and the CRC-32C of
// all that precedes it from the first checksum on and all that follows it, to the file's end.
const (
	sumMagic   = "STcrc32c"
	sumBlock   = 64 << 10
	sumTrailer = len(sumMagic) + 12
	sumKey     = "shadowtape.checksums" // Parquet key-value metadata: the file has them, if createdBy wrote it
	createdBy  = "shadowtape"           // the program that the footer names
)

// sealer writes a file together with its checksums. Between hold and finish, what is written waits: the footer is among it.
type sealer struct {
	out     io.Writer
	sums    []byte
	crc     uint32
	n       int // bytes in the open block
	holding bool
	held    []byte
}

func (s *sealer) Write(p []byte) (int, error) {
	if s.holding {
		s.held = append(s.held, p...)
		return len(p), nil
	}
	n, err := s.out.Write(p)
	for p = p[:n]; len(p) > 0; {
		k := min(len(p), sumBlock-s.n)
		s.crc = crc32.Update(s.crc, castagnoli, p[:k])
		if p, s.n = p[k:], s.n+k; s.n == sumBlock {
			s.endBlock()
		}
	}
	return n, err
}

func (s *sealer) endBlock() {
	s.sums = binary.LittleEndian.AppendUint32(s.sums, s.crc)
	s.crc, s.n = 0, 0
}

// finish writes what was held, the checksums before its footer.
func (s *sealer) finish() error {
	s.holding = false
	tail := len(s.held) - 8
	if tail < 0 {
		return errors.New("a Parquet file without a footer")
	}
	footer := tail - int(binary.LittleEndian.Uint32(s.held[tail:]))
	if footer < 0 {
		return errors.New("a Parquet file whose footer is longer than what was written of it")
	}
	if _, err := s.Write(s.held[:footer]); err != nil {
		return err
	}
	if s.n > 0 {
		s.endBlock()
	}
	end := append(s.sums, sumMagic...)
	end = binary.LittleEndian.AppendUint32(end, sumBlock)
	end = binary.LittleEndian.AppendUint32(end, uint32(len(s.sums)/4))
	end = binary.LittleEndian.AppendUint32(end, crc32.Update(crc32.Checksum(end, castagnoli), castagnoli, s.held[footer:]))
	_, err := s.out.Write(append(end, s.held[footer:]...))
	return err
}

// sealed is a Parquet writer whose file carries checksums.
type sealed[T any] struct {
	*parquet.GenericWriter[T]
	seal *sealer
}

func newSealed[T any](out io.Writer, options ...parquet.WriterOption) *sealed[T] {
	s := &sealer{out: out}
	return &sealed[T]{parquet.NewGenericWriter[T](s, options...), s}
}

// Close writes the rows that are left, the checksums and the footer. The writer below is the caller's to close.
func (w *sealed[T]) Close() error {
	if err := w.Flush(); err != nil {
		return err
	}
	w.SetKeyValueMetadata(sumKey, "crc32c")
	w.seal.holding = true
	if err := w.GenericWriter.Close(); err != nil {
		return err
	}
	return w.seal.finish()
}

// checked reads a file that has checksums: each block is compared with its own before the first byte of it is handed out. Safe for
// concurrent use.
type checked struct {
	ObjectReader
	file *parquet.File // names what a block holds; nil before the footer is read
	sums []byte
	end  int64 // of the blocks

	mu   sync.Mutex
	good []bool // blocks that were compared
	buf  []byte
	bad  error // the first block that is not as it was written
}

// newChecked reads the checksums of a file and compares its footer with them; nil is a file that has none.
func newChecked(r ObjectReader) (*checked, error) {
	var tail [8]byte
	if _, err := r.ReadAt(tail[:], r.Size()-8); err != nil && err != io.EOF {
		return nil, err
	}
	at := r.Size() - 8 - int64(binary.LittleEndian.Uint32(tail[:])) - int64(sumTrailer)
	if at < 4 {
		return nil, nil
	}
	rest := make([]byte, r.Size()-at)
	if _, err := r.ReadAt(rest, at); err != nil && err != io.EOF {
		return nil, err
	}
	if string(rest[:len(sumMagic)]) != sumMagic {
		return nil, nil
	}
	head := rest[len(sumMagic):]
	size, n, want := binary.LittleEndian.Uint32(head), int64(binary.LittleEndian.Uint32(head[4:])), binary.LittleEndian.Uint32(head[8:])
	end := at - 4*n
	if size != sumBlock || end < 0 || n != (end+sumBlock-1)/sumBlock {
		return nil, errFooter
	}
	sums := make([]byte, 4*n)
	if _, err := r.ReadAt(sums, end); err != nil && err != io.EOF {
		return nil, err
	}
	crc := crc32.Update(crc32.Checksum(sums, castagnoli), castagnoli, rest[:sumTrailer-4])
	if crc32.Update(crc, castagnoli, rest[sumTrailer:]) != want {
		return nil, errFooter
	}
	return &checked{ObjectReader: r, sums: sums, end: end, good: make([]bool, n)}, nil
}

// whatToDo ends an error about damage.
const whatToDo = "it has changed since it was written: take the file from a copy, or let shadowtape repair set it aside"

var errFooter = errors.New("damaged footer: " + whatToDo)

func (c *checked) ReadAt(p []byte, at int64) (int, error) {
	if at >= 0 && at < c.end && len(p) > 0 {
		if err := c.check(at/sumBlock, (min(at+int64(len(p)), c.end)-1)/sumBlock); err != nil {
			return 0, err
		}
	}
	return c.ObjectReader.ReadAt(p, at)
}

// check compares blocks from first to last with their checksums.
func (c *checked) check(first, last int64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for b := first; b <= last; b++ {
		if c.good[b] {
			continue
		}
		if c.buf == nil {
			c.buf = make([]byte, min(sumBlock, c.end))
		}
		from := b * sumBlock
		block := c.buf[:min(sumBlock, c.end-from)]
		if _, err := c.ObjectReader.ReadAt(block, from); err != nil && err != io.EOF {
			return err
		}
		if crc32.Checksum(block, castagnoli) != binary.LittleEndian.Uint32(c.sums[4*b:]) {
			c.bad = fmt.Errorf("damaged between bytes %d and %d%s: %s", from, from+int64(len(block)), holds(c.file, from, from+int64(len(block))), whatToDo)
			return c.bad
		}
		c.good[b] = true
	}
	return nil
}

// whole compares every block.
func (c *checked) whole() error {
	if c.end == 0 {
		return nil
	}
	return c.check(0, (c.end-1)/sumBlock)
}

// damage is the block that was not as it was written, where that is why reading failed: the Parquet library may say something else of it.
func (c *checked) damage(err error) error {
	if c == nil || err == nil || err == io.EOF {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.bad != nil {
		return c.bad
	}
	return err
}

// holds names the columns of a file that have bytes between two places.
func holds(f *parquet.File, from, to int64) string {
	if f == nil {
		return ""
	}
	var first, last string
	for g, group := range f.Metadata().RowGroups {
		for _, c := range group.Columns {
			m := c.MetaData
			start := m.DataPageOffset
			if m.DictionaryPageOffset > 0 {
				start = min(start, m.DictionaryPageOffset)
			}
			if start < to && start+m.TotalCompressedSize > from {
				last = fmt.Sprintf("column %s of row group %d", strings.Join(m.PathInSchema, "."), g+1)
				if first == "" {
					first = last
				}
			}
		}
	}
	switch {
	case first == "":
		return ""
	case first == last:
		return " (" + first + ")"
	}
	return " (" + first + " to " + last + ")"
}
