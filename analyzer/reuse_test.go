package analyzer

import (
	"math"
	"testing"

	"github.com/shadowtape/shadowtape/formats"
)

// A sample of a trace's prompt blocks, read in parts, gives nearly the curve of all of them.
func TestReuseOfASample(t *testing.T) {
	run, err := OpenRun("../samples/traces/mooncake-conversation.parquet")
	if err != nil {
		t.Fatal(err)
	}
	defer run.Close()
	curve := func(halved uint) Pages {
		a, b := &reuse{}, &reuse{}
		i := 0
		for x, err := range run.Exchanges(formats.ColArrival, formats.ColPrefixBlocks) {
			if err != nil {
				t.Fatal(err)
			}
			part := a
			if i++; i%2 == 0 {
				part = b
			}
			part.add(x)
		}
		a.thin(halved)
		a.merge(b)
		var p Pages
		a.fill(&p, run.Header, Sizes{BlockSize: 512, Pages: 16000})
		return p
	}
	all := curve(0)
	if all.CurveSample != 1 || math.Abs(all.LRUHitRate.V-0.2627071057) > 0.0005 {
		t.Fatalf("a share of %v hits %v", all.CurveSample, all.LRUHitRate)
	}
	for _, halved := range []uint{1, 3} {
		p := curve(halved)
		if want := math.Pow(2, -float64(halved)); p.CurveSample != want {
			t.Errorf("the sample is %v, want %v", p.CurveSample, want)
		}
		if math.Abs(p.LRUHitRate.V-all.LRUHitRate.V) > 0.02 {
			t.Errorf("one of %d blocks: %v, all of them: %v", 1<<halved, p.LRUHitRate, all.LRUHitRate)
		}
		for i, c := range p.Curve[:min(len(p.Curve), len(all.Curve))] {
			if math.Abs(c.HitRate-all.Curve[i].HitRate) > 0.03 {
				t.Errorf("one of %d blocks, %d pages: %v, all of them: %v", 1<<halved, c.Pages, c.HitRate, all.Curve[i].HitRate)
			}
		}
	}
}
