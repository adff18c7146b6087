package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/recorder"
	"github.com/shadowtape/shadowtape/recorder/proxy"
	"github.com/shadowtape/shadowtape/recorder/ring"
	"github.com/shadowtape/shadowtape/replayer/client"
)

// liveFlags are the flags of record for traffic as it passes.
type liveFlags struct {
	iface, filter                string
	tunnels, promiscuous, check  bool
	workers                      int
	ring                         byteSize
	maxCPU                       float64
	listen, upstream             string
	cert, key, upstreamCA        string
	maxConnections               int
	grace, drainDelay, closeIdle time.Duration
	sink                         string
	duration                     time.Duration
	metrics                      string
	watch, watchGPUs             []string
	scrape                       time.Duration
	memory                       byteSize
	paths, models, statuses      []string
	sample                       float64
	sampleBy                     string
	sampleWindow                 time.Duration
	segmentAge                   time.Duration
	segmentSize, quota           byteSize
	appendTrace                  bool
	spool                        string
}

func (o *liveFlags) add(f *pflag.FlagSet) {
	f.StringVar(&o.iface, "interface", "", "network interface to record from, or any (Linux; needs CAP_NET_RAW)")
	f.StringVar(&o.filter, "filter", "", "packets to look at, besides --port: host, net, port, portrange, vlan, ip, ip6 with and, or, not, as in tcpdump")
	f.BoolVar(&o.tunnels, "tunnels", false, "also look into VXLAN, Geneve, GRE and IP in IP")
	f.BoolVar(&o.promiscuous, "promiscuous", false, "also see packets that are not for this machine: a bridge, a mirror port")
	f.IntVar(&o.workers, "workers", 1, "rings and threads between which connections are spread")
	o.ring = ring.DefaultBytes
	f.Var(&o.ring, "ring", "packet ring of each worker, outside the heap")
	f.Float64Var(&o.maxCPU, "max-cpu", 0, "processors to use at most; beyond it whole sessions are left out and counted (default: no limit)")
	f.BoolVar(&o.check, "check", false, "look for thirty seconds (or --duration), write nothing, say what would be recorded")
	f.StringVar(&o.listen, "listen", "", "address of a recording proxy to --upstream")
	f.StringVar(&o.upstream, "upstream", "", "server behind the proxy: http://HOST:PORT or https://HOST:PORT")
	f.StringVar(&o.cert, "tls-cert", "", "certificate of the proxy, PEM, read again when it changes (default: plain HTTP)")
	f.StringVar(&o.key, "tls-key", "", "its key, PEM")
	f.StringVar(&o.upstreamCA, "upstream-ca", "", "certificates that an https upstream is trusted by, PEM (default: the system's)")
	f.IntVar(&o.maxConnections, "max-connections", 0, "connections of the proxy or the sink at once; more wait until idle ones have made room, or are closed by a sink (default: 10000; of a sink one for each 64KiB of --memory, at most 10000)")
	f.DurationVar(&o.closeIdle, "close-idle", 0, "close connections of the proxy on which nothing passes for so long; longer than any first token takes (default: never)")
	f.DurationVar(&o.grace, "grace", proxy.DefaultGrace, "how long open exchanges may go on after SIGTERM")
	f.DurationVar(&o.drainDelay, "drain-delay", 0, "how long new connections are still taken after SIGTERM")
	f.StringVar(&o.sink, "sink", "", "address of a sink for mirrored requests")
	f.DurationVar(&o.duration, "duration", 0, "how long to record (default: until SIGINT or SIGTERM)")
	f.StringVar(&o.metrics, "metrics-listen", "", "address for /metrics, /healthz and /readyz (default: none)")
	f.StringArrayVar(&o.watch, "metrics", nil, "`URL` of the server's metrics page to sample beside the exchanges; several are several servers")
	f.StringArrayVar(&o.watchGPUs, "gpu-metrics", nil, "`URL` of a GPU exporter's page (DCGM) to sample, once a second")
	f.DurationVar(&o.scrape, "scrape", time.Second, "time between scrapes of --metrics")
	f.Var(&o.memory, "memory", "memory to use at most (default: the control group's limit, else 512MiB)")
	f.StringSliceVar(&o.paths, "path", nil, "URL paths to record, with a * at either end for any; several are alternatives (default: all)")
	f.StringSliceVar(&o.models, "model", nil, "models to record, likewise")
	f.StringSliceVar(&o.statuses, "status", nil, "HTTP statuses to record: 200, 4xx, none (default: all)")
	f.Float64Var(&o.sample, "sample", 1, "share to record, of whole sessions, tenants or windows of time")
	f.StringVar(&o.sampleBy, "sample-by", "session", "what the share is taken of: session, tenant or window")
	f.DurationVar(&o.sampleWindow, "sample-window", 5*time.Minute, "length of the windows of --sample-by window")
	f.DurationVar(&o.segmentAge, "segment-age", time.Minute, "start a new segment file after so long")
	o.segmentSize = 64 << 20
	f.Var(&o.segmentSize, "segment-size", "or after so many bytes, uncompressed")
	f.Var(&o.quota, "quota", "bytes that the trace may take; the oldest segments that are not pinned go first (default: no limit)")
	f.StringVar(&o.spool, "spool", "", "with -o s3://BUCKET/PREFIX: `directory` that segments are written to first (default: shadowtape-spool in the directory for temporary files)")
	f.BoolVar(&o.appendTrace, "append", false, "go on with a trace that is there, repairing it first: for services that restart")
}

