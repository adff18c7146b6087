package main

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/shadowtape/shadowtape/formats"
)

func repairCommand(a *app) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "repair DIR",
		Short: "Bring back what a killed recorder or replayer left open",
		Long: `Bring back what a killed recorder or replayer left open: segments are rebuilt from their journals, unfinished files are removed,
segments that cannot be read are set aside as NAME.damaged. Exchanges that were in flight become rows that ended as capture_cut.
A trace that is in order is left as it is; one that is being written is refused.`,
		Example: `  shadowtape repair production
  shadowtape repair run-17
  shadowtape repair production --json`,
		Args: exactArgs("DIR"),
		RunE: func(_ *cobra.Command, args []string) error {
			r, err := formats.Repair(args[0])
			if err != nil {
				return err
			}
			if asJSON {
				return json.NewEncoder(a.out).Encode(repairAnswer{r.Segments, r.Recovered, r.CutShort, r.Torn, list(r.Rebuilt), list(r.Samples), list(r.Removed), list(r.Damaged)})
			}
			if r.Segments == 0 {
				t, err := formats.Open(args[0])
				defer func() {
					switch {
					case err != nil:
						fmt.Fprintf(a.out, "  nothing is left to read: %v\n", err)
					case len(t.Warnings) > 0:
						fmt.Fprintf(a.out, "  it holds no exchange: %s\n", t.Warnings[0])
					default:
						fmt.Fprintf(a.out, "  it is an empty trace: no exchange had begun\n")
					}
				}()
			}
			if len(r.Rebuilt)+len(r.Samples)+len(r.Removed)+len(r.Damaged) == 0 {
				fmt.Fprintf(a.out, "%s: in order, %d segments\n", args[0], r.Segments)
				return nil
			}
			fmt.Fprintf(a.out, "%s: %d exchanges recovered, %d more cut short in flight, %d segments\n", args[0], r.Recovered, r.CutShort, r.Segments)
			for _, l := range []struct {
				name  string
				files []string
			}{{"rebuilt", r.Rebuilt}, {"samples", r.Samples}, {"removed", r.Removed}, {"set aside", r.Damaged}} {
				if len(l.files) > 0 {
					fmt.Fprintf(a.out, "  %-10s %s\n", l.name, strings.Join(l.files, ", "))
				}
			}
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print one JSON document")
	return c
}

// repairAnswer is what repair --json prints.
type repairAnswer struct {
	Segments  int      `json:"segments"`
	Recovered int64    `json:"recovered"`
	CutShort  int64    `json:"cut_short"`
	Torn      int      `json:"torn_journals"`
	Rebuilt   []string `json:"rebuilt"`
	Samples   []string `json:"samples"`
	Removed   []string `json:"removed"`
	Damaged   []string `json:"damaged"`
}

// list is never null in JSON.
func list(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}
