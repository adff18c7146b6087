package recorder

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shadowtape/shadowtape/formats"
)

// TestWrongTimes: one packet whose time is wrong, by seconds or by a century, ahead or behind, ends no connection and moves nobody else's
// times; the exchange that it belongs to says so.
func TestWrongTimes(t *testing.T) {
	frames := traffic(9, 10, 3, 15)
	clean, _ := recordFrames(t, frames)
	rng := rand.New(rand.NewPCG(1, 2))
	flagged := 0
	for _, by := range []int64{15e9, 3600e9, 30 * 24 * 3600e9, 40 * 365 * 24 * 3600e9, -15e9, -3600e9, -30 * 24 * 3600e9, -1_600_000_000e9} {
		for range 8 {
			i := rng.IntN(len(frames) - 4)
			wrong := slices.Clone(frames)
			wrong[i].at += by
			got, st := recordFrames(t, wrong)
			what := fmt.Sprintf("packet %d of %d off by %s", i, len(frames), time.Duration(by))
			r := compare(t, what, clean, got, 0)
			if r.exact < len(clean)-1 || r.missing > 0 || st.Notes["packets_of_wrong_time"] != 1 || st.Notes["clock_steps"] != 0 {
				t.Errorf("%s: %+v of %d, %v", what, r, len(clean), st.Notes)
			}
			flagged += r.flagged
		}
	}
	if flagged == 0 {
		t.Error("no packet of an exchange was touched")
	}
}

// TestClockSetBack: a clock that is set back while exchanges are open. Their times go on as if nothing had happened, in the new time.
func TestClockSetBack(t *testing.T) {
	frames := traffic(9, 10, 3, 15)
	clean, _ := recordFrames(t, frames)
	const back = 2 * 3600e9
	for _, at := range []int{len(frames) / 5, len(frames) / 2, len(frames) - 10} {
		set := slices.Clone(frames)
		for i := at; i < len(set); i++ {
			set[i].at -= back
		}
		got, st := recordFrames(t, set)
		if st.Notes["clock_steps"] != 1 || st.Notes["packets_of_wrong_time"] != 0 || len(st.Warnings) != 1 {
			t.Errorf("set back at packet %d: %v, %q", at, st.Notes, st.Warnings)
		}
		moved := frames[at].at - frames[at-1].at // the step hides the time between the two packets
		for _, x := range got {                  // a row stands in the time in which it ended
			i := slices.IndexFunc(clean, func(c *formats.Exchange) bool { return c.CorrelationID == x.CorrelationID })
			if i >= 0 && abs(x.ArrivalUnixNS+back-clean[i].ArrivalUnixNS) <= moved {
				x.ArrivalUnixNS += back
			}
		}
		if r := compare(t, fmt.Sprint("set back at packet ", at), clean, got, moved); r.exact != len(clean) {
			t.Errorf("set back at packet %d: %+v of %d", at, r, len(clean))
		}
	}
}

// TestSectionsHaveClocks: parts of a pcapng file that was put together of others are each in their own time, whichever comes first.
func TestSectionsHaveClocks(t *testing.T) {
	a, b := traffic(9, 3, 2, 5), traffic(10, 3, 2, 5)
	for i := range b {
		b[i].at -= 3600e9
	}
	got, st := recordBytes(t, append(pcapng(binary.LittleEndian, a, 1e6, nil), pcapng(binary.LittleEndian, b, 1e6, nil)...))
	if len(got) != 12 || st.Notes["clock_steps"]+st.Notes["packets_of_wrong_time"] != 0 {
		t.Fatalf("%d rows, %v", len(got), st.Notes)
	}
	for _, part := range [][]frame{a, b} {
		n := 0
		for _, x := range got {
			if x.ArrivalUnixNS >= part[0].at-1000 && x.ArrivalUnixNS <= part[len(part)-1].at {
				n++
			}
		}
		if n != 6 {
			t.Errorf("%d of 6 rows are in the time of their section", n)
		}
	}
}

// TestSilence: a night without packets is no fault of the clock, and idle connections end in it.
func TestSilence(t *testing.T) {
	evening, morning := traffic(9, 5, 2, 5), traffic(10, 5, 2, 5)
	n := len(evening)
	for i := range morning {
		morning[i].at += 8 * 3600e9
	}
	for len(evening) > 0 && evening[n-1].data[47]&tcpFIN != 0 {
		n-- // one connection stays open
	}
	got, st := recordFrames(t, append(evening[:n:n], morning...))
	if len(got) != 20 || st.Notes["clock_steps"]+st.Notes["packets_of_wrong_time"] != 0 || len(st.Warnings) != 0 {
		t.Errorf("%d rows, %v, %q", len(got), st.Notes, st.Warnings)
	}
	late := 0
	for _, x := range got {
		if x.ArrivalUnixNS > evening[n-1].at+3600e9 {
			late++
		}
	}
	if late != 10 {
		t.Errorf("%d of 10 rows are of the morning", late)
	}
}

// TestClockOfAnInterface: an interface's packets come with the machine's clock. Where that is set, connections neither end early nor late.
func TestClockOfAnInterface(t *testing.T) {
	for _, step := range []time.Duration{0, 3 * time.Hour, -3 * time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			var xs []*formats.Exchange
			e := testEngine(&xs)
			g := clockGuard{live: true}
			moved := time.Duration(0)
			decided := func() {
				for i := range g.ready {
					e.packet(&g.ready[i])
				}
				g.ready = nil
			}
			tick := func() {
				s := g.tick(time.Now().Add(moved).UnixNano(), time.Now())
				decided()
				if s != 0 {
					e.stepped(s)
				}
				e.tick(time.Now().Add(moved).UnixNano())
			}
			var out []frame
			k := newTalk(&out, 1)
			flush := func() {
				for i := range out {
					p := packet{data: out[i].data, at: time.Now().Add(moved).UnixNano(), orig: len(out[i].data), link: linkEthernet}
					if g.take(&p) {
						e.packet(&p)
					}
					decided()
				}
				out = out[:0]
			}
			wait := func(d time.Duration) {
				for range d / time.Second {
					time.Sleep(time.Second)
					tick()
				}
			}
			k.open(0)
			flush()
			wait(time.Minute)
			k.send(0, client, []byte(question()))
			flush()
			tick()
			wait(10 * time.Second)
			moved = step
			wait(5 * time.Minute) // a long time to the first token; the limit is 15 minutes
			k.send(0, server, []byte(answerOf(`{"object":"chat.completion","model":"m","choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}`)))
			flush()
			wait(time.Minute)
			if len(xs) != 1 || xs[0].EndReason != formats.EndComplete || xs[0].EndNS.V != int64(5*time.Minute+10*time.Second) || flaggedRow(xs[0]) {
				t.Fatalf("step %s: %d rows, %+v", step, len(xs), xs)
			}
			if e.count != 1 {
				t.Errorf("step %s: the connection is gone", step)
			}
			wait(20 * time.Minute)
			if e.count != 0 {
				t.Errorf("step %s: the connection is idle for too long and still there", step)
			}
			if want := map[bool]int64{true: 0, false: 1}[step == 0]; g.steps != want || g.wrong != 0 {
				t.Errorf("step %s: counted %d steps, %d wrong times", step, g.steps, g.wrong)
			}
		})
	}
}
