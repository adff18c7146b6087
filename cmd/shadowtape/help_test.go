package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

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
			for line := range strings.Lines(out) {
				if utf8.RuneCountInString(strings.TrimRight(line, "\n")) > 100 {
					t.Errorf("%s --help has a line of more than 100 columns: %s", name, line)
				}
			}
			seen := map[string]bool{}
			for _, line := range regexp.MustCompile(`(?m)^(?:  -., |      )(--[a-z-]+)`).FindAllStringSubmatch(out, -1) {
				flag := line[1]
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
	if code, out, _ := invoke("help"); code != exitGood || !strings.Contains(out, "Record traffic:") {
		t.Errorf("help: exit %d, stdout %q", code, out)
	}
}

// A slip of the finger is answered with what was meant, and a value with what the flag takes.
func TestHelpMeant(t *testing.T) {
	for _, c := range []struct {
		args       []string
		says, hint string
	}{
		{[]string{"replya", "t"}, "there is no verb \"replya\"", "did you mean shadowtape replay?"},
		{[]string{"Analyze", "t"}, "there is no verb \"Analyze\"", "did you mean shadowtape analyze?"},
		{[]string{"xyzzy"}, "there is no verb \"xyzzy\"", "shadowtape --help lists the verbs"},
		{[]string{"history", "lst"}, "there is no verb \"history lst\"", "did you mean shadowtape history list?"},
		{[]string{"replay", "t", "--tagret", "u"}, "unknown flag: --tagret", "did you mean --target?"},
		{[]string{"replay", "t", "--warmpu", "3"}, "unknown flag: --warmpu", "did you mean --warmup?"},
		{[]string{"replay", "t", "-target", "u"}, "unknown shorthand flag: 't' in -target", "a name takes two dashes: --target"},
		{[]string{"replay", "t", "--target"}, "flag needs an argument: --target", "shadowtape replay --help lists the flags"},
		{[]string{"replay", "t", "--speed", "fast"}, "--speed \"fast\": give a number", ""},
		{[]string{"replay", "t", "--duration", "90"}, "--duration \"90\": give a time with its unit, such as 90s or 1h30m", ""},
		{[]string{"replay", "t", "--users", "99999999999999999999"}, "--users \"99999999999999999999\": give a whole number that is not so large", ""},
		{[]string{"--version"}, "unknown flag: --version", "shadowtape version"},
		{[]string{"diff", "a"}, "diff takes BASE CANDIDATE, not \"a\"", ""},
		{[]string{"fit"}, "fit needs TRACE", ""},
	} {
		code, out, errw := invoke(c.args...)
		if code != exitUsage || out != "" || !strings.HasPrefix(errw, "shadowtape: "+c.says+"\n") || !strings.Contains(errw, "\nhint: "+c.hint) {
			t.Errorf("%q: exit %d, stdout %q, stderr %q", c.args, code, out, errw)
		}
	}
	if got := nearest("out", []string{"input", "speed"}); got != "" {
		t.Errorf("nearest to out: %q", got)
	}
	for _, c := range []struct {
		a, b string
		d    int
	}{{"", "abc", 3}, {"kitten", "sitting", 3}, {"tagret", "target", 1}, {"a", "a", 0}} {
		if d := distance(c.a, c.b); d != c.d {
			t.Errorf("distance %q %q: %d, want %d", c.a, c.b, d, c.d)
		}
	}
	if got := reflow("a b\nc d\n\n  x  y\ne", 4); got != "a b\nc d\n\n  x  y\ne" {
		t.Errorf("reflow: %q", got)
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
