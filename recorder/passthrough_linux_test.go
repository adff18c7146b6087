package recorder

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/openai"
	"github.com/shadowtape/shadowtape/recorder/proxy"
)

func listenLocal(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// freeAddress is a loopback address that nobody listens on.
func freeAddress(t *testing.T) string {
	l := listenLocal(t)
	defer l.Close()
	return l.Addr().String()
}

// runProxy runs a proxy into a spool while f runs.
func runProxy(t *testing.T, p *Proxy, s func() *Spool, f func(base string)) (Stats, error) {
	t.Helper()
	p.Listener, p.Key = listenLocal(t), liveKey
	base := "http://" + p.Listener.Addr().String()
	if err := p.Prepare(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	spool := s()
	p.Begin, p.Forget = spool.Begin, spool.Forget
	done := make(chan struct{})
	var st Stats
	var err error
	go func() {
		defer close(done)
		st, err = RecordLive(func(emit func(*formats.Exchange)) error { return p.Run(ctx, Filter{}, emit) }, spool)
	}()
	f(base)
	cancel()
	select {
	case <-done:
	case <-time.After(2 * time.Minute):
		t.Fatal("the proxy does not end")
	}
	return st, err
}

// faultySegments is a writer with faults.
type faultySegments struct {
	mu     sync.Mutex
	rows   []*formats.Exchange
	flying map[int64]bool
	id     int64
	write  func(n int) error // before row n is taken
	begin  func() error
	closed int
	h      formats.Header
}

func (w *faultySegments) Begin(x *formats.Exchange) error {
	if w.begin != nil {
		if err := w.begin(); err != nil {
			return err
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.flying == nil {
		w.flying = map[int64]bool{}
	}
	w.id++
	x.ExchangeID = w.id
	w.flying[x.ExchangeID] = true
	return nil
}

func (w *faultySegments) Full() bool { return false }

func (w *faultySegments) Forget(id int64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.flying, id)
	return nil
}

func (w *faultySegments) Write(x *formats.Exchange) error {
	w.mu.Lock()
	n := len(w.rows)
	w.mu.Unlock()
	if w.write != nil {
		if err := w.write(n); err != nil {
			return err
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if x.ExchangeID == 0 {
		w.id++
		x.ExchangeID = w.id
	}
	delete(w.flying, x.ExchangeID)
	w.rows = append(w.rows, x)
	return nil
}

func (w *faultySegments) WriteServer([]formats.ServerSample) error { return nil }
func (w *faultySegments) WriteGPU([]formats.GPUSample) error       { return nil }
func (w *faultySegments) Rotate() error                            { return nil }
func (w *faultySegments) Header() *formats.Header                  { return &w.h }
func (w *faultySegments) Close() error                             { w.closed++; return nil }

func addsUp(t *testing.T, c formats.Counters) {
	t.Helper()
	if c.Seen != c.Filtered+c.Dropped+c.Written {
		t.Errorf("seen %d, filtered %d, dropped %d, written %d: they do not add up", c.Seen, c.Filtered, c.Dropped, c.Written)
	}
	var reasons int64
	for _, n := range c.Reasons {
		reasons += n
	}
	if reasons != c.Filtered+c.Dropped {
		t.Errorf("the reasons are for %d exchanges, %d were filtered or dropped: %v", reasons, c.Filtered+c.Dropped, c.Reasons)
	}
}

func TestProxyRecords(t *testing.T) {
	up := freeAddress(t)
	emissions := simIn(t, nil, up)
	w := &faultySegments{}
	st, err := runProxy(t, &Proxy{Options: proxy.Options{Upstream: up}}, func() *Spool { return NewSpool(w, nil, SpoolOptions{}) }, func(base string) {
		askSim(t, nil, base, 60, 20)
	})
	if err != nil {
		t.Fatal(err)
	}
	compareLive(t, w.rows, SourceStats{}, emissions(), 60)
	if st.Written != 60 || len(w.flying) != 0 {
		t.Errorf("%+v, %d still in flight", st.Counters, len(w.flying))
	}
	addsUp(t, st.Counters)
	for _, x := range w.rows {
		if x.Clock != formats.ClockUser || x.ServerID != up {
			t.Fatalf("clock %s, server %s", x.Clock, x.ServerID)
		}
	}
}

// TestProxyFaults breaks each part of the recording side in turn. No client notices, and everything is counted.
func TestProxyFaults(t *testing.T) {
	const n = 40
	full := fmt.Errorf("write trace x: %w", formats.ErrFull)
	hang := make(chan struct{})
	for _, c := range []struct {
		name  string
		w     *faultySegments
		spool SpoolOptions
		proxy proxy.Options
		begin func(x, known *formats.Exchange)
		check func(t *testing.T, w *faultySegments, st Stats, err error)
	}{
		{name: "slow disk", w: &faultySegments{write: func(int) error { time.Sleep(20 * time.Millisecond); return nil }},
			check: func(t *testing.T, w *faultySegments, st Stats, err error) {
				if st.Written != n || err != nil {
					t.Errorf("%+v %v", st.Counters, err)
				}
			}},
		{name: "full queue", w: &faultySegments{write: func(int) error { <-hang; return nil }}, spool: SpoolOptions{QueueBytes: 4000},
			check: func(t *testing.T, w *faultySegments, st Stats, err error) {
				if st.Reasons["dropped_queue_full"] == 0 || st.Written == 0 || st.Written+st.Dropped != n {
					t.Errorf("%+v", st.Counters)
				}
			}},
		{name: "full disk, then room", w: &faultySegments{write: func() func(int) error {
			tries := 0
			return func(int) error {
				if tries++; tries <= 10 {
					return full
				}
				return nil
			}
		}()}, check: func(t *testing.T, w *faultySegments, st Stats, err error) {
			if st.Reasons["dropped_disk_full"] != 10 || st.Written != n-10 || err != nil || len(st.Warnings) != 1 {
				t.Errorf("%+v %v %q", st.Counters, err, st.Warnings)
			}
		}},
		{name: "broken disk", w: &faultySegments{write: func(n int) error {
			if n == 5 {
				return errors.New("input/output error")
			}
			return nil
		}}, check: func(t *testing.T, w *faultySegments, st Stats, err error) {
			if st.Written != 5 || st.Reasons["dropped_writer_failed"] != n-5 || err == nil || w.closed != 1 {
				t.Errorf("%+v %v", st.Counters, err)
			}
		}},
		{name: "journal fails", w: &faultySegments{begin: func() error { return full }},
			check: func(t *testing.T, w *faultySegments, st Stats, err error) {
				if st.Written != n {
					t.Errorf("%+v %v", st.Counters, err)
				}
			}},
		{name: "parser panics", w: &faultySegments{}, begin: func() func(x, _ *formats.Exchange) {
			count := 0
			return func(x, _ *formats.Exchange) {
				if count++; count%4 == 0 {
					panic("parser")
				}
			}
		}(), check: func(t *testing.T, w *faultySegments, st Stats, err error) {
			if st.Reasons["dropped_parser_panic"] != n/4 || st.Notes["parser_panics"] < n/4 || st.Written < n/4 || err != nil {
				t.Errorf("%+v %v", st.Counters, err)
			}
		}},
		{name: "no backlog", w: &faultySegments{}, proxy: proxy.Options{BacklogBytes: 3000},
			check: func(t *testing.T, w *faultySegments, st Stats, err error) {
				if st.Notes["backlog_lost_bytes"] == 0 || err != nil {
					t.Errorf("%+v %v", st.Counters, err)
				}
				for _, x := range w.rows {
					if x.GapBytes.Or(0) != 0 || x.EndReason == formats.EndComplete && x.OutputTokens.V != int64(len(x.EventGapUS)) {
						t.Errorf("a damaged exchange was written: %+v", x)
					}
				}
			}},
	} {
		t.Run(c.name, func(t *testing.T) {
			up := freeAddress(t)
			emissions := simIn(t, nil, up)
			c.proxy.Upstream = up
			p := &Proxy{Options: c.proxy}
			var spool *Spool
			st, err := runProxy(t, p, func() *Spool {
				spool = NewSpool(c.w, p.Stats, c.spool)
				return spool
			}, func(base string) {
				if c.begin != nil {
					p.Begin = c.begin
					p.working.Lock()
					if p.engine != nil {
						p.engine.begin = c.begin
					}
					p.working.Unlock()
				}
				askSim(t, nil, base, n, 10) // fails the test if a client notices
				if c.name == "full queue" {
					close(hang)
				}
			})
			addsUp(t, st.Counters)
			c.check(t, c.w, st, err)
			if e := emissions(); len(e) != n {
				t.Errorf("%d of %d requests reached the server", len(e), n)
			}
			if len(c.w.flying) != 0 && c.name != "broken disk" {
				t.Errorf("%d exchanges are still in flight in the journal", len(c.w.flying))
			}
		})
	}
}

// TestProxyCut: what is open when the grace period ends is cut, not aborted by anybody.
func TestProxyCut(t *testing.T) {
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})}
	l := listenLocal(t)
	go server.Serve(l)
	defer server.Close()
	w := &faultySegments{}
	_, err := runProxy(t, &Proxy{Options: proxy.Options{Upstream: l.Addr().String(), Grace: 200 * time.Millisecond}}, func() *Spool { return NewSpool(w, nil, SpoolOptions{}) }, func(base string) {
		resp, err := http.Post(base+"/v1/chat/completions", "application/json", strings.NewReader(`{"model":"m","stream":true,"messages":[]}`))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { resp.Body.Close() })
		if _, err := resp.Body.Read(make([]byte, 10)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond)
	})
	if err != nil || len(w.rows) != 1 || w.rows[0].EndReason != formats.EndCaptureCut {
		t.Errorf("%v, %d rows: %+v", err, len(w.rows), w.rows)
	}
}

func TestSelectionInProxy(t *testing.T) {
	up := freeAddress(t)
	simIn(t, nil, up)
	w := &faultySegments{}
	p := &Proxy{Options: proxy.Options{Upstream: up}, Select: Selection{Paths: []string{"*/chat/completions"}, Statuses: []string{"4xx"}}}
	st, err := runProxy(t, p, func() *Spool { return NewSpool(w, p.Stats, SpoolOptions{}) }, func(base string) {
		askSim(t, nil, base, 10, 3)
		for range 5 {
			resp, err := http.Post(base+"/v1/chat/completions", "application/json", strings.NewReader(`{"model":`))
			if err != nil {
				t.Fatal(err)
			}
			io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			resp, err = http.Post(base+"/v1/completions", "application/json", strings.NewReader(`{"model":`))
			if err != nil {
				t.Fatal(err)
			}
			io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
	})
	if err != nil || st.Written != 5 || st.Reasons["filtered_status"] != 10 || st.Reasons["filtered_path"] != 5 {
		t.Errorf("%v %+v", err, st.Counters)
	}
	addsUp(t, st.Counters)
	if len(w.flying) != 0 {
		t.Errorf("%d in flight", len(w.flying))
	}
}

func TestMirror(t *testing.T) {
	w := &faultySegments{}
	m := &Mirror{Listener: listenLocal(t), Key: liveKey}
	base := "http://" + m.Listener.Addr().String()
	spool := NewSpool(w, m.Stats, SpoolOptions{})
	ctx, cancel := context.WithCancel(context.Background())
	var st Stats
	done := make(chan error, 1)
	go func() {
		var err error
		st, err = RecordLive(func(emit func(*formats.Exchange)) error { return m.Run(ctx, Filter{}, emit) }, spool)
		done <- err
	}()
	h2 := new(http.Protocols)
	h2.SetUnencryptedHTTP2(true)
	clients := []*http.Client{{Timeout: 5 * time.Second}, {Timeout: 5 * time.Second, Transport: &http.Transport{Protocols: h2}}}
	for i := range 20 {
		body := fmt.Sprintf(`{"model":"m","max_tokens":%d,"temperature":0.5,"messages":[{"role":"user","content":%q}]}`, i+1, strings.Repeat("word ", 100*i))
		r, _ := http.NewRequest("POST", base+"/v1/chat/completions", io.MultiReader(strings.NewReader(body[:10]), strings.NewReader(body[10:])))
		r.Header.Set("X-Request-Id", fmt.Sprint("m", i))
		r.Header.Set("Authorization", "Bearer secret")
		resp, err := clients[i%2].Do(r)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != http.StatusAccepted || len(b) != 0 {
			t.Fatalf("%s %q", resp.Status, b)
		}
	}
	for _, r := range []struct{ method, path string }{{"GET", "/health"}, {"POST", "/other"}} {
		q, _ := http.NewRequest(r.method, base+r.path, bytes.NewReader(nil))
		resp, err := clients[0].Do(q)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
	}
	for _, c := range clients {
		c.CloseIdleConnections()
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	addsUp(t, st.Counters)
	if st.Written != 20 || st.Reasons["filtered_endpoint"] != 2 || st.Notes["requests"] != 22 {
		t.Errorf("%+v", st.Counters)
	}
	h := openai.NewHasher(liveKey)
	for i, x := range w.rows {
		if x.CorrelationID.V != h.Sum("request", fmt.Sprint("m", i)) || x.MaxTokens.V != int64(i+1) || x.Temperature.V != 0.5 || x.MessageCount.V != 1 || !x.TenantID.Valid ||
			x.EndReason != formats.EndCaptureCut || x.Status.Valid || x.EndNS.Valid || x.RequestEndNS.V < 0 || len(x.PrefixBlocks) < 3*i || x.RequestModel == "m" {
			t.Errorf("row %d: %+v", i, x)
		}
	}
}

// TestMirrorChargesWhatItReads: bodies of unknown length, many at once, must not outgrow the backlog before their ends are there.
func TestMirrorChargesWhatItReads(t *testing.T) {
	m := &Mirror{Listener: listenLocal(t), Key: liveKey, BacklogBytes: 1 << 20}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx, Filter{}, func(*formats.Exchange) {}) }()
	const conns = 8
	var clients sync.WaitGroup
	for range conns {
		clients.Go(func() {
			from, to := io.Pipe()
			go func() {
				for range 64 {
					if _, err := to.Write(make([]byte, 64<<10)); err != nil {
						return
					}
				}
				to.Close()
			}()
			if resp, err := http.Post("http://"+m.Listener.Addr().String()+"/v1/completions", "application/json", from); err == nil {
				resp.Body.Close()
			}
			from.Close()
		})
	}
	clients.Wait()
	cancel()
	if err := <-done; err != nil || m.Stats().Dropped[droppedBacklog] != conns || m.backlog.held() != 0 {
		t.Errorf("%v, %+v, %d bytes still charged", err, m.Stats(), m.backlog.held())
	}
}

func TestMirrorOverload(t *testing.T) {
	m := &Mirror{Listener: listenLocal(t), Key: liveKey, BacklogBytes: 2000}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	n := 0
	go func() { done <- m.Run(ctx, Filter{}, func(*formats.Exchange) { n++ }) }()
	for range 10 {
		resp, err := http.Post("http://"+m.Listener.Addr().String()+"/v1/completions", "application/json", strings.NewReader(strings.Repeat(" ", 5000)))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusAccepted {
			t.Error(resp.Status)
		}
	}
	cancel()
	if err := <-done; err != nil || n != 0 || m.Stats().Dropped[droppedBacklog] != 10 {
		t.Errorf("%v, %d recorded, %+v", err, n, m.Stats())
	}
}
