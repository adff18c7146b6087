package recorder

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/tokenizer"
)

// cl100k is the encoding that these tests count by.
var cl100k = sync.OnceValues(func() (*tokenizer.Model, error) { return tokenizer.Open("cl100k_base") })

func encoding(t testing.TB) *tokenizer.Model {
	t.Helper()
	m, err := cl100k()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// tokens counts a text.
func tokens(t testing.TB, text string) int64 {
	t.Helper()
	n, ok := encoding(t).NewCounter().Count([]byte(text))
	if !ok {
		t.Fatal("not counted")
	}
	return n
}

// recordCounted records a capture with the tokenizer.
func recordCounted(t testing.TB, frames []frame) ([]*formats.Exchange, Stats) {
	t.Helper()
	var out collect
	src := &Files{Names: []string{write(t, pcapBytes(linkEthernet, frames))}, Key: []byte("key"), Counting: Counting{Tokenizer: encoding(t)}}
	st, err := Record(t.Context(), src, &out, Options{})
	if err != nil {
		t.Fatal(err)
	}
	return out, st
}

// chatOf is a request of messages with the given texts, and an answer with the given choices; usage is left out where it is "".
func chatOf(model, usage string, answers []string, finish string, texts ...string) [2]string {
	var messages, choices []string
	for _, s := range texts {
		messages = append(messages, fmt.Sprintf(`{"role":"user","content":%q}`, s))
	}
	for i, a := range answers {
		choices = append(choices, fmt.Sprintf(`{"index":%d,"message":{"content":%q},"finish_reason":%q}`, i, a, finish))
	}
	body := fmt.Sprintf(`{"model":%q,"n":%d,"messages":[%s]}`, model, len(answers), strings.Join(messages, ","))
	answer := fmt.Sprintf(`{"choices":[%s]%s}`, strings.Join(choices, ","), usage)
	return [2]string{string(post("/v1/chat/completions", "x", body)), answerOf(answer, "Content-Type: application/json")}
}

const (
	question1 = "What is the capital of the land of ten thousand lakes? 答えてください。"
	answer1   = "It depends: Helsinki, or Saint Paul — both claim it.\n\n1. Finland\n2. Minnesota"
)

// TestTokenizer: usage wins; without it the tokenizer counts, and adds what it has learned that the model's template adds.
func TestTokenizer(t *testing.T) {
	in, out := tokens(t, question1), tokens(t, answer1)
	usage := func(messages, choices int64) string { // a template of 3 tokens, and 4 a message; one ends an answer
		return fmt.Sprintf(`,"usage":{"prompt_tokens":%d,"completion_tokens":%d}`, in*messages+3+4*messages, (out+1)*choices)
	}
	one, two, three := []string{question1}, []string{question1, question1}, []string{question1, question1, question1}
	pairs := [][2]string{chatOf("a", "", []string{answer1}, "stop", one...)} // nothing is known yet
	for range 3 {
		pairs = append(pairs, chatOf("a", usage(1, 1), []string{answer1}, "stop", one...), chatOf("a", usage(3, 1), []string{answer1}, "stop", three...))
	}
	pairs = append(pairs,
		chatOf("a", "", []string{answer1}, "stop", two...),
		chatOf("a", "", []string{answer1}, "length", two...),
		chatOf("b", "", []string{answer1}, "stop", two...), // another model
		chatOf("a", "", []string{answer1, "Yes."}, "stop", two...))
	xs, st := recordCounted(t, exchangeFrames(pairs...))
	if len(xs) != len(pairs) {
		t.Fatalf("%d rows", len(xs))
	}
	for _, c := range []struct {
		row     int
		in, out int64
		source  formats.TokenSource
	}{
		{0, in, out, formats.TokensTokenizer},
		{1, in + 7, out + 1, formats.TokensUsage},
		{7, 2*in + 11, out + 1, formats.TokensTokenizer},
		{8, 2*in + 11, out, formats.TokensTokenizer},
		{9, 2 * in, out, formats.TokensTokenizer},
		{10, 2*in + 11, out + tokens(t, "Yes.") + 2, formats.TokensTokenizer},
	} {
		x := xs[c.row]
		if x.InputTokens.V != c.in || x.OutputTokens.V != c.out || x.InputTokensSource != c.source || x.OutputTokensSource != c.source {
			t.Errorf("row %d: %d %s and %d %s, want %d and %d of %s", c.row, x.InputTokens.V, x.InputTokensSource, x.OutputTokens.V, x.OutputTokensSource, c.in, c.out, c.source)
		}
	}
	if got := xs[10].ChoiceOutputTokens; !slices.Equal(got, []int64{out + 1, tokens(t, "Yes.") + 1}) {
		t.Errorf("choices %v", got)
	}
	if st.Notes["tokenizer_checked_tokens"] == 0 || st.Notes["tokenizer_missed_tokens"] != 0 || len(st.Warnings) > 0 {
		t.Errorf("notes %v, warnings %q", st.Notes, st.Warnings)
	}
}

// TestTokenizerOfAnother: a tokenizer whose counts are far from the server's is not that of the model, which is said, and its counts are not used.
func TestTokenizerOfAnother(t *testing.T) {
	var pairs [][2]string
	for i := range 40 {
		text := strings.Repeat(question1, 1+i%7)
		pairs = append(pairs, chatOf("a", fmt.Sprintf(`,"usage":{"prompt_tokens":%d,"completion_tokens":40}`, len(text)), []string{answer1}, "stop", text))
	}
	pairs = append(pairs, chatOf("a", "", []string{answer1}, "stop", question1))
	xs, st := recordCounted(t, exchangeFrames(pairs...))
	x := xs[len(xs)-1]
	if x.InputTokensSource != formats.TokensEstimated || x.OutputTokensSource != formats.TokensEstimated {
		t.Errorf("%s, %s", x.InputTokensSource, x.OutputTokensSource)
	}
	if len(st.Warnings) != 1 || !strings.Contains(st.Warnings[0], "not that of model a") || st.Notes["tokenizer_missed_tokens"] == 0 {
		t.Errorf("%q, %v", st.Warnings, st.Notes)
	}
}

// TestTokenizerStreams: text in pieces is counted whole; an abort's is counted as far as it came; images are not guessed at.
func TestTokenizerStreams(t *testing.T) {
	stream := func(end string, pieces ...string) string {
		var b strings.Builder
		b.WriteString(streamHead)
		for _, p := range pieces {
			b.Write(httpChunk(fmt.Sprintf("data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":%q}}]}\n\n", p)))
		}
		b.WriteString(end)
		return b.String()
	}
	finish := string(httpChunk("data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n")) + "0\r\n\r\n"
	ask := func(content string) string {
		return string(post("/v1/chat/completions", "x", `{"model":"m","stream":true,"messages":[{"role":"user","content":`+content+`}]}`))
	}
	pieces := strings.SplitAfter(answer1, "")
	image := ask(`[{"type":"text","text":"x"},{"type":"image_url","image_url":{"url":"http://x/y.png"}}]`)
	ids := string(post("/v1/completions", "x", `{"model":"m","prompt":[1,2,3]}`))
	xs, _ := recordCounted(t, exchangeFrames(
		[2]string{ask(fmt.Sprintf("%q", question1)), stream(finish, pieces...)},
		[2]string{image, stream(finish, "x", "y")},
		[2]string{ids, answerOf(`{"choices":[{"index":0,"text":"hello world","finish_reason":"stop"}]}`, "Content-Type: application/json")},
		[2]string{ask(`"hi"`), stream("", pieces[:20]...)}, // then the client hangs up
	))
	if len(xs) != 4 {
		t.Fatalf("%d rows", len(xs))
	}
	for i, want := range [][2]int64{{tokens(t, question1), tokens(t, answer1)}, {0, tokens(t, "xy")}, {3, 2}, {1, tokens(t, strings.Join(pieces[:20], ""))}} {
		if x := xs[i]; x.InputTokens.Or(0) != want[0] || x.OutputTokens.V != want[1] || x.OutputTokensSource != formats.TokensTokenizer {
			t.Errorf("row %d: %v %v %s, want %v", i, x.InputTokens, x.OutputTokens, x.OutputTokensSource, want)
		}
	}
	if xs[3].EndReason == formats.EndComplete {
		t.Errorf("the last ended %s", xs[3].EndReason)
	}
}

