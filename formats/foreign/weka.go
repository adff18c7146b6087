package foreign

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/shadowtape/shadowtape/formats"
)

// wekaSession is one file of kv-cache-tester: a session of a coding agent.
type wekaSession struct {
	ID        string        `json:"id"`
	BlockSize int64         `json:"block_size"`
	Scope     string        `json:"hash_id_scope"`
	Requests  []wekaRequest `json:"requests"`
}

// wekaRequest is a request, or a sub-agent with requests of its own whose times count from its start.
type wekaRequest struct {
	T        scalar        `json:"t"`
	Type     string        `json:"type"` // s streamed, n not, subagent
	Model    string        `json:"model"`
	In       scalar        `json:"in"`
	Out      scalar        `json:"out"`
	HashIDs  ids           `json:"hash_ids"`
	Stop     string        `json:"stop"`
	APITime  scalar        `json:"api_time"`
	TTFT     scalar        `json:"ttft"`
	AgentID  string        `json:"agent_id"`
	Requests []wekaRequest `json:"requests"`
}

// weka reads one session. Block ids are local to it: they become the trace's own. A sub-agent is a session of its own, its parent the
// request before it.
func weka(in *input) (formats.Decoder, error) {
	whole, err := readWhole(in)
	if err != nil {
		return nil, err
	}
	var s wekaSession
	if err := json.Unmarshal(whole, &s); err != nil {
		return nil, plainJSON(err)
	}
	if s.BlockSize <= 0 || s.BlockSize > 1<<20 {
		return nil, fmt.Errorf("block size %d", s.BlockSize)
	}
	in.header.TimeBase, in.header.Prompts = "relative", promptsCumulative
	var samples []sample
	eachWeka(s.Requests, func(r wekaRequest) {
		if n, err := count(string(r.In)); err == nil && n.Valid && r.HashIDs != nil {
			samples = append(samples, sample{n.V, int64(len(r.HashIDs))})
		}
	})
	rule, known := findRule(samples, []int64{s.BlockSize}, "floor", "ceil")
	if known {
		if h := in.header; h.PrefixBlockSize != 0 && (h.PrefixBlockSize != int(rule.size) || h.PrefixBlockRule != rule.rule) {
			return nil, fmt.Errorf("blocks of %d by the rule %s, the files before have %d and %s: import them apart", rule.size, rule.rule, h.PrefixBlockSize, h.PrefixBlockRule)
		}
		rule.describe(in.header)
	}
	w := wekaReader{in: in, rule: rule, name: s.ID, id: in.rows}
	w.local = s.Scope != "global"
	w.scope = in.hash.scope(s.ID)
	w.session(s.Requests, s.ID, int64(in.part)*int64(in.o.SessionGap), formats.Null[int64]{}, 0)
	rows := w.rows
	return func(x *formats.Exchange) error {
		if len(rows) == 0 {
			return io.EOF
		}
		next := rows[0]
		rows = rows[1:]
		if next.err != nil {
			return next.err
		}
		*x = *next.x
		return nil
	}, nil
}

func eachWeka(rs []wekaRequest, f func(wekaRequest)) {
	for _, r := range rs {
		if r.Type == "subagent" {
			eachWeka(r.Requests, f)
			continue
		}
		f(r)
	}
}

// wekaReader unfolds a session.
type wekaReader struct {
	in    *input
	rule  blockRule
	name  string
	local bool
	scope scope
	id    int64 // of the last exchange
	row   int64
	rows  []wekaRow
}

type wekaRow struct {
	x   *formats.Exchange
	err error
}

const maxNesting = 32

// session unfolds the requests of one session that starts at base.
func (w *wekaReader) session(rs []wekaRequest, name string, base int64, parent formats.Null[int64], depth int) {
	hash := formats.Of(w.in.hash.sum("session", name))
	turn := int32(0)
	caller := parent
	for _, r := range rs {
		t, err := scaled(string(r.T), 1e9)
		if err == nil && r.Type == "subagent" && depth < maxNesting && base+t <= farthest && base+t >= -farthest {
			w.session(r.Requests, fmt.Sprintf("%s/%s/%d", name, r.AgentID, w.row), base+t, caller, depth+1)
			continue
		}
		w.row++
		if err == nil && (base+t > farthest || base+t < -farthest) {
			err = noTime(string(r.T))
		}
		if err != nil {
			w.drop(fmt.Errorf("t: %w", err))
			continue
		}
		if r.Type == "subagent" {
			w.drop(errors.New("sub-agents nested too deep"))
			continue
		}
		x := &formats.Exchange{ArrivalUnixNS: base + t, SessionID: hash, ParentID: parent, RequestModel: r.Model, FinishReason: r.Stop}
		if x.InputTokens, err = count(string(r.In)); err == nil {
			x.OutputTokens, err = count(string(r.Out))
		}
		if err != nil {
			w.drop(err)
			continue
		}
		sourced(x)
		switch r.Type {
		case "s":
			x.Stream = formats.Of(true)
		case "n":
			x.Stream = formats.Of(false)
		}
		x.FirstTokenNS, x.EndNS = duration(string(r.TTFT), 1e9), duration(string(r.APITime), 1e9)
		if r.Stop != "" {
			x.EndReason = formats.EndComplete
		}
		list := r.HashIDs
		if w.local {
			for i, id := range list {
				list[i] = w.scope.block(id)
			}
		}
		w.rule.set(x, list, w.in.notes)
		w.id++
		turn++
		x.ExchangeID, x.Turn = w.id, formats.Of(turn)
		caller = formats.Of(w.id)
		w.rows = append(w.rows, wekaRow{x: x})
	}
}

func (w *wekaReader) drop(err error) {
	w.rows = append(w.rows, wekaRow{err: &formats.RowError{Row: w.row, Reason: "broken_row", Err: err}})
}
