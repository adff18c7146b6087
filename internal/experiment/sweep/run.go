package sweep

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/shadowtape/shadowtape/analyzer"
	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/candidate"
	"github.com/shadowtape/shadowtape/internal/deploy"
	"github.com/shadowtape/shadowtape/internal/experiment/warm"
	"github.com/shadowtape/shadowtape/internal/stats"
	"github.com/shadowtape/shadowtape/internal/workload"
	"github.com/shadowtape/shadowtape/replayer/job"
	"github.com/shadowtape/shadowtape/replayer/prompt"
	"github.com/shadowtape/shadowtape/replayer/schedule"
)

// Options say where and how a sweep runs.
type Options struct {
	Dir      string
	Start    candidate.Options // of deployments
	Job      job.Options       // what all runs share: model, dialect, client, scrape, tool version, command
	Retry    bool              // measure again what an earlier call found to fail or to be invalid
	Progress func(Progress)    // called before each run and after it; nil: nobody is
}

// Progress is a moment of a sweep.
type Progress struct {
	Cell    Cell
	Repeat  int // from 1
	Number  int // of the run, from 1
	Of      int // runs in all; 0 in a search
	Done    bool
	Resumed bool // it was there
	Err     string
}

// Result is one run of a cell: a row. A cell that failed is a row with its error and without figures.
type Result struct {
	Cell    string             `json:"cell"`
	Values  map[string]string  `json:"values"`
	Repeat  int                `json:"repeat"` // from 1; 0 is the median over the valid repeats
	Run     string             `json:"run,omitempty"`
	Valid   bool               `json:"valid"`
	Invalid []string           `json:"invalid,omitempty"`
	Error   string             `json:"error,omitempty"`
	Figures map[string]float64 `json:"figures"` // by name; those that are defined
}

// Table is all that a sweep has measured; it is its JSON.
type Table struct {
	Schema  int      `json:"schema"`
	Axes    []string `json:"axes"`
	SLO     string   `json:"slo,omitempty"`
	Results []Result `json:"results"` // runs in the order of the cells
	Medians []Result `json:"medians"` // one row for each cell
	Answers []Answer `json:"answers"` // of a search
}

// Invalid says why the first cell that was measured and is invalid is so; "" where none is.
func (t *Table) Invalid() string {
	for _, r := range t.Medians {
		if r.Error == "" && !r.Valid {
			return strings.Join(r.Invalid, "; ")
		}
	}
	return ""
}

// figures are the columns of a result, in the order in which they are shown.
var figures = []string{
	"ttft_p50", "ttft_p90", "ttft_p99", "ttft_mean", "tpot_p50", "tpot_p90", "tpot_p99", "tpot_mean", "itl_p99", "e2el_p50", "e2el_p99",
	"request_rate", "input_rate", "output_rate", "goodput", "slo_attainment", "error_rate", "kv_usage_peak", "kv_prefix_hit_rate", "kv_preemptions", "server_running_mean", "server_waiting_mean", "requests", "failed",
}

// Figures are the columns of a result, in the order in which they are shown.
func Figures() []string { return slices.Clone(figures) }

// sweep is a sweep on its way.
type sweep struct {
	m *Matrix
	o Options
	t Table
	n int
}

// Run measures every cell of a valid matrix, or what an earlier call has left, and returns the table. A cancelled context ends it with its
// error and the table so far. A cell that fails is a row; only what keeps every cell from being measured is an error.
func Run(ctx context.Context, m *Matrix, o Options) (Table, error) {
	if err := m.Validate(); err != nil {
		return Table{}, err
	}
	s := &sweep{m: m, o: o}
	s.t = Table{Schema: 1, SLO: m.SLOText, Results: []Result{}, Medians: []Result{}, Answers: []Answer{}}
	for _, a := range m.Axes {
		s.t.Axes = append(s.t.Axes, a.Name)
	}
	if m.Search != nil {
		s.t.Axes = append(s.t.Axes, "rate")
	}
	if err := s.startable(); err != nil {
		return s.t, err
	}
	if err := s.claim(); err != nil {
		return s.t, err
	}
	err := s.run(ctx)
	s.medians()
	return s.t, err
}

