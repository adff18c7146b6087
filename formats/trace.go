package formats

import (
	"errors"
	"iter"
)

var errNotBuilt = errors.New("not built yet")

// SegmentOptions say when a trace's writer starts a new segment file. The zero value means the defaults.
type SegmentOptions struct {
	MaxRows  int64 // default 1,000,000
	MaxBytes int64 // uncompressed; default 256 MiB
}

// Writer writes a trace. Not safe for concurrent use.
type Writer struct{ h Header }

// Create starts a trace: a single file where the name ends in ".parquet", else a directory of rotating segments. It refuses to
// overwrite what exists (errors.Is(err, fs.ErrExist)).
func Create(where string, h Header, o SegmentOptions) (*Writer, error) { return nil, errNotBuilt }

// Header returns the header that will stand in the open segment and in trace.json; the caller keeps its counters current until Close.
func (w *Writer) Header() *Header { return &w.h }

// Write appends one exchange; it does not keep x. An ExchangeID of 0 is replaced by the next number.
func (w *Writer) Write(x *Exchange) error { return errNotBuilt }

// Close writes the open segment and the header. The trace is not complete before it returns nil.
func (w *Writer) Close() error { return errNotBuilt }

// RunWriter writes a run directory. Its methods are safe for concurrent use.
type RunWriter struct{}

// CreateRun starts a run directory. It refuses to overwrite what exists.
func CreateRun(where string, m Manifest) (*RunWriter, error) { return nil, errNotBuilt }

// Write appends one exchange.
func (w *RunWriter) Write(x *Exchange) error { return errNotBuilt }

// WriteServer appends samples of the server's metrics.
func (w *RunWriter) WriteServer(s []ServerSample) error { return errNotBuilt }

// WriteClient appends a sample of the client's health.
func (w *RunWriter) WriteClient(s ClientSample) error { return errNotBuilt }

// Close writes what is open and run.json.
func (w *RunWriter) Close(m Manifest) error { return errNotBuilt }

// Trace is an open trace or run.
type Trace struct {
	Name     string    // as given to Open
	Header   Header    // merged over the segments
	Manifest *Manifest // nil unless it is a run
	Rows     int64
}

// Open opens a file, a directory of segments, or a run directory.
func Open(where string) (*Trace, error) { return nil, errNotBuilt }

// Close releases the files.
func (t *Trace) Close() error { return errNotBuilt }

// Column names a column of a trace.
type Column string

// All yields the rows in stored order; with columns only those are filled. Each row is the caller's to keep. An error ends the sequence.
func (t *Trace) All(columns ...Column) iter.Seq2[*Exchange, error] { return nil }

// Scan yields batches of columns in stored order. A batch is valid until the next one.
func (t *Trace) Scan(columns ...Column) iter.Seq2[*Batch, error] { return nil }

// Batch is up to a few ten thousand rows of some columns.
type Batch struct{ Rows int }

// Int64 returns a column of integers (of any width), of booleans as 0 and 1, or of microsecond and nanosecond times; valid is nil where
// every value is known.
func (b *Batch) Int64(c Column) (values []int64, valid []bool) { return nil, nil }

// Float64 returns a column of floating-point numbers.
func (b *Batch) Float64(c Column) (values []float64, valid []bool) { return nil, nil }

// String returns a column of strings; unknown is "".
func (b *Batch) String(c Column) []string { return nil }

// List returns a column of integer lists: row i is values[offsets[i]:offsets[i+1]]. Unknown and empty are told apart by valid.
func (b *Batch) List(c Column) (offsets []int32, values []int64, valid []bool) { return nil, nil, nil }

// ServerSamples yields the rows of server.parquet, or none where there is no such file.
func (t *Trace) ServerSamples() iter.Seq2[ServerSample, error] { return nil }

// ClientSamples yields the rows of client.parquet.
func (t *Trace) ClientSamples() iter.Seq2[ClientSample, error] { return nil }

// SHA256 is the checksum over the trace's segments in order, in hex.
func (t *Trace) SHA256() (string, error) { return "", errNotBuilt }
