package analyzer

import (
	"bytes"
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/shadowtape/shadowtape/formats"
)

// replayed is a run of n requests of one schedule against a server that takes slow times as long as it should, with its own noise.
func replayed(label string, n int, slow float64, noise uint64) *Run {
	schedule, r := rand.New(rand.NewPCG(1, 1)), rand.New(rand.NewPCG(noise, 2))
	m := &formats.Manifest{Label: label, Kind: "replay", Valid: true, Requests: formats.RequestCounts{Scheduled: int64(n), Sent: int64(n), Completed: int64(n)}}
	var xs []*formats.Exchange
	at, queue := int64(0), 0.0
	for i := range n {
		at += int64(schedule.ExpFloat64() * 100e6)
		in, out := 100+schedule.Int64N(4000), 2+schedule.Int64N(400)
		queue = queue*0.9 + r.NormFloat64()*0.02 // neighbors share a queue
		ttft := (20e6 + float64(in)*20e3) * math.Exp(queue) * slow
		tpot := 10e6 * slow * (1 + 0.01*r.NormFloat64())
		x := &formats.Exchange{
			ExchangeID: int64(i + 1), SourceID: formats.Of(int64(i + 1)), ArrivalIndex: formats.Of(int64(i)), Phase: formats.PhaseMeasure,
			ArrivalUnixNS: int64(noise)*1e15 + at, SentNS: formats.Of(r.Int64N(100e3)), InputTokens: formats.Of(in), OutputTokens: formats.Of(out),
			OutputTokensSource: formats.TokensUsage, FirstTokenNS: formats.Of(int64(ttft)), LastTokenNS: formats.Of(int64(ttft + tpot*float64(out-1))),
			EndReason: formats.EndComplete,
		}
		xs = append(xs, x)
	}
	return RunOf(label, m, xs, nil)
}

