package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/shadowtape/shadowtape/internal/experiment"
	"github.com/shadowtape/shadowtape/internal/experiment/verdict"
)

// What `git bisect run` takes from its command: 0 good, 1 bad, 125 cannot be told; from 128 on the search ends.
const (
	stepGood  = 0
	stepBad   = 1
	stepSkip  = 125
	stepAbort = 128
)

// endsFile is what the steps of a search need: the two ends and how they were launched.
type endsFile struct {
	Schema int             `json:"schema"`
	Good   string          `json:"good"`
	Bad    string          `json:"bad"`
	Metric string          `json:"metric"`
	Ends   experiment.Ends `json:"ends"`
	Build  string          `json:"build,omitempty"`
	Deploy string          `json:"deploy"`
	Trace  string          `json:"trace"`
	Flags  stepFlags       `json:"flags"`
}

// stepFlags are the flags of a launch.
type stepFlags struct {
	Speed        float64 `json:"speed"`
	DurationNS   int64   `json:"duration_ns"`
	MaxRequests  int64   `json:"max_requests"`
	WarmUp       int     `json:"warm_up"`
	Saturate     int     `json:"saturate"`
	Seed         int64   `json:"seed"`
	AllowInvalid bool    `json:"allow_invalid"`
	Exclusive    string  `json:"exclusive"`
	Wait         bool    `json:"wait"`
	Engine       string  `json:"engine,omitempty"`
	LockDir      string  `json:"lock_dir,omitempty"`
}

const endsName = "ends.json"

// keepEnds writes what the steps of a `git bisect run` need.
func (b *bisection) keepEnds(good, bad string, e experiment.Ends) error {
	trace, err := filepath.Abs(b.o.trace)
	if err != nil {
		return err
	}
	o := b.o
	doc := endsFile{1, good, bad, o.metric, e, o.build, o.file, trace, stepFlags{o.speed, int64(o.duration), o.maxRequests, o.warmUp, o.saturate, o.seed, o.allowInvalid, o.deploy.exclusive, o.deploy.wait, o.deploy.engine, o.deploy.lockDir}}
	return writeFile(filepath.Join(o.out, endsName), func(w io.Writer) error { return printJSON(w, doc) })
}

// bisectStep classifies the commit that is checked out, for `git bisect run`.
func (a *app) bisectStep(ctx context.Context, out string) error {
	class, err := a.classifyHead(ctx, out)
	switch {
	case errors.Is(err, context.Canceled):
		return exitWith(exitInterrupted, errors.New("bisect interrupted: runs are kept"), "")
	case err != nil:
		hint := ""
		if e := (*exitError)(nil); errors.As(err, &e) {
			hint = e.hint
		}
		return exitWith(stepAbort, err, hint)
	}
	return exitWith(map[experiment.Class]int{experiment.Good: stepGood, experiment.Bad: stepBad, experiment.Skip: stepSkip}[class], nil, "")
}

func (a *app) classifyHead(ctx context.Context, out string) (_ experiment.Class, err error) {
	var doc endsFile
	text, err := os.ReadFile(filepath.Join(out, endsName))
	if errors.Is(err, fs.ErrNotExist) {
		return "", withHint(fmt.Errorf("bisect --step: %s holds no ends", out), "shadowtape bisect --good REF --bad REF … -o "+out+" makes them, and lets git search")
	}
	if err == nil {
		err = json.Unmarshal(text, &doc)
	}
	if err != nil {
		return "", fmt.Errorf("read the ends: %w", err)
	}
	if doc.Schema != 1 {
		return "", fmt.Errorf("read the ends: schema %d, this build reads 1", doc.Schema)
	}
	f := doc.Flags
	o := bisectFlags{metric: doc.Metric, build: doc.Build, file: doc.Deploy, trace: doc.Trace, speed: f.Speed, duration: time.Duration(f.DurationNS), maxRequests: f.MaxRequests, warmUp: f.WarmUp, saturate: f.Saturate, seed: f.Seed, allowInvalid: f.AllowInvalid,
		deploy: deployFlags{exclusive: f.Exclusive, wait: f.Wait, engine: f.Engine, lockDir: f.LockDir}}
	b := &bisection{a: a, o: o, trees: map[string]*tree{}, counts: map[string]int{}}
	if b.o.out, err = filepath.Abs(out); err != nil {
		return "", err
	}
	for _, m := range verdict.Defaults() {
		if m.Name == doc.Metric {
			b.metric = m
		}
	}
	if b.repo, err = git(ctx, ".", "rev-parse", "--show-toplevel"); err != nil {
		return "", err
	}
	head, err := git(ctx, b.repo, "rev-parse", "HEAD")
	if err != nil {
		return "", err
	}
	if b.trace, err = a.openTrace(doc.Trace); err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, b.trace.Close()) }()
	defer b.clean()
	return experiment.Classify(ctx, head, doc.Ends, experiment.BisectOptions{Metric: b.metric, Launch: b.launch, Told: b.told})
}
