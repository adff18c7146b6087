package analyzer

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/shadowtape/shadowtape/formats"
)

// engines run the two queries of samples/sql/NAME.sql against a run given as $RUN and print their rows: [[metric, n, mean, std, p50, p90, p95,
// p99, max], …] and then [[figure, value], …].
var engines = map[string]string{
	"duckdb": `
import duckdb, json, os, sys
c = duckdb.connect()
c.execute("set variable run = '" + os.environ["RUN"] + "'")
for q in sys.stdin.read().split(";\n"):
    if q.strip():
        print(json.dumps(c.execute(q).fetchall(), default=float))`,
	"chdb": `
import json, os, sys
import chdb
for q in sys.stdin.read().replace("{run:String}", "'" + os.environ["RUN"] + "'").split(";\n"):
    if q.strip():
        print(json.dumps(json.loads(chdb.query(q + " format JSONCompact settings output_format_json_quote_64bit_integers=0", "JSONCompact").bytes())["data"]))`,
}

// The SQL under samples/sql gives the figures of Summarize. Runs where Python has the modules.
func TestSQLGivesTheSameFigures(t *testing.T) {
	r := rand.New(rand.NewPCG(6, 6))
	where := filepath.Join(t.TempDir(), "run")
	w, err := formats.CreateRun(where, formats.Manifest{Kind: "replay", Valid: true})
	if err != nil {
		t.Fatal(err)
	}
	for id := range int64(3000) {
		x := randomExchange(r, id+1)
		if x.N.Or(1) > 1 {
			continue
		}
		if err := w.Write(x); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(formats.Manifest{Kind: "replay", Valid: true}); err != nil {
		t.Fatal(err)
	}
	run, err := OpenRun(where)
	if err != nil {
		t.Fatal(err)
	}
	s, err := Summarize(run, Options{})
	if err != nil {
		t.Fatal(err)
	}
	for module, program := range engines {
		file := map[string]string{"duckdb": "duckdb", "chdb": "clickhouse"}[module]
		t.Run(file, func(t *testing.T) {
			if exec.Command("python3", "-c", "import "+module).Run() != nil {
				t.Skipf("skipped: python3 has no module %s, samples/sql/%s.sql is not run", module, file)
			}
			sql, err := os.Open("../samples/sql/" + file + ".sql")
			if err != nil {
				t.Fatal(err)
			}
			defer sql.Close()
			c := exec.Command("python3", "-c", program)
			c.Stdin, c.Stderr = sql, os.Stderr
			c.Env = append(os.Environ(), "RUN="+where+"/exchanges-*.parquet")
			out, err := c.Output()
			if err != nil {
				t.Fatal(err)
			}
			d := json.NewDecoder(bytes.NewReader(out))
			var rows, figures [][]any
			if err := errors.Join(d.Decode(&rows), d.Decode(&figures)); err != nil {
				t.Fatalf("%v in %s", err, out)
			}
			if len(rows) != len(metrics) || len(figures) != 6 {
				t.Errorf("%d metrics and %d figures, want %d and 6", len(rows), len(figures), len(metrics))
			}
			for _, row := range figures {
				name, got := row[0].(string), row[1].(float64)
				if want := s.Aggregates[name].Value; !want.Valid || math.Abs(got-want.V) > 1e-9*want.V {
					t.Errorf("%s: %v, SQL has %v", name, want, got)
				}
			}
			for _, row := range rows {
				name := row[0].(string)
				f := s.Metrics[name]
				if float64(f.N) != row[1].(float64) {
					t.Errorf("%s: %d samples, SQL has %v", name, f.N, row[1])
					continue
				}
				for i, v := range []Null{f.Mean, f.Std, f.P50, f.P90, f.P95, f.P99, f.Max} {
					if got := row[i+2].(float64); v.Valid && math.Abs(v.V-got) > 1e-9*max(1, math.Abs(v.V)) {
						t.Errorf("%s figure %d: %v, SQL has %v", name, i, v.V, got)
					}
				}
			}
		})
	}
}
