//go:build cgo && linux

package gpu

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/shadowtape/shadowtape/formats"
)

// Open opens NVML. Its errors are *OpenError: they say what is missing, the library, the driver, a matching pair of them, a new enough
// one or the permission, and what to do.
func Open() (Reader, error) { return openWith(nvml.New()) }

// notOpen are NVML's answers to the first call, in words.
var notOpen = map[nvml.Return]OpenError{
	nvml.ERROR_LIBRARY_NOT_FOUND:       {"libnvidia-ml.so.1 is not on this machine: no NVIDIA driver is installed", "run it where the GPUs are; in a container, pass them into it with the utility capability (NVIDIA_DRIVER_CAPABILITIES=compute,utility)"},
	nvml.ERROR_DRIVER_NOT_LOADED:       {"the NVIDIA kernel driver is not loaded", "modprobe nvidia, and see the kernel's log (dmesg); after a new kernel the driver's module must be built again"},
	nvml.ERROR_LIB_RM_VERSION_MISMATCH: {"library and kernel driver are of different versions: the machine waits for a restart after an update", "restart the machine, or load the new module: rmmod nvidia_uvm nvidia, then modprobe nvidia"},
	nvml.ERROR_NO_PERMISSION:           {"no permission for the NVIDIA devices", "may this user read and write /dev/nvidiactl and /dev/nvidia0?"},
	nvml.ERROR_FUNCTION_NOT_FOUND:      {"the driver is too old: libnvidia-ml.so.1 lacks the calls of this binding", "update the NVIDIA driver"},
}

// needed are the calls without which nothing can be said: those that are made without asking whether the driver has them. The binding
// looks calls up when they are made, and one that is not there ends the program.
var needed = []string{
	"nvmlSystemGetDriverVersion", "nvmlSystemGetNVMLVersion", "nvmlSystemGetProcessName", "nvmlDeviceGetHandleByUUID", "nvmlDeviceGetUUID", "nvmlDeviceGetName", "nvmlDeviceGetVbiosVersion",
	"nvmlDeviceGetMemoryInfo", "nvmlDeviceGetComputeMode", "nvmlDeviceGetPersistenceMode", "nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetEccMode",
	"nvmlDeviceGetCurrPcieLinkGeneration", "nvmlDeviceGetCurrPcieLinkWidth", "nvmlDeviceGetNvLinkState", "nvmlDeviceGetMaxClockInfo", "nvmlDeviceGetClockInfo",
	"nvmlDeviceGetUtilizationRates", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetTemperature", "nvmlDeviceGetCurrentClocksThrottleReasons", "nvmlDeviceGetPcieThroughput",
	"nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses", "nvmlEventSetCreate", "nvmlEventSetFree", "nvmlDeviceRegisterEvents",
}

func openWith(lib nvml.Interface) (Reader, error) {
	r := &nvmlReader{lib: lib, devices: map[string]nvml.Device{}, parents: map[string]nvml.Device{}, symbols: map[string]bool{}}
	ret := lib.Init()
	why, known := notOpen[ret]
	switch {
	case ret == nvml.SUCCESS:
		lacks := slices.IndexFunc(needed, func(symbol string) bool { return !r.has(symbol) })
		if lacks < 0 {
			return r, nil
		}
		lib.Shutdown()
		why = OpenError{"the driver is too old: its library lacks " + needed[lacks], "update the NVIDIA driver"}
	case !known:
		why = OpenError{retError(ret).Error(), "does nvidia-smi work on this machine?"}
	}
	why.Text = "open NVML: " + why.Text
	return nil, &why
}

// nvmlReader reads NVML. Calls that the installed driver lacks are not made: looking them up lazily would end the program.
type nvmlReader struct {
	lib     nvml.Interface
	mu      sync.Mutex
	devices map[string]nvml.Device // by UUID
	parents map[string]nvml.Device // of an instance: the GPU it is part of
	symbols map[string]bool
	events  nvml.EventSet
	noXID   bool
}

// retError is an NVML result as an error; a lost GPU is ErrLost.
func retError(ret nvml.Return) error {
	switch ret {
	case nvml.SUCCESS:
		return nil
	case nvml.ERROR_GPU_IS_LOST, nvml.ERROR_RESET_REQUIRED:
		return fmt.Errorf("%w: NVML error %d", ErrLost, int(ret))
	default:
		return fmt.Errorf("NVML error %d", int(ret))
	}
}

