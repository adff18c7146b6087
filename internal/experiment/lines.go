package experiment

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/shadowtape/shadowtape/internal/experiment/verdict"
)

// sample is one figure of a report as time series take it.
type sample struct {
	name   string
	labels [][2]string
	value  float64
}

// samples are a report's figures: the state of each metric as a number, its sides, its change.
func (r *Report) samples() []sample {
	codes := map[verdict.State]float64{verdict.Improved: -1, verdict.Unchanged: 0, verdict.Small: 1, verdict.Inconclusive: 2, verdict.Regressed: 3, verdict.Invalid: 4}
	all := [][2]string{{"candidate", r.Candidate}, {"base", r.Base}}
	out := []sample{{"shadowtape_gate_state", all, codes[r.Verdict]}, {"shadowtape_gate_pairs", all, float64(r.Pairs)}}
	for _, f := range r.Findings {
		labels := append(slices.Clone(all), [2]string{"metric", f.Metric}, [2]string{"unit", f.Unit}, [2]string{"gated", fmt.Sprint(f.Gated)})
		if f.Better != "" {
			out = append(out, sample{"shadowtape_metric_state", labels, codes[f.State]})
		}
		for _, v := range []struct {
			name string
			v    verdict.Null
		}{{"shadowtape_metric_base", f.Base}, {"shadowtape_metric_candidate", f.Candidate}, {"shadowtape_metric_change_percent", f.ChangePct},
			{"shadowtape_metric_change_low_percent", f.Interval[0]}, {"shadowtape_metric_change_high_percent", f.Interval[1]}, {"shadowtape_metric_detectable_percent", f.DetectablePct}} {
			if v.v.Valid {
				out = append(out, sample{v.name, labels, v.v.V})
			}
		}
	}
	return out
}

// help says what each series is.
var help = map[string]string{
	"shadowtape_gate_state":                 "verdict: -1 improved, 0 unchanged, 1 small, 2 inconclusive, 3 regressed, 4 invalid",
	"shadowtape_gate_pairs":                 "valid pairs of launches",
	"shadowtape_metric_state":               "state of one metric, coded as shadowtape_gate_state",
	"shadowtape_metric_base":                "the base's figure, in the label's unit",
	"shadowtape_metric_candidate":           "the candidate's figure, in the label's unit",
	"shadowtape_metric_change_percent":      "change, in percent; of a share in points",
	"shadowtape_metric_change_low_percent":  "lower end of the change's interval",
	"shadowtape_metric_change_high_percent": "upper end of the change's interval",
	"shadowtape_metric_detectable_percent":  "change that these pairs find with 80 % power",
}

// OpenMetrics writes the report in the OpenMetrics text format 1.0, which node_exporter's textfile collector reads too.
func (r *Report) OpenMetrics(w io.Writer) error {
	all := r.samples()
	slices.SortStableFunc(all, func(a, b sample) int { return strings.Compare(a.name, b.name) })
	b := &strings.Builder{}
	last := ""
	quote := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)
	for _, s := range all {
		if s.name != last {
			fmt.Fprintf(b, "# HELP %s %s\n# TYPE %s gauge\n", s.name, help[s.name], s.name)
			last = s.name
		}
		var labels []string
		for _, l := range s.labels {
			labels = append(labels, fmt.Sprintf(`%s="%s"`, l[0], quote.Replace(l[1])))
		}
		fmt.Fprintf(b, "%s{%s} %v\n", s.name, strings.Join(labels, ","), s.value)
	}
	b.WriteString("# EOF\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// Influx writes the report in InfluxDB's line protocol, one line for each metric, all at one time.
func (r *Report) Influx(w io.Writer, at time.Time) error {
	b := &strings.Builder{}
	tag := strings.NewReplacer(`\`, "/", // the protocol cannot say a backslash before what it escapes
		",", `\,`, "=", `\=`, " ", `\ `, "\n", `\ `)
	groups := map[string][]sample{}
	var order []string
	for _, s := range r.samples() {
		tags := []string{}
		for _, l := range s.labels {
			if l[1] != "" {
				tags = append(tags, tag.Replace(l[0])+"="+tag.Replace(l[1]))
			}
		}
		slices.Sort(tags)
		measurement, _, _ := strings.Cut(strings.TrimPrefix(s.name, "shadowtape_"), "_")
		k := "shadowtape_" + measurement + "," + strings.Join(tags, ",")
		if groups[k] == nil {
			order = append(order, k)
		}
		groups[k] = append(groups[k], s)
	}
	for _, k := range order {
		var fields []string
		for _, s := range groups[k] {
			_, field, _ := strings.Cut(strings.TrimPrefix(s.name, "shadowtape_"), "_")
			fields = append(fields, fmt.Sprintf("%s=%v", field, s.value))
		}
		fmt.Fprintf(b, "%s %s %d\n", k, strings.Join(fields, ","), at.UnixNano())
	}
	_, err := io.WriteString(w, b.String())
	return err
}
