package job

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/replayer"
)

type discard struct{}

func (discard) Write(*formats.Exchange) error { return nil }

// The rule waits for answers and time both, then for TTFT and what else is named, and ends at its most in any case.
func TestWarmRule(t *testing.T) {
	hot := []string{"temperature of GPU-a"}
	s := &warmState{rule: &WarmRule{Requests: 100, Time: 60 * time.Second, Most: 10 * time.Minute, Steady: true, Also: func() []string { return hot }}, dst: discard{}}
	add := func(from, to int, ttft func(second int) float64) {
		for i := from; i < to; i++ {
			x := &formats.Exchange{ArrivalUnixNS: int64(i) * int64(time.Second), EndReason: formats.EndComplete, Status: formats.Of[int32](200), FirstTokenNS: formats.Of(int64(ttft(i) * 1e6)), EndNS: formats.Of[int64](0)}
			if err := s.Write(x); err != nil {
				t.Fatal(err)
			}
		}
	}
	want := func(after time.Duration, over bool, missing ...string) {
		t.Helper()
		got, m := s.look(after)
		if got != over || !slices.Equal(m, missing) {
			t.Errorf("after %v: over %t, missing %q", after, got, m)
		}
	}
	add(0, 40, func(i int) float64 { return 100 + 10*float64(i) })
	want(40*time.Second, false, "40 of 100 answers", "40s of 1m0s")
	add(40, 100, func(i int) float64 { return 100 + 10*float64(i) }) // it gets slower and slower
	want(70*time.Second, false, "TTFT is not steady", "temperature of GPU-a is not steady")
	add(100, 400, func(i int) float64 { return 1100 + float64(i%3) })
	want(400*time.Second, false, "temperature of GPU-a is not steady")
	hot = nil
	want(400*time.Second, true)
	hot = []string{"SM clock of GPU-a"}
	want(10*time.Minute, true, "SM clock of GPU-a is not steady")
	failed := &formats.Exchange{ArrivalUnixNS: 0, EndReason: formats.EndTimeout, ErrorKind: formats.ErrorTimeout}
	before := s.answers
	s.Write(failed)
	if s.answers != before {
		t.Error("a failure counts as an answer")
	}
}

func TestWarmRuleRefuses(t *testing.T) {
	for _, r := range []*WarmRule{{Requests: -1}, {Time: -1}, {Time: 2 * time.Minute, Most: time.Minute}} {
		if r.Validate() == nil {
			t.Errorf("%+v passes", r)
		}
	}
	for _, r := range []*WarmRule{nil, {}, {Most: time.Minute}} {
		if r.Validate() != nil || !r.none() {
			t.Errorf("%+v", r)
		}
	}
}

func TestEndsWith(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	n := 0
	endless := func(yield func(replayer.Arrival, error) bool) {
		for i := 0; yield(replayer.Arrival{At: time.Duration(i)}, nil); i++ {
		}
	}
	for range endsWith(ctx, endless) {
		if n++; n == 10 {
			cancel()
		}
	}
	if n != 10 {
		t.Errorf("%d arrivals after the end", n-10)
	}
}
