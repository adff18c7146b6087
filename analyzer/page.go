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
	w("Warm-up is left out. Failed requests have no latency; they are counted. Undefined is null in JSON and a dash in text, never 0.\n")
	w("*Matters from* is the smallest change of a typical request, of slow requests and percentiles, and in the metric's own unit that `diff` calls better or worse (the\n")
	w("flags `--min-effect` and `--min-tail` change it); a dash explains and decides nothing.\n\n")
	w("## Of one exchange\n\n| metric | unit | better | matters from | definition | notes |\n|---|---|---|---|---|---|\n")
	for _, m := range metrics {
		notes := m.Notes
		if m.PerRequest {
			notes += " Can carry an SLO."
		}
		matters := "–"
		if !m.Informs {
			matters = fmt.Sprintf("%g %%, slow %g %%, %g %s", 100*m.Matters, 100*m.MattersSlow, m.Resolution, m.Unit)
		}
		w("| `%s` | %s | %s | %s | %s | %s |\n", m.Name, m.Unit, orDash(m.Better), matters, m.Definition, strings.TrimSpace(notes))
	}
	w("\n## Of a whole run\n\n| figure | unit | better | matters from | definition |\n|---|---|---|---|---|\n")
	for _, a := range aggregates {
		matters := "–"
		if a.Matters > 0 {
			matters = fmt.Sprintf("%g points", 100*a.Matters)
		}
		w("| `%s` | %s | %s | %s | %s |\n", a.Name, a.Unit, orDash(a.Better), matters, a.Definition)
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
	w("\n## Intervals\n\nIntervals are at %.0f %% and within the run: they are blind to what differs from one start of a server to the next, so they describe and never\n", intervalConfidence*100)
	w("decide. Means, rates and shares: blocks of time are resampled (%d at first, joined while neighbors resemble each other, %d at least), widened by\n", intervalBlocks, fewestBlocks)
	w("Student's t. Percentiles: order statistics of `effective_n` samples, which is n over the design effect of the blocks, spread over the sample.\n")
	b.WriteString(modelsPage)
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

const modelsPage = `
## Pages

A request holds ceil((input + generated so far) ÷ block size) pages from the start of its prefill to its end; tokens come when the stream says they came. Blocks
of a shared prefix count once while any holder is there (without prefix blocks sharing is unknown). From outside, waiting and prefill cannot be
told apart, so the model is a band. High: all pages of the prompt from the moment it was sent. Low: prefill started as late as its length and the observed prefill
speed allow, pages taken in chunks of 2,048 tokens. The prefill speed is the lower hull of times to first token over prompt lengths; where every request waited, it is half
the shortest time per token in which many prompts in a row were computed. What is in use is cut at the capacity; what was wanted is not. The block size and capacity come from
flags, the server, the manifest, or the block size is taken as 16 and said to be assumed. ` + "`lru_hit_rate`" + ` and ` + "`curve`" + ` are of an LRU cache over the prompt blocks in order of
arrival, every capacity in one pass; of more than 16,777,216 block references a sample of the blocks is kept (` + "`curve_sample`" + `), and misses are scaled to all (SHARDS, 2015).
Runs of more than a million exchanges are modelled for intervals that are drawn over all of their time, one in so many, each with everything that overlaps it; a warning says how much that is,
and charts have gaps between. Held to the simulator's state log by a test: the truth lies in the band, and within 5 % of its middle while nothing waits.

## Mix

A request is in prefill from the start of its prefill to its first token, and in decode from there to its last. Shares of time idle, prefill only, decode only and mixed,
and the switches between them a second, for both ends of the band. ` + "`early`" + ` (waiting counts as prefill) is close to the truth while nothing waits: shares within 5 points, switches within
20 % of the state log in the test. Under load, overload too, the state log's shares and switches lie inside the band: to half a point and a fiftieth.

## Interference and anomalies

` + "`slowdown`" + ` is the mean gap per token while a prefill ran (by the late end of the band) over that while none did. Anomalies are named with evidence and time:
buffering (streams whose tokens come at the end of their time, faster than a millisecond each, or most events sharing reads), server_stall (at least five streams and four fifths of
those in decode stand still for a quarter of a second and three times the p99 gap), cold_start (a quarter of the first 20 requests wait three medians and the next do not), saturation (in flight and
ttft double from the first third to the last), client (sent more than 20 ms late), retries, failures (three tenths of a kind within a fiftieth of the run), gpu_throttled.
`
