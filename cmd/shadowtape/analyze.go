package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/shadowtape/shadowtape/analyzer"
)

func analyzeCommand(a *app) *cobra.Command {
	var o struct {
		json, allowInvalid bool
		slo                string
	}
	c := &cobra.Command{
		Use:   "analyze RUN…",
		Short: "Say what a run or a recorded trace measured: latencies, rates, errors, pages",
		Long: `Analyze reads each run or trace once and says what it measured. Latencies start at the scheduled time; the same from the send stands
beside them. A percentile that the sample cannot know at 99 % confidence is a dash. Warm-up is left out.

Exit 0 where every run is valid, 4 where one is not (--allow-invalid accepts it).`,
		Example: `  shadowtape analyze run1
  shadowtape analyze run1 --slo ttft=500ms,tpot=50ms
  shadowtape analyze run1 run2 --json | jq '.runs[].metrics.ttft.p99'`,
		Args: minArgs("RUN…"),
		RunE: func(c *cobra.Command, args []string) error {
			slo, err := analyzer.ParseSLO(o.slo)
			if err != nil {
				return usageError(err, "--slo ttft=500ms,tpot=50ms")
			}
			doc := analyzer.Document{Schema: 1}
			valid := true
			for _, name := range args {
				s, err := summarize(name, analyzer.Options{SLO: slo})
				if err != nil {
					return err
				}
				valid = valid && s.Valid
				doc.Runs = append(doc.Runs, s)
			}
			if o.json {
				err = printJSON(a.out, doc)
			} else {
				err = printSummaries(a.out, doc.Runs)
			}
			if err != nil {
				return err
			}
			if !valid && !o.allowInvalid {
				return exitWith(exitInvalid, nil, "")
			}
			return nil
		},
	}
	f := c.Flags()
	f.BoolVar(&o.json, "json", false, "print one JSON document (docs/CLI_JSON.md)")
	f.StringVar(&o.slo, "slo", "", "limits for goodput and attainment, such as ttft=500ms,tpot=50ms")
	f.BoolVar(&o.allowInvalid, "allow-invalid", false, "exit 0 although a run is invalid")
	return c
}

func summarize(name string, o analyzer.Options) (s analyzer.Summary, err error) {
	r, err := analyzer.OpenRun(name)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	return analyzer.Summarize(r, o)
}

func printSummaries(w io.Writer, runs []analyzer.Summary) error {
	for i, s := range runs {
		if i > 0 {
			if _, err := fmt.Fprintln(w); err != nil {
				return err
			}
		}
		if err := s.Text(w); err != nil {
			return err
		}
	}
	return nil
}

// printJSON writes one indented document.
func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}
