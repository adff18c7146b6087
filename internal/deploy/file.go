// Package deploy starts one candidate deployment from a file, alone and known: a container or a plain process, awaited until it is
// healthy, snapshotted, watched, and always stopped.
package deploy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"gopkg.in/yaml.v3"
)

// File is a deployment file: how to start one candidate. docs/DEPLOY.md describes every field; the yaml tags are the contract. It holds
// references to secrets, never secrets.
type File struct {
	Name string `yaml:"name"` // names the candidate in labels, logs and reports; default: the file's base name

	Image      string     `yaml:"image"`      // a container image; NAME@sha256:… pins it. Exactly one of image, process and kubernetes
	Process    []string   `yaml:"process"`    // a plain command, word by word. ${port} is the port that it must listen on, ${self} this program
	Kubernetes Kubernetes `yaml:"kubernetes"` // a cluster's objects instead; one of the three
	Dir        string     `yaml:"dir"`        // working directory of the process; default: the file's directory

	Entrypoint []string          `yaml:"entrypoint"` // replaces the image's
	Command    []string          `yaml:"command"`    // arguments to the image's entry point
	Env        map[string]string `yaml:"env"`        // value, ${env:NAME} or file:PATH; the last two are secrets and are never written down
	Volumes    []string          `yaml:"volumes"`    // HOST:CONTAINER[:ro|rw]; read-only unless rw is said
	Port       int               `yaml:"port"`       // that the server listens on; default: the dialect's. A process without one gets a free port
	Pull       string            `yaml:"pull"`       // missing (default), always or never

	GPUs    GPURequest        `yaml:"gpus"`    // absent: none
	Shm     Size              `yaml:"shm"`     // of /dev/shm in bytes; 0: the engine's default
	IPC     string            `yaml:"ipc"`     // "", private, shareable or host
	Ulimits map[string]string `yaml:"ulimits"` // name to SOFT[:HARD], -1 is unlimited

	Dialect string              `yaml:"dialect"` // a name of Dialects; default openai
	Model   string              `yaml:"model"`   // what requests ask for; "": what the server lists first
	Health  Health              `yaml:"health"`
	Stop    *Duration           `yaml:"stop"`   // grace before the candidate is killed; default 30 s, 0s: none
	Probes  map[string][]string `yaml:"probes"` // name to command, run in the container for the environment snapshot
	WarmUp  WarmUp              `yaml:"warm_up"`
	Prepare []Prepare           `yaml:"prepare"` // run on this machine before the launch, in order
	Files   ModelFiles          `yaml:"model_files"`

	dir string // of the file: relative paths start here
}

// GPURequest says which GPUs a deployment needs: one of the four ways, or none.
type GPURequest struct {
	All     bool     `yaml:"all"`
	Count   int      `yaml:"count"`   // any so many
	Indices []int    `yaml:"indices"` // as nvidia-smi numbers them
	UUIDs   []string `yaml:"uuids"`   // GPU-… or MIG-…
	Free    Size     `yaml:"free"`    // bytes that must be free on each before the start; 0: nothing is asked
}

// None reports whether no GPU is asked for.
func (g GPURequest) None() bool {
	return !g.All && g.Count == 0 && len(g.Indices) == 0 && len(g.UUIDs) == 0
}

// Health says when the candidate counts as started.
type Health struct {
	Path     string    `yaml:"path"`     // answers 2xx when ready; default: the dialect's
	Timeout  *Duration `yaml:"timeout"`  // default 10 min: compilation and graph capture count as start-up
	Interval *Duration `yaml:"interval"` // between polls; default 500 ms
}

// WarmUp says how long the candidate is warmed before it is measured: until Requests and Duration have both passed, then, with Steady,
// until its clocks, temperature and TTFT are steady, Timeout at most in all. What is not given has the default of the verb.
type WarmUp struct {
	Requests *int64    `yaml:"requests"`
	Duration *Duration `yaml:"duration"`
	Steady   *bool     `yaml:"steady"`
	Timeout  *Duration `yaml:"timeout"`
}

// Prepare is a command run before the launch: a quantization, a download. Where Creates exists already it is skipped; afterwards
// Creates must exist, and its digest goes into the environment snapshot.
type Prepare struct {
	Command []string  `yaml:"command"`
	Creates string    `yaml:"creates"`
	Timeout *Duration `yaml:"timeout"` // default 1 h
}

// ModelFiles names a model's directory for digests of its configuration and index files, and of its weights on request.
type ModelFiles struct {
	Path    string `yaml:"path"`
	Weights bool   `yaml:"weights"`
}

// Duration is a time span written as 30s or 10m.
type Duration time.Duration

// UnmarshalYAML reads a Go duration.
func (d *Duration) UnmarshalYAML(n *yaml.Node) error {
	v, err := time.ParseDuration(n.Value)
	if err != nil || v < 0 || n.Kind != yaml.ScalarNode {
		return fmt.Errorf("line %d: %q is not a time span such as 30s or 10m", n.Line, n.Value)
	}
	*d = Duration(v)
	return nil
}

