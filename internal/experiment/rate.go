package experiment

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"time"

	"github.com/shadowtape/shadowtape/analyzer"
	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/candidate"
	"github.com/shadowtape/shadowtape/internal/deploy"
)

// RateSearch finds the highest rate of a launch within the SLO: the trace at one rate after the other, doubled from its own until
// the SLO is missed or lowered until it is met, then bisected. The zero value searches nothing.
type RateSearch struct {
	Step   time.Duration // how long each rate is tried
	Attain float64       // share of the requests that must meet the limits; 0: 0.99
}

// RateSteps is how many rates a search tries as a rule: what a plan reckons with.
const RateSteps = 8

// The search leaves the trace's own rate by this factor at most either way, and ends where the bracket is this narrow.
const (
	furthestRate = 64
	narrowRate   = 1.06
)

// RateFound is what a search found; it is kept beside the run.
type RateFound struct {
	Schema int                   `json:"schema"`
	Rate   formats.Null[float64] `json:"requests_per_s"` // where the SLO begins to be missed; null where it was at no rate, or at all
	Tried  []RateTried           `json:"tried"`
}

// RateTried is one rate of a search.
type RateTried struct {
	Rate     float64 `json:"requests_per_s"`
	Attained float64 `json:"attained"` // share of the requests that met the limits
}

// findRate searches. own is the trace's rate; try says which share meets the limits at a rate. Between the ends of the last bracket the
// logarithm of the rate is interpolated, so that launches differ by less than the bracket's width.
func findRate(own, attain float64, try func(rate float64) (float64, error)) (RateFound, error) {
	f := RateFound{Schema: 1, Tried: []RateTried{}}
	var lo, hi RateTried // met, missed
	at := func(rate float64) error {
		share, err := try(rate)
		if err != nil {
			return fmt.Errorf("try %.4g requests/s: %w", rate, err)
		}
		t := RateTried{rate, share}
		f.Tried = append(f.Tried, t)
		if share >= attain {
			lo = t
		} else {
			hi = t
		}
		return nil
	}
	for rate := own; ; {
		if err := at(rate); err != nil {
			return f, err
		}
		if lo.Rate > 0 && hi.Rate > 0 {
			break
		}
		switch {
		case hi.Rate == 0:
			rate *= 2
		case hi.Attained < 0.5: // far over: what piles up takes long to drain
			rate /= 4
		default:
			rate /= 2
		}
		if rate > own*furthestRate || rate < own/furthestRate {
			return f, nil
		}
	}
	for hi.Rate/lo.Rate > narrowRate {
		if err := at(math.Sqrt(lo.Rate * hi.Rate)); err != nil {
			return f, err
		}
	}
	share := 0.5
	if d := lo.Attained - hi.Attained; d > 0 {
		share = (lo.Attained - attain) / d
	}
	f.Rate = formats.Of(lo.Rate * math.Pow(hi.Rate/lo.Rate, share))
	return f, nil
}

const ratesSuffix = ".rates.json"

// rates searches on a running candidate and keeps what it found beside the run.
func (v *Live) rates(ctx context.Context, f *deploy.File, r *candidate.Running, out string, l Leg) error {
	span := time.Duration(v.Job.Trace.Header.EndUnixNS - v.Job.Trace.Header.StartUnixNS)
	if span <= 0 || v.Job.Trace.Rows < 2 {
		return errors.New("the trace has no rate of its own")
	}
	own := float64(v.Job.Trace.Rows) / span.Seconds() * cmp.Or(v.Job.Selection.Speed, 1)
	dir := out + ".rate"
	found, err := findRate(own, v.Rates.attain(), func(rate float64) (float64, error) {
		s := v.Job.Selection
		s.Speed, s.Rate, s.Duration, s.MaxRequests, s.Loops = 0, rate, v.Rates.Step, 0, -1
		if _, err := v.replay(ctx, v.Job, f, r, dir, s, l, nil); err != nil {
			return 0, err
		}
		run, err := analyzer.OpenRun(dir)
		if err != nil {
			return 0, err
		}
		sum, err := analyzer.Summarize(run, analyzer.Options{SLO: v.SLO, NoModels: true})
		return sum.Aggregates["slo_attainment"].Value.Or(0), errors.Join(err, run.Close(), formats.Remove(dir))
	})
	if err != nil {
		return err
	}
	b, err := formats.MarshalDocument(found, "")
	if err != nil {
		return err
	}
	return os.WriteFile(out+ratesSuffix, append(b, '\n'), 0o644)
}

func (s RateSearch) attain() float64 { return cmp.Or(s.Attain, 0.99) }

// readRates adds what a search has found beside a run, if there was one.
func (m *Measured) readRates(run string) error {
	b, err := os.ReadFile(filepath.Clean(run) + ratesSuffix)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	var f RateFound
	if err == nil {
		err = cmp.Or(formats.CheckDocument(b), json.Unmarshal(b, &f))
	}
	if err != nil {
		return fmt.Errorf("read the rates beside %s: %w", run, err)
	}
	if f.Rate.Valid {
		m.Run.Figures["slo_rate"] = f.Rate.V
	}
	return nil
}
