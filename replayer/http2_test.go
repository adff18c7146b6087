package replayer

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/replayer/client"
	"github.com/shadowtape/shadowtape/replayer/prompt"
)

// pipes is a server of HTTP/2 on pipes, bare enough to run on a virtual clock.
type pipes struct {
	handler http.HandlerFunc
	raw     func(c net.Conn, n int) // instead of the handler; n counts connections from 0
	streams uint32                  // at once on a connection; 0: no limit is said
	slow    time.Duration           // before a window is opened again
	tls     *tls.Config             // nil: HTTP/2 by prior knowledge
	lag     time.Duration           // with which the client reads the first connection
	mu      sync.Mutex
	dials   int
	wg      sync.WaitGroup
}

func (s *pipes) dial(ctx context.Context, network, address string) (net.Conn, error) {
	client, server := net.Pipe()
	if s.tls != nil {
		server = tls.Server(server, s.tls)
	}
	s.mu.Lock()
	n := s.dials
	s.dials++
	s.mu.Unlock()
	if n == 0 && s.lag > 0 {
		client = laggard{client, s.lag}
	}
	s.wg.Go(func() {
		defer server.Close()
		if s.raw != nil {
			s.raw(server, n)
			return
		}
		s.serve(server)
	})
	return client, nil
}

// serve answers the requests of a connection, each by a goroutine of its own.
func (s *pipes) serve(c net.Conn) {
	preface := make([]byte, len(http2.ClientPreface))
	if _, err := io.ReadFull(c, preface); err != nil {
		return
	}
	k := &serving{c: c}
	k.fr = http2.NewFramer(&k.out, nil)
	var settings []http2.Setting
	if s.streams > 0 {
		settings = append(settings, http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: s.streams})
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	say := func(frame func(*http2.Framer)) { wg.Go(func() { k.say(frame) }) } // a pipe takes no write while the other side writes
	say(func(f *http2.Framer) { f.WriteSettings(settings...) })
	r := http2.NewFramer(nil, c)
	r.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	open := map[uint32]*answering{}
	for {
		f, err := r.ReadFrame()
		if err != nil {
			for _, a := range open {
				a.cancel()
			}
			return
		}
		switch f := f.(type) {
		case *http2.MetaHeadersFrame:
			a := &answering{k: k, id: f.StreamID, header: http.Header{}}
			if s.streams > 0 && uint32(k.open.Load()) >= s.streams {
				say(func(w *http2.Framer) { w.WriteRSTStream(a.id, http2.ErrCodeRefusedStream) })
				continue
			}
			k.open.Add(1)
			open[a.id] = a
			a.r, _ = http.NewRequest("POST", f.PseudoValue("path"), nil)
			var ctx context.Context
			ctx, a.cancel = context.WithCancel(context.Background())
			a.r = a.r.WithContext(ctx)
			for _, v := range f.RegularFields() {
				a.r.Header.Add(v.Name, v.Value)
			}
		case *http2.DataFrame:
			a := open[f.StreamID]
			if a == nil {
				continue
			}
			a.body = append(a.body, f.Data()...)
			if n := f.Length; n > 0 {
				wg.Go(func() {
					time.Sleep(s.slow)
					k.say(func(w *http2.Framer) {
						w.WriteWindowUpdate(0, n)
						w.WriteWindowUpdate(a.id, n)
					})
				})
			}
			if f.StreamEnded() {
				a.r.Body = io.NopCloser(bytes.NewReader(a.body))
				wg.Go(func() { a.answer(s.handler) })
			}
		case *http2.RSTStreamFrame:
			if a := open[f.StreamID]; a != nil {
				a.cancel()
			}
		}
	}
}

// serving is a connection's writing side.
type serving struct {
	c    net.Conn
	mu   sync.Mutex
	out  bytes.Buffer
	fr   *http2.Framer
	open atomic.Int64
}

func (k *serving) say(frame func(*http2.Framer)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	frame(k.fr)
	k.c.Write(k.out.Bytes()) // fails once the client has gone
	k.out.Reset()
}

// answering is one request and the ResponseWriter of its answer.
type answering struct {
	k      *serving
	id     uint32
	r      *http.Request
	cancel context.CancelFunc
	body   []byte
	header http.Header
	status int
	said   bool
	text   []byte
}

func (a *answering) Header() http.Header { return a.header }

func (a *answering) WriteHeader(status int) { a.status = status }

func (a *answering) Write(p []byte) (int, error) {
	a.text = append(a.text, p...)
	return len(p), nil
}

