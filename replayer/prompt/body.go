package prompt

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/stats"
)

// ErrStateful refuses a request that continues what only the recorded server holds.
var ErrStateful = errors.New("it continues a conversation that only the recorded server holds")

// Body makes the request of an exchange, and sets in x what is asked for.
func (p *Maker) Body(x *formats.Exchange) ([]byte, error) {
	if x.Endpoint == "" {
		x.Endpoint = p.o.Endpoint
	}
	if !x.InputTokens.Valid || x.InputTokens.V < 0 {
		return nil, errors.New("the trace does not say how long the prompt was")
	}
	for _, name := range x.ExtraParams {
		if name == "previous_response_id" || name == "conversation" {
			return nil, ErrStateful
		}
	}
	x.RequestModel = p.o.Model
	w := writer{b: make([]byte, 0, 512+6*x.InputTokens.V)}
	w.b = append(w.b, '{')
	w.str("model", p.o.Model)
	switch x.Endpoint {
	case formats.EndpointChat:
		p.chat(&w, x)
	case formats.EndpointCompletions:
		w.name("prompt")
		p.prompt(&w, x, &p.o.CompletionText)
	case formats.EndpointResponses:
		w.name("input")
		p.quoted(&w, x, x.InputTokens.V, &p.o.Text)
		x.InputTokensSource = formats.TokensEstimated
	case formats.EndpointMessages:
		p.messages(&w, x)
		x.InputTokensSource = formats.TokensEstimated
	case formats.EndpointEmbeddings:
		w.name("input")
		p.prompt(&w, x, &p.o.CompletionText)
		w.b = append(w.b, '}')
		return w.b, nil
	case formats.EndpointRerank:
		w.str("query", "which of these")
		w.name("documents")
		w.b = append(w.b, '[')
		p.quoted(&w, x, x.InputTokens.V, &p.o.CompletionText)
		w.b = append(w.b, "]}"...)
		x.InputTokensSource = formats.TokensEstimated
		return w.b, nil
	default:
		return nil, fmt.Errorf("requests to the endpoint %q cannot be made", x.Endpoint)
	}
	p.stream(&w, x)
	p.lengths(&w, x)
	p.sampling(&w, x)
	w.b = append(w.b, '}')
	return w.b, nil
}

// prompt writes one prompt, or a list of PromptCount of them, as token ids or as text.
func (p *Maker) prompt(w *writer, x *formats.Exchange, c *Calibration) {
	n := x.InputTokens.V
	x.InputTokensSource = formats.TokensEstimated
	if p.o.TokenIDs {
		x.InputTokensSource = formats.TokensTokenizer
	}
	count := max(int64(x.PromptCount.Or(1)), 1)
	if count == 1 {
		p.one(w, x, n, c)
		return
	}
	p.note("prompts_divided")
	w.b = append(w.b, '[')
	for i := range count {
		if i > 0 {
			w.b = append(w.b, ',')
		}
		part := *x // each prompt is its own, in equal shares: how they were divided is not recorded
		part.PrefixBlocks = nil
		part.SourceID = formats.Of(x.SourceID.Or(x.ExchangeID) + i<<40)
		p.one(w, &part, n*(i+1)/count-n*i/count, c)
	}
	w.b = append(w.b, ']')
}

func (p *Maker) one(w *writer, x *formats.Exchange, n int64, c *Calibration) {
	if p.o.TokenIDs {
		w.b = p.ids(w.b, x, n)
		return
	}
	p.quoted(w, x, n, c)
}

// quoted writes a text of n tokens, the calibration's overhead taken off.
func (p *Maker) quoted(w *writer, x *formats.Exchange, n int64, c *Calibration) {
	w.b = append(w.b, '"')
	w.b = p.text(w.b, x, max(n-int64(c.Overhead+0.5), 1), c)
	w.b = append(w.b, '"')
}

