package recorder

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"

	"github.com/klauspost/compress/zstd"
)

// packet is one captured frame. data is valid until the next one is read.
type packet struct {
	data  []byte
	at    int64  // nanoseconds since 1970
	orig  int    // bytes on the wire; more than len(data) where the snap length cut it
	link  uint32 // link type, as in pcap's LINKTYPE_ registry
	iface uint32

	step    int64 // by how much the clock was set before this packet; 0: it was not
	untimed bool  // its own time was wrong, at is that of the packets before it
}

// maxRecord bounds one record of a capture file: 4 MiB is sixteen times the largest frame that Linux hands out.
const maxRecord = 4 << 20

var (
	errCut   = errors.New("cut in the middle of a packet")
	errNoCap = errors.New("no capture file: neither pcap nor pcapng")
)

// captureReader reads a pcap or pcapng file in either byte order, plain or compressed with gzip or zstd. It never allocates by a length
// that it has not checked, and stops at the first damage: what stood before it has been handed out.
type captureReader struct {
	r      io.Reader
	buf    []byte
	rest   []byte // read and not taken yet
	order  binary.ByteOrder
	ng     bool
	link   uint32 // of a pcap file
	unit   int64  // nanoseconds of a pcap file's fraction
	ifaces []ngInterface
	base   uint32 // number of the section's first interface

	packets  int64
	drops    int64 // that the capturing program reported
	dropSeen map[uint32]int64
	skipped  int64 // packets without a usable interface
	sections int   // of a pcapng file, so far: each may be of another machine
	closer   func()
}

type ngInterface struct {
	link   uint32
	snap   uint32
	units  uint64 // per second
	offset int64  // seconds
	bad    bool   // its time resolution is unusable
}

const bufferSize = 128 << 10 // what is read stays in the cache until it has been looked at

// newCaptureReader looks at the first bytes of r.
func newCaptureReader(r io.Reader) (*captureReader, error) {
	c := &captureReader{r: r, buf: make([]byte, bufferSize), dropSeen: map[uint32]int64{}, closer: func() {}}
	head, err := c.peek(4)
	if err != nil {
		return nil, short(err, errNoCap)
	}
	switch {
	case head[0] == 0x1f && head[1] == 0x8b:
		z, err := gzip.NewReader(&started{bytes.Clone(c.rest), r})
		if err != nil {
			return nil, fmt.Errorf("gzip: %w", err)
		}
		c.r, c.rest = z, nil
	case bytes.Equal(head, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		z, err := zstd.NewReader(&started{bytes.Clone(c.rest), r}, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(1<<28))
		if err != nil {
			return nil, fmt.Errorf("zstd: %w", err)
		}
		c.closer = z.Close
		c.r, c.rest = z, nil
	}
	if head, err = c.peek(4); err != nil {
		return nil, short(err, errNoCap)
	}
	switch binary.BigEndian.Uint32(head) {
	case 0xa1b2c3d4:
		return c, c.pcapHeader(binary.BigEndian, 1000)
	case 0xa1b23c4d:
		return c, c.pcapHeader(binary.BigEndian, 1)
	case 0xd4c3b2a1:
		return c, c.pcapHeader(binary.LittleEndian, 1000)
	case 0x4d3cb2a1:
		return c, c.pcapHeader(binary.LittleEndian, 1)
	case 0x0a0d0d0a:
		c.ng = true
		return c, nil
	}
	return nil, errNoCap
}

// started is a reader of which some bytes have been read already.
type started struct {
	had []byte
	r   io.Reader
}

func (s *started) Read(p []byte) (int, error) {
	if len(s.had) > 0 {
		n := copy(p, s.had)
		s.had = s.had[n:]
		return n, nil
	}
	return s.r.Read(p)
}

// short turns an early end of the file into what it means here.
func short(err, meaning error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return meaning
	}
	return err
}

func (c *captureReader) pcapHeader(order binary.ByteOrder, unit int64) error {
	var h [24]byte
	b, err := c.take(len(h))
	if err != nil {
		return short(err, errCut)
	}
	copy(h[:], b)
	c.order, c.unit = order, unit
	c.link = order.Uint32(h[20:]) & 0xffff // the upper bits hold the length of a frame check sequence
	return nil
}

// take returns the next n bytes, valid until the next call; io.EOF only where not one of them is there.
func (c *captureReader) take(n int) ([]byte, error) {
	b, err := c.peek(n)
	if err == nil {
		c.rest = c.rest[n:]
	}
	return b, err
}

