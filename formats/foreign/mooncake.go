package foreign

import (
	"bytes"
	"encoding/json"
	"errors"

	"github.com/shadowtape/shadowtape/formats"
)

type mooncakeRow struct {
	Timestamp    scalar `json:"timestamp"`
	InputLength  scalar `json:"input_length"`
	OutputLength scalar `json:"output_length"`
	HashIDs      ids    `json:"hash_ids"`
}

// mooncake reads Mooncake's JSON lines: timestamp in milliseconds from the trace's start, input_length, output_length, hash_ids of
// 512-token blocks, a partial tail counting as one.
func mooncake(in *input) (formats.Decoder, error) {
	l := lines{r: in.r}
	rule, known := mooncakeRule(in)
	if known {
		rule.describe(in.header)
	}
	in.header.TimeBase = "relative"
	return func(x *formats.Exchange) error {
		line, err := l.next()
		if errors.Is(err, errLineTooLong) {
			return l.broken(err)
		}
		if err != nil {
			return err
		}
		var row mooncakeRow
		if err := l.object(line, &row); err != nil {
			return err
		}
		if row.Timestamp == "" {
			return l.left("no_time")
		}
		if x.ArrivalUnixNS, err = scaled(string(row.Timestamp), 1e6); err != nil {
			return l.broken(err)
		}
		if err := l.lengths(x, row.InputLength, row.OutputLength); err != nil {
			return err
		}
		if row.HashIDs != nil && !known {
			in.notes["block_size_unknown"]++
			return nil
		}
		rule.set(x, row.HashIDs, in.notes)
		return nil
	}, nil
}

// lengths reads both token counts.
func (l *lines) lengths(x *formats.Exchange, input, output scalar) (err error) {
	if x.InputTokens, err = count(string(input)); err != nil {
		return l.broken(err)
	}
	if x.OutputTokens, err = count(string(output)); err != nil {
		return l.broken(err)
	}
	sourced(x)
	return nil
}

// mooncakeRule finds the block size from the first rows: Mooncake's own 512, or that of the tools that write its format otherwise.
func mooncakeRule(in *input) (blockRule, bool) {
	var samples []sample
	for line := range bytes.Lines(in.peek()) {
		var row mooncakeRow
		if json.Unmarshal(line, &row) != nil || len(row.HashIDs) == 0 {
			continue
		}
		if n, err := count(string(row.InputLength)); err == nil && n.Valid {
			samples = append(samples, sample{n.V, int64(len(row.HashIDs))})
		}
	}
	sizes := []int64{512, 16, 32, 64, 128, 256, 1024, 2048, 8, 4}
	if in.o.BlockSize > 0 {
		sizes = []int64{int64(in.o.BlockSize)}
	}
	return findRule(samples, sizes, "ceil", "floor")
}
