package analyzer

import (
	"path/filepath"
	"reflect"
	"testing"

	"github.com/shadowtape/shadowtape/formats"
)

// Several row groups are read at once; what comes out is what one pass over whole rows gives, and every scanned column is set.
func TestParallelReadIsTheSame(t *testing.T) {
	if testing.Short() {
		t.Skip("skipped by -short: writes a trace of two row groups")
	}
	where := filepath.Join(t.TempDir(), "t.parquet")
	writeTimed(t, where, 140_000)
	r, err := OpenRun(where)
	if err != nil {
		t.Fatal(err)
	}
	if parts := len(r.trace.Split(3)); parts < 2 {
		t.Fatalf("%d part: nothing is read in parallel", parts)
	}
	tallies := make([]*tally, 3)
	if err := r.each(metricColumns, 3, func(w int) func(*formats.Exchange) { tallies[w] = newTally(Options{}); return tallies[w].add }); err != nil {
		t.Fatal(err)
	}
	whole := newTally(Options{})
	for x, err := range r.trace.All(metricColumns...) {
		if err != nil {
			t.Fatal(err)
		}
		whole.add(x)
	}
	for _, p := range tallies[1:] {
		if p != nil {
			tallies[0].merge(p)
		}
	}
	if !reflect.DeepEqual(tallies[0].window, whole.window) {
		t.Errorf("%+v, want %+v", tallies[0].window, whole.window)
	}
	for i := range metrics {
		a, b := &tallies[0].samples[i], &whole.samples[i]
		if a.N() != b.N() || a.N() > 0 && (a.Quantile(0.5) != b.Quantile(0.5) || a.Quantile(0.99) != b.Quantile(0.99) || a.Max() != b.Max()) {
			t.Errorf("%s differs", metrics[i].Name)
		}
	}
}

// A row that is scanned is the row that is read whole, for every column that the analyzer scans.
func TestScannedRowsAreWhole(t *testing.T) {
	where := filepath.Join(t.TempDir(), "t.parquet")
	w, err := formats.Create(where, formats.Header{}, formats.SegmentOptions{})
	if err != nil {
		t.Fatal(err)
	}
	hash := formats.Of(formats.Hash{1, 2, 3})
	for i := range int64(40) {
		x := &formats.Exchange{Phase: formats.PhaseMeasure, ArrivalUnixNS: 1e18 + i}
		if i%2 == 0 {
			x.SourceID, x.ArrivalIndex, x.Loop, x.SessionID, x.TenantID, x.CorrelationID, x.Turn = formats.Of(i), formats.Of(i), formats.Of(int32(i)), hash, hash, hash, formats.Of(int32(3))
			x.SentNS, x.FirstTokenNS, x.FirstContentNS, x.LastTokenNS, x.EndNS, x.ClientDelayUS = formats.Of(i), formats.Of(i+1), formats.Of(i+2), formats.Of(i+3), formats.Of(i+4), formats.Of(i+5)
			x.Endpoint, x.RequestModel, x.ResponseModel, x.ServerID, x.Node, x.Stream, x.Status, x.N = formats.EndpointChat, "m", "n", "s", "node", formats.Of(true), formats.Of(int32(200)), formats.Of(int32(2))
			x.InputTokens, x.OutputTokens, x.CachedTokens, x.InputTokensSource, x.OutputTokensSource = formats.Of(i), formats.Of(i), formats.Of(i), formats.TokensUsage, formats.TokensTrace
			x.EndReason, x.ErrorKind, x.FinishReason, x.Attempt = formats.EndComplete, "e", "stop", formats.Of(int32(2))
			x.ChoiceOutputTokens, x.EventGapUS, x.EventTokens, x.EventChoice, x.EventFlags, x.PrefixBlocks = []int64{1, i}, []int32{0, 5}, []int32{1, 2}, []int32{0, 1}, []int32{0, 3}, []int64{i, 7}
		}
		if i%3 == 0 {
			x.PrefixBlocks, x.EventGapUS = []int64{}, []int32{}
		}
		if err := w.Write(x); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	r, err := OpenRun(where)
	if err != nil {
		t.Fatal(err)
	}
	columns := append(append([]formats.Column{formats.ColExchangeID, formats.ColSourceID, formats.ColArrivalIndex, formats.ColLoop, formats.ColTurn, formats.ColSessionID, formats.ColCorrelationID, formats.ColPrefixBlocks, formats.ColCachedTokens, formats.ColAttempt}, metricColumns...), gapColumns...)
	for _, b := range breakdowns {
		columns = append(columns, b.column)
	}
	seen := map[formats.Column]bool{}
	unique := columns[:0:0]
	for _, c := range columns {
		if !seen[c] {
			seen[c] = true
			unique = append(unique, c)
		}
	}
	var want []*formats.Exchange
	for x, err := range r.trace.All(unique...) {
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, x)
	}
	i := 0
	err = r.each(unique, 1, func(int) func(*formats.Exchange) {
		return func(x *formats.Exchange) {
			for k := range reflect.TypeFor[formats.Exchange]().NumField() {
				name := reflect.TypeFor[formats.Exchange]().Field(k).Name
				a, b := reflect.ValueOf(x).Elem().Field(k), reflect.ValueOf(want[i]).Elem().Field(k)
				if a.Kind() == reflect.Slice && a.Len() == 0 && b.Len() == 0 {
					if a.IsNil() != b.IsNil() && name == "PrefixBlocks" {
						t.Errorf("row %d, %s: nil %v, want %v", i, name, a.IsNil(), b.IsNil())
					}
					continue
				}
				if a.Kind() == reflect.Struct && a.NumField() == 2 && !a.Field(1).Bool() && !b.Field(1).Bool() {
					continue // unknown on both sides
				}
				if !reflect.DeepEqual(a.Interface(), b.Interface()) {
					t.Errorf("row %d, %s: %v, want %v", i, name, a, b)
				}
			}
			i++
		}
	})
	if err != nil || i != len(want) {
		t.Fatalf("%d rows of %d: %v", i, len(want), err)
	}
}