// has reports whether the driver has a symbol.
func (r *nvmlReader) has(symbol string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	ok, known := r.symbols[symbol]
	if !known {
		ok = r.lib.Extensions().LookupSymbol(symbol) == nil
		r.symbols[symbol] = ok
	}
	return ok
}

func (r *nvmlReader) System() (System, error) {
	var s System
	var ret nvml.Return
	if s.Driver, ret = r.lib.SystemGetDriverVersion(); ret != nvml.SUCCESS {
		return s, fmt.Errorf("read driver version: %w", retError(ret))
	}
	s.NVML, _ = r.lib.SystemGetNVMLVersion()
	if r.has("nvmlSystemGetCudaDriverVersion") {
		if v, ret := r.lib.SystemGetCudaDriverVersion(); ret == nvml.SUCCESS && v > 0 {
			s.CUDA = fmt.Sprintf("%d.%d", v/1000, v%1000/10)
		}
	}
	return s, nil
}

func (r *nvmlReader) GPUs() ([]GPU, error) {
	n, ret := r.lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("count GPUs: %w", retError(ret))
	}
	gpus := make([]GPU, 0, n)
	handles := map[string]nvml.Device{}
	for i := range n {
		d, ret := r.lib.DeviceGetHandleByIndex(i)
		if ret != nvml.SUCCESS {
			return nil, fmt.Errorf("open GPU %d: %w", i, retError(ret))
		}
		g, err := r.describe(d, i)
		if err != nil {
			return nil, fmt.Errorf("read GPU %d: %w", i, err)
		}
		handles[g.UUID] = d
		gpus = append(gpus, g)
	}
	if r.has("nvmlDeviceGetTopologyCommonAncestor") {
		for i := range gpus {
			for j := range gpus {
				if i == j {
					continue
				}
				if level, ret := handles[gpus[i].UUID].GetTopologyCommonAncestor(handles[gpus[j].UUID]); ret == nvml.SUCCESS {
					if gpus[i].Peers == nil {
						gpus[i].Peers = map[string]string{}
					}
					gpus[i].Peers[gpus[j].UUID] = topologyName(level)
				}
			}
		}
	}
	return gpus, nil
}

// topologyName is the nearest common ancestor of two GPUs, as nvidia-smi topo abbreviates it.
func topologyName(l nvml.GpuTopologyLevel) string {
	switch l {
	case nvml.TOPOLOGY_INTERNAL:
		return "board"
	case nvml.TOPOLOGY_SINGLE:
		return "PIX"
	case nvml.TOPOLOGY_MULTIPLE:
		return "PXB"
	case nvml.TOPOLOGY_HOSTBRIDGE:
		return "PHB"
	case nvml.TOPOLOGY_NODE:
		return "NODE"
	default:
		return "SYS"
	}
}

// describe reads what does not change, and keeps the handles of the GPU and its instances.
func (r *nvmlReader) describe(d nvml.Device, index int) (GPU, error) {
	g := GPU{Index: index}
	var ret nvml.Return
	if g.UUID, ret = d.GetUUID(); ret != nvml.SUCCESS {
		return g, retError(ret)
	}
	r.keep(g.UUID, d, nil)
	g.Name, _ = d.GetName()
	if m, ret := d.GetMemoryInfo(); ret == nvml.SUCCESS {
		g.MemoryBytes = int64(m.Total)
	}
	if p, ret := d.GetPciInfo(); ret == nvml.SUCCESS {
		g.PCI = text(p.BusId[:])
	}
	if mode, ret := d.GetComputeMode(); ret == nvml.SUCCESS {
		g.ComputeMode = map[nvml.ComputeMode]string{nvml.COMPUTEMODE_DEFAULT: "default", nvml.COMPUTEMODE_EXCLUSIVE_THREAD: "exclusive_thread",
			nvml.COMPUTEMODE_PROHIBITED: "prohibited", nvml.COMPUTEMODE_EXCLUSIVE_PROCESS: "exclusive_process"}[mode]
	}
	if on, ret := d.GetPersistenceMode(); ret == nvml.SUCCESS {
		g.Persistence = formats.Of(on == nvml.FEATURE_ENABLED)
	}
	if mw, ret := d.GetEnforcedPowerLimit(); ret == nvml.SUCCESS {
		g.PowerLimitW = float64(mw) / 1e3
	}
	g.VBIOS, _ = d.GetVbiosVersion()
	if on, _, ret := d.GetEccMode(); ret == nvml.SUCCESS {
		g.ECC = formats.Of(on == nvml.FEATURE_ENABLED)
	}
	if r.has("nvmlDeviceGetRemappedRows") {
		if _, _, pending, failed, ret := d.GetRemappedRows(); ret == nvml.SUCCESS {
			g.Remapped = formats.Of(pending || failed)
		}
	}
	gen, ret1 := d.GetCurrPcieLinkGeneration()
	width, ret2 := d.GetCurrPcieLinkWidth()
	if ret1 == nvml.SUCCESS && ret2 == nvml.SUCCESS {
		g.PCIe = fmt.Sprintf("gen %d x%d", gen, width)
	}
	g.Links = links(d)
	if mhz, ret := d.GetMaxClockInfo(nvml.CLOCK_SM); ret == nvml.SUCCESS {
		g.MaxSMClock = formats.Of(int32(mhz))
	}
	if r.has("nvmlDeviceGetNumaNodeId") {
		if node, ret := d.GetNumaNodeId(); ret == nvml.SUCCESS {
			g.NUMANode = formats.Of(node)
		}
	}
	if r.has("nvmlDeviceGetMigMode") {
		if on, _, ret := d.GetMigMode(); ret == nvml.SUCCESS && on == nvml.DEVICE_MIG_ENABLE {
			g.MIG = true
			g.Instances = r.instances(d)
		}
	}
	return g, nil
}

