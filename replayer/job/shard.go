package job

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/replayer"
	"github.com/shadowtape/shadowtape/replayer/probe"
)

// start is the agreed start with a monotonic reading; the zero time where there is none.
func (j *Job) start() time.Time {
	if j.o.StartAt.IsZero() {
		return time.Time{}
	}
	now := time.Now()
	return now.Add(j.o.StartAt.Sub(now.Round(0)))
}

// late is how long ago the agreed start was; 0 where it is to come.
func (j *Job) late() time.Duration {
	if j.o.StartAt.IsZero() {
		return 0
	}
	return max(time.Now().Round(0).Sub(j.o.StartAt), 0)
}

// beforeStart is what is left free before the agreed start, for connections and first bodies.
const beforeStart = 3 * time.Second

// measureClocks measures the targets' clocks, as far as there is time before the agreed start, and begins the manifest's shard.
func (j *Job) measureClocks(ctx context.Context, m *formats.Manifest) {
	sel := &j.o.Selection
	if j.o.StartAt.IsZero() {
		return
	}
	s := &formats.Shard{Index: max(sel.Shard, 1), Of: max(sel.Shards, 1), StartAtUnixNS: j.o.StartAt.UnixNano(), Schedule: j.Plan.Schedule}
	m.Shard = s
	ctx, cancel := context.WithDeadline(ctx, j.o.StartAt.Add(-beforeStart))
	defer cancel()
	targets := j.client.Targets()
	s.Clocks = make([]formats.ClockOffset, len(targets))
	var wg sync.WaitGroup
	for i, t := range targets {
		wg.Go(func() { s.Clocks[i] = probe.ClockOffset(ctx, t) })
	}
	wg.Wait()
}

// finishShard adds what merging needs, and says that the replay began late.
func (j *Job) finishShard(m *formats.Manifest, s replayer.Stats) error {
	if m.Shard == nil {
		return nil
	}
	if n := s.Dropped[formats.ErrorLateStart]; n > 0 {
		m.Shard.LateNS = int64(s.Joined)
		m.Warnings = append([]string{fmt.Sprintf("the replay began %v after the agreed start: %d requests were due before", s.Joined.Round(time.Millisecond), n)}, m.Warnings...)
	}
	var err error
	m.Shard.Remainder, err = json.Marshal(s.Remainder())
	return err
}
