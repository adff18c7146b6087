package deploy

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/moby/moby/client"
)

// testEngine is a container engine of this test's own: its data, sockets and networks are its own too, and it is ended by its number.
// Where none can be started (no root, not installed) the reason is kept and every test that needs it is skipped aloud.
type testEngine struct {
	address, skip string
	cmd           *exec.Cmd
	dir           string
}

// engines are the two that this package is for.
var engines = map[string]func() *testEngine{"docker": sync.OnceValue(startDocker), "podman": sync.OnceValue(startPodman)}

func startDocker() *testEngine {
	// Neither rules nor addresses of the machine are touched beyond one bridge; published ports go through the engine's own proxy.
	return startEngine("dockerd", func(dir string) []string {
		return []string{"--storage-driver=vfs", "--host=unix://" + dir + "/engine.sock", "--data-root=" + dir + "/data", "--exec-root=" + dir + "/exec", "--pidfile=" + dir + "/pid",
			"--iptables=false", "--ip6tables=false"}
	})
}

func startPodman() *testEngine {
	return startEngine("podman", func(dir string) []string {
		return []string{"--root", dir + "/data", "--runroot", dir + "/run", "--storage-driver", "vfs", "--cgroup-manager", "cgroupfs", "system", "service", "--time=0", "unix://" + dir + "/engine.sock"}
	})
}

func startEngine(program string, args func(dir string) []string) *testEngine {
	e := &testEngine{}
	if os.Getuid() != 0 {
		e.skip = "not root"
		return e
	}
	path, err := exec.LookPath(program)
	if err != nil {
		e.skip = "no " + program + " on this machine (Debian: docker.io, podman)"
		return e
	}
	if e.dir, err = os.MkdirTemp("", "shadowtape-"+program); err != nil {
		e.skip = err.Error()
		return e
	}
	e.address = "unix://" + e.dir + "/engine.sock"
	log, err := os.Create(e.dir + "/log")
	if err != nil {
		e.skip = err.Error()
		return e
	}
	defer log.Close()
	config := e.dir + "/containers.conf" // a sandbox may not raise limits
	if err := os.WriteFile(config, []byte("[containers]\ndefault_ulimits = [\"nofile=1024:1024\", \"nproc=1024:1024\"]\n"), 0o600); err != nil {
		e.skip = err.Error()
		return e
	}
	e.cmd = exec.Command(path, args(e.dir)...)
	e.cmd.Env = append(os.Environ(), "CONTAINERS_CONF="+config)
	e.cmd.Stdout, e.cmd.Stderr = log, log
	if err := e.cmd.Start(); err != nil {
		e.skip = err.Error()
		return e
	}
	endEngines = append(endEngines, e.end)
	for range 300 {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		cli, _, _, err := connect(ctx, e.address)
		cancel()
		if err == nil {
			cli.Close()
			return e
		}
		time.Sleep(100 * time.Millisecond)
	}
	b, _ := os.ReadFile(e.dir + "/log")
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	e.skip = program + " does not start here: " + lines[len(lines)-1]
	return e
}

func (e *testEngine) end() {
	e.cmd.Process.Signal(os.Interrupt)
	done := make(chan struct{})
	go func() { e.cmd.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		e.cmd.Process.Kill()
		<-done
	}
	os.RemoveAll(e.dir)
}

// onEngines runs a test on the engines named, with an image of the test server in it.
func onEngines(t *testing.T, test func(t *testing.T, address, image string), names ...string) {
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			address, image := needEngine(t, engines[name])
			test(t, address, image)
		})
	}
}

