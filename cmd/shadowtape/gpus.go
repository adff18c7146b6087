package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/gpu"
)

// openGPUs opens the machine's GPUs; tests put a double here.
var openGPUs = gpu.Open

// gpuList is what `gpus --json` prints.
type gpuList struct {
	Schema  int         `json:"schema"`
	Driver  string      `json:"driver"`
	NVML    string      `json:"nvml"`
	CUDA    string      `json:"cuda"`
	LockDir string      `json:"lock_dir"`
	GPUs    []gpuStatus `json:"gpus"`
}

type gpuStatus struct {
	Index       int                   `json:"index"`
	UUID        string                `json:"uuid"`
	Name        string                `json:"name"`
	PCI         string                `json:"pci"`
	PCIe        string                `json:"pcie"`
	NVLinks     formats.Null[int]     `json:"nvlinks"`
	Peers       map[string]string     `json:"peers"`
	Instances   []string              `json:"mig_instances"`
	ComputeMode string                `json:"compute_mode"`
	Persistence formats.Null[bool]    `json:"persistence"`
	ECC         formats.Null[bool]    `json:"ecc"`
	PowerLimit  float64               `json:"power_limit_w"`
	MemoryTotal formats.Null[int64]   `json:"memory_total_bytes"`
	MemoryUsed  formats.Null[int64]   `json:"memory_used_bytes"`
	SMUtil      formats.Null[float64] `json:"sm_util"`
	Power       formats.Null[float64] `json:"power_w"`
	Temperature formats.Null[int32]   `json:"temperature_c"`
	SMClock     formats.Null[int32]   `json:"sm_clock_mhz"`
	MemClock    formats.Null[int32]   `json:"mem_clock_mhz"`
	Throttle    []string              `json:"throttle"`
	Processes   []string              `json:"processes"`
	Holder      *gpu.Holder           `json:"holder"`
	Verdict     gpu.Level             `json:"verdict"`
	Findings    []gpuFinding          `json:"findings"`
}

type gpuFinding struct {
	Code   string    `json:"code"`
	Level  gpu.Level `json:"level"`
	Text   string    `json:"text"`
	Advice string    `json:"advice"`
}

