package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

const (
	smallBuffer = 4 << 10  // what an idle direction holds
	largeBuffer = 64 << 10 // what a busy one borrows
	drainTick   = 25 * time.Millisecond
	quietTime   = 100 * time.Millisecond
	headTime    = 10 * time.Second // a head takes longer only where somebody means harm
	lingerTime  = 30 * time.Second // for the client to close after the server has
)

var largeBuffers = sync.Pool{New: func() any { b := make([]byte, largeBuffer); return &b }}

// link is one client's connection and its own connection to the upstream.
type link struct {
	p      *Proxy
	opened time.Time
	trail  *trail // nil: nobody follows

	mu      sync.Mutex // guards the connections while they are being set up and torn down
	client  net.Conn
	server  net.Conn
	stopped bool
	cancel  context.CancelFunc
	pair    *pair // that a loop has the connections in; nil: goroutines pump

	upNS     atomic.Int64 // since opened, when the upstream was there; 0: it is not yet
	lastNS   atomic.Int64 // since opened, of the last bytes either way
	answered atomic.Bool  // the last bytes came from the server
	cut      atomic.Bool  // we end it: neither peer did
}

// now is a time in nanoseconds since 1970 that never runs backwards on this connection.
func (k *link) now() int64 { return k.opened.UnixNano() + int64(time.Since(k.opened)) }

func (k *link) run() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	k.mu.Lock()
	k.cancel = cancel
	stopped := k.stopped
	k.mu.Unlock()
	if stopped || !k.connect(ctx) {
		return
	}
	k.upNS.Store(max(int64(time.Since(k.opened)), 1))
	defer k.server.Close()
	defer k.client.Close()
	k.trail = k.p.follower.open(Connection{ID: k.p.lastID.Add(1), Client: k.client.RemoteAddr().String(), Server: k.server.RemoteAddr().String(), OpenedUnixNS: k.opened.UnixNano()})
	defer func() { k.trail.close(k.now()) }()
	if k.p.o.IdleTimeout > 0 {
		go k.watchIdle(ctx)
	}
	if a := k.p.join(k); a != nil {
		<-a.done
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		k.pump(FromClient, k.client, k.server)
	}()
	k.pump(FromServer, k.server, k.client)
	// The server has nothing more to say. A client that does not close is not waited for without end.
	t := time.AfterFunc(lingerTime, k.abort)
	<-done
	t.Stop()
}

// connect dials the upstream, and makes the TLS handshakes where there are to be any: the client's first, so that a port scan does not
// reach the upstream.
func (k *link) connect(ctx context.Context) bool {
	if c := k.p.o.ListenTLS; c != nil {
		secured, ok := k.secure(ctx, k.client, func(n net.Conn) *tls.Conn { return tls.Server(n, c) })
		if !ok {
			k.client.Close()
			return false
		}
		k.mu.Lock()
		k.client = secured
		k.mu.Unlock()
	}
	dialing, cancel := context.WithTimeout(ctx, k.p.o.DialTimeout)
	defer cancel()
	dial := k.p.o.Dial
	if dial == nil {
		dial = func(ctx context.Context, address string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "tcp", address)
		}
	}
	server, err := dial(dialing, k.p.o.Upstream)
	if err != nil {
		k.p.dialFailed.Add(1)
		refuse(k.client)
		return false
	}
	if c := k.p.o.UpstreamTLS; c != nil {
		secured, ok := k.secure(ctx, server, func(n net.Conn) *tls.Conn { return tls.Client(n, c) })
		if !ok {
			server.Close()
			refuse(k.client)
			return false
		}
		server = secured
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.server = server
	if k.stopped {
		server.Close()
		k.client.Close()
	}
	return !k.stopped
}

func (k *link) secure(ctx context.Context, c net.Conn, wrap func(net.Conn) *tls.Conn) (net.Conn, bool) {
	ctx, cancel := context.WithTimeout(ctx, k.p.o.HandshakeTimeout)
	defer cancel()
	t := wrap(c)
	if err := t.HandshakeContext(ctx); err != nil {
		k.p.handshakes.Add(1)
		return nil, false
	}
	return t, true
}

// refuse answers a client whose upstream cannot be reached, once it has asked something, and closes.
func refuse(c net.Conn) {
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	if n, _ := c.Read(make([]byte, 1)); n == 0 {
		return
	}
	const body = "shadowtape: the upstream cannot be reached\n"
	_, _ = io.WriteString(c, "HTTP/1.1 502 Bad Gateway\r\nContent-Type: text/plain\r\nContent-Length: 43\r\nConnection: close\r\n\r\n"+body)
	if closeWrite(c, false) == nil { // let the answer arrive before the rest of the request resets the connection
		_, _ = io.Copy(io.Discard, c)
	}
}

