package deploy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/pkg/stdcopy"
	containertypes "github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"
)

// Labels of the containers that this program starts.
const (
	labelID    = "shadowtape.deployment"
	labelOwner = "shadowtape.owner"
	labelName  = "shadowtape.name"
)

const defaultEngine = "unix:///var/run/docker.sock"

// container runs a candidate through the Docker Engine API, version 1.40 or later, or Podman's compatible socket.
type container struct {
	launch
	cli     *client.Client
	name    string // of the container
	id      string // "" before it was created
	image   imageFacts
	engine  string // "Docker 28.1" or "Podman 5.2"
	podman  bool
	created bool // asked for: it may exist even where the answer did not come
	done    chan exitStatus
	logs    sync.WaitGroup
	stopped bool

	mu     sync.Mutex
	pids   map[int]bool // by the engine's own list, asked again at a number that is not in it
	pidsAt time.Time
}

// imageFacts are what an image is, resolved.
type imageFacts struct {
	id      string   // digest of its configuration
	digests []string // NAME@sha256:… of its manifests; empty for an image built here
	labels  map[string]string
	created string
	entry   []string
	cmd     []string
	env     []string
}

// connect opens the engine and says what it is.
func connect(ctx context.Context, address string) (*client.Client, string, bool, error) {
	if address == "" {
		address = defaultEngine
	}
	cli, err := client.New(client.WithHost(address), client.WithUserAgent("shadowtape"))
	if err != nil {
		return nil, "", false, hinted(fmt.Errorf("container engine %s: %w", address, err), "an address is unix:///PATH or tcp://HOST:PORT, from --engine or DOCKER_HOST")
	}
	v, err := cli.ServerVersion(ctx, client.ServerVersionOptions{})
	if err != nil {
		cli.Close()
		return nil, "", false, engineError(address, err)
	}
	for _, c := range v.Components {
		if strings.Contains(c.Name, "Podman") {
			return cli, "Podman " + c.Version, true, nil
		}
	}
	return cli, "Docker " + v.Version, false, nil
}

// engineError is one line and a hint for an engine that does not answer.
func engineError(address string, err error) error {
	text := err.Error()
	switch {
	case errors.Is(err, os.ErrPermission) || strings.Contains(text, "permission denied"):
		return hinted(fmt.Errorf("container engine %s: permission denied", address), "join the docker group, or name your own engine's socket with DOCKER_HOST")
	case client.IsErrConnectionFailed(err) || strings.Contains(text, "no such file or directory") || strings.Contains(text, "connection refused"):
		return hinted(fmt.Errorf("container engine %s: nobody answers", address), "start Docker, set DOCKER_HOST, or give the deployment a process instead of an image")
	}
	return fmt.Errorf("container engine %s: %w", address, err)
}

func (c *container) begin(ctx context.Context) (string, error) {
	var err error
	if err := c.checkVolumes(); err != nil {
		return "", err
	}
	if c.cli, c.engine, c.podman, err = connect(ctx, c.opts.Engine); err != nil {
		return "", err
	}
	if err := c.resolveImage(ctx); err != nil {
		return "", err
	}
	if !c.file.GPUs.None() {
		if err := c.opts.checkDriver(c.file.Image, slices.Concat(c.image.env, c.env)); err != nil {
			return "", err
		}
	}
	config, host, err := c.config()
	if err != nil {
		return "", err
	}
	c.progress(Progress{Stage: "start", Detail: c.file.Image})
	c.name = "shadowtape-" + c.file.label() + "-" + c.id12()
	if !nameRule.MatchString(c.name) {
		c.name = "shadowtape-" + c.id12()
	}
	c.created = true
	made, err := c.cli.ContainerCreate(ctx, client.ContainerCreateOptions{Name: c.name, Config: config, HostConfig: host})
	if err != nil {
		return "", c.createError(err)
	}
	c.id = made.ID
	if _, err := c.cli.ContainerStart(ctx, c.id, client.ContainerStartOptions{}); err != nil {
		return "", c.createError(err)
	}
	c.watch(ctx)
	return c.address(ctx)
}

