package fidelity

import (
	"context"
	"encoding/csv"
	"iter"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"testing"
	"time"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/engine"
	"github.com/shadowtape/shadowtape/internal/stats"
)

func of(rows []*formats.Exchange) iter.Seq2[*formats.Exchange, error] {
	return func(yield func(*formats.Exchange, error) bool) {
		for _, x := range rows {
			if !yield(x, nil) {
				return
			}
		}
	}
}

// rows makes requests of a Poisson process with exponential lengths.
func rows(seed uint64, n int, rate float64) []*formats.Exchange {
	rng := rand.New(rand.NewPCG(seed, 9))
	at := 0.0
	out := make([]*formats.Exchange, n)
	for i := range out {
		at += rng.ExpFloat64() / rate
		out[i] = &formats.Exchange{ExchangeID: int64(i + 1), ArrivalUnixNS: int64(at * 1e9), InputTokens: formats.Of(int64(1 + rng.ExpFloat64()*800)), OutputTokens: formats.Of(int64(1 + rng.ExpFloat64()*50))}
	}
	return out
}

func read(t *testing.T, rows []*formats.Exchange) *Load {
	t.Helper()
	l, err := Read(of(rows))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestDistanceAgainstBruteForce(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 50 {
		a, b := make([]float64, 1+rng.IntN(40)), make([]float64, 1+rng.IntN(40))
		for i := range a {
			a[i] = float64(1 + rng.IntN(30))
		}
		for i := range b {
			b[i] = float64(1 + rng.IntN(40))
		}
		below := func(v []float64, x float64) float64 {
			n := 0.0
			for _, y := range v {
				if y <= x {
					n++
				}
			}
			return n / float64(len(v))
		}
		ks, area := 0.0, 0.0
		for x := 0.0; x <= 41; x++ { // whole numbers: the functions are flat between them
			d := math.Abs(below(a, x) - below(b, x))
			ks = max(ks, d)
			area += d
		}
		mean, _ := moments(a)
		got := distance(slices.Clone(a), slices.Clone(b))
		if math.Abs(got.KS-ks) > 1e-12 || math.Abs(got.Wasserstein-area/mean) > 1e-9 {
			t.Fatalf("%+v, brute force %v and %v", got, ks, area/mean)
		}
	}
}

func TestALoadIsNoDistanceFromItself(t *testing.T) {
	l := read(t, rows(1, 3000, 5))
	r, err := Compare(l, l)
	if err != nil {
		t.Fatal(err)
	}
	if r.Gaps != (Distance{}) || r.Input != (Distance{}) || r.Output != (Distance{}) || r.Joint.V != 0 {
		t.Errorf("%+v", r)
	}
}

// TestAPoissonLoadIsPlain checks the figures that are 1 or 0 for independent arrivals and lengths.
func TestAPoissonLoadIsPlain(t *testing.T) {
	f := read(t, rows(2, 60000, 5)).Figures()
	for name, v := range map[string]float64{"idc 1s": f.IDC["1s"].V, "idc 60s": f.IDC["60s"].V, "work 60s": f.WorkIDC["60s"].V, "drift": f.MeanLengthRatio.V, "gap cv": f.GapCV} {
		if math.Abs(v-1) > 0.25 {
			t.Errorf("%s is %v, want about 1", name, v)
		}
	}
	for name, v := range map[string]float64{"gaps": f.GapLag1.V, "inputs": f.InputLag1.V} {
		if math.Abs(v) > 0.02 {
			t.Errorf("lag-1 of %s is %v", name, v)
		}
	}
	if math.Abs(f.Rate-5) > 0.2 || math.Abs(f.InputMean.V-800.5) > 20 {
		t.Errorf("rate %v, mean input %v", f.Rate, f.InputMean.V)
	}
}

func TestOrderDoesNotMatter(t *testing.T) {
	r := rows(3, 500, 5)
	r[17].OutputTokens = formats.Null[int64]{}
	a := read(t, r)
	shuffled := slices.Clone(r)
	shuffled[10], shuffled[11] = shuffled[11], shuffled[10]
	shuffled[16], shuffled[18] = shuffled[18], shuffled[16]
	b := read(t, shuffled)
	if !slices.Equal(a.at, b.at) || !slices.Equal(a.input, b.input) || !slices.Equal(a.of, b.of) {
		t.Error("rows out of order give another load")
	}
}

func TestJointSeesWhatMarginalsDoNot(t *testing.T) {
	a := rows(4, 4000, 5)
	b := make([]*formats.Exchange, len(a))
	var out []int64
	for _, x := range a {
		out = append(out, x.OutputTokens.V)
	}
	slices.Sort(out)
	order := make([]int, len(a))
	for i := range order {
		order[i] = i
	}
	sort.Slice(order, func(i, j int) bool { return a[order[i]].InputTokens.V < a[order[j]].InputTokens.V })
	for rank, i := range order {
		x := *a[i]
		x.OutputTokens = formats.Of(out[rank]) // long prompts get long answers
		b[i] = &x
	}
	r, err := Compare(read(t, a), read(t, b))
	if err != nil {
		t.Fatal(err)
	}
	if r.Output.KS > 1e-9 || r.Joint.V < 0.15 {
		t.Errorf("marginal distance %v, joint distance %v", r.Output.KS, r.Joint.V)
	}
}

// TestSessionsAreDescribed follows two sessions by hand.
func TestSessionsAreDescribed(t *testing.T) {
	a, b := formats.Of(formats.Hash{1}), formats.Of(formats.Hash{2})
	var out []*formats.Exchange
	for i, r := range []struct {
		session formats.Null[formats.Hash]
		input   int64
	}{{a, 100}, {b, 50}, {a, 300}, {b, 80}, {a, 250}, {a, 400}, {a, 700}, {b, 90}, {a, 900}, {a, 150}} {
		out = append(out, &formats.Exchange{ArrivalUnixNS: int64(i) * 1e9, SessionID: r.session, InputTokens: formats.Of(r.input), OutputTokens: formats.Of[int64](5)})
	}
	f := read(t, out).Figures()
	// Changes of the first: 200, -50, 150, 300, 200, -750; of the second: 30, 10. Gaps: 2, 2, 1, 1, 2, 1 and 2, 4.
	if f.Sessions != 2 || f.Turns.V != 5 || f.Between.V != 2 || f.Growth.V != 150 || f.Shrinking.V != 0.25 {
		t.Errorf("%d sessions of %v turns, gap %v, growth %v, shrinking %v", f.Sessions, f.Turns.V, f.Between.V, f.Growth.V, f.Shrinking.V)
	}
	// The same without the first session's last turn, the others twice as far apart: 7 and 3 turns against 6 and 3, gaps doubled.
	var slower []*formats.Exchange
	for i, x := range out[:9] {
		y := *x
		y.ArrivalUnixNS = int64(i) * 2e9
		slower = append(slower, &y)
	}
	slower = append(slower, &formats.Exchange{ArrivalUnixNS: 30e9, InputTokens: formats.Of[int64](1), OutputTokens: formats.Of[int64](1)})
	r, err := Compare(read(t, out), read(t, slower))
	if err != nil {
		t.Fatal(err)
	}
	// Gaps of 1, 1, 1, 2, 2, 2, 2, 4 against 2, 2, 4, 4, 4, 4, 8: the greatest difference is 7/8 - 2/7 at 2; the means are 15/8 and 4, and
	// one is nowhere below the other.
	if r.Turns == nil || r.Turns.KS != 0.5 || math.Abs(r.Turns.Wasserstein-0.1) > 1e-9 {
		t.Errorf("turns: %+v", r.Turns)
	}
	if r.Between == nil || math.Abs(r.Between.KS-(7./8-2./7)) > 1e-9 || math.Abs(r.Between.Wasserstein-(4-15./8)/(15./8)) > 1e-9 {
		t.Errorf("turn gaps: %+v", r.Between)
	}
	if r.Growth == nil || math.Abs(r.Growth.KS-1./8) > 1e-9 {
		t.Errorf("turn growth: %+v", r.Growth)
	}
	if r, err := Compare(read(t, out), read(t, rows(7, 50, 5))); err != nil || r.Turns != nil || r.Between != nil || r.Growth != nil {
		t.Errorf("against a load without sessions: %+v, %v", r, err)
	}
	plain := read(t, rows(7, 50, 5)).Figures()
	if plain.Sessions != 0 || plain.Turns.Valid || plain.Growth.Valid || plain.Shrinking.Valid {
		t.Errorf("sessions where there are none: %+v", plain)
	}
}

// TestQueueIsQuieterWithLess runs the queueing check on a load and on its half.
func TestQueueIsQuieterWithLess(t *testing.T) {
	p, err := engine.FindProfile("llama-3.1-8b-h100")
	if err != nil {
		t.Fatal(err)
	}
	full := rows(5, 600, 5)
	e := Engine{Profile: p}
	if err := e.Calibrate(t.Context(), of(full)); err != nil {
		t.Fatal(err)
	}
	a, err := e.Serve(t.Context(), of(full), 0.8)
	if err != nil {
		t.Fatal(err)
	}
	same, err := e.Serve(context.Background(), of(full), 0.8)
	if err != nil || Ratio(0.8, a, same).TTFTp99 != 1 {
		t.Errorf("the same load differs: %+v and %+v, %v", a, same, err)
	}
	b, err := e.Serve(t.Context(), of(full), 0.3)
	if err != nil {
		t.Fatal(err)
	}
	if q := Ratio(0.3, a, b); q.TTFTp99 >= 1 || q.Pages >= 1 || a.Fill <= 0.5 || a.Fill > 1 || a.Switches <= 0 {
		t.Errorf("%+v", q)
	}
}

// TestFIFOIsTheSingleServerQueue compares with the mean of M/M/1 with exponential lengths.
func TestFIFOIsTheSingleServerQueue(t *testing.T) {
	l := read(t, rows(6, 200000, 10))
	sojourn := l.FIFO(0.5)
	mean, _ := moments(sojourn)
	service := 0.5 / 10
	if want := service / (1 - 0.5); math.Abs(mean/want-1) > 0.05 {
		t.Errorf("mean time %v, want %v", mean, want)
	}
}

// TestAgainstPublishedFigures needs the Azure 2023 files; SHADOWTAPE_AZURE2023 names their directory. The figures were computed by an
// independent program.
func TestAgainstPublishedFigures(t *testing.T) {
	dir := os.Getenv("SHADOWTAPE_AZURE2023")
	if dir == "" {
		t.Skip("SKIPPED: set SHADOWTAPE_AZURE2023 to the directory with the Azure 2023 traces to check the whole files")
	}
	for _, test := range []struct {
		file         string
		idc60, drift float64
		p50, p99     [3]float64 // at 0.5, 0.7 and 0.85
	}{
		{"AzureLLMInferenceTrace_conv.csv", 16.13, 8.829976314, [3]float64{0.114786821, 0.4494505898, 29.12976133}, [3]float64{2.555654936, 92.46949654, 252.6791094}},
		{"AzureLLMInferenceTrace_code.csv", 163.9646885, 1.810367162, [3]float64{14.40476147, 55.06355568, 181.0463673}, [3]float64{89.91475242, 157.8957727, 319.9604402}},
	} {
		l := read(t, azure(t, filepath.Join(dir, test.file)))
		f := l.Figures()
		if math.Abs(f.IDC["60s"].V/test.idc60-1) > 1e-3 || math.Abs(f.MeanLengthRatio.V/test.drift-1) > 1e-6 {
			t.Errorf("%s: IDC %v, drift %v; want %v and %v", test.file, f.IDC["60s"].V, f.MeanLengthRatio.V, test.idc60, test.drift)
		}
		for i, load := range []float64{0.5, 0.7, 0.85} {
			s := l.FIFO(load)
			if p50, p99 := stats.Quantile(s, 0.5), stats.Quantile(s, 0.99); math.Abs(p50/test.p50[i]-1) > 1e-3 || math.Abs(p99/test.p99[i]-1) > 1e-3 {
				t.Errorf("%s at %v: p50 %v and p99 %v, want %v and %v", test.file, load, p50, p99, test.p50[i], test.p99[i])
			}
		}
	}
}

func azure(t *testing.T, name string) (out []*formats.Exchange) {
	t.Helper()
	file, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	lines, err := csv.NewReader(file).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range lines[1:] {
		at, err := time.Parse("2006-01-02 15:04:05.9999999", line[0])
		if err != nil {
			t.Fatal(err)
		}
		in, _ := strconv.ParseInt(line[1], 10, 64)
		o, _ := strconv.ParseInt(line[2], 10, 64)
		out = append(out, &formats.Exchange{ArrivalUnixNS: at.UnixNano(), InputTokens: formats.Of(in), OutputTokens: formats.Of(o)})
	}
	return out
}
