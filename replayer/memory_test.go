package replayer

import (
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/replayer/client"
)

// endless yields n arrivals a millisecond apart, of a thousand sessions.
func endless(n int) Schedule {
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

// What waits for its time is bounded by the look-ahead, and what is over is forgotten.
func TestReplayForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var early, late int64
		s := &scripted{answer: stream(0, 0, 1)}
		n := 0
		c, err := client.New(client.Options{Targets: []string{"http://t"}, Dial: s.dial})
		if err != nil {
			t.Fatal(err)
		}
		dst := sinkFunc(func(*formats.Exchange) error {
			switch n++; n {
			case 10_000:
				early = heapBytes()
			case 40_000:
				late = heapBytes()
			}
			s.mu.Lock()
			s.bodies, s.seen = nil, nil // the test's own
			s.mu.Unlock()
			return nil
		})
		st, err := Replay(t.Context(), endless(41_000), prompts(t), c, dst, Options{Sleep: SleepTimer, AheadCount: 256})
		if err != nil || st.Requests.Completed != 41_000 {
			t.Fatal(st.Requests, err)
		}
		c.Close()
		s.wg.Wait()
		// The exact samples of the quality figures grow by some 8 bytes a request and figure, up to their limit.
		if late-early > 8<<20 {
			t.Errorf("the heap grew from %d to %d bytes", early, late)
		}
	})
}

type sinkFunc func(*formats.Exchange) error

func (f sinkFunc) Write(x *formats.Exchange) error { return f(x) }