func (c *container) id12() string { return c.launch.id }

// checkVolumes refuses a mount whose source is missing: the engine would make an empty directory of it.
func (c *container) checkVolumes() error {
	for _, s := range c.file.Volumes {
		v, err := parseVolume(s)
		if err != nil {
			return err
		}
		if p := c.file.path(v.host); !exists(p) {
			return hinted(fmt.Errorf("volume %s: %s does not exist", s, p), "a relative path starts at the deployment file's directory")
		}
	}
	return nil
}

// resolveImage finds the image, pulls it where the file allows, and records what its name stands for now.
func (c *container) resolveImage(ctx context.Context) error {
	ref := c.file.Image
	found, err := c.cli.ImageInspect(ctx, ref)
	switch {
	case err != nil && !errdefs.IsNotFound(err):
		return fmt.Errorf("look at image %s: %w", ref, err)
	case err != nil && c.file.Pull == "never":
		return hinted(fmt.Errorf("image %s is not here and pull is never", ref), "build or pull it first")
	case err != nil || c.file.Pull == "always":
		if err := c.pull(ctx, ref); err != nil {
			return err
		}
		if found, err = c.cli.ImageInspect(ctx, ref); err != nil {
			return fmt.Errorf("look at image %s: %w", ref, err)
		}
	}
	c.image = imageFacts{id: found.ID, digests: found.RepoDigests, created: found.Created}
	if found.Config != nil {
		c.image.labels, c.image.entry, c.image.cmd, c.image.env = found.Config.Labels, found.Config.Entrypoint, found.Config.Cmd, found.Config.Env
	}
	return nil
}

func (c *container) pull(ctx context.Context, ref string) error {
	began := time.Now()
	c.progress(Progress{Stage: "pull", Detail: ref})
	resp, err := c.cli.ImagePull(ctx, ref, client.ImagePullOptions{})
	if err == nil {
		for m, merr := range resp.JSONMessages(ctx) {
			if merr != nil {
				err = merr
				break
			}
			if m.Error != nil {
				err = errors.New(m.Error.Message)
				break
			}
			c.progress(Progress{Stage: "pull", Elapsed: time.Since(began), Detail: strings.TrimSpace(m.ID + " " + m.Status)})
		}
	}
	if err != nil {
		return hinted(fmt.Errorf("pull image %s: %w", ref, err), "is the name right, and may this machine reach its registry?")
	}
	return nil
}

// config makes the container's configuration. Tags are left behind here: the image is started by the digest that was resolved.
func (c *container) config() (*containertypes.Config, *containertypes.HostConfig, error) {
	f := c.file
	port, ok := network.PortFrom(uint16(c.port), network.TCP)
	if !ok {
		return nil, nil, fmt.Errorf("port %d: no such port", c.port)
	}
	hostIP := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	if remoteHost(c.opts.Engine) != "" {
		hostIP = netip.IPv4Unspecified()
	}
	config := &containertypes.Config{
		Image:        c.image.id,
		Entrypoint:   expand(f.Entrypoint, c.places),
		Cmd:          expand(f.Command, c.places),
		Env:          append(c.env, Mark+"="+c.launch.id),
		ExposedPorts: network.PortSet{port: {}},
		Labels:       map[string]string{labelID: c.launch.id, labelOwner: thisOwner().String(), labelName: f.label()},
	}
	host := &containertypes.HostConfig{
		PortBindings:  network.PortMap{port: {{HostIP: hostIP}}},
		RestartPolicy: containertypes.RestartPolicy{Name: containertypes.RestartPolicyDisabled},
		IpcMode:       containertypes.IpcMode(f.IPC),
		ShmSize:       int64(f.Shm),
	}
	if !c.podman { // bound the engine's own copy of the log too
		host.LogConfig = containertypes.LogConfig{Type: "json-file", Config: map[string]string{"max-size": "64m", "max-file": "2"}}
	}
	for _, s := range f.Volumes {
		v, err := parseVolume(s)
		if err != nil {
			return nil, nil, err
		}
		host.Mounts = append(host.Mounts, mount.Mount{Type: mount.TypeBind, Source: f.path(v.host), Target: v.container, ReadOnly: !v.write})
	}
	for _, name := range sortedKeys(f.Ulimits) {
		soft, hard, err := parseUlimit(f.Ulimits[name])
		if err != nil {
			return nil, nil, err
		}
		host.Ulimits = append(host.Ulimits, &containertypes.Ulimit{Name: name, Soft: soft, Hard: hard})
	}
	if r, ok := c.devices(); ok {
		if c.podman && !c.podmanAttaches() {
			return nil, nil, hinted(fmt.Errorf("%s does not attach GPUs through its Docker-compatible API: the container would start without", c.engine), "use Podman 5.4 or later, or Docker")
		}
		host.DeviceRequests = []containertypes.DeviceRequest{r}
	}
	return config, host, nil
}

