package gpu

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/promtext"
)

// maxPage bounds an exporter's page: a node of many instances with every field on stays far below.
const maxPage = 16 << 20

// ParseDCGM reads the page of NVIDIA's DCGM exporter: one sample for each GPU or instance that it names, in the page's order. Its fields'
// units are its documentation's (https://docs.nvidia.com/datacenter/dcgm/latest/dcgm-api/dcgm-api-field-ids.html). Which processes use a
// GPU it does not say. Lines that cannot be read are left out.
func ParseDCGM(page []byte, at time.Time) []formats.GPUSample {
	var order []string
	rows := map[string]*formats.GPUSample{}
	free, reserved := map[string]int64{}, map[string]int64{}
	for _, s := range promtext.Parse(page).Samples {
		field, ok := strings.CutPrefix(s.Name, "DCGM_FI_")
		if !ok || math.IsNaN(s.Value) || math.IsInf(s.Value, 0) {
			continue
		}
		id := dcgmIdentity(s.Labels)
		if id == "" {
			continue
		}
		r := rows[id]
		if r == nil {
			r = &formats.GPUSample{UnixNS: at.UnixNano(), UUID: id}
			rows[id] = r
			order = append(order, id)
		}
		switch v := s.Value; field {
		case "DEV_GPU_UTIL":
			r.SMUtil = formats.Of(v / 100)
		case "DEV_MEM_COPY_UTIL":
			r.MemUtil = formats.Of(v / 100)
		case "DEV_FB_USED":
			r.MemoryUsed = formats.Of(int64(v) << 20)
		case "DEV_FB_FREE":
			free[id] = int64(v) << 20
		case "DEV_FB_RESERVED":
			reserved[id] = int64(v) << 20
		case "DEV_FB_TOTAL":
			r.MemoryTotal = formats.Of(int64(v) << 20)
		case "DEV_POWER_USAGE":
			r.PowerMW = formats.Of(int64(math.Round(v * 1e3)))
		case "DEV_TOTAL_ENERGY_CONSUMPTION":
			r.EnergyMJ = formats.Of(int64(v))
		case "DEV_GPU_TEMP":
			r.TemperatureC = formats.Of(int32(v))
		case "DEV_MEMORY_TEMP":
			if v > 0 {
				r.MemoryTempC = formats.Of(int32(v))
			}
		case "DEV_SM_CLOCK":
			r.SMClockMHz = formats.Of(int32(v))
		case "DEV_MEM_CLOCK":
			r.MemClockMHz = formats.Of(int32(v))
		case "DEV_CLOCKS_EVENT_REASONS", "DEV_CLOCK_THROTTLE_REASONS":
			if v >= 0 && v < 1<<53 {
				r.Throttle = throttleNames(uint64(v))
			}
		case "PROF_PCIE_TX_BYTES":
			r.PCIeTx = formats.Of(int64(v))
		case "PROF_PCIE_RX_BYTES":
			r.PCIeRx = formats.Of(int64(v))
		case "DEV_ECC_DBE_VOL_TOTAL":
			r.ECCUncorrected = formats.Of(int64(v))
		}
	}
	out := make([]formats.GPUSample, 0, len(order))
	for _, id := range order {
		r := rows[id]
		if f, ok := free[id]; ok && !r.MemoryTotal.Valid && r.MemoryUsed.Valid {
			r.MemoryTotal = formats.Of(r.MemoryUsed.V + f + reserved[id])
		}
		out = append(out, *r)
	}
	return out
}

// dcgmIdentity is the GPU's UUID, with the instance's number where the row is an instance's.
func dcgmIdentity(labels string) string {
	id, ok := promtext.Label(labels, "UUID")
	if !ok {
		if id, ok = promtext.Label(labels, "uuid"); !ok {
			return ""
		}
	}
	if part, ok := promtext.Label(labels, "GPU_I_ID"); ok && part != "" {
		return id + "/" + part
	}
	return id
}

// WatchDCGM asks DCGM exporters for their pages until ctx ends, and hands each page's samples on, none where the exporter did not
// answer. It is asked again; its last error is returned together with how often any failed, and so is the sink's first error, which ends the watch.
func WatchDCGM(ctx context.Context, urls []string, every time.Duration, sink func([]formats.GPUSample) error) (asked, failed int, err error) {
	if every <= 0 {
		every = time.Second
	}
	client := &http.Client{Timeout: 5 * time.Second}
	defer client.CloseIdleConnections()
	tick := time.NewTicker(every)
	defer tick.Stop()
	var last error
	for {
		for _, u := range urls {
			if ctx.Err() != nil {
				return asked, failed, last
			}
			asked++
			now := time.Now()
			page, err := fetch(ctx, client, u)
			rows := ParseDCGM(page, now)
			if err == nil && len(rows) == 0 {
				err = fmt.Errorf("%s has no DCGM_FI_ series", bare(u))
			}
			switch {
			case ctx.Err() != nil:
				asked--
				return asked, failed, last
			case err != nil:
				failed++
				last = err
				if err := sink(nil); err != nil {
					return asked, failed, err
				}
			default:
				if err := sink(rows); err != nil {
					return asked, failed, fmt.Errorf("write GPU telemetry: %w", err)
				}
			}
		}
		select {
		case <-ctx.Done():
			return asked, failed, last
		case <-tick.C:
		}
	}
}

// bare is a URL without what may be secret in it.
func bare(s string) string {
	u, err := url.Parse(s)
	if err != nil {
		return "the exporter's page"
	}
	u.User, u.RawQuery, u.Fragment = nil, "", ""
	return u.String()
}

func fetch(ctx context.Context, client *http.Client, where string) ([]byte, error) {
	var resp *http.Response
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, where, nil)
	if err == nil {
		resp, err = client.Do(req)
	}
	if ue := (*url.Error)(nil); errors.As(err, &ue) {
		err = ue.Err // its URL is the one that was given
	}
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", bare(where), err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers HTTP %d", bare(where), resp.StatusCode)
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxPage+1))
	if err == nil && len(b) > maxPage {
		err = errors.New("its page is longer than 16 MiB")
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", bare(where), err)
	}
	return b, nil
}