// instances lists a divided GPU's instances and keeps their handles.
func (r *nvmlReader) instances(d nvml.Device) []MIG {
	n, ret := d.GetMaxMigDeviceCount()
	if ret != nvml.SUCCESS {
		return nil
	}
	var list []MIG
	for i := range n {
		m, ret := d.GetMigDeviceHandleByIndex(i)
		if ret != nvml.SUCCESS {
			continue // a free place
		}
		part := MIG{}
		if part.UUID, ret = m.GetUUID(); ret != nvml.SUCCESS {
			continue
		}
		part.Name, _ = m.GetName()
		if info, ret := m.GetMemoryInfo(); ret == nvml.SUCCESS {
			part.MemoryBytes = int64(info.Total)
		}
		r.keep(part.UUID, m, d)
		list = append(list, part)
	}
	return list
}

// links counts the NVLinks that are up; unknown where the GPU has none to ask about.
func links(d nvml.Device) formats.Null[int] {
	n, asked := 0, false
	for i := range nvml.NVLINK_MAX_LINKS {
		state, ret := d.GetNvLinkState(i)
		if ret != nvml.SUCCESS {
			break
		}
		asked = true
		if state == nvml.FEATURE_ENABLED {
			n++
		}
	}
	if !asked {
		return formats.Null[int]{}
	}
	return formats.Of(n)
}

func (r *nvmlReader) keep(uuid string, d, parent nvml.Device) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.devices[uuid] = d
	if parent != nil {
		r.parents[uuid] = parent
	}
}

// device returns the handle of a GPU or instance, and of the GPU whose sensors it has.
func (r *nvmlReader) device(uuid string) (d, whole nvml.Device, err error) {
	r.mu.Lock()
	d, whole = r.devices[uuid], r.parents[uuid]
	r.mu.Unlock()
	if d == nil {
		var ret nvml.Return
		if d, ret = r.lib.DeviceGetHandleByUUID(uuid); ret != nvml.SUCCESS {
			return nil, nil, fmt.Errorf("open GPU %s: %w", uuid, retError(ret))
		}
		part := false
		if r.has("nvmlDeviceIsMigDeviceHandle") {
			part, ret = d.IsMigDeviceHandle()
		}
		if part && ret == nvml.SUCCESS {
			if whole, ret = d.GetDeviceHandleFromMigDeviceHandle(); ret != nvml.SUCCESS {
				whole = nil
			}
		}
		r.keep(uuid, d, whole)
	}
	if whole == nil {
		whole = d
	}
	return d, whole, nil
}

