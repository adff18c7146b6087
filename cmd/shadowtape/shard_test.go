package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shadowtape/shadowtape/formats"
)

// place is what must be the same of an arrival whoever sends it: where it stands, what it replays, when it is due, what it asks for.
func place(x *formats.Exchange, start int64) string {
	return fmt.Sprint(x.ExchangeID, " ", x.ArrivalIndex.V, " ", x.SourceID.V, " ", x.ArrivalUnixNS-start, " ", x.InputTokens.V, " ", x.SessionID, " ", x.Phase, " ", x.Loop.V)
}

func places(rows []*formats.Exchange, start int64) []string {
	var all []string
	for _, x := range rows {
		all = append(all, place(x, start))
	}
	slices.Sort(all)
	return all
}

// TestShardsMerge replays one trace by one replayer and by four, and merges the four: every arrival is there once, at the same place and
// time, and each is accounted for. Whether a busy machine was in time is not looked at.
func TestShardsMerge(t *testing.T) {
	target, _ := startSim(t, "--ttft", "2ms", "--itl", "1ms")
	trace := smallTrace(t, 200, 5*time.Millisecond, func(i int, x *formats.Exchange) {
		if i%3 > 0 {
			x.SessionID = formats.Of(formats.Hash{byte(i % 11), 9})
		}
	})
	dir := t.TempDir()
	flags := []string{"--target", target, "--allow-invalid", "--thin", "0.9", "--window", "50ms..900ms", "--preroll", "30ms", "--loop", "2", "--seed", "5"}
	one := filepath.Join(dir, "one")
	if code, out, errs := shadowtape(t, append([]string{"replay", trace, "-o", one}, flags...)...); code != exitGood {
		t.Fatalf("%d %s %s", code, out, errs)
	}
	if err := os.MkdirAll(filepath.Join(dir, "shards"), 0o777); err != nil {
		t.Fatal(err)
	}
	start := time.Now().Add(4 * time.Second).UTC().Format(time.RFC3339)
	var wg sync.WaitGroup
	for i := 1; i <= 4; i++ {
		wg.Go(func() {
			args := append([]string{"replay", trace, "--shard", fmt.Sprintf("%d/4", i), "--start-at", start, "-o", filepath.Join(dir, "shards", fmt.Sprint(i))}, flags...)
			if code, out, errs := shadowtape(t, args...); code != exitGood || !strings.Contains(errs, fmt.Sprintf("shard %d of 4", i)) {
				t.Errorf("%d %s %s", code, out, errs)
			}
		})
	}
	wg.Wait()
	whole := filepath.Join(dir, "whole")
	code, out, errs := shadowtape(t, "merge", filepath.Join(dir, "shards"), "-o", whole, "--allow-invalid")
	if code != exitGood {
		t.Fatalf("merge: %d %s %s", code, out, errs)
	}
	m1, rows1 := readRun(t, one)
	m, rows := readRun(t, whole)
	at, err := time.Parse(time.RFC3339, start)
	if err != nil {
		t.Fatal(err)
	}
	if m.StartUnixNS != at.UnixNano() || m.Shard != nil || len(m.Shards) != 4 {
		t.Errorf("it began at %d, agreed was %d; shards %+v", m.StartUnixNS, at.UnixNano(), m.Shards)
	}
	want, got := places(rows1, m1.StartUnixNS), places(rows, m.StartUnixNS)
	if !slices.Equal(want, got) {
		t.Errorf("%d arrivals by one replayer, %d by four:\n%s\n\n%s", len(want), len(got), strings.Join(want[:min(5, len(want))], "\n"), strings.Join(got[:min(5, len(got))], "\n"))
	}
	if m.Requests.Scheduled != m1.Requests.Scheduled || m.Requests.Scheduled != m.Requests.Sent+m.Requests.Dropped {
		t.Errorf("%+v, by one replayer %+v", m.Requests, m1.Requests)
	}
	for _, s := range m.Shards {
		if len(s.Clocks) != 1 || s.Clocks[0].Unknown == "" && (s.Clocks[0].OffsetMS-s.Clocks[0].ErrorMS > 0 || s.Clocks[0].OffsetMS+s.Clocks[0].ErrorMS < 0) {
			t.Errorf("one machine's clock is off against itself: %+v", s.Clocks)
		}
	}
	if code, out, errs := shadowtape(t, "merge", filepath.Join(dir, "shards", "1"), filepath.Join(dir, "shards", "3"), "-o", filepath.Join(dir, "part")); code != exitFailed || !strings.Contains(errs, "of 4 shards numbers 2, 4 are missing") {
		t.Errorf("%d %s %s", code, out, errs)
	}
	if code, out, errs := shadowtape(t, "analyze", whole, "--json"); code != exitGood && code != exitInvalid {
		t.Errorf("%d %s %s", code, out, errs)
	}
}

