package main

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/shadowtape/shadowtape/replayer/job"
)

// shardFlags say which share of a schedule this replayer sends, and when all begin.
type shardFlags struct{ shard, startAt string }

func (o *shardFlags) add(f *pflag.FlagSet) {
	f.StringVar(&o.shard, "shard", "", "replay only share `I/N` of the sessions, I from 1; job/N: I is a Kubernetes Job's completion index and one (merge joins the runs)")
	f.StringVar(&o.startAt, "start-at", "", "`time` at which the schedule begins, as 2026-11-30T12:00:00Z or seconds since 1970: the same for all shards")
}

// set reads the flags into the job's options.
func (o *shardFlags) set(jo *job.Options) (err error) {
	sel := &jo.Selection
	sel.Shard, sel.Shards, jo.StartAt, err = readShard(o.shard, o.startAt, os.Getenv("JOB_COMPLETION_INDEX"))
	return err
}

// readShard reads --shard and --start-at; index is the completion index of a Kubernetes Job.
func readShard(shard, start, index string) (i, n int, at time.Time, err error) {
	if start != "" {
		wrong := fmt.Errorf("--start-at wants a time such as 2026-11-30T12:00:00Z, or seconds since 1970, not %q", start)
		if at, err = time.Parse(time.RFC3339, start); err != nil {
			s, err := strconv.ParseFloat(start, 64)
			if err != nil || !(s > 0 && s < 1e10) {
				return 0, 0, at, wrong
			}
			at = time.UnixMilli(int64(math.Round(s * 1e3))) // a float holds no more
		}
		if at.Before(time.Unix(0, 0)) || at.After(time.Unix(0, math.MaxInt64)) { // what a column holds
			return 0, 0, at, wrong
		}
	}
	if shard == "" {
		return 0, 0, at, nil
	}
	bad := fmt.Errorf("--shard wants I/N with I from 1 to N, not %q", shard)
	first, of, ok := strings.Cut(shard, "/")
	if n, err = strconv.Atoi(of); !ok || err != nil || n < 1 {
		return 0, 0, at, bad
	}
	if first == "job" {
		if i, err = strconv.Atoi(index); err != nil {
			return 0, 0, at, errors.New("--shard job/N is for the pods of an Indexed Job: JOB_COMPLETION_INDEX is not set")
		}
		first = strconv.Itoa(i + 1)
	}
	if i, err = strconv.Atoi(first); err != nil || i < 1 || i > n {
		return 0, 0, at, bad
	}
	return i, n, at, nil
}

// startNote says which part is sent and when it begins; "" where there is no agreed start.
func startNote(jo job.Options, p job.Plan) string {
	if jo.StartAt.IsZero() {
		return ""
	}
	part := ""
	if n := jo.Selection.Shards; n > 1 {
		part = fmt.Sprintf("shard %d of %d, %d of %d requests; ", jo.Selection.Shard, n, p.Requests, p.Schedule)
	}
	if wait := time.Until(jo.StartAt); wait > 0 {
		return fmt.Sprintf("      %sit begins in %v\n", part, wait.Round(time.Second))
	}
	return fmt.Sprintf("      %sit was to begin %v ago: what was due since is left out\n", part, time.Since(jo.StartAt).Round(time.Second))
}
