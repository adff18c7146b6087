package formats

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestJournalRoundTrip(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	name := filepath.Join(t.TempDir(), "j")
	j, err := newJournal(name, Header{FormatVersion: 1, SourceKind: "proxy"})
	if err != nil {
		t.Fatal(err)
	}
	var want []*Exchange
	for i := range 200 {
		x := randomExchange(r)
		x.ExchangeID = int64(i)
		want = append(want, x)
		if _, err := j.row('r', x); err != nil {
			t.Fatal(err)
		}
	}
	if err := j.f.Close(); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if int64(len(whole)) != j.size {
		t.Errorf("%d bytes on disk, the journal counts %d", len(whole), j.size)
	}
	var got []*Exchange
	h, flying, torn, err := readJournal(whole, func(x *Exchange) error { got = append(got, x); return nil })
	if err != nil || torn || len(flying) != 0 || h.SourceKind != "proxy" {
		t.Errorf("header %+v, %d in flight, torn %v, %v", h, len(flying), torn, err)
	}
	if !reflect.DeepEqual(want, got) {
		t.Error(cmp.Diff(want, got))
	}
	for range 100 { // cut anywhere: whole rows before the cut, nothing else
		n := r.IntN(len(whole))
		i := 0
		_, _, _, err := readJournal(whole[:n], func(x *Exchange) error {
			if !reflect.DeepEqual(want[i], x) {
				t.Fatalf("cut at %d: row %d is another", n, i)
			}
			i++
			return nil
		})
		if err != nil {
			t.Errorf("cut at %d: %v", n, err)
		}
	}
}

func FuzzReadJournal(f *testing.F) {
	name := filepath.Join(f.TempDir(), "j")
	j, err := newJournal(name, Header{FormatVersion: 1})
	if err != nil {
		f.Fatal(err)
	}
	j.row('b', &Exchange{ExchangeID: 1, Phase: PhaseRecord, EventGapUS: []int32{1, 2}})
	j.row('r', &Exchange{ExchangeID: 2, Phase: PhaseRecord, ServerID: "a", TemplateFlags: []string{"x"}, Temperature: Of(1.5), SessionID: Of(Hash{1})})
	j.forget(1)
	j.f.Close()
	b, err := os.ReadFile(name)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(journalMagic))
	f.Add(append([]byte(journalMagic), 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 'r'))
	f.Fuzz(func(t *testing.T, b []byte) {
		readJournal(b, func(*Exchange) error { return nil })
		names := columns
		readRow(b, names, &Exchange{})
	})
}

