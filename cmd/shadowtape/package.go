package main

import (
	"bytes"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// packageCommand writes what a release holds beside the program. It is for `make release`, and not shown in help.
func packageCommand(a *app) *cobra.Command {
	var out string
	c := &cobra.Command{
		Use:     "package [BINARY…] -o DIR",
		Short:   "Write man pages, completions, and the components of binaries of this program",
		Long:    "Package writes man/*.1, completions/*, and for each binary of this program NAME.cdx.json: its modules as a CycloneDX 1.5 document. What it writes depends on nothing but the program and the binaries.",
		Example: "  shadowtape package dist/shadowtape -o dist",
		Hidden:  true,
		RunE: func(c *cobra.Command, args []string) error {
			if out == "" {
				return usageError(errors.New("-o is missing"), "")
			}
			root := c.Root()
			root.InitDefaultCompletionCmd()
			files := map[string][]byte{}
			for _, v := range append([]*cobra.Command{root}, root.Commands()...) {
				if v.Hidden {
					continue
				}
				name := strings.ReplaceAll(v.CommandPath(), " ", "-")
				files[filepath.Join("man", name+".1")] = manPage(v)
			}
			for name, write := range map[string]func(*bytes.Buffer) error{
				"shadowtape.bash": func(b *bytes.Buffer) error { return root.GenBashCompletionV2(b, true) },
				"_shadowtape":     func(b *bytes.Buffer) error { return root.GenZshCompletion(b) },
				"shadowtape.fish": func(b *bytes.Buffer) error { return root.GenFishCompletion(b, true) },
			} {
				var b bytes.Buffer
				if err := write(&b); err != nil {
					return err
				}
				files[filepath.Join("completions", name)] = b.Bytes()
			}
			for _, binary := range args {
				b, err := components(binary)
				if err != nil {
					return err
				}
				files[filepath.Base(binary)+".cdx.json"] = b
			}
			for name, b := range files {
				path := filepath.Join(out, name)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					return err
				}
				if err := os.WriteFile(path, b, 0o644); err != nil {
					return err
				}
			}
			return nil
		},
	}
	c.Flags().StringVarP(&out, "output", "o", "", "directory to write to")
	return c
}

// roff escapes text for a man page: backslashes, hyphens that are to be copied, and dots at the start of a line, which would be requests.
func roff(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(s)
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		if strings.HasPrefix(l, ".") || strings.HasPrefix(l, "'") {
			lines[i] = `\&` + l
		}
	}
	return strings.Join(lines, "\n")
}

// manPage is a verb's page in section 1, in the man macros.
func manPage(c *cobra.Command) []byte {
	var b bytes.Buffer
	name := strings.ReplaceAll(c.CommandPath(), " ", "-")
	fmt.Fprintf(&b, ".TH %q 1 \"\" %q \"User Commands\"\n", strings.ToUpper(name), "shadowtape "+readBuildInfo().Version)
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", roff(name), roff(c.Short))
	fmt.Fprintf(&b, ".SH SYNOPSIS\n.B %s\n", roff(c.UseLine()))
	if c.Long != "" {
		fmt.Fprintf(&b, ".SH DESCRIPTION\n%s\n", strings.ReplaceAll(roff(c.Long), "\n\n", "\n.PP\n"))
	}
	flags := false
	c.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		if !flags {
			b.WriteString(".SH OPTIONS\n")
			flags = true
		}
		kind, usage := pflag.UnquoteUsage(f)
		short := ""
		if f.Shorthand != "" {
			short = `\-` + f.Shorthand + ", "
		}
		if kind != "" {
			kind = " " + kind
		}
		def := ""
		if f.DefValue != "" && f.DefValue != "false" && f.DefValue != "[]" && f.DefValue != "0" && f.DefValue != "0s" {
			def = " (default " + f.DefValue + ")"
		}
		fmt.Fprintf(&b, ".TP\n.B %s%s%s\n%s\n", short, roff("--"+f.Name), roff(kind), roff(usage+def))
	})
	if c.Example != "" {
		fmt.Fprintf(&b, ".SH EXAMPLES\n.nf\n%s\n.fi\n", roff(c.Example))
	}
	if !c.HasParent() {
		b.WriteString(".SH COMMANDS\n")
		for _, v := range c.Commands() {
			if !v.Hidden {
				fmt.Fprintf(&b, ".TP\n.BR shadowtape\\-%s (1)\n%s\n", roff(v.Name()), roff(v.Short))
			}
		}
	}
	b.WriteString(".SH EXIT STATUS\n0 good, 1 failed, 2 usage, 3 the candidate is worse or a limit failed, 4 the measurement is invalid, 5 inconclusive, 130 interrupted with what was measured written.\n")
	return b.Bytes()
}

// bom is the part of a CycloneDX 1.5 document that is written (https://cyclonedx.org/docs/1.5/json/).
type bom struct {
	Format     string         `json:"bomFormat"`
	Spec       string         `json:"specVersion"`
	Version    int            `json:"version"`
	Metadata   bomMetadata    `json:"metadata"`
	Components []bomComponent `json:"components"`
}

type bomMetadata struct {
	Component bomComponent `json:"component"`
}

type bomComponent struct {
	Type       string        `json:"type"`
	Name       string        `json:"name"`
	Version    string        `json:"version,omitempty"`
	PURL       string        `json:"purl"`
	Properties []bomProperty `json:"properties,omitempty"`
}

type bomProperty struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// components reads what a Go binary was linked from.
func components(binary string) ([]byte, error) {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return nil, fmt.Errorf("read the components of %s: %w", binary, err)
	}
	module := func(kind, path, version, sum string) bomComponent {
		c := bomComponent{Type: kind, Name: path, Version: version, PURL: "pkg:golang/" + path}
		if version != "" {
			c.PURL += "@" + version
		}
		if sum != "" {
			c.Properties = []bomProperty{{"go:sum", sum}}
		}
		return c
	}
	d := bom{Format: "CycloneDX", Spec: "1.5", Version: 1, Metadata: bomMetadata{module("application", info.Main.Path, readBuildInfo().Version, "")}}
	for _, s := range info.Settings {
		if slices.Contains([]string{"GOOS", "GOARCH", "CGO_ENABLED", "-trimpath"}, s.Key) {
			d.Metadata.Component.Properties = append(d.Metadata.Component.Properties, bomProperty{"go:" + s.Key, s.Value})
		}
	}
	d.Components = []bomComponent{module("library", "std", strings.TrimPrefix(info.GoVersion, "go"), "")}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		d.Components = append(d.Components, module("library", m.Path, m.Version, m.Sum))
	}
	b, err := json.MarshalIndent(d, "", "  ")
	return append(b, '\n'), err
}
