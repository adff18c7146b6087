package analyzer

import "github.com/shadowtape/shadowtape/formats"

// untimely mark an event whose time is not that at which a token was generated: its bytes came in a segment that was sent again or behind
// ones that were lost, or it may be the prompt, repeated.
const untimely = formats.FlagRetransmit | formats.FlagGap | formats.FlagEcho

// flagged reports whether an event is marked. Events that the row does not list are not.
func flagged(x *formats.Exchange, event int, flags int32) bool {
	return event >= 0 && event < len(x.EventFlags) && len(x.EventFlags) == len(x.EventGapUS) && x.EventFlags[event]&flags != 0
}

// eventAt finds the event at a moment in nanoseconds after the arrival; gaps are whole microseconds.
func eventAt(x *formats.Exchange, ns int64) int {
	us := int64(0)
	for i, gap := range x.EventGapUS {
		if i > 0 {
			us += int64(gap)
		}
		if x.FirstTokenNS.V+us*1000+500 >= ns {
			return i
		}
	}
	return -1
}

func firstToken(x *formats.Exchange) (formats.Null[int64], bool) {
	return x.FirstTokenNS, !flagged(x, 0, untimely)
}

func firstContent(x *formats.Exchange) (formats.Null[int64], bool) {
	t := x.FirstContentNS
	return t, !t.Valid || len(x.EventFlags) == 0 || !x.FirstTokenNS.Valid || !flagged(x, eventAt(x, t.V), untimely)
}

// lastToken is the last byte where no event carried a token.
func lastToken(x *formats.Exchange) (formats.Null[int64], bool) {
	if !x.LastTokenNS.Valid {
		return x.EndNS, true
	}
	return x.LastTokenNS, !flagged(x, len(x.EventGapUS)-1, untimely)
}
