package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
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

// A signal that comes when the work is done does not make it undone: what is written is said to be.
func TestInterruptedTooLate(t *testing.T) {
	trace := filepath.Join(t.TempDir(), "trace")
	rows := "TIMESTAMP,ContextTokens,GeneratedTokens\n" + strings.Repeat("2023-11-16 18:17:03.9799600,4808,10\n", 4000) // more than is read ahead
	for _, args := range [][]string{{"import", "azure-llm", "-", "-o", trace}, {"export", "csv", trace, "-o", "-"}} {
		ctx, stop := context.WithCancel(t.Context())
		var out, errs bytes.Buffer
		code := run(ctx, args, io.MultiReader(strings.NewReader(rows), calls(stop)), io.MultiWriter(&out, calls(stop)), &errs)
		if code != exitGood || ctx.Err() == nil || !strings.Contains(out.String()+errs.String(), "4000 rows read") {
			t.Errorf("%s: exit %d, %q, %q", args[0], code, out.String(), errs.String())
		}
		if _, err := os.Stat(trace); err != nil {
			t.Error(err)
		}
	}
}

// calls is a reader at its end and a writer to nowhere that calls itself.
type calls func()

func (c calls) Read([]byte) (int, error) {
	c()
	return 0, io.EOF
}

func (c calls) Write(p []byte) (int, error) {
	c()
	return len(p), nil
}
