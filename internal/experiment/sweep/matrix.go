// Package sweep measures a matrix of cells one after the other: fixed lengths, rates or users, engine settings; each a run like any other.
package sweep

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/shadowtape/shadowtape/analyzer"
	"github.com/shadowtape/shadowtape/internal/workload"
	"github.com/shadowtape/shadowtape/replayer/client"
)

// Axis is one dimension of a matrix. Input, output, rate and users are the load; any other name is a value of the deployment file.
type Axis struct {
	Name   string
	Values []string
}

// Matrix is what a sweep measures.
type Matrix struct {
	Axes     []Axis
	Exclude  []map[string]string // cells that have all these values are left out
	Include  []map[string]string // cells beside the product; what they do not name has the axis' first value
	Deploy   string              // deployment file, started anew for each run; "": Target
	Target   string              // base URL of a server that runs
	Requests int64               // of a cell
	Duration time.Duration       // of a cell's arrivals, at most; 0: no limit
	Timeout  time.Duration       // of a run, the start of its deployment and its warm-up by the deployment file left out; 0: 10 min
	Repeats  int                 // runs of a cell, each a fresh launch where there is one, with arrivals of its own; 0: 1, of a search 3
	Arrival  string              // of an open loop, as workload.ParseArrival reads it; "": poisson
	WarmUp   *int64              // requests before a run that do not count; nil: as the deployment file says, none for a target
	SLO      []analyzer.Limit
	SLOText  string
	Search   *Search // instead of rate or users: the highest rate that meets the SLO
	Seed     int64
}

// Search is a bisection over the rate.
type Search struct {
	From, To float64 // requests per second
	Attain   float64 // share of the requests that must meet the SLO; 0: 0.99
	Within   float64 // the answer's width, relative; 0: 0.1
}

// load are the axes that make the load.
var load = []string{"input", "output", "rate", "users"}

// Validate says what cannot be measured.
func (m *Matrix) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if (m.Deploy == "") == (m.Target == "") {
		bad("a sweep needs a target or a deployment file, and not both")
	} else if m.Target != "" {
		if c, err := client.New(client.Options{Targets: []string{m.Target}}); err != nil {
			errs = append(errs, err)
		} else {
			c.Close()
		}
	}
	seen := map[string]bool{}
	for _, a := range m.Axes {
		if seen[a.Name] {
			bad("axis %s is there twice", a.Name)
		}
		seen[a.Name] = true
		if len(a.Values) == 0 {
			bad("axis %s has no value", a.Name)
		}
		for _, v := range a.Values {
			if err := checkValue(a.Name, v); err != nil {
				errs = append(errs, err)
			}
		}
		if !slices.Contains(load, a.Name) && m.Deploy == "" {
			bad("axis %s: without a deployment file only %s can be varied", a.Name, strings.Join(load, ", "))
		}
	}
	for _, n := range []string{"input", "output"} {
		if !seen[n] {
			bad("axis %s is missing", n)
		}
	}
	switch n := boolCount(seen["rate"], seen["users"], m.Search != nil); {
	case n == 0:
		bad("the load is missing: rate, users, or a search")
	case n > 1:
		bad("rate, users and search: one of them makes the load")
	}
	for _, list := range [][]map[string]string{m.Exclude, m.Include} {
		for _, c := range list {
			for k, v := range c {
				if !seen[k] {
					bad("%s=%s names no axis", k, v)
				} else if err := checkValue(k, v); err != nil {
					errs = append(errs, err)
				}
			}
		}
	}
	if m.Requests == 0 && m.Duration == 0 {
		bad("a cell needs a number of requests or a duration")
	}
	for _, n := range []struct {
		name        string
		value, most int64
	}{{"requests", m.Requests, maxRequests}, {"repeats", int64(m.Repeats), maxRepeats}, {"duration", int64(m.Duration), math.MaxInt64}, {"timeout", int64(m.Timeout), math.MaxInt64},
		{"warm-up", warmUp(m.WarmUp), maxRequests}} {
		if n.value < 0 {
			bad("%s must not be negative", n.name)
		} else if n.value > n.most {
			bad("%s %d: at most %d", n.name, n.value, n.most)
		}
	}
	if _, err := workload.ParseArrival(m.Arrival, 1, max(m.Duration.Seconds(), 1)); err != nil {
		errs = append(errs, err)
	}
	if s := m.Search; s != nil {
		if !(s.From >= minRate && s.From <= maxRate && s.To >= minRate && s.To <= maxRate) {
			bad("search from %v to %v: rates are between %v and %v a second", s.From, s.To, minRate, maxRate)
		} else if s.From >= s.To {
			bad("search from %v to %v: the lower rate comes first", s.From, s.To)
		}
		if !(s.Attain >= 0 && s.Attain <= 1) || !(s.Within >= 0 && s.Within < 1) {
			bad("search: attain %v and within %v must be shares", s.Attain, s.Within)
		}
		if len(m.SLO) == 0 {
			bad("a search needs an SLO, such as ttft=500ms")
		}
	}
	return errors.Join(errs...)
}