func (s *sweep) run(ctx context.Context) error {
	cells := s.m.Cells()
	for _, c := range cells {
		if s.m.Search != nil {
			if err := s.search(ctx, c); err != nil {
				return err
			}
			continue
		}
		for k := 1; k <= s.m.Repeats; k++ {
			if _, err := s.cell(ctx, c, k, len(cells)*s.m.Repeats); err != nil {
				return err
			}
		}
	}
	return nil
}

// startable is the error of a deployment file that no cell can read: nothing is made for it.
func (s *sweep) startable() (first error) {
	if s.m.Deploy == "" {
		return nil
	}
	for _, c := range s.m.Cells() {
		_, err := deploy.Load(s.m.Deploy, maps.Clone(c.Values))
		if err == nil {
			return nil
		}
		first = cmp.Or(first, err)
	}
	return first
}

// claim makes the sweep's directory, or checks that it is this sweep's.
func (s *sweep) claim() error {
	b, err := json.MarshalIndent(map[string]any{"schema": 1, "matrix": s.m}, "", "  ")
	if err != nil {
		return err
	}
	path := filepath.Join(s.o.Dir, "matrix.json")
	was, err := os.ReadFile(path)
	if err == nil {
		if string(was) != string(b)+"\n" {
			return fmt.Errorf("resume sweep %s: it is of another matrix", s.o.Dir)
		}
		return nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("resume sweep %s: %w", s.o.Dir, err)
	}
	if entries, err := os.ReadDir(s.o.Dir); err == nil && slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Name() != "cells" && e.Name() != "matrix.json.tmp" }) {
		return fmt.Errorf("create sweep %s: %w, and it is no sweep's", s.o.Dir, fs.ErrExist)
	}
	if err := os.MkdirAll(filepath.Join(s.o.Dir, "cells"), 0o755); err != nil {
		return fmt.Errorf("create sweep: %w", err)
	}
	if err := os.WriteFile(path+".tmp", append(b, '\n'), 0o644); err != nil { // half a matrix would be another one
		return fmt.Errorf("create sweep: %w", err)
	}
	return os.Rename(path+".tmp", path)
}

// cell makes one run, or finds it, and adds its row. The error is that of the context only.
func (s *sweep) cell(ctx context.Context, c Cell, repeat, of int) (Result, error) {
	s.n++
	name := fmt.Sprintf("%s,r%d", c.Name(), repeat)
	r := Result{Cell: c.Name(), Values: c.Values, Repeat: repeat, Run: filepath.Join("cells", name), Figures: map[string]float64{}}
	p := Progress{Cell: c, Repeat: repeat, Number: s.n, Of: of}
	dir := filepath.Join(s.o.Dir, "cells", name)
	failed := dir + ".error"
	if whole, valid := finished(dir); whole {
		p.Resumed = valid || !s.o.Retry
	} else if b, err := os.ReadFile(failed); err == nil && len(b) > 0 && !s.o.Retry {
		p.Resumed, r.Error = true, string(b)
	}
	s.tell(p)
	if !p.Resumed {
		if err := errors.Join(formats.Remove(dir), remove(failed)); err != nil { // what a crash left, or what is tried again
			return r, fmt.Errorf("measure cell %s: %w", name, err)
		}
		err := s.measure(ctx, c, repeat, dir)
		if ctx.Err() != nil {
			return r, errors.Join(ctx.Err(), formats.Remove(dir))
		}
		if err != nil {
			r.Error = err.Error()
			if err := errors.Join(formats.Remove(dir), os.WriteFile(failed, []byte(r.Error), 0o644)); err != nil {
				return r, err
			}
		}
	}
	if r.Error == "" {
		if err := s.read(dir, &r); err != nil {
			r.Error = err.Error()
		}
	}
	if r.Error != "" {
		r.Run = ""
	}
	s.t.Results = append(s.t.Results, r)
	p.Done, p.Err = true, r.Error
	s.tell(p)
	return r, nil
}

