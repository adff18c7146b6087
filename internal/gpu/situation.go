package gpu

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Level is how much a situation matters.
type Level string

// The levels. An invalid measurement is run again; a warning stands beside its figures.
const (
	Pass    Level = "pass"
	Warn    Level = "warning"
	Invalid Level = "invalid"
)

// Situation is one thing that NVML or the machine can show, and what it means for a measurement. The table of them is docs/GPUS.md.
type Situation struct {
	Code   string
	When   string // before, during or both
	Shows  string // what is seen
	Level  Level
	Advice string // what to do about it
}

// The codes of the situations: a contract, they stand in run.json.
const (
	ownProcess        = "own_process"
	foreignProcess    = "foreign_process"
	briefProcess      = "brief_process"
	hiddenMemory      = "hidden_memory"
	processesUnknown  = "processes_unknown"
	mpsDaemon         = "mps_daemon"
	mpsClient         = "mps_client"
	migMismatch       = "mig_mismatch"
	littleMemory      = "little_memory"
	memoryUnknown     = "memory_unknown"
	eccErrors         = "ecc_errors"
	remapPending      = "remap_pending"
	xidError          = "xid_error"
	applicationXID    = "application_xid"
	hardwareSlowdown  = "hardware_slowdown"
	thermalSlowdown   = "thermal_slowdown"
	powerCap          = "power_cap"
	clocksLimited     = "clocks_limited"
	computeProhibited = "compute_prohibited"
	persistenceOff    = "persistence_off"
	lostGPU           = "lost"
	blindSpot         = "blind_spot"
	noNVML            = "no_nvml"
	notExclusive      = "not_exclusive"
	thermalDuring     = "thermal_slowdown_during"
	oldECCErrors      = "ecc_errors_before"
)

// Situations is the table of all of them, in the order in which reasons are given: worst first.
var Situations = []Situation{
	{lostGPU, "both", "NVML answers that the GPU is lost or needs a reset", Invalid, "reset the GPU or restart the machine; see the kernel's log"},
	{xidError, "during", "the driver reports an XID error that is not an application's own", Invalid, "look the number up in NVIDIA's XID catalogue; see the kernel's log"},
	{eccErrors, "during", "the count of uncorrected memory errors grew", Invalid, "drain the GPU and have it tested"},
	{remapPending, "before", "memory rows wait to be remapped, or could not be", Invalid, "reset the GPU; replace it if the remapping failed"},
	{foreignProcess, "both", "a compute or graphics process that is not the candidate's", Invalid, "end it, or choose another GPU"},
	{mpsClient, "both", "a client of the multi-process service that is not the candidate's", Invalid, "stop the MPS control daemon: echo quit | nvidia-cuda-mps-control"},
	{mpsDaemon, "both", "an MPS control daemon or server runs that is not the candidate's", Invalid, "stop it: echo quit | nvidia-cuda-mps-control"},
	{hiddenMemory, "both", "over 256 MiB of memory in use that no visible process explains: somebody in another container, or a leak", Invalid, "find it from the machine itself: nvidia-smi, fuser -v /dev/nvidia*"},
	{processesUnknown, "both", "NVML gives no list of processes: exclusivity cannot be known", Invalid, "run outside of the container, or with its pid: host"},
	{migMismatch, "before", "the GPU is divided and a whole one is asked for", Invalid, "name the instances' MIG-… identifiers, or change the layout with nvidia-smi mig"},
	{computeProhibited, "before", "the compute mode is prohibited: no process may use it", Invalid, "nvidia-smi -c DEFAULT, as the machine's administrator"},
	{littleMemory, "before", "less memory is free than the deployment asks for", Invalid, "end what uses it, or lower gpus.free"},
	{hardwareSlowdown, "both", "hardware slowdown, hardware thermal slowdown or power brake", Invalid, "mend cooling or power; clocks under such a slowdown compare with nothing"},
	{thermalSlowdown, "before", "software thermal slowdown already before the start", Invalid, "let the GPU cool down, mend its cooling"},
	{noNVML, "both", "this build or machine has no NVML, and GPUs are asked for", Invalid, "the line says what is missing; or --exclusive=off"},
	{notExclusive, "both", "--exclusive=off: nothing was leased and nobody else was looked for", Warn, "leave --exclusive on for figures that are compared"},
	{thermalDuring, "during", "software thermal slowdown for part of the run", Warn, "see the share of time and the clocks beside the figures; mend the cooling"},
	{powerCap, "during", "clocks were lowered to stay below the power limit", Warn, "normal under full load; both sides of a comparison should show the same share"},
	{clocksLimited, "both", "application clocks or sync boost limit the clocks", Warn, "both sides of a comparison should run under the same setting"},
	{applicationXID, "during", "the driver reports an XID error of the application's own kind", Warn, "see the candidate's log: it probably crashed"},
	{oldECCErrors, "before", "uncorrected memory errors since the driver was loaded", Warn, "have the GPU tested"},
	{briefProcess, "during", "a process appeared in one reading only and was gone before it could be identified", Warn, "if it comes again, find it with nvidia-smi pmon"},
	{blindSpot, "during", "no reading for over two seconds: what happened meanwhile is unknown", Warn, "is the machine overloaded?"},
	{memoryUnknown, "both", "NVML does not say how much memory is used, or by which process: hidden use cannot be excluded", Warn, "update the driver"},
	{persistenceOff, "before", "persistence mode is off: the driver unloads between users", Warn, "nvidia-smi -pm 1 or nvidia-persistenced, as the machine's administrator"},
	{ownProcess, "both", "only the candidate's own processes, in its container or process group", Pass, ""},
}

