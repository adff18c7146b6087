package inspect

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/shadowtape/shadowtape/analyzer"
	"github.com/shadowtape/shadowtape/formats"
)

// The figures of the published traces, computed by another program (numpy): six digits must agree.
func TestPublishedTraces(t *testing.T) {
	for _, c := range []struct {
		file string
		want Profile
	}{
		{"azure2023-code", Profile{
			Exchanges: 8819, SpanS: formats.Of(3435.948056), RatePerS: formats.Of(2.566686066), InterarrivalCV: formats.Of(13.15129097),
			IDC:          Dispersions{formats.Of(13.18642808), formats.Of(71.64146924), formats.Of(163.9646885)},
			InputTokens:  lengths(2047.848282, 1469, 5187.6, 7303.3, 7436, 7437),
			OutputTokens: lengths(27.88252636, 13, 55, 90, 251.46, 1899),
			Pearson:      formats.Of(0.001152483097), Spearman: formats.Of(-0.02146235576),
		}},
		{"mooncake-conversation", Profile{
			Exchanges: 12031, SpanS: formats.Of(3536.999), RatePerS: formats.Of(3.401471134), InterarrivalCV: formats.Of(3.033737443),
			IDC:          Dispersions{formats.Of(7.897618037), formats.Of(2.098788505), formats.Of(2.894971604)},
			InputTokens:  lengths(12035.06134, 6909, 27367, 39550.5, 85400.4, 126195),
			OutputTokens: lengths(342.6189012, 350, 597, 698, 1118.5, 2000),
			Pearson:      formats.Of(0.07187815061), Spearman: formats.Of(0.07169248904),
			Prefix:        PrefixReuse{formats.Of(0.3664124783), formats.Of(0.3736237491)},
			TimeQuantumMS: formats.Of(3000.0),
		}},
	} {
		t.Run(c.file, func(t *testing.T) {
			r, err := analyzer.OpenRun("../../samples/traces/" + c.file + ".parquet")
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := r.Close(); err != nil {
					t.Error(err)
				}
			}()
			p, err := Trace(r)
			if err != nil {
				t.Fatal(err)
			}
			if p.Exchanges != c.want.Exchanges {
				t.Errorf("%d exchanges, want %d", p.Exchanges, c.want.Exchanges)
			}
			got, want := p.figures(), c.want.figures()
			for i := range got {
				if got[i].Valid != want[i].Valid || math.Abs(got[i].V-want[i].V) > 0.5e-6*math.Abs(want[i].V) {
					t.Errorf("figure %d: %v, want %v", i, got[i], want[i])
				}
			}
		})
	}
}

func lengths(mean, p50, p90, p95, p99, longest float64) Lengths {
	return Lengths{formats.Of(mean), formats.Of(p50), formats.Of(p90), formats.Of(p95), formats.Of(p99), formats.Of(longest)}
}

func (l Lengths) figures() []analyzer.Null {
	return []analyzer.Null{l.Mean, l.P50, l.P90, l.P95, l.P99, l.Max}
}

// figures are a profile's numbers in the order of its JSON.
func (p Profile) figures() []analyzer.Null {
	all := []analyzer.Null{p.SpanS, p.RatePerS, p.InterarrivalCV, p.IDC.OneS, p.IDC.TenS, p.IDC.SixtyS}
	all = append(append(all, p.InputTokens.figures()...), p.OutputTokens.figures()...)
	return append(all, p.Pearson, p.Spearman, p.Prefix.BlockHitRate, p.Prefix.TokenHitRate, p.TimeQuantumMS)
}

