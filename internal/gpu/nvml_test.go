//go:build cgo && linux

package gpu

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxh200"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"

	"github.com/shadowtape/shadowtape/formats"
)

// simulated is go-nvml's own mock of a DGX H200 with the calls that this package makes filled in. Calls that set something are left out:
// the mock panics if one is made.
func simulated(t *testing.T) (*server.Server, []*server.Device) {
	t.Helper()
	s := dgxh200.New()
	s.SystemGetProcessNameFunc = func(pid int) (string, nvml.Return) { return fmt.Sprintf("/usr/bin/program%d", pid), nvml.SUCCESS }
	s.EventSetCreateFunc = func() (nvml.EventSet, nvml.Return) { return nil, nvml.ERROR_NOT_SUPPORTED }
	var devices []*server.Device
	for _, d := range s.Devices {
		d := d.(*server.Device)
		devices = append(devices, d)
		fill(d)
	}
	return s, devices
}

func fill(d *server.Device) {
	d.IsMigDeviceHandleFunc = func() (bool, nvml.Return) { return false, nvml.SUCCESS }
	d.GetMemoryInfo_v2Func = func() (nvml.Memory_v2, nvml.Return) {
		return nvml.Memory_v2{Total: 141 << 30, Reserved: 600 << 20, Free: 140 << 30, Used: 1 << 20}, nvml.SUCCESS
	}
	d.GetComputeModeFunc = func() (nvml.ComputeMode, nvml.Return) { return nvml.COMPUTEMODE_DEFAULT, nvml.SUCCESS }
	d.GetPersistenceModeFunc = func() (nvml.EnableState, nvml.Return) { return nvml.FEATURE_ENABLED, nvml.SUCCESS }
	d.GetEnforcedPowerLimitFunc = func() (uint32, nvml.Return) { return 700000, nvml.SUCCESS }
	d.GetVbiosVersionFunc = func() (string, nvml.Return) { return "96.00", nvml.SUCCESS }
	d.GetEccModeFunc = func() (nvml.EnableState, nvml.EnableState, nvml.Return) {
		return nvml.FEATURE_ENABLED, nvml.FEATURE_ENABLED, nvml.SUCCESS
	}
	d.GetRemappedRowsFunc = func() (int, int, bool, bool, nvml.Return) { return 0, 0, false, false, nvml.SUCCESS }
	d.GetCurrPcieLinkGenerationFunc = func() (int, nvml.Return) { return 5, nvml.SUCCESS }
	d.GetCurrPcieLinkWidthFunc = func() (int, nvml.Return) { return 16, nvml.SUCCESS }
	d.GetNvLinkStateFunc = func(i int) (nvml.EnableState, nvml.Return) {
		if i >= 18 {
			return 0, nvml.ERROR_INVALID_ARGUMENT
		}
		return nvml.FEATURE_ENABLED, nvml.SUCCESS
	}
	d.GetMaxClockInfoFunc = func(nvml.ClockType) (uint32, nvml.Return) { return 1980, nvml.SUCCESS }
	d.GetNumaNodeIdFunc = func() (int, nvml.Return) { return 0, nvml.ERROR_NOT_SUPPORTED }
	d.GetTopologyCommonAncestorFunc = func(nvml.Device) (nvml.GpuTopologyLevel, nvml.Return) { return nvml.TOPOLOGY_NODE, nvml.SUCCESS }
	d.GetUtilizationRatesFunc = func() (nvml.Utilization, nvml.Return) { return nvml.Utilization{Gpu: 93, Memory: 41}, nvml.SUCCESS }
	d.GetPowerUsageFunc = func() (uint32, nvml.Return) { return 512345, nvml.SUCCESS }
	d.GetTotalEnergyConsumptionFunc = func() (uint64, nvml.Return) { return 1 << 40, nvml.SUCCESS }
	d.GetTemperatureFunc = func(nvml.TemperatureSensors) (uint32, nvml.Return) { return 61, nvml.SUCCESS }
	d.GetClockInfoFunc = func(c nvml.ClockType) (uint32, nvml.Return) {
		if c == nvml.CLOCK_MEM {
			return 3201, nvml.SUCCESS
		}
		return 1755, nvml.SUCCESS
	}
	d.GetCurrentClocksEventReasonsFunc = func() (uint64, nvml.Return) { return 0, nvml.SUCCESS }
	none := func() ([]nvml.ProcessInfo, nvml.Return) { return nil, nvml.SUCCESS }
	d.GetComputeRunningProcessesFunc, d.GetMPSComputeRunningProcessesFunc = none, none
	d.GetGraphicsRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) { return nil, nvml.ERROR_NOT_SUPPORTED }
	d.GetPcieThroughputFunc = func(c nvml.PcieUtilCounter) (uint32, nvml.Return) { return uint32(100 + c), nvml.SUCCESS }
	d.GetTotalEccErrorsFunc = func(nvml.MemoryErrorType, nvml.EccCounterType) (uint64, nvml.Return) { return 0, nvml.SUCCESS }
	d.GetFieldValuesFunc = func(v []nvml.FieldValue) nvml.Return {
		for i := range v {
			v[i].ValueType = uint32(nvml.VALUE_TYPE_UNSIGNED_LONG_LONG)
			binary.LittleEndian.PutUint64(v[i].Value[:], uint64(50+i))
		}
		return nvml.SUCCESS
	}
}

