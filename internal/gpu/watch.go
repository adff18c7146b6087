package gpu

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/shadowtape/shadowtape/formats"
)

// WatchOptions say what is watched during a run and how often.
type WatchOptions struct {
	UUIDs []string
	Checks
	Fast time.Duration // between readings of what reads fast; 0: 100 ms
	Slow time.Duration // between readings of what blocks; 0: 1 s
	// Shared leaves out the search for others: what is found is about the GPUs themselves.
	Shared bool
	Sink   func([]formats.GPUSample) error // takes the telemetry; called from one goroutine at a time; nil: it is only summed up
}

// Watch samples GPUs and looks for others during a run.
type Watch struct {
	stop func()
	done sync.WaitGroup
	w    watcher
}

// Covariates sum a GPU up over a run: what a diff shows beside its figures, and a gate checks.
type Covariates struct {
	UUID           string                `json:"uuid"`
	Readings       int                   `json:"readings"`
	Failed         int                   `json:"failed_readings"`
	TemperatureC   span                  `json:"temperature_c"`
	SMClockMHz     span                  `json:"sm_clock_mhz"`
	MemClockMHz    span                  `json:"mem_clock_mhz"`
	PowerW         span                  `json:"power_w"`
	SMUtil         span                  `json:"sm_util"`
	MemoryPeak     formats.Null[int64]   `json:"memory_peak_bytes"`
	EnergyJ        formats.Null[float64] `json:"energy_j"`        // over the watch, from the energy counter
	ThrottledShare map[string]float64    `json:"throttled_share"` // of the readings, by reason; idle is left out
}

// span is a quantity over a run: its first and last value, mean over the readings, and extremes. Null where no reading had it.
type span struct {
	Start formats.Null[float64] `json:"start"`
	End   formats.Null[float64] `json:"end"`
	Mean  formats.Null[float64] `json:"mean"`
	Min   formats.Null[float64] `json:"min"`
	Max   formats.Null[float64] `json:"max"`
	sum   float64
	n     int
}

func (s *span) add(v float64) {
	if s.n == 0 {
		s.Start, s.Min, s.Max = formats.Of(v), formats.Of(v), formats.Of(v)
	}
	s.n++
	s.sum += v
	s.End, s.Mean = formats.Of(v), formats.Of(s.sum/float64(s.n))
	s.Min, s.Max = formats.Of(min(s.Min.V, v)), formats.Of(max(s.Max.V, v))
}

// Result is what a watch saw.
type Result struct {
	Verdict
	GPUs []Covariates
	Err  error // of the sink; telemetry after it is missing
}

// StartWatch begins to sample. Stop it before the candidate is stopped, so that its end is not taken for somebody else's.
func StartWatch(ctx context.Context, r Reader, o WatchOptions) *Watch {
	if o.Fast == 0 {
		o.Fast = 100 * time.Millisecond
	}
	if o.Slow == 0 {
		o.Slow = time.Second
	}
	ctx, cancel := context.WithCancel(ctx)
	w := &Watch{stop: cancel, w: watcher{r: r, o: o, view: newView(o.Proc), gpus: map[string]*gpuState{}, slow: map[string]Reading{}, found: map[string]*Finding{}}}
	for _, id := range o.UUIDs {
		w.w.gpus[id] = &gpuState{cov: Covariates{UUID: id, ThrottledShare: map[string]float64{}}, seen: map[int]*sighting{}, throttled: map[string]int{}}
	}
	w.done.Go(func() { w.w.fastLoop(ctx) })
	w.done.Go(func() { w.w.slowLoop(ctx) })
	w.done.Go(func() { w.w.eventLoop(ctx) })
	return w
}

// Measure forgets the sums so far: the covariates are those of what follows. Findings are kept. Call it when a warm-up is over.
func (w *Watch) Measure() {
	w.w.mu.Lock()
	defer w.w.mu.Unlock()
	for id, g := range w.w.gpus {
		g.cov = Covariates{UUID: id, ThrottledShare: map[string]float64{}}
		g.throttled = map[string]int{}
		g.energy, g.energyNow = formats.Null[int64]{}, formats.Null[int64]{}
	}
}

