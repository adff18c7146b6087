package replayer

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/replayer/client"
	"github.com/shadowtape/shadowtape/replayer/schedule"
)

// Arrival is one request of a schedule.
type Arrival = schedule.Arrival

// Schedule is a sequence of arrivals in the order of their times.
type Schedule = schedule.Arrivals

// Prompter makes the bodies of requests. Body is called ahead of the deadline, from several goroutines at once. x is the exchange of
// the run, a copy of the recorded one with the run's identity; Body sets in it what it decides: endpoint, model, stream, lengths. An
// error means that the request cannot be made: it is dropped and counted, and the run goes on.
type Prompter interface {
	Body(x *formats.Exchange) ([]byte, error)
}

// Sink takes a run's rows. Replay calls it from one goroutine.
type Sink interface {
	Write(x *formats.Exchange) error
}

// MostInFlight is how many requests may be in flight where nothing else is said.
const MostInFlight = 100_000

// Options of Replay. The zero value works.
type Options struct {
	RequestIDs  string        // what x-request-id starts with: RequestID(RequestIDs, arrival index). "": "st"
	Node        string        // the machine that replays
	MaxInFlight int           // arrivals past it are dropped and counted; 0: MostInFlight
	LateAfter   time.Duration // a request sent later than this after its time counts as late; 0: 1 ms
	Drain       time.Duration // how long after the last arrival answers are waited for; what is left then has ended by run_end. 0: the client's Timeout and 5 s
	Builders    int           // goroutines that make bodies; 0: 2
	Ahead       time.Duration // how far ahead of their deadlines bodies are made at most; 0: 10 s
	AheadCount  int           // how many bodies may wait at most; 0: 4,096
	AheadBytes  int64         // what waiting bodies may hold, unless it is one body; 0: 256 MiB
	RowBytes    int64         // what finished rows may hold that the sink has not taken yet; what comes then is lost and counted. 0: 256 MiB
	Cold        bool          // open a connection only when a request needs one, instead of ahead of the schedule
	Turns       bool          // arrivals of the schedule may wait for others (ThinkTime)
	Users       int           // not 0: a closed loop. So many users take one arrival after the other, whatever its time
	Ramp        time.Duration // of Users: over which they begin, one after the other
	Think       time.Duration // of Users: between an answer and the user's next request
	End         time.Duration // of Users and Turns: nothing is sent at this time or later; 0: no end
	BySession   bool          // all requests of a session go to one target
	FirstID     int64         // the rows' exchange ids are those above it
	BlockTokens float64       // tokens in one of the schedule's prefix blocks, to say what a cache could have hit; 0: unknown
	NoAborts    bool          // let answers come to their end that the recorded client broke off
	Live        *Live         // counters to watch while it runs; may be nil
	// Sleep returns at t or soon after, and early where stop is closed. nil waits on the kernel's high-resolution timer where there is
	// one. Tests on a virtual clock set SleepTimer.
	Sleep func(t time.Time, stop <-chan struct{})
	// Start is when the schedule's zero is, with its monotonic reading; the zero time: when the first bodies are ready. Where it has
	// passed, what was due before the dispatcher came to it is dropped (late_start): the schedule is never moved.
	Start time.Time
}

// Validate reports every setting that cannot work.
func (o Options) Validate() error {
	var errs []error
	settings := map[string]int64{"max in flight": int64(o.MaxInFlight), "late after": int64(o.LateAfter), "drain": int64(o.Drain), "users": int64(o.Users), "ramp": int64(o.Ramp), "think": int64(o.Think), "end": int64(o.End),
		"builders": int64(o.Builders), "ahead": int64(o.Ahead), "ahead count": int64(o.AheadCount), "ahead bytes": o.AheadBytes, "row bytes": o.RowBytes}
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		v := settings[name]
		if v < 0 {
			errs = append(errs, fmt.Errorf("%s is negative", name))
		}
	}
	return errors.Join(errs...)
}

func (o *Options) defaults(c *client.Client) {
	if o.RequestIDs == "" {
		o.RequestIDs = "st"
	}
	if o.MaxInFlight == 0 {
		o.MaxInFlight = MostInFlight
	}
	if o.LateAfter == 0 {
		o.LateAfter = time.Millisecond
	}
	if o.Drain == 0 {
		o.Drain = c.Timeout() + 5*time.Second
	}
	if o.Builders == 0 {
		o.Builders = 2
	}
	if o.Ahead == 0 {
		o.Ahead = 10 * time.Second
	}
	if o.AheadCount == 0 {
		o.AheadCount = 4096
	}
	if o.AheadBytes == 0 {
		o.AheadBytes = 256 << 20
	}
	if o.RowBytes == 0 {
		o.RowBytes = 256 << 20
	}
	if o.Live == nil {
		o.Live = &Live{}
	}
	if o.Sleep == nil {
		o.Sleep = sleepPrecise
	}
}

// Live is a run's counters while it runs, its warm-up left out but for InFlight. All are safe to read at any time.
type Live struct {
	Scheduled, Sent, Completed, Failed, Aborted, RunEnd, Dropped atomic.Int64
	Late                                                         atomic.Int64 // sent more than Options.LateAfter after schedule
	InFlight                                                     atomic.Int64
	Tokens                                                       atomic.Int64 // generated, of answers that have ended
	TTFTSumNS, TTFTCount                                         atomic.Int64 // from the scheduled time
	LagMaxNS                                                     atomic.Int64 // the largest send lag since somebody set it to 0
	Start                                                        atomic.Int64 // nanoseconds since 1970; 0 before the schedule's zero
}

// Counts are the conservation counters as they stand. While requests are in flight, Sent is ahead of its parts.
func (l *Live) Counts() formats.RequestCounts {
	return formats.RequestCounts{
		Scheduled: l.Scheduled.Load(), Sent: l.Sent.Load(), Completed: l.Completed.Load(), Failed: l.Failed.Load(),
		Aborted: l.Aborted.Load(), RunEnd: l.RunEnd.Load(), Dropped: l.Dropped.Load(),
	}
}

// Stats is what Replay did.
type Stats struct {
	Requests     formats.RequestCounts // what was measured
	Warmup       formats.RequestCounts // what was sent as warm-up
	Errors       map[string]int64      // of the failed, by kind
	Dropped      map[string]int64      // by why
	Late         int64
	Retried      int64 // requests sent again, because the server had closed their connection or refused them before it looked at them
	RowsLost     int64 // rows, of the warm-up too, that the sink was too slow to take
	Quality      Quality
	Steady       SteadyState
	WarmupTokens int64         // generated by the warm-up
	Overlapped   int64         // turns sent while an earlier one of their session was being answered
	Joined       time.Duration // how long after Options.Start the dispatcher came to it; 0: it was in time
	ClockSteps   int64         // how often the wall clock was set during the run; reads around it are timed by the user's clock
	Start, End   time.Time     // the schedule's zero; when the last answer had ended
	Interrupted  bool          // the context was cancelled
}
