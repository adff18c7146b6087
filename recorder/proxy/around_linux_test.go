package proxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestAsChild is the proxy process that TestRoutedAround kills; by itself it does nothing.
func TestAsChild(t *testing.T) {
	listen, up, ok := strings.Cut(os.Getenv("PROXY_TEST_CHILD"), ">")
	if !ok {
		return
	}
	p, err := New(Options{Upstream: up})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", listen)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Serve(context.Background(), l); err != nil {
		t.Fatal(err)
	}
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}

// startProcess starts a command that ends with the test.
func startProcess(t *testing.T, dir string, env []string, name string, args ...string) *exec.Cmd {
	t.Helper()
	c := exec.Command(name, args...)
	c.Dir, c.Env = dir, append(os.Environ(), env...)
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	c.WaitDelay = time.Second // a child of its own may outlive it, with its output in hand
	t.Cleanup(func() {
		c.Process.Signal(syscall.SIGTERM)
		kill := time.AfterFunc(3*time.Second, func() { c.Process.Kill() })
		c.Wait()
		kill.Stop()
		if t.Failed() {
			t.Logf("%s: %.4000s", name, out.String())
		}
	})
	return c
}

func reachable(address string) bool {
	c, err := net.DialTimeout("tcp", address, time.Second)
	if err != nil {
		return false
	}
	c.Close()
	return true
}

// TestRoutedAround kills the proxy behind each load balancer, under the samples' own configuration: new requests go on.
func TestRoutedAround(t *testing.T) {
	for _, c := range []struct {
		name, sample string
		args         func(config string) []string
	}{
		{"envoy", "envoy/around.yaml", func(f string) []string {
			return []string{"-c", f, "--use-dynamic-base-id", "--log-level", "warn", "--concurrency", "1"}
		}},
		{"haproxy", "haproxy/around.cfg", func(f string) []string { return []string{"-db", "-f", f} }},
		{"nginx", "nginx/around.conf", func(f string) []string { return []string{"-p", filepath.Dir(f), "-c", f, "-g", "daemon off;"} }},
	} {
		t.Run(c.name, func(t *testing.T) {
			program, err := exec.LookPath(c.name)
			if err != nil {
				t.Skipf("SKIPPED: no %s on the path", c.name)
			}
			routedAround(t, program, c.sample, c.args)
		})
	}
}

func routedAround(t *testing.T, program, sample string, args func(string) []string) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		io.WriteString(w, "fine")
	}))
	defer server.Close()
	_, serverPort, _ := net.SplitHostPort(server.Listener.Addr().String())
	front, middle := freePort(t), freePort(t)
	dir := t.TempDir()
	text, err := os.ReadFile(filepath.Join("..", "..", "samples", sample))
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, filepath.Base(sample))
	replaced := strings.NewReplacer("8080", front, "8900", middle, "8000", serverPort, "9901", freePort(t)).Replace(string(text))
	if err := os.WriteFile(config, []byte(replaced), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{dir, filepath.Dir(dir)} { // for a worker that has another user
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	env := []string{"PROXY_TEST_CHILD=127.0.0.1:" + middle + ">" + "127.0.0.1:" + serverPort}
	run := func() *exec.Cmd {
		c := startProcess(t, dir, env, os.Args[0], "-test.run=^TestAsChild$")
		eventually(t, "the proxy listens", func() bool { return reachable("127.0.0.1:" + middle) })
		return c
	}
	child := run()
	startProcess(t, dir, nil, program, args(config)...)
	client := &http.Client{Timeout: 5 * time.Second}
	ask := func() error {
		resp, err := client.Post("http://127.0.0.1:"+front+"/v1/completions", "application/json", strings.NewReader("{}"))
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if resp.StatusCode != 200 || string(b) != "fine" {
			return errors.Join(err, fmt.Errorf("%s: %.200q", resp.Status, b))
		}
		return err
	}
	eventually(t, "requests pass", func() bool { return ask() == nil })
	time.Sleep(700 * time.Millisecond) // health checks have seen the proxy
	for range 50 {
		if err := ask(); err != nil {
			t.Fatal("before:", err)
		}
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	failed, asked, last := 0, 0, time.Duration(0)
	for time.Since(killed) < 2*time.Second {
		asked++
		if err := ask(); err != nil {
			failed++
			last = time.Since(killed)
			t.Logf("%s after the kill: %v", last.Round(time.Millisecond), err)
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Logf("%d of %d requests failed in the two seconds after the proxy was killed, the last %s after it", failed, asked, last.Round(time.Millisecond))
	if last > time.Second || asked < 20 {
		t.Errorf("%d of %d requests failed, the last %s after the kill", failed, asked, last)
	}
	run()
	time.Sleep(1200 * time.Millisecond)
	for range 20 {
		if err := ask(); err != nil {
			t.Fatal("after the proxy came back:", err)
		}
	}
}
