package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/term"
	"github.com/shadowtape/shadowtape/replayer"
	"github.com/shadowtape/shadowtape/replayer/client"
	"github.com/shadowtape/shadowtape/replayer/job"
	"github.com/shadowtape/shadowtape/replayer/prompt"
)

// longRun is the plan's length from which a replay wants an explicit --duration.
const longRun = time.Hour

// replayFlags are the flags of replay as given.
type replayFlags struct {
	out, model, endpoint, dialect, label, keyEnv string
	outputs, sampling, clock, http               string
	targets, headers, metrics, gpuMetrics        []string
	warmup, aborts, config                       string
	prompts, bodies, balance, proxy, caCert      string
	timeout, connect                             time.Duration
	scrape, cooldown, saturate                   time.Duration
	seed                                         int64
	maxInFlight                                  int
	force, allowInvalid, keepCache, insecure     bool
	deploy                                       deployFlags
	scheduleFlags
	shards shardFlags
}

func replayCommand(a *app) *cobra.Command {
	var o replayFlags
	c := &cobra.Command{
		Use:   "replay TRACE|WORKLOAD.json --target URL | --deploy FILE -o RUN",
		Short: "Send a trace's requests to a candidate, open loop, and measure what comes back",
		Long: `Replay sends the requests of a trace, or of an earlier run, at their recorded times, whatever the candidate does. Prompts are made up
to the recorded length and prefix structure; output lengths are forced where the server can. It writes a run directory: every exchange,
the server's metrics, the client's own health, and run.json, which says whether the run can be trusted.

Exit 0 where the run is valid, 4 where it is not (--allow-invalid accepts it), 130 where it was interrupted; what was measured is written.`,
		Example: `  shadowtape replay prod.trace --target http://candidate:8000 -o run1
  shadowtape replay prod.trace --target http://candidate:8000 --speed 2 --duration 10m -o run2
  shadowtape replay prod.trace --deploy candidate.yaml -o run4
  shadowtape replay run1 --target https://host/v1 --model m --api-key-env KEY \
    --max-requests 1000 -o run3`,
		Args: exactArgs("TRACE"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := applyConfig(c, o.config); err != nil {
				return usageError(err, "its keys are the flags' names")
			}
			run := func(ctx context.Context, o replayFlags, change func(*job.Options)) error {
				return a.replay(ctx, c, args[0], o, change)
			}
			if o.deploy.file != "" {
				return a.replayDeployed(c, args[0], o, run)
			}
			if o.deploy.of != "" {
				return a.replayAttached(c, o, run)
			}
			return run(c.Context(), o, nil)
		},
	}
	f := c.Flags()
	o.deploy.register(f)
	o.shards.add(f)
	f.StringVarP(&o.out, "output", "o", "", "run directory to write")
	f.BoolVar(&o.force, "force", false, "replace the run directory where it exists")
	f.StringVar(&o.label, "label", "", "name of the run in reports (default: the run directory's)")
	f.StringArrayVar(&o.targets, "target", nil, "base URL of the candidate; given several times, requests are dealt out in turn")
	f.StringVar(&o.model, "model", "", "model to ask for (default: the first that the target lists)")
	f.StringArrayVar(&o.headers, "header", nil, "header to send with every request, as `Name: value`; values are not written down")
	f.StringVar(&o.keyEnv, "api-key-env", "", "environment `variable` that holds the API key; the key is not written down")
	f.StringVar(&o.dialect, "dialect", "", "what the server understands beyond the OpenAI API: "+strings.Join(prompt.DialectNames(), ", ")+" (default: detected)")
	o.scheduleFlags.register(f, "replay")
	f.IntVar(&o.maxInFlight, "max-in-flight", 100_000, "requests in flight past which arrivals are dropped and counted")
	f.DurationVar(&o.connect, "connect-timeout", 10*time.Second, "give a connection up that takes this long, or one answer of its TLS handshake")
	f.DurationVar(&o.timeout, "request-timeout", 10*time.Minute, "give a request up after this time")
	f.Int64Var(&o.seed, "seed", 1, "seed of the prompts: another seed, other text")
	f.StringVar(&o.endpoint, "endpoint", "", "of requests that do not say theirs: chat or completions (default: completions where the target takes token ids)")
	f.StringVar(&o.outputs, "output-lengths", "forced", "forced, or natural: what the model makes of it")
	f.StringVar(&o.sampling, "sampling", "recorded", "recorded, or greedy: temperature 0")
	f.StringVar(&o.prompts, "prompts", "auto", "token-ids, text, or auto: token ids where the target takes them")
	f.StringVar(&o.bodies, "bodies", "", "`file` of literal bodies to send instead, for laboratories")
	f.StringVar(&o.balance, "balance", "turn", "several targets: turn, or session: a session stays where it began")
	f.StringVar(&o.proxy, "proxy", "", "`URL` of an HTTP proxy in front of the targets (default: none; the environment is not asked)")
	f.StringVar(&o.caCert, "ca-cert", "", "`file` of certificates (PEM) to trust instead of the system's")
	f.BoolVar(&o.insecure, "insecure", false, "do not check the target's certificate")
	f.StringVar(&o.warmup, "warmup", "", "requests, or `time`, of warm-up with other prompts before the schedule")
	f.DurationVar(&o.cooldown, "cooldown", 0, "end of the schedule that is sent but not measured")
	f.DurationVar(&o.saturate, "saturate", 0, "after the schedule, look this long for the throughput that more users do not raise")
	f.StringVar(&o.aborts, "aborts", "recorded", "recorded: break answers off as the recorded client did; none")
	f.StringVar(&o.config, "config", "", "YAML `file` with the values of flags, by their names; flags on the command line win")
	f.StringVar(&o.clock, "clock", "kernel", "kernel: time answers by the kernel's stamps where it gives them; user: when they were read")
	f.StringVar(&o.http, "http", "auto", "auto: what the target prefers under TLS, each answer on a connection of its own; 1.1; 2: HTTP/2 (without TLS by prior knowledge), and answers share connections")
	f.BoolVar(&o.keepCache, "keep-cache", false, "do not empty the server's prefix cache first")
	f.DurationVar(&o.scrape, "scrape", 500*time.Millisecond, "time between scrapes of the server's metrics; negative: none")
	f.StringArrayVar(&o.metrics, "metrics", nil, "`URL` of a further metrics page to watch, such as an engine's behind a router")
	f.StringArrayVar(&o.gpuMetrics, "gpu-metrics", nil, "`URL` of a GPU exporter's page (DCGM) to watch")
	f.BoolVar(&o.allowInvalid, "allow-invalid", false, "exit 0 although the run is invalid")
	groupFlags(c,
		flagGroup{"Target", []string{"target", "balance", "model", "header", "api-key-env", "proxy", "ca-cert", "insecure", "dialect", "connect-timeout", "request-timeout", "keep-cache", "http", "clock", "scrape", "metrics", "gpu-metrics"}},
		deployGroup,
		flagGroup{"Schedule", []string{"speed", "rate", "duration", "max-requests", "max-in-flight", "window", "preroll", "loop", "thin", "tenant", "only-model", "spread", "fill", "shard", "start-at"}},
		flagGroup{"Phases", []string{"warmup", "cooldown", "saturate", "sessions", "users", "ramp", "think"}},
		flagGroup{"Requests", []string{"seed", "prompts", "bodies", "endpoint", "output-lengths", "sampling", "aborts"}},
		flagGroup{"Result", []string{"output", "force", "label", "allow-invalid", "config"}},
	)
	return c
}