func (s *sweep) tell(p Progress) {
	if s.o.Progress != nil {
		s.o.Progress(p)
	}
}

// promptSeed gives every run prompts of its own, so that a server whose prefix cache cannot be emptied does not know them from another cell.
func promptSeed(seed int64, run string) int64 {
	h := fnv.New64a()
	h.Write([]byte(run))
	return seed ^ int64(h.Sum64()>>1)
}

// finished reports whether a run is there that was not cut short, and whether it is valid.
func finished(dir string) (whole, valid bool) {
	b, err := os.ReadFile(filepath.Join(dir, "run.json"))
	var m formats.Manifest
	return err == nil && json.Unmarshal(b, &m) == nil && !m.Interrupted && m.EndUnixNS > 0, m.Valid
}

// remove deletes a file; one that is not there is no error.
func remove(file string) error {
	if err := os.Remove(file); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// measure starts what has to be started and replays a cell's load.
func (s *sweep) measure(ctx context.Context, c Cell, repeat int, dir string) (err error) {
	jo := s.o.Job
	target := s.m.Target
	var r *candidate.Running
	limited := s.m.Timeout
	if s.m.Deploy != "" {
		f, err := deploy.Load(s.m.Deploy, maps.Clone(c.Values))
		if err != nil {
			return err
		}
		log, err := os.Create(dir + ".candidate.log")
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, log.Close()) }()
		o := s.o.Start
		o.Deploy.Log = log
		if r, err = candidate.Start(ctx, f, o); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, r.Stop(ctx)) }()
		target = r.URL
		if s.m.WarmUp == nil {
			jo.WarmRule = warm.Rule(f.WarmUp, r, nil)
			limited += jo.WarmRule.Most
		}
		if jo.Model == "" {
			jo.Model = f.Model
		}
		if jo.Dialect == "" && slices.Contains(prompt.DialectNames(), f.Dialect) {
			jo.Dialect = f.Dialect
		}
	}
	if jo.Source, err = s.load(c, repeat); err != nil {
		return err
	}
	jo.Out, jo.Label, jo.Seed = dir, c.Name(), promptSeed(s.m.Seed, filepath.Base(dir))
	if s.m.WarmUp != nil {
		jo.Warmup = *s.m.WarmUp
	}
	jo.Client.Targets = []string{target}
	jo.Selection = schedule.Selection{Duration: s.m.Duration, MaxRequests: s.m.Requests}
	if jo.Users = int(c.number("users")); jo.Users > 0 && s.m.Duration > 0 && s.m.Requests == 0 {
		jo.Selection.Loops = -1
	}
	if r != nil {
		jo.Measured = r.Measure
		jo.Beside = func(ctx context.Context, w *formats.RunWriter) func(*formats.Manifest) {
			r.Begin(ctx, w.WriteGPU)
			return func(m *formats.Manifest) { r.End(m) }
		}
	}
	limit, cancel := context.WithTimeout(ctx, limited)
	defer cancel()
	job, err := job.Prepare(limit, jo)
	if err != nil {
		return err
	}
	defer job.Close()
	if _, err = job.Run(limit, nil); err != nil {
		return err
	}
	if limit.Err() != nil && ctx.Err() == nil {
		return fmt.Errorf("it took longer than %v", limited)
	}
	if r != nil {
		return r.Died()
	}
	return nil
}

