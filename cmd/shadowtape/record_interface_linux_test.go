package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/engine"
	"github.com/shadowtape/shadowtape/internal/openai"
	"github.com/shadowtape/shadowtape/internal/sim"
	"github.com/shadowtape/shadowtape/recorder/netlab"
)

// TestRecordInterface records a simulator's streams from a veth, and looks at them with --check.
func TestRecordInterface(t *testing.T) {
	server, client := netlab.NewHost(t), netlab.NewHost(t)
	netlab.Link(server, "v0", "10.7.0.1/24", client, "v1", "10.7.0.2/24")
	profile, err := engine.FindProfile("instant")
	if err != nil {
		t.Fatal(err)
	}
	s, err := sim.New(sim.Options{Profile: profile, Fixed: true, TTFT: 5 * time.Millisecond, ITL: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var l net.Listener
	server.Do(func() { l, err = net.Listen("tcp", "10.7.0.1:8000") })
	if err != nil {
		t.Fatal(err)
	}
	go s.Serve(l)
	h := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DialContext: func(ctx context.Context, network, address string) (c net.Conn, err error) {
		client.Do(func() { c, err = (&net.Dialer{}).DialContext(ctx, network, address) })
		return c, err
	}}}
	defer h.CloseIdleConnections()
	ask := func(from, to int) {
		for i := from; i < to; i++ {
			r, _ := http.NewRequest("POST", "http://10.7.0.1:8000/v1/chat/completions", strings.NewReader(`{"model":"m","stream":true,"stream_options":{"include_usage":true},"max_tokens":6,"ignore_eos":true,"messages":[{"role":"user","content":"x"}]}`))
			r.Header.Set("X-Request-Id", fmt.Sprint("if-", i))
			resp, err := h.Do(r)
			if err != nil {
				t.Error(err)
				return
			}
			io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
	}
	// The command runs on the namespace's thread, as its rings belong there.
	command := func(during func(), args ...string) (code int, out, errs string) {
		ctx, stop := context.WithCancel(context.Background())
		var o bytes.Buffer
		r, w := io.Pipe()
		done := make(chan struct{})
		go func() {
			defer close(done)
			server.Do(func() {
				code = run(ctx, append([]string{"record", "--interface", "v0", "--port", "8000"}, args...), strings.NewReader(""), &o, w)
			})
			w.Close()
		}()
		first := make([]byte, 4096)
		n, _ := r.Read(first) // it is open when it says what it does
		rest := make(chan []byte, 1)
		go func() { b, _ := io.ReadAll(r); rest <- b }()
		time.Sleep(50 * time.Millisecond)
		during()
		time.Sleep(200 * time.Millisecond)
		stop()
		<-done
		return code, o.String(), string(first[:n]) + string(<-rest)
	}
	code, out, errs := command(func() { ask(0, 5) }, "--check", "--json")
	var c checkAnswer
	if err := json.Unmarshal([]byte(out), &c); err != nil || code != exitGood || c.Exchanges != 5 || c.Complete != 5 || c.Streamed != 5 || c.WithUsage != 5 || c.KernelDrops != 0 || c.Packets == 0 || c.Endpoints["chat_completions"] != 5 {
		t.Errorf("%d %s %s %v", code, out, errs, err)
	}
	documentedKeys(t, "record --check", out)
	code, out, errs = command(func() {}, "--check")
	if code != exitGood || !strings.Contains(out, "0 exchanges") || !strings.Contains(out, "no packet") {
		t.Errorf("%d %s %s", code, out, errs)
	}
	rec := filepath.Join(t.TempDir(), "rec")
	code, out, errs = command(func() { ask(100, 120) }, "-o", rec, "--key-file", keyFile(t), "--filter", "net 10.7.0.0/24", "--max-cpu", "4")
	if code != exitGood || !strings.Contains(out, " 20 written") || !strings.Contains(errs, "recording v0 (") {
		t.Errorf("%d %s %s", code, out, errs)
	}
	hasher := openai.NewHasher([]byte(recordKey))
	got := readBy(t, rec)
	for i := 100; i < 120; i++ {
		x := got[hasher.Sum("request", fmt.Sprint("if-", i))]
		if x == nil || x.OutputTokens.V != 6 || x.EndReason != formats.EndComplete || x.Clock != formats.ClockPacket {
			t.Errorf("request %d: %+v", i, x)
		}
	}
}

// TestRecordInterfaceGone: the command ends by itself, with an error, when the interface is taken away, and the trace is whole.
func TestRecordInterfaceGone(t *testing.T) {
	h := netlab.NewHost(t)
	netlab.Link(h, "v0", "", h, "v1", "")
	rec := filepath.Join(t.TempDir(), "rec")
	var o bytes.Buffer
	var e goAhead
	var code int
	h.Do(func() { // the thread is the command's until it ends: a process of the namespace takes the interface away
		remove := exec.Command("sh", "-c", "read go; ip link del v0")
		in, err := remove.StdinPipe()
		if err == nil {
			err = remove.Start()
		}
		if err != nil {
			t.Error(err)
			return
		}
		defer remove.Wait()
		e.to = in
		code = run(t.Context(), []string{"record", "--interface", "v0", "-o", rec, "--duration", "5m"}, strings.NewReader(""), &o, &e)
		in.Close()
	})
	if code != exitFailed || !strings.Contains(e.String(), "the interface is gone") || !strings.Contains(o.String(), "0 written") {
		t.Errorf("%d %s %s", code, o.String(), e.String())
	}
	if tr, err := formats.Open(rec); err != nil || tr.Rows != 0 {
		t.Errorf("%v", err)
	}
}

// goAhead keeps what a command says, and passes its first word on as a line: from then on the interface is open.
type goAhead struct {
	bytes.Buffer
	to io.WriteCloser
}

func (g *goAhead) Write(p []byte) (int, error) {
	if g.to != nil {
		io.WriteString(g.to, "go\n")
		g.to = nil
	}
	return g.Buffer.Write(p)
}
