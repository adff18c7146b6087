package foreign

import (
	"encoding/json"
	"errors"
	"io"
	"strings"

	"github.com/shadowtape/shadowtape/formats"
)

// unfold makes a decoder out of records that hold several exchanges each: read fills the queue with the exchanges of the next record.
func unfold(read func(add func(*formats.Exchange)) error) formats.Decoder {
	var queue []*formats.Exchange
	return func(x *formats.Exchange) error {
		for len(queue) == 0 {
			if err := read(func(x *formats.Exchange) { queue = append(queue, x) }); err != nil {
				return err
			}
		}
		*x = *queue[0]
		queue = queue[1:]
		return nil
	}
}

// azureCopilot reads the coding agent traces of 2026: a session a line, its turns, their calls of a model.
func azureCopilot(in *input) (formats.Decoder, error) {
	l := lines{r: in.r}
	in.header.TimeBase, in.header.Prompts = "absolute", promptsCumulative
	return unfold(func(add func(*formats.Exchange)) error {
		line, err := l.next()
		if errors.Is(err, errLineTooLong) {
			return l.broken(err)
		}
		if err != nil {
			return err
		}
		var s struct {
			SessionID string `json:"session_id"`
			Turns     []struct {
				Calls []struct {
					MessageID  string `json:"message_id"`
					Timestamp  scalar `json:"timestamp"`
					DurationMS scalar `json:"duration_ms"`
					Model      string `json:"model"`
					StatusCode scalar `json:"status_code"`
					Tokens     record `json:"tokens"`
					Messages   []any  `json:"message_metadata"`
				} `json:"llm_calls"`
			} `json:"turns"`
		}
		if err := l.object(line, &s); err != nil {
			return err
		}
		added := false
		for i, t := range s.Turns {
			for _, c := range t.Calls {
				x := &formats.Exchange{SessionID: in.hash.of("session", s.SessionID), Turn: formats.Of(int32(i + 1)), RequestModel: c.Model}
				at, ok, err := record{"t": quoted(string(c.Timestamp))}.instant("t")
				if err != nil {
					return l.broken(err)
				}
				if !ok {
					in.notes["calls_without_time"]++
					continue
				}
				x.ArrivalUnixNS, x.EndNS = at, duration(string(c.DurationMS), 1e6)
				x.InputTokens, x.OutputTokens, x.CachedTokens = c.Tokens.count("prompt"), c.Tokens.count("completion"), c.Tokens.count("cached")
				used(x)
				x.CorrelationID = in.hash.of("request", c.MessageID)
				x.MessageCount = formats.Of(int32(len(c.Messages)))
				if err := answeredWith(x, string(c.StatusCode)); err != nil {
					return l.broken(err)
				}
				add(x)
				added = true
			}
		}
		if !added {
			return l.left("no_calls")
		}
		return nil
	}), nil
}

func quoted(s string) json.RawMessage {
	b, err := json.Marshal(s)
	if err != nil {
		return nil
	}
	return b
}

// ragPulse reads RAGPulse: whole seconds as text. Its chunks differ in length and are shared as a set, not as a prefix, so they do not
// become prefix blocks; other passages stand before a turn's history, so it does not begin with the turn before.
func ragPulse(in *input) (formats.Decoder, error) {
	l := lines{r: in.r}
	in.header.TimeBase, in.header.Prompts = "relative", promptsPerTurn
	return func(x *formats.Exchange) error {
		line, err := l.next()
		if errors.Is(err, errLineTooLong) {
			return l.broken(err)
		}
		if err != nil {
			return err
		}
		var row struct {
			Timestamp    scalar          `json:"timestamp"`
			InputLength  scalar          `json:"input_length"`
			OutputLength scalar          `json:"output_length"`
			SessionID    scalar          `json:"session_id"`
			HashIDs      json.RawMessage `json:"hash_ids"`
		}
		if err := l.object(line, &row); err != nil {
			return err
		}
		if row.Timestamp == "" {
			return l.left("no_time")
		}
		if x.ArrivalUnixNS, err = scaled(string(row.Timestamp), 1e9); err != nil {
			return l.broken(err)
		}
		x.SessionID = in.hash.of("session", string(row.SessionID))
		if len(row.HashIDs) > 0 {
			in.notes["chunks_not_blocks"]++
		}
		return l.lengths(x, row.InputLength, row.OutputLength)
	}, nil
}