func (p *Maker) chat(w *writer, x *formats.Exchange) {
	tokens := x.InputTokens.V
	if x.ToolCount.V > 0 {
		if p.o.Text.TokensPerToolByte > 0 {
			p.tools(w, x)
			tokens = max(tokens-p.toolTokens(x), 1)
		} else {
			p.note("tools_left_out")
			x.ToolCount, x.ToolBytes = formats.Null[int32]{}, none
		}
	}
	if x.ImageCount.V > 0 && !p.o.Images {
		p.note("images_left_out")
		x.ImageCount, x.ImagePixels = formats.Null[int32]{}, none
	}
	if x.AudioCount.V > 0 { // how long it was is not recorded
		p.note("audio_left_out")
		x.AudioCount = formats.Null[int32]{}
	}
	w.name("messages")
	p.chatMessages(w, x, tokens)
	x.InputTokensSource = formats.TokensEstimated
	if len(x.TemplateFlags) > 0 {
		w.name("chat_template_kwargs")
		w.b = append(w.b, '{')
		for i, f := range x.TemplateFlags {
			k, v, ok := strings.Cut(f, "=")
			if !ok || !json.Valid([]byte(v)) {
				continue
			}
			if i > 0 && w.b[len(w.b)-1] != '{' {
				w.b = append(w.b, ',')
			}
			w.b = strconv.AppendQuote(w.b, k)
			w.b = append(w.b, ':')
			w.b = append(w.b, v...)
		}
		w.b = append(w.b, '}')
	}
}

func (p *Maker) messages(w *writer, x *formats.Exchange) {
	w.name("messages")
	w.b = append(w.b, `[{"role":"user","content":`...)
	p.quoted(w, x, x.InputTokens.V, &p.o.Text)
	w.b = append(w.b, "}]"...)
}

// stream keeps the recorded flag; where it is unknown the answer is streamed, because only then it can be measured.
func (p *Maker) stream(w *writer, x *formats.Exchange) {
	if !x.Stream.Valid {
		x.Stream = formats.Of(true)
		p.note("stream_unknown")
	}
	w.raw("stream", strconv.FormatBool(x.Stream.V))
	if x.Stream.V && (x.Endpoint == formats.EndpointChat || x.Endpoint == formats.EndpointCompletions) {
		w.raw("stream_options", `{"include_usage":true}`)
	}
}

// lengths asks for as many tokens as were recorded, and forces them where the server can.
func (p *Maker) lengths(w *writer, x *formats.Exchange) {
	field := "max_tokens"
	switch {
	case x.Endpoint == formats.EndpointResponses:
		field = "max_output_tokens"
	case x.Endpoint == formats.EndpointChat && p.o.Dialect.MaxField != "":
		field = p.o.Dialect.MaxField
	}
	n := x.OutputTokens.V
	if c := x.N.Or(1); c > 1 { // of each choice: the longest where they are known
		n = (n + int64(c) - 1) / int64(c)
		for _, v := range x.ChoiceOutputTokens {
			n = max(n, v)
		}
	}
	if x.PlannedAbort.V { // the answer must be longer than what is read of it
		n = max(x.MaxTokens.V, 2*n+256)
	} else if p.o.Natural || !x.OutputTokens.Valid {
		if !x.OutputTokens.Valid {
			p.note("output_unknown")
		}
		if x.MaxTokens.Valid {
			w.int(field, x.MaxTokens.V)
		} else if x.Endpoint == formats.EndpointMessages {
			w.int(field, 4096)
		}
		if x.MinTokens.Valid && p.o.Dialect.MinTokens != "" {
			w.int(p.o.Dialect.MinTokens, x.MinTokens.V)
		}
		if x.IgnoreEOS.V && p.o.Dialect.IgnoreEOS {
			w.raw("ignore_eos", "true")
		}
		return
	}
	n = max(n, 1) // an answer of no token cannot be asked for
	w.int(field, n)
	x.MaxTokens = formats.Of(n)
	x.MinTokens, x.IgnoreEOS = none, formats.Null[bool]{}
	d := p.o.Dialect
	if !d.Forces() || x.Endpoint == formats.EndpointResponses || x.Endpoint == formats.EndpointMessages {
		p.note("output_not_forced")
		return
	}
	w.raw("ignore_eos", "true")
	x.IgnoreEOS = formats.Of(true)
	if d.MinTokens != "" {
		w.int(d.MinTokens, n)
		x.MinTokens = formats.Of(n)
	}
	if x.StopCount.V > 0 {
		x.StopCount = formats.Null[int32]{}
		p.note("stop_left_out")
	}
	if x.ResponseFormat != "" && x.ResponseFormat != "text" {
		x.ResponseFormat = ""
		p.note("response_format_left_out")
	}
}

