// Package foreign reads the traces and logs of others into traces of ours, and writes ours as theirs.
package foreign

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/shadowtape/shadowtape/formats"
)

// Format is one foreign format that can be imported.
type Format struct {
	Name    string
	Summary string // what it is, in a line
	Fields  string // what is read from it, and where it goes
	Licence string // of the published files; "" where there are none
	detect  func(head []byte) bool
	open    func(*input) (formats.Decoder, error)
	pool    func([]*input) (formats.Decoder, error) // instead of open, where the files only make sense together
}

// Formats are the formats that can be imported, in the order in which they are tried on unknown content.
func Formats() []Format { return importers }

// Named finds a format.
func Named(name string) (Format, error) {
	for _, f := range importers {
		if f.Name == name {
			return f, nil
		}
	}
	var names []string
	for _, f := range importers {
		names = append(names, f.Name)
	}
	return Format{}, fmt.Errorf("there is no format %q: %s", name, strings.Join(names, ", "))
}

// input is one foreign file while it is read. A decoder states in header what it learns about the whole.
type input struct {
	name    string
	r       *bufio.Reader // decompressed
	header  *formats.Header
	notes   map[string]int64 // what was kept but is odd
	hash    *hasher
	o       Options
	part    int   // number of the file, from 0
	rows    int64 // exchange ids that earlier files took
	closers []io.Closer
	row     func() int64 // number of the row that was read last; nil where rows are not numbered
}

// at is the number of the row that was read last: the n-th, where rows have none of their own.
func (in *input) at(n int64) int64 {
	if in.row == nil {
		return n
	}
	return in.row()
}

// lines is the content line by line.
func (in *input) lines() *lines {
	l := &lines{r: in.r}
	in.row = func() int64 { return l.row }
	return l
}

// newReader is a file that is read alone.
func newReader(name string, r io.Reader, h *formats.Header, notes map[string]int64, hash *hasher) *input {
	return &input{name: name, r: bufio.NewReaderSize(r, 1<<20), header: h, notes: notes, hash: hash}
}

// peek is the beginning of the content.
func (in *input) peek() []byte {
	b, _ := in.r.Peek(headBytes)
	return bytes.TrimPrefix(b, bom)
}

const headBytes = 64 << 10

var bom = []byte("\xef\xbb\xbf")

// Source is one file to import. Gzip and zstd are taken off by content.
type Source struct {
	Name string // base name, for messages and the header
	R    io.Reader
}

// Options steer an import. The zero value keeps what is good and counts the rest.
type Options struct {
	Strict    bool   // the first bad row ends the import
	BlockSize int    // tokens of a prefix block where the file does not say; 0 finds it from the rows
	Licence   string // "" takes the published files'
	LogFormat string // the access log's format line, for nginx and envoy; "" is their own default
	Seed      uint64 // for formats that are expanded by chance
	HashKey   []byte // for keyed hashes of identifiers; nil draws one and forgets it

	// TimeUnit is what one stands for in the timestamps and delays of mooncake: its own milliseconds where 0. Tools that write its form in
	// seconds are not told apart by content.
	TimeUnit time.Duration

	// Prompts is what a session's later prompts hold where the files do not show it: cumulative (they begin with the turns before) or
	// per_turn. "" refuses an import that cannot know.
	Prompts string

	// From and Duration are the part that is expanded of a format that describes more than it lists; a Duration of 0 is an hour.
	From, Duration time.Duration

	// SessionGap is how far apart the sessions begin where each file is one session with a clock of its own.
	SessionGap time.Duration
}

// Validate refuses what is negative, and unknown kinds of prompts.
func (o Options) Validate() error {
	var errs []error
	if o.Prompts != "" && o.Prompts != promptsCumulative && o.Prompts != promptsPerTurn {
		errs = append(errs, fmt.Errorf("prompts are %s or %s, not %q", promptsCumulative, promptsPerTurn, o.Prompts))
	}
	if o.BlockSize < 0 {
		errs = append(errs, fmt.Errorf("block size %d: below 0", o.BlockSize))
	}
	for _, d := range []struct {
		name string
		d    time.Duration
	}{{"session gap", o.SessionGap}, {"start", o.From}, {"duration", o.Duration}, {"time unit", o.TimeUnit}} {
		if d.d < 0 {
			errs = append(errs, fmt.Errorf("%s %v: below 0", d.name, d.d))
		}
	}
	return errors.Join(errs...)
}

