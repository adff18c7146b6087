package gpu

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shadowtape/shadowtape/formats"
)

var update = flag.Bool("update", false, "write docs/GPUS.md's table anew")

// scenario is a situation as NVML and the machine show it. Exactly the finding of its code is expected, at its level.
type scenario struct {
	code string
	when string // before or during
	gpu  GPU
	fast func(n int) (Reading, error)
	slow func(n int, r *Reading) error
	xid  uint64
	free int64
	proc map[int]string
	ns   bool // this program's process numbers are its own
	want string
}

var scenarios = []scenario{
	{code: ownProcess, when: "before", want: ""},
	{code: ownProcess, when: "during", fast: always(using(100<<20, proc(ownPID, "compute", 70*gib))), want: ""},
	{code: lostGPU, when: "before", fast: fails(fmt.Errorf("x: %w", ErrLost)), want: "GPU GPU-a: x: the GPU is lost"},
	{code: lostGPU, when: "before", slow: func(int, *Reading) error { return ErrLost }, want: "the GPU is lost"},
	{code: lostGPU, when: "during", fast: from(20, fmt.Errorf("x: %w", ErrLost)), want: "GPU GPU-a: x: the GPU is lost, from 00:00:02.0 to 00:00:04.9 UTC"},
	{code: xidError, when: "during", xid: 79, want: "XID 79"},
	{code: applicationXID, when: "during", xid: 31, want: "XID 31"},
	{code: eccErrors, when: "during", slow: func(n int, r *Reading) error { r.ECCUncorrected = formats.Of(int64(n / 3)); return nil }, want: "1 uncorrected memory errors during the run, from 00:00:03.0 to 00:00:04.0 UTC"},
	{code: oldECCErrors, when: "before", slow: func(_ int, r *Reading) error { r.ECCUncorrected = formats.Of[int64](2); return nil }, want: "2 uncorrected memory errors since"},
	{code: remapPending, when: "before", gpu: GPU{Remapped: formats.Of(true)}, want: "wait to be remapped"},
	{code: foreignProcess, when: "before", fast: always(using(0, proc(otherPID, "compute", gib))), proc: map[int]string{otherPID: "python3"}, want: "GPU GPU-a: compute process 200 (python3 in container 4f2a9c0d1e3b) uses it (1.0 GiB)"},
	{code: foreignProcess, when: "before", fast: always(using(0, proc(otherPID, "graphics", 5<<20))), ns: true, proc: map[int]string{otherPID: "not-the-same"}, want: "graphics process 200 (cannot be seen from here) uses it (5 MiB)"},
	{code: foreignProcess, when: "during", fast: during(10, 12, using(0, proc(ownPID, "compute", gib), proc(otherPID, "compute", gib)), using(0, proc(ownPID, "compute", gib))), proc: map[int]string{otherPID: "python3"}, want: "python3 in container 4f2a9c0d1e3b) uses it (1.0 GiB), from 00:00:01.0 to 00:00:01.1 UTC"},
	{code: foreignProcess, when: "during", fast: during(10, 12, using(0, proc(otherPID, "compute", gib)), quiet()), ns: true, want: "compute process 200 (cannot be seen from here) uses it (1.0 GiB), from 00:00:01.0 to 00:00:01.1 UTC"},
	{code: briefProcess, when: "during", fast: during(10, 11, using(0, proc(otherPID, "compute", 1<<20)), quiet()), ns: true, want: "process 200 was there in one reading, from 00:00:01.0 UTC"},
	{code: mpsClient, when: "before", fast: always(using(0, proc(otherPID, "mps", gib))), want: "mps process 200"},
	{code: mpsClient, when: "during", fast: always(using(0, proc(otherPID, "mps", gib))), want: "mps process 200"},
	{code: mpsDaemon, when: "before", proc: map[int]string{50: "nvidia-cuda-mps"}, want: "the multi-process service runs (process 50)"},
	{code: mpsDaemon, when: "during", proc: map[int]string{50: "nvidia-cuda-mps"}, want: "the multi-process service runs (process 50), from 00:00:00.0 to 00:00:04.0 UTC"},
	{code: hiddenMemory, when: "before", fast: always(using(300 << 20)), want: "300 MiB are in use that no visible process explains"},
	{code: hiddenMemory, when: "during", fast: during(10, 20, using(3*gib, proc(ownPID, "compute", 70*gib)), using(0, proc(ownPID, "compute", 70*gib))), want: "3.0 GiB are in use that no visible process explains, from 00:00:01.0 to 00:00:01.9 UTC"},
	{code: processesUnknown, when: "before", fast: always(with(func(r *Reading) { r.Processes = formats.Null[[]Process]{} })), want: "no list of its processes"},
	{code: processesUnknown, when: "before", fast: fails(errTest), want: "it cannot be read: a test's failure"},
	{code: processesUnknown, when: "during", fast: always(with(func(r *Reading) { r.Processes = formats.Null[[]Process]{} })), want: "no list of its processes"},
	{code: migMismatch, when: "before", gpu: GPU{MIG: true, Instances: []MIG{{UUID: "MIG-b"}, {UUID: "MIG-c"}}}, want: "divided into 2 instances"},
	{code: computeProhibited, when: "before", gpu: GPU{ComputeMode: "prohibited"}, want: "prohibited"},
	{code: littleMemory, when: "before", free: 80 * gib, want: "79.0 GiB are free, 80.0 GiB are asked for"},
	{code: hardwareSlowdown, when: "before", fast: always(with(func(r *Reading) { r.Throttle = []string{reasonPowerBrake} })), want: "slowed down already: hw_power_brake"},
	{code: hardwareSlowdown, when: "during", fast: throttled(25, reasonHWThermal), want: "hw_thermal in 50.0 % of the readings"},
	{code: thermalSlowdown, when: "before", fast: always(with(func(r *Reading) { r.Throttle = []string{reasonSWThermal} })), want: "slowed down already: sw_thermal"},
	{code: thermalDuring, when: "during", fast: throttled(5, reasonSWThermal), want: "sw_thermal in 10.0 % of the readings"},
	{code: powerCap, when: "during", fast: throttled(49, reasonPowerCap), want: "sw_power_cap in 98.0 % of the readings"},
	{code: clocksLimited, when: "before", fast: always(with(func(r *Reading) { r.Throttle = []string{reasonAppClocks} })), want: "limited by application_clocks"},
	{code: clocksLimited, when: "during", fast: throttled(10, reasonSyncBoost), want: "sync_boost in 20.0 % of the readings"},
	{code: memoryUnknown, when: "before", fast: always(with(func(r *Reading) { r.MemoryUsed = formats.Null[int64]{} })), want: "does not say how much memory is used"},
	{code: memoryUnknown, when: "during", fast: always(using(5*gib, Process{PID: ownPID, Type: "compute"})), want: "how much memory process 100 uses"},
	{code: persistenceOff, when: "before", gpu: GPU{Persistence: formats.Of(false)}, want: "persistence mode is off"},
	{code: blindSpot, when: "during", fast: func(n int) (Reading, error) {
		if n == 10 {
			time.Sleep(2500 * time.Millisecond) // NVML hangs
		}
		return quiet(), nil
	}, want: "no reading for 2.5 s"},
}

