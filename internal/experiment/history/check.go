package history

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/shadowtape/shadowtape/internal/experiment/verdict"
)

// Alert is something in a history that somebody has to look at.
type Alert struct {
	Series    string  `json:"series"`
	Team      string  `json:"team,omitempty"`
	Metric    string  `json:"metric"`
	Kind      string  `json:"kind"` // change or drift
	Worse     bool    `json:"worse"`
	ShiftPct  float64 `json:"shift_pct"` // of a share in points
	Since     string  `json:"since"`     // day
	LastGood  string  `json:"last_good,omitempty"`
	FirstBad  string  `json:"first_bad,omitempty"`
	P         float64 `json:"p"`
	WentAway  bool    `json:"went_away"`
	Accepted  bool    `json:"accepted"`
	Reason    string  `json:"reason,omitempty"`
	Confirmed bool    `json:"confirmed"`      // two nights more than the smallest segment have kept the new level, or a gate of the two commits has seen it
	Gate      string  `json:"gate,omitempty"` // what a gate of FirstBad against LastGood said of the metric: its state, with the number of pairs
	Text      string  `json:"text"`
}

// Open reports whether the alert is a change for the worse that nobody has accepted and that has not gone away.
func (a Alert) Open() bool { return a.Worse && !a.Accepted && !a.WentAway }

// confirmedAfter is how many nights of a new level confirm it: the smallest segment and two more.
const confirmedAfter = 6

// shift is a difference of levels in percent, of a share in points.
func shift(m verdict.Metric, d float64) float64 {
	switch m.Kind {
	case verdict.Share:
		return 100 * d
	case verdict.Count:
		return d
	}
	return 100 * math.Expm1(d)
}

// Check lists the changes and drifts of all series, the open ones first within each. Metrics that only explain are left out.
func (db *DB) Check(metrics []verdict.Metric) []Alert {
	var open, rest []Alert
	for _, s := range db.Series() {
		for _, m := range metrics {
			if m.Better == "" {
				continue
			}
			changes, _, nights := s.Changes(m)
			for _, c := range changes {
				a := Alert{Series: s.ID, Team: s.Team, Metric: m.Name, Kind: "change", Worse: c.Worse, ShiftPct: shift(m, c.After-c.Before), Since: c.Day, LastGood: c.LastGood, FirstBad: c.FirstBad,
					P: c.P, WentAway: c.WentAway, Accepted: c.Accepted, Reason: c.Reason, Confirmed: len(nights)-c.At >= confirmedAfter}
				seen := db.sideBySide(&a)
				a.Text = a.describe(m, seen)
				if a.Open() {
					open = append(open, a)
				} else {
					rest = append(rest, a)
				}
			}
			stepped := func(worse bool) bool { // an open step says it already
				return slices.ContainsFunc(open, func(a Alert) bool {
					return a.Series == s.ID && a.Metric == m.Name && a.Kind == "change" && a.Worse == worse
				})
			}
			if d := s.Drift(m); (d.Past || d.CUSUM) && !stepped(d.Worse) {
				a := Alert{Series: s.ID, Team: s.Team, Metric: m.Name, Kind: "drift", Worse: d.Worse, ShiftPct: shift(m, d.Now-d.Anchor), Since: d.Since, Confirmed: d.Past && d.CUSUM}
				a.Text = a.describe(m, unseen)
				if a.Open() {
					open = append(open, a)
				} else {
					rest = append(rest, a)
				}
			}
		}
	}
	return append(open, rest...)
}

// sight is what a gate of the commits on both sides of a change has seen.
type sight int

const (
	unseen sight = iota // there was none, or it could not say
	agrees
	alike // no such change: it is not the commit's
)

// sideBySide looks for a gate whose base was the commit before the change and whose candidate the one after: launched in turns, they tell what
// the code changed from what else was new that night. The last one counts.
func (db *DB) sideBySide(a *Alert) sight {
	seen := unseen
	if a.FirstBad == "" || a.LastGood == "" || a.FirstBad == a.LastGood {
		return seen
	}
	for _, r := range db.Records {
		if r.Kind != GateKind || r.AA || r.Series != a.Series || !sameCommit(r.Commit, a.FirstBad) || !sameCommit(r.Against, a.LastGood) {
			continue
		}
		changed := verdict.Improved
		if a.Worse {
			changed = verdict.Regressed
		}
		switch state := verdict.State(r.States[a.Metric]); state {
		case changed:
			seen = agrees
			a.Confirmed = true
		case verdict.Unchanged, verdict.Small, verdict.Improved, verdict.Regressed:
			seen = alike
		default:
			continue
		}
		a.Gate = fmt.Sprintf("%s, %d pairs", r.States[a.Metric], r.Pairs)
	}
	return seen
}

