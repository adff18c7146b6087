package analyzer

import (
	"flag"
	"math"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/benchreport"
)

var (
	benchOut  = flag.String("bench-out", "", "write a trace for make bench-analyze to this file and do nothing else")
	benchRows = flag.Int64("bench-rows", 10_000_000, "its rows")
)

// writeTimed writes a trace of n streamed exchanges with every time and length that a recording has, without event lists.
func writeTimed(tb testing.TB, where string, n int64) {
	tb.Helper()
	w, err := formats.Create(where, formats.Header{SourceKind: "proxy", TimeBase: "absolute"}, formats.SegmentOptions{MaxRows: n})
	if err != nil {
		tb.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 2))
	at := int64(1.7e18)
	for range n {
		at += int64(r.ExpFloat64() * 10e6)
		in, out := int64(math.Exp(r.NormFloat64()+6))+1, int64(r.ExpFloat64()*200)+2
		ttft := int64((20 + float64(in)*0.02) * math.Exp(r.NormFloat64()*0.3) * 1e6)
		last := ttft + int64(float64(out-1)*8e6*math.Exp(r.NormFloat64()*0.1))
		x := &formats.Exchange{
			Phase: formats.PhaseRecord, ArrivalUnixNS: at, SentNS: formats.Of(int64(0)), FirstTokenNS: formats.Of(ttft), FirstContentNS: formats.Of(ttft),
			LastTokenNS: formats.Of(last), EndNS: formats.Of(last + r.Int64N(1e6)), Endpoint: formats.EndpointChat, RequestModel: "m", Stream: formats.Of(true),
			Status: formats.Of(int32(200)), InputTokens: formats.Of(in), OutputTokens: formats.Of(out), InputTokensSource: formats.TokensUsage,
			OutputTokensSource: formats.TokensUsage, FinishReason: "stop", EndReason: formats.EndComplete,
		}
		if r.IntN(200) == 0 {
			x.EndReason, x.ErrorKind, x.Status = formats.EndServerAbort, "http_503", formats.Of(int32(503))
		}
		if err := w.Write(x); err != nil {
			tb.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
}

func TestWriteBenchTrace(t *testing.T) {
	if *benchOut == "" {
		t.Skip("skipped: only make bench-analyze writes the large trace")
	}
	writeTimed(t, *benchOut, *benchRows)
}

func BenchmarkSummarize(b *testing.B) {
	const n = 200_000
	where := filepath.Join(b.TempDir(), "t.parquet")
	writeTimed(b, where, n)
	before := benchreport.ProcessorTime()
	b.ResetTimer()
	for range b.N {
		r, err := OpenRun(where)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := Summarize(r, Options{}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds(), "exchanges/s")
	b.ReportMetric(float64(n)*float64(b.N)/(benchreport.ProcessorTime()-before).Seconds(), "exchanges/cpu-s")
}
