package client

import (
	"bytes"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// What an HTTP/2 connection offers and takes (RFC 9113).
const (
	h2StreamWindow = 4 << 20   // what the server may send on a stream before we have read it
	h2ConnWindow   = 1 << 30   // the same on the connection, over all streams
	h2Streams      = 100       // streams at once until the server says how many it takes
	h2FirstWindow  = 1<<16 - 1 // a window's size before anybody has said otherwise
)

var (
	errRefused = errors.New("the server refused the stream before it looked at it")
	errGone    = errors.New("the server closed the connection before it looked at the stream")
	errUnread  = errors.New("the server does not read what it is sent")
)

// errStream is what a server's RST_STREAM with a code becomes.
type errStream http2.ErrCode

func (e errStream) Error() string { return "the server reset the stream: " + http2.ErrCode(e).String() }

// conn2 is one HTTP/2 connection. One goroutine reads it, parses what comes and hands it to the streams' responses itself, so that no
// event waits for a second goroutine; each exchange writes its own request.
type conn2 struct {
	net.Conn
	socket net.Conn // what Conn goes over: it without TLS
	target *Target
	stamp  stamper // nil where the kernel gives no receive times
	reads  func() int

	wmu  sync.Mutex // of writing; taken before mu, never by the reader: a server that waits to be read would never read us
	out  bytes.Buffer
	fw   *http2.Framer // into out
	enc  *hpack.Encoder
	head bytes.Buffer // what enc made

	mu      sync.Mutex
	streams map[uint32]*stream
	next    uint32
	active  int       // streams that count against most, those being opened included
	most    int       // streams at once: what the server takes, or 1 where answers do not share connections
	own     bool      // they do not
	unused  time.Time // since when it has no stream; the zero time: it has one, or never had
	window  int64     // what we may send on the connection
	first   int64     // what we may send on a new stream
	frame   int64     // the largest DATA frame that the server takes
	used    int       // streams so far
	given   int       // streams given up by us
	heeded  bool      // the server has come past our settings: it may have looked at what came behind them
	looked  int64     // the last stream that its GOAWAY says it may have looked at; -1: it has said nothing of the kind
	closing bool      // no new stream: GOAWAY, out of ids, unused, or broken
	broken  error
	unsent  error                       // why nothing more can be written
	writing bool                        // a request, or a part of one
	replies []func(*http2.Framer) error // frames that are no request's
	gone    chan struct{}               // closed when the connection is broken
	kick    chan struct{}               // there are replies

	// Of the reader.
	read      readTime
	eventRead int  // the last read that brought a token event to any stream
	owed      int  // bytes read and not given back to the connection's window
	stray     int  // bytes of streams that were over
	settled   bool // heeded

	offered bool // it stands in the target's free; of the target's mu
}

// readTime is when the bytes of a read were there.
type readTime struct {
	no     int // counts reads of the socket
	unixNS int64
	kernel bool
	at     time.Time // when the read returned
}

// counted counts reads where the kernel's stamps do not.
type counted struct {
	net.Conn
	n int
}

func (c *counted) Read(p []byte) (int, error) {
	c.n++
	return c.Conn.Read(p)
}

// newConn2 speaks HTTP/2 over k and starts to read. The goroutine ends when the connection does; Client.Close closes it and waits. A
// connection that its server has closed already tells the stream that comes first.
func newConn2(k *conn) *conn2 {
	c := &conn2{Conn: k.Conn, socket: k.socket, target: k.target, stamp: k.stamp, reads: k.reads, streams: map[uint32]*stream{}, next: 1, most: h2Streams, window: h2FirstWindow, first: h2FirstWindow, frame: 16 << 10,
		looked: -1, gone: make(chan struct{}), kick: make(chan struct{}, 1), unused: time.Now()}
	if c.own = c.target.c.o.HTTP != "2"; c.own {
		c.most = 1
	}
	c.fw = http2.NewFramer(&c.out, nil)
	c.enc = hpack.NewEncoder(&c.head)
	c.wmu.Lock()
	c.out.WriteString(http2.ClientPreface)
	c.fw.WriteSettings(http2.Setting{ID: http2.SettingEnablePush, Val: 0}, http2.Setting{ID: http2.SettingInitialWindowSize, Val: h2StreamWindow},
		http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: maxHeadBytes}) // writes into a buffer do not fail
	c.fw.WriteWindowUpdate(0, h2ConnWindow-h2FirstWindow)
	c.target.c.readers.Go(c.run) // before the preface: a server may begin first
	c.target.c.readers.Go(c.reply)
	c.flush(nil) // an error shows in the reader
	c.wmu.Unlock()
	return c
}

