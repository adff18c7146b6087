package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"github.com/shadowtape/shadowtape/internal/openai"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Options say where requests go and how. The zero value of every field but Targets has a meaning.
type Options struct {
	Targets        []string      // base URLs, http or https; arrivals are dealt to them in turn. A trailing /v1 is dropped
	Header         http.Header   // sent with every request
	APIKey         string        // sent as "Authorization: Bearer"; never written down
	Timeout        time.Duration // of one exchange from its sending to its last byte; 0: 10 minutes
	ConnectTimeout time.Duration // of a connection, and of each answer of the target's in its TLS handshake; 0: 10 s
	IdleTimeout    time.Duration // how long an unused connection is kept; 0: 4 s, because uvicorn closes its own after 5
	MaxIdle        int           // unused connections kept per target; 0: 4,096
	UserAgent      string        // "": shadowtape
	TLS            *tls.Config   // nil: the system's roots
	Proxy          *url.URL      // an HTTP proxy in front of the targets; nil: none
	UserClock      bool          // time reads when they return, although the kernel could say when their bytes came
	// HTTP is the version to speak: "auto", which "" is: what the target prefers under TLS, and 1.1 without, each answer on a connection
	// of its own; "1.1"; or "2", by agreement under TLS and by prior knowledge without, where answers share connections.
	HTTP string
	// AnswerBytes is how much of one answer is read; what is longer ends there (endless). 0: 256 MiB.
	AnswerBytes int64
	// Dial opens a connection; nil dials TCP, with the target's address looked up once and pinned.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Validate reports every setting that cannot work.
func (o Options) Validate() error {
	var errs []error
	if len(o.Targets) == 0 {
		errs = append(errs, errors.New("no target is given"))
	}
	for _, t := range o.Targets {
		if _, err := parseTarget(t); err != nil {
			errs = append(errs, err)
		}
	}
	settings := map[string]time.Duration{"timeout": o.Timeout, "connect timeout": o.ConnectTimeout, "idle timeout": o.IdleTimeout}
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		d := settings[name]
		if d < 0 {
			errs = append(errs, fmt.Errorf("a %s of %v is negative", name, d))
		}
	}
	if o.AnswerBytes < 0 {
		errs = append(errs, fmt.Errorf("answers of %d bytes", o.AnswerBytes))
	}
	if o.MaxIdle < 0 {
		errs = append(errs, fmt.Errorf("%d idle connections", o.MaxIdle))
	}
	if o.Proxy != nil && (o.Proxy.Scheme != "http" || o.Proxy.Host == "") {
		errs = append(errs, fmt.Errorf("proxy %q is no http URL", o.Proxy.Redacted()))
	} else if o.Proxy != nil {
		if err := CheckServer(o.Proxy); err != nil {
			errs = append(errs, fmt.Errorf("proxy %q %w", o.Proxy.Redacted(), err))
		}
	}
	switch o.HTTP {
	case "", "1.1", "auto":
	case "2":
		for _, t := range o.Targets {
			if o.Proxy != nil && strings.HasPrefix(t, "http:") {
				errs = append(errs, fmt.Errorf("HTTP/2 to %s cannot pass a proxy: it is not encrypted", t))
			}
		}
	default:
		errs = append(errs, fmt.Errorf("HTTP is 1.1, 2 or auto, not %q", o.HTTP))
	}
	for k := range o.Header {
		switch http.CanonicalHeaderKey(k) {
		case "Host", "Content-Length", "Transfer-Encoding", "Connection", "Keep-Alive", "Proxy-Connection", "Te", "Upgrade", "X-Request-Id", "Accept-Encoding":
			errs = append(errs, fmt.Errorf("header %s is the replayer's own", k))
		}
	}
	return errors.Join(errs...)
}

