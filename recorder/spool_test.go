package recorder

import (
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shadowtape/shadowtape/formats"
)

// rowSegments keeps rows; it fails for good at row failAt.
type rowSegments struct {
	rows      []int64
	failAt    int
	begun     map[int64]bool
	closed    bool
	full      atomic.Bool
	samples   int
	sampleErr error
	h         formats.Header
	id        int64
}

func (w *rowSegments) Begin(x *formats.Exchange) error {
	w.id++
	x.ExchangeID = w.id
	w.begun[x.ExchangeID] = true
	return nil
}
func (w *rowSegments) Forget(id int64) error { delete(w.begun, id); return nil }
func (w *rowSegments) Full() bool            { return w.full.Load() }
func (w *rowSegments) Write(x *formats.Exchange) error {
	if w.full.Load() {
		return fmt.Errorf("write: %w", formats.ErrFull)
	}
	if w.failAt > 0 && len(w.rows) == w.failAt-1 {
		return errors.New("input/output error")
	}
	w.rows = append(w.rows, x.ArrivalUnixNS)
	delete(w.begun, x.ExchangeID)
	return nil
}
func (w *rowSegments) WriteServer(s []formats.ServerSample) error {
	if w.sampleErr != nil && len(s) > 0 {
		return w.sampleErr
	}
	w.samples += len(s)
	return nil
}
func (w *rowSegments) WriteGPU(s []formats.GPUSample) error { w.samples += len(s); return nil }
func (w *rowSegments) Rotate() error                        { return nil }
func (w *rowSegments) Header() *formats.Header              { return &w.h }
func (w *rowSegments) Close() error                         { w.closed = true; return nil }

// TestSpoolReopens: after a writer has failed another is opened, when it is time; each one's header accounts for its own share.
func TestSpoolReopens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second := &rowSegments{failAt: 4, begun: map[int64]bool{}}, &rowSegments{begun: map[int64]bool{}}
		tries := 0
		s := NewSpool(first, func() SourceStats {
			n := newSourceStats()
			n.Filtered["endpoint"] = 2
			return n
		}, SpoolOptions{RetryEvery: time.Second, Reopen: func() (Segments, error) {
			if tries++; tries == 1 {
				return nil, errors.New("still broken")
			}
			return second, nil
		}})
		emit := func(from, to int64) {
			for i := from; i < to; i++ {
				s.Emit(&formats.Exchange{ArrivalUnixNS: i})
			}
			synctest.Wait()
		}
		emit(1, 7) // rows 1, 2, 3; 4 fails, 5 and 6 come too soon to try again
		if _, err := s.Backlog(); err == nil {
			t.Error("it does not say that nothing is written")
		}
		time.Sleep(1100 * time.Millisecond)
		emit(7, 8) // still broken
		time.Sleep(1100 * time.Millisecond)
		emit(8, 11)
		if _, err := s.Backlog(); err != nil {
			t.Error(err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		st := s.Stats()
		if len(first.rows) != 3 || len(second.rows) != 3 || !first.closed || !second.closed {
			t.Errorf("%v %v", first.rows, second.rows)
		}
		if st.Written != 6 || st.Reasons["dropped_writer_failed"] != 4 || st.Filtered != 2 || st.Seen != 12 {
			t.Errorf("%+v", st.Counters)
		}
		if c := second.h.Counters; c.Written != 3 || c.Dropped != 3 || c.Filtered != 0 || c.Seen != 6 {
			t.Errorf("the second header accounts for %+v", c)
		}
	})
}

// TestHealthFollowsTheDisk: /healthz and /metrics say that nothing is recorded while the disk is full or the writer failed, and say so no
// longer as soon as it works again, whether or not an exchange comes.
func TestHealthFollowsTheDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second := &rowSegments{failAt: 3, begun: map[int64]bool{}}, &rowSegments{begun: map[int64]bool{}}
		s := NewSpool(first, nil, SpoolOptions{RetryEvery: time.Second, Reopen: func() (Segments, error) { return second, nil }})
		m := &Monitor{Stats: s.Stats, Backlog: s.Backlog}
		says := func(when, health, writing string) {
			t.Helper()
			synctest.Wait()
			r := httptest.NewRecorder()
			m.ServeHTTP(r, httptest.NewRequest("GET", "/healthz", nil))
			if r.Code != 200 || r.Body.String() != health+"\n" {
				t.Errorf("%s: healthz says %d %q", when, r.Code, r.Body)
			}
			r = httptest.NewRecorder()
			m.ServeHTTP(r, httptest.NewRequest("GET", "/metrics", nil))
			if !strings.Contains(r.Body.String(), "\nshadowtape_writing "+writing+"\n") {
				t.Errorf("%s: shadowtape_writing is not %s", when, writing)
			}
		}
		s.Emit(&formats.Exchange{ArrivalUnixNS: 1})
		says("at first", "ok", "1")
		first.full.Store(true)
		s.Emit(&formats.Exchange{ArrivalUnixNS: 2})
		says("on a full disk", "alive, not recording: the disk is full", "0")
		first.full.Store(false)
		time.Sleep(time.Second)
		says("with room again, and no traffic", "ok", "1")
		s.Emit(&formats.Exchange{ArrivalUnixNS: 3})
		s.Emit(&formats.Exchange{ArrivalUnixNS: 4})
		says("after an error of the disk", "alive, not recording: input/output error", "0")
		time.Sleep(1500 * time.Millisecond)
		says("after the next try, and no traffic", "ok", "1")
		s.Emit(&formats.Exchange{ArrivalUnixNS: 5})
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if st := s.Stats(); len(first.rows) != 2 || len(second.rows) != 1 || st.Reasons["dropped_disk_full"] != 1 || st.Reasons["dropped_writer_failed"] != 1 {
			t.Errorf("%v %v %+v", first.rows, second.rows, st.Counters)
		}
	})
}

