package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/engine"
	"github.com/shadowtape/shadowtape/internal/stats"
	"github.com/shadowtape/shadowtape/internal/virtual"
)

// calibration is what calibrate prints with --json.
type calibration struct {
	Schema  int            `json:"schema"`
	Profile engine.Profile `json:"profile"`
	Fit     virtual.Fit    `json:"fit"`
}

func calibrateCommand(a *app) *cobra.Command {
	var (
		f        engineFlags
		out      string
		name     string
		requests int64
		holdOut  float64
		asJSON   bool
		force    bool
	)
	c := &cobra.Command{
		Use:   "calibrate RUN -o PROFILE.json",
		Short: "Fit the step times of simulate and sim to a real run, and say how well they fit",
		Long: `Calibrate finds the engine's step times with which a simulation of a run's own arrivals comes closest to what was measured, and writes them
as a profile for simulate and sim. The pages of the cache are read from the run's server metrics where they are there, else from --profile.
The last requests are held out: the error on them, which nothing was fitted to, is what to expect of a simulation of other traffic. Times count
from when a request reached the server: what it was sent late, and the round trip that the run has measured, are taken off.`,
		Example: `  shadowtape calibrate run1 -o candidate.json
  shadowtape calibrate run1 --profile llama-3.1-70b-h100x4 --max-num-seqs 512 -o candidate.json
  shadowtape simulate prod.trace --profile ./candidate.json -o sim1`,
		Args: exactArgs("RUN"),
		RunE: func(c *cobra.Command, args []string) error {
			p, _, _, err := f.resolve()
			if err != nil {
				return err
			}
			if out == "" {
				return usageError(errors.New("-o is missing"), "shadowtape calibrate --help")
			}
			if requests < 0 {
				return usageError(fmt.Errorf("--max-requests %d is negative", requests), "shadowtape calibrate --help")
			}
			if _, err := os.Stat(out); err == nil && !force {
				return withHint(fmt.Errorf("write profile %s: %w", out, fs.ErrExist), "--force replaces it")
			}
			if name == "" {
				name = strings.TrimSuffix(filepath.Base(out), ".json")
			}
			run, err := readMeasured(args[0], requests)
			if err != nil {
				return err
			}
			if f.pages == 0 && run.pages > 0 {
				p.Pages = run.pages
			}
			if f.blockSize == 0 && run.pageSize > 0 {
				p.PageSize = run.pageSize
			}
			o := virtual.CalibrateOptions{Profile: p, Replicas: run.replicas, Header: run.header, RoundTrip: run.roundTrip, HoldOut: holdOut}
			if err := o.Validate(); err != nil {
				return usageError(err, "shadowtape calibrate --help")
			}
			p, fit, err := virtual.Calibrate(c.Context(), run.rows, o)
			if err != nil {
				return fmt.Errorf("calibrate %s: %w", args[0], err)
			}
			p.Name = name
			if run.model != "" {
				p.Model = run.model
			}
			p.Source = fmt.Sprintf("calibrated to %d requests of run %s", fit.Fitted.Requests, run.label)
			data, err := json.MarshalIndent(p, "", "  ")
			if err != nil {
				return err
			}
			if err := writeNew(out, force, func(w io.Writer) error { _, err := w.Write(append(data, '\n')); return err }); err != nil {
				return err
			}
			if asJSON {
				return json.NewEncoder(a.out).Encode(calibration{1, p, fit})
			}
			k := p.Coefficients
			_, err = fmt.Fprintf(a.out, "profile %s: step = %.4g ms + %.4g us/prompt token + %.4g us/sequence + %.4g us/1000 context tokens\n%s%s",
				out, k.Fixed*1e3, k.PerPrefill*1e6, k.PerDecode*1e6, k.PerContext*1e9, errorsOf("fitted to", fit.Fitted), errorsOf("held out", fit.HeldOut))
			return err
		},
	}
	fl := c.Flags()
	fl.StringVarP(&out, "output", "o", "", "profile to write")
	fl.BoolVar(&force, "force", false, "replace the profile where it exists")
	fl.StringVar(&name, "name", "", "name in the profile (default: the file's)")
	fl.Int64Var(&requests, "max-requests", 5000, "use the first so many requests")
	fl.Float64Var(&holdOut, "hold-out", 0.3, "share of them, the last ones, that nothing is fitted to; 0: none")
	fl.BoolVar(&asJSON, "json", false, "print one JSON document")
	f.add(fl)
	for _, unused := range []string{"seed", "slowdown", "noise"} {
		_ = fl.MarkHidden(unused)
	}
	groupFlags(c,
		flagGroup{"Server", []string{"profile", "pages", "block-size", "max-num-seqs", "token-budget"}},
		flagGroup{"Result", []string{"output", "name", "max-requests", "hold-out", "json", "force"}},
	)
	return c
}

