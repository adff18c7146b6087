package replayer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/replayer/client"
	"github.com/shadowtape/shadowtape/replayer/prompt"
)

const ms = time.Millisecond

// A server that answers an hour late moves no request by a nanosecond.
func TestNothingWaitsForAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{answer: stream(time.Hour, 10*ms, 3)}
		st, rows := replayed(t, t.Context(), s, every(7*ms, 200), Options{}, client.Options{Timeout: 2 * time.Hour})
		if st.Requests.Completed != 200 || st.Late != 0 {
			t.Fatalf("%+v, %d late", st.Requests, st.Late)
		}
		for i, x := range rows {
			if x.SentNS.V != 0 || x.RequestEndNS.V != 0 || !x.SentNS.Valid {
				t.Fatalf("request %d: sent %v after its time", i, time.Duration(x.SentNS.V))
			}
			if want := st.Start.Add(time.Duration(i) * 7 * ms); x.ArrivalUnixNS != want.UnixNano() || !s.seen[i].Equal(want) {
				t.Fatalf("request %d: scheduled at %d, seen at %v, want %v", i, x.ArrivalUnixNS, s.seen[i], want)
			}
		}
	})
}

// First token, gaps and end are the server's, exactly; the role event is no token, and usage gives the counts.
func TestTimesAreExact(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{answer: stream(50*ms, 10*ms, 4)}
		_, rows := replayed(t, t.Context(), s, at(0, time.Second), Options{RequestIDs: "run", Cold: true}, client.Options{})
		for i, x := range rows {
			if x.FirstEventNS.V != 0 || x.FirstTokenNS.V != int64(50*ms) || x.LastTokenNS.V != int64(80*ms) || x.EndNS.V != int64(80*ms) || x.ResponseHeaderNS.V != 0 {
				t.Errorf("%d: first event %d, first token %d, last token %d, end %d", i, x.FirstEventNS.V, x.FirstTokenNS.V, x.LastTokenNS.V, x.EndNS.V)
			}
			if !slices.Equal(x.EventGapUS, []int32{0, 10000, 10000, 10000}) || x.EventFlags != nil {
				t.Errorf("%d: gaps %v, flags %v", i, x.EventGapUS, x.EventFlags)
			}
			if x.OutputTokens.V != 4 || x.OutputTokensSource != formats.TokensUsage || x.InputTokens.V != 7 || x.InputTokensSource != formats.TokensUsage {
				t.Errorf("%d: output %v %s, input %v %s", i, x.OutputTokens, x.OutputTokensSource, x.InputTokens, x.InputTokensSource)
			}
			if x.EndReason != formats.EndComplete || x.ErrorKind != "" || x.FinishReason != "stop" || x.Status.V != 200 || x.Attempt.V != 1 {
				t.Errorf("%d: %s %s %s", i, x.EndReason, x.ErrorKind, x.FinishReason)
			}
			if x.ConnReused.V != (i == 1) || x.ExchangeID != int64(i+1) || x.SourceID.V != int64(i+1) || x.Phase != formats.PhaseMeasure {
				t.Errorf("%d: reused %v, id %d, source %d", i, x.ConnReused, x.ExchangeID, x.SourceID.V)
			}
			if x.CorrelationID.V != CorrelationID("run", fmt.Sprintf("run-%d", i)) {
				t.Errorf("%d: correlation %x", i, x.CorrelationID.V)
			}
		}
	})
}

