package recorder

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"errors"
	"io"
	"iter"
	"strings"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/zstd"
)

var errCoding = errors.New("unknown content coding")

// bodyDecoder decodes a compressed body as it arrives: everything that the bytes so far allow to be decoded comes out of the write that
// brought them, so that a token's time is its own. The decompressor runs as a coroutine that is resumed by each write.
type bodyDecoder struct {
	in     []byte // not yet consumed
	eof    bool
	out    func([]byte)
	resume func() (struct{}, bool)
	stop   func()
	err    error
	done   bool
}

// newBodyDecoder returns a decoder for a Content-Encoding value, applied in the order that it lists.
func newBodyDecoder(encoding string) *bodyDecoder {
	d := &bodyDecoder{}
	d.resume, d.stop = iter.Pull(func(yield func(struct{}) bool) {
		src := &coroutineReader{d: d, yield: yield}
		defer func() {
			if p := recover(); p != nil {
				d.err = errors.New("decompressor: malformed body")
			}
			d.done = true
		}()
		r, err := decompressor(encoding, src)
		buf := make([]byte, 32<<10)
		for err == nil {
			var n int
			n, err = r.Read(buf)
			if n > 0 && d.out != nil {
				d.out(buf[:n])
			}
		}
		if err != io.EOF {
			d.err = err
		}
	})
	return d
}

// brokenDecoder stands for one whose input has a hole: nothing more can be decoded.
func brokenDecoder() *bodyDecoder {
	return &bodyDecoder{done: true, err: io.ErrUnexpectedEOF, stop: func() {}}
}

// write gives bytes in and what they decode to out.
func (d *bodyDecoder) write(p []byte, out func([]byte)) {
	if d.done {
		return
	}
	d.in, d.out = p, out
	d.resume()
	d.in, d.out = nil, nil
}

// finish ends the input and reports whether the body was whole.
func (d *bodyDecoder) finish(out func([]byte)) bool {
	if !d.done {
		d.eof, d.out = true, out
		d.resume()
		d.out = nil
	}
	return d.err == nil
}

func (d *bodyDecoder) close() { d.stop() }

// coroutineReader hands out the written bytes one read at a time and leaves the coroutine when there are none.
type coroutineReader struct {
	d     *bodyDecoder
	yield func(struct{}) bool
}

func (r *coroutineReader) wait() error {
	for len(r.d.in) == 0 {
		if r.d.eof {
			return io.EOF
		}
		if !r.yield(struct{}{}) {
			return io.ErrClosedPipe
		}
	}
	return nil
}

func (r *coroutineReader) Read(p []byte) (int, error) {
	if err := r.wait(); err != nil {
		return 0, err
	}
	n := copy(p, r.d.in)
	r.d.in = r.d.in[n:]
	return n, nil
}

// ReadByte keeps compress/flate from reading ahead.
func (r *coroutineReader) ReadByte() (byte, error) {
	if err := r.wait(); err != nil {
		return 0, err
	}
	c := r.d.in[0]
	r.d.in = r.d.in[1:]
	return c, nil
}

type byteReader interface {
	io.Reader
	io.ByteReader
}

func decompressor(encoding string, src byteReader) (io.Reader, error) {
	codings := strings.Split(encoding, ",")
	var r io.Reader = src
	for i := len(codings) - 1; i >= 0; i-- { // the last one applied comes off first
		var err error
		switch strings.TrimSpace(codings[i]) {
		case "identity", "":
		case "gzip", "x-gzip":
			r, err = gzip.NewReader(r)
		case "deflate":
			r, err = inflate(r)
		case "br":
			r = brotli.NewReader(r)
		case "zstd":
			var z *zstd.Decoder
			z, err = zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxMemory(1<<26), zstd.WithDecoderMaxWindow(8<<20))
			if err == nil {
				r = z
			}
		default:
			err = errCoding
		}
		if err != nil {
			return nil, err
		}
	}
	return r, nil
}

// inflate reads "deflate", which is zlib by the letter and raw deflate from some servers.
func inflate(r io.Reader) (io.Reader, error) {
	var head [2]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	joined := &joinedReader{head: head[:], r: r}
	if head[0]&15 == 8 && (int(head[0])<<8|int(head[1]))%31 == 0 {
		return zlib.NewReader(joined)
	}
	return flate.NewReader(joined), nil
}

// joinedReader is a reader with some bytes put back, byte by byte where its reader allows it.
type joinedReader struct {
	head []byte
	r    io.Reader
}

func (j *joinedReader) Read(p []byte) (int, error) {
	if len(j.head) > 0 {
		n := copy(p, j.head)
		j.head = j.head[n:]
		return n, nil
	}
	return j.r.Read(p)
}

func (j *joinedReader) ReadByte() (byte, error) {
	var one [1]byte
	if len(j.head) > 0 {
		c := j.head[0]
		j.head = j.head[1:]
		return c, nil
	}
	_, err := io.ReadFull(j.r, one[:])
	return one[0], err
}

// decodeAll decodes a request body, at most limit bytes of it; nil where it cannot be.
func decodeAll(encoding string, body []byte, limit int) []byte {
	r, err := decompressor(encoding, bytes.NewReader(body))
	if err != nil {
		return nil
	}
	out, err := io.ReadAll(io.LimitReader(r, int64(limit)+1))
	if err != nil || len(out) > limit {
		return nil
	}
	return out
}
