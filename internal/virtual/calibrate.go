package virtual

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"
	"time"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/engine"
	"github.com/shadowtape/shadowtape/internal/stats"
)

// Fit is how well calibrated coefficients reproduce the run they were fitted to.
type Fit struct {
	Evaluations int    `json:"evaluations"` // simulations made
	Fitted      Errors `json:"fitted"`      // of the requests that the coefficients were fitted to
	HeldOut     Errors `json:"held_out"`    // of those that came after them, which nothing was fitted to
}

// Errors compare a simulation with a measurement. They are relative; those of requests are medians and 90th percentiles of
// |simulated ÷ measured − 1| over the requests, those of quantiles are simulated ÷ measured − 1.
type Errors struct {
	Requests     int     `json:"requests"` // compared
	TTFTMedian   float64 `json:"ttft_error_median"`
	TTFTP90      float64 `json:"ttft_error_p90"`
	TPOTMedian   float64 `json:"tpot_error_median"`
	TPOTP90      float64 `json:"tpot_error_p90"`
	TTFTQuantile struct {
		P50 float64 `json:"p50"`
		P99 float64 `json:"p99"`
	} `json:"ttft_quantile_error"`
	TPOTQuantile struct {
		P50 float64 `json:"p50"`
		P99 float64 `json:"p99"`
	} `json:"tpot_quantile_error"`
}

// CalibrateOptions say what was run.
type CalibrateOptions struct {
	Profile     engine.Profile // pages, sequences, budget as the server had them; its coefficients are not used
	Replicas    int            // 0 is 1
	Header      formats.Header // the run's
	RoundTrip   time.Duration  // between client and server: a first token's way there and back is no part of the server's time
	HoldOut     float64        // share of the requests, the last ones, that nothing is fitted to; 0: none, and how well the fit predicts is not known
	Evaluations int            // of the simulation in the last walk; 0 is 200
}

// Validate reports every option that cannot be used.
func (o CalibrateOptions) Validate() error {
	var errs []error
	if o.RoundTrip < 0 || o.Evaluations < 0 || o.Replicas < 0 {
		errs = append(errs, errors.New("round trip, evaluations and replicas must not be negative"))
	}
	if !(o.HoldOut >= 0 && o.HoldOut <= 0.9) {
		errs = append(errs, fmt.Errorf("holding out %v: a share up to 0.9", o.HoldOut))
	}
	return errors.Join(errs...)
}

const (
	minRequests = 20 // the least that Calibrate fits to
)

// Calibrate finds the coefficients with which the engine reproduces a measured run. It starts from the coefficients that explain the gaps
// between tokens best (see regress) and walks (by the simplex method of Nelder and Mead) to where a simulation of the run's own arrivals
// differs least: where the mean absolute logarithms of the ratios of TTFT and of TPOT are smallest. The last requests are held out: they
// are simulated with the others in the end, to say how far the coefficients carry. Rows are a run's exchanges in the order of their
// arrivals, each taken to reach the server half a round trip after it was sent; those that failed are simulated where their lengths are
// known but not compared.
func Calibrate(ctx context.Context, rows []*formats.Exchange, o CalibrateOptions) (engine.Profile, Fit, error) {
	if err := o.Validate(); err != nil {
		return o.Profile, Fit{}, fmt.Errorf("calibrate: %w", err)
	}
	if o.Evaluations == 0 {
		o.Evaluations = 200
	}
	rows = atServer(rows, o.RoundTrip)
	measured := make([]timing, len(rows))
	for i, x := range rows {
		measured[i] = timingOf(x)
	}
	fitted := len(rows) - int(o.HoldOut*float64(len(rows)))
	known := 0
	for _, m := range measured[:fitted] {
		if m.ttft > 0 {
			known++
		}
	}
	if known < minRequests {
		return o.Profile, Fit{}, fmt.Errorf("calibrate: %d of the first %d exchanges are streamed and complete: at least %d are needed", known, fitted, minRequests)
	}
	e := experiment{ctx: ctx, rows: rows[:fitted], o: o}
	best := regress(rows[:fitted], measured[:fitted], o.Profile.TokenBudget)
	var failed error
	loss := func(v []float64) float64 {
		got, err := e.simulate(exponentials(v))
		if err != nil {
			failed = err
			return math.Inf(1)
		}
		return distance(measured[:fitted], got)
	}
	v, n := descend(loss, logarithms(best), o.Evaluations, func() bool { return failed != nil })
	if failed != nil {
		return o.Profile, Fit{}, fmt.Errorf("calibrate: %w", failed)
	}
	p := o.Profile
	p.Coefficients, p.Instant = exponentials(v), false
	e.rows = rows
	got, err := e.simulate(p.Coefficients)
	if err != nil {
		return p, Fit{}, fmt.Errorf("calibrate: %w", err)
	}
	fit := Fit{Evaluations: n, Fitted: compare(measured[:fitted], got), HeldOut: compare(measured[fitted:], got[min(fitted, len(got)):])}
	if fit.Fitted.Requests == 0 {
		return p, fit, errors.New("calibrate: nothing could be compared")
	}
	return p, fit, nil
}

