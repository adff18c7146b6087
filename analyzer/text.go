package analyzer

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/shadowtape/shadowtape/internal/figure"
)

const textLines = 25

// terminal collects the lines of a summary. Where they are too many those that can be spared go, the most sparable first.
type terminal struct {
	lines []string
	spare []int // 0: never
}

func (t *terminal) line(format string, args ...any) { t.spared(0, format, args...) }

func (t *terminal) spared(spare int, format string, args ...any) {
	t.lines, t.spare = append(t.lines, figure.Clip(fmt.Sprintf(format, args...), figure.Width)), append(t.spare, spare)
}

func (t *terminal) write(w io.Writer) error {
	for len(t.lines) > textLines && slices.Max(t.spare) > 0 {
		i := slices.Index(t.spare, slices.Max(t.spare))
		t.lines, t.spare = slices.Delete(t.lines, i, i+1), slices.Delete(t.spare, i, i+1)
	}
	b := bufio.NewWriter(w)
	for _, line := range t.lines {
		fmt.Fprintln(b, line)
	}
	return b.Flush()
}

// Text writes the summary for a terminal: verdict first, at most 25 lines of 80 columns, no color.
func (s Summary) Text(w io.Writer) error {
	var t terminal
	line := t.line
	if s.Valid {
		line("valid    %s %s", s.Kind, s.Label)
	} else {
		line("INVALID  %s %s", s.Kind, s.Label)
		listed(line, "         ", s.Invalid)
	}
	r := s.Requests
	line("requests %s scheduled: %s sent, %s dropped", figure.Count(r.Scheduled), figure.Count(r.Sent), figure.Count(r.Dropped))
	if r.Unknown < r.Sent {
		line("         %s completed, %s failed, %s aborted, %s cut%s", figure.Count(r.Completed), figure.Count(r.Failed), figure.Count(r.Aborted), figure.Count(r.RunEnd), unless(r.Unknown, ", %s unknown"))
	}
	if len(s.Errors)+len(s.Dropped) > 0 {
		line("errors   %s", kinds(s.Errors, s.Dropped))
	}
	line("window   %s s · %s requests/s · in %s tokens/s · out %s tokens/s", figure.Number(s.WindowS), s.aggregate("request_rate"), s.aggregate("input_rate"), s.aggregate("output_rate"))
	if s.Aggregates["goodput"].Value.Valid {
		line("slo      %s of requests meet it · goodput %s requests/s", figure.Percent(s.Aggregates["slo_attainment"].Value), s.aggregate("goodput"))
	}
	if s.Window.Server.Samples > 0 {
		v := func(name string) Null { return s.Aggregates[name].Value }
		line("pages    mean %s, p95 %s, peak %s · hits %s · preempted %s", figure.Percent(v("kv_usage_mean")), figure.Percent(v("kv_usage_p95")), figure.Percent(v("kv_usage_peak")), figure.Percent(v("kv_prefix_hit_rate")), s.aggregate("kv_preemptions"))
	}
	s.models(line)
	if s.By == "" {
		s.table(&t)
	}
	s.sparklines(&t)
	s.byTable(line)
	if c := s.Cost; c != nil {
		line("cost     %s per million output tokens at this rate (%d GPUs at %s an hour)", figure.Cell(c.PerMillionOutputTokens), c.GPUs, figure.Number(c.GPUHourPrice))
	}
	var notes []string
	for _, a := range s.Anomalies {
		at := ""
		if a.AtS.Valid {
			at = " at " + figure.Number(a.AtS.V) + " s"
		}
		notes = append(notes, a.Name+at+": "+a.Evidence)
	}
	listed(line, "", append(notes, prefixed("warning: ", s.Warnings)...))
	return t.write(w)
}

// sparklines writes two lines: when the requests came and what they waited.
func (s Summary) sparklines(t *terminal) {
	if s.Charts == nil {
		return
	}
	for i, c := range []struct{ name, of, unit string }{{"arrivals", "arrivals", "/s"}, {"ttft p95", "ttft_p95", " ms"}, {"e2el p95", "e2el_p95", " ms"}} {
		p := s.Charts.Time[c.of]
		if i == 2 && s.Charts.Time["ttft_p95"] != nil || len(p) == 0 {
			continue
		}
		if text, top := sparkline(p, 50); top > 0 {
			t.spared(9-i, "%-9s%s to %s%s", c.name, text, figure.Number(top), c.unit)
		}
	}
}

// sparkline draws values over n columns as the means of equal parts, from 0 to the highest, which it returns; nothing is a blank.
func sparkline(p Points, n int) (text string, top float64) {
	means := make([]float64, n)
	for i := range means {
		sum, k := 0.0, 0.0
		for _, v := range p[i*len(p)/n : (i+1)*len(p)/n] {
			if finite(v) {
				sum, k = sum+v, k+1
			}
		}
		means[i] = sum / k
		if finite(means[i]) {
			top = max(top, means[i])
		}
	}
	bars := []rune("▁▂▃▄▅▆▇█")
	for _, v := range means {
		if !finite(v) || top == 0 {
			text += " "
			continue
		}
		text += string(bars[min(int(v/top*float64(len(bars))), len(bars)-1)])
	}
	return text, top
}