func warmUp(n *int64) int64 {
	if n == nil {
		return 0
	}
	return *n
}

func boolCount(b ...bool) (n int) {
	for _, v := range b {
		if v {
			n++
		}
	}
	return n
}

// Rates below minRate make one request in days, those above maxRate more than a client sends.
const (
	minRate = 1e-5
	maxRate = 1e6

	maxUsers    = 1_000_000
	maxRequests = 1_000_000_000
	maxRepeats  = 1000
)

func checkValue(name, v string) error {
	switch name {
	case "input", "output", "users":
		if n, err := strconv.ParseInt(v, 10, 32); err != nil || n < 1 {
			return fmt.Errorf("%s %q is not a positive whole number", name, v)
		} else if name == "users" && n > maxUsers {
			return fmt.Errorf("users %q: at most %d", v, maxUsers)
		}
	case "rate":
		if r, err := strconv.ParseFloat(v, 64); err != nil || !(r >= minRate && r <= maxRate) {
			return fmt.Errorf("rate %q is no number of requests per second between %v and %v", v, minRate, maxRate)
		}
	default:
		if v == "" {
			return fmt.Errorf("%s has an empty value", name)
		}
	}
	return nil
}

// Cell is one point of a matrix.
type Cell struct {
	Values map[string]string
	Names  []string // in the order of the axes
}

// Name is the cell's directory: its values, in the order of the axes.
func (c Cell) Name() string {
	var parts []string
	for _, n := range c.Names {
		parts = append(parts, n+"="+safe(c.Values[n]))
	}
	return strings.Join(parts, ",")
}

// safe keeps a value to what every file system takes; what it changes gets a digest, so that two values never share a name.
func safe(v string) string {
	out := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '-' || r == '_' {
			return r
		}
		return '_'
	}, v)
	if out != v || len(out) > 40 || out == "." || out == ".." {
		h := sha256.Sum256([]byte(v))
		out = out[:min(len(out), 30)] + "~" + hex.EncodeToString(h[:3])
	}
	return out
}

// number reads a whole number that Validate has seen; 0 where the cell has none.
func (c Cell) number(name string) int64 {
	n, _ := strconv.ParseInt(c.Values[name], 10, 64)
	return n
}

// rate is the cell's rate; 0 where it has none.
func (c Cell) rate() float64 {
	r, _ := strconv.ParseFloat(c.Values["rate"], 64)
	return r
}

// Cells lists the matrix: the product of the axes, the last varying fastest, without what is excluded, and what is included; none twice.
func (m *Matrix) Cells() []Cell {
	var names []string
	for _, a := range m.Axes {
		names = append(names, a.Name)
	}
	cells := []Cell{{Values: map[string]string{}, Names: names}}
	for _, a := range m.Axes {
		var next []Cell
		for _, c := range cells {
			for _, v := range a.Values {
				w := map[string]string{a.Name: v}
				for k, x := range c.Values {
					w[k] = x
				}
				next = append(next, Cell{w, names})
			}
		}
		cells = next
	}
	cells = slices.DeleteFunc(cells, func(c Cell) bool {
		return slices.ContainsFunc(m.Exclude, func(e map[string]string) bool { return matches(c, e) })
	})
	for _, inc := range m.Include {
		c := Cell{map[string]string{}, names}
		for _, a := range m.Axes {
			c.Values[a.Name] = a.Values[0]
		}
		for k, v := range inc {
			c.Values[k] = v
		}
		cells = append(cells, c)
	}
	seen := map[string]bool{}
	return slices.DeleteFunc(cells, func(c Cell) bool {
		n := c.Name()
		dup := seen[n]
		seen[n] = true
		return dup
	})
}

func matches(c Cell, want map[string]string) bool {
	for k, v := range want {
		if c.Values[k] != v {
			return false
		}
	}
	return len(want) > 0
}

// Expected is about how long all runs take, starts of deployments left out: arrivals at the cell's rate; users are taken to get one
// answer a second each.
func (m *Matrix) Expected() time.Duration {
	var total float64
	for _, c := range m.Cells() {
		t := m.Duration.Seconds()
		r := c.rate()
		if u := c.number("users"); u > 0 {
			r = float64(u)
		}
		runs := 1.0
		if m.Search != nil {
			r, runs = math.Sqrt(m.Search.From*m.Search.To), math.Ceil(math.Log2(math.Log(m.Search.To/m.Search.From)/math.Log1p(or(m.Search.Within, 0.1))))+2
		}
		if m.Requests > 0 && r > 0 && (t == 0 || float64(m.Requests)/r < t) {
			t = float64(m.Requests) / r
		}
		total += t * runs * float64(max(m.Repeats, 1))
	}
	return time.Duration(total * float64(time.Second))
}

func or(v, d float64) float64 {
	if v == 0 {
		return d
	}
	return v
}

