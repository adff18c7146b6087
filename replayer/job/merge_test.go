package job

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/stats"
	"github.com/shadowtape/shadowtape/replayer"
	"github.com/shadowtape/shadowtape/replayer/schedule"
)

const shardStart = 1_800_000_000_000_000_000

// ranRows are the rows of a replay, in the order their answers ended.
func ranRows(n int) []*formats.Exchange {
	r := rand.New(rand.NewPCG(8, 1))
	var rows []*formats.Exchange
	for i := range n {
		x := &formats.Exchange{ExchangeID: int64(i + 1), SourceID: formats.Of(int64(i + 1)), ArrivalIndex: formats.Of(int64(i)), Phase: formats.PhaseMeasure, ArrivalUnixNS: shardStart + int64(i)*int64(7*time.Millisecond),
			Endpoint: formats.EndpointCompletions}
		if i%4 > 0 {
			x.SessionID = formats.Of(formats.Hash{byte(r.IntN(30)), 1})
		}
		switch k := r.IntN(20); {
		case k == 0:
			x.EndReason, x.ErrorKind = formats.EndNotSent, formats.ErrorMaxInFlight
		case k == 1:
			x.EndReason, x.ErrorKind, x.SentNS = formats.EndTimeout, formats.ErrorTimeout, formats.Of(int64(50_000))
		case k == 2:
			x.EndReason, x.PlannedAbort, x.SentNS, x.EndNS = formats.EndClientAbort, formats.Of(true), formats.Of(int64(60_000)), formats.Of(int64(9e6))
		default:
			x.EndReason, x.SentNS, x.FirstTokenNS, x.EndNS = formats.EndComplete, formats.Of(r.Int64N(900_000)), formats.Of(int64(40e6)+r.Int64N(30e6)), formats.Of(int64(90e6)+r.Int64N(500e6))
			x.OutputTokens, x.EventGapUS = formats.Of(int64(4)), []int32{0, 9000, 9100, 8800}
			x.Stream = formats.Of(true)
		}
		rows = append(rows, x)
	}
	slices.SortStableFunc(rows, func(a, b *formats.Exchange) int {
		return int(a.ArrivalUnixNS + a.EndNS.V - b.ArrivalUnixNS - b.EndNS.V)
	})
	return rows
}

