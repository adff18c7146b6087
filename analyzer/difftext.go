package analyzer

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/shadowtape/shadowtape/internal/figure"
)

// Text writes the comparison for a terminal: verdict first, at most 25 lines of 80 columns.
func (d Diff) Text(w io.Writer) error {
	b := bufio.NewWriter(w)
	line := func(format string, args ...any) {
		fmt.Fprintln(b, figure.Clip(fmt.Sprintf(format, args...), figure.Width))
	}
	base, candidate := d.Base[0], d.Candidate[0]
	line("%s", d.headline())
	for _, s := range []Side{base, candidate} {
		if !s.Valid {
			line("INVALID    %s: %s", s.Label, orUnknown(first(s.Invalid)))
		}
	}
	line("base       %s (%s), %s sent, %s failed", base.Label, base.Kind, figure.Count(base.Requests.Sent), figure.Count(base.Requests.Failed))
	line("candidate  %s (%s), %s sent, %s failed", candidate.Label, candidate.Kind, figure.Count(candidate.Requests.Sent), figure.Count(candidate.Requests.Failed))
	for i, x := range d.Differences {
		if i == 3 {
			line("differs    in %d more (--json)", len(d.Differences)-i)
			break
		}
		was, is := x.words()
		line("differs    %s: %s, now %s", strings.TrimPrefix(x.What, "deployment."), was, is)
	}
	for i, side := range []string{"base", "candidate"} {
		if text := ConditionText(d.Conditions, i == 1); text != "" {
			line("%-10s GPUs %s", side, text)
		}
	}
	if d.Traffic != nil {
		d.Traffic.text(line)
	} else {
		line("%s matched requests; %.0f %% intervals within one run a side", figure.Count(int64(d.Pairs)), d.Confidence*100)
	}
	line("")
	line("%-18s %5s %8s %8s %9s  %-16s %s", "", "", "base", "candidate", "change", "interval", "")
	for _, c := range d.Metrics {
		if d.Traffic != nil && slices.Contains(trafficMetrics[:], c.Name) {
			continue // stands above
		}
		line("%-18s %5s %8s %8s %9s  %-16s %s", c.Name, shortUnit(c.Unit), figure.Cell(c.Base), figure.Cell(c.Candidate), signed(c), interval(c), mark(c))
	}
	if c := d.Cost; c != nil && c.ChangePerMonth.Valid {
		line("cost: %s a month for a fleet of %d GPUs at %s an hour", figure.Number(c.ChangePerMonth.V), c.FleetGPUs, figure.Number(c.GPUHourPrice))
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
	if d.Traffic != nil {
		return "~          no difference of the server that these recordings can vouch for"
	}
	return "~          no difference that these two runs can vouch for"
}

// partWords say what a part of a change is.
var partWords = map[string]string{partUnmatched: "requests without a like", partLengths: "other lengths", partCache: "cached tokens", partLoad: "load in flight", partServer: "the server itself"}

// text writes what the recordings' clients asked for and how the changes fall into parts.
func (t *Traffic) text(line func(string, ...any)) {
	line("%-10s %8s %10s %10s %10s %8s %8s", "traffic", "req/s", "tokens/s", "out/s", "in flight", "cached", "matched")
	for _, s := range []struct {
		name string
		side TrafficSide
	}{{"base", t.Base}, {"candidate", t.Candidate}} {
		cached := Null{V: 100 * s.side.CachedShare.V, Valid: s.side.CachedShare.Valid}
		line("%-10s %8s %10s %10s %10s %6s %% %6.0f %%", s.name, bare(s.side.RequestRate), bare(s.side.InputRate), bare(s.side.OutputRate), bare(s.side.InFlight), bare(cached), 100*s.side.MatchedShare.V)
	}
	line("")
	for _, m := range t.Metrics {
		share := ""
		if m.TrafficShare.Valid {
			share = fmt.Sprintf("%.0f %% by traffic", 100*m.TrafficShare.V)
		}
		line("%-26s %9s %-16s %s", m.Name, relative(m.ChangePct), span(m.Interval), share)
		for _, p := range m.Parts {
			if p.ChangePct.V != 0 || p.Name == partServer {
				line("  %-24s %9s %s", partWords[p.Name], relative(p.ChangePct), span(p.Interval))
			}
		}
	}
}

func relative(v Null) string {
	if !v.Valid {
		return "–"
	}
	return fmt.Sprintf("%+.1f %%", v.V)
}

func span(v [2]Null) string { return interval(Change{Interval: v}) }

func bare(v Null) string { return strings.TrimSpace(figure.Cell(v)) }

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
