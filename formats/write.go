package formats

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

const (
	traceFile = "trace.json"
	runFile   = "run.json"
)

// SegmentOptions say when a trace's writer starts a new segment file. The zero value means the defaults.
type SegmentOptions struct {
	MaxRows  int64 // default 1,000,000
	MaxBytes int64 // uncompressed; default 256 MiB
}

// Validate refuses negative limits.
func (o SegmentOptions) Validate() error {
	var errs []error
	if o.MaxRows < 0 {
		errs = append(errs, fmt.Errorf("segment rows %d: below 0", o.MaxRows))
	}
	if o.MaxBytes < 0 {
		errs = append(errs, fmt.Errorf("segment bytes %d: below 0", o.MaxBytes))
	}
	return errors.Join(errs...)
}

// Writer writes a trace. Not safe for concurrent use.
type Writer struct {
	h       Header
	o       SegmentOptions
	store   Store
	single  string // the only segment's name; "" where segments rotate
	where   string
	open    *segment
	object  Object
	segment int   // number of the open or last segment
	rows    int64 // in all segments
	lastID  int64
	span    span // of the open segment
	err     error
}

// span is the time covered by some rows.
type span struct {
	known    bool
	from, to int64
}

func (s *span) add(from, to int64) {
	if !s.known {
		*s = span{true, from, to}
		return
	}
	s.from, s.to = min(s.from, from), max(s.to, to)
}

// Create starts a trace: a single file where the name ends in ".parquet", else a directory of rotating segments. It refuses to
// overwrite what exists (errors.Is(err, fs.ErrExist)); an empty directory is not in the way. The format version in h is set here, its
// start and end are kept from the rows.
func Create(where string, h Header, o SegmentOptions) (*Writer, error) {
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("create trace %s: %w", where, err)
	}
	if strings.HasSuffix(where, segmentSuffix) {
		if _, err := os.Lstat(where); err == nil {
			return nil, fmt.Errorf("create trace %s: %w", where, fs.ErrExist)
		}
		w := newWriter(where, directory(filepath.Dir(where)), h, o)
		w.single = filepath.Base(where)
		return w.begin()
	}
	if err := emptyDirectory(where); err != nil {
		return nil, fmt.Errorf("create trace %s: %w", where, err)
	}
	w := newWriter(where, directory(where), h, o)
	if err := w.putHeader(); err != nil {
		return nil, fmt.Errorf("create trace %s: %w", where, err)
	}
	return w.begin()
}

// emptyDirectory makes a directory, or accepts an empty one.
func emptyDirectory(where string) error {
	err := os.Mkdir(where, 0o777)
	if errors.Is(err, fs.ErrExist) {
		if es, err := os.ReadDir(where); err == nil && len(es) == 0 {
			return nil
		}
		return fs.ErrExist
	}
	return err
}

func newWriter(where string, s Store, h Header, o SegmentOptions) *Writer {
	h.FormatVersion, h.CompatibleWith = FormatVersion, CompatibleWith
	h.StartUnixNS, h.EndUnixNS = 0, 0
	if h.TimeBase == "" {
		h.TimeBase = "absolute"
	}
	if o.MaxRows == 0 {
		o.MaxRows = 1_000_000
	}
	if o.MaxBytes == 0 {
		o.MaxBytes = 256 << 20
	}
	return &Writer{h: h, o: o, store: s, where: where}
}

// begin opens the first segment, so that a place that cannot be written is known before the first exchange.
func (w *Writer) begin() (*Writer, error) {
	if err := w.next(); err != nil {
		return nil, fmt.Errorf("create trace %s: %w", w.where, err)
	}
	return w, nil
}

func (w *Writer) next() error {
	w.segment++
	name := w.single
	if name == "" {
		name = fmt.Sprintf("%s%05d%s", segmentPrefix, w.segment, segmentSuffix)
	}
	o, err := w.store.Create(name)
	if err != nil {
		return err
	}
	w.object, w.open, w.span = o, newSegment(o, w.h.ToolVersion), span{}
	return nil
}

// Header returns the header that will stand in the open segment and in trace.json; the caller keeps its counters current until Close.
// Counters that the caller never sets count the rows written.
func (w *Writer) Header() *Header { return &w.h }

