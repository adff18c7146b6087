package replayer

import (
	"io"
	"net/http"
	"net/http/httptest"
	"runtime/metrics"
	"strings"
	"testing"
	"time"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/replayer/client"
)

// heapPeak follows the heap's objects until stop is called, which returns the most bytes that they held, garbage included.
func heapPeak() (stop func() int64) {
	end, peak := make(chan struct{}), make(chan int64)
	go func() {
		s := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
		var most int64
		for {
			metrics.Read(s)
			most = max(most, int64(s[0].Value.Uint64()))
			select {
			case <-end:
				peak <- most
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	return func() int64 { close(end); return <-peak }
}

// Streams without an end, as fast as they come: each is read up to its limit, none of its text is kept, and all of them end.
func TestEndlessStreamsAreBounded(t *testing.T) {
	const (
		streams   = 8
		limit     = 32 << 20                                  // of one answer
		eventSize = 1 << 10                                   // of its events
		lists     = limit / eventSize * 4 * 4 * 2             // of an event four numbers of four bytes are listed, and lists grow by doubling
		bound     = 2*streams*(lists+512<<10) + int64(32<<20) // with buffers on both sides; as much garbage again
		passed    = streams * limit                           // what would be held if answers were
	)
	event := `data: {"choices":[{"index":0,"delta":{"content":"` + strings.Repeat("x", eventSize-54) + `"}}]}` + "\n\n"
	block := []byte(strings.Repeat(event, 16))
	if bound > passed/2 || len(event) < eventSize-16 {
		t.Fatalf("the bound of %d bytes shows nothing", bound)
	}
	for _, version := range []string{"1.1", "2"} {
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			w.Header().Set("Content-Type", "text/event-stream")
			for {
				if _, err := w.Write(block); err != nil {
					return
				}
			}
		}))
		s.Config.Protocols = new(http.Protocols)
		s.Config.Protocols.SetHTTP1(true)
		s.Config.Protocols.SetUnencryptedHTTP2(true)
		s.Start()
		c, err := client.New(client.Options{Targets: []string{s.URL}, HTTP: version, AnswerBytes: limit})
		if err != nil {
			t.Fatal(err)
		}
		before := heapBytes()
		peak := heapPeak()
		var dst sink
		st, err := Replay(t.Context(), every(0, streams), prompts(t), c, &dst, Options{})
		if held := peak() - before; held > bound {
			t.Errorf("HTTP/%s: %d bytes are held, %d were expected at most, %d passed", version, held, bound, passed)
		}
		if err != nil || st.Errors[formats.ErrorEndless] != streams {
			t.Errorf("HTTP/%s: %v, %+v %v", version, err, st.Requests, st.Errors)
		}
		for _, x := range dst.rows {
			if x.EndReason != formats.EndServerAbort || x.ResponseBytes.V < limit || len(x.EventGapUS) < limit/eventSize*9/10 {
				t.Errorf("HTTP/%s: %s after %d bytes, %d events", version, x.EndReason, x.ResponseBytes.V, len(x.EventGapUS))
			}
		}
		c.Close()
		s.Close()
	}
}
