// Package candidate puts a deployment alone on its GPUs: leased, checked, started, watched while it is measured, stopped, and described
// in the run's manifest.
package candidate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/deploy"
	"github.com/shadowtape/shadowtape/internal/gpu"
)

// Options say how a candidate is started. Deploy.GPUs, Deploy.Driver and Deploy.CUDA are filled in here.
type Options struct {
	Deploy       deploy.Options
	Shared       bool                         // --exclusive=off: no lease, nobody is looked for, and the run says so
	AllowInvalid bool                         // start although the checks find the GPUs unfit; the run is marked invalid
	Wait         bool                         // wait for GPUs that another run holds
	LockDir      string                       // of the leases; "": gpu.LockDir()
	Holder       string                       // who is named to others
	GPUs         func() (gpu.Reader, error)   // opens the machine's GPUs; nil: gpu.Open
	Told         func(kind Kind, line string) // told what goes on, one line at a time; nil: nobody is
}

// Kind says what a line told is.
type Kind int

// The kinds of lines.
const (
	Progress Kind = iota // it can be overwritten by the next
	Note                 // worth keeping
	Warning
)

// UnfitError is a start refused because the measurement would be invalid.
type UnfitError struct {
	Verdict gpu.Verdict
}

func (e *UnfitError) Error() string {
	return "the measurement would be invalid: " + strings.Join(e.Verdict.Lines(gpu.Invalid), "; ")
}

// Hint is what to do about the first reason.
func (e *UnfitError) Hint() string {
	for _, f := range e.Verdict.Findings {
		if f.Level == gpu.Invalid {
			return f.Advice()
		}
	}
	return ""
}

// Running is a started candidate, or one that somebody else started. Its methods may be called from several goroutines; Begin and End in
// turn.
type Running struct {
	*deploy.Candidate // nil where somebody else started it
	found             *deploy.Found
	o                 Options
	before            gpu.Verdict
	reader            gpu.Reader
	facts             []gpu.GPU // of its GPUs
	system            gpu.System
	lease             *gpu.Lease
	env               map[string]any

	mu    sync.Mutex
	watch *gpu.Watch
	once  sync.Once
	err   error
}

// Start leases and checks the GPUs that the file asks for, then starts the candidate on them. On any error everything begun has been
// undone. An *UnfitError says why a measurement would be worth nothing; a *gpu.BusyError in the chain says who holds a GPU.
func Start(ctx context.Context, f *deploy.File, o Options) (*Running, error) {
	if o.GPUs == nil {
		o.GPUs = gpu.Open
	}
	r := &Running{o: o}
	left, err := deploy.Leftovers(ctx, o.Deploy.Engine)
	for _, l := range left {
		r.tell(Warning, "left over: %s; remove it with: %s", l, l.Remove)
	}
	if err != nil {
		r.tell(Warning, "%v", err)
	}
	if err := r.start(ctx, f); err != nil {
		return nil, errors.Join(err, r.Stop(ctx))
	}
	return r, nil
}

func (r *Running) start(ctx context.Context, f *deploy.File) error {
	if !f.GPUs.None() {
		if err := r.takeGPUs(ctx, f); err != nil {
			return err
		}
	}
	o := r.o.Deploy
	o.Driver, o.CUDA = r.system.Driver, r.system.CUDA
	if r.lease != nil {
		o.GPUs = r.lease.UUIDs
	} else {
		for _, g := range r.facts {
			o.GPUs = append(o.GPUs, g.UUID)
		}
	}
	if o.Progress == nil {
		o.Progress = func(p deploy.Progress) {
			r.tell(Progress, "%s %.0f s: %s", p.Stage, p.Elapsed.Seconds(), p.Detail)
		}
	}
	var err error
	if r.Candidate, err = deploy.Start(ctx, f, o); err != nil {
		return err
	}
	r.env = r.Candidate.Environment(ctx)
	r.describeGPUs()
	return nil
}

// describe is a GPU for an environment snapshot.
func describe(g gpu.GPU) map[string]any {
	m := map[string]any{"uuid": g.UUID, "index": g.Index, "name": g.Name, "memory_bytes": g.MemoryBytes, "compute_mode": g.ComputeMode, "power_limit_w": g.PowerLimitW, "vbios": g.VBIOS, "pcie": g.PCIe}
	if g.Persistence.Valid {
		m["persistence"] = g.Persistence.V
	}
	if g.ECC.Valid {
		m["ecc"] = g.ECC.V
	}
	if g.Links.Valid {
		m["nvlinks"] = g.Links.V
	}
	if g.NUMANode.Valid {
		m["numa_node"] = g.NUMANode.V
	}
	if g.MaxSMClock.Valid {
		m["max_sm_clock_mhz"] = g.MaxSMClock.V
	}
	if len(g.Peers) > 0 {
		m["peers"] = g.Peers
	}
	return m
}