// TestShardThatBeganLate: what was due before a replayer came is not sent, and is said and counted; the rest keeps its times.
func TestShardThatBeganLate(t *testing.T) {
	target, _ := startSim(t, "--ttft", "1ms", "--itl", "1ms")
	trace := smallTrace(t, 60, 100*time.Second, nil)
	dir := t.TempDir()
	start := time.Now().Add(-48 * time.Minute)
	late := filepath.Join(dir, "late")
	code, out, errs := shadowtape(t, "replay", trace, "--target", target, "--shard", "1/1", "--start-at", fmt.Sprint(start.Unix()), "--max-requests", "20", "--duration", "2h", "-o", late, "--allow-invalid")
	if code != exitGood || !strings.Contains(errs, "it was to begin 48m") || !strings.Contains(errs, "after the agreed start: 20 requests were due before") {
		t.Fatalf("%d %s %s", code, out, errs)
	}
	m, rows := readRun(t, late)
	if m.Valid || m.Requests.Scheduled != 20 || m.Requests.Dropped != 20 || m.Dropped[formats.ErrorLateStart] != 20 || m.Shard.LateNS < int64(48*time.Minute) || m.PrefixReset != "skipped" {
		t.Errorf("%+v %v %+v %s", m.Requests, m.Dropped, m.Shard, m.PrefixReset)
	}
	for _, x := range rows {
		if x.EndReason != formats.EndNotSent || x.ErrorKind != formats.ErrorLateStart || x.ArrivalUnixNS != start.Unix()*1e9+x.ArrivalIndex.V*int64(100*time.Second) {
			t.Errorf("%+v", x)
		}
	}
}

func TestReadShard(t *testing.T) {
	for _, c := range []struct {
		shard, start, index string
		i, n                int
		unix                int64
		bad                 string
	}{
		{"", "", "", 0, 0, 0, ""},
		{"1/1", "", "", 1, 1, 0, ""},
		{"3/4", "1800000000.25", "", 3, 4, 1800000000250000000, ""},
		{"job/4", "2027-01-15T08:00:00Z", "3", 4, 4, 1800000000000000000, ""},
		{"job/4", "", "", 0, 0, 0, "JOB_COMPLETION_INDEX is not set"},
		{"job/4", "", "4", 0, 0, 0, "I from 1 to N"},
		{"0/4", "", "", 0, 0, 0, "I from 1 to N"},
		{"5/4", "", "", 0, 0, 0, "I from 1 to N"},
		{"1", "", "", 0, 0, 0, "I from 1 to N"},
		{"a/b", "", "", 0, 0, 0, "I from 1 to N"},
		{"1/2", "noon", "", 0, 0, 0, "--start-at wants a time"},
		{"1/2", "2300-01-01T00:00:00Z", "", 0, 0, 0, "--start-at wants a time"},
		{"1/2", "9300000000", "", 0, 0, 0, "--start-at wants a time"},
		{"1/2", "1900-01-01T00:00:00Z", "", 0, 0, 0, "--start-at wants a time"},
	} {
		i, n, at, err := readShard(c.shard, c.start, c.index)
		switch {
		case c.bad != "" && (err == nil || !strings.Contains(err.Error(), c.bad)):
			t.Errorf("%q %q %q: %v", c.shard, c.start, c.index, err)
		case c.bad == "" && (err != nil || i != c.i || n != c.n || c.unix != 0 && at.UnixNano() != c.unix):
			t.Errorf("%q %q %q: %d/%d at %v: %v", c.shard, c.start, c.index, i, n, at, err)
		}
	}
}

func TestShardUsage(t *testing.T) {
	trace := smallTrace(t, 3, time.Millisecond, nil)
	for want, args := range map[string][]string{
		"several shards need one time to start at": {"--shard", "1/2"},
		"a shard has no closed loop of users":      {"--shard", "1/2", "--start-at", "1800000000", "--users", "3", "--duration", "1s"},
		"--shard wants I/N":                        {"--shard", "3/2", "--start-at", "1800000000"},
		"--start-at wants a time":                  {"--start-at", "soon"},
		"JOB_COMPLETION_INDEX is not set":          {"--shard", "job/2", "--start-at", "1800000000"},
		"-o is missing":                            nil,
	} {
		all := append([]string{"replay", trace, "--target", "http://127.0.0.1:1", "-o", filepath.Join(t.TempDir(), "run")}, args...)
		if args == nil {
			all = []string{"merge", trace}
		}
		if code, out, errs := shadowtape(t, all...); code != exitUsage || !strings.Contains(errs, want) {
			t.Errorf("%q: %d %s %s", want, code, out, errs)
		}
	}
	if code, out, errs := shadowtape(t, "merge", filepath.Dir(trace), "-o", filepath.Join(t.TempDir(), "run")); code != exitFailed || !strings.Contains(errs, "it is no run and holds none") {
		t.Errorf("%d %s %s", code, out, errs)
	}
}