// needEngine returns an engine's address and an image of the test server in it.
func needEngine(t *testing.T, start func() *testEngine) (address, image string) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a container engine")
	}
	bin := needServer(t)
	e := start()
	if e.skip != "" {
		t.Skipf("SKIPPED LOUDLY: container launch was not tested: %s", e.skip)
	}
	image = "shadowtape-test-server:1"
	cli, _, _, err := connect(t.Context(), e.address)
	if err != nil {
		t.Fatal(err)
	}
	defer cli.Close()
	if _, err := cli.ImageInspect(t.Context(), image); err == nil {
		return e.address, image
	}
	b, err := os.ReadFile(bin)
	if err != nil {
		t.Fatal(err)
	}
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for name, content := range map[string][]byte{"server": b, "Dockerfile": []byte("FROM scratch\nCOPY server /server\nLABEL org.opencontainers.image.revision=abc123\nEXPOSE 8000\nENTRYPOINT [\"/server\"]\n")} {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(content))}); err != nil {
			t.Fatal(err)
		}
		w.Write(content)
	}
	w.Close()
	built, err := cli.ImageBuild(t.Context(), &archive, client.ImageBuildOptions{Tags: []string{image}, Remove: true})
	if err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(built.Body)
	built.Body.Close()
	if err != nil || bytes.Contains(out, []byte(`"error"`)) {
		t.Fatalf("build: %v %s", err, out)
	}
	return e.address, image
}

// containers lists all containers of the engine that carry our label.
func containers(t *testing.T, address string) []string {
	t.Helper()
	cli, _, _, err := connect(context.Background(), address)
	if err != nil {
		t.Fatal(err)
	}
	defer cli.Close()
	list, err := cli.ContainerList(context.Background(), client.ContainerListOptions{All: true, Filters: client.Filters{}.Add("label", labelID)})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, c := range list.Items {
		names = append(names, strings.TrimPrefix(c.Names[0], "/"))
	}
	return names
}

func TestContainer(t *testing.T) { onEngines(t, testContainer, "docker", "podman") }