func always(r Reading) func(int) (Reading, error) {
	return func(int) (Reading, error) { return r, nil }
}

func fails(err error) func(int) (Reading, error) {
	return func(int) (Reading, error) { return Reading{}, err }
}

func from(first int, err error) func(int) (Reading, error) {
	return func(n int) (Reading, error) {
		if n >= first {
			return Reading{}, err
		}
		return quiet(), nil
	}
}

// during is r for readings first to end-1, else other.
func during(first, end int, r, other Reading) func(int) (Reading, error) {
	return func(n int) (Reading, error) {
		if n >= first && n < end {
			return r, nil
		}
		return other, nil
	}
}

func with(change func(*Reading)) Reading {
	r := quiet()
	change(&r)
	return r
}

func throttled(readings int, reason string) func(int) (Reading, error) {
	return func(n int) (Reading, error) {
		r := quiet()
		if n < readings {
			r.Throttle = []string{reason}
		}
		return r, nil
	}
}

func (s scenario) run(t *testing.T) Verdict {
	t.Helper()
	g := s.gpu
	g.UUID = "GPU-a"
	f := &fake{gpus: []GPU{g}}
	if s.fast != nil {
		f.fast = func(_ string, n int) (Reading, error) { return s.fast(n) }
	}
	if s.slow != nil {
		f.slow = func(_ string, n int, r *Reading) error { return s.slow(n, r) }
	}
	if s.xid != 0 {
		f.events = func(n int) ([]Event, error) {
			time.Sleep(time.Second)
			if n == 1 {
				return []Event{{"GPU-a", s.xid}}, nil
			}
			return nil, nil
		}
	}
	checks := Checks{Owns: owns, Free: s.free, Proc: machine(t, s.ns, s.proc)}
	if s.when == "before" {
		return Before(f, f.gpus, []string{"GPU-a"}, checks)
	}
	var v Verdict
	synctest.Test(t, func(t *testing.T) {
		if d := time.Until(time.Now().Truncate(24 * time.Hour).Add(24 * time.Hour)); d > 0 && time.Now().Hour() != 0 {
			time.Sleep(d)
		}
		w := StartWatch(t.Context(), f, WatchOptions{UUIDs: []string{"GPU-a"}, Checks: checks})
		time.Sleep(5*time.Second - time.Millisecond)
		v = w.Stop().Verdict
	})
	return v
}