// TestTokenizerMemory: text is charged to the memory for bodies, let go of where there is none left, and given back.
func TestTokenizerMemory(t *testing.T) {
	for _, budget := range []int{0, 6 << 10} {
		o := engineOptions{Limits: Limits{MaxBodies: budget}, words: encoding(t)}
		o.defaults()
		var out []*formats.Exchange
		e := newEngine(o, nil, hasherOf([]byte("key")), func(x *formats.Exchange) { out = append(out, x) })
		d := newDialogue(e, "s", true, formats.ClockUser)
		d.data(fromClient, post("/v1/completions", "x", `{"model":"m","stream":true,"echo":true,"prompt":"`+strings.Repeat("word ", 100)+`"}`), 1, 0)
		if e.bodies != 500 {
			t.Errorf("%d bytes held for the echo", e.bodies)
		}
		d.data(fromServer, []byte(streamHead), 2, 0)
		most := 0
		for range 1000 {
			d.data(fromServer, httpChunk("data: {\"choices\":[{\"index\":0,\"text\":\"other words\"}]}\n\n"), 3, 0)
			most = max(most, e.bodies)
		}
		d.close(fromServer, closedFIN, 4)
		for _, x := range d.over {
			e.emitExchange(x)
		}
		if e.bodies != 0 || len(out) != 1 {
			t.Errorf("%d bytes held, %d exchanges", e.bodies, len(out))
		}
		if dropped := e.stats.Notes["answer_over_cap"] == 1; dropped != (budget > 0) || budget > 0 && most > budget || out[0].OutputTokens.Valid {
			t.Errorf("budget %d: %d at most, %v, %v", budget, most, e.stats.Notes, out[0].OutputTokens)
		}
	}
}

// TestOverhead: a template that adds whole tokens is found exactly; one number of messages alone gives their mean.
func TestOverhead(t *testing.T) {
	var o overhead
	for i := range int64(10) {
		o.learn(100+3+4*(i%4), 100, i%4)
		if i < enoughLearned-1 && o.add(2) != 0 {
			t.Errorf("added %d after %d", o.add(2), i+1)
		}
	}
	for m := range int64(20) {
		if o.add(m) != 3+4*m {
			t.Errorf("%d messages: %d", m, o.add(m))
		}
	}
	o = overhead{}
	for range 6 {
		o.learn(107, 100, 1)
	}
	if o.add(1) != 7 || o.add(9) != 7 || o.foreign() {
		t.Errorf("%d, %d, %t", o.add(1), o.add(9), o.foreign())
	}
}
