// Package report writes summaries and comparisons as one HTML file that opens offline, asks nothing of any other host, and says its
// verdict on the first screen.
package report

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"io"
	"strings"

	"github.com/shadowtape/shadowtape/analyzer"
)

//go:embed page.html
var page string

//go:embed report.css
var css string

//go:embed report.js
var js string

//go:embed uplot/uPlot.iife.min.js
var uplotJS string

//go:embed uplot/uPlot.min.css
var uplotCSS string

// Run is one run of a report.
type Run struct {
	Summary analyzer.Summary `json:"summary"`
	Charts  *analyzer.Charts `json:"charts"`
}

// Report is everything that a page shows. Diff, Capacity and Title may be empty.
type Report struct {
	Title     string             `json:"title"`
	Runs      []Run              `json:"runs"`
	Diff      *analyzer.Diff     `json:"diff"`
	Capacity  *analyzer.Capacity `json:"capacity"`
	Synthetic string             `json:"synthetic"` // a command line of the nearest synthetic load
	Metrics   []Definition       `json:"metrics"`
	Version   string             `json:"version"`
}

// Definition explains one metric on the page.
type Definition struct {
	Name       string `json:"name"`
	Unit       string `json:"unit"`
	Definition string `json:"definition"`
}

// Read summarizes runs and reads their charts.
func Read(runs []*analyzer.Run, o analyzer.Options) (Report, error) {
	if len(runs) == 0 {
		return Report{}, errors.New("report: no run")
	}
	var r Report
	for _, run := range runs {
		s, err := analyzer.Summarize(run, o)
		if err != nil {
			return r, err
		}
		c := s.Charts
		if c == nil {
			if c, err = analyzer.Chart(run, &s); err != nil {
				return r, err
			}
		}
		r.Runs = append(r.Runs, Run{s, c})
	}
	r.Synthetic = synthetic(&r.Runs[0].Summary)
	for _, m := range analyzer.Metrics() {
		r.Metrics = append(r.Metrics, Definition{m.Name, m.Unit, m.Definition})
	}
	for _, a := range analyzer.Aggregates() {
		r.Metrics = append(r.Metrics, Definition{a.Name, a.Unit, a.Definition})
	}
	return r, nil
}

// synthetic is the vllm bench command whose load has the same means: what a fixed-length benchmark would have been run with.
func synthetic(s *analyzer.Summary) string {
	w := &s.Window
	if w.InputKnown == 0 || w.OutputKnown == 0 || w.Seconds <= 0 {
		return ""
	}
	rate := s.Aggregates["request_rate"].Value.V
	return fmt.Sprintf("vllm bench serve --dataset-name random --random-input-len %d --random-output-len %d --ignore-eos --request-rate %.3g --num-prompts %d",
		w.InputTokens/w.InputKnown, w.OutputTokens/w.OutputKnown, rate, w.Requests.Sent)
}

// HTML writes the page. Everything that a trace brought is data in it, never markup.
func (r Report) HTML(w io.Writer) error {
	data, err := json.Marshal(r) // escapes <, > and &
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	t, err := template.New("page").Parse(page)
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	style := uplotCSS + css
	script := uplotJS + "\n" + js
	title := r.Title
	if title == "" {
		var labels []string
		for _, run := range r.Runs {
			labels = append(labels, run.Summary.Label)
		}
		title = strings.Join(labels, ", ")
	}
	err = t.Execute(w, map[string]any{
		"Title": title, "Data": template.JS(data), "Style": template.CSS(style), "Script": template.JS(script), //nolint:gosec // ours, and JSON with its angle brackets escaped
		"Policy": "default-src 'none'; img-src data:; style-src " + digest(style) + "; script-src " + digest(script) + "; base-uri 'none'; form-action 'none'",
	})
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

// digest is a Content-Security-Policy source that allows exactly this text.
func digest(s string) string {
	sum := sha256.Sum256([]byte(s))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}
