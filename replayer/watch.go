package replayer

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/promtext"
)

// upSeries says of each scrape whether it was answered (1) or not (0).
const upSeries = "up"

// WatchStats is what watching the servers came to.
type WatchStats struct {
	Scrapes, Failed int64
	Series          int64 // samples written
	Bad             int64 // lines of pages that could not be read
	Truncated       int64 // pages that were cut
	LastError       string
}

// WatchServers scrapes the /metrics page of every target until ctx ends, each on its own goroutine and at its own absolute times, and
// once more at the end. The series are handed on as they are on the page, with the time of the middle of the scrape; buckets of
// histograms and quantiles of summaries only of the first and the last scrape, whose difference is what they say about the run. sink
// must be safe for concurrent use; its first error ends the watching and is returned.
func (c *Client) WatchServers(ctx context.Context, every time.Duration, sink func([]formats.ServerSample) error) (WatchStats, error) {
	if every <= 0 {
		return WatchStats{}, fmt.Errorf("watch servers: every %v", every)
	}
	var wg sync.WaitGroup
	stats := make([]WatchStats, len(c.targets))
	errs := make([]error, len(c.targets))
	for i, p := range c.targets {
		wg.Go(func() { errs[i] = p.watch(ctx, every, sink, &stats[i]) })
	}
	wg.Wait()
	var sum WatchStats
	for _, s := range stats {
		sum.Scrapes += s.Scrapes
		sum.Failed += s.Failed
		sum.Series += s.Series
		sum.Bad += s.Bad
		sum.Truncated += s.Truncated
		if s.LastError != "" {
			sum.LastError = s.LastError
		}
	}
	return sum, errors.Join(errs...)
}

func (p *pool) watch(ctx context.Context, every time.Duration, sink func([]formats.ServerSample) error, s *WatchStats) error {
	next := time.Now()
	for first := true; ; first = false {
		if !first {
			if next = next.Add(every); time.Since(next) > 0 { // a slow answer skips ticks; it does not queue them
				next = next.Add(time.Since(next).Truncate(every) + every)
			}
			SleepTimer(next, ctx.Done())
		}
		last := ctx.Err() != nil
		scrape := ctx
		limit := max(every, 2*time.Second)
		if last { // the end of the run is what counters are read at
			scrape = context.WithoutCancel(ctx)
		}
		scrape, cancel := context.WithTimeout(scrape, limit)
		rows := p.scrape(scrape, first || last, s)
		cancel()
		if !last && ctx.Err() != nil && len(rows) == 1 {
			continue // cut by the end: the last scrape says more
		}
		s.Series += int64(len(rows))
		if err := sink(rows); err != nil {
			return err
		}
		if last {
			return nil
		}
	}
}

// scrape reads the page once. A failure is one row: up is 0.
func (p *pool) scrape(ctx context.Context, buckets bool, s *WatchStats) []formats.ServerSample {
	start := time.Now()
	status, kind, body, _, err := p.control(ctx, "GET", "/metrics", nil)
	at := start.Add(time.Since(start) / 2).UnixNano()
	target := p.url.String()
	s.Scrapes++
	if err == nil && (status != http.StatusOK || html(kind, body)) {
		err = fmt.Errorf("HTTP %d, %s", status, kind)
	}
	if err != nil && len(body) == 0 || status != http.StatusOK {
		s.Failed++
		if err != nil {
			s.LastError = fmt.Sprintf("scrape %s/metrics: %v", target, err)
		}
		return []formats.ServerSample{{UnixNS: at, Target: target, Series: upSeries}}
	}
	page := promtext.Parse(body)
	s.Bad += int64(page.Bad)
	if page.Truncated || err != nil {
		s.Truncated++
	}
	rows := make([]formats.ServerSample, 0, len(page.Samples)+1)
	rows = append(rows, formats.ServerSample{UnixNS: at, Target: target, Series: upSeries, Value: 1})
	for _, v := range page.Samples {
		if !buckets && v.Bucket() {
			continue
		}
		rows = append(rows, formats.ServerSample{UnixNS: at, Target: target, Series: v.Name, Labels: v.Labels, Value: v.Value})
	}
	return rows
}
