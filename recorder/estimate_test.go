package recorder

import (
	"fmt"
	"strings"
	"testing"

	"github.com/shadowtape/shadowtape/formats"
)

// TestEstimates: what a server does not count is estimated from exchanges of the same model that were counted, and marked.
func TestEstimates(t *testing.T) {
	var pairs [][2]string
	exchange := func(model string, words, answers int, usage bool) {
		body := fmt.Sprintf(`{"model":"%s","messages":[{"role":"user","content":"%s"}]}`, model, strings.Repeat("word ", words))
		u := ""
		if usage {
			u = fmt.Sprintf(`,"usage":{"prompt_tokens":%d,"completion_tokens":%d}`, words, answers)
		}
		a := fmt.Sprintf(`{"choices":[{"index":0,"message":{"content":"%s"},"finish_reason":"stop"}]%s}`, strings.Repeat("abcd", answers), u)
		pairs = append(pairs, [2]string{string(post("/v1/chat/completions", "x", body)), answerOf(a, "Content-Type: application/json")})
	}
	exchange("a", 100, 50, false) // nothing is known yet
	for range 6 {
		exchange("a", 200, 100, true)
	}
	exchange("a", 1000, 300, false)
	exchange("b", 1000, 300, false) // another model
	xs, _ := recordFrames(t, exchangeFrames(pairs...))
	if len(xs) != 9 {
		t.Fatalf("%d rows", len(xs))
	}
	for _, i := range []int{0, 8} {
		if xs[i].InputTokens.Valid || xs[i].OutputTokens.Valid {
			t.Errorf("row %d: guessed from nothing: %v %v", i, xs[i].InputTokens, xs[i].OutputTokens)
		}
	}
	x := xs[7]
	if x.InputTokensSource != formats.TokensEstimated || x.OutputTokensSource != formats.TokensEstimated || x.OutputTokens.V != 300 || x.InputTokens.V < 990 || x.InputTokens.V > 1010 || x.EventTokens != nil {
		t.Errorf("estimates: %v %v %v %v", x.InputTokens, x.InputTokensSource, x.OutputTokens, x.OutputTokensSource)
	}
}
