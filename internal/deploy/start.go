package deploy

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Options say where and how a deployment file is started. The zero value starts a process without a log.
type Options struct {
	Engine     string              // address of the container engine, unix:///… or tcp://…; "": /var/run/docker.sock. Podman's compatible socket works
	Kubeconfig string              // file for kubernetes:; "": the cluster that this program runs in
	Driver     string              // version of this machine's NVIDIA driver, against what the image asks for; "": unknown, not checked
	CUDA       string              // the highest version that it supports; "": unknown, not checked
	GPUs       []string            // UUIDs of the GPUs that the lease gave; nil: as the file says, unresolved
	Log        io.Writer           // the candidate's output; nil: only its last lines are kept, for errors
	LogLimit   int64               // bytes of output kept, the beginning and the end of it; 0: 16 MiB
	Getenv     func(string) string // where ${env:NAME} comes from; nil: such a reference is an error
	Self       string              // this program, for ${self}
	Environ    []string            // what a process inherits, before its own variables; nil: PATH and HOME only
	Progress   func(Progress)      // called from one goroutine at a time; nil: nobody is told
}

// Validate says what is wrong with the options.
func (o Options) Validate() error {
	if o.LogLimit < 0 {
		return fmt.Errorf("log limit %d is negative", o.LogLimit)
	}
	return nil
}

// Progress is a step of a start.
type Progress struct {
	Stage   string        // prepare, pull, start, health or ready
	Elapsed time.Duration // since the stage began
	Detail  string        // the candidate's last log line, a layer, a command
}

// Error is a failure with advice. Err is one line; Hint is "" or what to do.
type Error struct {
	Err  error
	Hint string
	Tail []string // the candidate's last log lines, oldest first
}

func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

func hinted(err error, hint string) error { return &Error{Err: err, Hint: hint} }

// Candidate is a started deployment. Its methods are safe for concurrent use.
type Candidate struct {
	URL     string        // of the server, without a trailing slash
	ID      string        // mark of this launch: the container's label, the processes' variable
	StartUp time.Duration // from the launch to the first healthy answer: compilation and graph capture included

	file     *File
	opts     Options
	log      *boundedLog
	backend  backend
	exited   chan struct{}
	exit     exitStatus // valid after exited is closed
	prepared map[string]any
	stopOnce sync.Once
	stopErr  error
	stopping chan struct{}
}

// exitStatus is how a candidate ended.
type exitStatus struct {
	code int
	text string
}

// backend is a way to run a candidate: a container or a process.
type backend interface {
	// begin starts it and returns its URL. What it has begun when it fails, stop cleans up.
	begin(ctx context.Context) (url string, err error)
	// wait blocks until it ended, for whatever reason.
	wait() exitStatus
	// stop ends and removes everything; a second call does nothing.
	stop(ctx context.Context, grace time.Duration) error
	// owns reports whether a process of this machine belongs to it.
	owns(pid int) bool
	// run executes a command where the candidate runs.
	run(ctx context.Context, words []string, out io.Writer) error
	// environment describes it, without secrets.
	environment(ctx context.Context) map[string]any
}

// Mark is the environment variable and, lower case and dotted, the container label that names a launch.
const Mark = "SHADOWTAPE_DEPLOYMENT"

// Start prepares, launches and awaits a candidate. It returns when the health path answers 2xx; on any error, a cancelled context
// included, everything begun has been stopped and removed. The error is an *Error where there is advice or a log to show.
func Start(ctx context.Context, f *File, o Options) (*Candidate, error) {
	if err := errors.Join(f.Validate(), o.Validate()); err != nil {
		return nil, fmt.Errorf("start %s: %w", f.label(), err)
	}
	c := &Candidate{file: f, opts: o, ID: newID(), exited: make(chan struct{}), stopping: make(chan struct{})}
	if err := c.start(ctx); err != nil {
		stopped := c.Stop(ctx)
		switch cause := ctx.Err(); {
		case cause == nil:
		case errors.Is(err, cause):
			err = cause // where it was noticed says nothing
		default:
			err = fmt.Errorf("%w (%w)", cause, err)
		}
		var e *Error
		if !errors.As(err, &e) {
			e = &Error{}
		}
		e = &Error{Err: fmt.Errorf("start %s: %w", f.label(), errors.Join(err, stopped)), Hint: e.Hint}
		if c.log != nil {
			e.Tail = c.log.lines(tailLines)
		}
		return nil, e
	}
	return c, nil
}

