package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/shadowtape/shadowtape/internal/experiment"
	"github.com/shadowtape/shadowtape/internal/experiment/history"
	"github.com/shadowtape/shadowtape/internal/experiment/verdict"
)

func historyCommand(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "history add|list|accept|anchor|check|trend|digest --db DIR",
		Short: "Keep what every night measured; find changes of level and slow drifts in it",
		Long: `A history is a directory of JSON lines, one file a night, only ever appended to, so that it merges cleanly in Git. Runs of different
workloads, models, machines or engine flags are different series and never mix.`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				return noVerb(c, args[0])
			}
			return usageError(errors.New("what to do with the history is missing"), "shadowtape history --help")
		},
		RunE: func(*cobra.Command, []string) error { return nil },
	}
	db := ""
	c.PersistentFlags().StringVar(&db, "db", "history", "directory of the history")
	c.AddCommand(historyAdd(a, &db), historyList(a, &db), historyAccept(a, &db), historyAnchor(a, &db), historyCheck(a, &db), historyTrend(a, &db), historyDigest(a, &db))
	return c
}

// loadHistory reads a history and says what could not be read.
func (a *app) loadHistory(dir string) (*history.DB, error) {
	db, err := history.Load(dir)
	if errors.Is(err, history.ErrEmpty) {
		return nil, withHint(err, "shadowtape history add RUN… --db "+dir)
	}
	if err != nil {
		return nil, err
	}
	a.warnHistory(db)
	return db, nil
}

// mostWarnings is how many lines of a history that cannot be read are named.
const mostWarnings = 3

// warnHistory says what of a history could not be read; nil is no history.
func (a *app) warnHistory(db *history.DB) {
	if db == nil {
		return
	}
	for i, w := range db.Warnings {
		if i == mostWarnings {
			fmt.Fprintf(a.err, "warning: … and %d more such lines\n", len(db.Warnings)-i)
			return
		}
		fmt.Fprintf(a.err, "warning: history: %s\n", w)
	}
}

func historyAdd(a *app, dir *string) *cobra.Command {
	var o struct {
		origin originFlags
		aa     bool
		slo    string
	}
	c := &cobra.Command{
		Use:   "add RUN…",
		Short: "Add runs, each a fresh launch; with --aa also what two launches of one build differ by",
		Example: `  shadowtape history add night/a1 night/a2 night/a3 --commit 3f2c1ab
  shadowtape history add night/a1 night/a2 --aa
  shadowtape history add RUN… --db perf/history --team serving`,
		Args: minArgs("runs"),
		RunE: func(_ *cobra.Command, args []string) error {
			j := judgeFlags{db: *dir, slo: o.slo}
			g, err := j.resolve(a, "history add")
			if err != nil {
				return err
			}
			runs, err := g.load(args)
			if err != nil {
				return err
			}
			records, err := experiment.Remember(runs, g.db, experiment.Origin(o.origin), o.aa)
			if err != nil {
				return hintIncomparable(err, "")
			}
			if err := history.Append(*dir, records...); err != nil {
				return err
			}
			pairs, invalid, series := 0, 0, map[string]bool{}
			for _, r := range records {
				series[r.Series] = true
				if r.Kind == history.AAKind {
					pairs++
				}
				if len(r.Invalid) > 0 {
					invalid++
				}
			}
			_, err = fmt.Fprintf(a.out, "history %s: %s of %d series added, %d invalid, %s\n", *dir, countOf(len(runs), "run"), len(series), invalid, countOf(pairs, "A/A pair"))
			return err
		},
	}
	f := c.Flags()
	o.origin.add(f)
	f.BoolVar(&o.aa, "aa", false, "the runs are launches of one build: the first and the second are an A/A pair, and so on")
	f.StringVar(&o.slo, "slo", "", "limits to keep the attainment of, such as ttft=500ms,tpot=50ms")
	return c
}

