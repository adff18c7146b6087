package candidate

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/deploy"
	"github.com/shadowtape/shadowtape/internal/gpu"
)

// server is the test program of internal/deploy, built once.
var server = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "shadowtape-candidate")
	if err != nil {
		return "", err
	}
	out := filepath.Join(dir, "server")
	cmd := exec.Command("go", "build", "-trimpath", "-o", out, "../deploy/testdata/server")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if b, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, b)
	}
	return out, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if path, err := server(); err == nil {
		os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(code)
}

// machine is a double of a machine with two GPUs and the processes that a test puts on them.
type machine struct {
	mu     sync.Mutex
	users  map[string][]gpu.Process
	reads  map[string]int
	closed int
}

func (m *machine) use(uuid string, p ...gpu.Process) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.users == nil {
		m.users = map[string][]gpu.Process{}
	}
	m.users[uuid] = p
}

func (m *machine) open() (gpu.Reader, error) { return m, nil }

// read waits until a GPU has been read n more times.
func (m *machine) read(t *testing.T, uuid string, n int) {
	t.Helper()
	count := func() int {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.reads[uuid]
	}
	for until, tries := count()+n, 0; count() < until; tries++ {
		if tries == 12_000 {
			t.Fatalf("%s is not read", uuid)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (m *machine) System() (gpu.System, error) {
	return gpu.System{Driver: "570.1", NVML: "12", CUDA: "12.8"}, nil
}

func (m *machine) GPUs() ([]gpu.GPU, error) {
	return []gpu.GPU{{Index: 0, UUID: "GPU-a", Name: "NVIDIA H200"}, {Index: 1, UUID: "GPU-b", Name: "NVIDIA H200"}}, nil
}

func (m *machine) Fast(uuid string) (gpu.Reading, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.reads == nil {
		m.reads = map[string]int{}
	}
	m.reads[uuid]++
	r := gpu.Reading{Processes: formats.Of(append([]gpu.Process{}, m.users[uuid]...)), Free: formats.Of[int64](140 << 30)}
	r.MemoryUsed, r.MemoryTotal, r.TemperatureC, r.Throttle = formats.Of[int64](1<<20), formats.Of[int64](141<<30), formats.Of[int32](40), []string{}
	return r, nil
}

func (m *machine) Slow(string, *gpu.Reading) error { return nil }

func (m *machine) Events(ctx context.Context, _ []string) ([]gpu.Event, error) {
	<-ctx.Done()
	return nil, nil
}

func (m *machine) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed++
	return nil
}

func proc(pid int) gpu.Process {
	return gpu.Process{PID: pid, Name: "trainer", Type: "compute", Bytes: formats.Of[int64](1 << 20)}
}

// options are those of a start on a machine, and the lines that it tells.
func options(t *testing.T, m *machine) (Options, func() string) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("SKIPPED: needs Linux: process tests read /proc")
	}
	bin, err := server()
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var lines []string
	o := Options{Deploy: deploy.Options{Engine: "unix:///no/engine.sock", Self: bin, Environ: os.Environ()}, LockDir: t.TempDir(), Holder: "test", GPUs: m.open, Told: func(k Kind, line string) {
		mu.Lock()
		defer mu.Unlock()
		if k != Progress {
			lines = append(lines, line)
		}
	}}
	return o, func() string { mu.Lock(); defer mu.Unlock(); return strings.Join(lines, "\n") }
}

