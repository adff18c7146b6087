package formats

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/parquet-go/parquet-go"
)

// Trace is an open trace or run. It holds no files open between calls; its methods are safe for concurrent use.
type Trace struct {
	Name     string    // as given to Open
	Header   Header    // merged over the segments
	Manifest *Manifest // nil unless it is a run
	Rows     int64
	Warnings []string // what the header says and the rows do not bear out

	store    Store
	segments []string
	parts    []part
	traces   []*Trace // not nil: several, read as one; store, segments and parts are then theirs
	doubted  *atomic.Int64
}

// Doubted is how many times of the rows read so far no clock has shown, more than 140 years from their arrival: they were read as unknown.
func (t *Trace) Doubted() int64 { return t.doubted.Load() }

// part is one row group of one segment.
type part struct {
	segment string
	group   int
	rows    int64
}

// Open opens a file, a directory of segments, or a run directory; of a scheme that is mounted (Mount) likewise an object or a prefix. A
// place without segments that holds traces below it, as several recorders leave them under one prefix, is read as one trace, by time. It
// refuses what is no trace, a segment that is damaged or cut short (saying how many are good), and a format version that this build does
// not read. A directory with a header and no segment is an empty trace. Segments of several hash keys leave HashKeyID empty: what is shared between them is unknown.
func Open(where string) (*Trace, error) {
	t, err := open(where)
	if err != nil {
		return nil, fmt.Errorf("open trace %s: %w", where, bare(err))
	}
	return t, nil
}

// bare drops the path that the os package repeats.
func bare(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) && err == error(p) {
		return p.Err
	}
	return err
}

func open(where string) (*Trace, error) {
	store, file, err := place(where)
	if err != nil {
		return nil, err
	}
	t := &Trace{Name: where, store: store, doubted: new(atomic.Int64)}
	if file != "" {
		t.segments = []string{file}
		return t, t.load(false)
	}
	unfinished, err := t.list()
	if err != nil {
		return nil, err
	}
	if unfinished {
		return nil, errors.New("it was left unfinished, or is being written: shadowtape repair brings back what was left")
	}
	if len(t.segments) > 0 || t.empty() {
		return t, t.load(true)
	}
	all, err := traces(store, where, belowLevels)
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("no segments (%s*%s) in this directory", segmentPrefix, segmentSuffix)
	}
	return t, t.join(all)
}

// list finds the segments. unfinished says that there are none, but something that becomes one.
func (t *Trace) list() (unfinished bool, err error) {
	es, err := t.store.List(segmentPrefix)
	if err != nil {
		return false, err
	}
	for _, e := range es {
		if strings.HasSuffix(e.Name, segmentSuffix) {
			t.segments = append(t.segments, e.Name)
		}
	}
	if len(es) > 0 && !slices.ContainsFunc(es, func(e Entry) bool { return !strings.HasSuffix(e.Name, damagedSuffix) }) {
		return false, fmt.Errorf("every segment of it is damaged and was set aside (%s): take them from a copy", es[0].Name)
	}
	return len(t.segments) == 0 && len(es) > 0, nil
}

// inspectAhead is how many footers are read at once.
const inspectAhead = 16

// inspectAll reads the segments' footers, several at once: in object storage each costs round trips.
func (t *Trace) inspectAll() ([]segmentInfo, []error) {
	infos, errs := make([]segmentInfo, len(t.segments)), make([]error, len(t.segments))
	var wg sync.WaitGroup
	turn := make(chan struct{}, inspectAhead)
	for i, name := range t.segments {
		turn <- struct{}{}
		wg.Go(func() {
			infos[i], errs[i] = inspectSegment(t.store, name)
			<-turn
		})
	}
	wg.Wait()
	return infos, errs
}

// empty reports whether the directory is a trace without a segment: its writer ended, or was killed and repaired, before the first exchange.
func (t *Trace) empty() bool {
	var h Header
	return readJSON(t.store, traceFile, &h) == nil && h.FormatVersion > 0
}

