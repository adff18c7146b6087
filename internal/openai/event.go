package openai

import (
	"math"

	"github.com/shadowtape/shadowtape/formats"
)

// dispatch ends the event being read: it decides whether it carried tokens, and for which choice.
func (r *Response) dispatch() {
	r.book()
	r.resetEvent()
}

func (r *Response) book() {
	r.json.end()
	ev := &r.ev
	stream := r.streamed
	if ev.data && !r.json.complete() {
		if !r.lost || !r.gapNext {
			r.bad = true
		}
		return
	}
	if r.gapNext {
		ev.flags |= formats.FlagGap
		r.gapNext = false
	}
	if stream && !r.x.FirstEventNS.Valid {
		r.x.FirstEventNS = formats.Of(r.now)
	}
	kind := none
	if typed := false; ev.kindN > 0 {
		if kind, typed = eventTypes[string(ev.kind[:ev.kindN])]; !typed {
			kind = none
		}
		switch kind {
		case failure:
			ev.failure = true
		case doneFlag:
			ev.done = true
			if ev.top.finish == "" && r.statusEnd != "" {
				ev.top.finish = r.statusEnd
			}
		case content, refusal:
			ev.top.answer = ev.top.answer || ev.str
		case reasoning:
			ev.top.reason = ev.top.reason || ev.str
		case tool:
			ev.top.tool = ev.top.tool || ev.str
		}
	}
	if ev.failure {
		r.failed = true
	}
	if ev.counted {
		r.mergeUsage(&ev.use)
	}
	top := -1
	if ev.top != (delta{}) || ev.each.Valid {
		top = len(ev.deltas)
		ev.deltas = append(ev.deltas, ev.top)
	}
	// The server counts as it goes only if the first event with a choice says so: a usage object that comes with the last choice is
	// a total, not the last event's tokens.
	if len(ev.deltas) > 0 && r.contUsage == unset {
		r.contUsage = no
		if ev.use.out.Valid && stream {
			r.contUsage = yes
		}
	}
	if r.texts != nil {
		r.sortTexts(top, kind)
	}
	for i := range ev.deltas {
		r.token(&ev.deltas[i], len(ev.deltas) == 1)
	}
	r.textBytes += ev.bytes
	if ev.done {
		r.done = true
	}
}

// token books one delta.
func (r *Response) token(d *delta, alone bool) {
	ev := &r.ev
	if int(d.index) >= maxChoices {
		return
	}
	for len(r.choices) <= int(d.index) {
		r.choices = append(r.choices, choiceState{known: true})
	}
	c := &r.choices[d.index]
	c.seen = true
	if d.finish != "" && c.finish == "" {
		c.finish = d.finish
		if r.x.FinishReason == "" {
			r.x.FinishReason = d.finish
		}
	}
	count := int32(0)
	grew := false
	switch {
	case ev.each.Valid:
		grew = ev.each.V > c.usage
		count = clamp32(ev.each.V - c.usage)
		c.usage = ev.each.V
		d.answer = d.answer || d.special && grew
	case alone && r.contUsage == yes && ev.use.out.Valid:
		grew = ev.use.out.V > c.usage
		if count = d.ids; count == 0 {
			count = clamp32(ev.use.out.V - c.usage)
		}
		c.usage = max(c.usage, ev.use.out.V)
	case d.ids > 0:
		count = d.ids
	case d.probs > 0:
		count = d.probs
	}
	d.answer = d.answer || d.special && !r.streamed
	if !d.answer && !d.reason && !d.tool && d.ids == 0 && d.probs == 0 && !grew {
		return
	}
	c.tokens += int64(count)
	if count == 0 {
		c.known = false
	}
	if r.streamed {
		r.record(d, count)
	}
}

// record adds a token-carrying event to the exchange.
func (r *Response) record(d *delta, count int32) {
	x, flags := r.x, r.ev.flags
	if d.reason {
		flags |= formats.FlagReasoning
	}
	if d.tool {
		flags |= formats.FlagTool
	}
	if d.echo {
		flags |= formats.FlagEcho
	}
	if !x.FirstTokenNS.Valid {
		x.FirstTokenNS = formats.Of(r.now)
		r.lastAt, r.lastWrite = r.now, -1
		flags &^= formats.FlagCoalesced
	}
	if !x.FirstContentNS.Valid && (d.answer || d.tool) {
		x.FirstContentNS = formats.Of(r.now)
	}
	if r.lastWrite == r.writes || r.lastWrite >= 0 && r.lastAt == r.now {
		flags |= formats.FlagCoalesced
	}
	// Gaps are differences of rounded times, so that they add up to the last token's time.
	first := x.FirstTokenNS.V
	gap := micros(r.now-first) - micros(r.lastAt-first)
	r.lastAt, r.lastWrite = r.now, r.writes
	x.LastTokenNS = formats.Of(r.now)
	if d.index > 0 {
		r.several = true
	}
	if len(x.EventGapUS) == maxEvents || r.cutList {
		r.cutList = true
		return
	}
	n := len(x.EventGapUS)
	x.EventGapUS = append(x.EventGapUS, clamp32(gap))
	appendSparse(&x.EventTokens, n, count)
	appendSparse(&x.EventChoice, n, d.index)
	appendSparse(&x.EventFlags, n, flags)
}