func (o *Options) defaults() {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&o.Timeout, 10*time.Minute)
	def(&o.ConnectTimeout, 10*time.Second)
	def(&o.IdleTimeout, 4*time.Second)
	if o.MaxIdle == 0 {
		o.MaxIdle = 4096
	}
	if o.UserAgent == "" {
		o.UserAgent = "shadowtape"
	}
	if o.HTTP == "" {
		o.HTTP = "auto"
	}
	if o.AnswerBytes == 0 {
		o.AnswerBytes = 256 << 20
	}
}

// Client sends requests over connections that it keeps warm. It is written for measuring: one write a request where the kernel takes it,
// and the time of every read known. Safe for concurrent use.
type Client struct {
	o       Options
	targets []*Target

	mu     sync.Mutex
	active map[cutter]struct{} // in an exchange
	cut    bool                // the run is over: what is in flight ends now

	readers sync.WaitGroup // of HTTP/2 connections

	misstated atomic.Int64
}

// Misstated is how many answers so far stated more tokens than a request can have (formats.MostTokens): their counts were not taken.
func (c *Client) Misstated() int64 { return c.misstated.Load() }

// note counts what an answer that has ended says of itself.
func (c *Client) note(r *openai.Response) {
	if r.Misstated() {
		c.misstated.Add(1)
	}
}

// cutter is something that an exchange runs on and that can be ended now.
type cutter interface{ cutNow() }

// New checks the options; it opens no connection.
func New(o Options) (*Client, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o.defaults()
	c := &Client{o: o, active: map[cutter]struct{}{}}
	for _, t := range o.Targets {
		u, err := parseTarget(t)
		if err != nil {
			return nil, err
		}
		c.targets = append(c.targets, newTarget(c, u))
	}
	return c, nil
}

// Close closes the connections that are not in use, and those of HTTP/2.
func (c *Client) Close() {
	for _, p := range c.targets {
		p.closeIdle()
		p.ctl.CloseIdleConnections()
	}
	c.readers.Wait()
}

// Targets are the targets in the order given; the caller must not change the slice.
func (c *Client) Targets() []*Target { return c.targets }

// Timeout is how long one exchange may take.
func (c *Client) Timeout() time.Duration { return c.o.Timeout }

// URL is the target's base URL, without /v1.
func (p *Target) URL() string { return p.url.String() }

// enter registers a connection as part of an exchange; false means that the run is over.
func (c *Client) enter(k cutter) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cut {
		return false
	}
	c.active[k] = struct{}{}
	return true
}

func (c *Client) leave(k cutter) {
	c.mu.Lock()
	delete(c.active, k)
	c.mu.Unlock()
}

// CutAll ends every exchange in flight, now, and refuses new ones until Revive.
func (c *Client) CutAll() {
	c.mu.Lock()
	c.cut = true
	var active []cutter
	for k := range c.active {
		active = append(active, k)
	}
	c.mu.Unlock()
	for _, k := range active {
		k.cutNow()
	}
}

func (c *Client) isCut() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cut
}

// Revive ends what CutAll began: new exchanges are sent again.
func (c *Client) Revive() {
	c.mu.Lock()
	c.cut = false
	c.mu.Unlock()
}

// setup is what opening a connection took, in nanoseconds; -1 where the step did not happen.
type setup struct{ dns, connect, tls int64 }

// Target holds the unused connections of one target, newest last.
type Target struct {
	c         *Client
	url       *url.URL
	host      string       // Host header
	address   string       // host:port to dial
	lineStart string       // of the request line, up to the endpoint's path
	headTail  string       // header lines that do not change
	ctl       *http.Client // for what is no part of the load
	mu        sync.Mutex
	idle      []idleConn
	multi     []*conn2  // of HTTP/2, in use or not
	free      []*conn2  // those among them that have room for a stream, newest last
	speaks    string    // what the last connection agreed on: HTTP/1.1 or HTTP/2; "": none stood yet
	noWarm    time.Time // until then no connection is opened ahead of need
	pinned    string    // looked-up address
	idleLimit time.Duration
}

type idleConn struct {
	*conn
	since time.Time
}

