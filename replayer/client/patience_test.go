package client

import (
	"context"
	"crypto/tls"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/shadowtape/shadowtape/formats"
)

// spoken is a connection whose reads are scripted, and that remembers its deadline.
type spoken struct {
	net.Conn
	reads    []error // of each read; nil brings a byte
	deadline time.Time
}

func (c *spoken) Read(p []byte) (int, error) {
	err := c.reads[0]
	if c.reads = c.reads[1:]; err != nil {
		return 0, err
	}
	p[0] = 'x'
	return 1, nil
}

func (c *spoken) SetReadDeadline(t time.Time) error {
	c.deadline = t
	return nil
}

// A client that came to run too late reads what had been there in time; silence is a time-out.
func TestPatience(t *testing.T) {
	late := os.ErrDeadlineExceeded
	for _, c := range []struct {
		reads []error
		n     int
		err   error
	}{{[]error{nil}, 1, nil}, {[]error{late, nil}, 1, nil}, {[]error{late, late}, 0, late}, {[]error{io.EOF}, 0, io.EOF}} {
		n, err := (&patient{Conn: &spoken{reads: c.reads}, limit: time.Second}).Read(make([]byte, 8))
		if n != c.n || err != c.err {
			t.Errorf("%v: %d, %v", c.reads, n, err)
		}
	}
	s := &spoken{reads: []error{nil}} // the handshake is over: what follows has deadlines of its own
	if n, err := (&patient{Conn: s}).Read(make([]byte, 8)); n != 1 || err != nil || !s.deadline.IsZero() {
		t.Errorf("%d, %v, deadline %v", n, err, s.deadline)
	}
}

// deadlines remembers the last deadline that was set.
type deadlines struct {
	net.Conn
	last time.Time
}

func (c *deadlines) SetDeadline(t time.Time) error {
	c.last = t
	return c.Conn.SetDeadline(t)
}

// The time that a proxy has to open a tunnel is not the tunnel's.
func TestTunnelLeavesNoDeadline(t *testing.T) {
	near, far := net.Pipe()
	defer near.Close()
	go func() {
		defer far.Close()
		if _, err := far.Read(make([]byte, 4096)); err == nil {
			io.WriteString(far, "HTTP/1.1 200 OK\r\n\r\n")
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c := &deadlines{Conn: near}
	if err := tunnel(ctx, c, "target:443"); err != nil || !c.last.IsZero() {
		t.Errorf("%v, deadline %v", err, c.last)
	}
}

// Two ways of having no connection have two names: a target that refuses, and one that lets a client wait.
func TestConnectTimeout(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0") // accepts, and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	for _, c := range []struct {
		target, kind string
		reason       formats.EndReason
		o            Options
	}{
		{"https://" + l.Addr().String(), formats.ErrorConnectTime, formats.EndTimeout, Options{ConnectTimeout: 20 * time.Millisecond}},
		{"https://" + l.Addr().String(), formats.ErrorConnectTime, formats.EndTimeout, Options{Timeout: 20 * time.Millisecond}},
		{"http://" + closed.Addr().String(), formats.ErrorConnect, formats.EndServerAbort, Options{}},
	} {
		c.o.Targets = []string{c.target}
		k, err := New(c.o)
		if err != nil {
			t.Fatal(err)
		}
		p := k.Targets()[0]
		x := &formats.Exchange{}
		w := p.Wire(formats.EndpointChat, "id", []byte("{}"))
		p.Exchange(t.Context(), x, &w, NewClock(time.Now()), 0, Cut{}, func(at int64) {
			if at != -1 {
				t.Errorf("%s: sent at %d", c.target, at)
			}
		})
		if x.ErrorKind != c.kind || x.EndReason != c.reason || x.SentNS.Valid {
			t.Errorf("%s: %q, %s, sent %v", c.target, x.ErrorKind, x.EndReason, x.SentNS)
		}
		k.Close()
	}
}

// A kept connection under TLS is known to be closed before a request is wasted on it; session tickets that wait to be read do not make
// it unfit.
func TestAliveUnderTLS(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("NEEDS LINUX: only there a connection can be looked at without reading")
	}
	s := httptest.NewUnstartedServer(http.NotFoundHandler())
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	defer s.Close()
	k, err := New(Options{Targets: []string{s.URL}, TLS: &tls.Config{InsecureSkipVerify: true}, HTTP: "1.1"})
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	c, _, err := k.Targets()[0].dial(t.Context(), time.Now().Add(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	for range 20 { // while the tickets come
		if !alive(c.socket, true) {
			t.Fatal("an open connection is called closed")
		}
		time.Sleep(time.Millisecond)
	}
	s.CloseClientConnections()
	for end := time.Now().Add(time.Minute); alive(c.socket, true); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("a closed connection is called alive")
		}
	}
}
