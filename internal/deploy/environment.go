package deploy

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"
)

const (
	maxPage  = 256 << 10 // of a version page
	maxProbe = 16 << 10  // of a probe's output
)

// Environment is the snapshot that goes into run.json: what the candidate is, down to its engine's version, arguments and the digests of
// what it was started from; what its probes said; and the machine. Secrets are not in it: variables set by reference stand as their
// reference, and values under names such as api_key are left out of the server's own pages. What cannot be had is absent.
func (c *Candidate) Environment(ctx context.Context) map[string]any {
	f := c.file
	env := c.backend.environment(ctx)
	env["name"], env["dialect"], env["start_up_ms"] = f.label(), f.Dialect, float64(c.StartUp.Microseconds())/1e3
	if len(f.Env) > 0 {
		vars := map[string]string{}
		for name, v := range f.Env {
			vars[name] = v // references stay references
		}
		env["env"] = vars
	}
	if len(c.opts.GPUs) > 0 {
		env["gpu_uuids"] = c.opts.GPUs
	}
	if c.prepared != nil {
		env["prepared"] = c.prepared
	}
	if pages := c.pages(ctx); len(pages) > 0 {
		env["server"] = pages
		if e, v := engineVersion(pages); v != "" || e != "" {
			env["engine_version"] = v
		}
	}
	if probes := c.probes(ctx); len(probes) > 0 {
		env["probes"] = probes
	}
	if p := f.Files.Path; p != "" {
		if d, err := digestFiles(ctx, f.path(p), f.Files.Weights); err == nil {
			env["model_files"] = d
		} else {
			env["model_files"] = map[string]any{"error": err.Error()}
		}
	}
	if f.Kubernetes.none() { // the candidate is on this machine
		env["host"] = Host()
	}
	return env
}

// pages asks the server for the JSON pages that its dialect has.
func (c *Candidate) pages(ctx context.Context) map[string]any {
	client := &http.Client{Timeout: 5 * time.Second}
	defer client.CloseIdleConnections()
	out := map[string]any{}
	for _, path := range dialects[c.file.Dialect].info {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL+path, nil)
		if err != nil {
			continue
		}
		resp, err := client.Do(req)
		if err != nil {
			continue
		}
		b, err := io.ReadAll(io.LimitReader(resp.Body, maxPage))
		resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK {
			continue
		}
		var v any
		if json.Unmarshal(redact(b, c.log.secrets), &v) == nil {
			name, _, _ := strings.Cut(path, "?")
			out[name] = clean(v)
		}
	}
	return out
}

// clean removes what must not or need not be written down from a server's page: secrets by their names, and what changes with every
// question.
func clean(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k := range v {
			switch {
			case secretRule.MatchString(k):
				delete(v, k)
			case slices.Contains([]string{"internal_states", "scheduler_info", "created", "uptime", "started_at", "permission"}, k):
				delete(v, k)
			default:
				v[k] = clean(v[k])
			}
		}
	case []any:
		for i := range v {
			v[i] = clean(v[i])
		}
	}
	return v
}

// engineVersion finds the page that says a version, and the version.
func engineVersion(pages map[string]any) (page, version string) {
	for _, p := range []string{"/version", "/info", "/get_server_info", "/props"} {
		m, ok := pages[p].(map[string]any)
		if !ok {
			continue
		}
		for _, k := range []string{"version", "build_info"} {
			if s, ok := m[k].(string); ok && s != "" {
				return p, s
			}
		}
	}
	return "", ""
}

// probes runs the file's probes, or the dialect's where it names none and the candidate is a container. Output that is JSON is kept as
// such. A probe that fails says so in its place.
func (c *Candidate) probes(ctx context.Context) map[string]any {
	list := c.file.Probes
	given := len(list) > 0
	if !given {
		if c.file.Image == "" {
			return nil
		}
		list = dialects[c.file.Dialect].probes
	}
	out := map[string]any{}
	for _, name := range sortedKeys(list) {
		var b limited
		pctx, cancel := context.WithTimeout(ctx, 30*time.Second)
		err := c.backend.run(pctx, list[name], &b)
		cancel()
		text := strings.TrimSpace(string(redact(b.b, c.log.secrets)))
		var v any
		switch {
		case err != nil && given:
			out[name] = map[string]any{"error": err.Error()}
		case err != nil:
		case json.Unmarshal([]byte(text), &v) == nil:
			out[name] = v
		default:
			out[name] = text
		}
	}
	return out
}

// limited keeps the first maxProbe bytes written to it.
type limited struct{ b []byte }

func (l *limited) Write(b []byte) (int, error) {
	l.b = append(l.b, b[:min(len(b), maxProbe-len(l.b))]...)
	return len(b), nil
}

// Host describes this machine for an environment snapshot: operating system, kernel, processor, its frequency governor, NUMA nodes,
// memory. What cannot be read is absent.
func Host() map[string]any {
	h := map[string]any{"os": runtime.GOOS, "arch": runtime.GOARCH, "cpus": runtime.NumCPU()}
	if name, err := os.Hostname(); err == nil {
		h["hostname"] = name
	}
	put := func(key, path string) {
		if b, err := os.ReadFile(path); err == nil {
			if s := strings.TrimSpace(string(b)); s != "" {
				h[key] = s
			}
		}
	}
	put("kernel", "/proc/sys/kernel/osrelease")
	put("cpu_governor", "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
	put("numa_nodes", "/sys/devices/system/node/online")
	put("numa_balancing", "/proc/sys/kernel/numa_balancing")
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range bytes.Lines(b) {
			if k, v, ok := strings.Cut(string(line), ":"); ok && strings.TrimSpace(k) == "model name" {
				h["cpu"] = strings.TrimSpace(v)
				break
			}
		}
	}
	if b, err := os.ReadFile("/proc/meminfo"); err == nil {
		var kib int64
		if _, err := fmt.Sscanf(string(b), "MemTotal: %d kB", &kib); err == nil {
			h["memory_bytes"] = kib << 10
		}
	}
	return h
}
