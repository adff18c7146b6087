package main

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/shadowtape/shadowtape/analyzer"
)

// steps is what the simulator's state log says: the truth that outside observers cannot see.
type steps struct {
	pages, waiting                float64 // means over time
	prefill, decode, mixed, flips float64 // shares of time; switches a second
}

func readSteps(t *testing.T, path string) (s steps) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	column := map[string]int{}
	for i, name := range rows[0] {
		column[name] = i
	}
	var first, last, before float64
	kind := ""
	for i, row := range rows[1:] {
		at := func(name string) float64 {
			v, err := strconv.ParseFloat(row[column[name]], 64)
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
		start, end := at("start_unix_ns"), at("end_unix_ns")
		if i == 0 {
			first = start
		}
		last = end
		s.pages += at("pages") * (end - start)
		s.waiting += at("waiting") * (end - start)
		k := fmt.Sprint(at("prefill_tokens") > 0, at("decode_sequences") > 0)
		switch k {
		case "true true":
			s.mixed += end - start
		case "true false":
			s.prefill += end - start
		default:
			s.decode += end - start
		}
		switch {
		case i > 0 && start > before:
			s.flips += 2 // it was idle between
		case i > 0 && k != kind:
			s.flips++
		}
		before, kind = end, k
	}
	total := last - first
	return steps{s.pages / total, s.waiting / total, s.prefill / total, s.decode / total, s.mixed / total, s.flips / (total / 1e9)}
}

// The page and mix models see only exchanges; the state log is the truth. While nothing waits the models are close to it, and under load
// it lies inside the band.
func TestModelsAgainstTheStateLog(t *testing.T) {
	for _, c := range []struct {
		name, trace string
		args        []string
		calm        bool
	}{
		{"calm", "azure2023-code", []string{"--speed", "0.05", "--max-requests", "1500"}, true},
		{"calm with prefixes", "mooncake-conversation", []string{"--speed", "0.002", "--max-requests", "300"}, false},
		{"bursts", "azure2023-code", []string{"--speed", "1", "--max-requests", "4000"}, false},
		{"bursts of shared prompts", "mooncake-conversation", []string{"--speed", "0.1", "--max-requests", "1200"}, false},
		{"overload", "mooncake-conversation", []string{"--speed", "1", "--max-requests", "1500"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			run, log := filepath.Join(dir, "run"), filepath.Join(dir, "steps.csv")
			args := append([]string{"simulate", "../../samples/traces/" + c.trace + ".parquet", "-o", run, "--state-log", log, "--sample", "0"}, c.args...)
			if code, _, errs := invoke(args...); code != exitGood {
				t.Fatalf("simulate: exit %d: %s", code, errs)
			}
			truth := readSteps(t, log)
			code, out, errs := invoke("analyze", run, "--json")
			if code != exitGood {
				t.Fatalf("analyze: exit %d: %s", code, errs)
			}
			var doc analyzer.Document
			if err := json.Unmarshal([]byte(out), &doc); err != nil {
				t.Fatal(err)
			}
			p, m := doc.Runs[0].Pages, doc.Runs[0].Mix
			low, high := p.InUse.Low.Mean.V, p.InUse.High.Mean.V
			if truth.pages < low || truth.pages > high {
				t.Errorf("%.2f pages in use, outside the band of %.2f to %.2f", truth.pages, low, high)
			}
			for _, f := range []struct {
				name        string
				late, early analyzer.Null
				truth       float64 // a share in the band to half a point, switches to a fiftieth: a client sees a step's tokens spread
			}{
				{"idle", m.Late.Idle, m.Early.Idle, 1 - truth.prefill - truth.decode - truth.mixed}, {"prefill only", m.Late.PrefillOnly, m.Early.PrefillOnly, truth.prefill},
				{"decode only", m.Late.DecodeOnly, m.Early.DecodeOnly, truth.decode}, {"mixed", m.Late.Mixed, m.Early.Mixed, truth.mixed}, {"switches", m.Late.SwitchesPerS, m.Early.SwitchesPerS, truth.flips},
			} {
				slack := 0.005
				if f.name == "switches" {
					slack = f.truth / 50
				}
				if f.truth < min(f.late.V, f.early.V)-slack || f.truth > max(f.late.V, f.early.V)+slack {
					t.Errorf("%s: the truth is %.4f, outside the band of %.4f (late) to %.4f (early)", f.name, f.truth, f.late.V, f.early.V)
				}
			}
			if !c.calm {
				if truth.waiting == 0 {
					t.Error("nothing waited: the case does not test what it is for")
				}
				return
			}
			if truth.waiting > 0.01 {
				t.Errorf("%.3f requests waited: the case does not test what it is for", truth.waiting)
			}
			if middle := (low + high) / 2; math.Abs(truth.pages/middle-1) > 0.05 {
				t.Errorf("%.2f pages in use, the model's middle is %.2f", truth.pages, middle)
			}
			for _, s := range []struct {
				name        string
				model, want float64
			}{{"prefill only", m.Early.PrefillOnly.V, truth.prefill}, {"decode only", m.Early.DecodeOnly.V, truth.decode}, {"mixed", m.Early.Mixed.V, truth.mixed}, {"idle", m.Early.Idle.V, 1 - truth.prefill - truth.decode - truth.mixed}} {
				if math.Abs(s.model-s.want) > 0.05 {
					t.Errorf("%s: share %.4f, the truth is %.4f", s.name, s.model, s.want)
				}
			}
			if math.Abs(m.Early.SwitchesPerS.V/truth.flips-1) > 0.2 {
				t.Errorf("%.4f switches a second, the truth is %.4f", m.Early.SwitchesPerS.V, truth.flips)
			}
		})
	}
}
