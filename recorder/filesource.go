package recorder

import (
	"cmp"
	"container/heap"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"

	"github.com/shadowtape/shadowtape/formats"
)

// Files is a source of capture files: pcap and pcapng, plain or compressed with gzip or zstd, read together as one capture. Exchanges
// come in the order of their arrival.
type Files struct {
	Names []string
	Key   []byte // of the keyed hashes; without one, identifiers and prefixes stay unknown
	Node  string // what stands in the node column

	Select Selection
	Stdin  io.Reader // what the name "-" means; such a file can only be the only one
	Counting
	Limits

	stats     SourceStats
	piped     *captureReader // of standard input, whose beginning has been looked at
	bytes     atomic.Int64
	exchanges atomic.Int64
}

// Size is the total of the files' sizes in bytes, 0 for standard input; an error names one that cannot be read or is no capture. Of standard
// input it reads the beginning, which Run then goes on from.
func (f *Files) Size() (int64, error) {
	var n int64
	for _, name := range f.Names {
		if name == "-" {
			var err error
			if f.piped, err = f.reader(name, f.Stdin); err != nil {
				return 0, err
			}
			return 0, nil
		}
		i, err := os.Stat(name)
		if err != nil {
			return 0, fmt.Errorf("open capture: %w", err)
		}
		if !i.Mode().IsRegular() {
			return 0, fmt.Errorf("open capture %s: not a file", name)
		}
		c, err := f.open(name, 0)
		if err != nil {
			return 0, err
		}
		c.close()
		n += i.Size()
	}
	return n, nil
}

// Progress is how many bytes of the files have been read, and how many exchanges have been emitted. It may be called while Run runs.
func (f *Files) Progress() (bytes, exchanges int64) { return f.bytes.Load(), f.exchanges.Load() }

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
	if slices.Contains(f.Names, "-") && (len(f.Names) > 1 || f.Stdin == nil) {
		return errors.New("capture files: standard input can only be read alone")
	}
	return errors.Join(f.Select.Validate(), f.Limits.validate())
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
	o := engineOptions{Limits: f.Limits, Node: f.Node, clock: formats.ClockPacket, admit: newAdmission(f.Select), words: f.Tokenizer, keep: f.Bodies}
	o.defaults()
	order := arrivals{emit: func(x *formats.Exchange) { f.exchanges.Add(1); emit(x) }}
	e := newEngine(o, filter.Ports, hasherOf(f.Key), order.add)
	err := f.read(ctx, e, &order)
	e.finish()
	order.flush()
	f.stats = merge(f.stats, e.stats)
	return err
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
	for _, w := range b.Warnings { // several engines may say the same
		if !slices.Contains(a.Warnings, w) {
			a.Warnings = append(a.Warnings, w)
		}
	}
	return a
}

// captureFile is one of the files, with its next packet.
type captureFile struct {
	name    string
	index   int
	first   int64
	file    io.Closer
	reader  *captureReader
	p       packet
	err     error // there are no more packets
	clock   clockGuard
	ended   error // of the reader: packets may still wait
	section int
}