func file(t *testing.T, extra string) *deploy.File {
	t.Helper()
	f, err := deploy.Parse([]byte(`
name: it
process: ["${self}", -listen, "127.0.0.1:${port}"]
dialect: sim
health: {path: /health, interval: 10ms, timeout: 1m}
stop: 1s
`+extra), nil)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestAloneOnItsGPU(t *testing.T) {
	m := &machine{}
	m.use("GPU-a", proc(1))
	o, told := options(t, m)
	r, err := Start(t.Context(), file(t, "gpus: 1\n"), o)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Stop(t.Context())
	if r.lease.UUIDs[0] != "GPU-b" {
		t.Errorf("leased %v; GPU-a is in use", r.lease.UUIDs)
	}
	// A second run finds no GPU that is free and fit.
	o2 := o
	_, err = Start(t.Context(), file(t, "gpus: {indices: [1]}\n"), o2)
	var busy *gpu.BusyError
	if !errors.As(err, &busy) || busy.Holder.Holder != "test" || busy.Holder.PID != os.Getpid() {
		t.Fatalf("%v", err)
	}
	rows := 0
	r.Begin(t.Context(), func(s []formats.GPUSample) error { rows += len(s); return nil })
	m.read(t, "GPU-b", 3) // the third begins when the second has been written
	man := formats.Manifest{Valid: true}
	r.End(&man)
	d := man.Environment["deployment"].(map[string]any)
	if !man.Valid || rows < 2 || d["driver"] != "570.1" || d["gpu_names"].([]string)[0] != "NVIDIA H200" || d["gpu_uuids"].([]string)[0] != "GPU-b" || d["start_up_ms"].(float64) <= 0 {
		t.Errorf("%d rows, %+v", rows, man)
	}
	cov := man.GPUs.([]gpu.Covariates)
	if len(cov) != 1 || cov[0].TemperatureC.Mean != formats.Of(40.0) {
		t.Errorf("%+v", cov)
	}
	// The wait ends when the first gives the GPU back.
	waiting := make(chan error, 1)
	go func() {
		o2.Wait = true
		o2.Told = func(k Kind, line string) {
			if k == Note && strings.Contains(line, "waiting: ") {
				r.Stop(context.Background())
			}
		}
		r2, err := Start(context.Background(), file(t, "gpus: {indices: [1]}\n"), o2)
		if err == nil {
			err = r2.Stop(context.Background())
		}
		waiting <- err
	}()
	if err := <-waiting; err != nil {
		t.Error(err)
	}
	if m.closed < 3 {
		t.Errorf("%d readers closed", m.closed)
	}
	if told() != "" {
		t.Error(told())
	}
}

func TestForeignProcessDuringTheRun(t *testing.T) {
	m := &machine{}
	o, _ := options(t, m)
	r, err := Start(t.Context(), file(t, "gpus: {uuids: [GPU-a]}\n"), o)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Stop(t.Context())
	r.Begin(t.Context(), nil)
	m.use("GPU-a", proc(1)) // the machine's first process is visible, and not the candidate's
	m.read(t, "GPU-a", 4)
	m.use("GPU-a")
	man := formats.Manifest{Valid: true}
	r.End(&man)
	if man.Valid || len(man.Invalid) != 1 || !strings.HasPrefix(man.Invalid[0], "GPU GPU-a: compute process 1 (") || !strings.Contains(man.Invalid[0], ", from ") {
		t.Errorf("%+v", man)
	}
}

func TestUnfit(t *testing.T) {
	m := &machine{}
	m.use("GPU-a", proc(1))
	o, told := options(t, m)
	_, err := Start(t.Context(), file(t, "gpus: {indices: [0]}\n"), o)
	var unfit *UnfitError
	if !errors.As(err, &unfit) || !strings.Contains(err.Error(), "compute process 1") || !strings.Contains(unfit.Hint(), "choose another GPU") {
		t.Fatal(err)
	}
	if _, held, _ := gpu.HolderOf(o.LockDir, "GPU-a"); held {
		t.Error("a refused start keeps its lease")
	}
	o.AllowInvalid = true
	r, err := Start(t.Context(), file(t, "gpus: {indices: [0]}\n"), o)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Stop(t.Context())
	man := formats.Manifest{Valid: true}
	r.End(&man)
	if man.Valid || !strings.Contains(man.Invalid[0], "compute process 1") || !strings.Contains(told(), "compute process 1") {
		t.Errorf("%+v, told %q", man, told())
	}
}

func TestSharedSaysSo(t *testing.T) {
	m := &machine{}
	m.use("GPU-a", proc(1))
	o, _ := options(t, m)
	o.Shared = true
	r, err := Start(t.Context(), file(t, "gpus: {indices: [0]}\n"), o)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Stop(t.Context())
	r.Begin(t.Context(), nil)
	m.read(t, "GPU-a", 2)
	man := formats.Manifest{Valid: true}
	r.End(&man)
	if !man.Valid || len(man.Warnings) != 1 || !strings.Contains(man.Warnings[0], "exclusivity is off") || len(man.GPUs.([]gpu.Covariates)) != 1 {
		t.Errorf("%+v", man)
	}
	if _, held, _ := gpu.HolderOf(o.LockDir, "GPU-a"); held {
		t.Error("it leased")
	}
}

func TestNoNVML(t *testing.T) {
	o, told := options(t, &machine{})
	o.GPUs = func() (gpu.Reader, error) { return nil, gpu.ErrUnsupported }
	_, err := Start(t.Context(), file(t, "gpus: 1\n"), o)
	var unfit *UnfitError
	if !errors.As(err, &unfit) || !strings.Contains(err.Error(), "no NVML") || !strings.Contains(unfit.Hint(), "--exclusive=off") {
		t.Fatal(err)
	}
	o.Shared = true
	r, err := Start(t.Context(), file(t, "gpus: 1\n"), o)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Stop(t.Context())
	r.Begin(t.Context(), nil)
	man := formats.Manifest{Valid: true}
	r.End(&man)
	if !man.Valid || man.GPUs != nil || !strings.Contains(told(), "no GPU telemetry") || len(man.Warnings) != 1 {
		t.Errorf("%+v, told %q", man, told())
	}
	o.Shared, o.GPUs = false, nil
	r2, err := Start(t.Context(), file(t, ""), o) // no GPU is asked for: nothing to know
	if err != nil {
		t.Fatal(err)
	}
	defer r2.Stop(t.Context())
	man = formats.Manifest{Valid: true}
	r2.End(&man)
	if !man.Valid || len(man.Warnings)+len(man.Invalid) != 0 || man.Environment["deployment"] == nil {
		t.Errorf("%+v", man)
	}
}

func TestFailedStartGivesBack(t *testing.T) {
	m := &machine{}
	o, _ := options(t, m)
	f := file(t, "gpus: 2\n")
	f.Process = []string{"/no/such/program", "${port}"}
	if _, err := Start(t.Context(), f, o); err == nil {
		t.Fatal("it started")
	}
	for _, id := range []string{"GPU-a", "GPU-b"} {
		if _, held, _ := gpu.HolderOf(o.LockDir, id); held {
			t.Errorf("%s is still leased", id)
		}
	}
	if m.closed != 1 {
		t.Errorf("%d readers closed", m.closed)
	}
	if _, err := Start(t.Context(), file(t, "gpus: 3\n"), o); err == nil || !strings.Contains(err.Error(), "3 undivided wanted") {
		t.Error(err)
	}
}

func TestDeathIsInvalid(t *testing.T) {
	o, _ := options(t, &machine{})
	r, err := Start(t.Context(), file(t, ""), o)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Stop(t.Context())
	http.Get(r.URL + "/die")
	<-r.Exited()
	man := formats.Manifest{Valid: true, Invalid: []string{"no request completed"}}
	r.End(&man)
	if man.Valid || !strings.Contains(man.Invalid[0], "candidate it died: exit code 7; its last line: CUDA out of memory") {
		t.Errorf("%+v", man.Invalid)
	}
}

// A server that somebody else started: its process tree maps to its GPUs, and only they are watched.
func TestAttach(t *testing.T) {
	m := &machine{}
	o, _ := options(t, m)
	cmd := exec.Command("sh", "-c", "sleep 60 & echo $!; wait")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var child int
	if _, err := fmt.Fscan(out, &child); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if p, err := os.FindProcess(child); err == nil {
			p.Kill()
		}
		cmd.Process.Kill()
		cmd.Wait()
	})
	if _, err := Attach(t.Context(), fmt.Sprint(cmd.Process.Pid), o); err == nil || !strings.Contains(err.Error(), "none of its processes uses one") {
		t.Fatal(err)
	}
	m.use("GPU-b", proc(child))
	r, err := Attach(t.Context(), fmt.Sprint(cmd.Process.Pid), o)
	if err != nil {
		t.Fatal(err)
	}
	if _, held, _ := gpu.HolderOf(o.LockDir, "GPU-b"); !held {
		t.Error("its GPU is not leased")
	}
	r.Begin(t.Context(), nil)
	m.read(t, "GPU-b", 2)
	m.use("GPU-b", proc(child), proc(1))
	m.read(t, "GPU-b", 4)
	man := formats.Manifest{Valid: true}
	r.End(&man)
	d := man.Environment["deployment"].(map[string]any)
	if man.Valid || len(man.Invalid) != 1 || !strings.Contains(man.Invalid[0], "process 1 ") || d["gpu_uuids"].([]string)[0] != "GPU-b" || d["kind"] != "process" || d["command"].([]string)[0] != "sh" {
		t.Errorf("%+v", man)
	}
	if err := r.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	if err := cmd.Process.Signal(syscall.Signal(0)); err != nil {
		t.Error("the server was stopped")
	}
	for _, ref := range []string{"999999999", "no-such-container"} {
		if _, err := Attach(t.Context(), ref, o); err == nil {
			t.Errorf("%s was found", ref)
		}
	}
}
