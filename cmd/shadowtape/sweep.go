package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/shadowtape/shadowtape/analyzer"
	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/candidate"
	"github.com/shadowtape/shadowtape/internal/experiment/sweep"
	"github.com/shadowtape/shadowtape/replayer/job"
)

// sweepFlags are the flags of sweep as given.
type sweepFlags struct {
	target, out, slo, arrival, search, model, html string
	input, output, rate, users                     []string
	requests, warmUp, seed                         int64
	duration, timeout                              time.Duration
	repeats                                        int
	dryRun, json, retry, allowInvalid, force       bool
	deploy                                         deployFlags
}

func sweepCommand(a *app) *cobra.Command {
	var o sweepFlags
	c := &cobra.Command{
		Use:   "sweep MATRIX.yaml | --target URL --input N,… --output N,… --rate R,… -o DIR",
		Short: "Measure a matrix of fixed lengths, rates or users, and engine settings, one cell after the other",
		Long: `Sweep measures every cell of a matrix: input and output lengths, an open loop's rate or a closed loop's users, and any value of a deployment
file, which is then started anew for each run. A cell that fails is a row with its error. The same call goes on where a crash or Ctrl-C ended
one. Results: DIR/index.html (heat maps, throughput against latency), results.parquet, results.csv, results.json, and a run for each cell.

--search finds the highest rate that meets --slo in place of fixed rates: doubling, then bisection, by each repeat on its own, so that their
spread gives an interval. samples/matrices has files.

Exit 0 where a cell could be measured, 1 where every cell failed, 4 where none came out valid (--allow-invalid accepts it), 130 where it was
interrupted.`,
		Example: `  shadowtape sweep --target http://localhost:8000 --input 512,2048 --output 128 \
    --rate 1,2,4 -o sweep1
  shadowtape sweep --target http://localhost:8000 --input 2048 --output 128 \
    --search 1..64 --slo ttft=500ms,tpot=50ms -o capacity
  shadowtape sweep samples/matrices/tensor-parallel.yaml --dry-run -o x`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usageError(fmt.Errorf("sweep takes one matrix, not %d", len(args)), "shadowtape sweep --help")
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error { return a.sweep(c, args, o) },
	}
	f := c.Flags()
	f.StringVar(&o.target, "target", "", "server to measure")
	f.StringSliceVar(&o.input, "input", nil, "input tokens")
	f.StringSliceVar(&o.output, "output", nil, "output tokens")
	f.StringSliceVar(&o.rate, "rate", nil, "requests per second of an open loop")
	f.StringSliceVar(&o.users, "users", nil, "users of a closed loop: each waits for its answer")
	f.StringVar(&o.search, "search", "", "find the highest rate that meets the SLO between two, such as 1..64")
	f.StringVar(&o.slo, "slo", "", "limits, such as ttft=500ms,tpot=50ms")
	f.Int64Var(&o.requests, "requests", 0, "requests of a cell (default: 200, or as many as come in --duration)")
	f.DurationVar(&o.duration, "duration", 0, "time of a cell's arrivals")
	f.DurationVar(&o.timeout, "timeout", 0, "of a run, starts left out (default: 10m)")
	f.IntVar(&o.repeats, "repeats", 0, "runs of a cell, each a fresh launch where one is made; figures are medians (default: 1, in a search 3)")
	f.StringVar(&o.arrival, "arrival", "", "poisson, constant, gamma:cv=2 and what else synth knows (default: poisson)")
	f.Int64Var(&o.warmUp, "warm-up", 0, "requests before each run that do not count (default: as warm_up of the deployment file says; none with --target)")
	f.Int64Var(&o.seed, "seed", 0, "seed of arrivals and prompts (default: 1)")
	f.StringVar(&o.model, "model", "", "model to ask for (default: the first that the server lists)")
	f.StringVarP(&o.out, "out", "o", "", "directory of the sweep")
	f.StringVar(&o.html, "html", "", "write the page here too")
	f.BoolVar(&o.force, "force", false, "replace a page that is there; cells that are there stay")
	f.BoolVar(&o.dryRun, "dry-run", false, "print the cells and the expected time, and stop")
	f.BoolVar(&o.retry, "retry", false, "measure again the cells that an earlier call found to fail or to be invalid")
	f.BoolVar(&o.allowInvalid, "allow-invalid", false, "exit 0 although every measured cell is invalid")
	f.BoolVar(&o.json, "json", false, "print the table as one JSON document")
	f.StringVar(&o.deploy.file, "deploy", "", "deployment file to start for each run, in place of --target")
	f.StringVar(&o.deploy.exclusive, "exclusive", "on", "on: lease the GPUs and refuse them where others use them; off: neither")
	f.BoolVar(&o.deploy.wait, "wait", false, "wait for GPUs that another run holds")
	f.StringVar(&o.deploy.engine, "engine", "", "address of the container engine (default: $DOCKER_HOST, else the local Docker)")
	f.StringVar(&o.deploy.lockDir, "lock-dir", "", "directory of the GPU leases")
	groupFlags(c,
		flagGroup{"What is measured", []string{"target", "deploy", "model", "exclusive", "wait", "engine", "lock-dir"}},
		flagGroup{"Cells", []string{"input", "output", "rate", "users", "search", "slo"}},
		flagGroup{"Each run", []string{"requests", "duration", "timeout", "repeats", "arrival", "warm-up", "seed"}},
		flagGroup{"Result", []string{"out", "html", "force", "json", "dry-run", "retry", "allow-invalid"}},
	)
	return c
}

