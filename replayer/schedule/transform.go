package schedule

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/stats"
)

// Window cuts a schedule to from ≤ At < to (to 0: no end) and moves it so that it starts at zero. The arrivals of the time preroll
// before from are kept in front as warm-up: they bring the server's cache to where it stood, and are not measured.
func Window(s Arrivals, from, to, preroll time.Duration) Arrivals {
	if from <= 0 && to <= 0 {
		return s
	}
	start := max(from-preroll, 0)
	return func(yield func(Arrival, error) bool) {
		for a, err := range s {
			if err == nil {
				if to > 0 && a.At >= to {
					return
				}
				if a.At < start {
					continue
				}
				a.Warmup = a.Warmup || a.At < from
				a.At -= start
			}
			if !yield(a, err) {
				return
			}
		}
	}
}

// Keep leaves the arrivals that f is true of, at their times.
func Keep(s Arrivals, f func(*formats.Exchange) bool) Arrivals {
	if f == nil {
		return s
	}
	return func(yield func(Arrival, error) bool) {
		for a, err := range s {
			if err == nil && !f(a.Exchange) {
				continue
			}
			if !yield(a, err) {
				return
			}
		}
	}
}

// Thin leaves a fraction of a schedule's sessions, each of them whole; an exchange without a session is one of its own. Which ones stay
// depends on nothing but their identity: a smaller fraction's are among a larger one's.
func Thin(s Arrivals, fraction float64) Arrivals {
	if fraction >= 1 {
		return s
	}
	limit := uint64(fraction * (1 << 63) * 2)
	return Keep(s, func(x *formats.Exchange) bool { return SessionKey(x) < limit })
}

// SessionKey spreads sessions evenly over all uint64.
func SessionKey(x *formats.Exchange) uint64 {
	if x.SessionID.Valid {
		return stats.Mix(stats.Mix(binary.BigEndian.Uint64(x.SessionID.V[:])))
	}
	return stats.Mix(stats.Mix(uint64(x.SourceID.Or(x.ExchangeID)) ^ 0x5ca1ab1e))
}

// Spread moves arrivals that share one tick of a coarse clock to times drawn evenly within the tick, keeping their order. A clock's ticks
// may come a little early or late: times less than half a quantum apart share one, and a tick ends where the next begins. It holds the
// arrivals of one tick. A quantum of 0 changes nothing.
func Spread(s Arrivals, quantum time.Duration, seed int64) Arrivals {
	if quantum <= 0 {
		return s
	}
	return func(yield func(Arrival, error) bool) {
		r := rand.New(rand.NewPCG(uint64(seed), 0x5b4ead))
		var tick []Arrival
		flush := func(width time.Duration) bool {
			at := make([]time.Duration, len(tick))
			for i := range at {
				at[i] = time.Duration(r.Int64N(int64(width)))
			}
			slices.Sort(at)
			for i, a := range tick {
				a.At = tick[0].At + at[i]
				if !yield(a, nil) {
					return false
				}
			}
			tick = tick[:0]
			return true
		}
		for a, err := range s {
			if err != nil {
				if flush(quantum) {
					yield(a, err)
				}
				return
			}
			if len(tick) > 0 {
				if width := a.At - tick[0].At; width >= (quantum+1)/2 && !flush(min(width, quantum)) {
					return
				}
			}
			tick = append(tick, a)
		}
		flush(quantum)
	}
}

// Loop plays a schedule again and again: passes times, or without end where passes is 0. A pass starts one mean gap after the last
// arrival of the one before. The schedule must be one that can be ranged over repeatedly. An empty one ends.
func Loop(s Arrivals, passes int) Arrivals {
	if passes == 1 {
		return s
	}
	return func(yield func(Arrival, error) bool) {
		var base, period time.Duration
		for pass := int32(0); passes == 0 || int(pass) < passes; pass++ {
			var n int64
			var first, last time.Duration
			for a, err := range s {
				if err == nil {
					if a.Warmup && pass > 0 {
						continue // what is before the window is before the first pass
					}
					if !a.Warmup {
						if n == 0 {
							first = a.At
						}
						n++
						last = a.At
					}
					a.Loop = pass
					a.At += base
				}
				if !yield(a, err) || err != nil {
					return
				}
			}
			if n == 0 {
				return
			}
			if pass == 0 {
				span := last - first
				period = max(span+time.Duration(math.Round(float64(span)/float64(max(n-1, 1)))), time.Nanosecond)
			}
			if base > math.MaxInt64-last-2*period {
				return
			}
			base += period
		}
	}
}

