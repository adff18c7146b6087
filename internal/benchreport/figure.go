// Package benchreport collects what our benchmarks measured, so that one table, one JSON document and one gate are made of it. Benchmarks
// hand their figures over with Record; `make bench` gathers them.
package benchreport

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"
)

// OutVariable is the environment variable that names the file which Record appends to.
const OutVariable = "SHADOWTAPE_BENCH_OUT"

// Ratio is the unit of a figure that is one measurement divided by another of the same run. The gate reads only these: they mean the same
// on a fast machine and on a slow one.
const Ratio = "x"

// Figure is one thing that was measured.
type Figure struct {
	Group  string  `json:"group"`            // recorder, proxy, dispatch, accuracy, analyze, synth or size
	Name   string  `json:"name"`             // what, with its conditions: "TTFT error mean, 1000 streams"; unique within its group
	Value  float64 `json:"value"`            // finite
	Unit   string  `json:"unit"`             // "ms", "1/s", "bytes", …; Ratio for a ratio of one run
	Better string  `json:"better,omitempty"` // higher or lower; "": neither
	Note   string  `json:"note,omitempty"`   // what a reader must know beside it: a verdict, what it is a ratio of
}

// Validate says what is missing of a figure.
func (f Figure) Validate() error {
	switch {
	case f.Group == "" || f.Name == "" || f.Unit == "":
		return fmt.Errorf("a figure needs a group, a name and a unit: %+v", f)
	case math.IsNaN(f.Value) || math.IsInf(f.Value, 0):
		return fmt.Errorf("%s, %s: %v is no figure", f.Group, f.Name, f.Value)
	case f.Better != "" && f.Better != "higher" && f.Better != "lower":
		return fmt.Errorf("%s, %s: better is higher or lower, not %q", f.Group, f.Name, f.Better)
	}
	return nil
}

// Record appends a figure, as one line of JSON, to the file that OutVariable names, and logs it; without the variable it only logs. A
// figure that Validate refuses fails the test. Safe for concurrent use, by several processes too.
func Record(tb testing.TB, f Figure) {
	tb.Helper()
	if err := f.Validate(); err != nil {
		tb.Error(err)
		return
	}
	tb.Logf("%s: %s = %s", f.Group, f.Name, f.text())
	out := os.Getenv(OutVariable)
	if out == "" {
		return
	}
	if err := appendLine(out, f); err != nil {
		tb.Error(err)
	}
}

func appendLine(name string, f Figure) error {
	line, err := json.Marshal(f)
	if err != nil {
		return err
	}
	file, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o666)
	if err != nil {
		return err
	}
	_, err = file.Write(append(line, '\n'))
	return errors.Join(err, file.Close())
}

// Read reads lines that Record wrote. Of two figures of one name the later one stays, in the place of the first: a benchmark that the
// testing package runs with ever more rounds ends with its best.
func Read(r io.Reader) ([]Figure, error) {
	var all []Figure
	for n, s := 1, bufio.NewScanner(r); ; n++ {
		if !s.Scan() {
			return all, s.Err()
		}
		var f Figure
		if err := json.Unmarshal(s.Bytes(), &f); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		if err := f.Validate(); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		all = put(all, f)
	}
}

// put adds a figure in the place of one of its name.
func put(all []Figure, f Figure) []Figure {
	for i := range all {
		if all[i].Group == f.Group && all[i].Name == f.Name {
			all[i] = f
			return all
		}
	}
	return append(all, f)
}

// text is the figure with four digits and its unit.
func (f Figure) text() string {
	v := f.Value
	s := strconv.FormatFloat(v, 'g', 4, 64)
	if a := math.Abs(v); a >= 1000 && a < 1e15 {
		s = thousands(strconv.FormatFloat(v, 'f', 0, 64))
	} else if a != 0 && a < 1e-4 {
		s = strconv.FormatFloat(v, 'e', 2, 64)
	}
	if f.Unit == Ratio {
		return s + Ratio
	}
	return s + " " + f.Unit
}

// thousands separates the groups of an integer.
func thousands(s string) string {
	sign := ""
	if strings.HasPrefix(s, "-") {
		sign, s = "-", s[1:]
	}
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return sign + s
}
