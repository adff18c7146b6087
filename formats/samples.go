package formats

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/parquet-go/parquet-go"
)

// Samples beside a trace are kept as its exchanges are: a journal that outlives the process, and parts that are made of it. The parts of
// a kind are KIND.parquet, KIND-00002.parquet and so on; the journal of the open one has the same name with another ending. A record of it
// is the letter s and a small Parquet file with the rows of one call, so that there is one encoding of a sample.
const (
	serverKind = "server"
	clientKind = "client"
	gpuKind    = "gpu"

	samplesBytes = 4 << 20          // of a journal, from which it becomes a part: what folding it holds in memory
	samplesAge   = 15 * time.Minute // likewise
)

// partName names the n-th part of a kind, or its journal.
func partName(kind string, n int, suffix string) string {
	if n <= 1 {
		return kind + suffix
	}
	return fmt.Sprintf("%s-%05d%s", kind, n, suffix)
}

// partNumber is the n of partName, or 0 for the name of something else.
func partNumber(name, kind, suffix string) int {
	middle, begins := strings.CutPrefix(name, kind)
	middle, ends := strings.CutSuffix(middle, suffix)
	if !begins || !ends {
		return 0
	}
	if middle == "" {
		return 1
	}
	n, err := strconv.Atoi(strings.TrimPrefix(middle, "-"))
	if err != nil || n < 2 || partName(kind, n, suffix) != name {
		return 0
	}
	return n
}

// sampleKind is the kind of a part of samples, or of a journal of them; "" is something else.
func sampleKind(name string) string {
	for _, kind := range []string{serverKind, clientKind, gpuKind} {
		if partNumber(name, kind, segmentSuffix)+partNumber(name, kind, journalSuffix) > 0 {
			return kind
		}
	}
	return ""
}

// sampleParts lists what there is of a kind, by number.
func sampleParts(s Store, kind, suffix string) ([]Entry, error) {
	es, err := s.List(kind)
	if err != nil {
		return nil, err
	}
	es = slices.DeleteFunc(es, func(e Entry) bool { return partNumber(e.Name, kind, suffix) == 0 })
	slices.SortFunc(es, func(a, b Entry) int {
		return partNumber(a.Name, kind, suffix) - partNumber(b.Name, kind, suffix)
	})
	return es, nil
}

// sampleLog writes the samples of one kind beside a trace's segments.
type sampleLog[T any] struct {
	w      *Writer
	kind   string
	j      *journal
	opened time.Time
	batch  int // rows of a record: fewer wait for more
	wait   []T
}

func (l *sampleLog[T]) write(rows []T) error {
	if l.batch > 1 {
		if l.wait = append(l.wait, rows...); len(l.wait) < l.batch {
			return nil
		}
		rows = l.wait
		defer func() { l.wait = l.wait[:0] }()
	}
	return l.record(rows)
}

// record appends rows to the journal, and makes a part of it where it has grown enough.
func (l *sampleLog[T]) record(rows []T) error {
	if len(rows) == 0 {
		return nil
	}
	if l.j == nil {
		if err := l.open(); err != nil {
			return err
		}
	}
	var b bytes.Buffer
	p := parquet.NewGenericWriter[T](&b, parquet.Compression(pages), parquet.PageBufferSize(16<<10))
	if _, err := p.Write(rows); err != nil {
		return err
	}
	if err := p.Close(); err != nil {
		return err
	}
	if b.Len() >= maxRecord {
		return fmt.Errorf("%d samples at once are too many", len(rows))
	}
	if err := l.j.raw(append([]byte{'s'}, b.Bytes()...)); err != nil {
		return err
	}
	if l.j.size >= samplesBytes || time.Since(l.opened) >= samplesAge {
		return errors.Join(l.fold(), l.w.enforceQuota())
	}
	return nil
}

// open starts the journal of the part after the last.
func (l *sampleLog[T]) open() error {
	n := 0
	for _, suffix := range []string{segmentSuffix, journalSuffix} {
		es, err := sampleParts(l.w.store, l.kind, suffix)
		if err != nil {
			return err
		}
		if len(es) > 0 {
			n = max(n, partNumber(es[len(es)-1].Name, l.kind, suffix))
		}
	}
	j, err := newJournal(filepath.Join(l.w.where, partName(l.kind, n+1, journalSuffix)), l.w.header())
	if err != nil {
		return err
	}
	l.j, l.opened = j, time.Now()
	return nil
}

// fold makes a part of each journal of the kind: of the open one, and of those that an earlier try had no room for.
func (l *sampleLog[T]) fold() error {
	if l.j == nil {
		return nil
	}
	err := l.j.f.Close()
	l.j = nil
	js, lerr := sampleParts(l.w.store, l.kind, journalSuffix)
	err = errors.Join(err, lerr)
	for _, e := range js {
		_, _, ferr := foldSamples[T](l.w.store, e.Name)
		err = errors.Join(err, ferr)
	}
	return err
}

