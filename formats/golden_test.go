package formats

import (
	"bufio"
	"encoding/json"
	"os"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestGoldenV1 opens a run that the first version of the format wrote. Its files are never made again: what was recorded once must open
// for ever.
func TestGoldenV1(t *testing.T) {
	f, err := os.Open("testdata/v1/exchanges.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	got := readAll(t, "testdata/v1/run")
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	n := 0
	for ; lines.Scan(); n++ {
		want := &Exchange{}
		if err := json.Unmarshal(lines.Bytes(), want); err != nil {
			t.Fatal(err)
		}
		// Its offsets are any numbers, most of them further away than a clock can show: these are unknown.
		for _, at := range []*Null[int64]{&want.SentNS, &want.RequestEndNS, &want.ResponseHeaderNS, &want.FirstEventNS, &want.FirstTokenNS, &want.FirstContentNS, &want.LastTokenNS, &want.EndNS, &want.DNSNS, &want.ConnectNS, &want.TLSNS} {
			if at.V < -farthest || at.V > farthest {
				*at = Null[int64]{}
			}
		}
		if n < len(got) && !reflect.DeepEqual(want, got[n]) {
			t.Errorf("row %d: %s", n, cmp.Diff(want, got[n]))
		}
	}
	if n != 30 || len(got) != n {
		t.Errorf("%d rows written, %d read", n, len(got))
	}
	tr, err := Open("testdata/v1/run")
	if err != nil {
		t.Fatal(err)
	}
	if m := tr.Manifest; m == nil || m.Label != "golden" || !m.Valid || m.Requests.Completed != 30 {
		t.Errorf("manifest %+v", m)
	}
	if h := tr.Header; h.PrefixBlockSize != 512 || h.HashKeyID != "0123456789abcdef" || h.SourceKind != "replay" {
		t.Errorf("header %+v", h)
	}
	var servers []ServerSample
	for s, err := range tr.ServerSamples() {
		if err != nil {
			t.Fatal(err)
		}
		servers = append(servers, s)
	}
	wantServers := []ServerSample{
		{UnixNS: 1, Target: "http://a:8000", Series: "kv_usage", Labels: `engine="0"`, Value: 0.25},
		{UnixNS: 2, Target: "http://a:8000", Series: "kv_usage", Value: 0.5},
	}
	if d := cmp.Diff(wantServers, servers); d != "" {
		t.Error(d)
	}
	for s, err := range tr.ClientSamples() {
		want := ClientSample{UnixNS: 1, InFlight: 2, Sent: 3, Late: 4, SendLagMaxNS: 5, CPUSeconds: 6.5, GCPauseNS: 7, SchedLatencyNS: 8, Goroutines: 9, HeapBytes: 10}
		if err != nil || s != want {
			t.Errorf("%+v, %v", s, err)
		}
	}
}
