package experiment

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/shadowtape/shadowtape/analyzer"
	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/candidate"
	"github.com/shadowtape/shadowtape/internal/deploy"
	"github.com/shadowtape/shadowtape/internal/experiment/warm"
	"github.com/shadowtape/shadowtape/replayer/job"
	"github.com/shadowtape/shadowtape/replayer/prompt"
	"github.com/shadowtape/shadowtape/replayer/schedule"
)

// Live launches deployments, each alone, and replays a trace against them. Its runs stand in Dir, one for each leg, the saturated phase
// beside it. It makes one launch at a time.
type Live struct {
	Dir             string
	Base, Candidate *deploy.File
	Start           candidate.Options
	Job             job.Options       // Trace, Selection, Seed and what else the legs share; Out, Model, Dialect, Client.Targets and Beside are set
	WarmUp          int               // requests of the trace's start, sent as fast as the trace and thrown away; 0: none; negative: as the deployment file says
	Warming         func(line string) // told how a warm-up by the deployment file stands; nil: nobody is
	Saturate        int               // requests of the saturated phase, all at once; 0: none
	Rates           RateSearch        // for the highest rate within SLO
	SLO             []analyzer.Limit
	Ran             func(l Leg, m formats.Manifest) // told of each measured replay; nil: nobody is
}

// Launch starts the leg's deployment, warms it up, replays, measures its capacity, and stops it, whatever happens in between.
func (v *Live) Launch(ctx context.Context, l Leg) (_ *Measured, err error) {
	out := filepath.Join(v.Dir, l.Name())
	f := v.Base
	if l.Arm == Candidate {
		f = v.Candidate
	}
	log, err := os.Create(out + ".candidate.log")
	if err != nil {
		return nil, fmt.Errorf("write the candidate's log: %w", err)
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	o := v.Start
	o.Deploy.Log = log
	r, err := candidate.Start(ctx, f, o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.Stop(ctx)) }()
	if v.WarmUp != 0 {
		if err := v.warmUp(ctx, f, r, out+".warmup", l); err != nil {
			return nil, fmt.Errorf("warm up: %w", err)
		}
	}
	if v.Saturate > 0 { // before the measured replay, so that a leg is whole once its own run is
		s := v.Job.Selection
		s.Rate, s.Speed, s.Duration, s.MaxRequests = 0, burst, 0, int64(v.Saturate)
		if _, err := v.replay(ctx, v.Job, f, r, out+saturatedSuffix, s, l, nil); err != nil {
			return nil, fmt.Errorf("measure the capacity: %w", err)
		}
	}
	if v.Rates.Step > 0 {
		if err := v.rates(ctx, f, r, out, l); err != nil {
			return nil, fmt.Errorf("search the highest rate within the SLO: %w", err)
		}
	}
	m, err := v.replay(ctx, v.Job, f, r, out, v.Job.Selection, l, r)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if v.Ran != nil {
		v.Ran(l, m)
	}
	return Load(out, LoadOptions{SLO: v.SLO, Saturated: SaturatedOf(out)})
}

// warmUp replays what warms a candidate up, and throws it away.
func (v *Live) warmUp(ctx context.Context, f *deploy.File, r *candidate.Running, out string, l Leg) error {
	s, jo, watched := v.Job.Selection, v.Job, (*candidate.Running)(nil)
	warming, over := context.WithCancel(ctx)
	defer over()
	if v.WarmUp > 0 {
		s.MaxRequests = int64(v.WarmUp)
	} else { // as long as it takes: the job's own warm-up, and nothing after it
		jo.WarmRule, jo.Measured, watched = warm.Rule(f.WarmUp, r, v.Warming), over, r
	}
	if _, err := v.replay(warming, jo, f, r, out, s, l, watched); err != nil && (warming.Err() == nil || ctx.Err() != nil) {
		return err
	}
	return formats.Remove(out)
}

// Expected is how long the warm-up of a launch takes at least, for a plan.
func (v *Live) Expected() time.Duration {
	if v.WarmUp < 0 {
		return max(warm.Expected(v.Base.WarmUp), warm.Expected(v.Candidate.WarmUp))
	}
	return time.Minute
}

// burst is a speed at which a whole trace arrives at once.
const burst = 1e9

