package history

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shadowtape/shadowtape/internal/experiment/verdict"
)

var start = time.Date(2026, 1, 1, 22, 0, 0, 0, time.UTC)

var tpot = func() verdict.Metric {
	for _, m := range verdict.Defaults() {
		if m.Name == "tpot" {
			return m
		}
	}
	panic("there is no tpot")
}()

var key = Key{"trace": "abc", "model": "m", "host": "h1"}

// night makes three launches of a level.
func night(r *rand.Rand, n int, level, sd float64) []Record {
	var out []Record
	for i := range 3 {
		out = append(out, Record{Kind: RunKind, At: start.AddDate(0, 0, n).Add(time.Duration(i) * time.Hour), Series: key.ID(), ID: fmt.Sprintf("%d-%d", n, i), Key: key,
			Commit: fmt.Sprintf("c%03d", n), Label: "main", Levels: map[string]float64{"tpot": level + sd*r.NormFloat64()}, Provenance: map[string]string{"host": "h1"}})
	}
	return out
}

// database makes nights whose levels are a function's.
func database(t *testing.T, r *rand.Rand, nights int, sd float64, level func(int) float64) (*DB, string) {
	t.Helper()
	dir := t.TempDir()
	var all []Record
	for n := range nights {
		all = append(all, night(r, n, math.Log(25)+level(n), sd)...)
	}
	if err := Append(dir, all...); err != nil {
		t.Fatal(err)
	}
	db, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	return db, dir
}

// memory is database without files.
func memory(r *rand.Rand, nights int, sd float64, level func(int) float64, more ...Record) *DB {
	db := &DB{}
	for n := range nights {
		db.Records = append(db.Records, night(r, n, math.Log(25)+level(n), sd)...)
	}
	db.Records = append(db.Records, more...)
	return db
}

