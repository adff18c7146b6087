package foreign

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/shadowtape/shadowtape/formats"
)

// traceOf writes rows as a trace and opens it.
func traceOf(t *testing.T, h formats.Header, rows []*formats.Exchange) *formats.Trace {
	t.Helper()
	where := filepath.Join(t.TempDir(), "t")
	w, err := formats.Create(where, h, formats.SegmentOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range rows {
		if err := w.Write(x); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	tr, err := formats.Open(where)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func export(t *testing.T, format string, tr *formats.Trace, o ExportOptions) (string, Exported) {
	t.Helper()
	f, err := NamedTarget(format)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	r, err := Export(context.Background(), f, tr, &b, o)
	if err != nil {
		t.Fatal(err)
	}
	if r.Read != r.Kept+r.Dropped || r.Read != tr.Rows {
		t.Errorf("%+v of %d rows", r, tr.Rows)
	}
	return b.String(), r
}

// again imports a text, exports it, and imports that.
func again(t *testing.T, from, to, back string, o Options, text string) (first, second imported) {
	t.Helper()
	first = mustImport(t, from, o, text)
	out, r := export(t, to, traceOf(t, first.header, first.rows), ExportOptions{})
	if r.Dropped != 0 {
		t.Errorf("%+v", r)
	}
	return first, mustImport(t, back, o, out)
}

// sameHeader compares what a foreign file can carry of a header.
func sameHeader(t *testing.T, a, b formats.Header) {
	t.Helper()
	for _, h := range []*formats.Header{&a, &b} {
		h.SourceKind, h.Source, h.SourceSHA256, h.HashKeyID, h.Extra = "", "", "", "", nil
	}
	if d := cmp.Diff(a, b); d != "" {
		t.Error(d)
	}
}

func validJSON(line string) bool { return json.Valid([]byte(line)) }

func TestMooncakeRoundTrip(t *testing.T) {
	text := file(t, "mooncake_conversation_100.jsonl")
	first, second := again(t, "mooncake", "mooncake", "mooncake", Options{}, text)
	if !reflect.DeepEqual(first.rows, second.rows) {
		t.Error(cmp.Diff(first.rows, second.rows))
	}
	sameHeader(t, first.header, second.header)
	out, r := export(t, "mooncake", traceOf(t, first.header, first.rows), ExportOptions{})
	if out != text || r.BlockSize != 512 {
		t.Errorf("the export is not the file: %s", cmp.Diff(text, out))
	}
}

func TestAzureRoundTrip(t *testing.T) {
	first, second := again(t, "azure-llm", "inference-perf", "azure-llm", Options{}, file(t, "azure2023_code_200.csv"))
	if !reflect.DeepEqual(first.rows, second.rows) {
		t.Error(cmp.Diff(first.rows, second.rows))
	}
	sameHeader(t, first.header, second.header)
}

func TestSessionsRoundTrip(t *testing.T) {
	first, second := again(t, "mooncake", "aiperf", "mooncake", Options{}, `{"session_id":"a","timestamp":0,"input_length":600,"output_length":5,"hash_ids":[0,1]}
{"session_id":"b","timestamp":0.125,"input_length":600,"output_length":5,"hash_ids":[0,2]}
{"timestamp":2,"input_length":600,"output_length":5}
{"session_id":"a","timestamp":3,"input_length":1200,"output_length":5,"hash_ids":[0,1,3]}`)
	names := map[formats.Hash]formats.Hash{}
	for i, a := range first.rows {
		b := second.rows[i]
		if n, ok := names[a.SessionID.V]; ok && n != b.SessionID.V {
			t.Errorf("row %d has moved to another session", i)
		}
		names[a.SessionID.V] = b.SessionID.V
		a.SessionID.V, b.SessionID.V = formats.Hash{}, formats.Hash{}
	}
	if len(names) != 3 || !reflect.DeepEqual(first.rows, second.rows) {
		t.Error(cmp.Diff(first.rows, second.rows))
	}
}

// TestFloorBlocks: a list without its tail gets one, ids are counted up, and every list has ceil(input/size) of them.
func TestFloorBlocks(t *testing.T) {
	first := mustImport(t, "weka", Options{}, wekaSessions)
	out, r := export(t, "mooncake", traceOf(t, first.header, first.rows), ExportOptions{})
	want := `{"timestamp": 0, "input_length": 130, "output_length": 5, "hash_ids": [0, 1, 2]}
{"timestamp": 2750, "input_length": 64, "output_length": 0, "hash_ids": [3]}
{"timestamp": 4000, "input_length": 10, "output_length": 1, "hash_ids": [4]}
{"timestamp": 5500, "input_length": 70, "output_length": 1, "hash_ids": [3, 5]}
{"timestamp": 9000, "input_length": 100, "output_length": 1, "hash_ids": [0, 6]}
`
	if d := cmp.Diff(want, out); d != "" {
		t.Error(d)
	}
	if r.BlockSize != 64 || r.Reasons["no_input_length"] != 1 {
		t.Errorf("%+v", r)
	}
}

// TestByteBlocks: a recording's blocks are of bytes; they become blocks of tokens of the mean size, sharing what they shared.
func TestByteBlocks(t *testing.T) {
	h := formats.Header{PrefixBlockUnit: "bytes", PrefixBlockSize: 128, PrefixBlockRule: "floor"}
	x := func(at, tokens int64, tail int64, blocks ...int64) *formats.Exchange {
		return &formats.Exchange{Phase: formats.PhaseRecord, ArrivalUnixNS: 1e18 + at, InputTokens: ns(tokens), OutputTokens: ns(1), PrefixBlocks: blocks, PrefixTailTokens: ns(tail)}
	}
	tr := traceOf(t, h, []*formats.Exchange{x(0, 80, 64, -1, -2), x(1, 112, 64, -1, -2, -3), x(2, 60, 0, -7, -8)})
	out, r := export(t, "mooncake", tr, ExportOptions{})
	want := `{"timestamp": 0, "input_length": 80, "output_length": 1, "hash_ids": [0, 1, 2]}
{"timestamp": 0.000001, "input_length": 112, "output_length": 1, "hash_ids": [0, 1, 3, 4]}
{"timestamp": 0.000002, "input_length": 60, "output_length": 1, "hash_ids": [5, 6]}
`
	if d := cmp.Diff(want, out); d != "" || r.BlockSize != 32 { // 252 tokens in 8 blocks
		t.Errorf("block size %d, %s", r.BlockSize, d)
	}
}

func TestTimedTrace(t *testing.T) {
	first := mustImport(t, "azure-llm", Options{}, "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-12 00:00:00+00:00,513,7\n2024-05-12 00:00:01.250+00:00,10,0\n")
	out, r := export(t, "vllm-timed-trace", traceOf(t, first.header, first.rows), ExportOptions{})
	want := `{"timestamp": 0, "input_length": 513, "output_length": 7, "hash_ids": [0, 1]}
{"timestamp": 1.25, "input_length": 10, "output_length": 0, "hash_ids": [2]}
`
	if d := cmp.Diff(want, out); d != "" || r.BlockSize != 512 {
		t.Errorf("an empty list makes an empty prompt there: %s", d)
	}
	out, _ = export(t, "guidellm", traceOf(t, first.header, first.rows), ExportOptions{})
	if !strings.HasPrefix(out, `{"timestamp": 0, "input_length": 513, "output_length": 7}`+"\n") {
		t.Error(out)
	}
}

// TestSecondsRoundTrip: the forms of Mooncake that count in seconds come back, to the nanosecond.
func TestSecondsRoundTrip(t *testing.T) {
	text := file(t, "mooncake_conversation_100.jsonl") + `{"timestamp": 99999.123456, "input_length": 513, "output_length": 1, "hash_ids": [0, 900]}` + "\n"
	first := mustImport(t, "mooncake", Options{}, text)
	out, r := export(t, "vllm-timed-trace", traceOf(t, first.header, first.rows), ExportOptions{})
	second := mustImport(t, "mooncake", Options{TimeUnit: time.Second}, out)
	if r.Dropped != 0 || !reflect.DeepEqual(first.arrivals(), second.arrivals()) || first.arrivals()[100] != 99_999_123_456 {
		t.Errorf("%+v: %v", r, cmp.Diff(first.arrivals(), second.arrivals()))
	}
	for i, a := range first.rows {
		b := second.rows[i]
		if len(a.PrefixBlocks) != len(b.PrefixBlocks) || a.PrefixTailTokens != b.PrefixTailTokens || a.InputTokens != b.InputTokens || a.OutputTokens != b.OutputTokens {
			t.Errorf("row %d: %s", i, cmp.Diff(a, b))
		}
	}
	sameHeader(t, first.header, second.header)
	for _, x := range first.rows {
		x.PrefixBlocks, x.PrefixTailTokens = nil, formats.Null[int64]{}
	}
	out, _ = export(t, "guidellm", traceOf(t, formats.Header{TimeBase: "relative"}, first.rows), ExportOptions{})
	if second = mustImport(t, "mooncake", Options{TimeUnit: time.Second}, out); !reflect.DeepEqual(first.rows, second.rows) {
		t.Error(cmp.Diff(first.rows, second.rows))
	}
}

// TestOwnRoundTrip: csv and jsonl hold every column.
func TestOwnRoundTrip(t *testing.T) {
	r := rand.New(rand.NewPCG(21, 22))
	var rows []*formats.Exchange
	for i := range 300 {
		x := &formats.Exchange{Phase: formats.PhaseMeasure, ArrivalUnixNS: int64(1000 * i), ExchangeID: int64(i + 1)}
		for _, c := range formats.Columns() {
			if _, known := c.Text(x); known || r.IntN(3) == 0 {
				continue
			}
			for _, text := range []string{fmt.Sprint(r.Int32()), fmt.Sprint(r.NormFloat64()), "true", "0123456789abcdef", `a "quoted", long
line`, "[1,2]", "[]", `["x","y,z"]`} {
				y := *x
				if c.Parse(&y, text) == nil && y.Possible() == nil && r.IntN(2) == 0 {
					*x = y
					break
				}
			}
		}
		rows = append(rows, x)
	}
	tr := traceOf(t, formats.Header{}, rows)
	for _, format := range []string{"csv", "jsonl"} {
		out, _ := export(t, format, tr, ExportOptions{})
		got := mustImport(t, "rows", Options{Prompts: promptsPerTurn}, out)
		if !reflect.DeepEqual(rows, got.rows) {
			t.Errorf("%s: %s", format, cmp.Diff(rows, got.rows))
		}
	}
	out, _ := export(t, "jsonl", tr, ExportOptions{})
	var object map[string]any
	if err := json.Unmarshal([]byte(strings.SplitN(out, "\n", 2)[0]), &object); err != nil || len(object) != len(formats.Columns()) {
		t.Errorf("%d keys, %v", len(object), err)
	}
}

func TestOTelRoundTrip(t *testing.T) {
	first, second := again(t, "otel", "otel", "otel", Options{}, `{"resourceSpans":[{"scopeSpans":[{"spans":[
{"spanId":"a","startTimeUnixNano":"1700000000000000000","endTimeUnixNano":"1700000003000000000","attributes":[{"key":"gen_ai.operation.name","value":{"stringValue":"chat"}},{"key":"gen_ai.usage.input_tokens","value":{"intValue":"10"}},{"key":"gen_ai.request.model","value":{"stringValue":"m"}},{"key":"gen_ai.conversation.id","value":{"stringValue":"c1"}},{"key":"gen_ai.response.time_to_first_chunk","value":{"doubleValue":0.123456789}},{"key":"gen_ai.response.finish_reasons","value":{"arrayValue":{"values":[{"stringValue":"stop"}]}}}]},
{"spanId":"b","parentSpanId":"a","startTimeUnixNano":"1700000001000000001","endTimeUnixNano":"1700000002000000001","status":{"code":2},"attributes":[{"key":"gen_ai.operation.name","value":{"stringValue":"text_completion"}},{"key":"gen_ai.usage.output_tokens","value":{"intValue":"3"}},{"key":"http.response.status_code","value":{"intValue":"503"}},{"key":"gen_ai.request.temperature","value":{"doubleValue":0.7}},{"key":"gen_ai.request.stream","value":{"boolValue":true}}]}]}]}]}`)
	for _, rows := range [][]*formats.Exchange{first.rows, second.rows} {
		if !rows[0].SessionID.Valid {
			t.Error("the session is lost")
		}
		rows[0].SessionID.V = formats.Hash{}
	}
	if !reflect.DeepEqual(first.rows, second.rows) {
		t.Error(cmp.Diff(first.rows, second.rows))
	}
}

func TestExportLeavesOut(t *testing.T) {
	tr := traceOf(t, formats.Header{}, []*formats.Exchange{
		{Phase: formats.PhaseWarmup, InputTokens: ns(1), OutputTokens: ns(1)}, {Phase: formats.PhaseMeasure, InputTokens: ns(1)},
		{Phase: formats.PhaseMeasure, OutputTokens: ns(1)}, {Phase: formats.PhaseMeasure, InputTokens: ns(1), OutputTokens: ns(1)},
	})
	_, r := export(t, "mooncake", tr, ExportOptions{})
	if d := cmp.Diff(map[string]int64{"warmup": 1, "no_output_length": 1, "no_input_length": 1}, r.Reasons); d != "" || r.Kept != 1 {
		t.Error(d)
	}
	h := formats.Header{PrefixBlockUnit: "tokens", PrefixBlockSize: 16, PrefixBlockRule: "ceil"}
	f, err := NamedTarget("mooncake")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Export(context.Background(), f, traceOf(t, h, nil), &bytes.Buffer{}, ExportOptions{BlockSize: 512}); err == nil || !strings.Contains(err.Error(), "cannot be cut") {
		t.Errorf("error %v", err)
	}
	if _, err := NamedTarget("nothing"); err == nil {
		t.Error("there is a format nothing")
	}
}
