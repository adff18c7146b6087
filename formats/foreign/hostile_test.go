package foreign

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shadowtape/shadowtape/formats"
)

// hostile are contents that were made to break a reader.
func hostile() map[string]string {
	deep := strings.Repeat("[", 200_000)
	nested := strings.Repeat(`{"type":"subagent","t":0,"requests":[`, 5_000) + strings.Repeat("]}", 5_000)
	return map[string]string{
		"deep lists":    deep,
		"closed lists":  deep + strings.Repeat("]", 200_000),
		"deep objects":  strings.Repeat(`{"a":`, 200_000),
		"deep agents":   `{"id":"a","block_size":64,"requests":[` + nested + `]}`,
		"deep spans":    `{"resourceSpans":` + deep,
		"deep messages": `{"custom_id":"a","url":"/v1/chat/completions","body":{"messages":` + strings.Repeat("[", 9_000) + strings.Repeat("]", 9_000) + `}}`,
		"deep row":      `{"timestamp":1,"input_length":` + deep + "\n" + `{"timestamp":1,"input_length":5,"output_length":1}`,
		"open quote":    "traceid,starttime\n\"" + strings.Repeat("a\n", 100_000),
		"wide header":   strings.Repeat("timestamp,", 100_000) + "model,request tokens,response tokens\n1,2,3\n",
		"far times":     `{"timestamp":9223372036854775807,"input_length":1,"output_length":1}` + "\n" + `{"timestamp":-1e300,"input_length":1e300,"output_length":9223372036854775807}`,
		"null bytes":    strings.Repeat("\x00", 1<<16),
		"lone BOM":      "\xef\xbb\xbf",
		"no UTF-8":      "{\"\xff\xfe\":\"\xc3\x28\"}\n",
	}
}

// TestHostile: every reader ends on every hostile content, with a clear line or counted rows, and leaves nothing behind.
func TestHostile(t *testing.T) {
	for name, text := range hostile() {
		for _, f := range importers {
			if next, err := openAny(f, newInput(text)); err == nil {
				readAll(t, next, f.Name != "rows")
			} else if strings.ContainsAny(err.Error(), "\n") || len(err.Error()) > 300 {
				t.Errorf("%s, %s: the error is no clear line: %.400q", f.Name, name, err)
			}
		}
		for _, r := range results {
			if next, err := r.open(newInput(text), &formats.Manifest{}); err == nil {
				readAll(t, next, true)
			} else if strings.ContainsAny(err.Error(), "\n") || len(err.Error()) > 300 {
				t.Errorf("%s, %s: the error is no clear line: %.400q", r.Name, name, err)
			}
		}
	}
}

// TestHugeRow: a row over the limit is left out and the rest is read, or, where its end cannot be found, it is the last.
func TestHugeRow(t *testing.T) {
	defer func(n int) { maxLine = n }(maxLine)
	maxLine = 1 << 16
	long := strings.Repeat("x", 2*maxLine)
	for _, c := range []struct {
		format, text string
		kept, broken int64
	}{
		{"mooncake", `{"timestamp":1,"input_length":5,"output_length":1}` + "\n" + `{"timestamp":2,"input_length":5,"output_length":1,"text_input":"` + long + "\"}\n" + `{"timestamp":3,"input_length":5,"output_length":1}`, 2, 1},
		{"azure-llm", "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-12 00:00:00,1,1\n" + long + "\n2024-05-12 00:00:01,1,1\n", 2, 1},
		{"nginx", `10.0.0.1 - - [10/May/2024:02:00:05 +0200] "POST /v1/completions HTTP/1.1" 200 12 "-" "a"` + "\n" + long + "\n", 1, 1},
		{"litellm", `{"call_type":"acompletion","startTime":"2024-05-10T00:00:00Z","prompt_tokens":5}` + "\n" + `{"call_type":"acompletion","startTime":"2024-05-10T00:00:00Z","messages":"` + long + "\"}\n" + `{"call_type":"acompletion","startTime":"2024-05-10T00:00:02Z","prompt_tokens":5}`, 2, 1},
		{"langfuse", "id,traceId,type,startTime\n1,t,GENERATION,2024-05-10T00:00:00Z\n2,t,GENERATION,\"" + long, 1, 1},
		{"langfuse", `[{"id":"1","traceId":"t","type":"GENERATION","startTime":"2024-05-10T00:00:00Z"},{"id":"2","input":"` + long, 1, 1},
	} {
		got := mustImport(t, c.format, Options{}, c.text)
		if got.Kept != c.kept || got.Reasons["broken_row"] != c.broken {
			t.Errorf("%s: %+v", c.format, got.Report)
		}
	}
}