// peek is take, but leaves the bytes to be taken.
func (c *captureReader) peek(n int) ([]byte, error) {
	if len(c.rest) < n {
		if err := c.fill(n); err != nil {
			return nil, err
		}
	}
	return c.rest[:n], nil
}

// fill reads on until n bytes are there.
func (c *captureReader) fill(n int) error {
	buf := c.buf
	if len(buf) < n {
		buf = make([]byte, n+bufferSize)
	}
	have := copy(buf, c.rest)
	c.buf = buf
	for empty := 0; have < n; {
		got, err := c.r.Read(buf[have:])
		have += got
		c.rest = buf[:have]
		if empty++; got > 0 {
			empty = 0
		}
		switch {
		case have >= n:
		case errors.Is(err, io.EOF) && have == 0:
			return io.EOF
		case err != nil:
			return short(err, errCut)
		case empty > 100:
			return io.ErrNoProgress
		}
	}
	return nil
}

// next reads one packet. io.EOF is a clean end; any other error ends the file where it is damaged.
func (c *captureReader) next(p *packet) error {
	if c.ng {
		return c.nextBlock(p)
	}
	h, err := c.take(16)
	if err != nil {
		return err
	}
	sec, frac := binary.LittleEndian.Uint32(h), binary.LittleEndian.Uint32(h[4:])
	n, orig := binary.LittleEndian.Uint32(h[8:]), binary.LittleEndian.Uint32(h[12:])
	if c.order != binary.ByteOrder(binary.LittleEndian) {
		sec, frac, n, orig = bits.ReverseBytes32(sec), bits.ReverseBytes32(frac), bits.ReverseBytes32(n), bits.ReverseBytes32(orig)
	}
	if n > maxRecord {
		return fmt.Errorf("packet %d claims %d bytes", c.packets+1, n)
	}
	data, err := c.take(int(n))
	if err != nil {
		return short(err, errCut)
	}
	c.packets++
	*p = packet{data: data, at: int64(sec)*1e9 + int64(frac)*c.unit, orig: int(max(orig, n)), link: c.link}
	return nil
}

// The block types of pcapng (draft-ietf-opsawg-pcapng) that carry something for us.
const (
	blockSection   = 0x0a0d0d0a
	blockInterface = 1
	blockObsolete  = 2
	blockSimple    = 3
	blockStats     = 5
	blockPacket    = 6
)

func (c *captureReader) nextBlock(p *packet) error {
	for {
		h, err := c.peek(8)
		if err != nil {
			return err
		}
		if binary.BigEndian.Uint32(h) == blockSection {
			if err := c.section(); err != nil {
				return err
			}
			continue
		}
		if c.order == nil {
			return errNoCap
		}
		kind, n := c.order.Uint32(h), c.order.Uint32(h[4:])
		if n < 12 || n%4 != 0 || n > maxRecord {
			return fmt.Errorf("block after packet %d claims %d bytes", c.packets, n)
		}
		b, err := c.take(int(n))
		if err != nil {
			return short(err, errCut)
		}
		if c.order.Uint32(b[n-4:]) != n {
			return fmt.Errorf("block after packet %d: its two lengths differ", c.packets)
		}
		body := b[8 : n-4]
		switch kind {
		case blockInterface:
			c.addInterface(body)
		case blockStats:
			c.stats(body)
		case blockPacket, blockObsolete, blockSimple:
			ok, err := c.ngPacket(kind, body, p)
			if err != nil {
				return err
			}
			if ok {
				c.packets++
				return nil
			}
			c.skipped++
		}
	}
}

func (c *captureReader) section() error {
	h, err := c.peek(12)
	if err != nil {
		return short(err, errCut)
	}
	switch {
	case binary.BigEndian.Uint32(h[8:]) == 0x1a2b3c4d:
		c.order = binary.BigEndian
	case binary.LittleEndian.Uint32(h[8:]) == 0x1a2b3c4d:
		c.order = binary.LittleEndian
	default:
		return errors.New("pcapng section without a byte order")
	}
	n := c.order.Uint32(h[4:])
	if n < 28 || n%4 != 0 || n > maxRecord {
		return fmt.Errorf("pcapng section header claims %d bytes", n)
	}
	if _, err := c.take(int(n)); err != nil {
		return short(err, errCut)
	}
	c.base += uint32(len(c.ifaces))
	c.ifaces = c.ifaces[:0]
	c.sections++
	return nil
}

// option calls f for each well-formed option of a block and stops at the first that is not.
func (c *captureReader) options(b []byte, f func(code uint16, v []byte)) {
	for len(b) >= 4 {
		code, n := c.order.Uint16(b), int(c.order.Uint16(b[2:]))
		pad := (n + 3) &^ 3
		if code == 0 || len(b) < 4+n {
			return
		}
		f(code, b[4:4+n])
		if len(b) < 4+pad {
			return
		}
		b = b[4+pad:]
	}
}