// Report accounts for every row that an import read: Read == Kept + Dropped.
type Report struct {
	Read     int64
	Kept     int64
	Dropped  int64
	Reasons  map[string]int64 // of the dropped rows
	Notes    map[string]int64 // of the kept ones: inversions, …
	Warnings []string         // file, row and cause of the first broken rows
}

const maxWarnings = 20

// Import reads the sources in order and writes one trace, sorted by arrival; rows of one time keep their order, and each step back in
// time is counted as an inversion. The zero Format stands for the one that the first source looks like. Where it fails, nothing is left at
// where.
func Import(ctx context.Context, f Format, sources []Source, where string, h formats.Header, o Options) (Report, error) {
	r := Report{Reasons: map[string]int64{}, Notes: map[string]int64{}}
	if err := o.Validate(); err != nil {
		return r, err
	}
	s, err := newSorter(where, h)
	if err != nil {
		return r, err
	}
	if err := importAll(ctx, f, sources, s, &r, o); err != nil {
		return r, errors.Join(err, s.abandon())
	}
	if o.Prompts != "" {
		s.h.Prompts = o.Prompts // says more than a format in general
	}
	return r, s.close(&r)
}

func importAll(ctx context.Context, f Format, sources []Source, s *sorter, r *Report, o Options) error {
	all := sha256.New()
	hash := newHasher(o.HashKey)
	sums := map[string]any{}
	var names []string
	var pooled []*input
	for i, src := range sources {
		one := sha256.New()
		raw := io.TeeReader(src.R, io.MultiWriter(all, one))
		plain, err := decompressed(raw)
		if err != nil {
			return fmt.Errorf("import %s: %w", src.Name, err)
		}
		in := &input{name: src.Name, r: bufio.NewReaderSize(plain, 1<<20), header: s.header(), notes: r.Notes, hash: hash, o: o, part: i, rows: s.rows}
		if f.open == nil && f.pool == nil {
			if f, err = guess(in.peek()); err != nil {
				return fmt.Errorf("import %s: %w", src.Name, err)
			}
		}
		if err = f.check(in); err == nil && f.pool != nil {
			in.r, err = whole(in)
			pooled = append(pooled, in)
		} else if err == nil {
			err = importOne(ctx, f, in, s, r)
		}
		if err != nil {
			return fmt.Errorf("import %s: %w", src.Name, err)
		}
		if _, err := io.Copy(io.Discard, raw); err != nil {
			return fmt.Errorf("import %s: %w", src.Name, err)
		}
		names = append(names, src.Name)
		sums["sha256:"+src.Name] = hex.EncodeToString(one.Sum(nil))
	}
	if len(pooled) > 0 {
		next, err := f.pool(pooled)
		if err == nil {
			err = decodeAll(ctx, next, pooled[0], s, r)
		}
		if err != nil {
			return fmt.Errorf("import: %w", err)
		}
	}
	if r.Kept == 0 {
		left := ""
		if r.Dropped > 0 {
			left = fmt.Sprintf(": of %d rows %d were left out (%s)", r.Read, r.Dropped, strings.Join(slices.Sorted(maps.Keys(r.Reasons)), ", "))
		}
		return fmt.Errorf("import %s: it holds no request%s", strings.Join(names, ", "), left)
	}
	h := s.header()
	if len(sources) > 1 {
		if h.Extra == nil {
			h.Extra = map[string]any{}
		}
		maps.Copy(h.Extra, sums)
	}
	h.SourceKind, h.Licence = "import:"+f.Name, f.Licence
	if o.Licence != "" {
		h.Licence = o.Licence
	}
	if hash.used {
		h.HashKeyID = hash.keyID()
	}
	h.Source, h.SourceSHA256 = strings.Join(names, ","), hex.EncodeToString(all.Sum(nil))
	return nil
}

