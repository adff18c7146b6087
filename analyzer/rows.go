package analyzer

import (
	"bufio"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"strconv"

	"github.com/shadowtape/shadowtape/formats"
)

// rowColumns are what a request's line says beside its metrics.
var rowColumns = []struct {
	name string
	of   func(*formats.Exchange) any // nil is unknown
}{
	{"exchange_id", func(x *formats.Exchange) any { return x.ExchangeID }},
	{"source_id", func(x *formats.Exchange) any { return orNil(x.SourceID) }},
	{"arrival_index", func(x *formats.Exchange) any { return orNil(x.ArrivalIndex) }},
	{"phase", func(x *formats.Exchange) any { return text(string(x.Phase)) }},
	{"arrival_unix_ns", func(x *formats.Exchange) any { return x.ArrivalUnixNS }},
	{"endpoint", func(x *formats.Exchange) any { return text(string(x.Endpoint)) }},
	{"request_model", func(x *formats.Exchange) any { return text(x.RequestModel) }},
	{"status", func(x *formats.Exchange) any { return orNil(x.Status) }},
	{"end_reason", func(x *formats.Exchange) any { return text(string(x.EndReason)) }},
	{"error_kind", func(x *formats.Exchange) any { return text(x.ErrorKind) }},
	{"input_tokens", func(x *formats.Exchange) any { return orNil(x.InputTokens) }},
	{"output_tokens", func(x *formats.Exchange) any { return orNil(x.OutputTokens) }},
}

func orNil[T any](v formats.Null[T]) any {
	if !v.Valid {
		return nil
	}
	return v.V
}

func text(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// perRequest are the metrics that have one sample a request at most.
func perRequest() (names []string, of []Metric) {
	for _, m := range metrics {
		if m.PerRequest {
			names, of = append(names, m.Name+"_ms"), append(of, m)
		}
	}
	return names, of
}

// rowsOf visits every exchange of a run, warm-up included, as one line: names in order and their values, nil where unknown. With several
// choices a metric is their mean.
func rowsOf(r *Run, visit func(names []string, values []any) error) error {
	names := make([]string, 0, 32)
	for _, c := range rowColumns {
		names = append(names, c.name)
	}
	more, ms := perRequest()
	names = append(names, more...)
	values := make([]any, len(names))
	for x, err := range r.Exchanges() {
		if err != nil {
			return r.readError(err)
		}
		for i, c := range rowColumns {
			values[i] = c.of(x)
		}
		for i, m := range ms {
			var sum, n float64
			m.Samples(x, func(v, w float64) { sum, n = sum+v*w, n+w })
			values[len(rowColumns)+i] = nil
			if n > 0 {
				values[len(rowColumns)+i] = sum / n
			}
		}
		if err := visit(names, values); err != nil {
			return err
		}
	}
	return nil
}

// CSV writes a line for each exchange of a run, with its metrics in milliseconds; an unknown field is empty.
func CSV(w io.Writer, r *Run) error {
	c := csv.NewWriter(w)
	header := false
	err := rowsOf(r, func(names []string, values []any) error {
		if !header {
			header = true
			if err := c.Write(names); err != nil {
				return err
			}
		}
		fields := make([]string, len(values))
		for i, v := range values {
			switch v := v.(type) {
			case nil:
			case float64:
				fields[i] = strconv.FormatFloat(v, 'f', -1, 64)
			default:
				fields[i] = fmt.Sprint(v)
			}
		}
		return c.Write(fields)
	})
	c.Flush()
	if err == nil {
		err = c.Error()
	}
	return err
}

// JSONL writes an object for each exchange of a run, with its metrics in milliseconds; unknown is null.
func JSONL(w io.Writer, r *Run) error {
	b := bufio.NewWriter(w)
	err := rowsOf(r, func(names []string, values []any) error {
		for i, name := range names {
			v, err := json.Marshal(values[i])
			if err != nil {
				return err
			}
			sep := byte(',')
			if i == 0 {
				sep = '{'
			}
			b.WriteByte(sep)
			fmt.Fprintf(b, "%q:", name)
			b.Write(v)
		}
		_, err := b.WriteString("}\n")
		return err
	})
	if err != nil {
		return err
	}
	return b.Flush()
}