func (c *captureReader) addInterface(b []byte) {
	i := ngInterface{units: 1e6, bad: true}
	if len(b) >= 8 {
		i.link, i.snap, i.bad = uint32(c.order.Uint16(b)), c.order.Uint32(b[4:]), false
		c.options(b[8:], func(code uint16, v []byte) {
			switch {
			case code == 9 && len(v) >= 1:
				i.units, i.bad = resolution(v[0])
			case code == 14 && len(v) >= 8:
				i.offset = int64(c.order.Uint64(v))
			}
		})
	}
	if len(c.ifaces) < 1<<16 {
		c.ifaces = append(c.ifaces, i)
	}
}

// resolution reads if_tsresol: units per second, and whether they do not fit.
func resolution(v byte) (units uint64, bad bool) {
	if v&0x80 != 0 {
		n := v & 0x7f
		return 1 << (n & 63), n > 63
	}
	if v > 19 {
		return 1, true
	}
	units = 1
	for range v {
		units *= 10
	}
	return units, false
}

// A packet's time lies between 140 years before and after 1970: what is computed of it must not overflow.
const farthest = 140 * 365 * 24 * 3600

// nanos turns a count of units into nanoseconds since 1970, exactly, rounded down; ok is false where no clock has shown such a time.
func (i *ngInterface) nanos(ts uint64) (at int64, ok bool) {
	sec, rest := ts/i.units, ts%i.units
	if sec > 2*farthest || i.offset > farthest || i.offset < -2*farthest || int64(sec)+i.offset > farthest || int64(sec)+i.offset < -farthest {
		return 0, false
	}
	hi, lo := bits.Mul64(rest, 1e9)
	ns, _ := bits.Div64(hi, lo, i.units) // rest < units, so hi < units
	return (int64(sec)+i.offset)*1e9 + int64(ns), true
}

// ngPacket reads a packet block; false where its interface is not usable.
func (c *captureReader) ngPacket(kind uint32, b []byte, p *packet) (bool, error) {
	bad := fmt.Errorf("packet block %d is malformed", c.packets+1)
	var iface, n, orig uint32
	var ts uint64
	switch kind {
	case blockSimple:
		if len(b) < 4 || len(c.ifaces) == 0 {
			return false, bad
		}
		orig = c.order.Uint32(b)
		n = orig
		if s := c.ifaces[0].snap; s > 0 && s < n {
			n = s
		}
		b = b[4:]
		if int64(n) > int64(len(b)) {
			return false, bad
		}
		return false, nil // it has no time: nothing of ours can be done with it
	default:
		if len(b) < 20 {
			return false, bad
		}
		iface = c.order.Uint32(b)
		if kind == blockObsolete {
			iface = uint32(c.order.Uint16(b))
			if d := c.order.Uint16(b[2:]); d != 0xffff {
				c.drops += int64(d)
			}
		}
		ts = uint64(c.order.Uint32(b[4:]))<<32 | uint64(c.order.Uint32(b[8:]))
		n, orig = c.order.Uint32(b[12:]), c.order.Uint32(b[16:])
		b = b[20:]
	}
	if int64(n) > int64(len(b)) {
		return false, bad
	}
	if pad := (int64(n) + 3) &^ 3; kind == blockPacket && pad < int64(len(b)) {
		c.options(b[pad:], func(code uint16, v []byte) {
			if code == 4 && len(v) >= 8 {
				c.drops += int64(c.order.Uint64(v) & (1<<40 - 1))
			}
		})
	}
	if iface >= uint32(len(c.ifaces)) || c.ifaces[iface].bad {
		return false, nil
	}
	i := &c.ifaces[iface]
	at, ok := i.nanos(ts)
	if !ok {
		return false, nil
	}
	*p = packet{data: b[:n], at: at, orig: int(max(orig, n)), link: i.link, iface: c.base + iface}
	return true, nil
}

// stats reads an interface statistics block: what the capturing program says it lost.
func (c *captureReader) stats(b []byte) {
	if len(b) < 12 {
		return
	}
	iface := c.base + c.order.Uint32(b)
	var drops int64
	c.options(b[12:], func(code uint16, v []byte) {
		if (code == 5 || code == 7) && len(v) >= 8 {
			drops += int64(c.order.Uint64(v) & (1<<40 - 1))
		}
	})
	if was := c.dropSeen[iface]; drops > was { // the counters are totals
		c.drops += drops - was
		c.dropSeen[iface] = drops
	}
}
