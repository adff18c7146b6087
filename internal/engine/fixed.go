package engine

import (
	"errors"
	"fmt"
	"time"

	"github.com/shadowtape/shadowtape/internal/kv"
)

// FixedOptions describe a Fixed engine.
type FixedOptions struct {
	TTFT, ITL time.Duration // from arrival to the first token, and between tokens; 0 is at once
	Slowdown  Slowdown      // Prefill on TTFT, Decode on ITL
	Noise     Noise         // Launch once, Step on each interval
	Seed      uint64        // of the noise
	Pages     int
	PageSize  int
	Callbacks Callbacks
}

// Validate reports every option that cannot be used.
func (o FixedOptions) Validate() error {
	errs := []error{validateNoise(o.Slowdown, o.Noise)}
	if o.TTFT < 0 || o.ITL < 0 {
		errs = append(errs, fmt.Errorf("times %v and %v: must not be negative", o.TTFT, o.ITL))
	}
	if o.Pages <= 0 || o.PageSize <= 0 {
		errs = append(errs, fmt.Errorf("%d pages of %d tokens: must be positive", o.Pages, o.PageSize))
	}
	return errors.Join(errs...)
}

// Fixed gives every request its tokens at fixed times after its arrival, however many there are. It keeps pages and a prefix cache as
// Scheduler does, but nothing ever waits for them: a request that finds too few pages runs without. Not safe for concurrent use.
type Fixed struct {
	o     FixedOptions
	pool  *kv.Pool
	noise jitter
	due   []*Request // heap by due
	count Counters
}

// NewFixed returns an idle engine at time 0.
func NewFixed(o FixedOptions) (*Fixed, error) {
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("make engine: %w", err)
	}
	pool, err := kv.New(o.Pages)
	if err != nil {
		return nil, fmt.Errorf("make engine: %w", err)
	}
	return &Fixed{o: o, pool: pool, noise: newJitter(o.Noise, o.Seed)}, nil
}

// Submit starts a request.
func (f *Fixed) Submit(r *Request) error {
	if err := check(r, f.o.Pages, f.o.PageSize); err != nil {
		return err
	}
	hashes := r.Pages[:min(len(r.Pages), (r.Input-1)/f.o.PageSize)]
	hashes = hashes[:f.pool.Lookup(hashes)]
	if _, ok := f.pool.Hold(&r.held, hashes, divUp(r.Input, f.o.PageSize)); ok {
		r.Cached = len(hashes) * f.o.PageSize
		if full := min(len(r.Pages), r.Input/f.o.PageSize); full > 0 {
			f.pool.Name(&r.held, r.Pages[:full])
		}
	}
	f.count.PrefixQueries += int64(r.Input)
	f.count.PrefixHits += int64(r.Cached)
	r.state, r.Scheduled, r.computed = stateRunning, r.Arrival, r.Cached
	prefill, _ := f.o.Slowdown.factors()
	r.due = r.Arrival + f.noise.duration(f.o.TTFT.Seconds()*prefill)
	r.index = len(f.due)
	f.due = append(f.due, r)
	f.up(r.index)
	return nil
}

// Abort gives a request up at once. No callback follows for it.
func (f *Fixed) Abort(r *Request) {
	if r.state == stateRunning {
		r.state = stateDone
		f.pool.Release(&r.held)
		f.remove(r.index)
	}
}

// Next is the time of the next token, or false where there is no request.
func (f *Fixed) Next() (time.Duration, bool) {
	if len(f.due) == 0 {
		return 0, false
	}
	return f.due[0].due, true
}

// Advance performs every event that is due at or before now.
func (f *Fixed) Advance(now time.Duration) {
	_, decode := f.o.Slowdown.factors()
	for len(f.due) > 0 && f.due[0].due <= now {
		r := f.due[0]
		at := r.due
		if r.Generated == 0 {
			f.count.Prompt += int64(r.Input)
			f.count.PromptCached += int64(r.Cached)
			r.computed = r.Input
		} else {
			r.computed++
		}
		if r.Output > 0 {
			r.Generated++
			f.count.Generated++
			if r.Generated == 1 {
				r.First, r.Last = at, at
			}
			if f.o.Callbacks.Token != nil {
				f.o.Callbacks.Token(r, at)
			}
			r.Last = at
		}
		if r.Generated < r.Output {
			r.due = at + f.noise.duration(f.o.ITL.Seconds()*decode)
			f.down(0)
			if r.held.Pages() > 0 && f.pool.Grow(&r.held, divUp(r.computed+1, f.o.PageSize)) {
				full := min(len(r.Pages), r.computed/f.o.PageSize, r.held.Pages())
				f.pool.Name(&r.held, r.Pages[:full])
			}
			continue
		}
		r.state = stateDone
		f.pool.Release(&r.held)
		f.remove(0)
		if f.o.Callbacks.Done != nil {
			f.o.Callbacks.Done(r, at)
		}
	}
}

// Counters returns levels and totals as of the last event.
func (f *Fixed) Counters() Counters {
	c := f.count
	c.Running, c.Pages = len(f.due), f.pool.Held()
	return c
}

// ResetPrefixCache forgets cached content; it returns kv.ErrHeld while any request runs.
func (f *Fixed) ResetPrefixCache() error { return f.pool.Reset() }

func (f *Fixed) remove(i int) {
	last := len(f.due) - 1
	f.swap(i, last)
	f.due[last] = nil
	f.due = f.due[:last]
	if i < last {
		f.down(i)
		f.up(i)
	}
}

func (f *Fixed) swap(i, j int) {
	f.due[i], f.due[j] = f.due[j], f.due[i]
	f.due[i].index, f.due[j].index = i, j
}

func (f *Fixed) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if f.due[parent].due <= f.due[i].due {
			return
		}
		f.swap(i, parent)
		i = parent
	}
}

func (f *Fixed) down(i int) {
	for {
		c := 2*i + 1
		if c >= len(f.due) {
			return
		}
		if c+1 < len(f.due) && f.due[c+1].due < f.due[c].due {
			c++
		}
		if f.due[i].due <= f.due[c].due {
			return
		}
		f.swap(i, c)
		i = c
	}
}
