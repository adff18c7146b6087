package recorder

import (
	"strconv"
	"sync"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/openai"
)

// sessions finds the turns of a conversation: a request whose messages begin with those of an earlier request continues it. Where the
// client names its session that name's hash is the session. It holds one hash a request and forgets the oldest. Safe for concurrent use:
// the workers of one recorder share one.
type sessions struct {
	mu       sync.Mutex
	now, old map[formats.Hash]*openTurns    // by the chained hash of a request's messages
	answers  map[formats.Hash]*conversation // by the hash of the response that a request may continue from
	named    map[formats.Hash]int32         // turns so far
}

// openTurns are the conversations that stood at one list of messages: several where users open with the same words.
type openTurns struct {
	at     []*conversation // not continued yet, oldest first
	any    *conversation   // the last one that was
	opened int             // how many began here
}

type conversation struct {
	id    formats.Hash
	turns int32
}

// maxTurns is how many requests are remembered at most, in each of two generations.
const maxTurns = 1 << 16

func newSessions() *sessions {
	return &sessions{now: map[formats.Hash]*openTurns{}, answers: map[formats.Hash]*conversation{}, named: map[formats.Hash]int32{}}
}

// assign fills in the session and turn of a request that h has just read, and returns its conversation; nil where it is none.
func (s *sessions) assign(x *formats.Exchange, h *openai.Hasher) *conversation {
	if h == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.now) >= maxTurns {
		s.old, s.now = s.now, map[formats.Hash]*openTurns{}
	}
	if x.SessionID.Valid {
		if len(s.named) >= maxTurns {
			clear(s.named)
		}
		s.named[x.SessionID.V]++
		x.Turn = formats.Of(s.named[x.SessionID.V])
		return nil
	}
	if prev := h.Previous(); prev != "" {
		id := h.Sum("response", prev)
		c := s.answers[id]
		if c == nil { // its beginning was not seen
			c = &conversation{id: id}
			s.answered(id, c)
		}
		return c.turn(x)
	}
	turns := h.Turns()
	if len(turns) == 0 {
		if x.Endpoint == formats.EndpointResponses { // it may be continued by its id
			c := &conversation{}
			return c
		}
		return nil
	}
	tenant := ""
	if x.TenantID.Valid {
		tenant = string(x.TenantID.V[:])
	}
	// What one tenant says never continues another's conversation.
	key := func(t formats.Hash) formats.Hash { return h.Sum("said", string(t[:]), tenant) }
	last := key(turns[len(turns)-1])
	var c *conversation
	for i := len(turns) - 2; i >= 0 && c == nil; i-- {
		if o := s.find(key(turns[i])); o != nil {
			c = o.next()
		}
	}
	o := s.find(last)
	if o == nil {
		o = &openTurns{}
		s.now[last] = o
	}
	if c == nil {
		id := last
		if o.opened > 0 {
			id = h.Sum("again", string(last[:]), strconv.Itoa(o.opened))
		}
		o.opened++
		c = &conversation{id: id}
	}
	if len(o.at) < 1024 {
		o.at = append(o.at, c)
	}
	return c.turn(x)
}

// turn makes x the conversation's next turn.
func (c *conversation) turn(x *formats.Exchange) *conversation {
	c.turns++
	x.SessionID, x.Turn = formats.Of(c.id), formats.Of(c.turns)
	return c
}

// answer notes that a conversation goes on from the response with this hashed id.
func (s *sessions) answer(id formats.Hash, c *conversation, x *formats.Exchange) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.turns == 0 { // its first request named nothing: it is known by its answer
		c.id = id
		c.turn(x)
	}
	s.answered(id, c)
}

func (s *sessions) answered(id formats.Hash, c *conversation) {
	if len(s.answers) >= maxTurns {
		clear(s.answers)
	}
	s.answers[id] = c
}

// next takes the oldest conversation that has not been continued from here, or goes on with the last one: an answer asked for again.
func (o *openTurns) next() *conversation {
	if len(o.at) == 0 {
		return o.any
	}
	o.any = o.at[0]
	o.at = o.at[1:]
	return o.any
}

func (s *sessions) find(h formats.Hash) *openTurns {
	o := s.now[h]
	if o == nil {
		if o = s.old[h]; o != nil {
			s.now[h] = o
			delete(s.old, h)
		}
	}
	return o
}
