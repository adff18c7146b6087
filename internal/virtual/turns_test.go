package virtual_test

import (
	"slices"
	"testing"
	"time"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/virtual"
	"github.com/shadowtape/shadowtape/replayer/schedule"
)

// conversations gives a trace's requests to sessions in turn, each turn recorded as having been answered in 2 s.
func conversations(n, sessions int, gap time.Duration) []*formats.Exchange {
	rows := trace(11, n, gap)
	for i, x := range rows {
		k := i % sessions
		x.SessionID = formats.Of(formats.Hash{byte(k), byte(k >> 8), 1})
		x.EndNS = formats.Of(int64(2 * time.Second))
	}
	return rows
}

func TestThinkTime(t *testing.T) {
	const sessions = 200
	rows := conversations(2000, sessions, 100*time.Millisecond)
	selection := schedule.Selection{ThinkTime: true}
	for _, c := range []struct {
		name     string
		slowdown float64
	}{{"faster than recorded", 1}, {"slower than recorded", 6}} {
		o := virtual.Options{Profile: profile(t), Header: header, Turns: true}
		o.Slowdown.Prefill, o.Slowdown.Decode = c.slowdown, c.slowdown
		got, st := play(t, selection.Apply(schedule.FromRows(of(rows)), 1), o)
		if st.Completed != 2000 || st.Unsent != 0 {
			t.Fatalf("%s: %+v", c.name, st)
		}
		bySource := map[int64]*formats.Exchange{}
		for i, x := range got {
			bySource[x.SourceID.V] = x
			if i > 0 && x.ArrivalUnixNS < got[i-1].ArrivalUnixNS {
				t.Fatalf("%s: row %d comes before row %d", c.name, i, i-1)
			}
		}
		earlier, later := 0, 0
		for i, r := range rows {
			x := bySource[r.ExchangeID]
			if i < sessions {
				if x.ArrivalUnixNS != r.ArrivalUnixNS {
					t.Fatalf("%s: first turn %d comes %v late", c.name, i, time.Duration(x.ArrivalUnixNS-r.ArrivalUnixNS))
				}
				continue
			}
			old, before := rows[i-sessions], bySource[rows[i-sessions].ExchangeID]
			think := max(r.ArrivalUnixNS-old.ArrivalUnixNS-old.EndNS.V, 0)
			if want := before.ArrivalUnixNS + before.EndNS.V + think; x.ArrivalUnixNS != want {
				t.Fatalf("%s: turn %d comes %v after its time", c.name, i, time.Duration(x.ArrivalUnixNS-want))
			}
			if x.ArrivalUnixNS < r.ArrivalUnixNS {
				earlier++
			} else {
				later++
			}
		}
		if c.slowdown == 1 && earlier < 1000 || c.slowdown > 1 && later < 1000 {
			t.Errorf("%s: %d turns came earlier than recorded and %d later", c.name, earlier, later)
		}
	}
}

// Turns that wait for an answer when the time is over are not sent, nor those that wait for them, and they are counted.
func TestThinkTimeEnds(t *testing.T) {
	rows := conversations(400, 10, 20*time.Millisecond)
	o := virtual.Options{Profile: profile(t), Header: header, Turns: true, End: 4 * time.Second}
	o.Slowdown.Prefill, o.Slowdown.Decode = 20, 20
	got, st := play(t, schedule.Selection{ThinkTime: true}.Apply(schedule.FromRows(of(rows)), 1), o)
	if st.Unsent == 0 || int(st.Unsent)+len(got) != 400 {
		t.Errorf("%d unsent and %d sent of 400", st.Unsent, len(got))
	}
	for _, x := range got {
		if at := time.Duration(x.ArrivalUnixNS - rows[0].ArrivalUnixNS); at >= o.End {
			t.Errorf("sent at %v", at)
		}
	}
}

// What a turn waits for may never have been sent: it counts as ended when it was due.
func TestTurnsAfterDrops(t *testing.T) {
	rows := conversations(100, 5, 20*time.Millisecond)
	rows[7].OutputTokens = formats.Null[int64]{}
	rows[8].InputTokens = formats.Of[int64](1 << 22)
	_, st := play(t, schedule.Selection{ThinkTime: true}.Apply(schedule.FromRows(of(rows)), 1), virtual.Options{Profile: profile(t), Header: header, Turns: true})
	if st.Scheduled != 100 || st.Dropped != 1 || st.Failed != 1 || st.Completed != 98 {
		t.Errorf("%+v", st)
	}
}

func TestUsers(t *testing.T) {
	rows := trace(5, 600, time.Millisecond)
	const users, think = 7, 30 * time.Millisecond
	got, st := play(t, schedule.FromRows(of(rows)), virtual.Options{Profile: profile(t), Header: header, Users: users, Think: think, Ramp: 700 * time.Millisecond})
	if st.Completed != 600 {
		t.Fatalf("%+v", st)
	}
	var begin, end []int64
	for i, x := range got {
		if x.SourceID.V != rows[i].ExchangeID {
			t.Fatalf("arrival %d is request %d", i, x.SourceID.V)
		}
		begin, end = append(begin, x.ArrivalUnixNS), append(end, x.ArrivalUnixNS+x.EndNS.V)
	}
	for i := range users {
		if want := rows[0].ArrivalUnixNS + int64(i)*int64(100*time.Millisecond); i < 3 && begin[i] != want {
			t.Errorf("user %d begins at %d, want %d", i, begin[i], want)
		}
	}
	// From then on each arrival is some user's, think after one of its answers: the k-th of both in order.
	slices.Sort(end)
	ramped := map[int64]bool{}
	for i := range users {
		ramped[rows[0].ArrivalUnixNS+int64(i)*int64(100*time.Millisecond)] = true
	}
	k := 0
	for i, at := range begin {
		if ramped[at] {
			continue
		}
		if at != end[k]+int64(think) {
			t.Fatalf("arrival %d comes at %d, want %v after the end at %d", i, at, think, end[k])
		}
		k++
	}
	if k != 600-users {
		t.Errorf("%d arrivals follow an answer", k)
	}
	got, st = play(t, schedule.Loop(schedule.FromRows(of(rows[:30])), 0), virtual.Options{Profile: profile(t), Header: header, Users: users, End: 5 * time.Second})
	if st.Scheduled < 40 || got[35].Loop.V != 1 || got[len(got)-1].ArrivalUnixNS >= rows[0].ArrivalUnixNS+int64(5*time.Second) {
		t.Errorf("%d in 5 s, the last at %v", st.Scheduled, time.Duration(got[len(got)-1].ArrivalUnixNS-rows[0].ArrivalUnixNS))
	}
}

// A preroll is served and marked, and its counters stand apart.
func TestPreroll(t *testing.T) {
	rows := trace(6, 300, 20*time.Millisecond)
	got, st := play(t, schedule.Selection{From: 2 * time.Second, Preroll: time.Second}.Apply(schedule.FromRows(of(rows)), 1), virtual.Options{Profile: profile(t), Header: header})
	warm := int64(0)
	for _, x := range got {
		at := time.Duration(x.ArrivalUnixNS - rows[0].ArrivalUnixNS)
		if want := formats.PhaseMeasure; at < time.Second || (at >= 2*time.Second) != (x.Phase == want) {
			t.Fatalf("%v: %s", at, x.Phase)
		}
		if x.Phase == formats.PhaseWarmup {
			warm++
		}
	}
	if warm == 0 || st.Warmup.Completed != warm || st.Completed != int64(len(got))-warm {
		t.Errorf("%d warm-up rows: %+v", warm, st)
	}
}
