package replayer

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/replayer/client"
	"github.com/shadowtape/shadowtape/replayer/prompt"
)

// scripted is a server on pipes whose answers a test writes byte by byte.
type scripted struct {
	answer func(w io.Writer, n int, r *http.Request, body []byte) error // n counts requests from 0; an error closes the connection
	mu     sync.Mutex
	n      int
	dials  int
	bodies []string
	seen   []time.Time
	wg     sync.WaitGroup
	refuse bool

	slowDial time.Duration
}

func (s *scripted) dial(ctx context.Context, network, address string) (net.Conn, error) {
	time.Sleep(s.slowDial)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dials++
	if s.refuse {
		return nil, errors.New("connection refused")
	}
	client, server := net.Pipe()
	s.wg.Go(func() {
		defer server.Close()
		b := bufio.NewReader(server)
		for {
			r, err := http.ReadRequest(b)
			if err != nil {
				return
			}
			body, err := io.ReadAll(r.Body)
			if err != nil {
				return
			}
			s.mu.Lock()
			n := s.n
			s.n++
			s.bodies = append(s.bodies, string(body))
			s.seen = append(s.seen, time.Now())
			s.mu.Unlock()
			if s.answer(server, n, r, body) != nil {
				return
			}
		}
	})
	return client, nil
}

func chunk(s string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(s), s) }

const (
	sseHead  = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
	jsonHead = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
	role     = `data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}` + "\n\n"
	token    = `data: {"choices":[{"index":0,"delta":{"content":"x"}}]}` + "\n\n"
	stop     = `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n"
	done     = "data: [DONE]\n\n"
)

func usageEvent(in, out int) string {
	return fmt.Sprintf(`data: {"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d}}`+"\n\n", in, out)
}

// say writes pieces, sleeping before each as told; durations and strings alternate freely.
func say(w io.Writer, parts ...any) error {
	for _, p := range parts {
		switch v := p.(type) {
		case time.Duration:
			time.Sleep(v)
		case string:
			if _, err := io.WriteString(w, v); err != nil {
				return err
			}
		}
	}
	return nil
}

// stream answers with tokens: the first after ttft, the others itl apart.
func stream(ttft, itl time.Duration, tokens int) func(io.Writer, int, *http.Request, []byte) error {
	return func(w io.Writer, _ int, _ *http.Request, _ []byte) error {
		if err := say(w, sseHead, chunk(role), ttft, chunk(token)); err != nil {
			return err
		}
		for range tokens - 1 {
			if err := say(w, itl, chunk(token)); err != nil {
				return err
			}
		}
		return say(w, chunk(stop), chunk(usageEvent(7, tokens)), chunk(done), "0\r\n\r\n")
	}
}

// sink keeps rows.
type sink struct {
	mu   sync.Mutex
	rows []*formats.Exchange
	fail error
}

func (s *sink) Write(x *formats.Exchange) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fail != nil {
		return s.fail
	}
	s.rows = append(s.rows, x)
	return nil
}

// byIndex are the rows in the schedule's order.
func (s *sink) byIndex() []*formats.Exchange {
	out := slices.Clone(s.rows)
	slices.SortFunc(out, func(a, b *formats.Exchange) int { return int(a.ArrivalIndex.V - b.ArrivalIndex.V) })
	return out
}

// at is a schedule of chat requests.
func at(offsets ...time.Duration) Schedule {
	return func(yield func(Arrival, error) bool) {
		for i, d := range offsets {
			x := &formats.Exchange{ExchangeID: int64(i + 1), Phase: formats.PhaseRecord, InputTokens: formats.Of(int64(7)), OutputTokens: formats.Of(int64(3))}
			if !yield(Arrival{At: d, Exchange: x}, nil) {
				return
			}
		}
	}
}

func every(d time.Duration, n int) Schedule {
	offsets := make([]time.Duration, n)
	for i := range offsets {
		offsets[i] = time.Duration(i) * d
	}
	return at(offsets...)
}

// prompts are those of a server of which nothing is known.
func prompts(t *testing.T) *prompt.Maker {
	t.Helper()
	p, err := prompt.New(prompt.Options{Model: "m"})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// replayed runs a schedule against a scripted server. It must be called in a bubble of testing/synctest.
func replayed(t *testing.T, ctx context.Context, s *scripted, sch Schedule, o Options, co client.Options) (Stats, []*formats.Exchange) {
	t.Helper()
	co.Targets, co.Dial = []string{"http://target"}, s.dial
	c, err := client.New(co)
	if err != nil {
		t.Fatal(err)
	}
	vllm, _ := prompt.DialectNamed("vllm")
	p, err := prompt.New(prompt.Options{Model: "m", Dialect: vllm})
	if err != nil {
		t.Fatal(err)
	}
	if o.Sleep == nil {
		o.Sleep = SleepTimer
	}
	var dst sink
	st, err := Replay(ctx, sch, p, c, &dst, o)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	s.wg.Wait()
	conserved(t, st, dst.rows)
	return st, dst.byIndex()
}

// conserved checks the counters against each other and against the rows.
func conserved(t *testing.T, st Stats, rows []*formats.Exchange) {
	t.Helper()
	r := st.Requests
	if r.Scheduled != r.Sent+r.Dropped || r.Sent != r.Completed+r.Failed+r.Aborted+r.RunEnd {
		t.Errorf("not conserved: %+v", r)
	}
	var c formats.RequestCounts
	seen := map[int64]bool{}
	for _, x := range rows {
		if seen[x.ArrivalIndex.V] {
			t.Errorf("arrival %d has two rows", x.ArrivalIndex.V)
		}
		seen[x.ArrivalIndex.V] = true
		c.Scheduled++
		switch {
		case x.EndReason == formats.EndNotSent:
			c.Dropped++
			continue
		case x.EndReason == formats.EndRunEnd:
			c.RunEnd++
		case x.EndReason == formats.EndClientAbort:
			c.Aborted++
		case x.Failed():
			c.Failed++
		default:
			c.Completed++
		}
		c.Sent++
	}
	if c != r {
		t.Errorf("counters say %+v, rows say %+v", r, c)
	}
	var kinds, drops int64
	for _, n := range st.Errors {
		kinds += n
	}
	for _, n := range st.Dropped {
		drops += n
	}
	if kinds != r.Failed || drops != r.Dropped {
		t.Errorf("%d failed but kinds %v; %d dropped but %v", r.Failed, st.Errors, r.Dropped, st.Dropped)
	}
}
