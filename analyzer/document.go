package analyzer

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"slices"

	"github.com/shadowtape/shadowtape/internal/figure"
)

// Document is analyze's JSON.
type Document struct {
	Schema   int       `json:"schema"`
	Runs     []Summary `json:"runs"`
	Capacity *Capacity `json:"capacity,omitempty"` // where runs of several rates were compared with an SLO
}

// Capacity is what load a service carries within its SLO, from runs of several request rates.
type Capacity struct {
	Attain      float64 `json:"attain"`                    // share of requests that must meet the limits
	RequestRate Null    `json:"request_rate"`              // the highest rate at which they did, as they did at every lower one
	OutputRate  Null    `json:"output_rate"`               // tokens per second at that rate
	PerGPU      Null    `json:"output_rate_per_gpu"`       // the same for one GPU
	Label       string  `json:"label"`                     // of that run
	PerMillion  Null    `json:"per_million_output_tokens"` // at that rate, where a price was given
	NextRate    Null    `json:"next_rate"`                 // the lowest rate at which they did not: the true limit lies between
	NextLabel   string  `json:"next_label"`                // of that run
	Runs        int     `json:"runs"`                      // valid ones that were compared
	Invalid     int     `json:"runs_left_out"`             // invalid ones
}

// CapacityOf finds the highest request rate within the SLO among runs that were summarized with one. A rate only counts where every
// lower one met the limits too, so one lucky run cannot raise it.
func CapacityOf(runs []Summary, attain float64) *Capacity {
	c := &Capacity{Attain: attain}
	var valid []Summary
	for _, s := range runs {
		if s.Valid && s.Aggregates["request_rate"].Value.Valid && s.Aggregates["slo_attainment"].Value.Valid {
			valid = append(valid, s)
		}
	}
	c.Runs, c.Invalid = len(valid), len(runs)-len(valid)
	rate := func(s Summary) float64 { return s.Aggregates["request_rate"].Value.V }
	slices.SortStableFunc(valid, func(a, b Summary) int { return cmp.Compare(rate(a), rate(b)) })
	for _, s := range valid {
		if s.Aggregates["slo_attainment"].Value.V < attain {
			c.NextRate, c.NextLabel = figure.Known(rate(s)), s.Label
			break
		}
		c.RequestRate, c.OutputRate, c.Label = figure.Known(rate(s)), s.Aggregates["output_rate"].Value, s.Label
		if c.PerGPU = (Null{}); c.OutputRate.Valid {
			c.PerGPU = figure.Known(c.OutputRate.V / float64(max(s.Window.GPUs, 1)))
		}
		if s.Cost != nil {
			c.PerMillion = s.Cost.PerMillionOutputTokens
		}
	}
	return c
}

// Text writes the runs' summaries for a terminal and what follows from them together.
func (d Document) Text(w io.Writer) error {
	for i, s := range d.Runs {
		if i > 0 {
			if _, err := fmt.Fprintln(w); err != nil {
				return err
			}
		}
		if err := s.Text(w); err != nil {
			return err
		}
	}
	if err := d.sideBySide(w); err != nil {
		return err
	}
	if c := d.Capacity; c != nil {
		return c.text(w)
	}
	return nil
}

// mostBeside is how many runs fit beside each other in a terminal.
const mostBeside = 4

// sideBySide writes a line for each figure that tells loads apart, with a column for each run.
func (d Document) sideBySide(w io.Writer) error {
	if len(d.Runs) < 2 || len(d.Runs) > mostBeside {
		return nil
	}
	b := bufio.NewWriter(w)
	row := func(name string, of func(*Summary) string) {
		text := fmt.Sprintf("%-24s", name)
		for i := range d.Runs {
			text += fmt.Sprintf(" %12s", figure.Clip(of(&d.Runs[i]), 12))
		}
		fmt.Fprintln(b, figure.Clip(text, figure.Width))
	}
	value := func(name string) func(*Summary) string { return func(s *Summary) string { return s.aggregate(name) } }
	part := func(name string) func(*Summary) string {
		return func(s *Summary) string { return figure.Percent(s.Aggregates[name].Value) }
	}
	each := func(name string) func(*Summary) string {
		return func(s *Summary) string {
			return figure.Cell(figure.Known(s.Aggregates[name].Value.V / s.Aggregates["request_rate"].Value.V))
		}
	}
	fmt.Fprintln(b)
	row("side by side", func(s *Summary) string { return s.Label })
	row("requests/s", value("request_rate"))
	row("input tokens, mean", each("input_rate"))
	row("output tokens, mean", each("output_rate"))
	row("ttft p50, ms", func(s *Summary) string { return figure.Cell(s.Metrics["ttft"].P50) })
	row("ttft p99, ms", func(s *Summary) string { return figure.Cell(s.Metrics["ttft"].P99) })
	row("tpot p99, ms", func(s *Summary) string { return figure.Cell(s.Metrics["tpot"].P99) })
	row("page fill", part("kv_page_fill"))
	row("page sharing", value("kv_sharing"))
	row("LRU cache hits", part("kv_lru_hit_rate"))
	row("peak demand of cache", part("kv_peak_share"))
	row("prefill and decode", part("mix_mixed"))
	row("switches/s", value("mix_switches"))
	row("token beside prefill, ×", value("mix_slowdown"))
	return b.Flush()
}

func (c *Capacity) text(w io.Writer) error {
	b := bufio.NewWriter(w)
	line := func(format string, args ...any) {
		fmt.Fprintln(b, figure.Clip(fmt.Sprintf(format, args...), figure.Width))
	}
	line("")
	switch {
	case c.Runs == 0:
		line("capacity unknown: no valid run")
	case !c.RequestRate.Valid:
		line("capacity below %s requests/s: the limits are missed at the lowest rate", figure.Cell(c.NextRate))
	case !c.NextRate.Valid:
		line("capacity at least %s requests/s (%s tokens/s): no rate missed the limits", figure.Cell(c.RequestRate), figure.Cell(c.OutputRate))
	default:
		line("capacity %s requests/s (%s tokens/s, %s); missed at %s", figure.Cell(c.RequestRate), figure.Cell(c.OutputRate), c.Label, figure.Cell(c.NextRate))
	}
	if c.RequestRate.Valid {
		cost := ""
		if c.PerMillion.Valid {
			cost = "; " + figure.Cell(c.PerMillion) + " per million output tokens"
		}
		line("         %s output tokens/s per GPU within the limits%s", figure.Cell(c.PerGPU), cost)
	}
	return b.Flush()
}

// byTable writes a line for each value of the column that the summary is split by.
func (s Summary) byTable(line func(string, ...any)) {
	if s.By == "" {
		return
	}
	line("%-20s%8s%8s%9s%9s%9s%9s%8s", s.By, "sent", "failed", "ttft p50", "p99", "tpot p50", "e2el p50", "out/s")
	for i, g := range s.Groups {
		if i == 5 && len(s.Groups) > 6 {
			line("and %d more in --json", len(s.Groups)-i)
			return
		}
		name := g.Value
		if name == "" {
			name = "(unknown)"
		}
		line("%-20s%8s%8s%9s%9s%9s%9s%8s", figure.Clip(name, 19), figure.Count(g.Requests.Sent), figure.Count(g.Requests.Failed), figure.Cell(g.Metrics["ttft"].P50), figure.Cell(g.Metrics["ttft"].P99),
			figure.Cell(g.Metrics["tpot"].P50), figure.Cell(g.Metrics["e2el"].P50), figure.Cell(g.Aggregates["output_rate"].Value))
	}
}
