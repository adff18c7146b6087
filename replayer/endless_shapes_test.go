package replayer

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/replayer/client"
)

// Whatever of an answer has no end, next to nothing of it is held: not a line, not a head, not its interim responses. The request ends at
// its deadline, or where it is plain that this is no answer.
func TestEndlessAnswersAreNotHeld(t *testing.T) {
	const (
		poured = 64 << 20
		bound  = 8 << 20 // of the heap, with the row, the buffers of both sides and the test's own piece
	)
	x := strings.Repeat("x", 60<<10)
	event := `data: {"choices":[{"index":0,"delta":{"content":"` + x + `"}}]}` + "\n\n"
	for _, c := range []struct {
		name, head, piece string
		kind              string
	}{
		{"events", sseHead, chunk(event), formats.ErrorStall},
		{"one line", sseHead + chunk("data: "), chunk(x), formats.ErrorStall},
		{"one string of one event", sseHead + chunk(`data: {"choices":[{"index":0,"delta":{"content":"`), chunk(x), formats.ErrorStall},
		{"one list of one event", sseHead + chunk(`data: {"choices":[`), chunk(strings.Repeat("{},", 20<<10)), formats.ErrorStall},
		{"data lines of one event", sseHead, chunk("data: " + x + "\n"), formats.ErrorStall},
		{"one name of an event", sseHead + chunk("event: "), chunk(x), formats.ErrorStall},
		{"one field", sseHead, chunk(x), formats.ErrorStall},
		{"comments", sseHead, chunk(strings.Repeat(": keep-alive\n\n", 4<<10)), formats.ErrorStall},
		{"one JSON body", jsonHead + "Transfer-Encoding: chunked\r\n\r\n" + chunk(`{"choices":[{"message":{"content":"`), chunk(x), formats.ErrorStall},
		{"a web page", "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk("<html>"), chunk(x), formats.ErrorStall},
		{"a body without framing", "HTTP/1.1 200 OK\r\n\r\n", x, formats.ErrorStall},
		{"an error's body", "HTTP/1.1 500 Sorry\r\nTransfer-Encoding: chunked\r\n\r\n", chunk(x), "http_500"},
		{"trailers", sseHead + chunk(token) + "0\r\n", strings.Repeat("x-pad: 1\r\n", 6<<10), formats.ErrorStall},
		{"one trailer", sseHead + chunk(token) + "0\r\n", x, formats.ErrorProtocol},
		{"one chunk extension", sseHead + "5;", x, formats.ErrorProtocol},
		{"headers", "HTTP/1.1 200 OK\r\n", strings.Repeat("x-pad: 1\r\n", 6<<10), formats.ErrorProtocol},
		{"one header", "HTTP/1.1 200 OK\r\nx-pad: ", x, formats.ErrorProtocol},
		{"interim responses", "", strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", 2<<10), formats.ErrorTimeout},
		{"interim responses with headers", "", strings.Repeat("HTTP/1.1 103 Early Hints\r\nlink: </"+x[:1<<10]+">\r\n\r\n", 60), formats.ErrorTimeout},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &scripted{answer: func(w io.Writer, _ int, _ *http.Request, _ []byte) error {
					pour(t, w, c.head, []byte(c.piece), poured, bound)
					return errors.New("over")
				}}
				st, rows := replayed(t, t.Context(), s, at(0), Options{}, client.Options{Timeout: time.Minute})
				if st.Requests.Failed != 1 || rows[0].ErrorKind != c.kind {
					t.Errorf("%+v %v", st.Requests, st.Errors)
				}
			})
		})
	}
}

