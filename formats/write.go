package formats

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

const (
	traceFile = "trace.json"
	runFile   = "run.json"
)

// SegmentOptions say when a trace's writer starts a new segment file, and what protects the open one. The zero value means the defaults.
// All but the first two need a directory.
type SegmentOptions struct {
	MaxRows  int64         // default 1,000,000
	MaxBytes int64         // uncompressed; default 256 MiB
	MaxAge   time.Duration // of a segment that has rows, looked at by Write and Rotate; 0: no limit
	Journal  bool          // rows survive the death of the process (not of the machine), and a full disk; see Begin
	Append   bool          // go on where a trace already is: what its last writer left open is repaired first
	Quota    int64         // bytes that the segments may take; beyond, the oldest that Pin does not hold are deleted. 0: no limit
}

// Validate refuses negative limits.
func (o SegmentOptions) Validate() error {
	var errs []error
	for _, l := range []struct {
		name string
		n    int64
	}{{"rows", o.MaxRows}, {"bytes", o.MaxBytes}, {"age", int64(o.MaxAge)}, {"quota", o.Quota}} {
		if l.n < 0 {
			errs = append(errs, fmt.Errorf("segment %s %d: below 0", l.name, l.n))
		}
	}
	return errors.Join(errs...)
}

// ErrFull is the error of a row that was left out because the disk is full. The writer goes on: the caller counts the row as dropped.
// Only a writer with a journal knows it; for others a full disk is the end.
var ErrFull = errors.New("the disk is full")

// fullError says of a full disk what to do, in place of which of its pages a library was writing.
type fullError struct{ cause error }

func (fullError) Error() string   { return "the disk is full: make room, or take another disk" }
func (e fullError) Unwrap() error { return e.cause }

func plainFull(err error) error {
	if diskFull(err) {
		return fullError{err}
	}
	return err
}

// LostError is the error of a writer whose open segment is gone, its journal too: somebody deleted them. Write had taken its rows.
type LostError struct {
	Rows int64
	Err  error // what was noticed
}

func (e *LostError) Error() string {
	return fmt.Sprintf("%v: it was deleted while it was written: %d exchanges are lost with it", e.Err, e.Rows)
}

// Unwrap returns the cause.
func (e *LostError) Unwrap() error { return e.Err }

