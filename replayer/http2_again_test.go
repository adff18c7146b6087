package replayer

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/replayer/client"
)

// What the server says it has not looked at is sent again and counted; what it may have looked at is not.
func TestHTTP2Refused(t *testing.T) {
	answer := func(w *http2.Framer, id uint32) {
		head200(w, id)
		w.WriteData(id, true, []byte(token+stop+usageEvent(7, 1)+done))
	}
	for _, c := range []struct {
		name     string
		first    func(c net.Conn, w *http2.Framer, id uint32) // the answer to the first request on the first connection
		attempts int32
		kind     string
		dials    int // one more may be opened ahead of need
	}{
		{"refused", func(_ net.Conn, w *http2.Framer, id uint32) { w.WriteRSTStream(id, http2.ErrCodeRefusedStream) }, 2, "", 1},
		{"goaway", func(_ net.Conn, w *http2.Framer, id uint32) { w.WriteGoAway(id-2+1, http2.ErrCodeNo, nil) }, 2, "", 2},
		{"goaway after it", func(_ net.Conn, w *http2.Framer, id uint32) { w.WriteGoAway(id, http2.ErrCodeNo, nil); answer(w, id) }, 1, "", 2},
		{"goaway that names it, and closed", func(c net.Conn, w *http2.Framer, id uint32) {
			var out bytes.Buffer
			http2.NewFramer(&out, nil).WriteGoAway(id, http2.ErrCodeNo, nil)
			c.Write(out.Bytes())
			c.Close()
		}, 1, formats.ErrorReset, 2},
		{"goaway that names none yet, and closed", func(c net.Conn, w *http2.Framer, id uint32) {
			var out bytes.Buffer
			http2.NewFramer(&out, nil).WriteGoAway(1<<31-1, http2.ErrCodeNo, nil)
			c.Write(out.Bytes())
			c.Close()
		}, 2, "", 2},
		{"cancelled", func(_ net.Conn, w *http2.Framer, id uint32) { w.WriteRSTStream(id, http2.ErrCodeCancel) }, 1, formats.ErrorReset, 1},
		{"closed under a kept connection", func(c net.Conn, _ *http2.Framer, _ uint32) { c.Close() }, 2, "", 2},
		{"no HTTP/2", func(c net.Conn, _ *http2.Framer, _ uint32) { io.WriteString(c, "HTTP/1.1 400 Bad\r\n\r\n") }, 1, formats.ErrorProtocol, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := 0
				s := &pipes{raw: func(conn net.Conn, _ int) {
					byHand(conn, func(w *http2.Framer, out *bytes.Buffer, id uint32) {
						if n++; n == 2 { // the first has shown that the connection works
							c.first(conn, w, id)
							return
						}
						answer(w, id)
					})
				}}
				st, rows := replayed2(t, t.Context(), s, at(0, time.Second, 2*time.Second), Options{}, client.Options{})
				x := rows[1]
				if x.Attempt.V != c.attempts || x.ErrorKind != c.kind || s.dials < c.dials || s.dials > c.dials+1 || rows[2].ErrorKind != "" || st.Retried != int64(c.attempts-1) {
					t.Errorf("attempt %d, %q, %d connections, then %q, %d retried", x.Attempt.V, x.ErrorKind, s.dials, rows[2].ErrorKind, st.Retried)
				}
			})
		})
	}
}

// A server that refuses every stream is refused in the end.
func TestHTTP2RefusesForever(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &pipes{raw: func(c net.Conn, _ int) {
			byHand(c, func(w *http2.Framer, _ *bytes.Buffer, id uint32) { w.WriteRSTStream(id, http2.ErrCodeRefusedStream) })
		}}
		st, rows := replayed2(t, t.Context(), s, at(0), Options{}, client.Options{})
		if st.Errors[formats.ErrorReset] != 1 || rows[0].Attempt.V != 3 {
			t.Errorf("%v after %d attempts", st.Errors, rows[0].Attempt.V)
		}
	})
}

// reader reads the frames of a connection whose preface has come.
func reader(c net.Conn) *http2.Framer {
	io.ReadFull(c, make([]byte, len(http2.ClientPreface))) // the next read says that it failed
	return http2.NewFramer(nil, c)
}

// until reads frames up to the end of a request, and says its stream; 0 where the connection ends before.
func until(r *http2.Framer) uint32 {
	for {
		f, err := r.ReadFrame()
		if err != nil {
			return 0
		}
		if d, ok := f.(*http2.DataFrame); ok && d.StreamEnded() {
			return d.StreamID
		}
	}
}

