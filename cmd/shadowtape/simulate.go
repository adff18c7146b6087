package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/engine"
	"github.com/shadowtape/shadowtape/internal/sim"
	"github.com/shadowtape/shadowtape/internal/virtual"
	"github.com/shadowtape/shadowtape/internal/workload"
	"github.com/shadowtape/shadowtape/replayer/schedule"
)

// simulateFlags are the flags of simulate as given.
type simulateFlags struct {
	engineFlags
	out, label, route, states string
	replicas                  int
	sample                    time.Duration
	force                     bool
	scheduleFlags
}

func simulateCommand(a *app) *cobra.Command {
	var f simulateFlags
	c := &cobra.Command{
		Use:   "simulate TRACE|WORKLOAD.json --profile NAME -o RUN",
		Short: "Send a trace through simulated servers in virtual time: a day in seconds, a run like any other",
		Long: `Simulate answers what a deployment would do with a trace before there is one: how many replicas, how many pages, what twice the load does.
Its engine is the one of ` + "`shadowtape sim`" + `, its clock is not: nothing is sent and nothing waits. The run can be analyzed and compared like a
replay's. The same seed gives the same run.`,
		Example: `  shadowtape simulate prod.trace --profile llama-3.1-8b-h100 -o sim1
  shadowtape simulate prod.trace --speed 2 --replicas 4 --route prefix -o sim2
  shadowtape simulate workload.json --duration 24h --pages 8000 --slowdown decode=1.15 \
    --noise launch=2%,step=1% --seed 7 -o sim3`,
		Args: exactArgs("TRACE"),
		RunE: func(c *cobra.Command, args []string) error { return a.simulate(c, args[0], f) },
	}
	fs := c.Flags()
	fs.StringVarP(&f.out, "output", "o", "", "run directory to write")
	fs.BoolVar(&f.force, "force", false, "replace the run directory where it exists")
	fs.StringVar(&f.label, "label", "", "name of the run in reports (default: the run directory's)")
	fs.StringVar(&f.states, "state-log", "", "write a CSV line a step: time, prefill tokens, decode sequences, pages, waiting")
	f.add(fs)
	fs.IntVar(&f.replicas, "replicas", 1, "servers")
	fs.StringVar(&f.route, "route", string(virtual.RoundRobin), "how requests are dealt out: "+strings.Join(strings.Fields(strings.Trim(fmt.Sprint(virtual.Routes()), "[]")), ", "))
	f.register(fs, "play")
	fs.DurationVar(&f.sample, "sample", time.Second, "virtual time between samples of the servers' metrics; 0: none")
	groupFlags(c,
		flagGroup{"Servers", []string{"profile", "replicas", "route", "pages", "block-size", "max-num-seqs", "token-budget", "slowdown", "noise", "seed"}},
		flagGroup{"Schedule", []string{"speed", "rate", "duration", "max-requests", "window", "preroll", "loop", "thin", "tenant", "only-model", "spread", "fill"}},
		flagGroup{"Sessions and users", []string{"sessions", "users", "ramp", "think"}},
		flagGroup{"Result", []string{"output", "force", "label", "sample", "state-log"}},
	)
	return c
}

