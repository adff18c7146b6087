package replayer

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/replayer/client"
)

// Recorded aborts are replayed: at the recorded token where it is known, else at the recorded time; the server sees the connection close.
func TestAborts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{answer: stream(50*ms, 10*ms, 1000)}
		recorded := []*formats.Exchange{
			{ExchangeID: 1, InputTokens: formats.Of(int64(7)), OutputTokens: formats.Of(int64(5)), MaxTokens: formats.Of(int64(4000)), EndReason: formats.EndClientAbort, EndNS: formats.Of(int64(time.Hour))},
			{ExchangeID: 2, InputTokens: formats.Of(int64(7)), EndReason: formats.EndClientAbort, EndNS: formats.Of(int64(75 * ms))},
			{ExchangeID: 3, InputTokens: formats.Of(int64(7)), EndReason: formats.EndClientAbort, EndNS: formats.Of(int64(20 * ms)), Stream: formats.Of(false), OutputTokens: formats.Of(int64(9))},
			{ExchangeID: 4, InputTokens: formats.Of(int64(7)), OutputTokens: formats.Of(int64(3))},
		}
		sch := func(yield func(Arrival, error) bool) {
			for i, x := range recorded {
				if !yield(Arrival{At: time.Duration(i) * time.Second, Exchange: x}, nil) {
					return
				}
			}
		}
		st, rows := replayed(t, t.Context(), s, sch, Options{}, client.Options{})
		if st.Requests.Aborted != 3 || st.Requests.Completed != 1 {
			t.Fatalf("%+v %v", st.Requests, st.Errors)
		}
		if x := rows[0]; x.EndReason != formats.EndClientAbort || len(x.EventGapUS) != 5 || x.EndNS.V != int64(90*ms) || !x.PlannedAbort.V || x.ErrorKind != "" || x.MaxTokens.V != 4000 {
			t.Errorf("by tokens: %s after %d events at %v, asked for %d", x.EndReason, len(x.EventGapUS), time.Duration(x.EndNS.V), x.MaxTokens.V)
		}
		if x := rows[1]; x.EndReason != formats.EndClientAbort || len(x.EventGapUS) != 3 || x.EndNS.V != int64(75*ms) {
			t.Errorf("by time: %s after %d events at %v", x.EndReason, len(x.EventGapUS), time.Duration(x.EndNS.V))
		}
		if x := rows[2]; x.EndReason != formats.EndClientAbort || x.EndNS.V != int64(20*ms) {
			t.Errorf("unstreamed: %s at %v", x.EndReason, time.Duration(x.EndNS.V))
		}
		if x := rows[3]; x.PlannedAbort.Valid {
			t.Error("an answer that ended is a planned abort")
		}
	})
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{answer: stream(50*ms, 10*ms, 20)}
		sch := func(yield func(Arrival, error) bool) {
			yield(Arrival{Exchange: &formats.Exchange{ExchangeID: 1, InputTokens: formats.Of(int64(7)), OutputTokens: formats.Of(int64(5)), EndReason: formats.EndClientAbort}}, nil)
		}
		st, _ := replayed(t, t.Context(), s, sch, Options{NoAborts: true}, client.Options{})
		if st.Requests.Completed != 1 {
			t.Errorf("with aborts left out: %+v", st.Requests)
		}
	})
}