// sameCommit compares commits of which one may be shortened.
func sameCommit(a, b string) bool {
	if len(a) > len(b) {
		a, b = b, a
	}
	return a == b || len(a) >= 7 && strings.HasPrefix(b, a)
}

func (a Alert) describe(m verdict.Metric, seen sight) string {
	word := "better"
	if a.Worse {
		word = "worse"
	}
	unit := "%"
	if m.Kind == verdict.Share {
		unit = "pt"
	}
	t := fmt.Sprintf("%s %+.1f %s, %s", a.Metric, a.ShiftPct, unit, word)
	if a.Kind == "drift" {
		t += ", a slow drift from the anchor"
		if a.Since != "" {
			t += " since " + a.Since
		}
		return t
	}
	t += " since " + a.Since
	if a.LastGood != "" && a.FirstBad != "" && a.LastGood != a.FirstBad {
		t += fmt.Sprintf(", commits %s..%s", a.LastGood, a.FirstBad)
	} else if a.FirstBad != "" && a.FirstBad == a.LastGood {
		t += ", on one commit: the host, not the code"
	}
	switch {
	case a.Accepted:
		t += ", accepted: " + a.Reason
	case a.WentAway:
		t += ", and went away"
	case seen == agrees:
		t += ", confirmed side by side (" + a.Gate + ")"
	case seen == alike:
		t += ", but side by side the commits are alike (" + a.Gate + "): the host or what runs on it, not the code"
	case !a.Confirmed && a.LastGood != "" && a.FirstBad != a.LastGood:
		t += fmt.Sprintf(", to be confirmed by the next nights or side by side (gate --base-commit %s --commit %s)", a.LastGood, a.FirstBad)
	case !a.Confirmed:
		t += ", to be confirmed by the next nights"
	}
	return t
}

// Digest writes what happened since a time, in about ten lines for each team, as Markdown.
func (db *DB) Digest(metrics []verdict.Metric, since, now time.Time) string {
	b := &strings.Builder{}
	alerts := db.Check(metrics)
	teams := []string{}
	of := map[string][]*Series{}
	for _, s := range db.Series() {
		if _, ok := of[s.Team]; !ok {
			teams = append(teams, s.Team)
		}
		of[s.Team] = append(of[s.Team], s)
	}
	day := since.UTC().Format(time.DateOnly)
	fmt.Fprintf(b, "# Performance, %s to %s\n", day, now.UTC().Format(time.DateOnly))
	for _, team := range teams {
		name := team
		if name == "" {
			name = "no team"
		}
		runs, invalid := 0, 0
		for _, r := range db.Records {
			if r.Kind == RunKind && r.Team == team && !r.At.Before(since) {
				runs++
				if len(r.Invalid) > 0 {
					invalid++
				}
			}
		}
		fmt.Fprintf(b, "\n## %s\n\n* %d runs in %d series, %d invalid\n", name, runs, len(of[team]), invalid)
		lines := 0
		for _, a := range alerts {
			if a.Team != team || a.Kind == "change" && a.Since < day && !a.Open() {
				continue
			}
			mark := "✅"
			if a.Open() {
				mark = "❌"
			} else if a.Worse {
				mark = "➖"
			}
			if lines++; lines > 8 {
				continue
			}
			fmt.Fprintf(b, "* %s `%s` %s\n", mark, a.Series, a.Text)
		}
		if lines > 8 {
			fmt.Fprintf(b, "* … and %d more\n", lines-8)
		}
		if lines == 0 {
			fmt.Fprintf(b, "* nothing changed\n")
		}
	}
	var counts [3]int
	for _, r := range db.Records {
		if r.Kind == GateKind && !r.AA && !r.At.Before(since) {
			switch verdict.State(r.Verdict) {
			case verdict.Regressed:
				counts[0]++
			case verdict.Inconclusive, verdict.Invalid:
				counts[1]++
			default:
				counts[2]++
			}
		}
	}
	if counts[0]+counts[1]+counts[2] > 0 {
		fmt.Fprintf(b, "\nGates: %d passed, %d stopped a regression, %d could not say.\n", counts[2], counts[0], counts[1])
	}
	return b.String()
}
