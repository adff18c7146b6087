package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/deploy"
	"github.com/shadowtape/shadowtape/internal/deploy/enginetest"
	"github.com/shadowtape/shadowtape/internal/gpu"
	"github.com/shadowtape/shadowtape/internal/gpu/nvmltest"
)

// program is the test binary under the name by which it is the program itself.
func program(t *testing.T) string {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("SKIPPED: needs Linux: candidates as processes are tested on Linux")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "shadowtape")
	if err := os.Link(self, path); err != nil {
		b, err := os.ReadFile(self)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, b, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

// separately runs the program in a process of its own.
func separately(t *testing.T, path string, env []string, args ...string) (code int, out, errs string) {
	t.Helper()
	cmd := exec.Command(path, args...)
	cmd.Env = append(os.Environ(), env...)
	var o, e bytes.Buffer
	cmd.Stdout, cmd.Stderr = &o, &e
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		code = exit.ExitCode()
	case err != nil:
		t.Fatal(err)
	}
	return code, o.String(), e.String()
}

func write(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// simDeployment is a deployment file of the simulator.
const simDeployment = "process: [\"${self}\", sim, --listen, \"127.0.0.1:${port}\"]\ndialect: sim\n"

// shortTrace is a trace of a few requests within a second or two.
func shortTrace(t *testing.T) string {
	t.Helper()
	where := filepath.Join(t.TempDir(), "trace")
	if code, _, errs := invoke("import", "azure-llm", "../../samples/traces/azure-conv-25s.csv", "-o", where); code != exitGood {
		t.Fatal(errs)
	}
	return where
}

func manifest(t *testing.T, run string) formats.Manifest {
	t.Helper()
	tr, err := formats.Open(run)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	return *tr.Manifest
}

// nobodyAt fails where something still listens at a run's target.
func nobodyAt(t *testing.T, m formats.Manifest) {
	t.Helper()
	u, err := url.Parse(m.Targets[0])
	if err != nil {
		t.Fatal(err)
	}
	for range 1200 { // what a killed program leaves ends in the kernel's own time
		c, err := net.Dial("tcp", u.Host)
		if err != nil {
			return
		}
		c.Close()
		time.Sleep(50 * time.Millisecond)
	}
	t.Errorf("the candidate still listens at %s", u.Host)
}

const simProcess = `
name: sim
process: ["${self}", sim, --listen, "127.0.0.1:${port}", --profile, instant, --ttft, 5ms, --itl, 1ms]
dialect: sim
health: {path: /health, interval: 20ms, timeout: 1m}
stop: 2s
warm_up: {requests: 0, duration: 0s, steady: false}
`

func TestReplayDeploysProcess(t *testing.T) {
	path, trace, dir := program(t), shortTrace(t), t.TempDir()
	file := write(t, filepath.Join(dir, "sim.yaml"), simProcess+`env: {SECRET_TOKEN: "${env:DEPLOY_TEST_SECRET}"}`+"\n")
	run := filepath.Join(dir, "run")
	code, out, errs := separately(t, path, []string{"DEPLOY_TEST_SECRET=hush-hush"}, "replay", trace, "--deploy", file, "-o", run, "--max-requests", "30", "--speed", "10", "--allow-invalid")
	if code != exitGood || !strings.Contains(out, "completed 30, failed 0") || !strings.Contains(errs, "candidate: healthy after") {
		t.Fatalf("exit %d\n%s%s", code, out, errs)
	}
	m := manifest(t, run)
	d := m.Environment["deployment"].(map[string]any)
	if d["kind"] != "process" || d["start_up_ms"].(float64) <= 0 || d["engine_version"] != "0.0.0+shadowtape-sim" || d["env"].(map[string]any)["SECRET_TOKEN"] != "${env:DEPLOY_TEST_SECRET}" {
		t.Errorf("%v", d)
	}
	nobodyAt(t, m)
	log, err := os.ReadFile(filepath.Join(run, "candidate.log"))
	if err != nil || len(log) == 0 {
		t.Errorf("log %q %v", log, err)
	}
	for _, name := range []string{"run.json", "candidate.log"} {
		if b, _ := os.ReadFile(filepath.Join(run, name)); bytes.Contains(b, []byte("hush")) {
			t.Errorf("%s holds the secret", name)
		}
	}
	if _, err := os.Stat(run + ".candidate.log"); err == nil {
		t.Error("the log stands beside the run too")
	}
	code, _, errs = separately(t, path, nil, "replay", trace, "--deploy", file, "-o", run)
	if code != exitFailed || !strings.Contains(errs, "--force replaces it") || strings.Contains(errs, "candidate:") {
		t.Errorf("exit %d: it must not start a candidate for a run that exists:\n%s", code, errs)
	}
}

func TestReplayDeployInterrupted(t *testing.T) {
	path, trace, dir := program(t), shortTrace(t), t.TempDir()
	file := write(t, filepath.Join(dir, "sim.yaml"), simProcess)
	for _, c := range []struct {
		name   string
		signal syscall.Signal
	}{{"interrupt", syscall.SIGINT}, {"kill", syscall.SIGKILL}} {
		t.Run(c.name, func(t *testing.T) {
			run := filepath.Join(dir, c.name)
			cmd := exec.Command(path, "replay", trace, "--deploy", file, "-o", run, "--allow-invalid")
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer cmd.Process.Kill()
			for range 2400 { // half way: the run directory stands
				if _, err := os.Stat(filepath.Join(run, "run.json")); err == nil {
					break
				}
				time.Sleep(50 * time.Millisecond)
			}
			time.Sleep(200 * time.Millisecond)
			m := readManifest(t, run)
			if c, err := net.Dial("tcp", strings.TrimPrefix(m.Targets[0], "http://")); err != nil {
				t.Fatalf("the candidate does not run half way: %v", err)
			} else {
				c.Close()
			}
			cmd.Process.Signal(c.signal)
			cmd.Wait()
			nobodyAt(t, m)
			if left, err := deploy.Leftovers(t.Context(), "unix:///no/engine.sock"); err != nil || len(left) > 0 {
				t.Errorf("left over: %v %v", left, err)
			}
			if c.signal == syscall.SIGINT {
				if code := cmd.ProcessState.ExitCode(); code != exitInterrupted {
					t.Errorf("exit %d", code)
				}
				if m := manifest(t, run); !m.Interrupted || m.Environment["deployment"] == nil {
					t.Errorf("%+v", m)
				}
			}
		})
	}
}

func TestReplayDeployWarmsUp(t *testing.T) {
	path, trace, dir := program(t), shortTrace(t), t.TempDir()
	file := write(t, filepath.Join(dir, "sim.yaml"), strings.Replace(simProcess, "requests: 0, duration: 0s", "requests: 20, duration: 1500ms, timeout: 1m", 1))
	run := filepath.Join(dir, "run")
	code, out, errs := separately(t, path, nil, "replay", trace, "--deploy", file, "-o", run, "--max-requests", "30", "--speed", "10", "--allow-invalid")
	if code != exitGood || !strings.Contains(out, "completed 30, failed 0") {
		t.Fatalf("exit %d\n%s%s", code, out, errs)
	}
	m := manifest(t, run)
	w := m.Options["warmup"].(map[string]any)
	if w["answers"].(float64) < 20 || w["seconds"].(float64) < 1.5 || w["reached"] != true {
		t.Errorf("%v", w)
	}
	tr, err := formats.Open(run)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	phases := map[formats.Phase]int{}
	for x, err := range tr.All(formats.ColPhase) {
		if err != nil {
			t.Fatal(err)
		}
		phases[x.Phase]++
	}
	if phases[formats.PhaseMeasure] != 30 || phases[formats.PhaseWarmup] < 20 {
		t.Errorf("%v", phases)
	}
	write(t, file, strings.Replace(simProcess, "requests: 0, duration: 0s", "requests: 1000000, duration: 0s, timeout: 1s", 1))
	code, _, errs = separately(t, path, nil, "replay", trace, "--deploy", file, "-o", run, "--force", "--max-requests", "5", "--speed", "10", "--allow-invalid")
	if code != exitGood || !strings.Contains(errs, "warning: the warm-up ended after ") || !strings.Contains(errs, "of 1000000 answers") {
		t.Errorf("exit %d\n%s", code, errs)
	}
}

func readManifest(t *testing.T, run string) formats.Manifest {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(run, "run.json"))
	if err != nil {
		t.Fatal(err)
	}
	var m formats.Manifest
	if err := json.Unmarshal(b, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

// The candidate dies in the middle: the run is invalid, says so, and shows its last log lines.
func TestReplayDeployDies(t *testing.T) {
	path, trace, dir := program(t), shortTrace(t), t.TempDir()
	run := filepath.Join(dir, "run")
	file := write(t, filepath.Join(dir, "sim.yaml"), `
name: mortal
process: [sh, -c, "${self} sim --listen 127.0.0.1:${port} --profile instant & while [ ! -e '`+run+`/run.json' ]; do sleep 0.1; done; sleep 1; echo out of memory, says the test; kill $!; exit 9"]
dialect: sim
health: {path: /health, interval: 20ms, timeout: 1m}
warm_up: {requests: 0, duration: 0s, steady: false}
`)
	code, out, errs := separately(t, path, nil, "replay", trace, "--deploy", file, "-o", run)
	if code != exitInvalid || !strings.Contains(out, "INVALID: candidate mortal died: exit code 9; its last line: ") || !strings.Contains(errs, "candidate| out of memory, says the test") {
		t.Errorf("exit %d\n%s%s", code, out, errs)
	}
}

func TestReplayDeployRefuses(t *testing.T) {
	dir, trace := t.TempDir(), shortTrace(t)
	good := write(t, filepath.Join(dir, "good.yaml"), simProcess)
	matrix := write(t, filepath.Join(dir, "matrix.yaml"), strings.Replace(simProcess, "5ms", `"${matrix.ttft}"`, 1))
	for _, c := range []struct {
		name string
		text string // of the deployment file; "" is the good one
		args []string
		code int
		want []string
	}{
		{"unknown field", simProcess + "replicas: 2\n", nil, exitFailed, []string{`there is no field "replicas"`, "hint: docs/DEPLOY.md"}},
		{"both", "", []string{"--target", "http://127.0.0.1:1"}, exitUsage, []string{"--deploy and --target or --gpus-of: which?"}},
		{"exclusive", "", []string{"--exclusive", "maybe"}, exitUsage, []string{"--exclusive is on or off"}},
		{"set", "", []string{"--set", "x"}, exitUsage, []string{"--set wants NAME=VALUE"}},
		{"no GPU", simProcess + "gpus: 1\n", nil, exitInvalid, []string{"nothing is known about the GPUs", "hint: build one with cgo, on Linux: make build-nvml; or --exclusive=off; --allow-invalid"}},
		{"no engine", "{image: x, port: 1}", []string{"--engine", "unix:///no/engine.sock"}, exitFailed, []string{"nobody answers", "hint: start Docker"}},
		{"no permission or file", "{image: x, port: 1, volumes: [/no/model:/m]}", nil, exitFailed, []string{"/no/model does not exist", "hint: "}},
		{"dies at once", "{process: [sh, -c, 'echo no such model >&2; exit 3', '${port}']}", nil, exitFailed, []string{"it ended before it was healthy: exit code 3", "candidate| no such model", "its whole log is "}},
		{"never healthy", "{process: [sleep, '60', '${port}'], health: {timeout: 2s, interval: 20ms}}", nil, exitFailed, []string{"is not healthy after 2s: connection refused", "hint: raise health.timeout"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			withGPUs(t, func() (gpu.Reader, error) { return nil, gpu.ErrUnsupported })
			file := good
			if c.text != "" {
				file = write(t, filepath.Join(dir, strings.ReplaceAll(c.name, " ", "-")+".yaml"), c.text)
			}
			run := filepath.Join(dir, strings.ReplaceAll(c.name, " ", "-")+".run")
			code, out, errs := invoke(append([]string{"replay", trace, "--deploy", file, "-o", run}, c.args...)...)
			if code != c.code || out != "" {
				t.Errorf("exit %d, want %d, stdout %q, stderr %s", code, c.code, out, errs)
			}
			for _, w := range c.want {
				if !strings.Contains(errs, w) {
					t.Errorf("%q is missing in %s", w, errs)
				}
			}
			if strings.Count(errs, "shadowtape: ") != 1 {
				t.Errorf("not one error line: %s", errs)
			}
			if _, err := os.Stat(run); err == nil {
				t.Error("a run directory stands")
			}
		})
	}
	code, _, errs := invoke("replay", trace, "--deploy", matrix, "-o", filepath.Join(dir, "r"))
	if code != exitFailed || !strings.Contains(errs, "${matrix.ttft} has no value") {
		t.Errorf("exit %d: %s", code, errs)
	}
}

// Two runs for one GPU: the second says who holds it and exits 1.
func TestReplayDeployBusy(t *testing.T) {
	withGPUs(t, func() (gpu.Reader, error) { return twoGPUs{}, nil })
	dir, trace := t.TempDir(), shortTrace(t)
	l, err := gpu.Acquire(t.Context(), []string{"GPU-aaaa"}, gpu.LeaseOptions{Dir: dir, Holder: "alice, shadowtape gate"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Release()
	file := write(t, filepath.Join(dir, "f.yaml"), simProcess+"gpus: {indices: [0]}\n")
	code, out, errs := invoke("replay", trace, "--deploy", file, "-o", filepath.Join(dir, "run"), "--lock-dir", dir)
	if want := fmt.Sprintf("GPU GPU-aaaa is held by alice, shadowtape gate (process %d on ", os.Getpid()); code != exitFailed || out != "" || !strings.Contains(errs, want) || !strings.Contains(errs, "hint: --wait waits for it") {
		t.Errorf("exit %d, stderr %s", code, errs)
	}
	file = write(t, filepath.Join(dir, "g.yaml"), simProcess+"gpus: {indices: [1]}\n")
	code, _, errs = invoke("replay", trace, "--deploy", file, "-o", filepath.Join(dir, "run"), "--lock-dir", dir)
	if code != exitInvalid || !strings.Contains(errs, "the measurement would be invalid: GPU GPU-bbbb: compute process 1073741824") || !strings.Contains(errs, "hint: end it, or choose another GPU; --allow-invalid") {
		t.Errorf("exit %d, stderr %s", code, errs)
	}
}

// Two runs started at once for one GPU, each a process of its own with the machine's (stand-in) NVML: one has it, the other says who and
// exits 1; a third waits for it.
func TestTwoRunsAtOnceForOneGPU(t *testing.T) {
	if r, err := gpu.Open(); errors.Is(err, gpu.ErrUnsupported) {
		t.Skip("SKIPPED LOUDLY: this build has no NVML; CGO_ENABLED=1 tests two runs at once for one GPU")
	} else if err == nil {
		r.Close()
	}
	path, trace, dir := program(t), shortTrace(t), t.TempDir()
	if err := nvmltest.Build(dir, "570.86"); err != nil {
		t.Skipf("SKIPPED LOUDLY: two runs at once for one GPU were not tested: %v", err)
	}
	file := write(t, filepath.Join(dir, "f.yaml"), simProcess+"gpus: {indices: [0]}\n")
	env := append(os.Environ(), "LD_LIBRARY_PATH="+dir)
	type run struct {
		cmd  *exec.Cmd
		errs bytes.Buffer
	}
	start := func(name string, more ...string) *run {
		r := &run{}
		r.cmd = exec.Command(path, append([]string{"replay", trace, "--deploy", file, "-o", filepath.Join(dir, name), "--lock-dir", filepath.Join(dir, "locks"), "--speed", "4", "--allow-invalid"}, more...)...)
		r.cmd.Env, r.cmd.Stderr = env, &r.errs
		if err := r.cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.cmd.Process.Kill() })
		return r
	}
	runs := []*run{start("a"), start("b")}
	waiting := start("c", "--wait")
	codes := map[int]*run{}
	for _, r := range append(runs, waiting) {
		r.cmd.Wait()
		if r != waiting {
			codes[r.cmd.ProcessState.ExitCode()] = r
		}
	}
	has, second := codes[exitGood], codes[exitFailed]
	// The one that waits may have come first: then both others were refused, by it.
	if has == nil && second != nil {
		has = waiting
	}
	if has == nil || second == nil {
		t.Fatalf("exits %v\n%s\n%s", codes, runs[0].errs.String(), runs[1].errs.String())
	}
	held := "GPU GPU-fake-0 is held by "
	if errs := second.errs.String(); !strings.Contains(errs, held) || !strings.Contains(errs, fmt.Sprintf("(process %d on ", has.cmd.Process.Pid)) || !strings.Contains(errs, "hint: --wait waits for it") {
		t.Errorf("%s", errs)
	}
	if code := waiting.cmd.ProcessState.ExitCode(); code != exitGood || has != waiting && !strings.Contains(waiting.errs.String(), "waiting: "+held) {
		t.Errorf("exit %d: %s", code, waiting.errs.String())
	}
	m := manifest(t, filepath.Join(dir, "c"))
	if d := m.Environment["deployment"].(map[string]any); fmt.Sprint(d["gpu_uuids"]) != "[GPU-fake-0]" || d["driver"] != "570.86" || m.GPUs == nil {
		t.Errorf("%v", d)
	}
}

func TestReplayGPUsOf(t *testing.T) {
	target, _ := startSim(t, "--ttft", "1ms", "--itl", "0s")
	withGPUs(t, func() (gpu.Reader, error) { return twoGPUs{}, nil })
	run := filepath.Join(t.TempDir(), "run")
	code, _, errs := invoke("replay", shortTrace(t), "--target", target, "-o", run, "--gpus-of", fmt.Sprint(os.Getpid()), "--lock-dir", t.TempDir())
	if code != exitFailed || !strings.Contains(errs, "none of its processes uses one that NVML shows") {
		t.Errorf("exit %d: %s", code, errs)
	}
	withGPUs(t, func() (gpu.Reader, error) { return ownGPU{}, nil })
	code, _, errs = invoke("replay", shortTrace(t), "--target", target, "-o", run, "--max-requests", "5", "--allow-invalid", "--gpus-of", fmt.Sprint(os.Getpid()), "--lock-dir", t.TempDir())
	if code != exitGood {
		t.Fatal(errs)
	}
	m := manifest(t, run)
	if d := m.Environment["deployment"].(map[string]any); d["kind"] != "process" || fmt.Sprint(d["gpu_uuids"]) != "[GPU-aaaa]" || m.GPUs == nil {
		t.Errorf("%v", d)
	}
}

// ownGPU is a machine whose first GPU this very process uses.
type ownGPU struct{ twoGPUs }

func (g ownGPU) Fast(uuid string) (gpu.Reading, error) {
	r, err := g.twoGPUs.Fast(uuid)
	if uuid == "GPU-aaaa" {
		r.Processes = formats.Of([]gpu.Process{{PID: os.Getpid(), Type: "compute", Bytes: formats.Of[int64](1 << 20)}})
	}
	return r, err
}

// With Docker from end to end: the sample's own file, image and simulator; nothing is left behind, also where the run is cut half way.
func TestReplayDeploysContainer(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED by -short: starts containers, needs docker.io and root")
	}
	path, trace, dir := program(t), shortTrace(t), t.TempDir()
	e, err := enginetest.Start("docker")
	if err != nil {
		t.Skipf("SKIPPED LOUDLY: replay --deploy with a container was not tested: %v", err)
	}
	defer e.End()
	build := exec.Command("go", "build", "-trimpath", "-o", filepath.Join(dir, "static"), ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if b, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, b)
	}
	binary, err := os.ReadFile(filepath.Join(dir, "static"))
	if err != nil {
		t.Fatal(err)
	}
	docker, err := os.ReadFile("../../Dockerfile.sim")
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Build(t.Context(), "shadowtape-sim:latest", map[string][]byte{"Dockerfile": docker, "bin/shadowtape": binary}); err != nil {
		t.Fatal(err)
	}
	nothing := func() {
		t.Helper()
		if names, err := e.Containers(t.Context(), "shadowtape.deployment"); err != nil || len(names) > 0 {
			t.Errorf("left behind: %v %v", names, err)
		}
	}
	env := []string{"DOCKER_HOST=" + e.Address}
	run := filepath.Join(dir, "run")
	code, out, errs := separately(t, path, env, "replay", trace, "--deploy", "../../samples/deploy/sim.yaml", "-o", run, "--max-requests", "30", "--speed", "10", "--allow-invalid")
	if code != exitGood || !strings.Contains(out, "completed 30, failed 0") {
		t.Fatalf("exit %d\n%s%s", code, out, errs)
	}
	nothing()
	d := manifest(t, run).Environment["deployment"].(map[string]any)
	if d["kind"] != "container" || d["image"] != "shadowtape-sim:latest" || !strings.HasPrefix(d["image_id"].(string), "sha256:") || !strings.HasPrefix(d["container_engine"].(string), "Docker ") {
		t.Errorf("%v", d)
	}
	if b, err := os.ReadFile(filepath.Join(run, "candidate.log")); err != nil || len(b) == 0 {
		t.Errorf("log %q %v", b, err)
	}
	// A matrix starts a fresh container for each cell; one that never gets healthy is a failed row.
	file := write(t, filepath.Join(dir, "cell.yaml"), `
name: cell
image: shadowtape-sim:latest
pull: never
command: [sim, --listen, ":${port}", --profile, instant, --ttft, "${matrix.ttft}", --itl, 1ms]
dialect: sim
health: {path: "${matrix.path}", timeout: 8s, interval: 50ms}
warm_up: {requests: 5, duration: 0s, steady: false}
stop: 2s
`)
	matrix := write(t, filepath.Join(dir, "matrix.yaml"), "deploy: cell.yaml\nmatrix: {input: [16], output: [4], rate: [50], ttft: [1ms, 30ms], path: [/health, /never]}\nexclude: [{ttft: 30ms, path: /never}]\nrequests: 20\n")
	code, out, errs = separately(t, path, env, "sweep", matrix, "-o", filepath.Join(dir, "sweep"), "--json")
	var table struct {
		Results []struct {
			Values  map[string]string
			Error   string
			Figures map[string]float64
			Run     string
		}
	}
	if err := json.Unmarshal([]byte(out), &table); err != nil || len(table.Results) != 3 {
		t.Fatalf("exit %d, %v\n%s%s", code, err, out, errs)
	}
	ids := map[string]bool{}
	for _, r := range table.Results {
		if r.Values["path"] == "/never" {
			if !strings.Contains(r.Error, "is not healthy after 8s") {
				t.Errorf("%+v", r)
			}
			continue
		}
		if r.Error != "" || r.Figures["ttft_p50"] <= 0 {
			t.Errorf("%+v", r)
		}
		m := manifest(t, filepath.Join(dir, "sweep", r.Run))
		ids[fmt.Sprint(m.Targets, m.StartUnixNS)] = true
		if c := fmt.Sprint(m.Environment["deployment"].(map[string]any)["command"]); !strings.Contains(c, "--ttft "+r.Values["ttft"]) {
			t.Errorf("%s", c)
		}
	}
	if len(ids) != 2 {
		t.Errorf("launches %v", ids)
	}
	nothing()
	os.Remove(file)
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGKILL} {
		half := filepath.Join(dir, s.String())
		cmd := exec.Command(path, "replay", trace, "--deploy", "../../samples/deploy/sim.yaml", "-o", half, "--allow-invalid")
		cmd.Env = append(os.Environ(), env...)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		defer cmd.Process.Kill()
		for range 1200 {
			if _, err := os.Stat(filepath.Join(half, "run.json")); err == nil {
				break
			}
			time.Sleep(50 * time.Millisecond)
		}
		time.Sleep(200 * time.Millisecond)
		cmd.Process.Signal(s)
		cmd.Wait()
		if s == syscall.SIGINT {
			if code := cmd.ProcessState.ExitCode(); code != exitInterrupted {
				t.Errorf("exit %d", code)
			}
			nothing()
			continue
		}
		// Killed without a chance to clean up: the next start finds and names what is left.
		names, err := e.Containers(t.Context(), "shadowtape.deployment")
		if err != nil || len(names) != 1 {
			t.Fatalf("containers %v %v", names, err)
		}
		code, _, errs := separately(t, path, env, "replay", trace, "--deploy", "../../samples/deploy/sim.yaml", "-o", filepath.Join(dir, "next"), "--max-requests", "5", "--allow-invalid")
		if code != exitGood || !strings.Contains(errs, "warning: left over: container "+names[0]) || !strings.Contains(errs, "docker rm -f "+names[0]) {
			t.Errorf("exit %d, stderr %s", code, errs)
		}
		after, err := e.Containers(t.Context(), "shadowtape.deployment")
		if err != nil || !slices.Equal(after, names) {
			t.Errorf("containers %v %v, only %v may be left", after, err, names)
		}
		if err := e.Remove(t.Context(), names[0]); err != nil {
			t.Error(err)
		}
		nothing()
	}
}

// GPUs of another machine, through an exporter: gpu.parquet holds them.
func TestReplayWatchesDCGM(t *testing.T) {
	exporter := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, `DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-remote"} 500`)
	}))
	defer exporter.Close()
	target, _ := startSim(t, "--ttft", "1ms", "--itl", "0s")
	run := filepath.Join(t.TempDir(), "run")
	if code, _, errs := invoke("replay", shortTrace(t), "--target", target, "-o", run, "--max-requests", "5", "--allow-invalid", "--gpu-metrics", exporter.URL); code != exitGood {
		t.Fatal(errs)
	}
	tr, err := formats.Open(run)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	n := 0
	for s, err := range tr.GPUSamples() {
		if err != nil || s.UUID != "GPU-remote" || s.PowerMW != formats.Of[int64](500000) {
			t.Fatalf("%+v %v", s, err)
		}
		n++
	}
	if n == 0 {
		t.Error("no sample")
	}
}
