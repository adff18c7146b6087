package gpu

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shadowtape/shadowtape/formats"
)

// dcgmPage is a page in the exporter's form, written for this test.
const dcgmPage = `# HELP DCGM_FI_DEV_SM_CLOCK SM clock frequency (in MHz).
# TYPE DCGM_FI_DEV_SM_CLOCK gauge
DCGM_FI_DEV_SM_CLOCK{gpu="0",UUID="GPU-aa",pci_bus_id="00000000:01:00.0",device="nvidia0",modelName="NVIDIA H200",Hostname="n1"} 1755
DCGM_FI_DEV_SM_CLOCK{gpu="1",UUID="GPU-bb",device="nvidia1",modelName="NVIDIA H200",GPU_I_PROFILE="1g.18gb",GPU_I_ID="7",Hostname="n1"} 1980
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-aa",device="nvidia0"} 93
DCGM_FI_DEV_MEM_COPY_UTIL{gpu="0",UUID="GPU-aa",device="nvidia0"} 41
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-aa"} 1000
DCGM_FI_DEV_FB_FREE{gpu="0",UUID="GPU-aa"} 500
DCGM_FI_DEV_FB_RESERVED{gpu="0",UUID="GPU-aa"} 24
DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-aa"} 512.345
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu="0",UUID="GPU-aa"} 1099511627776
DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-aa"} 61
DCGM_FI_DEV_MEMORY_TEMP{gpu="0",UUID="GPU-aa"} 0
DCGM_FI_DEV_CLOCK_THROTTLE_REASONS{gpu="0",UUID="GPU-aa"} 68
DCGM_FI_PROF_PCIE_TX_BYTES{gpu="0",UUID="GPU-aa"} 123456
DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{gpu="0",UUID="GPU-aa"} 0
DCGM_FI_DEV_MEM_CLOCK{gpu="0",UUID="GPU-aa"} NaN
DCGM_FI_DEV_GPU_TEMP{gpu="9"} 5
go_goroutines 12
broken line
`

func TestParseDCGM(t *testing.T) {
	got := ParseDCGM([]byte(dcgmPage), time.Unix(1, 0))
	if len(got) != 2 || got[0].UUID != "GPU-aa" || got[1].UUID != "GPU-bb/7" || got[1].SMClockMHz != formats.Of[int32](1980) || got[1].SMUtil.Valid {
		t.Fatalf("%+v", got)
	}
	a := got[0]
	if a.UnixNS != 1e9 || a.SMUtil != formats.Of(0.93) || a.MemUtil != formats.Of(0.41) || a.MemoryUsed != formats.Of[int64](1000<<20) || a.MemoryTotal != formats.Of[int64](1524<<20) ||
		a.PowerMW != formats.Of[int64](512345) || a.EnergyMJ != formats.Of[int64](1<<40) || a.TemperatureC != formats.Of[int32](61) || a.MemoryTempC.Valid || a.MemClockMHz.Valid ||
		!slices.Equal(a.Throttle, []string{reasonHWThermal, reasonPowerCap}) || a.PCIeTx != formats.Of[int64](123456) || a.ECCUncorrected != formats.Of[int64](0) || a.Processes != nil {
		t.Errorf("%+v", a)
	}
	if got := ParseDCGM([]byte("<html>no</html>"), time.Now()); len(got) != 0 {
		t.Error(got)
	}
}

func TestWatchDCGM(t *testing.T) {
	var n atomic.Int32
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch n.Add(1) {
		case 2:
			w.WriteHeader(503)
		case 3:
			w.Write([]byte("<html>"))
		default:
			w.Write([]byte(dcgmPage))
		}
	}))
	defer s.Close()
	ctx, cancel := context.WithCancel(t.Context())
	rows := 0
	asked, failed, err := WatchDCGM(ctx, []string{s.URL}, time.Millisecond, func(r []formats.GPUSample) error {
		if rows += len(r); rows >= 6 {
			cancel()
		}
		return nil
	})
	if asked != 5 || failed != 2 || err == nil || !strings.Contains(err.Error(), "no DCGM_FI_ series") {
		t.Errorf("%d asked, %d failed, %v", asked, failed, err)
	}
	_, _, err = WatchDCGM(t.Context(), []string{s.URL}, time.Millisecond, func([]formats.GPUSample) error { return errTest })
	if !errors.Is(err, errTest) {
		t.Error(err)
	}
}

func FuzzParseDCGM(f *testing.F) {
	f.Add([]byte(dcgmPage))
	f.Add([]byte(`DCGM_FI_DEV_CLOCK_THROTTLE_REASONS{UUID="x"} 1e300`))
	f.Fuzz(func(t *testing.T, page []byte) {
		for _, r := range ParseDCGM(page, time.Unix(0, 0)) {
			if r.UUID == "" {
				t.Error("a sample of no GPU")
			}
		}
	})
}
