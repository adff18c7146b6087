package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/shadowtape/shadowtape/formats/foreign"
	"github.com/shadowtape/shadowtape/internal/term"
)

func exportCommand(a *app) *cobra.Command {
	var (
		out           string
		force, asJSON bool
		o             foreign.ExportOptions
	)
	c := &cobra.Command{
		Use:   "export FORMAT TRACE -o FILE",
		Short: "Write a trace for another tool",
		Long: `Write a trace or run for another tool. Every row read is written, or left out and counted with its reason; "-o -" writes to standard output.

Formats:
` + targetList(),
		Example: `  shadowtape export mooncake week -o week.jsonl
  shadowtape export inference-perf week -o week.csv
  shadowtape export jsonl run-17 -o - | jq .output_tokens`,
		Args: exactArgs("FORMAT", "TRACE"),
		RunE: func(c *cobra.Command, args []string) error {
			if out == "" {
				return usageError(errors.New("export needs -o FILE"), "")
			}
			f, err := foreign.NamedTarget(args[0])
			if err != nil {
				return usageError(err, "shadowtape export --help says what each is")
			}
			if err := o.Validate(); err != nil {
				return usageError(err, "")
			}
			t, err := a.openTrace(args[1])
			if err != nil {
				return err
			}
			defer t.Close()
			if at, in := located(out), located(args[1]); force && out != "-" && (at == in || strings.HasPrefix(at, in+"/")) {
				return usageError(fmt.Errorf("-o %s is part of %s, which is read", out, args[1]), "another place for the file")
			}
			var r foreign.Exported
			err = a.into(out, force, func(w io.Writer) (err error) {
				r, err = foreign.Export(c.Context(), f, t, w, o)
				return err
			})
			for _, w := range r.Warnings {
				fmt.Fprintf(a.err, "shadowtape: warning: %s\n", oneLine(w))
			}
			switch {
			case errors.Is(err, context.Canceled):
				return exitWith(exitInterrupted, errors.New("export: interrupted, nothing was written"), "")
			case err != nil:
				return err
			}
			hint := f.Hint
			if strings.Contains(hint, "%d") {
				hint = fmt.Sprintf(hint, r.BlockSize)
			}
			switch {
			case asJSON && out != "-":
				return json.NewEncoder(a.out).Encode(exportAnswer{r.Read, r.Kept, r.Dropped, r.Reasons, r.Notes, r.BlockSize})
			case out == "-":
				printExport(a.err, out, r, "")
			default:
				printExport(a.out, out, r, hint)
			}
			return nil
		},
	}
	f := c.Flags()
	f.SortFlags = false
	f.StringVarP(&out, "output", "o", "", "the file to write; - is standard output")
	f.BoolVar(&force, "force", false, "replace a file that is there")
	f.IntVar(&o.BlockSize, "block-size", 0, "tokens of a prefix block where the trace's are counted in bytes (default: their mean)")
	f.BoolVar(&asJSON, "json", false, "print one JSON document about the export")
	return c
}

// exportAnswer is what export --json prints.
type exportAnswer struct {
	Read      int64            `json:"read"`
	Kept      int64            `json:"kept"`
	Dropped   int64            `json:"dropped"`
	Reasons   map[string]int64 `json:"reasons"`
	Notes     map[string]int64 `json:"notes"`
	BlockSize int              `json:"block_size"`
}

func printExport(w io.Writer, out string, r foreign.Exported, hint string) {
	fmt.Fprintf(w, "%s: %d rows read, %d written, %d left out\n", out, r.Read, r.Kept, r.Dropped)
	for _, k := range slices.Sorted(maps.Keys(r.Reasons)) {
		fmt.Fprintf(w, "  left out %-24s %d\n", k, r.Reasons[k])
	}
	for _, k := range slices.Sorted(maps.Keys(r.Notes)) {
		fmt.Fprintf(w, "  written  %-24s %d\n", k, r.Notes[k])
	}
	if hint != "" {
		fmt.Fprintf(w, "  read it with: %s\n", hint)
	}
}

// targetList is the table of formats for help.
func targetList() string {
	var b strings.Builder
	for _, t := range foreign.Targets() {
		fmt.Fprintf(&b, "  %-16s %s\n  %-16s   %s\n", t.Name, t.Summary, "", t.Fields)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// into writes a file whole or not at all; "-" is standard output.
func (a *app) into(name string, force bool, write func(io.Writer) error) error {
	if name == "-" {
		return write(term.Raw(a.out)) // data, not text
	}
	if isFile(name) && !force {
		return withHint(fmt.Errorf("write %s: %w", name, fs.ErrExist), "--force replaces it")
	}
	return writeFile(name, write)
}
