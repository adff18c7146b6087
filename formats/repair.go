package formats

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

const (
	pinFile       = "pinned.json"
	damagedSuffix = ".damaged"
	retryEvery    = time.Second // while the disk is full
)

// ErrBusy is the error of a directory that another process is writing to.
var ErrBusy = errors.New("another process is writing to it")

// RepairReport says what Repair found and did.
type RepairReport struct {
	Segments  int      // good ones, the rebuilt included
	Rebuilt   []string // segments made from their journals
	Recovered int64    // rows in them that had ended
	CutShort  int64    // rows that were in flight, now capture_cut
	Torn      int      // journals whose last record the death of the process had cut
	Samples   []string // files of samples made from their journals
	Removed   []string // unfinished files that held nothing more
	Damaged   []string // segments that cannot be read, renamed to NAME.damaged
}

// Repair brings a directory whose writer died back into order: segments are rebuilt from journals, unfinished files removed, unreadable
// segments set aside, trace.json brought up to date. A trace that is in order is left as it is. It refuses a directory that is being
// written to.
func Repair(where string) (RepairReport, error) {
	if Remote(where) {
		return RepairReport{}, fmt.Errorf("repair %s: nothing unfinished is in object storage: repair the directory that it was written to first", where)
	}
	lock, err := lockDirectory(where)
	if err != nil {
		return RepairReport{}, fmt.Errorf("repair %s: %w", where, bare(err))
	}
	r, err := repair(where, true)
	if err := errors.Join(plainFull(err), lock.Close()); err != nil {
		return r, fmt.Errorf("repair %s: %w", where, bare(err))
	}
	return r, nil
}

// repair is Repair of a directory that is locked. Unless whole is set what segments hold is not looked at, which may be much.
func repair(where string, whole bool) (RepairReport, error) {
	r := &repairer{dir: directory(where), whole: whole, good: map[string]segmentInfo{}, flying: map[int64]*Exchange{}}
	es, err := os.ReadDir(where)
	if err != nil {
		return r.RepairReport, err
	}
	var journals, sampled, tmp []string
	ours := false
	for _, e := range es {
		n := e.Name()
		ours = ours || n == traceFile || n == runFile || strings.HasPrefix(n, segmentPrefix)
		switch {
		case !ownFile(strings.TrimSuffix(n, temporary)):
		case strings.HasSuffix(n, temporary):
			tmp = append(tmp, n)
		case strings.HasSuffix(n, journalSuffix) && sampleKind(n) != "":
			sampled = append(sampled, n)
		case strings.HasSuffix(n, journalSuffix):
			journals = append(journals, n)
		case strings.HasPrefix(n, segmentPrefix) && strings.HasSuffix(n, segmentSuffix):
			if err := r.segment(n); err != nil {
				return r.RepairReport, err
			}
		case whole && strings.HasSuffix(n, segmentSuffix):
			if err := wholeFile(r.dir, n); err != nil {
				if err := r.setAside(n); err != nil {
					return r.RepairReport, err
				}
			}
		case whole && n == traceFile:
			var h Header
			if err := readJSON(r.dir, n, &h); err != nil { // the segments say it too
				if err := r.setAside(n); err != nil {
					return r.RepairReport, err
				}
			}
		}
	}
	if !ours {
		return r.RepairReport, errors.New("it is no trace and no run")
	}
	for _, n := range tmp {
		if err := os.Remove(filepath.Join(where, n)); err != nil {
			return r.RepairReport, err
		}
		r.Removed = append(r.Removed, n)
	}
	for _, n := range sampled {
		part, torn, err := repairSamples(r.dir, n)
		switch {
		case err == nil:
		case diskFull(err):
			return r.RepairReport, err
		default: // the exchanges are not lost for it
			if err := r.setAside(n); err != nil {
				return r.RepairReport, err
			}
		}
		if torn {
			r.Torn++
		}
		if part != "" {
			r.Samples = append(r.Samples, part)
		}
	}
	for i, n := range journals {
		if err := r.journal(n, i == len(journals)-1); err != nil {
			return r.RepairReport, fmt.Errorf("%s: %w", n, err)
		}
	}
	r.Segments = len(r.good)
	if len(journals)+len(r.Damaged) == 0 {
		return r.RepairReport, nil
	}
	return r.RepairReport, r.header()
}

