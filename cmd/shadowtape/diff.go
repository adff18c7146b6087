package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/shadowtape/shadowtape/analyzer"
)

func diffCommand(a *app) *cobra.Command {
	var o struct {
		json, allowInvalid, singleRun bool
		slo                           string
		minEffect, minTail            float64
		seed                          int64
	}
	c := &cobra.Command{
		Use:   "diff BASE CANDIDATE",
		Short: "Say whether a candidate is worse than a base: one run a side, requests matched",
		Long: `Diff compares two runs of one schedule, or a recording with its replay. Requests are matched on their place in the schedule, so what a
request asks for cancels out; intervals resample blocks of time. A change is better or worse where its interval excludes none and it is
large enough to matter; else it is ~, which proves nothing.

One run a side is blind to what differs from one start of a server to the next, so it informs: exit 5 where the candidate looks worse,
else 0. --single-run lets it say 3. An invalid run is 4 (--allow-invalid accepts it).`,
		Example: `  shadowtape diff base candidate
  shadowtape diff base candidate --slo ttft=500ms,tpot=50ms
  shadowtape diff base candidate --json --single-run`,
		Args: exactArgs("BASE", "CANDIDATE"),
		RunE: func(c *cobra.Command, args []string) error {
			slo, err := analyzer.ParseSLO(o.slo)
			if err != nil {
				return usageError(err, "--slo ttft=500ms,tpot=50ms")
			}
			opts := analyzer.CompareOptions{SLO: slo, MinEffect: o.minEffect / 100, MinTail: o.minTail / 100, Seed: o.seed, AllowInvalid: o.allowInvalid}
			if err := opts.Validate(); err != nil {
				return usageError(err, c.CommandPath()+" --help")
			}
			d, err := compare(args[0], args[1], opts)
			if err != nil {
				return err
			}
			if o.json {
				err = printJSON(a.out, d)
			} else {
				err = d.Text(a.out)
			}
			if err != nil {
				return err
			}
			return diffExit(d, o.singleRun)
		},
	}
	f := c.Flags()
	f.BoolVar(&o.json, "json", false, "print one JSON document (docs/CLI_JSON.md)")
	f.StringVar(&o.slo, "slo", "", "limits to compare attainment of, such as ttft=500ms,tpot=50ms")
	f.Float64Var(&o.minEffect, "min-effect", 5, "smallest change of a typical request that matters, in percent")
	f.Float64Var(&o.minTail, "min-tail", 10, "smallest change of slow requests and percentiles that matters, in percent")
	f.Int64Var(&o.seed, "seed", 1, "seed of the resampling")
	f.BoolVar(&o.singleRun, "single-run", false, "exit 3, not 5, where one run a side looks worse")
	f.BoolVar(&o.allowInvalid, "allow-invalid", false, "compare although a run is invalid")
	return c
}

func compare(base, candidate string, o analyzer.CompareOptions) (d analyzer.Diff, err error) {
	b, err := analyzer.OpenRun(base)
	if err != nil {
		return d, err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	c, err := analyzer.OpenRun(candidate)
	if err != nil {
		return d, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	d, err = analyzer.Compare([]*analyzer.Run{b}, []*analyzer.Run{c}, o)
	if errors.Is(err, analyzer.ErrIncomparable) {
		err = withHint(err, fmt.Sprintf("replay one trace against both, or compare %s with its own replay", base))
	}
	return d, err
}

// diffExit is the exit code of a comparison of one run a side.
func diffExit(d analyzer.Diff, singleRun bool) error {
	switch {
	case d.Verdict == analyzer.Invalid:
		return exitWith(exitInvalid, nil, "")
	case d.Verdict == analyzer.Worse && singleRun:
		return exitWith(exitWorse, nil, "")
	case d.Verdict == analyzer.Worse:
		return exitWith(exitInconclusive, nil, "")
	}
	return nil
}
