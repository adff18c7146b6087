package replayer

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/replayer/client"
)

// A disk that takes three seconds for each row delays no request: the schedule is kept, and every row is written in the end.
func TestSlowDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{answer: stream(0, 0, 1)}
		c, err := client.New(client.Options{Targets: []string{"http://t"}, Dial: s.dial})
		if err != nil {
			t.Fatal(err)
		}
		const n = 200
		began := time.Now()
		rows := 0
		dst := sinkFunc(func(x *formats.Exchange) error {
			time.Sleep(3 * time.Second)
			if rows++; x.SentNS.V != 0 || !x.SentNS.Valid {
				t.Errorf("arrival %d was sent %v late", x.ArrivalIndex.V, time.Duration(x.SentNS.V))
			}
			return nil
		})
		st, err := Replay(t.Context(), endless(n), prompts(t), c, dst, Options{Sleep: SleepTimer})
		if err != nil || st.Requests.Scheduled != n || st.Requests.Completed != n || st.Late != 0 {
			t.Errorf("%+v, %d late, %v", st.Requests, st.Late, err)
		}
		if took := time.Since(began); rows != n || took < n*3*time.Second {
			t.Errorf("%d rows in %v", rows, took)
		}
		c.Close()
		s.wg.Wait()
	})
}

// A disk that takes nothing for a while delays no request either. What has ended meanwhile waits for it up to a bound; beyond that rows
// are lost and counted, every request stays in the counts, and what ends once it writes again is written.
func TestStuckDisk(t *testing.T) {
	const (
		n     = 2000 // a millisecond apart
		bound = 64 << 10
	)
	for _, stuck := range []time.Duration{time.Second, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			s := &scripted{answer: stream(0, 0, 1)}
			c, err := client.New(client.Options{Targets: []string{"http://t"}, Dial: s.dial})
			if err != nil {
				t.Fatal(err)
			}
			var rows, held int64
			var last int64 = -1
			until := time.Now().Add(stuck)
			dst := sinkFunc(func(x *formats.Exchange) error {
				if rows++; time.Now().Before(until) {
					time.Sleep(time.Until(until))
				}
				if x.ArrivalUnixNS < until.Add(-ms).UnixNano() {
					held += rowBytes(x)
				}
				if last = max(last, x.ArrivalIndex.V); x.SentNS.V != 0 || !x.SentNS.Valid {
					t.Errorf("arrival %d was sent %v late", x.ArrivalIndex.V, time.Duration(x.SentNS.V))
				}
				return nil
			})
			st, err := Replay(t.Context(), endless(n), prompts(t), c, dst, Options{Sleep: SleepTimer, RowBytes: bound})
			if err != nil || st.Requests.Scheduled != n || st.Requests.Completed != n || st.Late != 0 {
				t.Errorf("%v: %+v, %d late, %v", stuck, st.Requests, st.Late, err)
			}
			if rows+st.RowsLost != n || held > bound || held < bound/2 {
				t.Errorf("%v: %d rows of %d bytes were written and %d lost", stuck, rows, held, st.RowsLost)
			}
			if over := stuck < n*time.Millisecond; over != (last == n-1) || st.RowsLost < 500 {
				t.Errorf("%v: the last row is of arrival %d, %d are lost", stuck, last, st.RowsLost)
			}
			c.Close()
			s.wg.Wait()
		})
	}
}
