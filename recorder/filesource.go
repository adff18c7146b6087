package recorder

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/shadowtape/shadowtape/formats"
)

// Files is a source of capture files: pcap and pcapng, plain or compressed with gzip or zstd, read one after the other as one capture.
// Exchanges come in the order of their arrival.
type Files struct {
	Names []string
	Key   []byte // of the keyed hashes; without one, identifiers and prefixes stay unknown
	Node  string // what stands in the node column
	Limits

	stats     SourceStats
	read      atomic.Int64
	exchanges atomic.Int64
}

// Size is the total of the files' sizes in bytes; an error names one that cannot be read.
func (f *Files) Size() (int64, error) {
	var n int64
	for _, name := range f.Names {
		i, err := os.Stat(name)
		if err != nil {
			return 0, fmt.Errorf("open capture: %w", err)
		}
		if !i.Mode().IsRegular() {
			return 0, fmt.Errorf("open capture %s: not a file", name)
		}
		n += i.Size()
	}
	return n, nil
}

// Progress is how many bytes of the files have been read, and how many exchanges have been emitted. It may be called while Run runs.
func (f *Files) Progress() (bytes, exchanges int64) { return f.read.Load(), f.exchanges.Load() }

// counted adds what is read to a counter.
type counted struct {
	r io.Reader
	n *atomic.Int64
}

func (c counted) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n.Add(int64(n))
	return n, err
}

// Validate reports what is wrong with the source.
func (f *Files) Validate() error {
	if len(f.Names) == 0 {
		return errors.New("capture files: none named")
	}
	return f.Limits.validate()
}

// Stats returns the counters of the last Run.
func (f *Files) Stats() SourceStats { return f.stats }

// Run reads the files. A file that is damaged is read up to there: a warning, not an error. A file that cannot be opened or is no capture is an
// error.
func (f *Files) Run(ctx context.Context, filter Filter, emit func(*formats.Exchange)) error {
	f.stats = newSourceStats()
	if err := f.Validate(); err != nil {
		return err
	}
	o := engineOptions{Limits: f.Limits, Node: f.Node, clock: formats.ClockPacket}
	o.defaults()
	order := arrivals{emit: func(x *formats.Exchange) { f.exchanges.Add(1); emit(x) }}
	e := newEngine(o, filter.Ports, hasherOf(f.Key), order.add)
	for _, name := range f.Names {
		if err := f.file(ctx, e, &order, name); err != nil {
			e.finish()
			order.flush()
			f.stats = merge(f.stats, e.stats)
			return err
		}
	}
	e.finish()
	order.flush()
	f.stats = merge(f.stats, e.stats)
	return nil
}

func merge(a, b SourceStats) SourceStats {
	a.Packets += b.Packets
	a.Bytes += b.Bytes
	for k, v := range b.Filtered {
		a.Filtered[k] += v
	}
	for k, v := range b.Dropped {
		a.Dropped[k] += v
	}
	for k, v := range b.Notes {
		a.Notes[k] += v
	}
	a.Warnings = append(a.Warnings, b.Warnings...)
	return a
}

func (f *Files) file(ctx context.Context, e *engine, order *arrivals, name string) error {
	file, err := os.Open(name)
	if err != nil {
		return fmt.Errorf("open capture: %w", err)
	}
	defer file.Close()
	r, err := newCaptureReader(counted{file, &f.read})
	if err != nil {
		return fmt.Errorf("read capture %s: %w", name, err)
	}
	defer r.closer()
	var p packet
	for n := 0; ; n++ {
		if n&0xfff == 0 {
			if ctx.Err() != nil {
				break
			}
			order.release(e.oldest)
		}
		if err = r.next(&p); err != nil {
			break
		}
		e.packet(&p)
	}
	if r.drops > 0 {
		e.stats.Notes["capture_drops"] += r.drops
		f.stats.Warnings = append(f.stats.Warnings, fmt.Sprintf("%s: the capture itself dropped %d packets", filepath.Base(name), r.drops))
	}
	if r.skipped > 0 {
		e.stats.Notes["packets_without_time"] += r.skipped
	}
	if err != nil && err != io.EOF {
		e.stats.Notes["damaged_files"]++
		f.stats.Warnings = append(f.stats.Warnings, fmt.Sprintf("%s: %s; kept the %d packets before it", filepath.Base(name), err, r.packets))
	}
	return nil
}

// arrivals puts exchanges, which come in the order of their ends, into the order of their arrivals, within a bounded memory.
type arrivals struct {
	emit func(*formats.Exchange)
	heap exchangeHeap
	size int
}

const maxWaiting = 64 << 20 // bytes of exchanges that wait for older ones

func size(x *formats.Exchange) int { return 700 + 16*len(x.EventGapUS) + 8*len(x.PrefixBlocks) }

func (a *arrivals) add(x *formats.Exchange) {
	heap.Push(&a.heap, x)
	if a.size += size(x); a.size > maxWaiting {
		a.pop()
	}
}

func (a *arrivals) pop() {
	x := heap.Pop(&a.heap).(*formats.Exchange)
	a.size -= size(x)
	a.emit(x)
}

// release emits what no open exchange can precede.
func (a *arrivals) release(oldest *exchange) {
	for len(a.heap) > 0 && (oldest == nil || a.heap[0].ArrivalUnixNS <= oldest.x.ArrivalUnixNS) {
		a.pop()
	}
}

func (a *arrivals) flush() { a.release(nil) }

type exchangeHeap []*formats.Exchange

func (h exchangeHeap) Len() int           { return len(h) }
func (h exchangeHeap) Less(i, j int) bool { return h[i].ArrivalUnixNS < h[j].ArrivalUnixNS }
func (h exchangeHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *exchangeHeap) Push(x any)        { *h = append(*h, x.(*formats.Exchange)) }
func (h *exchangeHeap) Pop() any {
	old := *h
	x := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return x
}
