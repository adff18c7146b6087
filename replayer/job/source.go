package job

import (
	"iter"
	"time"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/replayer"
	"github.com/shadowtape/shadowtape/replayer/schedule"
)

// Source is something else than a trace that requests come from, such as a workload model that generates them.
type Source struct {
	Name   string
	Header formats.Header
	SHA256 string // of what it is made from, in hex; "": unknown
	// Rows yields the requests in the order of their arrivals, and the same ones each time it is ranged over.
	Rows iter.Seq2[*formats.Exchange, error]
}

func (o *Options) name() string {
	if o.Source != nil {
		return o.Source.Name
	}
	return o.Trace.Name
}

func (o *Options) header() formats.Header {
	if o.Source != nil {
		return o.Source.Header
	}
	return o.Trace.Header
}

func (o *Options) sha256() (string, error) {
	if o.Source != nil {
		return o.Source.SHA256, nil
	}
	return o.Trace.SHA256()
}

// rows is the whole schedule, of a trace with the given columns only, or all.
func (o *Options) rows(columns ...formats.Column) replayer.Schedule {
	if o.Source != nil {
		return schedule.FromRows(o.Source.Rows)
	}
	if o.filling != nil { // it looks at all of a row
		return o.filling.Apply(schedule.FromTrace(o.Trace))
	}
	return schedule.FromTrace(o.Trace, columns...)
}

func (o *Options) quantum() (time.Duration, error) {
	if o.Source != nil {
		return time.Duration(o.Source.Header.TimeQuantumNS), nil
	}
	return schedule.Quantum(o.Trace)
}