// atServer moves rows to where the server saw them: they come when they were sent and had travelled, and their answers' times count from
// there. What was never sent is left out. Rows are in the order of their arrivals there.
func atServer(rows []*formats.Exchange, roundTrip time.Duration) []*formats.Exchange {
	out := make([]*formats.Exchange, 0, len(rows))
	for _, x := range rows {
		if x.EndReason == formats.EndNotSent {
			continue
		}
		y := *x
		late := x.SentNS.Or(0)
		y.ArrivalUnixNS += late + int64(roundTrip/2)
		y.SentNS = formats.Of[int64](0)
		for _, t := range []*formats.Null[int64]{&y.FirstTokenNS, &y.LastTokenNS, &y.EndNS} {
			t.V -= late + int64(roundTrip)
		}
		out = append(out, &y)
	}
	slices.SortStableFunc(out, func(a, b *formats.Exchange) int { return cmp.Compare(a.ArrivalUnixNS, b.ArrivalUnixNS) })
	return out
}

// experiment is a measured run and how to simulate it.
type experiment struct {
	ctx  context.Context
	rows []*formats.Exchange
	o    CalibrateOptions
}

// simulate runs the experiment and returns each request's timing.
func (e *experiment) simulate(c engine.Coefficients) ([]timing, error) {
	o := Options{Profile: e.o.Profile, Replicas: e.o.Replicas, Header: e.o.Header}
	o.Profile.Coefficients, o.Profile.Instant = c, false
	all := func(yield func(*formats.Exchange, error) bool) {
		for _, x := range e.rows {
			if !yield(x, nil) {
				return
			}
		}
	}
	got := make([]timing, 0, len(e.rows))
	_, err := Run(e.ctx, all, o, Output{Exchange: func(x *formats.Exchange) error {
		got = append(got, timingOf(x))
		return nil
	}})
	return got, err
}

// timing is what is compared of a request, in seconds; 0 is unknown.
type timing struct{ ttft, tpot float64 }

func timingOf(x *formats.Exchange) (t timing) {
	if x.ErrorKind != "" || !x.FirstTokenNS.Valid || x.FirstTokenNS.V <= 0 || len(x.ChoiceOutputTokens) > 1 {
		return t
	}
	t.ttft = float64(x.FirstTokenNS.V) / 1e9
	if x.LastTokenNS.Valid && x.OutputTokens.Or(0) > 1 && x.LastTokenNS.V > x.FirstTokenNS.V {
		t.tpot = float64(x.LastTokenNS.V-x.FirstTokenNS.V) / 1e9 / float64(x.OutputTokens.V-1)
	}
	return t
}

// smallest stands for a coefficient of zero where logarithms are taken, in seconds.
const smallest = 1e-12

func exponentials(v []float64) engine.Coefficients {
	return engine.Coefficients{Fixed: math.Exp(v[0]), PerPrefill: math.Exp(v[1]), PerDecode: math.Exp(v[2]), PerContext: math.Exp(v[3])}
}

func logarithms(c engine.Coefficients) []float64 {
	v := []float64{c.Fixed, c.PerPrefill, c.PerDecode, c.PerContext}
	for i := range v {
		v[i] = math.Log(max(v[i], smallest))
	}
	return v
}