// TestSpoolBounds: what waits for a disk that hangs is bounded, exchanges in flight that are dropped are forgotten.
func TestSpoolBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		w := &hanging{rowSegments{begun: map[int64]bool{}}, release}
		s := NewSpool(w, nil, SpoolOptions{QueueBytes: 10_000})
		const n = 1000
		for i := range int64(n) {
			x := &formats.Exchange{ArrivalUnixNS: i + 1}
			known := *x
			s.Begin(x, &known)
			if i%3 == 0 {
				s.Forget(x)
				continue
			}
			s.Emit(x)
			if bytes, _ := s.Backlog(); bytes > 10_000+forgetCost*n {
				t.Fatalf("%d bytes wait", bytes)
			}
		}
		close(release)
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		st := s.Stats()
		if st.Written+st.Dropped != n-334 || st.Dropped == 0 || st.Written != int64(len(w.rows)) || len(w.begun) != 0 {
			t.Errorf("%+v, %d in flight", st.Counters, len(w.begun))
		}
		s.Emit(&formats.Exchange{})
		if s.Stats().Reasons["dropped_after_the_end"] != 1 {
			t.Errorf("%+v", s.Stats().Counters)
		}
	})
}

// hanging is a disk that hangs until it is released.
type hanging struct {
	rowSegments
	release chan struct{}
}

func (w *hanging) Begin(x *formats.Exchange) error { <-w.release; return w.rowSegments.Begin(x) }

// TestSpoolSamples: samples are written, or dropped and counted, and never stand in the exchanges' way: neither their errors nor their
// number.
func TestSpoolSamples(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &rowSegments{begun: map[int64]bool{}}
		s := NewSpool(w, nil, SpoolOptions{QueueBytes: 4 * 64 * 10})
		s.Server(make([]formats.ServerSample, 5))
		synctest.Wait()
		s.GPU(make([]formats.GPUSample, 1))
		synctest.Wait()
		s.Server(make([]formats.ServerSample, 11)) // more than a quarter of the queue
		synctest.Wait()
		w.sampleErr = errors.New("no space for samples")
		for range 2 {
			s.Server(make([]formats.ServerSample, 3))
			synctest.Wait()
		}
		s.Emit(&formats.Exchange{ArrivalUnixNS: 1})
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		s.Server(make([]formats.ServerSample, 1))
		st := s.Stats()
		if w.samples != 6 || st.Notes[samplesWritten] != 6 || st.Notes[samplesDropped] != 11+6+1 || st.Written != 1 || st.Dropped != 0 || len(st.Warnings) != 1 {
			t.Errorf("%d, %+v", w.samples, st)
		}
		if w.h.Counters.Notes[samplesDropped] != 17 {
			t.Errorf("%+v", w.h.Counters)
		}
	})
}

// TestDeletedWhileWritten: exchanges of a segment that somebody deletes before it is closed are dropped, not written, whether the end of the
// recording or that of the segment finds it out.
func TestDeletedWhileWritten(t *testing.T) {
	for _, later := range []int64{0, 1} {
		where := filepath.Join(t.TempDir(), "t")
		w, err := formats.Create(where, formats.Header{}, formats.SegmentOptions{Journal: true, MaxRows: 3})
		if err != nil {
			t.Fatal(err)
		}
		s := NewSpool(w, nil, SpoolOptions{})
		emit := func() {
			s.Emit(&formats.Exchange{Phase: formats.PhaseRecord, ArrivalUnixNS: 1e18})
		}
		emit()
		emit()
		for s.Stats().Written < 2 {
			time.Sleep(time.Millisecond)
		}
		if err := os.RemoveAll(where); err != nil {
			t.Fatal(err)
		}
		for range later {
			emit()
		}
		err = s.Close()
		st := s.Stats()
		if err == nil || st.Seen != 2+later || st.Written != 0 || st.Dropped != 2+later || st.Reasons["dropped_deleted"] != 2 || st.Reasons["dropped_writer_failed"] != later {
			t.Errorf("%d later: %v, %+v", later, err, st.Counters)
		}
		if said := strings.Join(st.Warnings, "\n"); !strings.Contains(said, "it was deleted while it was written: 2 exchanges are lost with it") {
			t.Errorf("%d later: %q", later, said)
		}
	}
}