func TestEventsOfOneReadAreCoalesced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{answer: func(w io.Writer, _ int, _ *http.Request, _ []byte) error {
			return say(w, sseHead, 20*ms, chunk(token)+chunk(token), 5*ms, chunk(token)+chunk(stop)+chunk(usageEvent(7, 3))+chunk(done)+"0\r\n\r\n")
		}}
		st, rows := replayed(t, t.Context(), s, at(0), Options{}, client.Options{})
		x := rows[0]
		if !slices.Equal(x.EventGapUS, []int32{0, 0, 5000}) || !slices.Equal(x.EventFlags, []int32{0, formats.FlagCoalesced, 0}) {
			t.Errorf("gaps %v, flags %v", x.EventGapUS, x.EventFlags)
		}
		if st.Quality.Events != 3 || st.Quality.Coalesced != 1 {
			t.Errorf("%d of %d events coalesced", st.Quality.Coalesced, st.Quality.Events)
		}
		if why := st.Quality.Invalid(Limits{}); len(why) != 1 {
			t.Errorf("a third of the events coalesced is %v", why)
		}
	})
}

// A client that is always 5 ms late says 5 ms, not 0: lateness is measured from the schedule (peers: relative to the least late).
func TestConstantLatenessIsSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{answer: stream(ms, ms, 2)}
		late := func(t time.Time, stop <-chan struct{}) { SleepTimer(t.Add(5*ms), stop) }
		st, rows := replayed(t, t.Context(), s, every(100*ms, 20), Options{Sleep: late}, client.Options{})
		for _, x := range rows {
			if x.SentNS.V != int64(5*ms) || x.FirstTokenNS.V != int64(6*ms) {
				t.Fatalf("sent %v, first token %v after schedule", time.Duration(x.SentNS.V), time.Duration(x.FirstTokenNS.V))
			}
		}
		if st.Late != 20 || st.Quality.SendLag.Quantile(0.5) != 5 {
			t.Errorf("%d late, lag %v ms", st.Late, st.Quality.SendLag.Quantile(0.5))
		}
	})
}

// After a stall of the client everything overdue goes out at once, counted late, and the rest keeps its times.
func TestAStallIsNotForgiven(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{answer: stream(ms, ms, 2)}
		n := 0
		stall := func(at time.Time, stop <-chan struct{}) {
			SleepTimer(at, stop)
			if n++; n == 11 {
				time.Sleep(500 * ms)
			}
		}
		st, rows := replayed(t, t.Context(), s, every(20*ms, 100), Options{Sleep: stall}, client.Options{})
		for i, x := range rows {
			want := int64(0)
			if due := time.Duration(i) * 20 * ms; i >= 10 && due < 700*ms {
				want = int64(700*ms - due)
			}
			if x.SentNS.V != want {
				t.Errorf("request %d was sent %v late, want %v", i, time.Duration(x.SentNS.V), time.Duration(want))
			}
		}
		if st.Late != 25 || st.Requests.Completed != 100 {
			t.Errorf("%d late, %+v", st.Late, st.Requests)
		}
	})
}

func TestMaxInFlightDropsByName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{answer: stream(950*ms, ms, 1)}
		st, rows := replayed(t, t.Context(), s, every(100*ms, 30), Options{MaxInFlight: 4}, client.Options{})
		if st.Requests.Dropped != 18 || st.Dropped[formats.ErrorMaxInFlight] != 18 {
			t.Errorf("%+v %v", st.Requests, st.Dropped)
		}
		for i, x := range rows {
			sent := i%10 < 4
			if sent != (x.EndReason == formats.EndComplete) || !sent && (x.ErrorKind != formats.ErrorMaxInFlight || x.SentNS.Valid || x.Failed()) {
				t.Errorf("arrival %d: %s %s", i, x.EndReason, x.ErrorKind)
			}
		}
	})
}

