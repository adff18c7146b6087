package formats

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// writeNode writes one recorder's trace: rows as their answers ended, so a little out of order.
func writeNode(t testing.TB, where string, h Header, at []int64, o SegmentOptions, fill func(i int, x *Exchange)) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(where), 0o777); err != nil {
		t.Fatal(err)
	}
	w, err := Create(where, h, o)
	if err != nil {
		t.Fatal(err)
	}
	for i, v := range at {
		x := &Exchange{Phase: PhaseRecord, ArrivalUnixNS: v}
		fill(i, x)
		if err := w.Write(x); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

// nodes writes several traces below a directory and returns what one trace of them must hold, by arrival.
func nodes(t testing.TB, dir string, count, rows int, disorder int64) []*Exchange {
	r := rand.New(rand.NewPCG(3, 9))
	var want []*Exchange
	for k := range count {
		at := make([]int64, rows+10*k)
		for i := range at {
			at[i] = 1_700_000_000_000_000_000 + int64(i)*1000 + r.Int64N(disorder+1)
		}
		writeNode(t, filepath.Join(dir, fmt.Sprintf("node%d", k), "start1"), Header{SourceKind: "interface", HashKeyID: "k"}, at, SegmentOptions{MaxRows: int64(rows/3 + 1)}, func(i int, x *Exchange) {
			x.Node = fmt.Sprintf("node%d", k)
			if i%3 > 0 {
				x.InputTokens = Of(int64(i))
				x.SessionID = Of(Hash{byte(k), byte(i)})
				x.Temperature = Of(float64(i) / 7)
			}
			if i%5 == 0 {
				x.EventGapUS = []int32{0, int32(i), int32(k)}
				x.PrefixBlocks = []int64{int64(i), 7}
				x.TemplateFlags = []string{"a", fmt.Sprint(i)}
			} else if i%7 == 0 {
				x.EventGapUS = []int32{}
			}
			if i > 2 {
				x.ParentID = Of(int64(i - 1))
			}
			c := *x
			c.ExchangeID = mergedID(int64(i)+1, k, count)
			if c.ParentID.Valid {
				c.ParentID.V = mergedID(c.ParentID.V, k, count)
			}
			want = append(want, &c)
		})
	}
	return want
}

func TestManyTracesAsOne(t *testing.T) {
	dir := t.TempDir()
	const disorder = 5000
	want := nodes(t, dir, 4, 900, disorder)
	tr, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if tr.Rows != int64(len(want)) || tr.Header.Counters.Written != tr.Rows || tr.Header.HashKeyID != "k" {
		t.Errorf("%d rows, %+v", tr.Rows, tr.Header)
	}
	var got []*Exchange
	newest, behind := int64(0), int64(0)
	for x, err := range tr.All() {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, x)
		behind = max(behind, newest-x.ArrivalUnixNS)
		newest = max(newest, x.ArrivalUnixNS)
	}
	if behind > disorder {
		t.Errorf("a row stands %d ns behind an earlier one: more than in any of the traces (%d)", behind, disorder)
	}
	byID := func(a, b *Exchange) int { return int(a.ExchangeID - b.ExchangeID) }
	slices.SortFunc(got, byID)
	slices.SortFunc(want, byID)
	if d := cmp.Diff(want, got); d != "" {
		t.Fatal(d)
	}
	// A column without the time that orders them comes in the same order.
	var ids, inputs []int64
	for b, err := range tr.Scan(ColInputTokens, ColExchangeID) {
		if err != nil {
			t.Fatal(err)
		}
		id, _ := b.Int64(ColExchangeID)
		in, _ := b.Int64(ColInputTokens)
		ids, inputs = append(ids, id...), append(inputs, in...)
	}
	i := 0
	for x, err := range tr.All() {
		if err != nil {
			t.Fatal(err)
		}
		if ids[i] != x.ExchangeID || inputs[i] != x.InputTokens.V {
			t.Fatalf("row %d: exchange %d with %d tokens, in another scan %d with %d", i, x.ExchangeID, x.InputTokens.V, ids[i], inputs[i])
		}
		i++
	}
	if len(tr.Split(8)) != 1 {
		t.Error("what is ordered while it is read was cut")
	}
	a, err := tr.SHA256()
	b, err2 := tr.SHA256()
	if err != nil || err2 != nil || a != b || len(a) != 64 {
		t.Errorf("checksums %s %s: %v %v", a, b, err, err2)
	}
}

