package recorder

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/openai"
)

// testEngine is an engine that collects, with small limits so that they are met.
func testEngine(out *[]*formats.Exchange) *engine {
	o := engineOptions{clock: formats.ClockPacket, Limits: Limits{MaxHeld: 1 << 14, MaxBody: 1 << 16, MaxConnections: 64}}
	o.defaults()
	return newEngine(o, nil, openai.NewHasher([]byte("key")), func(x *formats.Exchange) { *out = append(*out, x) })
}

// readAll runs a capture file's bytes through reader and engine.
func readAll(b []byte) (xs []*formats.Exchange, packets int) {
	r, err := newCaptureReader(bytes.NewReader(b))
	if err != nil {
		return nil, 0
	}
	defer r.closer()
	e := testEngine(&xs)
	c := captureFile{reader: r}
	for c.next(); packets < 1<<16 && c.err == nil; c.next() {
		packets++
		e.packet(&c.p)
	}
	e.finish()
	checkEmpty(e)
	return xs, packets
}

// checkEmpty panics where a finished engine still holds something.
func checkEmpty(e *engine) {
	if len(e.conns) > 0 || len(e.pairs) > 0 || e.count != 0 || e.heldBytes != 0 || e.oldest != nil || e.newest != nil || e.open != 0 || e.heads != 0 || len(e.heading) != 0 || e.bodies != 0 {
		panic(fmt.Sprintf("finished engine holds %d connections (count %d), %d bytes, %d of bodies, %d of heads of %d, %d open exchanges", len(e.conns), e.count, e.heldBytes, e.bodies, e.heads, len(e.heading), e.open))
	}
}

// FuzzCapture reads any bytes as a capture file: no panic, no allocation by an unchecked length, nothing left behind.
func FuzzCapture(f *testing.F) {
	frames := traffic(5, 2, 1, 3)
	f.Add(pcapBytes(linkEthernet, frames))
	f.Add(pcapAs(binary.BigEndian, 0xa1b2c3d4, 1000, frames[:10]))
	f.Add(pcapng(binary.LittleEndian, frames[:20], 1e6, []byte{9, 0, 1, 0, 0x80 | 20, 0, 0, 0}))
	f.Add(pcapng(binary.BigEndian, frames[:20], 1e6, nil))
	f.Add(pcapng(binary.LittleEndian, frames[:4], 1e6, []byte{9, 0, 0, 0, 14, 0, 8, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 0, 200}))
	f.Add(append(pcapng(binary.LittleEndian, frames[:4], 1e6, nil), pcapng(binary.BigEndian, frames[4:8], 1e6, nil)...))
	var gz, zs bytes.Buffer
	g := gzip.NewWriter(&gz)
	z, err := zstd.NewWriter(&zs, zstd.WithEncoderConcurrency(1))
	if err != nil {
		f.Fatal(err)
	}
	g.Write(pcapBytes(linkEthernet, frames[:10]))
	z.Write(pcapng(binary.LittleEndian, frames[:10], 1e6, nil))
	if err := errors.Join(g.Close(), z.Close()); err != nil {
		f.Fatal(err)
	}
	f.Add(gz.Bytes())
	f.Add(zs.Bytes())
	f.Fuzz(func(t *testing.T, b []byte) { readAll(b) })
}

// FuzzLayers decodes any bytes of any link type.
func FuzzLayers(f *testing.F) {
	frame := traffic(5, 1, 1, 1)[3].data
	f.Add(uint32(linkEthernet), frame, uint16(0))
	f.Add(uint32(linkEthernet), insert(frame, 12, 0x88, 0xa8, 0, 7, 0x81, 0, 0, 100), uint16(9))
	f.Add(uint32(linkEthernet), wrapUDP(4789, append([]byte{8, 0, 0, 0, 0, 0, 42, 0}, frame...)), uint16(0))
	f.Add(uint32(linkEthernet), wrapUDP(6081, append([]byte{1, 0, 0x65, 0x58, 0, 0, 42, 0, 1, 2, 3, 0}, frame...)), uint16(0))
	f.Add(uint32(linkEthernet), wrapGRE(0x6558, frame), uint16(0))
	f.Add(uint32(linkRaw), toIPv6(frame, 0, []byte{60, 0, 1, 4, 0, 0, 0, 0, 44, 0, 1, 4, 0, 0, 0, 0, 6, 0, 0, 1, 0, 0, 0, 0})[14:], uint16(3))
	f.Add(uint32(linkSLL2), append([]byte{8, 0, 0, 0, 0, 0, 0, 3, 0, 1, 0, 6, 0, 0, 0, 0, 0, 0, 0, 0}, frame[14:]...), uint16(0))
	f.Fuzz(func(t *testing.T, link uint32, b []byte, more uint16) {
		var d decoder
		var s segment
		for at := range int64(3) {
			if d.decode(&packet{data: b, orig: len(b) + int(more), link: link, at: at}, &s) == isTCP && (s.cut < 0 || s.cut > int(more)) {
				t.Fatalf("%d bytes cut of %d", s.cut, more)
			}
		}
	})
}