func (c *Candidate) start(ctx context.Context) error {
	f, o := c.file, c.opts
	var err error
	if c.prepared, err = f.prepare(ctx, o, c.progress); err != nil {
		return err
	}
	if p := f.Files.Path; p != "" && !exists(f.path(p)) {
		return hinted(fmt.Errorf("model_files.path: %s does not exist", f.path(p)), "a relative path starts at the deployment file's directory")
	}
	port := f.Port
	if port == 0 {
		port = dialects[f.Dialect].port
	}
	if len(f.Process) > 0 {
		if f.Port == 0 {
			if port, err = freePort(); err != nil {
				return err
			}
		} else if err := portFree(port); err != nil {
			return err
		}
	}
	places := strings.NewReplacer("${port}", strconv.Itoa(port), "${self}", o.Self)
	env, secrets, err := f.resolveEnv(o.Getenv, places)
	if err != nil {
		return err
	}
	c.log = newBoundedLog(o.Log, o.LogLimit, secrets)
	l := launch{file: f, opts: o, id: c.ID, port: port, env: env, places: places, log: c.log, progress: c.progress}
	switch {
	case f.Image != "":
		c.backend = &container{launch: l}
	case !f.Kubernetes.none():
		c.backend = &cluster{launch: l}
	default:
		c.backend = &process{launch: l}
	}
	began := time.Now()
	if c.URL, err = c.backend.begin(ctx); err != nil {
		return err
	}
	go func() { // ends with the candidate, which Stop ends
		c.exit = c.backend.wait()
		close(c.exited)
	}()
	if err := c.awaitHealth(ctx, began); err != nil {
		return err
	}
	c.StartUp = time.Since(began)
	c.progress(Progress{Stage: "ready", Elapsed: c.StartUp})
	return nil
}

// launch is what both backends need.
type launch struct {
	file     *File
	opts     Options
	id       string
	port     int
	env      []string
	places   *strings.Replacer
	log      *boundedLog
	progress func(Progress)
}

func (c *Candidate) progress(p Progress) {
	if c.opts.Progress != nil {
		c.opts.Progress(p)
	}
}

// awaitHealth polls the health path until it answers 2xx, the candidate ends, or time is up.
func (c *Candidate) awaitHealth(ctx context.Context, began time.Time) error {
	h := c.file.Health
	path := h.Path
	if path == "" {
		path = dialects[c.file.Dialect].health
	}
	limit := h.Timeout.Or(10 * time.Minute)
	deadline := time.NewTimer(time.Until(began.Add(limit)))
	defer deadline.Stop()
	poll := time.NewTicker(h.Interval.Or(500 * time.Millisecond))
	defer poll.Stop()
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	last := "no answer yet"
	for {
		status, err := probe(ctx, client, c.URL+path)
		switch {
		case err == nil && status/100 == 2:
			return nil
		case err == nil:
			last = fmt.Sprintf("last answer HTTP %d", status)
		default:
			last = lastCause(err)
		}
		detail := last
		if lines := c.log.lines(1); len(lines) > 0 {
			detail = lines[0]
		}
		c.progress(Progress{Stage: "health", Elapsed: time.Since(began), Detail: detail})
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.exited:
			return hinted(fmt.Errorf("it ended before it was healthy: %s", c.exit.text), "its last log lines say why")
		case <-deadline.C:
			return hinted(fmt.Errorf("%s is not healthy after %s: %s", c.URL+path, limit, last), "raise health.timeout, or see its last log lines")
		case <-poll.C:
		}
	}
}

// probe asks once; the body is not read.
func probe(ctx context.Context, client *http.Client, url string) (int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	return resp.StatusCode, resp.Body.Close()
}

// lastCause is the innermost message of a network error.
func lastCause(err error) string {
	for {
		next := errors.Unwrap(err)
		if next == nil {
			return err.Error()
		}
		err = next
	}
}

// Exited is closed when the candidate has ended, by itself or through Stop.
func (c *Candidate) Exited() <-chan struct{} { return c.exited }

// Died returns the error of a candidate that ended although nobody stopped it, with its last log lines; nil otherwise.
func (c *Candidate) Died() error {
	select {
	case <-c.stopping:
		return nil
	default:
	}
	select {
	case <-c.exited:
		return &Error{Err: fmt.Errorf("candidate %s died: %s", c.file.label(), c.exit.text), Tail: c.log.lines(tailLines)}
	default:
		return nil
	}
}

