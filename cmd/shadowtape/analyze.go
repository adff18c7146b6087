package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/shadowtape/shadowtape/analyzer"
)

func analyzeCommand(a *app) *cobra.Command {
	var o struct {
		json, allowInvalid bool
		slo, by            string
		from, to           time.Duration
		attain             float64
		sizes              analyzer.Sizes
	}
	c := &cobra.Command{
		Use:   "analyze RUN…",
		Short: "Say what a run or a recorded trace measured: latencies, rates, errors, pages",
		Long: `Analyze reads each run or trace once and says what it measured. Latencies start at the scheduled time; the same from the send stands
beside them. A percentile that the sample cannot know at 99 % confidence is a dash. Warm-up is left out. With --slo and runs of several
request rates it also says what load the service carries.

Exit 0 where every run is valid, 4 where one is not (--allow-invalid accepts it).`,
		Example: `  shadowtape analyze run1
  shadowtape analyze run1 --by model --slo ttft=500ms,tpot=50ms
  shadowtape analyze run1 run2 --json | jq '.runs[].metrics.ttft.p99'`,
		Args: minArgs("RUN…"),
		RunE: func(c *cobra.Command, args []string) error {
			slo, err := analyzer.ParseSLO(o.slo)
			if err != nil {
				return usageError(err, "--slo ttft=500ms,tpot=50ms")
			}
			opts := analyzer.Options{SLO: slo, By: o.by, From: o.from, To: o.to, Sizes: o.sizes}
			if err := opts.Validate(); err != nil {
				return usageError(err, c.CommandPath()+" --help")
			}
			if o.attain <= 0 || o.attain > 100 {
				return usageError(fmt.Errorf("--attain %v is no share of requests in percent", o.attain), "--attain 99")
			}
			doc := analyzer.Document{Schema: 1}
			valid := true
			for _, name := range args {
				s, err := summarize(name, opts)
				if err != nil {
					return err
				}
				valid = valid && s.Valid
				doc.Runs = append(doc.Runs, s)
			}
			if len(slo) > 0 && len(doc.Runs) > 1 {
				doc.Capacity = analyzer.CapacityOf(doc.Runs, o.attain/100)
			}
			if o.json {
				err = printJSON(a.out, doc)
			} else {
				err = doc.Text(a.out)
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
	f.Float64Var(&o.attain, "attain", 99, "share of requests, in percent, that must meet the limits for a load to count as carried")
	f.StringVar(&o.by, "by", "", "figures for each value of a column: "+strings.Join(analyzer.Breakdowns(), ", "))
	f.DurationVar(&o.from, "from", 0, "leave out arrivals before this time after the first")
	f.DurationVar(&o.to, "to", 0, "leave out arrivals from this time after the first on (default: the end)")
	f.IntVar(&o.sizes.BlockSize, "block-size", 0, "tokens in a page of the KV cache (default: the server's, the manifest's, or 16)")
	f.Int64Var(&o.sizes.Pages, "pages", 0, "pages of the KV cache (default: the server's or the manifest's)")
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

// printJSON writes one indented document.
func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}
