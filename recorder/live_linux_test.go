package recorder

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shadowtape/shadowtape/formats"
	profiles "github.com/shadowtape/shadowtape/internal/engine"
	"github.com/shadowtape/shadowtape/internal/openai"
	"github.com/shadowtape/shadowtape/internal/sim"
	"github.com/shadowtape/shadowtape/recorder/netlab"
	"github.com/shadowtape/shadowtape/recorder/ring"
)

var liveKey = []byte("a key of the live tests")

// simEmission is the simulator's own word about an answer.
type simEmission struct {
	ID     string  `json:"x_request_id"`
	Input  int64   `json:"input_tokens"`
	Output int64   `json:"output_tokens"`
	End    string  `json:"end"`
	Tokens []int64 `json:"token_unix_ns"`
}

// lockedBuffer may be written and read by several goroutines.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// simIn runs a simulator in a host. emissions closes it and returns what it said.
func simIn(t *testing.T, h *netlab.Host, address string) (emissions func() map[string]simEmission) {
	t.Helper()
	profile, err := profiles.FindProfile("instant")
	if err != nil {
		t.Fatal(err)
	}
	var log lockedBuffer
	s, err := sim.New(sim.Options{Profile: profile, Fixed: true, TTFT: 20 * time.Millisecond, ITL: 4 * time.Millisecond, EmissionLog: &log})
	if err != nil {
		t.Fatal(err)
	}
	var l net.Listener
	listen := func() { l, err = net.Listen("tcp", address) }
	if h != nil {
		h.Do(listen)
	} else {
		listen()
	}
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	end := sync.OnceFunc(func() {
		if err := errors.Join(s.Close(), <-served); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(end)
	return func() map[string]simEmission {
		end()
		all := map[string]simEmission{}
		for lines := bufio.NewScanner(&log.b); lines.Scan(); {
			var e simEmission
			if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
				t.Fatal(err)
			}
			all[e.ID] = e
		}
		return all
	}
}

// askSim sends n chat requests, several at a time, over kept connections, and reads the answers.
func askSim(t *testing.T, h *netlab.Host, base string, n, tokens int) {
	t.Helper()
	dialer := &net.Dialer{Timeout: time.Minute}
	client := &http.Client{Timeout: 2 * time.Minute, Transport: &http.Transport{MaxIdleConnsPerHost: 8, DialContext: func(ctx context.Context, network, address string) (c net.Conn, err error) {
		if h == nil {
			return dialer.DialContext(ctx, network, address)
		}
		h.Do(func() { c, err = dialer.DialContext(ctx, network, address) })
		return c, err
	}}}
	defer client.CloseIdleConnections()
	var wg sync.WaitGroup
	work := make(chan int)
	for range 8 {
		wg.Go(func() {
			for i := range work {
				body := fmt.Sprintf(`{"model":"sim","stream":true,"stream_options":{"include_usage":true},"max_tokens":%d,"ignore_eos":true,"messages":[{"role":"user","content":"question %d"}]}`, tokens+i%5, i)
				r, _ := http.NewRequest("POST", base+"/v1/chat/completions", strings.NewReader(body))
				r.Header.Set("X-Request-Id", fmt.Sprintf("live-%d", i))
				r.Header.Set("Content-Type", "application/json")
				resp, err := client.Do(r)
				if err != nil {
					t.Error(err)
					continue
				}
				b, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				if err != nil || resp.StatusCode != 200 || !bytes.Contains(b, []byte("[DONE]")) {
					t.Errorf("%s %v %.200s", resp.Status, err, b)
				}
			}
		})
	}
	for i := range n {
		work <- i
	}
	close(work)
	wg.Wait()
}

// compareLive holds recorded exchanges against what the simulator says it sent. Where the kernel counted drops, because the machine did not run
// the recorder in time, an exchange may be missing or say that it lost bytes; it may not be wrong.
func compareLive(t *testing.T, got []*formats.Exchange, s SourceStats, emitted map[string]simEmission, n int) {
	t.Helper()
	dropped := s.Notes["kernel_drops"]
	if dropped > 0 {
		t.Logf("the kernel dropped %d packets of %d", dropped, s.Notes["kernel_received"])
	}
	if len(got) > n || len(got) < n && dropped == 0 || len(emitted) != n {
		t.Errorf("%d exchanges recorded, %d emitted, %d sent, %d packets dropped", len(got), len(emitted), n, dropped)
	}
	h := openai.NewHasher(liveKey)
	byID := map[formats.Hash]simEmission{}
	for id, e := range emitted {
		byID[h.Sum("request", id)] = e
	}
	for _, x := range got {
		e, ok := byID[x.CorrelationID.V]
		switch {
		case !ok:
			if dropped == 0 || !x.Midstream.Or(false) && x.GapBytes.Or(0) == 0 {
				t.Errorf("an exchange that nobody sent: %+v", x)
			}
		case dropped > 0 && (x.GapBytes.Or(0) > 0 || x.Midstream.Or(false) || x.EndReason == formats.EndCaptureCut):
		case x.EndReason != formats.EndComplete || x.ErrorKind != "" || x.GapBytes.Or(0) != 0 || x.Midstream.Or(false):
			t.Errorf("%s: %s %s, gap %d, midstream %v", e.ID, x.EndReason, x.ErrorKind, x.GapBytes.V, x.Midstream)
		case x.InputTokens.V != e.Input || x.OutputTokens.V != e.Output || x.OutputTokensSource != formats.TokensUsage:
			t.Errorf("%s: %d in, %d out (%s), want %d and %d", e.ID, x.InputTokens.V, x.OutputTokens.V, x.OutputTokensSource, e.Input, e.Output)
		case len(x.EventGapUS) != len(e.Tokens):
			t.Errorf("%s: %d events, want %d", e.ID, len(x.EventGapUS), len(e.Tokens))
		default:
			// No token can be on the wire before the server had it, but for the reading of two clocks.
			at := x.ArrivalUnixNS + x.FirstTokenNS.V
			for i, emitted := range e.Tokens {
				at += int64(x.EventGapUS[i]) * 1000
				if at < emitted-int64(time.Millisecond) {
					t.Errorf("%s: token %d seen %s before it was sent", e.ID, i, time.Duration(emitted-at))
				}
			}
		}
		delete(byID, x.CorrelationID.V)
	}
}

// recordLive runs a live source in a host while f runs.
func recordLive(t *testing.T, h *netlab.Host, l *Live, f func()) ([]*formats.Exchange, SourceStats) {
	t.Helper()
	return recordSeen(t, h, l, func(*formats.Exchange) {}, func() {
		f()
		time.Sleep(100 * time.Millisecond) // the last acknowledgements
	})
}

// recordSeen is recordLive that tells of each exchange as it ends, and stops at once when f returns.
func recordSeen(t *testing.T, h *netlab.Host, l *Live, saw func(*formats.Exchange), f func()) ([]*formats.Exchange, SourceStats) {
	t.Helper()
	l.Key = liveKey
	var err error
	h.Do(func() { err = l.Open() })
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithCancel(context.Background())
	var got []*formats.Exchange
	done := make(chan error, 1)
	go func() {
		done <- l.Run(ctx, Filter{Ports: []uint16{80, 8000}}, func(x *formats.Exchange) { got = append(got, x); saw(x) })
	}()
	f()
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	return got, l.Stats()
}

func addUp(t *testing.T, s SourceStats) {
	t.Helper()
	if s.Notes["kernel_received"] != s.Notes["ring_read"]+s.Notes["kernel_drops"] || s.Notes["ring_read"] != s.Packets {
		t.Errorf("the stages do not add up: %+v", s)
	}
	if s.Packets == 0 {
		t.Error("no packet")
	}
}

func TestLiveVeth(t *testing.T) {
	for _, workers := range []int{1, 3} {
		server, client := netlab.NewHost(t), netlab.NewHost(t)
		netlab.Link(server, "v0", "10.5.0.1/24", client, "v1", "10.5.0.2/24")
		emissions := simIn(t, server, "10.5.0.1:8000")
		l := &Live{Ring: ring.Options{Interface: "v0", Filter: ring.Ports(8000), Workers: workers, Bytes: 4 << 20}}
		got, s := recordLive(t, server, l, func() { askSim(t, client, "http://10.5.0.1:8000", 40, 20) })
		compareLive(t, got, s, emissions(), 40)
		addUp(t, s)
	}
}

func TestLiveLoopback(t *testing.T) {
	for _, name := range []string{"lo", "any"} {
		h := netlab.NewHost(t)
		emissions := simIn(t, h, "127.0.0.1:8000")
		got, s := recordLive(t, h, &Live{Ring: ring.Options{Interface: name, Filter: ring.Ports(8000)}}, func() { askSim(t, h, "http://127.0.0.1:8000", 30, 20) })
		compareLive(t, got, s, emissions(), 30)
		addUp(t, s)
	}
}

// TestLiveBridge records on a bridge between two hosts, and on all interfaces there, where each packet is seen on both ports.
func TestLiveBridge(t *testing.T) {
	for _, o := range []ring.Options{{Interface: "br0", Promiscuous: true}, {Interface: "pa"}, {Interface: "any"}} {
		middle, a, b := netlab.NewHost(t), netlab.NewHost(t), netlab.NewHost(t)
		netlab.Link(middle, "pa", "", a, "va", "10.6.0.1/24")
		netlab.Link(middle, "pb", "", b, "vb", "10.6.0.2/24")
		middle.IP("link add br0 type bridge", "link set pa master br0", "link set pb master br0", "link set br0 up")
		o.Filter = ring.Ports(8000)
		emissions := simIn(t, a, "10.6.0.1:8000")
		got, s := recordLive(t, middle, &Live{Ring: o}, func() { askSim(t, b, "http://10.6.0.1:8000", 30, 20) })
		t.Run(o.Interface, func(t *testing.T) {
			compareLive(t, got, s, emissions(), 30)
			addUp(t, s)
			if o.Interface == "any" && s.Notes["duplicate_packets"] == 0 {
				t.Errorf("no packet was seen twice: %+v", s)
			}
		})
	}
}

// TestLiveTranslated records on all interfaces of a router that translates a service's address, as a Kubernetes node does: each connection is
// seen with two pairs of addresses, and recorded once, with the address that answers.
func TestLiveTranslated(t *testing.T) {
	for _, workers := range []int{1, 2} {
		t.Run(fmt.Sprintf("%d workers", workers), func(t *testing.T) { liveTranslated(t, workers) })
	}
}

func liveTranslated(t *testing.T, workers int) {
	router, server, client := netlab.NewHost(t), netlab.NewHost(t), netlab.NewHost(t)
	netlab.Link(router, "rs", "10.7.2.1/24", server, "vs", "10.7.2.2/24")
	netlab.Link(router, "rc", "10.7.1.1/24", client, "vc", "10.7.1.2/24")
	client.IP("route add default via 10.7.1.1")
	var err error
	router.Do(func() { err = os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0) })
	for _, rule := range []string{"PREROUTING -d 10.96.0.1 -p tcp --dport 80 -j DNAT --to-destination 10.7.2.2:8000", "POSTROUTING -o rs -j MASQUERADE"} {
		if err == nil {
			err = router.Try("iptables -w -t nat -A " + rule)
		}
	}
	if err != nil {
		t.Skipf("SKIPPED: addresses cannot be translated here (iptables): %v", err)
	}
	emissions := simIn(t, server, "10.7.2.2:8000")
	got, s := recordLive(t, router, &Live{Ring: ring.Options{Interface: "any", Filter: ring.Ports(80, 8000), Workers: workers}}, func() { askSim(t, client, "http://10.96.0.1", 30, 20) })
	compareLive(t, got, s, emissions(), 30)
	addUp(t, s)
	if t.Failed() {
		t.Logf("%d rows, %+v", len(got), s)
	}
	if s.Notes["translated_connections"] == 0 || s.Notes["duplicate_packets"] == 0 {
		t.Errorf("no connection was seen twice: %+v", s)
	}
	for _, x := range got {
		if x.ServerID != "10.7.2.2:8000" && (workers == 1 || x.ServerID != "10.96.0.1:80") { // an answer may be over before the other worker has looked
			t.Errorf("answered by %s", x.ServerID)
		}
	}
}

