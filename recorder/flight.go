package recorder

import "github.com/shadowtape/shadowtape/formats"

// refuse leaves an exchange out for a reason; the zero verdict does not.
func (d *dialogue) refuse(e *exchange, v verdictOf) {
	if v.reason != "" && e.keep {
		e.keep, e.left = false, v
		d.letGo(e)
	}
}

// letGo lets go of a request's body.
func (d *dialogue) letGo(e *exchange) {
	d.charge(e, -len(e.body))
	e.body = nil
}

// charge adds to what an exchange holds of the engine's budget for bodies.
func (d *dialogue) charge(e *exchange, bytes int) {
	d.e.bodies += bytes
	e.charged += bytes
}

// leaveOut counts an exchange that is not recorded.
func (d *dialogue) leaveOut(e *exchange) {
	if e.begun && d.e.forget != nil {
		d.e.forget(e.x)
	}
	d.e.o.keep.forget(e.x)
	d.letGo(e)
	d.e.done(e)
	switch v := e.left; {
	case v.drop:
		d.e.stats.Dropped[v.reason]++
	case v.reason != "":
		d.e.stats.Filtered[v.reason]++
	default:
		d.e.stats.Filtered["endpoint"]++
	}
}

// begun tells whoever keeps a journal that a request has been read and its answer is awaited. It gets a copy: the exchange itself goes on.
func (d *dialogue) begun(e *exchange) {
	if d.e.begin == nil || !e.keep {
		return
	}
	e.begun = true
	x := *e.x
	d.e.lengths.begun(&x, e.promptTokens)
	x.RequestModel = d.e.modelName(x.RequestModel, 0)
	x.EndReason = formats.EndCaptureCut
	d.e.begin(e.x, &x)
}