// devices asks for the leased GPUs by UUID, so that numbering inside and outside cannot differ. Podman takes them by CDI names.
func (c *container) devices() (containertypes.DeviceRequest, bool) {
	g := c.file.GPUs
	r := containertypes.DeviceRequest{Driver: "nvidia", Capabilities: [][]string{{"gpu"}}}
	switch {
	case g.None():
		return r, false
	case len(c.opts.GPUs) > 0:
		r.DeviceIDs = c.opts.GPUs
	case len(g.UUIDs) > 0:
		r.DeviceIDs = g.UUIDs
	case len(g.Indices) > 0:
		for _, i := range g.Indices {
			r.DeviceIDs = append(r.DeviceIDs, strconv.Itoa(i))
		}
	case g.All:
		r.Count = -1
	default:
		r.Count = g.Count
	}
	if c.podman {
		r.Driver, r.Capabilities = "cdi", nil
		ids := r.DeviceIDs
		if g.All && len(ids) == 0 {
			ids = []string{"all"}
		}
		for i := range r.Count {
			ids = append(ids, strconv.Itoa(i))
		}
		r.Count, r.DeviceIDs = 0, nil
		for _, id := range ids {
			r.DeviceIDs = append(r.DeviceIDs, "nvidia.com/gpu="+id)
		}
	}
	return r, true
}

// podmanAttaches reports whether this Podman honours CDI device requests in its Docker-compatible API: from 5.4 on; before it ignores
// them without a word (podman issue 22645, pull request 25171).
func (c *container) podmanAttaches() bool {
	var major, minor int
	n, err := fmt.Sscanf(c.engine, "Podman %d.%d", &major, &minor)
	return err == nil && n == 2 && (major > 5 || major == 5 && minor >= 4)
}

// createError adds advice to what engines answer.
func (c *container) createError(err error) error {
	text := err.Error()
	switch {
	case strings.Contains(text, "could not select device driver"), strings.Contains(text, "unresolvable CDI devices"):
		return hinted(fmt.Errorf("start container: %w", err), "the engine has no NVIDIA runtime: install nvidia-container-toolkit on its machine")
	case strings.Contains(text, "unsatisfied condition"): // NVIDIA's hook, where we did not know the driver
		return hinted(fmt.Errorf("start container: %w", err), driverHint)
	case strings.Contains(text, "executable file not found"), strings.Contains(text, "no such file or directory"):
		return hinted(fmt.Errorf("start container: %w", err), "is entrypoint or the first word of command a program inside the image?")
	}
	return fmt.Errorf("start container: %w", err)
}

