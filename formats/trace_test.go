package formats

import (
	"math/rand/v2"
	"path/filepath"
	"reflect"
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
	for range 5000 {
		xs = append(xs, randomExchange(r))
	}
	for _, c := range []struct {
		name, where string
		o           SegmentOptions
		segments    int
	}{
		{"one file", "a.parquet", SegmentOptions{MaxRows: 10}, 1},
		{"segments by rows", "a", SegmentOptions{MaxRows: 999}, 6},
		{"segments by bytes", "b", SegmentOptions{MaxBytes: 1 << 20}, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			where := filepath.Join(t.TempDir(), c.where)
			writeAll(t, where, Header{SourceKind: "synth"}, c.o, xs)
			if d := cmp.Diff(xs, readAll(t, where)); d != "" {
				t.Errorf("written and read differ: %s", d)
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