var liveGroups = []flagGroup{
	{"From an interface", []string{"interface", "filter", "tunnels", "promiscuous", "workers", "ring", "max-cpu", "check"}},
	{"As a proxy", []string{"listen", "upstream", "tls-cert", "tls-key", "upstream-ca", "max-connections", "close-idle", "grace", "drain-delay"}},
	{"As a sink of mirrored requests", []string{"sink"}},
	{"What is recorded", []string{"path", "model", "status", "sample", "sample-by", "sample-window", "duration"}},
	{"The server's state", []string{"metrics", "gpu-metrics", "scrape"}},
	{"Operation", []string{"metrics-listen", "memory", "segment-age", "segment-size", "quota", "append", "spool"}},
}

// live reports whether a source of traffic as it passes is asked for.
func (o *liveFlags) live() bool {
	return o.iface != "" || o.listen != "" || o.upstream != "" || o.sink != ""
}

// byteSize is a flag's number of bytes: 4096, 64KiB, 1.5GiB, 100MB.
type byteSize int64

var byteUnits = []struct {
	name string
	n    float64
}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}, {"B", 1}, {"", 1}}

func (b *byteSize) Set(s string) error {
	for _, u := range byteUnits {
		number, ok := strings.CutSuffix(s, u.name)
		if !ok {
			continue
		}
		v, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
		if err != nil || !(v >= 0) || v*u.n > 1<<60 {
			break
		}
		*b = byteSize(v * u.n)
		return nil
	}
	return fmt.Errorf("%q is no size: a number with B, kB, KiB, MB, MiB, GB or GiB", s)
}

func (b *byteSize) Type() string { return "size" }

func (b *byteSize) String() string {
	for _, u := range byteUnits[:4] {
		if n := int64(u.n); *b != 0 && int64(*b)%n == 0 {
			return strconv.FormatInt(int64(*b)/n, 10) + u.name
		}
	}
	return strconv.FormatInt(int64(*b), 10)
}

// ownsProcess says that run is the process's own program, not a test's: it may then give up privileges.
var ownsProcess bool

// liveSource is what the three sources of passing traffic have in common.
type liveSource struct {
	kind, source string
	clock        formats.Clock
	run          func(ctx context.Context, emit func(*formats.Exchange)) error
	stats        func() recorder.SourceStats
	spool        func(*recorder.Spool) // gives the source its spool before it runs
	traffic      func() proxy.Stats
	draining     func() bool
	close        func() error
	note         string
}

// recordLive records traffic as it passes.
func (a *app) recordLive(ctx context.Context, o recordFlags, ports []uint16) error {
	l := &o.live
	watch, err := a.serverWatch(l)
	if err != nil {
		return usageError(err, "--metrics http://HOST:PORT/metrics")
	}
	key, err := readKey(o.keyFile)
	if err != nil {
		return err
	}
	memory := int64(l.memory)
	if memory == 0 {
		memory = recorder.DefaultMemory
		if limit, ok := recorder.MemoryLimit(); ok {
			memory = limit
		}
	}
	if memory < recorder.MinMemory {
		return usageError(fmt.Errorf("--memory %d: at least %d", memory, recorder.MinMemory), "")
	}
	ringBytes := int64(0)
	if l.iface != "" {
		ringBytes = int64(l.ring) * int64(max(l.workers, 1))
	}
	budget := recorder.Divide(memory, ringBytes)
	if ownsProcess {
		debug.SetMemoryLimit(budget.Heap)
		debug.SetGCPercent(400) // the limit holds; below it fewer collections disturb less
		if l.listen != "" {
			// A thread that comes out of a system call finds its place at once: the system, not Go, shares the processors out.
			runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + 2)
		}
		if err := ring.NoCoreDumps(); err != nil {
			fmt.Fprintf(a.err, "shadowtape: warning: %v\n", err)
		}
	}
	text, err := o.text.open(a, o, l.appendTrace, int64(budget.Bodies))
	if err != nil {
		return err
	}
	src, err := a.liveSource(o, ports, key, budget, text)
	if err != nil {
		o.text.abandon(text)
		return err
	}
	defer src.close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	duration := l.duration
	if l.check && duration == 0 {
		duration = 30 * time.Second
	}
	if duration > 0 {
		t := time.AfterFunc(duration, cancel)
		defer t.Stop()
	}
	if l.check {
		return a.checkLive(ctx, o, src)
	}
	return a.recordTo(ctx, o, key, budget, src, watch, text)
}

