package formats

import (
	"encoding/json"
	"maps"
)

// FormatVersion is the version of traces and runs that this build writes, and the latest that it reads.
const FormatVersion = 1

// CompatibleWith is the oldest format version whose readers can read what this build writes.
const CompatibleWith = 1

// Header says what a trace is. It stands in each segment's Parquet key-value metadata and in trace.json.
type Header struct {
	FormatVersion    int            `json:"format_version"`
	CompatibleWith   int            `json:"compatible_with"` // the oldest format version whose readers can read it: a version that only adds columns keeps it
	ToolVersion      string         `json:"tool_version"`
	SourceKind       string         `json:"source_kind"` // pcap, interface, proxy, sink, import:<format>, synth, replay, simulate
	Source           string         `json:"source,omitempty"`
	StartUnixNS      int64          `json:"start_unix_ns"` // first arrival
	EndUnixNS        int64          `json:"end_unix_ns"`   // last arrival or end known
	TimeBase         string         `json:"time_base"`     // absolute or relative
	Clock            Clock          `json:"clock,omitempty"`
	HashKeyID        string         `json:"hash_key_id,omitempty"` // names the key of the keyed hashes; never the key
	PrefixBlockUnit  string         `json:"prefix_block_unit,omitempty"`
	PrefixBlockSize  int            `json:"prefix_block_size,omitempty"`
	PrefixBlockRule  string         `json:"prefix_block_rule,omitempty"` // ceil: a partial tail counts as a block; floor: it does not
	TokenizerID      string         `json:"tokenizer_id,omitempty"`
	KeptBodies       string         `json:"kept_bodies,omitempty"` // base name of the file in which the text of requests was kept; "": nowhere
	Prompts          string         `json:"prompts,omitempty"`     // cumulative or per_turn
	TimeQuantumNS    int64          `json:"time_quantum_ns,omitempty"`
	SamplingFraction float64        `json:"sampling_fraction,omitempty"` // 0: everything was kept
	Counters         Counters       `json:"counters"`
	Licence          string         `json:"licence,omitempty"`
	SourceSHA256     string         `json:"source_sha256,omitempty"`
	Extra            map[string]any `json:"extra,omitempty"`
}

// Counters account for everything a recorder or importer met: Seen == Filtered + Dropped + Written, always. Reasons splits Filtered
// and Dropped by cause; Notes counts what was kept but flagged (inversions, gaps, retransmissions, …).
type Counters struct {
	Seen     int64            `json:"seen"`
	Filtered int64            `json:"filtered"`
	Dropped  int64            `json:"dropped"`
	Written  int64            `json:"written"`
	Reasons  map[string]int64 `json:"reasons,omitempty"`
	Notes    map[string]int64 `json:"notes,omitempty"`
}

// DiskFull is why a recorder dropped an exchange that its writer refused with ErrFull: Reasons has it as one of those dropped.
const (
	DiskFull    = "disk_full"
	droppedFull = "dropped_" + DiskFull
)

// plus adds two accounts up; neither is changed.
func (c Counters) plus(d Counters) Counters {
	sum := func(a, b map[string]int64) map[string]int64 {
		if len(b) == 0 {
			return a
		}
		m := maps.Clone(b)
		for k, n := range a {
			m[k] += n
		}
		return m
	}
	return Counters{Seen: c.Seen + d.Seen, Filtered: c.Filtered + d.Filtered, Dropped: c.Dropped + d.Dropped, Written: c.Written + d.Written,
		Reasons: sum(c.Reasons, d.Reasons), Notes: sum(c.Notes, d.Notes)}
}

// Manifest is run.json: how a run was made and whether it can be trusted.
type Manifest struct {
	Schema      int              `json:"schema"` // 1
	Label       string           `json:"label"`
	ToolVersion string           `json:"tool_version"`
	Command     []string         `json:"command"`
	Kind        string           `json:"kind"` // replay or simulate
	StartUnixNS int64            `json:"start_unix_ns"`
	EndUnixNS   int64            `json:"end_unix_ns"`
	Seed        int64            `json:"seed"`
	TracePath   string           `json:"trace_path"`   // base name only
	TraceSHA256 string           `json:"trace_sha256"` // over the segments in order
	Targets     []string         `json:"targets"`
	Model       string           `json:"model,omitempty"`
	Options     map[string]any   `json:"options,omitempty"` // speed, duration, max_in_flight, … as used
	Environment map[string]any   `json:"environment,omitempty"`
	Requests    RequestCounts    `json:"requests"`
	Errors      map[string]int64 `json:"errors,omitempty"` // by error kind
	Dropped     map[string]int64 `json:"dropped,omitempty"`
	RowsLost    int64            `json:"rows_lost,omitempty"` // rows, of the warm-up too, that the disk was too slow to take: the counts have them, the Parquet files do not
	Valid       bool             `json:"valid"`
	Invalid     []string         `json:"invalid,omitempty"` // reasons, worst first
	Warnings    []string         `json:"warnings,omitempty"`
	PrefixReset string           `json:"prefix_reset,omitempty"` // done, unsupported, failed, skipped
	Interrupted bool             `json:"interrupted,omitempty"`
	Fidelity    map[string]any   `json:"fidelity,omitempty"`
	Shard       *Shard           `json:"shard,omitempty"`  // of a run that is one of several shards
	Shards      []Shard          `json:"shards,omitempty"` // of a run that was merged: each run that was given, taken or not
	GPUs        any              `json:"gpus,omitempty"`   // covariates of each GPU over the run: temperature, clocks, power, energy, throttled share
}

