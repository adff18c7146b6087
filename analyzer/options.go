package analyzer

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/shadowtape/shadowtape/formats"
)

// Limit is an SLO on one metric of one request.
type Limit struct {
	Metric string        // a PerRequest metric
	Max    time.Duration // met where the metric is not above it
}

// Options say what a summary is over. The zero value is everything, without an SLO.
type Options struct {
	SLO          []Limit
	From, To     time.Duration // arrivals in [From, To) after the first measured one; a To of 0 is the end
	By           string        // one of Breakdowns: figures for each value of a column beside those of the whole
	Sizes        Sizes         // of the server's cache, where neither it nor the manifest says them
	GPUs         int           // that served the run; 0 with a price means one
	GPUHourPrice float64       // in any currency; 0: no cost is computed
	NoModels     bool          // leave out the page and mix models
	ExactSamples int           // samples of a metric that are kept for exact quantiles before a sketch takes over; 0 means stats.DefaultExact
}

// Validate reports every option that cannot be used.
func (o Options) Validate() error {
	var all []error
	for _, l := range o.SLO {
		m, ok := MetricNamed(l.Metric)
		switch {
		case !ok:
			all = append(all, fmt.Errorf("slo: there is no metric %q", l.Metric))
		case !m.PerRequest:
			all = append(all, fmt.Errorf("slo: %s has many samples a request; a limit needs one", l.Metric))
		case l.Max <= 0:
			all = append(all, fmt.Errorf("slo: %s must be above 0", l.Metric))
		}
	}
	if o.From < 0 || o.To < 0 || o.To > 0 && o.To <= o.From {
		all = append(all, fmt.Errorf("from %v to %v: that is no stretch of time", o.From, o.To))
	}
	if o.GPUs < 0 || o.GPUHourPrice < 0 {
		all = append(all, fmt.Errorf("%d GPUs at %v an hour: below 0", o.GPUs, o.GPUHourPrice))
	}
	if o.Sizes.BlockSize < 0 || o.Sizes.Pages < 0 {
		all = append(all, fmt.Errorf("block size %d, pages %d: below 0", o.Sizes.BlockSize, o.Sizes.Pages))
	}
	if o.By != "" {
		if _, err := findBreakdown(o.By); err != nil {
			all = append(all, err)
		}
	}
	return errors.Join(all...)
}

// ParseSLO reads "ttft=500ms,tpot=50ms". An empty text is no limit.
func ParseSLO(text string) ([]Limit, error) {
	var limits []Limit
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		name, value, ok := strings.Cut(part, "=")
		if !ok {
			return nil, fmt.Errorf("slo %q: want METRIC=DURATION", part)
		}
		d, err := time.ParseDuration(strings.TrimSpace(value))
		if err != nil {
			return nil, fmt.Errorf("slo %q: %q is no duration such as 500ms", part, value)
		}
		name = strings.TrimSpace(name)
		if slices.ContainsFunc(limits, func(l Limit) bool { return l.Metric == name }) {
			return nil, fmt.Errorf("slo %q: %s has a limit already", part, name)
		}
		limits = append(limits, Limit{name, d})
	}
	return limits, Options{SLO: limits}.Validate()
}

// meets reports whether no limit is broken; a metric that is undefined for the request breaks none.
func meets(x *formats.Exchange, limits []Limit) bool {
	if x.EventFlags != nil { // a delay by a retransmission was the user's too: what was seen counts, though it says little of the server
		seen := *x
		seen.EventFlags = nil
		x = &seen
	}
	ok := true
	for _, l := range limits {
		m, found := MetricNamed(l.Metric)
		if !found {
			continue
		}
		m.Samples(x, func(v, _ float64) {
			if v > float64(l.Max)/nsPerMS {
				ok = false
			}
		})
	}
	return ok
}