// models writes a line each of pages and mix.
func (s Summary) models(line func(string, ...any)) {
	if p := s.Pages; p != nil && p.InUse.High.Mean.Valid {
		of := ""
		if p.Capacity.Valid {
			of = " of " + figure.Count(p.Capacity.V)
		}
		line("model    %s–%s pages%s, peak %s · fill %s · shared %s", figure.Cell(p.InUse.Low.Mean), figure.Cell(p.InUse.High.Mean), of, figure.Cell(p.PeakDemand), figure.Percent(p.Fill), figure.Cell(p.Sharing))
	} else if p != nil && len(p.Curve) > 0 {
		last := p.Curve[len(p.Curve)-1]
		line("model    an LRU cache of %s pages hits %s of prompt blocks", figure.Count(last.Pages), figure.Percent(figure.Known(last.HitRate)))
	}
	if m := s.Mix; m != nil && m.Late.Idle.Valid {
		line("mix      idle %s, prefill %s, decode %s, mixed %s · %s/s", between(m.Late.Idle, m.Early.Idle), between(m.Late.PrefillOnly, m.Early.PrefillOnly), between(m.Late.DecodeOnly, m.Early.DecodeOnly), between(m.Late.Mixed, m.Early.Mixed), figure.Cell(m.Early.SwitchesPerS))
	}
}

func prefixed(prefix string, all []string) []string {
	out := make([]string, len(all))
	for i, s := range all {
		out[i] = prefix + s
	}
	return out
}

// listed writes the first two of some lines, and how many more there are.
func listed(line func(string, ...any), prefix string, all []string) {
	for i, text := range all {
		if i == 1 && len(all) > 2 {
			line("%s%d more in --json, such as: %s", prefix, len(all)-1, text)
			return
		}
		line("%s%s", prefix, text)
	}
}

// table writes a row for each metric that has samples, in the table's order.
func (s Summary) table(t *terminal) {
	line := t.line
	if !slices.ContainsFunc(metrics, func(m Metric) bool { return s.Metrics[m.Name].N > 0 && !m.Detail }) {
		line("no latency: the exchanges do not say when their answers came")
		return
	}
	line("%-14s %8s%8s%8s%8s%8s%8s%8s%9s", "ms", "n", "mean", "std", "p50", "p90", "p95", "p99", "max")
	floor, bound := "", 0.0
	for _, m := range metrics {
		f := s.Metrics[m.Name]
		if f.N == 0 || m.Detail {
			continue
		}
		t.spared(m.Spare, "%-14s %8s%8s%8s%8s%8s%8s%8s%9s", m.Name, figure.Count(int64(f.N)), figure.Cell(f.Mean), figure.Cell(f.Std), figure.Cell(f.P50), figure.Cell(f.P90), figure.Cell(f.P95), figure.Cell(f.P99), figure.Cell(f.Max))
		bound = max(bound, f.Error)
		for _, p := range percentiles[1:4] {
			if f.Withheld[p.name] != "" && !strings.Contains(floor, p.name+" ") {
				floor += fmt.Sprintf(", %s %d", p.name, p.floor)
			}
		}
	}
	switch {
	case bound > 0:
		line("percentiles of very many samples are within %.2g %%", bound*100)
	case floor != "":
		line("–: too few samples to know it at 99 %% confidence; needs %s", floor[2:])
	}
}

func (s Summary) aggregate(name string) string {
	v := s.Aggregates[name].Value
	if !v.Valid {
		return "–"
	}
	return figure.Number(v.V)
}

// kinds lists counts by kind, the largest first.
func kinds(errors, dropped map[string]int64) string {
	var parts []string
	for _, k := range sortedKeys(errors) {
		parts = append(parts, fmt.Sprintf("%s %s", k, figure.Count(errors[k])))
	}
	for _, k := range sortedKeys(dropped) {
		parts = append(parts, fmt.Sprintf("not sent: %s %s", k, figure.Count(dropped[k])))
	}
	return strings.Join(parts, ", ")
}

func unless(n int64, format string) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(format, figure.Count(n))
}

// between is a band of shares in whole percent, or one figure where both ends read the same.
func between(a, b Null) string {
	if !a.Valid || !b.Valid {
		return "–"
	}
	lo, hi := math.Round(100*min(a.V, b.V)), math.Round(100*max(a.V, b.V))
	if lo == hi {
		return fmt.Sprintf("%.0f %%", lo)
	}
	return fmt.Sprintf("%.0f–%.0f %%", lo, hi)
}