// pour writes head, and piece until so much of it was taken or the client has gone. The heap may have grown by bound at most by then. Then
// it waits until the client has gone.
func pour(t *testing.T, w io.Writer, head string, piece []byte, much int, bound int64) {
	before := heapBytes()
	var err error
	if head != "" { // on a pipe an empty write is read
		_, err = io.WriteString(w, head)
	}
	for n := 0; err == nil && n < much; n += len(piece) {
		_, err = w.Write(piece)
	}
	if held := heapBytes() - before; held > bound {
		t.Errorf("%d bytes are held, %d were expected at most", held, bound)
	}
	if err == nil {
		time.Sleep(2 * time.Minute) // past the request's deadline
	}
}

// The same over HTTP/2, and what only it has.
func TestHTTP2EndlessAnswersAreNotHeld(t *testing.T) {
	const (
		poured = 64 << 20
		bound  = 12 << 20 // as over HTTP/1.1, and the windows
	)
	x := bytes.Repeat([]byte("x"), 16<<10)
	headers := func(status string, more ...string) []byte {
		var b bytes.Buffer
		e := hpack.NewEncoder(&b)
		e.WriteField(hpack.HeaderField{Name: ":status", Value: status})
		for i := 0; i+1 < len(more); i += 2 {
			e.WriteField(hpack.HeaderField{Name: more[i], Value: more[i+1], Sensitive: true})
		}
		return b.Bytes()
	}
	for _, c := range []struct {
		name        string
		head, piece func(w *http2.Framer, id uint32)
		kind        string
	}{
		{"events", head200, func(w *http2.Framer, id uint32) {
			w.WriteData(id, false, []byte(`data: {"choices":[{"index":0,"delta":{"content":"`))
			w.WriteData(id, false, x)
			w.WriteData(id, false, []byte(`"}}]}`+"\n\n"))
		}, formats.ErrorStall},
		{"one line", head200, func(w *http2.Framer, id uint32) { w.WriteData(id, false, x) }, formats.ErrorStall},
		{"padding", head200, func(w *http2.Framer, id uint32) { w.WriteDataPadded(id, false, nil, make([]byte, 255)) }, formats.ErrorStall},
		{"interim responses", nil, func(w *http2.Framer, id uint32) {
			w.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: headers("103", "link", string(x[:8<<10])), EndHeaders: true})
		}, formats.ErrorTimeout},
		{"continuations", func(w *http2.Framer, id uint32) {
			w.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: headers("200")})
		}, func(w *http2.Framer, id uint32) {
			var b bytes.Buffer
			hpack.NewEncoder(&b).WriteField(hpack.HeaderField{Name: "x-pad", Value: string(x[:8<<10]), Sensitive: true})
			w.WriteContinuation(id, false, b.Bytes())
		}, formats.ErrorProtocol},
		{"pings", nil, func(w *http2.Framer, id uint32) { w.WritePing(false, [8]byte{}) }, formats.ErrorProtocol},
		{"settings", nil, func(w *http2.Framer, id uint32) { w.WriteSettings() }, formats.ErrorProtocol},
		{"unknown frames", nil, func(w *http2.Framer, id uint32) { w.WriteRawFrame(0xbe, 0, id, x) }, formats.ErrorTimeout},
		{"other streams", nil, func(w *http2.Framer, id uint32) { w.WriteData(id+2, false, x) }, formats.ErrorProtocol},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &pipes{raw: func(conn net.Conn, _ int) {
					byHand(conn, func(w *http2.Framer, out *bytes.Buffer, id uint32) {
						go io.Copy(io.Discard, conn) // windows, replies
						var head string
						if c.head != nil {
							c.head(w, id)
							head = out.String()
							out.Reset()
						}
						for out.Len() < 32<<10 {
							c.piece(w, id)
						}
						piece := bytes.Clone(out.Bytes())
						out.Reset()
						pour(t, conn, head, piece, poured, bound)
						conn.Close()
					})
				}}
				st, rows := replayed2(t, t.Context(), s, at(0), Options{}, client.Options{Timeout: time.Minute})
				if st.Requests.Failed != 1 || rows[0].ErrorKind != c.kind {
					t.Errorf("%+v %v", st.Requests, st.Errors)
				}
			})
		})
	}
}