// countOf is a number of things: 1 night, 2 nights. The plural is the singular with an s where it is not given.
func countOf(n int, one string, many ...string) string {
	switch {
	case n == 1:
		return "1 " + one
	case len(many) > 0:
		return fmt.Sprintf("%d %s", n, many[0])
	}
	return fmt.Sprintf("%d %ss", n, one)
}

func historyList(a *app, dir *string) *cobra.Command {
	var asJSON, asCSV bool
	c := &cobra.Command{
		Use:   "list",
		Short: "List the series, their nights and what one more night should be",
		Example: `  shadowtape history list
  shadowtape history list --json
  shadowtape history list --csv > levels.csv`,
		Args: exactArgs(),
		RunE: func(*cobra.Command, []string) error {
			db, err := a.loadHistory(*dir)
			switch {
			case err != nil:
				return err
			case asJSON:
				return printJSON(a.out, map[string]any{"schema": 1, "records": db.Records})
			case asCSV:
				return listCSV(a.out, db)
			}
			for _, s := range db.Series() {
				if _, err := fmt.Fprintf(a.out, "series %s: %s, %d invalid; %s\n", s.ID, countOf(len(s.Runs), "run"), s.Invalid, describeKey(s.Key)); err != nil {
					return err
				}
				for _, m := range verdict.Defaults() {
					if !m.Gate {
						continue
					}
					nights := s.Nights(m.Name)
					if len(nights) == 0 {
						continue
					}
					p := s.Past(m, time.Time{}, 0)
					line := fmt.Sprintf("  %-15s %10s, %13s", m.Name, countOf(len(nights), "night"), countOf(len(p.AA), "A/A pair"))
					if lo, mid, hi, ok := p.Bounds(); ok {
						line += fmt.Sprintf(", now %s (one more night: %s to %s)", experiment.Level(m, mid), experiment.Level(m, lo), experiment.Level(m, hi))
					} else {
						line += fmt.Sprintf(", last %s (too few nights for a band)", experiment.Level(m, nights[len(nights)-1].Level))
					}
					if _, err := fmt.Fprintln(a.out, line); err != nil {
						return err
					}
				}
			}
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print all records as one JSON document")
	c.Flags().BoolVar(&asCSV, "csv", false, "print a line for each run and figure")
	return c
}

// describeKey names what tells series apart at a glance.
func describeKey(k history.Key) string {
	var parts []string
	for _, n := range []string{"model", "client_host", "deployment.gpu_names", "deployment.command", "profile.name"} {
		if k[n] != "" {
			parts = append(parts, k[n])
		}
	}
	if t := k["trace"]; len(t) >= 8 {
		parts = append(parts, "trace "+t[:8])
	}
	return strings.Join(parts, ", ")
}

func listCSV(w io.Writer, db *history.DB) error {
	if _, err := fmt.Fprintln(w, "at,series,run,commit,valid,figure,value"); err != nil {
		return err
	}
	for _, r := range db.Records {
		if r.Kind != history.RunKind {
			continue
		}
		names := make([]string, 0, len(r.Figures))
		for n := range r.Figures {
			names = append(names, n)
		}
		slices.Sort(names)
		for _, n := range names {
			if _, err := fmt.Fprintf(w, "%s,%s,%s,%s,%v,%s,%v\n", r.At.Format(time.RFC3339), r.Series, r.ID, strings.ReplaceAll(r.Commit, ",", " "), len(r.Invalid) == 0, n, r.Figures[n]); err != nil {
				return err
			}
		}
	}
	return nil
}

// oneSeries is the series named, or the only one.
func oneSeries(db *history.DB, id string) (*history.Series, error) {
	all := db.Series()
	if id == "" && len(all) == 1 {
		return all[0], nil
	}
	var ids []string
	for _, s := range all {
		if s.ID == id {
			return s, nil
		}
		ids = append(ids, s.ID)
	}
	if id == "" {
		return nil, usageError(fmt.Errorf("the history has %d series", len(all)), "--series "+strings.Join(ids, " | "))
	}
	return nil, usageError(fmt.Errorf("there is no series %q", id), "--series "+strings.Join(ids, " | "))
}

func historyAccept(a *app, dir *string) *cobra.Command {
	var commit, reason, who, series string
	c := &cobra.Command{
		Use:   "accept METRIC --commit C --reason TEXT",
		Short: "Accept a change of level: the series is cut there, and new runs are held against what came after",
		Example: `  shadowtape history accept tpot --commit 3f2c1ab --reason "larger draft model"
  shadowtape history accept ttft --commit 2026-11-03 --reason "new driver" --series 5d0c3fa2b1e9
  shadowtape history check`,
		Args: exactArgs("METRIC"),
		RunE: func(_ *cobra.Command, args []string) error {
			if commit == "" || reason == "" {
				return usageError(errors.New("--commit and --reason are needed"), "shadowtape history accept --help")
			}
			db, err := a.loadHistory(*dir)
			if err != nil {
				return err
			}
			s, err := oneSeries(db, series)
			if err != nil {
				return err
			}
			known := false
			for _, n := range s.Nights(args[0]) {
				known = known || n.Day == commit || slices.ContainsFunc(n.Runs, func(r *history.Record) bool { return r.Commit == commit || r.ID == commit })
			}
			if !known {
				return usageError(fmt.Errorf("series %s has no run of %s with commit, run or night %q", s.ID, args[0], commit), "shadowtape history check names them")
			}
			if err := history.Append(*dir, history.Record{Kind: history.AcceptKind, At: time.Now().UTC(), Series: s.ID, Metric: args[0], Commit: commit, Reason: reason, Who: who}); err != nil {
				return err
			}
			_, err = fmt.Fprintf(a.out, "accepted: %s of series %s changed with %s: %s\n", args[0], s.ID, commit, reason)
			return err
		},
	}
	f := c.Flags()
	f.StringVar(&commit, "commit", "", "commit, run or night (2026-11-03) that the new level begins with")
	f.StringVar(&reason, "reason", "", "why it is well")
	f.StringVar(&who, "who", "", "who says so")
	f.StringVar(&series, "series", "", "series, where the history has several")
	return c
}

func historyAnchor(a *app, dir *string) *cobra.Command {
	var series, reason string
	var nights int
	c := &cobra.Command{
		Use:   "anchor",
		Short: "Pin the last nights as what slow drift is measured against, such as at a release",
		Example: `  shadowtape history anchor --nights 5 --reason "release 1.4"
  shadowtape history anchor --series 5d0c3fa2b1e9
  shadowtape history check`,
		Args: exactArgs(),
		RunE: func(*cobra.Command, []string) error {
			if nights < 1 {
				return usageError(errors.New("--nights is at least 1"), "")
			}
			db, err := a.loadHistory(*dir)
			if err != nil {
				return err
			}
			s, err := oneSeries(db, series)
			if err != nil {
				return err
			}
			var ids, days []string
			for i := len(s.Runs) - 1; i >= 0; i-- {
				if d := s.Runs[i].Night(); !slices.Contains(days, d) {
					if len(days) == nights {
						break
					}
					days = append(days, d)
				}
				ids = append(ids, s.Runs[i].ID)
			}
			if err := history.Append(*dir, history.Record{Kind: history.AnchorKind, At: time.Now().UTC(), Series: s.ID, Runs: ids, Reason: reason}); err != nil {
				return err
			}
			_, err = fmt.Fprintf(a.out, "anchor of series %s: %s of %s\n", s.ID, countOf(len(ids), "run"), countOf(len(days), "night"))
			return err
		},
	}
	f := c.Flags()
	f.IntVar(&nights, "nights", 5, "how many of the last nights")
	f.StringVar(&reason, "reason", "", "what they are, such as a release")
	f.StringVar(&series, "series", "", "series, where the history has several")
	return c
}

func historyCheck(a *app, dir *string) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "check",
		Short: "Name changes of level and drifts; exit 3 where one for the worse is not accepted and has not gone away",
		Example: `  shadowtape history check
  shadowtape history check --json
  shadowtape history check --db perf/history || notify`,
		Args: exactArgs(),
		RunE: func(*cobra.Command, []string) error {
			db, err := a.loadHistory(*dir)
			if err != nil {
				return err
			}
			alerts := db.Check(verdict.Defaults())
			open := 0
			for _, al := range alerts {
				if al.Open() {
					open++
				}
			}
			if asJSON {
				if alerts == nil {
					alerts = []history.Alert{}
				}
				err = printJSON(a.out, map[string]any{"schema": 1, "open": open, "alerts": alerts})
			} else {
				_, err = fmt.Fprintf(a.out, "%d open of %s\n", open, countOf(len(alerts), "change or drift", "changes and drifts"))
				for _, al := range alerts {
					state := "closed"
					if al.Open() {
						state = "OPEN"
					} else if !al.Worse {
						state = "better"
					}
					if err == nil {
						_, err = fmt.Fprintf(a.out, "%-6s %s: %s\n", state, al.Series, al.Text)
					}
				}
			}
			if err == nil && open > 0 {
				return exitWith(exitWorse, nil, "")
			}
			if err == nil && len(db.Warnings) > 0 { // what is left out may be the change
				return withHint(fmt.Errorf("history check: %s could not be read: this check is not of the whole history", countOf(len(db.Warnings), "line")), "take the files from Git or a copy, or delete the lines")
			}
			return err
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print one JSON document (docs/CLI_JSON.md)")
	return c
}

func historyTrend(a *app, dir *string) *cobra.Command {
	var html string
	var all, force bool
	c := &cobra.Command{
		Use:   "trend --html FILE",
		Short: "Write the trend page: every launch a point, levels, band, anchor, changes with their commits",
		Example: `  shadowtape history trend --html trend.html
  shadowtape history trend --html trend.html --all
  shadowtape history trend --db perf/history --html public/index.html`,
		Args: exactArgs(),
		RunE: func(*cobra.Command, []string) error {
			if html == "" {
				return usageError(errors.New("--html is missing"), "shadowtape history trend --html FILE")
			}
			if err := writable(html, force); err != nil {
				return err
			}
			db, err := a.loadHistory(*dir)
			if err != nil {
				return err
			}
			metrics := verdict.Defaults()
			if !all {
				metrics = slices.DeleteFunc(metrics, func(m verdict.Metric) bool { return !m.Gate })
			}
			if err := writeNew(html, force, func(w io.Writer) error { return db.TrendPage(w, metrics, time.Now()) }); err != nil {
				return err
			}
			_, err = fmt.Fprintf(a.out, "trend of %d series: %s\n", len(db.Series()), html)
			return err
		},
	}
	c.Flags().StringVar(&html, "html", "", "page to write; it needs no network")
	c.Flags().BoolVar(&all, "all", false, "also the metrics that do not gate")
	c.Flags().BoolVar(&force, "force", false, "replace a page that is there")
	return c
}

func historyDigest(a *app, dir *string) *cobra.Command {
	var since, md string
	var force bool
	c := &cobra.Command{
		Use:   "digest",
		Short: "Write the week in ten lines a team, for people who do not open dashboards",
		Example: `  shadowtape history digest
  shadowtape history digest --since 14d --md digest.md
  shadowtape history digest --db perf/history | mail -s performance team@example.org`,
		Args: exactArgs(),
		RunE: func(*cobra.Command, []string) error {
			span, err := parseDays(since)
			if err != nil {
				return usageError(fmt.Errorf("--since: %w", err), "")
			}
			db, err := a.loadHistory(*dir)
			if err != nil {
				return err
			}
			now := time.Now().UTC()
			text := db.Digest(verdict.Defaults(), now.Add(-cmp.Or(span, 7*24*time.Hour)), now)
			if md != "" {
				return writeNew(md, force, func(w io.Writer) error { _, err := io.WriteString(w, text); return err })
			}
			_, err = io.WriteString(a.out, text)
			return err
		},
	}
	c.Flags().StringVar(&since, "since", "7d", "how far back")
	c.Flags().StringVar(&md, "md", "", "write it here (default: standard output)")
	c.Flags().BoolVar(&force, "force", false, "replace a file that is there")
	return c
}
