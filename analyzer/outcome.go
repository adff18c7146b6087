package analyzer

import "github.com/shadowtape/shadowtape/formats"

// Requests are the conservation counters of measured exchanges: Scheduled == Sent + Dropped and
// Sent == Completed + Failed + Aborted + RunEnd + Unknown.
type Requests struct {
	Scheduled int64 `json:"scheduled"`
	Sent      int64 `json:"sent"`
	Completed int64 `json:"completed"`
	Failed    int64 `json:"failed"`
	Aborted   int64 `json:"aborted"` // by the client, as planned or not
	RunEnd    int64 `json:"run_end"` // cut by the end of the run or capture
	Unknown   int64 `json:"unknown"` // the trace does not say how they ended
	Dropped   int64 `json:"dropped"`
}

type outcome uint8

const (
	outcomeUnknown outcome = iota
	outcomeCompleted
	outcomeFailed
	outcomeAborted
	outcomeRunEnd
	outcomeDropped
)

// outcomeOf puts an exchange into exactly one class. HTTP 200 with an error in the stream is a failure.
func outcomeOf(x *formats.Exchange) outcome {
	switch {
	case x.EndReason == formats.EndNotSent:
		return outcomeDropped
	case x.ErrorKind != "":
		return outcomeFailed
	}
	switch x.EndReason {
	case formats.EndComplete:
		return outcomeCompleted
	case formats.EndClientAbort:
		return outcomeAborted
	case formats.EndRunEnd, formats.EndCaptureCut:
		return outcomeRunEnd
	case "":
		return outcomeUnknown
	default:
		return outcomeFailed
	}
}

func (r *Requests) add(o outcome) {
	r.Scheduled++
	if o == outcomeDropped {
		r.Dropped++
		return
	}
	r.Sent++
	switch o {
	case outcomeCompleted:
		r.Completed++
	case outcomeFailed:
		r.Failed++
	case outcomeAborted:
		r.Aborted++
	case outcomeRunEnd:
		r.RunEnd++
	default:
		r.Unknown++
	}
}

func (r *Requests) merge(o Requests) {
	r.Scheduled += o.Scheduled
	r.Sent += o.Sent
	r.Completed += o.Completed
	r.Failed += o.Failed
	r.Aborted += o.Aborted
	r.RunEnd += o.RunEnd
	r.Unknown += o.Unknown
	r.Dropped += o.Dropped
}