// TestLiveJoins: the recorder comes and goes while streams run. What it saw in part says so; what it saw whole is exact.
func TestLiveJoins(t *testing.T) {
	server, client := netlab.NewHost(t), netlab.NewHost(t)
	netlab.Link(server, "v0", "10.5.0.1/24", client, "v1", "10.5.0.2/24")
	emissions := simIn(t, server, "10.5.0.1:8000")
	var asked sync.WaitGroup
	asked.Go(func() { askSim(t, client, "http://10.5.0.1:8000", 160, 25) })
	seen := make(chan struct{}, 1000)
	l := &Live{Ring: ring.Options{Interface: "v0", Filter: ring.Ports(8000)}, Key: liveKey}
	probe := &Live{Ring: l.Ring}
	wait := func(n int) func() { // until n exchanges have been seen
		return func() {
			for range n {
				select {
				case <-seen:
				case <-time.After(2 * time.Minute):
					t.Error("no exchange is seen")
					return
				}
			}
		}
	}
	saw := func(*formats.Exchange) { seen <- struct{}{} }
	recordSeen(t, server, probe, saw, wait(10))
	for len(seen) > 0 {
		<-seen
	}
	got, _ := recordSeen(t, server, l, saw, wait(20))
	asked.Wait()
	h := openai.NewHasher(liveKey)
	byID := map[formats.Hash]simEmission{}
	for id, e := range emissions() {
		byID[h.Sum("request", id)] = e
	}
	whole, cut := 0, 0
	for _, x := range got {
		switch e := byID[x.CorrelationID.V]; {
		case x.EndReason == formats.EndComplete:
			whole++
			if x.OutputTokens.V != e.Output || len(x.EventGapUS) != len(e.Tokens) {
				t.Errorf("complete, but %d tokens in %d events, want %d in %d", x.OutputTokens.V, len(x.EventGapUS), e.Output, len(e.Tokens))
			}
		case x.EndReason == formats.EndCaptureCut:
			cut++
		default:
			t.Errorf("end reason %s", x.EndReason)
		}
	}
	if whole == 0 || cut == 0 {
		t.Errorf("%d whole, %d cut: want some of each", whole, cut)
	}
}