func TestOneTraceBelow(t *testing.T) {
	dir := t.TempDir()
	writeNode(t, filepath.Join(dir, "a", "b"), Header{TimeBase: "relative"}, []int64{1, 2, 3}, SegmentOptions{}, func(int, *Exchange) {})
	tr, err := Open(dir)
	if err != nil || tr.Rows != 3 || tr.Name != dir {
		t.Fatalf("%+v %v", tr, err)
	}
}

func TestTracesThatAreNotOne(t *testing.T) {
	none := func(int, *Exchange) {}
	for name, c := range map[string]struct {
		a, b Header
		want string
	}{
		"relative times": {Header{}, Header{TimeBase: "relative"}, "counts its times from its own start"},
		"blocks":         {Header{PrefixBlockSize: 16, PrefixBlockUnit: "tokens"}, Header{PrefixBlockSize: 32, PrefixBlockUnit: "tokens"}, "other prompts"},
		"sampling":       {Header{SamplingFraction: 0.1}, Header{}, "another share"},
	} {
		dir := t.TempDir()
		writeNode(t, filepath.Join(dir, "a"), c.a, []int64{1}, SegmentOptions{}, none)
		writeNode(t, filepath.Join(dir, "b"), c.b, []int64{1}, SegmentOptions{}, none)
		if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	dir := t.TempDir()
	w, err := CreateRun(filepath.Join(dir, "run"), Manifest{})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Close(Manifest{}); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), "is a run") {
		t.Errorf("runs below: %v", err)
	}
	if _, err := Open(t.TempDir()); err == nil || !strings.Contains(err.Error(), "no segments") {
		t.Errorf("nothing below: %v", err)
	}
}

// TestManyTracesMemory holds what reading takes against traces four times as long.
func TestManyTracesMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: writes many rows")
	}
	held := func(rows int) uint64 {
		dir := t.TempDir()
		for k := range 3 {
			at := make([]int64, rows)
			for i := range at {
				at[i] = int64(i)*1000 + int64(k)
			}
			writeNode(t, filepath.Join(dir, fmt.Sprint(k)), Header{}, at, SegmentOptions{MaxRows: 20_000}, func(i int, x *Exchange) { x.InputTokens = Of(int64(i)) })
		}
		tr, err := Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		var most uint64
		n := 0
		for b, err := range tr.Scan(ColArrival, ColInputTokens) {
			if err != nil {
				t.Fatal(err)
			}
			if n += b.Rows; n%32768 < b.Rows {
				var m runtime.MemStats
				runtime.GC()
				runtime.ReadMemStats(&m)
				most = max(most, m.HeapAlloc)
			}
		}
		if n != 3*rows {
			t.Fatalf("%d rows of %d", n, 3*rows)
		}
		return most
	}
	short, long := held(40_000), held(160_000)
	if long > short+short/2 {
		t.Errorf("%d bytes held for a trace, %d for one four times as long", short, long)
	}
}

// BenchmarkMerge reads ten traces as one: what the order costs beside reading them one after the other (BenchmarkAll).
func BenchmarkMerge(b *testing.B) {
	dir := b.TempDir()
	r := rand.New(rand.NewPCG(1, 2))
	for k := range 10 {
		at := make([]int64, 30_000)
		for i := range at {
			at[i] = 1_700_000_000_000_000_000 + int64(i)*1_000_000 + int64(k)*97_000
		}
		writeNode(b, filepath.Join(dir, fmt.Sprint(k)), Header{}, at, SegmentOptions{}, func(i int, x *Exchange) {
			recorded(r, i, x.ArrivalUnixNS, x)
		})
	}
	t, err := Open(dir)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.ResetTimer()
	for b.Loop() {
		for _, err := range t.All() {
			if err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(t.Rows)*float64(b.N)/b.Elapsed().Seconds()/1e6, "Mrow/s")
}