func mustCompare(t *testing.T, a, b *Run, o CompareOptions) Diff {
	t.Helper()
	d, err := Compare([]*Run{a}, []*Run{b}, o)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func (d Diff) named(name string) Change {
	for _, c := range d.Metrics {
		if c.Name == name {
			return c
		}
	}
	return Change{}
}

func TestSlowerIsWorse(t *testing.T) {
	d := mustCompare(t, replayed("base", 1000, 1, 3), replayed("candidate", 1000, 1.15, 4), CompareOptions{})
	if d.Verdict != Worse || d.Pairs != 1000 {
		t.Fatalf("verdict %s over %d pairs", d.Verdict, d.Pairs)
	}
	for _, name := range []string{"ttft", "ttft_slow", "tpot", "e2el"} {
		c := d.named(name)
		if c.Verdict != Worse || math.Abs(c.ChangePct.V-15) > 2 || c.Interval[0].V > 15.5 || c.Interval[1].V < 14.5 {
			t.Errorf("%s: %+v", name, c)
		}
		if math.Abs(c.Candidate.V/c.Base.V-1.15) > 0.03 {
			t.Errorf("%s: base %v, candidate %v", name, c.Base, c.Candidate)
		}
	}
	var b bytes.Buffer
	if err := d.Text(&b); err != nil {
		t.Fatal(err)
	}
	for i, l := range strings.Split(b.String(), "\n") {
		if utf8.RuneCountInString(l) > 80 || i > 25 {
			t.Errorf("line %d: %q", i, l)
		}
	}
	if !strings.HasPrefix(b.String(), "WORSE") {
		t.Errorf("the verdict is not first:\n%s", b.String())
	}
	if d := mustCompare(t, replayed("base", 1000, 1.15, 3), replayed("candidate", 1000, 1, 4), CompareOptions{}); d.Verdict != Better {
		t.Errorf("a faster candidate is %s", d.Verdict)
	}
}

func TestTwoStartsOfOneServerAreTheSame(t *testing.T) {
	for seed := range uint64(60) {
		d := mustCompare(t, replayed("base", 400, 1, 10+2*seed), replayed("candidate", 400, 1, 11+2*seed), CompareOptions{Draws: 300})
		if d.Verdict != Same {
			t.Errorf("seed %d: %s: %+v", seed, d.Verdict, d.Metrics)
		}
	}
}

func TestFailuresCount(t *testing.T) {
	a, b := replayed("base", 500, 1, 3), replayed("candidate", 500, 1, 4)
	for i, x := range b.rows {
		if i%20 == 0 {
			x.ErrorKind = formats.ErrorReset
			b.Manifest.Requests.Completed--
			b.Manifest.Requests.Failed++
		}
	}
	d := mustCompare(t, a, b, CompareOptions{})
	if c := d.named("error_rate"); d.Verdict != Worse || c.Verdict != Worse || c.ChangePct.V != 5 {
		t.Errorf("%s, %+v", d.Verdict, c)
	}
}

// A request that the client dropped has not failed; but two replays differ by what they dropped, and the latencies of the rest do not say so.
func TestDropsCount(t *testing.T) {
	a, b := replayed("base", 500, 1, 3), replayed("candidate", 500, 0.8, 4)
	drop := func(s *Run) {
		for i, x := range s.rows {
			if i%20 == 0 {
				*x = formats.Exchange{ExchangeID: x.ExchangeID, SourceID: x.SourceID, ArrivalIndex: x.ArrivalIndex, Phase: x.Phase, ArrivalUnixNS: x.ArrivalUnixNS,
					ErrorKind: formats.ErrorMaxInFlight, EndReason: formats.EndNotSent}
			}
		}
		s.Manifest.Requests.Sent, s.Manifest.Requests.Completed, s.Manifest.Requests.Dropped = 475, 475, 25
	}
	drop(b)
	d := mustCompare(t, a, b, CompareOptions{})
	if c := d.named("drop_rate"); d.Verdict != Worse || c.Verdict != Worse || c.ChangePct.V != 5 {
		t.Errorf("%s, %+v", d.Verdict, c)
	}
	if c := d.named("error_rate"); c.Verdict != Same || c.Interval[0].V != 0 || c.Interval[1].V != 0 {
		t.Errorf("nothing failed: %+v", c)
	}
	drop(a)
	if c := mustCompare(t, a, b, CompareOptions{}).named("drop_rate"); c.Verdict != Same || c.ChangePct.V != 0 {
		t.Errorf("both dropped the same: %+v", c)
	}
	a.Manifest = nil // a recording: what its replay could not ask again is nobody's fault
	if c := mustCompare(t, a, b, CompareOptions{}).named("drop_rate"); c.Gates {
		t.Errorf("drops of a replay decide against its recording: %+v", c)
	}
}

func TestARecordingIsABaseline(t *testing.T) {
	recording := replayed("recording", 300, 1, 3)
	recording.Manifest = nil
	for _, x := range recording.rows {
		x.Phase, x.ArrivalIndex, x.SourceID = formats.PhaseRecord, formats.Null[int64]{}, formats.Null[int64]{}
	}
	d := mustCompare(t, recording, replayed("candidate", 300, 1.2, 4), CompareOptions{})
	if d.Verdict != Worse || d.Pairs != 300 {
		t.Errorf("verdict %s over %d pairs", d.Verdict, d.Pairs)
	}
}

func TestInvalidAndIncomparable(t *testing.T) {
	a, b := replayed("base", 200, 1, 3), replayed("candidate", 200, 1.5, 4)
	b.Manifest.Valid, b.Manifest.Invalid = false, []string{"late"}
	if d := mustCompare(t, a, b, CompareOptions{}); d.Verdict != Invalid {
		t.Errorf("an invalid side gives %s", d.Verdict)
	}
	if d := mustCompare(t, a, b, CompareOptions{AllowInvalid: true}); d.Verdict != Worse {
		t.Errorf("an accepted invalid side gives %s", d.Verdict)
	}
	for name, change := range map[string]func(*formats.Exchange){
		"other times":   func(x *formats.Exchange) { x.ArrivalUnixNS += x.ArrivalIndex.V * 1e9 },
		"other lengths": func(x *formats.Exchange) { x.InputTokens.V *= 2 },
		"other place":   func(x *formats.Exchange) { x.ArrivalIndex.V += 1000 },
	} {
		b := replayed("candidate", 200, 1, 4)
		for _, x := range b.rows {
			change(x)
		}
		_, err := Compare([]*Run{a}, []*Run{b}, CompareOptions{})
		if !errors.Is(err, ErrIncomparable) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if d := mustCompare(t, a, a, CompareOptions{}); d.Verdict != Same {
		t.Errorf("a run against itself is %s", d.Verdict)
	}
}

func TestWeightedQuantileIsTheExpandedOne(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	for range 300 {
		n, blocks := 1+r.IntN(40), 1+r.IntN(6)
		x, times := make([]blockValue, n), make([]int32, blocks)
		for i := range x {
			x[i] = blockValue{float64(r.IntN(30)), int32(r.IntN(blocks))}
		}
		for i := range times {
			times[i] = int32(r.IntN(4))
		}
		sortBlockValues(x)
		var all []float64
		for _, v := range x {
			for range times[v.block] {
				all = append(all, v.v)
			}
		}
		p := r.Float64()
		got := weightedQuantile(x, times, p)
		if len(all) == 0 {
			if !math.IsNaN(got) {
				t.Fatalf("the quantile of nothing is %v", got)
			}
			continue
		}
		h := float64(len(all)-1) * p
		lo := int(h)
		want := all[lo]
		if lo+1 < len(all) {
			want += (h - float64(lo)) * (all[lo+1] - all[lo])
		}
		if math.Abs(got-want) > 1e-9 {
			t.Fatalf("%v of %v: %v, want %v", p, all, got, want)
		}
	}
}

// One stall makes a few requests of one moment slow: no interval can be put around that, so it is no verdict.
func TestOneIncidentIsNoVerdict(t *testing.T) {
	a, b := replayed("base", 600, 1, 3), replayed("candidate", 600, 1, 4)
	for _, x := range b.rows[300:330] {
		x.FirstTokenNS.V += 2e9
		x.LastTokenNS.V += 2e9
	}
	d := mustCompare(t, a, b, CompareOptions{})
	if c := d.named("ttft_slow"); c.Verdict != Same || c.Interval[0].Valid {
		t.Errorf("%+v", c)
	}
}

func TestATraceWithoutTimesIsNoBaseline(t *testing.T) {
	a, b := replayed("trace", 50, 1, 3), replayed("candidate", 50, 1, 4)
	a.Manifest = nil
	for _, x := range a.rows {
		x.Phase, x.FirstTokenNS, x.LastTokenNS, x.EndReason = formats.PhaseRecord, formats.Null[int64]{}, formats.Null[int64]{}, ""
	}
	if _, err := Compare([]*Run{a}, []*Run{b}, CompareOptions{}); !errors.Is(err, ErrIncomparable) || !strings.Contains(err.Error(), "trace does not say") {
		t.Errorf("%v", err)
	}
}