// The schedule is read as it goes: a million arrivals are not taken into memory at once.
func TestLookAheadIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var read, most atomic.Int64
		sch := func(yield func(Arrival, error) bool) {
			for a := range every(ms, 100_000) {
				read.Add(1)
				if !yield(a, nil) {
					return
				}
			}
		}
		furthest := func(o Options) int {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			answer := stream(0, 0, 1)
			s := &scripted{answer: func(w io.Writer, n int, r *http.Request, b []byte) error {
				storeMax(&most, read.Load()-int64(n))
				if n == 2000 {
					cancel()
				}
				return answer(w, n, r, b)
			}}
			read.Store(0)
			most.Store(0)
			replayed(t, ctx, s, sch, o, client.Options{})
			return int(most.Load())
		}
		if n := furthest(Options{AheadCount: 100, Ahead: time.Hour}); n > 110 {
			t.Errorf("%d arrivals were read ahead", n)
		}
		if n := furthest(Options{Ahead: 50 * ms}); n > 160 {
			t.Errorf("%d arrivals were read ahead of the time allowed", n)
		}
		if n := furthest(Options{AheadBytes: 30 * 2100, Ahead: time.Hour}); n > 40 {
			t.Errorf("%d arrivals were read ahead of the bytes allowed", n)
		}
	})
}

// Arrivals of one instant are sent in that instant, however many they are and however long answers take.
func TestABurstIsOneInstant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{answer: stream(time.Minute, ms, 2), slowDial: 5 * ms}
		burst := make([]time.Duration, 1000)
		for i := range burst {
			burst[i] = 2 * time.Second
		}
		st, rows := replayed(t, t.Context(), s, at(append([]time.Duration{0}, burst...)...), Options{}, client.Options{})
		if st.Requests.Completed != 1001 || st.Late != 0 {
			t.Fatalf("%+v, %d late", st.Requests, st.Late)
		}
		for _, x := range rows {
			if x.SentNS.V != 0 || x.FirstTokenNS.V != int64(time.Minute) {
				t.Fatalf("request %d was sent %v after its time, its first token came after %v", x.ArrivalIndex.V, time.Duration(x.SentNS.V), time.Duration(x.FirstTokenNS.V))
			}
		}
	})
}

func TestInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		s := &scripted{answer: stream(100*ms, 100*ms, 50)}
		time.AfterFunc(1050*ms+100*ms, cancel) // 100 ms until the schedule's zero
		st, rows := replayed(t, ctx, s, every(500*ms, 1000), Options{}, client.Options{})
		if !st.Interrupted || st.Requests.Scheduled != 3 || st.Requests.RunEnd != 3 {
			t.Fatalf("%+v interrupted %t", st.Requests, st.Interrupted)
		}
		if x := rows[0]; x.EndReason != formats.EndRunEnd || x.ErrorKind != "" || x.FirstTokenNS.V != int64(100*ms) || len(x.EventGapUS) != 10 || x.EndNS.V != int64(1000*ms) && x.EndNS.V != int64(1050*ms) {
			t.Errorf("%s, first token %d, %d events, end %d", x.EndReason, x.FirstTokenNS.V, len(x.EventGapUS), x.EndNS.V)
		}
	})
}

func TestDrainEndsTheRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{answer: stream(time.Hour, ms, 2)}
		st, _ := replayed(t, t.Context(), s, every(ms, 5), Options{Drain: time.Second}, client.Options{Timeout: 3 * time.Hour})
		if st.Interrupted || st.Requests.RunEnd != 5 {
			t.Errorf("%+v", st.Requests)
		}
	})
}

