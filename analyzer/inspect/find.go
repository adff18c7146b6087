package inspect

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"io"
	"reflect"

	"github.com/shadowtape/shadowtape/analyzer"
	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/figure"
)

// Found is an exchange as its columns: what is known of it, in stored order, and its metrics.
type Found struct {
	Columns []FoundColumn `json:"columns"`
	Metrics []FoundColumn `json:"metrics"` // in milliseconds
}

// FoundColumn is one known value of an exchange.
type FoundColumn struct {
	Name  string `json:"name"`
	Value any    `json:"value"`
}

// Find looks for exchanges by the keyed hash of their x-request-id. It reads the whole trace: ids are not sorted.
func Find(r *analyzer.Run, correlation formats.Hash) ([]Found, error) {
	var ids []int64
	for x, err := range r.Exchanges(formats.ColExchangeID, formats.ColCorrelationID) {
		if err != nil {
			return nil, fmt.Errorf("inspect %s: %w", r.Name, err)
		}
		if x.CorrelationID.Valid && x.CorrelationID.V == correlation {
			ids = append(ids, x.ExchangeID)
		}
	}
	found := []Found{}
	if len(ids) == 0 {
		return found, nil
	}
	for x, err := range r.Exchanges() {
		if err != nil {
			return nil, fmt.Errorf("inspect %s: %w", r.Name, err)
		}
		if x.CorrelationID.Valid && x.CorrelationID.V == correlation {
			found = append(found, describe(x))
		}
	}
	return found, nil
}

func describe(x *formats.Exchange) (f Found) {
	v := reflect.ValueOf(x).Elem()
	for i := range v.NumField() {
		name, at := snake(v.Type().Field(i).Name), v.Field(i)
		switch field := at.Interface().(type) {
		case formats.Null[formats.Hash]:
			if field.Valid {
				f.Columns = append(f.Columns, FoundColumn{name, hex.EncodeToString(field.V[:])})
			}
			continue
		}
		switch at.Kind() {
		case reflect.Struct: // a analyzer.Null
			if at.Field(1).Bool() {
				f.Columns = append(f.Columns, FoundColumn{name, at.Field(0).Interface()})
			}
		case reflect.Slice:
			if at.Len() > 0 {
				f.Columns = append(f.Columns, FoundColumn{name, at.Interface()})
			}
		default:
			if !at.IsZero() {
				f.Columns = append(f.Columns, FoundColumn{name, at.Interface()})
			}
		}
	}
	for _, m := range analyzer.Metrics() {
		if m.PerRequest {
			m.Samples(x, func(v, _ float64) { f.Metrics = append(f.Metrics, FoundColumn{m.Name, v}) })
		}
	}
	return f
}

// Text writes a column a line; lists are cut at the width of a terminal.
func (f Found) Text(w io.Writer) error {
	b := bufio.NewWriter(w)
	for _, c := range f.Columns {
		fmt.Fprintln(b, figure.Clip(fmt.Sprintf("%-24s %v", c.Name, c.Value), figure.Width))
	}
	for _, m := range f.Metrics {
		fmt.Fprintln(b, figure.Clip(fmt.Sprintf("%-24s %s ms", m.Name, figure.Number(m.Value.(float64))), figure.Width))
	}
	return b.Flush()
}
