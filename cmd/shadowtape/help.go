package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/shadowtape/shadowtape/internal/term"
)

// verbGroups are the headings under which `shadowtape --help` lists the verbs: what somebody wants, and what does it.
var verbGroups = []flagGroup{
	{"Record traffic", []string{"record", "repair", "import", "import-result", "inspect", "export"}},
	{"Replay it before a release", []string{"replay", "merge", "analyze", "diff", "gate", "baseline", "history", "bisect"}},
	{"Synthetic load", []string{"sweep", "fit", "synth", "simulate", "calibrate"}},
}

// rootExamples are the three commands that most begin with.
const rootExamples = `  shadowtape record --interface any --port 8000 -o production
  shadowtape replay production --target http://candidate:8000 -o run1
  shadowtape diff production run1 --html report.html`

// flagGroup is a heading of help and the flags, or verbs, that stand under it.
type flagGroup struct {
	title string
	names []string
}

// groupFlags makes a verb's help show its flags by purpose. A flag stands once, in the first group that
// names it; one that no group names stands under "Other flags".
func groupFlags(c *cobra.Command, groups ...flagGroup) {
	c.SetUsageFunc(func(c *cobra.Command) error { return writeUsage(c, groups) })
}

// helpColumns is how wide help is: the terminal's width, at most 120; 100 where it goes elsewhere.
func helpColumns(c *cobra.Command) int {
	if w := c.OutOrStdout(); term.Is(w) {
		return min(max(term.Width(w), 60), 120)
	}
	return 100
}

// help prints what a verb does, then its usage.
func help(c *cobra.Command, _ []string) {
	fmt.Fprintf(c.OutOrStdout(), "%s\n\n", reflow(strings.TrimSpace(cmp.Or(c.Long, c.Short)), helpColumns(c)))
	_ = c.Usage() // the writer's errors are the writer's
}