func TestLiveInterfaceGone(t *testing.T) {
	h := netlab.NewHost(t)
	netlab.Link(h, "v0", "", h, "v1", "")
	l := &Live{Ring: ring.Options{Interface: "v0", Bytes: ring.MinBytes, Workers: 2}}
	var err error
	h.Do(func() { err = l.Open() })
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	done := make(chan error, 1)
	go func() { done <- l.Run(context.Background(), Filter{}, func(*formats.Exchange) {}) }()
	time.Sleep(50 * time.Millisecond)
	h.IP("link del v0")
	select {
	case err := <-done:
		if !errors.Is(err, ring.ErrGone) {
			t.Errorf("%v", err)
		}
	case <-time.After(2 * time.Minute):
		t.Fatal("it goes on without an interface")
	}
}

func TestGovernor(t *testing.T) {
	g := governor{limit: 0.5}
	// The process uses as many processors as it keeps of a load of 2: the share settles so that it uses what it may.
	used := func() float64 { return 2 * (1 - g.share) }
	for range 30 {
		g.next(used())
	}
	if u := used(); u > 0.5 || u < 0.35 {
		t.Errorf("it uses %v processors of 0.5, shedding %v", u, g.share)
	}
	for range 50 {
		g.next(0.1 * (1 - g.share))
	}
	if g.share != 0 {
		t.Errorf("it still sheds %v though the load is gone", g.share)
	}
}