// appendSparse appends to a list of n values that is nil while all are 0.
func appendSparse(list *[]int32, n int, v int32) {
	if *list != nil {
		*list = append(*list, v)
	} else if v != 0 {
		*list = append(make([]int32, n, 2*n+8), v)
	}
}

func micros(ns int64) int64 { return (ns + 500) / 1000 }

func clamp32(n int64) int32 { return int32(max(min(n, math.MaxInt32), 0)) }

// mergeUsage keeps the latest of every count.
func (r *Response) mergeUsage(u *usage) {
	take := func(to *formats.Null[int64], v formats.Null[int64]) {
		if v.Valid {
			*to = v
		}
	}
	take(&r.use.in, u.in)
	take(&r.use.out, u.out)
	take(&r.use.total, u.total)
	take(&r.use.cached, u.cached)
	take(&r.use.reason, u.reason)
	take(&r.use.inRest, u.inRest)
	take(&r.use.inRead, u.inRead)
	take(&r.use.inWritten, u.inWritten)
	take(&r.use.outCount, u.outCount)
	take(&r.use.inCount, u.inCount)
}

// End closes the response at the given time. complete says whether the HTTP body ended as its framing promised. It sets EndNS,
// EndReason, ErrorKind, token counts and the event lists. An EndReason that the caller has set before (client_abort, timeout,
// capture_cut, run_end) stays, and then ErrorKind is the caller's too.
func (r *Response) End(at int64, complete bool) {
	if r.ended {
		return
	}
	x := r.x
	switch r.mode {
	case modeUnknown:
		if len(r.first) > 0 {
			r.mode = modeOther
		}
	case modeStream:
		r.sse.end()
	case modeJSON:
		r.json.end()
		if r.ev.data || r.json.wrote {
			r.ev.data = true
			r.dispatch()
		}
	}
	r.ended = true
	x.EndNS = formats.Of(at)
	if !x.ResponseBytes.Valid {
		x.ResponseBytes = formats.Of(r.written)
	}
	if !x.Stream.Valid && r.written > 0 {
		x.Stream = formats.Of(r.streamed)
	}
	if x.FinishReason == "" && r.mode == modeJSON {
		x.FinishReason = r.statusEnd
	}
	r.counts()
	r.lists()
	if x.EndReason != "" {
		return
	}
	x.EndReason, x.ErrorKind = r.verdict(complete)
}

// verdict says how the response ended.
func (r *Response) verdict(complete bool) (formats.EndReason, string) {
	x := r.x
	complete = complete || r.done && r.finished()
	end := formats.EndComplete
	if !complete {
		end = formats.EndServerAbort
	}
	switch {
	case r.status >= 400:
		return end, "http_" + itoa(r.status)
	case r.failed:
		return formats.EndErrorInStream, formats.ErrorInStream
	case !complete && r.streamed && r.written > 0:
		return end, formats.ErrorIncomplete
	case !complete:
		return end, formats.ErrorReset
	case r.mode == modePage:
		return end, formats.ErrorHTML
	case r.mode == modeOther:
		return end, formats.ErrorContentType
	case r.lost:
		return end, "" // what is missing may have said more
	case r.bad:
		return end, formats.ErrorProtocol
	case !generates(x.Endpoint):
		return end, ""
	case r.written == 0:
		return end, formats.ErrorNoTokens
	case r.streamed && !r.finished():
		return end, formats.ErrorIncomplete
	case !r.hasTokens() && x.MaxTokens.Or(1) > 0:
		return end, formats.ErrorNoTokens
	}
	return end, ""
}

func generates(e formats.Endpoint) bool {
	return e == formats.EndpointChat || e == formats.EndpointCompletions || e == formats.EndpointResponses || e == formats.EndpointMessages
}

// finished reports whether every choice that spoke has said why it stopped.
func (r *Response) finished() bool {
	some := false
	for i := range r.choices {
		if c := &r.choices[i]; c.seen {
			if c.finish == "" {
				return false
			}
			some = true
		}
	}
	return some
}

func (r *Response) hasTokens() bool {
	if r.x.FirstTokenNS.Valid || r.x.OutputTokens.Or(0) > 0 {
		return true
	}
	return r.textBytes > 0 || r.mode == modeJSON && r.sawToken()
}