func TestFaultsOfTheTarget(t *testing.T) {
	halfStream := func(w io.Writer) error { return say(w, sseHead, 10*ms, chunk(token), 10*ms, chunk(token)) }
	closeNow := errors.New("close")
	cases := []struct {
		name   string
		answer func(w io.Writer) error
		kind   string
		reason formats.EndReason
		status int32
		after  time.Duration // end
	}{
		{"429 with retry-after", func(w io.Writer) error {
			return say(w, "HTTP/1.1 429 Too Many\r\nRetry-After: 3\r\nContent-Length: 2\r\n\r\n{}")
		}, "http_429", formats.EndComplete, 429, 0},
		{"500 without a length", func(w io.Writer) error { return errors.Join(say(w, "HTTP/1.0 500 Oops\r\n\r\nboom"), closeNow) }, "http_500", formats.EndComplete, 500, 0},
		{"302", func(w io.Writer) error {
			return say(w, "HTTP/1.1 302 Found\r\nLocation: /login\r\nContent-Length: 0\r\n\r\n")
		}, "http_302", formats.EndComplete, 302, 0},
		{"html", func(w io.Writer) error {
			return say(w, "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>")
		}, formats.ErrorHTML, formats.EndComplete, 200, 0},
		{"plain text", func(w io.Writer) error {
			return say(w, "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello")
		}, formats.ErrorContentType, formats.EndComplete, 200, 0},
		{"no http", func(w io.Writer) error { return say(w, "SSH-2.0-OpenSSH\r\n") }, formats.ErrorProtocol, formats.EndServerAbort, 0, 0},
		{"bad chunk", func(w io.Writer) error { return say(w, sseHead, "zz\r\n") }, formats.ErrorProtocol, formats.EndServerAbort, 200, 0},
		{"endless head", func(w io.Writer) error {
			for {
				if err := say(w, "HTTP/1.1 200 OK\r\n"); err != nil {
					return err
				}
			}
		}, formats.ErrorProtocol, formats.EndServerAbort, 0, 0},
		{"closed before it answers", func(w io.Writer) error { return closeNow }, formats.ErrorReset, formats.EndServerAbort, 0, 0},
		{"stream stops half way", func(w io.Writer) error { return errors.Join(halfStream(w), closeNow) }, formats.ErrorIncomplete, formats.EndServerAbort, 200, 20 * ms},
		{"stream ends without a reason", func(w io.Writer) error { return errors.Join(halfStream(w), say(w, "0\r\n\r\n")) }, formats.ErrorIncomplete, formats.EndComplete, 200, 20 * ms},
		{"error in the stream", func(w io.Writer) error {
			return errors.Join(halfStream(w), say(w, chunk(`data: {"error":{"message":"no","code":400}}`+"\n\n"), chunk(done), "0\r\n\r\n"))
		}, formats.ErrorInStream, formats.EndErrorInStream, 200, 20 * ms},
		{"stall", func(w io.Writer) error { return errors.Join(halfStream(w), say(w, time.Hour)) }, formats.ErrorStall, formats.EndTimeout, 200, time.Minute},
		{"slow head", func(w io.Writer) error { return say(w, time.Hour, sseHead) }, formats.ErrorTimeout, formats.EndTimeout, 0, time.Minute},
		{"endless stream", func(w io.Writer) error {
			if err := say(w, sseHead); err != nil {
				return err
			}
			for {
				if err := say(w, 100*ms, chunk(token)); err != nil {
					return err
				}
			}
		}, formats.ErrorEndless, formats.EndTimeout, 200, time.Minute},
		{"no token", func(w io.Writer) error { return say(w, sseHead, chunk(role), chunk(stop), chunk(done), "0\r\n\r\n") }, formats.ErrorNoTokens, formats.EndComplete, 200, 0},
		{"compressed unasked", func(w io.Writer) error {
			return say(w, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\n\x1f\x8b\x08")
		}, formats.ErrorContentType, formats.EndComplete, 200, 0},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &scripted{answer: func(w io.Writer, _ int, _ *http.Request, _ []byte) error { return c.answer(w) }}
				st, rows := replayed(t, t.Context(), s, at(0, time.Second), Options{}, client.Options{Timeout: time.Minute})
				if st.Requests.Failed != 2 || st.Errors[c.kind] != 2 {
					t.Fatalf("%+v %v", st.Requests, st.Errors)
				}
				x := rows[0]
				if x.EndReason != c.reason || x.Status.V != c.status || x.EndNS.V != int64(c.after) {
					t.Errorf("%s, status %v, end %v", x.EndReason, x.Status, time.Duration(x.EndNS.V))
				}
			})
		})
	}
}

func TestRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{refuse: true}
		st, rows := replayed(t, t.Context(), s, every(ms, 3), Options{}, client.Options{})
		if st.Errors[formats.ErrorConnect] != 3 || rows[0].SentNS.Valid || st.Requests.Sent != 3 {
			t.Errorf("%+v %v", st.Requests, st.Errors)
		}
	})
}

