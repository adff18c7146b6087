package workload

import (
	"encoding/json"
	"math"
	"reflect"
	"sort"
	"testing"

	"github.com/shadowtape/shadowtape/formats"
)

func TestModelsSurviveJSON(t *testing.T) {
	m := windowed()
	data, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	back, err := Parse(data)
	if err != nil || !reflect.DeepEqual(m, back) {
		t.Errorf("%v: %+v", err, back)
	}
}

// TestFillKeepsWhatIsKnown takes lengths and kinds away from a trace and draws them again.
func TestFillKeepsWhatIsKnown(t *testing.T) {
	m := windowed()
	m.Quantum = 0
	rows := generated(t, m, Options{Seed: 9, Seconds: 3000})
	f, err := m.Filler(1, 0)
	if err != nil {
		t.Fatal(err)
	}
	var realOut, drawnOut, realIn, drawnIn [3]float64
	var n [3]float64
	part := func(in int64) int { return sort.SearchInts([]int{500, 2000}, int(in)) }
	for i, x := range rows {
		lacking := *x
		lacking.Drawn = formats.Null[int64]{}
		switch i % 4 {
		case 0:
			lacking.OutputTokens = formats.Null[int64]{}
		case 1:
			lacking.InputTokens = formats.Null[int64]{}
		case 2:
			lacking.Temperature, lacking.Endpoint, lacking.RequestModel, lacking.Stream = formats.Null[float64]{}, "", "", formats.Null[bool]{}
		}
		y := lacking
		drawn := f.Fill(&y)
		switch i % 4 {
		case 0:
			if drawn&formats.DrawnOutput == 0 || y.InputTokens != x.InputTokens || y.OutputTokensSource != formats.TokensDrawn {
				t.Fatalf("%+v became %+v (%b)", lacking, y, drawn)
			}
			k := part(x.InputTokens.V)
			realOut[k] += float64(x.OutputTokens.V)
			drawnOut[k] += float64(y.OutputTokens.V)
			n[k]++
		case 1:
			if drawn&formats.DrawnInput == 0 || y.OutputTokens != x.OutputTokens {
				t.Fatalf("%+v became %+v (%b)", lacking, y, drawn)
			}
			k := sort.SearchInts([]int{50, 300}, int(x.OutputTokens.V))
			realIn[k] += float64(x.InputTokens.V)
			drawnIn[k] += float64(y.InputTokens.V)
		case 2:
			if drawn&formats.DrawnSampling == 0 || y.Endpoint == "" || y.InputTokens != x.InputTokens || y.OutputTokens != x.OutputTokens {
				t.Fatalf("%+v became %+v (%b)", lacking, y, drawn)
			}
		case 3:
			if drawn != 0 && x.Temperature.Valid {
				t.Fatalf("a complete request was filled: %b", drawn)
			}
		}
		if !reflect.DeepEqual(y.PrefixBlocks, x.PrefixBlocks) || y.SessionID != x.SessionID || y.Turn != x.Turn || y.ArrivalUnixNS != x.ArrivalUnixNS {
			t.Fatalf("what was known changed: %+v became %+v", lacking, y)
		}
	}
	for k := range n {
		if math.Abs(drawnOut[k]/realOut[k]-1) > 0.2 {
			t.Errorf("part %d: drawn outputs add up to %v, real ones to %v", k, drawnOut[k], realOut[k])
		}
		if math.Abs(drawnIn[k]/realIn[k]-1) > 0.2 {
			t.Errorf("outputs of part %d: drawn inputs add up to %v, real ones to %v", k, drawnIn[k], realIn[k])
		}
	}
}

func TestFillArrivals(t *testing.T) {
	m := windowed()
	f, err := m.Filler(1, 1000e9)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	want := generated(t, m, Options{Seed: 5, Seconds: 200})
	for i := 0; ; i++ {
		x := &formats.Exchange{}
		ok, err := f.Arrival(x, Options{Seed: 5, Seconds: 200})
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			if i != len(want) {
				t.Errorf("%d arrivals, want %d", i, len(want))
			}
			return
		}
		if x.ArrivalUnixNS != 1000e9+want[i].ArrivalUnixNS || x.Drawn.V != formats.DrawnArrival {
			t.Fatalf("arrival %d at %d, want %d", i, x.ArrivalUnixNS, want[i].ArrivalUnixNS)
		}
	}
}

// FuzzParse feeds the model reader: it may refuse, not fail, and what it takes can be generated.
func FuzzParse(f *testing.F) {
	good, err := json.Marshal(windowed())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte(`{"schema":1,"clients":[{"windows":[{"arrival":{"family":"poisson","rate_per_s":1},"lengths":{"input_law":{"family":"fixed","mean":1},"output_law":{"family":"table","values":[1,2]}}}]}]}`))
	f.Add([]byte(`{"schema":1,"seconds":10,"clients":[{"windows":[{"start_s":0,"seconds":10}]}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := Parse(data)
		if err != nil {
			return
		}
		rows, err := m.Generate(Options{Seed: 1, Requests: 20, Seconds: 100})
		if err != nil {
			return
		}
		for range rows {
		}
	})
}