func (r *nvmlReader) Fast(uuid string) (Reading, error) {
	out := Reading{}
	out.UUID = uuid
	d, whole, err := r.device(uuid)
	if err != nil {
		return out, err
	}
	out.UnixNS = time.Now().UnixNano()
	if r.has("nvmlDeviceGetMemoryInfo_v2") {
		m, ret := d.GetMemoryInfo_v2()
		if ret == nvml.ERROR_GPU_IS_LOST || ret == nvml.ERROR_RESET_REQUIRED {
			return out, fmt.Errorf("read GPU %s: %w", uuid, retError(ret))
		}
		if ret == nvml.SUCCESS {
			out.MemoryUsed, out.MemoryTotal = formats.Of(int64(m.Used)), formats.Of(int64(m.Total))
			out.Reserved, out.Free = formats.Of(int64(m.Reserved)), formats.Of(int64(m.Free))
		}
	}
	if !out.MemoryTotal.Valid { // an old driver counts what it reserves as used: how much is hidden cannot be said
		m, ret := d.GetMemoryInfo()
		if ret == nvml.ERROR_GPU_IS_LOST || ret == nvml.ERROR_RESET_REQUIRED {
			return out, fmt.Errorf("read GPU %s: %w", uuid, retError(ret))
		}
		if ret == nvml.SUCCESS {
			out.MemoryTotal, out.Free = formats.Of(int64(m.Total)), formats.Of(int64(m.Free))
		}
	}
	if u, ret := d.GetUtilizationRates(); ret == nvml.SUCCESS {
		out.SMUtil, out.MemUtil = formats.Of(float64(u.Gpu)/100), formats.Of(float64(u.Memory)/100)
	}
	if mw, ret := whole.GetPowerUsage(); ret == nvml.SUCCESS {
		out.PowerMW = formats.Of(int64(mw))
	}
	if r.has("nvmlDeviceGetTotalEnergyConsumption") {
		if mj, ret := whole.GetTotalEnergyConsumption(); ret == nvml.SUCCESS {
			out.EnergyMJ = formats.Of(int64(mj))
		}
	}
	if c, ret := whole.GetTemperature(nvml.TEMPERATURE_GPU); ret == nvml.SUCCESS {
		out.TemperatureC = formats.Of(int32(c))
	}
	if mhz, ret := whole.GetClockInfo(nvml.CLOCK_SM); ret == nvml.SUCCESS {
		out.SMClockMHz = formats.Of(int32(mhz))
	}
	if mhz, ret := whole.GetClockInfo(nvml.CLOCK_MEM); ret == nvml.SUCCESS {
		out.MemClockMHz = formats.Of(int32(mhz))
	}
	out.Throttle = r.throttle(whole)
	out.Processes = r.processes(d)
	out.GPUSample.Processes = processTexts(out.Processes)
	return out, nil
}

// throttle names the reasons for low clocks. The older name of the call does the same.
func (r *nvmlReader) throttle(d nvml.Device) []string {
	read := d.GetCurrentClocksThrottleReasons
	if r.has("nvmlDeviceGetCurrentClocksEventReasons") {
		read = d.GetCurrentClocksEventReasons
	}
	bits, ret := read()
	if ret != nvml.SUCCESS {
		return nil
	}
	return throttleNames(bits)
}

// processes lists who uses a GPU, by number, each once. Without one of the two main lists it is unknown.
func (r *nvmlReader) processes(d nvml.Device) formats.Null[[]Process] {
	compute, ret := d.GetComputeRunningProcesses()
	if ret != nvml.SUCCESS {
		return formats.Null[[]Process]{}
	}
	list := []Process{}
	add := func(infos []nvml.ProcessInfo, kind string) {
		for _, p := range infos {
			if i := slices.IndexFunc(list, func(q Process) bool { return q.PID == int(p.Pid) }); i >= 0 {
				if kind == "mps" {
					list[i].Type = kind
				}
				continue
			}
			q := Process{PID: int(p.Pid), Type: kind}
			if p.UsedGpuMemory != ^uint64(0) { // NVML_VALUE_NOT_AVAILABLE
				q.Bytes = formats.Of(int64(p.UsedGpuMemory))
			}
			if name, ret := r.lib.SystemGetProcessName(int(p.Pid)); ret == nvml.SUCCESS {
				q.Name = name[strings.LastIndexByte(name, '/')+1:]
			}
			list = append(list, q)
		}
	}
	add(compute, "compute")
	switch graphics, ret := d.GetGraphicsRunningProcesses(); ret {
	case nvml.SUCCESS:
		add(graphics, "graphics")
	case nvml.ERROR_NOT_SUPPORTED: // a GPU without graphics
	default:
		return formats.Null[[]Process]{}
	}
	if r.has("nvmlDeviceGetMPSComputeRunningProcesses") || r.has("nvmlDeviceGetMPSComputeRunningProcesses_v3") {
		if clients, ret := d.GetMPSComputeRunningProcesses(); ret == nvml.SUCCESS {
			add(clients, "mps")
		}
	}
	slices.SortFunc(list, func(a, b Process) int { return a.PID - b.PID })
	return formats.Of(list)
}

