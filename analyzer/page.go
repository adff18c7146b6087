package analyzer

import (
	"fmt"
	"strings"

	"github.com/shadowtape/shadowtape/internal/stats"
)

// MetricsPage is docs/METRICS.md, made from the tables that compute the figures.
func MetricsPage() string {
	var b strings.Builder
	w := func(format string, args ...any) { fmt.Fprintf(&b, format, args...) }
	w("# Metrics\n\nThis page is generated from the tables in package `analyzer` (`go test ./analyzer -update`); a test keeps them equal.\n\n")
	w("The start of a latency is the **scheduled** time, so a request that could not be sent in time waits in the figure too (no coordinated\n")
	w("omission). `…_from_send` is the same from the first request byte written. In a recording both starts are the first request byte.\n")
	w("Warm-up is left out. Failed requests have no latency; they are counted. Undefined is null in JSON and a dash in text, never 0.\n\n")
	w("## Of one exchange\n\n| metric | unit | better | definition | notes |\n|---|---|---|---|---|\n")
	for _, m := range metrics {
		notes := m.Notes
		if m.PerRequest {
			notes += " Can carry an SLO."
		}
		w("| `%s` | %s | %s | %s | %s |\n", m.Name, m.Unit, orDash(m.Better), m.Definition, strings.TrimSpace(notes))
	}
	w("\n## Of a whole run\n\n| figure | unit | better | definition |\n|---|---|---|---|\n")
	for _, a := range aggregates {
		w("| `%s` | %s | %s | %s |\n", a.Name, a.Unit, orDash(a.Better), a.Definition)
	}
	w("\n## Percentiles\n\nLinear interpolation at (n−1)p. A percentile is shown only from the number of samples on at which it can be known at 99 %% confidence\n")
	w("with one sample above it allowed: ")
	for i, p := range percentiles[1:] {
		if i > 0 {
			w(", ")
		}
		w("%s %d", p.name, p.floor)
	}
	w(". `std` is the population standard deviation.\n\n")
	w("Up to %d samples of a metric are kept and its percentiles are exact. Beyond, a histogram over the leading bits of the values takes over;\n", stats.DefaultExact)
	w("its percentiles are within %.3f %% of the exact ones, and `error_bound` says so. Mean, deviation, count and maximum stay exact.\n", stats.SketchError*100)
	w(`
## Where a figure comes from

` + "`source`" + ` is ` + "`measured`" + ` for times. Where a figure depends on a count of tokens it names the counts' sources: ` + "`usage`" + ` (the server said so),
` + "`tokenizer`, `estimated`, `trace`" + ` (an imported file said so), ` + "`drawn`" + ` (a workload model did).

## The same word, another meaning

| ours | vLLM bench | GuideLLM | AIPerf | inference-perf |
|---|---|---|---|---|
| ttft (from schedule; from send beside it) | from send, first chunk with choices | from send, first text, reasoning or tool | from before the connection, first of any kind | first content only |
| tpot | (e2el − ttft) ÷ (n − 1) | called ITL | called ITL | (last − first) ÷ (n − 1) |
| itl, weighted by tokens | per chunk | none | ICL, per chunk | per token, k − 1 zeros for a chunk of k |
| (none) | | TPOT: from the request's start over n | | NTPOT |
| e2el, to the last token | to the last chunk | to the end | to the last content chunk | to the end |
`)
	return b.String()
}

func orDash(s string) string {
	if s == "" {
		return "–"
	}
	return s
}
