package gpu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/shadowtape/shadowtape/formats"
)

const (
	ownPID   = 100
	otherPID = 200
	gib      = int64(1) << 30
)

// fake is a machine of GPUs whose readings a test makes.
type fake struct {
	gpus   []GPU
	fast   func(uuid string, n int) (Reading, error) // n counts the readings of this GPU from 0
	slow   func(uuid string, n int, r *Reading) error
	events func(n int) ([]Event, error)

	mu     sync.Mutex
	nFast  map[string]int
	nSlow  map[string]int
	nEvent int
}

func next(mu *sync.Mutex, m *map[string]int, id string) int {
	mu.Lock()
	defer mu.Unlock()
	if *m == nil {
		*m = map[string]int{}
	}
	(*m)[id]++
	return (*m)[id] - 1
}

func (f *fake) System() (System, error) { return System{"570.1", "12.570.1", "12.8"}, nil }
func (f *fake) GPUs() ([]GPU, error)    { return f.gpus, nil }
func (f *fake) Close() error            { return nil }

func (f *fake) Fast(uuid string) (Reading, error) {
	n := next(&f.mu, &f.nFast, uuid)
	if f.fast == nil {
		return quiet(), nil
	}
	return f.fast(uuid, n)
}

func (f *fake) Slow(uuid string, r *Reading) error {
	n := next(&f.mu, &f.nSlow, uuid)
	if f.slow == nil {
		r.ECCUncorrected = formats.Of[int64](0)
		return nil
	}
	return f.slow(uuid, n, r)
}

func (f *fake) Events(ctx context.Context, _ []string) ([]Event, error) {
	f.mu.Lock()
	n := f.nEvent
	f.nEvent++
	f.mu.Unlock()
	if f.events != nil {
		return f.events(n)
	}
	select {
	case <-ctx.Done():
	case <-time.After(time.Second):
	}
	return nil, nil
}

// quiet is a reading of a GPU that nobody uses.
func quiet() Reading {
	return Reading{GPUSample: formats.GPUSample{SMUtil: formats.Of(0.0), MemoryUsed: formats.Of[int64](4 << 20), MemoryTotal: formats.Of(80 * gib), PowerMW: formats.Of[int64](70000),
		EnergyMJ: formats.Of[int64](5000), TemperatureC: formats.Of[int32](30), SMClockMHz: formats.Of[int32](1980), MemClockMHz: formats.Of[int32](2619), Throttle: []string{reasonIdle}},
		Free: formats.Of(79 * gib), Processes: formats.Of([]Process{})}
}

// using is a reading of a GPU with processes, whose memory is the sum of theirs and of what is hidden.
func using(hidden int64, processes ...Process) Reading {
	r := quiet()
	r.Processes = formats.Of(processes)
	for _, p := range processes {
		hidden += p.Bytes.Or(0)
	}
	r.MemoryUsed = formats.Of(hidden)
	r.Throttle = []string{}
	return r
}

func proc(pid int, kind string, bytes int64) Process {
	return Process{PID: pid, Type: kind, Bytes: formats.Of(bytes)}
}

// machine is a /proc with some processes, seen from the machine itself or from a namespace of its own.
func machine(t *testing.T, own bool, processes map[int]string) string {
	t.Helper()
	dir := t.TempDir()
	ns := initialNamespace
	if own {
		ns = "pid:[4026532000]"
	}
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.MkdirAll(filepath.Join(dir, "self", "ns"), 0o755))
	must(os.Symlink(ns, filepath.Join(dir, "self", "ns", "pid")))
	for pid, name := range processes {
		d := filepath.Join(dir, fmt.Sprint(pid))
		must(os.MkdirAll(d, 0o755))
		must(os.WriteFile(filepath.Join(d, "comm"), []byte(name+"\n"), 0o644))
		cgroup := "0::/user.slice\n"
		if pid == otherPID {
			cgroup = "0::/system.slice/docker-4f2a9c0d1e3b5a7788990011223344556677889900aabbccddeeff0011223344.scope\n"
		}
		must(os.WriteFile(filepath.Join(d, "cgroup"), []byte(cgroup), 0o644))
	}
	return dir
}

func owns(pid int) bool { return pid == ownPID }

var errTest = errors.New("a test's failure")
