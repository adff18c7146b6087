// Command bench runs the project's benchmark groups: `make bench` writes their figures into docs/PERFORMANCE.md and bench.json, `make
// bench-gate` holds their ratios against limits. Groups are named as arguments; without any all are run.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/shadowtape/shadowtape/internal/benchreport"
)

// group is one command whose figures belong together. A gated group says little of the machine and takes well under a minute.
type group struct {
	name, what string
	args       []string // of go
	static     bool     // without cgo, as the program is built
	gated      bool
	// relative are figures by their names that are also given against the reference, as work done in the time that it takes.
	relative []string
	ratios   []ratio
}

// ratio is one figure divided by another of the group.
type ratio struct{ name, over, under, better, note string }

var groups = []group{
	{name: "recorder", what: "a made capture of 200 clients' streamed chats, from the file to rows", gated: true,
		args: []string{"test", "./recorder", "-run", "^$", "-bench", "^BenchmarkRecordFile$", "-benchtime", "5x"}, relative: []string{"RecordFile, packets/cpu-s"}},
	{name: "proxy", what: "an event through the proxy, client and server included, with and without being read along", gated: true,
		args:   []string{"test", "./recorder", "-run", "^$", "-bench", "^BenchmarkProxyEvent$", "-benchtime", "20000x"},
		ratios: []ratio{{"an event read along ÷ passed on", "ProxyEvent/read_along, cpu-ns/op", "ProxyEvent/pass, cpu-ns/op", "lower", ""}}},
	{name: "dispatch", what: "how late requests leave, a Poisson process for 10 s", static: true,
		args: []string{"test", "-tags", "bench", "-count", "1", "-run", "^TestBenchLag$", "-timeout", "10m", "./cmd/shadowtape"}},
	{name: "accuracy", what: "the replayer's times against the simulator's emission log, streams of 100 tokens for 10 s", static: true,
		args: []string{"test", "-tags", "bench", "-count", "1", "-run", "^TestBenchAccuracy$", "-timeout", "15m", "./cmd/shadowtape"}},
	{name: "aggregate", what: "the most that a run stays valid at, by one replayer and by four in namespaces of their own (root), in steps of 4 s", static: true,
		args: []string{"test", "-tags", "bench", "-count", "1", "-run", "^TestBenchAggregate$", "-timeout", "15m", "./cmd/shadowtape"}},
	{name: "analyze", what: "200,000 exchanges opened and summarized, every metric", gated: true,
		args: []string{"test", "./analyzer", "-run", "^$", "-bench", "^BenchmarkSummarize$", "-benchtime", "5x", "-cpu", "1"}, relative: []string{"Summarize, exchanges/cpu-s"}},
	{name: "synth", what: "exchanges of a workload model, made", gated: true,
		args: []string{"test", "./internal/workload", "-run", "^$", "-bench", "^BenchmarkGenerate$", "-benchtime", "500000x", "-cpu", "1"}, relative: []string{"Generate, exchanges/cpu-s"}},
	{name: "size", what: "a recording without event lists and prefix blocks written, with a journal and without", gated: true,
		args: []string{"test", "./formats", "-run", "^$", "-bench", "^Benchmark(WriteRecording|WriteJournaled)$", "-benchtime", "200000x", "-cpu", "1"}, relative: []string{"WriteRecording, rows/cpu-s"},
		ratios: []ratio{{"a row with a journal ÷ without", "WriteJournaled, cpu-ns/op", "WriteRecording, cpu-ns/op", "lower", ""}}},
}

