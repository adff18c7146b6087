package gpu

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

// hiddenBytes is how much memory no visible process may account for before somebody unseen is assumed: less than one CUDA context takes
// on a data-center GPU, more than drivers were seen to keep for themselves.
const hiddenBytes = 256 << 20

// The names of the reasons for low clocks, as gpu.parquet has them.
const (
	reasonIdle         = "idle"
	reasonAppClocks    = "application_clocks"
	reasonPowerCap     = "sw_power_cap"
	reasonHWSlowdown   = "hw_slowdown"
	reasonSyncBoost    = "sync_boost"
	reasonSWThermal    = "sw_thermal"
	reasonHWThermal    = "hw_thermal"
	reasonPowerBrake   = "hw_power_brake"
	reasonDisplayClock = "display_clock"
)

// throttleBits names the bits of NVML's clocks event reasons, from the lowest (nvml.h, nvmlClocksEventReasons). DCGM's field holds the same.
var throttleBits = []string{reasonIdle, reasonAppClocks, reasonPowerCap, reasonHWSlowdown, reasonSyncBoost, reasonSWThermal, reasonHWThermal, reasonPowerBrake, reasonDisplayClock}

// throttleNames are the set bits' names, sorted. Unknown bits are numbers.
func throttleNames(bits uint64) []string {
	names := []string{}
	for i := range 64 {
		if bits&(1<<i) == 0 {
			continue
		}
		if i < len(throttleBits) {
			names = append(names, throttleBits[i])
		} else {
			names = append(names, fmt.Sprintf("bit_%d", i))
		}
	}
	slices.Sort(names)
	return names
}

// hardwareReasons mean that the hardware protects itself.
var hardwareReasons = []string{reasonHWSlowdown, reasonHWThermal, reasonPowerBrake}

// Checks says what is expected of the GPUs.
type Checks struct {
	Owns func(pid int) bool // whether a process is the candidate's; nil: none is
	Free int64              // bytes that must be free before the start
	Proc string             // where processes are seen; "": /proc
}

func (c Checks) owns(pid int) bool { return c.Owns != nil && c.Owns(pid) }

// Before checks GPUs ahead of a run and returns what it found. A GPU with nothing to say about it has no finding.
func Before(r Reader, gpus []GPU, asked []string, c Checks) Verdict {
	var v Verdict
	view := newView(c.Proc)
	for _, pid := range view.mps() {
		if !c.owns(pid) {
			v.Findings = append(v.Findings, find(mpsDaemon, "", "the multi-process service runs (process %d)", pid))
		}
	}
	for _, id := range asked {
		g, ok := byUUID(gpus, id)
		if !ok {
			v.Findings = append(v.Findings, find(lostGPU, id, "it is not there"))
			continue
		}
		v.Findings = append(v.Findings, static(g)...)
		reading, err := r.Fast(id)
		if err != nil {
			v.Findings = append(v.Findings, unreadable(id, err))
			continue
		}
		if err := r.Slow(id, &reading); err != nil && errors.Is(err, ErrLost) {
			v.Findings = append(v.Findings, unreadable(id, err))
			continue
		}
		v.Findings = append(v.Findings, processFindings(view, id, reading, c)...)
		v.Findings = append(v.Findings, memoryFindings(id, reading, c.owns)...)
		v.Findings = append(v.Findings, beforeFindings(id, reading, c)...)
	}
	return v
}

func unreadable(id string, err error) Finding {
	if errors.Is(err, ErrLost) {
		return find(lostGPU, id, "%v", err)
	}
	return find(processesUnknown, id, "it cannot be read: %v", err)
}

// static judges what does not change.
func static(g GPU) []Finding {
	var out []Finding
	if g.MIG && strings.HasPrefix(g.UUID, "GPU-") {
		out = append(out, find(migMismatch, g.UUID, "it is divided into %d instances, and the whole is asked for", len(g.Instances)))
	}
	if g.ComputeMode == "prohibited" {
		out = append(out, find(computeProhibited, g.UUID, "its compute mode is prohibited"))
	}
	if g.Remapped.Or(false) {
		out = append(out, find(remapPending, g.UUID, "memory rows wait to be remapped, or could not be"))
	}
	if g.Persistence.Valid && !g.Persistence.V {
		out = append(out, find(persistenceOff, g.UUID, "persistence mode is off"))
	}
	return out
}

