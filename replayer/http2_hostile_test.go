package replayer

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/replayer/client"
)

// hostile is a connection of a server of HTTP/2 that means harm. sent counts what its client took: a pipe holds nothing.
type hostile struct {
	t    *testing.T
	c    net.Conn
	sent *atomic.Int64
}

func (h hostile) Write(p []byte) (int, error) {
	n, err := h.c.Write(p)
	h.sent.Add(int64(n))
	return n, err
}

// frames writes frames until the client has had enough, a pause after each hundred: a clock that is virtual stands while others are busy.
func (h hostile) frames(frame func(w *http2.Framer)) {
	var out bytes.Buffer
	w := http2.NewFramer(&out, nil)
	w.AllowIllegalWrites = true
	for {
		for range 100 {
			frame(w)
		}
		if _, err := h.Write(out.Bytes()); err != nil {
			return
		}
		out.Reset()
		time.Sleep(50 * ms)
	}
}

// once writes frames once.
func (h hostile) once(frame func(w *http2.Framer)) {
	var out bytes.Buffer
	w := http2.NewFramer(&out, nil)
	w.AllowIllegalWrites = true
	frame(w)
	h.Write(out.Bytes())
}

// asked reads up to the end of the next request and returns its stream; false where the client has gone.
func (h hostile) asked(r *http2.Framer) (uint32, bool) {
	for {
		f, err := r.ReadFrame()
		if err != nil {
			return 0, false
		}
		if d, ok := f.(*http2.DataFrame); ok && d.StreamEnded() {
			return d.StreamID, true
		}
	}
}

// raw is a frame as bytes.
func rawFrame(kind, flags byte, id uint32, payload string) []byte {
	b := []byte{byte(len(payload) >> 16), byte(len(payload) >> 8), byte(len(payload)), kind, flags, 0, 0, 0, 0}
	binary.BigEndian.PutUint32(b[5:], id)
	return append(b, payload...)
}

func setting(id uint16, v uint32) string {
	b := binary.BigEndian.AppendUint16(nil, id)
	return string(binary.BigEndian.AppendUint32(b, v))
}