// replay makes one run. What the candidate's GPUs did goes into the runs that are watched.
func (v *Live) replay(ctx context.Context, jo job.Options, f *deploy.File, r *candidate.Running, out string, s schedule.Selection, l Leg, watched *candidate.Running) (formats.Manifest, error) {
	jo.Out, jo.Selection, jo.Label = out, s, l.Name()
	jo.Client.Targets = []string{r.URL}
	if jo.Model == "" {
		jo.Model = f.Model
	}
	if jo.Dialect == "" && slices.Contains(prompt.DialectNames(), f.Dialect) {
		jo.Dialect = f.Dialect
	}
	if watched != nil {
		jo.Beside = func(ctx context.Context, w *formats.RunWriter) func(*formats.Manifest) {
			watched.Begin(ctx, w.WriteGPU)
			return func(m *formats.Manifest) { watched.End(m) }
		}
	}
	running, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan struct{})
	go func() { // ends with the replay or the candidate, whichever is first
		defer close(ended)
		select {
		case <-r.Exited():
			cancel()
		case <-running.Done():
		}
	}()
	job, err := job.Prepare(running, jo)
	if err != nil {
		return formats.Manifest{}, err
	}
	defer job.Close()
	m, err := job.Run(running, nil)
	cancel()
	<-ended
	if died := r.Died(); died != nil {
		return m, died
	}
	return m, err
}

// Done finds a leg that an earlier call has made. What a crash left half done is removed, so that it is made anew.
func (v *Live) Done(l Leg) (*Measured, bool, error) {
	out := filepath.Join(v.Dir, l.Name())
	b, err := os.ReadFile(filepath.Join(out, "run.json"))
	var m formats.Manifest
	if err == nil && formats.CheckDocument(b) != nil { // a launch is not thrown away for it
		return nil, false, fmt.Errorf("resume %s: run.json: %w", out, formats.ErrChanged)
	}
	whole := err == nil && json.Unmarshal(b, &m) == nil && !m.Interrupted && m.EndUnixNS > 0 && (v.Saturate == 0 || SaturatedOf(out) != "")
	if !whole {
		return nil, false, errors.Join(formats.Remove(out), formats.Remove(out+saturatedSuffix), formats.Remove(out+".warmup"), formats.Remove(out+".rate"))
	}
	r, err := Load(out, LoadOptions{SLO: v.SLO, Saturated: SaturatedOf(out)})
	return r, err == nil, err
}

// claim is what a gate's directory says of itself, so that a call that resumes it is the same gate.
type claim struct {
	Schema    int       `json:"schema"`
	Created   time.Time `json:"created"`
	Trace     string    `json:"trace_sha256"`
	Base      string    `json:"base_sha256"`
	Candidate string    `json:"candidate_sha256"`
	Seed      int64     `json:"seed"`
	Selection string    `json:"selection"`
	WarmUp    int       `json:"warm_up"`
	Saturate  int       `json:"saturate"`
	Rates     string    `json:"rates,omitempty"` // of the search for the highest rate within the SLO
}

// Claim makes the experiment's directory or checks that it is this experiment's: the same trace, deployment files and options. resumed
// says that it was there. With look it makes nothing.
func (v *Live) Claim(base, candidate string, look bool) (resumed bool, err error) {
	s := claim{Schema: 1, Created: time.Now().UTC().Truncate(time.Second), Seed: v.Job.Seed, Selection: fmt.Sprintf("%+v", v.Job.Selection), WarmUp: v.WarmUp, Saturate: v.Saturate}
	if v.Rates.Step > 0 {
		s.Rates = fmt.Sprintf("%v at %v of %+v", v.Rates.Step, v.Rates.attain(), v.SLO)
	}
	if s.Trace, err = v.Job.Trace.SHA256(); err != nil {
		return false, err
	}
	for _, p := range []struct {
		path string
		to   *string
	}{{base, &s.Base}, {candidate, &s.Candidate}} {
		b, err := os.ReadFile(p.path)
		if err != nil {
			return false, fmt.Errorf("read deployment file: %w", err)
		}
		h := sha256.Sum256(b)
		*p.to = hex.EncodeToString(h[:])
	}
	path := filepath.Join(v.Dir, "gate.json")
	b, err := os.ReadFile(path)
	if err == nil {
		var was claim
		if err := json.Unmarshal(b, &was); err != nil {
			return false, fmt.Errorf("resume %s: gate.json: %w", v.Dir, err)
		}
		was.Created = s.Created
		if was != s {
			return false, fmt.Errorf("resume %s: %w: it was made with another trace, other deployment files or other options", v.Dir, ErrIncomparable)
		}
		return true, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("resume %s: %w", v.Dir, err)
	}
	if entries, err := os.ReadDir(v.Dir); err == nil && len(entries) > 0 {
		return false, fmt.Errorf("create %s: %w, and it is no gate's", v.Dir, fs.ErrExist)
	}
	if look {
		return false, nil
	}
	if err := os.MkdirAll(v.Dir, 0o755); err != nil {
		return false, err
	}
	if b, err = json.MarshalIndent(s, "", "  "); err != nil {
		return false, err
	}
	return false, os.WriteFile(path, append(b, '\n'), 0o644)
}