// A trace that is stored out of arrival order has the same profile.
func TestInspectDoesNotDependOnStoredOrder(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var xs []*formats.Exchange
	for i := range int64(400) {
		x := &formats.Exchange{ExchangeID: i + 1, Phase: formats.PhaseRecord, ArrivalUnixNS: i*7e8 + r.Int64N(3), InputTokens: formats.Of(r.Int64N(3000) + 1), OutputTokens: formats.Of(r.Int64N(100))}
		root := r.Int64N(5)
		for k := range 1 + (x.InputTokens.V-1)/512 {
			x.PrefixBlocks = append(x.PrefixBlocks, root*1000+k*7+root*root*k%3)
		}
		if r.IntN(3) == 0 {
			x.SessionID = formats.Of(formats.Hash{byte(r.IntN(20)), 1})
		}
		xs = append(xs, x)
	}
	of := func(xs []*formats.Exchange) Profile {
		run := analyzer.RunOf("r", nil, xs, nil)
		run.Header.PrefixBlockSize, run.Header.PrefixBlockUnit, run.Header.PrefixBlockRule = 512, "tokens", "ceil"
		p, err := Trace(run)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	want := of(xs)
	hits, blocks, hitTokens, tokens := 0, 0, int64(0), int64(0)
	for i, x := range xs { // brute force: the leading blocks that any earlier request had
		leading := true
		for k, b := range x.PrefixBlocks {
			size := int64(512)
			if k == len(x.PrefixBlocks)-1 {
				size = x.InputTokens.V - int64(k)*512
			}
			seen := false
			for _, y := range xs[:i] {
				for _, c := range y.PrefixBlocks {
					seen = seen || c == b
				}
			}
			leading = leading && seen
			blocks++
			tokens += size
			if leading {
				hits++
				hitTokens += size
			}
		}
	}
	if got, want := want.Prefix.BlockHitRate.V, float64(hits)/float64(blocks); math.Abs(got-want) > 1e-12 {
		t.Errorf("block hit rate %v, want %v", got, want)
	}
	if got, want := want.Prefix.TokenHitRate.V, float64(hitTokens)/float64(tokens); math.Abs(got-want) > 1e-12 {
		t.Errorf("token hit rate %v, want %v", got, want)
	}
	shuffled := append([]*formats.Exchange(nil), xs...)
	r.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
	got := of(shuffled)
	for i, g := range got.figures() {
		if w := want.figures()[i]; g.Valid != w.Valid || math.Abs(g.V-w.V) > 1e-12*math.Abs(w.V) {
			t.Errorf("figure %d: %v shuffled, %v in order", i, g, w)
		}
	}
	if *got.Sessions != *want.Sessions {
		t.Errorf("%d sessions shuffled, %d in order", *got.Sessions, *want.Sessions)
	}
}

func TestTimeQuantum(t *testing.T) {
	for _, c := range []struct {
		name  string
		times []int64
		want  analyzer.Null
	}{
		{"most shared", []int64{0, 0, 0, 3e9, 3e9, 6e9}, formats.Of(3000.0)},
		{"half shared", []int64{0, 0, 1e9, 2e9}, analyzer.Null{}},
		{"one moment", []int64{5, 5, 5}, analyzer.Null{}},
		{"none", nil, analyzer.Null{}},
	} {
		if got := timeQuantum(c.times); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

func TestColumnNamesInPrivacy(t *testing.T) {
	known := map[string]bool{}
	for _, c := range formats.Columns() {
		known[string(c)] = true
	}
	for _, f := range stringFields() {
		if !known[f.name] {
			t.Errorf("%s is no column", f.name)
		}
	}
}

// Turns that overlap are counted in the order of their arrivals, in whatever order they are stored.
func TestOverlappingTurns(t *testing.T) {
	a, b := formats.Hash{1}, formats.Hash{2}
	row := func(session formats.Hash, at, took int64) *formats.Exchange {
		return &formats.Exchange{Phase: formats.PhaseRecord, ArrivalUnixNS: at, SessionID: formats.Of(session), EndNS: formats.Of(took)}
	}
	for _, c := range []struct {
		name string
		rows []*formats.Exchange
		want int64
	}{
		{"one after the other", []*formats.Exchange{row(a, 0, 10), row(a, 10, 10), row(b, 5, 100), row(a, 20, 1)}, 0},
		{"as they ended", []*formats.Exchange{row(a, 10, 5), row(a, 0, 30), row(a, 20, 50), row(b, 0, 1), row(b, 1, 1)}, 2},
		{"an end that is not known ends nothing", []*formats.Exchange{{Phase: formats.PhaseRecord, SessionID: formats.Of(a)}, row(a, 5, 1)}, 0},
	} {
		in := inspection{sessions: map[formats.Hash]int32{}}
		for _, x := range c.rows {
			in.add(x)
		}
		var p Profile
		if in.fill(&p); p.Overlapping == nil || *p.Overlapping != c.want {
			t.Errorf("%s: %v, want %d", c.name, p.Overlapping, c.want)
		}
	}
	in := inspection{sessions: map[formats.Hash]int32{}}
	in.add(&formats.Exchange{Phase: formats.PhaseRecord, SessionID: formats.Of(a)})
	var p Profile
	if in.fill(&p); p.Sessions == nil || p.Overlapping != nil {
		t.Errorf("no end is known, and %v turns overlap", p.Overlapping)
	}
}