// A kept connection that the server closed while a request was on its way is a race of keeping connections, not a failure of the
// server: the request is sent again, and the row says so. Once a byte was answered it is not.
func TestReuseRace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ok := stream(10*ms, 10*ms, 2)
		s := &scripted{answer: func(w io.Writer, n int, r *http.Request, b []byte) error {
			switch n {
			case 1: // the second request meets a connection that closes
				return errors.New("close")
			case 4:
				return errors.Join(say(w, "HTTP/1.1 "), errors.New("close"))
			}
			return ok(w, n, r, b)
		}}
		st, rows := replayed(t, t.Context(), s, every(time.Second, 4), Options{Cold: true}, client.Options{})
		if st.Retried != 1 || st.Requests.Completed != 3 || st.Errors[formats.ErrorReset] != 1 {
			t.Fatalf("retried %d, %+v %v", st.Retried, st.Requests, st.Errors)
		}
		if x := rows[1]; x.Attempt.V != 2 || x.ConnReused.V || x.EndReason != formats.EndComplete || x.SentNS.V != 0 {
			t.Errorf("attempt %d, reused %t, %s", x.Attempt.V, x.ConnReused.V, x.EndReason)
		}
		if x := rows[3]; x.Attempt.V != 1 || !x.ConnReused.V {
			t.Errorf("attempt %d", x.Attempt.V)
		}
	})
}

// Where one kept connection was closed, others are: what is sent again does not try them all.
func TestReuseRaceOfMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ok := stream(10*ms, 10*ms, 2)
		s := &scripted{answer: func(w io.Writer, n int, r *http.Request, b []byte) error {
			err := ok(w, n, r, b)
			if n < 8 { // all eight of the first burst are closed behind the client's back
				err = errors.Join(err, errors.New("close"))
			}
			return err
		}}
		burst := make([]time.Duration, 8, 16)
		for range 8 {
			burst = append(burst, time.Second)
		}
		st, rows := replayed(t, t.Context(), s, at(burst...), Options{Cold: true}, client.Options{})
		if st.Requests.Completed != 16 || st.Retried != 8 || s.dials != 16 {
			t.Fatalf("retried %d, %+v %v, %d connections", st.Retried, st.Requests, st.Errors, s.dials)
		}
		if x := rows[8]; x.Attempt.V != 2 || x.ConnReused.V {
			t.Errorf("attempt %d, reused %t", x.Attempt.V, x.ConnReused.V)
		}
	})
}

// The connections of a burst stand before it, and no latency has a connection's set-up in it.
func TestConnectionsAreWarm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{answer: stream(10*ms, 10*ms, 2), slowDial: 30 * ms}
		burst := make([]time.Duration, 300)
		for i := range burst {
			burst[i] = 3 * time.Second
		}
		st, rows := replayed(t, t.Context(), s, at(append([]time.Duration{0, 7 * ms}, burst...)...), Options{}, client.Options{})
		for _, x := range rows {
			if x.ConnectNS.Valid || x.SentNS.V != 0 {
				t.Fatalf("request %d: connect %v, sent %v after its time", x.ArrivalIndex.V, x.ConnectNS, time.Duration(x.SentNS.V))
			}
		}
		if st.Late != 0 || s.dials > 400 {
			t.Errorf("%d late, %d dials", st.Late, s.dials)
		}
		s = &scripted{answer: stream(10*ms, 10*ms, 2), slowDial: 30 * ms}
		_, rows = replayed(t, t.Context(), s, at(0), Options{Cold: true}, client.Options{})
		if x := rows[0]; x.ConnectNS.V != int64(30*ms) || x.SentNS.V != int64(30*ms) || x.ConnReused.V {
			t.Errorf("a cold connection: connect %v, sent %v", x.ConnectNS, x.SentNS)
		}
	})
}