// whole reads a file into memory.
func whole(in *input) (*bufio.Reader, error) {
	b, err := readWhole(in)
	return bufio.NewReader(bytes.NewReader(b)), err
}

// check refuses content that does not look like the format.
func (f Format) check(in *input) error {
	head := in.peek()
	if f.detect(head) || in.o.LogFormat != "" {
		return nil
	}
	if other, err := guess(head); err == nil {
		return fmt.Errorf("this is no %s: it looks like %s", f.Name, other.Name)
	}
	return fmt.Errorf("this is no %s: its fields are not all there (%s)", f.Name, f.Fields)
}

// guess finds the format that some content looks like.
func guess(head []byte) (Format, error) {
	for _, f := range importers {
		if f.detect(head) {
			return f, nil
		}
	}
	return Format{}, errors.New("it looks like no format that is known here")
}

// importOne reads one file.
func importOne(ctx context.Context, f Format, in *input, s *sorter, r *Report) error {
	next, err := f.open(in)
	if err == nil {
		err = decodeAll(ctx, next, in, s, r)
	}
	for _, c := range in.closers {
		err = errors.Join(err, c.Close())
	}
	return err
}

// decodeAll reads a decoder to its end.
func decodeAll(ctx context.Context, next formats.Decoder, in *input, s *sorter, r *Report) error {
	for n := 0; ; n++ {
		if n%4096 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		x := s.new()
		err := next(x)
		if err == io.EOF {
			return nil
		}
		if r.Read++; err == nil {
			err = possible(x, in.at(r.Read))
		}
		var bad *formats.RowError
		switch {
		case err == nil:
			r.Kept++
			if x.Phase == "" {
				x.Phase = formats.PhaseRecord
			}
			if err := s.add(x); err != nil {
				return err
			}
		case errors.As(err, &bad):
			r.Dropped++
			r.Reasons[bad.Reason]++
			if bad.Err == nil {
				break // expected in this format: counted, not warned of
			}
			if in.o.Strict {
				return err
			}
			if len(r.Warnings) < maxWarnings {
				r.Warnings = append(r.Warnings, fmt.Sprintf("%s, %v: left out", in.name, err))
			}
		default:
			return err
		}
	}
}

// possible leaves a row out, the row-th of all, whose times no clock has shown.
func possible(x *formats.Exchange, row int64) error {
	if err := x.Possible(); err != nil {
		return &formats.RowError{Row: row, Reason: "broken_row", Err: err}
	}
	return nil
}

// decompressed takes gzip or zstd off, by content.
func decompressed(r io.Reader) (io.Reader, error) {
	b := bufio.NewReaderSize(r, 64<<10)
	head, _ := b.Peek(4)
	in := &measured{r: b}
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(in)
		return &expanding{r: z, in: in}, err
	case bytes.HasPrefix(head, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		z, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
		return &expanding{r: z, in: in}, err
	}
	return b, nil
}

// The limits of what compressed files may grow to: no log or trace comes near.
const (
	maxWindow = 128 << 20 // of zstd, in memory
	maxRatio  = 1000
)

// freeBytes may come out whatever went in. A variable for tests.
var freeBytes int64 = 1 << 30

// expanding refuses to go on with a file that holds next to nothing in a great many bytes: it was made to fill a disk, or to keep one busy.
type expanding struct {
	r   io.Reader
	in  *measured
	out int64
}

func (e *expanding) Read(p []byte) (int, error) {
	n, err := e.r.Read(p)
	if e.out += int64(n); e.out > freeBytes && e.out/maxRatio > e.in.n {
		return n, fmt.Errorf("%d MiB expand to more than %d GiB: this is no log", e.in.n>>20, e.out>>30)
	}
	return n, err
}

// measured counts what is read.
type measured struct {
	r io.Reader
	n int64
}

func (m *measured) Read(p []byte) (int, error) {
	n, err := m.r.Read(p)
	m.n += int64(n)
	return n, err
}

// counters are the report as a trace's header holds it.
func (r *Report) counters() formats.Counters {
	return formats.Counters{Seen: r.Read, Dropped: r.Dropped, Written: r.Kept, Reasons: maps.Clone(r.Reasons), Notes: maps.Clone(r.Notes)}
}