func main() {
	doc := flag.String("doc", "", "page whose tables are replaced")
	out := flag.String("json", "", "file for the figures")
	limits := flag.String("gate", "", "file of limits: only gated groups are run, and a limit that is not kept fails")
	flag.Parse()
	if err := run(*doc, *out, *limits, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(doc, out, limits string, names []string) error {
	d := benchreport.Document{Schema: 1, Date: time.Now().UTC().Format("2006-01-02 15:04"), Machine: machine(), Load: load(), Commit: commit()}
	for _, n := range names {
		if !slices.ContainsFunc(groups, func(g group) bool { return g.name == n }) {
			return fmt.Errorf("there is no group %q", n)
		}
	}
	var failed []string
	for _, g := range groups {
		if limits != "" && !g.gated || len(names) > 0 && !slices.Contains(names, g.name) {
			continue
		}
		fmt.Fprintf(os.Stderr, "bench: %s\n", g.name)
		info := benchreport.Group{Name: g.name, What: g.what, Command: g.command()}
		figures, err := g.run()
		if err != nil {
			info.Failed = strings.ReplaceAll(err.Error(), "\n", "; ")
			failed = append(failed, g.name+": "+info.Failed)
		}
		d.Groups, d.Figures = append(d.Groups, info), append(d.Figures, figures...)
	}
	fmt.Print(d.Markdown())
	if doc != "" {
		page, err := os.ReadFile(doc)
		if err != nil {
			return err
		}
		text, err := benchreport.Replace(string(page), d.Markdown())
		if err != nil {
			return fmt.Errorf("%s: %w", doc, err)
		}
		if err := os.WriteFile(doc, []byte(text), 0o644); err != nil {
			return err
		}
	}
	if out != "" {
		b, err := json.MarshalIndent(d, "", "  ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(out, append(b, '\n'), 0o644); err != nil {
			return err
		}
	}
	if limits != "" {
		b, err := os.ReadFile(limits)
		if err != nil {
			return err
		}
		var ls []benchreport.Limit
		if err := json.Unmarshal(b, &ls); err != nil {
			return fmt.Errorf("%s: %w", limits, err)
		}
		if len(names) > 0 {
			ls = slices.DeleteFunc(ls, func(l benchreport.Limit) bool { return !slices.Contains(names, l.Group) })
		}
		failed = append(failed, benchreport.Gate(d.Figures, ls)...)
	}
	if len(failed) > 0 {
		return errors.New(strings.Join(failed, "\n  "))
	}
	return nil
}

func (g *group) command() string {
	prefix := ""
	if g.static {
		prefix = "CGO_ENABLED=0 "
	}
	words := []string{"go"}
	for _, a := range g.args {
		if strings.ContainsAny(a, "^$|()") {
			a = "'" + a + "'"
		}
		words = append(words, a)
	}
	return prefix + strings.Join(words, " ")
}

// run runs the group between two measurements of the reference.
func (g *group) run() ([]benchreport.Figure, error) {
	dir, err := os.MkdirTemp("", "bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	lines := filepath.Join(dir, "figures")
	c := exec.Command("go", g.args...)
	c.Env = append(os.Environ(), benchreport.OutVariable+"="+lines)
	if g.static {
		c.Env = append(c.Env, "CGO_ENABLED=0")
	}
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	before := reference()
	if err := c.Run(); err != nil {
		text := strings.TrimSpace(out.String())
		return nil, fmt.Errorf("%w: %s", err, text[max(0, len(text)-600):])
	}
	once := (before + reference()) / 2
	figures, err := benchreport.ParseGo(g.name, &out)
	if err != nil {
		return figures, err
	}
	if text, err := os.ReadFile(lines); err == nil {
		more, err := benchreport.Read(bytes.NewReader(text))
		if err != nil {
			return figures, err
		}
		figures = append(figures, more...)
	}
	if len(figures) == 0 {
		return nil, errors.New("it measured nothing")
	}
	find := func(name string) (benchreport.Figure, error) {
		for _, f := range figures {
			if f.Name == name {
				return f, nil
			}
		}
		return benchreport.Figure{}, fmt.Errorf("no figure %q", name)
	}
	for _, name := range g.relative {
		f, err := find(name)
		if err != nil {
			return figures, err
		}
		figures = append(figures, benchreport.Figure{Group: g.name, Name: name + ", by the reference", Value: f.Value * once.Seconds(), Unit: benchreport.Ratio, Better: "higher",
			Note: fmt.Sprintf("in the %.0f ms of processor time that a million numbers take to sort here", once.Seconds()*1e3)})
	}
	for _, r := range g.ratios {
		a, err1 := find(r.over)
		b, err2 := find(r.under)
		if err := errors.Join(err1, err2); err != nil {
			return figures, err
		}
		figures = append(figures, benchreport.Figure{Group: g.name, Name: r.name, Value: a.Value / b.Value, Unit: benchreport.Ratio, Better: r.better, Note: r.note})
	}
	return figures, nil
}

// reference is the processor time that sorting a million numbers takes, the best of five: what a machine's speed is measured by.
func reference() time.Duration {
	best := time.Duration(0)
	v := make([]float64, 1_000_000)
	for range 5 {
		r := rand.New(rand.NewPCG(1, 1))
		for i := range v {
			v[i] = r.Float64()
		}
		before := benchreport.ProcessorTime()
		slices.Sort(v)
		if d := benchreport.ProcessorTime() - before; best == 0 || d < best {
			best = d
		}
	}
	return best
}

func machine() string {
	cpu := runtime.GOARCH
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for l := range strings.Lines(string(b)) {
			if k, v, ok := strings.Cut(l, ":"); ok && strings.TrimSpace(k) == "model name" {
				cpu = strings.TrimSpace(v)
				break
			}
		}
	}
	return fmt.Sprintf("%d processors of %s, %s, %s", runtime.NumCPU(), cpu, runtime.GOOS, runtime.Version())
}

func load() string {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Join(strings.Fields(string(b))[:3], " ")
}

func commit() string {
	b, err := exec.Command("git", "describe", "--always", "--dirty").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(b))
}
