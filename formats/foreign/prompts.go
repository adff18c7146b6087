package foreign

import (
	"errors"
	"fmt"

	"github.com/shadowtape/shadowtape/formats"
)

// What a header says of a session's prompts.
const (
	promptsCumulative = "cumulative"
	promptsPerTurn    = "per_turn"
)

// ErrPromptsUnknown ends an import of sessions of which nothing tells whether a prompt begins with the turns before it: a replay would have
// to guess how much of it a cache holds.
var ErrPromptsUnknown = errors.New("whether their prompts begin with the turns before cannot be known")

// turns finds out whether the prompts of sessions begin with the turns before, by the blocks of successive turns.
type turns struct {
	last  map[formats.Hash]turn
	pairs int64 // successive turns of one session
	shown int64 // of those, with block lists that can tell
	held  int64 // of those, the later list begins with the whole blocks of the earlier
	long  int64 // pairs of which the later input is at least as long as all before it
	sized int64 // pairs with the lengths that this takes
}

// turn is a session's last request.
type turn struct {
	blocks uint64 // its whole blocks, folded
	n      int    // how many
	listed bool
	tokens formats.Null[int64] // input and output
}

// add takes the next row in order of arrival; rule is the header's for block lists.
func (t *turns) add(x *formats.Exchange, rule string) {
	if !x.SessionID.Valid {
		return
	}
	now := turn{listed: x.PrefixBlocks != nil, n: len(x.PrefixBlocks)}
	if rule == "ceil" && x.PrefixTailTokens.V > 0 {
		now.n-- // a partial last block changes when more follows
	}
	if now.n = max(now.n, 0); now.listed {
		now.blocks = fold(x.PrefixBlocks[:now.n])
	}
	if x.InputTokens.Valid && x.OutputTokens.Valid {
		now.tokens = formats.Of(x.InputTokens.V + x.OutputTokens.V)
	}
	if t.last == nil {
		t.last = map[formats.Hash]turn{}
	}
	before, again := t.last[x.SessionID.V]
	t.last[x.SessionID.V] = now
	if !again {
		return
	}
	t.pairs++
	if before.listed && now.listed && before.n > 0 {
		t.shown++
		if before.n <= len(x.PrefixBlocks) && fold(x.PrefixBlocks[:before.n]) == before.blocks {
			t.held++
		}
	}
	if before.tokens.Valid && x.InputTokens.Valid {
		t.sized++
		if x.InputTokens.V >= before.tokens.V {
			t.long++
		}
	}
}

// prompts says what the sessions' prompts are: "" where no session has a second turn, else what three of four of the block lists show; an
// ErrPromptsUnknown where too few have any.
func (t *turns) prompts() (string, error) {
	switch {
	case t.pairs == 0:
		return "", nil
	case 4*t.shown >= 3*t.pairs && 4*t.held >= 3*t.shown:
		return promptsCumulative, nil
	case 4*t.shown >= 3*t.pairs && 4*t.held <= t.shown:
		return promptsPerTurn, nil
	}
	evidence := ""
	if t.sized > 0 {
		evidence = fmt.Sprintf(" (the input is long enough for it in %.0f %%)", 100*float64(t.long)/float64(t.sized))
	}
	return "", fmt.Errorf("import %d sessions with %d later turns: %w%s", len(t.last), t.pairs, ErrPromptsUnknown, evidence)
}

// fold is a number for a list of ids; lists that differ have different ones but for chance (FNV-1a over words of 64 bits,
// their upper bits mixed back).
func fold(list []int64) uint64 {
	h := uint64(14695981039346656037)
	for _, id := range list {
		h = (h ^ uint64(id)) * 1099511628211
		h ^= h >> 29
	}
	return h
}