// distance is the mean of |ln(simulated ÷ measured)| of TTFT plus that of TPOT.
func distance(measured, got []timing) float64 {
	var sum [2]float64
	var n [2]int
	for i, m := range measured {
		if i >= len(got) {
			break
		}
		for k, pair := range [2][2]float64{{m.ttft, got[i].ttft}, {m.tpot, got[i].tpot}} {
			if pair[0] > 0 && pair[1] > 0 {
				sum[k] += math.Abs(math.Log(pair[1] / pair[0]))
				n[k]++
			}
		}
	}
	d := 0.0
	for k := range sum {
		if n[k] > 0 {
			d += sum[k] / float64(n[k])
		}
	}
	return d
}

// compare reports the errors of a simulation.
func compare(measured, got []timing) (f Errors) {
	var errs, want, have [2][]float64
	for i, m := range measured {
		if i >= len(got) || m.ttft <= 0 || got[i].ttft <= 0 {
			continue
		}
		f.Requests++
		for k, pair := range [2][2]float64{{m.ttft, got[i].ttft}, {m.tpot, got[i].tpot}} {
			if pair[0] > 0 && pair[1] > 0 {
				errs[k] = append(errs[k], math.Abs(pair[1]/pair[0]-1))
				want[k], have[k] = append(want[k], pair[0]), append(have[k], pair[1])
			}
		}
	}
	f.TTFTMedian, f.TTFTP90 = quantile(errs[0], 0.5), quantile(errs[0], 0.9)
	f.TPOTMedian, f.TPOTP90 = quantile(errs[1], 0.5), quantile(errs[1], 0.9)
	ratio := func(k int, p float64) float64 {
		if len(want[k]) == 0 {
			return 0
		}
		return quantile(have[k], p)/quantile(want[k], p) - 1
	}
	f.TTFTQuantile.P50, f.TTFTQuantile.P99 = ratio(0, 0.5), ratio(0, 0.99)
	f.TPOTQuantile.P50, f.TPOTQuantile.P99 = ratio(1, 0.5), ratio(1, 0.99)
	return f
}

// simplexSize is the first simplex's, in logarithms.
const simplexSize = 0.05

// descend minimizes f by the simplex method (Nelder and Mead 1965, with their coefficients) and returns the best point and the number of evaluations.
func descend(f func([]float64) float64, at []float64, evaluations int, stop func() bool) (best []float64, n int) {
	type vertex struct {
		v []float64
		f float64
	}
	eval := func(v []float64) vertex {
		n++
		return vertex{v, f(v)}
	}
	d := len(at)
	s := []vertex{eval(at)}
	for i := range at {
		v := append([]float64(nil), at...)
		v[i] += simplexSize
		s = append(s, eval(v))
	}
	blend := func(a, b []float64, w float64) []float64 { // a + w (b - a)
		v := make([]float64, d)
		for i := range v {
			v[i] = a[i] + w*(b[i]-a[i])
		}
		return v
	}
	for n < evaluations && !stop() {
		sort.SliceStable(s, func(i, j int) bool { return s[i].f < s[j].f })
		if s[d].f-s[0].f < 1e-7*(s[0].f+1e-9) {
			break
		}
		center := make([]float64, d)
		for _, x := range s[:d] {
			for i := range center {
				center[i] += x.v[i] / float64(d)
			}
		}
		worst := s[d]
		reflected := eval(blend(worst.v, center, 2))
		switch {
		case reflected.f < s[0].f:
			if expanded := eval(blend(worst.v, center, 3)); expanded.f < reflected.f {
				reflected = expanded
			}
			s[d] = reflected
		case reflected.f < s[d-1].f:
			s[d] = reflected
		default:
			w := 0.5
			if reflected.f < worst.f {
				w = 1.5
			}
			if contracted := eval(blend(worst.v, center, w)); contracted.f < min(worst.f, reflected.f) {
				s[d] = contracted
				break
			}
			for i := 1; i <= d; i++ {
				s[i] = eval(blend(s[0].v, s[i].v, 0.5))
			}
		}
	}
	sort.SliceStable(s, func(i, j int) bool { return s[i].f < s[j].f })
	return s[0].v, n
}

// quantile sorts v; it is 0 where there is nothing.
func quantile(v []float64, p float64) float64 {
	if len(v) == 0 {
		return 0
	}
	sort.Float64s(v)
	return stats.Quantile(v, p)
}
