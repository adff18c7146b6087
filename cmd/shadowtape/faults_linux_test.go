package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/shadowtape/shadowtape/formats"
)

// limited is a command of the program that may open so many files.
func limited(t *testing.T, files int, args ...string) *exec.Cmd {
	t.Helper()
	self, err := exec.LookPath("shadowtape")
	if err != nil {
		t.Fatal(err)
	}
	return exec.Command("sh", append([]string{"-c", fmt.Sprintf(`ulimit -n %d && exec "$0" "$@"`, files), self}, args...)...)
}

// TestReplayWithoutDescriptors: a replayer that may open fewer files than it needs connections loses requests, not its account of them.
func TestReplayWithoutDescriptors(t *testing.T) {
	target, _ := startSim(t, "--ttft", "1500ms", "--itl", "1ms")
	trace := smallTrace(t, 120, time.Millisecond, nil)
	out := filepath.Join(t.TempDir(), "run")
	b, err := limited(t, 48, "replay", trace, "--target", target, "-o", out, "--allow-invalid").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, b)
	}
	m, rows := readRun(t, out)
	r := m.Requests
	if len(rows) != 120 || r.Scheduled != 120 || r.Sent+r.Dropped != 120 || r.Completed+r.Failed+r.Aborted+r.RunEnd != r.Sent {
		t.Errorf("%d rows of %+v", len(rows), r)
	}
	if r.Failed == 0 || r.Completed == 0 {
		t.Errorf("the limit was not felt, or all was lost: %+v %v", r, m.Errors)
	}
	for _, x := range rows {
		if x.Failed() && x.ErrorKind != formats.ErrorConnect {
			t.Errorf("exchange %d failed as %s", x.ExchangeID, x.ErrorKind)
		}
	}
}