// errorsOf says how far a simulation was from a part of the run.
func errorsOf(part string, e virtual.Errors) string {
	if e.Requests == 0 {
		return part + ": no request, so nothing is known\n"
	}
	return fmt.Sprintf("%s %d requests: error of a request's ttft: median %.1f %%, p90 %.1f %%; tpot: median %.1f %%, p90 %.1f %%\n"+
		"  of quantiles: ttft p50 %+.1f %%, p99 %+.1f %%; tpot p50 %+.1f %%, p99 %+.1f %%\n",
		part, e.Requests, e.TTFTMedian*100, e.TTFTP90*100, e.TPOTMedian*100, e.TPOTP90*100,
		e.TTFTQuantile.P50*100, e.TTFTQuantile.P99*100, e.TPOTQuantile.P50*100, e.TPOTQuantile.P99*100)
}

// roundTrip is the median of what the run's client measured to its targets; 0 where it did not.
func roundTrip(m *formats.Manifest) time.Duration {
	targets, _ := m.Environment["targets"].([]any)
	var ms []float64
	for _, t := range targets {
		if target, ok := t.(map[string]any); ok {
			if v, ok := target["round_trip_ms"].(float64); ok && v > 0 {
				ms = append(ms, v)
			}
		}
	}
	if len(ms) == 0 {
		return 0
	}
	return time.Duration(stats.Median(ms) * 1e6)
}

// measuredRun is what calibrate needs of a run.
type measuredRun struct {
	rows     []*formats.Exchange // sent, in the order of their arrivals
	header   formats.Header
	replicas int
	label    string
	model    string
	pages    int // of the cache, from the server's metrics; 0: unknown
	pageSize int
	// roundTrip is between client and server; 0: unknown, or none, as of a simulation
	roundTrip time.Duration
}

func readMeasured(where string, limit int64) (m measuredRun, err error) {
	t, err := formats.Open(where)
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	m.header, m.label, m.replicas = t.Header, filepath.Base(filepath.Clean(where)), 1
	if t.Manifest != nil {
		m.model, m.label, m.replicas = t.Manifest.Model, t.Manifest.Label, max(len(t.Manifest.Targets), 1)
		m.roundTrip = roundTrip(t.Manifest)
	}
	for x, err := range t.All() {
		if err != nil {
			return m, err
		}
		if x.EndReason == formats.EndNotSent || x.Phase == formats.PhaseWarmup {
			continue
		}
		m.rows = append(m.rows, x)
	}
	sortByArrival(m.rows)
	m.rows = m.rows[:min(int64(len(m.rows)), limit)]
	for s, err := range t.ServerSamples() {
		if err != nil {
			return m, err
		}
		if s.Series == "vllm:cache_config_info" {
			if n := labelNumber(s.Labels, "num_gpu_blocks"); n > 1 {
				m.pages = n - 1 // vLLM keeps one block for itself
			}
			m.pageSize = labelNumber(s.Labels, "block_size")
			break
		}
	}
	return m, nil
}

// labelNumber reads a number from a label set, or 0.
func labelNumber(labels, name string) int {
	match := regexp.MustCompile(`(?:^|,)` + regexp.QuoteMeta(name) + `="(\d+)"`).FindStringSubmatch(labels)
	if match == nil {
		return 0
	}
	n, _ := strconv.Atoi(match[1])
	return n
}