// traceLab reads TraceLab's rounds of coding agents. A round arrives with the first of its events; of the others only those that say what
// they are become times.
func traceLab(in *input) (formats.Decoder, error) {
	l := lines{r: in.r}
	in.header.TimeBase, in.header.Prompts = "absolute", promptsCumulative
	turns := map[string]int32{}
	return func(x *formats.Exchange) error {
		line, err := l.next()
		if errors.Is(err, errLineTooLong) {
			return l.broken(err)
		}
		if err != nil {
			return err
		}
		var row struct {
			SessionID string `json:"session_id"`
			RoundID   scalar `json:"round_id"`
			Model     string `json:"model"`
			Input     scalar `json:"input_tokens_total"`
			Prefix    scalar `json:"prefix_tokens"`
			Append    scalar `json:"newly_append_tokens"`
			CacheRead scalar `json:"claude_cache_read_input_tokens"`
			Output    scalar `json:"output_tokens"`
			Reasoning scalar `json:"reasoning_output_tokens"`
			Events    []struct {
				Type      string `json:"event_type"`
				Timestamp scalar `json:"timestamp"`
			} `json:"timing_events"`
			Tools []any `json:"tools"`
		}
		if err := l.object(line, &row); err != nil {
			return err
		}
		var first, end int64
		known, ended := false, false
		for _, e := range row.Events {
			t, ok, err := record{"t": quoted(string(e.Timestamp))}.instant("t")
			if err != nil {
				return l.broken(err)
			}
			if !ok {
				continue
			}
			if !known || t < first {
				first, known = t, true
			}
			if name := strings.ToLower(e.Type); strings.Contains(name, "end") || strings.Contains(name, "complete") || strings.Contains(name, "finish") {
				end, ended = max(end, t), true
			}
		}
		if !known {
			return l.left("no_time")
		}
		x.ArrivalUnixNS = first
		x.EndNS = in.since(x, end, ended)
		if err := l.lengths(x, row.Input, row.Output); err != nil {
			return err
		}
		if x.CachedTokens, err = count(string(row.CacheRead)); err != nil {
			return l.broken(err)
		}
		if !x.CachedTokens.Valid {
			if x.CachedTokens, err = count(string(row.Prefix)); err != nil {
				return l.broken(err)
			}
		}
		if x.ReasoningTokens, err = count(string(row.Reasoning)); err != nil {
			return l.broken(err)
		}
		x.RequestModel = row.Model
		x.CorrelationID = in.hash.of("request", string(row.RoundID))
		if x.SessionID = in.hash.of("session", row.SessionID); x.SessionID.Valid {
			turns[row.SessionID]++
			x.Turn = formats.Of(turns[row.SessionID])
		}
		return nil
	}, nil
}

// shareGPT reads conversations for their lengths only: each answer is an exchange whose input is all text before it, at four bytes a
// token, marked as estimated. There are no times: conversations arrive in the order of the file, all at once.
func shareGPT(in *input) (formats.Decoder, error) {
	rs, err := newRecords(in, "")
	if err != nil {
		return nil, err
	}
	in.header.TimeBase, in.header.Prompts = "relative", promptsCumulative
	if in.header.Extra == nil {
		in.header.Extra = map[string]any{}
	}
	in.header.Extra["arrivals"] = "order only"
	return unfold(func(add func(*formats.Exchange)) error {
		r, err := rs.next()
		if err != nil {
			return err
		}
		var turns []struct {
			From    string `json:"from"`
			Role    string `json:"role"`
			Value   string `json:"value"`
			Content string `json:"content"`
		}
		said := r["conversations"]
		if said == nil {
			said = r["conversation"]
		}
		if err := json.Unmarshal(said, &turns); err != nil {
			return rs.broken(errors.New("no list of turns"))
		}
		before, messages, turn := 0, int32(0), int32(0)
		for _, t := range turns {
			text := len(t.Value) + len(t.Content)
			if who := either(t.From, t.Role); (who == "gpt" || who == "assistant") && before > 0 { // one may begin with an answer
				turn++
				x := &formats.Exchange{SessionID: in.hash.of("session", r.text("id")), Turn: formats.Of(turn), MessageCount: formats.Of(messages),
					InputTokens: formats.Of(int64(before+3) / 4), InputTokensSource: formats.TokensEstimated,
					OutputTokens: formats.Of(int64(text+3) / 4), OutputTokensSource: formats.TokensEstimated}
				add(x)
			}
			before, messages = before+text, messages+1
		}
		if turn == 0 {
			return rs.left("no_answer")
		}
		return nil
	}), nil
}

// har reads the entries of a HAR file that call a model. Bodies are measured, not kept; where the answer states no usage, lengths are
// estimated from the text.
func har(in *input) (formats.Decoder, error) {
	whole, err := readWhole(in)
	if err != nil {
		return nil, err
	}
	var doc struct {
		Log struct {
			Entries []json.RawMessage `json:"entries"`
		} `json:"log"`
	}
	if err := json.Unmarshal(whole, &doc); err != nil {
		return nil, plainJSON(err)
	}
	in.header.TimeBase = "absolute"
	row := int64(0)
	return func(x *formats.Exchange) error {
		if len(doc.Log.Entries) == 0 {
			return io.EOF
		}
		b := doc.Log.Entries[0]
		doc.Log.Entries = doc.Log.Entries[1:]
		row++
		if err := harEntry(b, x, in); err != nil {
			var bad *formats.RowError
			if errors.As(err, &bad) {
				bad.Row = row
				return bad
			}
			return &formats.RowError{Row: row, Reason: "broken_row", Err: err}
		}
		return nil
	}, nil
}