func (a *answering) Flush() { a.flush(false) }

func (a *answering) flush(end bool) {
	if a.r.Context().Err() != nil {
		return
	}
	a.k.say(func(w *http2.Framer) {
		if !a.said {
			a.said = true
			var b bytes.Buffer
			e := hpack.NewEncoder(&b)
			e.WriteField(hpack.HeaderField{Name: ":status", Value: strconv.Itoa(cmp.Or(a.status, 200))})
			for k, v := range a.header {
				e.WriteField(hpack.HeaderField{Name: strings.ToLower(k), Value: v[0]})
			}
			w.WriteHeaders(http2.HeadersFrameParam{StreamID: a.id, BlockFragment: b.Bytes(), EndHeaders: true})
		}
		w.WriteData(a.id, end, a.text)
		a.text = nil
	})
}

func (a *answering) answer(h http.HandlerFunc) {
	defer a.k.open.Add(-1)
	defer func() {
		if recover() != nil {
			a.k.say(func(w *http2.Framer) { w.WriteRSTStream(a.id, http2.ErrCodeInternal) })
		}
	}()
	h(a, a.r)
	a.flush(true)
}

// replayed2 runs a schedule against such a server, in a bubble of testing/synctest.
func replayed2(t *testing.T, ctx context.Context, s *pipes, sch Schedule, o Options, co client.Options) (Stats, []*formats.Exchange) {
	t.Helper()
	co.Targets, co.Dial, co.HTTP = []string{"http://target/base"}, s.dial, "2"
	if s.tls != nil {
		co.Targets, co.HTTP, co.TLS = []string{"https://target/base"}, "", &tls.Config{InsecureSkipVerify: true}
	}
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

// tell writes to an answer as say does, each piece at once.
func tell(w http.ResponseWriter, parts ...any) {
	for _, p := range parts {
		switch v := p.(type) {
		case time.Duration:
			time.Sleep(v)
		case string:
			io.WriteString(w, v)
			http.NewResponseController(w).Flush()
		}
	}
}

func events(w http.ResponseWriter) { w.Header().Set("Content-Type", "text/event-stream") }

// The same server takes the same times over HTTP/2, however many streams share a connection.
func TestHTTP2TimesAreExact(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &pipes{handler: func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if err != nil || r.URL.Path != "/base/v1/chat/completions" || r.Header.Get("X-Request-Id") == "" || r.Header.Get("Content-Type") != "application/json" || r.Header.Get("Content-Length") != strconv.Itoa(len(body)) {
				t.Errorf("%s of %d bytes, %v: %v", r.URL, len(body), r.Header, err)
			}
			events(w)
			tell(w, role, 50*ms, token, 10*ms, token, 10*ms, token, stop, usageEvent(7, 3), done)
		}}
		st, rows := replayed2(t, t.Context(), s, every(3*ms, 40), Options{}, client.Options{})
		if st.Requests.Completed != 40 || s.dials != 1 {
			t.Fatalf("%+v %v, %d connections", st.Requests, st.Errors, s.dials)
		}
		for i, x := range rows {
			if x.SentNS.V != 0 || x.RequestEndNS.V != 0 || x.FirstTokenNS.V != int64(50*ms) || x.LastTokenNS.V != int64(70*ms) || x.EndNS.V != int64(70*ms) || x.ResponseHeaderNS.V != 0 {
				t.Errorf("%d: sent %d, first token %d, last %d, end %d", i, x.SentNS.V, x.FirstTokenNS.V, x.LastTokenNS.V, x.EndNS.V)
			}
			if !slices.Equal(x.EventGapUS, []int32{0, 10000, 10000}) || x.ConnReused.V != (i > 0) || x.Attempt.V != 1 || x.FinishReason != "stop" || x.Status.V != 200 {
				t.Errorf("%d: gaps %v, reused %v, attempt %v, %s", i, x.EventGapUS, x.ConnReused.V, x.Attempt.V, x.FinishReason)
			}
		}
	})
}