func (a *app) recordTo(ctx context.Context, o recordFlags, key []byte, budget recorder.Budget, src *liveSource, watch *serverWatch, text recorder.Counting) (err error) {
	l := &o.live
	defer func() {
		if text.Bodies != nil {
			err = errors.Join(err, text.Bodies.Close())
		}
	}()
	var m net.Listener
	if l.metrics != "" {
		if m, err = net.Listen("tcp", l.metrics); err != nil {
			o.text.abandon(text)
			text.Bodies = nil
			return fmt.Errorf("serve metrics: %w", err)
		}
		defer m.Close()
	}
	open := func(h formats.Header, s formats.SegmentOptions) (recorder.Segments, error) {
		return formats.Create(o.out, h, s)
	}
	if formats.Remote(o.out) {
		s := &shipment{a: a, to: o.out, spool: l.spool, node: o.node}
		if err := s.start(ctx); err != nil {
			return err
		}
		open = s.open
		defer func() { err = errors.Join(err, s.finish()) }()
	}
	h := formats.Header{ToolVersion: readBuildInfo().Version, SourceKind: src.kind, Source: src.source, TimeBase: "absolute", Clock: src.clock}
	if l.sample < 1 {
		h.SamplingFraction = l.sample
		h.Extra = map[string]any{"sample_by": l.sampleBy}
		if l.sampleBy == string(recorder.SampleWindows) {
			h.Extra["sample_window_s"] = l.sampleWindow.Seconds()
		}
	}
	o.text.describe(&h, key, text)
	segments := formats.SegmentOptions{MaxAge: l.segmentAge, MaxBytes: int64(l.segmentSize), Journal: true, Append: l.appendTrace, Quota: int64(l.quota)}
	var w recorder.Segments
	begin := func() (err error) {
		w, err = open(h, segments)
		return err
	}
	if o.force && !formats.Remote(o.out) {
		err = formats.SetAside(o.out, begin)
	} else {
		err = begin()
	}
	if err != nil {
		o.text.abandon(text)
		text.Bodies = nil
	}
	if errors.Is(err, fs.ErrExist) {
		return withHint(err, "--append goes on with it, --force replaces it")
	}
	if err != nil {
		return err
	}
	again := segments
	again.Append = true
	spool := recorder.NewSpool(w, watch.with(src.stats), recorder.SpoolOptions{QueueBytes: budget.Queue, Bodies: text.Bodies, Reopen: func() (recorder.Segments, error) { return open(h, again) }})
	src.spool(spool)
	if m != nil {
		server := &http.Server{
			Handler:           &recorder.Monitor{Stats: spool.Stats, Backlog: spool.Backlog, Traffic: src.traffic, Draining: src.draining, Version: h.ToolVersion, Started: time.Now()},
			ReadHeaderTimeout: 5 * time.Second, WriteTimeout: 10 * time.Second, IdleTimeout: time.Minute,
		}
		served := make(chan error, 1)
		go func() { served <- server.Serve(m) }()
		defer func() { server.Close(); <-served }()
		fmt.Fprintf(a.err, "metrics on http://%s/metrics\n", m.Addr())
	}
	fmt.Fprintf(a.err, "recording %s into %s\n", src.note, o.out)
	watching, watched := context.WithCancel(ctx)
	warned := a.watchLive(watching, spool)
	st, err := recorder.RecordLive(func(emit func(*formats.Exchange)) error {
		defer watch.start(spool)()
		return src.run(ctx, emit)
	}, spool)
	watched()
	<-warned
	for _, s := range st.Warnings {
		fmt.Fprintf(a.err, "shadowtape: warning: %s\n", oneLine(s))
	}
	return errors.Join(err, a.recorded(o, st))
}