func testContainer(t *testing.T, address, image string) {
	model := t.TempDir()
	if err := os.WriteFile(filepath.Join(model, "config.json"), []byte(`{}`), 0o644); err != nil {
		t.Fatal(err)
	}
	limits := "{nofile: '1000:2000', core: '0'}"
	if strings.Contains(t.Name(), "podman") {
		limits = "{}" // beside limits of a deployment Podman sets some of its own, which a sandbox refuses
	}
	f := parse(t, `
name: candidate-a
image: `+image+`
command: [-listen, ":${port}", -ready, 200ms]
port: 9123
env: {TEST_A: b, TEST_TOKEN: "${env:SOME_TOKEN}"}
volumes: ["`+model+`:/models"]
shm: 16m
ipc: private
ulimits: `+limits+`
dialect: sim
health: {path: /health, interval: 50ms, timeout: 30s}
stop: 1s
probes: {version: [/server, -no-such-flag]}
model_files: {path: "`+model+`"}
`, nil)
	var log bytes.Buffer
	c, err := Start(t.Context(), f, Options{Engine: address, Log: &log, Getenv: func(string) string { return "hush-hush-token" }})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Stop(t.Context())
	resp, err := http.Get(c.URL + "/version")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	k := c.backend.(*container)
	if names := containers(t, address); len(names) != 1 || !strings.HasPrefix(names[0], "shadowtape-candidate-a-") {
		t.Errorf("containers %v", names)
	}
	pids, err := k.listPIDs(t.Context())
	if err != nil || len(pids) != 1 {
		t.Fatalf("processes %v %v", pids, err)
	}
	for pid := range pids {
		if !c.Owns(pid) {
			t.Errorf("process %d of the container is not the candidate's", pid)
		}
	}
	if c.Owns(os.Getpid()) || c.Owns(1) {
		t.Error("foreign processes are the candidate's")
	}
	info, err := k.cli.ContainerInspect(t.Context(), k.id, client.ContainerInspectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	h := info.Container.HostConfig
	if h.ShmSize != 16<<20 || strings.Contains(t.Name(), "docker") && h.IpcMode != "private" || len(info.Container.Mounts) != 1 || info.Container.Mounts[0].RW ||
		strings.Contains(t.Name(), "docker") && (len(h.Ulimits) != 2 || h.LogConfig.Config["max-size"] == "") {
		t.Errorf("host configuration %+v", h)
	}
	env := c.Environment(t.Context())
	text, err := json.Marshal(env)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(text, []byte("hush")) {
		t.Errorf("the environment holds the secret: %s", text)
	}
	if env["image_id"] == "" || env["image_pinned"] != false || env["image_labels"].(map[string]string)["org.opencontainers.image.revision"] != "abc123" ||
		!strings.HasPrefix(env["container_engine"].(string), "Docker ") && !strings.HasPrefix(env["container_engine"].(string), "Podman ") || env["engine_version"] != "1.2.3" ||
		!slices.Equal(env["command"].([]string), []string{"/server", "-listen", ":9123", "-ready", "200ms"}) {
		t.Errorf("environment %s", text)
	}
	if d := env["model_files"].(map[string]any)["sha256"].(map[string]any); d["config.json"] == nil {
		t.Errorf("model files %v", d)
	}
	if l, err := Leftovers(t.Context(), address); err != nil || slices.ContainsFunc(l, func(l Leftover) bool { return l.ID == c.ID }) {
		t.Errorf("a running candidate is a leftover: %v %v", l, err)
	}
	if err := c.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	if names := containers(t, address); len(names) != 0 {
		t.Errorf("left behind: %v", names)
	}
	if !strings.Contains(log.String(), "args -listen :9123") || !strings.Contains(log.String(), "env TEST_TOKEN=******") || strings.Contains(log.String(), "hush") {
		t.Errorf("log:\n%s", log.String())
	}
}

func TestContainerFails(t *testing.T) { onEngines(t, testContainerFails, "docker") }

func testContainerFails(t *testing.T, address, image string) {
	head := "dialect: sim\nstop: 1s\nhealth: {path: /health, interval: 20ms, timeout: 1m}\nimage: " + image + "\n"
	for _, c := range []struct{ name, text, engine, want, hint string }{
		{"dies at once", head + "command: [-no-such-flag]\n", address, "ended", ""},
		{"dies before healthy", head + "command: [-ready, 1h, -die, 300ms]\n", address, "exit code 7", "log lines"},
		{"never healthy", strings.Replace(head, "1m", "3s", 1) + "command: [-ready, 1h]\n", address, "not healthy after 3s", "health.timeout"},
		{"no such image", "{image: 'shadowtape.invalid/none:1', port: 1, pull: never}", address, "image shadowtape.invalid/none:1 is not here", "pull"},
		{"image cannot be pulled", "{image: 'shadowtape.invalid/none:1', port: 1}", address, "pull image shadowtape.invalid/none:1", "registry"},
		{"no engine", head, "unix:///no/such/engine.sock", "nobody answers", "DOCKER_HOST"},
		{"no such volume", head + "volumes: ['/no/such/model:/models']\n", address, "/no/such/model does not exist", "relative path"},
		{"no such program", head + "entrypoint: [/none]\n", address, "start container", "inside the image"},
		{"no GPU runtime", head + "gpus: {uuids: [GPU-1]}\n", address, "could not select device driver", "nvidia-container-toolkit"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cand, err := Start(t.Context(), parse(t, c.text, nil), Options{Engine: c.engine})
			if err == nil {
				cand.Stop(t.Context())
				t.Fatal("it started")
			}
			var e *Error
			if !errors.As(err, &e) || !strings.Contains(err.Error(), c.want) || !strings.Contains(e.Hint, c.hint) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %q, hint %q, want %q and %q", err, e.Hint, c.want, c.hint)
			}
			if c.name == "dies before healthy" && !strings.Contains(strings.Join(e.Tail, "\n"), "CUDA out of memory") {
				t.Errorf("tail %q", e.Tail)
			}
		})
	}
	if names := containers(t, address); len(names) != 0 {
		t.Errorf("left behind: %v", names)
	}
}

func TestContainerCancelledAndDead(t *testing.T) { onEngines(t, testContainerCancelledAndDead, "docker", "podman") }

