package formats

import (
	"path/filepath"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRun(t *testing.T) {
	where := filepath.Join(t.TempDir(), "run")
	w, err := CreateRun(where, Manifest{Schema: 1, Kind: "replay", TracePath: "conv", ToolVersion: "v1"})
	if err != nil {
		t.Fatal(err)
	}
	w.SetHeader(Header{SourceKind: "pcap", PrefixBlockUnit: "tokens", PrefixBlockSize: 512, PrefixBlockRule: "ceil", HashKeyID: "k"})
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 100 {
				if err := w.Write(&Exchange{Phase: PhaseMeasure, ArrivalUnixNS: int64(1000*g + i)}); err != nil {
					t.Error(err)
				}
				if err := w.WriteServer([]ServerSample{{UnixNS: int64(i), Target: "t", Series: "s", Labels: `a="x"`, Value: float64(g)}}); err != nil {
					t.Error(err)
				}
				if err := w.WriteClient(ClientSample{UnixNS: int64(i), InFlight: int64(g)}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	m := Manifest{Schema: 1, Kind: "replay", Valid: true, Requests: RequestCounts{Scheduled: 800, Sent: 800, Completed: 800}}
	if err := w.Close(m); err != nil {
		t.Fatal(err)
	}
	tr, err := Open(where)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(&m, tr.Manifest); d != "" {
		t.Error(d)
	}
	if tr.Rows != 800 || tr.Header.SourceKind != "replay" || tr.Header.Source != "conv" || tr.Header.PrefixBlockSize != 512 || tr.Header.HashKeyID != "k" {
		t.Errorf("%d rows, header %+v", tr.Rows, tr.Header)
	}
	ids := map[int64]bool{}
	for x, err := range tr.All(ColExchangeID) {
		if err != nil {
			t.Fatal(err)
		}
		ids[x.ExchangeID] = true
	}
	if len(ids) != 800 {
		t.Errorf("%d distinct exchange ids", len(ids))
	}
	servers, clients, sum := 0, 0, 0.0
	for s, err := range tr.ServerSamples() {
		if err != nil || s.Labels != `a="x"` {
			t.Fatal(s, err)
		}
		servers++
		sum += s.Value
	}
	for _, err := range tr.ClientSamples() {
		if err != nil {
			t.Fatal(err)
		}
		clients++
	}
	if servers != 800 || clients != 800 || sum != 2800 {
		t.Errorf("%d server samples, %d client samples, sum %v", servers, clients, sum)
	}
}

// TestRunWithoutSamples has no series files, and reads as having none.
func TestRunWithoutSamples(t *testing.T) {
	where := filepath.Join(t.TempDir(), "run")
	w, err := CreateRun(where, Manifest{})
	if err != nil {
		t.Fatal(err)
	}
	var unfinished Manifest
	if err := readJSON(directory(where), runFile, &unfinished); err != nil || unfinished.Valid || !unfinished.Interrupted {
		t.Errorf("before Close the manifest is %+v, %v", unfinished, err)
	}
	if err := w.Close(Manifest{Valid: true}); err != nil {
		t.Fatal(err)
	}
	tr, err := Open(where)
	if err != nil {
		t.Fatal(err)
	}
	for range tr.ServerSamples() {
		t.Error("a server sample")
	}
	for range tr.ClientSamples() {
		t.Error("a client sample")
	}
}

// What a run holds in memory before it is in a row group is bounded, well below what a trace's writer may hold.
func TestRunHoldsLittle(t *testing.T) {
	w, err := CreateRun(filepath.Join(t.TempDir(), "run"), Manifest{Schema: 1, Kind: "replay", ToolVersion: "v1"})
	if err != nil {
		t.Fatal(err)
	}
	x := &Exchange{Phase: PhaseMeasure, EventGapUS: make([]int32, 400), EventTokens: make([]int32, 400)}
	most := int64(0)
	for range 4000 {
		if err := w.Write(x); err != nil {
			t.Fatal(err)
		}
		most = max(most, w.exchanges.open.groupBytes)
	}
	if err := w.Close(Manifest{}); err != nil {
		t.Fatal(err)
	}
	if most > runGroupBytes+1<<20 || most < runGroupBytes/2 {
		t.Errorf("%d bytes were held", most)
	}
}
