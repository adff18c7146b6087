package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/workload"
)

// synthFlags are the flags of synth as given.
type synthFlags struct {
	arrival, input, output, prefix, sessions, preset, out string
	rate                                                  float64
	duration                                              time.Duration
	requests                                              int64
	seed                                                  uint64
	quantum, force                                        bool
}

func synthCommand(a *app) *cobra.Command {
	var f synthFlags
	c := &cobra.Command{
		Use:   "synth [WORKLOAD.json] -o TRACE",
		Short: "Make a trace from a workload model, or from a few figures",
		Long: `Synth writes a trace like any other: from a model that ` + "`shadowtape fit`" + ` made, longer or shorter than its source or at another rate, its bursts
and drifts kept; or from nothing but the flags. The same seed gives the same rows on every machine.

Arrivals:  constant  poisson  gamma:cv=2  weibull:cv=2  mmpp:burst=10,on=10s,off=50s
           ramp:from=0,to=2  diurnal:peak=4,period=24h
Lengths:   512  uniform:100-2000  exponential:mean=500  gamma:mean=500,cv=2
           lognormal:p50=700,p99=8000,max=32000  file:NAME (a number a line)
           mixture:p50=700,p99=4000,share=5%,min=8000,alpha=1.5
Sharing:   --prefix roots=10,share=40%,block=16
           --sessions turns=5,think=60s,token=20ms,max=32000,shrink=5%,keep=30%`,
		Example: `  shadowtape synth --preset short --rate 10 --duration 10m -o short.trace
  shadowtape synth --arrival mmpp:burst=10,on=10s,off=50s --rate 5 --duration 1h \
    --input lognormal:p50=700,p99=8000 --output exponential:mean=200 -o bursty.trace
  shadowtape synth workload.json --duration 24h --rate 20 --seed 7 -o day.trace`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) > 1 {
				return exactArgs("WORKLOAD.json")(c, args)
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error { return a.synth(c, args, f) },
	}
	fl := c.Flags()
	fl.StringVarP(&f.out, "out", "o", "", "trace to write: a file where it ends in .parquet, else a directory")
	fl.BoolVar(&f.force, "force", false, "replace the trace where it exists")
	fl.StringVar(&f.arrival, "arrival", "poisson", "how requests arrive")
	fl.Float64Var(&f.rate, "rate", 0, "mean rate, requests per second (default: the model's)")
	fl.StringVar(&f.input, "input", "", "input tokens of requests")
	fl.StringVar(&f.output, "output", "", "output tokens of requests")
	fl.StringVar(&f.preset, "preset", "", "short, medium or long: 512, 2,048 or 8,192 input and 128 output tokens")
	fl.StringVar(&f.prefix, "prefix", "", "what prompts begin with")
	fl.StringVar(&f.sessions, "sessions", "", "conversations of several turns")
	fl.DurationVar(&f.duration, "duration", 0, "length of the trace (default: the model's)")
	fl.Int64Var(&f.requests, "requests", 0, "end after so many requests (default: when the time is over)")
	fl.Uint64Var(&f.seed, "seed", 1, "seed of everything that is drawn")
	fl.BoolVar(&f.quantum, "keep-quantum", false, "put arrivals at the ticks of the model's source instead of spreading them")
	groupFlags(c,
		flagGroup{"Load", []string{"arrival", "rate", "duration", "requests", "keep-quantum", "seed"}},
		flagGroup{"Requests", []string{"preset", "input", "output", "prefix", "sessions"}},
		flagGroup{"Result", []string{"out", "force"}},
	)
	return c
}

// synth runs the verb.
func (a *app) synth(c *cobra.Command, args []string, f synthFlags) error {
	if f.out == "" {
		return usageError(errors.New("-o is missing"), "shadowtape synth --help")
	}
	m, err := f.model(c.Flags(), args)
	if err != nil {
		return err
	}
	o := workload.Options{Seed: f.seed, Seconds: f.duration.Seconds(), Requests: f.requests, KeepQuantum: f.quantum}
	if len(args) == 1 {
		o.Rate = f.rate
	}
	rows, err := m.Generate(o)
	if err != nil {
		return usageError(err, "shadowtape synth --help")
	}
	h := m.Header()
	h.ToolVersion, h.Source = readBuildInfo().Version, m.Source
	if len(args) == 1 {
		h.Source = filepath.Base(args[0])
	}
	h.Extra = map[string]any{"seed": f.seed, "command": strings.Join(commandLine(c, args...), " ")}
	began := time.Now()
	var n, last int64
	if err := replacing(f.out, f.force, func(out string) (err error) {
		n, last, err = writeRows(out, h, rows)
		return err
	}); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return withHint(err, "--force replaces it")
		}
		return err
	}
	took := time.Since(began)
	if n == 0 {
		fmt.Fprintln(a.err, "warning: no request falls into the time")
	}
	_, err = fmt.Fprintf(a.out, "%s: %d requests in %v, %.4g a second; written in %v, %.0f rows a second\n", f.out, n, time.Duration(last).Round(time.Millisecond),
		float64(n)/max(float64(last)/1e9, 1e-9), took.Round(time.Millisecond), float64(n)/max(took.Seconds(), 1e-9))
	return err
}

