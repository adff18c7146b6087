package recorder

import (
	"fmt"
	"math"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/tokenizer"
)

// lengths supply token counts where a server gave none: by the tokenizer that the user named, else from how many bytes a token of the same
// model took in the exchanges whose server did count. Each is marked with its source. One for each engine; not safe for concurrent use.
type lengths struct {
	counter *tokenizer.Counter // nil: no tokenizer was named
	special int64              // tokens that the tokenizer puts around a prompt
	models  map[string]*modelLengths
}

// modelLengths is what was learned of one model.
type modelLengths struct {
	in, out bytesPerToken
	asked   map[shape]*overhead
	said    map[shape]*overhead
	answers int64 // with usage, complete
	warned  bool
}

// shape is what the tokens that a server adds depend on, besides the number of messages, prompts or choices.
type shape struct {
	kind  formats.Endpoint
	tools bool   // of a request: it offers some; of an answer: it calls some
	end   string // of an answer: length, or that it ended by itself
}

type bytesPerToken struct{ exchanges, bytes, tokens int64 }

const (
	enoughExchanges = 5    // that had usage
	enoughTokens    = 500  // in them
	maxModels       = 1024 // models that are learned of
	sampleFirst     = 32   // answers with usage that are counted all the same, to learn from; then every 16th
	sampleEvery     = 16
	maxAnswerText   = 4 << 20 // bytes of an answer that are kept to be counted
)

func (b *bytesPerToken) learn(bytes, tokens int64) {
	if bytes > 0 && tokens > 0 {
		b.exchanges++
		b.bytes += bytes
		b.tokens += tokens
	}
}

func (b *bytesPerToken) estimate(bytes int64) (int64, bool) {
	if bytes <= 0 || b.exchanges < enoughExchanges || b.tokens < enoughTokens {
		return 0, false
	}
	return max(int64(math.Round(float64(bytes)*float64(b.tokens)/float64(b.bytes))), 1), true
}

func overheadOf(m map[shape]*overhead, s shape) *overhead {
	if m[s] == nil {
		m[s] = &overhead{}
	}
	return m[s]
}

// text is what is known of an exchange's texts.
type text struct {
	prompt       int64          // bytes that the model read; 0: unknown
	answer       int64          // bytes that it wrote; 0: unknown
	promptTokens int64          // of the prompt's texts, by the tokenizer; −1: not counted
	count        func() []int64 // counts the answer's, by choice; nil where it cannot
}

// model returns what is known of a model, nil where there are too many or x names none.
func (l *lengths) model(name string) *modelLengths {
	m := l.models[name]
	if m == nil && name != "" && len(l.models) < maxModels {
		if m = (&modelLengths{asked: map[shape]*overhead{}, said: map[shape]*overhead{}}); l.models == nil {
			l.models = map[string]*modelLengths{}
		}
		l.models[name] = m
	}
	return m
}

// apply learns from an exchange, or fills in what it lacks. It returns a warning for the user, or "".
func (l *lengths) apply(x *formats.Exchange, t text, notes map[string]int64) string {
	good := x.Status.V == 200 && x.ErrorKind == "" && x.RequestModel != ""
	var m *modelLengths
	if good {
		m = l.model(x.RequestModel)
	} else {
		m = l.models[x.RequestModel]
	}
	if l.counter != nil {
		l.askedFor(x, t, m, good, notes)
		l.answered(x, t, m, good)
	}
	if m == nil || !good || x.ImageCount.Valid || x.AudioCount.Valid {
		return ""
	}
	switch {
	case x.InputTokensSource == formats.TokensUsage:
		m.in.learn(t.prompt, x.InputTokens.V)
	case !x.InputTokens.Valid:
		if n, ok := m.in.estimate(t.prompt); ok {
			x.InputTokens, x.InputTokensSource = formats.Of(n), formats.TokensEstimated
		}
	}
	if answers(x) && !x.GapBytes.Valid && !x.Truncated.V {
		switch {
		case x.OutputTokensSource == formats.TokensUsage && x.EndReason == formats.EndComplete:
			m.out.learn(t.answer, x.OutputTokens.V)
		case !x.OutputTokens.Valid:
			if n, ok := m.out.estimate(t.answer); ok {
				x.OutputTokens, x.OutputTokensSource = formats.Of(n), formats.TokensEstimated
			}
		}
	}
	if !m.warned && m.foreign() {
		m.warned = true
		return fmt.Sprintf("the tokenizer is not that of model %s: its counts miss the server's by more than %.0f %%, and are not used for it", x.RequestModel, 100*foreignShare)
	}
	return ""
}

