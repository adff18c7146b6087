package client

import (
	"errors"
	"time"

	"github.com/shadowtape/shadowtape/formats"
)

// Cut is when a recorded client broke its answer off: after so many tokens where the recording counted them, so that the load is the
// same whatever the candidate's speed, else after so much time.
type Cut struct {
	tokens int64         // 0: not by tokens
	after  time.Duration // from the scheduled time; 0: not by time
}

// errAborted ends an exchange as the recorded client did.
var errAborted = errors.New("broken off as recorded")

// Planned says whether the recorded client broke off at all.
func (a Cut) Planned() bool { return a.tokens > 0 || a.after > 0 }

// CutOf reads the cut of a recorded exchange.
func CutOf(x *formats.Exchange) Cut {
	if x.EndReason != formats.EndClientAbort {
		return Cut{}
	}
	if n := x.OutputTokens; n.Valid && n.V > 0 && x.Stream.Or(true) {
		return Cut{tokens: n.V}
	}
	return Cut{after: time.Duration(max(x.EndNS.V, 0))}
}

// reached says whether an answer has brought as many tokens. The events' own counts are used where the server says them.
func (a Cut) reached(x *formats.Exchange) bool {
	if int64(len(x.EventGapUS)) >= a.tokens {
		return true
	}
	var n int64
	for _, k := range x.EventTokens {
		n += int64(max(k, 1))
	}
	return n >= a.tokens
}
