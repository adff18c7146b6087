package foreign

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/shadowtape/shadowtape/formats"
)

// otelSpan is a span of either form, with its attributes as text.
type otelSpan struct {
	id, parent string
	start, end int64
	ended      bool
	failed     bool
	attributes record
	row        int64
	err        error
}

// otel reads OpenTelemetry spans that follow the GenAI conventions: OTLP JSON (one document, or one a line as the Collector's file
// exporter writes) and the flattened form with snake_case names and dates. Messages are measured, not kept. Where a span states no token
// counts they are estimated from its text, and marked so.
func otel(in *input) (formats.Decoder, error) {
	if b, _ := in.r.Peek(len(bom)); bytes.Equal(b, bom) {
		in.r.Discard(len(bom))
	}
	value := &portion{r: in.r}
	d := json.NewDecoder(value)
	o := otelReader{in: in, turns: map[string]int32{}, ids: map[string]int64{}, id: in.rows}
	in.header.TimeBase = "absolute"
	return func(x *formats.Exchange) error {
		for len(o.spans) == 0 {
			if o.broken {
				return io.EOF
			}
			var doc json.RawMessage
			value.left = maxWhole // one document may hold all spans
			err := d.Decode(&doc)
			if err == io.EOF {
				return io.EOF
			}
			if err != nil { // JSON that is broken cannot be picked up again
				o.broken = true
				o.row++
				return &formats.RowError{Row: o.row, Reason: "broken_row", Err: plainJSON(err)}
			}
			o.document(doc)
			slices.SortStableFunc(o.spans, func(a, b otelSpan) int { return cmpInt(a.start, b.start) })
		}
		s := o.spans[0]
		o.spans = o.spans[1:]
		return o.exchange(s, x)
	}, nil
}