// beforeFindings judges a reading before the start.
func beforeFindings(id string, r Reading, c Checks) []Finding {
	var out []Finding
	if r.Free.Valid && c.Free > r.Free.V {
		out = append(out, find(littleMemory, id, "%s are free, %s are asked for", bytesText(r.Free.V), bytesText(c.Free)))
	}
	if r.ECCUncorrected.Or(0) > 0 {
		out = append(out, find(oldECCErrors, id, "%d uncorrected memory errors since the driver was loaded", r.ECCUncorrected.V))
	}
	for _, reason := range r.Throttle {
		switch {
		case slices.Contains(hardwareReasons, reason):
			out = append(out, find(hardwareSlowdown, id, "it is slowed down already: %s", reason))
		case reason == reasonSWThermal:
			out = append(out, find(thermalSlowdown, id, "it is slowed down already: %s", reason))
		case reason == reasonAppClocks || reason == reasonSyncBoost:
			out = append(out, find(clocksLimited, id, "clocks are limited by %s", reason))
		}
	}
	return out
}

// processFindings judges the processes of one reading, before a run.
func processFindings(view view, id string, r Reading, c Checks) []Finding {
	if !r.Processes.Valid {
		return []Finding{find(processesUnknown, id, "the driver gives no list of its processes")}
	}
	var out []Finding
	for _, p := range r.Processes.V {
		if !c.owns(p.PID) {
			out = append(out, foreign(view, id, p))
		}
	}
	return out
}

func foreign(view view, id string, p Process) Finding {
	code := foreignProcess
	if p.Type == "mps" {
		code = mpsClient
	}
	size := "memory unknown"
	if p.Bytes.Valid {
		size = bytesText(p.Bytes.V)
	}
	return find(code, id, "%s process %d %s uses it (%s)", p.Type, p.PID, view.describe(p), size)
}

// memoryFindings looks for memory in use that no visible process explains.
func memoryFindings(id string, r Reading, owns func(int) bool) []Finding {
	if !r.MemoryUsed.Valid {
		return []Finding{find(memoryUnknown, id, "the driver does not say how much memory is used")}
	}
	if !r.Processes.Valid {
		return nil // said already
	}
	explained := int64(0)
	for _, p := range r.Processes.V {
		if !p.Bytes.Valid {
			if owns(p.PID) {
				return []Finding{find(memoryUnknown, id, "the driver does not say how much memory process %d uses", p.PID)}
			}
			return nil // a foreign process is said already
		}
		explained += p.Bytes.V
	}
	if hidden := r.MemoryUsed.V - explained; hidden > hiddenBytes {
		return []Finding{find(hiddenMemory, id, "%s are in use that no visible process explains", bytesText(hidden))}
	}
	return nil
}

func bytesText(n int64) string {
	if n >= 1<<30 {
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	}
	return fmt.Sprintf("%d MiB", n>>20)
}

// view is how processes of the machine are seen from here.
type view struct {
	proc string
	own  bool // process numbers here are not the machine's
}

// initialNamespace is the inode of the machine's own process namespace (PROC_PID_INIT_INO in the kernel's proc_ns.h).
const initialNamespace = "pid:[4026531836]"

func newView(proc string) view {
	if proc == "" {
		proc = "/proc"
	}
	ns, err := os.Readlink(proc + "/self/ns/pid")
	return view{proc, err == nil && ns != initialNamespace}
}

// visible reports whether a process can be looked at by its number.
func (v view) visible(pid int) bool {
	if v.own {
		return false
	}
	_, err := os.Stat(v.proc + "/" + strconv.Itoa(pid))
	return err == nil
}

// describe names a process and its container, as far as they can be seen.
func (v view) describe(p Process) string {
	name := p.Name
	if v.visible(p.PID) {
		if b, err := os.ReadFile(fmt.Sprintf("%s/%d/comm", v.proc, p.PID)); err == nil {
			name = strings.TrimSpace(string(b))
		}
		if id := v.container(p.PID); id != "" {
			return fmt.Sprintf("(%s in container %s)", name, id)
		}
	}
	if name == "" {
		return "(cannot be seen from here)"
	}
	return "(" + name + ")"
}

// container is the short number of the container that a process's control group names, "" if none.
func (v view) container(pid int) string {
	b, err := os.ReadFile(fmt.Sprintf("%s/%d/cgroup", v.proc, pid))
	if err != nil {
		return ""
	}
	for _, part := range strings.FieldsFunc(string(b), func(r rune) bool { return !(r >= '0' && r <= '9' || r >= 'a' && r <= 'f') }) {
		if len(part) == 64 {
			return part[:12]
		}
	}
	return ""
}

// mps lists the processes of the multi-process service.
func (v view) mps() []int {
	entries, err := os.ReadDir(v.proc)
	if err != nil {
		return nil
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if b, err := os.ReadFile(fmt.Sprintf("%s/%d/comm", v.proc, pid)); err == nil && strings.HasPrefix(string(b), "nvidia-cuda-mps") {
			pids = append(pids, pid)
		}
	}
	return pids
}
