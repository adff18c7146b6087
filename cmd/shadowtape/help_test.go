package main

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// TestHelp walks every verb and what stands under it: its help is an answer, with examples, that names each flag once; a flag that does
// not exist, and an argument too many where none is taken, are mistakes of the command line.
func TestHelp(t *testing.T) {
	var walk func(path []string, c *cobra.Command)
	walk = func(path []string, c *cobra.Command) {
		name := strings.Join(path, " ")
		for _, args := range [][]string{append(path[:len(path):len(path)], "--help"), append([]string{"help"}, path...)} {
			code, out, errw := invoke(args...)
			examples := strings.Contains(out, "\nExamples:\n") || c.HasSubCommands() // whose own help has them
			if code != exitGood || errw != "" || !strings.Contains(out, "Usage:") || !examples {
				t.Errorf("%q: exit %d, stderr %q, want usage and examples in\n%s", args, code, errw, out)
			}
			seen := map[string]bool{}
			_, flags, _ := strings.Cut(out, "Usage:\n")
			for line := range strings.Lines(flags) {
				flag := strings.TrimSpace(line)
				if len(flag) > 4 && flag[0] == '-' && flag[2] == ',' { // -o, --out
					flag = flag[4:]
				}
				if !strings.HasPrefix(flag, "--") {
					continue
				}
				flag = strings.Fields(flag)[0]
				if seen[flag] {
					t.Errorf("%s --help names %s twice", name, flag)
				}
				seen[flag] = true
			}
		}
		code, out, errw := invoke(append(path[:len(path):len(path)], "--no-such-flag")...)
		if code != exitUsage || out != "" || !strings.HasPrefix(errw, "shadowtape: unknown flag: --no-such-flag\nhint: ") {
			t.Errorf("%s --no-such-flag: exit %d, stdout %q, stderr %q", name, code, out, errw)
		}
		if c.Args != nil && c.Args(c, []string{"x"}) != nil && c.Args(c, nil) == nil { // takes none
			code, out, errw = invoke(append(path[:len(path):len(path)], "x")...)
			if code != exitUsage || out != "" || !strings.Contains(errw, "takes no arguments") {
				t.Errorf("%s x: exit %d, stdout %q, stderr %q", name, code, out, errw)
			}
		}
		for _, sub := range c.Commands() {
			walk(append(path[:len(path):len(path)], sub.Name()), sub)
		}
	}
	for _, v := range verbs {
		c := v(&app{})
		walk([]string{c.Name()}, c)
	}
}

func TestHelpUnknown(t *testing.T) {
	for _, args := range [][]string{{"help", "bogus"}, {"help", "diff", "bogus"}, {"bogus"}} {
		code, out, errw := invoke(args...)
		if code != exitUsage || out != "" || !strings.HasPrefix(errw, "shadowtape: there is no verb ") {
			t.Errorf("%q: exit %d, stdout %q, stderr %q", args, code, out, errw)
		}
	}
	if code, out, _ := invoke("help"); code != exitGood || !strings.Contains(out, "Available Commands") {
		t.Errorf("help: exit %d, stdout %q", code, out)
	}
}
