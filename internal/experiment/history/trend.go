package history

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"html/template"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/shadowtape/shadowtape/internal/experiment/verdict"
	"github.com/shadowtape/shadowtape/internal/stats"
)

// chart is one metric of one series as the trend page draws it.
type chart struct {
	Metric, Series, Team, Note string
	Label                      string // of the last run
	Unit                       string
	Alerts                     []Alert
	SVG                        template.HTML
	rank                       float64 // shift over what could be detected
	open                       bool
}

// TrendPage writes the trend of every series and metric as one self-contained HTML page: each launch a point, colored by its host,
// segments as steps, the band that one more night is expected in, the anchor, changes with their commits. The charts that moved most
// against what could have been seen stand first.
func (db *DB) TrendPage(w io.Writer, metrics []verdict.Metric, now time.Time) error {
	alerts := db.Check(metrics)
	var charts []chart
	hosts := []string{}
	for _, s := range db.Series() {
		for _, m := range metrics {
			if m.Kind == verdict.Slow {
				m.Set = s.Slow
			}
			c, ok := s.chart(m)
			if !ok {
				continue
			}
			for _, a := range alerts {
				if a.Series == s.ID && a.Metric == m.Name {
					c.Alerts = append(c.Alerts, a)
					c.open = c.open || a.Open()
				}
			}
			charts = append(charts, c)
		}
		for _, r := range s.Runs {
			if h := r.Provenance["host"]; h != "" && !slices.Contains(hosts, h) {
				hosts = append(hosts, h)
			}
		}
	}
	slices.SortStableFunc(charts, func(a, b chart) int {
		if a.open != b.open {
			if a.open {
				return -1
			}
			return 1
		}
		return cmp.Compare(b.rank, a.rank)
	})
	open := 0
	for _, a := range alerts {
		if a.Open() {
			open++
		}
	}
	legend := make([]map[string]any, len(hosts))
	for i, h := range hosts {
		legend[i] = map[string]any{"Name": h, "Color": template.CSS(hostColor(h))}
	}
	if err := trendPage.Execute(w, map[string]any{"Charts": charts, "Open": open, "Hosts": legend, "At": now.UTC().Format("2006-01-02 15:04 UTC"), "Runs": len(db.Records)}); err != nil {
		return fmt.Errorf("write trend page: %w", err)
	}
	return nil
}

// hostColor is a color that a host keeps over pages.
func hostColor(host string) string {
	h := fnv.New32a()
	h.Write([]byte(host))
	return fmt.Sprintf("hsl(%d 55%% 42%%)", h.Sum32()%360)
}

const (
	chartWidth, chartHeight = 860, 190
	left, right, top, foot  = 64, 12, 10, 26
)

