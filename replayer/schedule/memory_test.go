package schedule

import (
	"runtime"
	"testing"
	"time"

	"github.com/shadowtape/shadowtape/formats"
)

// endless yields n arrivals a millisecond apart, of a thousand sessions.
func endless(n int) Arrivals {
	return func(yield func(Arrival, error) bool) {
		for i := range n {
			x := &formats.Exchange{ExchangeID: int64(i + 1), InputTokens: formats.Of(int64(7)), OutputTokens: formats.Of(int64(1)), EndNS: formats.Of(int64(ms)),
				SessionID: formats.Of(formats.Hash{byte(i % 250), byte(i / 250 % 4)}), PrefixBlocks: []int64{1, 2, 3}}
			if !yield(Arrival{At: time.Duration(i) * time.Millisecond, Exchange: x}, nil) {
				return
			}
		}
	}
}

func heapBytes() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// at is a schedule of chat requests.
func at(offsets ...time.Duration) Arrivals {
	return func(yield func(Arrival, error) bool) {
		for i, d := range offsets {
			x := &formats.Exchange{ExchangeID: int64(i + 1), Phase: formats.PhaseRecord, InputTokens: formats.Of(int64(7)), OutputTokens: formats.Of(int64(3))}
			if !yield(Arrival{At: d, Exchange: x}, nil) {
				return
			}
		}
	}
}

func every(d time.Duration, n int) Arrivals {
	offsets := make([]time.Duration, n)
	for i := range offsets {
		offsets[i] = time.Duration(i) * d
	}
	return at(offsets...)
}

const ms = time.Millisecond

// Transforms hold no more at the end of a long schedule than at its start.
func TestTransformsHoldNothing(t *testing.T) {
	const n = 400_000
	sel := Selection{Thin: 0.9, From: time.Second, To: n * time.Millisecond, Preroll: time.Second, Spread: 10 * time.Millisecond, Loops: 2, ThinkTime: true}
	var early, late int64
	i := 0
	for range sel.Apply(endless(n), 3) {
		switch i++; i {
		case 100_000: // rememberEnded has been reached
			early = heapBytes()
		case 700_000:
			late = heapBytes()
		}
	}
	if late == 0 || late-early > 8<<20 {
		t.Errorf("the heap grew from %d to %d bytes", early, late)
	}
}
