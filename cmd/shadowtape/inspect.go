package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/shadowtape/shadowtape/analyzer"
	"github.com/shadowtape/shadowtape/internal/engine"
)

func inspectCommand(a *app) *cobra.Command {
	var o struct {
		json, privacy bool
		profile       string
	}
	c := &cobra.Command{
		Use:   "inspect TRACE [TRACE|WORKLOAD.json]",
		Short: "Say what a trace is like: arrivals, lengths, correlation, prefix reuse, and every string it holds",
		Long: `Inspect describes a trace: how many exchanges over what span, how bursty their arrivals, how long their prompts and answers, how much of
the prompts an endless prefix cache would have had. --privacy lists every distinct string that the trace holds. With a second trace, or a
model, it says how far that one's load is from the first's, and how long requests would wait under each.`,
		Example: `  shadowtape inspect trace
  shadowtape inspect trace --json
  shadowtape inspect trace --privacy
  shadowtape inspect trace workload.json`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 2 {
				return nil
			}
			return exactArgs("TRACE")(c, args)
		},
		RunE: func(c *cobra.Command, args []string) (err error) {
			if len(args) == 2 {
				return a.inspectPair(c.Context(), args[0], args[1], o.profile, o.json)
			}
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
	f.StringVar(&o.profile, "profile", engine.Profiles()[0].Name, "of two traces: the engine that both are served by; none: leave that out")
	f.BoolVar(&o.privacy, "privacy", false, "list every distinct string that the trace holds, with how often")
	return c
}
