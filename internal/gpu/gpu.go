// Package gpu keeps a measurement honest about its GPUs: an exclusive lease, a verdict whether anyone else used them before and during
// the run, and their telemetry. It reads NVIDIA's management library where the build has it (cgo on Linux), sets nothing, and says
// unknown where it cannot see.
package gpu

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/shadowtape/shadowtape/formats"
)

// OpenError says why the GPUs of this machine cannot be looked at.
type OpenError struct {
	Text string
	Hint string // what to do
}

func (e *OpenError) Error() string { return e.Text }

// ErrUnsupported is returned by Open where the build has no NVML: without cgo, or not on Linux.
var ErrUnsupported error = &OpenError{"this build has no NVML", "build one with cgo, on Linux: make build-nvml"}

// ErrLost is a reading of a GPU that has fallen off the bus or needs a reset.
var ErrLost = errors.New("the GPU is lost")

// Reader reads GPUs: NVML, or a test's double. Its methods may be called at the same time from several goroutines. A value that the
// driver does not give is unknown, not an error.
type Reader interface {
	// System says what the driver is.
	System() (System, error)
	// GPUs lists what is there, by index.
	GPUs() ([]GPU, error)
	// Fast reads what reads in well under a millisecond.
	Fast(uuid string) (Reading, error)
	// Slow adds to r what may block for tens of milliseconds: PCIe, NVLink and ECC counters.
	Slow(uuid string, r *Reading) error
	// Events blocks until an XID error of one of the GPUs, the context's end or a second has passed; without an event it returns nil.
	Events(ctx context.Context, uuids []string) ([]Event, error)
	// Close ends the reader.
	Close() error
}

// System is the driver of a machine.
type System struct {
	Driver string // of the kernel module
	NVML   string // version of the library
	CUDA   string // the highest version the driver supports
}

// GPU is what does not change during a run. Empty and zero mean unknown but for Index.
type GPU struct {
	Index       int
	UUID        string
	Name        string
	PCI         string // bus address
	MemoryBytes int64
	MIG         bool  // divided into instances
	Instances   []MIG // of a divided GPU
	ComputeMode string
	Persistence formats.Null[bool]
	PowerLimitW float64
	VBIOS       string
	ECC         formats.Null[bool]
	Remapped    formats.Null[bool]  // memory rows were remapped and the remapping waits for a reset, or failed
	PCIe        string              // "gen 5 x16", now
	Links       formats.Null[int]   // active NVLinks
	Peers       map[string]string   // topology: by peer's UUID, NVML's nearest common ancestor
	MaxSMClock  formats.Null[int32] // MHz
	NUMANode    formats.Null[int]   // of the machine
}

// MIG is one instance of a divided GPU.
type MIG struct {
	UUID        string
	Name        string
	MemoryBytes int64
}

// Reading is a GPU at one moment: the telemetry row, and what the checks need beside it.
type Reading struct {
	formats.GPUSample
	Reserved  formats.Null[int64]     // bytes that the driver keeps for itself
	Free      formats.Null[int64]     // bytes
	Processes formats.Null[[]Process] // compute, graphics and MPS clients, by number
}

// Process uses a GPU.
type Process struct {
	PID   int
	Name  string              // "" if it cannot be seen
	Bytes formats.Null[int64] // of GPU memory
	Type  string              // compute, graphics or mps
}

// Event is an error that the driver reported.
type Event struct {
	UUID string
	XID  uint64
}

// fatalXID reports whether an XID error is the hardware's or the driver's fault. The others (13, 31, 43, 45, 68) are an application's
// own: they come when a candidate crashes. Source: NVIDIA's XID catalogue, and the list that NVIDIA's device plugin for Kubernetes skips.
func fatalXID(xid uint64) bool { return !slices.Contains([]uint64{13, 31, 43, 45, 68}, xid) }

// Request says which GPUs are wanted: one of the ways, as a deployment file gives them.
type Request struct {
	All     bool
	Count   int
	Indices []int
	UUIDs   []string
	Free    int64 // bytes that must be free on each
}

// Select finds the GPUs that a request may mean, best first: for named ones exactly those in the request's order; for a count or all,
// every candidate in index order, from which the first so many that can be leased are taken. A divided GPU is no candidate for a count:
// its instances are asked for by their MIG-… names.
func Select(gpus []GPU, r Request) ([]GPU, error) {
	var found []GPU
	switch {
	case len(r.UUIDs) > 0:
		for _, id := range r.UUIDs {
			g, ok := byUUID(gpus, id)
			if !ok {
				return nil, fmt.Errorf("select GPUs: there is no GPU %s; there are %s", id, names(gpus))
			}
			found = append(found, g)
		}
	case len(r.Indices) > 0:
		for _, i := range r.Indices {
			j := slices.IndexFunc(gpus, func(g GPU) bool { return g.Index == i })
			if j < 0 {
				return nil, fmt.Errorf("select GPUs: there is no GPU %d; there are %s", i, names(gpus))
			}
			if gpus[j].MIG {
				return nil, fmt.Errorf("select GPUs: GPU %d is divided (MIG); name an instance's MIG-… identifier", i)
			}
			found = append(found, gpus[j])
		}
	default:
		for _, g := range gpus {
			if !g.MIG {
				found = append(found, g)
			}
		}
		if len(found) == 0 || len(found) < r.Count {
			return nil, fmt.Errorf("select GPUs: %d undivided wanted; there are %s", max(r.Count, 1), names(gpus))
		}
	}
	return found, nil
}

// UsedBy finds the GPUs, or instances of divided ones, that an owner's processes use now. Those that cannot be read are left out.
func UsedBy(r Reader, gpus []GPU, owns func(pid int) bool) []GPU {
	var used []GPU
	uses := func(g GPU) bool {
		x, err := r.Fast(g.UUID)
		return err == nil && slices.ContainsFunc(x.Processes.Or(nil), func(p Process) bool { return owns(p.PID) })
	}
	for _, g := range gpus {
		for _, m := range g.Instances {
			if part, ok := byUUID(gpus, m.UUID); ok && uses(part) {
				used = append(used, part)
			}
		}
		if !g.MIG && uses(g) {
			used = append(used, g)
		}
	}
	return used
}

// byUUID finds a GPU, or the instance of one as a GPU of its own.
func byUUID(gpus []GPU, id string) (GPU, bool) {
	for _, g := range gpus {
		if strings.EqualFold(g.UUID, id) {
			return g, true
		}
		for _, m := range g.Instances {
			if strings.EqualFold(m.UUID, id) {
				part := g
				part.UUID, part.Name, part.MemoryBytes, part.Instances = m.UUID, m.Name, m.MemoryBytes, nil
				return part, true
			}
		}
	}
	return GPU{}, false
}

// Whole is the UUID of the GPU that an instance is part of, or the UUID itself.
func Whole(gpus []GPU, id string) string {
	for _, g := range gpus {
		for _, m := range g.Instances {
			if strings.EqualFold(m.UUID, id) {
				return g.UUID
			}
		}
	}
	return id
}

func names(gpus []GPU) string {
	if len(gpus) == 0 {
		return "none"
	}
	var s []string
	for _, g := range gpus {
		s = append(s, fmt.Sprintf("%d (%s %s)", g.Index, g.Name, g.UUID))
	}
	return strings.Join(s, ", ")
}
