package foreign

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"

	"github.com/parquet-go/parquet-go"

	"github.com/shadowtape/shadowtape/formats"
)

// basetenRow is what is read of Baseten's export; prompt and output texts are not.
type basetenRow struct {
	Start     *float64 `parquet:"timestamp_start_unix_ms,optional"`
	Input     *int64   `parquet:"input_tokens,optional"`
	Output    *int64   `parquet:"output_tokens,optional"`
	Session   *string  `parquet:"provided_session_id,optional"`
	Guessed   *string  `parquet:"poor_man_session_id,optional"`
	BlockSize *int64   `parquet:"block_size,optional"`
	Canceled  *bool    `parquet:"request_canceled,optional"`
	E2E       *float64 `parquet:"duration_e2e_ms,optional"`
	TTFT      *float64 `parquet:"duration_ttft_ms,optional"`
	Hashes    []int64  `parquet:"total_hashes,list"`
}

// baseten reads Baseten's Parquet export. A canceled request is a client's abort: its output is what it had got by then, 0 included.
func baseten(in *input) (decoder formats.Decoder, err error) {
	defer damaged(&err)
	f, err := os.CreateTemp("", "shadowtape-import-*.parquet") // Parquet is read from its end
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	size, err := io.Copy(f, in.r)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	p, err := parquet.OpenFile(f, size)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	for _, c := range []string{"timestamp_start_unix_ms", "input_tokens", "output_tokens"} {
		if p.Root().Column(c) == nil {
			return nil, errors.Join(fmt.Errorf("it has no column %s", c), f.Close())
		}
	}
	in.header.TimeBase = "absolute"
	in.closers = append(in.closers, f)
	session := func(r *basetenRow) string {
		if r.Session != nil {
			return *r.Session
		}
		if r.Guessed != nil {
			return *r.Guessed
		}
		return ""
	}
	r := parquet.NewGenericReader[basetenRow](p)
	rows := make([]basetenRow, 256)
	at, n, row := 0, 0, int64(0)
	var rule blockRule
	return func(x *formats.Exchange) (err error) {
		defer damaged(&err)
		if at == n {
			clear(rows)
			if n, err = r.Read(rows); n == 0 {
				if err == nil {
					err = io.ErrNoProgress
				}
				return err
			}
			at = 0
		}
		b := &rows[at]
		at, row = at+1, row+1
		if b.Start == nil {
			return &formats.RowError{Row: row, Reason: "no_time"}
		}
		if !(math.Abs(*b.Start) <= farthest/1e6) {
			return &formats.RowError{Row: row, Reason: "broken_row", Err: fmt.Errorf("timestamp_start_unix_ms: %g is no time", *b.Start)}
		}
		x.ArrivalUnixNS = int64(*b.Start) * 1e6
		x.ArrivalUnixNS += int64((*b.Start - float64(int64(*b.Start))) * 1e6)
		x.Endpoint = formats.EndpointCompletions
		x.InputTokens, x.OutputTokens = counted(b.Input), counted(b.Output)
		sourced(x)
		x.SessionID = in.hash.of("session", session(b))
		x.FirstTokenNS, x.EndNS = milliseconds(b.TTFT), milliseconds(b.E2E)
		switch {
		case b.Canceled != nil && *b.Canceled:
			x.EndReason = formats.EndClientAbort
		case b.E2E != nil:
			x.EndReason = formats.EndComplete
		}
		if b.BlockSize != nil && *b.BlockSize > 0 && len(b.Hashes) > 0 {
			if rule.size == 0 {
				rule, _ = findRule([]sample{{x.InputTokens.V, int64(len(b.Hashes))}}, []int64{*b.BlockSize}, "floor", "ceil")
				if rule.size != 0 {
					rule.describe(in.header)
				}
			}
			if rule.size == *b.BlockSize {
				rule.set(x, slices.Clone(b.Hashes), in.notes)
			} else {
				in.notes["block_count_mismatch"]++
			}
		}
		return nil
	}, nil
}

func counted(n *int64) formats.Null[int64] {
	if n == nil || *n < 0 {
		return formats.Null[int64]{}
	}
	return formats.Of(*n)
}

func milliseconds(f *float64) formats.Null[int64] {
	if f == nil || !(*f >= 0 && *f < 1e12) {
		return formats.Null[int64]{}
	}
	return formats.Of(int64(*f * 1e6))
}

// damaged turns a panic of the Parquet library on damaged bytes into an error.
func damaged(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("damaged: %v", p)
	}
}