// watch follows the container's output and its end. Both goroutines end with the container, which stop removes.
func (c *container) watch(ctx context.Context) {
	ctx = context.WithoutCancel(ctx)
	c.done = make(chan exitStatus, 1)
	c.logs.Go(func() {
		ended := c.cli.ContainerWait(ctx, c.id, client.ContainerWaitOptions{Condition: containertypes.WaitConditionNotRunning})
		select {
		case r := <-ended.Result:
			text := fmt.Sprintf("exit code %d", r.StatusCode)
			if r.StatusCode > 128 && r.StatusCode < 160 {
				text += fmt.Sprintf(", signal %d", r.StatusCode-128)
			}
			if r.Error != nil {
				text += ", " + r.Error.Message
			}
			if s, err := c.cli.ContainerInspect(ctx, c.id, client.ContainerInspectOptions{}); err == nil && s.Container.State != nil && s.Container.State.OOMKilled {
				text += ", out of memory"
			}
			c.done <- exitStatus{int(r.StatusCode), text}
		case err := <-ended.Error:
			c.done <- exitStatus{-1, fmt.Sprintf("the engine lost it: %v", err)}
		}
	})
	c.logs.Go(func() {
		for attempt := 0; ; attempt++ {
			out, err := c.cli.ContainerLogs(ctx, c.id, client.ContainerLogsOptions{ShowStdout: true, ShowStderr: true, Follow: true})
			if err == nil {
				_, err = stdcopy.StdCopy(c.log, c.log, out)
				out.Close()
			}
			if err == nil || attempt > 20 || errdefs.IsNotFound(err) {
				return
			}
			time.Sleep(50 * time.Millisecond)
		}
	})
}

// address is where the engine published the port.
func (c *container) address(ctx context.Context) (string, error) {
	info, err := c.cli.ContainerInspect(ctx, c.id, client.ContainerInspectOptions{})
	if err != nil {
		return "", fmt.Errorf("look at container %s: %w", c.name, err)
	}
	want, _ := network.PortFrom(uint16(c.port), network.TCP)
	if info.Container.NetworkSettings != nil {
		for _, b := range info.Container.NetworkSettings.Ports[want] {
			host := remoteHost(c.opts.Engine)
			if host == "" {
				host = "127.0.0.1"
			}
			if b.HostPort != "" && b.HostPort != "0" {
				return "http://" + net.JoinHostPort(host, b.HostPort), nil
			}
		}
	}
	if s := info.Container.State; s != nil && !s.Running {
		return "", fmt.Errorf("it ended at once: exit code %d", s.ExitCode)
	}
	return "", fmt.Errorf("container %s: port %d was not published", c.name, c.port)
}

// remoteHost is the host of an engine on another machine, "" for one on this.
func remoteHost(engine string) string {
	u, err := url.Parse(engine)
	if err != nil || u.Scheme == "unix" || u.Scheme == "npipe" || u.Scheme == "" || u.Hostname() == "localhost" {
		return ""
	}
	if ip, err := netip.ParseAddr(u.Hostname()); err == nil && ip.IsLoopback() {
		return ""
	}
	return u.Hostname()
}

func (c *container) wait() exitStatus { return <-c.done }

