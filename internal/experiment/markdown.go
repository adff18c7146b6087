package experiment

import (
	"encoding/xml"
	"fmt"
	"io"
	"strings"

	"github.com/shadowtape/shadowtape/internal/experiment/verdict"
)

// commentLimit is what a comment on GitHub may hold, with room for what a workflow adds: 65,536 characters are the service's limit.
const commentLimit = 60000

// Marker is the first line of a comment: what a workflow finds its own comment by, to replace it.
const Marker = "<!-- shadowtape -->"

var marks = map[verdict.State]string{
	verdict.Regressed: "❌", verdict.Improved: "🚀", verdict.Unchanged: "✅", verdict.Small: "➖", verdict.Inconclusive: "❔", verdict.Invalid: "⚠️",
}

var actions = map[verdict.State]string{
	verdict.Regressed:    "please read before merging",
	verdict.Improved:     "nothing to do",
	verdict.Unchanged:    "nothing to do",
	verdict.Small:        "a sure change that is too small to matter",
	verdict.Inconclusive: "not enough launches to say",
	verdict.Invalid:      "the measurement has to be repeated",
}

// Markdown writes the report as a comment for a pull request: a line with the verdict and what to do, a small table with what could have
// been seen, folded evidence. It never exceeds what GitHub takes.
func (r *Report) Markdown(w io.Writer) error {
	b := &strings.Builder{}
	fmt.Fprintf(b, "%s\n### %s Shadowtape: %s — %s\n\n", Marker, marks[r.Verdict], escape(strings.ToLower(r.Headline())), actions[r.Verdict])
	fmt.Fprintf(b, "`%s` against `%s`, %s.\n\n", code(r.Candidate), code(r.Base), r.evidence())
	for i, d := range r.Differences {
		if i == 5 {
			fmt.Fprintf(b, "* … and %d more differences\n", len(r.Differences)-5)
			break
		}
		x, y := apart(d.Base, d.Candidate)
		fmt.Fprintf(b, "* differs: `%s` `%s` → `%s`\n", code(d.What), code(cut(x, 80)), code(cut(y, 80)))
	}
	fmt.Fprintf(b, "\n| metric | base | candidate | change | interval | verdict | could have seen |\n|---|--:|--:|--:|:-:|---|--:|\n")
	for _, f := range r.Findings {
		asked := f.Metric == "slo_rate" // searched because somebody wanted to know
		if !f.Gated && !asked && (!f.WorthALook || f.Better == "") {
			continue
		}
		note := string(f.State)
		switch {
		case !f.Gated && f.WorthALook:
			note = "worth a look"
		case !f.Gated:
			note = "no sure change; does not gate"
		case f.State == verdict.Unchanged && f.WithinPct.Valid:
			note = fmt.Sprintf("unchanged within %.1f %s", f.WithinPct.V, per(f))
		case f.State == verdict.Inconclusive && f.MorePairs.Valid && f.MorePairs.V > 0:
			note = fmt.Sprintf("inconclusive: %d more pairs", f.MorePairs.V)
		}
		mark := marks[f.State]
		if !f.Gated {
			mark = map[bool]string{true: "👀", false: "•"}[f.WorthALook]
		}
		fmt.Fprintf(b, "| %s | %s | %s | **%s** | %s | %s %s | %s |\n", describe(f), number(f.Base, f), number(f.Candidate, f), change(f), interval(f), mark, note, detectable(f))
	}
	b.WriteString("\n")
	for _, n := range r.Explanation {
		fmt.Fprintf(b, "* probably: %s\n", escape(n))
	}
	for _, n := range r.Next {
		fmt.Fprintf(b, "* **next**: %s\n", escape(n))
	}
	for _, n := range r.Warnings {
		fmt.Fprintf(b, "* note: %s\n", escape(n))
	}
	if r.FalseAlarms != "" {
		fmt.Fprintf(b, "\n<sub>This gate on identical builds: %s.</sub>\n", escape(r.FalseAlarms))
	}
	r.folded(b)
	_, err := io.WriteString(w, b.String())
	return err
}

// folded writes the evidence as far as there is room.
func (r *Report) folded(b *strings.Builder) {
	const end = "\n</details>\n"
	b.WriteString("\n<details><summary>Each pair, what explains, the runs</summary>\n\n| metric | changes of the pairs, in order | history | why |\n|---|---|---|---|\n")
	short := false
	line := func(format string, args ...any) {
		s := fmt.Sprintf(format, args...)
		if b.Len()+len(s)+len(end)+100 > commentLimit {
			short = true
			return
		}
		b.WriteString(s)
	}
	for _, f := range r.Findings {
		var each []string
		for _, p := range f.PairChangesPct {
			each = append(each, fmt.Sprintf("%+.1f", tidy(p)))
		}
		past := "none"
		if h := f.History; h != nil {
			past = fmt.Sprintf("%s to %s over %d nights", digits(h.Low), digits(h.High), h.Nights)
			if f.Unit == "share" {
				past = fmt.Sprintf("%.2f to %.2f %% over %d nights", 100*h.Low, 100*h.High, h.Nights)
			}
			if h.Outside {
				past += ", **outside**"
			}
		}
		line("| %s | %s | %s | %s |\n", f.Metric, strings.Join(each, " "), past, escape(f.Why))
	}
	line("\n| pair | side | run | requests | valid |\n|---|---|---|--:|---|\n")
	for _, run := range r.Runs {
		ok := "yes"
		if !run.Valid {
			ok = escape(strings.Join(run.Invalid, "; "))
		}
		line("| %d | %s | `%s` | %d | %s |\n", run.Pair, run.Arm, code(run.Label), run.Requests, ok)
	}
	if short {
		b.WriteString("\n… shortened: the report's JSON holds all of it.\n")
	}
	b.WriteString(end)
}

