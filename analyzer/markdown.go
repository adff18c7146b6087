package analyzer

import (
	"bufio"
	"fmt"
	"io"
	"strings"

	"github.com/shadowtape/shadowtape/internal/figure"
)

// Markdown writes the summaries for a pull request or a wiki: the verdict first.
func (d Document) Markdown(w io.Writer) error {
	b := bufio.NewWriter(w)
	for i, s := range d.Runs {
		if i > 0 {
			fmt.Fprintln(b)
		}
		s.markdown(b)
	}
	if c := d.Capacity; c != nil {
		fmt.Fprintf(b, "\nCapacity within the limits: %s requests/s, %s output tokens/s per GPU; missed at %s requests/s.", figure.Cell(c.RequestRate), figure.Cell(c.PerGPU), figure.Cell(c.NextRate))
		if c.PerMillion.Valid {
			fmt.Fprintf(b, " A million output tokens cost %s there.", figure.Cell(c.PerMillion))
		}
		fmt.Fprintln(b)
	}
	return b.Flush()
}

func (s Summary) markdown(w io.Writer) {
	verdict := "valid"
	if !s.Valid {
		verdict = "INVALID"
	}
	fmt.Fprintf(w, "### %s: %s %s\n\n", verdict, s.Kind, escapeMarkdown(s.Label))
	for _, why := range s.Invalid {
		fmt.Fprintf(w, "* **%s**\n", escapeMarkdown(why))
	}
	r := s.Requests
	fmt.Fprintf(w, "%s sent, %s completed, %s failed, %s aborted, %s dropped in %s s; %s requests/s, %s tokens/s out.\n\n", figure.Count(r.Sent), figure.Count(r.Completed), figure.Count(r.Failed), figure.Count(r.Aborted), figure.Count(r.Dropped), figure.Number(s.WindowS), s.aggregate("request_rate"), s.aggregate("output_rate"))
	fmt.Fprintln(w, "| ms | n | mean | p50 | p90 | p95 | p99 | max |\n|---|---:|---:|---:|---:|---:|---:|---:|")
	for _, m := range metrics {
		if f := s.Metrics[m.Name]; f.N > 0 {
			fmt.Fprintf(w, "| %s | %s | %s | %s | %s | %s | %s | %s |\n", m.Name, figure.Count(int64(f.N)), figure.Cell(f.Mean), figure.Cell(f.P50), figure.Cell(f.P90), figure.Cell(f.P95), figure.Cell(f.P99), figure.Cell(f.Max))
		}
	}
	fmt.Fprintln(w)
	for _, a := range s.Anomalies {
		at := ""
		if a.AtS.Valid {
			at = " at " + figure.Number(a.AtS.V) + " s"
		}
		fmt.Fprintf(w, "* %s%s: %s\n", a.Name, at, escapeMarkdown(a.Evidence))
	}
	for _, warning := range s.Warnings {
		fmt.Fprintf(w, "* warning: %s\n", escapeMarkdown(warning))
	}
}

// escapeMarkdown keeps what a trace brought from becoming markup.
func escapeMarkdown(s string) string {
	s = figure.Clip(s, 500)
	return strings.NewReplacer("\\", "\\\\", "`", "\\`", "*", "\\*", "_", "\\_", "<", "&lt;", ">", "&gt;", "|", "\\|", "[", "\\[", "]", "\\]", "#", "\\#", "@", "@\u200b").Replace(s)
}

// OpenMetrics writes the summaries as gauges and summaries in the OpenMetrics text format 1.0, times in seconds: for a Prometheus that
// keeps the history of nightly runs. A figure that is undefined is left out.
func (d Document) OpenMetrics(w io.Writer) error {
	b := bufio.NewWriter(w)
	escape := strings.NewReplacer("\\", "\\\\", "\"", "\\\"", "\n", "\\n")
	label := func(s Summary) string {
		return `run="` + escape.Replace(figure.Clip(s.Label, 200)) + `",kind="` + escape.Replace(s.Kind) + `"`
	}
	family := func(name, kind, help string, lines func(Summary)) {
		fmt.Fprintf(b, "# TYPE %s %s\n# HELP %s %s\n", name, kind, name, strings.ReplaceAll(strings.ReplaceAll(help, "\\", "\\\\"), "\n", " "))
		for _, s := range d.Runs {
			lines(s)
		}
	}
	for _, m := range metrics {
		name := "shadowtape_" + m.Name + "_seconds"
		family(name, "summary", m.Definition, func(s Summary) {
			f := s.Metrics[m.Name]
			if f.N == 0 {
				return
			}
			for k, v := range []Null{f.P50, f.P90, f.P95, f.P99, f.P999} {
				if v.Valid {
					fmt.Fprintf(b, "%s{%s,quantile=\"%g\"} %g\n", name, label(s), percentiles[k].p, v.V/1e3)
				}
			}
			fmt.Fprintf(b, "%s_sum{%s} %g\n%s_count{%s} %d\n", name, label(s), f.Mean.V/1e3*float64(f.N), name, label(s), f.N)
		})
	}
	for _, a := range aggregates {
		name := "shadowtape_" + a.Name
		family(name, "gauge", a.Definition, func(s Summary) {
			if v := s.Aggregates[a.Name].Value; v.Valid {
				fmt.Fprintf(b, "%s{%s} %g\n", name, label(s), v.V)
			}
		})
	}
	family("shadowtape_valid", "gauge", "1 where the measurement can be trusted", func(s Summary) {
		v := 0
		if s.Valid {
			v = 1
		}
		fmt.Fprintf(b, "shadowtape_valid{%s} %d\n", label(s), v)
	})
	fmt.Fprintln(b, "# EOF")
	return b.Flush()
}
