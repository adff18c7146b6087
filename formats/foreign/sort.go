package foreign

import (
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sort"

	"github.com/shadowtape/shadowtape/formats"
)

// window is how many rows are held back to be put in order of arrival.
const window = 1 << 15

// sorter writes rows in order of arrival in bounded memory. Rows that come later than the window reaches start a new sorted run in a
// file of its own; the runs are merged at the end. Rows of one arrival keep the order in which they came.
type sorter struct {
	where      string
	publish    string          // where the trace goes from there, in object storage; "": it stays
	w          *formats.Writer // the trace, or the open run once there are several
	scratch    string          // directory of the runs; "" while one is enough
	runs       []string
	held       []*formats.Exchange // sorted; those before first were written
	first      int
	free       []*formats.Exchange
	rows       int64
	inversions int64
	last       int64 // arrival of the row read last
	written    int64 // arrival of the row written last
	wrote      bool
	h          formats.Header
	quantum    quantum
	turns      turns
}

func newSorter(where string, h formats.Header) (*sorter, error) {
	publish := ""
	if formats.Remote(where) { // what is sorted is renamed and read again: that is done here
		if there, err := formats.Exists(where); err != nil {
			return nil, err
		} else if there {
			return nil, fmt.Errorf("create trace %s: %w", where, fs.ErrExist)
		}
		dir, err := os.MkdirTemp("", "shadowtape-import-")
		if err != nil {
			return nil, err
		}
		publish, where = where, filepath.Join(dir, "trace"+path.Ext(where))
	}
	w, err := formats.Create(where, h, formats.SegmentOptions{})
	if err != nil {
		return nil, err
	}
	return &sorter{where: where, publish: publish, w: w, h: h}, nil
}

// header is the header of the trace to be; what is set here before close is stored.
func (s *sorter) header() *formats.Header { return &s.h }

// new returns an empty exchange.
func (s *sorter) new() *formats.Exchange {
	if n := len(s.free); n > 0 {
		x := s.free[n-1]
		s.free = s.free[:n-1]
		*x = formats.Exchange{}
		return x
	}
	return &formats.Exchange{}
}

func (s *sorter) add(x *formats.Exchange) error {
	s.rows++
	if x.ExchangeID == 0 {
		x.ExchangeID = s.rows
	}
	if s.rows > 1 && x.ArrivalUnixNS < s.last {
		s.inversions++
	}
	s.last = x.ArrivalUnixNS
	if s.wrote && x.ArrivalUnixNS < s.written {
		if err := s.newRun(); err != nil {
			return err
		}
	}
	live := s.held[s.first:]
	at := len(live)
	if at > 0 && x.ArrivalUnixNS < live[at-1].ArrivalUnixNS {
		at = sort.Search(len(live), func(i int) bool { return live[i].ArrivalUnixNS > x.ArrivalUnixNS })
	}
	s.held = slices.Insert(s.held, s.first+at, x)
	if len(s.held)-s.first > window {
		return s.drain(window / 2)
	}
	return nil
}

// drain writes held rows until keep are left.
func (s *sorter) drain(keep int) error {
	*s.w.Header() = merged(*s.w.Header(), s.h)
	for len(s.held)-s.first > keep {
		x := s.held[s.first]
		s.held[s.first] = nil
		s.first++
		if s.scratch == "" {
			s.inOrder(x)
		}
		if err := s.w.Write(x); err != nil {
			return err
		}
		s.written, s.wrote = x.ArrivalUnixNS, true
		s.free = append(s.free, x)
	}
	s.held = slices.Delete(s.held, 0, s.first)
	s.first = 0
	return nil
}

// inOrder learns from the rows in their order of arrival.
func (s *sorter) inOrder(x *formats.Exchange) {
	s.quantum.add(x.ArrivalUnixNS)
	if s.h.Prompts == "" {
		s.turns.add(x, s.h.PrefixBlockRule)
	}
}

// newRun closes the open run and begins another. The first time, what was to be the trace becomes a run.
func (s *sorter) newRun() error {
	if err := s.drain(0); err != nil {
		return err
	}
	if err := s.w.Close(); err != nil {
		return err
	}
	if s.scratch == "" {
		dir, err := os.MkdirTemp(filepath.Dir(s.where), ".sort-*")
		if err != nil {
			return err
		}
		s.scratch = dir
		s.quantum, s.turns = quantum{}, turns{}
		run := filepath.Join(dir, "1"+filepath.Ext(s.where))
		if err := os.Rename(s.where, run); err != nil {
			return err
		}
		s.runs = append(s.runs, run)
	}
	run := filepath.Join(s.scratch, fmt.Sprint(len(s.runs)+1))
	w, err := formats.Create(run, s.h, formats.SegmentOptions{})
	if err != nil {
		return err
	}
	s.w, s.wrote = w, false
	s.runs = append(s.runs, run)
	return nil
}

