package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/candidate"
	"github.com/shadowtape/shadowtape/internal/deploy"
	"github.com/shadowtape/shadowtape/internal/experiment/warm"
	"github.com/shadowtape/shadowtape/internal/gpu"
	"github.com/shadowtape/shadowtape/internal/term"
	"github.com/shadowtape/shadowtape/replayer/job"
	"github.com/shadowtape/shadowtape/replayer/prompt"
)

// deployFlags are the flags of a verb that starts its candidate itself.
type deployFlags struct {
	file, of, exclusive, engine, lockDir string
	set                                  []string
	wait, allowInvalid                   bool
}

// deployGroup is their heading in help.
var deployGroup = flagGroup{"Candidate and its GPUs", []string{"deploy", "set", "gpus-of", "exclusive", "wait", "engine", "lock-dir"}}

func (d *deployFlags) register(f *pflag.FlagSet) {
	f.StringVar(&d.file, "deploy", "", "start the candidate that this deployment `file` describes, alone on its GPUs, and stop it afterwards (docs/DEPLOY.md)")
	f.StringArrayVar(&d.set, "set", nil, "value of a ${matrix.NAME} in the deployment file, as `NAME=VALUE`")
	f.StringVar(&d.of, "gpus-of", "", "with --target: watch the GPUs of a server that runs on this machine, by its container's name or its process number, as for --deploy")
	f.StringVar(&d.exclusive, "exclusive", "on", "on: lease the candidate's GPUs and refuse them where others use them; off: neither, and the run says so")
	f.BoolVar(&d.wait, "wait", false, "wait for GPUs that another run holds")
	f.StringVar(&d.engine, "engine", "", "address of the container engine, Docker's or Podman's (default: $DOCKER_HOST, else the local Docker)")
	f.StringVar(&d.lockDir, "lock-dir", "", "directory of the GPU leases (default: "+gpu.LockDir()+")")
}

// load reads the deployment file.
func (d *deployFlags) load() (*deploy.File, error) {
	if d.exclusive != "on" && d.exclusive != "off" {
		return nil, usageError(fmt.Errorf("--exclusive is on or off, not %q", d.exclusive), "")
	}
	values := map[string]string{}
	for _, s := range d.set {
		name, v, ok := strings.Cut(s, "=")
		if !ok || name == "" {
			return nil, usageError(fmt.Errorf("--set wants NAME=VALUE, not %q", s), "")
		}
		values[name] = v
	}
	f, err := deploy.Load(d.file, values)
	if err != nil {
		return nil, withHint(err, "docs/DEPLOY.md has every field; samples/deploy has examples")
	}
	return f, nil
}

// options make a start's options; verb is what others are told that holds the GPUs.
func (d *deployFlags) options(a *app, verb string) candidate.Options {
	engine := d.engine
	if engine == "" {
		engine = os.Getenv("DOCKER_HOST")
	}
	self, _ := os.Executable() // "" makes ${self} an unknown program, which the start says
	who := "somebody"
	if u, err := user.Current(); err == nil {
		who = u.Username
	}
	show := &startLine{a: a}
	return candidate.Options{
		Deploy:       deploy.Options{Engine: engine, Kubeconfig: kubeconfig(), Getenv: os.Getenv, Environ: os.Environ(), Self: self, Progress: show.progress},
		Shared:       d.exclusive == "off",
		AllowInvalid: d.allowInvalid,
		Wait:         d.wait,
		LockDir:      d.lockDir,
		Holder:       who + ", shadowtape " + verb,
		GPUs:         openGPUs,
		Told:         show.told,
	}
}

// kubeconfig is where kubectl would look; "" where there is no such file.
func kubeconfig() string {
	if list := filepath.SplitList(os.Getenv("KUBECONFIG")); len(list) > 0 {
		return list[0]
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return ""
	}
	path := filepath.Join(home, ".kube", "config")
	if _, err := os.Stat(path); err != nil {
		return ""
	}
	return path
}

// startLine shows a start: one line that changes on a terminal, one line a stage elsewhere.
type startLine struct {
	a     *app
	stage string
	said  time.Time
	open  bool // a line on the terminal waits to be overwritten
}

