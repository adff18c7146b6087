package main

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// flagGroup is a heading of a verb's help and the flags that stand under it.
type flagGroup struct {
	title string
	names []string
}

// groupFlags makes a verb's help show its flags by purpose. A flag that no group names stands under "Other flags".
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
				if f := c.Flags().Lookup(n); f != nil {
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