func testContainerCancelledAndDead(t *testing.T, address, image string) {
	head := "dialect: sim\nstop: 1s\nhealth: {path: /health, interval: 20ms, timeout: 1m}\nimage: " + image + "\n"
	for _, stage := range []string{"start", "health"} {
		ctx, cancel := context.WithCancel(t.Context())
		_, err := Start(ctx, parse(t, head+"command: [-ready, 1h]\n", nil), Options{Engine: address, Progress: func(p Progress) {
			if p.Stage == stage {
				cancel()
			}
		}})
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("cancelled at %s: %v", stage, err)
		}
		if names := containers(t, address); len(names) != 0 {
			t.Errorf("cancelled at %s, left behind: %v", stage, names)
		}
	}
	c, err := Start(t.Context(), parse(t, head+"command: [-die, 500ms]\n", nil), Options{Engine: address})
	if err != nil {
		t.Fatal(err)
	}
	<-c.Exited()
	time.Sleep(100 * time.Millisecond) // its last lines come by another connection
	err = c.Died()
	var e *Error
	if !errors.As(err, &e) || !strings.Contains(err.Error(), "exit code 7") || !strings.Contains(strings.Join(e.Tail, "\n"), "CUDA out of memory") {
		t.Errorf("%v, tail %v", err, e)
	}
	if err := c.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	if names := containers(t, address); len(names) != 0 {
		t.Errorf("left behind: %v", names)
	}
}

func TestContainerLeftover(t *testing.T) { onEngines(t, testContainerLeftover, "docker") }

func testContainerLeftover(t *testing.T, address, image string) {
	cmd, id := startElsewhere(t, needServer(t), "{image: '"+image+"', dialect: sim, name: crashed}", address)
	find := func() []Leftover {
		l, err := Leftovers(t.Context(), address)
		if err != nil {
			t.Fatal(err)
		}
		return slices.DeleteFunc(l, func(l Leftover) bool { return l.ID != id || l.Kind != "container" })
	}
	if l := find(); len(l) != 0 {
		t.Errorf("leftovers of a running starter: %v", l)
	}
	cmd.Process.Kill()
	cmd.Wait()
	l := find()
	if len(l) != 1 || l[0].Remove != "docker rm -f "+l[0].Name || !strings.HasPrefix(l[0].Name, "shadowtape-crashed-") {
		t.Fatalf("leftovers %v", l)
	}
	cli, _, _, err := connect(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	defer cli.Close()
	if _, err := cli.ContainerRemove(t.Context(), l[0].Name, client.ContainerRemoveOptions{Force: true}); err != nil {
		t.Fatal(err)
	}
	if l := find(); len(l) != 0 {
		t.Error(l)
	}
}

func TestPodmanAttaches(t *testing.T) {
	for engine, want := range map[string]bool{"Podman 4.9.3": false, "Podman 5.3.2": false, "Podman 5.4.0": true, "Podman 6.0": true, "Podman": false} {
		if c := (&container{engine: engine}); c.podmanAttaches() != want {
			t.Errorf("%s: %t", engine, !want)
		}
	}
	c := &container{podman: true, engine: "Podman 5.2.0", image: imageFacts{id: "x"}}
	c.launch = launch{file: &File{GPUs: GPURequest{Count: 1}}, places: strings.NewReplacer(), port: 80}
	if _, _, err := c.config(); err == nil || !strings.Contains(err.Error(), "does not attach GPUs") {
		t.Error(err)
	}
	c.engine, c.opts.GPUs = "Podman 5.4.1", []string{"GPU-a"}
	_, host, err := c.config()
	if err != nil || host.DeviceRequests[0].Driver != "cdi" || host.DeviceRequests[0].DeviceIDs[0] != "nvidia.com/gpu=GPU-a" {
		t.Errorf("%+v %v", host, err)
	}
	c.podman = false
	for _, x := range []struct {
		leased []string
		asked  GPURequest
		count  int
		ids    []string
	}{
		{[]string{"GPU-b", "GPU-a"}, GPURequest{Count: 2}, 0, []string{"GPU-b", "GPU-a"}},
		{nil, GPURequest{Count: 2}, 2, nil},
		{nil, GPURequest{All: true}, -1, nil},
		{nil, GPURequest{Indices: []int{3, 1}}, 0, []string{"3", "1"}},
		{nil, GPURequest{UUIDs: []string{"MIG-x"}}, 0, []string{"MIG-x"}},
	} {
		c.opts.GPUs, c.file.GPUs = x.leased, x.asked
		r, ok := c.devices()
		if !ok || r.Driver != "nvidia" || r.Count != x.count || !slices.Equal(r.DeviceIDs, x.ids) || r.Capabilities[0][0] != "gpu" {
			t.Errorf("%+v gives %+v", x, r)
		}
	}
}