// TestBombs: compressed files that hold next to nothing in a great many bytes are refused.
func TestBombs(t *testing.T) {
	defer func(n int64) { freeBytes = n }(freeBytes)
	freeBytes = 1 << 20
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	zeros := make([]byte, 1<<20)
	for range 16 {
		if _, err := w.Write(zeros); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	r, err := decompressed(bytes.NewReader(b.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	if n, err := io.Copy(io.Discard, r); err == nil || !strings.Contains(err.Error(), "this is no log") || n > 4<<20 {
		t.Errorf("%d bytes, %v", n, err)
	}
	window := "\x28\xb5\x2f\xfd\x00\x90\x09\x00\x00a" // a frame that asks for 256 MiB to hold one byte
	if r, err = decompressed(strings.NewReader(window)); err == nil {
		_, err = io.Copy(io.Discard, r)
	}
	if err == nil {
		t.Error("a window of 256 MiB was taken")
	}
	honest := strings.Repeat(`{"timestamp": 0, "input_length": 10, "output_length": 1}`+"\n", 40_000)
	b.Reset()
	w.Reset(&b)
	io.WriteString(w, honest)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if got := mustImport(t, "mooncake", Options{}, b.String()); got.Kept != 40_000 {
		t.Errorf("a file of equal rows: %+v", got.Report)
	}
}

// TestTraversal: names in files are data, whatever they look like, and reach the disk as nothing else.
func TestTraversal(t *testing.T) {
	outer := t.TempDir()
	dir := filepath.Join(outer, "in")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	evil := "../../../evil"
	for i, c := range []struct{ format, text string }{
		{"litellm", `{"request_id":"` + evil + `","call_type":"acompletion","startTime":"2024-05-10T00:00:00Z","prompt_tokens":5,"model":"` + evil + `","api_base":"file:///` + evil + `","session_id":"` + evil + `"}`},
		{"weka", `{"id":"` + evil + `","block_size":64,"requests":[{"t":0,"type":"s","in":5,"out":1,"model":"` + evil + `"}]}`},
		{"servegen", "0,1,1,Gamma,1,1\n"},
	} {
		f, err := Named(c.format)
		if err != nil {
			t.Fatal(err)
		}
		sources := []Source{{evil + "-trace.csv", strings.NewReader(c.text)}}
		if f.pool != nil {
			sources = append(sources, Source{evil + "-dataset.json", strings.NewReader(`{"0":{"input_tokens":"{5: 1}","output_tokens":"{1: 1}"}}`)})
		}
		if _, err := Import(context.Background(), f, sources, filepath.Join(dir, fmt.Sprint(i)), formats.Header{}, Options{}); err != nil {
			t.Errorf("%s: %v", c.format, err)
		}
	}
	var found []string
	if err := filepath.WalkDir(outer, func(path string, _ os.DirEntry, err error) error {
		if strings.Contains(path, "evil") {
			found = append(found, path)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if es, err := os.ReadDir(outer); err != nil || len(es) != 1 || found != nil {
		t.Errorf("files were made: %v %v", es, found)
	}
}

// TestFarTimes: a time that no clock has shown drops its row, and the rows beside it stay.
func TestFarTimes(t *testing.T) {
	got := mustImport(t, "rows", Options{}, "exchange_id,phase,arrival_unix_ns,end_ns\n1,record,5,7\n2,record,9223372036854775807,1\n3,record,6,9223372036854775807\n4,record,-9223372036854775808,\n")
	if got.Kept != 1 || got.Reasons["broken_row"] != 3 || len(got.Warnings) != 3 {
		t.Errorf("%+v", got.Report)
	}
	got = mustImport(t, "mooncake", Options{}, `{"session_id":"a","timestamp":4000000000000,"input_length":5,"output_length":1}
{"session_id":"a","delay":4000000000000,"input_length":5,"output_length":1}
{"session_id":"a","delay":4000000000000,"input_length":5,"output_length":1}
{"timestamp":1e300,"input_length":5,"output_length":1}
{"timestamp":1,"input_length":5,"output_length":1}`)
	if got.Kept != 2 || got.Reasons["broken_row"] != 3 {
		t.Errorf("%+v", got.Report)
	}
}

// TestImpossibleExports: lengths, times and numbers that cannot be do not keep an export busy, break its syntax or end it.
func TestImpossibleExports(t *testing.T) {
	x := func(edit func(*formats.Exchange)) *formats.Exchange {
		x := &formats.Exchange{Phase: formats.PhaseRecord, ArrivalUnixNS: 1, InputTokens: ns(600), OutputTokens: ns(1), EndNS: ns(5), PrefixBlocks: []int64{1, 2}}
		edit(x)
		return x
	}
	rows := []*formats.Exchange{
		x(func(*formats.Exchange) {}),
		x(func(x *formats.Exchange) { x.InputTokens = ns(1e12) }),
		x(func(x *formats.Exchange) { x.InputTokens = ns(math.MaxInt64) }),
		x(func(x *formats.Exchange) { x.InputTokens = ns(-5) }),
		x(func(x *formats.Exchange) { x.OutputTokens = ns(math.MinInt64) }),
		x(func(x *formats.Exchange) { x.EndNS = ns(math.MaxInt64) }),
		x(func(x *formats.Exchange) { x.Temperature = formats.Of(math.NaN()) }),
		x(func(x *formats.Exchange) { x.Temperature, x.ErrorKind = formats.Of(math.Inf(1)), "NaN" }),
	}
	tr := traceOf(t, formats.Header{TimeBase: "relative", PrefixBlockUnit: "tokens", PrefixBlockSize: 512, PrefixBlockRule: "ceil"}, rows)
	for _, f := range exporters {
		out, r := export(t, f.Name, tr, ExportOptions{})
		if len(out) > 1<<20 {
			t.Errorf("%s writes %d bytes", f.Name, len(out))
		}
		switch f.Name {
		case "mooncake", "vllm-timed-trace", "aiperf":
			if r.Reasons["input_too_long"] != 2 || r.Reasons["no_input_length"] != 1 || r.Reasons["no_output_length"] != 1 || len(r.Warnings) != 2 || !strings.Contains(r.Warnings[0], "row 2: input_tokens is 1000000000000, more than") {
				t.Errorf("%s: %+v", f.Name, r)
			}
		case "jsonl", "otel":
			if r.Kept < 7 {
				t.Errorf("%s: %+v", f.Name, r)
			}
		}
		if f.Name == "csv" {
			continue
		}
		for line := range strings.Lines(out) {
			if f.Name != "inference-perf" && !validJSON(line) {
				t.Errorf("%s writes no JSON: %s", f.Name, line)
			}
		}
	}
}

// TestSessionPrompts: what a session's prompts hold is said by the format, by blocks, or by the one who imports; else it is refused.
func TestSessionPrompts(t *testing.T) {
	row := func(session, at, input string, blocks string) string {
		return `{"session_id":"` + session + `","timestamp":` + at + `,"input_length":` + input + `,"output_length":5` + blocks + "}\n"
	}
	held := row("a", "0", "600", `,"hash_ids":[0,1]`) + row("b", "1", "600", `,"hash_ids":[5,6]`) + row("a", "2", "1200", `,"hash_ids":[0,7,8]`) + row("b", "3", "1300", `,"hash_ids":[5,9,10]`)
	apart := row("a", "0", "600", `,"hash_ids":[0,1]`) + row("a", "2", "600", `,"hash_ids":[2,3]`)
	bare := row("a", "0", "600", "") + row("a", "2", "1200", "")
	single := row("a", "0", "600", "") + row("b", "2", "1200", "")
	for _, c := range []struct{ name, text, flag, want string }{
		{"the later begins with the earlier", held, "", promptsCumulative},
		{"the later begins otherwise", apart, "", promptsPerTurn},
		{"one turn a session", single, "", ""},
		{"said", bare, promptsPerTurn, promptsPerTurn},
		{"said, against the blocks", held, promptsPerTurn, promptsPerTurn},
	} {
		if got := mustImport(t, "mooncake", Options{Prompts: c.flag}, c.text); got.header.Prompts != c.want {
			t.Errorf("%s: %q", c.name, got.header.Prompts)
		}
	}
	_, err := importText(t, "mooncake", Options{}, bare)
	if !errors.Is(err, ErrPromptsUnknown) || !strings.Contains(err.Error(), "1 sessions with 1 later turns") || !strings.Contains(err.Error(), "long enough for it in 100 %") {
		t.Errorf("error %v", err)
	}
	late := row("b", "90", "5", "") + strings.Repeat(row("a", "50", "5", ""), window) + row("a", "2", "600", "") // several sorted runs
	if _, err := importText(t, "mooncake", Options{}, late); !errors.Is(err, ErrPromptsUnknown) {
		t.Errorf("error %v", err)
	}
	if err := (Options{Prompts: "other"}).Validate(); err == nil {
		t.Error("prompts other were taken")
	}
	known := map[string]string{}
	for _, f := range Formats() {
		for _, s := range samplesOf[f.Name] {
			in := newInput(s)
			if next, err := openAny(f, in); err == nil {
				readAll(t, next, false)
				known[f.Name] = in.header.Prompts
			}
		}
	}
	var cumulative []string
	for name, p := range known {
		if p == promptsCumulative {
			cumulative = append(cumulative, name)
		}
	}
	slices.Sort(cumulative)
	if want := []string{"azure-copilot", "bailian", "dynamo", "sharegpt", "tracelab", "weka"}; !slices.Equal(cumulative, want) || known["ragpulse"] != promptsPerTurn {
		t.Errorf("%v", known)
	}
}
