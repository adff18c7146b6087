package sweep

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/stats"
)

// Answer is what a search has found for one combination of the other axes. Rates are requests per second.
type Answer struct {
	Values map[string]string     `json:"values"`
	Rate   formats.Null[float64] `json:"rate"` // the highest that met the SLO, the median over the repeats; null where at most half of them found one
	Over   formats.Null[float64] `json:"over"` // the lowest that did not, likewise; null where most met it at every rate
	// Low and High hold the limit, the rate at which the SLO begins to be missed on average over repeats, with Confidence. Null is open: one
	// repeat, or one that missed it at the lowest rate (Low) or met it at the highest (High).
	Low        formats.Null[float64] `json:"low"`
	High       formats.Null[float64] `json:"high"`
	Confidence float64               `json:"confidence"`
	Repeats    []Bracket             `json:"repeats"` // what each found, in their order
	Runs       int                   `json:"runs"`
	Doubtful   int                   `json:"doubtful"` // runs that missed the SLO and failed or were invalid: the limit may not be the candidate's
}

// Bracket is what one repeat found.
type Bracket struct {
	Rate formats.Null[float64] `json:"rate"` // the highest that met the SLO; null where none did
	Over formats.Null[float64] `json:"over"` // the lowest that did not; null where all did
}

// confidence of an answer's interval.
const confidence = 0.95

// search finds the highest rate that meets the SLO, for one combination of the other axes. Each repeat is a search of its own with arrivals
// of its own, so that their spread says how far the answer can be trusted.
func (s *sweep) search(ctx context.Context, c Cell) error {
	before := s.n
	a := Answer{Values: c.Values, Confidence: confidence, Repeats: []Bracket{}}
	for k := 1; k <= s.m.Repeats; k++ {
		b, err := bisect(s.m.Search, func(rate float64) (bool, error) {
			v := Cell{Values: maps.Clone(c.Values), Names: append(slices.Clone(c.Names), "rate")}
			v.Values["rate"] = strconv.FormatFloat(rate, 'g', 4, 64)
			r, err := s.cell(ctx, v, k, 0)
			attained, ok := r.Figures["slo_attainment"]
			meets := r.Error == "" && ok && attained >= s.m.Search.Attain
			if !meets && !r.Valid {
				a.Doubtful++
			}
			return meets, err
		})
		if err != nil {
			return err
		}
		a.Repeats = append(a.Repeats, b)
	}
	a.Runs = s.n - before
	a.conclude()
	s.t.Answers = append(s.t.Answers, a)
	return nil
}

// bisect doubles the rate from the lowest until the SLO is missed, and then halves the logarithm of what is left. All searches of one range
// visit the same grid of rates, so that repeats that agree share cells.
func bisect(o *Search, meets func(rate float64) (bool, error)) (b Bracket, err error) {
	for rate := o.From; !b.Over.Valid; rate = min(2*rate, o.To) {
		ok, err := meets(rate)
		if err != nil {
			return b, err
		}
		if !ok {
			b.Over = formats.Of(rate)
			break
		}
		if b.Rate = formats.Of(rate); rate >= o.To {
			return b, nil
		}
	}
	for b.Rate.Valid && b.Over.V/b.Rate.V > 1+o.Within {
		rate := math.Sqrt(b.Rate.V * b.Over.V)
		ok, err := meets(rate)
		if err != nil {
			return b, err
		}
		if ok {
			b.Rate.V = rate
		} else {
			b.Over.V = rate
		}
	}
	return b, nil
}

// conclude makes one answer of the repeats. The limit of a repeat lies somewhere in its bracket: the interval is Student's for the mean
// logarithm of the limits, its low end from the lower ends of the brackets and its high end from the upper ones, so that it holds whatever
// lies between.
func (a *Answer) conclude() {
	n := len(a.Repeats)
	if n == 0 {
		return
	}
	var lows, highs []float64
	var low, high stats.Moments
	for _, b := range a.Repeats {
		lows, highs = append(lows, b.Rate.Or(0)), append(highs, b.Over.Or(math.Inf(1)))
		if b.Rate.Valid {
			low.Add(math.Log(b.Rate.V), 1)
		}
		if b.Over.Valid {
			high.Add(math.Log(b.Over.V), 1)
		}
	}
	slices.Sort(lows)
	slices.Sort(highs)
	if v := lows[(n-1)/2]; v > 0 {
		a.Rate = formats.Of(v)
	}
	if v := highs[n/2]; !math.IsInf(v, 1) {
		a.Over = formats.Of(v)
	}
	t := stats.StudentT((1+a.Confidence)/2, float64(n-1))
	bound := func(m stats.Moments, t float64) (v formats.Null[float64]) {
		if n > 1 && m.N() == float64(n) {
			v = formats.Of(math.Exp(m.Mean() + t*m.Std()/math.Sqrt(float64(n-1)))) // Std is the population's
		}
		return v
	}
	a.Low, a.High = bound(low, -t), bound(high, t)
}

// String says an answer in words, without the combination that it is for.
func (a Answer) String() string {
	if !a.Rate.Valid {
		return "none met it" + a.doubt()
	}
	rate := fmt.Sprintf("%.4g/s", a.Rate.V)
	if !a.Over.Valid {
		rate += " or more"
	}
	switch {
	case a.Low.Valid && a.High.Valid:
		rate += fmt.Sprintf(", %.0f %% interval of the limit %.4g to %.4g/s", 100*a.Confidence, a.Low.V, a.High.V)
	case a.Low.Valid:
		rate += fmt.Sprintf(", %.0f %% interval of the limit from %.4g/s", 100*a.Confidence, a.Low.V)
	case a.High.Valid:
		rate += fmt.Sprintf(", %.0f %% interval of the limit up to %.4g/s", 100*a.Confidence, a.High.V)
	case len(a.Repeats) == 1:
		rate += ", one repeat: how sure that is cannot be said"
	}
	return rate + a.doubt()
}

func (a Answer) doubt() string {
	if a.Doubtful == 0 {
		return ""
	}
	return fmt.Sprintf("; %d of the runs that missed it failed or were invalid", a.Doubtful)
}
