package proxy

import (
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// traffic makes connections with several exchanges each through the proxy and fails the test if one byte is missing or late.
func traffic(t *testing.T, address string, connections, rounds, size int) {
	t.Helper()
	var wg sync.WaitGroup
	for i := range connections {
		wg.Go(func() {
			c, err := net.DialTimeout("tcp", address, patience)
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			c.SetDeadline(time.Now().Add(patience))
			for r := range rounds {
				out := randomBytes(uint64(i*rounds+r), size)
				if _, err := c.Write(out); err != nil {
					t.Error(err)
					return
				}
				in := make([]byte, size)
				if _, err := io.ReadFull(c, in); err != nil || string(in) != string(out) {
					t.Errorf("connection %d, round %d: %v", i, r, err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func echoServer(t *testing.T) string { return upstream(t, func(c *net.TCPConn) { io.Copy(c, c) }) }

// broken is a consumer with a fault.
type broken struct {
	notebook
	bytes func(Side, []byte)
}

func (b *broken) Bytes(s Side, at int64, p []byte) {
	b.bytes(s, p)
	b.notebook.Bytes(s, at, p)
}

func TestConsumerPanics(t *testing.T) {
	var made atomic.Int64
	p, address, stop := start(t, Options{Upstream: echoServer(t), Follow: func(Connection) Consumer {
		made.Add(1)
		return &broken{bytes: func(Side, []byte) { panic("parser") }}
	}})
	traffic(t, address, 20, 10, 3000)
	stop()
	s := p.Stats()
	if s.Panics == 0 || made.Load() != s.Panics+20 && made.Load() != s.Panics {
		t.Errorf("%d panics, %d consumers made", s.Panics, made.Load())
	}
	if s.Backlog != 0 || s.FromClient != 20*10*3000 || s.FromServer != s.FromClient {
		t.Errorf("%+v", s)
	}
}

// TestConsumerPanicsOnce: what follows the panic is seen by a new consumer.
func TestConsumerPanicsOnce(t *testing.T) {
	var books []*broken
	_, address, stop := start(t, Options{Upstream: echoServer(t), Follow: func(Connection) Consumer {
		b := &broken{bytes: func(_ Side, p []byte) {
			if strings.Contains(string(p), "bang") {
				panic("parser")
			}
		}}
		books = append(books, b)
		return b
	}})
	c := dial(t, address)
	for _, word := range []string{"one", "bang", "two"} {
		io.WriteString(c, word)
		if _, err := io.ReadFull(c, make([]byte, len(word))); err != nil {
			t.Fatal(err)
		}
	}
	c.Close()
	stop()
	if len(books) != 3 { // "bang" panics both ways
		t.Fatalf("%d consumers", len(books))
	}
	if a, b := books[0].text(FromClient), books[2].text(FromServer); a != "one" || b != "two" {
		t.Errorf("before the panic %q, after it %q", a, b)
	}
}

func TestFollowPanics(t *testing.T) {
	p, address, stop := start(t, Options{Upstream: echoServer(t), Follow: func(Connection) Consumer { panic("no consumer") }})
	traffic(t, address, 3, 3, 100)
	stop()
	if s := p.Stats(); s.Panics != 3 || s.Backlog != 0 {
		t.Errorf("%+v", s)
	}
}

// TestConsumerBlocks: with a consumer that hangs for ever the backlog fills up to its limit, and the rest is lost and counted.
func TestConsumerBlocks(t *testing.T) {
	release := make(chan struct{})
	var books []*broken
	const limit = 256 << 10
	p, address, stop := start(t, Options{Upstream: echoServer(t), BacklogBytes: limit, Follow: func(Connection) Consumer {
		b := &broken{bytes: func(Side, []byte) { <-release }}
		books = append(books, b)
		return b
	}})
	traffic(t, address, 10, 20, 20_000)
	s := p.Stats()
	if s.LostBytes == 0 || s.Overflowing == 0 {
		t.Errorf("nothing was lost: %+v", s)
	}
	if s.Backlog > limit+1000*pieceCost {
		t.Errorf("the backlog is %d, beyond its limit of %d", s.Backlog, limit)
	}
	close(release)
	stop()
	s = p.Stats()
	var kept, lost int64
	for _, b := range books {
		for _, n := range b.all() {
			kept += int64(len(n.data))
			lost += n.n
		}
	}
	if kept+lost != 2*10*20*20_000 || lost != s.LostBytes {
		t.Errorf("kept %d + lost %d bytes (%d counted), want %d", kept, lost, s.LostBytes, 2*10*20*20_000)
	}
	if s.Backlog != 0 {
		t.Errorf("%d bytes of backlog are left", s.Backlog)
	}
}

// TestBlockedConsumerDoesNotHoldTheEnd: Serve returns when the grace period is over though the consumer hangs.
func TestBlockedConsumerDoesNotHoldTheEnd(t *testing.T) {
	release := make(chan struct{})
	defer close(release)
	_, address, stop := start(t, Options{Upstream: echoServer(t), Grace: 300 * time.Millisecond, Follow: func(Connection) Consumer {
		return &broken{bytes: func(Side, []byte) { <-release }}
	}})
	traffic(t, address, 1, 1, 10)
	done := make(chan struct{})
	go func() { stop(); close(done) }()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatal("Serve did not return")
	}
}

func TestDrain(t *testing.T) {
	release := make(chan struct{})
	up := upstream(t, func(c *net.TCPConn) {
		b := make([]byte, 1)
		for {
			if _, err := io.ReadFull(c, b); err != nil {
				return
			}
			if b[0] == 'l' { // a long answer
				c.Write([]byte("1"))
				<-release
				c.Write([]byte("2"))
				continue
			}
			c.Write(b)
		}
	})
	var mu sync.Mutex
	books := map[string]*notebook{}
	p, address, stop := start(t, Options{Upstream: up, Follow: func(c Connection) Consumer {
		b := &notebook{}
		b.isBusy.Store(true)
		mu.Lock()
		books[c.Client] = b
		mu.Unlock()
		return b
	}})
	idle, long, silent := dial(t, address), dial(t, address), dial(t, address)
	of := func(c net.Conn) *notebook { mu.Lock(); defer mu.Unlock(); return books[c.LocalAddr().String()] }
	find := func() *notebook { return of(long) }
	io.WriteString(long, "l")
	io.WriteString(idle, "i")
	for _, c := range []net.Conn{idle, long} {
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the long answer has a consumer", func() bool { return find() != nil && find().text(FromServer) == "1" })
	eventually(t, "the idle one has a consumer", func() bool { return of(idle) != nil && of(idle).text(FromServer) == "i" })
	of(idle).isBusy.Store(false)
	io.WriteString(idle, "j")
	if _, err := io.ReadFull(idle, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { stop(); close(ended) }()
	for _, c := range []net.Conn{idle, silent} {
		if b, err := io.ReadAll(c); len(b) != 0 || err != nil {
			t.Errorf("an idle connection got %q, %v; want an ordinary close", b, err)
		}
	}
	if !p.Draining() {
		t.Error("it does not say that it drains")
	}
	if c, err := net.DialTimeout("tcp", address, time.Second); err == nil {
		c.Close()
		t.Error("it still accepts")
	}
	find().isBusy.Store(false)
	close(release)
	b := make([]byte, 1)
	if _, err := io.ReadFull(long, b); err != nil || b[0] != '2' {
		t.Errorf("the end of the long answer: %q, %v", b, err)
	}
	select {
	case <-ended:
	case <-time.After(patience):
		t.Error("the drain did not end")
	}
	if s := p.Stats(); s.Cut != 0 || s.Open != 0 {
		t.Errorf("%+v", s)
	}
}

// TestDrainDelay: a load balancer that has not heard yet still gets through.
func TestDrainDelay(t *testing.T) {
	t.Parallel()
	p, address, stop := start(t, Options{Upstream: echoServer(t), DrainDelay: 3 * time.Second})
	ended := make(chan struct{})
	go func() { stop(); close(ended) }()
	eventually(t, "draining", p.Draining)
	traffic(t, address, 1, 1, 10)
	<-ended
}

func TestGraceCuts(t *testing.T) {
	up := upstream(t, func(c *net.TCPConn) { c.Write([]byte("1")); io.Copy(io.Discard, c) })
	p, address, stop := start(t, Options{Upstream: up, Grace: 150 * time.Millisecond})
	c := dial(t, address)
	io.WriteString(c, "q")
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	io.WriteString(c, "another question that has no answer")
	time.Sleep(20 * time.Millisecond)
	stop()
	if _, err := io.ReadAll(c); err == nil {
		t.Error("want a reset")
	}
	if s := p.Stats(); s.Cut != 1 {
		t.Errorf("%+v", s)
	}
}