// Tail returns its last log lines, at most n and 20, oldest first.
func (c *Candidate) Tail(n int) []string { return c.log.lines(n) }

// Owns reports whether a process of this machine is the candidate's: so a GPU process is told from a foreign one.
func (c *Candidate) Owns(pid int) bool { return c.backend.owns(pid) }

// Stop ends the candidate, waits for it, removes what belongs to it and closes its log. It does so even where ctx is cancelled already,
// for at most the file's grace and 30 seconds more. A second call returns what the first did.
func (c *Candidate) Stop(ctx context.Context) error {
	c.stopOnce.Do(func() {
		close(c.stopping)
		grace := c.file.Stop.Or(30 * time.Second)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace+30*time.Second)
		defer cancel()
		if c.backend != nil {
			c.stopErr = c.backend.stop(ctx, grace)
		}
		if c.log != nil {
			c.stopErr = errors.Join(c.stopErr, c.log.close())
		}
	})
	return c.stopErr
}

// label is the name of the candidate in messages.
func (f *File) label() string {
	if f.Name != "" {
		return f.Name
	}
	if f.Image != "" {
		return f.Image
	}
	if len(f.Process) > 0 {
		return f.Process[0]
	}
	if f.Kubernetes.Service != "" {
		return f.Kubernetes.Service
	}
	return "candidate"
}

func newID() string {
	var b [6]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// freePort asks the kernel for a port that nobody listens on.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// portFree refuses a port that somebody listens on.
func portFree(port int) error {
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return hinted(fmt.Errorf("port %d is taken", port), "leave port out and say ${port} in the command: a free one is chosen")
	}
	return l.Close()
}

// prepare runs the file's prepare steps and returns the digests of what they made, by path as the file writes it.
func (f *File) prepare(ctx context.Context, o Options, progress func(Progress)) (map[string]any, error) {
	made := map[string]any{}
	for i, p := range f.Prepare {
		began := time.Now()
		target := ""
		if p.Creates != "" {
			target = f.path(p.Creates)
		}
		if target == "" || !exists(target) {
			progress(Progress{Stage: "prepare", Detail: strings.Join(p.Command, " ")})
			if err := f.runPrepare(ctx, p, o); err != nil {
				return nil, fmt.Errorf("prepare step %d: %w", i+1, err)
			}
		}
		if target == "" {
			continue
		}
		if !exists(target) {
			return nil, hinted(fmt.Errorf("prepare step %d: %s took %s and did not create %s", i+1, p.Command[0], time.Since(began).Round(time.Second), target), "a relative path starts at the deployment file's directory, where the step runs too")
		}
		d, err := digestFiles(ctx, target, false)
		if err != nil {
			return nil, fmt.Errorf("prepare step %d: %w", i+1, err)
		}
		made[p.Creates] = d
	}
	if len(made) == 0 {
		return nil, nil
	}
	return made, nil
}

func (f *File) runPrepare(ctx context.Context, p Prepare, o Options) error {
	limit := p.Timeout.Or(time.Hour)
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("it did not end within %s", limit))
	defer cancel()
	words := expand(p.Command, strings.NewReplacer("${self}", o.Self))
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.Dir = f.dir
	cmd.Env = inherited(o.Environ)
	log := newBoundedLog(nil, 0, nil)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.WaitDelay = 5 * time.Second
	err := cmd.Run()
	switch {
	case err == nil:
		return nil
	case errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist):
		return hinted(fmt.Errorf("%s: there is no such program", words[0]), "it is looked for in PATH, or at a path that starts at the deployment file's directory")
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return hinted(fmt.Errorf("%s: %w", words[0], context.Cause(ctx)), "raise the step's timeout")
	}
	if lines := log.lines(1); len(lines) > 0 {
		err = fmt.Errorf("%w: %s", err, lines[0])
	}
	return hinted(fmt.Errorf("%s: %w", words[0], err), "run the step by itself to see all of its output")
}

// expand fills the places of a command line; none stays nil, since to an engine an empty list is one.
func expand(words []string, places *strings.Replacer) []string {
	if len(words) == 0 {
		return nil
	}
	out := make([]string, len(words))
	for i, w := range words {
		out[i] = places.Replace(w)
	}
	return out
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// inherited is the environment of a child that was given none.
func inherited(env []string) []string {
	if env == nil {
		return []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/"}
	}
	return env
}
