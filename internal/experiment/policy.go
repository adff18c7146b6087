package experiment

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/experiment/verdict"
	"github.com/shadowtape/shadowtape/internal/stats"
)

// Policy is a classic rule in place of the test, for those who want it. The zero value is none.
type Policy struct {
	Rule  string  // threshold or sigma
	Limit float64 // of threshold: a share, 0.03 is 3 %; of sigma: standard deviations of the history's nights
}

// ParsePolicy reads threshold:3% or sigma:3. An empty text is no policy.
func ParsePolicy(s string) (Policy, error) {
	if s == "" {
		return Policy{}, nil
	}
	rule, value, _ := strings.Cut(s, ":")
	number, percent := strings.CutSuffix(value, "%")
	v, err := strconv.ParseFloat(number, 64)
	switch {
	case err != nil || !(v > 0) || math.IsInf(v, 0):
	case rule == "threshold" && percent && v < 100:
		return Policy{rule, v / 100}, nil
	case rule == "sigma" && !percent:
		return Policy{rule, v}, nil
	}
	return Policy{}, fmt.Errorf("policy %q: want threshold:3%% or sigma:3", s)
}

func (p Policy) String() string {
	switch p.Rule {
	case "threshold":
		return fmt.Sprintf("threshold:%g%%", 100*p.Limit)
	case "sigma":
		return fmt.Sprintf("sigma:%g", p.Limit)
	}
	return ""
}

// Decide judges each metric by the rule alone: the median over the candidate's runs against the median over the base's by a share, or
// against the history's nights by standard deviations. note says how often the rule would have called the history's own A/A pairs worse.
func (p Policy) Decide(base, candidate []*verdict.Run, metrics []verdict.Metric, past map[string]verdict.Past) (found []verdict.Finding, note string, err error) {
	fired, pairs := 0, 0
	for _, m := range metrics {
		h := past[m.Name]
		m.Set = h.Slow
		levels := func(runs []*verdict.Run) float64 {
			var out []float64
			for _, r := range runs {
				if v := r.Level(m); !math.IsNaN(v) {
					out = append(out, v)
				}
			}
			return stats.Median(out)
		}
		a, b := levels(base), levels(candidate)
		sign := 1.0
		if m.Better == "higher" {
			sign = -1
		}
		limit := math.Log1p(p.Limit)
		if m.Kind == verdict.Share {
			limit = m.Minimum
		}
		if p.Rule == "sigma" {
			if len(h.Nights) < 8 {
				continue
			}
			var s stats.Moments
			for _, v := range h.Nights {
				s.Add(v, 1)
			}
			a, limit = stats.Median(h.Nights), p.Limit*s.Std()
		}
		if math.IsNaN(a) || math.IsNaN(b) {
			continue
		}
		d := sign * (b - a)
		f := verdict.Finding{Metric: m.Name, Unit: m.Unit, Better: m.Better, Statistic: "median over runs", Gated: m.Gate, State: verdict.Unchanged, Pairs: min(len(base), len(candidate)), Why: "by " + p.String()}
		switch {
		case m.Better == "":
			f.State, f.Why = verdict.Explains, ""
		case d > limit:
			f.State = verdict.Regressed
		case d < -limit:
			f.State = verdict.Improved
		}
		f.Base, f.Candidate, f.ChangePct = formats.Of(show(m, a)), formats.Of(show(m, b)), formats.Of(changePct(m, b-a))
		f.TolerancePct, f.MinimumPct = changePct(m, limit), changePct(m, limit)
		found = append(found, f)
		if m.Gate {
			for _, v := range h.AA {
				pairs++
				if sign*v > limit {
					fired++
				}
			}
		}
	}
	if p.Rule == "sigma" && len(found) == 0 {
		return nil, "", errors.New("judge by sigma: the history has fewer than 8 nights")
	}
	if pairs > 0 {
		return found, fmt.Sprintf("of this history's %d A/A differences of one pair, %d (%.1f %%) would have been called worse by this rule", pairs, fired, 100*float64(fired)/float64(pairs)), nil
	}
	return found, "how often this rule is wrong: docs/GATE.md; the history has no A/A pairs to say it for this host", nil
}

// show is a level in the metric's unit.
func show(m verdict.Metric, level float64) float64 {
	if m.Kind == verdict.Share || m.Kind == verdict.Count {
		return level
	}
	return math.Exp(level)
}

// changePct is a difference of levels in percent.
func changePct(m verdict.Metric, d float64) float64 {
	switch m.Kind {
	case verdict.Share:
		return 100 * d
	case verdict.Count:
		return d
	}
	return 100 * math.Expm1(d)
}