// replay runs the verb.
func (a *app) replay(ctx context.Context, c *cobra.Command, where string, o replayFlags, change func(*job.Options)) (err error) {
	jo, err := o.options(c, where)
	if err != nil {
		return usageError(err, "shadowtape replay --help")
	}
	if strings.HasSuffix(where, ".json") {
		in, err := a.openRequests(where, o.generate(uint64(o.seed)))
		if err != nil {
			return err
		}
		jo.Selection.Rate = 0 // it is generated at that rate
		jo.Source = &job.Source{Name: where, Header: in.header, Rows: in.all}
	} else {
		t, err := a.openTrace(where)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, t.Close()) }()
		jo.Trace = t
	}
	if change != nil {
		change(&jo)
	}
	if len(o.gpuMetrics) > 0 {
		jo.Beside = besideDCGM(o.gpuMetrics, jo.Beside)
	}
	if err := jo.Validate(); err != nil {
		return usageError(err, "shadowtape replay --help")
	}
	if o.force {
		if err := notRead(o.out, where); err != nil {
			return err
		}
		if jo.Label == "" {
			jo.Label = filepath.Base(filepath.Clean(o.out))
		}
	}
	var m formats.Manifest
	var warnings []string
	err = replacing(o.out, o.force, func(out string) (err error) {
		jo.Out = out
		m, warnings, err = a.replayInto(ctx, c, where, jo)
		if err == nil && m.Interrupted && out != o.out {
			err = fmt.Errorf("replay %s: %w", where, errInterrupted)
		}
		return err
	})
	if errors.Is(err, errInterrupted) {
		a.replayed(m, o, warnings)
		return exitWith(exitInterrupted, err, "")
	}
	if errors.Is(err, fs.ErrExist) {
		return withHint(err, "--force replaces it")
	}
	if err != nil {
		return err
	}
	return a.replayed(m, o, warnings)
}