func (r *nvmlReader) Slow(uuid string, out *Reading) error {
	_, d, err := r.device(uuid)
	if err != nil {
		return err
	}
	if kb, ret := d.GetPcieThroughput(nvml.PCIE_UTIL_TX_BYTES); ret == nvml.SUCCESS {
		out.PCIeTx = formats.Of(int64(kb) << 10)
	}
	if kb, ret := d.GetPcieThroughput(nvml.PCIE_UTIL_RX_BYTES); ret == nvml.SUCCESS {
		out.PCIeRx = formats.Of(int64(kb) << 10)
	}
	n, ret := d.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC)
	switch ret {
	case nvml.SUCCESS:
		out.ECCUncorrected = formats.Of(int64(n))
	case nvml.ERROR_GPU_IS_LOST, nvml.ERROR_RESET_REQUIRED:
		return fmt.Errorf("read GPU %s: %w", uuid, retError(ret))
	}
	if !r.has("nvmlDeviceGetFieldValues") {
		return nil
	}
	all := uint32(0xffffffff) // over all links
	values := []nvml.FieldValue{{FieldId: nvml.FI_DEV_MEMORY_TEMP}, {FieldId: nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX, ScopeId: all}, {FieldId: nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_RX, ScopeId: all}}
	if d.GetFieldValues(values) == nvml.SUCCESS {
		if v, ok := field(values[0]); ok && v > 0 {
			out.MemoryTempC = formats.Of(int32(v))
		}
		if v, ok := field(values[1]); ok {
			out.NVLinkTx = formats.Of(v << 10) // counted in KiB
		}
		if v, ok := field(values[2]); ok {
			out.NVLinkRx = formats.Of(v << 10)
		}
	}
	return nil
}

// field is an integer field's value.
func field(f nvml.FieldValue) (int64, bool) {
	if nvml.Return(f.NvmlReturn) != nvml.SUCCESS {
		return 0, false
	}
	v := uint64(0)
	for i, b := range f.Value { // little-endian on every machine that has these GPUs
		v |= uint64(b) << (8 * i)
	}
	switch nvml.ValueType(f.ValueType) {
	case nvml.VALUE_TYPE_UNSIGNED_INT:
		return int64(uint32(v)), true
	case nvml.VALUE_TYPE_UNSIGNED_LONG, nvml.VALUE_TYPE_UNSIGNED_LONG_LONG, nvml.VALUE_TYPE_SIGNED_LONG_LONG:
		return int64(v), true
	case nvml.VALUE_TYPE_SIGNED_INT:
		return int64(int32(v)), true
	}
	return 0, false
}

func (r *nvmlReader) Events(ctx context.Context, uuids []string) ([]Event, error) {
	if r.noXID {
		return nil, errors.New("XID events are not supported")
	}
	if r.events == nil {
		set, ret := r.lib.EventSetCreate()
		if ret != nvml.SUCCESS || set == nil {
			r.noXID = true
			return nil, fmt.Errorf("wait for XID events: %w", retError(ret))
		}
		registered := 0
		for _, id := range uuids {
			if _, whole, err := r.device(id); err == nil && whole.RegisterEvents(nvml.EventTypeXidCriticalError, set) == nvml.SUCCESS {
				registered++
			}
		}
		if registered == 0 {
			r.noXID = true
			set.Free()
			return nil, errors.New("XID events are not supported")
		}
		r.events = set
	}
	e, ret := r.events.Wait(1000)
	if ret == nvml.ERROR_TIMEOUT {
		return nil, nil
	}
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("wait for XID events: %w", retError(ret))
	}
	if e.EventType != nvml.EventTypeXidCriticalError {
		return nil, nil
	}
	out := Event{XID: e.EventData}
	if e.Device != nil {
		out.UUID, _ = e.Device.GetUUID()
	}
	return []Event{out}, nil
}

func (r *nvmlReader) Close() error {
	if r.events != nil {
		r.events.Free()
	}
	if ret := r.lib.Shutdown(); ret != nvml.SUCCESS {
		return fmt.Errorf("close NVML: %w", retError(ret))
	}
	return nil
}

// text is a C string in a fixed array.
func text(b []int8) string {
	var s strings.Builder
	for _, c := range b {
		if c == 0 {
			break
		}
		s.WriteByte(byte(c))
	}
	return s.String()
}
