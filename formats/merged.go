package formats

import (
	"cmp"
	"container/heap"
	"fmt"
	"io"
	"iter"
	"math"
	"slices"
	"strings"
	"sync/atomic"
)

// A place without segments of its own may hold traces below it, up to this many levels down: one of each recorder that writes under it.
const belowLevels = 3

// traces finds the traces below a place, by name. A run among them is an error: runs are compared or merged, not read as one.
func traces(s Store, name string, levels int) ([]*Trace, error) {
	names, err := s.Below()
	if err != nil {
		return nil, err
	}
	var all []*Trace
	for _, n := range names {
		sub, below := s.Sub(n), strings.TrimRight(name, "/")+"/"+n
		t := &Trace{Name: below, store: sub, doubted: new(atomic.Int64)}
		unfinished, err := t.list()
		switch {
		case err != nil:
			return nil, fmt.Errorf("%s: %w", below, err)
		case len(t.segments) > 0 || !unfinished && t.empty():
			if err := t.load(true); err != nil {
				return nil, fmt.Errorf("%s: %w", below, err)
			}
			if t.Manifest != nil {
				return nil, fmt.Errorf("%s is a run, not part of a trace: name runs one by one, or merge the shards of one", below)
			}
			all = append(all, t)
		case !unfinished && levels > 1:
			more, err := traces(sub, below, levels-1)
			if err != nil {
				return nil, err
			}
			all = append(all, more...)
		}
	}
	return all, nil
}

// join makes one trace of those below a place.
func (t *Trace) join(all []*Trace) error {
	if len(all) == 1 {
		one := all[0]
		one.Name = t.Name
		*t = *one
		return nil
	}
	t.traces = all
	first := all[0]
	for _, p := range all {
		if first.Rows == 0 { // what an empty one says is true of no row
			first = p
		}
	}
	h := first.Header
	h.Counters, h.Source = Counters{}, ""
	known := span{}
	for _, p := range all {
		t.Rows += p.Rows
		for _, w := range p.Warnings {
			t.Warnings = append(t.Warnings, p.Name+": "+w)
		}
		p.doubted = t.doubted
		o := p.Header
		h.Counters = h.Counters.plus(o.Counters)
		if o.StartUnixNS != 0 || o.EndUnixNS != 0 {
			known.add(o.StartUnixNS, o.EndUnixNS)
		}
		if p.Rows == 0 {
			continue
		}
		if o.TimeBase != "absolute" {
			return fmt.Errorf("%s counts its times from its own start: it cannot be read as one with the others", p.Name)
		}
		if o.PrefixBlockSize != h.PrefixBlockSize || o.PrefixBlockUnit != h.PrefixBlockUnit || o.PrefixBlockRule != h.PrefixBlockRule || o.Prompts != h.Prompts {
			return fmt.Errorf("%s has other prompts (%s, blocks of %d %s by %s) than %s (%s, %d %s, %s): they cannot be read as one", p.Name, o.Prompts, o.PrefixBlockSize, o.PrefixBlockUnit, o.PrefixBlockRule, first.Name, h.Prompts, h.PrefixBlockSize, h.PrefixBlockUnit, h.PrefixBlockRule)
		}
		h.FormatVersion, h.TimeQuantumNS = max(h.FormatVersion, o.FormatVersion), max(h.TimeQuantumNS, o.TimeQuantumNS)
		// What they do not agree on is unknown of the whole.
		for _, same := range []struct{ whole, part *string }{{&h.HashKeyID, &o.HashKeyID}, {&h.TokenizerID, &o.TokenizerID}, {(*string)(&h.Clock), (*string)(&o.Clock)}, {&h.SourceKind, &o.SourceKind},
			{&h.Licence, &o.Licence}, {&h.ToolVersion, &o.ToolVersion}} {
			if *same.whole != *same.part {
				*same.whole = ""
			}
		}
		if o.SamplingFraction != h.SamplingFraction {
			return fmt.Errorf("%s keeps another share of its traffic (%v) than %s (%v): the load of both is not one", p.Name, o.SamplingFraction, first.Name, h.SamplingFraction)
		}
	}
	h.StartUnixNS, h.EndUnixNS = known.from, known.to
	t.Header = h
	return nil
}

// mergedID is the exchange id in the whole of an exchange of the k-th of n traces: distinct, and the same whatever part is read.
func mergedID(id int64, k, n int) int64 { return (id-1)*int64(n) + int64(k) + 1 }

// cursor is the place in one of the traces that are read as one.
type cursor struct {
	scan  scan
	k     int   // position among the traces
	at    int64 // arrival of the next row; before the first batch a time that no row is before
	batch *Batch
	next  int // row of batch
}

// load reads the next batch. io.EOF: there is none.
func (c *cursor) load() error {
	b, err := c.scan.next()
	if err != nil {
		return err
	}
	c.batch, c.next = b, 0
	c.at = b.vectors[ColArrival].ints[0]
	return nil
}

// cursors are a heap by arrival, then by position.
type cursors []*cursor

func (h cursors) Len() int { return len(h) }
func (h cursors) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(h[i].at, h[j].at), cmp.Compare(h[i].k, h[j].k)) < 0
}
func (h cursors) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *cursors) Push(v any)   { *h = append(*h, v.(*cursor)) }
func (h *cursors) Pop() any {
	o := *h
	v := o[len(o)-1]
	*h = o[:len(o)-1]
	return v
}

// mergedRows is how many rows of each trace are held at once while several are read as one.
const mergedRows = 512

