package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/objects"
	"github.com/shadowtape/shadowtape/recorder"
)

// shipGrace is how long a recorder that ends tries to bring the rest of its trace to object storage.
const shipGrace = 25 * time.Second

// shipment records into object storage. Each start of a recorder writes a trace of its own below the prefix, NODE-TIME, so that recorders
// share nothing; it is written to a spool directory first, and leaves it segment by segment.
type shipment struct {
	a          *app
	to, spool  string
	node       string
	shipper    *objects.Shipper
	stop       context.CancelFunc
	done       chan struct{}
	abandoned  []string // spools whose writer failed
	began      time.Time
	wasShipped objects.ShipStats // by the shippers before
}

// store is the place of one spool in the storage.
func (s *shipment) store(dir string) (formats.Store, error) {
	return formats.Place(strings.TrimRight(s.to, "/") + "/" + filepath.Base(dir))
}

// start ships what earlier recorders left in the spool.
func (s *shipment) start(ctx context.Context) error {
	if s.spool == "" {
		s.spool = filepath.Join(os.TempDir(), "shadowtape-spool")
	}
	if err := os.MkdirAll(s.spool, 0o700); err != nil {
		return fmt.Errorf("make the spool: %w", err)
	}
	if _, err := s.store("probe"); err != nil { // a name that cannot work is known before the first exchange
		return fmt.Errorf("record into %s: %w", s.to, err)
	}
	if s.node == "" {
		s.node, _ = os.Hostname()
	}
	s.node = strings.Map(func(r rune) rune {
		if r == '.' || r == '-' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
			return r
		}
		return '-'
	}, s.node)
	if s.node == "" {
		s.node = "node"
	}
	es, err := os.ReadDir(s.spool)
	if err != nil {
		return fmt.Errorf("look into the spool: %w", err)
	}
	for _, e := range es {
		if !e.IsDir() {
			continue
		}
		s.leftover(ctx, filepath.Join(s.spool, e.Name()), 5*time.Second)
	}
	return nil
}

// leftover ships what a recorder that died left.
func (s *shipment) leftover(ctx context.Context, dir string, limit time.Duration) {
	to, err := s.store(dir)
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		var shipped bool
		if shipped, err = objects.Leftover(ctx, dir, to); shipped && err == nil {
			fmt.Fprintf(s.a.err, "an earlier recorder left %s: it is in %s now\n", dir, s.to)
		}
	}
	if err != nil {
		fmt.Fprintf(s.a.err, "shadowtape: warning: ship what was left in %s: %s\n", dir, oneLine(err.Error()))
	}
}

// open begins a trace and its shipping.
func (s *shipment) open(h formats.Header, o formats.SegmentOptions) (recorder.Segments, error) {
	if s.shipper != nil { // its writer has failed for good
		s.halt()
		s.abandoned = append(s.abandoned, s.shipper.Dir)
	}
	s.began = time.Now()
	dir := filepath.Join(s.spool, s.node+"-"+s.began.UTC().Format("20060102T150405.000Z"))
	to, err := s.store(dir)
	if err != nil {
		return nil, err
	}
	o.Append = false
	w, err := formats.Create(dir, h, o)
	if err != nil {
		return nil, err
	}
	s.shipper = &objects.Shipper{Dir: dir, To: to}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { s.shipper.Run(ctx); close(done) }()
	s.stop, s.done = stop, done
	return w, nil
}

// halt ends the shipping of the open trace.
func (s *shipment) halt() {
	s.stop()
	<-s.done
	st := s.shipper.Stats()
	s.wasShipped.Objects, s.wasShipped.Bytes, s.wasShipped.Failures = s.wasShipped.Objects+st.Objects, s.wasShipped.Bytes+st.Bytes, s.wasShipped.Failures+st.Failures
}

// finish ships the rest, when the writer is closed. What cannot be shipped in time stays in the spool, which is said and is no loss.
func (s *shipment) finish() error {
	if s.shipper == nil {
		return nil
	}
	s.halt()
	ctx, cancel := context.WithTimeout(context.Background(), shipGrace)
	defer cancel()
	before := s.shipper.Stats()
	err := s.shipper.Finish(ctx)
	st := s.shipper.Stats()
	for _, dir := range s.abandoned {
		s.leftover(ctx, dir, shipGrace)
	}
	fmt.Fprintf(s.a.err, "shipped %d objects, %d bytes, to %s/%s; %d tries failed\n", s.wasShipped.Objects+st.Objects-before.Objects, s.wasShipped.Bytes+st.Bytes-before.Bytes,
		strings.TrimRight(s.to, "/"), filepath.Base(s.shipper.Dir), s.wasShipped.Failures+st.Failures-before.Failures)
	if err != nil {
		return errors.Join(fmt.Errorf("record into %s: %w", s.to, err))
	}
	return nil
}
