package client

import (
	"net"
	"runtime"
	"testing"
	"time"
)

// A stamp is the wall clock's: a step between receiving and reading must not become a latency.
func TestClockSteps(t *testing.T) {
	start := time.Unix(1_700_000_000, 0)
	w := &wallWatch{}
	c := Clock{start: start, unix: start.UnixNano(), wall: w}
	// The test moves the wall clock by moving what the clock takes for the start on it.
	read := func(after, delay, step time.Duration) (int64, bool) {
		c.unix = start.UnixNano() - int64(step)
		now := start.Add(after)
		return c.stamp(now.UnixNano()-int64(delay), now)
	}
	for _, s := range []struct {
		after, delay, step time.Duration
		at                 time.Duration
		ok                 bool
	}{
		{time.Second, 3 * time.Millisecond, 0, 997 * time.Millisecond, true},
		{2 * time.Second, 0, 0, 2 * time.Second, true},
		{2 * time.Second, -20 * time.Microsecond, 0, 2 * time.Second, true}, // two clocks read one after the other
		{3 * time.Second, -5 * time.Millisecond, 0, 3 * time.Second, false}, // from the future
		{4 * time.Second, 2 * time.Hour, 0, 4 * time.Second, false},
		{5 * time.Second, 0, time.Hour, 5 * time.Second, false}, // the step
		{5500 * time.Millisecond, 0, time.Hour, 5500 * time.Millisecond, false},
		{6100 * time.Millisecond, 100 * time.Millisecond, time.Hour, 6 * time.Second, true},
		{7 * time.Second, 0, 0, 7 * time.Second, false}, // and back
		{8100 * time.Millisecond, 0, 0, 8100 * time.Millisecond, true},
	} {
		at, ok := read(s.after, s.delay, s.step)
		if at != int64(s.at) || ok != s.ok {
			t.Errorf("read at %v, %v after the stamp, step %v: %v %t", s.after, s.delay, s.step, time.Duration(at), ok)
		}
	}
	if w.steps.Load() != 2 {
		t.Errorf("%d steps were seen", w.steps.Load())
	}
}

// On a real socket, the stamp lies between the write and the end of the read, whenever the reading goroutine got to run.
func TestKernelStamps(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("SKIPPED: needs Linux: receive times from the kernel are Linux only")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	accepted := make(chan net.Conn, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			accepted <- c
		}
	}()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	server := <-accepted
	defer server.Close()
	c, st := stamped(c)
	if st == nil {
		t.Fatal("no stamps")
	}
	defer c.Close()
	buf := make([]byte, 100)
	good := 0
	for i := 0; good < 10; i++ { // the kernel switches its stamps on in its own time
		if i == 10_000 {
			t.Fatalf("%d of %d reads had a stamp", good, i)
		}
		before := time.Now()
		if _, err := server.Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Millisecond) // the reader is late
		n, err := c.Read(buf)
		if err != nil || string(buf[:n]) != "hello" {
			t.Fatalf("%q, %v", buf[:n], err)
		}
		at, ok := st.received()
		if !ok {
			continue
		}
		good++
		if read := time.Now(); at < before.UnixNano() || at > read.UnixNano() {
			t.Errorf("read %d: the stamp is %v after the write began, the read ended after %v", i, time.Duration(at-before.UnixNano()), read.Sub(before))
		}
	}
	c.SetReadDeadline(time.Now().Add(time.Millisecond))
	if _, err := c.Read(buf); err == nil || !err.(net.Error).Timeout() {
		t.Errorf("a deadline gives %v", err)
	}
	c.SetReadDeadline(time.Time{})
	server.Close()
	if n, err := c.Read(buf); n != 0 || err == nil || err.Error() != "EOF" {
		t.Errorf("a closed connection gives %d, %v", n, err)
	}
	if alive(c, false) || alive(c, true) {
		t.Error("a closed connection is called alive")
	}
}

func BenchmarkStampedRead(b *testing.B) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		p := make([]byte, 1<<16)
		for {
			if _, err := c.Write(p); err != nil {
				return
			}
		}
	}()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	c, _ = stamped(c)
	buf := make([]byte, 200)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Read(buf); err != nil {
			b.Fatal(err)
		}
	}
}
