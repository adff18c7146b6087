package deploy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"github.com/shadowtape/shadowtape/internal/deploy/enginetest"
)

// engines are the two that this package is for, each started once. Where one cannot be started, every test that needs it is skipped
// aloud.
var engines = map[string]func() (*enginetest.Engine, error){"docker": startOnce("docker"), "podman": startOnce("podman")}

func startOnce(name string) func() (*enginetest.Engine, error) {
	return sync.OnceValues(func() (*enginetest.Engine, error) {
		e, err := enginetest.Start(name)
		if err == nil {
			endEngines = append(endEngines, e.End)
		}
		return e, err
	})
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
func needEngine(t *testing.T, start func() (*enginetest.Engine, error)) (address, image string) {
	t.Helper()
	if testing.Short() {
		t.Skip("SKIPPED by -short: starts containers, needs docker.io or podman, and root")
	}
	bin := needServer(t)
	e, err := start()
	if err != nil {
		t.Skipf("SKIPPED LOUDLY: container launch was not tested: %s", err)
	}
	b, err := os.ReadFile(bin)
	if err != nil {
		t.Fatal(err)
	}
	image = "shadowtape-test-server:1"
	err = e.Build(t.Context(), image, map[string][]byte{"server": b, "Dockerfile": []byte("FROM scratch\nCOPY server /server\nLABEL org.opencontainers.image.revision=abc123\nEXPOSE 8000\nENTRYPOINT [\"/server\"]\n")})
	if err != nil {
		t.Fatal(err)
	}
	return e.Address, image
}

// containers lists all containers of the engine that carry our label.
func containers(t *testing.T, address string) []string {
	t.Helper()
	names, err := (&enginetest.Engine{Address: address}).Containers(context.Background(), labelID)
	if err != nil {
		t.Fatal(err)
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
		{"driver too old", head + "gpus: {uuids: [GPU-1]}\nenv: {NVIDIA_REQUIRE_CUDA: cuda>=99.1}\n", address, "the driver is too old for image " + image + ": it wants cuda>=99.1, and the driver is 535.104.05 for CUDA 12.2", "update the NVIDIA driver"},
		{"no GPU runtime", head + "gpus: {uuids: [GPU-1]}\n", address, "could not select device driver", "nvidia-container-toolkit"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cand, err := Start(t.Context(), parse(t, c.text, nil), Options{Engine: c.engine, Driver: "535.104.05", CUDA: "12.2"})
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

func TestContainerCancelledAndDead(t *testing.T) {
	onEngines(t, testContainerCancelledAndDead, "docker", "podman")
}

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
	c, err := Start(t.Context(), parse(t, head, nil), Options{Engine: address})
	if err != nil {
		t.Fatal(err)
	}
	http.Get(c.URL + "/die")
	<-c.Exited()
	var e *Error
	for range 1200 { // its last lines come by another connection
		if err = c.Died(); errors.As(err, &e) && strings.Contains(strings.Join(e.Tail, "\n"), "CUDA") {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
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
