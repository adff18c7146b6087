package sweep

import (
	"encoding/csv"
	"fmt"
	"html/template"
	"io"
	"math"
	"slices"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/shadowtape/shadowtape/formats"
)

// Rows are the table in long form, for Parquet.
func (t *Table) Rows() []formats.ResultRow {
	var out []formats.ResultRow
	for _, list := range [][]Result{t.Results, t.Medians} {
		for _, r := range list {
			row := formats.ResultRow{Cell: r.Cell, Params: r.Values, Repeat: int32(r.Repeat), Valid: r.Valid, Error: r.Error}
			if len(r.Figures) == 0 {
				out = append(out, row)
			}
			for _, f := range figures {
				if v, ok := r.Figures[f]; ok {
					row.Figure, row.Value = f, &v
					out = append(out, row)
				}
			}
		}
	}
	return out
}

// CSV writes one line for each run and each median, the figures as columns.
func (t *Table) CSV(w io.Writer) error {
	c := csv.NewWriter(w)
	c.Write(slices.Concat(t.Axes, []string{"repeat", "valid", "error"}, figures))
	for _, list := range [][]Result{t.Results, t.Medians} {
		for _, r := range list {
			var line []string
			for _, a := range t.Axes {
				line = append(line, r.Values[a])
			}
			line = append(line, strconv.Itoa(r.Repeat), strconv.FormatBool(r.Valid), r.Error)
			for _, f := range figures {
				s := ""
				if v, ok := r.Figures[f]; ok {
					s = strconv.FormatFloat(v, 'g', 8, 64)
				}
				line = append(line, s)
			}
			c.Write(line)
		}
	}
	c.Flush()
	return c.Error()
}