// open opens a file and reads its first packet.
func (f *Files) open(name string, index int) (*captureFile, error) {
	file := io.NopCloser(f.Stdin)
	if name != "-" {
		var err error
		if file, err = os.Open(name); err != nil {
			return nil, fmt.Errorf("open capture: %w", err)
		}
	}
	r, err := f.piped, error(nil)
	if name != "-" || r == nil {
		r, err = f.reader(name, file)
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	c := &captureFile{name: name, index: index, file: file, reader: r}
	c.next()
	c.first = c.p.at
	return c, nil
}

func (f *Files) reader(name string, file io.Reader) (*captureReader, error) {
	r, err := newCaptureReader(counted{file, &f.bytes})
	if err != nil {
		return nil, fmt.Errorf("read capture %s: %w", name, err)
	}
	return r, nil
}

// next reads the next packet whose time is decided on.
func (c *captureFile) next() {
	for {
		if g := &c.clock; len(g.ready) > 0 {
			c.p, g.ready = g.ready[0], g.ready[1:]
			break
		}
		if c.ended != nil {
			c.err = c.ended
			return
		}
		c.ended = c.reader.next(&c.p)
		if c.ended != nil || c.reader.sections != c.section {
			c.clock.end()
			c.clock.known, c.section = false, c.reader.sections // another section, another clock
		}
		if c.ended == nil && c.clock.take(&c.p) {
			break
		}
	}
	c.p.iface += uint32(c.index) << 16
}

func (c *captureFile) close() {
	c.reader.closer()
	c.file.Close()
}

// read reads all files as one capture: in the order of their packets' times, whatever the order in which they are named, so that rotated files
// may be given as the shell sorts them and captures of two interfaces together.
func (f *Files) read(ctx context.Context, e *engine, order *arrivals) error {
	var waiting []*captureFile
	for i, name := range f.Names {
		if name == "-" {
			waiting = append(waiting, &captureFile{name: name})
			break
		}
		c, err := f.open(name, i)
		if err != nil {
			return err
		}
		c.close() // there may be more of them than files may be open
		waiting = append(waiting, c)
	}
	f.bytes.Store(0)
	slices.SortStableFunc(waiting, func(a, b *captureFile) int { return cmp.Compare(a.first, b.first) })
	var active []*captureFile
	defer func() {
		for _, c := range active {
			c.close()
		}
	}()
	for n := 0; ; n++ {
		if n&0xfff == 0 {
			if ctx.Err() != nil {
				return nil
			}
			order.release(e)
		}
		if len(active) == 0 && len(waiting) == 0 {
			return nil
		}
		at := 0
		for i, c := range active {
			if c.p.at < active[at].p.at {
				at = i
			}
		}
		if len(waiting) > 0 && (len(active) == 0 || waiting[0].first < active[at].p.at) {
			c, err := f.open(waiting[0].name, waiting[0].index)
			if err != nil {
				return err
			}
			active, waiting = append(active, c), waiting[1:]
			if c.err != nil {
				f.ended(e, c)
				active = active[:len(active)-1]
			}
			continue
		}
		c := active[at]
		if len(active) > 1 {
			c.p.step = 0 // the others' clock was not set
		}
		e.packet(&c.p)
		if c.next(); c.err != nil {
			f.ended(e, c)
			active = slices.Delete(active, at, at+1)
		}
	}
}

// ended closes a file and says what was wrong with it.
func (f *Files) ended(e *engine, c *captureFile) {
	c.close()
	r, name := c.reader, filepath.Base(c.name)
	if r.drops > 0 {
		e.stats.Notes["capture_drops"] += r.drops
		f.stats.Warnings = append(f.stats.Warnings, fmt.Sprintf("%s: the capture itself dropped %d packets", name, r.drops))
	}
	if n := c.clock.wrong; n > 0 {
		e.stats.Notes["packets_of_wrong_time"] += n
		f.stats.Warnings = append(f.stats.Warnings, fmt.Sprintf("%s: %d packets whose time cannot be: they were given that of the packets before them", name, n))
	}
	if n := c.clock.steps; n > 0 {
		e.stats.Notes["clock_steps"] += n
		f.stats.Warnings = append(f.stats.Warnings, fmt.Sprintf("%s: the clock was set back %d times while it was captured", name, n))
	}
	if r.skipped > 0 {
		e.stats.Notes["packets_without_time"] += r.skipped
	}
	if c.err != io.EOF {
		e.stats.Notes["damaged_files"]++
		f.stats.Warnings = append(f.stats.Warnings, fmt.Sprintf("%s: %s; kept the %d packets before it", name, c.err, r.packets))
	}
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

// settled is how long after its first byte an exchange is known of, nearly always: a request's head may be held back behind lost bytes.
const settled = 15e9

// release emits what no exchange that is open, or not known of yet, can precede.
func (a *arrivals) release(e *engine) {
	until := e.now
	if e.oldest != nil {
		until = min(until, e.oldest.x.ArrivalUnixNS)
	}
	for len(a.heap) > 0 && a.heap[0].ArrivalUnixNS <= until-settled {
		a.pop()
	}
}

func (a *arrivals) flush() {
	for len(a.heap) > 0 {
		a.pop()
	}
}

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
