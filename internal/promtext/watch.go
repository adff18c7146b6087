package promtext

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/shadowtape/shadowtape/formats"
)

// UpSeries says of each scrape whether it was answered (1) or not (0).
const UpSeries = "up"

// maxPage bounds what is read of one page.
const maxPage = 16 << 20

// Endpoint is a metrics page to watch.
type Endpoint struct {
	Target string       // what stands in the samples' target column
	URL    string       // of the page
	Header http.Header  // sent with each scrape; may be nil
	Client *http.Client // nil: http.DefaultClient
}

// WatchStats is what watching came to.
type WatchStats struct {
	Scrapes   int64
	Failed    int64    // not answered, or not with a page
	Series    int64    // samples written
	Bad       int64    // lines of pages that could not be read
	Over      int64    // samples and types beyond MaxSamples of their page, left out
	Truncated int64    // pages that were cut
	Resets    int64    // counters that started anew: the server was restarted
	Dialects  []string // per endpoint: the servers found on its page, "" where none is known
	LastError string
}

// Watch scrapes every endpoint until ctx ends, each on its own goroutine and at its own absolute times, and once more at the end. The
// series are handed on as they are on the page, with the time of the middle of the scrape, and after them the canonical series (Read),
// with the engine as their only label. Buckets of histograms and quantiles of summaries are handed on of the first and the last scrape,
// whose difference is what they say of the time between. sink must be safe for concurrent use; its first error ends the watching and is
// returned.
func Watch(ctx context.Context, endpoints []Endpoint, every time.Duration, sink func([]formats.ServerSample) error) (WatchStats, error) {
	if every <= 0 {
		return WatchStats{}, fmt.Errorf("watch servers: every %v", every)
	}
	var wg sync.WaitGroup
	watchers := make([]watcher, len(endpoints))
	errs := make([]error, len(endpoints))
	for i, e := range endpoints {
		w := &watchers[i]
		w.e = e
		wg.Go(func() { errs[i] = w.run(ctx, every, sink) })
	}
	wg.Wait()
	var sum WatchStats
	for i := range watchers {
		s := &watchers[i].stats
		sum.Scrapes += s.Scrapes
		sum.Failed += s.Failed
		sum.Series += s.Series
		sum.Bad += s.Bad
		sum.Over += s.Over
		sum.Truncated += s.Truncated
		sum.Resets += int64(watchers[i].tracker.Resets)
		sum.Dialects = append(sum.Dialects, watchers[i].dialect)
		if s.LastError != "" {
			sum.LastError = s.LastError
		}
	}
	return sum, errors.Join(errs...)
}

// watcher follows one endpoint.
type watcher struct {
	e       Endpoint
	tracker Tracker
	dialect string
	stats   WatchStats
}

func (w *watcher) run(ctx context.Context, every time.Duration, sink func([]formats.ServerSample) error) error {
	next := time.Now()
	for first := true; ; first = false {
		if !first {
			if next = next.Add(every); time.Since(next) > 0 { // a slow answer skips ticks; it does not queue them
				next = next.Add(time.Since(next).Truncate(every) + every)
			}
			sleep(ctx, next)
		}
		last := ctx.Err() != nil
		scrape := ctx
		if last { // the end is what counters are read at
			scrape = context.WithoutCancel(ctx)
		}
		scrape, cancel := context.WithTimeout(scrape, max(every, 2*time.Second))
		rows := w.scrape(scrape, first || last)
		cancel()
		if !last && ctx.Err() != nil && len(rows) == 1 {
			continue // cut by the end: the last scrape says more
		}
		w.stats.Series += int64(len(rows))
		if err := sink(rows); err != nil {
			return err
		}
		if last {
			return nil
		}
	}
}

// bare drops the URL that net/http repeats, secrets and all.
func bare(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}

func sleep(ctx context.Context, until time.Time) {
	t := time.NewTimer(time.Until(until))
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// scrape reads the page once. A failure is one row: up is 0.
func (w *watcher) scrape(ctx context.Context, buckets bool) []formats.ServerSample {
	start := time.Now()
	body, kind, err := w.get(ctx)
	at := start.Add(time.Since(start) / 2).UnixNano()
	w.stats.Scrapes++
	row := func(series, labels string, v float64) formats.ServerSample {
		return formats.ServerSample{UnixNS: at, Target: w.e.Target, Series: series, Labels: labels, Value: v}
	}
	if err != nil && len(body) == 0 {
		w.stats.Failed++
		w.stats.LastError = fmt.Sprintf("scrape %s: %v", w.e.Target, bare(err))
		return []formats.ServerSample{row(UpSeries, "", 0)}
	}
	rows := []formats.ServerSample{row(UpSeries, "", 1)}
	var readings []Reading
	if strings.Contains(kind, "json") {
		var ok bool
		if readings, ok = w.tracker.ReadIterations(body); ok {
			w.dialect = "trtllm"
		} else {
			w.stats.Bad++
		}
	} else {
		page := Parse(body)
		w.stats.Bad += int64(page.Bad)
		w.stats.Over += int64(page.Over)
		if page.Truncated || err != nil {
			w.stats.Truncated++
		}
		for _, v := range page.Samples {
			if buckets || !v.Bucket() {
				rows = append(rows, row(v.Name, v.Labels, v.Value))
			}
		}
		var found string
		if found, readings = Read(page); found != "" {
			w.dialect = found
		}
	}
	for _, r := range w.tracker.Follow(readings) {
		labels := ""
		if r.Engine != "" {
			labels = "engine=" + strconv.Quote(r.Engine)
		}
		rows = append(rows, row(r.Name, labels, r.Value))
	}
	return rows
}

// get reads the page. A body that was cut comes with its error.
func (w *watcher) get(ctx context.Context) (body []byte, contentType string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.e.URL, nil)
	if err != nil {
		return nil, "", err
	}
	for k, v := range w.e.Header {
		req.Header[http.CanonicalHeaderKey(k)] = v
	}
	req.Header.Set("Accept", "text/plain;version=0.0.4")
	c := w.e.Client
	if c == nil {
		c = http.DefaultClient
	}
	res, err := c.Do(req)
	if err != nil {
		return nil, "", err
	}
	defer res.Body.Close()
	kind := strings.ToLower(res.Header.Get("Content-Type"))
	if res.StatusCode != http.StatusOK || strings.HasPrefix(kind, "text/html") {
		return nil, kind, fmt.Errorf("HTTP %d, %s", res.StatusCode, kind)
	}
	body, err = io.ReadAll(io.LimitReader(res.Body, maxPage))
	return body, kind, err
}
