package analyzer

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/figure"
	"github.com/shadowtape/shadowtape/internal/promtext"
	"github.com/shadowtape/shadowtape/internal/stats"
)

// What is exported request by request gives the summary's figures, in CSV and in JSON lines.
func TestRowsGiveTheSummary(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 9))
	var xs []*formats.Exchange
	for id := range int64(900) {
		x := randomExchange(r, id+1)
		x.N, x.EventChoice, x.ChoiceOutputTokens = formats.Null[int32]{}, nil, nil // a line holds one value a metric
		x.RequestModel = "model, \"quoted\"\n"
		xs = append(xs, x)
	}
	run := RunOf("r", nil, xs, nil)
	s, err := Summarize(run, Options{})
	if err != nil {
		t.Fatal(err)
	}
	var c, j bytes.Buffer
	if err := CSV(&c, run); err != nil {
		t.Fatal(err)
	}
	if err := JSONL(&j, run); err != nil {
		t.Fatal(err)
	}
	rows, err := csv.NewReader(&c).ReadAll()
	if err != nil || len(rows) != len(xs)+1 {
		t.Fatalf("%d lines of CSV: %v", len(rows), err)
	}
	lines := strings.Split(strings.TrimSpace(j.String()), "\n")
	if len(lines) != len(xs) {
		t.Fatalf("%d JSON lines", len(lines))
	}
	for _, m := range Metrics() {
		if !m.PerRequest {
			continue
		}
		var fromCSV, fromJSON []float64
		for k, name := range rows[0] {
			if name != m.Name+"_ms" {
				continue
			}
			for i, row := range rows[1:] {
				var o map[string]any
				if err := json.Unmarshal([]byte(lines[i]), &o); err != nil {
					t.Fatal(err)
				}
				if o["phase"] == "warmup" {
					continue
				}
				if row[k] != "" {
					v, err := strconv.ParseFloat(row[k], 64)
					if err != nil {
						t.Fatal(err)
					}
					fromCSV = append(fromCSV, v)
				}
				if v, ok := o[name].(float64); ok {
					fromJSON = append(fromJSON, v)
				}
			}
		}
		for _, values := range [][]float64{fromCSV, fromJSON} {
			var q stats.Sample
			for _, v := range values {
				q.Add(v, 1)
			}
			f := s.Metrics[m.Name]
			if q.N() != f.N || f.N > 0 && figure.Known(q.Quantile(0.5)) != f.P50 {
				t.Errorf("%s: %d lines with median %v, the summary has %d with %v", m.Name, q.N(), q.Quantile(0.5), f.N, f.P50)
			}
		}
	}
}

func TestOpenMetricsAndMarkdown(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 9))
	var xs []*formats.Exchange
	for id := range int64(900) {
		xs = append(xs, randomExchange(r, id+1))
	}
	s, err := Summarize(RunOf("nightly \"7\" <b>|`x`", nil, xs, nil), Options{})
	if err != nil {
		t.Fatal(err)
	}
	d := Document{Schema: 1, Runs: []Summary{s}}
	var om, md bytes.Buffer
	if err := d.OpenMetrics(&om); err != nil {
		t.Fatal(err)
	}
	if err := d.Markdown(&md); err != nil {
		t.Fatal(err)
	}
	page := promtext.Parse(om.Bytes())
	if page.Bad != 0 || !page.EOF {
		t.Errorf("%d bad lines, end %v", page.Bad, page.EOF)
	}
	found := false
	for _, sample := range page.Samples {
		q, _ := promtext.Label(sample.Labels, "quantile")
		run, _ := promtext.Label(sample.Labels, "run")
		if sample.Name == "shadowtape_ttft_seconds" && q == "0.9" {
			found = true
			if sample.Value != s.Metrics["ttft"].P90.V/1e3 || run != s.Label {
				t.Errorf("%+v, want %v of %q", sample, s.Metrics["ttft"].P90.V/1e3, s.Label)
			}
		}
	}
	if !found {
		t.Error("no p90 of ttft")
	}
	if strings.Contains(md.String(), "<b>") || !strings.Contains(md.String(), "| ttft |") {
		t.Errorf("markdown:\n%s", md.String())
	}
}