// chart draws one metric; ok is false where there are fewer than two nights.
func (s *Series) chart(m verdict.Metric) (chart, bool) {
	changes, segments, nights := s.Changes(m)
	if len(nights) < 2 {
		return chart{}, false
	}
	value := func(level float64) float64 {
		if m.Kind == verdict.Share || m.Kind == verdict.Count {
			return level
		}
		return math.Exp(level)
	}
	lo, median, hi, banded := s.Past(m, time.Time{}, 0).Bounds()
	ymin, ymax := math.Inf(1), math.Inf(-1)
	see := func(v float64) { ymin, ymax = min(ymin, value(v)), max(ymax, value(v)) }
	for _, n := range nights {
		for _, r := range n.Runs {
			see(r.Levels[m.Name])
		}
	}
	if banded {
		see(lo)
		see(hi)
	}
	if ymax-ymin < 1e-9*math.Abs(ymax) || ymax == ymin {
		pad := max(math.Abs(ymax)*0.01, 1e-6)
		ymin, ymax = ymin-pad, ymax+pad
	}
	pad := 0.06 * (ymax - ymin)
	ymin, ymax = ymin-pad, ymax+pad
	x := func(i float64) float64 {
		return left + (chartWidth-left-right)*(i+0.5)/float64(len(nights))
	}
	y := func(level float64) float64 {
		return top + (chartHeight-top-foot)*(ymax-value(level))/(ymax-ymin)
	}
	b := &strings.Builder{}
	fmt.Fprintf(b, `<svg viewBox="0 0 %d %d" role="img" aria-label="%s over %d nights">`, chartWidth, chartHeight, template.HTMLEscapeString(m.Name), len(nights))
	for i := range 4 {
		v := ymin + (ymax-ymin)*float64(i)/3
		yy := top + (chartHeight-top-foot)*(1-float64(i)/3)
		fmt.Fprintf(b, `<line class="grid" x1="%d" x2="%d" y1="%.1f" y2="%.1f"/><text class="axis" x="%d" y="%.1f" text-anchor="end">%s</text>`, left, chartWidth-right, yy, yy, left-6, yy+4, strings.TrimSuffix(axis(v, m), " "+m.Unit))
	}
	last := segments[len(segments)-1]
	if banded {
		fmt.Fprintf(b, `<rect class="band" x="%.1f" width="%.1f" y="%.1f" height="%.1f"><title>one more night is expected in %s to %s</title></rect>`,
			x(float64(last.From)-0.5), x(float64(last.To)-0.5)-x(float64(last.From)-0.5), y(hi), y(lo)-y(hi), axis(value(lo), m), axis(value(hi), m))
	}
	if len(s.Anchor) > 0 {
		if d := s.Drift(m); d.Nights > 0 {
			fmt.Fprintf(b, `<line class="anchor" x1="%d" x2="%d" y1="%.1f" y2="%.1f"><title>pinned anchor %s</title></line>`, left, chartWidth-right, y(d.Anchor), y(d.Anchor), axis(value(d.Anchor), m))
		}
	}
	for _, g := range segments {
		fmt.Fprintf(b, `<line class="step" x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f"/>`, x(float64(g.From)-0.5), x(float64(g.To)-0.5), y(g.Level), y(g.Level))
	}
	for _, c := range changes {
		class := "better"
		if c.Worse {
			class = "worse"
		}
		if c.Accepted {
			class = "accepted"
		}
		at := x(float64(c.At) - 0.5)
		fmt.Fprintf(b, `<line class="change %s" x1="%.1f" x2="%.1f" y1="%d" y2="%d"/><text class="flag %s" x="%.1f" y="%d">%s</text>`,
			class, at, at, top, chartHeight-foot, class, at+4, top+10, template.HTMLEscapeString(short(c.FirstBad)))
	}
	for i, n := range nights {
		for _, r := range n.Runs {
			v := r.Levels[m.Name]
			fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"><title>%s %s %s: %s</title></circle>`, x(float64(i)), y(v), hostColor(r.Provenance["host"]),
				n.Day, template.HTMLEscapeString(r.Label), template.HTMLEscapeString(short(r.Commit)), axis(value(v), m))
		}
	}
	each := max(1, len(nights)/8)
	for i := 0; i < len(nights); i += each {
		fmt.Fprintf(b, `<text class="axis" x="%.1f" y="%d" text-anchor="middle">%s</text>`, x(float64(i)), chartHeight-8, nights[i].Day[5:])
	}
	b.WriteString(`</svg>`)
	c := chart{Metric: m.Name, Series: s.ID, Team: s.Team, Unit: m.Unit, SVG: template.HTML(b.String()), Label: nights[len(nights)-1].Runs[0].Label}
	sd := stats.StepSD(levelsOf(nights))
	c.rank = math.Abs(last.Level-segments[0].Level) / max(sd, 1e-9)
	if banded && sd > 0 {
		c.Note = fmt.Sprintf("now %s; one more night is expected in %s to %s; night to night %.1f %%", axis(value(median), m), axis(value(lo), m), axis(value(hi), m), 100*sd)
		if m.Kind == verdict.Share {
			c.Note = fmt.Sprintf("now %s; one more night is expected in %s to %s", axis(value(median), m), axis(value(lo), m), axis(value(hi), m))
		}
	} else {
		c.Note = fmt.Sprintf("%d nights: too few to say what one more should be", len(nights))
	}
	return c, true
}

