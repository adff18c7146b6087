package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/shadowtape/shadowtape/internal/experiment"
	"github.com/shadowtape/shadowtape/internal/experiment/history"
)

// originFlags say where runs come from.
type originFlags experiment.Origin

func (o *originFlags) add(f *pflag.FlagSet) {
	f.StringVar(&o.Commit, "commit", cmp.Or(os.Getenv("GITHUB_SHA"), os.Getenv("CI_COMMIT_SHA")), "commit that the runs are of (default: the CI's own)")
	f.StringVar(&o.Branch, "branch", cmp.Or(os.Getenv("GITHUB_REF_NAME"), os.Getenv("CI_COMMIT_REF_NAME")), "branch that the runs are of (default: the CI's own)")
	f.StringVar(&o.Team, "team", "", "team that the series belongs to, for the digest")
}

func baselineCommand(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "baseline save RUN… -o FILE",
		Short: "Keep what runs measured as one small file that new runs are held against",
		Args: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				return noVerb(c, args[0])
			}
			return usageError(errors.New("what to do with a baseline is missing"), "shadowtape baseline save RUN… -o FILE")
		},
		RunE: func(*cobra.Command, []string) error { return nil },
	}
	c.AddCommand(baselineSaveCommand(a))
	return c
}

func baselineSaveCommand(a *app) *cobra.Command {
	var o struct {
		out, db, window string
		origin          originFlags
		force           bool
	}
	c := &cobra.Command{
		Use:   "save RUN… -o FILE",
		Short: "Write the levels of valid runs of one identity, each a fresh launch, as one JSON file for Git",
		Long: `A baseline holds the runs' levels and quantiles, what they were measured on, and, with --db, what the history beside them knows: the
nights and the deviation of A/A pairs. diff --baseline refuses runs of another workload, model, machine or engine flags.`,
		Example: `  shadowtape baseline save a1 a2 a3 -o baseline.json
  shadowtape baseline save nightly/* --db history -o baseline.json --force
  shadowtape diff --baseline baseline.json b1 b2 b3`,
		Args: minArgs("runs"),
		RunE: func(_ *cobra.Command, args []string) error {
			if o.out == "" {
				return usageError(errors.New("-o is missing"), "shadowtape baseline save --help")
			}
			if info, err := os.Stat(o.out); err == nil && !info.Mode().IsRegular() {
				return fmt.Errorf("save baseline %s: it is no file", o.out)
			}
			if _, err := os.Stat(o.out); err == nil && !o.force {
				return withHint(fmt.Errorf("save baseline %s: %w", o.out, fs.ErrExist), "--force replaces it")
			}
			j := judgeFlags{db: o.db, window: o.window}
			g, err := j.resolve(a, "baseline save")
			if err != nil {
				return err
			}
			runs, err := g.load(args)
			if err != nil {
				return err
			}
			b, err := experiment.BaselineOf(runs, g.db, experiment.Origin(o.origin), g.window)
			if err != nil {
				return hintIncomparable(err, "a baseline is of one workload, model, machine and set of engine flags")
			}
			if err := history.WriteBaseline(o.out, b); err != nil {
				return err
			}
			_, err = fmt.Fprintf(a.out, "baseline %s: %s of series %s, %s\n", o.out, countOf(len(b.Runs), "run"), b.Series, countOf(len(b.Metrics()), "metric"))
			return err
		},
	}
	f := c.Flags()
	f.StringVarP(&o.out, "output", "o", "", "file to write")
	f.BoolVar(&o.force, "force", false, "replace it where it exists")
	f.StringVar(&o.db, "db", "", "history whose nights and A/A pairs go into the file")
	f.StringVar(&o.window, "history", "30d", "how far back the history counts; 0 is all of it")
	o.origin.add(f)
	return c
}