// A connection that is full is no reason to wait: the next request gets another one, ahead of time where the schedule is known.
func TestHTTP2NothingWaitsForAStream(t *testing.T) {
	for _, cold := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := &pipes{streams: 2, handler: func(w http.ResponseWriter, r *http.Request) {
				events(w)
				tell(w, time.Hour, token, stop, done)
			}}
			st, rows := replayed2(t, t.Context(), s, every(ms, 9), Options{Cold: cold}, client.Options{Timeout: 2 * time.Hour})
			if st.Requests.Completed != 9 || s.dials < 5 {
				t.Fatalf("%+v %v, %d connections", st.Requests, st.Errors, s.dials)
			}
			for i, x := range rows {
				if x.SentNS.V != 0 || x.FirstTokenNS.V != int64(time.Hour) {
					t.Errorf("%d: sent %v, first token %v", i, time.Duration(x.SentNS.V), time.Duration(x.FirstTokenNS.V))
				}
			}
		})
	}
}

// Where a target offers HTTP/2 it is spoken, each answer on a connection of its own: no event shares a read with another answer's. A
// connection is used again, and closed once it has long been of no use.
func TestHTTP2WhereOffered(t *testing.T) {
	pair := httptest.NewUnstartedServer(http.NotFoundHandler())
	pair.StartTLS()
	pair.Close()
	synctest.Test(t, func(t *testing.T) {
		s := &pipes{handler: func(w http.ResponseWriter, r *http.Request) {
			events(w)
			tell(w, role, 50*ms, token, 10*ms, token, 10*ms, token, stop, usageEvent(7, 3), done)
		}}
		s.tls = &tls.Config{Certificates: pair.TLS.Certificates, NextProtos: []string{"h2"}, SessionTicketsDisabled: true} // tickets wait to be read, on a pipe
		var offsets []time.Duration
		for _, burst := range []time.Duration{0, 3 * time.Second, 20 * time.Second} {
			for range 10 {
				offsets = append(offsets, burst)
			}
		}
		st, rows := replayed2(t, t.Context(), s, at(offsets...), Options{}, client.Options{})
		if st.Requests.Completed != 30 || st.Quality.Coalesced != 0 || st.Quality.Events != 90 || s.dials < 20 || s.dials > 24 {
			t.Fatalf("%+v %v, %d of %d coalesced, %d connections", st.Requests, st.Errors, st.Quality.Coalesced, st.Quality.Events, s.dials)
		}
		for i, x := range rows {
			if x.FirstTokenNS.V != int64(50*ms) || x.LastTokenNS.V != int64(70*ms) || x.SentNS.V != 0 || x.TLSNS.Valid {
				t.Errorf("%d: sent %d, first token %d, last %d, tls %v", i, x.SentNS.V, x.FirstTokenNS.V, x.LastTokenNS.V, x.TLSNS)
			}
			if second := i >= 10 && i < 20; second != x.ConnReused.V {
				t.Errorf("%d: reused %t", i, x.ConnReused.V)
			}
		}
	})
}

// A body larger than the windows is sent as the server opens them, and arrives whole; what it waited stands in the row.
func TestHTTP2LargeBodies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []int
		s := &pipes{slow: 30 * ms, handler: func(w http.ResponseWriter, r *http.Request) {
			b, err := io.ReadAll(r.Body)
			if err != nil || b[0] != '{' || b[len(b)-1] != '}' {
				t.Errorf("%d bytes, %v", len(b), err)
			}
			got = append(got, len(b))
			events(w)
			tell(w, token, stop, usageEvent(7, 1), done)
		}}
		sch := func(yield func(Arrival, error) bool) {
			for i := range 2 {
				x := &formats.Exchange{ExchangeID: int64(i + 1), InputTokens: formats.Of(int64(1 + i*1_000_000)), OutputTokens: formats.Of(int64(1))}
				if !yield(Arrival{At: time.Duration(i) * time.Second, Exchange: x}, nil) {
					return
				}
			}
		}
		st, rows := replayed2(t, t.Context(), s, sch, Options{}, client.Options{})
		if st.Requests.Completed != 2 || got[1] < 4<<20 || int64(got[1]) != rows[1].RequestBytes.V {
			t.Fatalf("%+v %v, bodies of %v, row says %v", st.Requests, st.Errors, got, rows[1].RequestBytes)
		}
		if rows[0].RequestEndNS.V != 0 || rows[1].SentNS.V != 0 || rows[1].RequestEndNS.V%int64(30*ms) != 0 || rows[1].RequestEndNS.V < int64(30*ms) {
			t.Errorf("sent %v, whole after %v", time.Duration(rows[1].SentNS.V), time.Duration(rows[1].RequestEndNS.V))
		}
	})
}

