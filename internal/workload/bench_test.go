package workload

import (
	"testing"

	"github.com/shadowtape/shadowtape/internal/benchreport"
)

// BenchmarkGenerate is rows of the model that docs/PERFORMANCE.md's 100 million are made from, without writing them.
func BenchmarkGenerate(b *testing.B) {
	a, err := ParseArrival("mmpp:burst=10,on=10s,off=50s", 1000, 0)
	if err != nil {
		b.Fatal(err)
	}
	m, err := Written(a, Length{Family: Lognormal, P50: 700, P99: 8000}, Length{Family: Exponential, Mean: 200}, nil)
	if err != nil {
		b.Fatal(err)
	}
	rows, err := m.Generate(Options{Seed: 1, Requests: int64(b.N)})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	before := benchreport.ProcessorTime()
	b.ResetTimer()
	for range rows {
	}
	b.ReportMetric(float64(b.N)/(benchreport.ProcessorTime()-before).Seconds(), "exchanges/cpu-s")
}