// TestBegunExchanges: what was in flight when the process died is capture_cut; what ended or was forgotten is not, over rotations too.
func TestBegunExchanges(t *testing.T) {
	where := filepath.Join(t.TempDir(), "t")
	w, err := Create(where, Header{}, SegmentOptions{Journal: true, MaxRows: 2})
	if err != nil {
		t.Fatal(err)
	}
	var xs []*Exchange
	for i := range 7 {
		x := &Exchange{Phase: PhaseRecord, ArrivalUnixNS: int64(i)}
		if err := w.Begin(x); err != nil {
			t.Fatal(err)
		}
		xs = append(xs, x)
	}
	for _, i := range []int{0, 2, 4} { // two of them fill a segment
		xs[i].EndReason = EndComplete
		if err := w.Write(xs[i]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Forget(xs[5].ExchangeID); err != nil {
		t.Fatal(err)
	}
	abandon(w)
	r, err := Repair(where)
	if err != nil || r.Recovered != 1 || r.CutShort != 3 || len(r.Rebuilt) != 1 || r.Segments != 2 {
		t.Errorf("%+v, %v", r, err)
	}
	ends := map[int64]EndReason{}
	for _, x := range readAll(t, where) {
		ends[x.ExchangeID] = x.EndReason
	}
	want := map[int64]EndReason{1: EndComplete, 2: EndCaptureCut, 3: EndComplete, 4: EndCaptureCut, 5: EndComplete, 7: EndCaptureCut}
	if d := cmp.Diff(want, ends); d != "" {
		t.Error(d)
	}
	if r, err := Repair(where); err != nil || len(r.Rebuilt)+len(r.Removed)+len(r.Damaged) != 0 || r.Segments != 2 {
		t.Errorf("a second repair: %+v, %v", r, err)
	}
}

// abandon leaves a writer as the death of its process would.
func abandon(w *Writer) {
	w.lock.Close()
	w.journal.f.Close()
	w.object.(*fileObject).File.Close()
}

func TestRepairSetsDamageAside(t *testing.T) {
	where := filepath.Join(t.TempDir(), "t")
	writeAll(t, where, Header{}, SegmentOptions{MaxRows: 1}, []*Exchange{row(1), row(2), row(3)})
	bad := filepath.Join(where, "exchanges-00002.parquet")
	if err := os.Truncate(bad, 100); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(where, "exchanges-00004.parquet.tmp"), nil, 0o666); err != nil {
		t.Fatal(err)
	}
	r, err := Repair(where)
	want := RepairReport{Segments: 2, Removed: []string{"exchanges-00004.parquet.tmp"}, Damaged: []string{"exchanges-00002.parquet"}}
	if d := cmp.Diff(want, r); d != "" || err != nil {
		t.Error(d, err)
	}
	if n := len(readAll(t, where)); n != 2 {
		t.Errorf("%d rows", n)
	}
	w, err := Create(where, Header{}, SegmentOptions{Append: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Write(row(4)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(where, "exchanges-00004.parquet")); err != nil {
		t.Error(err)
	}
	if err := Remove(where); err != nil {
		t.Error(err)
	}
	if _, err := Repair(t.TempDir()); err == nil {
		t.Error("an empty directory was repaired")
	}
}

func TestAppend(t *testing.T) {
	where := filepath.Join(t.TempDir(), "t")
	for session := range 3 {
		w, err := Create(where, Header{HashKeyID: "k"}, SegmentOptions{Append: true, Journal: true, MaxRows: 2})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			if err := w.Write(row(int64(10*session + i))); err != nil {
				t.Fatal(err)
			}
		}
		w.Header().Counters = Counters{Seen: 5, Filtered: 1, Dropped: 1, Written: 3, Reasons: map[string]int64{"queue": 1}}
		if _, err := Create(where, Header{}, SegmentOptions{Append: true}); err == nil || !strings.Contains(err.Error(), "another process") {
			t.Errorf("a second writer: %v", err)
		}
		if _, err := Repair(where); err == nil {
			t.Error("repair took a trace that is being written")
		}
		if err := Remove(where); err == nil {
			t.Error("remove took a trace that is being written")
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	tr, err := Open(where)
	if err != nil {
		t.Fatal(err)
	}
	want := Counters{Seen: 15, Filtered: 3, Dropped: 3, Written: 9, Reasons: map[string]int64{"queue": 3}}
	if d := cmp.Diff(want, tr.Header.Counters); d != "" {
		t.Error(d)
	}
	if tr.Header.StartUnixNS != 0 || tr.Header.EndUnixNS != 22 || tr.Rows != 9 {
		t.Errorf("%+v, %d rows", tr.Header, tr.Rows)
	}
	for i, x := range readAll(t, where) {
		if x.ExchangeID != int64(i+1) {
			t.Errorf("row %d is exchange %d", i, x.ExchangeID)
		}
	}
	if _, err := Create(where, Header{}, SegmentOptions{}); !errors.Is(err, os.ErrExist) {
		t.Errorf("without Append: %v", err)
	}
}

func TestQuotaAndPins(t *testing.T) {
	where := filepath.Join(t.TempDir(), "t")
	w, err := Create(where, Header{}, SegmentOptions{MaxRows: 10, Quota: 60_000})
	if err != nil {
		t.Fatal(err)
	}
	if err := Pin(where, 25, 34); err != nil { // the third and fourth segments
		t.Fatal(err)
	}
	for i := range 200 {
		if err := w.Write(row(int64(i))); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	var at []int64
	for _, x := range readAll(t, where) {
		at = append(at, x.ArrivalUnixNS)
	}
	for i := int64(20); i < 40; i++ {
		if at[i-20] != i {
			t.Fatalf("the pinned rows are not there: %v", at[:20])
		}
	}
	if at[20] < 100 || at[len(at)-1] != 199 {
		t.Errorf("rows %v", at)
	}
	total := int64(0)
	es, err := directory(where).List(segmentPrefix)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range es {
		total += e.Size
	}
	if total > 60_000 {
		t.Errorf("%d bytes", total)
	}
	tr, err := Open(where)
	if err != nil {
		t.Fatal(err)
	}
	if c := tr.Header.Counters; c.Written != 200 || c.Notes["expired"] != 200-int64(len(at)) {
		t.Errorf("%+v for %d rows", c, len(at))
	}
	if err := Pin(where, 2, 1); err == nil {
		t.Error("a pin that ends before it begins")
	}
}

func TestMaxAge(t *testing.T) {
	where := filepath.Join(t.TempDir(), "t")
	synctest.Test(t, func(t *testing.T) {
		w, err := Create(where, Header{}, SegmentOptions{MaxAge: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		rotate := func() {
			t.Helper()
			if err := w.Rotate(); err != nil {
				t.Fatal(err)
			}
		}
		segments := func() int {
			es, err := directory(where).List(segmentPrefix)
			if err != nil {
				t.Fatal(err)
			}
			return len(es)
		}
		time.Sleep(2 * time.Minute)
		if rotate(); segments() != 0 {
			t.Error("an empty segment was closed")
		}
		if err := w.Write(row(1)); err != nil { // old at once
			t.Fatal(err)
		}
		if segments() != 1 {
			t.Errorf("%d segments", segments())
		}
		if err := w.Write(row(2)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute - 1)
		if rotate(); segments() != 1 {
			t.Error("closed too early")
		}
		time.Sleep(time.Nanosecond)
		if rotate(); segments() != 2 {
			t.Error("not closed")
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	})
	if n := len(readAll(t, where)); n != 2 {
		t.Errorf("%d rows", n)
	}
}

// smallDisk is a directory on a disk that may be full.
type smallDisk struct {
	directory
	full *bool
}

type smallObject struct {
	Object
	full *bool
}

func (o smallObject) Write(b []byte) (int, error) {
	if *o.full {
		return 0, syscall.ENOSPC
	}
	return o.Object.Write(b)
}

func (d smallDisk) Create(name string) (Object, error) {
	if *d.full {
		return nil, &os.PathError{Op: "open", Path: name, Err: syscall.ENOSPC}
	}
	o, err := d.directory.Create(name)
	return smallObject{o, d.full}, err
}

func (d smallDisk) Commit(o Object) error {
	if *d.full {
		o.Discard()
		return syscall.ENOSPC
	}
	return d.directory.Commit(o.(smallObject).Object)
}

type smallAppend struct {
	appendFile
	full *bool
}

func (f smallAppend) Write(b []byte) (int, error) {
	if *f.full {
		n, err := f.appendFile.Write(b[:len(b)/2]) // a torn record, to be taken back
		return n, errors.Join(err, syscall.ENOSPC)
	}
	return f.appendFile.Write(b)
}

// TestDiskFull: rows are refused by name while the disk is full and taken when it has room again; none that was taken is lost, whether
// the disk fills between rows or when a segment is closed.
func TestDiskFull(t *testing.T) {
	for seed := range uint64(4) {
		where := filepath.Join(t.TempDir(), "t")
		if err := os.Mkdir(where, 0o777); err != nil {
			t.Fatal(err)
		}
		var kept, got []int64
		synctest.Test(t, func(t *testing.T) { kept = writeToSmallDisk(t, where, seed) })
		for _, x := range readAll(t, where) { // not in the bubble: the Parquet library keeps its decoders
			got = append(got, x.ArrivalUnixNS)
		}
		if d := cmp.Diff(kept, got); d != "" {
			t.Errorf("seed %d: %s", seed, d)
		}
		es, err := os.ReadDir(where)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range es {
			if !strings.HasSuffix(e.Name(), segmentSuffix) && e.Name() != traceFile {
				t.Errorf("seed %d: %s is left", seed, e.Name())
			}
		}
	}
}

// writeToSmallDisk writes rows to a disk that fills and empties, and returns those that were taken.
func writeToSmallDisk(t *testing.T, where string, seed uint64) (kept []int64) {
	full := false
	plain := openAppend
	openAppend = func(name string) (appendFile, error) {
		if full {
			return nil, syscall.ENOSPC
		}
		f, err := plain(name)
		return smallAppend{f, &full}, err
	}
	defer func() { openAppend = plain }()
	w := newWriter(where, smallDisk{directory(where), &full}, Header{}, SegmentOptions{Journal: true, MaxRows: 7})
	if err := w.begin(); err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(seed, 1))
	refused := 0
	for i := range 300 {
		if r.IntN(10) == 0 {
			full = !full
		}
		time.Sleep(time.Duration(r.IntN(600)) * time.Millisecond)
		switch err := w.Write(row(int64(i))); {
		case err == nil:
			kept = append(kept, int64(i))
		case errors.Is(err, ErrFull):
			refused++
		default:
			t.Fatal(err)
		}
	}
	full = false
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if refused == 0 || len(kept) == 0 {
		t.Errorf("seed %d: %d refused, %d kept", seed, refused, len(kept))
	}
	return kept
}

// TestStillFullAtClose leaves the rows to repair.
func TestStillFullAtClose(t *testing.T) {
	full := false
	where := filepath.Join(t.TempDir(), "t")
	if err := os.Mkdir(where, 0o777); err != nil {
		t.Fatal(err)
	}
	w := newWriter(where, smallDisk{directory(where), &full}, Header{}, SegmentOptions{Journal: true, MaxRows: 3})
	if err := w.begin(); err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		if err := w.Write(row(int64(i))); err != nil {
			t.Fatal(err)
		}
	}
	full = true
	if err := w.Write(row(2)); err != nil { // in the journal, its segment cannot be closed
		t.Fatal(err)
	}
	if err := w.Close(); !errors.Is(err, ErrFull) {
		t.Errorf("close: %v", err)
	}
	if _, err := Open(where); err == nil || !strings.Contains(err.Error(), "shadowtape repair") {
		t.Errorf("open: %v", err)
	}
	if r, err := Repair(where); err != nil || r.Recovered != 3 {
		t.Errorf("%+v, %v", r, err)
	}
	if n := len(readAll(t, where)); n != 3 {
		t.Errorf("%d rows", n)
	}
}

// What a full disk kept out is still known after repair, whether the writer was closed or killed, and one that ended meanwhile counts once:
// as a row that was cut short where it was killed or closed before there was room, as dropped where there was room again.
func TestFullDiskIsCounted(t *testing.T) {
	for _, c := range []struct {
		name              string
		again, closed     bool
		rows, cut, missed int64
	}{{"killed", false, false, 4, 2, 4}, {"closed", false, true, 4, 2, 4}, {"killed with room again", true, false, 4, 1, 5}} {
		where := filepath.Join(t.TempDir(), "t")
		if err := os.Mkdir(where, 0o777); err != nil {
			t.Fatal(err)
		}
		synctest.Test(t, func(t *testing.T) {
			full := false
			plain := openAppend
			openAppend = func(name string) (appendFile, error) {
				f, err := plain(name)
				return smallAppend{f, &full}, err
			}
			defer func() { openAppend = plain }()
			w := newWriter(where, smallDisk{directory(where), &full}, Header{}, SegmentOptions{Journal: true})
			must := func(err error) {
				t.Helper()
				if err != nil {
					t.Fatal(c.name, err)
				}
			}
			must(w.begin())
			ended, flying := row(1), row(2)
			must(w.Begin(ended))
			must(w.Begin(flying))
			must(w.Write(row(3)))
			must(w.Write(row(4)))
			full = true
			for i, x := range []*Exchange{ended, row(5), row(6), row(7), row(8)} {
				if err := w.Write(x); !errors.Is(err, ErrFull) {
					t.Fatal(c.name, err)
				}
				_ = w.Forget(x.ExchangeID)
				n := int64(i + 1)
				w.Header().Counters = Counters{Seen: 2 + n, Written: 2, Dropped: n, Reasons: map[string]int64{droppedFull: n}}
			}
			time.Sleep(2 * retryEvery)
			must(w.Rotate())
			if full = !c.again; c.again {
				time.Sleep(2 * retryEvery)
				must(w.Write(row(9)))
			}
			if c.closed {
				_ = w.Forget(flying.ExchangeID)
				w.Header().Counters = Counters{Seen: 8, Written: 2, Dropped: 6, Reasons: map[string]int64{droppedFull: 6}}
				if err := w.Close(); !errors.Is(err, ErrFull) {
					t.Fatal(c.name, err)
				}
			} else {
				must(w.lock.Close())
			}
		})
		r, err := Repair(where)
		if err != nil {
			t.Fatal(c.name, err)
		}
		tr, err := Open(where)
		if err != nil {
			t.Fatal(c.name, err)
		}
		got := tr.Header.Counters
		want := Counters{Seen: c.rows + c.missed, Written: c.rows, Dropped: c.missed, Reasons: map[string]int64{droppedFull: c.missed}, Notes: map[string]int64{"recovered": c.rows}}
		if d := cmp.Diff(want, got); d != "" || r.CutShort != c.cut || len(tr.Warnings) > 0 {
			t.Errorf("%s: %+v, %q: %s", c.name, r, tr.Warnings, d)
		}
	}
}

// A full disk is named with what to do, not with the page that a library was writing, where there is no journal to go on from.
func TestFullDiskInWords(t *testing.T) {
	for _, rows := range []int64{1, 2} { // met by Close, by Write
		where := filepath.Join(t.TempDir(), "t")
		if err := os.Mkdir(where, 0o777); err != nil {
			t.Fatal(err)
		}
		full := false
		w := newWriter(where, smallDisk{directory(where), &full}, Header{}, SegmentOptions{MaxRows: 2})
		if err := w.begin(); err != nil {
			t.Fatal(err)
		}
		full = true
		var err error
		for range rows {
			err = w.Write(row(1))
		}
		if rows == 1 {
			err = w.Close()
		} else {
			w.Close()
		}
		if err == nil || !strings.HasSuffix(err.Error(), "the disk is full: make room, or take another disk") || !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("%d rows: %v", rows, err)
		}
	}
}

// TestKilled kills a process that records, again and again at a random moment, and goes on with what it left: no row that the process
// had reported as written may be missing, none may be there twice, and what was in flight is marked.
func TestKilled(t *testing.T) {
	if where := os.Getenv("SHADOWTAPE_TEST_RECORDER"); where != "" {
		recordForever(where)
	}
	where := filepath.Join(t.TempDir(), "t")
	r := rand.New(rand.NewPCG(9, 9))
	reported := map[int64]bool{}
	rounds := 8
	if testing.Short() {
		rounds = 5
	}
	for range rounds {
		c := exec.Command(os.Args[0], "-test.run=^TestKilled$")
		c.Env = append(os.Environ(), "SHADOWTAPE_TEST_RECORDER="+where)
		out, err := c.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewReader(out)
		for n := r.IntN(400); n >= 0; n-- { // at least one row each time
			l, err := lines.ReadString('\n')
			if err != nil {
				t.Fatal(err, l)
			}
			id, err := strconv.ParseInt(strings.TrimSpace(l), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			reported[id] = true
		}
		if err := c.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		rest, _ := io.ReadAll(lines)
		for _, l := range strings.Fields(string(rest)) {
			id, err := strconv.ParseInt(l, 10, 64)
			if err == nil && strings.HasSuffix(string(rest), "\n") {
				reported[id] = true
			}
		}
		c.Wait()
	}
	if _, err := Repair(where); err != nil {
		t.Fatal(err)
	}
	got := map[int64]bool{}
	cut := 0
	for _, x := range readAll(t, where) {
		if got[x.ExchangeID] {
			t.Errorf("exchange %d is there twice", x.ExchangeID)
		}
		got[x.ExchangeID] = true
		if x.EndReason == EndCaptureCut {
			cut++
		}
	}
	for id := range reported {
		if !got[id] {
			t.Errorf("exchange %d is lost", id)
		}
	}
	if cut == 0 || cut > 3*rounds {
		t.Errorf("%d exchanges were cut short in %d rounds of at most three in flight", cut, rounds)
	}
}

// recordForever writes rows with two or three exchanges in flight, and names each on stdout when it is written, until it is killed.
func recordForever(where string) {
	w, err := Create(where, Header{}, SegmentOptions{Append: true, Journal: true, MaxRows: 50})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	var flying []*Exchange
	for {
		x := &Exchange{Phase: PhaseRecord, ArrivalUnixNS: time.Now().UnixNano(), ServerID: "a"}
		if err := w.Begin(x); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		if flying = append(flying, x); len(flying) < 3 {
			continue
		}
		first := flying[0]
		flying = flying[1:]
		first.EndReason = EndComplete
		if err := w.Write(first); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println(first.ExchangeID)
	}
}
