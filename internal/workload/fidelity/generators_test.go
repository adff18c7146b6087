package fidelity

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/engine"
	"github.com/shadowtape/shadowtape/internal/stats"
	"github.com/shadowtape/shadowtape/internal/workload"
	"github.com/shadowtape/shadowtape/internal/workload/fit"
	"github.com/shadowtape/shadowtape/replayer/schedule"
)

// TestGeneratorsAgainstTraces makes the tables of docs/WORKLOADS.md: each generator against each real trace. It needs the traces
// (SHADOWTAPE_AZURE2023 names the directory of the two Azure files, SHADOWTAPE_MOONCAKE the conversation file) and minutes;
// SHADOWTAPE_GENERATORS names the traces to compare (conv, code, mooncake or all), SHADOWTAPE_MODELS a part of the names of generators (all
// unless told otherwise), SHADOWTAPE_SEEDS the number of seeds (20). Run it with -v -timeout 60m.
func TestGeneratorsAgainstTraces(t *testing.T) {
	azureDir, mooncakeFile := os.Getenv("SHADOWTAPE_AZURE2023"), os.Getenv("SHADOWTAPE_MOONCAKE")
	which := os.Getenv("SHADOWTAPE_GENERATORS")
	if azureDir == "" || mooncakeFile == "" || which == "" {
		t.Skip("SKIPPED: set SHADOWTAPE_GENERATORS=all, SHADOWTAPE_AZURE2023 and SHADOWTAPE_MOONCAKE to compare generators with the whole traces")
	}
	seeds := 20
	if n, err := strconv.Atoi(os.Getenv("SHADOWTAPE_SEEDS")); err == nil {
		seeds = n
	}
	conv := azure(t, filepath.Join(azureDir, "AzureLLMInferenceTrace_conv.csv"))
	code := azure(t, filepath.Join(azureDir, "AzureLLMInferenceTrace_code.csv"))
	talk := mooncake(t, mooncakeFile)
	blocks := formats.Header{PrefixBlockUnit: "tokens", PrefixBlockSize: 512, PrefixBlockRule: "ceil"}
	for _, trace := range []struct {
		name   string
		rows   []*formats.Exchange
		header formats.Header
	}{{"azure2023 conv", conv, formats.Header{}}, {"azure2023 code", code, formats.Header{}}, {"mooncake conversation", talk, blocks}} {
		if which != "all" && !slices.Contains(strings.Fields(trace.name), which) {
			continue
		}
		compareGenerators(t, trace.name, trace.rows, trace.header, seeds)
	}
}

