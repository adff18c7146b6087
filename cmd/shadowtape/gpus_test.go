package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/gpu"
)

// twoGPUs is a double of NVML: one free GPU, one that somebody uses.
type twoGPUs struct{}

func (twoGPUs) System() (gpu.System, error) {
	return gpu.System{Driver: "570.1", NVML: "12.570.1", CUDA: "12.8"}, nil
}

func (twoGPUs) GPUs() ([]gpu.GPU, error) {
	return []gpu.GPU{{Index: 0, UUID: "GPU-aaaa", Name: "NVIDIA H200", Peers: map[string]string{"GPU-bbbb": "NODE"}}, {Index: 1, UUID: "GPU-bbbb", Name: "NVIDIA H200", Persistence: formats.Of(true)}}, nil
}

func (twoGPUs) Fast(uuid string) (gpu.Reading, error) {
	r := gpu.Reading{Processes: formats.Of([]gpu.Process{})}
	r.UUID, r.MemoryUsed, r.MemoryTotal, r.PowerMW, r.TemperatureC = uuid, formats.Of[int64](1<<20), formats.Of[int64](141<<30), formats.Of[int64](71000), formats.Of[int32](30)
	r.Throttle, r.GPUSample.Processes = []string{"idle"}, []string{}
	if uuid == "GPU-bbbb" {
		r.Processes = formats.Of([]gpu.Process{{PID: 1 << 30, Name: "trainer", Bytes: formats.Of[int64](5 << 30), Type: "compute"}})
		r.MemoryUsed, r.GPUSample.Processes = formats.Of[int64](5<<30), []string{"1073741824 trainer 5368709120"}
	}
	return r, nil
}

func (twoGPUs) Slow(string, *gpu.Reading) error { return nil }
func (twoGPUs) Close() error                    { return nil }
func (twoGPUs) Events(ctx context.Context, _ []string) ([]gpu.Event, error) {
	<-ctx.Done()
	return nil, nil
}

func withGPUs(t *testing.T, open func() (gpu.Reader, error)) {
	t.Helper()
	old := openGPUs
	openGPUs = open
	t.Cleanup(func() { openGPUs = old })
}

func TestGPUs(t *testing.T) {
	withGPUs(t, func() (gpu.Reader, error) { return twoGPUs{}, nil })
	dir := t.TempDir()
	lease, err := gpu.Acquire(t.Context(), []string{"GPU-bbbb"}, gpu.LeaseOptions{Dir: dir, Holder: "bob, shadowtape replay"})
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Release()
	code, out, errs := invoke("gpus", "--lock-dir", dir)
	for _, want := range []string{"driver 570.1, CUDA 12.8, 2 GPUs", "0    NVIDIA H200  0.0 GiB  141.0 GiB  -     71 W   30 °C  free    pass", "held    invalid", "held by bob, shadowtape replay (process", "compute process 1073741824", "end it, or choose another GPU"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in\n%s", want, out)
		}
	}
	if code != exitGood || errs != "" {
		t.Errorf("exit %d, stderr %q", code, errs)
	}
	code, out, errs = invoke("gpus", "--json", "--lock-dir", dir)
	var list gpuList
	if err := json.Unmarshal([]byte(out), &list); err != nil || code != exitGood || errs != "" {
		t.Fatalf("%v, exit %d, stderr %q", err, code, errs)
	}
	if list.GPUs[0].Verdict != gpu.Pass || list.GPUs[0].Holder != nil || list.GPUs[1].Verdict != gpu.Invalid || list.GPUs[1].Holder.PID != os.Getpid() || list.GPUs[1].Findings[0].Code != "foreign_process" {
		t.Errorf("%+v", list)
	}
	documentedKeys(t, "gpus", out)
}

// documentedKeys holds a verb's JSON to its section in docs/CLI_JSON.md, both ways.
func documentedKeys(t *testing.T, verb, out string) {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "CLI_JSON.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(page), "\n## "+verb+"\n")
	if !ok {
		t.Fatalf("docs/CLI_JSON.md has no section %q", verb)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	var doc any
	if err := json.Unmarshal([]byte(out), &doc); err != nil {
		t.Fatal(err)
	}
	printed := map[string]bool{}
	keys(doc, "", printed)
	var documented []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+)`").FindAllStringSubmatch(section, -1) {
		documented = append(documented, m[1])
	}
	for k := range printed {
		if !slices.ContainsFunc(documented, func(d string) bool { return covers(d, k) }) {
			t.Errorf("%s prints %q, which docs/CLI_JSON.md does not have", verb, k)
		}
	}
	for _, d := range documented {
		found := strings.HasSuffix(d, "?")
		for k := range printed {
			found = found || covers(d, k)
		}
		if !found {
			t.Errorf("docs/CLI_JSON.md has %s %q, which is not printed", verb, d)
		}
	}
}

func TestGPUsWithout(t *testing.T) {
	for _, c := range []struct {
		err        error
		want, hint string
	}{
		{gpu.ErrUnsupported, "list GPUs: this build has no NVML", "make build-nvml"},
		{&gpu.OpenError{Text: "open NVML: the NVIDIA kernel driver is not loaded", Hint: "modprobe nvidia"}, "list GPUs: open NVML: the NVIDIA kernel driver is not loaded", "hint: modprobe nvidia"},
	} {
		withGPUs(t, func() (gpu.Reader, error) { return nil, c.err })
		code, out, errs := invoke("gpus", "--json")
		if code != exitFailed || out != "" || errs != "shadowtape: "+c.want+"\nhint: "+strings.TrimPrefix(errs[strings.Index(errs, "hint: "):], "hint: ") || !strings.Contains(errs, c.hint) {
			t.Errorf("exit %d, stdout %q, stderr %q", code, out, errs)
		}
	}
}