func newTarget(c *Client, u *url.URL) *Target {
	p := &Target{c: c, url: u, host: u.Host, idleLimit: c.o.IdleTimeout}
	p.address = hostPort(u)
	p.lineStart = "POST " + u.EscapedPath()
	if c.o.Proxy != nil && u.Scheme == "http" { // a proxy is asked for the whole URL
		p.lineStart = "POST http://" + u.Host + u.EscapedPath()
	}
	var b strings.Builder
	fmt.Fprintf(&b, "Host: %s\r\nUser-Agent: %s\r\nAccept: text/event-stream, application/json\r\nAccept-Encoding: identity\r\nContent-Type: application/json\r\n", p.host, c.o.UserAgent)
	if c.o.APIKey != "" {
		fmt.Fprintf(&b, "Authorization: Bearer %s\r\n", c.o.APIKey)
	}
	for k, vs := range c.o.Header {
		for _, v := range vs {
			fmt.Fprintf(&b, "%s: %s\r\n", k, oneLine(v))
		}
	}
	p.headTail = b.String()
	protocols := new(http.Protocols)
	protocols.SetHTTP1(c.o.HTTP != "2")
	protocols.SetHTTP2(c.o.HTTP != "1.1")
	protocols.SetUnencryptedHTTP2(c.o.HTTP == "2")
	dial := c.o.Dial
	if dial == nil { // what is asked before the load finds the address that the load goes to
		dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, c.o.ConnectTimeout)
			defer cancel()
			address, err := p.pin(ctx, address)
			if err != nil {
				return nil, err
			}
			return (&net.Dialer{KeepAlive: 15 * time.Second}).DialContext(ctx, network, address)
		}
	}
	p.ctl = &http.Client{Transport: &http.Transport{
		DialContext: dial, TLSClientConfig: c.o.TLS, DisableCompression: true, MaxIdleConnsPerHost: 2, IdleConnTimeout: c.o.IdleTimeout,
		TLSHandshakeTimeout: c.o.ConnectTimeout, Proxy: http.ProxyURL(c.o.Proxy), Protocols: protocols,
	}}
	return p
}

// oneLine keeps a header's value in its line.
func oneLine(v string) string { return strings.NewReplacer("\r", " ", "\n", " ").Replace(v) }

// Protocol is what the target's connections speak: HTTP/1.1 or HTTP/2; "" before there was one.
func (p *Target) Protocol() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.speaks
}

// tunnel asks a proxy for a connection to address (RFC 9110, section 9.3.6).
func tunnel(ctx context.Context, c net.Conn, address string) error {
	if d, ok := ctx.Deadline(); ok {
		if err := c.SetDeadline(d); err != nil {
			return err
		}
	}
	defer c.SetDeadline(time.Time{}) // fails only on a closed connection, which its first use sees
	if _, err := fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", address, address); err != nil {
		return err
	}
	var head []byte
	for b := make([]byte, 1); headEnd(head) == 0; { // byte by byte: what follows is the tunnel's
		if len(head) > 16<<10 {
			return errProtocol
		}
		if _, err := c.Read(b); err != nil {
			return err
		}
		head = append(head, b[0])
	}
	h, err := parseHead(head)
	if err == nil && h.status/100 != 2 {
		err = fmt.Errorf("the proxy answers HTTP %d", h.status)
	}
	return err
}

// get takes the connection used last, or nil where none is fit for use.
func (p *Target) get() *conn {
	for {
		p.mu.Lock()
		n := len(p.idle)
		if n == 0 {
			p.mu.Unlock()
			return nil
		}
		k := p.idle[n-1]
		p.idle[n-1] = idleConn{}
		p.idle = p.idle[:n-1]
		limit := p.idleLimit
		p.mu.Unlock()
		if time.Since(k.since) < limit && alive(k.socket, k.tls) {
			return k.conn
		}
		k.Close()
	}
}