// TestProxyWithoutDescriptors: a recording proxy that has no descriptors left makes new connections wait or fail, and serves on when there are
// some again.
func TestProxyWithoutDescriptors(t *testing.T) {
	target, _ := startSim(t, "--ttft", "1ms", "--itl", "1ms")
	trace := filepath.Join(t.TempDir(), "rec")
	c := limited(t, 64, "record", "--listen", "127.0.0.1:0", "--upstream", target, "-o", trace)
	errs, err := c.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { c.Process.Kill(); c.Wait() }()
	lines, base := bufio.NewScanner(errs), ""
	for base == "" && lines.Scan() {
		if rest, ok := strings.CutPrefix(lines.Text(), "recording what passes from "); ok {
			base = "http://" + strings.Fields(rest)[0]
		}
	}
	go func() {
		for lines.Scan() {
		}
	}()
	ask := func(client *http.Client) error {
		r, err := client.Post(base+"/v1/chat/completions", "application/json", strings.NewReader(`{"model":"m","max_tokens":3,"ignore_eos":true,"messages":[{"role":"user","content":"x"}]}`))
		if err != nil {
			return err
		}
		defer r.Body.Close()
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			return err
		}
		if r.StatusCode != http.StatusOK {
			return fmt.Errorf("status %d", r.StatusCode)
		}
		return nil
	}
	var open []*http.Client // each keeps a connection, which is two of the proxy's
	for range 80 {
		h := &http.Client{Timeout: 200 * time.Millisecond, Transport: &http.Transport{}}
		ask(h)
		open = append(open, h)
	}
	for _, h := range open {
		h.CloseIdleConnections()
	}
	var last error
	for range 100 { // when the proxy has seen that they are closed
		h := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
		if last = ask(h); last == nil {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	if last != nil {
		t.Fatalf("it does not serve again: %v", last)
	}
	c.Process.Signal(syscall.SIGTERM)
	if err := c.Wait(); err != nil {
		t.Errorf("it ended with %v", err)
	}
	tr, err := formats.Open(trace)
	if err != nil || tr.Rows == 0 {
		t.Fatalf("%+v %v", tr, err)
	}
	if k := tr.Header.Counters; k.Seen != k.Filtered+k.Dropped+k.Written || k.Written != tr.Rows {
		t.Errorf("%+v of %d rows", k, tr.Rows)
	}
}

// TestReplayWithoutNames: a target whose name cannot be resolved is one line, before anything is written.
func TestReplayWithoutNames(t *testing.T) {
	trace := smallTrace(t, 3, time.Millisecond, nil)
	out := filepath.Join(t.TempDir(), "run")
	code, _, errs := shadowtape(t, "replay", trace, "--target", "http://no-such-host.invalid:8000", "-o", out)
	if code != exitFailed || !strings.Contains(errs, "no-such-host.invalid") || strings.Count(strings.TrimSpace(errs), "\n") > 1 {
		t.Errorf("%d %s", code, errs)
	}
	if there, err := formats.Exists(out); there || err != nil {
		t.Errorf("something was written: %v", err)
	}
}

// TestReplayWithoutAConnection: of a target that no connection is made to in time it is not said that it takes them.
func TestReplayWithoutAConnection(t *testing.T) {
	target, _ := startSim(t)
	code, _, errs := shadowtape(t, "replay", smallTrace(t, 3, time.Millisecond, nil), "--target", target, "--connect-timeout", "1ns", "-o", filepath.Join(t.TempDir(), "run"))
	if code != exitFailed || !strings.Contains(errs, "reach "+target+": dial tcp") || strings.Contains(errs, "accepts") {
		t.Errorf("%d %s", code, errs)
	}
}

// nameService answers DNS queries: 127.0.0.1 for every name, with a life of a second, until it is lost.
type nameService struct {
	net.PacketConn
	asked atomic.Int64
	lost  atomic.Bool
}

func newNameService(t *testing.T) *nameService {
	p, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &nameService{PacketConn: p}
	done := make(chan struct{})
	go func() {
		defer close(done)
		b := make([]byte, 512)
		for {
			k, from, err := p.ReadFrom(b)
			if err != nil {
				return
			}
			n.asked.Add(1)
			end := bytes.IndexByte(b[12:k], 0) + 12 + 5 // the question: labels, a zero, type and class
			if n.lost.Load() || end < 17 || end > k {
				continue
			}
			answer := append([]byte{b[0], b[1], 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0}, b[12:end]...)
			if b[end-3] == 1 { // an address of version 4
				answer[7] = 1
				answer = append(answer, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4, 127, 0, 0, 1)
			}
			p.WriteTo(answer, from)
		}
	}()
	t.Cleanup(func() { p.Close(); <-done })
	return n
}

// TestReplayLosesNames: when name service goes away in the middle of a run, the run goes on at the address that was found.
func TestReplayLosesNames(t *testing.T) {
	dns := newNameService(t)
	before := net.DefaultResolver
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", dns.LocalAddr().String())
	}}
	defer func() { net.DefaultResolver = before }()
	target, _ := startSim(t, "--ttft", "300ms", "--itl", "1ms")
	_, port, _ := strings.Cut(strings.TrimPrefix(target, "http://"), ":")
	trace := smallTrace(t, 100, 10*time.Millisecond, nil)
	out := filepath.Join(t.TempDir(), "run")
	gone := make(chan struct{})
	go func() { // the run has begun when its directory is there
		defer close(gone)
		for range 6000 {
			if _, err := os.Stat(out); err == nil {
				break
			}
			time.Sleep(5 * time.Millisecond)
		}
		dns.lost.Store(true)
	}()
	code, _, errs := shadowtape(t, "replay", trace, "--target", "http://candidate.test:"+port, "-o", out, "--allow-invalid")
	<-gone
	if code != exitGood {
		t.Fatalf("%d %s", code, errs)
	}
	m, rows := readRun(t, out)
	opened := 0
	for _, x := range rows {
		if x.ConnReused.Valid && !x.ConnReused.V {
			opened++
		}
	}
	if m.Requests.Completed != 100 || dns.asked.Load() == 0 {
		t.Errorf("%+v, %v; %d names asked for", m.Requests, m.Errors, dns.asked.Load())
	}
	t.Logf("%d connections were opened by requests, %d names asked for in all", opened, dns.asked.Load())
	if asked := dns.asked.Load(); asked > 8 {
		t.Errorf("%d names were asked for: one lookup is enough for a run", asked)
	}
}