// join folds what is open and makes one part of all there are: a run's samples of a kind are one file.
func (l *sampleLog[T]) join() error {
	err := l.record(l.wait)
	l.wait = nil
	if err := errors.Join(err, l.fold()); err != nil {
		return err
	}
	parts, err := sampleParts(l.w.store, l.kind, segmentSuffix)
	if err != nil || len(parts) < 2 {
		return err
	}
	out := &series[T]{store: l.w.store, name: partName(l.kind, 1, segmentSuffix), version: l.w.h.ToolVersion}
	var rows []T
	for _, p := range parts {
		var werr error
		err = eachSample(l.w.store, p.Name, func(r T) bool {
			if rows = append(rows, r); len(rows) == 1024 {
				werr = out.write(rows)
				rows = rows[:0]
			}
			return werr == nil
		})
		if err = errors.Join(err, werr); err != nil {
			break
		}
	}
	if err == nil {
		err = out.write(rows)
	}
	if err != nil {
		if out.w != nil {
			err = errors.Join(err, out.object.Discard())
		}
		return err // the parts are all there
	}
	if err := out.close(); err != nil {
		return err
	}
	for _, p := range parts {
		if p.Name != out.name {
			err = errors.Join(err, l.w.store.Remove(p.Name))
		}
	}
	return err
}

// foldSamples makes a part of a journal of samples and removes the journal. Where the part is there already it comes out the same. torn
// says that the journal's last record is cut.
func foldSamples[T any](s Store, name string) (part string, torn bool, err error) {
	b, err := get(s, name)
	if err != nil {
		return "", false, err
	}
	rest, ok := bytes.CutPrefix(b, []byte(journalMagic))
	if !ok {
		return "", len(b) > 0, s.Remove(name) // died before the first record
	}
	var h Header
	all := span{}
	out := &series[T]{store: s, name: strings.TrimSuffix(name, journalSuffix) + segmentSuffix}
	for len(rest) > 0 && err == nil {
		body, next, ok := record(rest)
		if torn = !ok; torn {
			break
		}
		rest = next
		switch body[0] {
		case 'h':
			var head journalHead
			if err = json.Unmarshal(body[1:], &head); err == nil {
				err = readable(head.Header)
			}
			h, out.version = head.Header, head.Header.ToolVersion
		case 's':
			var rows []T
			err = eachRow(memory{bytes.NewReader(body[1:])}, func(r T) bool {
				at := sampledAt(&r)
				all.add(at, at)
				rows = append(rows, r)
				return true
			})
			if err == nil {
				err = out.write(rows)
			}
		}
	}
	if out.w != nil && err == nil {
		h.StartUnixNS, h.EndUnixNS, h.Counters = all.from, all.to, Counters{}
		var text []byte
		if text, err = json.Marshal(h); err == nil {
			out.w.SetKeyValueMetadata(headerKey, string(text))
			part, err = out.name, out.close()
		}
	}
	if err != nil {
		if out.w != nil {
			err = errors.Join(err, out.object.Discard())
		}
		return "", torn, fmt.Errorf("%s: %w", name, err)
	}
	return part, torn, s.Remove(name)
}

// sampledAt is the time of a row.
func sampledAt(row any) int64 {
	switch r := row.(type) {
	case *ServerSample:
		return r.UnixNS
	case *ClientSample:
		return r.UnixNS
	case *gpuRow:
		return r.UnixNS
	}
	return 0
}

// repairSamples folds a journal of samples, whatever its kind.
func repairSamples(s Store, name string) (part string, torn bool, err error) {
	switch sampleKind(name) {
	case gpuKind:
		return foldSamples[gpuRow](s, name)
	case clientKind:
		return foldSamples[ClientSample](s, name)
	}
	return foldSamples[ServerSample](s, name)
}

// memory is an object that is not in a store.
type memory struct{ *bytes.Reader }

func (memory) Close() error { return nil }

// WriteServer appends samples of the watched server's metrics, beside the exchanges: a directory only. What was appended outlives the
// process. An error is the samples' alone; the exchanges go on, and so may the samples.
func (w *Writer) WriteServer(s []ServerSample) error {
	if err := w.takesSamples(); err != nil {
		return err
	}
	if w.server == nil {
		w.server = &sampleLog[ServerSample]{w: w, kind: serverKind}
	}
	return w.sampled(w.server.write(s))
}

// WriteGPU appends samples of the watched GPUs, as WriteServer does.
func (w *Writer) WriteGPU(s []GPUSample) error {
	if err := w.takesSamples(); err != nil {
		return err
	}
	if w.gpu == nil {
		w.gpu = &sampleLog[gpuRow]{w: w, kind: gpuKind}
	}
	return w.sampled(w.gpu.write(rowsOf(s)))
}

func (w *Writer) takesSamples() error {
	if w.single != "" {
		return w.sampled(errors.New("samples need a directory, not one file"))
	}
	if errors.Is(w.err, fs.ErrClosed) {
		return w.err
	}
	return nil
}

func (w *Writer) sampled(err error) error {
	if err == nil {
		return nil
	}
	if diskFull(err) {
		err = ErrFull
	}
	return fmt.Errorf("write samples of trace %s: %w", w.where, err)
}

// closeSamples makes parts of what is in the journals.
func (w *Writer) closeSamples() error {
	var err error
	if w.server != nil {
		err = w.server.fold()
	}
	if w.gpu != nil {
		err = errors.Join(err, w.gpu.fold())
	}
	return w.sampled(err)
}