// watchLive says once a minute what has gone wrong since.
func (a *app) watchLive(ctx context.Context, spool *recorder.Spool) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		var dropped int64
		var last string
		tick := time.NewTicker(time.Minute)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			st := spool.Stats()
			text := ""
			if n := st.Dropped - dropped; n > 0 {
				text = fmt.Sprintf("%d exchanges were dropped in the last minute", n)
			}
			if _, err := spool.Backlog(); err != nil {
				text = strings.TrimPrefix(text+"; nothing is written: "+err.Error(), "; ")
			}
			if text != "" && text != last {
				fmt.Fprintf(a.err, "shadowtape: warning: %s\n", oneLine(text))
			}
			dropped, last = st.Dropped, text
		}
	}()
	return done
}

func (a *app) liveSource(o recordFlags, ports []uint16, key []byte, budget recorder.Budget, text recorder.Counting) (*liveSource, error) {
	l := &o.live
	selection := recorder.Selection{Paths: l.paths, Models: l.models, Statuses: l.statuses, Fraction: l.sample, By: recorder.SampleUnit(l.sampleBy), Window: l.sampleWindow}
	limits := recorder.Limits{IdleTimeout: o.idle, GapTimeout: o.gap, MaxHeld: budget.Held, MaxBodies: budget.Bodies}
	switch {
	case l.iface != "":
		return a.interfaceSource(o, ports, key, budget, selection, limits, text)
	case l.sink != "":
		return a.sinkSource(o, key, budget, selection, limits, text)
	}
	return a.proxySource(o, key, budget, selection, limits, text)
}

func (a *app) interfaceSource(o recordFlags, ports []uint16, key []byte, budget recorder.Budget, selection recorder.Selection, limits recorder.Limits, text recorder.Counting) (*liveSource, error) {
	l := &o.live
	filter, err := ring.ParseFilter(l.filter)
	if err != nil {
		return nil, usageError(err, "--filter 'host 10.0.0.1 and not port 22'")
	}
	bytes := budget.Ring / max(l.workers, 1)
	s := &recorder.Live{
		Ring: ring.Options{Interface: l.iface, Filter: ring.Ports(ports...).And(filter), Tunnels: l.tunnels, Promiscuous: l.promiscuous, Workers: l.workers, Bytes: bytes},
		Key:  key, Node: o.node, Select: selection, MaxCPU: l.maxCPU, Limits: limits, Counting: text,
	}
	if err := s.Validate(); err != nil {
		return nil, usageError(err, "")
	}
	err = s.Open()
	switch {
	case errors.Is(err, ring.ErrPermission):
		return nil, withHint(err, "run it as root, give it the capability (setcap cap_net_raw+ep), or add NET_RAW to the container; a proxy or a sink needs none")
	case err != nil:
		return nil, err
	}
	if ownsProcess {
		if err := ring.DropPrivileges(); err != nil && !errors.Is(err, syscall.ENOTSUP) {
			return nil, errors.Join(err, s.Close())
		} else if err != nil {
			fmt.Fprintln(a.err, "shadowtape: warning: this binary is built with cgo and keeps its privileges; CGO_ENABLED=0 builds one that drops them")
		}
	}
	note := l.iface
	if text := s.Ring.Filter.String(); text != "" {
		note += " (" + text + ")"
	}
	return &liveSource{
		kind: "interface", source: note, clock: formats.ClockPacket, note: note, close: s.Close, stats: s.Stats,
		run: func(ctx context.Context, emit func(*formats.Exchange)) error {
			return s.Run(ctx, recorder.Filter{Ports: ports}, emit)
		},
		spool: func(p *recorder.Spool) { s.Begin, s.Forget = p.Begin, p.Forget },
	}, nil
}