// replayInto prepares a replay, says what it is going to be, and runs it.
func (a *app) replayInto(ctx context.Context, c *cobra.Command, where string, jo job.Options) (m formats.Manifest, warnings []string, err error) {
	j, err := job.Prepare(ctx, jo)
	if err != nil {
		var op *net.OpError
		if jo.Client.HTTP == "2" && strings.HasPrefix(err.Error(), "reach ") && !(errors.As(err, &op) && op.Op == "dial") {
			err = withHint(err, "--http auto speaks HTTP/1.1 to a target that offers no HTTP/2")
		}
		return m, nil, err
	}
	defer j.Close()
	if err := printPlan(a, j.Plan); err != nil {
		return m, nil, err
	}
	fmt.Fprint(a.err, startNote(jo, j.Plan))
	if j.Plan.Duration > longRun && !c.Flags().Changed("duration") {
		return m, nil, usageError(fmt.Errorf("replay %s: it would take %v", where, j.Plan.Duration.Round(time.Second)), "more than an hour wants an explicit --duration, or --speed")
	}
	var live replayer.Live
	bar := term.NewBar(a.err, j.Plan.Requests, func() (int64, string) { return progress(&live) })
	m, err = j.Run(ctx, &live)
	bar.End()
	return m, j.Plan.Warnings, err
}

