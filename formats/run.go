package formats

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"sync"

	"github.com/parquet-go/parquet-go"
)

const (
	serverFile = serverKind + segmentSuffix
	clientFile = clientKind + segmentSuffix
	gpuFile    = gpuKind + segmentSuffix
	seriesRows = 1 << 16 // rows of a row group of a series file
)

// RunWriter writes a run directory. Its methods are safe for concurrent use; a call may wait while a segment is synced to disk. Journals
// keep the exchanges and the samples where the process is killed; Repair brings them back.
type RunWriter struct {
	mu        sync.Mutex
	where     string
	spool     string // the directory that it is written to first, where it goes to object storage; ""
	store     Store
	exchanges *Writer
	server    *sampleLog[ServerSample]
	client    *sampleLog[ClientSample]
	gpu       *sampleLog[gpuRow]
}

// CreateRun starts a run directory. It refuses to overwrite what exists (errors.Is(err, fs.ErrExist)). Until Close, run.json says that
// the run was interrupted and is not valid. A run that goes to object storage (Mount) is written to a directory for temporary files, which
// Close uploads, the manifest last, and removes.
func CreateRun(where string, m Manifest) (*RunWriter, error) {
	name, spool := where, ""
	if Remote(where) {
		var err error
		if spool, err = spoolFor(where); err != nil {
			return nil, fmt.Errorf("create run %s: %w", name, bare(err))
		}
		where = spool
	} else if err := emptyDirectory(where); err != nil {
		return nil, fmt.Errorf("create run %s: %w", where, err)
	}
	store := directory(where)
	m.Interrupted, m.Valid, m.Invalid = true, false, append([]string{"the run was not finished"}, m.Invalid...)
	if err := putJSON(store, runFile, m); err != nil {
		return nil, fmt.Errorf("create run %s: %w", where, err)
	}
	kind := m.Kind
	if kind == "" {
		kind = "replay"
	}
	w := &RunWriter{where: name, spool: spool, store: store}
	w.exchanges = newWriter(where, store, Header{ToolVersion: m.ToolVersion, SourceKind: kind, Source: m.TracePath}, SegmentOptions{Journal: true})
	w.exchanges.run = true
	if err := w.exchanges.begin(); err != nil {
		return nil, fmt.Errorf("create run %s: %w", where, err)
	}
	w.server = &sampleLog[ServerSample]{w: w.exchanges, kind: serverKind}
	w.client = &sampleLog[ClientSample]{w: w.exchanges, kind: clientKind}
	w.gpu = &sampleLog[gpuRow]{w: w.exchanges, kind: gpuKind}
	for _, reserve := range []func() error{w.server.open, w.client.open} { // a replay's connections may leave no descriptor later
		if err := reserve(); err != nil {
			return nil, fmt.Errorf("create run %s: %w", where, errors.Join(err, w.exchanges.Close()))
		}
	}
	return w, nil
}

// SetHeader says what the run's exchanges carry over from the trace: prefix block unit, size and rule, hash key, tokenizer, prompts,
// time base. Call it before the first Write.
func (w *RunWriter) SetHeader(h Header) {
	w.mu.Lock()
	defer w.mu.Unlock()
	own := w.exchanges.h
	h.FormatVersion, h.CompatibleWith, h.ToolVersion, h.SourceKind, h.Source = own.FormatVersion, own.CompatibleWith, own.ToolVersion, own.SourceKind, own.Source
	h.StartUnixNS, h.EndUnixNS, h.Counters = 0, 0, Counters{}
	if h.TimeBase == "" {
		h.TimeBase = own.TimeBase
	}
	w.exchanges.h = h
}

// Write appends one exchange; it does not keep x.
func (w *RunWriter) Write(x *Exchange) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.exchanges.Write(x)
}

// BatchSamples makes of n samples of a kind one record of its journal, instead of one of each call: a tenth of the work where samples come
// by the thousand, for runs that can be made again, since those that wait do not outlive the process. Call it before the first is written.
func (w *RunWriter) BatchSamples(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.server.batch, w.client.batch, w.gpu.batch = n, n, n
}

// WriteServer appends samples of the server's metrics.
func (w *RunWriter) WriteServer(s []ServerSample) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.server.write(s)
}

// WriteClient appends a sample of the client's health.
func (w *RunWriter) WriteClient(s ClientSample) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.client.write([]ClientSample{s})
}

// Close writes what is open and run.json. What could be written is kept even where it returns an error.
func (w *RunWriter) Close(m Manifest) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	err := errors.Join(w.exchanges.Close(), w.server.join(), w.client.join(), w.gpu.join())
	if err != nil {
		m.Valid, m.Invalid = false, append([]string{"not everything could be written"}, m.Invalid...)
	}
	if err := errors.Join(err, putJSON(w.store, runFile, m), w.publish()); err != nil {
		return fmt.Errorf("close run %s: %w", w.where, err)
	}
	return nil
}

