package formats

import "iter"

// GPUSample is one GPU at one moment: a row of gpu.parquet. Counters (EnergyMJ, ECCUncorrected, PCIe and NVLink bytes) grow from an
// arbitrary start: only their differences mean something.
type GPUSample struct {
	UnixNS         int64         // when the reading began
	UUID           string        // GPU-… or MIG-…
	SMUtil         Null[float64] // share of the time in which a kernel ran, 0 to 1, over the driver's own last interval
	MemUtil        Null[float64] // likewise for memory reads and writes
	MemoryUsed     Null[int64]   // bytes, without what the driver reserves for itself
	MemoryTotal    Null[int64]   // bytes
	PowerMW        Null[int64]   // milliwatts
	EnergyMJ       Null[int64]   // millijoules since the driver was loaded
	TemperatureC   Null[int32]   // of the core, degrees Celsius
	MemoryTempC    Null[int32]   // of the memory
	SMClockMHz     Null[int32]   // now
	MemClockMHz    Null[int32]   // now
	Throttle       []string      // why clocks are below what they could be, sorted; nil is unknown, empty is nothing
	Processes      []string      // "PID NAME BYTES", compute and graphics; BYTES is ? where the driver does not say; nil is unknown
	PCIeTx         Null[int64]   // bytes per second, over the driver's last 20 ms
	PCIeRx         Null[int64]   // likewise
	NVLinkTx       Null[int64]   // bytes, a counter over all links
	NVLinkRx       Null[int64]   // likewise
	ECCUncorrected Null[int64]   // errors, a counter
}

// gpuRow is a GPUSample as Parquet stores it.
type gpuRow struct {
	UnixNS         int64    `parquet:"unix_ns"`
	UUID           string   `parquet:"uuid,dict"`
	SMUtil         *float64 `parquet:"sm_util"`
	MemUtil        *float64 `parquet:"mem_util"`
	MemoryUsed     *int64   `parquet:"memory_used"`
	MemoryTotal    *int64   `parquet:"memory_total"`
	PowerMW        *int64   `parquet:"power_mw"`
	EnergyMJ       *int64   `parquet:"energy_mj"`
	TemperatureC   *int32   `parquet:"temperature_c"`
	MemoryTempC    *int32   `parquet:"memory_temperature_c"`
	SMClockMHz     *int32   `parquet:"sm_clock_mhz"`
	MemClockMHz    *int32   `parquet:"mem_clock_mhz"`
	ThrottleKnown  bool     `parquet:"throttle_known"`
	Throttle       []string `parquet:"throttle,list"`
	ProcessesKnown bool     `parquet:"processes_known"`
	Processes      []string `parquet:"processes,list"`
	PCIeTx         *int64   `parquet:"pcie_tx_bytes_per_s"`
	PCIeRx         *int64   `parquet:"pcie_rx_bytes_per_s"`
	NVLinkTx       *int64   `parquet:"nvlink_tx_bytes"`
	NVLinkRx       *int64   `parquet:"nvlink_rx_bytes"`
	ECCUncorrected *int64   `parquet:"ecc_uncorrected"`
}

func pointer[T any](n Null[T]) *T {
	if !n.Valid {
		return nil
	}
	return &n.V
}

func null[T any](p *T) Null[T] {
	if p == nil {
		return Null[T]{}
	}
	return Of(*p)
}

func rowOf(s GPUSample) gpuRow {
	return gpuRow{s.UnixNS, s.UUID, pointer(s.SMUtil), pointer(s.MemUtil), pointer(s.MemoryUsed), pointer(s.MemoryTotal), pointer(s.PowerMW), pointer(s.EnergyMJ),
		pointer(s.TemperatureC), pointer(s.MemoryTempC), pointer(s.SMClockMHz), pointer(s.MemClockMHz), s.Throttle != nil, s.Throttle, s.Processes != nil, s.Processes,
		pointer(s.PCIeTx), pointer(s.PCIeRx), pointer(s.NVLinkTx), pointer(s.NVLinkRx), pointer(s.ECCUncorrected)}
}

func (r gpuRow) sample() GPUSample {
	s := GPUSample{r.UnixNS, r.UUID, null(r.SMUtil), null(r.MemUtil), null(r.MemoryUsed), null(r.MemoryTotal), null(r.PowerMW), null(r.EnergyMJ), null(r.TemperatureC),
		null(r.MemoryTempC), null(r.SMClockMHz), null(r.MemClockMHz), nil, nil, null(r.PCIeTx), null(r.PCIeRx), null(r.NVLinkTx), null(r.NVLinkRx), null(r.ECCUncorrected)}
	if r.ThrottleKnown {
		s.Throttle = append([]string{}, r.Throttle...)
	}
	if r.ProcessesKnown {
		s.Processes = append([]string{}, r.Processes...)
	}
	return s
}

// WriteGPU appends samples of GPUs.
func (w *RunWriter) WriteGPU(s []GPUSample) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.gpu.write(rowsOf(s))
}

func rowsOf(s []GPUSample) []gpuRow {
	rows := make([]gpuRow, len(s))
	for i := range s {
		rows[i] = rowOf(s[i])
	}
	return rows
}

// GPUSamples yields the rows of gpu.parquet and of the parts after it, in order, or none where there is no such file.
func (t *Trace) GPUSamples() iter.Seq2[GPUSample, error] {
	return func(yield func(GPUSample, error) bool) {
		for r, err := range samples(t, gpuKind, func(r gpuRow) int64 { return r.UnixNS }) {
			if !yield(r.sample(), err) {
				return
			}
		}
	}
}
