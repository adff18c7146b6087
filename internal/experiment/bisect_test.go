package experiment

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/experiment/verdict"
)

// TestClassifyFindsTheCulprit: in a line of 32 commits whose level jumps with one of them by three deviations of a launch, halving finds it nearly always,
// as git does it.
func TestClassifyFindsTheCulprit(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	right, launches := 0, 0
	const trials, commits = 400, 32
	e := Ends{Good: 0, Bad: 0.06, SD: 0.02}
	for range trials {
		culprit := r.IntN(commits)
		lo, hi := -1, commits-1 // good and bad
		told := true
		for told && hi-lo > 1 {
			mid := (lo + hi) / 2
			c, err := Classify(context.Background(), fmt.Sprint(mid), e, BisectOptions{Launch: func(context.Context, string) (float64, error) {
				launches++
				level := 0.0
				if mid >= culprit {
					level = e.Bad
				}
				return level + e.SD*r.NormFloat64(), nil
			}})
			if err != nil {
				t.Fatal(err)
			}
			switch c {
			case Good:
				lo = mid
			case Bad:
				hi = mid
			default: // a search has to pass it over, and may not find the culprit
				told = false
			}
		}
		if told && hi == culprit {
			right++
		}
	}
	if right < trials*95/100 {
		t.Errorf("the culprit is found in %d of %d", right, trials)
	}
	if per := float64(launches) / trials; per > 25 { // log2(32) commits of a few launches
		t.Errorf("%v launches for 32 commits", per)
	}
}

func TestClassifySkips(t *testing.T) {
	launches := 0
	of := func(v float64, err error) (Class, error) {
		launches = 0
		return Classify(context.Background(), "c", Ends{0, 1, 0.1}, BisectOptions{Launch: func(context.Context, string) (float64, error) {
			launches++
			return v, err
		}})
	}
	if c, err := of(0, fmt.Errorf("build: %w", ErrSkip)); c != Skip || err != nil || launches != 1 {
		t.Errorf("a build that fails: %s %v after %d launches", c, err, launches)
	}
	if c, err := of(0.5, nil); c != Skip || err != nil || launches != 8 {
		t.Errorf("launches in the middle: %s %v after %d launches", c, err, launches)
	}
	if _, err := of(0, errors.New("disk full")); err == nil {
		t.Error("an error is taken for a class")
	}
}

func TestEnds(t *testing.T) {
	m := verdict.Defaults()[0]
	var s Sides
	for i := range 5 {
		s.Base, s.Candidate = append(s.Base, fake("a", 1+0.001*float64(i))), append(s.Candidate, fake("b", 1.2+0.001*float64(i)))
	}
	f := verdict.Finding{State: verdict.Regressed, ChangePct: formats.Of(20.0), DetectablePct: formats.Of(2.0), Unit: "ms"}
	e, err := EndsOf(s, f, m, false)
	if err != nil || math.Abs(e.Bad-e.Good-math.Log(1.2)) > 0.002 {
		t.Errorf("%v %+v", err, e)
	}
	if o := e.LogOdds(e.Bad, e.Bad); o < math.Log(99) {
		t.Errorf("two launches on the bad end have odds of %v", math.Exp(o))
	}
	if o := e.LogOdds(100); o > math.Log(20)+1e-9 {
		t.Errorf("one launch far out has odds of %v", math.Exp(o))
	}
	f.State = verdict.Unchanged
	if _, err := EndsOf(s, f, m, false); err == nil {
		t.Error("ends that are alike are taken")
	}
	f.State, f.DetectablePct = verdict.Regressed, formats.Of(15.0)
	if _, err := EndsOf(s, f, m, false); err == nil {
		t.Error("a gap under twice the detectable change is taken")
	}
}
