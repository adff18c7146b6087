package objects

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/shadowtape/shadowtape/formats"
)

// Shipper moves what a recorder has committed in a directory to object storage, while the recorder goes on. A segment leaves the
// directory once it is there; while the storage is away segments stay, and are tried again until it is back. One goroutine runs it.
type Shipper struct {
	Dir   string
	To    formats.Store
	Every time.Duration // between two looks at the directory; 0: 2 s

	shipped, bytes, failures atomic.Int64
	kept                     map[string]int64 // sizes of what was uploaded and stays
	lastErr                  atomic.Pointer[string]
}

// ShipStats are a shipper's counters.
type ShipStats struct {
	Objects  int64  // uploaded
	Bytes    int64  // of them
	Failures int64  // tries that failed; each is made again
	Error    string // of the last look at the directory; "": all went well
}

// Stats may be called at any time.
func (s *Shipper) Stats() ShipStats {
	st := ShipStats{Objects: s.shipped.Load(), Bytes: s.bytes.Load(), Failures: s.failures.Load()}
	if e := s.lastErr.Load(); e != nil {
		st.Error = *e
	}
	return st
}

// Run ships until the context ends.
func (s *Shipper) Run(ctx context.Context) {
	every := s.Every
	if every == 0 {
		every = 2 * time.Second
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			s.pass(ctx)
		}
	}
}

// Finish ships what is left, after the writer is closed, and removes the directory. While the context lasts it tries again; where that was
// not long enough the error says what is left, and where.
func (s *Shipper) Finish(ctx context.Context) error {
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		err := s.pass(ctx)
		if err == nil {
			return formats.Remove(s.Dir)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("what is left stays in %s, for the next recorder with this spool: %w", s.Dir, err)
		case <-time.After(wait):
		}
	}
}

// pass uploads what is there and was not uploaded, what describes the trace last.
func (s *Shipper) pass(ctx context.Context) error {
	dir, err := formats.Place(s.Dir)
	if err == nil {
		err = s.each(ctx, dir)
	}
	text := ""
	if err != nil {
		text = err.Error()
	}
	s.lastErr.Store(&text)
	return err
}

func (s *Shipper) each(ctx context.Context, dir formats.Store) error {
	es, err := dir.List("")
	if err != nil {
		return err
	}
	news := false
	var last *formats.Entry
	for _, e := range es {
		switch {
		case e.Name == "trace.json":
			last = &e
			continue
		case !strings.HasSuffix(e.Name, ".parquet"), s.kept[e.Name] == e.Size && e.Size > 0: // journals are the writer's
			continue
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := s.ship(dir, e); err != nil {
			return err
		}
		news = true
		if strings.HasPrefix(e.Name, "exchanges-") {
			if err := dir.Remove(e.Name); err != nil {
				return err
			}
			continue
		}
		if s.kept == nil { // samples are few, and their writer counts them by what is there
			s.kept = map[string]int64{}
		}
		s.kept[e.Name] = e.Size
	}
	if last == nil || !news && s.kept[last.Name] == last.Size {
		return nil
	}
	if err := s.ship(dir, *last); err != nil {
		return err
	}
	if s.kept == nil {
		s.kept = map[string]int64{}
	}
	s.kept[last.Name] = last.Size
	return nil
}

func (s *Shipper) ship(dir formats.Store, e formats.Entry) error {
	err := formats.Copy(dir, s.To, e.Name)
	if err != nil {
		s.failures.Add(1)
		return err
	}
	s.shipped.Add(1)
	s.bytes.Add(e.Size)
	return nil
}

// Leftover ships what a recorder that died left in a directory: it is repaired first. A directory that another process writes to is left
// alone, with a nil error and shipped false.
func Leftover(ctx context.Context, dir string, to formats.Store) (shipped bool, err error) {
	if _, err := formats.Repair(dir); err != nil {
		if errors.Is(err, formats.ErrBusy) {
			return false, nil
		}
		return false, err
	}
	return true, (&Shipper{Dir: dir, To: to}).Finish(ctx)
}
