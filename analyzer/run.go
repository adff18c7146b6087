package analyzer

import (
	"fmt"
	"iter"
	"path/filepath"
	"strings"

	"github.com/shadowtape/shadowtape/formats"
)

// Run is what the analyzer reads: a replay's or simulation's run, or a recorded or imported trace, analyzed alike.
type Run struct {
	Label    string            // the manifest's label, else the base name
	Kind     string            // replay, simulate, recording, or import
	Name     string            // as opened
	Manifest *formats.Manifest // nil for a trace
	Header   formats.Header

	trace  *formats.Trace
	rows   []*formats.Exchange
	server []formats.ServerSample
	gpus   []formats.GPUSample
}

// doubted is how many times of the rows read so far no clock has shown.
func (r *Run) doubted() int64 {
	if r.trace == nil {
		return 0
	}
	return r.trace.Doubted()
}

// Warnings are what was found wrong when the run was opened.
func (r *Run) Warnings() []string {
	if r.trace == nil {
		return nil
	}
	return r.trace.Warnings
}

// OpenRun opens a run or a trace. Its rows are read when a figure asks for them.
func OpenRun(where string) (*Run, error) {
	t, err := formats.Open(where)
	if err != nil {
		return nil, err
	}
	r := &Run{Name: where, Manifest: t.Manifest, Header: t.Header, trace: t}
	r.name(where)
	return r, nil
}

// RunOf makes a run of exchanges in memory. m may be nil.
func RunOf(label string, m *formats.Manifest, rows []*formats.Exchange, server []formats.ServerSample) *Run {
	r := &Run{Name: label, Manifest: m, rows: rows, server: server}
	r.name(label)
	return r
}

func (r *Run) name(where string) {
	r.Label = strings.TrimSuffix(filepath.Base(filepath.Clean(where)), ".parquet")
	switch {
	case r.Manifest != nil:
		r.Kind = r.Manifest.Kind
		if r.Manifest.Label != "" {
			r.Label = r.Manifest.Label
		}
	case strings.HasPrefix(r.Header.SourceKind, "import:"), r.Header.SourceKind == "synth":
		r.Kind, _, _ = strings.Cut(r.Header.SourceKind, ":")
	default:
		r.Kind = "recording"
	}
}

// Close releases the files.
func (r *Run) Close() error {
	if r.trace == nil {
		return nil
	}
	return r.trace.Close()
}

// Exchanges yields the rows in stored order, warm-up included, with the columns asked for filled.
func (r *Run) Exchanges(columns ...formats.Column) iter.Seq2[*formats.Exchange, error] {
	if r.trace != nil {
		return r.trace.All(columns...)
	}
	return func(yield func(*formats.Exchange, error) bool) {
		for _, x := range r.rows {
			if !yield(x, nil) {
				return
			}
		}
	}
}

// ServerSamples yields the scraped series in stored order.
func (r *Run) ServerSamples() iter.Seq2[formats.ServerSample, error] {
	if r.trace != nil {
		return r.trace.ServerSamples()
	}
	return func(yield func(formats.ServerSample, error) bool) {
		for _, s := range r.server {
			if !yield(s, nil) {
				return
			}
		}
	}
}

// gpuSamples yields the telemetry in stored order.
func (r *Run) gpuSamples() iter.Seq2[formats.GPUSample, error] {
	if r.trace != nil {
		return r.trace.GPUSamples()
	}
	return func(yield func(formats.GPUSample, error) bool) {
		for _, s := range r.gpus {
			if !yield(s, nil) {
				return
			}
		}
	}
}

// readError says which run could not be read.
func (r *Run) readError(err error) error { return fmt.Errorf("analyze %s: %w", r.Name, err) }