// simulate runs the verb.
func (a *app) simulate(c *cobra.Command, where string, f simulateFlags) (err error) {
	p, slow, noise, err := f.resolve()
	if err != nil {
		return err
	}
	if f.out == "" {
		return usageError(errors.New("-o is missing"), "shadowtape simulate --help")
	}
	sel, err := f.selection(c)
	o := virtual.Options{Profile: p, Replicas: f.replicas, Route: virtual.Route(f.route), Seed: f.seed, Slowdown: slow, Noise: noise, Sample: f.sample,
		Turns: sel.ThinkTime, Users: f.users, Ramp: f.ramp, Think: f.think, End: f.duration}
	if err := errors.Join(err, o.Validate()); err != nil {
		return usageError(err, "shadowtape simulate --help")
	}
	in, err := a.openRequests(where, f.generate(f.seed))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, in.close()) }()
	o.Header = in.header
	sel.Seed = int64(f.seed)
	if f.users > 0 {
		sel.Duration = 0 // ends the users, not the requests that they take from
	}
	fill, err := f.filling()
	if err != nil {
		return err
	}
	arrivals, speed, filling, err := in.schedule(&sel, f.spread == "uniform", fill)
	if err != nil {
		return err
	}
	if err := anyArrival(arrivals); err != nil {
		return fmt.Errorf("simulate %s: %w", where, err)
	}
	if f.force {
		if err := notRead(f.out, where); err != nil {
			return err
		}
	}
	if f.states != "" {
		if f.stateLogIn("") == f.states { // else it has its place when there is a run
			if err := writable(f.states, f.force); err != nil {
				return err
			}
		}
	}
	label := f.label
	if label == "" {
		label = filepath.Base(filepath.Clean(f.out))
	}
	m := formats.Manifest{Schema: 1, Label: label, ToolVersion: readBuildInfo().Version, Command: commandLine(c, where), Kind: "simulate", Seed: int64(f.seed),
		TracePath: filepath.Base(filepath.Clean(where)), TraceSHA256: in.sha256, Model: p.Model, PrefixReset: "done",
		Options: map[string]any{"profile": p, "replicas": f.replicas, "route": f.route, "speed": speed, "slowdown": slow, "noise": noise, "sessions": f.sessions}}
	sel.Describe(m.Options)
	if f.users > 0 {
		m.Options["users"], m.Options["ramp_s"], m.Options["think_s"], m.Options["duration_s"] = f.users, f.ramp.Seconds(), f.think.Seconds(), f.duration.Seconds()
	}
	for i := range f.replicas {
		m.Targets = append(m.Targets, fmt.Sprintf("replica-%d", i))
	}
	var st virtual.Stats
	var took time.Duration
	err = replacing(f.out, f.force, func(place string) error {
		w, err := formats.CreateRun(place, m)
		if err != nil {
			return err
		}
		w.SetHeader(in.header)
		w.BatchSamples(1024)
		var drawn schedule.Drawn
		out := virtual.Output{Server: w.WriteServer, Exchange: func(x *formats.Exchange) error {
			drawn.Add(x)
			return w.Write(x)
		}}
		finish := func() error { return nil }
		if f.states != "" {
			if out.Step, finish, err = stateLog(f.stateLogIn(place)); err != nil {
				return errors.Join(err, w.Close(m))
			}
		}
		began := time.Now()
		st, err = virtual.Play(c.Context(), arrivals, o, out)
		took = time.Since(began)
		finished(&m, st)
		if filling != nil {
			m.Warnings = append(m.Warnings, filling.Warnings...)
		}
		if d := drawn.Counts(); len(d) > 0 {
			m.Fidelity = map[string]any{"drawn": d}
			m.Warnings = append(m.Warnings, "a model drew what nobody recorded: "+drawn.String())
		}
		m.Interrupted = errors.Is(err, context.Canceled)
		if err != nil {
			m.Valid, m.Invalid = false, append(m.Invalid, err.Error())
		}
		if e := errors.Join(w.Close(m), finish()); e != nil || m.Interrupted { // what was simulated is written
			if e == nil && place != f.out {
				e = fmt.Errorf("simulate %s: %w", where, errInterrupted)
			}
			return e
		}
		return err
	})
	switch {
	case errors.Is(err, errInterrupted):
		return exitWith(exitInterrupted, err, "")
	case errors.Is(err, fs.ErrExist):
		return withHint(err, "--force replaces it")
	case err != nil:
		return err
	case m.Interrupted:
		return exitWith(exitInterrupted, errors.New("interrupted: what was simulated is written"), "")
	}
	if err := a.simulated(f.out, st, took); err != nil {
		return err
	}
	for _, w := range m.Warnings {
		if _, err := fmt.Fprintf(a.err, "warning: %s\n", w); err != nil {
			return err
		}
	}
	return nil
}

// finished fills the manifest in with what came of a simulation.
func finished(m *formats.Manifest, st virtual.Stats) {
	m.StartUnixNS, m.EndUnixNS, m.Requests = st.StartUnixNS, st.EndUnixNS, st.RequestCounts
	m.Valid = st.Sent > 0
	if !m.Valid {
		m.Invalid = append(m.Invalid, "nothing was sent")
	}
	if st.Failed > 0 {
		m.Errors = map[string]int64{"http_400": st.Failed}
		m.Warnings = append(m.Warnings, fmt.Sprintf("%d requests are longer than the server takes", st.Failed))
	}
	if st.Dropped > 0 {
		m.Dropped = st.DropReasons
		m.Warnings = append(m.Warnings, fmt.Sprintf("%d requests were not sent: the trace does not say how long they are", st.Dropped))
	}
	if st.Unsent > 0 {
		m.Warnings = append(m.Warnings, fmt.Sprintf("%d turns were still waiting for the answers before them when the time was over, and are left out", st.Unsent))
	}
	if st.Unordered > 0 {
		m.Warnings = append(m.Warnings, fmt.Sprintf("%d arrivals came before their predecessor and were moved to its time", st.Unordered))
	}
}