// block is an encoded list of header fields.
func block(fields ...string) []byte {
	var b bytes.Buffer
	e := hpack.NewEncoder(&b)
	for i := 0; i < len(fields); i += 2 {
		e.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	return b.Bytes()
}

// A server of HTTP/2 that means harm, over TLS: each exchange ends with its time at the latest, under the name of what happened; what the
// client reads and the connections that it opens are bounded.
func TestHTTP2HostileServer(t *testing.T) {
	pair := httptest.NewUnstartedServer(http.NotFoundHandler())
	pair.StartTLS()
	pair.Close()
	const timeout = time.Minute
	good := func(w *http2.Framer, id uint32) {
		head200(w, id)
		w.WriteData(id, true, []byte(token+stop+usageEvent(7, 1)+done))
	}
	silent := func(hostile, *http2.Framer) {}
	for _, c := range []struct {
		name   string
		first  func(h hostile, w *http2.Framer)            // what comes before the first request; nil: settings
		answer func(h hostile, r *http2.Framer, id uint32) // to each request
		kind   string                                      // "": it completes
		reason formats.EndReason
		at     time.Duration // it ends then at the latest; 0: at once
		most   int64         // bytes that the client takes, over all connections; 0: not looked at
	}{
		{name: "pings, and replies are not read", answer: func(h hostile, _ *http2.Framer, _ uint32) {
			h.frames(func(w *http2.Framer) { w.WritePing(false, [8]byte{1}) })
		}, kind: formats.ErrorProtocol, reason: formats.EndServerAbort, at: time.Second, most: 200_000},
		{name: "settings, and replies are not read", answer: func(h hostile, _ *http2.Framer, _ uint32) {
			h.frames(func(w *http2.Framer) {
				w.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20})
			})
		}, kind: formats.ErrorProtocol, reason: formats.EndServerAbort, at: time.Second, most: 200_000},
		{name: "pings without end", answer: func(h hostile, r *http2.Framer, _ uint32) {
			go h.asked(r)
			h.frames(func(w *http2.Framer) { w.WritePing(false, [8]byte{1}) })
		}, kind: formats.ErrorTimeout, reason: formats.EndTimeout, at: timeout},
		{name: "window updates without end", answer: func(h hostile, r *http2.Framer, id uint32) {
			h.frames(func(w *http2.Framer) { w.WriteWindowUpdate(id, 1) })
		}, kind: formats.ErrorTimeout, reason: formats.EndTimeout, at: timeout},
		{name: "a window update by nothing", answer: func(h hostile, _ *http2.Framer, id uint32) {
			h.Write(rawFrame(8, 0, id, "\x00\x00\x00\x00"))
		}, kind: formats.ErrorProtocol, reason: formats.EndServerAbort},
		{name: "a window update of the connection by nothing", answer: func(h hostile, _ *http2.Framer, _ uint32) {
			h.Write(rawFrame(8, 0, 0, "\x00\x00\x00\x00"))
		}, kind: formats.ErrorProtocol, reason: formats.EndServerAbort},
		{name: "a window beyond what windows can be", answer: func(h hostile, _ *http2.Framer, _ uint32) {
			h.once(func(w *http2.Framer) { w.WriteWindowUpdate(0, 1<<31-1); w.WriteWindowUpdate(0, 1<<31-1) })
		}, kind: formats.ErrorProtocol, reason: formats.EndServerAbort},
		{name: "a head without end", answer: func(h hostile, _ *http2.Framer, id uint32) {
			h.once(func(w *http2.Framer) {
				w.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block(":status", "200")})
			})
			more := block("x", strings.Repeat("y", 1000))
			h.frames(func(w *http2.Framer) { w.WriteContinuation(id, false, more) })
		}, kind: formats.ErrorProtocol, reason: formats.EndServerAbort, at: time.Second, most: 2 << 20},
		{name: "empty continuations", answer: func(h hostile, _ *http2.Framer, id uint32) {
			h.once(func(w *http2.Framer) {
				w.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block(":status", "200")})
			})
			h.frames(func(w *http2.Framer) { w.WriteContinuation(id, false, nil) })
		}, kind: formats.ErrorTimeout, reason: formats.EndTimeout, at: timeout},
		{name: "a list of fields of a megabyte", answer: func(h hostile, _ *http2.Framer, id uint32) {
			b := block(":status", "200")
			for range 1000 {
				b = append(b, block("x", strings.Repeat("y", 1000))...)
			}
			h.once(func(w *http2.Framer) {
				w.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: b[:16<<10]})
				for b = b[16<<10:]; len(b) > 16<<10; b = b[16<<10:] {
					w.WriteContinuation(id, false, b[:16<<10])
				}
				w.WriteContinuation(id, true, b)
			})
		}, kind: formats.ErrorProtocol, reason: formats.EndServerAbort},
		{name: "one name many times over", answer: func(h hostile, _ *http2.Framer, id uint32) { // a byte each, out of the table
			b := append(block(":status", "200", "x", strings.Repeat("y", 4000)), bytes.Repeat([]byte{0x80 | 62}, 15<<10)...)
			h.once(func(w *http2.Framer) {
				w.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: b, EndHeaders: true})
			})
		}, kind: formats.ErrorProtocol, reason: formats.EndServerAbort},
		{name: "interim heads without end", answer: func(h hostile, _ *http2.Framer, id uint32) {
			b := block(":status", "103", "link", "x")
			h.frames(func(w *http2.Framer) {
				w.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: b, EndHeaders: true})
			})
		}, kind: formats.ErrorTimeout, reason: formats.EndTimeout, at: timeout},
		{name: "frames without a byte", answer: func(h hostile, _ *http2.Framer, id uint32) {
			h.once(func(w *http2.Framer) { head200(w, id) })
			h.frames(func(w *http2.Framer) { w.WriteData(id, false, nil) })
		}, kind: formats.ErrorStall, reason: formats.EndTimeout, at: timeout},
		{name: "padding without end", answer: func(h hostile, _ *http2.Framer, id uint32) {
			h.once(func(w *http2.Framer) { head200(w, id) })
			h.frames(func(w *http2.Framer) { w.WriteDataPadded(id, false, nil, make([]byte, 100)) })
		}, kind: formats.ErrorStall, reason: formats.EndTimeout, at: timeout},
		{name: "an answer without end", answer: func(h hostile, _ *http2.Framer, id uint32) {
			h.once(func(w *http2.Framer) { head200(w, id) })
			h.frames(func(w *http2.Framer) { w.WriteData(id, false, bytes.Repeat([]byte(token), 50)) })
		}, kind: formats.ErrorEndless, reason: formats.EndServerAbort, at: timeout / 2, most: 20 << 20},
		{name: "data beyond the window", answer: func(h hostile, _ *http2.Framer, id uint32) {
			h.once(func(w *http2.Framer) {
				head200(w, id)
				for range 1000 {
					w.WriteData(id, false, bytes.Repeat([]byte(":\n"), 8<<10))
				}
			})
		}, kind: formats.ErrorEndless, reason: formats.EndServerAbort, most: 20 << 20},
		{name: "data before a head", answer: func(h hostile, _ *http2.Framer, id uint32) {
			h.once(func(w *http2.Framer) { w.WriteData(id, true, []byte(token)) })
		}, kind: formats.ErrorProtocol, reason: formats.EndServerAbort},
		{name: "reset in mid-stream", answer: func(h hostile, _ *http2.Framer, id uint32) {
			h.once(func(w *http2.Framer) {
				head200(w, id)
				w.WriteData(id, false, []byte(token+token))
				w.WriteRSTStream(id, http2.ErrCodeInternal)
			})
		}, kind: formats.ErrorReset, reason: formats.EndServerAbort},
		{name: "resets without end", answer: func(h hostile, _ *http2.Framer, id uint32) {
			h.frames(func(w *http2.Framer) { w.WriteRSTStream(id, http2.ErrCodeInternal) })
		}, kind: formats.ErrorReset, reason: formats.EndServerAbort},
		{name: "frames of streams that are nobody's", answer: func(h hostile, _ *http2.Framer, id uint32) {
			h.once(func(w *http2.Framer) {
				for k := range uint32(100) {
					w.WriteData(1001+2*k, false, []byte("x"))
					w.WriteRSTStream(1001+2*k, http2.ErrCodeNo)
				}
				good(w, id)
			})
		}},
		{name: "a push", answer: func(h hostile, _ *http2.Framer, id uint32) {
			h.once(func(w *http2.Framer) {
				w.WritePushPromise(http2.PushPromiseParam{StreamID: id, PromiseID: 2, BlockFragment: block(":method", "GET"), EndHeaders: true})
			})
		}, kind: formats.ErrorProtocol, reason: formats.EndServerAbort},
		{name: "a frame of 16 MiB", answer: func(h hostile, _ *http2.Framer, id uint32) {
			h.once(func(w *http2.Framer) { head200(w, id) })
			h.Write(append([]byte{0xff, 0xff, 0xff, 0, 0, 0, 0, 0, byte(id)}, make([]byte, 1<<20)...))
		}, kind: formats.ErrorProtocol, reason: formats.EndServerAbort, most: 4 << 20},
		{name: "frames larger than frames can be", first: func(h hostile, _ *http2.Framer) { h.Write(rawFrame(4, 0, 0, setting(5, 1<<32-1))) }, answer: func(h hostile, _ *http2.Framer, id uint32) {
			h.once(func(w *http2.Framer) { good(w, id) })
		}, kind: formats.ErrorProtocol, reason: formats.EndServerAbort},
		{name: "settings of a table of 4 GiB", first: func(h hostile, _ *http2.Framer) {
			for range 100 {
				h.Write(rawFrame(4, 0, 0, setting(1, 0)+setting(1, 1<<32-1)))
			}
		}, answer: func(h hostile, _ *http2.Framer, id uint32) { h.once(func(w *http2.Framer) { good(w, id) }) }},
		{name: "gone away before each request", answer: func(h hostile, _ *http2.Framer, id uint32) {
			h.once(func(w *http2.Framer) { w.WriteGoAway(0, http2.ErrCodeEnhanceYourCalm, bytes.Repeat([]byte("x"), 1000)) })
		}, kind: formats.ErrorConnect, reason: formats.EndServerAbort},
		{name: "no stream at all", first: func(h hostile, _ *http2.Framer) { h.Write(rawFrame(4, 0, 0, setting(3, 0))) }, answer: func(h hostile, _ *http2.Framer, id uint32) {
			h.once(func(w *http2.Framer) { w.WriteRSTStream(id, http2.ErrCodeRefusedStream) })
		}, kind: formats.ErrorReset, reason: formats.EndServerAbort},
		{name: "an answer to nothing", first: func(h hostile, _ *http2.Framer) {
			h.once(func(w *http2.Framer) { w.WriteSettings(); good(w, 1) })
		}, answer: func(h hostile, _ *http2.Framer, id uint32) { h.once(func(w *http2.Framer) { good(w, id) }) }},
		{name: "silence", first: silent, answer: func(hostile, *http2.Framer, uint32) {}, kind: formats.ErrorTimeout, reason: formats.EndTimeout, at: timeout},
		{name: "HTTP/1.1 after all", first: func(h hostile, _ *http2.Framer) {
			io.WriteString(h, "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
		}, answer: func(hostile, *http2.Framer, uint32) {},
			kind: formats.ErrorProtocol, reason: formats.EndServerAbort},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var sent atomic.Int64
				s := &pipes{tls: &tls.Config{Certificates: pair.TLS.Certificates, NextProtos: []string{"h2"}, SessionTicketsDisabled: true}}
				s.raw = func(conn net.Conn, _ int) {
					h := hostile{t, conn, &sent}
					preface := make([]byte, len(http2.ClientPreface))
					if _, err := io.ReadFull(conn, preface); err != nil {
						return
					}
					first := c.first
					if first == nil {
						first = func(h hostile, _ *http2.Framer) { h.Write(rawFrame(4, 0, 0, "")) }
					}
					begun := make(chan struct{})
					go func() { defer close(begun); first(h, nil) }() // a pipe takes no write while its reader writes
					r := http2.NewFramer(io.Discard, conn)
					for {
						id, ok := h.asked(r)
						if !ok {
							return
						}
						<-begun
						c.answer(h, r, id)
					}
				}
				st, rows := replayed2(t, t.Context(), s, at(0, 2*timeout), Options{}, client.Options{Timeout: timeout, AnswerBytes: 1 << 20})
				if len(rows) != 2 {
					t.Fatalf("%+v", st)
				}
				for i, x := range rows {
					reason := c.reason
					if c.kind == "" {
						reason = formats.EndComplete
					}
					if x.ErrorKind != c.kind || x.EndReason != reason || x.EndNS.V > int64(c.at) || c.at == timeout && x.EndNS.V != int64(timeout) {
						t.Errorf("%d: %q, %s after %v (attempt %d, status %v)", i, x.ErrorKind, x.EndReason, time.Duration(x.EndNS.V), x.Attempt.V, x.Status)
					}
				}
				if n := sent.Load(); c.most > 0 && n > c.most {
					t.Errorf("%d bytes were taken", n)
				}
				if s.dials > 64 { // one that ends at once is opened anew ahead of need, before each request
					t.Errorf("%d connections", s.dials)
				}
			})
		})
	}
}

