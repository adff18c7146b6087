package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/shadowtape/shadowtape/analyzer"
)

func inspectCommand(a *app) *cobra.Command {
	var o struct{ json, privacy bool }
	c := &cobra.Command{
		Use:   "inspect TRACE",
		Short: "Say what a trace is like: arrivals, lengths, correlation, prefix reuse, and every string it holds",
		Long: `Inspect describes a trace: how many exchanges over what span, how bursty their arrivals, how long their prompts and answers, how much of
the prompts an endless prefix cache would have had. --privacy lists every distinct string that the trace holds.`,
		Example: `  shadowtape inspect trace
  shadowtape inspect trace --json
  shadowtape inspect trace --privacy`,
		Args: exactArgs("TRACE"),
		RunE: func(c *cobra.Command, args []string) (err error) {
			r, err := analyzer.OpenRun(args[0])
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, r.Close()) }()
			if o.privacy {
				held, err := analyzer.Strings(r)
				if err != nil {
					return err
				}
				if o.json {
					return printJSON(a.out, held)
				}
				return held.Text(a.out)
			}
			p, err := analyzer.Inspect(r)
			if err != nil {
				return err
			}
			if o.json {
				return printJSON(a.out, p)
			}
			return p.Text(a.out)
		},
	}
	f := c.Flags()
	f.BoolVar(&o.json, "json", false, "print one JSON document (docs/CLI_JSON.md)")
	f.BoolVar(&o.privacy, "privacy", false, "list every distinct string that the trace holds, with how often")
	return c
}
