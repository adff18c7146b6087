package recorder

import (
	"math"

	"github.com/shadowtape/shadowtape/formats"
)

// ratios estimate token counts where a server gave none, from how many bytes a token of the same model took in the exchanges whose server
// did count. They are marked as estimated. One for each engine; not safe for concurrent use.
type ratios map[string]*ratio

// ratio is what was learned of one model.
type ratio struct{ in, out bytesPerToken }

type bytesPerToken struct{ exchanges, bytes, tokens int64 }

const (
	enoughExchanges = 5    // that had usage
	enoughTokens    = 500  // in them
	maxRatios       = 1024 // models
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

// apply learns from an exchange, or fills in what it lacks. prompt and text are the bytes that the model read and wrote; 0 is unknown, and
// so it is where bytes were lost.
func (r ratios) apply(x *formats.Exchange, prompt, text int64) {
	if x.Status.V != 200 || x.ErrorKind != "" || x.RequestModel == "" || x.ImageCount.Valid || x.AudioCount.Valid {
		return
	}
	m := r[x.RequestModel]
	if m == nil {
		if len(r) >= maxRatios {
			return
		}
		m = &ratio{}
		r[x.RequestModel] = m
	}
	switch {
	case x.InputTokensSource == formats.TokensUsage:
		m.in.learn(prompt, x.InputTokens.V)
	case !x.InputTokens.Valid:
		if n, ok := m.in.estimate(prompt); ok {
			x.InputTokens, x.InputTokensSource = formats.Of(n), formats.TokensEstimated
		}
	}
	if x.Endpoint == formats.EndpointEmbeddings || x.Endpoint == formats.EndpointRerank || x.GapBytes.Valid || x.Truncated.V {
		return
	}
	switch {
	case x.OutputTokensSource == formats.TokensUsage && x.EndReason == formats.EndComplete:
		m.out.learn(text, x.OutputTokens.V)
	case !x.OutputTokens.Valid:
		if n, ok := m.out.estimate(text); ok {
			x.OutputTokens, x.OutputTokensSource = formats.Of(n), formats.TokensEstimated
		}
	}
}