// A server that opens every window and then reads no more: the request is given up at its time, at its planned abort, or with the run.
func TestHTTP2ServerThatDoesNotRead(t *testing.T) {
	for _, c := range []struct {
		name   string
		abort  time.Duration // planned
		run    time.Duration // the run is cut then
		kind   string
		reason formats.EndReason
		at     time.Duration
	}{
		{name: "its time", kind: formats.ErrorTimeout, reason: formats.EndTimeout, at: time.Minute},
		{name: "a planned abort", abort: 5 * time.Second, reason: formats.EndClientAbort, at: 5 * time.Second},
		{name: "the run's end", run: 7 * time.Second, reason: formats.EndRunEnd, at: 7 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &pipes{raw: func(conn net.Conn, _ int) {
					preface := make([]byte, len(http2.ClientPreface))
					if _, err := io.ReadFull(conn, preface); err != nil {
						return
					}
					go func() {
						conn.Write(rawFrame(4, 0, 0, setting(4, 1<<31-1)))
						conn.Write(rawFrame(8, 0, 0, "\x7f\xff\x00\x00"))
					}()
					f := http2.NewFramer(io.Discard, conn)
					for {
						fr, err := f.ReadFrame()
						if err != nil {
							return
						}
						if fr.Header().Type == http2.FrameData {
							time.Sleep(time.Hour)
							return
						}
					}
				}}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if c.run > 0 {
					time.AfterFunc(c.run, cancel)
				}
				sch := func(yield func(Arrival, error) bool) {
					x := &formats.Exchange{ExchangeID: 1, InputTokens: formats.Of(int64(300_000)), OutputTokens: formats.Of(int64(1))}
					if c.abort > 0 {
						x.EndNS, x.EndReason, x.OutputTokens = formats.Of(int64(c.abort)), formats.EndClientAbort, formats.Null[int64]{}
					}
					yield(Arrival{Exchange: x}, nil)
				}
				begun := time.Now()
				st, rows := replayed2(t, ctx, s, sch, Options{}, client.Options{Timeout: time.Minute})
				if c.run > 0 {
					c.at = begun.Add(c.run).Sub(st.Start)
				}
				if x := rows[0]; x.ErrorKind != c.kind || x.EndReason != c.reason || x.EndNS.V != int64(c.at) {
					t.Errorf("%q, %s after %v", x.ErrorKind, x.EndReason, time.Duration(x.EndNS.V))
				}
			})
		})
	}
}
