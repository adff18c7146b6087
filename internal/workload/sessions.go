package workload

import (
	"container/heap"
	"errors"
	"fmt"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/stats"
)

// SessionLaw makes conversations out of arrivals: each arrival opens one, and its turns follow by themselves. Where Turns is 1 it only
// says what prompts begin with.
type SessionLaw struct {
	Turns     float64 `json:"turns"`      // mean number of turns, geometric; at least 1
	Think     float64 `json:"think_s"`    // mean seconds between an answer and the next turn, exponential
	PerToken  float64 `json:"token_s"`    // nominal seconds an output token takes, so that a turn comes after its predecessor's answer
	Roots     int     `json:"roots"`      // system prompts to choose from, the k-th with weight 1/k; 0: none
	RootShare float64 `json:"root_share"` // of the tokens of a first prompt that are the system prompt's, 0 to 1
	BlockSize int     `json:"block_size"` // tokens in a prefix block
	Shrink    float64 `json:"shrink"`     // of turns after the first: those that drop some of the prompt before
	Keep      float64 `json:"keep"`       // the share of that prompt that such a turn keeps, from its beginning
	MaxInput  int64   `json:"max_input"`  // a conversation that would grow past it ends or, with Shrink, drops; 0: a million tokens
}

func (l *SessionLaw) validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("sessions: "+format, args...)) }
	if !(l.Turns >= 1 && l.Turns <= 1e6) || !(l.Think >= 0 && l.Think <= 1e9) || !(l.PerToken >= 0 && l.PerToken <= 1e3) {
		bad("%v turns, %v s to think, %v s a token", l.Turns, l.Think, l.PerToken)
	}
	if !(l.Shrink >= 0 && l.Shrink <= 1 && l.Keep >= 0 && l.Keep <= 1) {
		bad("%v of the turns shrink and keep %v: must be shares", l.Shrink, l.Keep)
	}
	if l.Roots < 0 || l.Roots > 1e6 || !(l.RootShare >= 0 && l.RootShare <= 1) || l.BlockSize <= 0 || l.MaxInput < 0 {
		bad("%d roots, share %v, blocks of %d tokens, at most %d input tokens", l.Roots, l.RootShare, l.BlockSize, l.MaxInput)
	}
	return errors.Join(errs...)
}

// talk is a conversation whose next turn is due.
type talk struct {
	at      int64
	order   uint64
	id      formats.Hash
	turn    int32
	input   int64 // of the next turn but for what the user adds
	added   int64 // what the user adds each time
	own     *chain
	pattern formats.Exchange // the first turn: lengths of what is added
}

type talks []*talk

func (h talks) Len() int { return len(h) }
func (h talks) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].order < h[j].order
}
func (h talks) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *talks) Push(x any)   { *h = append(*h, x.(*talk)) }
func (h *talks) Pop() any {
	t := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return t
}

// sessions holds the conversations that go on.
type sessions struct {
	l     *SessionLaw
	src   source
	base  uint64 // of identities
	due   talks
	next  uint64
	end   int64 // nanoseconds; 0: none
	roots []float64
}

func newSessions(l *SessionLaw, src source, o Options) *sessions {
	s := &sessions{l: l, src: src, base: src.state, end: int64(o.Seconds * 1e9)}
	sum := 0.0
	for k := range l.Roots {
		sum += 1 / float64(k+1)
		s.roots = append(s.roots, sum)
	}
	return s
}

// open makes x the first turn of a conversation and schedules the second.
func (s *sessions) open(x *formats.Exchange) {
	s.next++
	t := &talk{order: s.next, id: hashOf(stats.Mix(s.base ^ s.next<<20)), own: &chain{id: stats.Mix(s.base + s.next)}}
	if len(s.roots) > 0 {
		u := float64(s.src.uniform() * s.roots[len(s.roots)-1])
		k := 0
		for k < len(s.roots)-1 && s.roots[k] <= u {
			k++
		}
		t.own.parent, t.own.from = &chain{id: stats.Mix(s.base ^ uint64(k)<<40 ^ 0x726f6f74)}, int(s.l.RootShare*float64(x.InputTokens.V))/s.l.BlockSize
	}
	t.pattern = *x
	// What the user adds is as long as what first prompts are without their system prompt.
	t.added = max(1, x.InputTokens.V-int64(t.own.from*s.l.BlockSize))
	s.turn(t, x)
}

// resume is the turn that is due, or nil where it is past the end.
func (s *sessions) resume() *formats.Exchange {
	t := heap.Pop(&s.due).(*talk)
	if s.end > 0 && t.at >= s.end {
		return nil
	}
	x := t.pattern
	x.ArrivalUnixNS = t.at
	x.InputTokens = formats.Of(t.input + t.added)
	s.turn(t, &x)
	return &x
}

// turn completes a turn and schedules the next.
func (s *sessions) turn(t *talk, x *formats.Exchange) {
	t.turn++
	if s.l.Turns > 1 {
		x.SessionID, x.Turn = formats.Of(t.id), formats.Of(t.turn)
		x.Drawn.V |= formats.DrawnSession
	}
	n := int(x.InputTokens.V) / s.l.BlockSize
	x.PrefixBlocks = make([]int64, n)
	for i := range x.PrefixBlocks {
		x.PrefixBlocks[i] = t.own.block(i)
	}
	x.PrefixTailTokens = formats.Of(x.InputTokens.V % int64(s.l.BlockSize))
	if s.src.uniform() < 1/s.l.Turns {
		return
	}
	limit := s.l.MaxInput
	if limit == 0 {
		limit = maxLength
	}
	t.input = x.InputTokens.V + x.OutputTokens.V
	drops := s.l.Shrink > 0 && (s.src.uniform() < s.l.Shrink || t.input >= limit)
	if drops {
		kept := int(float64(s.l.Keep*float64(x.InputTokens.V))) / s.l.BlockSize
		s.next++
		t.own = &chain{parent: t.own, from: kept, id: stats.Mix(s.base + s.next)}
		t.input = int64(kept*s.l.BlockSize) + x.OutputTokens.V
	}
	if t.input >= limit {
		return
	}
	wait := float64(s.l.PerToken*float64(x.OutputTokens.V)) + float64(s.l.Think*s.src.exponential())
	t.at = x.ArrivalUnixNS + int64(float64(wait*1e9))
	heap.Push(&s.due, t)
}
