package formats

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// randomExchange fills a random part of the columns through the column table's own kinds, so that a new column is covered at once.
func randomExchange(r *rand.Rand) *Exchange {
	x := &Exchange{Phase: PhaseRecord, ArrivalUnixNS: r.Int64N(1 << 50)}
	v := reflect.ValueOf(x).Elem()
	for i := range v.NumField() {
		f := v.Field(i)
		if r.IntN(3) == 0 || f.Type() == reflect.TypeFor[Phase]() || f.Kind() == reflect.Int64 {
			continue
		}
		randomField(r, f)
	}
	for _, c := range timeColumns[1:] {
		if v, ok := c.getInt(x); ok {
			c.setInt(x, v>>12) // a time that a clock may show
		}
	}
	return x
}

func randomField(r *rand.Rand, f reflect.Value) {
	n := r.IntN(5)
	switch p := f.Addr().Interface().(type) {
	case *Null[int64]:
		*p = Of(r.Int64() - r.Int64())
	case *Null[int32]:
		*p = Of(int32(r.Uint32()))
	case *Null[bool]:
		*p = Of(n%2 == 0)
	case *Null[float64]:
		*p = Of(r.NormFloat64())
	case *Null[Hash]:
		*p = Of(Hash{byte(n), 1, 2, 3, byte(r.Uint32())})
	case *[]int64:
		*p = make([]int64, n)
		for i := range *p {
			(*p)[i] = r.Int64() - r.Int64()
		}
	case *[]int32:
		*p = make([]int32, n)
		for i := range *p {
			(*p)[i] = int32(r.Uint32())
		}
	case *[]string:
		*p = make([]string, n)
		for i := range *p {
			(*p)[i] = string(rune('a' + r.IntN(26)))
		}
	default:
		f.SetString([]string{"", "α", "model-7", "\"quoted\""}[r.IntN(4)])
	}
}

