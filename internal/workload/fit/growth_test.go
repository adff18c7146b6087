package fit_test

import (
	"math"
	"slices"
	"sort"
	"testing"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/stats"
	"github.com/shadowtape/shadowtape/internal/workload"
	"github.com/shadowtape/shadowtape/internal/workload/fit"
)

// talking are 8,000 requests of sessions of 8 turns, of which a tenth of the later ones keep only 30 % of the prompt before.
func talking(t *testing.T, prefix string) (*workload.Model, []*formats.Exchange) {
	t.Helper()
	law, err := workload.ParseSessions("turns=8,think=10s,token=10ms,shrink=10%,keep=30%", prefix)
	if err != nil {
		t.Fatal(err)
	}
	m, err := workload.Written(workload.Arrival{Family: workload.Poisson, Rate: 5}, workload.Length{Family: workload.Lognormal, P50: 400, P99: 2000}, workload.Length{Family: workload.Exponential, Mean: 150}, law)
	if err != nil {
		t.Fatal(err)
	}
	return m, generated(t, m, workload.Options{Seed: 2, Requests: 8_000})
}

func mean(v []float64) float64 {
	sum := 0.0
	for _, x := range v {
		sum += x / float64(len(v))
	}
	return sum
}

// TestGrowthComesBack fits sessions whose law is known, and fits what the model generates once more.
func TestGrowthComesBack(t *testing.T) {
	m, rows := talking(t, "")
	var added []float64 // by every later turn: the answer before it and what the user says
	last, first := map[formats.Hash]*formats.Exchange{}, map[formats.Hash]int64{}
	for _, x := range rows {
		if old := last[x.SessionID.V]; old != nil {
			added = append(added, float64(old.OutputTokens.V+first[x.SessionID.V]))
		} else {
			first[x.SessionID.V] = x.InputTokens.V
		}
		last[x.SessionID.V] = x
	}
	sort.Float64s(added)
	type figures struct{ drop, kept, added50, added90, shrink float64 }
	figuresOf := func(g *workload.Growth) figures {
		if g == nil {
			t.Fatal("no growth was found in sessions")
		}
		return figures{mean(g.Drop), stats.Quantile(g.Kept, 0.5), stats.Quantile(g.Added, 0.5), stats.Quantile(g.Added, 0.9), g.Shrink}
	}
	near := func(name string, got, want, tolerance float64) {
		t.Helper()
		if math.Abs(got-want) > tolerance {
			t.Errorf("%s: %.4g, want %.4g within %.2g", name, got, want, tolerance)
		}
	}
	fitted, err := fit.Trace(of(rows), fit.Options{Header: m.Header()})
	if err != nil {
		t.Fatal(err)
	}
	got := figuresOf(fitted.Threads.Growth)
	near("share that drops", got.drop, 0.1, 0.015)
	near("kept of what is dropped from", got.kept, 0.3, 0.01)
	near("added, median", got.added50, stats.Quantile(added, 0.5), 0.03*stats.Quantile(added, 0.5))
	near("added, p90", got.added90, stats.Quantile(added, 0.9), 0.03*stats.Quantile(added, 0.9))

	again, err := fit.Trace(of(generated(t, fitted, workload.Options{Seed: 3})), fit.Options{Header: fitted.Header()})
	if err != nil {
		t.Fatal(err)
	}
	back := figuresOf(again.Threads.Growth)
	t.Logf("fitted %+v, generated and fitted again %+v", got, back)
	near("again: share that drops", back.drop, got.drop, 0.05)
	near("again: kept", back.kept, got.kept, 0.1)
	near("again: added, median", back.added50, got.added50, 0.1*got.added50)
	near("again: added, p90", back.added90, got.added90, 0.15*got.added90)
	near("again: shrink", back.shrink, got.shrink, 0.05)
}

// TestGrowthWithoutSessions finds the same chains by the blocks that prompts share.
func TestGrowthWithoutSessions(t *testing.T) {
	m, rows := talking(t, "")
	for _, x := range rows {
		x.SessionID, x.Turn = formats.Null[formats.Hash]{}, formats.Null[int32]{}
	}
	fitted, err := fit.Trace(of(rows), fit.Options{Header: m.Header()})
	if err != nil {
		t.Fatal(err)
	}
	g := fitted.Threads.Growth
	if g == nil || fitted.Threads.Sessions {
		t.Fatalf("threads %+v", fitted.Threads)
	}
	if drop, kept := mean(g.Drop), stats.Quantile(g.Kept, 0.5); math.Abs(drop-0.1) > 0.02 || math.Abs(kept-0.3) > 0.02 {
		t.Errorf("%v drop and keep %v, want 0.1 and 0.3", drop, kept)
	}
}

// TestGrowthByLengthAlone fits sessions whose blocks are unknown: a shorter prompt is one that shrank.
func TestGrowthByLengthAlone(t *testing.T) {
	_, rows := talking(t, "")
	later, shrunk := 0.0, 0.0
	last := map[formats.Hash]int64{}
	for _, x := range rows {
		x.PrefixBlocks = nil
		if old, ok := last[x.SessionID.V]; ok {
			if later++; x.InputTokens.V < old {
				shrunk++
			}
		}
		last[x.SessionID.V] = x.InputTokens.V
	}
	fitted, err := fit.Trace(of(rows), fit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	g := fitted.Threads.Growth
	if want := shrunk / later; g == nil || math.Abs(g.Shrink-want) > 1e-5 || math.Abs(mean(g.Drop)-want) > 1e-3 || want < 0.05 {
		t.Errorf("growth %+v, want %v shrinking", g, want)
	}
	if slices.ContainsFunc(g.After, func(a []float64) bool { return a[len(a)-1] > 0 }) {
		t.Error("something is added to a shorter prompt, of which nothing is known")
	}
}