// Writer writes a trace. Not safe for concurrent use.
type Writer struct {
	h       Header
	o       SegmentOptions
	store   Store
	single  string // the only segment's name; "" where segments rotate
	where   string
	lock    io.Closer
	run     bool // it writes a run's exchanges
	open    *segment
	object  Object
	name    string // of the open segment
	opened  time.Time
	segment int   // number of the open or last segment
	rows    int64 // in all segments of this writer
	before  int64 // of them, in those before the open one
	refused int64 // of them, the one at which writing failed: Write did not take it
	lastID  int64
	span    span // of the open segment
	all     span // of the segments before
	base    Counters
	expired int64 // rows that the quota deleted
	journal *journal
	flying  map[int64][]byte // journal bodies of the exchanges in flight
	gone    []int64          // exchanges that ended while the disk was full: the open journal still has them in flight
	stalled bool             // the open segment was lost to a full disk; its rows are in the journal
	tried   time.Time
	server  *sampleLog[ServerSample] // nil where none was written
	gpu     *sampleLog[gpuRow]
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
// overwrite what exists (errors.Is(err, fs.ErrExist)); an empty directory is not in the way, nor is a trace where o.Append is set. The
// format version in h is set here, its start and end are kept from the rows.
func Create(where string, h Header, o SegmentOptions) (*Writer, error) {
	w, err := create(where, h, o)
	if err != nil {
		return nil, fmt.Errorf("create trace %s: %w", where, bare(err))
	}
	return w, nil
}

func create(where string, h Header, o SegmentOptions) (*Writer, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if Remote(where) {
		return createRemote(where, h, o)
	}
	if strings.HasSuffix(where, segmentSuffix) {
		if o.MaxAge != 0 || o.Journal || o.Append || o.Quota != 0 {
			return nil, errors.New("age, journal, append and quota need a directory, not one file")
		}
		if _, err := os.Lstat(where); err == nil {
			return nil, fs.ErrExist
		}
		w := newWriter(where, directory(filepath.Dir(where)), h, o)
		w.single = filepath.Base(where)
		return w, w.next()
	}
	err := emptyDirectory(where)
	if errors.Is(err, fs.ErrExist) && o.Append {
		return resume(where, h, o)
	}
	if err != nil {
		return nil, err
	}
	w := newWriter(where, directory(where), h, o)
	return w, w.begin()
}

// createRemote is create in object storage.
func createRemote(where string, h Header, o SegmentOptions) (*Writer, error) {
	if o.Journal || o.Append || o.Quota != 0 {
		return nil, errors.New("journal, append and quota need a directory")
	}
	s, file, err := place(where)
	if err != nil {
		return nil, err
	}
	switch there, err := occupied(s, file); {
	case err != nil:
		return nil, err
	case there:
		return nil, fs.ErrExist
	}
	w := newWriter(where, s, h, o)
	if w.single = file; file != "" {
		return w, w.next()
	}
	w.lock = io.NopCloser(nil) // there are no locks
	return w, w.begin()
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
	return &Writer{h: h, o: o, store: s, where: where, flying: map[int64][]byte{}}
}

// begin locks the directory, writes the header and opens the first segment, so that a place that cannot be written is known before the
// first exchange.
func (w *Writer) begin() (err error) {
	if w.lock == nil {
		if w.lock, err = lockDirectory(w.where); err != nil {
			return err
		}
	}
	if err = w.putHeader(); err == nil {
		err = w.next()
	}
	if err != nil {
		return errors.Join(err, w.lock.Close())
	}
	return nil
}

// next opens the next segment, its journal first.
func (w *Writer) next() error {
	name := w.single
	if name == "" {
		name = fmt.Sprintf("%s%05d%s", segmentPrefix, w.segment+1, segmentSuffix)
	}
	var j *journal
	if w.o.Journal {
		var err error
		if j, err = newJournal(filepath.Join(w.where, journalOf(name)), w.header()); err != nil {
			return err
		}
		for _, id := range slices.Sorted(maps.Keys(w.flying)) {
			if err := j.raw(w.flying[id]); err != nil {
				return errors.Join(err, j.f.Close(), w.store.Remove(journalOf(name)))
			}
		}
	}
	o, err := w.store.Create(name)
	if err != nil {
		if j != nil {
			err = errors.Join(err, j.f.Close(), w.store.Remove(journalOf(name)))
		}
		return err
	}
	w.segment++
	w.before = w.rows
	w.name, w.object, w.open, w.span, w.journal, w.opened = name, o, newSegment(o, w.h.ToolVersion), span{}, j, time.Now()
	if w.run {
		w.open.maxGroup, w.open.maxGroupBytes = runGroup, runGroupBytes
	}
	return nil
}

// Header returns the header that will stand in the open segment and in trace.json; the caller keeps its counters current until Close.
// What it says of the rows written, and with them seen, is corrected to what the writer wrote. A writer that goes on with a trace adds the
// counters that it found.
func (w *Writer) Header() *Header { return &w.h }

// Begin says that an exchange is in flight. It gives x its ExchangeID, where it has none, and keeps x in the journal: if the process dies
// before the exchange is written, it becomes a row that ended as capture_cut. Without a journal only the number is given.
func (w *Writer) Begin(x *Exchange) error {
	w.number(x)
	if !w.o.Journal || w.stalled || w.err != nil {
		return w.err
	}
	if w.open == nil {
		if err := w.next(); err != nil {
			return w.fail(err)
		}
	}
	body, err := w.journal.row('b', x)
	if err != nil {
		return w.fail(err)
	}
	w.flying[x.ExchangeID] = append([]byte(nil), body...)
	return nil
}

// Forget says that an exchange that began will not be written.
func (w *Writer) Forget(id int64) error {
	if _, ok := w.flying[id]; !ok || w.err != nil {
		return w.err
	}
	delete(w.flying, id)
	if w.journal == nil {
		return nil
	}
	var err error
	if !w.stalled {
		err = w.fail(w.journal.forget(id))
	}
	if w.stalled {
		w.gone = append(w.gone, id)
	}
	return err
}

func (w *Writer) number(x *Exchange) {
	if x.ExchangeID == 0 {
		x.ExchangeID = w.lastID + 1
	}
	w.lastID = max(w.lastID, x.ExchangeID)
}

// Write appends one exchange; it does not keep x. An ExchangeID of 0 is replaced by the next number, in x too. With a journal a full disk
// is ErrFull, and later rows may be taken again; after any other error the writer accepts nothing more, and Close keeps the segments that
// were committed.
func (w *Writer) Write(x *Exchange) error {
	if w.err != nil {
		return w.err
	}
	if w.stalled && !w.recover() {
		return fmt.Errorf("write trace %s: %w", w.where, ErrFull)
	}
	w.number(x)
	taken := w.rows
	err := w.fail(w.write(x))
	if err != nil {
		w.refused = w.rows - taken
	}
	return err
}

// fail decides what an error means: a full disk with a journal leaves the open segment to the journal, anything else is the end.
func (w *Writer) fail(err error) error {
	switch {
	case err == nil:
		return nil
	case w.o.Journal && diskFull(err):
		w.stall()
		err = ErrFull
	default:
		w.err = fmt.Errorf("write trace %s: %w", w.where, plainFull(err))
		return w.err
	}
	return fmt.Errorf("write trace %s: %w", w.where, err)
}

func (w *Writer) write(x *Exchange) error {
	if w.open == nil {
		if err := w.next(); err != nil {
			return err
		}
	}
	if w.journal != nil {
		if _, err := w.journal.row('r', x); err != nil {
			return err
		}
		delete(w.flying, x.ExchangeID)
	}
	w.rows++
	w.span.add(x.span())
	if err := w.open.write(x); err != nil {
		return w.kept(err)
	}
	if w.single == "" && (w.open.rows >= w.o.MaxRows || w.open.bytes >= w.o.MaxBytes || w.aged()) {
		return w.kept(w.commit(true))
	}
	return nil
}

// kept turns the loss of a segment whose rows are in the journal into a stall: the row that met the full disk is not lost.
func (w *Writer) kept(err error) error {
	if err != nil && w.journal != nil && diskFull(err) {
		w.stall()
		return nil
	}
	return err
}

func (w *Writer) aged() bool { return w.o.MaxAge > 0 && time.Since(w.opened) >= w.o.MaxAge }

// Rotate closes the open segment if it is older than MaxAge and has rows, for callers that may have nothing to write for a while. It also
// looks whether a disk that was full has room again.
func (w *Writer) Rotate() error {
	if w.err != nil {
		return w.err
	}
	if w.stalled && !w.recover() {
		return nil
	}
	if w.single != "" || w.open == nil || w.open.rows == 0 || !w.aged() {
		return nil
	}
	if err := w.kept(w.commit(true)); err != nil {
		return w.fail(err)
	}
	return nil
}

// Full reports whether the disk was full when it was last tried: rows are refused (ErrFull) until a Write or a Rotate finds room, which
// they look for once a second.
func (w *Writer) Full() bool { return w.stalled && w.err == nil }

// commit finishes the open segment and brings trace.json up to date. The journal goes last, and not before the exchanges in flight stand
// in the next one.
func (w *Writer) commit(more bool) error {
	h := w.header()
	h.StartUnixNS, h.EndUnixNS = w.span.from, w.span.to
	if err := w.open.close(h); err != nil {
		return errors.Join(err, w.object.Discard())
	}
	if err := w.store.Commit(w.object); err != nil {
		return err
	}
	if w.span.known {
		w.all.add(w.span.from, w.span.to)
	}
	w.h.StartUnixNS, w.h.EndUnixNS = w.all.from, w.all.to
	j, name := w.journal, w.name
	w.open, w.object, w.journal = nil, nil, nil
	if w.single != "" {
		return nil
	}
	if more && len(w.flying) > 0 {
		if err := w.next(); err != nil {
			w.journal = j // keeps them
			return err
		}
	}
	if j != nil {
		if err := errors.Join(j.f.Close(), w.store.Remove(journalOf(name))); err != nil {
			return err
		}
	}
	if err := w.enforceQuota(); err != nil {
		return err
	}
	switch err := w.putHeader(); {
	case diskFull(err):
		w.amend()
	case err != nil:
		return err
	}
	return nil
}

// expiredNote counts the rows that a quota deleted.
const expiredNote = "expired"

// header is the header as it is to be stored now.
func (w *Writer) header() Header {
	h := w.h
	more := w.rows - h.Counters.Written // the caller's account may be a moment behind
	h.Counters = h.Counters.plus(Counters{Seen: more, Written: more}).plus(w.base)
	if w.expired > 0 {
		h.Counters = h.Counters.plus(Counters{Notes: map[string]int64{expiredNote: w.expired}})
	}
	return h
}

func (w *Writer) putHeader() error { return putJSON(w.store, traceFile, w.header()) }

// begunNote counts, in the trace.json of a writer whose disk is full, those dropped whose beginning the journal holds.
const begunNote = "begun"

// amend writes over trace.json what is counted by now, where the disk has no room for another file. A block has some behind so small a
// document; where it has none the document stays as it was.
func (w *Writer) amend() {
	if !w.o.Journal {
		return
	}
	h := w.header()
	if len(w.gone) > 0 {
		h.Counters = h.Counters.plus(Counters{Notes: map[string]int64{begunNote: int64(len(w.gone))}})
	}
	if b, err := MarshalDocument(h, "  "); err == nil {
		_ = overwrite(filepath.Join(w.where, traceFile), append(b, '\n')) // the disk is full: that is known
	}
}

// overwrite puts other content into a file, in the blocks that it has. Where they do not hold it the file is as it was.
func overwrite(name string, b []byte) error {
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	old, err := io.ReadAll(f)
	if err != nil || bytes.Equal(old, b) {
		return errors.Join(err, f.Close())
	}
	size := len(b)
	if _, err = f.WriteAt(b, 0); err != nil {
		size = len(old)
		_, back := f.WriteAt(old, 0)
		err = errors.Join(err, back)
	}
	return errors.Join(err, f.Truncate(int64(size)), f.Sync(), f.Close())
}

// putJSON writes a small JSON document whole.
func putJSON(s Store, name string, v any) error {
	b, err := MarshalDocument(v, "  ")
	if err != nil {
		return err
	}
	return put(s, name, append(b, '\n'))
}

// Close writes the open segment and the header. The trace is not complete before it returns nil. Exchanges still in flight are rows that
// ended as capture_cut only where the process dies; the caller writes or forgets them first.
func (w *Writer) Close() error {
	err := errors.Join(w.close(), w.closeSamples())
	if w.lock != nil {
		err = errors.Join(err, w.lock.Close())
		w.lock = nil
	}
	if err != nil && w.journal != nil && w.rows > w.before+w.refused {
		if _, gone := os.Lstat(filepath.Join(w.where, journalOf(w.name))); errors.Is(gone, fs.ErrNotExist) {
			err = &LostError{w.rows - w.before - w.refused, err}
		}
	}
	if err != nil && w.err == nil {
		if !w.o.Journal {
			err = plainFull(err)
		}
		err = fmt.Errorf("close trace %s: %w", w.where, err)
	}
	if w.err == nil {
		w.err = fmt.Errorf("write trace %s: %w", w.where, fs.ErrClosed)
	}
	return err
}

func (w *Writer) close() error {
	if w.err != nil {
		w.amend()
		if w.object != nil {
			w.err = errors.Join(w.err, w.object.Discard())
			w.object = nil
		}
		return w.err
	}
	if w.stalled {
		w.tried = time.Time{}
		if !w.recover() {
			return fmt.Errorf("%w: rows of %s are in its journal, for shadowtape repair when there is room", ErrFull, w.name)
		}
	}
	switch {
	case w.open == nil:
		return w.putHeader()
	case w.open.rows == 0 && w.segment > 1:
		err := w.object.Discard()
		if w.journal != nil {
			err = errors.Join(err, w.journal.f.Close(), w.store.Remove(journalOf(w.name)))
		}
		return errors.Join(err, w.putHeader())
	}
	return w.commit(false)
}