// Text writes the medians as a table of 80 columns, and a search's answers.
func (t *Table) Text(w io.Writer) error {
	b := &strings.Builder{}
	for _, a := range t.Answers {
		fmt.Fprintf(b, "highest rate within %s: %s (%s, %d runs)\n", t.SLO, a, describe(a.Values, t.Axes), a.Runs)
	}
	axes := t.Axes
	if t.widest(axes) > mostName { // what all cells have does not tell them apart
		axes = t.varying()
	}
	width := min(max(t.widest(axes), 4), mostName)
	fmt.Fprintf(b, "%-*s %9s %9s %9s %11s %7s\n", width, "cell", "ttft p50", "ttft p99", "tpot p50", "out tok/s", "failed")
	for _, r := range t.Medians {
		name := describe(r.Values, axes)
		if len(name) > width {
			fmt.Fprintln(b, name)
			name = ""
		}
		if r.Error != "" {
			fmt.Fprintf(b, "%-*s failed: %s\n", width, name, strings.ReplaceAll(r.Error, "\n", "; "))
			continue
		}
		mark := ""
		if !r.Valid {
			mark = " invalid"
		}
		fmt.Fprintf(b, "%-*s %9s %9s %9s %11s %7s%s\n", width, name, value(r, "ttft_p50"), value(r, "ttft_p99"), value(r, "tpot_p50"), value(r, "output_rate"), value(r, "failed"), mark)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// mostName is what fits beside the figures.
const mostName = 36

func (t *Table) widest(axes []string) (n int) {
	for _, r := range t.Medians {
		n = max(n, len(describe(r.Values, axes)))
	}
	return n
}

// varying are the axes of which there is more than one value.
func (t *Table) varying() (axes []string) {
	for _, a := range t.Axes {
		if slices.ContainsFunc(t.Medians, func(r Result) bool { return r.Values[a] != t.Medians[0].Values[a] }) {
			axes = append(axes, a)
		}
	}
	return axes
}

func describe(values map[string]string, axes []string) string {
	var parts []string
	for _, a := range axes {
		if v, ok := values[a]; ok {
			parts = append(parts, a+" "+v)
		}
	}
	return strings.Join(parts, ", ")
}

// value is a figure for people; - where it is not defined.
func value(r Result, figure string) string {
	v, ok := r.Figures[figure]
	if !ok {
		return "-"
	}
	return show(figure, v)
}

func show(figure string, v float64) string {
	switch {
	case strings.HasPrefix(figure, "kv_") && figure != "kv_preemptions", strings.HasSuffix(figure, "_attainment"), figure == "error_rate":
		return fmt.Sprintf("%.1f %%", 100*v)
	case strings.HasPrefix(figure, "ttft"), strings.HasPrefix(figure, "tpot"), strings.HasPrefix(figure, "itl"), strings.HasPrefix(figure, "e2el"):
		if v >= 10000 {
			return fmt.Sprintf("%.1f s", v/1000)
		}
		return fmt.Sprintf("%.4g ms", v)
	case v == math.Trunc(v) && math.Abs(v) < 1e6:
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.4g", v)
}

// heats are the maps of one figure.
type heats struct {
	Title string
	Maps  []heat
}

// heat is one map of the page.
type heat struct {
	Title, Rows, Columns string
	Head                 []string
	Lines                []heatLine
}

type heatLine struct {
	Name  string
	Cells []heatCell
}

type heatCell struct {
	Text, Title string
	Color       template.CSS
}

// shown are the figures that get a map, with whether more is better.
var shown = []struct {
	figure string
	more   bool
}{{"ttft_p50", false}, {"ttft_p99", false}, {"tpot_p50", false}, {"output_rate", true}, {"slo_attainment", true}}

// label is a figure's name for people; the others' are the columns' names.
func label(figure string) string {
	switch figure {
	case "request_rate":
		return "requests/s"
	case "output_rate":
		return "output tokens/s"
	case "slo_attainment":
		return "within SLO"
	case "error_rate":
		return "errors"
	case "kv_usage_peak":
		return "KV cache peak"
	}
	if name, q, ok := strings.Cut(figure, "_"); ok && (name == "ttft" || name == "tpot") {
		return strings.ToUpper(name) + " " + q
	}
	return figure
}

// Page writes the sweep as one self-contained HTML page: heat maps over the two axes that vary most, throughput against latency with its
// Pareto front, and the table.
func (t *Table) Page(w io.Writer, title string) error {
	rows, columns, rest := t.plane()
	var maps []heats
	if rows != "" && columns != "" {
		for _, f := range shown {
			of := heats{Title: label(f.figure)}
			for _, group := range t.groups(rest) {
				if h, ok := t.heat(f.figure, f.more, rows, columns, group); ok {
					of.Maps = append(of.Maps, h)
				}
			}
			if len(of.Maps) > 0 {
				maps = append(maps, of)
			}
		}
	}
	head := []string{"ttft_p50", "ttft_p99", "tpot_p50", "tpot_p99", "request_rate", "output_rate", "slo_attainment", "error_rate", "kv_usage_peak"}
	type line struct {
		Name          string
		Values, Cells []string
		Error, State  string
	}
	var labels []string
	for _, f := range head {
		labels = append(labels, label(f))
	}
	var lines []line
	failed, invalid := 0, 0
	for _, r := range t.Medians {
		l := line{Name: describe(r.Values, t.Axes), Error: r.Error}
		if r.Error == "" && !r.Valid {
			invalid++
			l.State = strings.Join(r.Invalid, "; ")
		}
		for _, a := range t.Axes {
			l.Values = append(l.Values, r.Values[a])
		}
		for _, f := range head {
			l.Cells = append(l.Cells, value(r, f))
		}
		if r.Error != "" {
			failed++
		}
		lines = append(lines, l)
	}
	var answers []string
	for _, a := range t.Answers {
		answers = append(answers, fmt.Sprintf("highest rate within %s: %s (%s)", t.SLO, a, describe(a.Values, t.Axes)))
	}
	err := page.Execute(w, map[string]any{
		"Title": title, "Maps": maps, "Scatter": t.scatter(), "Axes": t.Axes, "Head": labels, "Lines": lines, "Span": len(head), "Answers": answers,
		"Cells": len(t.Medians), "Runs": len(t.Results), "Failed": failed, "Invalid": invalid, "Valid": len(lines) - failed - invalid, "SLO": t.SLO, "Named": strings.Join(t.varying(), " · "),
	})
	if err != nil {
		return fmt.Errorf("write the sweep's page: %w", err)
	}
	return nil
}

// plane chooses the axes of the maps: the load's own, and the one with the most values beside it; rest are the others that vary.
func (t *Table) plane() (rows, columns string, rest []string) {
	count := map[string]int{}
	for _, a := range t.Axes {
		seen := map[string]bool{}
		for _, r := range t.Medians {
			seen[r.Values[a]] = true
		}
		count[a] = len(seen)
	}
	varying := slices.DeleteFunc(slices.Clone(t.Axes), func(a string) bool { return count[a] < 2 })
	if len(varying) == 0 {
		return "", "", nil
	}
	columns = varying[len(varying)-1]
	for _, a := range []string{"rate", "users"} {
		if slices.Contains(varying, a) {
			columns = a
		}
	}
	for _, a := range varying {
		if a != columns && (rows == "" || count[a] > count[rows]) {
			rows = a
		}
	}
	for _, a := range varying {
		if a != rows && a != columns {
			rest = append(rest, a)
		}
	}
	return rows, columns, rest
}

// groups are the combinations of the axes that a map does not show.
func (t *Table) groups(rest []string) []map[string]string {
	var out []map[string]string
	seen := map[string]bool{}
	for _, r := range t.Medians {
		g := map[string]string{}
		for _, a := range rest {
			g[a] = r.Values[a]
		}
		if k := describe(g, rest); !seen[k] {
			seen[k] = true
			out = append(out, g)
		}
	}
	return out
}

// values lists an axis' values, numbers by size.
func (t *Table) values(axis string) []string {
	var out []string
	for _, r := range t.Medians {
		if v := r.Values[axis]; !slices.Contains(out, v) {
			out = append(out, v)
		}
	}
	number := func(s string) (float64, bool) { v, err := strconv.ParseFloat(s, 64); return v, err == nil }
	sort.SliceStable(out, func(i, j int) bool {
		a, ok := number(out[i])
		b, ok2 := number(out[j])
		return ok && ok2 && a < b
	})
	return out
}

func (t *Table) heat(figure string, more bool, rows, columns string, group map[string]string) (heat, bool) {
	lo, hi := math.Inf(1), math.Inf(-1)
	for _, r := range t.Medians {
		if v, ok := r.Figures[figure]; ok {
			lo, hi = min(lo, v), max(hi, v)
		}
	}
	if math.IsInf(lo, 0) {
		return heat{}, false
	}
	if figure == "slo_attainment" { // good and bad have a meaning of their own
		lo, hi = 0, 1
	}
	h := heat{Title: describe(group, t.Axes), Rows: rows, Columns: columns, Head: t.values(columns)}
	found := false
	for _, y := range t.values(rows) {
		l := heatLine{Name: y}
		for _, x := range h.Head {
			c := heatCell{Text: "", Color: "transparent"}
			for _, r := range t.Medians {
				if r.Values[rows] != y || r.Values[columns] != x || !matches(Cell{Values: r.Values}, group) && len(group) > 0 {
					continue
				}
				found = true
				v, ok := r.Figures[figure]
				switch {
				case r.Error != "":
					c.Text, c.Title = "failed", r.Error
				case ok:
					c.Text, c.Title = show(figure, v), describe(r.Values, t.Axes)
					if !r.Valid {
						c.Text, c.Title = c.Text+" †", c.Title+": invalid: "+strings.Join(r.Invalid, "; ")
					}
					if hi <= lo {
						break // all the same: nothing to color
					}
					share := 0.0
					if lo > 0 {
						share = math.Log(v/lo) / math.Log(hi/lo)
					} else {
						share = (v - lo) / (hi - lo)
					}
					if !more {
						share = 1 - share
					}
					c.Color = template.CSS(fmt.Sprintf("hsl(%.0f 60%% 50%% / .38)", 8+122*min(max(share, 0), 1)))
				default:
					c.Text = "-"
				}
			}
			l.Cells = append(l.Cells, c)
		}
		h.Lines = append(h.Lines, l)
	}
	return h, found
}

// scatter draws throughput against TTFT, and the Pareto front: what no other cell beats in both.
func (t *Table) scatter() template.HTML {
	type point struct {
		x, y         float64
		name, short  string
		valid, front bool
	}
	axes := t.varying()
	var points []point
	for _, r := range t.Medians {
		x, ok := r.Figures["output_rate"]
		y, ok2 := r.Figures["ttft_p50"]
		if ok && ok2 && x > 0 && y > 0 {
			var short []string
			for _, a := range axes {
				if v := r.Values[a]; v != "" {
					short = append(short, v)
				}
			}
			points = append(points, point{x, y, describe(r.Values, t.Axes), strings.Join(short, " · "), r.Valid, false})
		}
	}
	if len(points) < 2 {
		return ""
	}
	for i := range points {
		points[i].front = points[i].valid && !slices.ContainsFunc(points, func(p point) bool {
			return p.valid && p.x >= points[i].x && p.y <= points[i].y && (p.x > points[i].x || p.y < points[i].y)
		})
	}
	slices.SortFunc(points, func(a, b point) int {
		switch {
		case a.x < b.x:
			return -1
		case a.x > b.x:
			return 1
		}
		return 0
	})
	const width, height, left, bottom, top, right = 860, 320, 70, 40, 20, 20
	x0, x1, y0, y1 := math.Inf(1), 0.0, math.Inf(1), 0.0
	for _, p := range points {
		x0, x1, y0, y1 = min(x0, p.x), max(x1, p.x), min(y0, p.y), max(y1, p.y)
	}
	x1, y0, y1 = x1*1.08, y0/1.15, y1*1.15
	px := func(v float64) float64 { return left + (width-left-right)*v/x1 }
	py := func(v float64) float64 {
		return top + (height-top-bottom)*(1-math.Log(v/y0)/math.Log(y1/y0))
	}
	b := &strings.Builder{}
	fmt.Fprintf(b, `<svg viewBox="0 0 %d %d" role="img" aria-label="output tokens per second against median TTFT">`, width, height)
	step := decade(x1 / 6)
	for v := 0.0; v <= x1; v += step {
		fmt.Fprintf(b, `<line class="grid" x1="%.1f" x2="%.1f" y1="%d" y2="%d"/><text class="axis" x="%.1f" y="%d" text-anchor="middle">%.4g</text>`, px(v), px(v), top, height-bottom, px(v), height-bottom+16, v)
	}
	for u := decade(y0); u <= y1; u = decade(u * 1.01) {
		fmt.Fprintf(b, `<line class="grid" x1="%d" x2="%d" y1="%.1f" y2="%.1f"/><text class="axis" x="%d" y="%.1f" text-anchor="end">%s</text>`, left, width-right, py(u), py(u), left-6, py(u)+4, latency(u))
	}
	path := ""
	for _, p := range points {
		if p.front {
			path += fmt.Sprintf("%.1f,%.1f ", px(p.x), py(p.y))
		}
	}
	fmt.Fprintf(b, `<polyline class="front" points="%s"/>`, strings.TrimSpace(path))
	for _, p := range points {
		class := "dot"
		switch {
		case !p.valid:
			class = "dot invalid"
		case p.front:
			class = "dot best"
		}
		fmt.Fprintf(b, `<circle class="%s" cx="%.1f" cy="%.1f" r="5"><title>%s: %.4g tokens/s, %.4g ms</title></circle>`, class, px(p.x), py(p.y), template.HTMLEscapeString(p.name), p.x, p.y)
	}
	beside := math.Inf(-1)
	for _, p := range points { // by x: a name that would run into the one before is left to the title
		wide := float64(6*utf8.RuneCountInString(p.short)) / 2
		x := min(px(p.x), width-right-wide)
		if !p.front || len(p.short) > 40 || x-wide < beside {
			continue
		}
		beside = x + wide + 6
		fmt.Fprintf(b, `<text class="name" x="%.1f" y="%.1f" text-anchor="middle">%s</text>`, x, py(p.y)-9, template.HTMLEscapeString(p.short))
	}
	fmt.Fprintf(b, `<text class="axis" x="%d" y="%d" text-anchor="end">output tokens/s →</text><text class="axis" x="%d" y="%d">↑ median TTFT (logarithmic)</text></svg>`, width-right, height-4, left, top-4)
	return template.HTML(b.String())
}

// decade is the smallest of …, 1, 2, 5, 10, 20, … that is not below v, which is positive.
func decade(v float64) float64 {
	base := math.Pow(10, math.Floor(math.Log10(v)))
	for _, m := range []float64{1, 2, 5, 10} {
		if m*base >= v*(1-1e-9) {
			return m * base
		}
	}
	return 20 * base
}

// latency is a time of the chart's axis.
func latency(ms float64) string {
	switch {
	case ms >= 1000:
		return fmt.Sprintf("%.1f s", ms/1000)
	case ms >= 10:
		return fmt.Sprintf("%.0f ms", ms)
	}
	return fmt.Sprintf("%.2g ms", ms)
}

var page = template.Must(template.New("sweep").Parse(`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><title>Shadowtape: sweep</title>
<style>
:root{color-scheme:light dark;--fg:#1c2024;--bg:#fff;--soft:#6b7280;--line:#e5e7eb;--card:#f8f9fa;--bad:#c62828;--best:#1d6fd1}
@media (prefers-color-scheme:dark){:root{--fg:#e6e6e6;--bg:#15181b;--soft:#9aa3ad;--line:#2c3136;--card:#1c2024;--bad:#ef7070;--best:#6fb0f7}}
body{font:15px/1.45 system-ui,sans-serif;color:var(--fg);background:var(--bg);max-width:1160px;margin:2rem auto;padding:0 1rem}
h1{font-size:1.4rem;margin:0}h2{font-size:1.05rem;margin:1.6rem 0 .4rem}h3{font-size:.95rem;margin:1rem 0 .2rem}ul{margin:.4rem 0;padding-left:1.2rem;color:var(--soft);font-size:13px}summary{color:var(--soft);margin-top:.6rem;cursor:pointer}p{color:var(--soft);margin:.2rem 0}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:13px}th,td{border:1px solid var(--line);padding:.3rem .55rem;text-align:right;white-space:nowrap}
th{background:var(--card);font-weight:600}.wide{overflow-x:auto}.error{color:var(--bad);text-align:left}.maps{display:flex;flex-wrap:wrap;gap:1.2rem}
.maps td{min-width:5.2em}caption{text-align:left;font-weight:600;padding:.2rem 0}svg{width:100%;min-width:620px;height:auto}.grid{stroke:var(--line)}.axis{fill:var(--soft);font-size:11px}
.dot{fill:var(--soft)}.dot.best{fill:var(--best)}.dot.invalid{fill:none;stroke:var(--soft);stroke-width:1.5}.name{fill:var(--fg);font-size:11px;stroke:var(--bg);stroke-width:3px;paint-order:stroke}.front{fill:none;stroke:var(--best);stroke-width:1.5}
@media (max-width:480px){th,td{padding:.25rem .35rem}.maps td{min-width:4em}}
</style></head><body>
<h1>{{.Title}}</h1>
<p>{{.Cells}} cells, {{.Runs}} runs{{if .Failed}}, {{.Failed}} cells failed{{end}}{{if .Invalid}}, {{.Invalid}} cells invalid (†){{end}}{{if .SLO}}; SLO {{.SLO}}{{end}}. A figure is the median over the valid repeats of its cell{{if .Invalid}}, of a cell without one over all{{end}}.</p>
{{range .Answers}}<p><b>{{.}}</b></p>{{end}}
{{if .Maps}}<h2>Maps</h2>{{range .Maps}}<h3>{{.Title}}</h3><div class="maps">{{range .Maps}}<div class="wide"><table>{{if .Title}}<caption>{{.Title}}</caption>{{end}}<tr><th>{{.Rows}} \ {{.Columns}}</th>{{range .Head}}<th>{{.}}</th>{{end}}</tr>
{{range .Lines}}<tr><th>{{.Name}}</th>{{range .Cells}}<td style="background:{{.Color}}" title="{{.Title}}">{{.Text}}</td>{{end}}</tr>{{end}}</table></div>{{end}}</div>{{end}}{{end}}
{{if .Scatter}}<h2>Throughput against latency</h2><p>{{if .Valid}}Blue: no other valid cell is better in both{{if .Named}}; above it {{.Named}}{{end}}. {{end}}{{if .Invalid}}Hollow: not valid.{{end}}</p><div class="wide">{{.Scatter}}</div>{{end}}
<h2>All cells</h2><div class="wide"><table><tr>{{range .Axes}}<th>{{.}}</th>{{end}}{{range .Head}}<th>{{.}}</th>{{end}}</tr>
{{$span := .Span}}{{range .Lines}}<tr{{if .State}} title="invalid: {{.State}}"{{end}}>{{$state := .State}}{{range $i, $v := .Values}}<td>{{$v}}{{if and $state (eq $i 0)}} †{{end}}</td>{{end}}{{if .Error}}<td class="error" colspan="{{$span}}">{{.Error}}</td>{{else}}{{range .Cells}}<td>{{.}}</td>{{end}}{{end}}</tr>
{{end}}</table></div>
{{if .Invalid}}<details{{if le .Invalid 6}} open{{end}}><summary>† {{.Invalid}} cells are not valid: no run of them can be trusted</summary><ul>{{range .Lines}}{{if .State}}<li>{{.Name}}: {{.State}}</li>
{{end}}{{end}}</ul></details>{{end}}
</body></html>
`))