// FuzzHTTP feeds two byte streams in pieces: rows may not depend on where the pieces end, and nothing is held afterwards, with a hole neither.
func FuzzHTTP(f *testing.F) {
	body := `{"model":"m","messages":[{"role":"user","content":"x"}]}`
	req := append(post("/v1/chat/completions", "a", body), post("/v1/chat/completions", "b", body)...)
	answer := `{"choices":[{"index":0,"message":{"content":"x"},"finish_reason":"stop"}]}`
	resp := fmt.Sprintf("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200\r\ncontent-type: application/json\r\nContent-Length: %d\r\n\r\n%s%s%s0\r\nTrailer: x\r\n\r\n", len(answer), answer, streamHead,
		httpChunk("data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"x\"},\"finish_reason\":\"stop\"}]}\n\n"))
	f.Add(req, []byte(resp), uint16(30), uint16(60))
	f.Add(bytes.ReplaceAll(req, []byte("\r\n"), []byte("\n")), []byte("HTTP/1.0 404 Not Found\r\n\r\n<html>"), uint16(3), uint16(5))
	f.Add([]byte("GET /v1/models HTTP/1.1\r\nX: a\r\n b\r\n\r\n"), []byte("HTTP/1.1 204 No Content\r\n\r\n"), uint16(3), uint16(5))
	f.Add([]byte("\x16\x03\x01\x02"), []byte("\x16\x03\x03"), uint16(1), uint16(1))
	f.Fuzz(func(t *testing.T, req, resp []byte, cut, hole uint16) {
		run := func(pieces int, hole int) string {
			var xs []*formats.Exchange
			e := testEngine(&xs)
			d := newDialogue(e, "s", true, formats.ClockPacket)
			feed := func(dir int, b []byte) {
				for len(b) > 0 {
					n := len(b)
					if pieces > 0 {
						n = min(n, pieces)
					}
					d.data(dir, b[:n], 5, 0)
					b = b[n:]
				}
			}
			feed(fromClient, req)
			if hole > 0 && hole < len(resp) {
				feed(fromServer, resp[:hole])
				d.gap(fromServer, 10, false)
				feed(fromServer, resp[hole:])
			} else {
				feed(fromServer, resp)
			}
			d.close(fromClient, closedFIN, 5)
			d.close(fromServer, closedFIN, 5)
			var b bytes.Buffer
			for _, x := range d.over {
				e.emitExchange(x)
				fmt.Fprintf(&b, "%+v\n", x.x)
			}
			if len(d.open) > 0 || e.oldest != nil {
				t.Fatal("closed dialogue holds exchanges")
			}
			return b.String()
		}
		one := run(0, 0)
		if two := run(1+int(cut)%64, 0); one != two {
			t.Fatalf("at once\n%s\nin pieces of %d\n%s", one, 1+int(cut)%64, two)
		}
		run(1+int(cut)%64, int(hole))
	})
}

// FuzzSegments plays a script of mangled segments of one connection and of its successors.
func FuzzSegments(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10})
	f.Add([]byte{0, 2, 1, 2, 200, 3, 100, 4, 255, 6, 5, 5, 0, 0})
	frames := traffic(7, 1, 3, 4)
	f.Fuzz(func(t *testing.T, script []byte) {
		var xs []*formats.Exchange
		e := testEngine(&xs)
		at := int64(1)
		for i := 0; i+1 < len(script) && i < 2000; i += 2 {
			fr := frame{at, bytes.Clone(frames[int(script[i])%len(frames)].data)}
			op := script[i+1]
			if op&1 != 0 {
				fr.data[41] += op // sequence number
			}
			if op&2 != 0 {
				fr.data[45] -= op // acknowledgement
			}
			if op&4 != 0 {
				fr.data[47] ^= op >> 3 & 7 // flags
			}
			if op&64 != 0 {
				fr.data[38] += op
			}
			at += int64(op) * 1e7
			e.packet(&packet{data: fr.data, at: at, orig: len(fr.data) + int(op&8), link: linkEthernet})
		}
		e.finish()
		checkEmpty(e)
	})
}

// TestConservation holds Seen == Filtered + Dropped + Written on mutated captures, whatever the sink does.
func TestConservation(t *testing.T) {
	frames := traffic(11, 10, 3, 10)
	for i := range 20 {
		in := bytes.Clone(pcapBytes(linkEthernet, frames))
		for j := i * 97; j < len(in); j += 4001 {
			in[j] ^= byte(i + j)
		}
		src := &Files{Names: []string{write(t, in)}, Key: []byte("k")}
		fail := failing{after: i}
		st, err := Record(context.Background(), src, &fail, Options{})
		if st.Seen != st.Filtered+st.Dropped+st.Written || st.Written != int64(fail.n) {
			t.Errorf("%d: %v %+v", i, err, st)
		}
	}
}

// failing is a sink that stops taking.
type failing struct{ n, after int }

func (f *failing) Write(*formats.Exchange) error {
	if f.n == f.after {
		return fmt.Errorf("full")
	}
	f.n++
	return nil
}
