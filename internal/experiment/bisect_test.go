package experiment

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/experiment/verdict"
)

// history of n commits whose level jumps with the culprit.
func commits(n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprintf("c%02d", i))
	}
	return all
}

func TestBisectFindsTheCulprit(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	right, launches := 0, 0
	const trials = 400
	e := Ends{Good: 0, Bad: 0.06, SD: 0.02} // a gap of three deviations of a launch
	for range trials {
		all := commits(32)
		culprit := r.IntN(len(all))
		found, err := Bisect(context.Background(), "good", all, e, BisectOptions{Launch: func(_ context.Context, c string) (float64, error) {
			level := 0.0
			if slices.Index(all, c) >= culprit {
				level = 0.06
			}
			return level + 0.02*r.NormFloat64(), nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		if found.Culprit == all[culprit] && len(found.Unsure) == 0 {
			right++
		}
		launches += found.Runs
	}
	if right < trials*95/100 {
		t.Errorf("the culprit is found in %d of %d", right, trials)
	}
	if per := float64(launches) / trials; per > 25 { // log2(32) commits of a few launches
		t.Errorf("%v launches for 32 commits", per)
	}
}

func TestBisectSkips(t *testing.T) {
	all := commits(9)
	broken := []string{"c03", "c04"}
	found, err := Bisect(context.Background(), "good", all, Ends{0, 1, 0.1}, BisectOptions{Launch: func(_ context.Context, c string) (float64, error) {
		if slices.Contains(broken, c) {
			return 0, fmt.Errorf("build: %w", ErrSkip)
		}
		if c >= "c05" {
			return 1, nil
		}
		return 0, nil
	}})
	if err != nil || found.Culprit != "c05" || found.Parent != "c02" || !slices.Equal(found.Unsure, broken) {
		t.Errorf("%v %+v", err, found)
	}
	if _, err := Bisect(context.Background(), "good", all, Ends{0, 1, 0.1}, BisectOptions{Launch: func(context.Context, string) (float64, error) { return 0, errors.New("disk full") }}); err == nil {
		t.Error("an error is taken for a class")
	}
	if found, err := Bisect(context.Background(), "good", all[:1], Ends{0, 1, 0.1}, BisectOptions{}); err != nil || found.Culprit != "c00" || found.Parent != "good" {
		t.Errorf("one commit: %v %+v", err, found)
	}
	if _, err := Bisect(context.Background(), "good", nil, Ends{0, 1, 0.1}, BisectOptions{}); err == nil {
		t.Error("no commit is bisected")
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
