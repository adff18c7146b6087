package foreign

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"

	"github.com/shadowtape/shadowtape/formats"
)

// imported is what an import left behind.
type imported struct {
	Report
	rows   []*formats.Exchange
	header formats.Header
}

// arrivals are the rows' arrival times.
func (i imported) arrivals() (at []int64) {
	for _, x := range i.rows {
		at = append(at, x.ArrivalUnixNS)
	}
	return at
}

func importText(t *testing.T, format string, o Options, texts ...string) (imported, error) {
	t.Helper()
	f, err := Named(format)
	if err != nil {
		t.Fatal(err)
	}
	var sources []Source
	for i, s := range texts {
		sources = append(sources, Source{Name: string(rune('a'+i)) + ".txt", R: strings.NewReader(s)})
	}
	dir := t.TempDir()
	where := filepath.Join(dir, "t")
	r, err := Import(context.Background(), f, sources, where, formats.Header{ToolVersion: "test"}, o)
	if err != nil {
		if es, _ := os.ReadDir(dir); len(es) != 0 {
			t.Errorf("a failed import left %v behind", es)
		}
		return imported{Report: r}, err
	}
	if es, _ := os.ReadDir(dir); len(es) != 1 {
		t.Errorf("scratch files were left behind: %v", es)
	}
	if r.Read != r.Kept+r.Dropped {
		t.Errorf("read %d, kept %d, dropped %d", r.Read, r.Kept, r.Dropped)
	}
	sum := int64(0)
	for _, n := range r.Reasons {
		sum += n
	}
	if sum != r.Dropped {
		t.Errorf("reasons %v for %d dropped rows", r.Reasons, r.Dropped)
	}
	tr, err := formats.Open(where)
	if err != nil {
		t.Fatal(err)
	}
	got := imported{Report: r, header: tr.Header}
	for x, err := range tr.All() {
		if err != nil {
			t.Fatal(err)
		}
		got.rows = append(got.rows, x)
	}
	if c := tr.Header.Counters; c.Seen != c.Filtered+c.Dropped+c.Written || c.Written != int64(len(got.rows)) || c.Written != r.Kept {
		t.Errorf("counters %+v, report %+v, %d rows", c, r, len(got.rows))
	}
	for i := range got.rows[min(1, len(got.rows)):] {
		if got.rows[i].ArrivalUnixNS > got.rows[i+1].ArrivalUnixNS {
			t.Fatalf("row %d comes before row %d", i+1, i)
		}
	}
	return got, nil
}

