package schedule

import (
	"fmt"
	"math"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/workload"
)

// written is a trace of n rows on disk.
func written(t *testing.T, h formats.Header, n int, row func(i int) *formats.Exchange) *formats.Trace {
	t.Helper()
	where := filepath.Join(t.TempDir(), "trace")
	w, err := formats.Create(where, h, formats.SegmentOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		if err := w.Write(row(i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	tr, err := formats.Open(where)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tr.Close() })
	return tr
}

// Outputs that a trace does not say are drawn from the others of their window with an input like theirs, marked and counted; what it says
// stays, and every pass draws the same.
func TestFillLengths(t *testing.T) {
	// Short prompts get short answers; in the second ten minutes all answers are ten times as long.
	row := func(i int) *formats.Exchange {
		x := &formats.Exchange{Phase: formats.PhaseRecord, ArrivalUnixNS: int64(i) * int64(time.Second), Endpoint: formats.EndpointChat, Stream: formats.Of(true),
			InputTokens: formats.Of(int64(50)), InputTokensSource: formats.TokensUsage, OutputTokens: formats.Of(int64(20)), OutputTokensSource: formats.TokensUsage}
		if i%2 == 1 {
			x.InputTokens.V, x.OutputTokens.V = 1000, 200
		}
		if i >= 600 {
			x.OutputTokens.V *= 10
		}
		switch {
		case i%7 == 3:
			x.OutputTokens, x.OutputTokensSource = formats.Null[int64]{}, ""
		case i%50 == 20:
			x.InputTokens, x.InputTokensSource = formats.Null[int64]{}, ""
		case i%50 == 21: // its client broke off: there is no length to be had
			x.OutputTokens, x.EndReason = formats.Null[int64]{}, formats.EndClientAbort
		}
		return x
	}
	tr := written(t, formats.Header{SourceKind: "pcap"}, 1200, row)
	f, err := Fill{Seed: 3}.Lacking(tr)
	if err != nil || f == nil || f.Arrivals || len(f.Warnings) != 0 {
		t.Fatalf("%+v, %v", f, err)
	}
	got, again := all(t, f.Apply(FromTrace(tr))), all(t, f.Apply(FromTrace(tr)))
	var d Drawn
	inputs, outputs := int64(0), int64(0)
	for i, a := range got {
		x, want := a.Exchange, row(i)
		d.Add(x)
		if !want.InputTokens.Valid {
			inputs++
		}
		if !want.OutputTokens.Valid && want.EndReason == "" {
			outputs++
		}
		if !reflect.DeepEqual(x, again[i].Exchange) {
			t.Fatalf("row %d: another pass draws %+v, not %+v", i, again[i].Exchange, x)
		}
		drawn := x.Drawn.Or(0)
		if want.OutputTokens.Valid && x.OutputTokens != want.OutputTokens || want.InputTokens.Valid && x.InputTokens != want.InputTokens || x.ArrivalUnixNS != want.ArrivalUnixNS {
			t.Fatalf("row %d: what was known changed", i)
		}
		if x.OutputTokensSource == formats.TokensDrawn != (drawn&formats.DrawnOutput != 0) || x.InputTokensSource == formats.TokensDrawn != (drawn&formats.DrawnInput != 0) {
			t.Fatalf("row %d: marks %b, sources %s and %s", i, drawn, x.InputTokensSource, x.OutputTokensSource)
		}
		if want.EndReason == formats.EndClientAbort && drawn != 0 {
			t.Errorf("row %d: a broken-off answer got a length", i)
		}
		if drawn&formats.DrawnOutput != 0 && (i < 540 || i > 660) { // away from the window in which it changes
			if say := map[bool]int64{false: 20, true: 200}[i%2 == 1] * map[bool]int64{false: 1, true: 10}[i >= 600]; x.InputTokens == want.InputTokens && math.Abs(float64(x.OutputTokens.V-say)) > 0.05*float64(say) {
				t.Errorf("row %d: an output of %d for an input of %d", i, x.OutputTokens.V, x.InputTokens.V)
			}
		}
	}
	if c := d.Counts(); c["output_tokens"] != outputs || c["input_tokens"] != inputs || inputs < 20 || outputs < 150 || len(c) != 2 {
		t.Errorf("drawn: %v", c)
	}
	if want := fmt.Sprintf("%d input lengths, %d output lengths", inputs, outputs); d.String() != want {
		t.Errorf("%q, want %q", d.String(), want)
	}
	if f, err := (Fill{Off: true}).Lacking(tr); f != nil || err != nil {
		t.Errorf("off: %v, %v", f, err)
	}
	if f, err := (Fill{}).Lacking(written(t, formats.Header{}, 10, func(i int) *formats.Exchange { return row(i % 2) })); f != nil || err != nil {
		t.Errorf("nothing is missing: %v, %v", f, err)
	}
}

// A batch has an order and no times: a rate or a model gives it some.
func TestFillArrivals(t *testing.T) {
	batch := written(t, formats.Header{SourceKind: "import:openai-batch", TimeBase: "relative", Extra: map[string]any{"arrivals": "order only"}}, 4000, func(i int) *formats.Exchange {
		return &formats.Exchange{Phase: formats.PhaseRecord, InputTokens: formats.Of(int64(100 + i)), Endpoint: formats.EndpointChat, Stream: formats.Of(false)}
	})
	f, err := Fill{}.Lacking(batch)
	if err != nil || f == nil || f.Arrivals || len(f.Warnings) != 2 { // no times, no outputs
		t.Fatalf("%+v, %v", f, err)
	}
	if got := all(t, f.Apply(FromTrace(batch))); got[3999].At != 0 || got[0].Exchange.Drawn.Valid {
		t.Errorf("without a rate the last is due at %v", got[3999].At)
	}
	if f, err = (Fill{Rate: 8, Seed: 2}).Lacking(batch); err != nil || !f.Arrivals {
		t.Fatalf("%+v, %v", f, err)
	}
	check := func(f *Filling, rate float64, bits int64) {
		t.Helper()
		got := all(t, f.Apply(FromTrace(batch)))
		last, squares := time.Duration(0), 0.0
		for i, a := range got {
			if a.At < last || a.Exchange.InputTokens.V != int64(100+i) || a.Exchange.Drawn.V != bits {
				t.Fatalf("arrival %d at %v after %v, marks %b", i, a.At, last, a.Exchange.Drawn.V)
			}
			squares += math.Pow((a.At-last).Seconds()*rate, 2)
			last = a.At
		}
		if r := float64(len(got)) / last.Seconds(); math.Abs(r/rate-1) > 0.1 {
			t.Errorf("%v a second, want %v", r, rate)
		}
		if squares /= float64(len(got)); math.Abs(squares-2) > 0.4 { // the second moment of an exponential gap
			t.Errorf("gaps of second moment %v", squares)
		}
	}
	check(f, 8, formats.DrawnArrival)
	law, err := workload.ParseArrival("poisson", 20, 0)
	if err != nil {
		t.Fatal(err)
	}
	m, err := workload.Written(law, workload.Length{Family: workload.Fixed, Mean: 64}, workload.Length{Family: workload.Fixed, Mean: 32}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if f, err = (Fill{Model: m}).Lacking(batch); err != nil || !f.Arrivals || len(f.Warnings) != 0 {
		t.Fatalf("%+v, %v", f, err)
	}
	check(f, 20, formats.DrawnArrival|formats.DrawnOutput)
	if x := all(t, f.Apply(FromTrace(batch)))[7].Exchange; x.OutputTokens.V != 32 {
		t.Errorf("an output of %v", x.OutputTokens)
	}
}

// What is not known of an imported request's kind is drawn from the kinds that are; what a recorder saw is whole.
func TestFillKinds(t *testing.T) {
	row := func(i int) *formats.Exchange {
		x := &formats.Exchange{Phase: formats.PhaseRecord, ArrivalUnixNS: int64(i) * int64(time.Second), InputTokens: formats.Of(int64(50)), OutputTokens: formats.Of(int64(20))}
		switch i % 4 {
		case 0:
			x.Endpoint, x.Stream, x.Temperature = formats.EndpointChat, formats.Of(true), formats.Of(0.7)
		case 1:
			x.Endpoint, x.Stream = formats.EndpointCompletions, formats.Of(false) // and no temperature, which is known
		}
		return x
	}
	tr := written(t, formats.Header{SourceKind: "import:jsonl"}, 400, row)
	f, err := Fill{}.Lacking(tr)
	if err != nil || f == nil {
		t.Fatal(f, err)
	}
	kinds := map[formats.Endpoint]int{}
	for i, a := range all(t, f.Apply(FromTrace(tr))) {
		x := a.Exchange
		if i%4 < 2 {
			if x.Drawn.Valid || x.Temperature != row(i).Temperature {
				t.Fatalf("row %d: a known kind was drawn", i)
			}
			continue
		}
		if x.Drawn.V != formats.DrawnSampling || x.Temperature.Valid != (x.Endpoint == formats.EndpointChat) || !x.Stream.Valid {
			t.Fatalf("row %d: %s, stream %v, temperature %v, marks %b", i, x.Endpoint, x.Stream, x.Temperature, x.Drawn.V)
		}
		kinds[x.Endpoint]++
	}
	if n := kinds[formats.EndpointChat]; n < 60 || n > 140 {
		t.Errorf("%v", kinds)
	}
	if f, err := (Fill{}).Lacking(written(t, formats.Header{SourceKind: "pcap"}, 400, row)); f != nil || err != nil {
		t.Errorf("a recording is filled: %+v, %v", f, err)
	}
}
