package analyzer

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/shadowtape/shadowtape/formats"
)

// engines run samples/sql/NAME.sql against a run given as $RUN and print [[metric, n, mean, std, p50, p90, p95, p99, max], …].
var engines = map[string]string{
	"duckdb": `
import duckdb, json, os, sys
c = duckdb.connect()
c.execute("set variable run = '" + os.environ["RUN"] + "'")
print(json.dumps(c.execute(sys.stdin.read()).fetchall(), default=float))`,
	"chdb": `
import json, os, sys
import chdb
q = sys.stdin.read().replace("{run:String}", "'" + os.environ["RUN"] + "'")
print(json.dumps(json.loads(chdb.query(q.rstrip().rstrip(";") + " format JSONCompact settings output_format_json_quote_64bit_integers=0", "JSONCompact").bytes())["data"]))`,
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
			var rows [][]any
			if err := json.Unmarshal(out, &rows); err != nil {
				t.Fatalf("%v in %s", err, out)
			}
			if len(rows) != 8 {
				t.Errorf("%d metrics, want 8", len(rows))
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