func writeAll(t *testing.T, where string, h Header, o SegmentOptions, xs []*Exchange) {
	t.Helper()
	w, err := Create(where, h, o)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range xs {
		if err := w.Write(x); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

func readAll(t *testing.T, where string, columns ...Column) []*Exchange {
	t.Helper()
	tr, err := Open(where)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	var xs []*Exchange
	for x, err := range tr.All(columns...) {
		if err != nil {
			t.Fatal(err)
		}
		xs = append(xs, x)
	}
	return xs
}

func TestRoundTrip(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var xs []*Exchange
	for range 2500 {
		xs = append(xs, randomExchange(r))
	}
	for _, c := range []struct {
		name, where string
		o           SegmentOptions
		segments    int
	}{
		{"one file", "a.parquet", SegmentOptions{MaxRows: 10}, 1},
		{"segments by rows", "a", SegmentOptions{MaxRows: 499}, 6},
		{"segments by bytes", "b", SegmentOptions{MaxBytes: 1 << 19}, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			where := filepath.Join(t.TempDir(), c.where)
			writeAll(t, where, Header{SourceKind: "synth"}, c.o, xs)
			if got := readAll(t, where); !reflect.DeepEqual(xs, got) {
				t.Errorf("written and read differ: %s", cmp.Diff(xs, got))
			}
			tr, err := Open(where)
			if err != nil {
				t.Fatal(err)
			}
			if len(tr.segments) != c.segments || tr.Rows != int64(len(xs)) {
				t.Errorf("%d segments, %d rows", len(tr.segments), tr.Rows)
			}
		})
	}
}

// TestScanAgreesWithAll reads random exchanges both ways: by rows, and by column batches, whole and split.
func TestScanAgreesWithAll(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	var xs []*Exchange
	for range 3_000 {
		xs = append(xs, randomExchange(r))
	}
	where := filepath.Join(t.TempDir(), "t")
	writeAll(t, where, Header{}, SegmentOptions{MaxRows: 700}, xs)
	tr, err := Open(where)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{1, 2, 3, 100} {
		parts := tr.Split(n)
		if len(parts) > n || len(parts) == 0 {
			t.Errorf("split by %d gives %d parts", n, len(parts))
		}
		at := 0
		for _, p := range parts {
			at = compareScan(t, p, xs, at)
		}
		if at != len(xs) {
			t.Errorf("split by %d: %d rows of %d", n, at, len(xs))
		}
	}
}

// compareScan compares a scan of every column with xs from at on.
func compareScan(t *testing.T, tr *Trace, xs []*Exchange, at int) int {
	t.Helper()
	for b, err := range tr.Scan(Columns()...) {
		if err != nil {
			t.Fatal(err)
		}
		for i := range b.Rows {
			x := &Exchange{}
			for _, c := range columns {
				switch c.kind {
				case kindInt64, kindInt32, kindBool:
					if v, valid := b.Int64(c.name); valid == nil || valid[i] {
						c.setInt(x, v[i])
					}
				case kindFloat:
					if v, valid := b.Float64(c.name); valid == nil || valid[i] {
						*c.float(x) = Of(v[i])
					}
				case kindString:
					c.setString(x, b.String(c.name)[i])
				case kindHash:
					if v, valid := b.Hash(c.name); valid == nil || valid[i] {
						*c.hash(x) = Of(v[i])
					}
				case kindInt64List, kindInt32List:
					offsets, v, valid := b.List(c.name)
					if valid != nil && !valid[i] {
						if offsets[i] != offsets[i+1] {
							t.Fatal("an unknown list has elements")
						}
						continue
					}
					c.fill(x, &vector{valid: []bool{true}, ints: v, offsets: offsets[i : i+2]}, 0)
				case kindStringList:
					c.fill(x, b.vectors[c.name], i)
				}
			}
			if !reflect.DeepEqual(xs[at], x) {
				t.Fatalf("row %d: %s", at, cmp.Diff(xs[at], x))
			}
			at++
		}
	}
	return at
}

func TestProjection(t *testing.T) {
	where := filepath.Join(t.TempDir(), "t.parquet")
	writeAll(t, where, Header{}, SegmentOptions{}, []*Exchange{
		{Phase: PhaseRecord, ArrivalUnixNS: 7, InputTokens: Of(int64(3)), ServerID: "a", EventGapUS: []int32{0, 5}},
	})
	got := readAll(t, where, ColArrival, ColEventGap)
	want := []*Exchange{{ArrivalUnixNS: 7, EventGapUS: []int32{0, 5}}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	tr, err := Open(where)
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range tr.All("no_such_column") {
		if err == nil || !strings.Contains(err.Error(), `there is no column "no_such_column"`) {
			t.Errorf("error %v", err)
		}
	}
}

func TestHeaderAndNumbers(t *testing.T) {
	where := filepath.Join(t.TempDir(), "t")
	w, err := Create(where, Header{SourceKind: "proxy", HashKeyID: "k1"}, SegmentOptions{MaxRows: 2})
	if err != nil {
		t.Fatal(err)
	}
	for i, at := range []int64{50, 40, 90, 60, 70} {
		x := &Exchange{Phase: PhaseRecord, ArrivalUnixNS: at, EndNS: Of(int64(100 * i))}
		if err := w.Write(x); err != nil {
			t.Fatal(err)
		}
		if x.ExchangeID != int64(i+1) {
			t.Errorf("row %d is exchange %d", i, x.ExchangeID)
		}
	}
	w.Header().Counters = Counters{Seen: 8, Filtered: 1, Dropped: 2, Written: 5, Reasons: map[string]int64{"queue": 2, "path": 1}}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("second Close: %v", err)
	}
	tr, err := Open(where)
	if err != nil {
		t.Fatal(err)
	}
	want := Header{FormatVersion: 1, CompatibleWith: 1, SourceKind: "proxy", HashKeyID: "k1", TimeBase: "absolute", StartUnixNS: 40, EndUnixNS: 470,
		Counters: Counters{Seen: 8, Filtered: 1, Dropped: 2, Written: 5, Reasons: map[string]int64{"queue": 2, "path": 1}}}
	if d := cmp.Diff(want, tr.Header); d != "" {
		t.Error(d)
	}
	if len(tr.segments) != 3 {
		t.Errorf("segments %v", tr.segments)
	}
	if tr.Manifest != nil {
		t.Error("a trace has a manifest")
	}
}

func TestEmptyTrace(t *testing.T) {
	for _, name := range []string{"t", "t.parquet"} {
		where := filepath.Join(t.TempDir(), name)
		writeAll(t, where, Header{}, SegmentOptions{}, nil)
		if xs := readAll(t, where); len(xs) != 0 {
			t.Errorf("%s: %d rows", name, len(xs))
		}
	}
}

func TestSHA256(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "t")
	writeAll(t, dir, Header{}, SegmentOptions{MaxRows: 1}, []*Exchange{{Phase: PhaseRecord}, {Phase: PhaseRecord}})
	h := sha256.New()
	for _, n := range []string{"exchanges-00001.parquet", "exchanges-00002.parquet"} {
		b, err := os.ReadFile(filepath.Join(dir, n))
		if err != nil {
			t.Fatal(err)
		}
		h.Write(b)
	}
	tr, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := tr.SHA256(); err != nil || got != hex.EncodeToString(h.Sum(nil)) {
		t.Errorf("%s, %v", got, err)
	}
}

func TestTwoHashKeys(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "t")
	writeAll(t, dir, Header{HashKeyID: "k1"}, SegmentOptions{}, []*Exchange{{Phase: PhaseRecord}})
	writeAll(t, filepath.Join(dir, "exchanges-00002.parquet"), Header{HashKeyID: "k2"}, SegmentOptions{}, []*Exchange{{Phase: PhaseRecord}})
	tr, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if tr.Header.HashKeyID != "" || tr.Rows != 2 {
		t.Errorf("key %q, %d rows", tr.Header.HashKeyID, tr.Rows)
	}
}
