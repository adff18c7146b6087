package sweep

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/shadowtape/shadowtape/analyzer"
	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/candidate"
	"github.com/shadowtape/shadowtape/internal/deploy"
	"github.com/shadowtape/shadowtape/internal/stats"
	"github.com/shadowtape/shadowtape/replayer/job"
	"github.com/shadowtape/shadowtape/replayer/prompt"
	"github.com/shadowtape/shadowtape/replayer/schedule"
)

// Options say where and how a sweep runs.
type Options struct {
	Dir      string
	Start    candidate.Options // of deployments
	Job      job.Options       // what all runs share: model, dialect, client, scrape, tool version, command
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

// Answer is what a search has found for one combination of the other axes.
type Answer struct {
	Values map[string]string     `json:"values"`
	Rate   formats.Null[float64] `json:"rate"` // the highest that met the SLO; null where none did
	Over   formats.Null[float64] `json:"over"` // the lowest that did not; null where all did
	Runs   int                   `json:"runs"`
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
	if entries, err := os.ReadDir(s.o.Dir); err == nil && len(entries) > 0 {
		return fmt.Errorf("create sweep %s: %w, and it is no sweep's", s.o.Dir, fs.ErrExist)
	}
	if err := os.MkdirAll(filepath.Join(s.o.Dir, "cells"), 0o755); err != nil {
		return fmt.Errorf("create sweep: %w", err)
	}
	return os.WriteFile(path, append(b, '\n'), 0o644)
}

// cell makes one run, or finds it, and adds its row. The error is that of the context only.
func (s *sweep) cell(ctx context.Context, c Cell, repeat, of int) (Result, error) {
	s.n++
	name := fmt.Sprintf("%s,r%d", c.Name(), repeat)
	r := Result{Cell: c.Name(), Values: c.Values, Repeat: repeat, Run: filepath.Join("cells", name), Figures: map[string]float64{}}
	p := Progress{Cell: c, Repeat: repeat, Number: s.n, Of: of}
	dir := filepath.Join(s.o.Dir, "cells", name)
	failed := dir + ".error"
	switch {
	case finished(dir):
		p.Resumed = true
	default:
		if b, err := os.ReadFile(failed); err == nil {
			p.Resumed, r.Error = true, string(b)
		}
	}
	s.tell(p)
	if !p.Resumed {
		if err := os.RemoveAll(dir); err != nil { // what a crash left
			return r, err
		}
		err := s.measure(ctx, c, dir)
		if ctx.Err() != nil {
			return r, errors.Join(ctx.Err(), os.RemoveAll(dir))
		}
		if err != nil {
			r.Error = err.Error()
			if err := errors.Join(os.RemoveAll(dir), os.WriteFile(failed, []byte(r.Error), 0o644)); err != nil {
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

// finished reports whether a run is there that was not cut short.
func finished(dir string) bool {
	b, err := os.ReadFile(filepath.Join(dir, "run.json"))
	var m formats.Manifest
	return err == nil && json.Unmarshal(b, &m) == nil && !m.Interrupted && m.EndUnixNS > 0
}

// measure starts what has to be started and replays a cell's load.
func (s *sweep) measure(ctx context.Context, c Cell, dir string) (err error) {
	jo := s.o.Job
	target := s.m.Target
	var r *candidate.Running
	if s.m.Deploy != "" {
		values := map[string]string{}
		for k, v := range c.Values {
			values[k] = v
		}
		f, err := deploy.Load(s.m.Deploy, values)
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
		if jo.Model == "" {
			jo.Model = f.Model
		}
		if jo.Dialect == "" && slices.Contains(prompt.DialectNames(), f.Dialect) {
			jo.Dialect = f.Dialect
		}
	}
	trace, err := s.trace(c, dir+".trace")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, trace.Close(), os.RemoveAll(dir+".trace")) }()
	jo.Trace, jo.Out, jo.Label, jo.Seed, jo.Warmup = trace, dir, c.Name(), s.m.Seed, s.m.WarmUp
	jo.Client.Targets = []string{target}
	jo.Selection = schedule.Selection{Duration: s.m.Duration, MaxRequests: s.m.Requests}
	jo.Users = int(c.number("users"))
	if r != nil {
		jo.Beside = func(ctx context.Context, w *formats.RunWriter) func(*formats.Manifest) {
			r.Begin(ctx, w.WriteGPU)
			return func(m *formats.Manifest) { r.End(m) }
		}
	}
	limit, cancel := context.WithTimeout(ctx, s.m.Timeout)
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
		return fmt.Errorf("it took longer than %v", s.m.Timeout)
	}
	if r != nil {
		return r.Died()
	}
	return nil
}

// trace writes a cell's load: fixed lengths, arrivals at its rate. A closed loop takes its requests without their times.
func (s *sweep) trace(c Cell, dir string) (*formats.Trace, error) {
	if err := os.RemoveAll(dir); err != nil {
		return nil, err
	}
	w, err := formats.Create(dir, formats.Header{SourceKind: "synth", TimeBase: "relative"}, formats.SegmentOptions{})
	if err != nil {
		return nil, err
	}
	rate := c.rate()
	if rate == 0 {
		rate = 1000 // of users: in order, without a meaning
	}
	n := s.m.Requests
	if n == 0 {
		n = int64(math.Ceil(rate*s.m.Duration.Seconds()*1.5)) + 100
		if c.number("users") > 0 {
			n = 1000 * c.number("users")
		}
	}
	r := rand.New(rand.NewPCG(uint64(s.m.Seed), 0x5eed))
	at := 0.0
	for i := range n {
		x := &formats.Exchange{ExchangeID: i + 1, Phase: formats.PhaseRecord, ArrivalUnixNS: int64(at * 1e9), InputTokens: formats.Of(c.number("input")), InputTokensSource: formats.TokensTrace,
			OutputTokens: formats.Of(c.number("output")), OutputTokensSource: formats.TokensTrace, Stream: formats.Of(true), EndReason: formats.EndComplete}
		if err := w.Write(x); err != nil {
			return nil, errors.Join(err, w.Close())
		}
		if s.m.Arrival == "constant" {
			at += 1 / rate
		} else {
			at += r.ExpFloat64() / rate
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return formats.Open(dir)
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

// search finds the highest rate that meets the SLO, for one combination of the other axes: by doubling from the lowest rate and then by
// bisection on the logarithm. A rate meets it where its attainment does in the median over the repeats and no run failed.
func (s *sweep) search(ctx context.Context, c Cell) error {
	meets := func(rate float64) (bool, error) {
		v := Cell{Values: map[string]string{"rate": strconv.FormatFloat(rate, 'g', 4, 64)}, Names: append(slices.Clone(c.Names), "rate")}
		for k, x := range c.Values {
			v.Values[k] = x
		}
		var got []float64
		for k := 1; k <= s.m.Repeats; k++ {
			r, err := s.cell(ctx, v, k, 0)
			if err != nil {
				return false, err
			}
			a, ok := r.Figures["slo_attainment"]
			if r.Error != "" || !ok {
				a = 0
			}
			got = append(got, a)
		}
		return stats.Median(got) >= s.m.Search.Attain, nil
	}
	before := s.n
	a := Answer{Values: c.Values}
	lo, hi := 0.0, 0.0
	for rate := s.m.Search.From; ; rate = min(2*rate, s.m.Search.To) {
		ok, err := meets(rate)
		if err != nil {
			return err
		}
		if !ok {
			hi = rate
			break
		}
		if lo = rate; rate >= s.m.Search.To {
			break
		}
	}
	for lo > 0 && hi > 0 && hi/lo > 1+s.m.Search.Within {
		mid := math.Sqrt(lo * hi)
		ok, err := meets(mid)
		if err != nil {
			return err
		}
		if ok {
			lo = mid
		} else {
			hi = mid
		}
	}
	if lo > 0 {
		a.Rate = formats.Of(lo)
	}
	if hi > 0 {
		a.Over = formats.Of(hi)
	}
	a.Runs = s.n - before
	s.t.Answers = append(s.t.Answers, a)
	return nil
}

// medians makes a row for each cell: the median of each figure over the valid repeats, over all where none is valid.
func (s *sweep) medians() {
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
			for _, r := range all {
				if r.Error != "" {
					out.Error = r.Error
				}
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
}
