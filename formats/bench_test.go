package formats

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/shadowtape/shadowtape/internal/benchreport"
)

// recorded is an exchange as a recorder of streamed chat writes it, without event lists.
func recorded(r *rand.Rand, i int, at int64, x *Exchange) {
	session := Hash{1, 2, 3, 4, byte(i >> 26), byte(i >> 18), byte(i >> 10), byte(i >> 2)}
	var id Hash
	for j := range id {
		id[j] = byte(r.Uint32())
	}
	ttft := int64(30e6 + r.ExpFloat64()*200e6)
	out := int64(1 + r.ExpFloat64()*200)
	last := ttft + out*int64(10e6+r.NormFloat64()*1e6)
	*x = Exchange{
		Phase: PhaseRecord, ArrivalUnixNS: at, ServerID: "10.0.0.7:8000", Node: "node-3", SessionID: Of(session), Turn: Of(int32(1 + i%4)),
		CorrelationID: Of(id), RequestEndNS: Of(int64(r.IntN(90_000))), ResponseHeaderNS: Of(ttft - int64(r.IntN(30_000))),
		FirstEventNS: Of(ttft - int64(r.IntN(3_000))), FirstTokenNS: Of(ttft), FirstContentNS: Of(ttft), LastTokenNS: Of(last),
		EndNS: Of(last + int64(r.IntN(200_000))), ConnReused: Of(i%7 != 0), Endpoint: EndpointChat, RequestModel: "model-8b", Stream: Of(true),
		RequestBytes: Of(int64(2000 + r.ExpFloat64()*4000)), InputTokens: Of(int64(100 + r.ExpFloat64()*1500)), InputTokensSource: TokensUsage,
		MessageCount: Of(int32(2 + r.IntN(8))), ToolCount: Of(int32(0)), Temperature: Of(0.7), MaxTokens: Of(int64(1024)), N: Of(int32(1)),
		Status: Of(int32(200)), FinishReason: "stop", EndReason: EndComplete, Attempt: Of(int32(1)), ResponseBytes: Of(out * 190),
		OutputTokens: Of(out), OutputTokensSource: TokensUsage, CachedTokens: Of(int64(r.IntN(20) * 16)), ResponseModel: "model-8b",
		GapBytes: Of(int64(0)), Retransmits: Of(int32(0)), Midstream: Of(false), Truncated: Of(false), Clock: ClockPacket,
	}
}

func write(tb testing.TB, where string, n int, o SegmentOptions, make func(r *rand.Rand, i int, at int64, x *Exchange)) {
	r := rand.New(rand.NewPCG(3, 4))
	w, err := Create(where, Header{}, o)
	if err != nil {
		tb.Fatal(err)
	}
	at := int64(1_700_000_000_000_000_000)
	var x Exchange
	for i := range n {
		at += int64(r.ExpFloat64() * 50e6)
		make(r, i, at, &x)
		if err := w.Write(&x); err != nil {
			tb.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
}

func size(tb testing.TB, dir string) (n int64) {
	es, err := os.ReadDir(dir)
	if err != nil {
		tb.Fatal(err)
	}
	for _, e := range es {
		info, err := e.Info()
		if err != nil {
			tb.Fatal(err)
		}
		n += info.Size()
	}
	return n
}

func BenchmarkWriteRecording(b *testing.B) {
	dir := filepath.Join(b.TempDir(), "t")
	b.ReportAllocs()
	before := benchreport.ProcessorTime()
	write(b, dir, b.N, SegmentOptions{}, recorded)
	used := benchreport.ProcessorTime() - before
	b.ReportMetric(float64(used.Nanoseconds())/float64(b.N), "cpu-ns/op")
	b.ReportMetric(float64(b.N)/used.Seconds(), "rows/cpu-s")
	b.ReportMetric(float64(size(b, dir))/float64(b.N), "disk-B/row")
}

func BenchmarkWriteJournaled(b *testing.B) {
	b.ReportAllocs()
	before := benchreport.ProcessorTime()
	write(b, filepath.Join(b.TempDir(), "t"), b.N, SegmentOptions{Journal: true}, recorded)
	b.ReportMetric(float64((benchreport.ProcessorTime()-before).Nanoseconds())/float64(b.N), "cpu-ns/op")
}

func BenchmarkScanThree(b *testing.B) { benchmarkScan(b, ColArrival, ColInputTokens, ColOutputTokens) }

func BenchmarkScanMetrics(b *testing.B) {
	benchmarkScan(b, ColArrival, ColSent, ColFirstToken, ColLastToken, ColEnd, ColInputTokens, ColOutputTokens, ColStatus)
}

func benchmarkScan(b *testing.B, columns ...Column) {
	t := recording(b)
	b.ResetTimer()
	sum := int64(0)
	for b.Loop() {
		for batch, err := range t.Scan(columns...) {
			if err != nil {
				b.Fatal(err)
			}
			for _, c := range columns {
				v, _ := batch.Int64(c)
				for _, n := range v {
					sum += n
				}
			}
		}
	}
	b.ReportMetric(float64(t.Rows)*float64(b.N)/b.Elapsed().Seconds()/1e6, "Mrow/s")
	runtime.KeepAlive(sum)
}

func BenchmarkAll(b *testing.B) {
	t := recording(b)
	b.ReportAllocs()
	b.ResetTimer()
	for b.Loop() {
		for _, err := range t.All() {
			if err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(t.Rows)*float64(b.N)/b.Elapsed().Seconds()/1e6, "Mrow/s")
}

func recording(b *testing.B) *Trace {
	dir := filepath.Join(b.TempDir(), "t")
	write(b, dir, 300_000, SegmentOptions{}, recorded)
	t, err := Open(dir)
	if err != nil {
		b.Fatal(err)
	}
	return t
}
