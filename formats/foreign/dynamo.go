package foreign

import (
	"encoding/json"
	"errors"
	"strings"

	"github.com/shadowtape/shadowtape/formats"
)

type dynamoRow struct {
	Schema    string `json:"schema"`
	EventType string `json:"event_type"`
	EventTime scalar `json:"event_time_unix_ms"`
	Agent     struct {
		SessionID    string `json:"session_id"`
		TrajectoryID string `json:"trajectory_id"`
	} `json:"agent_context"`
	Request *struct {
		RequestID    string `json:"request_id"`
		XRequestID   string `json:"x_request_id"`
		Model        string `json:"model"`
		InputTokens  scalar `json:"input_tokens"`
		OutputTokens scalar `json:"output_tokens"`
		CachedTokens scalar `json:"cached_tokens"`
		Received     scalar `json:"request_received_ms"`
		TTFT         scalar `json:"ttft_ms"`
		Total        scalar `json:"total_time_ms"`
		Replay       *struct {
			BlockSize   scalar `json:"trace_block_size"`
			InputLength scalar `json:"input_length"`
			Hashes      ids    `json:"input_sequence_hashes"`
		} `json:"replay"`
	} `json:"request"`
}

// dynamo reads the request traces of NVIDIA Dynamo: the request_end events; tool events are left out. The hashes are chained over the
// prompt's blocks, as ours are.
func dynamo(in *input) (formats.Decoder, error) {
	l := in.lines()
	in.header.TimeBase, in.header.Prompts = "absolute", promptsCumulative
	var rule blockRule
	return func(x *formats.Exchange) error {
		line, err := l.next()
		if errors.Is(err, errLineTooLong) {
			return l.broken(err)
		}
		if err != nil {
			return err
		}
		var row dynamoRow
		if err := json.Unmarshal(line, &row); err != nil {
			return l.broken(plainJSON(err))
		}
		q := row.Request
		if row.EventType != "request_end" || q == nil {
			return l.left("not_generation")
		}
		x.EndNS = duration(string(q.Total), 1e6)
		switch {
		case q.Received != "":
			x.ArrivalUnixNS, err = scaled(string(q.Received), 1e6)
		case row.EventTime != "" && x.EndNS.Valid:
			x.ArrivalUnixNS, err = scaled(string(row.EventTime), 1e6)
			x.ArrivalUnixNS -= x.EndNS.V
		default:
			return l.left("no_time")
		}
		if err != nil {
			return l.broken(err)
		}
		if err := l.lengths(x, q.InputTokens, q.OutputTokens); err != nil {
			return err
		}
		if x.CachedTokens, err = count(string(q.CachedTokens)); err != nil {
			return l.broken(err)
		}
		x.FirstTokenNS = duration(string(q.TTFT), 1e6)
		x.RequestModel = q.Model
		x.CorrelationID = in.hash.of("request", either(q.XRequestID, q.RequestID))
		x.SessionID = in.hash.of("session", either(row.Agent.TrajectoryID, row.Agent.SessionID))
		if x.EndNS.Valid {
			x.EndReason = formats.EndComplete
		}
		r := q.Replay
		if r == nil {
			return nil
		}
		if n, err := count(string(r.InputLength)); err == nil && n.Valid && !x.InputTokens.Valid {
			x.InputTokens, x.InputTokensSource = n, formats.TokensTrace
		}
		size, err := count(string(r.BlockSize))
		if err != nil || size.V < 1 {
			return nil
		}
		if rule.size == 0 && len(r.Hashes) > 0 {
			rule, _ = findRule([]sample{{x.InputTokens.V, int64(len(r.Hashes))}}, []int64{size.V}, "floor", "ceil")
			if rule.size != 0 {
				rule.describe(in.header)
			}
		}
		if rule.size != size.V {
			in.notes["block_count_mismatch"]++
			return nil
		}
		rule.set(x, r.Hashes, in.notes)
		return nil
	}, nil
}

// looksLikeDynamo finds the schema in the first record.
func looksLikeDynamo(head []byte) bool {
	first := firstObject(head)
	return strings.Contains(string(first["schema"]), "dynamo.") || hasKey(first, "event_time_unix_ms") && hasKey(first, "event_type")
}
