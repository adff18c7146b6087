package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/spf13/cobra"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/replayer/job"
)

func mergeCommand(a *app) *cobra.Command {
	var out, label string
	var force, allowInvalid bool
	c := &cobra.Command{
		Use:   "merge RUN… -o RUN",
		Short: "Join the runs of a replay's shards into the run that one replayer would have made",
		Long: `Merge joins the runs of replay --shard 1/N … N/N. Rows are the shards', and figures are those of the whole: what one replayer would have
written. A directory or prefix stands for the runs directly below it. It refuses a shard that is missing, two whole runs of one shard, and runs of
different traces, seeds or flags. A shard that was run again after it was cut short is declared.

Exit 0 where the run is valid, 4 where it is not (--allow-invalid accepts it).`,
		Example: `  shadowtape merge shard1 shard2 shard3 shard4 -o run
  shadowtape merge s3://runs/night/shards -o s3://runs/night/run`,
		Args: minArgs("RUN"),
		RunE: func(c *cobra.Command, args []string) error {
			if out == "" {
				return usageError(errors.New("-o is missing"), "shadowtape merge --help")
			}
			var runs []*formats.Trace
			var read []string
			for _, arg := range args {
				names, err := formats.Runs(arg)
				if err != nil {
					return err
				}
				for _, n := range names {
					t, err := formats.Open(n) // that a shard was cut short the merged run says
					if err != nil {
						return err
					}
					a.warn(n, t.Warnings)
					runs, read = append(runs, t), append(read, n)
				}
			}
			if force {
				if err := notRead(out, read...); err != nil {
					return err
				}
				if err := job.Mergeable(runs); err != nil {
					return fmt.Errorf("merge: %w", err)
				}
			}
			var m formats.Manifest
			err := replacing(out, force, func(to string) (err error) {
				m, err = job.Merge(runs, to, cmp.Or(label, path.Base(strings.TrimRight(out, "/"))), readBuildInfo().Version, commandLine(c, args...))
				return err
			})
			if errors.Is(err, fs.ErrExist) {
				return withHint(err, "--force replaces it")
			}
			if err != nil {
				return fmt.Errorf("merge: %w", err)
			}
			return a.replayed(m, replayFlags{out: out, allowInvalid: allowInvalid}, nil)
		},
	}
	f := c.Flags()
	f.StringVarP(&out, "output", "o", "", "run directory to write")
	f.BoolVar(&force, "force", false, "replace the run directory where it exists")
	f.StringVar(&label, "label", "", "name of the run in reports (default: the run directory's)")
	f.BoolVar(&allowInvalid, "allow-invalid", false, "exit 0 although the run is invalid")
	return c
}
