package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/shadowtape/shadowtape/internal/workload"
	"github.com/shadowtape/shadowtape/internal/workload/fit"
)

func fitCommand(a *app) *cobra.Command {
	var (
		out     string
		force   bool
		window  time.Duration
		fold    time.Duration
		noFold  bool
		tenants int
		family  string
	)
	c := &cobra.Command{
		Use:   "fit TRACE -o WORKLOAD.json",
		Short: "Fit a workload model to a trace: readable, text-free, good for traces of any length and rate",
		Long: `Fit looks at a trace window by window and writes down the number of requests, how they arrive (Poisson, gamma, Weibull or Markov-modulated
Poisson, whichever explains the gaps best), and their input and output lengths together; besides what prompts and sessions have in common,
the kinds of requests and the share of aborts. Traces of two days or more fold into one day of hours, of two weeks or more into one week.`,
		Example: `  shadowtape fit prod.trace -o workload.json
  shadowtape fit prod.trace --window 10s --lengths lognormal -o workload.json
  shadowtape synth workload.json --duration 24h -o day.trace`,
		Args: exactArgs("TRACE"),
		RunE: func(_ *cobra.Command, args []string) (err error) {
			if out == "" {
				return usageError(errors.New("-o is missing"), "shadowtape fit --help")
			}
			if err := notRead(out, args[0]); err != nil {
				return err
			}
			if err := writable(out, force); err != nil {
				return err
			}
			o := fit.Options{Window: window.Seconds(), Fold: fold.Seconds(), Tenants: tenants, Family: family, Source: filepath.Base(filepath.Clean(args[0]))}
			if noFold {
				o.Fold = -1
			}
			if err := o.Validate(); err != nil {
				return usageError(err, "shadowtape fit --help")
			}
			t, err := a.openTrace(args[0])
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, t.Close()) }()
			o.Header = t.Header
			m, err := fit.Trace(t.All(fit.Columns()...), o)
			if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			data, err := json.MarshalIndent(m, "", " ")
			if err != nil {
				return err
			}
			data = append(compact(data), '\n')
			if err := writeNew(out, force, func(w io.Writer) error { _, err := w.Write(data); return err }); err != nil {
				return err
			}
			return fitted(a, out, len(data), m)
		},
	}
	fl := c.Flags()
	fl.StringVarP(&out, "output", "o", "", "model to write")
	fl.BoolVar(&force, "force", false, "replace the model where it exists")
	fl.DurationVar(&window, "window", 0, "length of a window (default: a minute, or more where a minute holds few requests)")
	fl.DurationVar(&fold, "fold", 0, "fold the trace into hours of so long (default: a day or a week where the trace is long)")
	fl.BoolVar(&noFold, "no-fold", false, "keep all windows however long the trace is")
	fl.IntVar(&tenants, "tenants", 50, "tenants with windows of their own, the busiest")
	fl.StringVar(&family, "lengths", workload.Table, "table: as they were seen; or lognormal, mixture, gamma, exponential: input and output apart")
	groupFlags(c,
		flagGroup{"Model", []string{"window", "fold", "no-fold", "tenants", "lengths"}},
		flagGroup{"Result", []string{"output", "force"}},
	)
	return c
}

// compact puts lists of numbers on one line each.
func compact(data []byte) []byte {
	var b strings.Builder
	lines := strings.Split(string(data), "\n")
	for i := 0; i < len(lines); i++ {
		b.WriteString(lines[i])
		for i+1 < len(lines) && numeric(lines[i+1]) && (strings.HasSuffix(lines[i], "[") || strings.HasSuffix(lines[i], ",") && numeric(lines[i])) {
			i++
			b.WriteString(strings.TrimSpace(lines[i]))
		}
		if i+1 < len(lines) && numeric(lines[i]) && strings.HasPrefix(strings.TrimSpace(lines[i+1]), "]") {
			i++
			b.WriteString(strings.TrimSpace(lines[i]))
		}
		b.WriteByte('\n')
	}
	return []byte(strings.TrimSuffix(b.String(), "\n"))
}

func numeric(line string) bool {
	s := strings.TrimSuffix(strings.TrimSpace(line), ",")
	return s != "" && strings.Trim(s, "0123456789.-+eE") == ""
}

// fitted prints what a model says.
func fitted(a *app, where string, size int, m *workload.Model) error {
	families := map[string]int{}
	windows := 0
	for _, c := range m.Clients {
		for _, w := range c.Windows {
			windows++
			if w.Count > 0 {
				families[w.Arrival.Family]++
			} else {
				families["empty"]++
			}
		}
	}
	var parts []string
	for _, f := range []string{workload.Poisson, workload.Gamma, workload.Weibull, workload.MMPP, "empty"} {
		if families[f] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", families[f], f))
		}
	}
	_, err := fmt.Fprintf(a.out, "%s: %.4g requests a second over %v; %d clients, %d windows (%s); %d bytes\n", where, m.Rate(),
		time.Duration(m.Seconds*float64(time.Second)).Round(time.Second), len(m.Clients), windows, strings.Join(parts, ", "), size)
	if n, ok := m.Extra["requests_without_lengths"].(int); ok && err == nil {
		_, err = fmt.Fprintf(a.err, "warning: %d of %d requests do not say how long they are, or what cannot be: they count as arrivals\n", n, m.Extra["requests"])
	}
	if err == nil && m.Quantum > 0 {
		_, err = fmt.Fprintf(a.err, "warning: the trace's times are %v s apart: arrivals were spread over that; synth --keep-quantum puts them back\n", m.Quantum)
	}
	if err == nil && m.Threads != nil {
		_, err = fmt.Fprintf(a.out, "sharing: %d roots; continue by input length %.3v, fanout %.3g\n", len(m.Threads.Roots), m.Threads.Continue, m.Threads.Fanout)
		if g := m.Threads.Growth; g != nil && err == nil {
			_, err = fmt.Fprintf(a.out, "growth: by length of the earlier prompt %.3v drop some of it; %.3g %% of prompts are shorter than the one they continue\n", g.Drop, g.Shrink*100)
		}
	}
	return err
}
