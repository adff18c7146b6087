package analyzer

import (
	"bufio"
	"fmt"
	"io"
	"strings"
)

// Text writes the comparison for a terminal: verdict first, at most 25 lines of 80 columns.
func (d Diff) Text(w io.Writer) error {
	b := bufio.NewWriter(w)
	line := func(format string, args ...any) { fmt.Fprintln(b, clip(fmt.Sprintf(format, args...), textWidth)) }
	base, candidate := d.Base[0], d.Candidate[0]
	line("%s", d.headline())
	for _, s := range []Side{base, candidate} {
		if !s.Valid {
			line("INVALID    %s: %s", s.Label, orUnknown(first(s.Invalid)))
		}
	}
	line("base       %s (%s), %s sent, %s failed", base.Label, base.Kind, count(base.Requests.Sent), count(base.Requests.Failed))
	line("candidate  %s (%s), %s sent, %s failed", candidate.Label, candidate.Kind, count(candidate.Requests.Sent), count(candidate.Requests.Failed))
	for i, x := range d.Differences {
		if i == 3 {
			line("differs    in %d more (--json)", len(d.Differences)-i)
			break
		}
		was, is := x.words()
		line("differs    %s: %s, now %s", strings.TrimPrefix(x.What, "deployment."), was, is)
	}
	line("%s matched requests; %.0f %% intervals within one run a side", count(int64(d.Pairs)), d.Confidence*100)
	fmt.Fprintln(b)
	line("%-18s %5s %8s %8s %9s  %-16s %s", "", "", "base", "candidate", "change", "interval", "")
	for _, c := range d.Metrics {
		line("%-18s %5s %8s %8s %9s  %-16s %s", c.Name, shortUnit(c.Unit), cell(c.Base), cell(c.Candidate), signed(c), interval(c), mark(c))
	}
	if c := d.Cost; c != nil && c.ChangePerMonth.Valid {
		line("cost: %s a month for a fleet of %d GPUs at %s an hour", number(c.ChangePerMonth.V), c.FleetGPUs, number(c.GPUHourPrice))
	} else if c != nil {
		line("cost: unknown: %s", c.Reason)
	}
	for i, warning := range d.Warnings {
		if i == 3 {
			line("warning: %d more in --json", len(d.Warnings)-i)
			break
		}
		line("warning: %s", warning)
	}
	return b.Flush()
}

func (d Diff) headline() string {
	var named string
	for _, c := range d.Metrics {
		if c.Gates && c.Verdict == d.Verdict && c.ChangePct.Valid {
			named += fmt.Sprintf(", %s %s", c.Name, signed(c))
		}
	}
	switch d.Verdict {
	case Worse:
		return "WORSE      " + named[2:]
	case Better:
		return "better     " + named[2:]
	case Invalid:
		return "INVALID    a side cannot be trusted: run it again"
	}
	return "~          no difference that these two runs can vouch for"
}

func first(s []string) string {
	if len(s) == 0 {
		return ""
	}
	return s[0]
}

func shortUnit(u string) string {
	switch u {
	case "tokens/s":
		return "tok/s"
	case "requests":
		return "req"
	}
	return u
}

// signed is a change in percent, of a share in percentage points.
func signed(c Change) string {
	if !c.ChangePct.Valid {
		return "–"
	}
	unit := " %"
	if c.Unit == "share" {
		unit = " pt"
	}
	return fmt.Sprintf("%+.1f%s", c.ChangePct.V, unit)
}

func interval(c Change) string {
	if !c.Interval[0].Valid || !c.Interval[1].Valid {
		return "–"
	}
	return fmt.Sprintf("[%+.1f, %+.1f]", c.Interval[0].V, c.Interval[1].V)
}

func mark(c Change) string {
	if !c.Gates {
		return "(" + string(c.Verdict) + ")"
	}
	return string(c.Verdict)
}