// situation finds a code's row.
func situation(code string) Situation {
	i := slices.IndexFunc(Situations, func(s Situation) bool { return s.Code == code })
	return Situations[i]
}

// Finding is a situation met: on which GPU, when, and in particular what.
type Finding struct {
	Code  string    `json:"code"`
	UUID  string    `json:"uuid,omitempty"`
	Text  string    `json:"text"`        // one line: the particulars
	At    time.Time `json:"at,omitzero"` // first seen; zero: before the run
	To    time.Time `json:"to,omitzero"` // last seen
	Level Level     `json:"level"`

	advice string // "": the situation's
}

func find(code, uuid, format string, args ...any) Finding {
	return Finding{Code: code, UUID: uuid, Text: fmt.Sprintf(format, args...), Level: situation(code).Level}
}

// String is one line with the GPU and the time.
func (f Finding) String() string {
	var b strings.Builder
	if f.UUID != "" {
		fmt.Fprintf(&b, "GPU %s: ", f.UUID)
	}
	b.WriteString(f.Text)
	if !f.At.IsZero() {
		fmt.Fprintf(&b, ", from %s", f.At.UTC().Format("15:04:05.0"))
		if f.To.After(f.At) {
			fmt.Fprintf(&b, " to %s UTC", f.To.UTC().Format("15:04:05.0"))
		} else {
			b.WriteString(" UTC")
		}
	}
	return b.String()
}

// Advice is what to do about the finding; "" for one that is fine.
func (f Finding) Advice() string { return cmp.Or(f.advice, situation(f.Code).Advice) }

// Verdict is what the findings mean together.
type Verdict struct{ Findings []Finding }

// Level is the worst level of the findings.
func (v Verdict) Level() Level {
	worst := Pass
	for _, f := range v.Findings {
		if f.Level == Invalid || f.Level == Warn && worst == Pass {
			worst = f.Level
		}
	}
	return worst
}

// Valid reports whether the measurement can be used.
func (v Verdict) Valid() bool { return v.Level() != Invalid }

// Unavailable is the verdict where GPUs are asked for and cannot be looked at: err says why.
func Unavailable(err error) Verdict {
	f := find(noNVML, "", "nothing is known about the GPUs: %v", err)
	if e, ok := errors.AsType[*OpenError](err); ok {
		f.advice = e.Hint + "; or --exclusive=off"
	}
	return Verdict{[]Finding{f}}
}

// Off is the verdict of a run that asked for no exclusivity: it stands in every report.
func Off() Verdict {
	return Verdict{[]Finding{find(notExclusive, "", "exclusivity is off: nothing was leased, and nobody looked whether others used the GPUs")}}
}

// Lines are the findings of one level, in the table's order.
func (v Verdict) Lines(level Level) []string {
	sorted := slices.Clone(v.Findings)
	order := func(code string) int {
		return slices.IndexFunc(Situations, func(s Situation) bool { return s.Code == code })
	}
	slices.SortStableFunc(sorted, func(a, b Finding) int { return order(a.Code) - order(b.Code) })
	var lines []string
	for _, f := range sorted {
		if f.Level == level {
			lines = append(lines, f.String())
		}
	}
	return lines
}
