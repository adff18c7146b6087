package job

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/replayer"
	"github.com/shadowtape/shadowtape/replayer/schedule"
)

// WarmRule is a warm-up that ends by what is seen: once Requests have been answered and Time has passed, and then, where Steady is set, once
// the warm-up's own TTFT is steady by MSER-5 and Also agrees. The schedule is repeated as often as that takes.
type WarmRule struct {
	Requests int64
	Time     time.Duration
	Most     time.Duration // the warm-up ends then in any case, and the run says so; 0: never
	Steady   bool
	Also     func() (unsteady []string) // names what else is not steady yet, such as a GPU's temperature; nil: nothing else counts
	Told     func(line string)          // told once a second how it stands; nil: nobody is
}

// Validate says what cannot work.
func (r *WarmRule) Validate() error {
	if r == nil {
		return nil
	}
	if r.Requests < 0 || r.Time < 0 || r.Most < 0 {
		return errors.New("a warm-up of a negative length")
	}
	if r.Most > 0 && r.Most < r.Time {
		return fmt.Errorf("a warm-up of at least %v and at most %v", r.Time, r.Most)
	}
	return nil
}

// none reports whether there is nothing to do.
func (r *WarmRule) none() bool { return r == nil || r.Requests == 0 && r.Time == 0 && !r.Steady }

// warmState follows a warm-up by its rows.
type warmState struct {
	rule *WarmRule
	dst  replayer.Sink

	mu      sync.Mutex
	start   int64 // the first arrival
	rows    int64
	answers int64
	steady  replayer.Course
}

// Write follows a row and hands it on.
func (s *warmState) Write(x *formats.Exchange) error {
	s.mu.Lock()
	if s.rows == 0 {
		s.start = x.ArrivalUnixNS
	}
	s.start = min(s.start, x.ArrivalUnixNS)
	s.rows++
	if x.EndReason == formats.EndComplete && !x.Failed() {
		s.answers++
	}
	due := x.ArrivalUnixNS - s.start
	s.mu.Unlock()
	s.steady.Add(x, due)
	return s.dst.Write(x)
}

// look says whether the warm-up is over after so long, and what it still waits for.
func (s *warmState) look(elapsed time.Duration) (over bool, missing []string) {
	s.mu.Lock()
	answers := s.answers
	s.mu.Unlock()
	r := s.rule
	if answers < r.Requests {
		missing = append(missing, fmt.Sprintf("%d of %d answers", answers, r.Requests))
	}
	if elapsed < r.Time {
		missing = append(missing, fmt.Sprintf("%s of %s", elapsed.Round(time.Second), r.Time))
	}
	if r.Steady && len(missing) == 0 {
		if !s.steady.Judge(elapsed).TTFTAfter.Valid {
			missing = append(missing, "TTFT is not steady")
		}
		if r.Also != nil {
			for _, what := range r.Also() {
				missing = append(missing, what+" is not steady")
			}
		}
	}
	return len(missing) == 0 || r.Most > 0 && elapsed >= r.Most, missing
}

// warmed is what a warm-up by rule came to.
type warmed struct {
	seconds float64
	answers int64
	missing []string // what it did not reach in its time
}

// warmByRule sends a schedule again and again until the rule ends it.
func (j *Job) warmByRule(ctx context.Context, s replayer.Schedule, w replayer.Sink, o replayer.Options) (replayer.Stats, warmed, error) {
	state := &warmState{rule: j.o.WarmRule, dst: w}
	done, stop := context.WithCancel(ctx)
	defer stop()
	began := time.Now()
	var out warmed
	var judge sync.WaitGroup
	judge.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-done.Done():
				return
			case <-tick.C:
			}
			elapsed := time.Since(began)
			over, missing := state.look(elapsed)
			if over {
				out.missing = missing
				stop()
				return
			}
			if state.rule.Told != nil {
				state.rule.Told(fmt.Sprintf("warm-up: %s, waits for: %s", elapsed.Round(time.Second), strings.Join(missing, ", ")))
			}
		}
	})
	o.Ahead = time.Second // what has been read ahead is sent after the end
	st, err := j.other(ctx, "warm-up", asWarmup(endsWith(done, schedule.Loop(s, 0))), state, o)
	stop()
	judge.Wait()
	out.seconds, out.answers = time.Since(began).Seconds(), state.answers
	return st, out, err
}

// endsWith ends a schedule at the first arrival that is asked for after ctx.
func endsWith(ctx context.Context, s replayer.Schedule) replayer.Schedule {
	return func(yield func(replayer.Arrival, error) bool) {
		for a, err := range s {
			if ctx.Err() != nil || !yield(a, err) {
				return
			}
		}
	}
}

// describe puts a warm-up into the manifest.
func (w *warmed) describe(m *formats.Manifest) {
	if m.Options == nil {
		m.Options = map[string]any{}
	}
	m.Options["warmup"] = map[string]any{"seconds": w.seconds, "answers": w.answers, "reached": len(w.missing) == 0}
	if len(w.missing) > 0 {
		m.Warnings = append(m.Warnings, fmt.Sprintf("the warm-up ended after %.0f s without reaching its end: %s", w.seconds, strings.Join(w.missing, ", ")))
	}
}
