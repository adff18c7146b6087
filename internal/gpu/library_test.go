//go:build unix

package gpu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"github.com/shadowtape/shadowtape/internal/gpu/nvmltest"
)

// tellLibrary opens the machine's own library and prints what it says. In a process of its own, since a call that the library lacks ends
// the process.
func tellLibrary() {
	r, err := Open()
	if err != nil {
		hint := ""
		if e, ok := errors.AsType[*OpenError](err); ok {
			hint = e.Hint
		}
		fmt.Printf("%v; %s\n", err, hint)
		return
	}
	system, err := r.System()
	fmt.Printf("%+v %v\n", system, err)
	gpus, err := r.GPUs()
	fmt.Println(len(gpus), err)
	for _, g := range gpus {
		x, err := r.Fast(g.UUID)
		fmt.Println(g.UUID, g.PCI, g.MemoryBytes>>30, x.PowerMW.V, x.TemperatureC.V, x.EnergyMJ, x.Throttle, x.GPUSample.Processes, err)
		fmt.Println(r.Slow(g.UUID, &x), x.PCIeRx.V)
		v := Before(r, gpus, []string{g.UUID}, Checks{Proc: "/none"})
		fmt.Println(v.Level(), v.Lines(Invalid), v.Lines(Warn))
	}
	if _, err := r.Events(context.Background(), []string{"GPU-fake-0"}); err != nil {
		fmt.Println(err)
	}
	fmt.Println("closed", r.Close())
}

// The library that is opened, its symbols and its C interface are real: a stand-in is built as libnvidia-ml.so.1 of a driver of today, of
// one from 2018, and of one that lacks what is needed.
func TestLibrary(t *testing.T) {
	if errors.Is(opensNothing(), ErrUnsupported) {
		t.Skip("SKIPPED LOUDLY: this build has no NVML; CGO_ENABLED=1 tests how the library is opened")
	}
	build := func(driver string, defines ...string) string {
		dir := t.TempDir()
		if err := nvmltest.Build(dir, driver, defines...); err != nil {
			t.Skipf("SKIPPED LOUDLY: how NVML is opened was not tested: %v", err)
		}
		return dir
	}
	today, old, ancient := build("570.86"), build("390.12", "OLD"), build("304.1", "ANCIENT")
	for _, c := range []struct {
		name, dir, env string
		want           []string
	}{
		{"today", today, "", []string{"{Driver:570.86 NVML:12.570.86 CUDA:12.8} <nil>", "2 <nil>", "GPU-fake-0 0000:00:00.0 80 123456 41 {987654 true} [sw_power_cap] [] <nil>", "<nil> 7168", "pass [] []", "closed <nil>"}},
		{"foreign process", today, "FAKE_NVML_FOREIGN=4242", []string{"invalid [GPU GPU-fake-0: compute process 4242 ", "(1.0 GiB)]", "pass [] []", "closed <nil>"}},
		{"lost", today, "FAKE_NVML_LOST=1", []string{"pass [] []", "invalid [GPU GPU-fake-1: read GPU GPU-fake-1: the GPU is lost", "closed <nil>"}},
		{"driver of 2018", old, "FAKE_NVML_FOREIGN=4242", []string{"{Driver:390.12 NVML:12.390.12 CUDA:} <nil>", "{0 false} [idle]", "compute process 4242 ", "warning [] [GPU GPU-fake-1: the driver does not say how much memory is used]", "closed <nil>"}},
		{"too old", ancient, "", []string{"the driver is too old: its library lacks nvmlDeviceGetComputeRunningProcesses; update the NVIDIA driver"}},
		{"driver not loaded", today, "FAKE_NVML_INIT=9", []string{"open NVML: the NVIDIA kernel driver is not loaded; modprobe nvidia"}},
		{"mismatch", today, "FAKE_NVML_INIT=18", []string{"open NVML: library and kernel driver are of different versions", "; restart the machine"}},
		{"no permission", today, "FAKE_NVML_INIT=4", []string{"open NVML: no permission for the NVIDIA devices; may this user"}},
		{"no library", t.TempDir(), "", []string{"open NVML: libnvidia-ml.so.1 is not on this machine: no NVIDIA driver is installed; run it where"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), "TEST_LIBRARY=1", "LD_LIBRARY_PATH="+c.dir, c.env)
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			rest := string(out)
			for _, w := range c.want {
				_, after, ok := strings.Cut(rest, w)
				if !ok {
					t.Fatalf("%q is missing, or not in its place, in\n%s", w, out)
				}
				rest = after
			}
		})
	}
}

// opensNothing says whether this build can open NVML at all.
func opensNothing() error {
	if runtime.GOOS != "linux" {
		return ErrUnsupported
	}
	r, err := Open()
	if err == nil {
		r.Close()
	}
	return err
}