// writeShard writes the run of shard i of n of these rows; change may alter its manifest.
func writeShard(t *testing.T, name string, rows []*formats.Exchange, i, n int, change func(*formats.Manifest)) *formats.Trace {
	t.Helper()
	where := filepath.Join(t.TempDir(), name)
	m := formats.Manifest{Schema: 1, Label: name, Kind: "replay", Seed: 3, TraceSHA256: "0123456789abcdef0123456789abcdef", Targets: []string{"http://target"}, Model: "m",
		Options: map[string]any{"speed": 2.0, "request_ids": name, "planned_requests": int64(i)}, StartUnixNS: shardStart, EndUnixNS: shardStart + int64(i)*1e9, Valid: true}
	w, err := formats.CreateRun(where, m)
	if err != nil {
		t.Fatal(err)
	}
	var s replayer.Stats
	g := replayer.NewGathering()
	var rest replayer.Remainder
	for _, x := range rows {
		if n > 1 && schedule.ShardOf(x, n) != i {
			continue
		}
		if err := w.Write(x); err != nil {
			t.Fatal(err)
		}
		if err := g.Row(x, shardStart); err != nil {
			t.Fatal(err)
		}
		if x.EndReason == formats.EndComplete {
			rest.InputError = append(rest.InputError, stats.Bin{Value: float64(x.ExchangeID%5) / 100, N: 1})
			rest.StreamAsked++
			rest.StreamKept++
			rest.Late += x.ExchangeID % 2
		}
	}
	s = g.Done()
	for k := range 5 {
		c := formats.ClientSample{UnixNS: shardStart + int64(k)*1e9 + int64(i), InFlight: int64(10 * i), Sent: int64(k * i), SendLagMaxNS: int64(i * 1000), CPUSeconds: float64(k)}
		if err := w.WriteClient(c); err != nil {
			t.Fatal(err)
		}
		if err := w.WriteServer([]formats.ServerSample{{UnixNS: shardStart + int64(k)*1e9, Target: "http://target", Series: "s", Value: float64(100*i + k)}}); err != nil {
			t.Fatal(err)
		}
	}
	b, err := json.Marshal(rest)
	if err != nil {
		t.Fatal(err)
	}
	m.Requests = s.Requests
	m.Shard = &formats.Shard{Index: i, Of: n, StartAtUnixNS: shardStart, Schedule: int64(len(rows)), Remainder: b, Clocks: []formats.ClockOffset{{Target: "http://target", OffsetMS: float64(i), ErrorMS: 0.5}}}
	if change != nil {
		change(&m)
	}
	if err := w.Close(m); err != nil {
		t.Fatal(err)
	}
	tr, err := formats.Open(where)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// TestMergeIsTheWhole: rows and figures of one run, and of the same rows in shards that are merged, are equal.
func TestMergeIsTheWhole(t *testing.T) {
	rows := ranRows(900)
	merge := func(n int) (formats.Manifest, []*formats.Exchange) {
		var runs []*formats.Trace
		for i := n; i >= 1; i-- { // in any order
			runs = append(runs, writeShard(t, fmt.Sprintf("shard%d", i), rows, i, n, nil))
		}
		out := filepath.Join(t.TempDir(), "whole")
		m, err := Merge(runs, out, "whole", "v", []string{"merge"})
		if err != nil {
			t.Fatal(err)
		}
		tr, err := formats.Open(out)
		if err != nil {
			t.Fatal(err)
		}
		var got []*formats.Exchange
		last := int64(0)
		for x, err := range tr.All() {
			if err != nil {
				t.Fatal(err)
			}
			if end := x.ArrivalUnixNS + x.EndNS.V; end < last {
				t.Fatal("rows are out of the order in which their answers ended")
			} else {
				last = end
			}
			got = append(got, x)
		}
		slices.SortFunc(got, func(a, b *formats.Exchange) int { return int(a.ExchangeID - b.ExchangeID) })
		clients := 0
		for c, err := range tr.ClientSamples() {
			if err != nil {
				t.Fatal(err)
			}
			want := int64(0) // those whose sample is no later than shard 1's
			for i := 1; i <= n; i++ {
				if i == 1 || clients > 0 {
					want += int64(10 * i)
				}
			}
			if c.InFlight != want {
				t.Errorf("of %d shards at %d: %d in flight, want %d", n, clients, c.InFlight, want)
			}
			clients++
		}
		for s, err := range tr.ServerSamples() {
			if err != nil || s.Value >= 200 {
				t.Errorf("a sample of another shard than the first: %+v %v", s, err)
			}
		}
		return m, got
	}
	one, want := merge(1)
	for _, n := range []int{2, 4, 9} {
		m, got := merge(n)
		if d := cmp.Diff(want, got); d != "" {
			t.Fatalf("%d shards: rows: %s", n, d)
		}
		if m.Requests != one.Requests || m.Valid != one.Valid || !slices.Equal(m.Invalid, one.Invalid) || m.EndUnixNS != shardStart+int64(n)*1e9 {
			t.Errorf("%d shards: %+v %v, as one %+v %v", n, m.Requests, m.Invalid, one.Requests, one.Invalid)
		}
		if s := m.Fidelity["start_spread_ms"]; s != float64(n-1) {
			t.Errorf("%d shards began %v ms apart", n, s)
		}
		for k, v := range one.Fidelity {
			if strings.HasPrefix(k, "start_spread") {
				continue
			}
			if d := cmp.Diff(v, m.Fidelity[k]); d != "" {
				if x, ok := v.(float64); ok && x != 0 && m.Fidelity[k].(float64)/x-1 < 1e-12 && m.Fidelity[k].(float64)/x-1 > -1e-12 {
					continue // sums in another order
				}
				t.Errorf("%d shards: %s: %s", n, k, d)
			}
		}
		if len(m.Shards) != n || m.Shard != nil {
			t.Errorf("%d shards are listed as %+v", n, m.Shards)
		}
	}
	if one.Requests.Scheduled != 900 || one.Requests.Dropped == 0 || one.Requests.Failed == 0 || one.Requests.Aborted == 0 {
		t.Errorf("the run has not everything in it: %+v", one.Requests)
	}
}

func TestMergeRefuses(t *testing.T) {
	rows := ranRows(120)
	shard := func(i, n int, change func(*formats.Manifest)) *formats.Trace {
		return writeShard(t, fmt.Sprintf("s%d", i), rows, i, n, change)
	}
	a, b, c := shard(1, 3, nil), shard(2, 3, nil), shard(3, 3, nil)
	plain := writeShard(t, "plain", rows, 1, 1, func(m *formats.Manifest) { m.Shard = nil })
	for name, v := range map[string]struct {
		runs []*formats.Trace
		want string
	}{
		"one missing":   {[]*formats.Trace{a, c}, "of 3 shards number 2 is missing"},
		"two missing":   {[]*formats.Trace{b}, "of 3 shards numbers 1, 3 are missing"},
		"twice":         {[]*formats.Trace{a, b, c, shard(2, 3, nil)}, "shard 2 is there twice"},
		"no shard":      {[]*formats.Trace{a, plain}, "is not the run of a shard"},
		"trace":         {[]*formats.Trace{a, shard(2, 3, func(m *formats.Manifest) { m.TraceSHA256 = "other" }), c}, "the traces' checksums are 0123456789ab and other"},
		"seed":          {[]*formats.Trace{a, shard(2, 3, func(m *formats.Manifest) { m.Seed = 4 }), c}, "seeds 3 and 4"},
		"flags":         {[]*formats.Trace{a, shard(2, 3, func(m *formats.Manifest) { m.Options["speed"] = 1.0 }), c}, "the option speed is 2 and 1"},
		"another flag":  {[]*formats.Trace{a, shard(2, 3, func(m *formats.Manifest) { m.Options["thin"] = 0.1 }), c}, "the option thin is null and 0.1"},
		"start":         {[]*formats.Trace{a, shard(2, 3, func(m *formats.Manifest) { m.Shard.StartAtUnixNS++ }), c}, "not of one replay: starts"},
		"of":            {[]*formats.Trace{a, shard(2, 4, nil), c}, "numbers of shards 3 and 4"},
		"target":        {[]*formats.Trace{a, shard(2, 3, func(m *formats.Manifest) { m.Targets = []string{"http://other"} }), c}, "targets"},
		"false counts":  {[]*formats.Trace{a, shard(2, 3, func(m *formats.Manifest) { m.Requests.Sent++ }), c}, "the shards say that they had"},
		"nothing given": {nil, "no runs are given"},
	} {
		out := filepath.Join(t.TempDir(), "out")
		_, err := Merge(v.runs, out, "l", "v", nil)
		if err == nil || !strings.Contains(err.Error(), v.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := os.Stat(out); err == nil && name != "false counts" {
			t.Errorf("%s: something was written", name)
		}
	}
}

// TestMergeDeclaresARetry: a pod's run that was cut short, and the one that took its place, late.
func TestMergeDeclaresARetry(t *testing.T) {
	rows := ranRows(120)
	cut := writeShard(t, "pod-a", rows[:40], 2, 2, func(m *formats.Manifest) { m.Interrupted, m.Valid, m.Shard.Schedule = true, false, 120 })
	again := writeShard(t, "pod-b", rows, 2, 2, func(m *formats.Manifest) { m.Shard.LateNS = 3e9 })
	first := writeShard(t, "pod-c", rows, 1, 2, nil)
	for _, runs := range [][]*formats.Trace{{cut, again, first}, {first, again, cut}} {
		m, err := Merge(runs, filepath.Join(t.TempDir(), "out"), "l", "v", nil)
		if err != nil {
			t.Fatal(err)
		}
		all := strings.Join(m.Warnings, "\n")
		if m.Requests.Scheduled != 120 || !strings.Contains(all, "shard 2 was run again: pod-a was left out") || !strings.Contains(all, "shard 2 began 3s after the agreed start") {
			t.Errorf("%+v\n%s", m.Requests, all)
		}
		if len(m.Shards) != 3 || m.Interrupted {
			t.Errorf("%+v", m.Shards)
		}
	}
	m, err := Merge([]*formats.Trace{first, cut}, filepath.Join(t.TempDir(), "out"), "l", "v", nil)
	if err != nil || m.Valid || !m.Interrupted || len(m.Invalid) == 0 || !strings.Contains(m.Invalid[0], "shard 2 was cut short") {
		t.Errorf("%v: %v %v", err, m.Valid, m.Invalid)
	}
}