// Idle connections are given up before the server does (uvicorn: 5 s).
func TestIdleLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{answer: stream(0, 0, 1)}
		_, rows := replayed(t, t.Context(), s, at(0, 3*time.Second, 8*time.Second), Options{Cold: true}, client.Options{})
		if s.dials != 2 || !rows[1].ConnReused.V || rows[2].ConnReused.V {
			t.Errorf("%d dials", s.dials)
		}
		s = &scripted{answer: func(w io.Writer, _ int, _ *http.Request, _ []byte) error {
			return say(w, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nKeep-Alive: timeout=2, max=100\r\nContent-Length: 2\r\n\r\n{}")
		}}
		_, rows = replayed(t, t.Context(), s, at(0, 900*ms, 2500*ms), Options{Cold: true}, client.Options{})
		if s.dials != 2 || !rows[1].ConnReused.V || rows[2].ConnReused.V {
			t.Errorf("%d dials with a server that keeps 2 s", s.dials)
		}
	})
}

// Whatever the server does and whenever the run is cut, every arrival ends in exactly one counter.
func TestConservation(t *testing.T) {
	for seed := range uint64(25) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if r.IntN(2) == 0 {
				time.AfterFunc(time.Duration(r.IntN(3000))*ms, cancel)
			}
			s := &scripted{}
			s.answer = func(w io.Writer, n int, q *http.Request, b []byte) error {
				s.mu.Lock()
				k, d, tokens := r.IntN(9), time.Duration(r.IntN(400))*ms, 1+r.IntN(5)
				s.mu.Unlock()
				switch k {
				case 0:
					return errors.New("close")
				case 1:
					return errors.Join(say(w, sseHead, d, chunk(token)), errors.New("close"))
				case 2:
					return say(w, d, "HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n")
				case 3:
					return say(w, sseHead, d, chunk(token), time.Hour)
				case 4:
					return say(w, "garbage\n")
				}
				return stream(d, d/4, tokens)(w, n, q, b)
			}
			n := 1 + r.IntN(150) // all of it before anything runs: the server draws from r too
			offsets := make([]time.Duration, n)
			for i := range offsets {
				offsets[i] = time.Duration(r.IntN(2000)) * ms
			}
			slices.Sort(offsets)
			most, limit := 1+r.IntN(60), time.Duration(500+r.IntN(2000))*ms
			st, rows := replayed(t, ctx, s, at(offsets...), Options{MaxInFlight: most}, client.Options{Timeout: limit})
			if !st.Interrupted && int(st.Requests.Scheduled) != n || len(rows) != int(st.Requests.Scheduled) {
				t.Errorf("seed %d: %d of %d scheduled, %d rows", seed, st.Requests.Scheduled, n, len(rows))
			}
		})
	}
}

func TestErrorsOfScheduleAndSink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{answer: stream(ms, ms, 2)}
		c, _ := client.New(client.Options{Targets: []string{"http://t"}, Dial: s.dial})
		p, _ := prompt.New(prompt.Options{Model: "m"})
		broken := func(yield func(Arrival, error) bool) {
			for a := range every(ms, 5) {
				if !yield(a, nil) {
					return
				}
			}
			yield(Arrival{}, errors.New("segment 2 is cut"))
		}
		var dst sink
		st, err := Replay(t.Context(), broken, p, c, &dst, Options{Sleep: SleepTimer})
		if err == nil || st.Requests.Completed != 5 || len(dst.rows) != 5 {
			t.Errorf("a broken schedule: %v, %+v", err, st.Requests)
		}
		dst = sink{fail: errors.New("disk full")}
		st, err = Replay(t.Context(), every(ms, 1000), p, c, &dst, Options{Sleep: SleepTimer})
		if err == nil || st.Requests.Scheduled == 1000 || st.Requests.Scheduled != st.Requests.Sent {
			t.Errorf("a full disk: %v, %+v", err, st.Requests)
		}
		c.Close()
		s.wg.Wait()
	})
}
