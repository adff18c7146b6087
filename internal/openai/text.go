package openai

import (
	"bytes"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/tokenizer"
)

// texts is what a Response looks at generated text for: to count its tokens at the end, and to tell an echoed prompt from it. It lives in
// memory only, as long as the response does.
type texts struct {
	keep    bool
	limit   int // bytes, of all choices together
	size    int
	over    bool // some text was not kept
	choices []choiceText
	echo    *Echo
	echoed  []int // bytes of its prompt that each choice has repeated so far
	mixed   bool  // an echoed prompt may stand among the text
	scratch []byte
}

// choiceText is the text of one choice, by what it is: they are tokenized apart.
type choiceText struct{ answer, reasoning, tool []byte }

// textSpan is one string of an event.
type textSpan struct {
	delta     int // position in deltas, −1: outside choices
	field     field
	from, end int // in the event's raw
}

// maxEcho is the longest prompt, in bytes of all prompts of a request, that is looked for in an answer that repeats it.
const maxEcho = 1 << 20

// Echo is the prompt that a request asked to be repeated before the answer.
type Echo struct {
	prompts [][]byte // what each prompt looks like; nil: it cannot be known (token ids, too long)
	n       int      // choices a prompt
}

// Size is how many bytes of text it holds.
func (e *Echo) Size() int {
	n := 0
	if e != nil {
		for _, p := range e.prompts {
			n += len(p)
		}
	}
	return n
}

// Unknown is an echo whose prompt is not known.
func (e *Echo) Unknown() *Echo {
	if e == nil {
		return nil
	}
	return &Echo{n: e.n}
}

// Echoed returns what a request asks to be repeated ("echo"), nil where it asks for nothing. Completions repeat the prompt, in the event of
// the first token or in events before it; chat completions (vLLM) the last message, where it is the assistant's.
func Echoed(endpoint formats.Endpoint, body []byte) *Echo {
	if endpoint != formats.EndpointCompletions && endpoint != formats.EndpointChat || !bytes.Contains(body, []byte(`"echo"`)) {
		return nil
	}
	var on bool
	var prompt, messages value
	e := &Echo{n: 1}
	value(body).members(func(k []byte, v value) {
		switch string(k) {
		case "echo":
			on = v.kind() == 't'
		case "prompt":
			prompt = v
		case "messages":
			messages = v
		case "n":
			if n, ok := v.integer(); ok && n > 1 && n < maxChoices {
				e.n = int(n)
			}
		}
	})
	if !on {
		return nil
	}
	size, known := 0, true
	add := func(v value) {
		if size += len(v); v.kind() != '"' || size > maxEcho {
			known = false
			return
		}
		e.prompts = append(e.prompts, []byte(v.unescape(v[1:len(v)-1])))
	}
	switch {
	case endpoint == formats.EndpointChat:
		if add(lastOfAssistant(messages)); len(e.prompts) == 0 {
			return nil
		}
	case prompt.kind() == '[':
		prompt.elements(add)
	default:
		add(prompt)
	}
	if !known {
		e.prompts = nil
	}
	return e
}

// lastOfAssistant is the content of the last message, where it is a text of the assistant's.
func lastOfAssistant(messages value) (content value) {
	var last value
	messages.elements(func(m value) { last = m })
	role := ""
	last.members(func(k []byte, v value) {
		switch string(k) {
		case "role":
			role = v.str(16)
		case "content":
			content = v
		}
	})
	if role != "assistant" {
		return nil
	}
	return content
}

// of returns the prompt that a choice repeats.
func (e *Echo) of(choice int) ([]byte, bool) {
	if i := choice / e.n; i < len(e.prompts) {
		return e.prompts[i], true
	}
	return nil, false
}

// Expect says that the answer may repeat a prompt, which is then not taken for generated text. Where it cannot be told from what is
// generated, the event is flagged (formats.FlagEcho). nil expects nothing. Call it before the first Write.
func (r *Response) Expect(e *Echo) {
	if e != nil {
		r.watch().echo = e
	}
}

// KeepText keeps generated text in memory, at most limit bytes of it, so that its tokens can be counted. Call it before the first Write.
func (r *Response) KeepText(limit int) {
	t := r.watch()
	t.keep, t.limit = true, limit
}

func (r *Response) watch() *texts {
	if r.texts == nil {
		r.texts = &texts{limit: maxEcho}
	}
	return r.texts
}

// TextSize is how many bytes of text are held.
func (r *Response) TextSize() int {
	if r.texts == nil {
		return 0
	}
	return r.texts.size
}

// DropText lets go of the text: it is not counted.
func (r *Response) DropText() {
	if t := r.texts; t != nil {
		t.choices, t.size, t.over = nil, 0, true
	}
}