// Course is how a GPU's temperature and SM clock went, second by second since the watch began; a second without a reading repeats the
// one before.
type Course struct {
	UUID         string
	TemperatureC []float64
	SMClockMHz   []float64
}

// Courses are those of all GPUs watched, in their order. They hold the last hour at most.
func (w *Watch) Courses() []Course {
	w.w.mu.Lock()
	defer w.w.mu.Unlock()
	var out []Course
	for _, id := range w.w.o.UUIDs {
		g := w.w.gpus[id]
		out = append(out, Course{id, g.temperature.means(), g.clock.means()})
	}
	return out
}

// seconds are the means of a quantity over each second.
type seconds struct {
	from   int64 // unix second of the first
	sum, n []float64
}

// courseSeconds bounds a course: later seconds push the first out.
const courseSeconds = 3600

func (s *seconds) add(unixNS int64, v float64) {
	at := unixNS / int64(time.Second)
	if len(s.n) == 0 {
		s.from = at
	}
	i := at - s.from
	if i < 0 || i > 1<<20 {
		return
	}
	for int64(len(s.n)) <= i {
		s.sum, s.n = append(s.sum, 0), append(s.n, 0)
	}
	s.sum[i] += v
	s.n[i]++
	if over := len(s.n) - courseSeconds; over > 0 {
		s.sum, s.n, s.from = s.sum[over:], s.n[over:], s.from+int64(over)
	}
}

func (s *seconds) means() []float64 {
	out := make([]float64, len(s.n))
	last := 0.0
	for i := range out {
		if s.n[i] > 0 {
			last = s.sum[i] / s.n[i]
		}
		out[i] = last
	}
	return out
}

// Verdict is what has been found so far.
func (w *Watch) Verdict() Verdict {
	w.w.mu.Lock()
	defer w.w.mu.Unlock()
	return w.w.verdict()
}

// Stop ends the watch and returns what it saw. A second call returns the same.
func (w *Watch) Stop() Result {
	w.stop()
	w.done.Wait()
	w.w.mu.Lock()
	defer w.w.mu.Unlock()
	res := Result{Verdict: w.w.verdict(), Err: w.w.err}
	for _, id := range w.w.o.UUIDs {
		res.GPUs = append(res.GPUs, w.w.gpus[id].summary())
	}
	return res
}

// watcher is the state of a watch; mu guards everything below it.
type watcher struct {
	r    Reader
	o    WatchOptions
	view view

	mu    sync.Mutex
	gpus  map[string]*gpuState
	slow  map[string]Reading // last slow reading, joined to the next row
	found map[string]*Finding
	order []string
	err   error
}

// gpuState is what is known of one GPU so far.
type gpuState struct {
	cov       Covariates
	throttled map[string]int
	last      time.Time // of a good reading
	ecc       formats.Null[int64]
	energy    formats.Null[int64]
	energyNow formats.Null[int64]
	seen      map[int]*sighting

	temperature, clock seconds
}

// sighting is a process seen on a GPU.
type sighting struct {
	own   bool
	count int
	first time.Time
	p     Process
	named bool // its finding was made
}

// add counts a finding once and keeps its span of time.
func (w *watcher) add(key string, at time.Time, f Finding) {
	key = f.Code + " " + f.UUID + " " + key
	old, ok := w.found[key]
	if !ok {
		if f.At.IsZero() {
			f.At = at
		}
		f.To = at
		w.found[key] = &f
		w.order = append(w.order, key)
		return
	}
	old.To = at
	old.Text = f.Text
}

func (w *watcher) verdict() Verdict {
	var v Verdict
	for _, key := range w.order {
		v.Findings = append(v.Findings, *w.found[key])
	}
	for _, id := range w.o.UUIDs { // shares are known at the end only
		g := w.gpus[id]
		for _, reason := range slices.Sorted(maps.Keys(g.throttled)) {
			share := float64(g.throttled[reason]) / float64(max(g.cov.Readings, 1))
			switch {
			case slices.Contains(hardwareReasons, reason):
				v.Findings = append(v.Findings, find(hardwareSlowdown, id, "%s in %.1f %% of the readings", reason, 100*share))
			case reason == reasonSWThermal:
				v.Findings = append(v.Findings, find(thermalDuring, id, "%s in %.1f %% of the readings", reason, 100*share))
			case reason == reasonPowerCap:
				v.Findings = append(v.Findings, find(powerCap, id, "%s in %.1f %% of the readings", reason, 100*share))
			case reason == reasonAppClocks, reason == reasonSyncBoost:
				v.Findings = append(v.Findings, find(clocksLimited, id, "%s in %.1f %% of the readings", reason, 100*share))
			}
		}
	}
	return v
}