// reserve takes room for a stream; false where there is none.
func (c *conn2) reserve() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing || c.active >= c.most {
		return false
	}
	c.active++
	c.unused = time.Time{}
	return true
}

// room is how many streams more the connection takes; ok is false where it is over.
func (c *conn2) room() (n int, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing {
		return 0, c.active > 0
	}
	return max(c.most-c.active, 0), true
}

// over says whether the connection takes no new stream.
func (c *conn2) over() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closing
}

// release gives a stream's room back, and closes a connection that takes no new ones with its last.
func (c *conn2) release() {
	c.mu.Lock()
	c.active--
	if c.active == 0 {
		c.unused = time.Now()
	}
	last, open := c.closing && c.active == 0, !c.closing
	c.mu.Unlock()
	if last {
		c.Close()
	} else if open {
		c.target.offer2(c)
	}
}

// retire closes a connection that has not been used for so long; it says whether it has.
func (c *conn2) retire(limit time.Duration) bool {
	c.mu.Lock()
	old := !c.closing && c.active == 0 && time.Since(c.unused) >= limit
	c.closing = c.closing || old
	c.mu.Unlock()
	if old {
		c.stop(net.ErrClosed)
	}
	return old
}

// stop ends the connection: streams that are open fail with err.
func (c *conn2) stop(err error) {
	c.mu.Lock()
	if c.broken == nil {
		c.broken = err
		close(c.gone)
	}
	c.closing = true
	var open []*stream
	for _, s := range c.streams {
		open = append(open, s)
	}
	c.mu.Unlock()
	for _, s := range open {
		s.over(err)
	}
	if err == net.ErrClosed {
		c.Close()
		return
	}
	c.socket.Close() // a goodbye of TLS would wait for a server that does not read
}

// Read reads the connection for the framer and notes when.
func (c *conn2) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	now := time.Now()
	c.read.at, c.read.no, c.read.kernel = now, c.reads(), false
	if c.stamp != nil && n > 0 {
		c.read.unixNS, c.read.kernel = c.stamp.received()
	}
	return n, err
}

// time is when the last read's bytes were there, by a run's clock.
func (r *readTime) time(clk Clock) (at int64, kernel bool) {
	if r.kernel {
		return clk.stamp(r.unixNS, r.at)
	}
	return int64(r.at.Sub(clk.start)), false
}

// buffered reads in pieces as large as the socket gives, so that a read of many small frames is one read.
type buffered struct {
	from io.Reader
	b    [32 << 10]byte
	r, w int
}

func (b *buffered) Read(p []byte) (int, error) {
	if b.r == b.w {
		n, err := b.from.Read(b.b[:])
		b.r, b.w = 0, n
		if n == 0 {
			return 0, err
		}
	}
	n := copy(p, b.b[b.r:b.w])
	b.r += n
	return n, nil
}

// run reads until the connection ends.
func (c *conn2) run() {
	fr := http2.NewFramer(nil, &buffered{from: c})
	fr.SetReuseFrames()
	fr.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	fr.MaxHeaderListSize = maxHeadBytes
	fr.SetMaxReadFrameSize(1 << 20)
	for {
		f, err := fr.ReadFrame()
		var se http2.StreamError
		if errors.As(err, &se) { // one stream's fault
			c.reset(se.StreamID, se.Code)
			if s := c.stream(se.StreamID); s != nil {
				s.over(errProtocol)
			}
			continue
		}
		var ce http2.ConnectionError
		if errors.As(err, &ce) || errors.Is(err, http2.ErrFrameTooLarge) {
			err = errProtocol
		}
		if err == nil {
			err = c.frameOf(f)
		}
		if err != nil {
			c.mu.Lock()
			if c.unsent != nil {
				err = c.unsent
			}
			c.mu.Unlock()
			c.stop(err)
			return
		}
	}
}

func (c *conn2) stream(id uint32) *stream {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.streams[id]
}

// forget takes a stream off the connection: what still comes for it is nobody's.
func (c *conn2) forget(s *stream) {
	c.mu.Lock()
	delete(c.streams, s.id)
	c.mu.Unlock()
}

// reset tells the server that nobody waits for a stream any more.
func (c *conn2) reset(id uint32, code http2.ErrCode) {
	c.mu.Lock()
	c.given++
	c.mu.Unlock()
	c.say(func(f *http2.Framer) error { return f.WriteRSTStream(id, code) }) // an error has ended the connection
}

