package deploy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// server is the static program of testdata/server, built once.
var server = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "shadowtape-deploy")
	if err != nil {
		return "", err
	}
	out := filepath.Join(dir, "server")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", out, "./testdata/server")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if b, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, b)
	}
	return out, nil
})

// endEngines end the container engines that tests started.
var endEngines []func()

func TestMain(m *testing.M) {
	if starter := os.Getenv("TEST_STARTER"); starter != "" {
		actAsStarter(starter)
		return
	}
	code := m.Run()
	for _, end := range endEngines {
		end()
	}
	if path, err := server(); err == nil {
		os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(code)
}

func needServer(t *testing.T) string {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("SKIPPED: needs Linux: process tests read /proc")
	}
	path, err := server()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// running reports whether a process exists and is no zombie.
func running(pid int) bool { return startOf(pid) != "" }

func gone(t *testing.T, pid int) {
	t.Helper()
	for range 6000 {
		if !running(pid) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("process %d still runs", pid)
}

func parse(t *testing.T, text string, values map[string]string) *File {
	t.Helper()
	f, err := Parse([]byte(text), values)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestProcess(t *testing.T) {
	bin := needServer(t)
	childFile := filepath.Join(t.TempDir(), "child")
	f := parse(t, `
name: it
process: ["${self}", -listen, "127.0.0.1:${port}", -ready, 300ms, -child, "`+childFile+`", -stubborn]
env: {TEST_PORT: "${port}", TEST_TOKEN: "${env:SOME_TOKEN}"}
health: {path: /health, interval: 20ms, timeout: 2m}
dialect: sim
stop: 100ms
probes: {echo: [echo, '{"a": 1}'], words: [echo, some words], broken: ["false"]}
`, nil)
	var log bytes.Buffer
	var stages []string
	c, err := Start(t.Context(), f, Options{Self: bin, Log: &log, Getenv: func(n string) string { return map[string]string{"SOME_TOKEN": "hush-hush-token"}[n] },
		GPUs: []string{"GPU-1", "GPU-2"}, Environ: os.Environ(), Progress: func(p Progress) { stages = append(stages, p.Stage) }})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Stop(t.Context())
	if c.StartUp < 300*time.Millisecond {
		t.Errorf("start-up took %s, the server was ready after 300 ms only", c.StartUp)
	}
	resp, err := http.Get(c.URL + "/health")
	if err != nil || resp.StatusCode != 200 {
		t.Fatalf("health: %v %v", resp, err)
	}
	resp.Body.Close()
	if stages[len(stages)-1] != "ready" || !slices.Contains(stages, "health") {
		t.Errorf("stages %v", stages)
	}
	leader := c.backend.(*process).cmd.Process.Pid
	b, err := os.ReadFile(childFile)
	if err != nil {
		t.Fatal(err)
	}
	child, _ := strconv.Atoi(string(b))
	if !c.Owns(leader) || !c.Owns(child) || c.Owns(os.Getpid()) || c.Owns(1) {
		t.Errorf("Owns: leader %t, child in its own session %t, test %t, init %t", c.Owns(leader), c.Owns(child), c.Owns(os.Getpid()), c.Owns(1))
	}
	if got := environOf(leader, "CUDA_VISIBLE_DEVICES"); got != "GPU-1,GPU-2" {
		t.Errorf("CUDA_VISIBLE_DEVICES is %q", got)
	}
	if l, err := Leftovers(t.Context(), "unix:///nonexistent"); err != nil || slices.ContainsFunc(l, func(l Leftover) bool { return l.ID == c.ID }) {
		t.Errorf("a running candidate is a leftover: %v %v", l, err)
	}
	env := c.Environment(t.Context())
	text, err := json.Marshal(env)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(text, []byte("hush")) {
		t.Errorf("the environment holds the secret: %s", text)
	}
	if env["engine_version"] != "1.2.3" || env["executable_sha256"] == nil {
		t.Errorf("environment %s", text)
	}
	probes := env["probes"].(map[string]any)
	if probes["words"] != "some words" || probes["echo"].(map[string]any)["a"] != 1.0 || probes["broken"].(map[string]any)["error"] == nil {
		t.Errorf("probes %v", probes)
	}
	if err := c.Died(); err != nil {
		t.Error(err)
	}
	if err := c.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	gone(t, leader)
	gone(t, child)
	if err := c.Died(); err != nil {
		t.Errorf("stopped, and called dead: %v", err)
	}
	if !strings.Contains(log.String(), "env TEST_TOKEN=******") || strings.Contains(log.String(), "hush") || !strings.Contains(log.String(), "env TEST_PORT=") {
		t.Errorf("log:\n%s", log.String())
	}
}

func TestStartFails(t *testing.T) {
	bin := needServer(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { taken.Close() })
	port := taken.Addr().(*net.TCPAddr).Port
	const rest = "\nhealth: {path: /health, interval: 20ms, timeout: 3m}\nstop: 1s\n"
	const hasty = "\nhealth: {path: /health, interval: 20ms, timeout: 4s}\nstop: 1s\n"
	for _, c := range []struct{ name, text, want, hint string }{
		{"dies", `process: ["${self}", -listen, "127.0.0.1:${port}", -ready, 1h, -die, 50ms]` + rest, "it ended before it was healthy: exit code 7", "log lines"},
		{"never healthy", `process: ["${self}", -listen, "127.0.0.1:${port}", -ready, 1h]` + hasty, "is not healthy after 4s: last answer HTTP 503", "health.timeout"},
		{"no program", `process: [/no/such/program, "${port}"]` + rest, "there is no such program", "relative path"},
		{"port taken", `process: ["${self}"]` + rest + fmt.Sprintf("port: %d\n", port), "is taken", "${port}"},
		{"secret unset", `process: ["${self}", "${port}"]` + rest + "env: {A_TOKEN: '${env:NOT_SET_ANYWHERE}'}\n", "NOT_SET_ANYWHERE is not set", "export"},
		{"prepare fails", `process: ["${self}", "${port}"]` + rest + "prepare: [{command: [sh, -c, 'echo no space left; exit 3']}]\n", "exit status 3: no space left", "by itself"},
		{"prepare makes nothing", `process: ["${self}", "${port}"]` + rest + "prepare: [{command: ['true'], creates: no/such/file}]\n", "did not create no/such/file", "relative path"},
		{"prepare takes too long", `process: ["${self}", "${port}"]` + rest + "prepare: [{command: [sleep, '600'], timeout: 50ms}]\n", "sleep: it did not end within 50ms", "timeout"},
		{"prepare is no program", `process: ["${self}", "${port}"]` + rest + "prepare: [{command: [no-such-program]}]\n", "no-such-program: there is no such program", "PATH"},
		{"no model", `process: ["${self}", "${port}"]` + rest + "model_files: {path: /no/such/model}\n", "model_files.path: /no/such/model does not exist", "relative path"},
		{"no directory", `process: [sleep, "60", "${port}"]` + rest + "dir: /no/such\n", "/no/such is no directory to work in", "dir names"},
		{"a directory, not a program", `process: [/tmp, "${port}"]` + rest, "/tmp: it may not be executed", "chmod"},
		{"secret's file", `process: ["${self}", "${port}"]` + rest + "env: {A_TOKEN: 'file:/no/such'}\n", "env A_TOKEN: open /no/such", "holds the secret"},
		{"secret's file is empty", `process: ["${self}", "${port}"]` + rest + "env: {A_TOKEN: 'file:/dev/null'}\n", "its file /dev/null is empty", "put the secret"},
		{"no manifest", "{kubernetes: {service: a, manifest: none.yaml}}", "read manifest: open ", "relative path"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			cand, err := Start(t.Context(), parse(t, c.text, nil), Options{Self: bin, Getenv: func(string) string { return "" }})
			if err == nil {
				cand.Stop(t.Context())
				t.Fatal("it started")
			}
			var e *Error
			if !errors.As(err, &e) || !strings.Contains(err.Error(), c.want) || !strings.Contains(e.Hint, c.hint) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %q, hint %q, want %q and %q", err, e.Hint, c.want, c.hint)
			}
			if c.name == "dies" && !strings.Contains(strings.Join(e.Tail, "\n"), "CUDA out of memory") {
				t.Errorf("tail %q", e.Tail)
			}
		})
	}
}

func TestDeathDuringTheRun(t *testing.T) {
	bin := needServer(t)
	f := parse(t, `{process: ["${self}", -listen, "127.0.0.1:${port}"], health: {path: /health, interval: 10ms}}`, nil)
	c, err := Start(t.Context(), f, Options{Self: bin})
	if err != nil {
		t.Fatal(err)
	}
	http.Get(c.URL + "/die")
	<-c.Exited()
	err = c.Died()
	var e *Error
	if !errors.As(err, &e) || !strings.Contains(err.Error(), "exit code 7") || !strings.Contains(strings.Join(e.Tail, "\n"), "CUDA out of memory") {
		t.Errorf("%v, tail %v", err, e)
	}
	if err := c.Stop(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestCancelledStartLeavesNothing(t *testing.T) {
	bin := needServer(t)
	f := parse(t, `{process: ["${self}", -listen, "127.0.0.1:${port}", -ready, 1h], health: {path: /health, interval: 10ms}, stop: 1s}`, nil)
	ctx, cancel := context.WithCancel(t.Context())
	_, err := Start(ctx, f, Options{Self: bin, Progress: func(p Progress) {
		if p.Stage == "health" {
			cancel()
		}
	}})
	if !errors.Is(err, context.Canceled) || strings.Count(err.Error(), "canceled") != 1 {
		t.Fatalf("%v", err)
	}
	for _, pid := range processes() {
		if o, ok := parseOwner(environOf(pid, ownerVariable)); ok && o == thisOwner() {
			t.Errorf("process %d is left", pid)
		}
	}
}

// actAsStarter is the test binary run again as a program that starts a candidate and waits to be killed.
func actAsStarter(self string) {
	text := os.Getenv("TEST_DEPLOYMENT")
	f, err := Parse([]byte(text), nil)
	if err != nil {
		panic(err)
	}
	c, err := Start(context.Background(), f, Options{Self: self, Engine: os.Getenv("TEST_ENGINE")})
	if err != nil {
		panic(err)
	}
	fmt.Println(c.ID, c.URL)
	time.Sleep(time.Minute)
}

// startElsewhere starts a candidate from another process, which it returns with the launch's mark.
func startElsewhere(t *testing.T, bin, text, engine string) (*exec.Cmd, string) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "TEST_STARTER="+bin, "TEST_DEPLOYMENT="+text, "TEST_ENGINE="+engine)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	var id, url string
	if _, err := fmt.Fscan(out, &id, &url); err != nil {
		t.Fatal(err)
	}
	return cmd, id
}

func TestKilledStarter(t *testing.T) {
	bin := needServer(t)
	childFile := filepath.Join(t.TempDir(), "child")
	text := `{process: ["${self}", -listen, "127.0.0.1:${port}", -child, "` + childFile + `"], health: {path: /health, interval: 10ms}}`
	cmd, id := startElsewhere(t, bin, text, "")
	mine := func() []Leftover {
		l, err := Leftovers(t.Context(), "unix:///nonexistent")
		if err != nil {
			t.Fatal(err)
		}
		return slices.DeleteFunc(l, func(l Leftover) bool { return l.ID != id })
	}
	if l := mine(); len(l) > 0 {
		t.Fatalf("leftovers of a running starter: %v", l)
	}
	all := marked(id)
	if len(all) != 2 {
		t.Fatalf("marked processes %v", all)
	}
	cmd.Process.Kill()
	cmd.Wait()
	b, _ := os.ReadFile(childFile)
	child, _ := strconv.Atoi(string(b))
	for _, pid := range all {
		if pid != child {
			gone(t, pid) // the kernel saw to it
		}
	}
	l := mine() // what left the group survives, and is named
	if len(l) != 1 || l[0].PID != child || l[0].Remove != fmt.Sprintf("kill %d", child) || !strings.Contains(l[0].String(), "server") {
		t.Errorf("leftovers %v, want child %d", l, child)
	}
	syscall.Kill(child, syscall.SIGKILL)
}

func TestBoundedLog(t *testing.T) {
	var b bytes.Buffer
	l := newBoundedLog(&b, 10000, [][]byte{[]byte("topsecret"), []byte("ab")})
	var all strings.Builder
	for i := range 20000 {
		fmt.Fprintf(&all, "line %05d topsecret ab\n", i)
	}
	text := all.String()
	for len(text) > 0 { // in odd pieces, so that secrets are cut
		n := min(7, len(text))
		l.Write([]byte(text[:n]))
		text = text[n:]
	}
	if got := l.lines(2); len(got) != 2 || got[1] != "line 19999 ****** ab" {
		t.Errorf("last lines %q", got)
	}
	if err := l.close(); err != nil {
		t.Fatal(err)
	}
	out := b.String()
	if len(out) > 10100 || strings.Contains(out, "topsecret") || !strings.HasPrefix(out, "line 00000 ****** ab\n") || !strings.HasSuffix(out, "line 19999 ****** ab\n") || strings.Count(out, "left out") != 1 {
		t.Errorf("%d bytes: %.60q … %q", len(out), out, out[len(out)-60:])
	}
	var lost int
	i := strings.Index(out, "[shadowtape left out")
	fmt.Sscanf(out[i:], "[shadowtape left out %d bytes", &lost)
	marker := len(fmt.Sprintf("[shadowtape left out %d bytes here]\n", lost))
	if total := 20000 * len("line 00000 ****** ab\n"); len(out)-marker+lost != total {
		t.Errorf("kept %d, lost %d, written %d", len(out)-marker, lost, total)
	}
}

func TestBoundedLogKeepsShortOnes(t *testing.T) {
	var b bytes.Buffer
	l := newBoundedLog(&b, 0, nil)
	l.Write([]byte("one\ntwo"))
	if got := l.lines(5); !slices.Equal(got, []string{"one", "two"}) {
		t.Errorf("%q", got)
	}
	l.close()
	if b.String() != "one\ntwo" {
		t.Errorf("%q", b.String())
	}
}

func TestWithoutSecrets(t *testing.T) {
	got := withoutSecrets([]string{"vllm", "serve", "--api-key", "abc", "--hf-token=def", "--port", "8000", "--tokenizer", "x"})
	if want := []string{"vllm", "serve", "--api-key", "******", "--hf-token=******", "--port", "8000", "--tokenizer", "x"}; !slices.Equal(got, want) {
		t.Error(got)
	}
}