// Shard says which part of a schedule one of several replayers sent, and when it began.
type Shard struct {
	Index         int             `json:"index"` // from 1
	Of            int             `json:"of"`
	StartAtUnixNS int64           `json:"start_at_unix_ns"`      // the agreed start, by this machine's clock
	LateNS        int64           `json:"late_ns,omitempty"`     // how long after it this replayer was ready: what was due before was dropped
	Schedule      int64           `json:"schedule"`              // requests of the whole schedule, warm-up left out
	Clocks        []ClockOffset   `json:"clocks,omitempty"`      // of the targets, against this machine's
	Label         string          `json:"label,omitempty"`       // in a merged run: of the run
	Host          string          `json:"host,omitempty"`        // likewise
	Interrupted   bool            `json:"interrupted,omitempty"` // likewise
	LeftOut       string          `json:"left_out,omitempty"`    // likewise: why its rows were not taken: another run of the shard replaced it
	Remainder     json.RawMessage `json:"remainder,omitempty"`   // in a shard: what merging needs and no row says
}

// ClockOffset is how far a target's clock is ahead of the client's, as its HTTP Date headers tell: they are cut to whole seconds, so
// requests around their ticks narrow it to about a round trip. A server that renews the header only once a second (uvicorn does) may be
// up to a second further ahead than it says: that hits every shard alike.
type ClockOffset struct {
	Target   string  `json:"target"`
	OffsetMS float64 `json:"offset_ms"`
	ErrorMS  float64 `json:"error_ms"` // half the width of what the answers allow
	Probes   int     `json:"probes"`
	Unknown  string  `json:"unknown,omitempty"` // why it is not known
}

// RequestCounts are the conservation counters of a run, warm-up left out: Scheduled == Sent + Dropped and
// Sent == Completed + Failed + Aborted + RunEnd.
type RequestCounts struct {
	Scheduled int64 `json:"scheduled"`
	Sent      int64 `json:"sent"`
	Completed int64 `json:"completed"`
	Failed    int64 `json:"failed"`
	Aborted   int64 `json:"aborted"`
	RunEnd    int64 `json:"run_end"`
	Dropped   int64 `json:"dropped"`
}

// ServerSample is one value of one series of a server's metrics page: a row of server.parquet. Labels are "name=value" pairs, sorted,
// joined by commas as in the exposition format without quotes escaped away: {a="x",b="y"} is stored as a="x",b="y".
type ServerSample struct {
	UnixNS int64   `parquet:"unix_ns,delta"`
	Target string  `parquet:"target,dict"`
	Series string  `parquet:"series,dict"`
	Labels string  `parquet:"labels,dict"`
	Value  float64 `parquet:"value"`
}

// ClientSample is the replayer's own health at one moment: a row of client.parquet.
type ClientSample struct {
	UnixNS         int64   `parquet:"unix_ns,delta"`
	InFlight       int64   `parquet:"in_flight,delta"`
	Sent           int64   `parquet:"sent,delta"`
	Late           int64   `parquet:"late,delta"`       // sent more than a millisecond after schedule, so far
	SendLagMaxNS   int64   `parquet:"send_lag_max_ns"`  // since the sample before
	CPUSeconds     float64 `parquet:"cpu_seconds"`      // user and system, so far
	GCPauseNS      int64   `parquet:"gc_pause_ns"`      // total so far
	SchedLatencyNS int64   `parquet:"sched_latency_ns"` // p99 of goroutine scheduling since the sample before
	Goroutines     int64   `parquet:"goroutines"`
	HeapBytes      int64   `parquet:"heap_bytes"`
}
