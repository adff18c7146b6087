package formats

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestGPUSamples(t *testing.T) {
	where := filepath.Join(t.TempDir(), "run")
	w, err := CreateRun(where, Manifest{})
	if err != nil {
		t.Fatal(err)
	}
	want := []GPUSample{
		{UnixNS: 1, UUID: "GPU-a"}, // nothing but its name is known
		{UnixNS: 2, UUID: "GPU-a", SMUtil: Of(0.5), MemUtil: Of(0.0), MemoryUsed: Of[int64](0), MemoryTotal: Of[int64](80 << 30), PowerMW: Of[int64](700123),
			EnergyMJ: Of[int64](1 << 50), TemperatureC: Of[int32](-3), MemoryTempC: Of[int32](90), SMClockMHz: Of[int32](1980), MemClockMHz: Of[int32](2619),
			Throttle: []string{}, Processes: []string{"12 python3 1024", "13 x ?"}, PCIeTx: Of[int64](1), PCIeRx: Of[int64](2), NVLinkTx: Of[int64](3), NVLinkRx: Of[int64](4), ECCUncorrected: Of[int64](0)},
		{UnixNS: 3, UUID: "MIG-b", Throttle: []string{"hw_thermal", "sw_power_cap"}, Processes: []string{}},
	}
	if err := w.WriteGPU(want[:1]); err != nil {
		t.Fatal(err)
	}
	if err := w.WriteGPU(want[1:]); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(Manifest{}); err != nil {
		t.Fatal(err)
	}
	tr, err := Open(where)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	var got []GPUSample
	for s, err := range tr.GPUSamples() {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, s)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// TestGPUColumnsAreDocumented holds docs/FORMAT.md to gpu.parquet's columns, both ways.
func TestGPUColumnsAreDocumented(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "docs", "FORMAT.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(page), "\n## gpu.parquet\n")
	if !ok {
		t.Fatal("docs/FORMAT.md has no section gpu.parquet")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	documented := map[string]bool{}
	for line := range strings.SplitSeq(section, "\n") {
		if cells := strings.Split(line, "|"); len(cells) > 2 {
			for _, m := range regexp.MustCompile("`([a-z_]+)`").FindAllStringSubmatch(cells[1], -1) {
				documented[m[1]] = true
			}
		}
	}
	row := reflect.TypeFor[gpuRow]()
	for i := range row.NumField() {
		name, _, _ := strings.Cut(row.Field(i).Tag.Get("parquet"), ",")
		if !documented[name] {
			t.Errorf("docs/FORMAT.md lacks %s", name)
		}
		delete(documented, name)
	}
	for name := range documented {
		t.Errorf("docs/FORMAT.md has %s, which is no column", name)
	}
}