// generators makes the models that are compared.
func generators(t *testing.T, rows []*formats.Exchange, h formats.Header) (names []string, models []*workload.Model) {
	t.Helper()
	fitted := func(o fit.Options) *workload.Model {
		o.Header, o.Fold = h, -1
		m, err := fit.Trace(of(rows), o)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	plain := func(m *workload.Model, family string, cv float64) *workload.Model {
		for i := range m.Clients[0].Windows {
			a := &m.Clients[0].Windows[i].Arrival
			*a = workload.Arrival{Family: family, Rate: a.Rate, CV: cv}
		}
		return m
	}
	cv := read(t, rows).Figures().GapCV
	span := float64(rows[len(rows)-1].ArrivalUnixNS-rows[0].ArrivalUnixNS)/1e9 + 1
	stationary := func() *workload.Model {
		m := fitted(fit.Options{Window: span})
		m.Threads = nil
		return m
	}
	windowed := plain(fitted(fit.Options{Window: 60}), workload.Poisson, 0)
	windowed.Threads = nil
	return []string{"Poisson", "gamma, CV matched", "60 s windows, Poisson", "full model"}, []*workload.Model{
		plain(stationary(), workload.Poisson, 0), plain(stationary(), workload.Gamma, cv), windowed, fitted(fit.Options{})}
}

var loads = []float64{0.5, 0.7, 0.85}

// generator makes a load of a seed.
type generator struct {
	name string
	rows func(seed uint64) ([]*formats.Exchange, error)
}

// fromModel generates from a model, at the ticks of its source or not.
func fromModel(name string, m *workload.Model, ticks bool) generator {
	return generator{name, func(seed uint64) (rows []*formats.Exchange, err error) {
		generated, err := m.Generate(workload.Options{Seed: seed, KeepQuantum: ticks})
		if err != nil {
			return nil, err
		}
		for x := range generated {
			rows = append(rows, x)
		}
		return rows, nil
	}}
}

// spreadTruth is the real trace with arrivals spread over the ticks of its clock, as replay --spread uniform does it.
func spreadTruth(rows []*formats.Exchange, quantum time.Duration) generator {
	return generator{"the real requests, spread over their ticks", func(seed uint64) (out []*formats.Exchange, err error) {
		for a := range schedule.Spread(schedule.FromRows(of(rows)), quantum, int64(seed)) {
			x := *a.Exchange
			x.ArrivalUnixNS = int64(a.At)
			out = append(out, &x)
		}
		return out, nil
	}}
}

func compareGenerators(t *testing.T, name string, rows []*formats.Exchange, h formats.Header, seeds int) {
	truth := read(t, rows)
	p, err := engine.FindProfile("llama-3.1-8b-h100")
	if err != nil {
		t.Fatal(err)
	}
	p.Pages = 30_000 // waiting for the scheduler, not for pages: 256 sequences find room
	if h.PrefixBlockSize > 0 {
		p.Pages = 200_000
	}
	e := Engine{Profile: p, Header: h}
	if err := e.Calibrate(t.Context(), of(rows)); err != nil {
		t.Fatal(err)
	}
	real := map[float64]Served{}
	for _, l := range loads {
		if real[l], err = e.Serve(t.Context(), of(rows), l); err != nil {
			t.Fatal(err)
		}
	}
	f, r := truth.Figures(), real[0.7]
	t.Logf("%s: %d requests. Real: IDC %.3g / %.3g / %.3g / %.3g, gap lag-1 %.3f, drift %.3g, work IDC %.3g / %.3g, work lag-1 %.3g; engine p99 TTFT %.3g / %.3g / %.3g s; at 0.7: %.0f pages, fill %.3f, %.3g switches a second",
		name, f.Requests, f.IDC["1s"].V, f.IDC["10s"].V, f.IDC["60s"].V, f.IDC["300s"].V, f.GapLag1.V, f.MeanLengthRatio.V, f.WorkIDC["10s"].V, f.WorkIDC["60s"].V, f.WorkLag1.V,
		real[0.5].TTFTp99, real[0.7].TTFTp99, real[0.85].TTFTp99, r.Pages, r.Fill, r.Switches)
	t.Log("\n| generator | KS gaps/in/out | W gaps/in/out | joint | hits | IDC 1/10/60/300 s | gap lag-1 | drift | work IDC 10/60 s | work lag-1 |" +
		"\n| generator | FIFO .5/.7/.85 | engine .5/.7/.85 | pages | fill | switches |\n")
	names, models := generators(t, rows, h)
	var all []generator
	for i, m := range models {
		all = append(all, fromModel(names[i], m, false))
		if m.Quantum > 0 && i >= 2 {
			all = append(all, fromModel(names[i]+", ticks kept", m, true))
		}
		if m.Quantum > 0 && i == len(models)-1 {
			all = append(all, spreadTruth(rows, time.Duration(m.Quantum*1e9)))
		}
	}
	only := os.Getenv("SHADOWTAPE_MODELS")
	for _, g := range all {
		if only == "" || strings.Contains(g.name, only) {
			t.Log("\n" + row(t, g, truth, &e, real, seeds))
		}
	}
}

// row runs one generator over all seeds and returns its medians, as a line of each table.
func row(t *testing.T, g generator, truth *Load, e *Engine, real map[float64]Served, seeds int) string {
	reports := make([]Report, seeds)
	fifo, served := map[float64][]float64{}, map[float64][]float64{}
	for _, load := range loads {
		fifo[load], served[load] = make([]float64, seeds), make([]float64, seeds)
	}
	pages, fill, switches := make([]float64, seeds), make([]float64, seeds), make([]float64, seeds)
	one := func(seed int) error {
		rows, err := g.rows(uint64(seed + 1))
		if err != nil {
			return err
		}
		l, err := Read(of(rows))
		if err != nil {
			return err
		}
		if reports[seed], err = Compare(truth, l); err != nil {
			return err
		}
		for _, load := range loads {
			fifo[load][seed] = stats.Quantile(l.FIFOLike(truth, load), 0.99) / stats.Quantile(truth.FIFO(load), 0.99)
			s, err := e.Serve(t.Context(), of(rows), load)
			if err != nil {
				return err
			}
			q := Ratio(load, real[load], s)
			served[load][seed] = q.TTFTp99
			if load == 0.7 {
				pages[seed], fill[seed], switches[seed] = q.Pages, s.Fill/real[load].Fill, q.Switches
			}
		}
		return nil
	}
	var all sync.WaitGroup
	slots := make(chan struct{}, runtime.GOMAXPROCS(0))
	for seed := range seeds {
		slots <- struct{}{}
		all.Go(func() {
			if err := one(seed); err != nil {
				t.Error(err)
			}
			<-slots
		})
	}
	all.Wait()
	if t.Failed() {
		t.FailNow()
	}
	middle := func(pick func(r Report) float64) float64 {
		v := make([]float64, len(reports))
		for i, r := range reports {
			v[i] = pick(r)
		}
		return median(v)
	}
	hits := "-"
	if truth.blocks {
		if hits = "none shared"; reports[0].Hits.Valid {
			hits = fmt.Sprintf("%.3f", middle(func(r Report) float64 { return r.Hits.V }))
		}
	}
	return fmt.Sprintf("| %s | %.3f / %.3f / %.3f | %.3f / %.3f / %.3f | %.3f | %s | %.3g / %.3g / %.3g / %.3g | %.2f | %.3g | %.3g / %.3g | %.2f |\n", g.name,
		middle(func(r Report) float64 { return r.Gaps.KS }), middle(func(r Report) float64 { return r.Input.KS }), middle(func(r Report) float64 { return r.Output.KS }),
		middle(func(r Report) float64 { return r.Gaps.Wasserstein }), middle(func(r Report) float64 { return r.Input.Wasserstein }), middle(func(r Report) float64 { return r.Output.Wasserstein }),
		middle(func(r Report) float64 { return r.Joint.V }), hits,
		middle(func(r Report) float64 { return r.B.IDC["1s"].V }), middle(func(r Report) float64 { return r.B.IDC["10s"].V }), middle(func(r Report) float64 { return r.B.IDC["60s"].V }), middle(func(r Report) float64 { return r.B.IDC["300s"].V }),
		middle(func(r Report) float64 { return r.B.GapLag1.V }), middle(func(r Report) float64 { return r.B.MeanLengthRatio.V }),
		middle(func(r Report) float64 { return r.B.WorkIDC["10s"].V }), middle(func(r Report) float64 { return r.B.WorkIDC["60s"].V }), middle(func(r Report) float64 { return r.B.WorkLag1.V })) +
		fmt.Sprintf("| %s | %.2f / %.2f / %.2f | %.2f / %.2f / %.2f | %.2f | %.3f | %.2f |", g.name,
			median(fifo[0.5]), median(fifo[0.7]), median(fifo[0.85]), median(served[0.5]), median(served[0.7]), median(served[0.85]), median(pages), median(fill), median(switches))
}

func median(v []float64) float64 {
	s := slices.Clone(v)
	slices.Sort(s)
	return stats.Quantile(s, 0.5)
}

func mooncake(t *testing.T, name string) (out []*formats.Exchange) {
	t.Helper()
	file, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var r struct {
			Timestamp int64   `json:"timestamp"`
			Input     int64   `json:"input_length"`
			Output    int64   `json:"output_length"`
			Hashes    []int64 `json:"hash_ids"`
		}
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		out = append(out, &formats.Exchange{ArrivalUnixNS: r.Timestamp * 1e6, InputTokens: formats.Of(r.Input), OutputTokens: formats.Of(r.Output), PrefixBlocks: r.Hashes})
	}
	return out
}
