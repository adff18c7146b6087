// Package history keeps what runs measured, night after night: append-only JSON lines that merge in Git, the levels that a new run is
// held against, change points and drift.
package history

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/shadowtape/shadowtape/formats"
)

// Schema is the version of records and baselines that this build writes, and the latest that it reads.
const Schema = 1

// Estimator is the version of the figures' definitions; levels of different ones do not compare, so it is part of every identity.
const Estimator = 1

// Kind says what a record is.
type Kind string

// The kinds of records.
const (
	RunKind    Kind = "run"    // one launch's levels
	AAKind     Kind = "aa"     // differences of two launches of one build
	SlowKind   Kind = "slow"   // the slow set of a series, chosen once
	AcceptKind Kind = "accept" // a change of level that somebody accepted
	AnchorKind Kind = "anchor" // runs that drift is measured against
	GateKind   Kind = "gate"   // a verdict of the gate
)

// Key names what a series' runs have in common: workload, model, engine flags, GPUs, hosts. Runs whose keys differ are never compared.
type Key map[string]string

// ID is a short name of the key.
func (k Key) ID() string {
	h := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(k)) {
		fmt.Fprintf(h, "%q=%q\n", name, k[name])
	}
	return hex.EncodeToString(h.Sum(nil))[:12]
}

// Differs lists the names in which two keys differ.
func (k Key) Differs(o Key) []string {
	all := maps.Clone(k)
	if all == nil {
		all = Key{}
	}
	maps.Copy(all, o)
	var out []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if k[name] != o[name] {
			out = append(out, fmt.Sprintf("%s (%s and %s)", name, or(k[name], "absent"), or(o[name], "absent")))
		}
	}
	return out
}

// or is s, a digest shortened, or d where there is none.
func or(s, d string) string {
	switch {
	case s == "":
		return d
	case len(s) == 64 && strings.Trim(s, "0123456789abcdef") == "":
		return s[:12] + "…"
	}
	return s
}

// Record is one line of a history. Which fields are set depends on Kind.
type Record struct {
	Schema int       `json:"schema"`
	Kind   Kind      `json:"kind"`
	At     time.Time `json:"at"` // when it was measured, or decided
	Series string    `json:"series"`

	// Of a run.
	ID         string                        `json:"id,omitempty"` // of the run; the same run added twice counts once
	Label      string                        `json:"label,omitempty"`
	Commit     string                        `json:"commit,omitempty"`
	Branch     string                        `json:"branch,omitempty"`
	Team       string                        `json:"team,omitempty"`
	Key        Key                           `json:"key,omitempty"`
	Invalid    []string                      `json:"invalid,omitempty"`
	Levels     map[string]float64            `json:"levels,omitempty"`    // by gated or shown metric, on its scale
	Figures    map[string]float64            `json:"figures,omitempty"`   // in their units, for people
	Quantiles  map[string]map[string]float64 `json:"quantiles,omitempty"` // of ttft and tpot
	Provenance map[string]string             `json:"provenance,omitempty"`

	// Of an A/A pair: base and candidate by id, and the differences by metric.
	Pair        []string           `json:"pair,omitempty"`
	Differences map[string]float64 `json:"differences,omitempty"`

	Slow []int `json:"slow,omitempty"` // places in the schedule, of a slow set

	// Of an acceptance: the metric's level changed with this run, and that is well; of an anchor: these runs.
	Metric string   `json:"metric,omitempty"`
	Reason string   `json:"reason,omitempty"`
	Who    string   `json:"who,omitempty"`
	Runs   []string `json:"runs,omitempty"`

	// Of a gate's verdict; Commit is the candidate's.
	AA         bool               `json:"aa,omitempty"`
	Against    string             `json:"against,omitempty"` // the base's commit
	Pairs      int                `json:"pairs,omitempty"`
	Tested     bool               `json:"tested,omitempty"` // the pairs sufficed to call a metric worse
	Verdict    string             `json:"verdict,omitempty"`
	States     map[string]string  `json:"states,omitempty"`
	Detectable map[string]float64 `json:"detectable_pct,omitempty"` // by gated metric: the change that the pairs find with 80 % power
}