func TestHTTP2Aborts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan time.Time, 2)
		s := &pipes{handler: func(w http.ResponseWriter, r *http.Request) {
			events(w)
			for r.Context().Err() == nil {
				tell(w, 10*ms, token)
			}
			ended <- time.Now()
		}}
		sch := func(yield func(Arrival, error) bool) {
			for i, x := range []*formats.Exchange{{OutputTokens: formats.Of(int64(3))}, {EndNS: formats.Of(int64(45 * ms))}} {
				x.ExchangeID, x.InputTokens, x.EndReason = int64(i+1), formats.Of(int64(7)), formats.EndClientAbort
				if !yield(Arrival{At: time.Duration(i) * time.Second, Exchange: x}, nil) {
					return
				}
			}
		}
		st, rows := replayed2(t, t.Context(), s, sch, Options{}, client.Options{})
		if st.Requests.Aborted != 2 || s.dials != 1 || len(rows[0].EventGapUS) != 3 || rows[0].EndNS.V != int64(30*ms) || rows[1].EndNS.V != int64(45*ms) || !rows[1].PlannedAbort.V {
			t.Errorf("%+v, %d connections, %d events until %v, then until %v", st.Requests, s.dials, len(rows[0].EventGapUS), time.Duration(rows[0].EndNS.V), time.Duration(rows[1].EndNS.V))
		}
		for range 2 { // the server learns of it, and the connection lives on
			if at := (<-ended).Sub(st.Start) % time.Second; at > 60*ms {
				t.Errorf("the server still answered after %v", at)
			}
		}
	})
}

// Each fault of a target has the name that it has over HTTP/1.1.
func TestHTTP2FaultsOfTheTarget(t *testing.T) {
	half := func(w http.ResponseWriter) { events(w); tell(w, 10*ms, token, 10*ms, token) }
	for _, c := range []struct {
		name   string
		answer http.HandlerFunc
		kind   string
		reason formats.EndReason
		status int32
		after  time.Duration
	}{
		{"429 with retry-after", func(w http.ResponseWriter, r *http.Request) { w.Header().Set("Retry-After", "3"); w.WriteHeader(429) }, "http_429", formats.EndComplete, 429, 0},
		{"500", func(w http.ResponseWriter, r *http.Request) { http.Error(w, "boom", 500) }, "http_500", formats.EndComplete, 500, 0},
		{"302", func(w http.ResponseWriter, r *http.Request) { w.Header().Set("Location", "/login"); w.WriteHeader(302) }, "http_302", formats.EndComplete, 302, 0},
		{"html", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			tell(w, "<html>")
		}, formats.ErrorHTML, formats.EndComplete, 200, 0},
		{"plain text", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/plain")
			tell(w, "hello")
		}, formats.ErrorContentType, formats.EndComplete, 200, 0},
		{"compressed unasked", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			events(w)
			tell(w, "\x1f\x8b")
		}, formats.ErrorContentType, formats.EndComplete, 200, 0},
		{"reset before it answers", func(w http.ResponseWriter, r *http.Request) { panic(http.ErrAbortHandler) }, formats.ErrorReset, formats.EndServerAbort, 0, 0},
		{"reset half way", func(w http.ResponseWriter, r *http.Request) { half(w); panic(http.ErrAbortHandler) }, formats.ErrorReset, formats.EndServerAbort, 200, 20 * ms},
		{"stream ends without a reason", func(w http.ResponseWriter, r *http.Request) { half(w) }, formats.ErrorIncomplete, formats.EndComplete, 200, 20 * ms},
		{"error in the stream", func(w http.ResponseWriter, r *http.Request) {
			half(w)
			tell(w, `data: {"error":{"message":"no"}}`+"\n\n", done)
		}, formats.ErrorInStream, formats.EndErrorInStream, 200, 20 * ms},
		{"stall", func(w http.ResponseWriter, r *http.Request) { half(w); <-r.Context().Done() }, formats.ErrorStall, formats.EndTimeout, 200, time.Minute},
		{"slow head", func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, formats.ErrorTimeout, formats.EndTimeout, 0, time.Minute},
		{"endless stream", func(w http.ResponseWriter, r *http.Request) {
			for events(w); r.Context().Err() == nil; {
				tell(w, 100*ms, token)
			}
		}, formats.ErrorEndless, formats.EndTimeout, 200, time.Minute},
		{"no token", func(w http.ResponseWriter, r *http.Request) { events(w); tell(w, role, stop, done) }, formats.ErrorNoTokens, formats.EndComplete, 200, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &pipes{handler: c.answer}
				st, rows := replayed2(t, t.Context(), s, at(0, time.Second), Options{}, client.Options{Timeout: time.Minute})
				if st.Requests.Failed != 2 || st.Errors[c.kind] != 2 || s.dials != 1 {
					t.Fatalf("%+v %v, %d connections", st.Requests, st.Errors, s.dials)
				}
				x := rows[0]
				if x.EndReason != c.reason || x.Status.V != c.status || x.EndNS.V != int64(c.after) {
					t.Errorf("%s, status %v, end %v", x.EndReason, x.Status, time.Duration(x.EndNS.V))
				}
			})
		})
	}
}