// matrix makes the matrix of a file and the flags, which win.
func (o *sweepFlags) matrix(fs *pflag.FlagSet, args []string) (*sweep.Matrix, error) {
	m := &sweep.Matrix{}
	if len(args) == 1 {
		var err error
		if m, err = sweep.Read(args[0]); err != nil {
			return nil, err
		}
	}
	for _, x := range []struct {
		name   string
		values []string
	}{{"input", o.input}, {"output", o.output}, {"rate", o.rate}, {"users", o.users}} {
		if len(x.values) == 0 {
			continue
		}
		found := false
		for i := range m.Axes {
			if m.Axes[i].Name == x.name {
				m.Axes[i].Values, found = x.values, true
			}
		}
		if !found {
			m.Axes = append(m.Axes, sweep.Axis{Name: x.name, Values: x.values})
		}
	}
	if o.target != "" {
		m.Target, m.Deploy = o.target, ""
	}
	if o.deploy.file != "" {
		m.Deploy = o.deploy.file
	}
	if o.slo != "" {
		slo, err := analyzer.ParseSLO(o.slo)
		if err != nil {
			return nil, err
		}
		m.SLO, m.SLOText = slo, o.slo
	}
	if o.search != "" {
		from, to, ok := strings.Cut(o.search, "..")
		s := &sweep.Search{}
		var err1, err2 error
		s.From, err1 = strconv.ParseFloat(from, 64)
		s.To, err2 = strconv.ParseFloat(to, 64)
		if !ok || err1 != nil || err2 != nil {
			return nil, fmt.Errorf("--search %q: want two rates such as 1..64", o.search)
		}
		m.Search = s
	}
	if fs.Changed("requests") {
		m.Requests = o.requests
	}
	if fs.Changed("duration") {
		m.Duration = o.duration
	}
	if fs.Changed("timeout") {
		m.Timeout = o.timeout
	}
	if fs.Changed("repeats") {
		m.Repeats = o.repeats
	}
	if fs.Changed("arrival") {
		m.Arrival = o.arrival
	}
	if fs.Changed("warm-up") {
		m.WarmUp = &o.warmUp
	}
	if fs.Changed("seed") {
		m.Seed = o.seed
	}
	m.Defaults()
	return m, m.Validate()
}

