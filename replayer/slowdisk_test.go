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