// resets is how many streams we have given up, and one more, whose reset may not be counted yet.
func (c *conn2) resets() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.given + 1
}

// frameOf acts on one frame; an error ends the connection.
func (c *conn2) frameOf(f http2.Frame) error {
	if f.Header().StreamID != 0 {
		c.heed()
	}
	switch f := f.(type) {
	case *http2.DataFrame:
		return c.data(f)
	case *http2.MetaHeadersFrame:
		if s := c.stream(f.StreamID); s != nil {
			s.headers(f)
		}
	case *http2.RSTStreamFrame:
		if s := c.stream(f.StreamID); s != nil {
			if f.ErrCode == http2.ErrCodeRefusedStream {
				s.over(errRefused)
			} else {
				s.over(errStream(f.ErrCode))
			}
		}
	case *http2.SettingsFrame:
		return c.settings(f)
	case *http2.WindowUpdateFrame:
		return c.update(f.StreamID, int64(f.Increment))
	case *http2.PingFrame:
		if !f.IsAck() {
			return c.say(func(w *http2.Framer) error { return w.WritePing(true, f.Data) })
		}
	case *http2.GoAwayFrame:
		c.goAway(f.LastStreamID)
	case *http2.PushPromiseFrame:
		return errProtocol // we do not take them
	}
	return nil
}

// heed notes that the server has come past our settings: it has acknowledged them, or spoken of a stream.
func (c *conn2) heed() {
	if c.settled {
		return
	}
	c.settled = true
	c.mu.Lock()
	c.heeded = true
	c.mu.Unlock()
}

// data hands a stream its bytes and gives the windows back what was read.
func (c *conn2) data(f *http2.DataFrame) error {
	n := int(f.Length)
	if c.owed += n; c.owed >= h2ConnWindow/4 {
		owed := uint32(c.owed)
		c.owed = 0
		if err := c.say(func(w *http2.Framer) error { return w.WriteWindowUpdate(0, owed) }); err != nil {
			return err
		}
	}
	s := c.stream(f.StreamID)
	if s == nil {
		if c.stray += n; c.stray > h2StreamWindow*c.resets() { // of streams that we have reset: more than could be on its way
			return errProtocol
		}
		return nil
	}
	if s.owed += n; s.owed >= h2StreamWindow/4 && !f.StreamEnded() {
		owed := uint32(s.owed)
		s.owed = 0
		if err := c.say(func(w *http2.Framer) error { return w.WriteWindowUpdate(s.id, owed) }); err != nil {
			return err
		}
	}
	s.data(f.Data(), f.StreamEnded())
	return nil
}

func (c *conn2) settings(f *http2.SettingsFrame) error {
	if f.IsAck() {
		c.heed()
		return nil
	}
	c.mu.Lock()
	err := f.ForeachSetting(func(s http2.Setting) error {
		if s.Valid() != nil {
			return errProtocol
		}
		switch s.ID {
		case http2.SettingMaxConcurrentStreams:
			if c.most = int(min(s.Val, 1<<20)); c.own {
				c.most = min(c.most, 1)
			}
		case http2.SettingInitialWindowSize:
			by := int64(s.Val) - c.first
			c.first += by
			for _, st := range c.streams {
				st.window += by
				st.wake()
			}
		case http2.SettingMaxFrameSize:
			c.frame = int64(max(s.Val, 16<<10))
		case http2.SettingHeaderTableSize:
			c.enc.SetMaxDynamicTableSizeLimit(s.Val)
		}
		return nil
	})
	c.mu.Unlock()
	if err != nil {
		return err
	}
	return c.say(func(w *http2.Framer) error { return w.WriteSettingsAck() })
}

// update gives a window, the connection's where id is 0, so much more.
func (c *conn2) update(id uint32, by int64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if id != 0 {
		if s := c.streams[id]; s != nil {
			s.window += by
			s.wake()
		}
		return nil
	}
	if c.window += by; c.window > 1<<31-1 {
		return errProtocol
	}
	for _, s := range c.streams {
		s.wake()
	}
	return nil
}

// goAway takes no new stream; those that the server has not looked at are over, and may be sent again.
func (c *conn2) goAway(last uint32) {
	const notYet = 1<<31 - 1 // of a server that means to say later which was the last
	c.mu.Lock()
	if c.closing = true; last != notYet {
		c.looked = int64(last)
	}
	var late []*stream
	for id, s := range c.streams {
		if id > last {
			late = append(late, s)
		}
	}
	idle := c.active == 0
	c.mu.Unlock()
	if idle {
		c.Close()
	}
	for _, s := range late {
		s.over(errGone)
	}
}