func (s *startLine) progress(p deploy.Progress) {
	text := fmt.Sprintf("candidate: %s", p.Stage)
	switch p.Stage {
	case "ready":
		text = fmt.Sprintf("candidate: healthy after %.1f s", p.Elapsed.Seconds())
	case "health":
		text = fmt.Sprintf("candidate: awaiting its health, %.0f s: %s", p.Elapsed.Seconds(), p.Detail)
	case "pull", "prepare", "start":
		text += " " + p.Detail
	}
	text = oneLine(text)
	if term.Is(s.a.err) {
		if w := term.Width(s.a.err) - 1; len(text) > w && w > 0 {
			text = strings.ToValidUTF8(text[:w], "")
		}
		end := ""
		if p.Stage == "ready" {
			end = "\n"
		}
		s.open = end == ""
		fmt.Fprintf(term.Raw(s.a.err), "\r\x1b[K%s%s", term.Clean(text), end)
		return
	}
	if p.Stage != s.stage {
		s.stage = p.Stage
		fmt.Fprintln(s.a.err, text)
	}
}

func (s *startLine) told(kind candidate.Kind, line string) {
	s.end()
	switch kind {
	case candidate.Warning:
		fmt.Fprintf(s.a.err, "warning: %s\n", oneLine(line))
	case candidate.Note:
		fmt.Fprintln(s.a.err, oneLine(line))
	}
}

func (s *startLine) end() {
	if s.open {
		s.open = false
		fmt.Fprintln(s.a.err)
	}
}

// startError gives a failed start its exit code, hint and last log lines.
func (a *app) startError(err error, log string) error {
	var unfit *candidate.UnfitError
	if errors.As(err, &unfit) {
		return exitWith(exitInvalid, err, unfit.Hint()+"; --allow-invalid measures all the same")
	}
	var busy *gpu.BusyError
	if errors.As(err, &busy) && !errors.Is(err, context.Canceled) {
		return withHint(err, "--wait waits for it; shadowtape gpus lists what is free")
	}
	var e *deploy.Error
	hint := ""
	if errors.As(err, &e) {
		hint = e.Hint
		a.showTail(e.Tail)
		if len(e.Tail) > 0 && log != "" {
			hint = strings.TrimPrefix(hint+"; its whole log is "+log, "; ")
		}
	}
	if errors.Is(err, context.Canceled) {
		return exitWith(exitInterrupted, err, "")
	}
	return withHint(err, hint)
}

// showTail prints a candidate's last log lines.
func (a *app) showTail(lines []string) {
	for _, l := range lines[max(0, len(lines)-10):] {
		fmt.Fprintf(a.err, "candidate| %s\n", l)
	}
}

// replayDeployed starts the deployment file's candidate, replays against it, and stops it.
func (a *app) replayDeployed(c *cobra.Command, where string, o replayFlags, run func(ctx context.Context, o replayFlags, change func(*job.Options)) error) (err error) {
	ctx := c.Context()
	if len(o.targets) > 0 || o.deploy.of != "" {
		return usageError(errors.New("--deploy and --target or --gpus-of: which?"), "--deploy starts a candidate, --target measures one that runs")
	}
	if o.out == "" {
		return usageError(errors.New("-o is missing"), "shadowtape replay --help")
	}
	f, err := o.deploy.load()
	if err != nil {
		return err
	}
	if formats.Remote(o.out) {
		return usageError(fmt.Errorf("--deploy with -o %s: the candidate's log is kept beside the run, which must be a directory", o.out), "")
	}
	if _, err := os.Stat(o.out); err == nil && !o.force { // known before a start that may take minutes
		return withHint(fmt.Errorf("create run %s: %w", o.out, os.ErrExist), "--force replaces it")
	}
	if o.force {
		if err := formats.Replaceable(o.out); err != nil {
			return err
		}
	}
	if there, err := formats.Exists(where); err != nil || !there {
		return fmt.Errorf("open trace %s: %w", where, cmp.Or(err, fs.ErrNotExist))
	}
	o.deploy.allowInvalid = o.allowInvalid
	log := filepath.Clean(o.out) + ".candidate.log" // moves into the run directory, which must not exist before the run
	w, err := os.Create(log)
	if err != nil {
		return fmt.Errorf("write the candidate's log: %w", err)
	}
	defer func() { err = errors.Join(err, keepLog(w, log, o.out)) }()
	co := o.deploy.options(a, "replay")
	co.Deploy.Log = w
	r, err := candidate.Start(ctx, f, co)
	if err != nil {
		return a.startError(err, log)
	}
	defer func() { err = errors.Join(err, r.Stop(ctx)) }()
	running, cancel := context.WithCancel(ctx)
	defer cancel()
	died := make(chan struct{})
	go func() { // ends with the candidate, which is stopped above
		defer close(died)
		<-r.Exited()
		if r.Died() != nil {
			cancel()
		}
	}()
	o.targets = []string{r.URL}
	if o.model == "" {
		o.model = f.Model
	}
	if o.dialect == "" && slices.Contains(prompt.DialectNames(), f.Dialect) {
		o.dialect = f.Dialect
	}
	return run(running, o, func(jo *job.Options) {
		if o.warmup == "" {
			jo.WarmRule = warm.Rule(f.WarmUp, r, (&startLine{a: a}).warming)
		}
		jo.Measured = r.Measure
		jo.Beside = func(ctx context.Context, w *formats.RunWriter) func(*formats.Manifest) {
			r.Begin(ctx, w.WriteGPU)
			return func(m *formats.Manifest) {
				r.End(m)
				if err := r.Died(); err != nil && c.Context().Err() == nil {
					m.Interrupted = false // not by the user
					a.showTail(r.Tail(10))
				}
			}
		}
	})
}

