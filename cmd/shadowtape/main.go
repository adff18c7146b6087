// Command shadowtape records the traffic of an OpenAI-compatible inference service as a text-free trace, replays it open loop against
// a candidate, measures it, and says whether the candidate is worse than a baseline.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/objects"
	"github.com/shadowtape/shadowtape/internal/term"
)

// The exit codes: the contract with scripts and CI.
const (
	exitGood         = 0
	exitFailed       = 1
	exitUsage        = 2
	exitWorse        = 3 // the candidate is worse or a limit failed
	exitInvalid      = 4 // the measurement is invalid: run it again
	exitInconclusive = 5 // it needs more
	exitInterrupted  = 130
	exitBrokenPipe   = 141 // nobody reads the answer: what a shell says of any filter that SIGPIPE ended
)

func main() {
	ctx, stop := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) { // under nohup it is
		signal.Notify(signals, syscall.SIGHUP) // the terminal is closed
	}
	// Whoever reads our output may end before us, as tee does on the Ctrl-C that stops both: that ends a write, not what we have begun.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	go func() { // the first signal drains, the second exits
		<-signals
		stop()
		<-signals
		os.Exit(exitInterrupted)
	}()
	ownsProcess = true
	os.Exit(run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// app is what a verb works with: the streams of this invocation.
type app struct {
	in       io.Reader
	out, err io.Writer
}

// verbs are the constructors of all verbs, in the order help shows them.
var verbs = []func(*app) *cobra.Command{
	recordCommand,
	repairCommand,
	importCommand,
	exportCommand,
	importResultCommand,
	inspectCommand,
	fitCommand,
	synthCommand,
	replayCommand,
	mergeCommand,
	simulateCommand,
	calibrateCommand,
	analyzeCommand,
	diffCommand,
	gateCommand,
	sweepCommand,
	baselineCommand,
	historyCommand,
	bisectCommand,
	gpusCommand,
	simCommand,
	versionCommand,
	packageCommand,
}

// run is the whole program but for process state: stdout carries the answer, stderr progress, warnings and one-line errors.
func run(ctx context.Context, args []string, in io.Reader, out, errw io.Writer) int {
	a := &app{in: in, out: term.Plain(out), err: term.Plain(errw)}
	formats.Mount("s3", objects.New(ctx, objects.Config{
		Endpoint: cmp.Or(os.Getenv("AWS_ENDPOINT_URL_S3"), os.Getenv("AWS_ENDPOINT_URL")),
		Region:   cmp.Or(os.Getenv("AWS_REGION"), os.Getenv("AWS_DEFAULT_REGION")),
	}).Store)
	root := &cobra.Command{
		Use:           "shadowtape",
		Short:         "Record LLM traffic without its text, replay it, measure it, and stop the slower release",
		Example:       rootExamples,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				return noVerb(c, args[0])
			}
			return c.Help()
		},
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		if c == root && len(args) > 0 && !strings.HasPrefix(args[0], "-") {
			return noVerb(root, args[0])
		}
		return flagError(c, err)
	})
	root.SetHelpFunc(help)
	root.SetUsageFunc(func(c *cobra.Command) error { return writeUsage(c, nil) })
	for _, v := range verbs {
		c := v(a)
		root.AddCommand(c)
		alsoOut(c)
		for _, below := range c.Commands() {
			alsoOut(below)
		}
	}
	root.PersistentPreRun = a.leftovers
	root.SetHelpCommand(helpCommand(root))
	root.SetArgs(spread(args))
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errw)
	err := root.ExecuteContext(ctx)
	if ctx.Err() != nil && errors.Is(err, context.Canceled) { // a signal came before there was anything to write
		err = exitWith(exitInterrupted, err, "")
	}
	return a.report(err)
}

// alsoOut lets --out stand for the flag of -o wherever that is called --output: in synth and sweep --output is the output tokens, and --out the
// place.
func alsoOut(c *cobra.Command) {
	if f := c.Flags().ShorthandLookup("o"); f == nil || f.Name != "output" {
		return
	}
	c.Flags().SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if name == "out" {
			name = "output"
		}
		return pflag.NormalizedName(name)
	})
}

// helpCommand is cobra's, but for an unknown verb, which is a mistake as everywhere.
func helpCommand(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:   "help [VERB]",
		Short: "Help about any command",
		RunE: func(_ *cobra.Command, args []string) error {
			c, rest, err := root.Find(args)
			if err != nil {
				return err
			}
			if len(rest) > 0 {
				return noVerb(c, strings.Join(rest, " "))
			}
			c.InitDefaultHelpFlag()
			return c.Help()
		},
	}
}

// report prints an error as one line, with its hint, and returns its exit code.
func (a *app) report(err error) int {
	if err == nil {
		return exitGood
	}
	var e *exitError
	code := exitFailed
	if errors.As(err, &e) {
		code = e.code
		if e.err == nil {
			return code
		}
	}
	var p *fs.PathError
	if errors.As(err, &p) && errors.Is(err, syscall.EPIPE) && (p.Path == os.Stdout.Name() || p.Path == os.Stderr.Name()) {
		return exitBrokenPipe
	}
	fmt.Fprintf(a.err, "shadowtape: %s\n", oneLine(err.Error()))
	if e != nil && e.hint != "" {
		fmt.Fprintf(a.err, "hint: %s\n", oneLine(e.hint))
	}
	return code
}

// oneLine keeps an error to one line: joined errors are separated by semicolons, and what a file or server has brought in moves no cursor.
func oneLine(s string) string {
	s = strings.Join(slices.Compact(strings.Split(strings.TrimSpace(s), "\n")), "; ") // a writer says again at its end why it failed
	moves := func(r rune) bool { return r != '\t' && unicode.IsControl(r) }
	if !strings.ContainsFunc(s, moves) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if moves(r) {
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// exitError gives an error an exit code and a hint. A nil err exits without a message: the answer on stdout has said it.
type exitError struct {
	code int
	err  error
	hint string
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// usageError is a mistake in the command line; hint may be "".
func usageError(err error, hint string) error { return &exitError{exitUsage, err, hint} }

// exitWith is an error with an exit code of its own; err may be nil.
func exitWith(code int, err error, hint string) error { return &exitError{code, err, hint} }

// withHint adds a hint to an error that fails the command.
func withHint(err error, hint string) error { return &exitError{exitFailed, err, hint} }

// exactArgs is cobra.ExactArgs with our exit code and the names of what is missing; without names it allows no argument.
func exactArgs(names ...string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(names) == 0 && len(args) > 0 {
			return usageError(fmt.Errorf("%s takes no arguments, not %q", c.Name(), args[0]), c.CommandPath()+" --help")
		}
		if len(args) == 0 && len(names) > 0 {
			return usageError(fmt.Errorf("%s needs %s", c.Name(), strings.Join(names, " ")), c.CommandPath()+" --help")
		}
		if len(args) != len(names) {
			return usageError(fmt.Errorf("%s takes %s, not %q", c.Name(), strings.Join(names, " "), strings.Join(args, " ")), c.CommandPath()+" --help")
		}
		return nil
	}
}

// minArgs is cobra.MinimumNArgs(1) with our exit code.
func minArgs(name string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			return usageError(fmt.Errorf("%s needs %s", c.Name(), name), c.CommandPath()+" --help")
		}
		return nil
	}
}
