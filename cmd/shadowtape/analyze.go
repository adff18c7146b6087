package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/shadowtape/shadowtape/analyzer"
	"github.com/shadowtape/shadowtape/analyzer/report"
)

func analyzeCommand(a *app) *cobra.Command {
	var o struct {
		json, allowInvalid bool
		html, md, rows     string
		openMetrics        string
		force              bool
		slo, by            string
		from, to           time.Duration
		attain             float64
		sizes              analyzer.Sizes
		gpus               int
		price              float64
		noModels           bool
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
  shadowtape analyze production replay fixed --html report.html
  shadowtape analyze run1 run2 --json | jq '.runs[].metrics.ttft.p99'`,
		Args: minArgs("RUN…"),
		RunE: func(c *cobra.Command, args []string) error {
			slo, err := analyzer.ParseSLO(o.slo)
			if err != nil {
				return usageError(err, "--slo ttft=500ms,tpot=50ms")
			}
			opts := analyzer.Options{SLO: slo, By: o.by, From: o.from, To: o.to, Sizes: o.sizes, GPUs: o.gpus, GPUHourPrice: o.price, NoModels: o.noModels}
			if err := opts.Validate(); err != nil {
				return usageError(err, c.CommandPath()+" --help")
			}
			if o.attain <= 0 || o.attain > 100 {
				return usageError(fmt.Errorf("--attain %v is no share of requests in percent", o.attain), "--attain 99")
			}
			doc := analyzer.Document{Schema: 1}
			runs, done, err := openRuns(args)
			if err != nil {
				return err
			}
			defer done()
			var page report.Report
			if o.html != "" {
				if page, err = report.Read(runs, opts); err != nil {
					return err
				}
				for _, r := range page.Runs {
					doc.Runs = append(doc.Runs, r.Summary)
				}
			} else {
				for _, r := range runs {
					s, err := analyzer.Summarize(r, opts)
					if err != nil {
						return err
					}
					doc.Runs = append(doc.Runs, s)
				}
			}
			valid := true
			for _, s := range doc.Runs {
				valid = valid && s.Valid
			}
			if len(slo) > 0 && len(doc.Runs) > 1 {
				doc.Capacity = analyzer.CapacityOf(doc.Runs, o.attain/100)
			}
			if o.rows != "" {
				write, err := rowWriter(o.rows, runs)
				if err != nil {
					return err
				}
				if err := writeNew(o.rows, o.force, write); err != nil {
					return err
				}
			}
			for _, out := range []struct {
				path  string
				write func(io.Writer) error
			}{{o.md, doc.Markdown}, {o.openMetrics, doc.OpenMetrics}} {
				if out.path == "" {
					continue
				}
				if err := writeNew(out.path, o.force, out.write); err != nil {
					return err
				}
			}
			if o.html != "" {
				page.Capacity, page.Version = doc.Capacity, version
				if err := writeNew(o.html, o.force, page.HTML); err != nil {
					return err
				}
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
	f.StringVar(&o.html, "html", "", "write a report of all runs to this file: one page that opens offline")
	f.StringVar(&o.md, "md", "", "write the summaries as Markdown to this file")
	f.StringVar(&o.rows, "rows", "", "write each request with its metrics to this file: .csv or .jsonl")
	f.StringVar(&o.openMetrics, "openmetrics", "", "write the figures in the OpenMetrics text format to this file")
	f.BoolVar(&o.force, "force", false, "replace files that are there")
	f.StringVar(&o.slo, "slo", "", "limits for goodput and attainment, such as ttft=500ms,tpot=50ms")
	f.Float64Var(&o.attain, "attain", 99, "share of requests, in percent, that must meet the limits for a load to count as carried")
	f.StringVar(&o.by, "by", "", "figures for each value of a column: "+strings.Join(analyzer.Breakdowns(), ", "))
	f.DurationVar(&o.from, "from", 0, "leave out arrivals before this time after the first")
	f.DurationVar(&o.to, "to", 0, "leave out arrivals from this time after the first on (default: the end)")
	f.IntVar(&o.sizes.BlockSize, "block-size", 0, "tokens in a page of the KV cache (default: the server's, the manifest's, or 16)")
	f.Int64Var(&o.sizes.Pages, "pages", 0, "pages of the KV cache (default: the server's or the manifest's)")
	f.Float64Var(&o.price, "gpu-hour-price", 0, "price of a GPU for an hour, in any currency: adds the cost of a million output tokens")
	f.IntVar(&o.gpus, "gpus", 0, "GPUs that served the run (default: the deployment's, as many as were watched, or 1)")
	f.BoolVar(&o.noModels, "no-models", false, "leave out pages, mix, interference and anomalies: a run of millions is read once and not three times")
	f.BoolVar(&o.allowInvalid, "allow-invalid", false, "exit 0 although a run is invalid")
	groupFlags(c,
		flagGroup{"Which requests", []string{"from", "to", "by"}},
		flagGroup{"Limits and money", []string{"slo", "attain", "gpu-hour-price", "gpus"}},
		flagGroup{"Models of the server", []string{"block-size", "pages", "no-models"}},
		flagGroup{"Result", []string{"json", "html", "md", "rows", "openmetrics", "force", "allow-invalid"}},
	)
	return c
}

// rowWriter writes the requests of one run in the format that the file's name asks for.
func rowWriter(path string, runs []*analyzer.Run) (func(io.Writer) error, error) {
	write := map[string]func(io.Writer, *analyzer.Run) error{".csv": analyzer.CSV, ".jsonl": analyzer.JSONL}[filepath.Ext(path)]
	if write == nil {
		return nil, usageError(fmt.Errorf("--rows %s: the name ends in neither .csv nor .jsonl", path), "")
	}
	if len(runs) != 1 {
		return nil, usageError(fmt.Errorf("--rows takes one run, not %d", len(runs)), "")
	}
	return func(w io.Writer) error { return write(w, runs[0]) }, nil
}

// openRuns opens runs or traces; done closes them.
func openRuns(names []string) (runs []*analyzer.Run, done func(), err error) {
	done = func() {
		for _, r := range runs {
			_ = r.Close() // only read
		}
	}
	for _, name := range names {
		r, err := analyzer.OpenRun(name)
		if err != nil {
			done()
			return nil, nil, err
		}
		runs = append(runs, r)
	}
	return runs, done, nil
}

// writeNew writes a file that must not exist, unless force says so; what was there stays until the new one is whole.
func writeNew(path string, force bool, write func(io.Writer) error) error {
	if err := writable(path, force); err != nil {
		return err
	}
	return writeFile(path, write)
}

// writable says before the work what writeNew would say after it: what is in the way of a file, or that there is no place for it.
func writable(path string, force bool) error {
	if path == "-" {
		return usageError(errors.New("write -: standard output carries the answer, and this is a file beside it"), "")
	}
	info, err := os.Stat(path)
	switch {
	case err == nil && info.IsDir():
		return fmt.Errorf("write %s: it is a directory", path)
	case isFile(path) && !force:
		return withHint(fmt.Errorf("write %s: it exists", path), "--force replaces it")
	case err == nil:
		return nil
	}
	if in, err := os.Stat(filepath.Dir(path)); err != nil {
		return fmt.Errorf("write %s: %w", path, errors.Unwrap(err))
	} else if !in.IsDir() {
		return fmt.Errorf("write %s: %s is no directory", path, filepath.Dir(path))
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