func (r *Response) sawToken() bool {
	for i := range r.choices {
		if c := &r.choices[i]; c.tokens > 0 || !c.known {
			return true
		}
	}
	return false
}

func itoa(n int) string {
	if n < 0 || n > 999 {
		return "other"
	}
	return string([]byte{'0' + byte(n/100), '0' + byte(n/10%10), '0' + byte(n%10)})
}

// counts sets the token counts: usage first, then what was counted event by event.
func (r *Response) counts() {
	x, u := r.x, &r.use
	if u.inRest.Valid && !u.in.Valid {
		u.in = formats.Of(u.inRest.V + u.inRead.Or(0) + u.inWritten.Or(0))
		if !u.cached.Valid {
			u.cached = u.inRead
		}
	}
	var each, counted int64
	exact := len(r.choices) > 0
	for i := range r.choices {
		each += r.choices[i].usage
		counted += r.choices[i].tokens
		exact = exact && r.choices[i].known
	}
	if r.several && r.contUsage == yes && u.out.Valid {
		u.out.V = max(u.out.V, each) // the total chunk never came
	}
	if !u.out.Valid && each > 0 {
		u.out = formats.Of(each)
	}
	// A usage of nothing at all is a server that did not count.
	empty := u.in.Or(0) == 0 && u.out.Or(0) == 0
	if !empty {
		if !u.in.Valid && u.total.Valid && !generates(x.Endpoint) {
			u.in = u.total
		}
		if !u.in.Valid && u.total.Valid && u.out.Valid {
			u.in = formats.Of(max(u.total.V-u.out.V, 0))
		}
	} else if u.total.Or(0) > 0 && !generates(x.Endpoint) {
		u.in, empty = u.total, false
	}
	set := func(n *formats.Null[int64], s *formats.TokenSource, v formats.Null[int64]) bool {
		if v.Valid {
			*n, *s = v, formats.TokensUsage
		}
		return v.Valid
	}
	if empty || !u.in.Valid || u.in.V == 0 {
		u.in = u.inCount
	}
	set(&x.InputTokens, &x.InputTokensSource, u.in)
	out := u.out
	if empty || out.Valid && out.V == 0 && r.sawToken() {
		out = formats.Null[int64]{}
	}
	if !out.Valid {
		out = u.outCount
	}
	if generates(x.Endpoint) && !set(&x.OutputTokens, &x.OutputTokensSource, out) && exact && counted > 0 && !r.lost {
		x.OutputTokens, x.OutputTokensSource = formats.Of(counted), formats.TokensTokenizer
	}
	if u.cached.Valid && !empty {
		x.CachedTokens = u.cached
	}
	if u.reason.Valid && !empty {
		x.ReasoningTokens = u.reason
	}
	if r.several && exact && !r.lost && counted > 0 && (!x.OutputTokens.Valid || x.OutputTokens.V == counted) {
		x.ChoiceOutputTokens = make([]int64, len(r.choices))
		for i := range r.choices {
			x.ChoiceOutputTokens[i] = r.choices[i].tokens
		}
	}
}

// lists drops what the event lists do not know. Where tokens per event were not told but there are as many events as tokens, each
// event brought one: an event without any is not in the list.
func (r *Response) lists() {
	x := r.x
	if r.cutList {
		x.EventGapUS, x.EventTokens, x.EventChoice, x.EventFlags = nil, nil, nil, nil
		return
	}
	// The lists of values that were all 0 are nil so far.
	var known int64
	unknown := len(x.EventGapUS)
	for _, n := range x.EventTokens {
		known += int64(n)
		if n != 0 {
			unknown--
		}
	}
	if unknown > 0 {
		if x.OutputTokens.Valid && x.OutputTokensSource == formats.TokensUsage && x.OutputTokens.V-known == int64(unknown) {
			if x.EventTokens == nil {
				x.EventTokens = make([]int32, unknown)
			}
			for i, n := range x.EventTokens {
				if n == 0 {
					x.EventTokens[i] = 1
				}
			}
		} else {
			x.EventTokens = nil
		}
	}
	switch {
	case !r.several:
		x.EventChoice = nil
	case x.EventChoice == nil && len(x.EventGapUS) > 0:
		x.EventChoice = make([]int32, len(x.EventGapUS))
	}
	if r.several && x.EventTokens != nil && x.ChoiceOutputTokens == nil && !r.lost {
		per, sum := make([]int64, len(r.choices)), int64(0)
		for i, n := range x.EventTokens {
			per[x.EventChoice[i]] += int64(n)
			sum += int64(n)
		}
		if sum == x.OutputTokens.V {
			x.ChoiceOutputTokens = per
		}
	}
}
