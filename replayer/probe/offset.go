package probe

import (
	"context"
	"net/http"
	"time"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/replayer/client"
)

// bounds is what is known of how far the server's clock is ahead.
type bounds struct {
	low, high time.Duration
	n         int
}

// tighten takes an answer in: it was asked for at sent and there at got, by our clock, and its Date header, the server's time cut to whole
// seconds, says date. Somewhere between, the server's clock stood at date or less than a second after it.
func (b *bounds) tighten(sent, got, date time.Time) {
	low, high := date.Sub(got), date.Add(time.Second).Sub(sent)
	if b.n++; b.n == 1 {
		b.low, b.high = low, high
		return
	}
	b.low, b.high = max(b.low, low), min(b.high, high)
}

// next is when to ask so that the server's clock, were it in the middle of what is known, ticks while the request is under way: whatever
// it answers then halves what is known.
func (b *bounds) next(now time.Time, way time.Duration) time.Time {
	there := now.Add(way + (b.low+b.high)/2) // by the server's clock, if asked now
	wait := there.Truncate(time.Second).Add(time.Second).Sub(there)
	return now.Add(wait % time.Second)
}

const (
	offsetProbes = 14 // halving a second so often leaves less than a tenth of a millisecond
	offsetTime   = 15 * time.Second
)

// ClockOffset measures how far a target's clock is ahead of ours, until the context ends or nothing is gained any more: half the round trip is
// the best that can be known.
func ClockOffset(ctx context.Context, t *client.Target) formats.ClockOffset {
	ctx, cancel := context.WithTimeout(ctx, offsetTime)
	defer cancel()
	o := formats.ClockOffset{Target: t.URL()}
	var b bounds
	way := RoundTrip(ctx, t) / 2
	for range offsetProbes {
		if b.n > 0 {
			timer := time.NewTimer(time.Until(b.next(time.Now(), way)))
			select {
			case <-timer.C:
			case <-ctx.Done():
				timer.Stop()
			}
		}
		sent := time.Now()
		r, err := t.Ask(ctx, "GET", "/health", nil)
		got := time.Now()
		if err != nil {
			if b.n == 0 {
				o.Unknown = "the target did not answer"
			}
			break
		}
		date, err := http.ParseTime(r.Header.Get("Date"))
		if err != nil {
			o.Unknown = "the target's answers carry no date"
			break
		}
		b.tighten(sent.Round(0), got.Round(0), date) // the wall clock's readings
		if b.low > b.high {
			o.Unknown = "the dates of the target's answers contradict each other: its clock was set, or several clocks answer"
			break
		}
		if b.high-b.low <= 2*way {
			break
		}
	}
	if o.Unknown == "" && b.n > 0 {
		o.OffsetMS, o.ErrorMS = float64(b.low+b.high)/2e6, float64(b.high-b.low)/2e6
	} else if o.Unknown == "" {
		o.Unknown = "there was no time to measure it"
	}
	o.Probes = b.n
	return o
}
