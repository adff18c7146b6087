package sweep

import (
	"context"
	"math"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/shadowtape/shadowtape/analyzer"
	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/replayer/job"
)

func TestBisectFindsTheLimit(t *testing.T) {
	o := &Search{From: 1, To: 100, Within: 0.1}
	for _, limit := range []float64{1, 1.05, 3.3, 17, 64, 99.9} {
		asked := 0
		b, err := bisect(o, func(rate float64) (bool, error) {
			asked++
			return rate <= limit, nil
		})
		if err != nil || !(b.Rate.V <= limit && limit < b.Over.V) || b.Over.V/b.Rate.V > 1.1 || asked > 13 {
			t.Errorf("limit %v: %+v after %d, %v", limit, b, asked, err)
		}
	}
	for _, c := range []struct {
		limit float64
		want  Bracket
	}{{0.5, Bracket{Over: formats.Of(1.0)}}, {100, Bracket{Rate: formats.Of(100.0)}}} {
		if b, err := bisect(o, func(rate float64) (bool, error) { return rate <= c.limit, nil }); err != nil || b != c.want {
			t.Errorf("limit %v: %+v, want %+v, %v", c.limit, b, c.want, err)
		}
	}
}

// Repeats whose limits scatter around a true one: the interval holds the mean limit at least as often as it says.
func TestIntervalHoldsTheLimit(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	const trials = 1000
	for _, c := range []struct {
		repeats int
		scatter float64
	}{{3, 0.05}, {3, 0.3}, {5, 0.1}, {8, 0.02}} {
		held, width := 0, 0.0
		for range trials {
			limit := 8 * math.Exp(r.Float64())
			var a Answer
			a.Confidence = confidence
			for range c.repeats {
				mine := limit * math.Exp(c.scatter*r.NormFloat64())
				b, err := bisect(&Search{From: 0.5, To: 512, Within: 0.1}, func(rate float64) (bool, error) { return rate <= mine, nil })
				if err != nil {
					t.Fatal(err)
				}
				a.Repeats = append(a.Repeats, b)
			}
			a.conclude()
			if a.Low.V <= limit && limit <= a.High.V {
				held++
			}
			if !(a.Low.V <= a.Rate.V*(1+1e-9) && a.Rate.V < a.Over.V && a.Over.V <= a.High.V*(1+1e-9)) && c.repeats < 4 {
				t.Fatalf("%+v", a)
			}
			width += math.Log(a.High.V/a.Low.V) / trials
		}
		if held < trials*94/100 {
			t.Errorf("%d repeats that scatter by %v: held in %d of %d", c.repeats, c.scatter, held, trials)
		}
		t.Logf("%d repeats that scatter by %v: held in %.1f %%, %.2f wide", c.repeats, c.scatter, 100*float64(held)/trials, width)
	}
}

func TestAnswersInWords(t *testing.T) {
	of := formats.Of[float64]
	for _, c := range []struct {
		repeats  []Bracket
		doubtful int
		want     string
	}{
		{[]Bracket{{of(4), of(4.4)}}, 0, "4/s, one repeat: how sure that is cannot be said"},
		{[]Bracket{{Over: of(1)}}, 2, "none met it; 2 of the runs that missed it failed or were invalid"},
		{[]Bracket{{Rate: of(64)}}, 0, "64/s or more, one repeat: how sure that is cannot be said"},
		{[]Bracket{{of(4), of(4.4)}, {of(4), of(4.4)}, {of(4), of(4.4)}}, 0, "4/s, 95 % interval of the limit 4 to 4.4/s"},
		{[]Bracket{{of(4), of(4.4)}, {of(3), of(3.3)}, {Rate: of(64)}}, 0, "4/s, 95 % interval of the limit from 0.1376/s"},
		{[]Bracket{{of(4), of(4.4)}, {Over: of(1)}, {of(4), of(4.4)}}, 0, "4/s, 95 % interval of the limit up to 22.48/s"},
	} {
		a := Answer{Confidence: confidence, Repeats: c.repeats, Doubtful: c.doubtful}
		a.conclude()
		if got := a.String(); got != c.want {
			t.Errorf("%v: %q, want %q", c.repeats, got, c.want)
		}
	}
}

func TestSearch(t *testing.T) {
	var asked atomic.Int64
	slo, err := analyzer.ParseSLO("ttft=1h")
	if err != nil {
		t.Fatal(err)
	}
	m := &Matrix{Target: server(t, &asked), Axes: []Axis{{"input", []string{"16"}}, {"output", []string{"4"}}}, Requests: 5, SLO: slo, SLOText: "ttft=1h", Search: &Search{From: 100, To: 300}}
	m.Defaults()
	table, err := Run(context.Background(), m, Options{Dir: filepath.Join(t.TempDir(), "s"), Job: job.Options{Scrape: -1}})
	if err != nil || len(table.Answers) != 1 || table.Answers[0].Rate.V != 300 || table.Answers[0].Over.Valid || table.Answers[0].Runs != 9 || math.Abs(table.Answers[0].Low.V-300) > 1e-9 || table.Answers[0].High.Valid {
		t.Errorf("all rates meet it: %v %+v", err, table.Answers)
	}
	if len(table.Medians) != 3 || table.Medians[0].Values["rate"] != "100" || table.Medians[2].Values["rate"] != "300" {
		t.Errorf("medians: %+v", table.Medians)
	}
	var text, page strings.Builder
	if err := table.Text(&text); err != nil || !strings.Contains(text.String(), "highest rate within ttft=1h: 300/s or more, 95 % interval of the limit from 300/s (input 16, output 4, 9 runs)\n") {
		t.Errorf("%v\n%s", err, text.String())
	}
	if err := table.Page(&page, "x"); err != nil || !strings.Contains(page.String(), "95 % interval of the limit from 300/s") {
		t.Errorf("the page lacks the interval: %v", err)
	}
	// nobody listens: every rate fails, and none is found
	m.Target = "http://127.0.0.1:1"
	table, err = Run(context.Background(), m, Options{Dir: filepath.Join(t.TempDir(), "s"), Job: job.Options{Dialect: "vllm", Model: "m"}})
	if err != nil || len(table.Answers) != 1 || table.Answers[0].Rate.Valid || table.Answers[0].Over.V != 100 || table.Answers[0].Doubtful != 3 || table.Results[0].Error == "" {
		t.Errorf("nobody listens: %v %+v", err, table.Answers)
	}
}