type harHeader struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

func harEntry(b json.RawMessage, x *formats.Exchange, in *input) error {
	var e struct {
		Started scalar `json:"startedDateTime"`
		Time    scalar `json:"time"`
		Request struct {
			Method   string      `json:"method"`
			URL      string      `json:"url"`
			Headers  []harHeader `json:"headers"`
			BodySize scalar      `json:"bodySize"`
			PostData struct {
				Text string `json:"text"`
			} `json:"postData"`
		} `json:"request"`
		Response struct {
			Status   scalar `json:"status"`
			BodySize scalar `json:"bodySize"`
			Content  struct {
				Text string `json:"text"`
			} `json:"content"`
		} `json:"response"`
		Timings struct {
			Blocked, DNS, Connect, SSL, Send, Wait scalar
		} `json:"timings"`
		Server string `json:"serverIPAddress"`
	}
	if err := json.Unmarshal(b, &e); err != nil {
		return plainJSON(err)
	}
	if called(x, e.Request.Method, e.Request.URL) != nil {
		return &formats.RowError{Reason: "not_generation"}
	}
	at, err := clock(string(e.Started))
	if err != nil {
		return err
	}
	x.ArrivalUnixNS, x.ServerID = at, e.Server
	x.EndNS = duration(string(e.Time), 1e6)
	t := e.Timings
	x.DNSNS, x.ConnectNS, x.TLSNS = duration(string(t.DNS), 1e6), duration(string(t.Connect), 1e6), duration(string(t.SSL), 1e6) // -1 does not apply
	before := duration(string(t.Blocked), 1e6).V + x.DNSNS.V + x.ConnectNS.V                                                     // connect holds ssl
	x.SentNS = formats.Of(before)
	if send := duration(string(t.Send), 1e6); send.Valid {
		x.RequestEndNS = formats.Of(before + send.V)
		if wait := duration(string(t.Wait), 1e6); wait.Valid {
			x.ResponseHeaderNS = formats.Of(before + send.V + wait.V)
		}
	}
	for _, h := range e.Request.Headers {
		if strings.EqualFold(h.Name, "x-request-id") {
			x.CorrelationID = in.hash.of("request", h.Value)
		}
	}
	if x.ResponseBytes, err = count(string(e.Response.BodySize)); err != nil {
		return err
	}
	if body := e.Request.PostData.Text; body != "" {
		endpoint := x.Endpoint
		if err := batchRequest(x, &lines{}, e.Request.URL, json.RawMessage(body), in); err != nil {
			return err
		}
		var p record
		if json.Unmarshal([]byte(body), &p) == nil {
			x.Endpoint, x.Stream = endpoint, formats.Of(p.truth("stream").V)
		}
	}
	estimated := x.InputTokens
	harAnswer(x, e.Response.Content.Text)
	if !x.InputTokens.Valid && estimated.Valid {
		x.InputTokens, x.InputTokensSource = estimated, formats.TokensEstimated
	}
	if x.Status.Valid || e.Response.Status == "" {
		return nil
	}
	return answeredWith(x, string(e.Response.Status))
}

// harAnswer reads usage from an answer's text: one JSON document, or the events of a stream, of which the last that states usage counts.
func harAnswer(x *formats.Exchange, text string) {
	endpoint := x.Endpoint
	var body record
	if json.Unmarshal([]byte(text), &body) == nil {
		answered(x, body)
		x.Endpoint = endpoint
		return
	}
	finish := ""
	for line := range strings.Lines(text) {
		data, ok := strings.CutPrefix(strings.TrimSpace(line), "data:")
		if !ok {
			continue
		}
		var event record
		if json.Unmarshal([]byte(data), &event) != nil {
			continue
		}
		if r := event.object("response"); r != nil {
			event = r // the Responses API wraps its last state
		}
		y := &formats.Exchange{}
		answered(y, event)
		if y.FinishReason != "" {
			finish = y.FinishReason
		}
		if y.InputTokens.Valid || y.OutputTokens.Valid {
			x.InputTokens, x.OutputTokens, x.InputTokensSource, x.OutputTokensSource = y.InputTokens, y.OutputTokens, y.InputTokensSource, y.OutputTokensSource
			x.CachedTokens, x.ReasoningTokens = y.CachedTokens, y.ReasoningTokens
		}
	}
	x.FinishReason = finish
}
