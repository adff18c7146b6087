package experiment

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/shadowtape/shadowtape/internal/experiment/verdict"
)

// Class is what a commit turned out to be.
type Class string

// The classes. Skip is a commit that does not build, does not start, or whose launches do not say.
const (
	Good Class = "good"
	Bad  Class = "bad"
	Skip Class = "skip"
)

// BisectOptions say how a commit is classified.
type BisectOptions struct {
	Metric   verdict.Metric
	Odds     float64 // at which a commit is decided; 0: 99
	Launches int     // of one commit, at most; 0: 8
	// Launch measures one launch of a commit and returns the metric's level. ErrSkip in its error skips the commit.
	Launch func(ctx context.Context, commit string) (float64, error)
	Told   func(commit string, c Class, launches int, odds float64) // nil: nobody is
}

// ErrSkip is what a Launch wraps where a commit cannot be measured: its build fails, it does not start, its run is invalid.
var ErrSkip = errors.New("the commit cannot be measured")

// Ends are what is known of both ends: their levels, and the deviation of one launch.
type Ends struct {
	Good float64 `json:"good"`
	Bad  float64 `json:"bad"`
	SD   float64 `json:"sd"`
}

// EndsOf takes the ends from a gate of the good against the bad commit. It refuses ends that do not reproduce, and a gap that single
// launches cannot tell: under twice what the gate's pairs could detect.
func EndsOf(s Sides, f verdict.Finding, m verdict.Metric, allowInvalid bool) (Ends, error) {
	if f.State != verdict.Regressed {
		return Ends{}, fmt.Errorf("bisect %s: the ends do not reproduce: the later commit is %s (%s)", m.Name, f.State, change(f))
	}
	if f.DetectablePct.Valid && math.Abs(f.ChangePct.V) < 2*f.DetectablePct.V {
		return Ends{}, fmt.Errorf("bisect %s: the gap of %s is under twice what these launches can see (%s): more pairs, or a quieter host", m.Name, change(f), detectable(f))
	}
	var e Ends
	var n, ss float64
	for _, side := range []struct {
		runs []*Measured
		to   *float64
	}{{s.Base, &e.Good}, {s.Candidate, &e.Bad}} {
		var x []float64
		for _, r := range side.runs {
			if v := r.Run.Level(m); (allowInvalid || len(r.Invalid) == 0) && !math.IsNaN(v) {
				x = append(x, v)
				*side.to += v
			}
		}
		if len(x) < 2 {
			return Ends{}, fmt.Errorf("bisect %s: fewer than two valid launches of an end", m.Name)
		}
		*side.to /= float64(len(x))
		for _, v := range x {
			ss += (v - *side.to) * (v - *side.to)
		}
		n += float64(len(x) - 1)
	}
	e.SD = math.Sqrt(ss / n)
	e.SD = max(e.SD, math.Abs(e.Bad-e.Good)/20) // ends that agree to the last digit do not promise that the middle does
	return e, nil
}

// LogOdds is the logarithm of the odds that launches with these levels are of the bad end rather than of the good one, normal with one
// deviation. A launch beyond an end says no more than one on it, and one launch alone at most 20 to 1, so that an outlier does not decide.
func (e Ends) LogOdds(levels ...float64) float64 {
	sum := 0.0
	mid, gap := (e.Good+e.Bad)/2, e.Bad-e.Good
	for _, v := range levels {
		l := (v - mid) * gap / (e.SD * e.SD)
		sum += min(max(l, -math.Log(20)), math.Log(20))
	}
	return sum
}

// Classify says which end a commit is of: it is launched until its levels decide at the odds wanted. A commit that cannot be measured, or whose
// launches do not decide, is Skip; any other error of Launch is returned.
func Classify(ctx context.Context, commit string, e Ends, o BisectOptions) (Class, error) {
	o.Odds, o.Launches = cmp.Or(o.Odds, 99), cmp.Or(o.Launches, 8)
	odds, n := 0.0, 0
	c := Skip
	for n < o.Launches {
		v, err := o.Launch(ctx, commit)
		if ctx.Err() != nil {
			return Skip, ctx.Err()
		}
		if errors.Is(err, ErrSkip) {
			break
		}
		if err != nil {
			return Skip, fmt.Errorf("bisect %s: %w", commit, err)
		}
		n++
		if odds += e.LogOdds(v); math.Abs(odds) >= math.Log(o.Odds) {
			c = Good
			if odds > 0 {
				c = Bad
			}
			break
		}
	}
	if o.Told != nil {
		o.Told(commit, c, n, math.Exp(min(math.Abs(odds), 50)))
	}
	return c, nil
}
