package foreign

import (
	"bytes"
	"encoding/json"
	"errors"

	"github.com/shadowtape/shadowtape/formats"
)

type bailianRow struct {
	ChatID       scalar `json:"chat_id"`
	ParentChatID scalar `json:"parent_chat_id"`
	Timestamp    scalar `json:"timestamp"`
	InputLength  scalar `json:"input_length"`
	OutputLength scalar `json:"output_length"`
	Turn         scalar `json:"turn"`
	HashIDs      ids    `json:"hash_ids"`
}

// bailian reads Qwen-Bailian's JSON lines: seconds from the trace's start, 16-token blocks, a chat id for each turn and the id of the
// turn before it. A chat whose earlier turns are outside the trace is a session that begins with the turn it names.
func bailian(in *input) (formats.Decoder, error) {
	l := in.lines()
	var samples []sample
	for line := range bytes.Lines(in.peek()) {
		var row bailianRow
		if json.Unmarshal(line, &row) != nil || len(row.HashIDs) == 0 {
			continue
		}
		if n, err := count(string(row.InputLength)); err == nil && n.Valid {
			samples = append(samples, sample{n.V, int64(len(row.HashIDs))})
		}
	}
	sizes := []int64{16}
	if in.o.BlockSize > 0 {
		sizes = []int64{int64(in.o.BlockSize)}
	}
	rule, known := findRule(samples, sizes, "ceil", "floor")
	if known {
		rule.describe(in.header)
	}
	in.header.TimeBase, in.header.Prompts = "relative", promptsCumulative
	roots := map[scalar]scalar{}
	return func(x *formats.Exchange) error {
		line, err := l.next()
		if errors.Is(err, errLineTooLong) {
			return l.broken(err)
		}
		if err != nil {
			return err
		}
		var row bailianRow
		if err := l.object(line, &row); err != nil {
			return err
		}
		if row.Timestamp == "" {
			return l.left("no_time")
		}
		if x.ArrivalUnixNS, err = scaled(string(row.Timestamp), 1e9); err != nil {
			return l.broken(err)
		}
		if err := l.lengths(x, row.InputLength, row.OutputLength); err != nil {
			return err
		}
		if row.ChatID != "" {
			root := row.ChatID
			if row.ParentChatID != "" && row.ParentChatID != "-1" {
				root = row.ParentChatID
				if r, ok := roots[root]; ok {
					root = r
				}
			}
			roots[row.ChatID] = root
			x.SessionID = in.hash.of("session", string(root))
		}
		if n, err := count(string(row.Turn)); err == nil && n.Valid && n.V > 0 && n.V < 1<<31 {
			x.Turn = formats.Of(int32(n.V))
		}
		if known {
			rule.set(x, row.HashIDs, in.notes)
		}
		return nil
	}, nil
}