// put keeps a connection for reuse.
func (p *Target) put(k *conn, h head) {
	p.mu.Lock()
	if h.idleSeconds > 0 { // stay a second under what the server promises
		p.idleLimit = min(p.c.o.IdleTimeout, max(time.Duration(h.idleSeconds)*time.Second-time.Second, time.Second/2))
	}
	if len(p.idle) >= p.c.o.MaxIdle {
		p.mu.Unlock()
		k.Close()
		return
	}
	k.rest()
	p.idle = append(p.idle, idleConn{k, time.Now()})
	p.mu.Unlock()
}

func (p *Target) closeIdle() {
	p.mu.Lock()
	idle, multi := p.idle, p.multi
	p.idle, p.multi, p.free = nil, nil, nil
	p.mu.Unlock()
	for _, k := range idle {
		k.Close()
	}
	var wg sync.WaitGroup // a server that does not read keeps a goodbye of TLS waiting
	for _, c := range multi {
		wg.Go(func() { c.stop(net.ErrClosed) })
	}
	wg.Wait()
}

// Warm opens connections ahead of need until n exchanges have one, and closes those that have been unused too long. It returns when it
// is done; a target that refuses is left for the exchanges themselves to report.
func (p *Target) Warm(ctx context.Context, n int) {
	if p.mayMultiplex() {
		if p.Protocol() == "" && n > 0 {
			p.openMany(ctx, 1) // to see what it speaks
		}
		if p.Protocol() != "HTTP/1.1" {
			p.warm2(ctx, n)
			return
		}
	}
	p.mu.Lock()
	old := 0
	for old < len(p.idle) && time.Since(p.idle[old].since) >= p.idleLimit {
		old++
	}
	stale := append([]idleConn(nil), p.idle[:old]...)
	p.idle = append(p.idle[:0], p.idle[old:]...)
	need := min(n, p.c.o.MaxIdle) - len(p.idle)
	if time.Now().Before(p.noWarm) {
		need = 0
	}
	p.mu.Unlock()
	for _, k := range stale {
		k.Close()
	}
	p.openMany(ctx, need)
}

// mayMultiplex says whether connections may come to speak HTTP/2.
func (p *Target) mayMultiplex() bool {
	return p.c.o.HTTP == "2" || p.c.o.HTTP == "auto" && p.url.Scheme == "https"
}

// openMany opens n connections for later.
func (p *Target) openMany(ctx context.Context, n int) {
	const abreast = 32
	var wg sync.WaitGroup
	slots := make(chan struct{}, abreast)
	for range max(n, 0) {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			k, _, err := p.dial(ctx, time.Now().Add(p.c.o.Timeout))
			if err == nil && k.two {
				if c := newConn2(k); !c.over() {
					p.keep2(c, false)
				} else {
					err = errGone
				}
			} else if err == nil {
				p.put(k, head{})
			}
			if err != nil {
				p.mu.Lock()
				p.noWarm = time.Now().Add(time.Second) // it refuses: do not storm it
				p.mu.Unlock()
			}
		})
	}
	wg.Wait()
}