// TestScenarios runs every scenario: it gives its own finding and no other.
func TestScenarios(t *testing.T) {
	for _, s := range scenarios {
		t.Run(s.code+"_"+s.when, func(t *testing.T) {
			v := s.run(t)
			row := situation(s.code)
			if row.When != "both" && row.When != s.when {
				t.Errorf("the table says %s", row.When)
			}
			if v.Level() != row.Level || v.Valid() != (row.Level != Invalid) {
				t.Errorf("level %s, the table says %s: %v", v.Level(), row.Level, v.Findings)
			}
			if row.Level == Pass {
				if len(v.Findings) > 0 {
					t.Errorf("findings %v", v.Findings)
				}
				return
			}
			if len(v.Findings) != 1 || v.Findings[0].Code != s.code {
				t.Fatalf("findings %v", v.Findings)
			}
			line := v.Lines(row.Level)[0]
			if !strings.Contains(line, s.want) || strings.Contains(line, "\n") {
				t.Errorf("it says %q, want %q", line, s.want)
			}
		})
	}
}

// TestTable holds the table to the scenarios, and docs/GPUS.md to the table.
func TestTable(t *testing.T) {
	seen := map[string]bool{noNVML: true, notExclusive: true}
	for _, s := range scenarios {
		seen[s.code+s.when] = true
		seen[s.code] = true
	}
	for _, s := range Situations {
		if !seen[s.Code] {
			t.Errorf("no scenario shows %s", s.Code)
		}
		if s.When == "both" && !seen[s.Code+"before"] && !seen[s.Code+"during"] && s.Code != noNVML && s.Code != notExclusive {
			t.Errorf("%s has no scenario before and during", s.Code)
		}
		if (s.Advice == "") != (s.Level == Pass) {
			t.Errorf("%s: advice %q at level %s", s.Code, s.Advice, s.Level)
		}
	}
	if v := Unavailable(ErrUnsupported); v.Valid() || !strings.Contains(v.Lines(Invalid)[0], "no NVML") {
		t.Error(v)
	}
	if v := Off(); !v.Valid() || v.Level() != Warn {
		t.Error(v)
	}
	var b strings.Builder
	b.WriteString("| what NVML or the machine shows | when | verdict | code | what to do |\n|---|---|---|---|---|\n")
	for _, s := range Situations {
		fmt.Fprintf(&b, "| %s | %s | **%s** | `%s` | %s |\n", cell(s.Shows), s.When, s.Level, s.Code, cell(s.Advice))
	}
	path := filepath.Join("..", "..", "docs", "GPUS.md")
	doc, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "<!-- situations: written by go test ./internal/gpu -update -->\n", "<!-- end of situations -->\n"
	head, rest, ok1 := strings.Cut(string(doc), begin)
	table, tail, ok2 := strings.Cut(rest, end)
	if !ok1 || !ok2 {
		t.Fatalf("%s lacks the table's marks", path)
	}
	if table != b.String() {
		if !*update {
			t.Fatalf("%s is not the table in situation.go; go test ./internal/gpu -update writes it", path)
		}
		if err := os.WriteFile(path, []byte(head+begin+b.String()+end+tail), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// cell makes text safe in a Markdown table.
func cell(s string) string { return strings.ReplaceAll(s, "|", "\\|") }

func TestSelect(t *testing.T) {
	gpus := []GPU{{Index: 0, UUID: "GPU-a"}, {Index: 1, UUID: "GPU-b", MIG: true, Instances: []MIG{{UUID: "MIG-x", Name: "1g.10gb"}}}, {Index: 2, UUID: "GPU-c"}}
	for _, c := range []struct {
		name string
		r    Request
		want string
		err  string
	}{
		{"count", Request{Count: 2}, "GPU-a GPU-c", ""},
		{"too many", Request{Count: 3}, "", "3 undivided wanted"},
		{"all", Request{All: true}, "GPU-a GPU-c", ""},
		{"indices", Request{Indices: []int{2, 0}}, "GPU-c GPU-a", ""},
		{"no such index", Request{Indices: []int{7}}, "", "there is no GPU 7; there are 0 ("},
		{"divided index", Request{Indices: []int{1}}, "", "divided (MIG)"},
		{"uuid", Request{UUIDs: []string{"gpu-C"}}, "GPU-c", ""},
		{"instance", Request{UUIDs: []string{"MIG-x"}}, "MIG-x", ""},
		{"no such uuid", Request{UUIDs: []string{"GPU-z"}}, "", "there is no GPU GPU-z"},
	} {
		got, err := Select(gpus, c.r)
		var ids []string
		for _, g := range got {
			ids = append(ids, g.UUID)
		}
		if strings.Join(ids, " ") != c.want || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %v %v", c.name, ids, err)
		}
	}
	if Whole(gpus, "MIG-x") != "GPU-b" || Whole(gpus, "GPU-a") != "GPU-a" {
		t.Error("whole")
	}
	if _, err := Select(nil, Request{Count: 1}); err == nil || !strings.Contains(err.Error(), "there are none") {
		t.Error(err)
	}
}

// TestWatchTelemetry: 10 Hz and 1 Hz on a virtual clock, exactly.
func TestWatchTelemetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		f := &fake{gpus: []GPU{{UUID: "GPU-a"}, {UUID: "GPU-b"}},
			fast: func(id string, n int) (Reading, error) {
				r := using(0, proc(ownPID, "compute", int64(n)<<20))
				r.EnergyMJ = formats.Of(int64(1000 * n))
				r.TemperatureC = formats.Of(int32(40 + n))
				return r, nil
			},
			slow: func(id string, n int, r *Reading) error {
				r.PCIeTx = formats.Of(int64(n))
				r.ECCUncorrected = formats.Of[int64](0)
				return nil
			}}
		var rows []formats.GPUSample
		w := StartWatch(t.Context(), f, WatchOptions{UUIDs: []string{"GPU-a", "GPU-b"}, Checks: Checks{Owns: owns, Proc: machine(t, false, nil)},
			Sink: func(s []formats.GPUSample) error { rows = append(rows, s...); return nil }})
		time.Sleep(2*time.Second + 50*time.Millisecond)
		res := w.Stop()
		if res.Err != nil || res.Level() != Pass {
			t.Fatalf("%v %v", res.Err, res.Findings)
		}
		if len(rows) != 2*21 {
			t.Fatalf("%d rows, want 21 a GPU", len(rows))
		}
		slow := 0
		for i, r := range rows {
			if want := start.Add(time.Duration(i/2) * 100 * time.Millisecond).UnixNano(); r.UnixNS != want {
				t.Fatalf("row %d at %d, want %d", i, r.UnixNS-start.UnixNano(), want-start.UnixNano())
			}
			if want := fmt.Sprintf("100 ? %d", i/2<<20); len(r.Processes) != 1 || r.Processes[0] != want {
				t.Fatalf("row %d has processes %q, want %q", i, r.Processes, want)
			}
			if r.PCIeTx.Valid {
				slow++
			}
		}
		if slow < 2*2 || slow > 2*3 {
			t.Errorf("%d rows hold slow readings, want 2 or 3 a GPU", slow)
		}
		g := res.GPUs[1]
		if g.UUID != "GPU-b" || g.Readings != 21 || g.TemperatureC.Start.V != 40 || g.TemperatureC.End.V != 60 || g.TemperatureC.Mean.V != 50 || g.TemperatureC.Max.V != 60 ||
			g.EnergyJ != formats.Of(20.0) || g.MemoryPeak != formats.Of[int64](20<<20) || len(g.ThrottledShare) != 0 {
			t.Errorf("%+v", g)
		}
	})
}

