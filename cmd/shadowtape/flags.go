package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"gopkg.in/yaml.v3"
)

// flagGroup is a heading of a verb's help and the flags that stand under it.
type flagGroup struct {
	title string
	names []string
}

// groupFlags makes a verb's help show its flags by purpose. A flag stands once, in the first group that
// names it; one that no group names stands under "Other flags".
func groupFlags(c *cobra.Command, groups ...flagGroup) {
	c.SetUsageFunc(func(c *cobra.Command) error {
		var b strings.Builder
		b.WriteString("Usage:\n  " + c.UseLine() + "\n")
		if c.HasExample() {
			b.WriteString("\nExamples:\n" + c.Example + "\n")
		}
		seen := map[string]bool{}
		show := func(title string, fs *pflag.FlagSet) {
			if fs.HasAvailableFlags() {
				b.WriteString("\n" + title + ":\n" + fs.FlagUsages())
			}
		}
		for _, g := range groups {
			fs := pflag.NewFlagSet("", pflag.ContinueOnError)
			fs.SortFlags = false
			for _, n := range g.names {
				if f := c.Flags().Lookup(n); f != nil && !seen[n] {
					fs.AddFlag(f)
					seen[n] = true
				}
			}
			show(g.title, fs)
		}
		rest := pflag.NewFlagSet("", pflag.ContinueOnError)
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if !seen[f.Name] {
				rest.AddFlag(f)
			}
		})
		show("Other flags", rest)
		_, err := c.OutOrStderr().Write([]byte(b.String()))
		return err
	})
}

// applyConfig sets the flags that a YAML file names, but for those that the command line has set. A list sets a flag once for each of
// its values.
func applyConfig(c *cobra.Command, file string) error {
	if file == "" {
		return nil
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read config: %w", err)
	}
	var values map[string]any
	if err := yaml.Unmarshal(b, &values); err != nil {
		return fmt.Errorf("read config %s: %w", file, err)
	}
	var errs []error
	for name, v := range values {
		f := c.Flags().Lookup(name)
		if f == nil || name == "config" {
			errs = append(errs, fmt.Errorf("config %s: %s has no flag --%s", file, c.Name(), name))
			continue
		}
		if f.Changed {
			continue
		}
		list, ok := v.([]any)
		if !ok {
			list = []any{v}
		}
		for _, e := range list {
			if err := c.Flags().Set(name, fmt.Sprint(e)); err != nil {
				errs = append(errs, fmt.Errorf("config %s: %s: %w", file, name, err))
			}
		}
	}
	return errors.Join(errs...)
}

// localOnly is the error of an output that is worked in and cannot be object storage.
func localOnly(where string) error {
	return fmt.Errorf("-o %s: this is worked in and must be a directory; its runs can be copied there when it is done", where)
}
