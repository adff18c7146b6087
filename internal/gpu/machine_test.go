//go:build cgo && linux

package gpu

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/shadowtape/shadowtape/formats"
)

// user is a program that uses a GPU: it makes a CUDA context and holds 1 GiB. start returns its process number and what ends it.
type user func(uuid string) (pid int, end func(), err error)

// cudaUser needs python3 and the driver's own libcuda.so.1, no toolkit.
func cudaUser(uuid string) (int, func(), error) {
	cmd := exec.Command("python3", "-c", `
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
def check(what, r):
    if r: sys.exit("%s: CUDA error %d" % (what, r))
dev, ctx, ptr = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
check("cuInit", cuda.cuInit(0))
check("cuDeviceGet", cuda.cuDeviceGet(ctypes.byref(dev), 0))
check("cuCtxCreate", cuda.cuCtxCreate_v2(ctypes.byref(ctx), 0, dev))
check("cuMemAlloc", cuda.cuMemAlloc_v2(ctypes.byref(ptr), ctypes.c_size_t(1 << 30)))
print("ready", flush=True)
sys.stdin.read()
`)
	cmd.Env = append(os.Environ(), "CUDA_VISIBLE_DEVICES="+uuid)
	var errs strings.Builder
	cmd.Stderr = &errs
	in, err := cmd.StdinPipe()
	if err != nil {
		return 0, nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, nil, err
	}
	if err := cmd.Start(); err != nil {
		return 0, nil, err
	}
	end := func() { in.Close(); cmd.Wait() }
	b := make([]byte, 6)
	if _, err := out.Read(b); err != nil {
		end()
		return 0, nil, fmt.Errorf("%w: %s", err, strings.TrimSpace(errs.String()))
	}
	return cmd.Process.Pid, end, nil
}

// machineCheck goes through a machine's GPUs and prints pass, fail or skip for each item. It sets nothing.
type machineCheck struct {
	r      Reader
	gpus   []GPU
	use    user
	dir    string        // of leases
	watch  time.Duration // of the telemetry item
	failed int
	lines  []string
}

func (m *machineCheck) item(name string, check func() (string, error)) {
	says, err := check()
	verdict := "pass"
	switch {
	case errors.Is(err, errSkip):
		verdict, says = "skip", err.Error()
	case err != nil:
		verdict, says = "FAIL", err.Error()
		m.failed++
	}
	m.lines = append(m.lines, fmt.Sprintf("%-4s  %-26s %s", verdict, name, says))
}

var errSkip = errors.New("not checked")

func (m *machineCheck) run(t *testing.T) {
	m.item("driver", func() (string, error) {
		s, err := m.r.System()
		return fmt.Sprintf("driver %s, NVML %s, CUDA %s", s.Driver, s.NVML, s.CUDA), err
	})
	m.item("GPUs", func() (string, error) {
		var err error
		m.gpus, err = m.r.GPUs()
		if err == nil && len(m.gpus) == 0 {
			err = errors.New("the driver sees none")
		}
		return names(m.gpus), err
	})
	for _, g := range m.gpus {
		if g.MIG {
			m.item(fmt.Sprintf("GPU %d", g.Index), func() (string, error) { return "", fmt.Errorf("%w: it is divided", errSkip) })
			continue
		}
		m.one(t, g)
	}
}