// file is MATRIX.yaml.
type file struct {
	Deploy   string              `yaml:"deploy"`
	Target   string              `yaml:"target"`
	Matrix   yaml.Node           `yaml:"matrix"`
	Exclude  []map[string]string `yaml:"exclude"`
	Include  []map[string]string `yaml:"include"`
	Requests int64               `yaml:"requests"`
	Duration string              `yaml:"duration"`
	Timeout  string              `yaml:"timeout"`
	Repeats  int                 `yaml:"repeats"`
	Arrival  string              `yaml:"arrival"`
	WarmUp   *int64              `yaml:"warm_up"`
	SLO      string              `yaml:"slo"`
	Seed     int64               `yaml:"seed"`
	Search   *struct {
		From   float64 `yaml:"from"`
		To     float64 `yaml:"to"`
		Attain float64 `yaml:"attain"`
		Within float64 `yaml:"within"`
	} `yaml:"search"`
}

const maxFile = 1 << 20

// Read reads a MATRIX.yaml; an unknown field is an error. A relative deployment file starts at the matrix's directory. What it leaves out
// has a default: 200 requests a cell, 10 minutes for a run, one repeat. The result is not validated: flags may add to it.
func Read(path string) (*Matrix, error) {
	in, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read matrix: %w", err)
	}
	defer in.Close()
	b, err := io.ReadAll(io.LimitReader(in, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("read matrix: %w", err)
	}
	if len(b) > maxFile {
		return nil, fmt.Errorf("read matrix %s: longer than %d bytes", path, maxFile)
	}
	m, err := parse(b)
	if err != nil {
		return nil, fmt.Errorf("read matrix %s: %w", path, err)
	}
	if m.Deploy != "" && !filepath.IsAbs(m.Deploy) {
		m.Deploy = filepath.Join(filepath.Dir(path), m.Deploy)
	}
	return m, nil
}

func parse(b []byte) (*Matrix, error) {
	var f file
	d := yaml.NewDecoder(bytes.NewReader(b))
	d.KnownFields(true)
	if err := d.Decode(&f); errors.Is(err, io.EOF) {
		return nil, errors.New("it is empty")
	} else if err != nil {
		return nil, errors.New(strings.ReplaceAll(strings.TrimPrefix(err.Error(), "yaml: "), "\n", ";"))
	}
	m := &Matrix{Deploy: f.Deploy, Target: f.Target, Exclude: f.Exclude, Include: f.Include, Requests: f.Requests, Repeats: f.Repeats, Arrival: f.Arrival, WarmUp: f.WarmUp, SLOText: f.SLO, Seed: f.Seed}
	if f.Matrix.Kind != yaml.MappingNode {
		return nil, errors.New("matrix is missing, or no mapping of axes to lists")
	}
	for i := 0; i+1 < len(f.Matrix.Content); i += 2 {
		k, v := f.Matrix.Content[i], f.Matrix.Content[i+1]
		a := Axis{Name: k.Value}
		switch v.Kind {
		case yaml.ScalarNode:
			a.Values = []string{v.Value}
		case yaml.SequenceNode:
			for _, e := range v.Content {
				if e.Kind != yaml.ScalarNode {
					return nil, fmt.Errorf("line %d: a value of %s is no scalar", e.Line, k.Value)
				}
				a.Values = append(a.Values, e.Value)
			}
		default:
			return nil, fmt.Errorf("line %d: %s is no list of values", v.Line, k.Value)
		}
		m.Axes = append(m.Axes, a)
	}
	for _, t := range []struct {
		name, text string
		to         *time.Duration
	}{{"duration", f.Duration, &m.Duration}, {"timeout", f.Timeout, &m.Timeout}} {
		if t.text == "" {
			continue
		}
		v, err := time.ParseDuration(t.text)
		if err != nil || v < 0 {
			return nil, fmt.Errorf("%s %q is no time span such as 10m", t.name, t.text)
		}
		*t.to = v
	}
	var err error
	if m.SLO, err = analyzer.ParseSLO(f.SLO); err != nil {
		return nil, err
	}
	if f.Search != nil {
		m.Search = &Search{From: f.Search.From, To: f.Search.To, Attain: f.Search.Attain, Within: f.Search.Within}
	}
	m.Defaults()
	return m, nil
}

// Defaults fills in what was left out.
func (m *Matrix) Defaults() {
	if m.Requests == 0 && m.Duration == 0 {
		m.Requests = 200
	}
	if m.Timeout == 0 {
		m.Timeout = 10 * time.Minute
	}
	if m.Repeats == 0 {
		if m.Repeats = 1; m.Search != nil {
			m.Repeats = 3
		}
	}
	if m.Arrival == "" {
		m.Arrival = workload.Poisson
	}
	if m.Seed == 0 {
		m.Seed = 1
	}
	if s := m.Search; s != nil {
		s.Attain, s.Within = or(s.Attain, 0.99), or(s.Within, 0.1)
	}
}