// load is what a cell's run sends: fixed lengths, arrivals at its rate, each repeat's drawn anew and the same for all cells. A closed loop
// takes the requests without their times.
func (s *sweep) load(c Cell, repeat int) (*job.Source, error) {
	rate := c.rate()
	if rate == 0 {
		rate = 1000 // of users: in order, without a meaning
	}
	a, err := workload.ParseArrival(s.m.Arrival, rate, s.m.Duration.Seconds())
	if err != nil {
		return nil, err
	}
	m, err := workload.Written(a, workload.Length{Family: workload.Fixed, Mean: float64(c.number("input"))}, workload.Length{Family: workload.Fixed, Mean: float64(c.number("output"))}, nil)
	if err != nil {
		return nil, err
	}
	o := workload.Options{Seed: uint64(s.m.Seed + int64(repeat) - 1), Requests: s.m.Requests, Seconds: s.m.Duration.Seconds()}
	if users := c.number("users"); users > 0 {
		o.Seconds = 0 // they go round until the time is over
		if o.Requests == 0 {
			o.Requests = 1000 * users
		}
	}
	rows, err := m.Generate(o)
	if err != nil {
		return nil, err
	}
	return &job.Source{Name: c.Name(), Header: m.Header(), Rows: rows}, nil
}

// read takes a run's figures.
func (s *sweep) read(dir string, r *Result) error {
	run, err := analyzer.OpenRun(dir)
	if err != nil {
		return err
	}
	defer run.Close()
	sum, err := analyzer.Summarize(run, analyzer.Options{SLO: s.m.SLO})
	if err != nil {
		return err
	}
	r.Valid, r.Invalid = sum.Valid, sum.Invalid
	for name, v := range sum.Aggregates {
		if v.Value.Valid && slices.Contains(figures, name) {
			r.Figures[name] = v.Value.V
		}
	}
	for _, name := range []string{"ttft", "tpot", "itl", "e2el"} {
		f := sum.Metrics[name]
		for _, v := range []struct {
			suffix string
			v      analyzer.Null
		}{{"_p50", f.P50}, {"_p90", f.P90}, {"_p99", f.P99}, {"_mean", f.Mean}} {
			if v.v.Valid && slices.Contains(figures, name+v.suffix) {
				r.Figures[name+v.suffix] = v.v.V
			}
		}
	}
	r.Figures["requests"], r.Figures["failed"] = float64(sum.Requests.Sent), float64(sum.Requests.Failed)
	return nil
}

// medians makes a row for each cell: the median of each figure over the valid repeats, over all where none is valid.
func (s *sweep) medians() {
	axes := slices.DeleteFunc(slices.Clone(s.t.Axes), func(a string) bool { return a == "rate" })
	var order []string
	by := map[string][]Result{}
	for _, r := range s.t.Results {
		if by[r.Cell] == nil {
			order = append(order, r.Cell)
		}
		by[r.Cell] = append(by[r.Cell], r)
	}
	for _, name := range order {
		all := by[name]
		use := slices.DeleteFunc(slices.Clone(all), func(r Result) bool { return r.Error != "" || !r.Valid })
		out := Result{Cell: name, Values: all[0].Values, Valid: len(use) > 0, Figures: map[string]float64{}}
		if len(use) == 0 {
			use = slices.DeleteFunc(slices.Clone(all), func(r Result) bool { return r.Error != "" })
			if len(use) == 0 {
				out.Error = all[0].Error
			}
			for _, r := range use {
				out.Invalid = append(out.Invalid, r.Invalid...)
			}
		}
		for _, f := range figures {
			var v []float64
			for _, r := range use {
				if x, ok := r.Figures[f]; ok {
					v = append(v, x)
				}
			}
			if len(v) > 0 {
				out.Figures[f] = stats.Median(v)
			}
		}
		s.t.Medians = append(s.t.Medians, out)
	}
	if s.m.Search != nil { // its rates were visited in an order of its own
		rank := map[string]int{}
		for i, r := range s.t.Medians {
			if k := describe(r.Values, axes); rank[k] == 0 {
				rank[k] = i + 1
			}
		}
		slices.SortStableFunc(s.t.Medians, func(a, b Result) int {
			return cmp.Or(cmp.Compare(rank[describe(a.Values, axes)], rank[describe(b.Values, axes)]), cmp.Compare(Cell{Values: a.Values}.rate(), Cell{Values: b.Values}.rate()))
		})
	}
}