// What blocks, blocks only itself: the fast readings come on time.
func TestWatchSlowOnesDelayNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		f := &fake{slow: func(_ string, _ int, r *Reading) error {
			time.Sleep(1700 * time.Millisecond)
			r.PCIeTx = formats.Of[int64](1)
			return nil
		}}
		var rows []formats.GPUSample
		w := StartWatch(t.Context(), f, WatchOptions{UUIDs: []string{"GPU-a"}, Checks: Checks{Proc: machine(t, false, nil)}, Sink: func(s []formats.GPUSample) error { rows = append(rows, s...); return nil }})
		time.Sleep(5*time.Second + 50*time.Millisecond)
		if res := w.Stop(); res.Err != nil || res.Level() != Pass {
			t.Fatalf("%v %v", res.Err, res.Findings)
		}
		slow := 0
		for i, r := range rows {
			if want := start.Add(time.Duration(i) * 100 * time.Millisecond).UnixNano(); r.UnixNS != want {
				t.Fatalf("row %d at %d, want %d", i, r.UnixNS-start.UnixNano(), want-start.UnixNano())
			}
			if r.PCIeTx.Valid {
				slow++
			}
		}
		if len(rows) != 51 || slow == 0 {
			t.Errorf("%d rows, %d with slow readings", len(rows), slow)
		}
	})
}

