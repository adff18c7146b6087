package foreign

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shadowtape/shadowtape/formats"
)

func TestMooncake(t *testing.T) {
	text := file(t, "mooncake_conversation_100.jsonl")
	got := mustImport(t, "mooncake", Options{}, text)
	if got.Kept != 100 || got.Dropped != 0 || len(got.Notes) != 0 {
		t.Errorf("%+v", got.Report)
	}
	x := got.rows[0]
	if x.ArrivalUnixNS != 0 || x.InputTokens.V != 6758 || x.OutputTokens.V != 500 || len(x.PrefixBlocks) != 14 || x.PrefixTailTokens != formats.Of(int64(6758-13*512)) {
		t.Errorf("%+v", x)
	}
	h := got.header
	if h.TimeBase != "relative" || h.PrefixBlockUnit != "tokens" || h.PrefixBlockSize != 512 || h.PrefixBlockRule != "ceil" || h.Prompts != "" || h.Licence != "Apache-2.0" {
		t.Errorf("header %+v", h)
	}
	if h.TimeQuantumNS < 2_997e6 || h.TimeQuantumNS > 3_003e6 {
		t.Errorf("time quantum %d ns, the trace's clock ticks every 3 s", h.TimeQuantumNS)
	}
	for _, x := range got.rows {
		if tail := x.PrefixTailTokens.V; tail < 1 || tail > 512 || (x.InputTokens.V-tail)%512 != 0 {
			t.Errorf("exchange %d: %d tokens, tail %d", x.ExchangeID, x.InputTokens.V, tail)
		}
	}
}

// TestGarbageBeforeTheFirstRow: a log that was cut at its head is still a log.
func TestGarbageBeforeTheFirstRow(t *testing.T) {
	row := `{"timestamp": 0, "input_length": 5, "output_length": 5, "hash_ids": [1]}` + "\n"
	for _, garbage := range []string{"ngth\": 5, \"hash_ids\": [1]}\n", "\x00\x00\x00\n", "2024-01-01 started\n\n"} {
		if got := mustImport(t, "mooncake", Options{}, garbage+row+row); got.Kept != 2 || got.Dropped != 1 {
			t.Errorf("%q: kept %d, dropped %d", garbage, got.Kept, got.Dropped)
		}
	}
}

func TestMooncakeTraps(t *testing.T) {
	got := mustImport(t, "mooncake", Options{}, strings.Join([]string{
		`{"timestamp": 0, "input_length": 513, "output_length": 5, "hash_ids": [1, 4294967297]}`,         // ids beyond 32 bits stay apart
		`{"timestamp": 1.5, "input_length": 600, "output_length": 5, "hash_ids": [1, 9007199254740993]}`, // and beyond a float's 53
		`{"timestamp": "2", "input_length": 1024.0, "output_length": -1, "hash_ids": [1, 2]}`,            // a number as a string; 12.0; -1
		`{"timestamp": 3, "input_length": 600, "output_length": 5, "hash_ids": []}`,                      // no list, not no prompt
		`{"input_length": 600, "output_length": 5, "hash_ids": [1, 2]}`,                                  // no time: never 0
		`{"timestamp": 4, "input_length": 600, "output_length": 5, "hash_ids": [1, 2, 3]}`,               // another rule
		`{"timestamp": 5, "input_length": 600, "output_length": 5}`,                                      // no blocks known
		`{"timestamp": 6, "input_length": 600, "outp`,                                                    // cut in half
	}, "\n"))
	if d := cmp.Diff(map[string]int64{"no_time": 1, "broken_row": 1}, got.Reasons); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(map[string]int64{"empty_hash_ids": 1, "block_count_mismatch": 1}, got.Notes); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{"a.txt, row 8: unexpected end of JSON input: left out"}, got.Warnings); d != "" {
		t.Error(d)
	}
	type known struct {
		at, in int64
		blocks []int64
		tail   formats.Null[int64]
	}
	var rows []known
	for _, x := range got.rows {
		rows = append(rows, known{x.ArrivalUnixNS, x.InputTokens.V, x.PrefixBlocks, x.PrefixTailTokens})
	}
	n := func(v int64) formats.Null[int64] { return formats.Of(v) }
	want := []known{
		{0, 513, []int64{1, 4294967297}, n(1)},
		{1_500_000, 600, []int64{1, 9007199254740993}, n(88)},
		{2_000_000, 1024, []int64{1, 2}, n(512)},
		{3_000_000, 600, nil, formats.Null[int64]{}},
		{4_000_000, 600, []int64{1, 2, 3}, formats.Null[int64]{}},
		{5_000_000, 600, nil, formats.Null[int64]{}},
	}
	if d := cmp.Diff(want, rows, cmp.AllowUnexported(known{})); d != "" {
		t.Error(d)
	}
	if got.rows[2].OutputTokens.Valid {
		t.Error("-1 is a count")
	}
}

// TestMooncakeBlockSize: what other tools write in Mooncake's form has other blocks; the size is found from the rows, or given.
func TestMooncakeBlockSize(t *testing.T) {
	text := `{"timestamp": 0, "input_length": 100, "output_length": 5, "hash_ids": [1,2,3,4,5,6,7]}
{"timestamp": 1, "input_length": 33, "output_length": 5, "hash_ids": [1,2,9]}`
	got := mustImport(t, "mooncake", Options{}, text)
	if got.header.PrefixBlockSize != 16 || got.header.PrefixBlockRule != "ceil" || got.rows[0].PrefixTailTokens.V != 4 {
		t.Errorf("header %+v", got.header)
	}
	got = mustImport(t, "mooncake", Options{}, strings.ReplaceAll(text, "[1,2,3,4,5,6,7]", "[1,2,3,4,5,6]"))
	if got.header.PrefixBlockSize != 0 || got.Notes["block_size_unknown"] != 2 || got.rows[0].PrefixBlocks != nil {
		t.Errorf("header %+v, notes %v", got.header, got.Notes)
	}
	got = mustImport(t, "mooncake", Options{BlockSize: 16}, text)
	if got.header.PrefixBlockSize != 16 {
		t.Errorf("header %+v", got.header)
	}
	if _, err := importText(t, "mooncake", Options{BlockSize: -1}, text); err == nil {
		t.Error("a negative block size")
	}
}
