package job

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/promtext"
	"github.com/shadowtape/shadowtape/replayer"
	"github.com/shadowtape/shadowtape/replayer/client"
)

// stuck is a disk that takes no row of a phase before the phase's last request has been answered.
type stuck struct {
	free map[formats.Phase]chan struct{}
	rows int64
}

func (s *stuck) Write(x *formats.Exchange) error {
	<-s.free[x.Phase]
	s.rows++
	return nil
}

// A disk that did not keep up makes the run invalid, and that is the first that is said of it: the counts have every request, and what
// the rows lack, those of the warm-up too, is counted.
func TestLostRowsAreSaid(t *testing.T) {
	const n, warm = 300, 200
	dst := &stuck{free: map[formats.Phase]chan struct{}{formats.PhaseWarmup: make(chan struct{}), formats.PhaseMeasure: make(chan struct{})}}
	var answered atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		if r.URL.Path == "/v1/models" {
			io.WriteString(w, `{"data":[{"id":"m","owned_by":"vllm"}]}`)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"choices":[{"text":"x","finish_reason":"stop"}],"usage":{"prompt_tokens":7,"completion_tokens":1}}`)
		if !strings.HasPrefix(r.Header.Get("X-Request-Id"), "ids") {
			return
		}
		switch answered.Add(1) {
		case warm:
			close(dst.free[formats.PhaseWarmup])
		case warm + n:
			close(dst.free[formats.PhaseMeasure])
		}
	}))
	defer s.Close()
	rows := func(yield func(*formats.Exchange, error) bool) {
		for i := range n {
			x := &formats.Exchange{ExchangeID: int64(i + 1), Phase: formats.PhaseRecord, ArrivalUnixNS: int64(i) * 1e6, Endpoint: formats.EndpointCompletions, Stream: formats.Of(false),
				InputTokens: formats.Of(int64(7)), OutputTokens: formats.Of(int64(1))}
			if !yield(x, nil) {
				return
			}
		}
	}
	j, err := Prepare(t.Context(), Options{Source: &Source{Name: "made", Rows: rows}, Client: client.Options{Targets: []string{s.URL}}, Out: filepath.Join(t.TempDir(), "run"), Warmup: warm, Scrape: -1, KeepCache: true,
		RowBytes: 32 << 10})
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	var m formats.Manifest
	st, p, err := j.phases(t.Context(), &m, dst, "ids", "", &replayer.Live{})
	if err != nil {
		t.Fatal(err)
	}
	j.finish(&m, st, promtext.WatchStats{}, p)
	if m.Requests.Completed != n || m.RowsLost < n || m.RowsLost+dst.rows != n+warm {
		t.Fatalf("%+v, %d rows and %d lost", m.Requests, dst.rows, m.RowsLost)
	}
	if want := fmt.Sprintf("%d rows are lost", m.RowsLost); m.Valid || !strings.HasPrefix(m.Invalid[0], want) {
		t.Errorf("valid %t, %q, want %q first", m.Valid, m.Invalid, want)
	}
}

func TestMergeRefusesLostRows(t *testing.T) {
	rows := ranRows(20)
	whole := writeShard(t, "one", rows, 1, 2, nil)
	lost := writeShard(t, "two", rows, 2, 2, func(m *formats.Manifest) { m.RowsLost = 3 })
	if err := Mergeable([]*formats.Trace{whole, lost}); err == nil || !strings.Contains(err.Error(), "(shard 2 of 2) has lost 3 rows to a slow disk") {
		t.Error(err)
	}
}