func (a *app) sweep(c *cobra.Command, args []string, o sweepFlags) error {
	m, err := o.matrix(c.Flags(), args)
	if err != nil {
		return usageError(err, "shadowtape sweep --help; samples/matrices has files")
	}
	cells := m.Cells()
	if len(cells) == 0 {
		return usageError(errors.New("the matrix has no cell: everything is excluded"), "")
	}
	if o.dryRun {
		for _, cell := range cells {
			if _, err := fmt.Fprintln(a.out, cell.Name()); err != nil {
				return err
			}
		}
	}
	fmt.Fprintf(a.err, "plan: %d times each of %d cells, about %s without starts and what is still in flight\n", m.Repeats, len(cells), m.Expected().Round(time.Second))
	if o.dryRun {
		return nil
	}
	if o.out == "" {
		return usageError(errors.New("-o is missing"), "shadowtape sweep --help")
	}
	if formats.Remote(o.out) {
		return usageError(localOnly(o.out), "")
	}
	o.force = o.force || isFile(filepath.Join(o.out, "matrix.json")) // a call that goes on replaces the page of the one before
	if o.html != "" && !strings.HasPrefix(located(o.html), located(o.out)+"/") {
		if err := writable(o.html, o.force); err != nil {
			return err
		}
	}
	so := sweep.Options{Dir: o.out, Retry: o.retry, Job: job.Options{Model: o.model, ToolVersion: readBuildInfo().Version, Command: commandLine(c, args...)}, Progress: a.sweepProgress}
	if m.Deploy != "" {
		so.Start = o.deploy.options(a, "sweep")
		so.Start.Told = func(k candidate.Kind, line string) {
			if k == candidate.Warning {
				fmt.Fprintf(a.err, "warning: %s\n", oneLine(line))
			}
		}
	}
	t, err := sweep.Run(c.Context(), m, so)
	if len(t.Results) > 0 {
		err = errors.Join(err, a.sweepResults(o, t))
	}
	if errors.Is(err, context.Canceled) {
		return exitWith(exitInterrupted, errors.New("sweep interrupted: finished cells are kept"), "the same call goes on from there")
	}
	if err != nil {
		return err
	}
	if o.json {
		err = printJSON(a.out, &t)
	} else {
		err = t.Text(a.out)
	}
	if err != nil {
		return err
	}
	return o.verdict(&t)
}

// verdict turns a whole sweep into an exit code.
func (o *sweepFlags) verdict(t *sweep.Table) error {
	measured, valid := 0, 0
	for _, r := range t.Medians {
		if r.Error == "" {
			measured++
		}
		if r.Valid {
			valid++
		}
	}
	switch {
	case measured == 0:
		return exitWith(exitFailed, errors.New("sweep: no cell could be measured"), "--retry tries them again")
	case valid == 0 && !o.allowInvalid:
		return exitWith(exitInvalid, fmt.Errorf("sweep: none of the %d cells that were measured is valid: %s", measured, oneLine(t.Invalid())), "--retry measures them again; --allow-invalid accepts them")
	}
	return nil
}

func (a *app) sweepProgress(p sweep.Progress) {
	of := ""
	if p.Of > 0 {
		of = fmt.Sprintf(" of %d", p.Of)
	}
	switch {
	case p.Done && p.Err != "":
		fmt.Fprintf(a.err, "run %d%s: %s failed: %s\n", p.Number, of, p.Cell.Name(), oneLine(p.Err))
	case p.Done:
	case p.Resumed:
		fmt.Fprintf(a.err, "run %d%s: %s is there already\n", p.Number, of, p.Cell.Name())
	default:
		fmt.Fprintf(a.err, "run %d%s: %s\n", p.Number, of, p.Cell.Name())
	}
}

// sweepResults writes what a sweep has, whole or not.
func (a *app) sweepResults(o sweepFlags, t sweep.Table) error {
	html := func(w io.Writer) error { return t.Page(w, "Sweep "+filepath.Base(filepath.Clean(o.out))) }
	errs := []error{
		formats.WriteResults(filepath.Join(o.out, "results.parquet"), t.Rows()),
		writeFile(filepath.Join(o.out, "results.csv"), t.CSV),
		writeFile(filepath.Join(o.out, "results.json"), func(w io.Writer) error { return printJSON(w, &t) }),
		writeFile(filepath.Join(o.out, "index.html"), html),
	}
	if o.html != "" {
		errs = append(errs, writeNew(o.html, o.force, html))
	}
	return errors.Join(errs...)
}
