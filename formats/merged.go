package formats

import (
	"cmp"
	"fmt"
	"io"
	"iter"
	"math"
	"slices"
	"strings"
	"sync"
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
	found, errs := make([][]*Trace, len(names)), make([]error, len(names))
	var wg sync.WaitGroup
	turn := make(chan struct{}, tracesAhead)
	for i, n := range names { // several at once: in object storage each costs round trips
		turn <- struct{}{}
		wg.Go(func() {
			found[i], errs[i] = tracesAt(s.Sub(n), strings.TrimRight(name, "/")+"/"+n, levels)
			<-turn
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return slices.Concat(found...), nil
}

// tracesAhead is how many of the places below one are looked at at once.
const tracesAhead = 8

// tracesAt is the trace at a place, or those below it.
func tracesAt(s Store, name string, levels int) ([]*Trace, error) {
	t := &Trace{Name: name, store: s, doubted: new(atomic.Int64)}
	unfinished, err := t.list()
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", name, err)
	case len(t.segments) > 0 || !unfinished && t.empty():
		if err := t.load(true); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if t.Manifest != nil {
			return nil, fmt.Errorf("%s is a run, not part of a trace: name runs one by one, or merge the shards of one", name)
		}
		return []*Trace{t}, nil
	case !unfinished && levels > 1:
		return traces(s, name, levels-1)
	}
	return nil, nil
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
	next  int       // row of batch
	taken []*vector // of batch, those of the columns that are asked for
}

// stretch is rows of a cursor's batch that follow one another in the whole.
type stretch struct {
	*cursor
	from, to int
}

// load reads the next batch. io.EOF: there is none.
func (c *cursor) load(asked []*column) error {
	b, err := c.scan.next()
	if err != nil {
		return err
	}
	c.batch, c.next, c.taken = b, 0, c.taken[:0]
	for _, column := range asked {
		c.taken = append(c.taken, b.vectors[column.name])
	}
	c.at = b.vectors[ColArrival].ints[0]
	return nil
}

// cursors are a heap by arrival, then by position.
type cursors []*cursor

func (c *cursor) before(o *cursor) bool { return c.at < o.at || c.at == o.at && c.k < o.k }

// fix puts the first, which may have moved, into its place.
func (h cursors) fix() {
	for i := 0; ; {
		j := 2*i + 1
		if j >= len(h) {
			return
		}
		if j+1 < len(h) && h[j+1].before(h[j]) {
			j++
		}
		if !h[j].before(h[i]) {
			return
		}
		h[i], h[j] = h[j], h[i]
		i = j
	}
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
		slices.SortFunc(h, func(a, b *cursor) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.k, b.k)) }) // a heap, too
		out := &Batch{vectors: map[Column]*vector{}}
		var whole []*vector
		for _, c := range asked {
			v := &vector{}
			out.vectors[c.name], whole = v, append(whole, v)
		}
		var waiting []stretch // of batches that stand, not copied yet: column by column costs less than row by row
		copied := func() {
			for i, c := range asked {
				whole[i].gather(c, waiting, i, len(t.traces))
			}
			waiting = waiting[:0]
		}
		flush := func() bool {
			copied()
			if out.Rows == 0 {
				return true
			}
			more := yield(out, nil)
			for _, v := range whole {
				v.reset()
			}
			out.Rows = 0
			return more
		}
		for len(h) > 0 {
			c := h[0]
			if c.batch != nil && c.next < c.batch.Rows {
				n := c.run(h, rows-out.Rows)
				waiting = append(waiting, stretch{c, c.next, c.next + n})
				out.Rows += n
				if c.next += n; c.next < c.batch.Rows {
					c.at = c.batch.vectors[ColArrival].ints[c.next]
				}
				if out.Rows == rows && !flush() {
					return
				}
			}
			if c.batch == nil || c.next == c.batch.Rows {
				copied()
				switch err := c.load(asked); {
				case err == io.EOF:
					c.scan.close()
					h[0] = h[len(h)-1]
					h = h[:len(h)-1]
				case err != nil:
					yield(nil, fmt.Errorf("read trace %s: %s: %w", t.Name, c.scan.t.Name, err))
					return
				}
			}
			h.fix()
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

// gather appends stretches of rows of the i-th column taken; n traces make ids of the whole.
func (v *vector) gather(c *column, rows []stretch, i, n int) {
	for _, s := range rows {
		o := s.taken[i]
		if v.valid = append(v.valid, o.valid[s.from:s.to]...); o.unknown == 0 {
			continue
		}
		for _, known := range o.valid[s.from:s.to] {
			if !known {
				v.unknown++
			}
		}
	}
	switch {
	case c.kind.list():
		for _, s := range rows {
			v.appendLists(c, s.taken[i], s.from, s.to)
		}
	case c.kind == kindFloat:
		for _, s := range rows {
			v.floats = append(v.floats, s.taken[i].floats[s.from:s.to]...)
		}
	case c.kind == kindString:
		for _, s := range rows {
			v.strings = append(v.strings, s.taken[i].strings[s.from:s.to]...)
		}
	case c.kind == kindHash:
		for _, s := range rows {
			v.hashes = append(v.hashes, s.taken[i].hashes[s.from:s.to]...)
		}
	case c.name == ColExchangeID || c.name == ColParentID:
		for _, s := range rows {
			o := s.taken[i]
			for at := s.from; at < s.to; at++ {
				id := o.ints[at]
				if o.valid[at] {
					id = mergedID(id, s.k, n)
				}
				v.ints = append(v.ints, id)
			}
		}
	default:
		for _, s := range rows {
			v.ints = append(v.ints, s.taken[i].ints[s.from:s.to]...)
		}
	}
}

// appendLists appends rows from up to to of another vector of lists.
func (v *vector) appendLists(c *column, o *vector, from, to int) {
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