// takeGPUs finds, leases and checks the GPUs.
func (r *Running) takeGPUs(ctx context.Context, f *deploy.File) error {
	var err error
	if r.reader, err = r.o.GPUs(); err != nil {
		if r.o.Shared {
			r.before = gpu.Off()
			r.tell(Warning, "no GPU telemetry: %v", err)
			return nil
		}
		r.before = gpu.Unavailable(err)
		if r.o.AllowInvalid {
			r.tell(Warning, "%s", r.before.Lines(gpu.Invalid)[0])
			return nil
		}
		return &UnfitError{r.before}
	}
	if r.system, err = r.reader.System(); err != nil {
		return err
	}
	all, err := r.reader.GPUs()
	if err != nil {
		return err
	}
	req := gpu.Request{All: f.GPUs.All, Count: f.GPUs.Count, Indices: f.GPUs.Indices, UUIDs: f.GPUs.UUIDs, Free: int64(f.GPUs.Free)}
	found, err := gpu.Select(all, req)
	if err != nil {
		return err
	}
	want := len(found)
	if req.Count > 0 {
		want = req.Count
	}
	if r.o.Shared {
		r.before, r.facts = gpu.Off(), found[:want]
		return nil
	}
	checks := gpu.Checks{Free: req.Free}
	if req.Count > 0 { // any will do: fit ones first
		fit := func(g gpu.GPU) bool { return gpu.Before(r.reader, all, []string{g.UUID}, checks).Valid() }
		found = slices.Concat(filter(found, fit, true), filter(found, fit, false))
	}
	var ids []string
	for _, g := range found {
		ids = append(ids, g.UUID)
	}
	lo := r.leaseOptions(all)
	if want == len(ids) {
		r.lease, err = gpu.Acquire(ctx, ids, lo)
	} else {
		r.lease, err = gpu.AcquireAny(ctx, ids, want, lo)
	}
	if err != nil {
		return err
	}
	for _, id := range r.lease.UUIDs {
		i := slices.IndexFunc(found, func(g gpu.GPU) bool { return g.UUID == id })
		r.facts = append(r.facts, found[i])
	}
	r.before = gpu.Before(r.reader, all, r.lease.UUIDs, checks)
	if !r.before.Valid() {
		if !r.o.AllowInvalid {
			return &UnfitError{r.before}
		}
		for _, l := range r.before.Lines(gpu.Invalid) {
			r.tell(Warning, "%s", l)
		}
	}
	return nil
}

func filter(list []gpu.GPU, keep func(gpu.GPU) bool, want bool) []gpu.GPU {
	var out []gpu.GPU
	for _, g := range list {
		if keep(g) == want {
			out = append(out, g)
		}
	}
	return out
}

// owns reports whether a process is the candidate's.
func (r *Running) owns(pid int) bool {
	if r.Candidate != nil {
		return r.Candidate.Owns(pid)
	}
	return r.found != nil && r.found.Owns(pid)
}

// Attach watches the GPUs of a server that somebody else started: ref is its container, or its process number, whose descendants are its
// own too. The GPUs are those that its processes use now; they are leased and checked as for Start. Stop ends the watch and leaves the
// server alone.
func Attach(ctx context.Context, ref string, o Options) (*Running, error) {
	if o.GPUs == nil {
		o.GPUs = gpu.Open
	}
	r := &Running{o: o}
	if err := r.attach(ctx, ref); err != nil {
		return nil, errors.Join(err, r.Stop(ctx))
	}
	return r, nil
}

func (r *Running) attach(ctx context.Context, ref string) error {
	var err error
	if r.found, err = deploy.Find(ctx, r.o.Deploy.Engine, ref); err != nil {
		return err
	}
	if r.reader, err = r.o.GPUs(); err != nil {
		return &UnfitError{gpu.Unavailable(err)}
	}
	if r.system, err = r.reader.System(); err != nil {
		return err
	}
	all, err := r.reader.GPUs()
	if err != nil {
		return err
	}
	if r.facts = gpu.UsedBy(r.reader, all, r.found.Owns); len(r.facts) == 0 {
		return fmt.Errorf("find the GPUs of %s: none of its processes uses one that NVML shows", ref)
	}
	var ids []string
	for _, g := range r.facts {
		ids = append(ids, g.UUID)
	}
	if r.o.Shared {
		r.before = gpu.Off()
	} else {
		if r.lease, err = gpu.Acquire(ctx, ids, r.leaseOptions(all)); err != nil {
			return err
		}
		r.before = gpu.Before(r.reader, all, ids, gpu.Checks{Owns: r.found.Owns})
		if !r.before.Valid() && !r.o.AllowInvalid {
			return &UnfitError{r.before}
		}
	}
	r.env = r.found.Environment()
	r.env["gpu_uuids"] = ids
	r.describeGPUs()
	return nil
}