// Night is the day a record belongs to: the one on which a night from noon to noon (UTC) begins.
func (r *Record) Night() string { return r.At.UTC().Add(-12 * time.Hour).Format(time.DateOnly) }

// DB is a history that was read.
type DB struct {
	Records  []Record // by time, then as written
	Warnings []string // lines that could not be read
}

// ErrEmpty is what Load's error wraps where a directory holds no history.
var ErrEmpty = errors.New("the history is empty")

// Load reads all files of a history. A line that cannot be read is left out and said in Warnings; one of a later schema is an error.
func Load(dir string) (*DB, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read history %s: %w", dir, ErrEmpty)
	}
	if err != nil {
		return nil, fmt.Errorf("read history: %w", err)
	}
	db := &DB{}
	seen := map[string]bool{}
	for _, e := range entries {
		if e.IsDir() || filepath.Ext(e.Name()) != ".jsonl" {
			continue
		}
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, fmt.Errorf("read history: %w", err)
		}
		if err := db.add(e.Name(), b, seen); err != nil {
			return nil, fmt.Errorf("read history %s: %w", dir, err)
		}
	}
	if len(db.Records) == 0 && len(db.Warnings) > 0 { // nothing of what is there can be read: that is no first night
		return nil, fmt.Errorf("read history %s: it holds no record: %s", dir, db.Warnings[0])
	}
	if len(db.Records) == 0 {
		return nil, fmt.Errorf("read history %s: %w", dir, ErrEmpty)
	}
	slices.SortStableFunc(db.Records, func(a, b Record) int { return a.At.Compare(b.At) })
	return db, nil
}

// add takes the lines of one file. Lines that were there already, as a merge leaves them, count once.
func (db *DB) add(name string, b []byte, seen map[string]bool) error {
	s := bufio.NewScanner(bytes.NewReader(b))
	s.Buffer(nil, 16<<20)
	for n := 1; s.Scan(); n++ {
		line := strings.TrimSpace(s.Text())
		if line == "" {
			continue
		}
		if err := formats.CheckDocument([]byte(line)); err != nil {
			db.Warnings = append(db.Warnings, fmt.Sprintf("%s line %d is left out: %v", name, n, err))
			continue
		}
		var r Record
		if err := json.Unmarshal(formats.PlainJSON([]byte(line)), &r); err != nil || r.Kind == "" || r.Series == "" {
			db.Warnings = append(db.Warnings, fmt.Sprintf("%s line %d is no record and is left out", name, n))
			continue
		}
		if r.Schema > Schema {
			return fmt.Errorf("%s line %d: schema %d, this build reads up to %d", name, n, r.Schema, Schema)
		}
		id := line
		if r.Kind == RunKind && r.ID != "" {
			id = r.ID
		}
		if seen[id] {
			continue
		}
		seen[id] = true
		db.Records = append(db.Records, r)
	}
	if err := s.Err(); err != nil {
		db.Warnings = append(db.Warnings, fmt.Sprintf("%s: %v; the rest of it is left out", name, err))
	}
	return nil
}

// Append adds records to the files of their nights, which it makes where they are missing, and syncs them. A record's schema is set.
func Append(dir string, records ...Record) error {
	byNight := map[string][]byte{}
	for _, r := range records {
		r.Schema = Schema
		b, err := formats.MarshalDocument(r, "")
		if err != nil {
			return fmt.Errorf("add to history %s: %w", dir, err)
		}
		byNight[r.Night()] = append(append(byNight[r.Night()], b...), '\n')
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("add to history: %w", err)
	}
	for _, night := range slices.Sorted(maps.Keys(byNight)) {
		if err := appendFile(filepath.Join(dir, night+".jsonl"), byNight[night]); err != nil {
			return fmt.Errorf("add to history: %w", err)
		}
	}
	return nil
}

// appendFile adds whole lines; a line that a crash cut is ended first.
func appendFile(name string, b []byte) (err error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if st, err := f.Stat(); err == nil && st.Size() > 0 {
		last := make([]byte, 1)
		if _, err := f.ReadAt(last, st.Size()-1); err == nil && last[0] != '\n' {
			b = append([]byte{'\n'}, b...)
		}
	}
	if _, err := f.Write(b); err != nil {
		return err
	}
	return f.Sync()
}
