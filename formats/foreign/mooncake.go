package foreign

import (
	"bytes"
	"encoding/json"
	"errors"
	"time"

	"github.com/shadowtape/shadowtape/formats"
)

type mooncakeRow struct {
	Timestamp    scalar `json:"timestamp"`
	InputLength  scalar `json:"input_length"`
	OutputLength scalar `json:"output_length"`
	HashIDs      ids    `json:"hash_ids"`
	SessionID    scalar `json:"session_id"`
	Delay        scalar `json:"delay"`
	Text         string `json:"text_input"`
}

// conversation is where a session stands.
type conversation struct {
	turn int32
	last int64 // arrival of its last request
}

// mooncake reads Mooncake's JSON lines: timestamp in milliseconds from the trace's start, input_length, output_length, hash_ids of
// 512-token blocks, a partial tail counting as one. Other tools write it with session_id, with delay (milliseconds after the session's
// last turn) instead of a timestamp, and with text_input instead of a length, which is then estimated.
func mooncake(in *input) (formats.Decoder, error) {
	l := in.lines()
	rule, ruled := mooncakeRule(in)
	if ruled {
		rule.describe(in.header)
	}
	in.header.TimeBase = "relative"
	unit := int64(time.Millisecond)
	if in.o.TimeUnit > 0 {
		unit = int64(in.o.TimeUnit)
	}
	sessions := map[scalar]*conversation{}
	return func(x *formats.Exchange) error {
		line, err := l.next()
		if errors.Is(err, errLineTooLong) {
			return l.broken(err)
		}
		if err != nil {
			return err
		}
		var row mooncakeRow
		if err := l.object(line, &row); err != nil {
			return err
		}
		if err := l.lengths(x, row.InputLength, row.OutputLength); err != nil {
			return err
		}
		if !x.InputTokens.Valid && row.Text != "" {
			x.InputTokens, x.InputTokensSource = formats.Of(int64(len(row.Text)+3)/4), formats.TokensEstimated
			in.notes["tokens_estimated"]++
		}
		known := sessions[row.SessionID]
		switch {
		case row.Timestamp != "":
			x.ArrivalUnixNS, err = scaled(string(row.Timestamp), unit)
		case row.Delay != "" && row.SessionID != "" && known != nil:
			x.ArrivalUnixNS, err = scaled(string(row.Delay), unit)
			x.ArrivalUnixNS = min(x.ArrivalUnixNS+known.last, 1<<62) // past what is possible, and no overflow
			in.notes["arrival_from_delay"]++                         // the answer's own time is not in it
		default:
			return l.left("no_time")
		}
		if err != nil {
			return l.broken(err)
		}
		if x.SessionID = in.hash.of("session", string(row.SessionID)); x.SessionID.Valid {
			if known == nil {
				known = &conversation{}
				sessions[row.SessionID] = known
			}
			known.turn, known.last = known.turn+1, x.ArrivalUnixNS
			x.Turn = formats.Of(known.turn)
		}
		if row.HashIDs != nil && !ruled {
			in.notes["block_size_unknown"]++
			return nil
		}
		rule.set(x, row.HashIDs, in.notes)
		return nil
	}, nil
}

// lengths reads both token counts.
func (l *lines) lengths(x *formats.Exchange, input, output scalar) (err error) {
	if x.InputTokens, err = count(string(input)); err != nil {
		return l.broken(err)
	}
	if x.OutputTokens, err = count(string(output)); err != nil {
		return l.broken(err)
	}
	sourced(x)
	return nil
}

// mooncakeRule finds the block size from the first rows: Mooncake's own 512, or that of the tools that write its format otherwise.
func mooncakeRule(in *input) (blockRule, bool) {
	var samples []sample
	for line := range bytes.Lines(in.peek()) {
		var row mooncakeRow
		if json.Unmarshal(line, &row) != nil || len(row.HashIDs) == 0 {
			continue
		}
		if n, err := count(string(row.InputLength)); err == nil && n.Valid {
			samples = append(samples, sample{n.V, int64(len(row.HashIDs))})
		}
	}
	sizes := []int64{512, 16, 32, 64, 128, 256, 1024, 2048, 8, 4}
	if in.o.BlockSize > 0 {
		sizes = []int64{int64(in.o.BlockSize)}
	}
	return findRule(samples, sizes, "ceil", "floor")
}

// looksLikeMooncake finds the two lengths, and neither Bailian's chats nor RAGPulse's chunks.
func looksLikeMooncake(head []byte) bool {
	first := firstObject(head)
	return (hasKey(first, "input_length") || hasKey(first, "text_input")) && hasKey(first, "output_length") && !hasKey(first, "chat_id") &&
		!bytes.HasPrefix(first["hash_ids"], []byte("{")) && (hasKey(first, "timestamp") || hasKey(first, "session_id"))
}