// close writes what is held, merges the runs and finishes the header.
func (s *sorter) close(r *Report) (err error) {
	if err := s.drain(0); err != nil {
		return errors.Join(err, s.abandon())
	}
	if s.scratch != "" {
		if err := s.merge(); err != nil {
			return errors.Join(err, s.abandon())
		}
	}
	if s.h.Prompts == "" {
		if s.h.Prompts, err = s.turns.prompts(); err != nil {
			return errors.Join(err, s.abandon())
		}
	}
	if s.inversions > 0 {
		r.Notes["inversions"] = s.inversions
	}
	if s.h.TimeQuantumNS == 0 {
		s.h.TimeQuantumNS = s.quantum.value()
	}
	s.h.Counters = r.counters()
	*s.w.Header() = merged(*s.w.Header(), s.h)
	if err := s.w.Close(); err != nil {
		return errors.Join(err, s.abandon())
	}
	if s.publish != "" {
		if err := formats.Publish(s.where, s.publish); err != nil {
			return errors.Join(err, s.abandon())
		}
	}
	return s.clean()
}

// merged keeps what the writer itself maintains in the header.
func merged(own, h formats.Header) formats.Header {
	h.FormatVersion, h.CompatibleWith, h.StartUnixNS, h.EndUnixNS = own.FormatVersion, own.CompatibleWith, own.StartUnixNS, own.EndUnixNS
	if h.TimeBase == "" {
		h.TimeBase = own.TimeBase
	}
	return h
}

func (s *sorter) merge() error {
	if err := s.w.Close(); err != nil {
		return err
	}
	w, err := formats.Create(s.where, s.h, formats.SegmentOptions{})
	if err != nil {
		return err
	}
	s.w = w
	type head struct {
		x    *formats.Exchange
		next func() (*formats.Exchange, error, bool)
	}
	var heads []head
	for _, run := range s.runs {
		t, err := formats.Open(run)
		if err != nil {
			return err
		}
		next, stop := iter.Pull2(t.All())
		defer stop()
		x, err, ok := next()
		if err != nil {
			return err
		}
		if ok {
			heads = append(heads, head{x, next})
		}
	}
	for len(heads) > 0 {
		least := 0
		for i := range heads {
			if heads[i].x.ArrivalUnixNS < heads[least].x.ArrivalUnixNS {
				least = i // of equals the earliest run stays: its rows came first
			}
		}
		s.inOrder(heads[least].x)
		if err := w.Write(heads[least].x); err != nil {
			return err
		}
		x, err, ok := heads[least].next()
		if err != nil {
			return err
		}
		if !ok {
			heads = slices.Delete(heads, least, least+1)
			continue
		}
		heads[least].x = x
	}
	return nil
}

// abandon leaves nothing behind.
func (s *sorter) abandon() error {
	s.w.Close()
	return errors.Join(formats.Remove(s.where), s.clean())
}

func (s *sorter) clean() error {
	switch {
	case s.publish != "":
		return os.RemoveAll(filepath.Dir(s.where))
	case s.scratch != "":
		return os.RemoveAll(s.scratch)
	}
	return nil
}

// quantum finds the tick of a coarse clock in sorted arrivals: the median spacing of the distinct times, where most rows share their
// time with another.
type quantum struct {
	rows, shared int64
	last         int64
	alone        bool // the last row has shared its time with none so far
	gaps         map[int64]int64
	distinct     int64
}

const maxGaps = 1 << 20

func (q *quantum) add(at int64) {
	q.rows++
	if q.rows > 1 && at == q.last {
		q.shared++
		if q.alone {
			q.shared++
			q.alone = false
		}
		return
	}
	if q.rows > 1 && len(q.gaps) < maxGaps {
		if q.gaps == nil {
			q.gaps = map[int64]int64{}
		}
		q.gaps[at-q.last]++
		q.distinct++
	}
	q.last, q.alone = at, true
}

// value is the tick in nanoseconds, or 0.
func (q *quantum) value() int64 {
	if q.distinct == 0 || 2*q.shared <= q.rows {
		return 0
	}
	gaps := make([]int64, 0, len(q.gaps))
	for g := range q.gaps {
		gaps = append(gaps, g)
	}
	slices.Sort(gaps)
	n := int64(0)
	for _, g := range gaps {
		if n += q.gaps[g]; 2*n >= q.distinct {
			return g
		}
	}
	return 0
}