// Write appends one exchange; it does not keep x. An ExchangeID of 0 is replaced by the next number, in x too. After an error the
// writer accepts nothing more, and Close keeps the segments that were committed.
func (w *Writer) Write(x *Exchange) error {
	if w.err != nil {
		return w.err
	}
	if x.ExchangeID == 0 {
		x.ExchangeID = w.lastID + 1
	}
	w.lastID = max(w.lastID, x.ExchangeID)
	if err := w.write(x); err != nil {
		w.err = fmt.Errorf("write trace %s: %w", w.where, err)
		return w.err
	}
	return nil
}

func (w *Writer) write(x *Exchange) error {
	if w.open == nil {
		if err := w.next(); err != nil {
			return err
		}
	}
	if err := w.open.write(x); err != nil {
		return err
	}
	w.rows++
	w.span.add(x.ArrivalUnixNS, x.ArrivalUnixNS+max(x.EndNS.V, 0))
	if w.single == "" && (w.open.rows >= w.o.MaxRows || w.open.bytes >= w.o.MaxBytes) {
		return w.commit()
	}
	return nil
}

// commit finishes the open segment and brings trace.json up to date.
func (w *Writer) commit() error {
	h := w.header()
	h.StartUnixNS, h.EndUnixNS = w.span.from, w.span.to
	if err := w.open.close(h); err != nil {
		return errors.Join(err, w.object.Discard())
	}
	if err := w.store.Commit(w.object); err != nil {
		return err
	}
	if w.span.known {
		all := span{w.rows > w.open.rows, w.h.StartUnixNS, w.h.EndUnixNS}
		all.add(w.span.from, w.span.to)
		w.h.StartUnixNS, w.h.EndUnixNS = all.from, all.to
	}
	w.open, w.object = nil, nil
	if w.single != "" {
		return nil
	}
	return w.putHeader()
}

// header is the header as it is to be stored now.
func (w *Writer) header() Header {
	h := w.h
	if h.Counters.Seen == 0 && h.Counters.Written == 0 {
		h.Counters.Seen, h.Counters.Written = w.rows, w.rows
	}
	return h
}

func (w *Writer) putHeader() error { return putJSON(w.store, traceFile, w.header()) }

// putJSON writes a small JSON document whole.
func putJSON(s Store, name string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return put(s, name, append(b, '\n'))
}

// Close writes the open segment and the header. The trace is not complete before it returns nil.
func (w *Writer) Close() error {
	if w.err != nil {
		if w.object != nil {
			w.err = errors.Join(w.err, w.object.Discard())
			w.object = nil
		}
		return w.err
	}
	w.err = fmt.Errorf("write trace %s: %w", w.where, fs.ErrClosed)
	var err error
	switch {
	case w.open == nil:
		err = w.putHeader()
	case w.open.rows == 0 && w.segment > 1:
		err = errors.Join(w.object.Discard(), w.putHeader())
	default:
		err = w.commit()
	}
	if err != nil {
		return fmt.Errorf("close trace %s: %w", w.where, err)
	}
	return nil
}

// Remove deletes a trace or run, and nothing else: a file that is no trace, or a directory that holds anything that this package does
// not write, is refused. What does not exist is no error.
func Remove(where string) error {
	info, err := os.Lstat(where)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().IsRegular() {
		if _, err := inspectSegment(directory(filepath.Dir(where)), filepath.Base(where)); err != nil {
			return fmt.Errorf("remove %s: %w", where, err)
		}
		return os.Remove(where)
	}
	es, err := os.ReadDir(where)
	if err != nil {
		return fmt.Errorf("remove %s: %w", where, err)
	}
	ours := len(es) == 0
	for _, e := range es {
		n := strings.TrimSuffix(e.Name(), temporary)
		if !e.Type().IsRegular() || !ownFile(n) {
			return fmt.Errorf("remove %s: %s in it is not part of a trace or run", where, e.Name())
		}
		ours = ours || n == traceFile || n == runFile || strings.HasPrefix(n, segmentPrefix)
	}
	if !ours {
		return fmt.Errorf("remove %s: it is no trace and no run", where)
	}
	return os.RemoveAll(where)
}

// ownFile reports whether this package writes a file of that name into a trace or run.
func ownFile(name string) bool {
	switch name {
	case traceFile, runFile, serverFile, clientFile, gpuFile:
		return true
	}
	return strings.HasPrefix(name, segmentPrefix) && strings.HasSuffix(name, segmentSuffix)
}