// After Measure the covariates are those of what follows; courses go on.
func TestWatchMeasure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{fast: func(_ string, n int) (Reading, error) {
			r := quiet()
			r.TemperatureC, r.EnergyMJ, r.Throttle = formats.Of(int32(30+n/10)), formats.Of(int64(100*n)), []string{}
			if n < 30 {
				r.Throttle = []string{reasonHWSlowdown}
			}
			return r, nil
		}}
		w := StartWatch(t.Context(), f, WatchOptions{UUIDs: []string{"GPU-a"}, Checks: Checks{Proc: machine(t, false, nil)}})
		time.Sleep(3*time.Second - 50*time.Millisecond)
		if got := w.Courses()[0]; !slices.Equal(got.TemperatureC, []float64{30, 31, 32}) || !slices.Equal(got.SMClockMHz, []float64{1980, 1980, 1980}) {
			t.Errorf("%+v", got)
		}
		w.Measure()
		time.Sleep(2 * time.Second)
		res := w.Stop()
		g := res.GPUs[0]
		if g.Readings != 20 || g.TemperatureC.Start.V != 33 || g.TemperatureC.End.V != 34 || g.EnergyJ != formats.Of(1.9) || len(g.ThrottledShare) != 0 || !res.Valid() {
			t.Errorf("%+v, %v", g, res.Findings)
		}
	})
}

func TestWatchSinkFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		w := StartWatch(t.Context(), &fake{}, WatchOptions{UUIDs: []string{"GPU-a"}, Checks: Checks{Proc: machine(t, false, nil)},
			Sink: func([]formats.GPUSample) error { n++; return errTest }})
		time.Sleep(time.Second)
		res := w.Stop()
		if !errors.Is(res.Err, errTest) || n != 1 || res.GPUs[0].Readings < 9 {
			t.Errorf("%v after %d calls, %d readings", res.Err, n, res.GPUs[0].Readings)
		}
	})
}

// A number that comes again on another process is asked about again.
func TestWatchReusedNumber(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mine := true
		f := &fake{fast: func(_ string, n int) (Reading, error) {
			if n == 5 {
				return quiet(), nil
			}
			if n > 5 {
				mine = false
			}
			return using(0, proc(300, "compute", 1<<20)), nil
		}}
		w := StartWatch(t.Context(), f, WatchOptions{UUIDs: []string{"GPU-a"}, Checks: Checks{Owns: func(int) bool { return mine }, Proc: machine(t, true, nil)}})
		time.Sleep(time.Second)
		res := w.Stop()
		if res.Valid() || len(res.Findings) != 1 || res.Findings[0].Code != foreignProcess {
			t.Error(res.Findings)
		}
	})
}

func TestVerdictOrder(t *testing.T) {
	v := Verdict{[]Finding{find(persistenceOff, "a", "p"), find(hiddenMemory, "a", "h"), find(lostGPU, "a", "l"), find(powerCap, "a", "c")}}
	if got := v.Lines(Invalid); !slices.Equal(got, []string{"GPU a: l", "GPU a: h"}) {
		t.Error(got)
	}
	if got := v.Lines(Warn); !slices.Equal(got, []string{"GPU a: c", "GPU a: p"}) {
		t.Error(got)
	}
}