func open(t *testing.T, lib nvml.Interface) Reader {
	t.Helper()
	r, err := openWith(lib)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestNVMLReads(t *testing.T) {
	s, devices := simulated(t)
	r := open(t, s)
	sys, err := r.System()
	if err != nil || sys != (System{"550.54.15", "12.550.54.15", "12.4"}) {
		t.Errorf("%+v %v", sys, err)
	}
	gpus, err := r.GPUs()
	if err != nil || len(gpus) != 8 {
		t.Fatalf("%d %v", len(gpus), err)
	}
	g := gpus[3]
	if g.Index != 3 || g.UUID != devices[3].UUID || g.Name != "NVIDIA H200" && !strings.Contains(g.Name, "H200") || g.PCIe != "gen 5 x16" || g.Links != formats.Of(18) || g.Persistence != formats.Of(true) ||
		g.PowerLimitW != 700 || g.ECC != formats.Of(true) || g.MIG || len(g.Peers) != 7 || g.Peers[gpus[0].UUID] != "NODE" || g.NUMANode.Valid || g.MaxSMClock != formats.Of[int32](1980) {
		t.Errorf("%+v", g)
	}
	devices[3].GetComputeRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) {
		return []nvml.ProcessInfo{{Pid: 30, UsedGpuMemory: 5 << 30}, {Pid: 20, UsedGpuMemory: ^uint64(0)}}, nvml.SUCCESS
	}
	devices[3].GetMPSComputeRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) {
		return []nvml.ProcessInfo{{Pid: 30, UsedGpuMemory: 5 << 30}, {Pid: 10, UsedGpuMemory: 7}}, nvml.SUCCESS
	}
	devices[3].GetCurrentClocksEventReasonsFunc = func() (uint64, nvml.Return) { return 0x4 | 0x40 | 1<<20, nvml.SUCCESS }
	x, err := r.Fast(g.UUID)
	if err != nil {
		t.Fatal(err)
	}
	if x.SMUtil != formats.Of(0.93) || x.MemUtil != formats.Of(0.41) || x.MemoryUsed != formats.Of[int64](1<<20) || x.MemoryTotal != formats.Of[int64](141<<30) || x.Free != formats.Of[int64](140<<30) ||
		x.Reserved != formats.Of[int64](600<<20) || x.PowerMW != formats.Of[int64](512345) || x.EnergyMJ != formats.Of[int64](1<<40) || x.TemperatureC != formats.Of[int32](61) ||
		x.SMClockMHz != formats.Of[int32](1755) || x.MemClockMHz != formats.Of[int32](3201) || x.UnixNS == 0 || !slices.Equal(x.Throttle, []string{"bit_20", "hw_thermal", "sw_power_cap"}) {
		t.Errorf("%+v", x)
	}
	want := []Process{{10, "program10", formats.Of[int64](7), "mps"}, {20, "program20", formats.Null[int64]{}, "compute"}, {30, "program30", formats.Of[int64](5 << 30), "mps"}}
	if !slices.Equal(x.Processes.V, want) {
		t.Errorf("processes %+v", x.Processes.V)
	}
	if !slices.Equal(x.GPUSample.Processes, []string{"10 program10 7", "20 program20 ?", "30 program30 5368709120"}) {
		t.Errorf("%q", x.GPUSample.Processes)
	}
	if err := r.Slow(g.UUID, &x); err != nil || x.PCIeTx != formats.Of[int64](100<<10) || x.PCIeRx != formats.Of[int64](101<<10) || x.MemoryTempC != formats.Of[int32](50) ||
		x.NVLinkTx != formats.Of[int64](51<<10) || x.NVLinkRx != formats.Of[int64](52<<10) || x.ECCUncorrected != formats.Of[int64](0) {
		t.Errorf("%v %+v", err, x)
	}
	if _, err := r.Events(t.Context(), []string{g.UUID}); err == nil {
		t.Error("events without support")
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

// An old driver lacks calls: they are not made, and what they would say is unknown.
func TestNVMLOldDriver(t *testing.T) {
	s, devices := simulated(t)
	s.LookupSymbolFunc = func(name string) error {
		if slices.Contains(needed, name) {
			return nil
		}
		return errTest
	}
	d := devices[0]
	d.GetMemoryInfo_v2Func, d.GetCurrentClocksEventReasonsFunc, d.GetMPSComputeRunningProcessesFunc, d.GetRemappedRowsFunc, d.GetFieldValuesFunc, d.GetNumaNodeIdFunc = nil, nil, nil, nil, nil, nil
	d.GetCurrentClocksThrottleReasonsFunc = func() (uint64, nvml.Return) { return 1, nvml.SUCCESS }
	r := open(t, s)
	x, err := r.Fast(d.UUID)
	if err != nil || x.MemoryUsed.Valid || !x.MemoryTotal.Valid || !slices.Equal(x.Throttle, []string{"idle"}) || !x.Processes.Valid {
		t.Errorf("%+v %v", x, err)
	}
	if err := r.Slow(d.UUID, &x); err != nil || x.NVLinkTx.Valid {
		t.Errorf("%+v %v", x, err)
	}
	v := Before(r, []GPU{{UUID: d.UUID}}, []string{d.UUID}, Checks{Proc: machine(t, false, nil)})
	if v.Level() != Warn || v.Findings[0].Code != memoryUnknown {
		t.Error(v.Findings)
	}
}

func TestNVMLDoesNotOpen(t *testing.T) {
	for ret, want := range map[nvml.Return][2]string{
		nvml.ERROR_LIBRARY_NOT_FOUND:       {"no NVIDIA driver is installed", "where the GPUs are"},
		nvml.ERROR_DRIVER_NOT_LOADED:       {"kernel driver is not loaded", "modprobe nvidia"},
		nvml.ERROR_LIB_RM_VERSION_MISMATCH: {"different versions", "restart the machine"},
		nvml.ERROR_NO_PERMISSION:           {"no permission", "/dev/nvidiactl"},
		nvml.ERROR_FUNCTION_NOT_FOUND:      {"driver is too old", "update the NVIDIA driver"},
		nvml.ERROR_UNKNOWN:                 {"NVML error 999", "nvidia-smi"},
	} {
		_, err := openWith(&mock.Interface{InitFunc: func() nvml.Return { return ret }})
		notOpenedFor(t, err, want[0], want[1])
	}
}

// notOpenedFor wants one line with a hint, and the same hint of a run that needs the GPUs.
func notOpenedFor(t *testing.T, err error, text, hint string) {
	t.Helper()
	e, ok := errors.AsType[*OpenError](err)
	if !ok || !strings.HasPrefix(e.Text, "open NVML: ") || !strings.Contains(e.Text, text) || !strings.Contains(e.Hint, hint) || strings.Contains(e.Text+e.Hint, "\n") {
		t.Fatalf("%v, want %s and %s", err, text, hint)
	}
	if f := Unavailable(err).Findings[0]; f.Level != Invalid || !strings.Contains(f.Text, text) || f.Advice() != e.Hint+"; or --exclusive=off" {
		t.Errorf("%+v: %s", f, f.Advice())
	}
}

// The table of reasons is NVML's.
func TestThrottleBits(t *testing.T) {
	for bit, want := range map[uint64]string{
		nvml.ClocksEventReasonGpuIdle: reasonIdle, nvml.ClocksEventReasonApplicationsClocksSetting: reasonAppClocks, nvml.ClocksEventReasonSwPowerCap: reasonPowerCap,
		nvml.ClocksThrottleReasonHwSlowdown: reasonHWSlowdown, nvml.ClocksEventReasonSyncBoost: reasonSyncBoost, nvml.ClocksEventReasonSwThermalSlowdown: reasonSWThermal,
		nvml.ClocksThrottleReasonHwThermalSlowdown: reasonHWThermal, nvml.ClocksThrottleReasonHwPowerBrakeSlowdown: reasonPowerBrake, nvml.ClocksEventReasonDisplayClockSetting: reasonDisplayClock,
	} {
		if got := throttleNames(bit); !slices.Equal(got, []string{want}) {
			t.Errorf("bit %d is %v, want %s", bit, got, want)
		}
	}
}

func TestNVMLTooOld(t *testing.T) {
	s, _ := simulated(t)
	s.LookupSymbolFunc = func(string) error { return errTest }
	_, err := openWith(s)
	notOpenedFor(t, err, "the driver is too old: its library lacks "+needed[0], "update the NVIDIA driver")
}

// The verdicts again, through NVML's own calls.
func TestNVMLVerdicts(t *testing.T) {
	compute := func(pids ...uint32) func() ([]nvml.ProcessInfo, nvml.Return) {
		return func() ([]nvml.ProcessInfo, nvml.Return) {
			var list []nvml.ProcessInfo
			for _, pid := range pids {
				list = append(list, nvml.ProcessInfo{Pid: pid, UsedGpuMemory: 1 << 30})
			}
			return list, nvml.SUCCESS
		}
	}
	used := func(n uint64) func() (nvml.Memory_v2, nvml.Return) {
		return func() (nvml.Memory_v2, nvml.Return) {
			return nvml.Memory_v2{Total: 141 << 30, Free: 141<<30 - n, Used: n}, nvml.SUCCESS
		}
	}
	for _, c := range []struct {
		name string
		set  func(*server.Device)
		want string // code; "" passes
	}{
		{"idle", func(*server.Device) {}, ""},
		{"own process", func(d *server.Device) {
			d.GetComputeRunningProcessesFunc, d.GetMemoryInfo_v2Func = compute(ownPID), used(1<<30)
		}, ""},
		{"foreign process", func(d *server.Device) {
			d.GetComputeRunningProcessesFunc, d.GetMemoryInfo_v2Func = compute(otherPID), used(1<<30)
		}, foreignProcess},
		{"graphics process", func(d *server.Device) { d.GetGraphicsRunningProcessesFunc = compute(otherPID) }, foreignProcess},
		{"hidden process", func(d *server.Device) { d.GetMemoryInfo_v2Func = used(2 << 30) }, hiddenMemory},
		{"process list refused", func(d *server.Device) {
			d.GetComputeRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) { return nil, nvml.ERROR_NO_PERMISSION }
		}, processesUnknown},
		{"MPS client", func(d *server.Device) { d.GetMPSComputeRunningProcessesFunc = compute(otherPID) }, mpsClient},
		{"lost", func(d *server.Device) {
			d.GetMemoryInfo_v2Func = func() (nvml.Memory_v2, nvml.Return) { return nvml.Memory_v2{}, nvml.ERROR_GPU_IS_LOST }
		}, lostGPU},
		{"needs a reset", func(d *server.Device) {
			d.GetTotalEccErrorsFunc = func(nvml.MemoryErrorType, nvml.EccCounterType) (uint64, nvml.Return) {
				return 0, nvml.ERROR_RESET_REQUIRED
			}
		}, lostGPU},
		{"ECC before", func(d *server.Device) {
			d.GetTotalEccErrorsFunc = func(nvml.MemoryErrorType, nvml.EccCounterType) (uint64, nvml.Return) { return 3, nvml.SUCCESS }
		}, oldECCErrors},
		{"remapping pending", func(d *server.Device) {
			d.GetRemappedRowsFunc = func() (int, int, bool, bool, nvml.Return) { return 1, 1, true, false, nvml.SUCCESS }
		}, remapPending},
		{"throttling", func(d *server.Device) {
			d.GetCurrentClocksEventReasonsFunc = func() (uint64, nvml.Return) { return nvml.ClocksThrottleReasonHwSlowdown, nvml.SUCCESS }
		}, hardwareSlowdown},
		{"divided", func(d *server.Device) {
			d.MigMode = nvml.DEVICE_MIG_ENABLE
			d.GetMaxMigDeviceCountFunc = func() (int, nvml.Return) { return 0, nvml.SUCCESS }
		}, migMismatch},
		{"prohibited", func(d *server.Device) {
			d.GetComputeModeFunc = func() (nvml.ComputeMode, nvml.Return) { return nvml.COMPUTEMODE_PROHIBITED, nvml.SUCCESS }
		}, computeProhibited},
		{"no persistence", func(d *server.Device) {
			d.GetPersistenceModeFunc = func() (nvml.EnableState, nvml.Return) { return nvml.FEATURE_DISABLED, nvml.SUCCESS }
		}, persistenceOff},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, devices := simulated(t)
			c.set(devices[1])
			r := open(t, s)
			gpus, err := r.GPUs()
			if err != nil {
				t.Fatal(err)
			}
			checks := Checks{Owns: owns, Proc: machine(t, false, nil)}
			if v := Before(r, gpus, []string{devices[0].UUID, devices[2].UUID}, checks); v.Level() != Pass {
				t.Errorf("its neighbors: %v", v.Findings)
			}
			v := Before(r, gpus, []string{devices[1].UUID}, checks)
			switch {
			case c.want == "" && len(v.Findings) > 0, c.want != "" && (len(v.Findings) != 1 || v.Findings[0].Code != c.want):
				t.Errorf("findings %v, want %q", v.Findings, c.want)
			}
		})
	}
}

