package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/spf13/cobra"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/formats/foreign"
	"github.com/shadowtape/shadowtape/internal/term"
)

func importCommand(a *app) *cobra.Command {
	var (
		out, keyFile  string
		force, asJSON bool
		o             foreign.Options
	)
	c := &cobra.Command{
		Use:   "import FORMAT FILE… -o TRACE",
		Short: "Turn a public trace, or a log of another tool, into a trace",
		Long: `Turn a public trace, or a log of another tool, into a trace. FILE may be compressed with gzip or zstd; "-" is standard input.
Rows are sorted by arrival. Every row read is kept, or left out and counted with its reason. The content must look like FORMAT;
"auto" takes the format that it looks like.

Formats:
` + formatList(),
		Example: `  shadowtape import azure-llm AzureLLMInferenceTrace_conv.csv -o conv
  shadowtape import mooncake conversation_trace.jsonl -o mooncake.parquet
  shadowtape import nginx access.log -o day \
    --log-format '$msec $request_method $request_uri $status $request_time'
  shadowtape import weka trace_*.json -o agents --session-gap 30s --key-file trace.key`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) < 2 {
				return usageError(errors.New("import needs FORMAT and FILE"), "shadowtape import --help lists the formats")
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			if out == "" {
				return usageError(errors.New("import needs -o TRACE"), "")
			}
			f := foreign.Format{}
			if args[0] != "auto" {
				var err error
				if f, err = foreign.Named(args[0]); err != nil {
					return usageError(err, "shadowtape import --help says what each is")
				}
			}
			if err := o.Validate(); err != nil {
				return usageError(err, "")
			}
			if keyFile != "" {
				key, err := readKey(keyFile)
				if err != nil {
					return err
				}
				o.HashKey = key
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
			bar := progressOf(a.err, sources)
			var r foreign.Report
			err = replacing(out, force, func(out string) (err error) {
				r, err = foreign.Import(c.Context(), f, sources, out, formats.Header{ToolVersion: readBuildInfo().Version}, o)
				return err
			})
			bar.End()
			for _, w := range r.Warnings {
				fmt.Fprintf(a.err, "shadowtape: warning: %s\n", oneLine(w))
			}
			if n := r.Reasons["broken_row"] - int64(len(r.Warnings)); n > 0 {
				fmt.Fprintf(a.err, "shadowtape: warning: %d more broken rows left out\n", n)
			}
			switch {
			case errors.Is(err, fs.ErrExist):
				return withHint(err, "--force replaces it")
			case errors.Is(err, context.Canceled):
				return exitWith(exitInterrupted, errors.New("import: interrupted, nothing was written"), "")
			case errors.Is(err, foreign.ErrPromptsUnknown):
				return withHint(err, "--session-prompts cumulative or --session-prompts per_turn says it")
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
	f.StringVarP(&out, "output", "o", "", "where the trace goes: a directory, or one file if it ends in .parquet")
	f.BoolVar(&force, "force", false, "replace a trace that is there")
	f.BoolVar(&o.Strict, "strict", false, "stop at the first broken row")
	f.IntVar(&o.BlockSize, "block-size", 0, "tokens of a prefix block (default: found from the rows)")
	f.StringVar(&o.LogFormat, "log-format", "", "format line of an access log, as in the server's configuration (default: the server's own)")
	f.DurationVar(&o.TimeUnit, "time-unit", 0, "what one stands for in mooncake's timestamps; 1s for the files of vllm-timed-trace and guidellm (default 1ms)")
	f.StringVar(&o.Prompts, "session-prompts", "", "cumulative or per_turn: whether a session's prompts begin with its turns before (default: as the files show; unknown is refused)")
	f.DurationVar(&o.SessionGap, "session-gap", 0, "time between the beginnings of sessions that each have a clock of their own")
	f.DurationVar(&o.From, "from", 0, "where the expansion of a pool of clients begins")
	f.DurationVar(&o.Duration, "duration", 0, "how long it lasts (default 1h)")
	f.Uint64Var(&o.Seed, "seed", 0, "seed of its chance")
	f.StringVar(&o.Licence, "licence", "", "licence of the data (default: that of the published files)")
	f.StringVar(&keyFile, "key-file", "", "file with the key of the hashes of identifiers (default: a key drawn and thrown away)")
	f.BoolVar(&asJSON, "json", false, "print one JSON document")
	groupFlags(c,
		flagGroup{"Reading", []string{"block-size", "log-format", "session-gap", "session-prompts", "strict", "time-unit"}},
		flagGroup{"Pools of clients", []string{"from", "duration", "seed"}},
		flagGroup{"Privacy", []string{"key-file"}},
		flagGroup{"Result", []string{"output", "force", "licence", "json"}},
	)
	return c
}

// importAnswer is what import --json prints.
type importAnswer struct {
	Read    int64            `json:"read"`
	Kept    int64            `json:"kept"`
	Dropped int64            `json:"dropped"`
	Reasons map[string]int64 `json:"reasons"`
	Notes   map[string]int64 `json:"notes"`
}

func printReport(w io.Writer, out string, r foreign.Report) {
	fmt.Fprintf(w, "%s: %d rows read, %d kept, %d dropped\n", out, r.Read, r.Kept, r.Dropped)
	for _, k := range slices.Sorted(maps.Keys(r.Reasons)) {
		fmt.Fprintf(w, "  dropped  %-24s %d\n", k, r.Reasons[k])
	}
	for _, k := range slices.Sorted(maps.Keys(r.Notes)) {
		fmt.Fprintf(w, "  kept     %-24s %d\n", k, r.Notes[k])
	}
}

// formatList is the table of formats for help.
func formatList() string {
	var b strings.Builder
	for _, f := range foreign.Formats() {
		fmt.Fprintf(&b, "  %-16s %s\n  %-16s   %s\n", f.Name, f.Summary, "", f.Fields)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// sources opens the files to import; "-" is standard input.
func (a *app) sources(names []string) ([]foreign.Source, func(), error) {
	var open []*os.File
	var opened []string
	done := func() {
		for _, f := range open {
			f.Close()
		}
	}
	var sources []foreign.Source
	for _, n := range names {
		if n == "-" {
			sources = append(sources, foreign.Source{Name: "stdin", R: a.in})
			continue
		}
		f, err := os.Open(n)
		if err != nil {
			done()
			return nil, nil, fmt.Errorf("import: %w", err)
		}
		open = append(open, f)
		info, err := f.Stat()
		if err == nil && info.IsDir() {
			err = fmt.Errorf("%s is a directory: name the files in it", n)
		}
		if err == nil && slices.Contains(opened, n) {
			err = fmt.Errorf("%s is named twice: its rows would be counted twice", n)
		}
		if err != nil {
			done()
			return nil, nil, fmt.Errorf("import: %w", err)
		}
		opened = append(opened, n)
		sources = append(sources, foreign.Source{Name: filepath.Base(n), R: f})
	}
	return sources, done, nil
}

// counted counts what is read of a file.
type counted struct {
	io.Reader
	n *atomic.Int64
}

func (c counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n.Add(int64(n))
	return n, err
}

// progressOf shows how far the reading of files has come, where their sizes are known.
func progressOf(w io.Writer, sources []foreign.Source) *term.Bar {
	var total int64
	read := &atomic.Int64{}
	for i, s := range sources {
		f, ok := s.R.(*os.File)
		if !ok {
			return nil
		}
		info, err := f.Stat()
		if err != nil || !info.Mode().IsRegular() {
			return nil
		}
		total += info.Size()
		sources[i].R = counted{f, read}
	}
	return term.NewBar(w, total, func() (int64, string) { return read.Load(), "" })
}