func (a *app) proxySource(o recordFlags, key []byte, budget recorder.Budget, selection recorder.Selection, limits recorder.Limits, text recorder.Counting) (*liveSource, error) {
	l := &o.live
	address, upstreamTLS, err := readUpstream(l.upstream, l.upstreamCA)
	if err != nil {
		return nil, err
	}
	s := &recorder.Proxy{
		Key: key, Node: o.node, Select: selection, Limits: limits, Counting: text,
		Options: proxy.Options{Upstream: address, UpstreamTLS: upstreamTLS, MaxConnections: l.maxConnections, IdleTimeout: l.closeIdle, Grace: l.grace, DrainDelay: l.drainDelay, BacklogBytes: budget.Backlog},
	}
	if l.cert != "" || l.key != "" {
		get, err := proxy.Certificate(l.cert, l.key)
		if err != nil {
			return nil, withHint(err, "--tls-cert FILE --tls-key FILE")
		}
		s.Options.ListenTLS = &tls.Config{GetCertificate: get, NextProtos: []string{"http/1.1"}, MinVersion: tls.VersionTLS12}
	}
	if s.Listener, err = net.Listen("tcp", l.listen); err != nil {
		return nil, err
	}
	if err := s.Prepare(); err != nil {
		return nil, errors.Join(usageError(err, ""), s.Listener.Close())
	}
	return &liveSource{
		kind: "proxy", source: address, clock: formats.ClockUser, note: fmt.Sprintf("what passes from %s to %s", s.Listener.Addr(), l.upstream), stats: s.Stats, traffic: s.Traffic, draining: s.Draining,
		close: func() error { return nil },
		run: func(ctx context.Context, emit func(*formats.Exchange)) error {
			return s.Run(ctx, recorder.Filter{}, emit)
		},
		spool: func(p *recorder.Spool) { s.Begin, s.Forget = p.Begin, p.Forget },
	}, nil
}

// readUpstream reads the URL of a proxy's upstream.
func readUpstream(text, ca string) (address string, c *tls.Config, err error) {
	const hint = "--upstream http://HOST:PORT or https://HOST:PORT"
	u, err := url.Parse(text)
	if err != nil {
		return "", nil, usageError(errors.New("--upstream is no URL"), hint)
	}
	port := map[string]string{"http": "80", "https": "443"}[u.Scheme]
	switch err := client.CheckServer(u); {
	case port == "":
		return "", nil, usageError(fmt.Errorf("--upstream %q is no http or https URL", withoutSecrets(text)), hint)
	case err != nil:
		return "", nil, usageError(fmt.Errorf("--upstream %q %w", withoutSecrets(text), err), hint)
	case u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.User != nil:
		return "", nil, usageError(errors.New("--upstream takes a server only: paths pass unchanged"), hint)
	case u.Port() != "":
		port = u.Port()
	}
	if u.Scheme == "https" {
		c = &tls.Config{ServerName: u.Hostname(), NextProtos: []string{"http/1.1"}, MinVersion: tls.VersionTLS12}
		if ca != "" {
			pem, err := os.ReadFile(ca)
			if err != nil {
				return "", nil, fmt.Errorf("read --upstream-ca: %w", err)
			}
			c.RootCAs = x509.NewCertPool()
			if !c.RootCAs.AppendCertsFromPEM(pem) {
				return "", nil, fmt.Errorf("read --upstream-ca %s: no certificate in it", ca)
			}
		}
	}
	return net.JoinHostPort(u.Hostname(), port), c, nil
}

func (a *app) sinkSource(o recordFlags, key []byte, budget recorder.Budget, selection recorder.Selection, limits recorder.Limits, text recorder.Counting) (*liveSource, error) {
	l := &o.live
	listener, err := net.Listen("tcp", l.sink)
	if err != nil {
		return nil, err
	}
	connections, err := sinkConnections(l.maxConnections, budget.Memory)
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	s := &recorder.Mirror{Listener: listener, Connections: connections, Key: key, Node: o.node, BacklogBytes: budget.Backlog, Grace: min(l.grace, 5*time.Second), Select: selection, Limits: limits, Counting: text}
	return &liveSource{
		kind: "sink", source: listener.Addr().String(), clock: formats.ClockUser, note: fmt.Sprintf("requests mirrored to %s", listener.Addr()), stats: s.Stats, draining: s.Draining,
		close: func() error { return nil },
		run: func(ctx context.Context, emit func(*formats.Exchange)) error {
			return s.Run(ctx, recorder.Filter{}, emit)
		},
		spool: func(*recorder.Spool) {},
	}, nil
}

// A connection of a sink takes some 16 KiB before it has said anything; with what it may say, four times that.
const (
	leastPerConnection = 16 << 10
	usualPerConnection = 64 << 10
)

// sinkConnections is how many connections a sink of so much memory takes: as many as were asked for, 0 for what fits.
func sinkConnections(asked int, memory int64) (int, error) {
	if asked == 0 {
		return int(min(memory/usualPerConnection, proxy.DefaultMaxConnections)), nil
	}
	if asked < 0 || int64(asked) > memory/leastPerConnection {
		return 0, usageError(fmt.Errorf("--max-connections %d: a sink with %d bytes of memory takes 1 to %d", asked, memory, memory/leastPerConnection), "--memory")
	}
	return asked, nil
}
