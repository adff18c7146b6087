package experiment

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/shadowtape/shadowtape/analyzer"
	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/stats"
	"github.com/shadowtape/shadowtape/internal/virtual"
)

// Virtual launches simulated servers in virtual time, so that a gate can be tried on hundreds of experiments. Each launch draws its own
// noise. Its Launch is safe for concurrent use.
type Virtual struct {
	Rows            []*formats.Exchange // of the trace, in order
	Header          formats.Header
	Base, Candidate virtual.Options // Seed, Sample and Header are set
	Seed            uint64
	Saturate        int        // requests of the saturated phase, all at once; 0: none
	Rates           RateSearch // for the highest rate within SLO
	SLO             []analyzer.Limit
}

// Launch simulates one leg.
func (v *Virtual) Launch(ctx context.Context, l Leg) (*Measured, error) {
	o := v.Base
	side := uint64(1)
	if l.Arm == Candidate {
		o, side = v.Candidate, 2
	}
	o.Seed = stats.Mix(v.Seed + stats.Mix(uint64(l.Pair)<<20|uint64(l.Try)<<8|side))
	o.Header, o.Sample = v.Header, time.Second
	rows, server, st, err := v.play(ctx, o, v.Rows)
	if err != nil {
		return nil, err
	}
	m := &formats.Manifest{Schema: 1, Label: l.Name(), Kind: "simulate", Seed: int64(o.Seed >> 1), TracePath: "virtual", TraceSHA256: "virtual", Model: o.Profile.Model, Valid: true,
		StartUnixNS: st.StartUnixNS, EndUnixNS: st.EndUnixNS, Requests: st.RequestCounts,
		Options: map[string]any{"slowdown": map[string]any{"prefill": o.Slowdown.Prefill, "decode": o.Slowdown.Decode}, "profile": map[string]any{"name": o.Profile.Name, "pages": o.Profile.Pages,
			"max_num_seqs": o.Profile.MaxSeqs, "token_budget": o.Profile.TokenBudget}}}
	out, err := measure(l.Name(), analyzer.RunOf(l.Name(), m, rows, server), sequence(rows), LoadOptions{SLO: v.SLO})
	if err != nil || v.Saturate == 0 {
		return out, err
	}
	burst := make([]*formats.Exchange, min(v.Saturate, len(v.Rows)))
	for i := range burst {
		x := *v.Rows[i]
		x.ArrivalUnixNS = v.Rows[0].ArrivalUnixNS
		burst[i] = &x
	}
	o.Sample = 0
	rows, _, _, err = v.play(ctx, o, burst)
	if err != nil {
		return nil, err
	}
	rate, err := saturatedRate(sequence(rows))
	if err != nil {
		return nil, fmt.Errorf("measure the capacity: %w", err)
	}
	out.Run.Figures["capacity"] = rate
	if v.Rates.Step > 0 {
		err = v.rates(ctx, o, out)
	}
	return out, err
}

// rates searches the highest rate within the SLO, each rate on a server that has just begun, as the trace's start allows.
func (v *Virtual) rates(ctx context.Context, o virtual.Options, m *Measured) error {
	first, last := v.Rows[0].ArrivalUnixNS, v.Rows[len(v.Rows)-1].ArrivalUnixNS
	own := float64(len(v.Rows)) / (float64(last-first) / 1e9)
	found, err := findRate(own, v.Rates.attain(), func(rate float64) (float64, error) {
		var in []*formats.Exchange
		for n, i := min(int(rate*v.Rates.Step.Seconds()), 1_000_000), 0; i < n; i++ {
			x := *v.Rows[i%len(v.Rows)]
			x.ArrivalUnixNS = first + int64(float64(x.ArrivalUnixNS-first+int64(i/len(v.Rows))*(last-first))*own/rate)
			in = append(in, &x)
		}
		rows, _, _, err := v.play(ctx, o, in)
		if err != nil {
			return 0, err
		}
		s, err := analyzer.Summarize(analyzer.RunOf("", nil, rows, nil), analyzer.Options{SLO: v.SLO, NoModels: true})
		return s.Aggregates["slo_attainment"].Value.Or(0), err
	})
	if err == nil && found.Rate.Valid {
		m.Run.Figures["slo_rate"] = found.Rate.V
	}
	return err
}

func (v *Virtual) play(ctx context.Context, o virtual.Options, in []*formats.Exchange) (rows []*formats.Exchange, server []formats.ServerSample, st virtual.Stats, err error) {
	st, err = virtual.Run(ctx, sequence(in), o, virtual.Output{
		Exchange: func(x *formats.Exchange) error {
			c := *x
			c.EventGapUS, c.EventTokens, c.EventChoice, c.EventFlags = slices.Clone(x.EventGapUS), slices.Clone(x.EventTokens), slices.Clone(x.EventChoice), slices.Clone(x.EventFlags)
			rows = append(rows, &c)
			return nil
		},
		Server: func(s []formats.ServerSample) error { server = append(server, s...); return nil },
	})
	return rows, server, st, err
}

func sequence(rows []*formats.Exchange) iter.Seq2[*formats.Exchange, error] {
	return func(yield func(*formats.Exchange, error) bool) {
		for _, x := range rows {
			if !yield(x, nil) {
				return
			}
		}
	}
}
