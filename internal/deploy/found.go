package deploy

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/moby/client"
)

// Found is a server that somebody else started: a container, or a process and its descendants. It can be asked which processes are its
// own; nothing is done to it.
type Found struct {
	owns  func(pid int) bool
	env   map[string]any
	close func() error
}

// Owns reports whether a process of this machine is the server's.
func (f *Found) Owns(pid int) bool { return f.owns(pid) }

// Environment describes it as far as it can be seen from outside: image and command of a container, executable and command of a process.
func (f *Found) Environment() map[string]any { return f.env }

// Close gives up the connection to the engine.
func (f *Found) Close() error { return f.close() }

// Find looks a running server up: ref is a process number, or a container's name or number in the engine at that address.
func Find(ctx context.Context, engine, ref string) (*Found, error) {
	if pid, err := strconv.Atoi(ref); err == nil {
		return findProcess(pid)
	}
	cli, name, podman, err := connect(ctx, engine)
	if err != nil {
		return nil, err
	}
	info, err := cli.ContainerInspect(ctx, ref, client.ContainerInspectOptions{})
	if err != nil {
		cli.Close()
		return nil, hinted(fmt.Errorf("find container %s: %w", ref, err), "name a running container of this engine, or a process number")
	}
	if info.Container.State == nil || !info.Container.State.Running {
		cli.Close()
		return nil, fmt.Errorf("find container %s: it does not run", ref)
	}
	c := &container{cli: cli, name: ref, id: info.Container.ID, podman: podman}
	env := map[string]any{"kind": "container", "container_engine": name, "image_id": info.Container.Image, "command": append([]string{info.Container.Path}, info.Container.Args...)}
	if info.Container.Config != nil {
		env["image"] = info.Container.Config.Image
	}
	if image, err := cli.ImageInspect(ctx, info.Container.Image); err == nil {
		env["image_digests"] = image.RepoDigests
		if image.Config != nil && len(image.Config.Labels) > 0 {
			env["image_labels"] = image.Config.Labels
		}
	}
	env["host"] = Host()
	return &Found{owns: c.owns, env: env, close: cli.Close}, nil
}

func findProcess(pid int) (*Found, error) {
	start := startOf(pid)
	if start == "" {
		return nil, fmt.Errorf("find process %d: it does not run, or cannot be seen from here", pid)
	}
	env := map[string]any{"kind": "process", "host": Host()}
	if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil {
		env["command"] = withoutSecrets(strings.Split(strings.TrimRight(string(b), "\x00"), "\x00"))
	}
	if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err == nil {
		if sum, err := fileDigest(fmt.Sprintf("/proc/%d/exe", pid)); err == nil {
			env["executable_sha256"] = sum
		}
		env["executable"] = exe[strings.LastIndexByte(exe, '/')+1:]
	}
	return &Found{owns: func(p int) bool { return descends(p, pid) && startOf(pid) == start }, env: env, close: func() error { return nil }}, nil
}

// withoutSecrets leaves the values of arguments such as --api-key out of a command line that we did not make.
func withoutSecrets(words []string) []string {
	out := slices.Clone(words)
	for i, w := range words {
		name, _, joined := strings.Cut(w, "=")
		if !secretRule.MatchString(strings.ReplaceAll(strings.TrimLeft(name, "-"), "-", "_")) || !strings.HasPrefix(w, "-") {
			continue
		}
		if joined {
			out[i] = name + "=******"
		} else if i+1 < len(words) {
			out[i+1] = "******"
		}
	}
	return out
}

// descends reports whether process p is root or one of its descendants.
func descends(p, root int) bool {
	for range 64 {
		if p == root {
			return true
		}
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p))
		if err != nil {
			return false
		}
		i := strings.LastIndexByte(string(b), ')')
		fields := strings.Fields(string(b[i+1:]))
		if i < 0 || len(fields) < 2 {
			return false
		}
		if p, err = strconv.Atoi(fields[1]); err != nil || p <= 1 {
			return p == root
		}
	}
	return false
}
