package analyzer

import (
	"slices"
	"testing"

	"github.com/shadowtape/shadowtape/formats"
)

// A stream of four events, two tokens each: the first token 100 ms after the arrival, content from the second event on.
func fourEvents(flags ...int32) *formats.Exchange {
	return &formats.Exchange{
		ExchangeID: 1, Phase: formats.PhaseRecord, EndReason: formats.EndComplete, SentNS: formats.Of[int64](0),
		FirstTokenNS: formats.Of[int64](100e6), FirstContentNS: formats.Of[int64](110e6), LastTokenNS: formats.Of[int64](140e6), EndNS: formats.Of[int64](141e6),
		OutputTokens: formats.Of[int64](8), EventGapUS: []int32{0, 10000, 15000, 15000}, EventTokens: []int32{2, 2, 2, 2}, EventFlags: flags,
	}
}

func TestUntimelyEvents(t *testing.T) {
	const lost, again, echo, coalesced = formats.FlagGap, formats.FlagRetransmit, formats.FlagEcho, formats.FlagCoalesced
	all := map[string]int64{"ttft": 1, "ttft_from_send": 1, "ttfc": 1, "ttfc_from_send": 1, "tpot": 1, "itl": 6, "event_gap": 3, "e2el": 1, "e2el_from_send": 1}
	for _, c := range []struct {
		name  string
		flags []int32
		less  map[string]int64 // samples that are left out
	}{
		{"clean", nil, nil},
		{"reasoning and tools are timely", []int32{formats.FlagReasoning, formats.FlagReasoning, 0, formats.FlagTool}, nil},
		{"the prompt, repeated", []int32{echo, 0, 0, 0}, map[string]int64{"ttft": 1, "ttft_from_send": 1, "tpot": 1, "itl": 2, "event_gap": 1}},
		{"first sent again", []int32{again, 0, 0, 0}, map[string]int64{"ttft": 1, "ttft_from_send": 1, "tpot": 1, "itl": 2, "event_gap": 1}},
		{"lost before the first", []int32{lost, 0, 0, 0}, map[string]int64{"ttft": 1, "ttft_from_send": 1, "tpot": 1}},
		{"content sent again", []int32{0, again, 0, 0}, map[string]int64{"ttfc": 1, "ttfc_from_send": 1, "itl": 4, "event_gap": 2}},
		{"lost in the middle", []int32{0, 0, lost, 0}, map[string]int64{"itl": 2, "event_gap": 1}},
		{"last sent again", []int32{0, 0, 0, again}, map[string]int64{"tpot": 1, "itl": 2, "event_gap": 1, "e2el": 1, "e2el_from_send": 1}},
		{"together with the one before", []int32{0, 0, coalesced, 0}, map[string]int64{"itl": 2, "event_gap": 1}},
	} {
		x := fourEvents(c.flags...)
		for name, n := range all {
			m, _ := MetricNamed(name)
			got := int64(0)
			m.Samples(x, func(_, weight float64) { got += int64(weight) })
			if want := n - c.less[name]; got != want {
				t.Errorf("%s: %s has %d samples, want %d", c.name, name, got, want)
			}
			left := c.less[name]
			if name == "itl" { // gaps are counted, of two tokens each
				left /= 2
			}
			if o := m.Omitted(x); o != left {
				t.Errorf("%s: %s says that it leaves out %d, want %d", c.name, name, o, left)
			}
		}
	}
}

// Of two choices only that one is left out whose own events are untimely.
func TestUntimelyChoice(t *testing.T) {
	x := fourEvents(0, formats.FlagEcho, 0, 0)
	x.N, x.EventChoice, x.ChoiceOutputTokens = formats.Of[int32](2), []int32{0, 1, 0, 1}, []int64{4, 4}
	m, _ := MetricNamed("tpot")
	var got []float64
	m.Samples(x, func(v, _ float64) { got = append(got, v) })
	if !slices.Equal(got, []float64{12.5}) || m.Omitted(x) != 1 {
		t.Errorf("tpot %v, %d left out: want the first choice's 12.5 and one left out", got, m.Omitted(x))
	}
}

// A summary and a diff read the flags from the trace, and say what they left out.
func TestUntimelyIsSaid(t *testing.T) {
	dir := t.TempDir() + "/t"
	w, err := formats.Create(dir, formats.Header{SourceKind: "pcap", TimeBase: "absolute"}, formats.SegmentOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for id := range int64(10) {
		x := fourEvents()
		if id < 3 {
			x = fourEvents(formats.FlagRetransmit, 0, 0, 0)
			x.FirstTokenNS = formats.Of[int64](139e6) // 200 ms late would be believed
		}
		x.ExchangeID, x.ArrivalUnixNS, x.SourceID = id+1, 1e18+id*1e9, formats.Of(id+1)
		if err := w.Write(x); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	r, err := OpenRun(dir)
	if err != nil {
		t.Fatal(err)
	}
	s, err := Summarize(r, Options{NoModels: true})
	if err != nil {
		t.Fatal(err)
	}
	if f := s.Metrics["ttft"]; f.N != 7 || f.Omitted != 3 || f.Max.V != 100 {
		t.Errorf("ttft of %d, %d left out, up to %v ms", f.N, f.Omitted, f.Max.V)
	}
	const said = "ttft leaves out 3 first tokens touched by a retransmission or a loss, or that may be the echoed prompt"
	if !slices.Contains(s.Warnings, said) {
		t.Errorf("warnings %q do not say %q", s.Warnings, said)
	}
	side, err := loadComparable(r, CompareOptions{})
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, q := range side.byID {
		if v := q.values[slices.Index(pairedMetrics, slices.IndexFunc(metrics, func(m Metric) bool { return m.Name == "ttft" }))]; v == v {
			n++
		}
	}
	if n != 7 {
		t.Errorf("a diff pairs %d first tokens, want 7", n)
	}
}
