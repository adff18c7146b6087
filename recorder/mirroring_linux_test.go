package recorder

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/openai"
)

// TestMirroring runs the gateways' own samples: every request reaches the server and, as a copy, the sink; when the sink hangs or is gone,
// requests go on.
func TestMirroring(t *testing.T) {
	for _, c := range []struct {
		name, sample string
		args         func(config string) []string
	}{
		{"envoy", "envoy/mirror.yaml", func(f string) []string {
			return []string{"-c", f, "--use-dynamic-base-id", "--log-level", "warn", "--concurrency", "1"}
		}},
		{"nginx", "nginx/mirror.conf", func(f string) []string { return []string{"-p", filepath.Dir(f), "-c", f, "-g", "daemon off;"} }},
	} {
		t.Run(c.name, func(t *testing.T) {
			program, err := exec.LookPath(c.name)
			if err != nil {
				t.Skipf("SKIPPED: no %s on the path", c.name)
			}
			mirroring(t, program, c.sample, c.args)
		})
	}
}

func portOf(address string) string { _, port, _ := net.SplitHostPort(address); return port }

func mirroring(t *testing.T, program, sample string, args func(string) []string) {
	var served atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		served.Add(1)
		io.WriteString(w, "fine")
	}))
	defer server.Close()
	m := &Mirror{Listener: listenLocal(t), Key: liveKey}
	sink := m.Listener.Addr().String()
	front := freeAddress(t)
	dir := t.TempDir()
	text, err := os.ReadFile(filepath.Join("..", "samples", sample))
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, filepath.Base(sample))
	replaced := strings.NewReplacer("8080", portOf(front), "8901", portOf(sink), "8000", portOf(server.Listener.Addr().String()), "9901", portOf(freeAddress(t))).Replace(string(text))
	if err := os.WriteFile(config, []byte(replaced), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{dir, filepath.Dir(dir)} { // for a worker that has another user
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	gateway := exec.Command(program, args(config)...)
	gateway.Dir, gateway.WaitDelay = dir, time.Second
	gateway.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	var said bytes.Buffer
	gateway.Stdout, gateway.Stderr = &said, &said
	if err := gateway.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		gateway.Process.Signal(syscall.SIGTERM)
		kill := time.AfterFunc(3*time.Second, func() { gateway.Process.Kill() })
		gateway.Wait()
		kill.Stop()
		if t.Failed() {
			t.Logf("%s: %.2000s", program, said.String())
		}
	}()
	got := make(chan *formats.Exchange, 1000)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx, Filter{}, func(x *formats.Exchange) { got <- x }) }()
	client := &http.Client{Timeout: time.Minute}
	ask := func(id string, size int) error {
		r, _ := http.NewRequest("POST", "http://"+front+"/v1/chat/completions", strings.NewReader(fmt.Sprintf(`{"model":"m","max_tokens":7,"messages":[{"role":"user","content":%q}]}`, strings.Repeat("x", size))))
		r.Header.Set("X-Request-Id", id)
		resp, err := client.Do(r)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if b, err := io.ReadAll(resp.Body); err != nil || string(b) != "fine" {
			return fmt.Errorf("%s: %.100q %v", resp.Status, b, err)
		}
		return nil
	}
	for deadline := time.Now().Add(time.Minute); ask("probe", 1) != nil; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the gateway does not serve")
		}
	}
	h := openai.NewHasher(liveKey)
	want := map[formats.Hash]int64{}
	for i := range 30 {
		id, size := fmt.Sprint("mirror-", i), i*3000
		if err := ask(id, size); err != nil {
			t.Fatal(err)
		}
		want[h.Sum("request", id)] = int64(size)
	}
	for deadline := time.After(time.Minute); len(want) > 0; {
		select {
		case x := <-got:
			if size, ok := want[x.CorrelationID.V]; ok {
				delete(want, x.CorrelationID.V)
				if x.MaxTokens.V != 7 || x.RequestBytes.V < size || x.RequestBytes.V > size+100 {
					t.Errorf("a copy of %d bytes, want a little more than %d: %+v", x.RequestBytes.V, size, x)
				}
			}
		case <-deadline:
			t.Fatalf("%d of 30 requests did not reach the sink", len(want))
		}
	}
	stop()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		if err := ask(fmt.Sprint("gone-", i), 100); err != nil {
			t.Errorf("without a sink: %v", err)
		}
	}
	hanging, err := net.Listen("tcp", sink) // accepts, and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer hanging.Close()
	for i := range 10 {
		if err := ask(fmt.Sprint("hangs-", i), 100); err != nil {
			t.Errorf("with a sink that hangs: %v", err)
		}
	}
	if served.Load() < 51 {
		t.Errorf("the server served %d requests", served.Load())
	}
}