func TestNVMLInstances(t *testing.T) {
	s, devices := simulated(t)
	whole, part := devices[0], dgxh200.NewDevice(9)
	whole.MigMode = nvml.DEVICE_MIG_ENABLE
	part.UUID = "MIG-1234"
	fill(part)
	for _, call := range []*func() (uint32, nvml.Return){&part.GetPowerUsageFunc} {
		*call = func() (uint32, nvml.Return) { return 0, nvml.ERROR_NOT_SUPPORTED }
	}
	part.GetTemperatureFunc = func(nvml.TemperatureSensors) (uint32, nvml.Return) { return 0, nvml.ERROR_NOT_SUPPORTED }
	part.GetMemoryInfo_v2Func = func() (nvml.Memory_v2, nvml.Return) {
		return nvml.Memory_v2{Total: 16 << 30, Free: 16 << 30}, nvml.SUCCESS
	}
	part.IsMigDeviceHandleFunc = func() (bool, nvml.Return) { return true, nvml.SUCCESS }
	part.GetDeviceHandleFromMigDeviceHandleFunc = func() (nvml.Device, nvml.Return) { return whole, nvml.SUCCESS }
	whole.IsMigDeviceHandleFunc = func() (bool, nvml.Return) { return false, nvml.SUCCESS }
	whole.GetMaxMigDeviceCountFunc = func() (int, nvml.Return) { return 7, nvml.SUCCESS }
	whole.GetMigDeviceHandleByIndexFunc = func(i int) (nvml.Device, nvml.Return) {
		if i == 2 {
			return part, nvml.SUCCESS
		}
		return nil, nvml.ERROR_NOT_FOUND
	}
	r := open(t, s)
	gpus, err := r.GPUs()
	if err != nil || !gpus[0].MIG || len(gpus[0].Instances) != 1 || gpus[0].Instances[0].UUID != "MIG-1234" {
		t.Fatalf("%+v %v", gpus[0], err)
	}
	x, err := r.Fast("MIG-1234")
	if err != nil || x.MemoryTotal != formats.Of[int64](16<<30) || x.PowerMW != formats.Of[int64](512345) || x.TemperatureC != formats.Of[int32](61) {
		t.Errorf("an instance has its own memory and the whole's sensors: %+v %v", x, err)
	}
	if v := Before(r, gpus, []string{"MIG-1234"}, Checks{Proc: machine(t, false, nil)}); v.Level() != Pass {
		t.Error(v.Findings)
	}
	if v := Before(r, gpus, []string{whole.UUID}, Checks{Proc: machine(t, false, nil)}); v.Valid() {
		t.Error("a divided GPU passes as a whole one")
	}
}