// spoolFor makes the directory that a run is written to on its way to object storage. It refuses a place that is not empty.
func spoolFor(where string) (string, error) {
	s, file, err := place(where)
	if err != nil {
		return "", err
	}
	if file != "" {
		return "", errors.New("a run is a directory of files, not one file")
	}
	switch there, err := occupied(s, ""); {
	case err != nil:
		return "", err
	case there:
		return "", fs.ErrExist
	}
	return os.MkdirTemp("", "shadowtape-run-")
}

// publish uploads a run that was written to a spool: what it consists of, then what says that it is there. What cannot be uploaded stays.
func (w *RunWriter) publish() error {
	if w.spool == "" {
		return nil
	}
	to, _, err := place(w.where)
	if err == nil {
		err = Upload(directory(w.spool), to)
	}
	if err != nil {
		return fmt.Errorf("it could not be uploaded and is kept in %s: %w", w.spool, err)
	}
	return os.RemoveAll(w.spool)
}

// Publish copies a trace or run from one place to another, such as from a directory to object storage. It refuses to overwrite what exists
// (errors.Is(err, fs.ErrExist)).
func Publish(from, to string) error {
	bad := func(err error) error { return fmt.Errorf("publish %s: %w", to, bare(err)) }
	src, file, err := place(from)
	if err != nil {
		return bad(err)
	}
	if there, err := Exists(to); err != nil {
		return err
	} else if there {
		return bad(fs.ErrExist)
	}
	if file != "" && !Remote(to) {
		return bad(errors.New("one file goes to object storage only"))
	}
	if !Remote(to) {
		if err := emptyDirectory(to); err != nil {
			return bad(err)
		}
	}
	dst, name, err := place(to)
	if err != nil {
		return bad(err)
	}
	if (file == "") != (name == "") {
		return bad(errors.New("a file becomes a file, a directory a prefix"))
	}
	if file != "" {
		err = copyObject(src, dst, file, name)
	} else {
		err = Upload(src, dst)
	}
	if err != nil {
		return bad(err)
	}
	return nil
}

// Upload copies a trace or run from one store to another. The files that say what it is, trace.json and run.json, come last, so that what
// is cut short is no run.
func Upload(from, to Store) error {
	es, err := from.List("")
	if err != nil {
		return err
	}
	last := func(e Entry) int { return slices.Index([]string{traceFile, runFile}, e.Name) }
	slices.SortStableFunc(es, func(a, b Entry) int { return last(a) - last(b) })
	for _, e := range es {
		if err := copyObject(from, to, e.Name, e.Name); err != nil {
			return fmt.Errorf("%s: %w", e.Name, err)
		}
	}
	return nil
}

// Copy copies one object from one store to another.
func Copy(from, to Store, name string) error { return copyObject(from, to, name, name) }

func copyObject(from, to Store, name, as string) error {
	r, err := from.Open(name)
	if err != nil {
		return err
	}
	defer r.Close()
	o, err := to.Create(as)
	if err != nil {
		return err
	}
	if _, err := io.Copy(o, io.NewSectionReader(r, 0, r.Size())); err != nil {
		return errors.Join(err, o.Discard())
	}
	return to.Commit(o)
}

// series writes one long-form Parquet file beside the exchanges. Without a row there is no file.
type series[T any] struct {
	store   Store
	name    string
	version string
	object  Object
	w       *sealed[T]
	rows    int
}

// reserve opens the file before there is a row.
func (s *series[T]) reserve() (err error) {
	if s.object == nil {
		s.object, err = s.store.Create(s.name)
	}
	return err
}

func (s *series[T]) write(rows []T) error {
	if len(rows) == 0 {
		return nil
	}
	if s.w == nil {
		if err := s.reserve(); err != nil {
			return err
		}
		s.w = newSealed[T](s.object, parquet.Compression(pages), parquet.CreatedBy(createdBy, s.version, ""))
	}
	if _, err := s.w.Write(rows); err != nil {
		return err
	}
	if s.rows += len(rows); s.rows >= seriesRows {
		s.rows = 0
		return s.w.Flush()
	}
	return nil
}

func (s *series[T]) close() error {
	if s.w == nil {
		if s.object == nil {
			return nil
		}
		o := s.object
		s.object = nil
		return o.Discard()
	}
	if err := s.w.Close(); err != nil {
		return errors.Join(err, s.object.Discard())
	}
	s.w = nil
	return s.store.Commit(s.object)
}
