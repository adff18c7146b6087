package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/shadowtape/shadowtape/analyzer"
	"github.com/shadowtape/shadowtape/analyzer/inspect"
	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/engine"
	"github.com/shadowtape/shadowtape/internal/openai"
	"github.com/shadowtape/shadowtape/replayer"
)

func inspectCommand(a *app) *cobra.Command {
	var o struct {
		json, privacy bool
		profile       string
		find, keyFile string
	}
	c := &cobra.Command{
		Use:   "inspect TRACE [TRACE|WORKLOAD.json]",
		Short: "Say what a trace is like: arrivals, lengths, correlation, prefix reuse, and every string it holds",
		Long: `Inspect describes a trace: how many exchanges over what span, how bursty their arrivals, how long their prompts and answers, how much of
the prompts an endless prefix cache would have had. --privacy lists every distinct string that the trace holds. With a second trace, or a
model, it says how far that one's load is from the first's, and how long requests would wait under each.

--find shows the exchange with an x-request-id: of a recording it needs the key file that the recorder had, of a replay's run nothing.`,
		Example: `  shadowtape inspect trace
  shadowtape inspect trace --json
  shadowtape inspect trace --privacy
  shadowtape inspect trace workload.json
  shadowtape inspect trace --find 3f2c9c1e-req --key-file site.key`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 2 {
				for _, name := range []string{"find", "key-file", "privacy"} {
					if c.Flags().Changed(name) {
						return usageError(fmt.Errorf("--%s looks into one trace, not two", name), "")
					}
				}
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
			if o.json || o.privacy || o.find != "" { // a profile for people has them
				a.warn(args[0], r.Warnings())
			}
			if o.find != "" {
				return a.find(r, o.find, o.keyFile, o.json)
			}
			if o.privacy {
				held, err := inspect.Strings(r)
				if err != nil {
					return err
				}
				if o.json {
					return printJSON(a.out, held)
				}
				return held.Text(a.out)
			}
			p, err := inspect.Trace(r)
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
	f.StringVar(&o.find, "find", "", "show the exchange with this x-request-id")
	f.StringVar(&o.keyFile, "key-file", "", "the recording's key, for --find")
	f.BoolVar(&o.privacy, "privacy", false, "list every distinct string that the trace holds, with how often")
	return c
}

// find prints the exchanges with an x-request-id; it fails where there is none.
func (a *app) find(r *analyzer.Run, id, keyFile string, asJSON bool) error {
	var hash formats.Hash
	prefix := ""
	if r.Manifest != nil {
		prefix, _ = r.Manifest.Options["request_ids"].(string)
	}
	switch {
	case keyFile != "":
		key, err := readKey(keyFile)
		if err != nil {
			return err
		}
		h := openai.NewHasher(key)
		if made := r.Header.HashKeyID; made != "" && made != h.KeyID() {
			return fmt.Errorf("find %s in %s: its hashes were made with another key than that of %s", id, r.Label, keyFile)
		}
		hash = h.Sum("request", id)
	case prefix != "":
		hash = replayer.CorrelationID(prefix, id)
	default:
		return usageError(errors.New("--find needs --key-file with a recording: its request ids are keyed hashes"), "")
	}
	found, err := inspect.Find(r, hash)
	if err != nil {
		return err
	}
	if len(found) == 0 {
		return fmt.Errorf("find %s in %s: no exchange has this x-request-id", id, r.Label)
	}
	if asJSON {
		return printJSON(a.out, map[string]any{"schema": 1, "exchanges": found})
	}
	for _, f := range found {
		if err := f.Text(a.out); err != nil {
			return err
		}
	}
	return nil
}
