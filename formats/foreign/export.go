package foreign

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/shadowtape/shadowtape/formats"
)

// Target is one foreign format that a trace can be exported to.
type Target struct {
	Name    string
	Summary string           // what reads it, in a line
	Fields  string           // what is written
	Hint    string           // how the tool is told what its file does not say; %d is the size of a block
	columns []formats.Column // that are written; nil is all of them
	open    func(*output) (formats.Encoder, func() error, error)
}

// Targets are the formats that can be written.
func Targets() []Target { return exporters }

// NamedTarget finds one of them.
func NamedTarget(name string) (Target, error) {
	var names []string
	for _, t := range exporters {
		if t.Name == name {
			return t, nil
		}
		names = append(names, t.Name)
	}
	return Target{}, fmt.Errorf("there is no format %q: %s", name, strings.Join(names, ", "))
}

// ExportOptions steer an export.
type ExportOptions struct {
	BlockSize int // tokens of a prefix block where the trace's blocks are not counted in tokens; 0 takes their mean
}

// Validate refuses a negative block size.
func (o ExportOptions) Validate() error {
	if o.BlockSize < 0 {
		return fmt.Errorf("block size %d: below 0", o.BlockSize)
	}
	return nil
}

// Exported accounts for an export: Read == Kept + Dropped.
type Exported struct {
	Report
	BlockSize int // tokens of a block in the file; 0 where it has none
}

// output is a foreign file while it is written.
type output struct {
	w      *bufio.Writer
	t      *formats.Trace
	o      ExportOptions
	notes  map[string]int64
	blocks *blockLists
}

// Export writes a trace in another format. Rows that the format cannot hold are left out and counted.
func Export(ctx context.Context, f Target, t *formats.Trace, w io.Writer, o ExportOptions) (Exported, error) {
	r := Exported{Report: Report{Reasons: map[string]int64{}, Notes: map[string]int64{}}}
	if err := o.Validate(); err != nil {
		return r, err
	}
	out := &output{w: bufio.NewWriterSize(w, 1<<20), t: t, o: o, notes: r.Notes}
	encode, finish, err := f.open(out)
	if err != nil {
		return r, fmt.Errorf("export %s: %w", t.Name, err)
	}
	for x, err := range t.All(f.columns...) {
		if err != nil {
			return r, err
		}
		if r.Read++; r.Read%4096 == 0 && ctx.Err() != nil {
			return r, ctx.Err()
		}
		switch err := encode(x).(type) {
		case nil:
			r.Kept++
		case *formats.RowError:
			r.Dropped++
			r.Reasons[err.Reason]++
			if err.Err != nil && len(r.Warnings) < maxWarnings {
				r.Warnings = append(r.Warnings, fmt.Sprintf("%s, row %d: %v: left out", t.Name, r.Read, err.Err))
			}
		default:
			return r, fmt.Errorf("export %s: %w", t.Name, err)
		}
	}
	if finish != nil {
		if err := finish(); err != nil {
			return r, fmt.Errorf("export %s: %w", t.Name, err)
		}
	}
	if out.blocks != nil {
		r.BlockSize = int(out.blocks.size)
	}
	if err := out.w.Flush(); err != nil {
		return r, fmt.Errorf("export %s: %w", t.Name, err)
	}
	return r, nil
}

// base is what arrivals are counted from: the first of an absolute trace, 0 of a relative one.
func (out *output) base() int64 {
	if out.t.Header.TimeBase == "relative" {
		return 0
	}
	return out.t.Header.StartUnixNS
}

// scheduled leaves out what was never part of the load: a replay's warm-up.
func scheduled(x *formats.Exchange) error {
	if x.Phase == formats.PhaseWarmup {
		return &formats.RowError{Reason: "warmup"}
	}
	return nil
}

// sized leaves out rows without both lengths; a negative one is none.
func sized(x *formats.Exchange) error {
	switch {
	case !x.InputTokens.Valid || x.InputTokens.V < 0:
		return &formats.RowError{Reason: "no_input_length"}
	case !x.OutputTokens.Valid || x.OutputTokens.V < 0:
		return &formats.RowError{Reason: "no_output_length"}
	}
	return scheduled(x)
}