func levelsOf(nights []Night) []float64 {
	out := make([]float64, len(nights))
	for i, n := range nights {
		out[i] = n.Level
	}
	return out
}

func short(commit string) string {
	if len(commit) > 9 {
		return commit[:9]
	}
	return commit
}

// axis is a value with its unit, short.
func axis(v float64, m verdict.Metric) string {
	switch {
	case m.Unit == "share":
		return fmt.Sprintf("%.2f %%", 100*v)
	case math.Abs(v) >= 100:
		return fmt.Sprintf("%.0f %s", v, m.Unit)
	case math.Abs(v) >= 10:
		return fmt.Sprintf("%.1f %s", v, m.Unit)
	}
	return fmt.Sprintf("%.2f %s", v, m.Unit)
}

var trendPage = template.Must(template.New("trend").Parse(`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><title>Shadowtape: trend</title>
<style>
:root{color-scheme:light dark;--fg:#1c2024;--bg:#fff;--soft:#6b7280;--line:#e5e7eb;--card:#f8f9fa;--band:#3b82f622;--bad:#c62828;--good:#2e7d32}
@media (prefers-color-scheme:dark){:root{--fg:#e6e6e6;--bg:#15181b;--soft:#9aa3ad;--line:#2c3136;--card:#1c2024;--band:#3b82f633;--bad:#ef7070;--good:#7cc482}}
body{font:15px/1.45 system-ui,sans-serif;color:var(--fg);background:var(--bg);max-width:920px;margin:2rem auto;padding:0 1rem}
h1{font-size:1.4rem;margin:0 0 .2rem}h2{font-size:1.05rem;margin:0}p{margin:.2rem 0;color:var(--soft)}
section{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:.8rem 1rem;margin:1rem 0}
section.open{border-color:var(--bad)}svg{width:100%;height:auto;display:block;margin-top:.4rem}
ul{margin:.3rem 0;padding-left:1.1rem}li.worse{color:var(--bad)}li.better,li.accepted{color:var(--good)}
.grid{stroke:var(--line)}.axis{fill:var(--soft);font-size:11px}.band{fill:var(--band)}.anchor{stroke:#b7791f;stroke-dasharray:6 4}
.step{stroke:var(--fg);stroke-width:2;opacity:.7}.change{stroke-width:1.5;stroke-dasharray:3 3}.change.worse{stroke:var(--bad)}.change.better,.change.accepted{stroke:var(--good)}
.flag{font-size:11px}.flag.worse{fill:var(--bad)}.flag.better,.flag.accepted{fill:var(--good)}.key{display:inline-block;width:.7em;height:.7em;border-radius:50%;margin:0 .3em 0 1em}
</style></head><body>
<h1>Trend</h1>
<p>{{.Open}} open change{{if ne .Open 1}}s{{end}} for the worse; {{len .Charts}} charts from {{.Runs}} records; {{.At}}. A point is a launch. Bold steps are levels, the shaded band is where one more night is expected, the dashed line the pinned anchor.</p>
<p>{{range .Hosts}}<span class="key" style="background:{{.Color}}"></span>{{.Name}}{{end}}</p>
{{range .Charts}}<section{{if .Alerts}} class="{{range .Alerts}}{{if .Open}}open{{end}}{{end}}"{{end}}>
<h2>{{.Metric}} <small>{{.Unit}}</small></h2><p>{{.Label}}{{if .Team}} · {{.Team}}{{end}} · series {{.Series}} · {{.Note}}</p>
{{if .Alerts}}<ul>{{range .Alerts}}<li class="{{if .Accepted}}accepted{{else if .Worse}}worse{{else}}better{{end}}">{{.Text}}</li>{{end}}</ul>{{end}}
{{.SVG}}</section>
{{end}}</body></html>
`))