// model reads the model, or makes one of the flags.
func (f synthFlags) model(fl *pflag.FlagSet, args []string) (*workload.Model, error) {
	if len(args) == 1 {
		for _, name := range []string{"arrival", "input", "output", "preset", "prefix", "sessions"} {
			if fl.Changed(name) {
				return nil, usageError(fmt.Errorf("--%s says what the model says already", name), "leave the model or the flag out")
			}
		}
		return readModel(args[0])
	}
	if f.rate <= 0 {
		return nil, usageError(errors.New("--rate is missing, or not positive"), "shadowtape synth --help")
	}
	arrival, err := workload.ParseArrival(f.arrival, f.rate, f.duration.Seconds())
	if err != nil {
		return nil, usageError(err, "shadowtape synth --help lists arrivals")
	}
	var input, output workload.Length
	if f.preset != "" {
		if input, output, err = workload.Preset(f.preset); err != nil {
			return nil, usageError(err, "")
		}
	}
	for _, l := range []struct {
		name, text string
		to         *workload.Length
	}{{"input", f.input, &input}, {"output", f.output, &output}} {
		if l.text != "" {
			if *l.to, err = workload.ParseLength(l.text, readNumbers); err != nil {
				return nil, usageError(err, "shadowtape synth --help lists lengths")
			}
		} else if f.preset == "" {
			return nil, usageError(fmt.Errorf("--%s is missing", l.name), "or --preset short, medium or long")
		}
	}
	sessions, err := workload.ParseSessions(f.sessions, f.prefix)
	if err != nil {
		return nil, usageError(err, "--prefix roots=10,share=40% --sessions turns=5,think=60s")
	}
	m, err := workload.Written(arrival, input, output, sessions)
	if err != nil {
		return nil, usageError(err, "")
	}
	return m, nil
}

// mostModel is more than models of a million windows take.
const mostModel = 1 << 30

// readLimited reads a file that is not longer than it should be.
func readLimited(where string, most int64) ([]byte, error) {
	file, err := os.Open(where)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if s, err := file.Stat(); err == nil && s.Mode()&fs.ModeDevice != 0 && s.Mode()&fs.ModeCharDevice != 0 {
		return nil, fmt.Errorf("%s is a device", where)
	}
	data, err := io.ReadAll(io.LimitReader(file, most+1))
	if err == nil && int64(len(data)) > most {
		err = fmt.Errorf("%s is longer than %d bytes", where, most)
	}
	return data, err
}

// readModel reads a workload model.
func readModel(where string) (*workload.Model, error) {
	data, err := readLimited(where, mostModel)
	if err != nil {
		return nil, fmt.Errorf("open workload model: %w", err)
	}
	m, err := workload.Parse(data)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", where, err)
	}
	return m, nil
}

// readNumbers reads a number a line; blank lines do not count.
func readNumbers(where string) (values []float64, err error) {
	file, err := os.Open(where)
	if err != nil {
		return nil, fmt.Errorf("read lengths: %w", err)
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for n := 1; lines.Scan(); n++ {
		text := strings.TrimSpace(lines.Text())
		if text == "" {
			continue
		}
		v, err := strconv.ParseFloat(text, 64)
		if err != nil || v < 0 || v > 1e12 {
			return nil, fmt.Errorf("read lengths: %s: line %d: %q is no length", where, n, text)
		}
		values = append(values, v)
	}
	if err := lines.Err(); err != nil && err != io.EOF {
		return nil, fmt.Errorf("read lengths: %s: %w", where, err)
	}
	return values, nil
}

// writeRows writes a whole trace and returns its rows and the last arrival.
func writeRows(where string, h formats.Header, rows iter.Seq2[*formats.Exchange, error]) (n, last int64, err error) {
	w, err := formats.Create(where, h, formats.SegmentOptions{})
	if err != nil {
		return 0, 0, err
	}
	for x, e := range rows {
		if err = e; err == nil {
			err = w.Write(x)
		}
		if err != nil {
			break
		}
		n, last = n+1, x.ArrivalUnixNS
	}
	w.Header().Counters = formats.Counters{Seen: n, Written: n}
	return n, last, errors.Join(err, w.Close())
}
