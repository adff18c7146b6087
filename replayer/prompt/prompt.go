package prompt

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"strconv"
	"sync"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/stats"
)

// Options say how the bodies of a replay are made.
type Options struct {
	Seed     int64            // other seed, other text: a new run does not find the last one's prompts in the cache
	Model    string           // what to ask the candidate for
	Endpoint formats.Endpoint // of rows that do not say theirs
	TokenIDs bool             // completions and embeddings take prompts as token ids
	Dialect  Dialect          // how output lengths are forced
	Natural  bool             // leave output lengths to the model
	Greedy   bool             // temperature 0 instead of what was recorded

	// Of the trace's header.
	BlockUnit  string // tokens or bytes; "": prefix blocks are not used
	BlockSize  int
	BlockRule  string // ceil or floor
	Cumulative bool   // a session's prompts are prefixes of one another; used where there are no blocks
	// TokensPerByte converts blocks of bytes; 0 means 0.25. It is one number for the trace, so that equal blocks get equal tokens.
	TokensPerByte float64

	Images         bool        // send pictures of the recorded size, which the server is known to take
	Text           Calibration // of chat and other text prompts
	CompletionText Calibration // of completions where TokenIDs is false
	FirstID        int         // the token ids drawn are FirstID ≤ id < LastID; 0: 1,000
	LastID         int         // 0: 30,000, which every tokenizer of a current model holds
}

// Validate reports every setting that cannot work.
func (o Options) Validate() error {
	var errs []error
	if o.Model == "" {
		errs = append(errs, errors.New("no model is named"))
	}
	if o.BlockUnit != "" && o.BlockSize <= 0 {
		errs = append(errs, fmt.Errorf("prefix blocks of %d %s", o.BlockSize, o.BlockUnit))
	}
	if o.FirstID < 0 || o.LastID < 0 || o.LastID > 0 && o.LastID <= o.FirstID {
		errs = append(errs, fmt.Errorf("token ids from %d to %d", o.FirstID, o.LastID))
	}
	if !(o.TokensPerByte >= 0) || math.IsInf(o.TokensPerByte, 0) {
		errs = append(errs, fmt.Errorf("%v tokens per byte", o.TokensPerByte))
	}
	return errors.Join(errs...)
}

// Maker makes bodies of the recorded length and prefix structure: equal block hashes become equal tokens in every run with the same
// seed. Safe for concurrent use.
type Maker struct {
	o Options

	mu    sync.Mutex
	notes map[string]int64
}

// New checks the options and fills in defaults.
func New(o Options) (*Maker, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if o.FirstID == 0 {
		o.FirstID = 1000
	}
	if o.LastID == 0 {
		o.LastID = 30_000
	}
	if o.TokensPerByte == 0 {
		o.TokensPerByte = 0.25
	}
	o.Text.defaults()
	o.CompletionText.defaults()
	if o.Endpoint == "" {
		o.Endpoint = formats.EndpointChat
	}
	return &Maker{o: o, notes: map[string]int64{}}, nil
}

// Options are those in use, defaults filled in.
func (p *Maker) Options() Options { return p.o }

// Notes counts what could not be sent as it was recorded, by what it was.
func (p *Maker) Notes() map[string]int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make(map[string]int64, len(p.notes))
	for k, v := range p.notes {
		out[k] = v
	}
	return out
}

func (p *Maker) note(what string) {
	p.mu.Lock()
	p.notes[what]++
	p.mu.Unlock()
}

// span is a piece of a prompt: n tokens from the stream that key names, from its start.
type span struct {
	key uint64
	n   int64
}

// spans divides a prompt of n tokens as the recorded one was divided.
func (p *Maker) spans(x *formats.Exchange, n int64) []span {
	if n <= 0 {
		return nil
	}
	var out []span
	left := n
	take := func(key uint64, k int64) {
		if k = min(k, left); k > 0 {
			out = append(out, span{key, k})
			left -= k
		}
	}
	o := p.o
	switch {
	case o.BlockUnit != "" && x.PrefixBlocks != nil:
		per := float64(o.BlockSize)
		if o.BlockUnit == "bytes" {
			per *= o.TokensPerByte
		}
		for i, h := range x.PrefixBlocks {
			// Boundaries depend on the position only: equal chains of blocks end at equal tokens.
			from, to := math.Floor(float64(i)*per), math.Floor(float64(i+1)*per)
			take(p.key('b', uint64(h)^pass(x)), int64(to-from))
		}
	case o.Cumulative && x.SessionID.Valid:
		take(p.key('s', binary.BigEndian.Uint64(x.SessionID.V[:])^pass(x)), left)
	}
	if left > 0 { // nobody else's: the tail is the exchange's own
		take(p.key('t', uint64(x.SourceID.Or(x.ExchangeID))^pass(x)), left)
	}
	return out
}

var none formats.Null[int64]

// pass makes another pass over the trace other users: its text is its own, or the second pass would find the first one's prompts in the
// cache.
func pass(x *formats.Exchange) uint64 { return uint64(x.Loop.V) * 0xd1342543de82ef95 }

// key names a stream of tokens: by kind, identity and the run's seed.
func (p *Maker) key(kind byte, id uint64) uint64 {
	return stats.Mix(stats.Mix(uint64(p.o.Seed)+uint64(kind)*0x9e3779b97f4a7c15) ^ id)
}

// draw calls f with n numbers below limit from the stream of key.
func draw(s span, limit uint64, f func(uint64)) {
	state := s.key
	for range s.n {
		hi, _ := bits.Mul64(stats.Mix(state), limit)
		f(hi)
		state += 0x9e3779b97f4a7c15
	}
}

// ids appends a prompt of n token ids as a JSON array.
func (p *Maker) ids(b []byte, x *formats.Exchange, n int64) []byte {
	b = append(b, '[')
	first := true
	for _, s := range p.spans(x, n) {
		draw(s, uint64(p.o.LastID-p.o.FirstID), func(v uint64) {
			if !first {
				b = append(b, ',')
			}
			first = false
			b = strconv.AppendUint(b, v+uint64(p.o.FirstID), 10)
		})
	}
	return append(b, ']')
}

// text appends n tokens' worth of words, without quotes. Blocks keep their share of the words.
func (p *Maker) text(b []byte, x *formats.Exchange, n int64, c *Calibration) []byte {
	first := true
	var tokens, words float64
	for _, s := range p.spans(x, n) {
		tokens += float64(s.n)
		end := math.Round(tokens / c.TokensPerWord)
		s.n = int64(end - words)
		words = end
		draw(s, uint64(len(c.Words)), func(v uint64) {
			if !first {
				b = append(b, ' ')
			}
			first = false
			b = append(b, c.Words[v]...)
		})
	}
	return b
}