func (r *Running) leaseOptions(all []gpu.GPU) gpu.LeaseOptions {
	return gpu.LeaseOptions{Dir: r.o.LockDir, Holder: r.o.Holder, Wait: r.o.Wait, Told: func(err error) { r.tell(Note, "waiting: %v", err) },
		Whole: func(id string) string { return gpu.Whole(all, id) }}
}

// describeGPUs puts driver and GPUs into the environment.
func (r *Running) describeGPUs() {
	if r.system.Driver != "" {
		r.env["driver"], r.env["nvml"], r.env["cuda_driver"] = r.system.Driver, r.system.NVML, r.system.CUDA
	}
	if len(r.facts) == 0 {
		return
	}
	var names []string
	var facts []any
	for _, g := range r.facts {
		names = append(names, g.Name)
		facts = append(facts, describe(g))
	}
	r.env["gpu_names"], r.env["gpus"] = names, facts
}

func (r *Running) tell(kind Kind, format string, args ...any) {
	if r.o.Told != nil {
		r.o.Told(kind, fmt.Sprintf(format, args...))
	}
}

// Begin starts to watch the GPUs for a measurement: its telemetry goes to sink, which may be nil. Without GPUs or NVML it does nothing.
func (r *Running) Begin(ctx context.Context, sink func([]formats.GPUSample) error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.reader == nil || len(r.facts) == 0 || r.watch != nil {
		return
	}
	var ids []string
	for _, g := range r.facts {
		ids = append(ids, g.UUID)
	}
	r.watch = gpu.StartWatch(context.WithoutCancel(ctx), r.reader, gpu.WatchOptions{UUIDs: ids, Sink: sink, Shared: r.o.Shared, Checks: gpu.Checks{Owns: r.owns}})
}

// Measure says that the warm-up is over: the covariates are those of what follows.
func (r *Running) Measure() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.watch != nil {
		r.watch.Measure()
	}
}

// Courses are the temperatures and clocks of its GPUs since Begin, second by second; none where they are not watched.
func (r *Running) Courses() []gpu.Course {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.watch == nil {
		return nil
	}
	return r.watch.Courses()
}

// End ends the watch and writes what the candidate is and what was found into the manifest: environment, covariates, reasons, warnings.
// A candidate that died makes the run invalid.
func (r *Running) End(m *formats.Manifest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	verdict := gpu.Verdict{Findings: slices.Clone(r.before.Findings)}
	if r.watch != nil {
		res := r.watch.Stop()
		r.watch = nil
		verdict.Findings = append(verdict.Findings, res.Findings...)
		m.GPUs = res.GPUs
		if res.Err != nil {
			verdict.Findings = append(verdict.Findings, gpu.Finding{Level: gpu.Warn, Text: res.Err.Error()})
		}
	}
	if m.Environment == nil {
		m.Environment = map[string]any{}
	}
	m.Environment["deployment"] = r.env
	m.Invalid = append(m.Invalid, verdict.Lines(gpu.Invalid)...)
	m.Warnings = append(m.Warnings, verdict.Lines(gpu.Warn)...)
	if r.Candidate == nil {
		m.Valid = m.Valid && len(m.Invalid) == 0
		return
	}
	if err := r.Candidate.Died(); err != nil {
		text := err.Error()
		var e *deploy.Error
		if errors.As(err, &e) && len(e.Tail) > 0 {
			text += "; its last line: " + e.Tail[len(e.Tail)-1]
		}
		m.Invalid = append([]string{text}, m.Invalid...)
	}
	m.Valid = m.Valid && len(m.Invalid) == 0
}

// Stop ends the candidate, gives the GPUs back and closes them. It does so even where ctx is cancelled. A second call returns what the
// first did.
func (r *Running) Stop(ctx context.Context) error {
	r.once.Do(func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		var errs []error
		if r.watch != nil {
			errs = append(errs, r.watch.Stop().Err)
			r.watch = nil
		}
		if r.Candidate != nil {
			errs = append(errs, r.Candidate.Stop(ctx))
		}
		if r.found != nil {
			errs = append(errs, r.found.Close())
		}
		if r.lease != nil {
			errs = append(errs, r.lease.Release())
		}
		if r.reader != nil {
			errs = append(errs, r.reader.Close())
		}
		r.err = errors.Join(errs...)
	})
	return r.err
}