func TestNVMLEvents(t *testing.T) {
	s, devices := simulated(t)
	answers := []struct {
		e nvml.EventData
		r nvml.Return
	}{
		{nvml.EventData{}, nvml.ERROR_TIMEOUT},
		{nvml.EventData{Device: devices[1], EventType: nvml.EventTypeXidCriticalError, EventData: 79}, nvml.SUCCESS},
		{nvml.EventData{EventType: 1}, nvml.SUCCESS},
		{nvml.EventData{}, nvml.ERROR_GPU_IS_LOST},
	}
	set := &mock.EventSet{
		WaitFunc: func(uint32) (nvml.EventData, nvml.Return) { a := answers[0]; answers = answers[1:]; return a.e, a.r },
		FreeFunc: func() nvml.Return { return nvml.SUCCESS },
	}
	s.EventSetCreateFunc = func() (nvml.EventSet, nvml.Return) { return set, nvml.SUCCESS }
	for _, d := range devices {
		d.RegisterEventsFunc = func(bits uint64, _ nvml.EventSet) nvml.Return {
			if bits != nvml.EventTypeXidCriticalError {
				t.Errorf("events %d", bits)
			}
			return nvml.SUCCESS
		}
	}
	r := open(t, s)
	for i, want := range []int{0, 1, 0} {
		got, err := r.Events(t.Context(), []string{devices[0].UUID, devices[1].UUID})
		if err != nil || len(got) != want {
			t.Fatalf("%d: %v %v", i, got, err)
		}
		if want == 1 && got[0] != (Event{devices[1].UUID, 79}) {
			t.Error(got)
		}
	}
	if _, err := r.Events(t.Context(), nil); !errors.Is(err, ErrLost) {
		t.Error(err)
	}
	r.Close()
	if len(set.FreeCalls()) != 1 {
		t.Error("the event set was not freed")
	}
}

