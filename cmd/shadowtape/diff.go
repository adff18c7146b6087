package main

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/shadowtape/shadowtape/analyzer"
	"github.com/shadowtape/shadowtape/analyzer/report"
)

func diffCommand(a *app) *cobra.Command {
	var o struct {
		json, allowInvalid, singleRun bool
		slo                           string
		minEffect, minTail            float64
		seed                          int64
		fleet                         int
		price                         float64
		base, candidate               []string
		baseline                      string
		judge                         judgeFlags
	}
	c := &cobra.Command{
		Use:   "diff BASE CANDIDATE | --base RUN… --candidate RUN… | --baseline FILE CANDIDATE…",
		Short: "Say whether a candidate is worse than a base: launches in pairs, or one run a side",
		Long: `Diff compares two runs of one schedule, or a recording with its replay. Requests are matched on their place in the schedule, so what a
request asks for cancels out; intervals resample blocks of time. A change is better or worse where its interval excludes none and it is
large enough to matter; else it is ~, which proves nothing.

One run a side is blind to what differs from one start of a server to the next, so it informs: exit 5 where the candidate looks worse,
else 0. --single-run lets it say 3. An invalid run is 4 (--allow-invalid accepts it).

Two recordings (Tuesday against Monday, canary against stable) have no request in common: requests are matched on prompt length, cached
tokens and load in flight, and the change falls into what the traffic and what the server did. That is advice: exit 5 at most.

With --base and --candidate the unit is the launch: the first of each is a pair, and so on. A moderated t test over pairs, with the
variance of A/A pairs and the band of earlier nights where --db has them, says regressed (3), inconclusive with how many more pairs (5),
or that all is well (0). docs/GATE.md tells how and how often it is wrong. --baseline holds launches against a file of baseline save.`,
		Example: `  shadowtape diff base candidate
  shadowtape diff --base a1 a2 a3 --candidate b1 b2 b3 --db history --md comment.md
  shadowtape diff base candidate --slo ttft=500ms,tpot=50ms
  shadowtape diff base candidate --json --single-run`,
		Args: func(c *cobra.Command, args []string) error {
			switch {
			case o.baseline != "" && len(o.base) == 0 && len(o.candidate) == 0:
				return minArgs("the candidate's runs after --baseline FILE")(c, args)
			case len(o.base) > 0 && len(o.candidate) > 0 && o.baseline == "" && len(args) == 0:
				return nil
			case len(o.base) > 0 || len(o.candidate) > 0 || o.baseline != "":
				return usageError(errors.New("diff takes BASE CANDIDATE, or --base RUN… --candidate RUN…, or --baseline FILE CANDIDATE…"), c.CommandPath()+" --help")
			}
			return exactArgs("BASE", "CANDIDATE")(c, args)
		},
		RunE: func(c *cobra.Command, args []string) error {
			o.judge.slo, o.judge.allowInvalid = o.slo, o.allowInvalid
			switch {
			case o.baseline != "":
				return a.diffMany(nil, args, o.baseline, o.judge, o.json)
			case len(o.base) == 1 && len(o.candidate) == 1: // a pair informs
				args = []string{o.base[0], o.candidate[0]}
			case len(o.base) > 0:
				return a.diffMany(o.base, o.candidate, "", o.judge, o.json)
			}
			for _, name := range append(slices.Clone(judgeHow), judgeWhere...) {
				if c.Flags().Changed(name) && !slices.Contains([]string{"json", "html", "md", "force"}, name) {
					return usageError(fmt.Errorf("--%s is for launches in pairs, and here is one run a side", name), "several runs after --base and after --candidate, or leave it out")
				}
			}
			slo, err := analyzer.ParseSLO(o.slo)
			if err != nil {
				return usageError(err, "--slo ttft=500ms,tpot=50ms")
			}
			opts := analyzer.CompareOptions{SLO: slo, MinEffect: o.minEffect / 100, MinTail: o.minTail / 100, Seed: o.seed, AllowInvalid: o.allowInvalid, FleetGPUs: o.fleet, GPUHourPrice: o.price}
			if err := opts.Validate(); err != nil {
				return usageError(err, c.CommandPath()+" --help")
			}
			if err := o.judge.writable(""); err != nil {
				return err
			}
			runs, done, err := openRuns(args)
			if err != nil {
				return err
			}
			defer done()
			d, err := analyzer.Compare(runs[:1], runs[1:], opts)
			if errors.Is(err, analyzer.ErrIncomparable) {
				err = withHint(err, fmt.Sprintf("replay one trace against both, or compare %s with its own replay", args[0]))
			}
			if errors.Is(err, analyzer.ErrOtherGPU) {
				err = withHint(err, "compare runs on one model of GPU; --allow-invalid compares all the same")
			}
			if err != nil {
				return err
			}
			if o.judge.html != "" {
				page, err := report.Read(runs, analyzer.Options{SLO: slo})
				if err != nil {
					return err
				}
				page.Diff, page.Version = &d, version
				if err := writeNew(o.judge.html, o.judge.force, page.HTML); err != nil {
					return err
				}
			}
			if o.judge.md != "" {
				if err := writeNew(o.judge.md, o.judge.force, func(w io.Writer) error { return diffMarkdown(w, d) }); err != nil {
					return err
				}
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
	f.StringArrayVar(&o.base, "base", nil, "runs of the base, a launch each")
	f.StringArrayVar(&o.candidate, "candidate", nil, "runs of the candidate, in the order of their pairs")
	f.StringVar(&o.baseline, "baseline", "", "file of baseline save in place of base runs")
	o.judge.add(f)
	f.StringVar(&o.slo, "slo", "", "limits to compare attainment of, such as ttft=500ms,tpot=50ms")
	f.Float64Var(&o.minEffect, "min-effect", 0, "smallest change of a typical request that matters, in percent (default: the metric's in docs/METRICS.md, 5)")
	f.Float64Var(&o.minTail, "min-tail", 0, "smallest change of slow requests and percentiles that matters, in percent (default: the metric's, 10)")
	f.Int64Var(&o.seed, "seed", 1, "seed of the resampling")
	f.Float64Var(&o.price, "gpu-hour-price", 0, "price of a GPU for an hour, in any currency")
	f.IntVar(&o.fleet, "fleet-gpus", 0, "GPUs of the fleet: adds what the change costs it in a month, where both runs were saturated")
	f.BoolVar(&o.singleRun, "single-run", false, "exit 3, not 5, where one run a side looks worse")
	f.BoolVar(&o.allowInvalid, "allow-invalid", false, "compare although a run is invalid")
	groupFlags(c,
		flagGroup{"Launches in pairs, or against a baseline", append([]string{"base", "candidate", "baseline"}, judgeHow...)},
		flagGroup{"One run a side", []string{"single-run", "min-effect", "min-tail", "seed"}},
		flagGroup{"Both", []string{"slo", "allow-invalid"}},
		flagGroup{"Money, one run a side", []string{"gpu-hour-price", "fleet-gpus"}},
		flagGroup{"Result", judgeWhere},
	)
	return c
}

// diffExit is the exit code of a comparison of one run a side.
func diffExit(d analyzer.Diff, singleRun bool) error {
	switch {
	case d.Verdict == analyzer.Invalid:
		return exitWith(exitInvalid, nil, "")
	case d.Verdict == analyzer.Worse && singleRun && d.Traffic == nil:
		return exitWith(exitWorse, nil, "")
	case d.Verdict == analyzer.Worse:
		return exitWith(exitInconclusive, nil, "")
	}
	return nil
}

// diffMarkdown writes a comparison of one run a side for a pull request's comment: its text, and what it is worth.
func diffMarkdown(w io.Writer, d analyzer.Diff) error {
	if _, err := io.WriteString(w, "```text\n"); err != nil {
		return err
	}
	if err := d.Text(w); err != nil {
		return err
	}
	_, err := io.WriteString(w, "```\n\nOne run a side informs: what differs from one start of a server to the next is not in the intervals.\n")
	return err
}