func cmpInt(a, b int64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

type otelReader struct {
	in     *input
	spans  []otelSpan
	row    int64
	broken bool
	turns  map[string]int32
	ids    map[string]int64 // exchanges by span
	id     int64
}

// document collects the spans of one JSON value: a list, a document with spans or resourceSpans, or one span.
func (o *otelReader) document(doc json.RawMessage) {
	doc = bytes.TrimSpace(doc)
	if len(doc) > 0 && doc[0] == '[' {
		var list []json.RawMessage
		if json.Unmarshal(doc, &list) == nil {
			for _, v := range list {
				o.document(v)
			}
			return
		}
	}
	var d struct {
		Spans         []json.RawMessage `json:"spans"`
		ResourceSpans []struct {
			ScopeSpans []struct {
				Spans []json.RawMessage `json:"spans"`
			} `json:"scopeSpans"`
		} `json:"resourceSpans"`
	}
	if err := json.Unmarshal(doc, &d); err != nil {
		o.row++
		o.spans = append(o.spans, otelSpan{row: o.row, err: plainJSON(err)})
		return
	}
	if d.Spans == nil && d.ResourceSpans == nil {
		d.Spans = []json.RawMessage{doc}
	}
	for _, s := range d.Spans {
		o.row++
		o.spans = append(o.spans, readSpan(s, o.row))
	}
	for _, r := range d.ResourceSpans {
		for _, s := range r.ScopeSpans {
			for _, b := range s.Spans {
				o.row++
				o.spans = append(o.spans, readSpan(b, o.row))
			}
		}
	}
}

// readSpan reads a span of either form.
func readSpan(b json.RawMessage, row int64) otelSpan {
	s := otelSpan{row: row}
	var raw record
	if s.err = json.Unmarshal(b, &raw); s.err != nil {
		s.err = plainJSON(s.err)
		return s
	}
	s.id, s.parent = raw.text("spanId", "span_id"), raw.text("parentSpanId", "parent_span_id")
	var known bool
	if s.start, known, s.err = spanTime(raw, "startTimeUnixNano", "start_time"); s.err == nil && !known {
		s.err = errors.New("no start time")
	}
	if s.err != nil {
		return s
	}
	if s.end, s.ended, s.err = spanTime(raw, "endTimeUnixNano", "end_time"); s.err != nil {
		return s
	}
	var status struct {
		Code scalar `json:"code"`
	}
	json.Unmarshal(raw["status"], &status)
	s.failed = status.Code == "2" || strings.HasSuffix(strings.ToUpper(string(status.Code)), "ERROR")
	s.attributes, s.err = spanAttributes(raw["attributes"])
	return s
}

func spanTime(raw record, nano, date string) (int64, bool, error) {
	if s := raw.text(nano); s != "" && s != "0" {
		n, err := scaled(s, 1)
		return n, true, err
	}
	return raw.instant(date)
}

// spanAttributes reads attributes as OTLP's list of typed values or as a plain object.
func spanAttributes(b json.RawMessage) (record, error) {
	b = bytes.TrimSpace(b)
	if len(b) == 0 || string(b) == "null" {
		return record{}, nil
	}
	if b[0] == '{' {
		var r record
		err := json.Unmarshal(b, &r)
		return r, err
	}
	var list []struct {
		Key   string `json:"key"`
		Value record `json:"value"`
	}
	if err := json.Unmarshal(b, &list); err != nil {
		return nil, fmt.Errorf("attributes: %w", plainJSON(err))
	}
	r := make(record, len(list))
	for _, a := range list {
		for _, v := range a.Value { // exactly one: stringValue, intValue (a string), doubleValue, boolValue, arrayValue
			r[a.Key] = v
		}
	}
	return r, nil
}

var otelEndpoints = map[string]formats.Endpoint{
	"chat": formats.EndpointChat, "text_completion": formats.EndpointCompletions, "embeddings": formats.EndpointEmbeddings, "generate_content": formats.EndpointOther,
}

// exchange turns a span into an exchange, or leaves it out.
func (o *otelReader) exchange(s otelSpan, x *formats.Exchange) error {
	if s.err != nil {
		return &formats.RowError{Row: s.row, Reason: "broken_row", Err: s.err}
	}
	a := s.attributes
	op := a.text("gen_ai.operation.name")
	endpoint, known := otelEndpoints[op]
	if !known && (op != "" || a.text("gen_ai.request.model", "gen_ai.response.model") == "") {
		return &formats.RowError{Row: s.row, Reason: "not_generation"}
	}
	x.ArrivalUnixNS, x.Endpoint = s.start, endpoint
	x.EndNS = o.in.since(x, s.end, s.ended)
	x.FirstTokenNS = duration(a.text("gen_ai.response.time_to_first_chunk"), 1e9)
	x.RequestModel, x.ResponseModel = a.text("gen_ai.request.model"), a.text("gen_ai.response.model")
	x.Stream = a.truth("gen_ai.request.stream")
	x.MaxTokens, x.Seed, x.N = a.count("gen_ai.request.max_tokens"), a.count("gen_ai.request.seed"), a.small("gen_ai.request.choice.count")
	x.Temperature, x.TopP, x.TopK = a.number("gen_ai.request.temperature"), a.number("gen_ai.request.top_p"), a.count("gen_ai.request.top_k")
	x.FrequencyPenalty, x.PresencePenalty = a.number("gen_ai.request.frequency_penalty"), a.number("gen_ai.request.presence_penalty")
	x.FinishReason = firstOf(a.text("gen_ai.response.finish_reasons", "gen_ai.response.finish_reason"))
	x.CachedTokens, x.ReasoningTokens = a.count("gen_ai.usage.cache_read.input_tokens"), a.count("gen_ai.usage.reasoning.output_tokens")
	x.CorrelationID = o.in.hash.of("request", a.text("gen_ai.response.id"))
	o.tokens(a, x)
	o.session(a, s, x)
	x.Status = a.small("http.response.status_code")
	switch {
	case x.Status.V >= 400:
		x.ErrorKind = fmt.Sprintf("http_%d", x.Status.V)
	case s.failed && strings.Contains(strings.ToLower(a.text("error.type")), "timeout"):
		x.ErrorKind, x.EndReason = formats.ErrorTimeout, formats.EndTimeout
	case s.failed:
		x.ErrorKind = formats.ErrorUnsaid
	case s.ended:
		x.EndReason = formats.EndComplete
	}
	return nil
}

// tokens takes the span's own counts under their newer and older names, else estimates four bytes of text a token.
func (o *otelReader) tokens(a record, x *formats.Exchange) {
	input, output := a.text("gen_ai.input.messages", "gen_ai.prompt"), a.text("gen_ai.output.messages", "gen_ai.output.text", "gen_ai.completion")
	text := messageText(input, &x.MessageCount)
	x.InputTokens = a.count("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
	x.OutputTokens = a.count("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
	estimated := func(bytes int) formats.Null[int64] {
		o.in.notes["tokens_estimated"]++
		return formats.Of(int64(bytes+3) / 4)
	}
	if x.InputTokens.Valid {
		x.InputTokensSource = formats.TokensUsage
	} else if text > 0 {
		x.InputTokens, x.InputTokensSource = estimated(text), formats.TokensEstimated
	}
	var none formats.Null[int32]
	if x.OutputTokens.Valid {
		x.OutputTokensSource = formats.TokensUsage
	} else if n := messageText(output, &none); n > 0 {
		x.OutputTokens, x.OutputTokensSource = estimated(n), formats.TokensEstimated
	}
}

// messageText measures the text of messages: a JSON list (or a string that holds one) of objects with content or parts, or plain text.
func messageText(s string, messages *formats.Null[int32]) int {
	var list []json.RawMessage
	if json.Unmarshal([]byte(s), &list) != nil {
		return len(s)
	}
	if len(list) <= math.MaxInt32 {
		*messages = formats.Of(int32(len(list)))
	}
	n := 0
	for _, m := range list {
		var object map[string]json.RawMessage
		if json.Unmarshal(m, &object) != nil {
			n += textBytes(m)
			continue
		}
		for k, v := range object {
			if k != "role" && k != "finish_reason" {
				n += textBytes(v)
			}
		}
	}
	return n
}

// textBytes adds up the strings of a JSON value, those named type left out.
func textBytes(v json.RawMessage) int {
	var any any
	if json.Unmarshal(v, &any) != nil {
		return 0
	}
	return stringBytes(any)
}

func stringBytes(v any) (n int) {
	switch v := v.(type) {
	case string:
		return len(v)
	case []any:
		for _, e := range v {
			n += stringBytes(e)
		}
	case map[string]any:
		for k, e := range v {
			if k != "type" {
				n += stringBytes(e)
			}
		}
	}
	return n
}

// session numbers the turns of a conversation in order of start, and finds the exchange that caused this one.
func (o *otelReader) session(a record, s otelSpan, x *formats.Exchange) {
	name := a.text("gen_ai.conversation.id", "session.id")
	if name == "" {
		for k := range a {
			if strings.HasSuffix(k, ".session.id") {
				name = a.text(k)
			}
		}
	}
	x.SessionID = o.in.hash.of("session", name)
	if x.SessionID.Valid {
		o.turns[name]++
		x.Turn = formats.Of(o.turns[name])
	}
	o.id++
	x.ExchangeID = o.id
	if id, ok := o.ids[s.parent]; ok && s.parent != "" {
		x.ParentID = formats.Of(id)
	}
	if s.id != "" {
		o.ids[s.id] = o.id
	}
}

// firstOf is the first element of a JSON list of strings (or OTLP's array of them), or the text itself.
func firstOf(s string) string {
	var list []string
	if json.Unmarshal([]byte(s), &list) == nil {
		if len(list) == 0 {
			return ""
		}
		return list[0]
	}
	var array struct {
		Values []struct {
			StringValue string `json:"stringValue"`
		} `json:"values"`
	}
	if json.Unmarshal([]byte(s), &array) == nil && len(array.Values) > 0 {
		return array.Values[0].StringValue
	}
	return s
}

// looksLikeOTel finds the names of spans in the head: their documents begin with anything.
func looksLikeOTel(head []byte) bool {
	t := bytes.TrimLeft(head, " \t\r\n")
	if len(t) == 0 || (t[0] != '{' && t[0] != '[') {
		return false
	}
	return bytes.Contains(t, []byte(`"resourceSpans"`)) || bytes.Contains(t, []byte(`"span_id"`)) || bytes.Contains(t, []byte(`"spanId"`))
}