func (w *watcher) fastLoop(ctx context.Context) {
	tick := time.NewTicker(w.o.Fast)
	defer tick.Stop()
	for {
		w.sample(time.Now())
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// sample reads every GPU once.
func (w *watcher) sample(now time.Time) {
	rows := make([]formats.GPUSample, 0, len(w.o.UUIDs))
	for _, id := range w.o.UUIDs {
		r, err := w.r.Fast(id)
		w.mu.Lock()
		g := w.gpus[id]
		if err != nil {
			g.cov.Failed++
			w.add("", now, unreadable(id, err))
			w.mu.Unlock()
			continue
		}
		if !g.last.IsZero() && now.Sub(g.last) > 2*time.Second {
			w.add("", now, find(blindSpot, id, "no reading for %.1f s", now.Sub(g.last).Seconds()))
		}
		g.last = now
		r.UnixNS, r.UUID = now.UnixNano(), id
		if s, ok := w.slow[id]; ok {
			join(&r, s)
			delete(w.slow, id)
		}
		news := g.count(r)
		w.mu.Unlock()
		for _, p := range news { // asking may take a container engine's time
			p.own = w.o.owns(p.p.PID)
		}
		w.mu.Lock()
		w.judge(g, id, r, now)
		w.mu.Unlock()
		r.GPUSample.Processes = processTexts(r.Processes)
		rows = append(rows, r.GPUSample)
	}
	if w.o.Sink != nil && len(rows) > 0 && w.err == nil {
		if err := w.o.Sink(rows); err != nil {
			w.mu.Lock()
			w.err = fmt.Errorf("write GPU telemetry: %w", err)
			w.mu.Unlock()
		}
	}
}

// count adds a reading to the sums and returns the processes not seen before.
func (g *gpuState) count(r Reading) []*sighting {
	c := &g.cov
	c.Readings++
	if r.TemperatureC.Valid {
		c.TemperatureC.add(float64(r.TemperatureC.V))
		g.temperature.add(r.UnixNS, float64(r.TemperatureC.V))
	}
	if r.SMClockMHz.Valid {
		c.SMClockMHz.add(float64(r.SMClockMHz.V))
		g.clock.add(r.UnixNS, float64(r.SMClockMHz.V))
	}
	if r.MemClockMHz.Valid {
		c.MemClockMHz.add(float64(r.MemClockMHz.V))
	}
	if r.PowerMW.Valid {
		c.PowerW.add(float64(r.PowerMW.V) / 1e3)
	}
	if r.SMUtil.Valid {
		c.SMUtil.add(r.SMUtil.V)
	}
	if r.MemoryUsed.Valid {
		c.MemoryPeak = formats.Of(max(c.MemoryPeak.Or(0), r.MemoryUsed.V))
	}
	if r.EnergyMJ.Valid {
		if !g.energy.Valid {
			g.energy = r.EnergyMJ
		}
		g.energyNow = r.EnergyMJ
	}
	for _, reason := range r.Throttle {
		if reason != reasonIdle {
			g.throttled[reason]++
		}
	}
	var news []*sighting
	for _, p := range r.Processes.Or(nil) {
		s, ok := g.seen[p.PID]
		if !ok {
			s = &sighting{first: time.Unix(0, r.UnixNS), p: p}
			g.seen[p.PID] = s
			news = append(news, s)
		}
		s.count++
		s.p = p
	}
	return news
}

// judge looks for others in a reading. A process is somebody else's if it can be looked at and is not the candidate's, or if it is there
// in two readings in a row; one that came and went between two looks cannot be told from a short-lived child of the candidate.
func (w *watcher) judge(g *gpuState, id string, r Reading, now time.Time) {
	if w.o.Shared {
		return
	}
	if !r.Processes.Valid {
		w.add("", now, find(processesUnknown, id, "the driver gives no list of its processes"))
		return
	}
	present := map[int]bool{}
	for _, p := range r.Processes.V {
		present[p.PID] = true
		s := g.seen[p.PID]
		if !s.own && (s.count > 1 || w.view.visible(p.PID)) {
			s.named = true
			f := foreign(w.view, id, p)
			f.At = s.first
			w.add(fmt.Sprint(p.PID), now, f)
		}
	}
	for pid, s := range g.seen {
		if present[pid] {
			continue
		}
		if !s.own && !s.named {
			w.add(fmt.Sprint(pid), s.first, find(briefProcess, id, "process %d was there in one reading", pid))
		}
		delete(g.seen, pid) // its number may come again as another's
	}
	owned := func(pid int) bool { return g.seen[pid] != nil && g.seen[pid].own }
	for _, f := range memoryFindings(id, r, owned) {
		w.add("", now, f)
	}
}

// slowLoop reads what blocks, and looks for the multi-process service.
func (w *watcher) slowLoop(ctx context.Context) {
	tick := time.NewTicker(w.o.Slow)
	defer tick.Stop()
	for {
		now := time.Now()
		for _, id := range w.o.UUIDs {
			var r Reading
			err := w.r.Slow(id, &r)
			w.mu.Lock()
			if err != nil {
				if errors.Is(err, ErrLost) {
					w.add("", now, unreadable(id, err))
				}
			} else {
				w.slow[id] = r
				g := w.gpus[id]
				if r.ECCUncorrected.Valid {
					if g.ecc.Valid && r.ECCUncorrected.V > g.ecc.V {
						w.add("", now, find(eccErrors, id, "%d uncorrected memory errors during the run", r.ECCUncorrected.V-g.ecc.V))
					}
					if !g.ecc.Valid {
						g.ecc = r.ECCUncorrected
					}
				}
			}
			w.mu.Unlock()
		}
		for _, pid := range w.view.mps() {
			if !w.o.Shared && !w.o.owns(pid) {
				w.mu.Lock()
				w.add(fmt.Sprint(pid), now, find(mpsDaemon, "", "the multi-process service runs (process %d)", pid))
				w.mu.Unlock()
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// eventLoop waits for errors that the driver reports.
func (w *watcher) eventLoop(ctx context.Context) {
	for ctx.Err() == nil {
		events, err := w.r.Events(ctx, w.o.UUIDs)
		now := time.Now()
		w.mu.Lock()
		for _, e := range events {
			code := applicationXID
			if fatalXID(e.XID) {
				code = xidError
			}
			w.add(fmt.Sprint(e.XID), now, find(code, e.UUID, "XID %d", e.XID))
		}
		w.mu.Unlock()
		if err != nil { // events are not supported, or the driver is gone: readings will say so
			return
		}
	}
}

// join adds a slow reading's columns to a fast one's.
func join(r *Reading, s Reading) {
	r.PCIeTx, r.PCIeRx, r.NVLinkTx, r.NVLinkRx, r.ECCUncorrected, r.MemoryTempC = s.PCIeTx, s.PCIeRx, s.NVLinkTx, s.NVLinkRx, s.ECCUncorrected, s.MemoryTempC
}

// processTexts are processes as gpu.parquet has them.
func processTexts(list formats.Null[[]Process]) []string {
	if !list.Valid {
		return nil
	}
	out := []string{}
	for _, p := range list.V {
		size := "?"
		if p.Bytes.Valid {
			size = fmt.Sprint(p.Bytes.V)
		}
		name := p.Name
		if name == "" {
			name = "?"
		}
		out = append(out, fmt.Sprintf("%d %s %s", p.PID, name, size))
	}
	return out
}

func (g *gpuState) summary() Covariates {
	c := g.cov
	if g.energy.Valid && g.energyNow.V >= g.energy.V {
		c.EnergyJ = formats.Of(float64(g.energyNow.V-g.energy.V) / 1e3)
	}
	c.ThrottledShare = map[string]float64{}
	for reason, n := range g.throttled {
		c.ThrottledShare[reason] = float64(n) / float64(max(c.Readings, 1))
	}
	return c
}
