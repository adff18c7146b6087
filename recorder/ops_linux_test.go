package recorder

import (
	"errors"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/promtext"
	"github.com/shadowtape/shadowtape/recorder/proxy"
)

func TestMemoryLimit(t *testing.T) {
	for _, c := range []struct {
		name, groups string
		files        map[string]string
		want         int64
		ok           bool
	}{
		{"version 2", "0::/kubepods/pod1/c1\n", map[string]string{"kubepods/memory.max": "4000000000\n", "kubepods/pod1/memory.max": "max\n", "kubepods/pod1/c1/memory.max": "268435456\n"}, 268435456, true},
		{"version 2, own root", "0::/kubepods/pod1/c1\n", map[string]string{"memory.max": "134217728\n"}, 134217728, true},
		{"version 1", "5:cpu,cpuacct:/\n4:memory:/docker/x\n", map[string]string{"memory/docker/x/memory.limit_in_bytes": "100000000\n", "memory/memory.limit_in_bytes": "9223372036854771712\n"}, 100000000, true},
		{"version 1, unlimited", "4:memory:/\n", map[string]string{"memory/memory.limit_in_bytes": "9223372036854771712\n"}, 0, false},
		{"none", "0::/\n", nil, 0, false},
		{"garbage", "x\n\n::\n", map[string]string{"memory.max": "lots"}, 0, false},
	} {
		dir := t.TempDir()
		for name, text := range c.files {
			if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		groups := filepath.Join(dir, "groups")
		if err := os.WriteFile(groups, []byte(c.groups), 0o644); err != nil {
			t.Fatal(err)
		}
		got, ok := memoryLimit(groups, dir)
		if ok != c.ok || ok && got != c.want {
			t.Errorf("%s: %d, %t", c.name, got, ok)
		}
	}
}

func TestDivide(t *testing.T) {
	for _, memory := range []int64{1, MinMemory, 256 << 20, 8 << 30} {
		for _, ring := range []int64{0, 32 << 20, 128 << 20} {
			b := Divide(memory, ring)
			if total := int64(b.Ring+b.Held+b.Bodies) + b.Backlog + b.Queue; total > max(memory, MinMemory)*3/4 || b.Heap+int64(b.Ring) > max(memory, MinMemory) || b.Queue <= 0 {
				t.Errorf("%d, ring %d: %+v", memory, ring, b)
			}
		}
	}
}

func TestMonitor(t *testing.T) {
	draining, broken := false, error(nil)
	m := &Monitor{
		Stats: func() Stats {
			return Stats{Counters: formats.Counters{Seen: 12, Filtered: 2, Dropped: 3, Written: 7, Reasons: map[string]int64{"filtered_endpoint": 2, "dropped_queue_full": 1, "dropped_max_cpu": 2}, Notes: map[string]int64{"kernel_drops": 4}}}
		},
		Backlog:  func() (int64, error) { return 5, broken },
		Traffic:  func() proxy.Stats { return proxy.Stats{Accepted: 9} },
		Draining: func() bool { return draining },
		Version:  `v"1`,
	}
	get := func(path string) (int, string) {
		w := httptest.NewRecorder()
		m.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		return w.Code, w.Body.String()
	}
	_, body := get("/metrics")
	page := promtext.Parse([]byte(body))
	if page.Bad != 0 {
		t.Fatalf("%d lines cannot be read\n%s", page.Bad, body)
	}
	sum := map[string]float64{}
	for _, s := range page.Samples {
		sum[s.Name] += s.Value
	}
	if sum["shadowtape_exchanges_seen_total"] != sum["shadowtape_exchanges_filtered_total"]+sum["shadowtape_exchanges_dropped_total"]+sum["shadowtape_exchanges_written_total"] ||
		sum["shadowtape_exchanges_seen_total"] != 12 || sum["shadowtape_events_total"] != 4 || sum["shadowtape_proxy_connections_total"] != 9 || sum["shadowtape_writing"] != 1 {
		t.Errorf("%v", sum)
	}
	for _, c := range []struct {
		path   string
		status int
		body   string
	}{{"/healthz", 200, "ok"}, {"/readyz", 200, "ok"}, {"/", 404, ""}} {
		if status, body := get(c.path); status != c.status || !strings.Contains(body, c.body) {
			t.Errorf("%s: %d %q", c.path, status, body)
		}
	}
	draining, broken = true, errors.New("disk full")
	if status, body := get("/healthz"); status != 200 || !strings.Contains(body, "not recording: disk full") {
		t.Errorf("a full disk would restart the proxy: %d %q", status, body)
	}
	if status, _ := get("/readyz"); status != 503 {
		t.Errorf("ready while draining: %d", status)
	}
}
