package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"sync"
	"time"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/gpu"
	"github.com/shadowtape/shadowtape/internal/promtext"
	"github.com/shadowtape/shadowtape/recorder"
	"github.com/shadowtape/shadowtape/replayer/client"
)

// metricsPages are the pages behind the URLs of a flag. What a URL says of who asks (user, password, query) is sent, and not written down.
func metricsPages(urls []string) ([]promtext.Endpoint, error) {
	var pages []promtext.Endpoint
	var errs []error
	for _, u := range urls {
		p, err := url.Parse(u)
		if err != nil || p.Host == "" || p.Scheme != "http" && p.Scheme != "https" {
			errs = append(errs, fmt.Errorf("%q is no http or https URL of a metrics page", withoutSecrets(u)))
			continue
		}
		if err := client.CheckServer(p); err != nil {
			errs = append(errs, fmt.Errorf("%q %w", withoutSecrets(u), err))
			continue
		}
		p.User, p.RawQuery, p.Fragment = nil, "", ""
		pages = append(pages, promtext.Endpoint{Target: p.String(), URL: u})
	}
	return pages, errors.Join(errs...)
}

// serverWatch samples a server's metrics and its GPUs beside a recording. Its failures are counted, each page's first is said, and nothing
// else comes of them.
type serverWatch struct {
	metrics, gpus []promtext.Endpoint
	every         time.Duration
	warn          func(format string, args ...any) // safe for concurrent use

	mu    sync.Mutex
	notes map[string]int64
	said  map[string]bool
}

// watches reports whether a server's state is to be sampled.
func (o *liveFlags) watches() bool { return len(o.watch)+len(o.watchGPUs) > 0 }

// serverWatch is what the flags say is to be watched; it may be nothing.
func (a *app) serverWatch(l *liveFlags) (*serverWatch, error) {
	var out sync.Mutex
	w := &serverWatch{every: l.scrape, notes: map[string]int64{}, said: map[string]bool{}}
	w.warn = func(format string, args ...any) {
		out.Lock()
		defer out.Unlock()
		fmt.Fprintf(a.err, "shadowtape: warning: %s\n", oneLine(fmt.Sprintf(format, args...)))
	}
	var err, gerr error
	w.metrics, err = metricsPages(l.watch)
	w.gpus, gerr = metricsPages(l.watchGPUs)
	return w, errors.Join(err, gerr)
}

// start samples until end is called, which waits for the last samples.
func (w *serverWatch) start(spool *recorder.Spool) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for _, page := range w.metrics {
		wg.Go(func() {
			st, err := promtext.Watch(ctx, []promtext.Endpoint{page}, w.every, func(rows []formats.ServerSample) error {
				switch {
				case len(rows) == 1 && rows[0].Value == 0:
					w.count("metrics", page.Target, "the metrics of %s cannot be read", page.Target)
				case len(rows) == 1:
					w.count("metrics", page.Target, "there are no metrics at %s", page.Target)
				default:
					w.count("metrics", "", "")
				}
				return spool.Server(rows)
			})
			switch {
			case err != nil:
				w.warn("the metrics of %s are no longer watched: %v", page.Target, err)
			case st.Failed > 0:
				w.warn("%d of %d scrapes of %s failed, the last: %s", st.Failed, st.Scrapes, page.Target, st.LastError)
			case st.Over > 0:
				w.warn("pages of %s have more than %d series: %d samples beyond were left out", page.Target, promtext.MaxSamples, st.Over)
			case st.Dialects[0] == "":
				w.warn("%s is of no server that is known: kept as it is, without kv_usage and the like", page.Target)
			}
		})
	}
	for _, page := range w.gpus {
		wg.Go(func() {
			asked, failed, err := gpu.WatchDCGM(ctx, []string{page.URL}, time.Second, func(rows []formats.GPUSample) error {
				if len(rows) == 0 {
					w.count("gpu_metrics", page.Target, "the GPU metrics of %s cannot be read", page.Target)
					return nil
				}
				w.count("gpu_metrics", "", "")
				return spool.GPU(rows)
			})
			if err != nil {
				w.warn("%d of %d readings of %s failed, the last: %v", failed, asked, page.Target, err)
			}
		})
	}
	return func() { cancel(); wg.Wait() }
}

// count counts one scrape, which failed where a page is named, and says so the first time.
func (w *serverWatch) count(note, failed, format string, args ...any) {
	w.mu.Lock()
	w.notes[note+"_scrapes"]++
	say := false
	if failed != "" {
		w.notes[note+"_failed"]++
		say = !w.said[note+failed]
		w.said[note+failed] = true
	}
	w.mu.Unlock()
	if say {
		w.warn(format+"; it is asked again, the recording goes on", args...)
	}
}

// with adds what was counted to the notes of a source.
func (w *serverWatch) with(stats func() recorder.SourceStats) func() recorder.SourceStats {
	return func() recorder.SourceStats {
		st := stats()
		st.Notes = maps.Clone(st.Notes)
		if st.Notes == nil {
			st.Notes = map[string]int64{}
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		for note, n := range w.notes {
			st.Notes[note] += n
		}
		return st
	}
}