func (m *machineCheck) one(t *testing.T, g GPU) {
	in := func(what string) string { return fmt.Sprintf("GPU %d: %s", g.Index, what) }
	m.item(in("fast reading"), func() (string, error) {
		const n = 50
		began := time.Now()
		var x Reading
		for range n {
			var err error
			if x, err = m.r.Fast(g.UUID); err != nil {
				return "", err
			}
		}
		mean := time.Since(began) / n
		if mean > 50*time.Millisecond {
			return "", fmt.Errorf("%v a reading: too slow for 10 Hz", mean)
		}
		return fmt.Sprintf("%v a reading; unknown: %s", mean.Round(time.Microsecond), unknowns(x)), nil
	})
	m.item(in("slow reading"), func() (string, error) {
		began := time.Now()
		x := Reading{}
		err := m.r.Slow(g.UUID, &x)
		return fmt.Sprintf("%v; PCIe tx %v, NVLink tx %v, ECC %v", time.Since(began).Round(time.Microsecond), x.PCIeTx, x.NVLinkTx, x.ECCUncorrected), err
	})
	free := false
	m.item(in("checks before"), func() (string, error) {
		v := Before(m.r, m.gpus, []string{g.UUID}, Checks{})
		free = v.Valid()
		return fmt.Sprintf("%s %s", v.Level(), strings.Join(append(v.Lines(Invalid), v.Lines(Warn)...), "; ")), nil
	})
	m.item(in("lease"), func() (string, error) {
		cmd, _ := hold(t, m.dir, g.UUID)
		_, err := Acquire(t.Context(), []string{g.UUID}, LeaseOptions{Dir: m.dir})
		var busy *BusyError
		if !errors.As(err, &busy) || busy.Holder.PID != cmd.Process.Pid {
			return "", fmt.Errorf("the second of two got %v", err)
		}
		cmd.Process.Kill()
		cmd.Wait()
		l, err := Acquire(t.Context(), []string{g.UUID}, LeaseOptions{Dir: m.dir})
		if err != nil {
			return "", err
		}
		return busy.Error(), l.Release()
	})
	m.item(in("telemetry"), func() (string, error) {
		rows := 0
		w := StartWatch(t.Context(), m.r, WatchOptions{UUIDs: []string{g.UUID}, Sink: func(s []formats.GPUSample) error { rows += len(s); return nil }})
		time.Sleep(m.watch)
		res := w.Stop()
		c := res.GPUs[0]
		if want := int(m.watch/(100*time.Millisecond)) * 9 / 10; rows < want {
			return "", fmt.Errorf("%d readings in %v, at least %d are due", rows, m.watch, want)
		}
		return fmt.Sprintf("%d readings in %v, %.0f W, %.0f J, %.0f to %.0f °C, %.0f MHz", rows, m.watch, c.PowerW.Mean.V, c.EnergyJ.V, c.TemperatureC.Start.V, c.TemperatureC.End.V, c.SMClockMHz.Mean.V), nil
	})
	if !free {
		m.item(in("foreign process"), func() (string, error) { return "", fmt.Errorf("%w: the GPU is in use or unfit", errSkip) })
		return
	}
	for _, own := range []bool{false, true} {
		what := map[bool]string{false: "foreign process", true: "own process"}[own]
		m.item(in(what), func() (string, error) {
			var mine atomic.Int64
			w := StartWatch(t.Context(), m.r, WatchOptions{UUIDs: []string{g.UUID}, Checks: Checks{Owns: func(pid int) bool { n := int(mine.Load()); return own && (n == 0 || pid == n) }}})
			pid, end, err := m.use(g.UUID)
			if err != nil {
				w.Stop()
				return "", fmt.Errorf("%w: no CUDA program can be started: %w", errSkip, err)
			}
			mine.Store(int64(pid))
			time.Sleep(time.Second)
			res := w.Stop()
			end()
			if res.Valid() != own {
				return "", fmt.Errorf("valid is %t: %v", res.Valid(), res.Findings)
			}
			return fmt.Sprintf("%s %s", res.Level(), strings.Join(append(res.Lines(Invalid), res.Lines(Warn)...), "; ")), nil
		})
	}
}

// unknowns names what a reading does not say.
func unknowns(x Reading) string {
	var list []string
	for name, known := range map[string]bool{"sm_util": x.SMUtil.Valid, "memory": x.MemoryUsed.Valid, "power": x.PowerMW.Valid, "energy": x.EnergyMJ.Valid, "temperature": x.TemperatureC.Valid,
		"sm_clock": x.SMClockMHz.Valid, "mem_clock": x.MemClockMHz.Valid, "throttle": x.Throttle != nil, "processes": x.Processes.Valid} {
		if !known {
			list = append(list, name)
		}
	}
	if len(list) == 0 {
		return "nothing"
	}
	return strings.Join(list, " ")
}

// TestMachine is `make gpu-check`: on a machine with NVIDIA GPUs, in under three minutes.
func TestMachine(t *testing.T) {
	if os.Getenv("SHADOWTAPE_GPU_CHECK") == "" {
		t.Skip("make gpu-check runs this on a machine with NVIDIA GPUs")
	}
	r, err := Open()
	if err != nil {
		t.Fatalf("NO GPU HERE, NOTHING WAS CHECKED: %v", err)
	}
	defer r.Close()
	m := &machineCheck{r: r, use: cudaUser, dir: filepath.Join(t.TempDir(), "locks"), watch: 5 * time.Second}
	m.run(t)
	fmt.Println(strings.Join(m.lines, "\n"))
	if m.failed > 0 {
		t.Errorf("%d items failed", m.failed)
	}
}

// TestMachineCheckItself runs the same items on go-nvml's mock, with a program that only pretends to use a GPU.
func TestMachineCheckItself(t *testing.T) {
	s, devices := simulated(t)
	s.Devices = s.Devices[:2]
	devices = devices[:2]
	devices[1].MigMode = nvml.DEVICE_MIG_ENABLE
	devices[1].GetMaxMigDeviceCountFunc = func() (int, nvml.Return) { return 0, nvml.SUCCESS }
	using := make(chan int, 1)
	pid := 0
	devices[0].GetComputeRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) {
		select {
		case pid = <-using:
		default:
		}
		if pid == 0 {
			return nil, nvml.SUCCESS
		}
		return []nvml.ProcessInfo{{Pid: uint32(pid), UsedGpuMemory: 1 << 20}}, nvml.SUCCESS
	}
	m := &machineCheck{r: open(t, s), dir: t.TempDir(), watch: 500 * time.Millisecond, use: func(string) (int, func(), error) {
		using <- os.Getpid()
		return os.Getpid(), func() { using <- 0 }, nil
	}}
	m.run(t)
	text := strings.Join(m.lines, "\n")
	if m.failed > 0 || strings.Count(text, "pass  ") != 9 || strings.Count(text, "skip  ") != 1 || !strings.Contains(text, "invalid GPU "+devices[0].UUID+": compute process") {
		t.Errorf("%d failed:\n%s", m.failed, text)
	}
}
