package main

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/shadowtape/shadowtape/formats"
)

// version and commit are set by the Makefile's -ldflags; a plain go build says what the module system knows.
var version, commit string

// buildInfo is what `version` prints.
type buildInfo struct {
	Version       string `json:"version"`
	Commit        string `json:"commit"`
	Go            string `json:"go"`
	OS            string `json:"os"`
	Arch          string `json:"arch"`
	CGO           bool   `json:"cgo"`
	FormatVersion int    `json:"format_version"`
}

func readBuildInfo() buildInfo {
	b := buildInfo{Version: version, Commit: commit, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH, FormatVersion: formats.FormatVersion}
	if info, ok := debug.ReadBuildInfo(); ok {
		if b.Version == "" {
			b.Version = info.Main.Version
		}
		for _, s := range info.Settings {
			switch s.Key {
			case "CGO_ENABLED":
				b.CGO = s.Value == "1"
			case "vcs.revision":
				if b.Commit == "" {
					b.Commit = s.Value
				}
			}
		}
	}
	if b.Version == "" {
		b.Version = "(devel)"
	}
	if b.Commit == "" {
		b.Commit = "unknown"
	}
	return b
}

func versionCommand(a *app) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:     "version",
		Short:   "Print version, commit and build settings",
		Example: "  shadowtape version\n  shadowtape version --json",
		Args:    exactArgs(),
		RunE: func(*cobra.Command, []string) error {
			b := readBuildInfo()
			if asJSON {
				return json.NewEncoder(a.out).Encode(b)
			}
			_, err := fmt.Fprintf(a.out, "shadowtape %s\ncommit %s\n%s %s/%s cgo=%t\ntrace format %d\n", b.Version, b.Commit, b.Go, b.OS, b.Arch, b.CGO, b.FormatVersion)
			return err
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print one JSON document")
	return c
}
