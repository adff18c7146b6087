// Package enginetest starts container engines of a test's own, whose data, sockets and networks are its own too, and makes images in them.
package enginetest

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/moby/moby/client"
)

// Engine is a running Docker or Podman.
type Engine struct {
	Address string // unix://…
	cmd     *exec.Cmd
	dir     string
	lock    *os.File
}

// Start starts "docker" or "podman". It needs root and the program (Debian: docker.io, podman); its error says why it cannot: then a
// test that needs an engine is skipped aloud. It waits for another test's engine of the same name to end. End it. Neither the machine's packet filter rules nor its own engine are touched.
func Start(name string) (*Engine, error) {
	if os.Getuid() != 0 {
		return nil, errors.New("not root")
	}
	program := map[string]string{"docker": "dockerd", "podman": "podman"}[name]
	path, err := exec.LookPath(program)
	if err != nil {
		return nil, fmt.Errorf("no %s on this machine", program)
	}
	lock, err := alone(name)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "shadowtape-"+program)
	if err != nil {
		lock.Close()
		return nil, err
	}
	e := &Engine{Address: "unix://" + dir + "/engine.sock", dir: dir, lock: lock}
	args := []string{"--storage-driver=vfs", "--host=" + e.Address, "--data-root=" + dir + "/data", "--exec-root=" + dir + "/exec", "--pidfile=" + dir + "/pid", "--iptables=false", "--ip6tables=false"}
	if name == "podman" {
		args = []string{"--root", dir + "/data", "--runroot", dir + "/run", "--storage-driver", "vfs", "--cgroup-manager", "cgroupfs", "system", "service", "--time=0", e.Address}
	}
	if err := e.start(path, args); err != nil {
		os.RemoveAll(dir)
		lock.Close()
		return nil, err
	}
	return e, nil
}

func (e *Engine) start(path string, args []string) error {
	log, err := os.Create(e.dir + "/log")
	if err != nil {
		return err
	}
	defer log.Close()
	config := e.dir + "/containers.conf" // a sandbox may not raise limits
	text := "[containers]\ndefault_ulimits = [\"nofile=1024:1024\", \"nproc=1024:1024\"]\n"
	if runc, err := exec.LookPath("runc"); err == nil { // crun refuses machines with both versions of control groups
		text += "[engine]\nruntime = \"runc\"\n[engine.runtimes]\nrunc = [\"" + runc + "\"]\n"
	}
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return err
	}
	e.cmd = exec.Command(path, args...)
	e.cmd.Env = append(os.Environ(), "CONTAINERS_CONF="+config)
	e.cmd.Stdout, e.cmd.Stderr = log, log
	if err := e.cmd.Start(); err != nil {
		return err
	}
	for range 300 {
		if e.answers() {
			return nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	b, _ := os.ReadFile(e.dir + "/log")
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	e.End()
	return fmt.Errorf("%s does not start here: %s", path, lines[len(lines)-1])
}

func (e *Engine) answers() bool {
	cli, err := client.New(client.WithHost(e.Address))
	if err != nil {
		return false
	}
	defer cli.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_, err = cli.Ping(ctx, client.PingOptions{})
	return err == nil
}

// End ends the engine by its own number and removes what was its.
func (e *Engine) End() {
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
	e.lock.Close()
}

// Build makes an image from files, one of which is its Dockerfile, unless there is one of that name.
func (e *Engine) Build(ctx context.Context, image string, files map[string][]byte) error {
	cli, err := client.New(client.WithHost(e.Address))
	if err != nil {
		return err
	}
	defer cli.Close()
	if _, err := cli.ImageInspect(ctx, image); err == nil {
		return nil
	}
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for name, content := range files {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(content))}); err != nil {
			return err
		}
		if _, err := w.Write(content); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	built, err := cli.ImageBuild(ctx, &archive, client.ImageBuildOptions{Tags: []string{image}, Remove: true})
	if err != nil {
		return err
	}
	defer built.Body.Close()
	out, err := io.ReadAll(built.Body)
	if err == nil && bytes.Contains(out, []byte(`"error"`)) {
		err = fmt.Errorf("build %s: %s", image, out)
	}
	return err
}

// Containers lists the names of all containers, running or not, that carry a label.
func (e *Engine) Containers(ctx context.Context, label string) ([]string, error) {
	cli, err := client.New(client.WithHost(e.Address))
	if err != nil {
		return nil, err
	}
	defer cli.Close()
	list, err := cli.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: client.Filters{}.Add("label", label)})
	if err != nil {
		return nil, err
	}
	var names []string
	for _, c := range list.Items {
		names = append(names, strings.TrimPrefix(c.Names[0], "/"))
	}
	slices.Sort(names)
	return names, nil
}

// Remove removes a container by force.
func (e *Engine) Remove(ctx context.Context, name string) error {
	cli, err := client.New(client.WithHost(e.Address))
	if err != nil {
		return err
	}
	defer cli.Close()
	_, err = cli.ContainerRemove(ctx, name, client.ContainerRemoveOptions{Force: true})
	return err
}
