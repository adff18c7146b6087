package recorder

import (
	"context"
	"math"
	"slices"
	"testing"

	"github.com/shadowtape/shadowtape/formats"
)

// collect is a sink in memory.
type collect []*formats.Exchange

func (c *collect) Write(x *formats.Exchange) error { *c = append(*c, x); return nil }

// record reads capture files and checks that everything seen is accounted for.
func record(t testing.TB, names ...string) ([]*formats.Exchange, Stats) {
	t.Helper()
	var c collect
	st, err := Record(context.Background(), &Files{Names: names, Key: []byte("key")}, &c, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if st.Seen != st.Filtered+st.Dropped+st.Written || int(st.Written) != len(c) {
		t.Fatalf("counters do not add up: %+v", st)
	}
	return c, st
}

func near(t *testing.T, what string, ns int64, ms float64) {
	t.Helper()
	if math.Abs(float64(ns)/1e6-ms) > 0.01 {
		t.Errorf("%s %.3f ms, want %.3f", what, float64(ns)/1e6, ms)
	}
}

func TestStreamCapture(t *testing.T) {
	xs, st := record(t, "testdata/openai_stream_usage.pcap")
	if len(xs) != 1 || st.Packets != 1034 {
		t.Fatalf("%d exchanges, %d packets", len(xs), st.Packets)
	}
	x := xs[0]
	near(t, "first token", x.FirstTokenNS.V, 30.810)
	near(t, "last token", x.LastTokenNS.V, 2348.341)
	if x.InputTokens.V != 18 || x.OutputTokens.V != 512 || len(x.EventGapUS) != 512 || x.FinishReason != "length" || x.EndReason != formats.EndComplete || x.ErrorKind != "" {
		t.Errorf("%+v", x)
	}
	gaps := slices.Sorted(slices.Values(x.EventGapUS[1:]))
	near(t, "median gap", int64(gaps[255])*1000, 4.542)
	if x.Endpoint != formats.EndpointChat || !x.Stream.V || x.MaxTokens.V != 512 || x.Temperature.V != 0.2 || x.TopP.V != 1 || x.RequestModel != "Qwen3.6-0.8B" ||
		x.ServerID != "127.0.0.1:8000" || x.MessageCount.V != 1 || x.ConnReused.V || x.GapBytes.Valid || x.Retransmits.Valid || x.RequestBytes.V != 218 {
		t.Errorf("%+v", x)
	}
}

func TestNormalCapture(t *testing.T) {
	xs, _ := record(t, "testdata/openai_normal_usage.pcap")
	if len(xs) != 1 {
		t.Fatalf("%d exchanges", len(xs))
	}
	x := xs[0]
	near(t, "end", x.EndNS.V, 2347.85)
	if x.InputTokens.V != 18 || x.OutputTokens.V != 512 || x.Stream.V || x.FirstTokenNS.Valid || x.EventGapUS != nil || x.ResponseBytes.V != 2894 {
		t.Errorf("%+v", x)
	}
}

// TestManyFiles reads rotated files in the wrong order, and the two directions captured apart, as one capture.
func TestManyFiles(t *testing.T) {
	frames := readFrames(t, "testdata/openai_stream_usage.pcap")
	clean, _ := record(t, "testdata/openai_stream_usage.pcap")
	var rotated []string
	for i := 0; i < len(frames); i += 100 {
		rotated = append(rotated, write(t, pcapBytes(linkEthernet, frames[i:min(i+100, len(frames))])))
	}
	slices.Reverse(rotated)
	var side [2][]frame
	for _, f := range frames {
		d := 0
		if f.data[34] == 0x1f { // port 8000
			d = 1
		}
		side[d] = append(side[d], f)
	}
	for name, files := range map[string][]string{
		"rotated":     rotated,
		"a side each": {write(t, pcapBytes(linkEthernet, side[1])), write(t, pcapBytes(linkEthernet, side[0]))},
	} {
		xs, st := record(t, files...)
		if len(xs) != 1 || st.Packets != 1034 {
			t.Fatalf("%s: %d exchanges, %+v", name, len(xs), st)
		}
		if d := difference(clean[0], xs[0], 0); d != "" || flaggedRow(xs[0]) {
			t.Errorf("%s: differs in %s: %+v", name, d, xs[0])
		}
	}
}

// TestArrivalOrder: rows come in the order of arrival though they end in another.
func TestArrivalOrder(t *testing.T) {
	xs, _ := recordFrames(t, traffic(31, 40, 4, 30))
	for i := 1; i < len(xs); i++ {
		if xs[i].ArrivalUnixNS < xs[i-1].ArrivalUnixNS {
			t.Fatalf("row %d arrives before row %d", i, i-1)
		}
	}
}