func TestHTTP2RunEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		s := &pipes{handler: func(w http.ResponseWriter, r *http.Request) { events(w); tell(w, token); <-r.Context().Done() }}
		time.AfterFunc(10*time.Second, cancel)
		st, _ := replayed2(t, ctx, s, every(time.Second, 100), Options{}, client.Options{})
		if !st.Interrupted || st.Requests.RunEnd != st.Requests.Scheduled || st.Requests.RunEnd < 9 {
			t.Errorf("%+v", st.Requests)
		}
	})
}

// byHand reads requests off a connection as frames, until it ends; each gets the stream of every request once its body is whole.
func byHand(c net.Conn, each func(w *http2.Framer, out *bytes.Buffer, id uint32)) {
	preface := make([]byte, len(http2.ClientPreface))
	if _, err := io.ReadFull(c, preface); err != nil {
		return
	}
	var out bytes.Buffer
	w := http2.NewFramer(&out, nil)
	go func() { // a pipe takes no write while its reader writes
		f := http2.NewFramer(c, nil)
		f.WriteSettings()
	}()
	r := http2.NewFramer(nil, c)
	for {
		f, err := r.ReadFrame()
		if err != nil {
			return
		}
		if d, ok := f.(*http2.DataFrame); ok && d.StreamEnded() {
			each(w, &out, d.StreamID)
			if out.Len() > 0 {
				c.Write(out.Bytes())
				out.Reset()
			}
		}
	}
}

func head200(w *http2.Framer, id uint32) {
	var b bytes.Buffer
	e := hpack.NewEncoder(&b)
	e.WriteField(hpack.HeaderField{Name: ":status", Value: "200"})
	e.WriteField(hpack.HeaderField{Name: "content-type", Value: "text/event-stream"})
	w.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: b.Bytes(), EndHeaders: true})
}

// Events that came in one read are coalesced, whichever streams they belong to: all but the first of them.
func TestHTTP2EventsOfOneReadAreCoalesced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var open []uint32
		s := &pipes{raw: func(c net.Conn, n int) {
			byHand(c, func(w *http2.Framer, out *bytes.Buffer, id uint32) {
				head200(w, id)
				w.WriteData(id, false, []byte(token))
				if open = append(open, id); len(open) < 3 {
					return
				}
				c.Write(out.Bytes())
				out.Reset()
				time.Sleep(10 * ms)
				for _, id := range open {
					w.WriteData(id, false, []byte(token))
				}
				c.Write(out.Bytes())
				out.Reset()
				time.Sleep(10 * ms)
				for _, id := range open {
					w.WriteData(id, true, []byte(stop+usageEvent(7, 2)+done))
				}
			})
		}}
		st, rows := replayed2(t, t.Context(), s, at(0, ms, 2*ms), Options{}, client.Options{})
		if st.Requests.Completed != 3 || s.dials != 1 || st.Quality.Events != 6 || st.Quality.Coalesced != 2 {
			t.Fatalf("%+v %v, %d connections, %d of %d coalesced", st.Requests, st.Errors, s.dials, st.Quality.Coalesced, st.Quality.Events)
		}
		for i, x := range rows {
			if want := int64(12-i) * int64(ms); x.LastTokenNS.V != want || x.FirstTokenNS.V != 0 {
				t.Errorf("%d: first %v, last %v", i, time.Duration(x.FirstTokenNS.V), time.Duration(x.LastTokenNS.V))
			}
			if coalesced := x.EventFlags != nil && x.EventFlags[1]&formats.FlagCoalesced != 0; coalesced != (i > 0) {
				t.Errorf("%d: flags %v", i, x.EventFlags)
			}
		}
	})
}

func TestHTTP2Options(t *testing.T) {
	for _, o := range []client.Options{{Targets: []string{"http://a"}, HTTP: "3"}, {Targets: []string{"http://a"}, Header: http.Header{"Te": {"trailers"}}}} {
		if o.Validate() == nil {
			t.Errorf("%+v is accepted", o)
		}
	}
}