func TestRoundTripMergeAndDamage(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	db, dir := database(t, r, 5, 0.01, func(int) float64 { return 0 })
	if len(db.Records) != 15 || len(db.Series()) != 1 || len(db.Series()[0].Nights("tpot")) != 5 {
		t.Fatalf("%d records, %d series", len(db.Records), len(db.Series()))
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	if err != nil || len(files) != 5 {
		t.Fatalf("%d files, want one a night", len(files))
	}
	// adding the same again, as a merge does, changes nothing; a cut line costs itself only
	b, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(files[0], append(append(b, b...), b[:len(b)/5]...), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := Append(dir, night(r, 0, 1, 0)...); err != nil {
		t.Fatal(err)
	}
	again, err := Load(dir)
	if err != nil || len(again.Records) != 15 || len(again.Warnings) != 1 {
		t.Errorf("%d records, warnings %v, %v", len(again.Records), again.Warnings, err)
	}
	if err := os.WriteFile(files[1], []byte(`{"schema":9,"kind":"run","series":"x"}`+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(dir); err == nil || !strings.Contains(err.Error(), "schema 9") {
		t.Errorf("a later schema: %v", err)
	}
	if _, err := Load(t.TempDir()); !errors.Is(err, ErrEmpty) {
		t.Errorf("an empty directory: %v", err)
	}
	if _, err := Load(filepath.Join(dir, "absent")); !errors.Is(err, ErrEmpty) {
		t.Errorf("no directory: %v", err)
	}
}

func TestKeysNeverMix(t *testing.T) {
	other := Key{"trace": "abc", "model": "m", "host": "h2"}
	if key.ID() == other.ID() || key.ID() != (Key{"host": "h1", "model": "m", "trace": "abc"}).ID() {
		t.Error("ids do not tell keys apart, or depend on their order")
	}
	if d := key.Differs(other); len(d) != 1 || d[0] != "host (h1 and h2)" {
		t.Errorf("differences %v", d)
	}
}

func TestStepIsFoundWithItsCommitsAndAccepted(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	db, dir := database(t, r, 30, 0.01, func(n int) float64 {
		if n >= 20 {
			return 0.06
		}
		return 0
	})
	alerts := db.Check([]verdict.Metric{tpot})
	if len(alerts) != 1 || !alerts[0].Open() || alerts[0].FirstBad != "c020" || alerts[0].LastGood != "c019" || math.Abs(alerts[0].ShiftPct-6.2) > 1.5 || !alerts[0].Confirmed {
		t.Fatalf("%+v", alerts)
	}
	p := db.Series()[0].Past(tpot, start.AddDate(0, 0, 30), 0)
	if len(p.Nights) != 10 || len(p.Earlier) != 20 {
		t.Errorf("the history is cut into %d and %d nights, want 10 and 20", len(p.Nights), len(p.Earlier))
	}
	if err := Append(dir, Record{Kind: AcceptKind, At: start.AddDate(0, 0, 30), Series: key.ID(), Metric: "tpot", Commit: "c020", Reason: "larger draft model"}); err != nil {
		t.Fatal(err)
	}
	db, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	if alerts = db.Check([]verdict.Metric{tpot}); len(alerts) != 1 || alerts[0].Open() || !strings.Contains(alerts[0].Text, "larger draft model") {
		t.Errorf("after the acceptance: %+v", alerts)
	}
}

// A change is confirmed, or found to be no change of the code, by a gate of the two commits side by side.
func TestSideBySide(t *testing.T) {
	for _, c := range []struct {
		name      string
		gate      Record
		confirmed bool
		says      string
	}{
		{"none", Record{Kind: RunKind}, false, "gate --base-commit c019aaa --commit c020aaa"},
		{"it agrees", Record{Commit: "c020aaabbb", Against: "c019aaa", States: map[string]string{"tpot": "regressed"}, Pairs: 5}, true, "confirmed side by side (regressed, 5 pairs)"},
		{"it does not", Record{Commit: "c020aaa", Against: "c019aaa", States: map[string]string{"tpot": "unchanged"}, Pairs: 8}, false, "not the code"},
		{"it cannot say", Record{Commit: "c020aaa", Against: "c019aaa", States: map[string]string{"tpot": "inconclusive"}, Pairs: 8}, false, "to be confirmed"},
		{"of other commits", Record{Commit: "c020aaa", Against: "c018aaa", States: map[string]string{"tpot": "regressed"}, Pairs: 5}, false, "to be confirmed"},
		{"of identical builds", Record{Commit: "c020aaa", Against: "c019aaa", AA: true, States: map[string]string{"tpot": "regressed"}, Pairs: 5}, false, "to be confirmed"},
	} {
		db := memory(rand.New(rand.NewPCG(2, 2)), 24, 0.01, func(n int) float64 {
			if n >= 20 {
				return 0.08
			}
			return 0
		})
		for i := range db.Records {
			db.Records[i].Commit += "aaa"
		}
		if c.gate.Kind == "" {
			c.gate.Kind, c.gate.Series = GateKind, key.ID()
			db.Records = append(db.Records, c.gate)
		}
		alerts := db.Check([]verdict.Metric{tpot})
		if len(alerts) != 1 || !alerts[0].Open() || alerts[0].Confirmed != c.confirmed || !strings.Contains(alerts[0].Text, c.says) {
			t.Errorf("%s: %+v", c.name, alerts)
		}
	}
}

func TestWentAway(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	db, _ := database(t, r, 40, 0.01, func(n int) float64 {
		if n >= 12 && n < 22 {
			return 0.08
		}
		return 0
	})
	alerts := db.Check([]verdict.Metric{tpot})
	if len(alerts) != 2 {
		t.Fatalf("%+v", alerts)
	}
	for _, a := range alerts {
		if a.Open() {
			t.Errorf("what went away is open: %+v", a)
		}
	}
}

func TestWindowAndAA(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 4))
	db, dir := database(t, r, 40, 0.01, func(int) float64 { return 0 })
	now := start.AddDate(0, 0, 40)
	if p := db.Series()[0].Past(tpot, now, 30*24*time.Hour); len(p.Nights) != 30 {
		t.Errorf("30 days hold %d nights", len(p.Nights))
	}
	for i := range 12 {
		if err := Append(dir, Record{Kind: AAKind, At: start.AddDate(0, 0, i), Series: key.ID(), Pair: []string{"a", fmt.Sprint(i)}, Differences: map[string]float64{"tpot": 0.01 * r.NormFloat64()}}); err != nil {
			t.Fatal(err)
		}
	}
	db, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	if p := db.Series()[0].Past(tpot, now, 0); len(p.AA) != 12 {
		t.Errorf("%d A/A pairs", len(p.AA))
	}
}

// TestDriftAgainstAnchor: a quarter of a percent a night is no change of level and is found against the anchor; without a drift there are
// few alarms. The figures are those of docs/GATE.md.
func TestDriftAgainstAnchor(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	const trials = 200
	rate := func(perNight float64) (mean, cusum int) {
		for range trials {
			var ids []string
			for n := range 10 {
				ids = append(ids, fmt.Sprintf("%d-0", n))
			}
			db := memory(r, 60, 0.01, func(n int) float64 { return perNight * float64(max(0, n-10)) },
				Record{Kind: AnchorKind, At: start.AddDate(0, 0, 10), Series: key.ID(), Runs: ids})
			d := db.Series()[0].Drift(tpot)
			if d.Past {
				mean++
			}
			if d.CUSUM {
				cusum++
			}
		}
		return mean, cusum
	}
	if mean, cusum := rate(0); mean > 1 || cusum > 2 {
		t.Errorf("of %d series without a drift %d are past the anchor's limit and %d past the cumulative sum's", trials, mean, cusum)
	}
	if mean, cusum := rate(0.001); mean < trials*95/100 || cusum < trials*95/100 {
		t.Errorf("of %d series that drift to 5 %% in 50 nights %d and %d are found", trials, mean, cusum)
	}
}

// TestPrecisionAndRecall draws series with steps, spikes and host regimes and counts what is found: the figures of docs/GATE.md.
func TestPrecisionAndRecall(t *testing.T) {
	r := rand.New(rand.NewPCG(6, 6))
	var right, wrong, steps int
	for trial := range 150 {
		at := 15 + r.IntN(30)
		size := 0.0
		if trial%3 != 0 {
			size = 0.04 + 0.04*r.Float64()
			steps++
		}
		spikes := map[int]bool{r.IntN(60): true, r.IntN(60): true, r.IntN(60): true}
		mood := 0.0
		db := memory(r, 60, 0.01, func(n int) float64 {
			mood = 0.4*mood + 0.005*r.NormFloat64() // a host's moods outlast a night
			v := mood
			if n >= at {
				v += size
			}
			if spikes[n] {
				v += 0.10
			}
			return v
		})
		hit := false
		for _, a := range db.Check([]verdict.Metric{tpot}) {
			day, err := time.Parse(time.DateOnly, a.Since)
			if err != nil {
				t.Fatal(err)
			}
			off := math.Abs(day.Sub(start.AddDate(0, 0, at).Truncate(24*time.Hour)).Hours() / 24)
			if size > 0 && off <= 2 && !hit {
				hit = true
				right++
			} else {
				wrong++
			}
		}
	}
	precision, recall := float64(right)/float64(right+wrong), float64(right)/float64(steps)
	t.Logf("precision %.3f, recall %.3f over %d steps of 4 to 8 %% in 150 series", precision, recall, steps)
	if precision < 0.9 || recall < 0.9 {
		t.Errorf("precision %.2f, recall %.2f", precision, recall)
	}
}

func TestBaselineFile(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	path := filepath.Join(t.TempDir(), "baseline.json")
	b := Baseline{Series: key.ID(), Key: key, Saved: start, Runs: night(r, 0, math.Log(25), 0.01)}
	if err := WriteBaseline(path, b); err != nil {
		t.Fatal(err)
	}
	back, err := ReadBaseline(path)
	if err != nil || len(back.Runs) != 3 || back.Key.ID() != key.ID() {
		t.Fatalf("%+v %v", back, err)
	}
	e, base, alone, ok := back.Against(tpot, []float64{math.Log(25), math.Log(25) + 0.01, math.Log(25) - 0.01})
	if !ok || !alone || e.DF != 4 || math.Abs(base-math.Log(25)) > 0.02 || math.IsNaN(e.SD) {
		t.Errorf("%+v %v %v %v", e, base, alone, ok)
	}
	for name, text := range map[string]string{
		"no JSON":           "hello",
		"another file":      `{"name": "x"}`,
		"a later schema":    `{"schema": 7, "estimator": 1, "runs": [{}]}`,
		"another estimator": `{"schema": 1, "estimator": 9, "runs": [{}]}`,
		"no runs":           `{"schema": 1, "estimator": 1}`,
	} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadBaseline(path); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestTrendPageAndDigest(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 8))
	db, _ := database(t, r, 30, 0.01, func(n int) float64 { return 0.08 * float64(n/20) })
	var page bytes.Buffer
	if err := db.TrendPage(&page, []verdict.Metric{tpot}, start.AddDate(0, 0, 30)); err != nil {
		t.Fatal(err)
	}
	text := page.String()
	if strings.Count(text, "<circle") != 90 || !strings.Contains(text, "c020") || strings.Contains(text, "http") || strings.Contains(text, "ZgotmplZ") {
		t.Errorf("the page has %d points, or names another site, or lacks the commit", strings.Count(text, "<circle"))
	}
	d := db.Digest([]verdict.Metric{tpot}, start.AddDate(0, 0, 23), start.AddDate(0, 0, 30))
	if !strings.Contains(d, "c019..c020") || strings.Count(d, "\n") > 15 {
		t.Errorf("digest:\n%s", d)
	}
}