// warming shows how a warm-up stands: on one line of a terminal, every half minute elsewhere.
func (s *startLine) warming(text string) {
	if term.Is(s.a.err) {
		s.open = true
		fmt.Fprintf(term.Raw(s.a.err), "\r\x1b[K%s", term.Clean(oneLine(text)))
		return
	}
	if now := time.Now(); now.Sub(s.said) > 30*time.Second {
		s.said = now
		fmt.Fprintln(s.a.err, oneLine(text))
	}
}

// replayAttached replays against a server that somebody else started on this machine, and watches its GPUs.
func (a *app) replayAttached(c *cobra.Command, o replayFlags, run func(ctx context.Context, o replayFlags, change func(*job.Options)) error) (err error) {
	ctx := c.Context()
	if o.deploy.exclusive != "on" && o.deploy.exclusive != "off" {
		return usageError(fmt.Errorf("--exclusive is on or off, not %q", o.deploy.exclusive), "")
	}
	o.deploy.allowInvalid = o.allowInvalid
	r, err := candidate.Attach(ctx, o.deploy.of, o.deploy.options(a, "replay"))
	if err != nil {
		return a.startError(err, "")
	}
	defer func() { err = errors.Join(err, r.Stop(ctx)) }()
	return run(ctx, o, func(jo *job.Options) {
		jo.Beside = func(ctx context.Context, w *formats.RunWriter) func(*formats.Manifest) {
			r.Begin(ctx, w.WriteGPU)
			return r.End
		}
	})
}

// beside is what the replayer calls around a measurement.
type beside = func(ctx context.Context, w *formats.RunWriter) (end func(*formats.Manifest))

// besideDCGM adds the telemetry of remote GPUs, from DCGM exporters, to what is watched beside a replay.
func besideDCGM(urls []string, inner beside) beside {
	return func(ctx context.Context, w *formats.RunWriter) func(*formats.Manifest) {
		end := func(*formats.Manifest) {}
		if inner != nil {
			end = inner(ctx, w)
		}
		ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
		var asked, failed int
		var err error
		var done sync.WaitGroup
		done.Go(func() { asked, failed, err = gpu.WatchDCGM(ctx, urls, time.Second, w.WriteGPU) })
		return func(m *formats.Manifest) {
			stop()
			done.Wait()
			if err != nil {
				m.Warnings = append(m.Warnings, fmt.Sprintf("%d of %d readings of the GPU exporters failed: %v", failed, asked, err))
			}
			end(m)
		}
	}
}

// keepLog closes a candidate's log and moves it into the run directory where there is one; an empty one is removed.
func keepLog(w *os.File, log, run string) error {
	info, statErr := w.Stat()
	if err := w.Close(); err != nil {
		return fmt.Errorf("write the candidate's log: %w", err)
	}
	if statErr == nil && info.Size() == 0 {
		return os.Remove(log)
	}
	if d, err := os.Stat(run); err == nil && d.IsDir() {
		return os.Rename(log, filepath.Join(run, "candidate.log"))
	}
	return nil
}