func gpusCommand(a *app) *cobra.Command {
	var asJSON bool
	var lockDir string
	c := &cobra.Command{
		Use:   "gpus",
		Short: "List this machine's GPUs, who holds them, and whether a measurement on each would be valid",
		Long: `Gpus lists what NVML sees, who holds the lease of each GPU, and what the checks before a run would say of it now. It sets nothing and
takes no lease. docs/GPUS.md explains each verdict.

Exit 0 where the GPUs could be looked at, whatever their state; 1 where they could not.`,
		Example: `  shadowtape gpus
  shadowtape gpus --json
  shadowtape gpus --json |
    jq -r '.gpus[] | select(.verdict != "invalid" and .holder == null) | .uuid'`,
		Args: exactArgs(),
		RunE: func(*cobra.Command, []string) error {
			list, err := listGPUs(lockDir)
			if err != nil {
				return err
			}
			if asJSON {
				return json.NewEncoder(a.out).Encode(list)
			}
			return printGPUs(a, list)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print one JSON document")
	c.Flags().StringVar(&lockDir, "lock-dir", "", "directory of the leases (default: "+gpu.LockDir()+")")
	return c
}

func listGPUs(lockDir string) (list gpuList, err error) {
	r, err := openGPUs()
	if err != nil {
		hint := ""
		if e, ok := errors.AsType[*gpu.OpenError](err); ok {
			hint = e.Hint
		}
		return list, withHint(fmt.Errorf("list GPUs: %w", err), hint)
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	if lockDir == "" {
		lockDir = gpu.LockDir()
	}
	list = gpuList{Schema: 1, LockDir: lockDir, GPUs: []gpuStatus{}}
	sys, err := r.System()
	if err != nil {
		return list, fmt.Errorf("list GPUs: %w", err)
	}
	list.Driver, list.NVML, list.CUDA = sys.Driver, sys.NVML, sys.CUDA
	gpus, err := r.GPUs()
	if err != nil {
		return list, fmt.Errorf("list GPUs: %w", err)
	}
	if len(gpus) == 0 {
		return list, withHint(errors.New("list GPUs: the driver sees none"), "in a container, are they passed into it?")
	}
	for _, g := range gpus {
		s := gpuStatus{Index: g.Index, UUID: g.UUID, Name: g.Name, PCI: g.PCI, PCIe: g.PCIe, NVLinks: g.Links, Peers: g.Peers, Instances: []string{}, ComputeMode: g.ComputeMode,
			Persistence: g.Persistence, ECC: g.ECC, PowerLimit: g.PowerLimitW, Findings: []gpuFinding{}}
		for _, m := range g.Instances {
			s.Instances = append(s.Instances, m.UUID)
		}
		if x, err := r.Fast(g.UUID); err == nil {
			s.MemoryTotal, s.MemoryUsed, s.SMUtil, s.Temperature, s.SMClock, s.MemClock = x.MemoryTotal, x.MemoryUsed, x.SMUtil, x.TemperatureC, x.SMClockMHz, x.MemClockMHz
			s.Throttle, s.Processes = x.Throttle, x.GPUSample.Processes
			if x.PowerMW.Valid {
				s.Power = formats.Of(float64(x.PowerMW.V) / 1e3)
			}
		}
		h, held, err := gpu.HolderOf(lockDir, g.UUID)
		if err != nil {
			return list, fmt.Errorf("list GPUs: %w", err)
		}
		if held {
			s.Holder = &h
		}
		v := gpu.Before(r, gpus, []string{g.UUID}, gpu.Checks{})
		s.Verdict = v.Level()
		for _, f := range v.Findings {
			s.Findings = append(s.Findings, gpuFinding{f.Code, f.Level, f.Text, f.Advice()})
		}
		list.GPUs = append(list.GPUs, s)
	}
	return list, nil
}

func printGPUs(a *app, list gpuList) error {
	fmt.Fprintf(a.out, "driver %s, CUDA %s, %d GPUs\n\n", list.Driver, list.CUDA, len(list.GPUs))
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "GPU\tNAME\tUSED\tTOTAL\tUTIL\tPOWER\tTEMP\tHOLDER\tVERDICT")
	for _, g := range list.GPUs {
		holder := "free"
		if g.Holder != nil {
			holder = "held"
		}
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", g.Index, g.Name, known(g.MemoryUsed, gibText), known(g.MemoryTotal, gibText), known(g.SMUtil, func(v float64) string { return fmt.Sprintf("%.0f %%", 100*v) }),
			known(g.Power, func(v float64) string { return fmt.Sprintf("%.0f W", v) }), known(g.Temperature, func(v int32) string { return fmt.Sprintf("%d °C", v) }), holder, g.Verdict)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, g := range list.GPUs {
		var lines []string
		if g.Holder != nil {
			lines = append(lines, "held by "+g.Holder.String())
		}
		for _, f := range g.Findings {
			lines = append(lines, fmt.Sprintf("%s: %s: %s", f.Level, f.Text, f.Advice))
		}
		lines = append(lines, prefixed("MIG instance ", g.Instances)...)
		if len(lines) > 0 {
			fmt.Fprintf(a.out, "\nGPU %d (%s)\n  %s\n", g.Index, g.UUID, strings.Join(lines, "\n  "))
		}
	}
	return nil
}

func prefixed(p string, list []string) []string {
	out := slices.Clone(list)
	for i := range out {
		out[i] = p + out[i]
	}
	return out
}

// known prints a value, or a dash where it is unknown.
func known[T any](n formats.Null[T], text func(T) string) string {
	if !n.Valid {
		return "-"
	}
	return text(n.V)
}

func gibText(b int64) string { return fmt.Sprintf("%.1f GiB", float64(b)/(1<<30)) }