// dial opens a connection, before the deadline.
func (p *Target) dial(ctx context.Context, deadline time.Time) (*conn, setup, error) {
	s := setup{-1, -1, -1}
	whole, cancelWhole := context.WithDeadline(ctx, deadline)
	defer cancelWhole()
	ctx, cancel := context.WithTimeout(whole, p.c.o.ConnectTimeout)
	defer cancel()
	address, start := p.address, time.Now()
	if proxy := p.c.o.Proxy; proxy != nil {
		address = hostPort(proxy)
	}
	dial := p.c.o.Dial
	if dial == nil {
		var err error
		wanted := address
		if address, err = p.pin(ctx, wanted); err != nil {
			return nil, s, err
		}
		if address != wanted {
			s.dns = int64(time.Since(start))
			start = time.Now()
		}
		dial = (&net.Dialer{KeepAlive: 15 * time.Second}).DialContext
	}
	nc, err := dial(ctx, "tcp", address)
	if err != nil {
		return nil, s, err
	}
	s.connect = int64(time.Since(start))
	if p.c.o.Proxy != nil && p.url.Scheme == "https" {
		if err := tunnel(ctx, nc, p.address); err != nil {
			nc.Close()
			return nil, s, err
		}
	}
	var stamp stamper
	if !p.c.o.UserClock {
		nc, stamp = stamped(nc)
	}
	k := &conn{stamp: stamp, target: p, two: p.c.o.HTTP == "2", socket: nc}
	if stamp != nil {
		k.reads = stamp.reads
	} else if p.mayMultiplex() {
		c := &counted{Conn: nc}
		nc, k.reads = c, func() int { return c.n }
	}
	if p.url.Scheme == "https" {
		start = time.Now()
		cfg := p.c.o.TLS.Clone()
		if cfg == nil {
			cfg = &tls.Config{}
		}
		if cfg.ServerName == "" {
			cfg.ServerName = p.url.Hostname()
		}
		cfg.NextProtos = map[string][]string{"1.1": {"http/1.1"}, "2": {"h2"}, "auto": {"h2", "http/1.1"}}[p.c.o.HTTP]
		hand := &patient{Conn: nc, limit: p.c.o.ConnectTimeout}
		tc := tls.Client(hand, cfg)
		if err := tc.HandshakeContext(whole); err != nil {
			nc.Close()
			return nil, s, err
		}
		hand.limit = 0
		nc.SetReadDeadline(time.Time{}) // fails only on a closed connection, which its first use sees
		s.tls = int64(time.Since(start))
		nc, k.tls = tc, true
		if k.two = tc.ConnectionState().NegotiatedProtocol == "h2"; !k.two && p.c.o.HTTP == "2" {
			nc.Close()
			return nil, s, errNoHTTP2
		}
	}
	k.Conn = nc
	p.mu.Lock()
	if p.speaks = "HTTP/1.1"; k.two {
		p.speaks = "HTTP/2"
	}
	p.mu.Unlock()
	return k, s, nil
}

var errNoHTTP2 = errors.New("the target does not offer HTTP/2")

// patient is a connection during its TLS handshake: each read waits for the other side as long as the limit says. What the client itself
// takes to come to run, on a machine out of breath, is not counted: bytes that are there when the time is over are read.
type patient struct {
	net.Conn
	limit time.Duration // 0: the handshake is over
}

func (c *patient) Read(p []byte) (int, error) {
	if c.limit == 0 {
		return c.Conn.Read(p)
	}
	if err := c.SetReadDeadline(time.Now().Add(c.limit)); err != nil {
		return 0, err
	}
	n, err := c.Conn.Read(p)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		const glance = 10 * time.Millisecond
		if c.SetReadDeadline(time.Now().Add(glance)) == nil {
			n, err = c.Conn.Read(p)
		}
	}
	return n, err
}

// pin looks the target's name up once; a run must not wander between machines, nor pay for names in its latencies.
func (p *Target) pin(ctx context.Context, address string) (string, error) {
	p.mu.Lock()
	pinned := p.pinned
	p.mu.Unlock()
	if pinned != "" {
		return pinned, nil
	}
	name, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", err
	}
	if net.ParseIP(name) != nil {
		return address, nil
	}
	ips, err := net.DefaultResolver.LookupHost(ctx, name)
	if err != nil {
		return "", err
	}
	for _, ip := range ips { // the first that answers; localhost may be ::1 with a server on 127.0.0.1 only
		k, err2 := (&net.Dialer{Timeout: p.c.o.ConnectTimeout}).DialContext(ctx, "tcp", net.JoinHostPort(ip, port))
		if err = err2; err == nil {
			k.Close()
			pinned = net.JoinHostPort(ip, port)
			break
		}
	}
	if err != nil {
		return "", err
	}
	p.mu.Lock()
	p.pinned = pinned
	p.mu.Unlock()
	return pinned, nil
}