// later is a time some nanoseconds after another. Where no clock reaches, the row is left out.
func later(at, by int64) (int64, error) {
	sum := at + by
	if by >= 0 != (sum >= at) {
		return 0, &formats.RowError{Reason: "time_out_of_range", Err: fmt.Errorf("%d ns after %d ns is no time", by, at)}
	}
	return sum, nil
}

// blockLists turns the trace's blocks into lists as Mooncake writes them: ids from 0 in the order in which they are first seen, and
// exactly ceil(input/size) of them in a row.
type blockLists struct {
	size  int64
	unit  string
	rule  string
	fresh bool // rows without blocks get ids of their own
	ids   map[int64]int64
	next  int64
	notes map[string]int64
}

const mooncakeBlock = 512

// newBlockLists finds the size of a block in tokens. Blocks of bytes, as recordings have them, become blocks of as many tokens as they
// hold on average: which blocks are shared stays exact, how many tokens that is becomes an average.
func newBlockLists(out *output, fresh bool) (*blockLists, error) {
	h := out.t.Header
	b := &blockLists{size: int64(h.PrefixBlockSize), unit: h.PrefixBlockUnit, rule: h.PrefixBlockRule, fresh: fresh, ids: map[int64]int64{}, notes: out.notes}
	switch {
	case out.o.BlockSize > 0 && b.unit == "tokens" && int64(out.o.BlockSize) != b.size:
		return nil, fmt.Errorf("its blocks are of %d tokens and cannot be cut to %d", b.size, out.o.BlockSize)
	case out.o.BlockSize > 0:
		b.size = int64(out.o.BlockSize)
	case b.unit == "bytes" && b.size > 0:
		size, err := tokensPerBlock(out.t, b.size)
		if err != nil {
			return nil, err
		}
		b.size = size
	case b.size <= 0:
		b.size = mooncakeBlock
	}
	out.blocks = b
	return b, nil
}

// tokensPerBlock is the mean number of tokens in a block of bytes, at least 1.
func tokensPerBlock(t *formats.Trace, bytes int64) (int64, error) {
	tokens, blocks := 0.0, 0.0
	for b, err := range t.Scan(formats.ColInputTokens, formats.ColPrefixBlocks, formats.ColPrefixTailTokens) {
		if err != nil {
			return 0, err
		}
		n, known := b.Int64(formats.ColInputTokens)
		tail, tailed := b.Int64(formats.ColPrefixTailTokens)
		offsets, _, listed := b.List(formats.ColPrefixBlocks)
		for i := range b.Rows {
			if known != nil && !known[i] || listed != nil && !listed[i] || n[i] < 0 {
				continue
			}
			tokens += float64(n[i])
			blocks += float64(offsets[i+1] - offsets[i])
			if tailed == nil || tailed[i] {
				blocks += float64(tail[i]) / float64(bytes)
			}
		}
	}
	if blocks == 0 {
		return mooncakeBlock, nil
	}
	return max(1, int64(tokens/blocks+0.5)), nil
}

// maxBlocks is the most ids that are written for one request, 32 million tokens in blocks of 16: no prompt is as long, and a length that is
// wrong must not fill a disk.
const maxBlocks = 2 << 20

// list is x's list, nil where the trace does not say and none may be made up.
func (b *blockLists) list(x *formats.Exchange) ([]int64, error) {
	have := x.PrefixBlocks
	if have == nil && !b.fresh {
		return nil, nil
	}
	if x.InputTokens.V > maxBlocks*b.size {
		return nil, &formats.RowError{Reason: "input_too_long", Err: fmt.Errorf("input_tokens is %d, more than %d blocks of %d", x.InputTokens.V, maxBlocks, b.size)}
	}
	want := int((x.InputTokens.V + b.size - 1) / b.size)
	if len(have) > want {
		b.notes["blocks_cut"]++
		have = have[:want]
	}
	out := make([]int64, 0, want)
	for _, id := range have {
		n, ok := b.ids[id]
		if !ok {
			n = b.next
			b.ids[id] = n
			b.next++
		}
		out = append(out, n)
	}
	if missing := want - len(out); missing > 1 && have != nil {
		b.notes["blocks_made_up"]++
	}
	for len(out) < want { // what no other prompt shares
		out = append(out, b.next)
		b.next++
	}
	return out, nil
}