// load reads the footers and merges the headers.
func (t *Trace) load(dir bool) error {
	var bad error
	good, all := 0, span{}
	keys := map[string]bool{}
	infos, errs := t.inspectAll()
	for i, name := range t.segments {
		s, err := infos[i], errs[i]
		if err != nil {
			if !dir {
				return err
			}
			if bad == nil {
				bad = fmt.Errorf("segment %d, %s: %w", i+1, name, err)
			}
			continue
		}
		good++
		for g, rows := range s.groups {
			t.parts = append(t.parts, part{name, g, rows})
			t.Rows += rows
		}
		if from, to := s.header.StartUnixNS, s.header.EndUnixNS; (from != 0 || to != 0) && min(from, to) >= -farthest && max(from, to) <= 2*farthest {
			all.add(s.header.StartUnixNS, s.header.EndUnixNS)
		}
		keys[s.header.HashKeyID] = true
		if len(keys) > 1 {
			s.header.HashKeyID = ""
		}
		t.Header = s.header // the last segment's counters are the latest
	}
	if bad != nil {
		return fmt.Errorf("%w; %d of %d segments are good", bad, good, len(t.segments))
	}
	if dir {
		if err := t.loadJSON(); err != nil {
			return err
		}
		if err := t.account(); err != nil {
			return err
		}
	}
	if len(keys) > 1 {
		t.Header.HashKeyID = ""
	}
	t.Header.StartUnixNS, t.Header.EndUnixNS = all.from, all.to
	return nil
}

