package replayer

import (
	"io"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/replayer/client"
	"github.com/shadowtape/shadowtape/replayer/schedule"
)

// conversations is a recorded trace: two sessions, and a sub-agent of the first's second answer.
func conversations() Schedule {
	s1, s2, s3 := formats.Of(formats.Hash{1}), formats.Of(formats.Hash{2}), formats.Of(formats.Hash{3})
	rows := []*formats.Exchange{
		{ExchangeID: 1, ArrivalUnixNS: int64(0 * ms), SessionID: s1, EndNS: formats.Of(int64(100 * ms))},
		{ExchangeID: 2, ArrivalUnixNS: int64(50 * ms), SessionID: s2},                                      // nobody saw it end
		{ExchangeID: 3, ArrivalUnixNS: int64(400 * ms), SessionID: s1, EndNS: formats.Of(int64(100 * ms))}, // thought for 300 ms
		{ExchangeID: 4, ArrivalUnixNS: int64(520 * ms), SessionID: s3, ParentID: formats.Of(int64(3)), EndNS: formats.Of(int64(10 * ms))},
		{ExchangeID: 5, ArrivalUnixNS: int64(600 * ms), SessionID: s2},
		{ExchangeID: 6, ArrivalUnixNS: int64(900 * ms)},
	}
	return func(yield func(Arrival, error) bool) {
		for _, x := range rows {
			x.InputTokens, x.OutputTokens = formats.Of(int64(7)), formats.Of(int64(1))
			if !yield(Arrival{At: time.Duration(x.ArrivalUnixNS), Exchange: x}, nil) {
				return
			}
		}
	}
}

func arrivals(rows []*formats.Exchange) (at []time.Duration) {
	first := rows[0].ArrivalUnixNS
	for _, x := range rows {
		at = append(at, time.Duration(x.ArrivalUnixNS-first))
	}
	return at
}

func TestThinkTime(t *testing.T) {
	for _, c := range []struct {
		name  string
		ttft  time.Duration
		speed float64
		want  []time.Duration
	}{
		// The server takes 700 ms: the second turn comes 300 ms after it, the sub-agent 20 ms after that, the turn of unknown think time when the one before ends.
		{"slow", 700 * ms, 1, []time.Duration{0, 50 * ms, 1000 * ms, 1720 * ms, 750 * ms, 900 * ms}},
		{"fast", 10 * ms, 1, []time.Duration{0, 50 * ms, 310 * ms, 340 * ms, 600 * ms, 900 * ms}},
		{"twice as fast", 10 * ms, 2, []time.Duration{0, 25 * ms, 160 * ms, 180 * ms, 300 * ms, 450 * ms}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &scripted{answer: stream(c.ttft, 0, 1)}
				st, rows := replayed(t, t.Context(), s, schedule.Selection{ThinkTime: true}.Apply(conversations(), c.speed), Options{Turns: true}, client.Options{})
				if got := arrivals(rows); !slices.Equal(got, c.want) {
					t.Errorf("sent at %v, want %v", got, c.want)
				}
				if st.Overlapped != 0 || st.Requests.Completed != 6 {
					t.Errorf("%d overlapped, %+v", st.Overlapped, st.Requests)
				}
				for _, x := range rows {
					if x.SentNS.V != 0 {
						t.Errorf("sent %v late", time.Duration(x.SentNS.V))
					}
				}
			})
		})
	}
}

// At the recorded times a slow server is asked for the next turn before it has answered the last: that is counted.
func TestOverlap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{answer: stream(700*ms, 0, 1)}
		st, rows := replayed(t, t.Context(), s, conversations(), Options{}, client.Options{})
		if st.Overlapped != 2 || arrivals(rows)[2] != 400*ms {
			t.Errorf("%d overlapped, %v", st.Overlapped, arrivals(rows))
		}
	})
}

// A turn whose predecessor fails or is dropped comes all the same, and an end of the run leaves the rest unscheduled.
func TestTurnsSurviveFaultsAndEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{answer: func(w io.Writer, n int, _ *http.Request, _ []byte) error {
			return say(w, "HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n")
		}}
		st, rows := replayed(t, t.Context(), s, schedule.Selection{ThinkTime: true}.Apply(conversations(), 1), Options{Turns: true}, client.Options{})
		if st.Requests.Failed != 6 || arrivals(rows)[2] != 300*ms {
			t.Errorf("%+v %v", st.Requests, arrivals(rows))
		}
		s = &scripted{answer: stream(700*ms, 0, 1)}
		st, _ = replayed(t, t.Context(), s, schedule.Selection{ThinkTime: true}.Apply(conversations(), 1), Options{Turns: true, MaxInFlight: 1}, client.Options{})
		if st.Requests.Scheduled != 6 || st.Requests.Dropped == 0 {
			t.Errorf("%+v", st.Requests)
		}
		st, rows = replayed(t, t.Context(), s, schedule.Selection{ThinkTime: true}.Apply(conversations(), 1), Options{Turns: true, End: time.Second}, client.Options{})
		if st.Requests.Scheduled != 4 || len(rows) != 4 { // the second turn is due at the end, and its sub-agent after it
			t.Errorf("%+v", st.Requests)
		}
	})
}

func TestUsers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		most, now := 0, 0
		answer := stream(100*ms, 0, 1)
		s := &scripted{}
		s.answer = func(w io.Writer, n int, r *http.Request, b []byte) error {
			s.mu.Lock()
			now++
			most = max(most, now)
			s.mu.Unlock()
			defer func() { s.mu.Lock(); now--; s.mu.Unlock() }()
			return answer(w, n, r, b)
		}
		st, rows := replayed(t, t.Context(), s, schedule.Loop(every(time.Hour, 10), 0), Options{Users: 4, Ramp: 400 * ms, Think: 50 * ms, End: 2 * time.Second}, client.Options{})
		// Users begin at 0, 100, 200 and 300 ms and take 150 ms a round until 2 s: 14, 13, 12 and 12 requests.
		if most != 4 || st.Requests.Completed != 51 || len(rows) != 51 {
			t.Errorf("%d at once, %+v", most, st.Requests)
		}
		for _, x := range rows {
			if x.SentNS.V != 0 || x.FirstTokenNS.V != int64(100*ms) {
				t.Fatalf("sent %d, first token %d", x.SentNS.V, x.FirstTokenNS.V)
			}
		}
	})
}
