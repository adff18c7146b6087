package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/workload"
	"github.com/shadowtape/shadowtape/internal/workload/fidelity"
)

// queueLoads are the degrees of utilization at which two loads are served.
var queueLoads = []float64{0.5, 0.7, 0.85}

// inspectPair says how far one load is from another.
func (a *app) inspectPair(ctx context.Context, first, second, profile string, asJSON bool) (err error) {
	var loads [2]*fidelity.Load
	var ins [2]requests
	for i, where := range []string{first, second} {
		if ins[i], err = a.openRequests(where, workload.Options{Seed: 1}); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, ins[i].close()) }()
		if loads[i], err = fidelity.Read(ins[i].all); err != nil {
			return fmt.Errorf("%s: %w", where, err)
		}
	}
	r, err := fidelity.Compare(loads[0], loads[1])
	if err != nil {
		return fmt.Errorf("compare %s and %s: %w", first, second, err)
	}
	if profile != "none" {
		f := engineFlags{profile: profile}
		p, _, _, err := f.resolve()
		if err != nil {
			return err
		}
		e := fidelity.Engine{Profile: p, Header: ins[0].header}
		if err := e.Calibrate(ctx, ins[0].all); err != nil {
			return err
		}
		for _, load := range queueLoads {
			var s [2]fidelity.Served
			for i := range s {
				e.Header = ins[i].header
				if s[i], err = e.Serve(ctx, ins[i].all, load); err != nil {
					return err
				}
			}
			r.Queue = append(r.Queue, fidelity.Ratio(load, s[0], s[1]))
		}
	}
	if asJSON {
		return printJSON(a.out, r)
	}
	return pairText(a, first, second, r)
}

// pairText prints a comparison.
func pairText(a *app, first, second string, r fidelity.Report) error {
	var b strings.Builder
	line := func(name, format string, values ...any) {
		fmt.Fprintf(&b, "%-22s "+format+"\n", append([]any{name}, values...)...)
	}
	pair := func(name string, x, y fidelity.Null) {
		if x.Valid || y.Valid {
			line(name, "%10s %10s", cell(x), cell(y))
		}
	}
	fmt.Fprintf(&b, "%s against %s\n", second, first)
	line("", "%10s %10s", "first", "second")
	line("requests", "%10d %10d", r.A.Requests, r.B.Requests)
	line("rate per s", "%10.4g %10.4g", r.A.Rate, r.B.Rate)
	line("gap cv", "%10.4g %10.4g", r.A.GapCV, r.B.GapCV)
	for _, w := range []string{"1s", "10s", "60s", "300s"} {
		pair("idc "+w, r.A.IDC[w], r.B.IDC[w])
	}
	for _, w := range []string{"10s", "60s", "300s"} {
		pair("work idc "+w, r.A.WorkIDC[w], r.B.WorkIDC[w])
	}
	pair("mean length drift 60s", r.A.MeanLengthRatio, r.B.MeanLengthRatio)
	pair("lag-1 of gaps", r.A.GapLag1, r.B.GapLag1)
	pair("lag-1 of work 60s", r.A.WorkLag1, r.B.WorkLag1)
	if r.A.PrefixHits != nil && r.B.PrefixHits != nil {
		line("prefix hits, endless", "%10.4g %10.4g", r.A.PrefixHits["inf"], r.B.PrefixHits["inf"])
	}
	pair("turns a session", r.A.Turns, r.B.Turns)
	pair("turn gap p50 s", r.A.Between, r.B.Between)
	pair("turn growth p50 tokens", r.A.Growth, r.B.Growth)
	pair("turns that shrink", r.A.Shrinking, r.B.Shrinking)
	line("distance", "%10s %10s", "KS", "relative")
	for _, d := range []struct {
		name string
		d    *fidelity.Distance
	}{{"gaps", &r.Gaps}, {"input tokens", &r.Input}, {"output tokens", &r.Output}, {"turns a session", r.Turns}, {"turn gaps", r.Between}, {"turn growth", r.Growth}} {
		if d.d != nil {
			line(d.name, "%10.4f %10.4f", d.d.KS, d.d.Wasserstein)
		}
	}
	line("input and output", "%10s", cell(r.Joint))
	if len(r.Queue) > 0 {
		line("served at load", "%10s %10s %8s %8s %8s", "ttft p99", "ttft p99", "ratio", "pages", "switches")
	}
	for _, q := range r.Queue {
		line(fmt.Sprintf("%.2f", q.Load), "%8.3f s %8.3f s %8.3f %8.3f %8.3f", q.A.TTFTp99, q.B.TTFTp99, q.TTFTp99, q.Pages, q.Switches)
	}
	_, err := fmt.Fprint(a.out, b.String())
	return err
}

// cell prints a figure that may be unknown.
func cell(v formats.Null[float64]) string {
	if !v.Valid {
		return "-"
	}
	return fmt.Sprintf("%.4g", v.V)
}
