package job

import (
	"context"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/shadowtape/shadowtape/replayer/probe"
)

// environment is what run.json says of the machines and the target.
func (j *Job) environment() map[string]any {
	targets := []any{}
	for _, t := range j.infos {
		m := map[string]any{
			"url": t.URL, "models": t.Models, "max_model_len": t.MaxModelLen, "owned_by": t.OwnedBy, "version": t.Version, "server": t.Server,
			"dialect": t.Dialect.Name, "round_trip_ms": float64(t.RoundTrip) / 1e6, "metrics": t.Metrics, "fingerprint": t.Fingerprint,
		}
		if t.TemplateDigest != "" {
			m["template_sha256"] = t.TemplateDigest
		}
		if t.Config != nil {
			m["config"] = t.Config
		}
		targets = append(targets, m)
	}
	return map[string]any{"client": clientEnvironment(), "targets": targets}
}

// after adds what only the run's end can say: what the connections spoke, and the round trip, where a network that changed meanwhile shows.
func (j *Job) after(ctx context.Context, env map[string]any) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	targets, _ := env["targets"].([]any)
	for i, t := range targets {
		if m, ok := t.(map[string]any); ok {
			if p := j.client.Targets()[i].Protocol(); p != "" {
				m["protocol"] = p
			}
			if d := probe.RoundTrip(ctx, j.client.Targets()[i]); d > 0 {
				m["round_trip_after_ms"] = float64(d) / 1e6
			}
		}
	}
}

func clientEnvironment() map[string]any {
	m := map[string]any{"os": runtime.GOOS, "arch": runtime.GOARCH, "cpus": runtime.NumCPU(), "gomaxprocs": runtime.GOMAXPROCS(0), "go": runtime.Version()}
	if host, err := os.Hostname(); err == nil {
		m["host"] = host
	}
	line := func(name, file string) {
		if b, err := os.ReadFile(file); err == nil {
			m[name] = strings.TrimSpace(string(b))
		}
	}
	line("kernel", "/proc/sys/kernel/osrelease")
	line("clock_source", "/sys/devices/system/clocksource/clocksource0/current_clocksource")
	line("cpu_governor", "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for l := range strings.Lines(string(b)) {
			if k, v, ok := strings.Cut(l, ":"); ok && strings.TrimSpace(k) == "model name" {
				m["cpu"] = strings.TrimSpace(v)
				break
			}
		}
	}
	return m
}
