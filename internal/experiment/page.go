package experiment

import (
	"fmt"
	"html/template"
	"io"
	"math"
	"strings"

	"github.com/shadowtape/shadowtape/internal/experiment/verdict"
)

// HTML writes the report as one page that opens offline: the verdict, each metric with the changes of its pairs as points on its interval, what
// differs and what explains, the runs.
func (r *Report) HTML(w io.Writer) error {
	type row struct {
		Name, Base, Candidate, Change, Interval, State, Detectable, Why, Mark string
		Gated                                                                 bool
		SVG                                                                   template.HTML
	}
	var rows []row
	for _, f := range r.Findings {
		s := state(f)
		if f.Better == "" {
			s = "explains"
		}
		rows = append(rows, row{describe(f), number(f.Base, f), number(f.Candidate, f), change(f), interval(f), s, detectable(f), f.Why, string(f.State), f.Gated, dots(f)})
	}
	err := reportPage.Execute(w, map[string]any{"R": r, "Headline": r.Headline(), "Mark": marks[r.Verdict], "Action": actions[r.Verdict], "Evidence": r.evidence(), "Rows": rows})
	if err != nil {
		return fmt.Errorf("write the report's page: %w", err)
	}
	return nil
}

// dots draws the changes of a metric's pairs, its interval as a bar, and no change as a line. Only numbers go into it.
func dots(f verdict.Finding) template.HTML {
	const width, height, edge = 170.0, 28.0, 8.0
	most := 0.0
	for _, v := range append([]float64{f.Interval[0].Or(0), f.Interval[1].Or(0)}, f.PairChangesPct...) {
		if !math.IsNaN(v) && !math.IsInf(v, 0) {
			most = max(most, math.Abs(v))
		}
	}
	if most == 0 {
		return ""
	}
	x := func(v float64) float64 { return width/2 + v/most*(width/2-edge) }
	b := &strings.Builder{}
	fmt.Fprintf(b, `<svg viewBox="0 0 %g %g" width="%g" height="%g" role="img"><line class="zero" x1="%g" x2="%g" y1="2" y2="%g"/>`, width, height, width, height, width/2, width/2, height-2)
	if f.Interval[0].Valid && f.Interval[1].Valid {
		fmt.Fprintf(b, `<line class="bar" x1="%.1f" x2="%.1f" y1="%g" y2="%g"/>`, x(f.Interval[0].V), x(f.Interval[1].V), height/2, height/2)
	}
	for i, v := range f.PairChangesPct {
		if !math.IsNaN(v) && !math.IsInf(v, 0) {
			fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="3.2"><title>pair %d: %+.1f</title></circle>`, x(v), height/2+4*float64(i%3-1), i+1, v)
		}
	}
	b.WriteString("</svg>")
	return template.HTML(b.String()) //nolint:gosec // numbers only
}

var reportPage = template.Must(template.New("report").Parse(`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><title>Shadowtape: {{.R.Verdict}}</title>
<style>
:root{color-scheme:light dark;--fg:#1c2024;--bg:#fff;--soft:#6b7280;--line:#e5e7eb;--card:#f8f9fa;--bad:#c62828;--good:#2e7d32;--dot:#2f5aa8}
@media (prefers-color-scheme:dark){:root{--fg:#e6e6e6;--bg:#15181b;--soft:#9aa3ad;--line:#2c3136;--card:#1c2024;--bad:#ef7070;--good:#7cc482;--dot:#7fa8f0}}
body{font:15px/1.45 system-ui,sans-serif;color:var(--fg);background:var(--bg);max-width:1200px;margin:2rem auto;padding:0 1rem}
h1{font-size:1.3rem;margin:0 0 .2rem}h2{font-size:1.05rem;margin:1.4rem 0 .3rem}p,small{margin:.2rem 0;color:var(--soft)}code{overflow-wrap:anywhere}
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%}td,th{border-bottom:1px solid var(--line);padding:.3rem .5rem;text-align:left;vertical-align:middle}.n{text-align:right;white-space:nowrap}
.s{min-width:11em}.regressed .s{color:var(--bad);font-weight:600}.improved .s{color:var(--good)}tr.more td{color:var(--soft)}
svg{display:block}.zero{stroke:var(--soft);stroke-dasharray:2 2}.bar{stroke:var(--dot);stroke-width:6;opacity:.3}circle{fill:var(--dot)}
</style></head><body>
<h1>{{.Mark}} {{.Headline}}</h1><p>{{.Action}}</p>
<p><code>{{.R.Candidate}}</code> against <code>{{.R.Base}}</code>: {{.Evidence}}. {{.R.Method}}.{{if .R.PolicyNote}} {{.R.PolicyNote}}{{end}}</p>
{{if .R.Differences}}<h2>What differs</h2><div class="scroll"><table><tr><th>what</th><th>base</th><th>candidate</th></tr>
{{range .R.Differences}}<tr><td>{{.What}}</td><td><code>{{.Base}}</code></td><td><code>{{.Candidate}}</code></td></tr>{{end}}</table></div>{{end}}
<h2>Metrics</h2><p>A point is a pair of launches, the bar the interval of their mean, the dashed line no change.</p>
<div class="scroll"><table><tr><th>metric</th><th class="n">base</th><th class="n">candidate</th><th class="n">change</th><th class="n">interval</th><th>pairs</th><th>verdict</th><th class="n">could have seen</th></tr>
{{range .Rows}}<tr class="{{.Mark}}{{if not .Gated}} more{{end}}"><td>{{.Name}}</td><td class="n">{{.Base}}</td><td class="n">{{.Candidate}}</td><td class="n">{{.Change}}</td><td class="n">{{.Interval}}</td><td>{{.SVG}}</td><td class="s">{{.State}}{{if .Why}}<br><small>{{.Why}}</small>{{end}}</td><td class="n">{{.Detectable}}</td></tr>
{{end}}</table></div>
{{if or .R.Explanation .R.Next .R.Warnings .R.Again}}<h2>What it means</h2><ul>{{range .R.Explanation}}<li>probably: {{.}}</li>{{end}}{{range .R.Next}}<li><b>next</b>: {{.}}</li>{{end}}{{range .R.Again}}<li>run again: {{.}}</li>{{end}}{{range .R.Warnings}}<li>note: {{.}}</li>{{end}}</ul>{{end}}
<h2>Runs</h2><div class="scroll"><table><tr><th class="n">pair</th><th>side</th><th>run</th><th class="n">requests</th><th>valid</th></tr>
{{range .R.Runs}}<tr><td class="n">{{.Pair}}</td><td>{{.Arm}}</td><td><code>{{.Label}}</code></td><td class="n">{{.Requests}}</td><td>{{if .Valid}}yes{{else}}{{range .Invalid}}{{.}}; {{end}}{{end}}</td></tr>
{{end}}</table></div>
{{if .R.FalseAlarms}}<p>This gate on identical builds: {{.R.FalseAlarms}}.</p>{{end}}
</body></html>
`))