// pump passes bytes one way as they come, until the sender ends or one side fails. An end is passed on as an end, a failure as a reset.
func (k *link) pump(side Side, from, to net.Conn) {
	small := make([]byte, smallBuffer)
	large := (*[]byte)(nil)
	buffer := small
	defer func() {
		if large != nil {
			largeBuffers.Put(large)
		}
	}()
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			k.show(side, buffer[:n])
			if _, werr := to.Write(buffer[:n]); werr != nil {
				k.ended(other(side), true)
				k.abort()
				return
			}
			k.passed(side, n)
		}
		if err != nil {
			// A TLS peer that closes without saying so has ended, too; the other side is to see just that.
			unsaid := errors.Is(err, io.ErrUnexpectedEOF)
			ended := unsaid || errors.Is(err, io.EOF)
			k.ended(side, !ended)
			if !ended || closeWrite(to, unsaid) != nil {
				k.abort()
			}
			return
		}
		switch { // a direction that fills its buffer borrows a large one, and gives it back when it has calmed down
		case n == len(buffer) && large == nil:
			large = largeBuffers.Get().(*[]byte)
			buffer = *large
		case n < smallBuffer && large != nil:
			largeBuffers.Put(large)
			large, buffer = nil, small
		}
	}
}

// show notes what one read brought, and shows it before it is sent: so the answer cannot be seen before its question. It costs a copy, and
// never waits.
func (k *link) show(side Side, b []byte) {
	at := k.now()
	k.lastNS.Store(at - k.opened.UnixNano())
	k.answered.Store(side == FromServer)
	k.trail.bytes(side, at, b)
}

// passed counts bytes that were sent on.
func (k *link) passed(side Side, n int) {
	if side == FromClient {
		k.p.fromClient.Add(int64(n))
	} else {
		k.p.fromServer.Add(int64(n))
	}
}

// ended shows that a side has ended, unless that is our own doing.
func (k *link) ended(side Side, reset bool) {
	if !k.cut.Load() {
		k.trail.end(side, k.now(), reset)
	}
}

// closeWrite ends one direction; on TLS with its goodbye unless unsaid.
func closeWrite(c net.Conn, unsaid bool) error {
	if t, ok := c.(*tls.Conn); ok && unsaid {
		c = t.NetConn()
	}
	w, ok := c.(interface{ CloseWrite() error })
	if !ok {
		return errors.ErrUnsupported
	}
	return w.CloseWrite()
}

func other(s Side) Side {
	if s == FromClient {
		return FromServer
	}
	return FromClient
}

// abort ends both connections at once: the peers see a reset, as they would of each other.
func (k *link) abort() { k.stop(true) }

// abortGently ends a connection that is between exchanges: the peers see an ordinary close.
func (k *link) abortGently() { k.stop(false) }

func (k *link) stop(reset bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.stopped {
		return
	}
	k.stopped = true
	if k.cancel != nil {
		k.cancel()
	}
	if k.pair != nil {
		k.pair.stop(reset)
		return
	}
	for _, c := range []net.Conn{k.client, k.server} {
		if c == nil {
			continue
		}
		raw := c
		if t, ok := c.(*tls.Conn); ok {
			raw = t.NetConn()
		}
		if reset {
			if t, ok := raw.(interface{ SetLinger(int) error }); ok {
				_ = t.SetLinger(0)
			}
			raw.Close()
			continue
		}
		c.Close()
	}
}

// quiet reports whether no exchange is open and nothing has passed for a while.
func (k *link) quiet() bool {
	idle := time.Since(k.opened) - time.Duration(k.lastNS.Load())
	if idle < quietTime {
		return false
	}
	if k.lastNS.Load() == 0 {
		return true // nothing was ever asked
	}
	return k.answered.Load() && !k.trail.busy()
}

// spare reports since when the connection has been of no use to its client: between exchanges, or for too long in the middle of a head.
func (k *link) spare() (since time.Time, ok bool) {
	up, last := k.upNS.Load(), k.lastNS.Load()
	switch {
	case up == 0 || time.Since(k.opened)-time.Duration(up) < quietTime || k.cut.Load():
		return time.Time{}, false // its client may have asked already, and waits for the upstream to be dialled
	case k.quiet():
		return k.opened.Add(time.Duration(max(last, up))), true
	case last == 0:
		return time.Time{}, false
	}
	began := k.trail.heading()
	return began, !began.IsZero() && time.Since(began) > headTime
}

func (k *link) watchIdle(ctx context.Context) {
	for {
		left := k.p.o.IdleTimeout - (time.Since(k.opened) - time.Duration(k.lastNS.Load()))
		if left <= 0 {
			k.abortGently()
			return
		}
		sleep(ctx, left)
		if ctx.Err() != nil {
			return
		}
	}
}
