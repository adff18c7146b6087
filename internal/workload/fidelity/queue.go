package fidelity

import (
	"context"
	"fmt"
	"iter"
	"math"
	"sort"
	"time"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/engine"
	"github.com/shadowtape/shadowtape/internal/stats"
	"github.com/shadowtape/shadowtape/internal/virtual"
)

// Queue is what an engine made of two loads at one degree of utilization.
type Queue struct {
	Load     float64 `json:"load"`
	A        Served  `json:"a"`
	B        Served  `json:"b"`
	TTFTp99  float64 `json:"ttft_p99_ratio"` // B ÷ A
	TTFTp50  float64 `json:"ttft_p50_ratio"`
	Pages    float64 `json:"pages_ratio"`    // of the time-weighted means
	Switches float64 `json:"switches_ratio"` // of the rates
}

// Served is what one load met.
type Served struct {
	TTFTp50  float64 `json:"ttft_p50_s"`
	TTFTp99  float64 `json:"ttft_p99_s"`
	Pages    float64 `json:"pages_mean"`     // time-weighted, of the cache
	Fill     float64 `json:"page_fill_mean"` // tokens in pages ÷ what the pages could hold, at the steps, time-weighted
	Switches float64 `json:"switches_per_s"` // between steps with prefill and steps without
}

// Engine is a queueing check: an engine whose step times are scaled so that the first load keeps it busy for a given share of its span.
type Engine struct {
	Profile engine.Profile
	Header  formats.Header // what prefix blocks are
	scale   float64        // step times ÷ the profile's, at load 1
}

// Rows is a trace that can be read again.
type Rows = iter.Seq2[*formats.Exchange, error]

// Calibrate finds the scale: load 1 is where serving all requests of a at once, as fast as the engine can, takes as long as a's span.
func (e *Engine) Calibrate(ctx context.Context, a Rows) error {
	var first, last int64
	n := 0
	atOnce := func(yield func(*formats.Exchange, error) bool) {
		for x, err := range a {
			if err != nil {
				yield(nil, err)
				return
			}
			if n == 0 {
				first = x.ArrivalUnixNS
			}
			last = x.ArrivalUnixNS
			n++
			y := *x
			y.ArrivalUnixNS = 0
			if !yield(&y, nil) {
				return
			}
		}
	}
	st, err := virtual.Run(ctx, atOnce, virtual.Options{Profile: e.Profile, Header: e.Header}, virtual.Output{})
	if err != nil {
		return fmt.Errorf("queueing check: %w", err)
	}
	took := float64(st.EndUnixNS - st.StartUnixNS)
	if took <= 0 || last <= first {
		return fmt.Errorf("queueing check: the trace spans %d ns and is served in %.0f ns", last-first, took)
	}
	e.scale = float64(last-first) / took
	return nil
}

// Serve runs a load at a degree of utilization, as Calibrate has defined it.
func (e *Engine) Serve(ctx context.Context, rows Rows, load float64) (s Served, err error) {
	f := load * e.scale
	o := virtual.Options{Profile: e.Profile, Header: e.Header, Slowdown: engine.Slowdown{Prefill: f, Decode: f}}
	var ttft []float64
	var pages, tokens, slots, seconds, switches float64
	prefilling := false
	var first, last time.Duration
	_, err = virtual.Run(ctx, rows, o, virtual.Output{
		Exchange: func(x *formats.Exchange) error {
			if x.FirstTokenNS.Valid {
				ttft = append(ttft, float64(x.FirstTokenNS.V)/1e9)
			}
			return nil
		},
		Step: func(_ int, _ int64, st engine.Step) error {
			d := (st.End - st.Start).Seconds()
			if seconds == 0 {
				first = st.Start
			}
			last = st.End
			seconds += d
			pages += float64(st.Pages) * d
			tokens += float64(st.Context+st.Prefill+st.Decode) * d
			slots += float64(st.Pages*e.Profile.PageSize) * d
			if (st.Prefill > 0) != prefilling {
				prefilling = !prefilling
				switches++
			}
			return nil
		},
	})
	if err != nil {
		return s, fmt.Errorf("queueing check: %w", err)
	}
	if len(ttft) == 0 || last <= first {
		return s, fmt.Errorf("queueing check: no request was served with a first token")
	}
	sort.Float64s(ttft)
	s.TTFTp50, s.TTFTp99 = stats.Quantile(ttft, 0.5), stats.Quantile(ttft, 0.99)
	span := (last - first).Seconds()
	s.Pages, s.Switches = pages/span, switches/span
	if slots > 0 {
		s.Fill = math.Min(tokens/slots, 1)
	}
	return s, nil
}

// Ratio compares two servings.
func Ratio(load float64, a, b Served) Queue {
	ratio := func(x, y float64) float64 {
		if x == 0 {
			return 0
		}
		return y / x
	}
	return Queue{Load: load, A: a, B: b, TTFTp99: ratio(a.TTFTp99, b.TTFTp99), TTFTp50: ratio(a.TTFTp50, b.TTFTp50), Pages: ratio(a.Pages, b.Pages), Switches: ratio(a.Switches, b.Switches)}
}

// FIFO is the simplest queue: one server, first come first served, whose time is proportional to the input tokens and adds up to load
// times the span. It returns the sorted times from arrival to the end of service, in seconds.
func (l *Load) FIFO(load float64) []float64 {
	total := 0.0
	for _, n := range l.input {
		total += n
	}
	perToken := load * l.span() / max(total, 1)
	return l.serve(perToken)
}

// FIFOLike is FIFO with the speed that gives the other load the utilization.
func (l *Load) FIFOLike(other *Load, load float64) []float64 {
	total := 0.0
	for _, n := range other.input {
		total += n
	}
	return l.serve(load * other.span() / max(total, 1))
}

func (l *Load) serve(perToken float64) []float64 {
	free := 0.0
	out := make([]float64, len(l.input))
	for i, n := range l.input {
		at := l.at[l.of[i]]
		free = max(free, at) + n*perToken
		out[i] = free - at
	}
	sort.Float64s(out)
	return out
}