// begun fills in what a request whose answer is awaited lacks.
func (l *lengths) begun(x *formats.Exchange, promptTokens int64) {
	if l.counter != nil {
		l.askedFor(x, text{promptTokens: promptTokens}, l.models[x.RequestModel], false, nil)
	}
}

// foreign reports whether the tokenizer is not this model's.
func (m *modelLengths) foreign() bool {
	for _, o := range m.asked {
		if o.foreign() {
			return true
		}
	}
	return false
}

func answers(x *formats.Exchange) bool {
	return x.Endpoint != formats.EndpointEmbeddings && x.Endpoint != formats.EndpointRerank
}

// askedFor counts a prompt.
func (l *lengths) askedFor(x *formats.Exchange, t text, m *modelLengths, good bool, notes map[string]int64) {
	if t.promptTokens < 0 {
		return
	}
	parts := int64(x.PromptCount.Or(1))
	conversation := x.Endpoint == formats.EndpointChat || x.Endpoint == formats.EndpointMessages || x.Endpoint == formats.EndpointResponses
	if conversation {
		parts = int64(x.MessageCount.Or(1))
	}
	s := shape{kind: x.Endpoint, tools: x.ToolCount.Or(0) > 0}
	if x.InputTokensSource == formats.TokensUsage {
		if good && m != nil {
			if off, judged := overheadOf(m.asked, s).learn(x.InputTokens.V, t.promptTokens, parts); judged {
				notes["tokenizer_checked_tokens"] += x.InputTokens.V
				notes["tokenizer_missed_tokens"] += off
			}
		}
		return
	}
	if x.InputTokens.Valid || m != nil && m.foreign() {
		return
	}
	n := t.promptTokens
	switch {
	case m != nil && m.asked[s] != nil && m.asked[s].n >= enoughLearned:
		n += m.asked[s].add(parts)
	case !conversation:
		n += l.special * parts
	}
	x.InputTokens, x.InputTokensSource = formats.Of(max(n, 0)), formats.TokensTokenizer
}

// answered counts an answer: where the server did not, and now and then where it did, to learn what it adds.
func (l *lengths) answered(x *formats.Exchange, t text, m *modelLengths, good bool) {
	if t.count == nil || !answers(x) || x.GapBytes.Valid || x.Truncated.V || x.Status.V != 200 {
		return
	}
	s := shape{kind: x.Endpoint, tools: x.FinishReason == "tool_calls", end: "itself"}
	if x.FinishReason == "length" {
		s.end = "length"
	}
	whole := good && m != nil && x.FinishReason != "" && x.EndReason == formats.EndComplete
	if x.OutputTokensSource == formats.TokensUsage {
		if !whole || x.ReasoningTokens.Or(0) > 0 {
			return
		}
		if m.answers++; m.answers > sampleFirst && m.answers%sampleEvery != 0 {
			return
		}
		if counts := t.count(); counts != nil {
			overheadOf(m.said, s).learn(x.OutputTokens.V, sum(counts), int64(len(counts)))
		}
		return
	}
	if x.OutputTokens.Valid || m != nil && m.foreign() {
		return
	}
	counts := t.count()
	n, choices := sum(counts), int64(len(counts))
	if n == 0 { // no text, or not all of it
		return
	}
	added := int64(0)
	if whole && m.said[s] != nil {
		added = max(m.said[s].each(choices), 0)
	}
	if choices > 1 {
		for i := range counts {
			counts[i] += added / choices
		}
		x.ChoiceOutputTokens = counts
	}
	x.OutputTokens, x.OutputTokensSource = formats.Of(n+added), formats.TokensTokenizer
}

func sum(n []int64) (s int64) {
	for _, v := range n {
		s += v
	}
	return s
}