func mustImport(t *testing.T, format string, o Options, texts ...string) imported {
	t.Helper()
	i, err := importText(t, format, o, texts...)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func file(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestCompressed(t *testing.T) {
	plain := file(t, "mooncake_conversation_100.jsonl")
	var g, z bytes.Buffer
	gw := gzip.NewWriter(&g)
	io.WriteString(gw, plain)
	gw.Close()
	zw, err := zstd.NewWriter(&z)
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(zw, plain)
	zw.Close()
	want := mustImport(t, "mooncake", Options{}, plain)
	for name, text := range map[string]string{"gzip": g.String(), "zstd": z.String()} {
		got := mustImport(t, "mooncake", Options{}, text)
		if !reflect.DeepEqual(want.rows, got.rows) {
			t.Errorf("%s: other rows", name)
		}
		if got.header.SourceSHA256 == want.header.SourceSHA256 {
			t.Errorf("%s: the checksum is of the content, not of the file", name)
		}
	}
	if cut, err := importText(t, "mooncake", Options{}, g.String()[:g.Len()/2]); err == nil {
		t.Errorf("a gzip file cut in half gives %d rows and no error", cut.Kept)
	}
}

func TestWrongFormat(t *testing.T) {
	_, err := importText(t, "azure-llm", Options{}, file(t, "mooncake_conversation_100.jsonl"))
	if err == nil || !strings.Contains(err.Error(), "this is no azure-llm: it looks like mooncake") {
		t.Errorf("error %v", err)
	}
	_, err = importText(t, "mooncake", Options{}, "hello\n")
	if err == nil || !strings.Contains(err.Error(), "this is no mooncake: its fields are not all there") {
		t.Errorf("error %v", err)
	}
	_, err = importText(t, "rows", Options{}, "arrival_unix_ns,input_tokens\n1,2\n")
	if err == nil || !strings.Contains(err.Error(), "exchange_id and arrival_unix_ns at least") {
		t.Errorf("error %v", err)
	}
	if _, err := Named("nothing"); err == nil || !strings.Contains(err.Error(), "azure-llm") {
		t.Errorf("error %v", err)
	}
}

// TestStableSort: rows of one time keep their order, steps back are counted, near and far.
func TestStableSort(t *testing.T) {
	var b strings.Builder
	b.WriteString("TIMESTAMP,ContextTokens,GeneratedTokens\n")
	stamp := func(second, n int) {
		b.WriteString("2024-05-10 00:")
		b.WriteString(string([]byte{byte('0' + second/600), byte('0' + second/60%10), ':', byte('0' + second%60/10), byte('0' + second%10)}))
		b.WriteString("+00:00,")
		b.WriteString(strings.Repeat("1", 1+n%3))
		b.WriteString(",1\n")
	}
	for n, s := range []int{5, 5, 3, 5, 3, 9} { // 2 inversions
		stamp(s, n)
	}
	got := mustImport(t, "azure-llm", Options{}, b.String())
	var ids []int64
	for _, x := range got.rows {
		ids = append(ids, x.ExchangeID)
	}
	if d := cmp.Diff([]int64{3, 5, 1, 2, 4, 6}, ids); d != "" {
		t.Error(d)
	}
	if got.Notes["inversions"] != 2 || got.header.Counters.Notes["inversions"] != 2 {
		t.Errorf("notes %v", got.Notes)
	}
}

// TestFarSort sorts a file that is far out of order, over several runs, and compares with a stable sort in memory.
func TestFarSort(t *testing.T) {
	const n = 3*window + 17
	var b strings.Builder
	b.WriteString(`{"timestamp": 0, "input_length": 1, "output_length": 0}` + "\n")
	for i := range n {
		at := (i * 7919) % 1000 // each time occurs often
		if i > n/2 {
			at = i
		}
		b.WriteString(`{"timestamp": ` + itoa(at) + `, "input_length": ` + itoa(i) + `, "output_length": 1}` + "\n")
	}
	got := mustImport(t, "mooncake", Options{}, b.String())
	if len(got.rows) != n+1 {
		t.Fatalf("%d rows", len(got.rows))
	}
	for i := range n {
		a, b := got.rows[i], got.rows[i+1]
		if a.ArrivalUnixNS > b.ArrivalUnixNS || a.ArrivalUnixNS == b.ArrivalUnixNS && a.ExchangeID >= b.ExchangeID {
			t.Fatalf("row %d: %d at %d before %d at %d", i, a.ExchangeID, a.ArrivalUnixNS, b.ExchangeID, b.ArrivalUnixNS)
		}
	}
}

func TestStrict(t *testing.T) {
	text := "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:01,1,2\nrubbish\n2024-05-10 00:00:02,1,2\n"
	_, err := importText(t, "azure-llm", Options{Strict: true}, text)
	var bad *formats.RowError
	if !errors.As(err, &bad) || bad.Row != 3 {
		t.Errorf("error %v", err)
	}
	got := mustImport(t, "azure-llm", Options{}, text)
	if d := cmp.Diff([]string{"a.txt, row 3: 1 fields where the header has 3: left out"}, got.Warnings); d != "" {
		t.Error(d)
	}
	if got.Kept != 2 || got.Reasons["broken_row"] != 1 {
		t.Errorf("%+v", got.Report)
	}
}

func TestCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	f, _ := Named("mooncake")
	where := filepath.Join(t.TempDir(), "t")
	_, err := Import(ctx, f, []Source{{"a", strings.NewReader(file(t, "mooncake_conversation_100.jsonl"))}}, where, formats.Header{}, Options{})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if _, err := os.Stat(where); !os.IsNotExist(err) {
		t.Errorf("left behind: %v", err)
	}
}

// newInput is a file for a decoder alone.
func newInput(text string) *input {
	return &input{name: "x", r: bufio.NewReaderSize(strings.NewReader(text), 1<<20), header: &formats.Header{}, notes: map[string]int64{}, hash: newHasher([]byte("key"))}
}

// What is wrong with a row is said of the same row whether its text or its meaning is: headers, blank lines and rows of earlier files do not shift it.
func TestRowsAreNumberedAsTheyStand(t *testing.T) {
	rows := "exchange_id,arrival_unix_ns\n\n1,1000\n2,x\n3,9223372036854775807\n"
	json := "{\"timestamp\":0,\"input_length\":1,\"output_length\":1}\n\n{\"timestamp\":9e15,\"input_length\":1,\"output_length\":1}\n"
	for _, c := range []struct {
		format string
		texts  []string
		want   []string
	}{
		{"rows", []string{rows, rows}, []string{"a.txt, row 4: ", "a.txt, row 5: ", "b.txt, row 4: ", "b.txt, row 5: "}},
		{"mooncake", []string{json}, []string{"a.txt, row 3: "}},
	} {
		got := mustImport(t, c.format, Options{}, c.texts...).Warnings
		if len(got) != len(c.want) {
			t.Fatalf("%s: %q", c.format, got)
		}
		for i, w := range c.want {
			if !strings.HasPrefix(got[i], w) {
				t.Errorf("%s: %q, not %q", c.format, got[i], w)
			}
		}
	}
}