// loadJSON reads trace.json and run.json where they are.
func (t *Trace) loadJSON() error {
	var h Header
	switch err := readJSON(t.store, traceFile, &h); {
	case err == nil:
		if err := readable(h); err != nil {
			return fmt.Errorf("%s: %w", traceFile, err)
		}
		t.Header = h
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	var m Manifest
	switch err := readJSON(t.store, runFile, &m); {
	case err == nil:
		t.Manifest = &m
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	return nil
}

// account holds what trace.json counts against itself and against the rows that are there. Segments that are still being written, or that
// wait for repair, are not there yet.
func (t *Trace) account() error {
	c := t.Header.Counters
	if c.Seen == 0 && c.Written == 0 {
		return nil // it was never counted
	}
	warn := func(format string, args ...any) {
		t.Warnings = append(t.Warnings, fmt.Sprintf(traceFile+" counts "+format, args...))
	}
	if c.Seen != c.Filtered+c.Dropped+c.Written {
		warn("%d exchanges seen, which are not the %d filtered, %d dropped and %d written that it counts too", c.Seen, c.Filtered, c.Dropped, c.Written)
	}
	have := c.Written - c.Notes[expiredNote]
	if have == t.Rows {
		return nil
	}
	es, err := t.store.List(segmentPrefix)
	if err != nil {
		return err
	}
	damaged := ""
	for _, e := range es {
		switch {
		case strings.HasSuffix(e.Name, journalSuffix):
			return nil
		case strings.HasSuffix(e.Name, damagedSuffix):
			damaged = " (" + e.Name + " was set aside)"
		}
	}
	warn("%d exchanges written, and %d are here: segments were lost or added%s, or are still to come", have, t.Rows, damaged)
	return nil
}

// maxJSON is the most that is read of run.json and trace.json: that of any real run is far below.
const maxJSON = 64 << 20

func readJSON(s Store, name string, v any) error {
	r, err := s.Open(name)
	if err != nil {
		return err
	}
	defer r.Close()
	if r.Size() > maxJSON {
		return fmt.Errorf("%s: %d bytes, more than any run or trace says of itself", name, r.Size())
	}
	b, err := io.ReadAll(io.NewSectionReader(r, 0, r.Size()))
	if err != nil {
		return err
	}
	if err := CheckDocument(b); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if err := json.Unmarshal(PlainJSON(b), v); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// readable refuses a later version that says it is not compatible with this build.
func readable(h Header) error {
	if h.FormatVersion < 1 {
		return errors.New("no format version")
	}
	if h.FormatVersion > FormatVersion && (h.CompatibleWith < 1 || h.CompatibleWith > FormatVersion) {
		return fmt.Errorf("format version %d, this build reads up to %d", h.FormatVersion, FormatVersion)
	}
	return nil
}

// segmentInfo is what a segment's footer says.
type segmentInfo struct {
	header Header
	groups []int64 // rows of each row group
}

// inspectSegment reads a segment's footer, and looks whether the columns are there that every trace has.
func inspectSegment(s Store, name string) (segmentInfo, error) { return inspect(s, name, columns) }

// inspectFooter reads the footer of a segment or of a part of samples.
func inspectFooter(s Store, name string) (segmentInfo, error) { return inspect(s, name, nil) }

func inspect(s Store, name string, columns []*column) (segmentInfo, error) {
	r, err := s.Open(name)
	if err != nil {
		return segmentInfo{}, bare(err)
	}
	defer r.Close()
	f, _, err := openParquet(r)
	if err != nil {
		return segmentInfo{}, err
	}
	text, ok := f.Lookup(headerKey)
	if !ok {
		return segmentInfo{}, errors.New("a Parquet file, but no trace: it has no shadowtape header")
	}
	var info segmentInfo
	if err := json.Unmarshal(PlainJSON([]byte(text)), &info.header); err != nil {
		return segmentInfo{}, fmt.Errorf("header: %w", err)
	}
	if err := readable(info.header); err != nil {
		return segmentInfo{}, err
	}
	for _, c := range columns {
		if c.required && f.Root().Column(string(c.name)) == nil {
			return segmentInfo{}, fmt.Errorf("column %s is missing", c.name)
		}
	}
	for _, g := range f.RowGroups() {
		info.groups = append(info.groups, g.NumRows())
	}
	return info, nil
}

// openParquet reads a footer; what is read of the file is compared with its checksums, which are nil where it has none. Damage is an error,
// never a panic.
func openParquet(r ObjectReader) (f *parquet.File, sums *checked, err error) {
	defer recovered(&err)
	var magic [4]byte
	if _, err := r.ReadAt(magic[:], 0); err != nil && err != io.EOF {
		return nil, nil, err
	} else if string(magic[:]) != "PAR1" {
		return nil, nil, errors.New("not a Parquet file")
	}
	if r.Size() < 12 {
		return nil, nil, errors.New("cut short: a Parquet file without its footer")
	}
	if _, err := r.ReadAt(magic[:], r.Size()-4); err != nil && err != io.EOF {
		return nil, nil, err
	} else if string(magic[:]) != "PAR1" {
		return nil, nil, errors.New("cut short: a Parquet file without its footer")
	}
	if sums, err = newChecked(r); err != nil {
		return nil, nil, err
	}
	if sums != nil {
		r = sums
	}
	f, err = parquet.OpenFile(r, r.Size(), parquet.SkipMagicBytes(true), parquet.SkipPageIndex(true), parquet.SkipBloomFilters(true), parquet.ReadBufferSize(32<<10))
	if err != nil {
		return nil, nil, fmt.Errorf("damaged footer: %w", err)
	}
	if sums != nil {
		sums.file = f
	} else if _, has := f.Lookup(sumKey); has && strings.HasPrefix(f.Metadata().CreatedBy, createdBy+" ") {
		return nil, nil, errFooter // another program that writes a file anew keeps its key-value metadata
	}
	return f, sums, nil
}

// recovered turns a panic of the Parquet library on damaged bytes into an error.
func recovered(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("damaged: %v", p)
	}
}

// Close releases the trace.
func (t *Trace) Close() error { return nil }

// Split cuts the trace into at most n traces of about equal numbers of rows, in order, to be read in parallel. Each names the whole
// trace and carries its header. Several traces that are read as one are not cut: their order is made while they are read.
func (t *Trace) Split(n int) []*Trace {
	if t.traces != nil {
		return []*Trace{t}
	}
	var out []*Trace
	want := (t.Rows + int64(max(n, 1)) - 1) / int64(max(n, 1))
	for _, p := range t.parts {
		if len(out) == 0 || out[len(out)-1].Rows >= want {
			c := *t
			c.parts, c.Rows = nil, 0
			out = append(out, &c)
		}
		last := out[len(out)-1]
		last.parts = append(last.parts, p)
		last.Rows += p.rows
	}
	return slices.Clip(out)
}

// SHA256 is the checksum over the trace's segments in order, in hex.
func (t *Trace) SHA256() (string, error) {
	h := sha256.New()
	parts := t.traces
	if parts == nil {
		parts = []*Trace{t}
	}
	for _, p := range parts {
		for _, name := range p.segments {
			r, err := p.store.Open(name)
			if err != nil {
				return "", fmt.Errorf("checksum of trace %s: %w", t.Name, bare(err))
			}
			_, err = io.CopyBuffer(h, io.NewSectionReader(r, 0, r.Size()), make([]byte, 1<<20))
			if err := errors.Join(err, r.Close()); err != nil {
				return "", fmt.Errorf("checksum of trace %s: %w", t.Name, err)
			}
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
