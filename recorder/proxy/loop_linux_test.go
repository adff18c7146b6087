package proxy

import (
	"bytes"
	"crypto/sha256"
	"io"
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestSlowReader: a client that does not read stops its server, holds no memory beyond the kernel's, and is in nobody's way; what it reads
// later is whole and ends where the server ended, and the other way still works then.
func TestSlowReader(t *testing.T) {
	const size = 64 << 20
	want := randomBytes(1, 1<<20)
	heard := make(chan string, 1)
	up := upstream(t, func(c *net.TCPConn) {
		b := make([]byte, 1)
		if _, err := io.ReadFull(c, b); err != nil {
			return
		}
		if b[0] == 'e' {
			c.Write(b)
			return
		}
		for range size >> 20 {
			if _, err := c.Write(want); err != nil {
				return
			}
		}
		c.CloseWrite()
		rest, _ := io.ReadAll(c)
		heard <- string(rest)
	})
	book := &notebook{}
	p, address, stop := start(t, Options{Upstream: up, Follow: func(Connection) Consumer { return book }, BacklogBytes: 1})
	slow := dial(t, address)
	slow.Write([]byte("s"))
	settled := int64(-1)
	eventually(t, "the server is stopped", func() bool {
		before := p.Stats().FromServer
		time.Sleep(100 * time.Millisecond)
		settled = p.Stats().FromServer
		return settled > 0 && settled == before
	})
	if len(p.loops) == 0 {
		t.Error("no loop passes plain TCP on")
	}
	if settled >= size {
		t.Errorf("%d bytes were taken for a client that reads nothing", settled)
	}
	for range 20 { // the others are served
		quick := dial(t, address)
		quick.Write([]byte("e"))
		if b, err := io.ReadAll(quick); string(b) != "e" || err != nil {
			t.Fatalf("%q, %v", b, err)
		}
	}
	slow.SetDeadline(time.Now().Add(30 * time.Second))
	sum, all := sha256.New(), sha256.New()
	n, err := io.Copy(sum, slow)
	if n != size || err != nil {
		t.Fatalf("%d of %d bytes, %v", n, size, err)
	}
	for range size >> 20 {
		all.Write(want)
	}
	if !bytes.Equal(sum.Sum(nil), all.Sum(nil)) {
		t.Error("other bytes than the server sent")
	}
	slow.Write([]byte("thanks"))
	slow.CloseWrite()
	select {
	case rest := <-heard:
		if rest != "thanks" {
			t.Errorf("the server hears %q after its own end", rest)
		}
	case <-time.After(patience):
		t.Error("the server hears nothing after its own end")
	}
	stop()
	if s := p.Stats(); s.FromServer != size+20 || s.Open != 0 {
		t.Errorf("%+v", s)
	}
}

// TestLoopsLeaveNothing: as many descriptors are open after a proxy has ended, with peers that end in every way, as before it.
func TestLoopsLeaveNothing(t *testing.T) {
	count := func() int {
		es, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skip("SKIPPED: it needs /proc")
		}
		return len(es)
	}
	up := upstream(t, func(c *net.TCPConn) { io.Copy(c, io.LimitReader(c, 3)) })
	warm := dial(t, up) // the runtime's poller is there
	warm.Close()
	before := count()
	p, address, stop := start(t, Options{Upstream: up})
	for i := range 60 {
		c, err := net.DialTimeout("tcp", address, patience)
		if err != nil {
			t.Fatal(err)
		}
		c.SetDeadline(time.Now().Add(patience))
		switch i % 4 {
		case 0: // the server ends
			c.Write([]byte("abc"))
			io.ReadAll(c)
		case 1: // the client ends in the middle
			c.Write([]byte("a"))
			io.ReadFull(c, make([]byte, 1))
		case 2: // it resets
			c.Write([]byte("a"))
			c.(*net.TCPConn).SetLinger(0)
		}
		c.Close()
	}
	eventually(t, "all connections end", func() bool { return p.Stats().Open == 0 })
	stop()
	eventually(t, "as many descriptors as before", func() bool { return count() <= before })
}

// TestGiveWay: what is read along runs after the others, also where the process was started in the real-time class.
func TestGiveWay(t *testing.T) {
	for _, class := range []uint32{unix.SCHED_NORMAL, unix.SCHED_RR} {
		got := make(chan *unix.SchedAttr)
		go func() {
			defer close(got)
			runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
			a := &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: class}
			if class == unix.SCHED_RR {
				a.Priority = 1
			}
			if unix.SchedSetAttr(0, a, 0) != nil {
				return // not allowed here
			}
			giveWay()
			a, err := unix.SchedGetAttr(0, 0)
			if err != nil {
				t.Error(err)
			}
			got <- a
		}()
		a, ok := <-got
		if !ok {
			t.Logf("SKIPPED: class %d may not be set here", class)
			continue
		}
		if a.Policy != unix.SCHED_NORMAL || a.Nice != 10 {
			t.Errorf("from class %d: class %d, nice %d", class, a.Policy, a.Nice)
		}
	}
}