// sampling sends the parameters as recorded.
func (p *Maker) sampling(w *writer, x *formats.Exchange) {
	d := p.o.Dialect
	if p.o.Greedy {
		x.Temperature = formats.Of(0.0)
		x.TopP, x.MinP, x.TopK = formats.Null[float64]{}, formats.Null[float64]{}, none
	}
	w.float("temperature", x.Temperature)
	w.float("top_p", x.TopP)
	if x.Endpoint == formats.EndpointChat || x.Endpoint == formats.EndpointCompletions {
		w.float("presence_penalty", x.PresencePenalty)
		w.float("frequency_penalty", x.FrequencyPenalty)
		w.null("seed", x.Seed)
		if x.N.V > 1 {
			w.int("n", int64(x.N.V))
		}
		if x.Logprobs.Valid {
			if x.Endpoint == formats.EndpointChat {
				w.raw("logprobs", "true")
				if x.Logprobs.V > 0 {
					w.int("top_logprobs", int64(x.Logprobs.V))
				}
			} else {
				w.int("logprobs", int64(x.Logprobs.V))
			}
		}
		if x.Endpoint == formats.EndpointCompletions && x.BestOf.V > 1 {
			w.int("best_of", int64(x.BestOf.V))
		}
		if x.Endpoint == formats.EndpointChat && x.ReasoningEffort != "" && x.ReasoningEffort != "other" {
			w.str("reasoning_effort", x.ReasoningEffort)
		}
	}
	if d.Extended {
		w.null("top_k", x.TopK)
		w.float("min_p", x.MinP)
		w.float("repetition_penalty", x.RepetitionPenalty)
	}
	if d.Priority && x.Priority.Valid {
		w.int("priority", int64(x.Priority.V))
	}
	if x.CacheSalted.V {
		if d.CacheSalt { // one salt a tenant, else a session, else all: renewed by the seed
			id := p.key('c', uint64(hashOf(x.TenantID))^stats.Mix(uint64(hashOf(x.SessionID))))
			w.str("cache_salt", strconv.FormatUint(id, 16))
		} else {
			p.note("cache_salt_left_out")
		}
	}
}

func hashOf(h formats.Null[formats.Hash]) (v uint64) {
	for _, b := range h.V {
		v = v<<8 | uint64(b)
	}
	return v
}

// writer appends the members of a JSON object.
type writer struct{ b []byte }

func (w *writer) name(k string) {
	if w.b[len(w.b)-1] != '{' {
		w.b = append(w.b, ',')
	}
	w.b = append(w.b, '"')
	w.b = append(w.b, k...)
	w.b = append(w.b, '"', ':')
}

func (w *writer) str(k, v string) {
	w.name(k)
	q, _ := json.Marshal(v) // a string always marshals
	w.b = append(w.b, q...)
}

func (w *writer) raw(k, v string) {
	w.name(k)
	w.b = append(w.b, v...)
}

func (w *writer) int(k string, v int64) {
	w.name(k)
	w.b = strconv.AppendInt(w.b, v, 10)
}

func (w *writer) null(k string, v formats.Null[int64]) {
	if v.Valid {
		w.int(k, v.V)
	}
}

func (w *writer) float(k string, v formats.Null[float64]) {
	if v.Valid {
		w.name(k)
		w.b = strconv.AppendFloat(w.b, v.V, 'g', -1, 64)
	}
}
