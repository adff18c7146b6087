package history

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/experiment/verdict"
	"github.com/shadowtape/shadowtape/internal/stats"
)

// Baseline is what new runs are held against: one small file for Git, made of runs that exist.
type Baseline struct {
	Schema    int                     `json:"schema"`
	Estimator int                     `json:"estimator"`
	Series    string                  `json:"series"`
	Key       Key                     `json:"key"`
	Saved     time.Time               `json:"saved"`
	Commit    string                  `json:"commit,omitempty"`
	Pinned    bool                    `json:"pinned"` // moved by hand only
	Runs      []Record                `json:"runs"`
	Slow      []int                   `json:"slow,omitempty"`
	Past      map[string]verdict.Past `json:"past,omitempty"` // of the history that it was saved beside
}

// WriteBaseline writes a baseline, indented so that a change of it reads as one, replacing the file at once.
func WriteBaseline(path string, b Baseline) error {
	b.Schema, b.Estimator = Schema, Estimator
	out, err := formats.MarshalDocument(b, " ")
	if err != nil {
		return fmt.Errorf("save baseline %s: %w", path, err)
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".baseline-*")
	if err != nil {
		var e *fs.PathError
		if errors.As(err, &e) {
			err = e.Err // without the temporary name
		}
		return fmt.Errorf("save baseline %s: %w", path, err)
	}
	_, err = f.Write(append(out, '\n'))
	err = errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("save baseline %s: %w", path, errors.Join(err, os.Remove(f.Name())))
	}
	return nil
}

// ReadBaseline reads one. A later schema, another estimator and a file without runs are errors.
func ReadBaseline(path string) (Baseline, error) {
	var b Baseline
	text, err := os.ReadFile(path)
	if err != nil {
		return b, fmt.Errorf("read baseline: %w", err)
	}
	if err := formats.CheckDocument(text); err != nil {
		return b, fmt.Errorf("read baseline %s: %w", path, err)
	}
	if err := json.Unmarshal(formats.PlainJSON(text), &b); err != nil {
		return b, fmt.Errorf("read baseline %s: it is no baseline: %w", path, err)
	}
	switch {
	case b.Schema == 0:
		return b, fmt.Errorf("read baseline %s: it is no baseline: it has no schema", path)
	case b.Schema > Schema:
		return b, fmt.Errorf("read baseline %s: schema %d, this build reads up to %d", path, b.Schema, Schema)
	case b.Estimator != Estimator:
		return b, fmt.Errorf("read baseline %s: its figures are defined by estimator %d, this build's by %d: save it again", path, b.Estimator, Estimator)
	case len(b.Runs) == 0:
		return b, fmt.Errorf("read baseline %s: it holds no run", path)
	}
	for _, r := range b.Runs {
		for name, v := range r.Levels {
			if math.IsNaN(v) || math.IsInf(v, 0) {
				return b, fmt.Errorf("read baseline %s: run %s: %s is %v", path, r.Label, name, v)
			}
		}
	}
	return b, nil
}

// Against estimates how candidate levels differ from the baseline's, on the metric's scale: from the nights of the history it was saved
// beside where it has enough, else from its own runs, whose deviation is pooled with the candidate's and with the A/A pairs'. alone says
// that it is the latter: the two sides were measured in different sessions, and nothing says how much those differ.
func (b *Baseline) Against(m verdict.Metric, candidate []float64) (e stats.Estimate, base float64, alone, ok bool) {
	if p, has := b.Past[m.Name]; has {
		if e, ok := p.Against(candidate); ok {
			return e, stats.Median(p.Nights), false, true
		}
	}
	var own []float64
	for _, r := range b.Runs {
		if v, ok := r.Levels[m.Name]; ok {
			own = append(own, v)
		}
	}
	if len(own) == 0 || len(candidate) == 0 {
		return e, 0, true, false
	}
	var x, y stats.Moments
	for _, v := range own {
		x.Add(v, 1)
	}
	for _, v := range candidate {
		y.Add(v, 1)
	}
	prior := stats.PriorOf(b.Past[m.Name].AA)
	df := float64(len(own) + len(candidate) - 2)
	own2 := x.Var()*x.N() + y.Var()*y.N()
	e = stats.Estimate{N: 1, Mean: y.Mean() - x.Mean(), SD: math.NaN(), DF: df + prior.DF}
	if e.DF > 0 {
		v := (own2 + prior.DF*prior.Sigma*prior.Sigma/2) / e.DF // an A/A difference has the deviation of two launches
		e.SD = math.Sqrt(v * (1/x.N() + 1/y.N()))
	}
	return e, x.Mean(), true, true
}

// Metrics returns the names of the metrics that the baseline's runs have.
func (b *Baseline) Metrics() []string {
	seen := map[string]bool{}
	for _, r := range b.Runs {
		for name := range r.Levels {
			seen[name] = true
		}
	}
	return slices.Sorted(maps.Keys(seen))
}
