package fit_test

import (
	"encoding/json"
	"math"
	"runtime"
	"strings"
	"testing"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/workload"
	"github.com/shadowtape/shadowtape/internal/workload/fit"
)

// second is one in nanoseconds.
const second = int64(1e9)

// request is a row of a weird trace.
func request(at, input, output int64) *formats.Exchange {
	return &formats.Exchange{Phase: formats.PhaseRecord, ArrivalUnixNS: at, InputTokens: formats.Of(input), OutputTokens: formats.Of(output)}
}

func TestWeirdTraces(t *testing.T) {
	many := func(n int, f func(i int64) *formats.Exchange) (rows []*formats.Exchange) {
		for i := range n {
			rows = append(rows, f(int64(i)))
		}
		return rows
	}
	unknown := request(0, 0, 0)
	unknown.InputTokens, unknown.OutputTokens = formats.Null[int64]{}, formats.Null[int64]{}
	for _, c := range []struct {
		name string
		rows []*formats.Exchange
		fail string  // the error, where there must be one
		rate float64 // 0: not looked at
	}{
		{"no row", nil, "0 requests are too few", 0},
		{"one row", many(1, func(int64) *formats.Exchange { return request(5, 1, 1) }), "1 requests are too few", 0},
		{"one instant", many(500, func(int64) *formats.Exchange { return request(7*second, 100, 10) }), "", 500},
		{"one instant but one", many(500, func(i int64) *formats.Exchange { return request(i/499*second, 100, 10) }), "", 0},
		{"years apart", many(100, func(i int64) *formats.Exchange { return request((i-50)*365*86400*second, 100, 10) }), "", 100.0 / (99 * 365 * 86400)},
		{"negative lengths", many(100, func(i int64) *formats.Exchange { return request(i*second, 100-i*(i%2)*5, 10) }), "", 1},
		{"no length at all", many(100, func(i int64) *formats.Exchange { y := *unknown; y.ArrivalUnixNS = i * second; return &y }), "no request says how long it is", 0},
		{"huge lengths", many(100, func(i int64) *formats.Exchange { return request(i*second, 1<<(i%63), 10) }), "", 1},
		{"impossible lengths", many(100, func(i int64) *formats.Exchange { return request(i*second, 100, 10+math.MaxInt64/99*(i%3)) }), "", 1},
		{"a minute without lengths", many(300, func(i int64) *formats.Exchange {
			if i >= 120 && i < 240 {
				return request(i*second, -1, -1)
			}
			return request(i*second, 100, 10)
		}), "", 1},
		{"the newest first", many(300, func(i int64) *formats.Exchange { return request(-i*second, 100, 10) }), "", 1},
		{"a tenant each", many(5000, func(i int64) *formats.Exchange {
			x := request(i*second/10, 100+i%7, 10)
			x.TenantID = formats.Of(formats.Hash{byte(i), byte(i >> 8), 9})
			return x
		}), "", 10},
		{"a session and blocks each", many(5000, func(i int64) *formats.Exchange {
			x := request(i*second/10, 100+i%7, 10)
			x.SessionID, x.PrefixBlocks = formats.Of(formats.Hash{byte(i), byte(i >> 8), 9}), []int64{i, -i, i}
			return x
		}), "", 10},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, err := fit.Trace(of(c.rows), fit.Options{Header: formats.Header{PrefixBlockUnit: "tokens", PrefixBlockSize: 16}})
			if c.fail != "" {
				if err == nil || !strings.Contains(err.Error(), c.fail) || strings.Contains(err.Error(), "\n") {
					t.Fatalf("%v, want %s", err, c.fail)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if r := m.Rate(); c.rate > 0 && math.Abs(r/c.rate-1) > 0.02 {
				t.Errorf("rate %v, want %v", r, c.rate)
			}
			usable(t, m)
		})
	}
}

