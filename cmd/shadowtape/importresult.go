package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/formats/foreign"
)

func importResultCommand(a *app) *cobra.Command {
	var (
		out, label, keyFile string
		force, asJSON       bool
		o                   foreign.Options
	)
	c := &cobra.Command{
		Use:   "import-result FORMAT FILE -o RUN",
		Short: "Bring in another tool's result as a run",
		Long: `Bring in another tool's result as a run, so that analyze and diff work across tools. What the file does not say stays unknown, and where the
tool's words mean something else than ours the run carries a warning.

Formats:
` + resultList(),
		Example: `  shadowtape import-result vllm-bench result.json -o before
  shadowtape import-result aiperf profile_export.jsonl -o after --label candidate
  shadowtape diff before after`,
		Args: exactArgs("FORMAT", "FILE"),
		RunE: func(c *cobra.Command, args []string) error {
			if out == "" {
				return usageError(errors.New("import-result needs -o RUN"), "")
			}
			f, err := foreign.NamedResult(args[0])
			if err != nil {
				return usageError(err, "shadowtape import-result --help says what each is")
			}
			if keyFile != "" {
				if o.HashKey, err = readKey(keyFile); err != nil {
					return err
				}
			}
			sources, done, err := a.sources(args[1:])
			if err != nil {
				return err
			}
			defer done()
			if force {
				if err := notRead(out, args[1:]...); err != nil {
					return err
				}
			}
			if label == "" {
				label = strings.TrimSuffix(sources[0].Name, filepath.Ext(sources[0].Name))
			}
			var r foreign.Report
			err = replacing(out, force, func(out string) (err error) {
				r, err = foreign.ImportResult(c.Context(), f, sources[0], out, formats.Manifest{Label: label, ToolVersion: readBuildInfo().Version}, o)
				return err
			})
			for _, w := range r.Warnings {
				fmt.Fprintf(a.err, "shadowtape: warning: %s\n", oneLine(w))
			}
			switch {
			case errors.Is(err, fs.ErrExist):
				return withHint(err, "--force replaces it")
			case errors.Is(err, context.Canceled):
				return exitWith(exitInterrupted, errors.New("import-result: interrupted, nothing was written"), "")
			case err != nil:
				return err
			}
			if asJSON {
				return json.NewEncoder(a.out).Encode(importAnswer{r.Read, r.Kept, r.Dropped, r.Reasons, r.Notes})
			}
			printReport(a.out, out, r)
			return nil
		},
	}
	f := c.Flags()
	f.SortFlags = false
	f.StringVarP(&out, "output", "o", "", "where the run goes: a directory")
	f.BoolVar(&force, "force", false, "replace a run that is there")
	f.StringVar(&label, "label", "", "what the run is called (default: the file's name)")
	f.BoolVar(&o.Strict, "strict", false, "stop at the first broken row")
	f.StringVar(&keyFile, "key-file", "", "file with the key of the hashes of identifiers (default: a key drawn and thrown away)")
	f.BoolVar(&asJSON, "json", false, "print one JSON document")
	return c
}

// resultList is the table of formats for help.
func resultList() string {
	var b strings.Builder
	for _, f := range foreign.Results() {
		fmt.Fprintf(&b, "  %-16s %s\n  %-16s   %s\n", f.Name, f.Summary, "", f.Fields)
	}
	return strings.TrimSuffix(b.String(), "\n")
}