// Selection says which part of a trace is replayed and how its times are changed. The zero value is the whole trace at its own times.
type Selection struct {
	Server string // one replica's share: only what this server_id answered
	Tenant string // only this tenant_id, 16 hex digits
	Model  string // only this request_model
	Thin   float64
	// From and To cut a window out of the trace, in the trace's time; To 0: to the end. Preroll is how much before it is replayed as
	// warm-up.
	From, To, Preroll time.Duration
	Spread            time.Duration // spread arrivals within ticks of this length; 0: leave them
	Loops             int           // how often the trace is played; 0: once, negative: until Duration ends it
	Speed             float64       // 0: 1
	Rate              float64       // mean arrivals a second to come to, by scaling time; 0: as Speed says
	Duration          time.Duration // of the measured part, in the replay's time; 0: all
	MaxRequests       int64         // measured; 0: all
	ThinkTime         bool          // turns of a session wait for the answer before them
	Seed              int64         // of Spread
	Shard, Shards     int           // this replayer's share, 1 … Shards, of whole sessions; 0: all
}

// Validate reports every setting that cannot work.
func (s Selection) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if s.Thin < 0 || s.Thin > 1 || math.IsNaN(s.Thin) {
		bad("thinning to %v: it is a share between 0 and 1", s.Thin)
	}
	settings := map[string]float64{"speed": s.Speed, "rate": s.Rate}
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		v := settings[name]
		if v < 0 || math.IsNaN(v) || math.IsInf(v, 0) {
			bad("a %s of %v", name, v)
		}
	}
	if s.Speed > 0 && (s.Speed < minSpeed || s.Speed > maxSpeed) {
		bad("a speed of %v: between %v and %v times", s.Speed, minSpeed, maxSpeed)
	}
	if s.Speed > 0 && s.Speed != 1 && s.Rate > 0 {
		bad("speed and rate are two ways to say one thing")
	}
	times := map[string]time.Duration{"window start": s.From, "window end": s.To, "preroll": s.Preroll, "spread": s.Spread, "duration": s.Duration}
	for _, name := range slices.Sorted(maps.Keys(times)) {
		d := times[name]
		if d < 0 {
			bad("a %s of %v is negative", name, d)
		}
	}
	if s.To > 0 && s.To <= s.From {
		bad("a window from %v to %v is empty", s.From, s.To)
	}
	if s.Preroll > 0 && s.From == 0 {
		bad("a preroll without a window has nothing to come before")
	}
	if s.Loops < 0 && s.Duration == 0 && s.MaxRequests == 0 {
		bad("an endless loop needs a duration or a number of requests")
	}
	if s.Shards != 0 && (s.Shard < 1 || s.Shard > s.Shards) || s.Shards == 0 && s.Shard != 0 {
		bad("shard %d of %d: shards are counted from 1", s.Shard, s.Shards)
	}
	if s.MaxRequests < 0 {
		bad("%d requests at most", s.MaxRequests)
	}
	if s.Tenant != "" {
		if _, ok := hexHash(s.Tenant); !ok {
			bad("tenant %q is not 16 hex digits", s.Tenant)
		}
	}
	return errors.Join(errs...)
}

// keep is the row filter, nil where all rows stay.
func (s Selection) keep() func(*formats.Exchange) bool {
	if s.Server == "" && s.Tenant == "" && s.Model == "" {
		return nil
	}
	tenant, _ := hexHash(s.Tenant)
	return func(x *formats.Exchange) bool {
		return (s.Server == "" || x.ServerID == s.Server) && (s.Model == "" || x.RequestModel == s.Model) &&
			(s.Tenant == "" || x.TenantID.Valid && x.TenantID.V == tenant)
	}
}

// Apply composes the transforms: filters, thinning, window, spread, loops, speed, the ends, and the shard last. speed is Speed, or what Rate came
// to.
func (s Selection) Apply(sch Arrivals, speed float64) Arrivals {
	if speed == 0 {
		speed = 1
	}
	sch = s.Part(sch)
	loops := s.Loops
	switch {
	case loops == 0:
		loops = 1
	case loops < 0:
		loops = 0
	}
	sch = Loop(Spread(sch, s.Spread, s.Seed), loops)
	if s.ThinkTime {
		sch = ThinkTime(sch)
	}
	sch = Speed(sch, speed)
	if s.Duration > 0 {
		sch = Until(sch, scale(min(s.Preroll, s.From), speed)+s.Duration)
	}
	return Shard(MaxRequests(sch, s.MaxRequests), s.Shard, s.Shards)
}

// Part is the part of Apply that leaves times alone but for the window's start.
func (s Selection) Part(sch Arrivals) Arrivals {
	sch = Keep(sch, s.keep())
	if s.Thin > 0 {
		sch = Thin(sch, s.Thin)
	}
	return Window(sch, s.From, s.To, s.Preroll)
}

// hexHash reads a keyed hash as it is written in text.
func hexHash(s string) (h formats.Hash, ok bool) {
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != len(h) {
		return h, false
	}
	copy(h[:], b)
	return h, true
}