// usable checks that a model can be written, read, and generated from, in order and with possible lengths.
func usable(t *testing.T, m *workload.Model) {
	t.Helper()
	b, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	if m, err = workload.Parse(b); err != nil {
		t.Fatal(err)
	}
	rows, err := m.Generate(workload.Options{Seed: 1, Requests: 300})
	if err != nil {
		t.Fatal(err)
	}
	last, n := int64(0), 0
	for x := range rows {
		if x.ArrivalUnixNS < last || x.InputTokens.V < 1 || x.OutputTokens.V < 1 {
			t.Fatalf("row %d: at %d after %d, %d and %d tokens", n, x.ArrivalUnixNS, last, x.InputTokens.V, x.OutputTokens.V)
		}
		last = x.ArrivalUnixNS
		n++
	}
	if n != 300 {
		t.Errorf("%d rows", n)
	}
}

func TestUnknownLengthsAreCounted(t *testing.T) {
	var rows []*formats.Exchange
	for i := range int64(100) {
		x := request(i*second, 100, 10)
		if i%4 == 0 {
			x.InputTokens.Valid = false
		}
		rows = append(rows, x)
	}
	warm := request(0, 1, 1)
	warm.Phase = formats.PhaseWarmup
	m, err := fit.Trace(of(append(rows, warm)), fit.Options{})
	if err != nil || m.Extra["requests_without_lengths"] != 25 || m.Extra["requests"] != 100 {
		t.Errorf("%v %v", m.Extra, err)
	}
}

// A long trace without anything shared takes some 50 bytes a request while it is fitted.
func TestFitMemory(t *testing.T) {
	const n = 150_000
	var before, during runtime.MemStats
	rows := func(yield func(*formats.Exchange, error) bool) {
		x := request(0, 100, 10)
		for i := range int64(n) {
			x.ArrivalUnixNS = i * second / 100
			x.InputTokens.V = 100 + i%1000
			if i == n-1 {
				runtime.GC()
				runtime.ReadMemStats(&during)
			}
			if !yield(x, nil) {
				return
			}
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&before)
	if _, err := fit.Trace(rows, fit.Options{}); err != nil {
		t.Fatal(err)
	}
	if per := float64(during.HeapAlloc-before.HeapAlloc) / n; per > 60 {
		t.Errorf("%.0f bytes a request", per)
	}
}

func FuzzTrace(f *testing.F) {
	f.Add([]byte{}, uint8(0))
	f.Add([]byte{0, 100, 10, 0, 1, 100, 10, 0, 1, 100, 10, 0}, uint8(0))
	f.Add([]byte(strings.Repeat("\x00\x64\x0a\x00", 60)), uint8(3))
	f.Add([]byte(strings.Repeat("\xff\xff\xff\xff\x01\x80\x07\xf3", 60)), uint8(7))
	f.Fuzz(func(t *testing.T, b []byte, kind uint8) {
		var rows []*formats.Exchange
		at := int64(0)
		for i := 0; i+4 <= len(b) && len(rows) < 400; i += 4 {
			// Gaps from nothing to a year, lengths from negative to impossible, a few of everything that is shared.
			at += int64(float64(int8(b[i])) * math.Pow(10, float64(b[i+3]%16)))
			x := request(at, int64(int8(b[i+1]))<<(b[i+3]>>4), int64(int8(b[i+2]))<<(b[i+3]>>3))
			if b[i+3]&1 != 0 {
				x.TenantID = formats.Of(formats.Hash{b[i+2]})
			}
			if b[i+3]&2 != 0 {
				x.SessionID = formats.Of(formats.Hash{b[i+1]})
			}
			for k := range int64(b[i+3] >> 6) {
				x.PrefixBlocks = append(x.PrefixBlocks, k*int64(b[i+1]))
			}
			rows = append(rows, x)
		}
		o := fit.Options{Fold: float64(int(kind>>2&3) - 1), Header: formats.Header{PrefixBlockUnit: "tokens", PrefixBlockSize: int(kind&3) * 64}}
		if o.Fold > 0 {
			o.Fold *= 86400
		}
		if kind&64 != 0 {
			o.Family = workload.Lognormal
		}
		if kind&128 != 0 {
			o.Window = 10
		}
		m, err := fit.Trace(of(rows), o)
		if err != nil {
			if strings.Contains(err.Error(), "does not hold") {
				t.Fatal(err)
			}
			return
		}
		if len(m.Clients)*len(m.Clients[0].Windows) < 10_000 { // years in minutes, unfolded, are slow to write
			usable(t, m)
		}
	})
}
