package foreign

import (
	"context"
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shadowtape/shadowtape/formats"
)

// pool imports a pool of clients.
func pool(t *testing.T, o Options, files ...Source) (imported, error) {
	t.Helper()
	f, err := Named("servegen")
	if err != nil {
		t.Fatal(err)
	}
	where := filepath.Join(t.TempDir(), "t")
	r, err := Import(context.Background(), f, files, where, formats.Header{}, o)
	if err != nil {
		return imported{}, err
	}
	tr, err := formats.Open(where)
	if err != nil {
		t.Fatal(err)
	}
	got := imported{Report: r, header: tr.Header}
	for x, err := range tr.All() {
		if err != nil {
			t.Fatal(err)
		}
		got.rows = append(got.rows, x)
	}
	return got, nil
}

func src(name, text string) Source { return Source{Name: name, R: strings.NewReader(text)} }

const serveDataset = `{"0": {"input_tokens": "{60: 0.25, 100: 0.5, 900: 0.2}", "output_tokens": "{10: 0.5, 20: 0.5}", "reason_ratio": "{0.5: 1.0}"}, "3600": {"input_tokens": "{7: 1.0}", "output_tokens": "{3: 1.0}"}}`

// TestServeGen checks the expanded load against what the pool states: the rate of each window, the variation of the gaps, lengths, and
// that input and output are drawn apart.
func TestServeGen(t *testing.T) {
	var a, b strings.Builder
	for w := range 12 {
		rate := 2.0
		if w == 3 {
			fmt.Fprintf(&a, "%d,0,0,,,\n", w*600)
			continue
		}
		fmt.Fprintf(&a, "%d,%v,2,Gamma,0.25,99\n", w*600, rate)
	}
	for w := range 12 {
		fmt.Fprintf(&b, "%d,1,1.5,Weibull,0.7,99\n", w*600)
	}
	got, err := pool(t, Options{Seed: 5, Duration: 2 * time.Hour}, src("chunk-1-trace.csv", a.String()), src("chunk-1-dataset.json", serveDataset),
		src("chunk-2-dataset.json", serveDataset), src("chunk-2-trace.csv", b.String()))
	if err != nil {
		t.Fatal(err)
	}
	byClient := map[formats.Hash][]*formats.Exchange{}
	for _, x := range got.rows {
		byClient[x.TenantID.V] = append(byClient[x.TenantID.V], x)
	}
	if len(byClient) != 2 || got.header.Licence != "Apache-2.0" || got.header.TimeBase != "relative" {
		t.Fatalf("%d clients, %+v", len(byClient), got.header)
	}
	for _, rows := range byClient {
		gamma := len(rows) > 9000
		want, variation := 7200.0, 1.4624 // Weibull of shape 0.7
		if gamma {
			want, variation = 2*11*600, 2 // 1/sqrt(0.25); one window of twelve is idle
		}
		if dev := math.Abs(float64(len(rows))-want) / (variation * math.Sqrt(want)); dev > 4 {
			t.Errorf("%d requests where %v are expected: %.1f standard deviations", len(rows), want, dev)
		}
		idle, sum, squares, n := 0, 0.0, 0.0, 0
		inOut := map[[2]int64]int{}
		for i, x := range rows {
			if s := x.ArrivalUnixNS / 1e9; gamma && s >= 1800 && s < 2400 {
				idle++
			}
			if i > 0 && x.ArrivalUnixNS/600e9 == rows[i-1].ArrivalUnixNS/600e9 {
				g := float64(x.ArrivalUnixNS-rows[i-1].ArrivalUnixNS) / 1e9
				sum, squares, n = sum+g, squares+g*g, n+1
			}
			if x.ArrivalUnixNS < 3600e9 {
				inOut[[2]int64{x.InputTokens.V, x.OutputTokens.V}]++
				if x.ReasoningTokens.V*2 != x.OutputTokens.V {
					t.Fatalf("%d of %d are reasoning", x.ReasoningTokens.V, x.OutputTokens.V)
				}
			} else if x.InputTokens.V != 7 || x.OutputTokens.V != 3 || x.ReasoningTokens.Valid {
				t.Fatalf("the second window's lengths: %+v", x)
			}
		}
		mean := sum / float64(n)
		if cv := math.Sqrt(squares/float64(n)-mean*mean) / mean; math.Abs(cv-variation)/variation > 0.08 {
			t.Errorf("gaps vary by %.3f, %.3f expected", cv, variation)
		}
		if idle != 0 {
			t.Errorf("%d requests while the client was idle", idle)
		}
		total := 0
		for _, c := range inOut {
			total += c
		}
		// 900 tokens in have weight 0.2 of 0.95; half of them 20 out if the two are drawn apart, and all or none if not.
		if share := float64(inOut[[2]int64{900, 20}]) / float64(total); math.Abs(share-0.5*0.2/0.95) > 0.02 {
			t.Errorf("900 and 20 tokens come together in %.3f of the rows", share)
		}
	}
	same, err := pool(t, Options{Seed: 5, Duration: 2 * time.Hour}, src("chunk-1-trace.csv", a.String()), src("chunk-1-dataset.json", serveDataset))
	if err != nil {
		t.Fatal(err)
	}
	for i, x := range same.rows[:100] {
		for _, rows := range byClient {
			if len(rows) > 9000 && rows[i].ArrivalUnixNS != x.ArrivalUnixNS {
				t.Fatalf("one seed gives two loads at row %d", i)
			}
		}
	}
}

func TestServeGenRefuses(t *testing.T) {
	for name, files := range map[string][]Source{
		"no dataset":       {src("chunk-1-trace.csv", "0,1,1,Gamma,1,1\n")},
		"bad distribution": {src("c-trace.csv", "0,1,1,Gamma,1,1\n0,1,1,Pareto,1,1\n"), src("c-dataset.json", serveDataset)},
		"bad shape":        {src("c-trace.csv", "0,1,1,Gamma,-1,1\n"), src("c-dataset.json", serveDataset)},
		"bad pmf":          {src("c-trace.csv", "0,1,1,Gamma,1,1\n"), src("c-dataset.json", `{"0": {"input_tokens": "{60: -1}"}}`)},
		"short row":        {src("c-trace.csv", "0,1,1,Gamma,1,1\n0,1\n"), src("c-dataset.json", serveDataset)},
	} {
		if _, err := pool(t, Options{}, files...); err == nil {
			t.Errorf("%s: read", name)
		}
	}
	_, err := pool(t, Options{From: time.Hour, Duration: time.Minute}, src("c-trace.csv", "3600,1,1,Gamma,1,1\n"), src("c-dataset.json", `{"0": {"input_tokens": "{}", "output_tokens": "{}"}}`))
	if err == nil || !strings.Contains(err.Error(), "it holds no request: of 60 rows 60 were left out (no_lengths)") {
		t.Error(err)
	}
}