// A connection that its server gives up before it has looked at any stream costs the request nothing but another attempt, be it opened
// for the request or ahead of it; one that it may have looked at is lost.
func TestHTTP2ClosedEarly(t *testing.T) {
	pair := httptest.NewUnstartedServer(http.NotFoundHandler())
	pair.StartTLS()
	pair.Close()
	frame := func(c net.Conn, frames ...func(*http2.Framer)) {
		var out bytes.Buffer
		w := http2.NewFramer(&out, nil)
		for _, f := range frames {
			f(w)
		}
		c.Write(out.Bytes()) // fails once the client has gone
	}
	settings := func(w *http2.Framer) { w.WriteSettings() }
	ack := func(w *http2.Framer) { w.WriteSettingsAck() }
	away := func(last uint32) func(*http2.Framer) {
		return func(w *http2.Framer) { w.WriteGoAway(last, http2.ErrCodeNo, nil) }
	}
	for _, c := range []struct {
		name  string
		first func(c net.Conn) // what happens on a connection that goes wrong, until it is closed
		again bool
		kind  string // where it goes wrong each time
	}{
		{"after the handshake", func(c net.Conn) { c.(*tls.Conn).Handshake() }, true, formats.ErrorConnect},
		{"after the preface", func(c net.Conn) { reader(c) }, true, formats.ErrorConnect},
		{"after its own settings", func(c net.Conn) { r := reader(c); frame(c, settings); r.ReadFrame() }, true, formats.ErrorConnect},
		{"with the request unread", func(c net.Conn) { r := reader(c); frame(c, settings); until(r) }, true, formats.ErrorConnect}, // as Go's does
		{"after a goaway before any stream", func(c net.Conn) { r := reader(c); frame(c, settings, ack); r.ReadFrame(); frame(c, away(0)); until(r) }, true, formats.ErrorReset},
		{"after a goaway for the request", func(c net.Conn) { r := reader(c); frame(c, settings, ack); until(r); frame(c, away(0)) }, true, formats.ErrorReset},
		{"with the request read", func(c net.Conn) { r := reader(c); frame(c, settings, ack); until(r) }, false, formats.ErrorReset},
	} {
		for _, cold := range []bool{false, true} {
			for _, times := range []int{1, 1000} {
				t.Run(fmt.Sprintf("%s, cold %t, %d times", c.name, cold, times), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						s := &pipes{handler: func(w http.ResponseWriter, r *http.Request) {
							events(w)
							tell(w, 50*ms, token, stop, usageEvent(7, 1), done)
						}}
						s.raw = func(conn net.Conn, n int) {
							if n < times {
								c.first(conn)
								return
							}
							s.serve(conn)
						}
						s.tls = &tls.Config{Certificates: pair.TLS.Certificates, NextProtos: []string{"h2"}, SessionTicketsDisabled: true}
						st, rows := replayed2(t, t.Context(), s, at(0), Options{Cold: cold}, client.Options{})
						x := rows[0]
						// A connection that was opened ahead may be found closed before the request needs it: then it is not met at all.
						again := c.again || !cold
						switch {
						case again && times == 1:
							if x.ErrorKind != "" || x.Attempt.V > 2 || cold && x.Attempt.V != 2 || st.Retried != int64(x.Attempt.V-1) || x.FirstTokenNS.V != int64(50*ms) {
								t.Errorf("%q after %d attempts, %d retried, first token %v", x.ErrorKind, x.Attempt.V, st.Retried, time.Duration(x.FirstTokenNS.V))
							}
						case c.again:
							if x.ErrorKind != c.kind || x.Attempt.V != 3 || x.EndReason != formats.EndServerAbort {
								t.Errorf("%q after %d attempts, %s", x.ErrorKind, x.Attempt.V, x.EndReason)
							}
						default:
							if x.ErrorKind != c.kind || x.Attempt.V > 2 || cold && x.Attempt.V != 1 {
								t.Errorf("%q after %d attempts", x.ErrorKind, x.Attempt.V)
							}
						}
					})
				})
			}
		}
	}
}

// laggard is a connection whose reader comes late to what has arrived.
type laggard struct {
	net.Conn
	lag time.Duration
}

func (c laggard) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	time.Sleep(c.lag)
	return n, err
}

// What a server said before it closed the connection under a request that was still being written is read: its answer, or that it did, or
// did not, look at the request.
func TestHTTP2LastWords(t *testing.T) {
	refusal := func(w *http2.Framer, id uint32) {
		var b bytes.Buffer
		hpack.NewEncoder(&b).WriteField(hpack.HeaderField{Name: ":status", Value: "413"})
		w.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: b.Bytes(), EndHeaders: true, EndStream: true})
	}
	for _, c := range []struct {
		name     string
		words    func(w *http2.Framer, id uint32)
		kind     string
		attempts int32
	}{
		{"an answer", refusal, "http_413", 1},
		{"that it looked", func(w *http2.Framer, id uint32) { w.WriteGoAway(id, http2.ErrCodeNo, nil) }, formats.ErrorReset, 1},
		{"that it did not look", func(w *http2.Framer, id uint32) { w.WriteGoAway(0, http2.ErrCodeNo, nil) }, "", 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &pipes{lag: 5 * ms, handler: func(w http.ResponseWriter, r *http.Request) {
					events(w)
					tell(w, token, stop, usageEvent(7, 1), done)
				}}
				s.raw = func(conn net.Conn, n int) {
					if n > 0 {
						s.serve(conn)
						return
					}
					r := reader(conn)
					f, err := r.ReadFrame()
					for ; err == nil && f.Header().Type != http2.FrameHeaders; f, err = r.ReadFrame() {
					}
					if err != nil {
						t.Error(err)
						return
					}
					var out bytes.Buffer
					w := http2.NewFramer(&out, nil)
					w.WriteSettings()
					w.WriteSettingsAck()
					c.words(w, f.Header().StreamID)
					conn.Write(out.Bytes()) // and the body is not read
				}
				_, rows := replayed2(t, t.Context(), s, at(0), Options{Cold: true}, client.Options{})
				if x := rows[0]; x.ErrorKind != c.kind || x.Attempt.V != c.attempts {
					t.Errorf("%q after %d attempts", x.ErrorKind, x.Attempt.V)
				}
			})
		})
	}
}
