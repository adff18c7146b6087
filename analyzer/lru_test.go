package analyzer

import (
	"math"
	"testing"
)

// The published curve of the Mooncake conversation trace, computed by another program: LRU over 512-token blocks.
func TestMooncakeMissRatioCurve(t *testing.T) {
	run, err := OpenRun("../samples/traces/mooncake-conversation.parquet")
	if err != nil {
		t.Fatal(err)
	}
	for capacity, want := range map[int64]float64{1000: 0.04453032929, 2000: 0.05429809359, 4000: 0.08653032929, 8000: 0.1780519931, 16000: 0.2627071057, 32000: 0.3319965338, 64000: 0.3592651646, 1e9: 0.3664124783} {
		s, err := Summarize(run, Options{Sizes: Sizes{BlockSize: 512, Pages: capacity}})
		if err != nil {
			t.Fatal(err)
		}
		if got := s.Pages.LRUHitRate.V; math.Abs(got-want) > 0.0005 {
			t.Errorf("%d blocks hit %.6f, want %.6f", capacity, got, want)
		}
		if c := s.Pages.Curve; len(c) < 5 || math.Abs(c[len(c)-1].HitRate-0.3664124783) > 1e-9 {
			t.Errorf("the curve does not end where everything fits: %v", c)
		}
	}
}
