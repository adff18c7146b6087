package analyzer

import (
	"errors"
	"runtime"
	"sync"

	"github.com/shadowtape/shadowtape/formats"
)

// each reads some columns of every row, in parallel over parts of the trace where it has several row groups. sink is called once for
// each worker, before any row, and the function it returns gets that worker's rows in stored order; a row is valid until it returns.
func (r *Run) each(columns []formats.Column, workers int, sink func(worker int) func(*formats.Exchange)) error {
	if r.trace == nil {
		add := sink(0)
		for _, x := range r.rows {
			add(x)
		}
		return nil
	}
	parts := r.trace.Split(workers)
	errs := make([]error, len(parts))
	sinks := make([]func(*formats.Exchange), len(parts))
	for i := range parts {
		sinks[i] = sink(i)
	}
	var wg sync.WaitGroup
	for i, part := range parts {
		wg.Go(func() {
			rows := newRows(columns)
			for b, err := range part.Scan(columns...) {
				if err != nil {
					errs[i] = r.readError(err)
					return
				}
				rows.each(b, sinks[i])
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// workers is how many parts are read at once.
func workers() int { return min(runtime.GOMAXPROCS(0), 8) }

// rows turns batches of columns into exchanges, one reused.
type rows struct {
	x     formats.Exchange
	fills []func(b *formats.Batch) func(i int) // by column: takes a batch's values, and then sets a row's
}

func newRows(columns []formats.Column) *rows {
	r := &rows{}
	for _, c := range columns {
		r.fills = append(r.fills, r.fill(c))
	}
	return r
}

func (r *rows) each(b *formats.Batch, add func(*formats.Exchange)) {
	set := make([]func(int), len(r.fills))
	for j, f := range r.fills {
		set[j] = f(b)
	}
	for i := range b.Rows {
		for _, s := range set {
			s(i)
		}
		add(&r.x)
	}
}

// fill makes the setter of a column. A column that is not listed here cannot be scanned; it is a mistake in the program.
func (r *rows) fill(c formats.Column) func(*formats.Batch) func(int) {
	x := &r.x
	switch c {
	case formats.ColArrival:
		return func(b *formats.Batch) func(int) {
			v, _ := b.Int64(c)
			return func(i int) { x.ArrivalUnixNS = v[i] }
		}
	case formats.ColExchangeID:
		return func(b *formats.Batch) func(int) {
			v, _ := b.Int64(c)
			return func(i int) { x.ExchangeID = v[i] }
		}
	}
	if at := r.text(c); at != nil {
		return func(b *formats.Batch) func(int) {
			v := b.String(c)
			return func(i int) { at(v[i]) }
		}
	}
	if at := r.long(c); at != nil {
		return func(b *formats.Batch) func(int) {
			v, valid := b.Int64(c)
			if valid == nil {
				return func(i int) { *at = formats.Null[int64]{V: v[i], Valid: true} }
			}
			return func(i int) { *at = formats.Null[int64]{V: v[i], Valid: valid[i]} }
		}
	}
	if at := r.short(c); at != nil {
		return func(b *formats.Batch) func(int) {
			v, valid := b.Int64(c)
			return func(i int) { *at = formats.Null[int32]{V: int32(v[i]), Valid: valid == nil || valid[i]} }
		}
	}
	if at := r.hash(c); at != nil {
		return func(b *formats.Batch) func(int) {
			v, valid := b.Hash(c)
			return func(i int) { *at = formats.Null[formats.Hash]{V: v[i], Valid: valid == nil || valid[i]} }
		}
	}
	if at := r.ints(c); at != nil {
		return func(b *formats.Batch) func(int) {
			offsets, v, valid := b.List(c)
			return func(i int) {
				if *at = (*at)[:0]; valid != nil && !valid[i] {
					*at = nil
					return
				}
				for _, n := range v[offsets[i]:offsets[i+1]] {
					*at = append(*at, int32(n))
				}
			}
		}
	}
	var at *[]int64
	switch c {
	case formats.ColStream:
		return func(b *formats.Batch) func(int) {
			v, valid := b.Int64(c)
			return func(i int) { x.Stream = formats.Null[bool]{V: v[i] != 0, Valid: valid == nil || valid[i]} }
		}
	case formats.ColChoiceOutputTokens:
		at = &x.ChoiceOutputTokens
	case formats.ColPrefixBlocks:
		at = &x.PrefixBlocks
	default:
		panic("analyzer: column " + string(c) + " cannot be scanned")
	}
	return func(b *formats.Batch) func(int) {
		offsets, v, valid := b.List(c)
		return func(i int) {
			*at = v[offsets[i]:offsets[i+1]:offsets[i+1]]
			if valid != nil && !valid[i] {
				*at = nil
			} else if *at == nil {
				*at = []int64{}
			}
		}
	}
}

func (r *rows) text(c formats.Column) func(string) {
	x := &r.x
	switch c {
	case formats.ColPhase:
		return func(s string) { x.Phase = formats.Phase(s) }
	case formats.ColEndpoint:
		return func(s string) { x.Endpoint = formats.Endpoint(s) }
	case formats.ColInputTokensSource:
		return func(s string) { x.InputTokensSource = formats.TokenSource(s) }
	case formats.ColOutputTokensSource:
		return func(s string) { x.OutputTokensSource = formats.TokenSource(s) }
	case formats.ColEndReason:
		return func(s string) { x.EndReason = formats.EndReason(s) }
	}
	at := map[formats.Column]*string{
		formats.ColErrorKind: &x.ErrorKind, formats.ColRequestModel: &x.RequestModel, formats.ColResponseModel: &x.ResponseModel,
		formats.ColServerID: &x.ServerID, formats.ColNode: &x.Node, formats.ColFinishReason: &x.FinishReason, formats.ColServiceTier: &x.ServiceTier,
		formats.ColReasoningEffort: &x.ReasoningEffort, formats.ColResponseFormat: &x.ResponseFormat,
	}[c]
	if at == nil {
		return nil
	}
	return func(s string) { *at = s }
}

func (r *rows) long(c formats.Column) *formats.Null[int64] {
	x := &r.x
	return map[formats.Column]*formats.Null[int64]{
		formats.ColSourceID: &x.SourceID, formats.ColArrivalIndex: &x.ArrivalIndex, formats.ColSent: &x.SentNS, formats.ColFirstEvent: &x.FirstEventNS,
		formats.ColFirstToken: &x.FirstTokenNS, formats.ColFirstContent: &x.FirstContentNS, formats.ColLastToken: &x.LastTokenNS, formats.ColEnd: &x.EndNS,
		formats.ColClientDelay: &x.ClientDelayUS, formats.ColInputTokens: &x.InputTokens, formats.ColOutputTokens: &x.OutputTokens,
		formats.ColCachedTokens: &x.CachedTokens, formats.ColPrefixTailTokens: &x.PrefixTailTokens, formats.ColMaxTokens: &x.MaxTokens,
		formats.ColResponseHeader: &x.ResponseHeaderNS, formats.ColConnect: &x.ConnectNS,
	}[c]
}

func (r *rows) short(c formats.Column) *formats.Null[int32] {
	x := &r.x
	return map[formats.Column]*formats.Null[int32]{
		formats.ColN: &x.N, formats.ColStatus: &x.Status, formats.ColLoop: &x.Loop, formats.ColTurn: &x.Turn, formats.ColAttempt: &x.Attempt, formats.ColPriority: &x.Priority,
	}[c]
}

func (r *rows) hash(c formats.Column) *formats.Null[formats.Hash] {
	x := &r.x
	return map[formats.Column]*formats.Null[formats.Hash]{
		formats.ColSessionID: &x.SessionID, formats.ColTenantID: &x.TenantID, formats.ColCorrelationID: &x.CorrelationID,
	}[c]
}

func (r *rows) ints(c formats.Column) *[]int32 {
	x := &r.x
	return map[formats.Column]*[]int32{
		formats.ColEventGap: &x.EventGapUS, formats.ColEventTokens: &x.EventTokens, formats.ColEventChoice: &x.EventChoice, formats.ColEventFlags: &x.EventFlags,
	}[c]
}