// A foreign process in the middle of a run, seen by NVML while the watch runs on the real clock.
func TestNVMLWatch(t *testing.T) {
	s, devices := simulated(t)
	n := 0
	devices[0].GetComputeRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) {
		n++
		if n > 5 && n < 10 {
			return []nvml.ProcessInfo{{Pid: otherPID, UsedGpuMemory: 1 << 20}}, nvml.SUCCESS
		}
		return nil, nvml.SUCCESS
	}
	r := open(t, s)
	rows := 0
	w := StartWatch(t.Context(), r, WatchOptions{UUIDs: []string{devices[0].UUID, devices[1].UUID}, Fast: time.Millisecond, Slow: 2 * time.Millisecond,
		Checks: Checks{Owns: owns, Proc: machine(t, false, map[int]string{otherPID: "trainer"})},
		Sink:   func(s []formats.GPUSample) error { rows += len(s); return nil }})
	for w.Verdict().Valid() {
		time.Sleep(time.Millisecond)
	}
	res := w.Stop()
	if len(res.Findings) != 1 || !strings.Contains(res.Findings[0].String(), "trainer") || res.Findings[0].UUID != devices[0].UUID || rows != 2*res.GPUs[0].Readings {
		t.Errorf("%v, %d rows, %d readings", res.Findings, rows, res.GPUs[0].Readings)
	}
}