// options turns the flags into the replayer's.
func (o replayFlags) options(c *cobra.Command, where string) (job.Options, error) {
	jo := job.Options{
		Out: o.out, Model: o.model, Dialect: o.dialect, Seed: o.seed, MaxInFlight: o.maxInFlight, KeepCache: o.keepCache, Scrape: o.scrape, Label: o.label, ToolVersion: readBuildInfo().Version,
		Client: client.Options{Targets: o.targets, Timeout: o.timeout, ConnectTimeout: o.connect, UserAgent: "shadowtape/" + strings.Trim(readBuildInfo().Version, "()"), Header: http.Header{}, HTTP: o.http},
	}
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if len(o.targets) == 0 {
		bad("--target is missing, or --deploy")
	}
	if o.out == "" {
		bad("-o is missing")
	}
	jo.Users, jo.Ramp, jo.Think, jo.Cooldown, jo.Saturate = o.users, o.ramp, o.think, o.cooldown, o.saturate
	if o.warmup != "" {
		if n, err := strconv.ParseInt(o.warmup, 10, 64); err == nil {
			jo.Warmup = n
		} else if jo.WarmupTime, err = time.ParseDuration(o.warmup); err != nil {
			bad("--warmup wants a number of requests or a time, not %q", o.warmup)
		}
	}
	jo.Prompts, jo.Bodies = o.prompts, o.bodies
	switch o.balance {
	case "turn":
	case "session":
		jo.BySession = true
	default:
		bad("--balance is turn or session, not %q", o.balance)
	}
	if o.proxy != "" {
		p, err := url.Parse(o.proxy)
		if err != nil {
			bad("--proxy %q is no URL", withoutSecrets(o.proxy))
		}
		jo.Client.Proxy = p
	}
	if o.caCert != "" || o.insecure {
		jo.Client.TLS = &tls.Config{InsecureSkipVerify: o.insecure}
	}
	if o.caCert != "" {
		pem, err := os.ReadFile(o.caCert)
		jo.Client.TLS.RootCAs = x509.NewCertPool()
		if err != nil {
			bad("--ca-cert: %w", err)
		} else if !jo.Client.TLS.RootCAs.AppendCertsFromPEM(pem) {
			bad("--ca-cert %s holds no certificate", o.caCert)
		}
	}
	switch o.aborts {
	case "recorded":
	case "none":
		jo.NoAborts = true
	default:
		bad("--aborts is recorded or none, not %q", o.aborts)
	}
	sel, err := o.selection(c)
	jo.Selection, jo.SpreadTicks = sel, o.spread == "uniform"
	if err := errors.Join(err, o.shards.set(&jo)); err != nil {
		errs = append(errs, err)
	}
	if jo.Fill, err = o.filling(); err != nil {
		errs = append(errs, err)
	}
	if o.timeout <= 0 {
		bad("--request-timeout %v is not positive", o.timeout)
	}
	if o.connect <= 0 {
		bad("--connect-timeout %v is not positive", o.connect)
	}
	if o.maxInFlight <= 0 {
		bad("--max-in-flight %d is not positive", o.maxInFlight)
	}
	switch o.endpoint {
	case "":
	case "chat", string(formats.EndpointChat):
		jo.Endpoint = formats.EndpointChat
	case string(formats.EndpointCompletions):
		jo.Endpoint = formats.EndpointCompletions
	default:
		bad("--endpoint is chat or completions, not %q", o.endpoint)
	}
	switch o.outputs {
	case "forced":
	case "natural":
		jo.Natural = true
	default:
		bad("--output-lengths is forced or natural, not %q", o.outputs)
	}
	switch o.sampling {
	case "recorded":
	case "greedy":
		jo.Greedy = true
	default:
		bad("--sampling is recorded or greedy, not %q", o.sampling)
	}
	if jo.Metrics, err = metricsPages(append(slices.Clone(o.metrics), o.gpuMetrics...)); err != nil {
		errs = append(errs, err)
	}
	switch o.clock {
	case "kernel":
	case "user":
		jo.Client.UserClock = true
	default:
		bad("--clock is kernel or user, not %q", o.clock)
	}
	for _, h := range o.headers {
		k, v, ok := strings.Cut(h, ":")
		if !ok || strings.TrimSpace(k) == "" {
			bad("--header wants `Name: value`")
			continue
		}
		jo.Client.Header.Add(strings.TrimSpace(k), strings.TrimSpace(v))
	}
	if o.keyEnv != "" {
		if jo.Client.APIKey = os.Getenv(o.keyEnv); jo.Client.APIKey == "" {
			bad("--api-key-env: the environment variable %s is empty", o.keyEnv)
		}
	}
	if len(errs) > 0 {
		return jo, errors.Join(errs...)
	}
	jo.Command = commandLine(c, where)
	return jo, nil
}

// withoutSecrets is an address without what may be secret in it: a user and password, a query, a fragment. What is no address stays.
func withoutSecrets(s string) string {
	scheme, rest, ok := strings.Cut(s, "://")
	if !ok {
		return s
	}
	rest, _, _ = strings.Cut(rest, "#")
	rest, _, _ = strings.Cut(rest, "?")
	return scheme + "://" + rest[strings.LastIndexByte(rest, '@')+1:]
}

// commandLine is what was called, without the values of headers and what may be secret in addresses.
func commandLine(c *cobra.Command, args ...string) []string {
	out := append(strings.Fields(c.CommandPath()), args...)
	c.Flags().Visit(func(f *pflag.Flag) {
		if v, ok := f.Value.(pflag.SliceValue); ok {
			for _, s := range v.GetSlice() {
				if f.Name == "header" {
					s, _, _ = strings.Cut(s, ":")
				}
				out = append(out, "--"+f.Name+"="+withoutSecrets(s))
			}
			return
		}
		out = append(out, "--"+f.Name+"="+withoutSecrets(f.Value.String()))
	})
	return out
}

