package openai

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/tokenizer"
)

// PrefixBlockBytes is the size of a prefix block: bytes of the canonical prompt (the header's prefix block size, unit bytes). It is some
// 32 tokens of English, and exactly 32 token ids, which count four bytes each.
const PrefixBlockBytes = 128

// Hasher makes keyed hashes: HMAC-SHA-256 cut to 64 bits. Equal keys give equal hashes on every machine; without the key nothing can be
// guessed from them. Not safe for concurrent use: one for each goroutine (Clone).
type Hasher struct {
	key      []byte
	mac      hash.Hash
	sum      [sha256.Size]byte
	turns    []formats.Hash
	prompt   int64
	previous string
	text     []byte // scratch
	counter  *tokenizer.Counter
	segment  []byte // scratch: text whose tokens are to be counted
	tokens   int64  // of the prompt of the request last read; −1: not counted
}

// NewHasher returns a hasher with a key of any length; the key is copied.
func NewHasher(key []byte) *Hasher {
	k := append([]byte(nil), key...)
	return &Hasher{key: k, mac: hmac.New(sha256.New, k), tokens: -1}
}

// Clone returns a hasher with the same key for another goroutine.
func (h *Hasher) Clone() *Hasher { return NewHasher(h.key) }

// KeyID names the key, for the trace header: two traces whose ids differ cannot be joined on their hashes. It does not give the key away.
func (h *Hasher) KeyID() string {
	s := h.Sum("key-id")
	return hex.EncodeToString(s[:])
}

// CountWith makes ReadRequest count the tokens of prompts with a counter, which the hasher then uses; nil: it does not.
func (h *Hasher) CountWith(c *tokenizer.Counter) { h.counter = c }

// PromptTokens is how many tokens the texts of the prompt have that was last read: of each message, each part and each prompt by itself,
// tool definitions and tool calls as JSON without white space; what a chat template puts around them is not in it. False where they were
// not counted, or the prompt is more than text (images, sound, token ids).
func (h *Hasher) PromptTokens() (int64, bool) { return h.tokens, h.tokens >= 0 }

// Sum hashes an identifier. kind separates name spaces, so that a user and a session of one name differ.
func (h *Hasher) Sum(kind string, parts ...string) formats.Hash {
	h.mac.Reset()
	h.write(kind)
	for _, p := range parts {
		h.write(p)
	}
	return h.cut()
}

// Hex is Sum as 16 hex digits.
func (h *Hasher) Hex(kind, s string) string {
	sum := h.Sum(kind, s)
	return hex.EncodeToString(sum[:])
}

// Turns returns, for the request last read, a chained hash after each of its messages, first to last. A later request of the same
// conversation repeats them as a prefix. The slice is valid until the next ReadRequest.
func (h *Hasher) Turns() []formats.Hash { return h.turns }

// Previous is the id of the response that the request last read continues from; "" where it names none. It is text: hash it.
func (h *Hasher) Previous() string { return h.previous }

// PromptBytes is the length of the canonical prompt of the request last read, in bytes; 0 where it is unknown.
func (h *Hasher) PromptBytes() int64 { return h.prompt }

func (h *Hasher) write(s string) {
	var n [4]byte
	binary.LittleEndian.PutUint32(n[:], uint32(len(s)))
	h.mac.Write(n[:])
	h.text = append(h.text[:0], s...)
	h.mac.Write(h.text)
}

func (h *Hasher) cut() (f formats.Hash) {
	copy(f[:], h.mac.Sum(h.sum[:0]))
	return f
}

// chain hashes a canonical prompt as it is written: a keyed hash for each full block, chained over all blocks before it.
type chain struct {
	h      *Hasher
	buf    [PrefixBlockBytes]byte
	n      int
	prev   formats.Hash
	blocks []int64
	total  int64
	tokens int64 // of the texts so far; −1: they are not counted
}

// Write takes text.
func (c *chain) Write(p []byte) {
	if c.tokens >= 0 {
		if len(c.h.segment)+len(p) > tokenizer.MaxText {
			c.tokens = -1
		} else {
			c.h.segment = append(c.h.segment, p...)
		}
	}
	c.put(p)
}

// cut ends a text: no token reaches beyond.
func (c *chain) cut() {
	if c.tokens >= 0 && len(c.h.segment) > 0 {
		n, ok := c.h.counter.Count(c.h.segment)
		if c.tokens += n; !ok {
			c.tokens = -1
		}
	}
	if c.h.segment = c.h.segment[:0]; cap(c.h.segment) > 1<<20 {
		c.h.segment = nil
	}
}

// put takes bytes that are no text, or are counted elsewhere.
func (c *chain) put(p []byte) {
	c.total += int64(len(p))
	for len(p) > 0 {
		k := copy(c.buf[c.n:], p)
		c.n += k
		p = p[k:]
		if c.n == len(c.buf) {
			c.prev = c.sum("block")
			c.blocks = append(c.blocks, int64(binary.BigEndian.Uint64(c.prev[:])))
			c.n = 0
		}
	}
}

// str takes a mark, which ends a text.
func (c *chain) str(s string) {
	c.cut()
	c.h.text = append(c.h.text[:0], s...)
	c.put(c.h.text)
}

// mark is a hash of everything written so far.
func (c *chain) mark() formats.Hash { return c.sum("turn") }

func (c *chain) sum(kind string) formats.Hash {
	m := c.h.mac
	m.Reset()
	c.h.write(kind)
	m.Write(c.prev[:])
	m.Write(c.buf[:c.n])
	return c.h.cut()
}