// merge yields the rows of several traces by arrival, each trace in its stored order: the whole is no further out of order than the
// trace that is most so. A trace is opened when the merge comes to its first time and closed after its last row, so that what is held is a
// batch and a page of each column of those that overlap, however long they are.
func (t *Trace) merge(rows int, names []Column, columns []*column) iter.Seq2[*Batch, error] {
	asked := columns
	if !slices.Contains(names, ColArrival) {
		columns = append(slices.Clone(columns), ColArrival.column())
	}
	return func(yield func(*Batch, error) bool) {
		var h cursors
		for k, p := range t.traces {
			c := &cursor{scan: scan{t: p, rows: min(rows, mergedRows), columns: columns}, k: k, at: math.MinInt64}
			if p.Header.StartUnixNS != 0 {
				c.at = p.Header.StartUnixNS
			}
			h = append(h, c)
		}
		all := slices.Clone(h)
		defer func() {
			for _, c := range all {
				c.scan.close()
			}
		}()
		heap.Init(&h)
		out := &Batch{vectors: map[Column]*vector{}}
		for _, c := range asked {
			out.vectors[c.name] = &vector{}
		}
		flush := func() bool {
			if out.Rows == 0 {
				return true
			}
			more := yield(out, nil)
			for _, v := range out.vectors {
				v.reset()
			}
			out.Rows = 0
			return more
		}
		for len(h) > 0 {
			c := h[0]
			if c.batch != nil && c.next < c.batch.Rows {
				n := c.run(h, rows-out.Rows)
				for _, col := range asked {
					out.vectors[col.name].copy(col, c.batch.vectors[col.name], c.next, c.next+n, c.k, len(t.traces))
				}
				out.Rows += n
				if c.next += n; c.next < c.batch.Rows {
					c.at = c.batch.vectors[ColArrival].ints[c.next]
				}
				if out.Rows == rows && !flush() {
					return
				}
			}
			if c.batch == nil || c.next == c.batch.Rows {
				switch err := c.load(); {
				case err == io.EOF:
					c.scan.close()
					heap.Pop(&h)
					continue
				case err != nil:
					yield(nil, fmt.Errorf("read trace %s: %s: %w", t.Name, c.scan.t.Name, err))
					return
				}
			}
			heap.Fix(&h, 0)
		}
		flush()
	}
}

// run is how many rows of the first cursor come before the next of any other, at most limit and at least one.
func (c *cursor) run(h cursors, limit int) int {
	end := min(c.batch.Rows, c.next+limit)
	other, k := int64(math.MaxInt64), math.MaxInt
	for _, i := range []int{1, 2} { // the heap's second is one of these
		if i < len(h) && (h[i].at < other || h[i].at == other && h[i].k < k) {
			other, k = h[i].at, h[i].k
		}
	}
	at := c.batch.vectors[ColArrival].ints
	n := c.next + 1
	for n < end && (at[n] < other || at[n] == other && c.k < k) {
		n++
	}
	return n - c.next
}

// copy appends rows from up to to of another vector of the column; k and n make ids of the whole.
func (v *vector) copy(c *column, o *vector, from, to, k, n int) {
	known := 0
	for _, ok := range o.valid[from:to] {
		if ok {
			known++
		}
	}
	v.unknown += to - from - known
	v.valid = append(v.valid, o.valid[from:to]...)
	switch {
	case c.kind.list():
		if len(v.offsets) == 0 {
			v.offsets = append(v.offsets, 0)
		}
		first, last := o.offsets[from], o.offsets[to]
		shift := v.offsets[len(v.offsets)-1] - first
		for _, at := range o.offsets[from+1 : to+1] {
			v.offsets = append(v.offsets, at+shift)
		}
		if c.kind == kindStringList {
			v.strings = append(v.strings, o.strings[first:last]...)
		} else {
			v.ints = append(v.ints, o.ints[first:last]...)
		}
	case c.kind == kindFloat:
		v.floats = append(v.floats, o.floats[from:to]...)
	case c.kind == kindString:
		v.strings = append(v.strings, o.strings[from:to]...)
	case c.kind == kindHash:
		v.hashes = append(v.hashes, o.hashes[from:to]...)
	case c.name == ColExchangeID || c.name == ColParentID:
		for i, id := range o.ints[from:to] {
			if o.valid[from+i] {
				id = mergedID(id, k, n)
			}
			v.ints = append(v.ints, id)
		}
	default:
		v.ints = append(v.ints, o.ints[from:to]...)
	}
}

// mergeSamples yields the samples of several traces by time.
func mergeSamples[T any](t *Trace, kind string, at func(T) int64) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		type source struct {
			next func() (T, error, bool)
			v    T
		}
		var open []*source
		for _, p := range t.traces {
			next, stop := iter.Pull2(samples(p, kind, at))
			defer stop()
			open = append(open, &source{next: next})
		}
		step := func(s *source) (bool, error) {
			v, err, ok := s.next()
			s.v = v
			return ok, err
		}
		var live []*source
		for _, s := range open {
			ok, err := step(s)
			if err != nil {
				yield(s.v, err)
				return
			}
			if ok {
				live = append(live, s)
			}
		}
		for len(live) > 0 {
			first := 0
			for i := range live {
				if at(live[i].v) < at(live[first].v) {
					first = i
				}
			}
			s := live[first]
			if !yield(s.v, nil) {
				return
			}
			ok, err := step(s)
			if err != nil {
				yield(s.v, err)
				return
			}
			if !ok {
				live = slices.Delete(live, first, first+1)
			}
		}
	}
}