// Or is d, or v where the file does not say it.
func (d *Duration) Or(v time.Duration) time.Duration {
	if d == nil {
		return v
	}
	return time.Duration(*d)
}

// Size is a number of bytes written as 16g, 512m, 64k or plain; the units are powers of 1,024.
type Size int64

// UnmarshalYAML reads a size.
func (s *Size) UnmarshalYAML(n *yaml.Node) error {
	text := strings.TrimSuffix(strings.TrimSuffix(strings.ToLower(n.Value), "b"), "i")
	shift := 0
	for suffix, bits := range map[string]int{"k": 10, "m": 20, "g": 30, "t": 40} {
		if rest, ok := strings.CutSuffix(text, suffix); ok {
			text, shift = rest, bits
			break
		}
	}
	v, err := strconv.ParseInt(text, 10, 64)
	if err != nil || v < 0 || v > 1<<62>>shift || n.Kind != yaml.ScalarNode {
		return fmt.Errorf("line %d: %q is not a size such as 16g or 512m", n.Line, n.Value)
	}
	*s = Size(v << shift)
	return nil
}

// UnmarshalYAML reads a number, "all", or the mapping.
func (g *GPURequest) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind == yaml.MappingNode {
		type plain GPURequest
		return n.Decode((*plain)(g))
	}
	if n.Value == "all" {
		g.All = true
		return nil
	}
	v, err := strconv.Atoi(n.Value)
	if err != nil || v < 0 || n.Kind != yaml.ScalarNode {
		return fmt.Errorf("line %d: gpus is a number, all, or one of count, indices and uuids", n.Line)
	}
	g.Count = v
	return nil
}

// maxFile bounds a deployment file; they are a page of text.
const maxFile = 1 << 20

// Load reads and validates the deployment file at path; values fill its ${matrix.NAME} places.
func Load(path string, values map[string]string) (*File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read deployment file: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("read deployment file %s: %w", path, err)
	}
	d, err := Parse(b, values)
	if err != nil {
		return nil, fmt.Errorf("deployment file %s: %w", path, err)
	}
	if d.Name == "" {
		d.Name = strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("deployment file %s: %w", path, err)
	}
	d.dir = filepath.Dir(abs)
	return d, nil
}

// Parse reads and validates a deployment file's text. An unknown field, a field given twice, and a ${matrix.NAME} without a value are
// errors with their line. Relative paths start at the working directory.
func Parse(text []byte, values map[string]string) (*File, error) {
	if len(text) > maxFile {
		return nil, fmt.Errorf("longer than %d bytes", maxFile)
	}
	dec := yaml.NewDecoder(bytes.NewReader(text))
	var doc yaml.Node
	if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
		return nil, errors.New("it is empty")
	} else if err != nil {
		return nil, yamlError(err)
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, errors.New("it holds more than one YAML document")
	}
	if err := fill(&doc, values); err != nil {
		return nil, err
	}
	if len(doc.Content) != 1 || doc.Content[0].Kind != yaml.MappingNode {
		return nil, errors.New("it is not a mapping of fields")
	}
	if err := wellFormed(doc.Content[0], reflect.TypeFor[File](), ""); err != nil {
		return nil, err
	}
	f := &File{}
	if err := doc.Decode(f); err != nil {
		return nil, yamlError(err)
	}
	return f, f.Validate()
}

// yamlError makes one line of the decoder's errors.
func yamlError(err error) error {
	if strings.Contains(err.Error(), "cannot start any token") { // the parser's words for it
		err = fmt.Errorf("%w: is it a tab? YAML is indented with blanks", err)
	}
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	text = strings.TrimPrefix(text, "unmarshal errors:\n")
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	return errors.New(strings.Join(lines, "; "))
}

// fieldNames are the yaml names of a struct's fields.
func fieldNames(t reflect.Type) map[string]reflect.Type {
	names := map[string]reflect.Type{}
	for i := range t.NumField() {
		if tag := t.Field(i).Tag.Get("yaml"); tag != "" {
			names[tag] = t.Field(i).Type
		}
	}
	return names
}

// didYouMean names the field within two edits of what was written, if there is one.
func didYouMean(name string, names map[string]reflect.Type) string {
	best, at := "", 3
	for _, n := range sortedKeys(names) {
		if d := distance(name, n); d < at {
			best, at = n, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; is it %q?", best)
}

// distance is the edit distance between two short words.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := before
			if a[i] != b[j] {
				cost++
			}
			before = row[j+1]
			row[j+1] = min(row[j+1]+1, row[j]+1, cost)
		}
	}
	return row[len(b)]
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// path makes a file's relative path absolute.
func (f *File) path(p string) string {
	if filepath.IsAbs(p) || f.dir == "" {
		return filepath.Clean(p)
	}
	return filepath.Join(f.dir, p)
}
