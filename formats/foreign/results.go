package foreign

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"github.com/shadowtape/shadowtape/formats"
)

// Result is the result file of one other tool.
type Result struct {
	Name     string
	Summary  string   // which tool's, in a line
	Fields   string   // what is read
	Warnings []string // where its words mean something else than ours; they stand in the run
	detect   func(head []byte) bool
	open     func(*input, *formats.Manifest) (formats.Decoder, error)
}

// Results are the results that can be brought in.
func Results() []Result { return results }

// NamedResult finds one of them.
func NamedResult(name string) (Result, error) {
	list := ""
	for _, r := range results {
		if r.Name == name {
			return r, nil
		}
		if list != "" {
			list += ", "
		}
		list += r.Name
	}
	return Result{}, fmt.Errorf("there is no format %q: %s", name, list)
}

// ImportResult brings in another tool's result as a run: a row for each request, what is missing null. m gives the label and what else is
// known; counts, times and warnings are filled in. Where it fails, nothing is left at where.
func ImportResult(ctx context.Context, f Result, src Source, where string, m formats.Manifest, o Options) (Report, error) {
	r := Report{Reasons: map[string]int64{}, Notes: map[string]int64{}}
	plain, err := decompressed(src.R)
	if err != nil {
		return r, fmt.Errorf("import %s: %w", src.Name, err)
	}
	h := formats.Header{}
	in := newReader(src.Name, plain, &h, r.Notes, newHasher(o.HashKey))
	if !f.detect(in.peek()) {
		for _, other := range results {
			if other.detect(in.peek()) {
				return r, fmt.Errorf("import %s: this is no result of %s: it looks like %s", src.Name, f.Name, other.Name)
			}
		}
		return r, fmt.Errorf("import %s: this is no result of %s: it has none of its fields (%s)", src.Name, f.Name, f.Fields)
	}
	m.Schema, m.Kind = 1, "import:"+f.Name
	m.Warnings = append(m.Warnings, f.Warnings...)
	next, err := f.open(in, &m)
	if err != nil {
		return r, fmt.Errorf("import %s: %w", src.Name, err)
	}
	rows, err := readResult(ctx, next, in, &r, o)
	if err != nil {
		return r, fmt.Errorf("import %s: %w", src.Name, err)
	}
	if len(rows) == 0 {
		return r, fmt.Errorf("import %s: it holds no request", src.Name)
	}
	slices.SortStableFunc(rows, func(a, b *formats.Exchange) int { return cmpInt(a.ArrivalUnixNS, b.ArrivalUnixNS) })
	m.StartUnixNS, m.EndUnixNS = rows[0].ArrivalUnixNS, rows[0].ArrivalUnixNS
	m.Errors = map[string]int64{}
	for i, x := range rows {
		x.ExchangeID, x.ArrivalIndex = int64(i+1), formats.Of(int64(i))
		m.EndUnixNS = max(m.EndUnixNS, x.ArrivalUnixNS+x.EndNS.V)
		if x.Phase == formats.PhaseWarmup {
			continue
		}
		x.Phase = formats.PhaseMeasure
		m.Requests.Scheduled, m.Requests.Sent = m.Requests.Scheduled+1, m.Requests.Sent+1
		switch {
		case x.ErrorKind != "":
			m.Requests.Failed++
			m.Errors[x.ErrorKind]++
		case x.EndReason == formats.EndClientAbort:
			m.Requests.Aborted++
		case x.EndReason == formats.EndRunEnd:
			m.Requests.RunEnd++
		default:
			m.Requests.Completed++
		}
	}
	m.Valid = true
	return r, writeResult(where, m, h, rows)
}

func readResult(ctx context.Context, next formats.Decoder, in *input, r *Report, o Options) ([]*formats.Exchange, error) {
	var rows []*formats.Exchange
	for {
		if r.Read%4096 == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		x := &formats.Exchange{}
		err := next(x)
		if err == io.EOF {
			return rows, nil
		}
		if r.Read++; err == nil {
			err = possible(x, in.at(r.Read))
		}
		var bad *formats.RowError
		switch {
		case err == nil:
			r.Kept++
			rows = append(rows, x)
		case errors.As(err, &bad):
			r.Dropped++
			r.Reasons[bad.Reason]++
			if bad.Err != nil && o.Strict {
				return nil, err
			}
			if bad.Err != nil && len(r.Warnings) < maxWarnings {
				r.Warnings = append(r.Warnings, fmt.Sprintf("%s, %v: left out", in.name, err))
			}
		default:
			return nil, err
		}
	}
}

func writeResult(where string, m formats.Manifest, h formats.Header, rows []*formats.Exchange) error {
	w, err := formats.CreateRun(where, m)
	if err != nil {
		return err
	}
	w.SetHeader(h)
	for _, x := range rows {
		if err := w.Write(x); err != nil {
			return errors.Join(err, w.Close(m), formats.Remove(where))
		}
	}
	return w.Close(m)
}

// seconds is a number of seconds as nanoseconds; unknown where it is none, negative or absurd.
func seconds(f float64) formats.Null[int64] {
	if !(f >= 0 && f < 1e9) {
		return formats.Null[int64]{}
	}
	return formats.Of(int64(math.Round(f * 1e9)))
}

// atSeconds is a number of seconds since 1970 as nanoseconds, to the microsecond that a float holds; a time that cannot be is out of range.
func atSeconds(f float64) int64 {
	if !(math.Abs(f) <= farthest/1e9) {
		return math.MaxInt64
	}
	return int64(math.Round(f*1e6)) * 1000
}

// streamed fills the times of a streamed answer from its first token and the gaps after it, in seconds.
func streamed(x *formats.Exchange, ttft float64, gaps []float64) {
	first := seconds(ttft)
	if !first.Valid || ttft == 0 {
		return
	}
	x.FirstTokenNS, x.Stream = first, formats.Of(true)
	last := ttft
	list := []int32{0}
	for _, g := range gaps {
		if !(g >= 0) {
			list = nil
			break
		}
		last += g
		list = append(list, int32(min(math.Round(g*1e6), math.MaxInt32)))
	}
	x.LastTokenNS = seconds(last)
	x.EventGapUS = list
}

// failed gives an error its kind. Texts are other tools' own and are not kept.
func failed(x *formats.Exchange, status formats.Null[int32], timeout bool) {
	x.Status = status
	switch {
	case status.V >= 400:
		x.ErrorKind = fmt.Sprintf("http_%d", status.V)
	case timeout:
		x.ErrorKind, x.EndReason = formats.ErrorTimeout, formats.EndTimeout
	default:
		x.ErrorKind = formats.ErrorUnsaid
	}
}

// when is a date as vllm writes it.
func when(s string) int64 {
	for _, layout := range []string{"20060102-150405", time.RFC3339Nano, "2006-01-02 15:04:05"} {
		if t, err := time.Parse(layout, s); err == nil {
			return t.UnixNano()
		}
	}
	return 0
}