// CountText counts the generated tokens of each choice by a tokenizer: answer, reasoning and tool calls each as a text of its own. It
// returns nil where not all text was kept.
func (r *Response) CountText(c *tokenizer.Counter) []int64 {
	t := r.texts
	if t == nil || !t.keep || t.over || t.mixed || r.lost || r.bad {
		return nil
	}
	counts := make([]int64, len(t.choices))
	for i := range t.choices {
		for _, text := range [][]byte{t.choices[i].answer, t.choices[i].reasoning, t.choices[i].tool} {
			n, ok := c.Count(text)
			if !ok {
				return nil
			}
			counts[i] += n
		}
	}
	return counts
}

// beginText starts a string of the event being read and reports whether it is wanted.
func (r *Response) beginText() bool {
	if r.texts.over && r.texts.echo == nil {
		return false
	}
	delta := -1
	if r.ev.open {
		delta = len(r.ev.deltas) - 1
	}
	r.ev.spans = append(r.ev.spans, textSpan{delta: delta, from: len(r.ev.raw)})
	return true
}

func (r *Response) takeText(p []byte) {
	if len(r.ev.raw)+len(p) > 2*r.texts.limit {
		r.texts.over = true
		return
	}
	r.ev.raw = append(r.ev.raw, p...)
}

func (r *Response) tookText(f field) {
	s := &r.ev.spans[len(r.ev.spans)-1]
	s.field, s.end = f, len(r.ev.raw)
}

// shapely reports whether the event's text is one string, so that the next one's can be cut out without reading it.
func (r *Response) shapely() bool {
	return r.texts == nil || len(r.ev.spans) == 1 && r.ev.spans[0].from == 0 && r.ev.spans[0].end == r.json.genTo-r.json.genFrom && !r.texts.over
}

// sortTexts gives the strings of an event to their choices. top is the position of what stands outside choices, −1: there is nothing;
// kind is what a typed event's delta is.
func (r *Response) sortTexts(top int, kind field) {
	t := r.texts
	for _, s := range r.ev.spans {
		if s.delta < 0 {
			s.delta = top
		}
		if s.field == eventDelta {
			s.field = kind
		}
		if s.delta < 0 || s.end < s.from || s.field == cumulative && r.streamed {
			continue
		}
		d := &r.ev.deltas[s.delta]
		if int(d.index) >= maxChoices {
			continue
		}
		raw := r.ev.raw[s.from:s.end]
		text := t.scratch[:0]
		unescape(raw, func(p []byte) { text = append(text, p...) })
		t.scratch = text
		switch s.field {
		case content, refusal, cumulative:
			if t.echo != nil {
				before := len(text)
				text = r.withoutEcho(d, text)
				r.ev.bytes -= int64(len(raw) * (before - len(text)) / max(before, 1))
			}
			r.keepText(d.index, text, func(c *choiceText) *[]byte { return &c.answer })
		case reasoning:
			r.keepText(d.index, text, func(c *choiceText) *[]byte { return &c.reasoning })
		case tool:
			r.keepText(d.index, text, func(c *choiceText) *[]byte { return &c.tool })
		}
	}
	if cap(t.scratch) > 64<<10 {
		t.scratch = nil
	}
	if cap(r.ev.raw) > 64<<10 {
		r.ev.raw = nil
	}
}

func (r *Response) keepText(choice int32, text []byte, to func(*choiceText) *[]byte) {
	t := r.texts
	if !t.keep || t.over || len(text) == 0 {
		return
	}
	if t.size += len(text); t.size > t.limit {
		r.DropText()
		return
	}
	for len(t.choices) <= int(choice) {
		t.choices = append(t.choices, choiceText{})
	}
	b := to(&t.choices[choice])
	*b = append(*b, text...)
}

// withoutEcho takes the echoed prompt off a choice's text. An event that brings nothing else brings no token; one that brings more has
// its first token, and how many it has is not known, as counts of its tokens include the prompt's.
func (r *Response) withoutEcho(d *delta, text []byte) []byte {
	t := r.texts
	for len(t.echoed) <= int(d.index) {
		t.echoed = append(t.echoed, 0)
	}
	at := &t.echoed[d.index]
	if *at < 0 || len(text) == 0 { // the prompt is over
		return text
	}
	prompt, ok := t.echo.of(int(d.index))
	rest := []byte(nil)
	if ok {
		rest = prompt[*at:]
	}
	n := 0
	for n < len(rest) && n < len(text) && rest[n] == text[n] {
		n++
	}
	switch {
	case ok && n == len(rest):
		*at = -1
	case ok && n == len(text):
		*at += n
	default: // it is something else than the prompt as it was sent
		*at, t.mixed, d.echo = -1, true, true
		return text
	}
	if n == 0 { // an empty prompt
		return text
	}
	d.ids, d.probs = 0, 0
	if n == len(text) {
		d.answer, d.special = false, false
	}
	return text[n:]
}
