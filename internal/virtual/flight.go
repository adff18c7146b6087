package virtual

import (
	"time"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/engine"
	"github.com/shadowtape/shadowtape/replayer/schedule"
)

// errorNoLength marks arrivals that could not be sent because the trace does not say how long they are.
const errorNoLength = "no_length"

// flight is one exchange on its way.
type flight struct {
	run      *run
	at       time.Duration // arrival
	id       schedule.ID   // of the recorded exchange
	row      *formats.Exchange
	requests []engine.Request // one a choice
	open     int              // of these
	aborts   bool             // the client leaves after the last token
	done     bool
	last     time.Duration // token
	first    time.Duration // token
}

// token books a choice's next token.
func (f *flight) token(q *engine.Request, at time.Duration) {
	x := f.row
	if len(x.EventGapUS) == 0 && !x.FirstTokenNS.Valid {
		f.first, f.last = at, at
		x.FirstTokenNS = formats.Of(int64(at - f.at))
	}
	f.row.LastTokenNS = formats.Of(int64(at - f.at))
	if x.Stream.V {
		us := func(t time.Duration) int64 { return int64(t-f.first) / 1000 }
		x.EventGapUS = append(x.EventGapUS, int32(min(us(at)-us(f.last), 1<<31-1)))
		if len(f.requests) > 1 {
			for i := range f.requests {
				if &f.requests[i] == q {
					x.EventChoice = append(x.EventChoice, int32(i))
				}
			}
		}
	}
	f.last = at
}

// ended books the end of a choice.
func (f *flight) ended(at time.Duration) {
	if f.open--; f.open > 0 {
		return
	}
	x := f.row
	f.close(at)
	end := int64(at - f.at)
	x.EndNS, x.Status, x.EndReason = formats.Of(end), formats.Of[int32](200), formats.EndComplete
	x.ResponseModel = f.run.o.Profile.Model
	x.InputTokensSource, x.OutputTokensSource = formats.TokensUsage, formats.TokensUsage
	total, cached := int64(0), int64(0)
	for i := range f.requests {
		total += int64(f.requests[i].Generated)
		cached = max(cached, int64(f.requests[i].Cached)) // choices share the prompt: what the others find is the first one's
		if len(f.requests) > 1 {
			x.ChoiceOutputTokens = append(x.ChoiceOutputTokens, int64(f.requests[i].Generated))
		}
	}
	x.OutputTokens, x.CachedTokens = formats.Of(total), formats.Of(cached)
	if total > 0 {
		x.FinishReason = "length"
	}
	if f.aborts {
		x.EndReason, x.PlannedAbort, x.FinishReason = formats.EndClientAbort, formats.Of(true), ""
	}
	if !x.Stream.V {
		x.FirstTokenNS, x.LastTokenNS = formats.Null[int64]{}, formats.Null[int64]{}
		x.ResponseHeaderNS = formats.Of(end)
		return
	}
	x.ResponseHeaderNS, x.FirstEventNS, x.FirstContentNS = x.FirstTokenNS, x.FirstTokenNS, x.FirstTokenNS
	for len(f.run.ones) < len(x.EventGapUS) {
		f.run.ones = append(f.run.ones, 1)
	}
	x.EventTokens = f.run.ones[:len(x.EventGapUS)]
}

// close lets those go on that waited for the end.
func (f *flight) close(at time.Duration) {
	f.done = true
	f.run.feed.ended(f.id, at)
}

// drop ends an arrival that is not sent.
func (f *flight) drop(reason string) {
	f.close(f.at)
	f.row.SentNS, f.row.RequestEndNS = formats.Null[int64]{}, formats.Null[int64]{}
	f.row.ErrorKind, f.row.EndReason = reason, formats.EndNotSent
}

// refuse ends a request that no server of this kind could take.
func (f *flight) refuse() {
	f.close(f.at)
	f.row.Status, f.row.ErrorKind, f.row.EndReason = formats.Of[int32](400), "http_400", formats.EndComplete
	f.row.EndNS, f.row.ResponseHeaderNS = formats.Of[int64](0), formats.Of[int64](0)
}

// requested is the row of a request that was just sent: identity, request and sampling columns of the recorded one.
func requested(x *formats.Exchange) *formats.Exchange {
	stream := x.Stream
	if !stream.Valid {
		stream = formats.Of(x.Endpoint != formats.EndpointEmbeddings && x.Endpoint != formats.EndpointRerank)
	}
	source := x.SourceID
	if !source.Valid {
		source = formats.Of(x.ExchangeID)
	}
	endpoint := x.Endpoint
	if endpoint == "" {
		endpoint = formats.EndpointCompletions
	}
	return &formats.Exchange{
		SourceID: source, Loop: x.Loop, SessionID: x.SessionID, Turn: x.Turn, ParentID: x.ParentID, TenantID: x.TenantID,
		Phase: formats.PhaseMeasure, SentNS: formats.Of[int64](0), RequestEndNS: formats.Of[int64](0), Attempt: formats.Of[int32](1), Drawn: x.Drawn,
		Endpoint: endpoint, RequestModel: x.RequestModel, Stream: stream, RequestBytes: x.RequestBytes, PromptCount: x.PromptCount, InputTokens: x.InputTokens,
		InputTokensSource: x.InputTokensSource, MessageCount: x.MessageCount, ToolCount: x.ToolCount, ToolBytes: x.ToolBytes, ImageCount: x.ImageCount,
		ImagePixels: x.ImagePixels, AudioCount: x.AudioCount, PrefixBlocks: x.PrefixBlocks, PrefixTailTokens: x.PrefixTailTokens,
		Temperature: x.Temperature, TopP: x.TopP, TopK: x.TopK, MinP: x.MinP, PresencePenalty: x.PresencePenalty, FrequencyPenalty: x.FrequencyPenalty,
		RepetitionPenalty: x.RepetitionPenalty, Seed: x.Seed, N: x.N, BestOf: x.BestOf, Logprobs: x.Logprobs, MaxTokens: x.MaxTokens, MinTokens: x.MinTokens,
		StopCount: x.StopCount, IgnoreEOS: x.IgnoreEOS, ResponseFormat: x.ResponseFormat, ReasoningEffort: x.ReasoningEffort, ServiceTier: x.ServiceTier,
		Priority: x.Priority, CacheSalted: x.CacheSalted, TemplateFlags: x.TemplateFlags, ExtraParams: x.ExtraParams,
	}
}

// outputs are the tokens to generate for each choice, or the reason why a request cannot be sent.
func outputs(x *formats.Exchange) (lengths []int, reason string) {
	if !x.InputTokens.Valid || x.InputTokens.V < 1 || x.InputTokens.V > 1<<31 {
		return nil, errorNoLength
	}
	if x.Endpoint == formats.EndpointEmbeddings || x.Endpoint == formats.EndpointRerank {
		return []int{0}, ""
	}
	if len(x.ChoiceOutputTokens) > 1 {
		for _, n := range x.ChoiceOutputTokens {
			lengths = append(lengths, int(min(max(n, 1), 1<<31)))
		}
		return lengths, ""
	}
	if !x.OutputTokens.Valid || x.OutputTokens.V < 0 || x.OutputTokens.V > 1<<31 {
		return nil, errorNoLength
	}
	n := max(1, int(min(x.N.Or(1), 1024)))
	for range n {
		lengths = append(lengths, max(1, int(x.OutputTokens.V)/n))
	}
	return lengths, ""
}
