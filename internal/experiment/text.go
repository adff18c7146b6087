package experiment

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/shadowtape/shadowtape/analyzer"
	"github.com/shadowtape/shadowtape/internal/experiment/verdict"
)

// Text writes the report for a terminal: the verdict first, 25 lines at most of what matters.
func (r *Report) Text(w io.Writer) error {
	b := &strings.Builder{}
	fmt.Fprintf(b, "%s\n", r.Headline())
	fmt.Fprintf(b, "base %s, candidate %s: %s\n", r.Base, r.Candidate, r.evidence())
	for i, d := range r.Differences {
		if i == 3 {
			fmt.Fprintf(b, "  … and %d more differences of the environments (--json)\n", len(r.Differences)-3)
			break
		}
		x, y := apart(d.Base, d.Candidate)
		fmt.Fprintf(b, "  differs: %s\n", cut(d.What+": "+x+" -> "+y, 69))
	}
	for i, side := range []string{"base", "candidate"} {
		if text := analyzer.ConditionText(r.Conditions, i == 1); text != "" {
			fmt.Fprintf(b, "  %s GPUs: %s\n", side, text)
		}
	}
	if len(r.Findings) > 0 {
		fmt.Fprintf(b, "%-18s %9s %9s %8s %16s %-12s %s\n", "metric", "base", "candidate", "change", "interval", "state", "could see")
	}
	for _, f := range r.shown(12) {
		fmt.Fprintf(b, "%-18s %9s %9s %8s %16s %-12s %s\n", f.Metric, number(f.Base, f), number(f.Candidate, f), change(f), interval(f), state(f), detectable(f))
	}
	for _, s := range r.Explanation {
		fmt.Fprintf(b, "probably: %s\n", s)
	}
	for _, s := range r.Warnings {
		fmt.Fprintf(b, "note: %s\n", s)
	}
	for _, s := range r.Next {
		fmt.Fprintf(b, "next: %s\n", s)
	}
	if r.FalseAlarms != "" {
		fmt.Fprintf(b, "this gate on identical builds: %s\n", r.FalseAlarms)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Headline is the verdict in one line, with the metrics that it is about.
func (r *Report) Headline() string {
	var with []string
	for _, f := range r.Findings {
		if f.Gated && (f.State == r.Verdict || r.Verdict == verdict.Invalid && f.State == verdict.Inconclusive) {
			switch f.State {
			case verdict.Regressed, verdict.Improved, verdict.Small:
				with = append(with, f.Metric+" "+change(f))
			case verdict.Inconclusive:
				with = append(with, f.Metric)
			}
		}
	}
	s := strings.ToUpper(string(r.Verdict))
	if len(with) > 0 {
		s += ": " + strings.Join(with, ", ")
	}
	return s
}

func (r *Report) evidence() string {
	if r.Policy != "" {
		return fmt.Sprintf("%s, by policy %s", count(r.Pairs, "pair"), r.Policy)
	}
	if r.Method == againstBaseline {
		return fmt.Sprintf("%s, level %.2g %%", count(r.Pairs, "launch"), 100*r.Alpha)
	}
	return fmt.Sprintf("%s of launches, level %.2g %%", count(r.Pairs, "pair"), 100*r.Alpha)
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	if what == "launch" {
		return fmt.Sprintf("%d launches", n)
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// shown are the gated metrics and then those worth a look, at most n.
func (r *Report) shown(n int) []verdict.Finding {
	out := slices.DeleteFunc(slices.Clone(r.Findings), func(f verdict.Finding) bool { // what explains has to have moved
		return !f.Gated && !f.WorthALook && (f.Better == "" || f.ChangePct.V == 0)
	})
	rank := func(f verdict.Finding) int {
		switch {
		case f.Gated:
			return 0
		case f.WorthALook:
			return 1
		case f.Better != "":
			return 2
		}
		return 3
	}
	slices.SortStableFunc(out, func(a, b verdict.Finding) int { return cmp.Compare(rank(a), rank(b)) })
	return out[:min(n, len(out))]
}

func state(f verdict.Finding) string {
	switch {
	case f.Better == "":
		return "explains"
	case f.Gated:
		return string(f.State)
	case f.WorthALook:
		return "worth a look"
	}
	return "(" + string(f.State) + ")"
}

// number is a figure in its unit, three to four digits.
func number(v verdict.Null, f verdict.Finding) string {
	if !v.Valid {
		return "-"
	}
	switch {
	case f.Unit == "share":
		return fmt.Sprintf("%.2f %%", 100*v.V)
	case f.Unit == "ms" && v.V >= 10000:
		return fmt.Sprintf("%.1f s", v.V/1000)
	case f.Unit == "ms":
		return digits(v.V) + " ms"
	}
	return digits(v.V)
}

func digits(x float64) string {
	switch a := math.Abs(x); {
	case a >= 100:
		return fmt.Sprintf("%.0f", x)
	case a >= 10:
		return fmt.Sprintf("%.1f", x)
	}
	return fmt.Sprintf("%.2f", x)
}

// per is what a change is in.
func per(f verdict.Finding) string {
	switch f.Unit {
	case "share":
		return "pt"
	case "count", "requests":
		return ""
	}
	return "%"
}

func change(f verdict.Finding) string {
	if !f.ChangePct.Valid {
		return "-"
	}
	return strings.TrimSpace(fmt.Sprintf("%+.1f %s", tidy(f.ChangePct.V), per(f)))
}

// tidy makes what rounds to 0 a positive 0.
func tidy(x float64) float64 {
	if math.Abs(x) < 0.05 {
		return 0
	}
	return x
}

func interval(f verdict.Finding) string {
	if !f.Interval[0].Valid || !f.Interval[1].Valid {
		return "-"
	}
	return fmt.Sprintf("[%+.1f, %+.1f]", tidy(f.Interval[0].V), tidy(f.Interval[1].V))
}

func detectable(f verdict.Finding) string {
	if !f.DetectablePct.Valid || f.Better == "" {
		return "-"
	}
	return strings.TrimSpace(fmt.Sprintf("%.1f %s", f.DetectablePct.V, per(f)))
}

// apart are two long values without the words that both begin and end with: where two command lines differ is seldom at their start.
func apart(a, b string) (string, string) {
	if max(len(a), len(b)) < 24 {
		return a, b
	}
	x, y := strings.Fields(a), strings.Fields(b)
	front, back := 0, 0
	for front < min(len(x), len(y)) && x[front] == y[front] {
		front++
	}
	for back < min(len(x), len(y))-front && x[len(x)-1-back] == y[len(y)-1-back] {
		back++
	}
	part := func(words []string) string {
		s := strings.Join(words[front:len(words)-back], " ")
		switch {
		case s == "":
			return "…"
		case front > 0:
			s = "… " + s
		}
		if back > 0 {
			s += " …"
		}
		return s
	}
	return part(x), part(y)
}

// cut shortens a line to n characters.
func cut(s string, n int) string {
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	return string(r[:n-1]) + "…"
}