func describe(f verdict.Finding) string {
	switch f.Metric {
	case "ttft":
		return "TTFT, typical request"
	case "ttft_slow":
		return "TTFT, slowest 5 %"
	case "tpot":
		return "TPOT, typical request"
	case "capacity":
		return "capacity (tokens/s per GPU)"
	case "slo_rate":
		return "highest rate within the SLO"
	case "error_rate":
		return "failed requests"
	case "slo_attainment":
		return "requests within the SLO"
	case "e2el":
		return "end to end, typical request"
	case "ttft_p99", "tpot_p99":
		return strings.ToUpper(f.Metric[:4]) + ", 99th percentile"
	case "abort_rate":
		return "aborted requests"
	}
	return words(f.Metric)
}

// escape keeps text from being markup or ending a table cell.
func escape(s string) string {
	return strings.NewReplacer("|", `\|`, "\n", " ", "<", "&lt;", ">", "&gt;", "@", "@\u200b", "`", "'", "[", `\[`, "]", `\]`, "*", `\*`, "_", `\_`).Replace(s)
}

// code keeps text inside a code span of a table cell.
func code(s string) string {
	return strings.NewReplacer("`", "'", "\n", " ", "|", "¦").Replace(s)
}

// mostAnnotations is how many of a kind GitHub keeps of one step.
const mostAnnotations = 10

// Annotations writes the report as workflow commands of GitHub Actions, which become annotations of the check run: an error for each gated metric
// that got worse, a warning for each that is undecided, a notice for each that got better, and one where the measurement is invalid. file is
// what they are pinned to, such as the candidate's deployment file; "" is the job alone.
func (r *Report) Annotations(w io.Writer, file string) error {
	data := strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A")
	property := strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A", ":", "%3A", ",", "%2C")
	b := &strings.Builder{}
	said := map[string]int{}
	say := func(level, title, text string) {
		if said[level]++; said[level] > mostAnnotations {
			return
		}
		where := ""
		if file != "" {
			where = "file=" + property.Replace(file) + ","
		}
		fmt.Fprintf(b, "::%s %stitle=%s::%s\n", level, where, property.Replace(title), data.Replace(text))
	}
	if r.Verdict == verdict.Invalid {
		say("warning", "the measurement is invalid", "run it again: "+strings.Join(r.Again, "; "))
	}
	levels := map[verdict.State]string{verdict.Regressed: "error", verdict.Inconclusive: "warning", verdict.Improved: "notice"}
	for _, f := range r.Findings {
		if level := levels[f.State]; f.Gated && level != "" {
			say(level, describe(f)+" "+string(f.State), strings.TrimSpace(fmt.Sprintf("%s, interval %s, could have seen %s. %s", change(f), interval(f), detectable(f), f.Why)))
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// JUnit writes the report as a test suite: each gated metric a test, a regression a failure, what is undecided or invalid an error or a
// skipped test.
func (r *Report) JUnit(w io.Writer) error {
	type message struct {
		Message string `xml:"message,attr"`
		Text    string `xml:",chardata"`
	}
	type testcase struct {
		Name    string   `xml:"name,attr"`
		Class   string   `xml:"classname,attr"`
		Failure *message `xml:"failure"`
		Error   *message `xml:"error"`
		Skipped *message `xml:"skipped"`
	}
	type suite struct {
		XMLName  xml.Name   `xml:"testsuite"`
		Name     string     `xml:"name,attr"`
		Tests    int        `xml:"tests,attr"`
		Failures int        `xml:"failures,attr"`
		Errors   int        `xml:"errors,attr"`
		Skipped  int        `xml:"skipped,attr"`
		Cases    []testcase `xml:"testcase"`
	}
	s := suite{Name: "shadowtape"}
	add := func(c testcase) {
		s.Tests++
		switch {
		case c.Failure != nil:
			s.Failures++
		case c.Error != nil:
			s.Errors++
		case c.Skipped != nil:
			s.Skipped++
		}
		s.Cases = append(s.Cases, c)
	}
	for _, f := range r.Findings {
		if !f.Gated {
			continue
		}
		c := testcase{Name: f.Metric, Class: "shadowtape.gate"}
		text := &message{Message: fmt.Sprintf("%s %s: %s", f.Metric, f.State, change(f)), Text: fmt.Sprintf("base %s, candidate %s, interval %s, could have seen %s. %s", number(f.Base, f), number(f.Candidate, f), interval(f), detectable(f), f.Why)}
		switch f.State {
		case verdict.Regressed:
			c.Failure = text
		case verdict.Inconclusive:
			c.Skipped = text
		}
		add(c)
	}
	if r.Verdict == verdict.Invalid {
		add(testcase{Name: "measurement", Class: "shadowtape.gate", Error: &message{Message: "the measurement is invalid", Text: strings.Join(r.Again, "; ")}})
	}
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	e := xml.NewEncoder(w)
	e.Indent("", "  ")
	if err := e.Encode(s); err != nil {
		return fmt.Errorf("write JUnit: %w", err)
	}
	_, err := io.WriteString(w, "\n")
	return err
}