// stop ends the container, removes it with its anonymous volumes, and waits until its output has been read.
func (c *container) stop(ctx context.Context, grace time.Duration) error {
	if c.cli == nil || c.stopped {
		return nil
	}
	c.stopped = true
	defer c.cli.Close()
	if !c.created {
		return nil
	}
	which := c.id
	if which == "" {
		which = c.name // it was asked for and the answer did not come
	}
	seconds := int(grace.Round(time.Second) / time.Second)
	_, stopErr := c.cli.ContainerStop(ctx, which, client.ContainerStopOptions{Timeout: &seconds})
	if c.id != "" && stopErr == nil {
		c.drain(2 * time.Second)
	}
	_, err := c.cli.ContainerRemove(ctx, which, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	c.drain(5 * time.Second)
	if err != nil && !errdefs.IsNotFound(err) {
		return hinted(fmt.Errorf("remove container %s: %w", c.name, err), "docker rm -f "+c.name)
	}
	return nil
}

// drain waits until the goroutines of watch ended, for so long at most.
func (c *container) drain(limit time.Duration) {
	done := make(chan struct{})
	go func() { c.logs.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(limit):
	}
}

// owns knows a process by its control group, whose path holds the container's number, or by the engine's own list, which has the
// numbers of the engine's machine: those that the GPU driver uses too, also where this program runs in a container of its own.
func (c *container) owns(pid int) bool {
	if c.id == "" {
		return false
	}
	if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid)); err == nil && strings.Contains(string(b), c.id) {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.pids[pid] && time.Since(c.pidsAt) > 50*time.Millisecond {
		c.pidsAt = time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if list, err := c.listPIDs(ctx); err == nil {
			c.pids = list
		}
	}
	return c.pids[pid]
}

func (c *container) listPIDs(ctx context.Context) (map[int]bool, error) {
	top, err := c.cli.ContainerTop(ctx, c.id, client.ContainerTopOptions{}) // Podman needs a ps inside the container: then the first process must do
	pids := map[int]bool{}
	for i, title := range top.Titles {
		if title != "PID" && title != "HPID" {
			continue
		}
		for _, row := range top.Processes {
			if i < len(row) {
				if pid, err := strconv.Atoi(row[i]); err == nil {
					pids[pid] = true
				}
			}
		}
	}
	if info, err := c.cli.ContainerInspect(ctx, c.id, client.ContainerInspectOptions{}); err == nil && info.Container.State != nil && info.Container.State.Pid > 0 {
		pids[info.Container.State.Pid] = true
	}
	if len(pids) == 0 {
		return nil, fmt.Errorf("list processes of container %s: %w", c.name, err)
	}
	return pids, nil
}

// run executes a command in the container.
func (c *container) run(ctx context.Context, words []string, out io.Writer) error {
	made, err := c.cli.ExecCreate(ctx, c.id, client.ExecCreateOptions{Cmd: words, AttachStdout: true, AttachStderr: true})
	if err != nil {
		return err
	}
	stream, err := c.cli.ExecAttach(ctx, made.ID, client.ExecAttachOptions{})
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, stream.Close)
	defer stop()
	_, err = stdcopy.StdCopy(out, io.Discard, stream.Reader)
	stream.Close()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return err
	}
	r, err := c.cli.ExecInspect(ctx, made.ID, client.ExecInspectOptions{})
	if err != nil {
		return err
	}
	if r.ExitCode != 0 {
		return fmt.Errorf("exit code %d", r.ExitCode)
	}
	return nil
}

func (c *container) environment(context.Context) map[string]any {
	entry, cmd := c.image.entry, c.image.cmd
	if len(c.file.Entrypoint) > 0 {
		entry, cmd = expand(c.file.Entrypoint, c.places), nil
	}
	if len(c.file.Command) > 0 {
		cmd = expand(c.file.Command, c.places)
	}
	env := map[string]any{
		"kind": "container", "container_engine": c.engine, "image": c.file.Image, "image_id": c.image.id, "image_pinned": strings.Contains(c.file.Image, "@sha256:"),
		"image_created": c.image.created, "command": append(append([]string{}, entry...), cmd...),
	}
	if len(c.image.digests) > 0 {
		env["image_digests"] = c.image.digests
	}
	if len(c.image.labels) > 0 {
		env["image_labels"] = c.image.labels
	}
	if len(c.file.Volumes) > 0 {
		env["volumes"] = c.file.Volumes
	}
	if c.file.Shm > 0 {
		env["shm_bytes"] = int64(c.file.Shm)
	}
	if c.file.IPC != "" {
		env["ipc"] = c.file.IPC
	}
	if len(c.file.Ulimits) > 0 {
		env["ulimits"] = c.file.Ulimits
	}
	return env
}