// printPlan says what is about to happen.
func printPlan(a *app, p job.Plan) error {
	endpoints := []string{}
	for e, n := range p.Endpoints {
		endpoints = append(endpoints, fmt.Sprintf("%d %s", n, e))
	}
	slices.Sort(endpoints)
	lengths := "natural"
	if p.Forced {
		lengths = "forced"
	}
	warm := ""
	if p.Warmup > 0 {
		warm = fmt.Sprintf(" after %d of warm-up", p.Warmup)
	}
	prompts := "token ids"
	if p.Text.Method != "" {
		prompts = fmt.Sprintf("text, calibrated by %s: %.4g tokens a word, %.3g over", p.Text.Method, p.Text.TokensPerWord, p.Text.Overhead)
	}
	if p.Users > 0 {
		warm += fmt.Sprintf(" by a closed loop of %d users", p.Users)
	}
	_, err := fmt.Fprintf(a.err, "plan: %d requests%s in %v, peak %.0f/s, %d input and %d output tokens\n      target %s (%s), model %s\n      %s; prompts: %s; output lengths: %s\n",
		p.Requests, warm, p.Duration.Round(time.Millisecond), p.PeakRate, p.InputTokens, p.OutputTokens, strings.Join(p.Targets, " "), p.Dialect, p.Model,
		strings.Join(endpoints, ", "), prompts, lengths)
	if err == nil && p.Overlapping > 0 {
		_, err = fmt.Fprintf(a.err, "      %d turns come at their recorded times before the answer before them, if answers take as long as they did%s\n", p.Overlapping, map[bool]string{true: ": they wait"}[p.ThinkTime])
	}
	if d := p.Drawn.String(); err == nil && d != "" {
		_, err = fmt.Fprintf(a.err, "      drawn from a model, as the trace does not say it: %s\n", d)
	}
	for _, w := range p.Warnings {
		if err == nil {
			_, err = fmt.Fprintf(a.err, "warning: %s\n", w)
		}
	}
	return err
}

// progress is the bar's line.
func progress(l *replayer.Live) (int64, string) {
	n := l.Scheduled.Load()
	s := fmt.Sprintf("sent %d, in flight %d, failed %d, late %d", l.Sent.Load(), l.InFlight.Load(), l.Failed.Load(), l.Late.Load())
	if k := l.TTFTCount.Load(); k > 0 {
		s += fmt.Sprintf(", ttft %.1f ms", float64(l.TTFTSumNS.Load())/float64(k)/1e6)
	}
	return n, s
}

// byKind lists kinds with their counts, the most frequent first.
func byKind(kinds map[string]int64) string {
	names := slices.Sorted(maps.Keys(kinds))
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(kinds[b], kinds[a]) })
	for i, n := range names {
		names[i] = fmt.Sprintf("%d %s", kinds[n], n)
	}
	return strings.Join(names, ", ")
}

// replayed prints what a run came to and turns it into an exit code. The plan's warnings have been printed.
func (a *app) replayed(m formats.Manifest, o replayFlags, planned []string) error {
	verdict := "valid"
	switch {
	case m.Interrupted:
		if verdict = "interrupted"; m.RowsLost > 0 {
			verdict = fmt.Sprintf("interrupted, and %d rows are lost: the disk was too slow", m.RowsLost)
		}
	case !m.Valid:
		verdict = "INVALID: " + strings.Join(m.Invalid, "; ")
	}
	r := m.Requests
	lag := "-"
	if v, ok := m.Fidelity["send_lag_p99_ms"].(float64); ok {
		lag = fmt.Sprintf("%.3f ms", v)
	}
	_, err := fmt.Fprintf(a.out, "run %s: %s\nscheduled %d = sent %d + dropped %d; completed %d, failed %d, aborted %d, cut by the end %d\nsend lag p99 %s\n",
		o.out, verdict, r.Scheduled, r.Sent, r.Dropped, r.Completed, r.Failed, r.Aborted, r.RunEnd, lag)
	if err != nil {
		return err
	}
	if c, ok := m.Fidelity["capacity"].(map[string]any); ok {
		grew := map[bool]string{true: ", and more users would have raised it"}[c["still_growing"] == true]
		fmt.Fprintf(a.out, "capacity %.0f output tokens a second, with %v users%s\n", c["output_tokens_per_s"], c["users"], grew)
	}
	for key, what := range map[string]string{"warmup_requests": "warm-up", "unmeasured_requests": "the preroll and the cooldown"} {
		if n, ok := m.Fidelity[key].(int64); ok && n > 0 {
			fmt.Fprintf(a.err, "not measured: %d requests of %s\n", n, what)
		}
	}
	if len(m.Errors) > 0 {
		fmt.Fprintf(a.err, "failed: %s\n", byKind(m.Errors))
	}
	for _, w := range m.Warnings {
		if slices.Contains(planned, w) {
			continue
		}
		if _, err := fmt.Fprintf(a.err, "warning: %s\n", w); err != nil {
			return err
		}
	}
	switch {
	case m.Interrupted:
		return exitWith(exitInterrupted, nil, "")
	case !m.Valid && !o.allowInvalid:
		return exitWith(exitInvalid, nil, "")
	}
	return nil
}
