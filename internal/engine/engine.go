// Package engine is the scheduler core of a simulated inference server: continuous batching over a paged cache, on the caller's clock.
//
// It has no sockets, no goroutines and no wall clock. A caller submits requests and advances time; the engine calls back for every
// token and every step with the exact instant at which it happens. Advanced in leaps it serves a day of traffic in seconds; advanced by
// a timer it is the heart of a server that clients can talk to (package sim). Both give the same times for the same arrivals.
//
// Scheduler follows vLLM V1's scheduler (vllm/v1/core/sched/scheduler.py): one token budget a step, running sequences first, then
// waiting ones first come first served, prompts computed in chunks, cached prefixes skipped at admission, and the latest sequence
// preempted and recomputed when pages run out. Fixed replaces the scheduler where exact times matter more than a model.
package engine

import (
	"errors"
	"fmt"
	"time"

	"github.com/shadowtape/shadowtape/internal/kv"
)

// Request is one sequence to serve. The caller sets the first group of fields and leaves them alone until Done; the engine keeps the rest.
type Request struct {
	Arrival time.Duration // on the engine's clock; requests are submitted in the order of their arrivals
	Input   int           // prompt tokens, at least 1
	Output  int           // tokens to generate; 0 ends with the prefill, as an embedding does
	Pages   []uint64      // hashes of the leading full pages of the prompt and, where known, of the output after it; nil: nothing is shared
	Owner   any           // the caller's own

	Cached    int           // prompt tokens found in the prefix cache at the first admission
	Scheduled time.Duration // first admission; meaningful once Generated > 0 or Computed > 0
	Generated int           // tokens so far; in the Token callback the one it reports is counted
	Preempted int           // how often it lost its pages
	First     time.Duration // first token; set before its Token callback
	Last      time.Duration // last token so far; in a Token callback still the one before it

	state    state
	computed int // tokens whose keys and values are in pages
	inStep   int // tokens of the step in flight
	held     kv.Sequence
	due      time.Duration // of Fixed
	index    int           // in Fixed's heap
}

type state uint8

const (
	stateNew state = iota
	stateWaiting
	stateRunning
	stateAborted // given up, still in a queue or a step
	stateDone
)

// Computed is the number of tokens whose keys and values are in pages now.
func (r *Request) Computed() int { return r.computed }

// Callbacks are what an engine tells its caller, in order of time. Each may be nil. They run inside Advance (or Submit) and must not
// call the engine.
type Callbacks struct {
	Token func(r *Request, at time.Duration) // one more token
	Done  func(r *Request, at time.Duration) // after the last token; not for aborted requests
	Step  func(s Step)                       // after the tokens of a step; Fixed has no steps
}

// Step is one forward pass.
type Step struct {
	Start, End time.Duration
	Prefill    int // prompt tokens computed, recomputed ones among them
	Decode     int // sequences that got their next token from this step
	Context    int // tokens already in pages that the step's sequences attend to
	Running    int // sequences that held pages during the step
	Waiting    int // sequences that had arrived and had to wait
	Pages      int // held during the step; shared ones count once
	Preempted  int // sequences that lost their pages when the step was planned
}

// Counters are totals since the start but for the first three, which are levels.
type Counters struct {
	Running, Waiting int
	Pages            int // held
	Preemptions      int64
	PrefixQueries    int64 // tokens looked up at first admissions
	PrefixHits       int64 // of these found
	Prompt           int64 // prompt tokens of sequences whose prefill ended, cached ones among them
	PromptCached     int64 // of these found in the cache
	Generated        int64 // tokens
	Steps            int64
}

// ErrTooLong says that a request could never be served because it needs more pages than there are.
var ErrTooLong = errors.New("more tokens than the cache holds")

// check validates a request for an engine with the given capacity.
func check(r *Request, pages, size int) error {
	if r.state != stateNew {
		return errors.New("submit request: it was submitted before")
	}
	if r.Input < 1 || r.Output < 0 {
		return fmt.Errorf("submit request: %d input and %d output tokens", r.Input, r.Output)
	}
	if divUp(r.Input+r.Output, size) > pages {
		return fmt.Errorf("submit request of %d input and %d output tokens: %w (%d)", r.Input, r.Output, ErrTooLong, pages*size)
	}
	return nil
}

func divUp(a, b int) int { return (a + b - 1) / b }