// writeUsage writes how a verb is called, examples, the verbs under it, and its flags by group.
func writeUsage(c *cobra.Command, groups []flagGroup) error {
	columns := helpColumns(c)
	var b strings.Builder
	line := c.UseLine()
	if !c.HasParent() {
		line = c.Name() + " VERB [flags]"
	}
	b.WriteString("Usage:\n  " + wrap(line, columns-4, "\n    ") + "\n")
	if c.HasExample() {
		b.WriteString("\nExamples:\n" + c.Example + "\n")
	}
	listVerbs(&b, c, columns)
	if c.HasSubCommands() {
		fmt.Fprintf(&b, "\n%s VERB --help shows a verb's flags with examples.\n", c.CommandPath())
	}
	seen := map[string]bool{}
	show := func(title string, fs *pflag.FlagSet) {
		if fs.HasAvailableFlags() {
			b.WriteString("\n" + title + ":\n" + fs.FlagUsagesWrapped(columns))
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
	title := "Flags"
	if len(groups) > 0 {
		title = "Other flags"
	}
	show(title, rest)
	_, err := c.OutOrStderr().Write([]byte(b.String()))
	return err
}

// listVerbs lists the verbs under c, by verbGroups where c is the program itself.
func listVerbs(b *strings.Builder, c *cobra.Command, columns int) {
	var shown []*cobra.Command
	width := 0
	for _, v := range c.Commands() {
		if !v.Hidden {
			shown = append(shown, v)
			width = max(width, len(v.Name()))
		}
	}
	list := func(title string, in func(*cobra.Command) bool) {
		first := true
		for _, v := range shown {
			if !in(v) {
				continue
			}
			if first {
				fmt.Fprintf(b, "\n%s:\n", title)
				first = false
			}
			fmt.Fprintf(b, "  %-*s  %s\n", width, v.Name(), wrap(v.Short, columns-width-4, "\n"+strings.Repeat(" ", width+4)))
		}
	}
	if c.HasParent() {
		list("Verbs", func(*cobra.Command) bool { return true })
		return
	}
	grouped := map[string]bool{}
	for _, g := range verbGroups {
		for _, n := range g.names {
			grouped[n] = true
		}
		slices.SortStableFunc(shown, func(a, b *cobra.Command) int { // in the group's order
			return cmp.Compare(slices.Index(g.names, a.Name()), slices.Index(g.names, b.Name()))
		})
		list(g.title, func(v *cobra.Command) bool { return slices.Contains(g.names, v.Name()) })
	}
	slices.SortFunc(shown, func(a, b *cobra.Command) int { return cmp.Compare(a.Name(), b.Name()) })
	list("Else", func(v *cobra.Command) bool { return !grouped[v.Name()] })
}

// wrap breaks text between words so that no line has more than columns characters, but for a word that is longer; lines are joined by sep.
func wrap(text string, columns int, sep string) string {
	var b strings.Builder
	at := 0
	for i, w := range strings.Fields(text) {
		n := utf8.RuneCountInString(w)
		switch {
		case i == 0:
		case at+1+n > columns:
			b.WriteString(sep)
			at = 0
		default:
			b.WriteByte(' ')
			at++
		}
		b.WriteString(w)
		at += n
	}
	return b.String()
}

// reflow wraps the paragraphs of a text. Lines that are set in columns (indented, or with two blanks in a row) are not joined, and
// wrapped under their indentation where they are too long.
func reflow(text string, columns int) string {
	var out, run []string
	flush := func() {
		if len(run) > 0 {
			out = append(out, wrap(strings.Join(run, " "), columns, "\n"))
			run = nil
		}
	}
	for l := range strings.SplitSeq(text, "\n") {
		if l == "" || strings.Contains(l, "  ") {
			flush()
			words := strings.TrimLeft(l, " ")
			if indent := l[:len(l)-len(words)]; utf8.RuneCountInString(l) > columns && !strings.Contains(words, "  ") {
				l = indent + wrap(words, columns-len(indent), "\n"+indent)
			}
			out = append(out, l)
			continue
		}
		run = append(run, l)
	}
	flush()
	return strings.Join(out, "\n")
}

// flagError says what is wrong with a command line in the words of its flags, with the nearest flag that there is.
func flagError(c *cobra.Command, err error) error {
	hint := c.CommandPath() + " --help lists the flags"
	var unknown *pflag.NotExistError
	var invalid *pflag.InvalidValueError
	switch {
	case errors.As(err, &unknown):
		name := unknown.GetSpecifiedName()
		short := unknown.GetSpecifiedShortnames()
		switch {
		case !c.HasParent() && (name == "version" || name == "v" || name == "V"):
			hint = "shadowtape version"
		case short != "" && c.Flags().Lookup(strings.SplitN(short, "=", 2)[0]) != nil:
			hint = "a name takes two dashes: --" + short
		case short == "":
			var names []string
			c.Flags().VisitAll(func(f *pflag.Flag) {
				if !f.Hidden {
					names = append(names, f.Name)
				}
			})
			if near := nearest(name, names); near != "" {
				hint = "did you mean --" + near + "? " + hint
			}
		}
	case errors.As(err, &invalid):
		f := invalid.GetFlag()
		why := invalid.Unwrap()
		var number *strconv.NumError
		if errors.As(why, &number) || strings.HasPrefix(why.Error(), "time: ") {
			what := map[string]string{"int": "a whole number", "uint": "a whole number, 0 or more", "uint64": "a whole number, 0 or more", "uintSlice": "whole numbers",
				"float64": "a number", "bool": "true or false", "duration": "a time with its unit, such as 90s or 1h30m"}[f.Value.Type()]
			if what != "" {
				err = fmt.Errorf("--%s %q: give %s", f.Name, invalid.GetValue(), what)
				if errors.Is(why, strconv.ErrRange) {
					err = fmt.Errorf("--%s %q: give %s that is not so large", f.Name, invalid.GetValue(), what)
				}
				break
			}
		}
		err = fmt.Errorf("--%s %q: %w", f.Name, invalid.GetValue(), why)
	}
	return usageError(err, hint)
}

// nearest is the name that takes the fewest changes of a letter to become what was typed, where these are few; or "".
func nearest(typed string, names []string) string {
	best, at := "", 1+len(typed)/4
	for _, n := range names {
		d := distance(strings.ToLower(typed), n)
		if len(typed) > 2 && strings.HasPrefix(n, typed) {
			d = min(d, 1)
		}
		if d <= at && (best == "" || d < at) {
			best, at = n, d
		}
	}
	return best
}

// distance is how many letters must be put in, left out, replaced, or swapped with their neighbor, to make b of a
// (optimal string alignment).
func distance(a, b string) int {
	d := make([][]int, len(a)+1)
	for i := range d {
		d[i] = make([]int, len(b)+1)
		d[i][0] = i
	}
	for j := range d[0] {
		d[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			change := 1
			if a[i-1] == b[j-1] {
				change = 0
			}
			d[i][j] = min(d[i-1][j]+1, d[i][j-1]+1, d[i-1][j-1]+change)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d[i][j] = min(d[i][j], d[i-2][j-2]+1)
			}
		}
	}
	return d[len(a)][len(b)]
}

// noVerb is the error of a verb that c does not have.
func noVerb(c *cobra.Command, name string) error {
	var names []string
	for _, v := range c.Commands() {
		if !v.Hidden {
			names = append(names, v.Name())
		}
	}
	hint := c.CommandPath() + " --help lists the verbs"
	if near := nearest(name, names); near != "" {
		hint = "did you mean " + c.CommandPath() + " " + near + "? " + hint
	}
	return usageError(fmt.Errorf("there is no verb %q", strings.TrimSpace(strings.TrimPrefix(c.CommandPath(), c.Root().Name())+" "+name)), hint)
}