// simulated prints what a simulation came to.
func (a *app) simulated(where string, st virtual.Stats, took time.Duration) error {
	span := time.Duration(st.EndUnixNS - st.StartUnixNS)
	hit := 0.0
	if st.InputTokens > 0 {
		hit = float64(st.CachedTokens) / float64(st.InputTokens)
	}
	_, err := fmt.Fprintf(a.out, "run %s: %v of traffic in %v, %.0f times real time\nscheduled %d = sent %d + dropped %d; completed %d, failed %d, aborted %d\n"+
		"%d input tokens, %.1f %% from the prefix cache; %d output tokens; %d steps, %d preemptions\n",
		where, span.Round(time.Millisecond), took.Round(time.Millisecond), span.Seconds()/max(took.Seconds(), 1e-9),
		st.Scheduled, st.Sent, st.Dropped, st.Completed, st.Failed, st.Aborted, st.InputTokens, hit*100, st.OutputTokens, st.Steps, st.Preemptions)
	return err
}

// anyArrival is an error where a schedule is empty.
func anyArrival(arrivals schedule.Arrivals) error {
	for a, err := range arrivals {
		if err != nil || !a.Warmup {
			return err
		}
	}
	return errors.New("no request falls into it")
}

// stateLogIn is where the state log goes while the run is written at a place: into it, where it is asked for in the run's own directory.
func (f simulateFlags) stateLogIn(place string) string {
	if filepath.Clean(filepath.Dir(f.states)) == filepath.Clean(f.out) {
		return filepath.Join(place, filepath.Base(f.states))
	}
	return f.states
}

// stateLog opens a state log; finish completes it.
func stateLog(name string) (step func(int, int64, engine.Step) error, finish func() error, err error) {
	file, err := os.Create(name)
	if err != nil {
		return nil, nil, fmt.Errorf("write state log: %w", err)
	}
	w := bufio.NewWriterSize(file, 256<<10)
	_, err = w.WriteString("replica," + sim.StateHeader())
	step = func(replica int, zero int64, s engine.Step) error {
		b := fmt.Appendf(w.AvailableBuffer(), "%d,", replica)
		_, err := w.Write(sim.StateRow(b, zero, s))
		return err
	}
	return step, func() error { return errors.Join(w.Flush(), file.Close()) }, err
}

// requests is something that requests can be read from.
type requests struct {
	all    iter.Seq2[*formats.Exchange, error]
	trace  *formats.Trace // nil where a model generates them
	header formats.Header
	sha256 string
	close  func() error
}

// openRequests opens a trace, a run, or a workload model, whose requests are generated with the given options.
func (a *app) openRequests(where string, o workload.Options) (in requests, err error) {
	if strings.HasSuffix(where, ".json") {
		m, err := readModel(where)
		if err != nil {
			return in, err
		}
		rows, err := m.Generate(o)
		if err != nil {
			return in, withHint(fmt.Errorf("open %s: %w", where, err), "--duration or --max-requests")
		}
		return requests{all: rows, header: m.Header(), close: func() error { return nil }}, nil
	}
	t, err := a.openTrace(where)
	if err != nil {
		return in, err
	}
	in.header, in.close = t.Header, t.Close
	if in.sha256, err = t.SHA256(); err != nil {
		return in, errors.Join(err, t.Close())
	}
	in.all, in.trace = t.All(), t
	return in, nil
}

// schedule is what a selection makes of the requests, and how many times as fast they then come. It completes the selection: a model has
// its rate already, and ticks are looked for where they are to be spread.
func (in requests) schedule(sel *schedule.Selection, spread bool, fill schedule.Fill) (arrivals schedule.Arrivals, speed float64, filling *schedule.Filling, err error) {
	rows, quantum := schedule.FromRows(in.all), time.Duration(in.header.TimeQuantumNS)
	if in.trace == nil {
		sel.Rate = 0
	} else {
		fill.Seed, fill.Rate = sel.Seed, sel.Rate
		if filling, err = fill.Lacking(in.trace); err != nil {
			return nil, 0, nil, err
		}
		if filling != nil && filling.Arrivals {
			sel.Rate = 0 // they are drawn at that rate
		}
		rows = filling.Apply(schedule.FromTrace(in.trace))
		if spread && quantum == 0 {
			if quantum, err = schedule.Quantum(in.trace); err != nil {
				return nil, 0, nil, err
			}
		}
	}
	if spread {
		sel.Spread = quantum
	}
	if speed = sel.Speed; speed == 0 {
		speed = 1
	}
	if sel.Rate > 0 {
		if speed, err = schedule.SpeedFor(sel.Part(rows), sel.Rate); err != nil {
			return nil, 0, nil, err
		}
	}
	return sel.Apply(rows, speed), speed, filling, nil
}

// sortByArrival puts rows in the order of their arrivals.
func sortByArrival(rows []*formats.Exchange) {
	slices.SortStableFunc(rows, func(a, b *formats.Exchange) int { return cmp.Compare(a.ArrivalUnixNS, b.ArrivalUnixNS) })
}