// repairer is a repair under way.
type repairer struct {
	RepairReport
	dir    directory
	whole  bool
	good   map[string]segmentInfo
	flying map[int64]*Exchange
	order  []int64 // of those in flight
	last   Header  // of the last journal
	rows   int64   // of all journals
}

// segment looks at a committed segment and sets it aside if it cannot be read.
func (r *repairer) segment(name string) error {
	info, err := inspectSegment(r.dir, name)
	if err == nil && r.whole {
		err = wholeFile(r.dir, name)
	}
	if err == nil {
		r.good[name] = info
		return nil
	}
	return r.setAside(name)
}

// setAside renames what cannot be read.
func (r *repairer) setAside(name string) error {
	r.Damaged = append(r.Damaged, name)
	return os.Rename(filepath.Join(string(r.dir), name), filepath.Join(string(r.dir), name+damagedSuffix))
}

// wholeFile compares all of a Parquet file with its checksums, where it has them.
func wholeFile(s Store, name string) error {
	o, err := s.Open(name)
	if err != nil {
		return err
	}
	defer o.Close()
	_, sums, err := openParquet(o)
	if err != nil || sums == nil {
		return err
	}
	return sums.whole()
}

// journal replays one journal. Where its segment was committed only what was in flight matters; those that no later journal ends become
// rows with the last one.
func (r *repairer) journal(name string, last bool) error {
	b, err := get(r.dir, name)
	if err != nil {
		return err
	}
	segmentName := strings.TrimSuffix(name, journalSuffix) + segmentSuffix
	segment, committed := r.good[segmentName]
	var rows []*Exchange
	h, flying, torn, err := readJournal(b, func(x *Exchange) error {
		delete(r.flying, x.ExchangeID)
		if !committed {
			rows = append(rows, x)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if torn {
		r.Torn++
	}
	if h.FormatVersion != 0 {
		if r.last = h; committed {
			r.last = segment.header // its counters are later ones
		}
		r.flying, r.order = map[int64]*Exchange{}, nil // a journal begins with all that is in flight
	}
	for _, x := range flying {
		r.flying[x.ExchangeID] = x
		r.order = append(r.order, x.ExchangeID)
	}
	if last {
		for _, id := range r.order {
			if x := r.flying[id]; x != nil {
				x.EndReason = EndCaptureCut
				rows = append(rows, x)
				r.CutShort++
			}
		}
	}
	if committed && len(rows) > 0 {
		segmentName = r.free()
	}
	if len(rows) > 0 {
		if err := r.rebuild(segmentName, rows); err != nil {
			return err
		}
	}
	return r.dir.Remove(name)
}

// free is the name of the segment after the last.
func (r *repairer) free() string {
	n := 0
	for name := range r.good {
		var k int
		if _, err := fmt.Sscanf(name, segmentPrefix+"%d", &k); err == nil {
			n = max(n, k)
		}
	}
	return fmt.Sprintf("%s%05d%s", segmentPrefix, n+1, segmentSuffix)
}

// rebuild writes a segment from the rows of a journal.
func (r *repairer) rebuild(name string, rows []*Exchange) error {
	o, err := r.dir.Create(name)
	if err != nil {
		return err
	}
	s := newSegment(o, r.last.ToolVersion)
	var all span
	for _, x := range rows {
		if err := s.write(x); err != nil {
			return errors.Join(err, o.Discard())
		}
		all.add(x.span())
	}
	h := r.last
	h.StartUnixNS, h.EndUnixNS = all.from, all.to
	h.Counters = h.Counters.plus(recoveredRows(rows))
	if err := s.close(h); err != nil {
		return errors.Join(err, o.Discard())
	}
	if err := r.dir.Commit(o); err != nil {
		return err
	}
	r.last = h
	r.good[name] = segmentInfo{header: h}
	r.rows += int64(len(rows))
	r.Rebuilt = append(r.Rebuilt, name)
	for _, x := range rows {
		if x.EndReason != EndCaptureCut {
			r.Recovered++
		}
	}
	return nil
}

// recoveredRows accounts for rows that came back: each was seen and written.
func recoveredRows(rows []*Exchange) Counters {
	n := int64(len(rows))
	return Counters{Seen: n, Written: n, Notes: map[string]int64{"recovered": n}}
}

// header brings trace.json up to date.
func (r *repairer) header() error {
	h := r.last
	if h.FormatVersion == 0 {
		err := readJSON(r.dir, traceFile, &h)
		if errors.Is(err, fs.ErrNotExist) {
			if len(r.good) == 0 {
				return nil
			}
			h, err = r.good[slices.Max(slices.Collect(maps.Keys(r.good)))].header, nil // the last segment's is the latest
		}
		if err != nil {
			return err
		}
	}
	var all span
	for _, info := range r.good {
		if info.header.StartUnixNS != 0 || info.header.EndUnixNS != 0 {
			all.add(info.header.StartUnixNS, info.header.EndUnixNS)
		}
	}
	h.StartUnixNS, h.EndUnixNS = all.from, all.to
	h.Counters = r.counted(h.Counters)
	return putJSON(r.dir, traceFile, h)
}

// counted is what a journal's header and the rows of journals come to, with what was left out since, where trace.json was written later: a
// writer whose disk is full has no other place for it.
func (r *repairer) counted(c Counters) Counters {
	var h Header
	if err := readJSON(r.dir, traceFile, &h); err != nil || h.Counters.Seen <= c.Seen-r.rows {
		return c
	}
	told := h.Counters
	begun := max(0, min(told.Notes[begunNote], told.Reasons[droppedFull], r.CutShort)) // dropped then, rows now
	later := c.Written - told.Written - begun
	if later < 0 {
		return c
	}
	told.Reasons, told.Notes = maps.Clone(told.Reasons), maps.Clone(told.Notes)
	delete(told.Notes, begunNote)
	if told.Dropped -= begun; begun > 0 {
		told.Reasons[droppedFull] -= begun
	}
	return told.plus(Counters{Seen: later, Written: later + begun, Notes: map[string]int64{"recovered": r.rows}})
}

// resume goes on with a trace: it is repaired, and the new writer continues its numbers and counters.
func resume(where string, h Header, o SegmentOptions) (*Writer, error) {
	lock, err := lockDirectory(where)
	if err != nil {
		return nil, err
	}
	w, err := resumeLocked(where, h, o)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	w.lock = lock
	return w, w.begin()
}

func resumeLocked(where string, h Header, o SegmentOptions) (*Writer, error) {
	if _, err := repair(where, false); err != nil {
		return nil, err
	}
	w := newWriter(where, directory(where), h, o)
	es, err := os.ReadDir(where)
	if err != nil {
		return nil, err
	}
	segments := 0
	for _, e := range es { // damaged ones keep their numbers
		var n int
		if _, err := fmt.Sscanf(e.Name(), segmentPrefix+"%d", &n); err == nil {
			w.segment = max(w.segment, n)
		}
		if strings.HasPrefix(e.Name(), segmentPrefix) && strings.HasSuffix(e.Name(), segmentSuffix) {
			segments++
		}
	}
	var old Header
	if err := readJSON(w.store, traceFile, &old); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	w.base = old.Counters
	if w.h.KeptBodies == "" {
		w.h.KeptBodies = old.KeptBodies // some of the rows have theirs there
	}
	if segments == 0 {
		return w, nil
	}
	t, err := open(where)
	if err != nil {
		return nil, err
	}
	for b, err := range t.Scan(ColExchangeID) {
		if err != nil {
			return nil, err
		}
		ids, _ := b.Int64(ColExchangeID)
		for _, id := range ids {
			w.lastID = max(w.lastID, id)
		}
	}
	w.all = span{t.Rows > 0, t.Header.StartUnixNS, t.Header.EndUnixNS}
	w.h.StartUnixNS, w.h.EndUnixNS = w.all.from, w.all.to
	return w, nil
}

// stall gives the open segment up to the journal, which holds its rows.
func (w *Writer) stall() {
	if w.object != nil {
		w.object.Discard() // its rows are in the journal
	}
	w.open, w.object, w.stalled, w.tried = nil, nil, true, time.Now()
}

// recover tries, once a second, to make the segment that was lost again out of its journal. It reports whether there is room again; where
// there is none trace.json still says what was left out.
func (w *Writer) recover() (room bool) {
	if time.Since(w.tried) < retryEvery {
		return false
	}
	w.tried = time.Now()
	defer func() {
		if !room {
			w.amend()
		}
	}()
	if w.journal == nil { // nothing was open
		if err := w.next(); err != nil && diskFull(err) {
			return false
		} // of anything else the next row tells
		w.stalled = false
		return true
	}
	o, err := w.store.Create(w.name)
	if err != nil {
		return false
	}
	s := newSegment(o, w.h.ToolVersion)
	b, err := get(w.store, journalOf(w.name))
	if err == nil {
		_, _, _, err = readJournal(b, s.write)
	}
	if err == nil {
		err = s.flushGroup()
	}
	for _, id := range w.gone {
		if err == nil {
			err = w.journal.forget(id)
		}
	}
	if err != nil {
		o.Discard()
		return false
	}
	w.open, w.object, w.stalled, w.gone = s, o, false, nil
	_ = w.putHeader() // without the note of those that are forgotten now; the next segment's end says it again
	return true
}

// enforceQuota deletes the oldest segments and parts of samples that no pin holds until the rest keeps within the quota. The newest of
// each kind stays.
func (w *Writer) enforceQuota() error {
	if w.o.Quota == 0 {
		return nil
	}
	total, queues := int64(0), [3][]Entry{}
	for i, kind := range []string{segmentPrefix, serverKind, gpuKind} {
		es, err := w.store.List(kind)
		if i == 0 {
			es = slices.DeleteFunc(es, func(e Entry) bool { return !strings.HasSuffix(e.Name, segmentSuffix) })
		} else {
			es, err = sampleParts(w.store, kind, segmentSuffix)
		}
		if err != nil {
			return err
		}
		for _, e := range es {
			total += e.Size
		}
		queues[i] = es[:max(0, len(es)-1)]
	}
	var pins []pin
	if err := readJSON(w.store, pinFile, &pins); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err // better too much than what someone pinned
	}
	var heads [3]*segmentInfo
	for total > w.o.Quota {
		oldest := -1
		for i := range queues {
			for heads[i] == nil && len(queues[i]) > 0 {
				info, err := inspectFooter(w.store, queues[i][0].Name)
				if err != nil || pinned(pins, info.header) {
					queues[i] = queues[i][1:] // what cannot be read is repair's business
					continue
				}
				heads[i] = &info
			}
			if heads[i] != nil && (oldest < 0 || heads[i].header.EndUnixNS < heads[oldest].header.EndUnixNS) {
				oldest = i
			}
		}
		if oldest < 0 {
			return nil
		}
		e := queues[oldest][0]
		if err := w.store.Remove(e.Name); err != nil {
			return err
		}
		total -= e.Size
		if oldest == 0 {
			for _, n := range heads[0].groups {
				w.expired += n
			}
		}
		queues[oldest], heads[oldest] = queues[oldest][1:], nil
	}
	return nil
}

// pin is a span of time whose segments the quota leaves alone.
type pin struct {
	From int64 `json:"from_unix_ns"`
	To   int64 `json:"to_unix_ns"`
}

func pinned(pins []pin, h Header) bool {
	for _, p := range pins {
		if p.From <= h.EndUnixNS && h.StartUnixNS <= p.To {
			return true
		}
	}
	return false
}

// Pin keeps every segment that touches a span of time from the quota's deletion, also while a writer is at work. Times are nanoseconds
// since 1970, both ends included.
func Pin(where string, from, to int64) error {
	if to < from {
		return fmt.Errorf("pin %s: it ends before it begins", where)
	}
	d := directory(where)
	var pins []pin
	if err := readJSON(d, pinFile, &pins); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("pin %s: %w", where, err)
	}
	b, err := json.MarshalIndent(append(pins, pin{from, to}), "", "  ")
	if err == nil {
		err = put(d, pinFile, append(b, '\n'))
	}
	if err != nil {
		return fmt.Errorf("pin %s: %w", where, err)
	}
	return nil
}
