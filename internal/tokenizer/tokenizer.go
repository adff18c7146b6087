// Package tokenizer counts the tokens of a text as the model's own tokenizer would: byte-pair encodings from a Hugging Face
// tokenizer.json or a tiktoken vocabulary. What a file asks for and this package cannot do is refused by name: a count is the library's, or
// there is none. It is checked against the Python libraries tokenizers and tiktoken (docs/RECORDING.md).
package tokenizer

import (
	"hash/maphash"
	"unicode/utf8"
)

// Model is a tokenizer, read once. Safe for concurrent use; counting is done by Counters.
type Model struct {
	id        string
	special   int
	raw, made *added // special tokens looked for before and after the text is normalized
	normal    []normalizer
	stages    []stage
	bpe       bpe
}

// ID names the vocabulary: an encoding's name, or of a file "sha256:" and the first 16 hex digits of its digest. Equal ids count equally.
func (m *Model) ID() string { return m.id }

// Special is how many tokens the tokenizer itself puts around one prompt (the beginning of the text, say); they are not in a Count.
func (m *Model) Special() int { return m.special }

// NewCounter returns a counter for one goroutine.
func (m *Model) NewCounter() *Counter {
	return &Counter{m: m, seed: maphash.MakeSeed(), cache: make([]cached, cacheSize)}
}

// MaxText is the longest text that is counted, in bytes.
const MaxText = 16 << 20

// stepsPerByte bounds the work of cutting a text into pieces; any text that people write needs a few.
const stepsPerByte = 64

// Counter counts tokens. Its memory is used again and does not grow with the number of texts. Not safe for concurrent use.
type Counter struct {
	m       *Model
	match   matcher
	merge   merger
	dressed [][]byte // scratch of each stage
	scratch []byte
	n       int64
	ids     []int32 // kept where keep is set
	keep    bool
	seed    maphash.Seed
	cache   []cached
}

// cached is a piece whose tokens were counted before.
type cached struct {
	size  uint8
	key   [cachedBytes]byte
	count uint16
}

const (
	cachedBytes = 29
	cacheSize   = 1 << 14
)

// Count returns how many tokens text has. It returns false for a text longer than MaxText, and where cutting it takes more work than
// 64 steps a byte: the time it takes is in proportion to the text, whatever the text is. Equal texts have equal counts on every machine.
func (c *Counter) Count(text []byte) (int64, bool) {
	c.n = 0
	if len(text) > MaxText {
		return 0, false
	}
	c.match.steps = stepsPerByte*len(text) + 4096
	c.m.raw.split(text, true, func(part []byte, first bool, id int32) {
		if id >= 0 {
			c.add(id)
			return
		}
		c.normalized(part, first)
	})
	return c.n, c.match.steps >= 0
}

func (c *Counter) add(id int32) {
	c.n++
	if c.keep {
		c.ids = append(c.ids, id)
	}
}

func (c *Counter) normalized(text []byte, first bool) {
	for _, n := range c.m.normal {
		text = n(c, text)
	}
	c.m.made.split(text, first, func(part []byte, first bool, id int32) {
		if id >= 0 {
			c.add(id)
			return
		}
		c.walk(0, part, first)
	})
}

// piece counts the tokens of a piece, between whose ends and the rest of the text no token reaches.
func (c *Counter) piece(text []byte) {
	if c.m.bpe.seams == nil {
		c.word(text)
		return
	}
	for len(text) > 0 {
		n := c.m.bpe.seams.cut(text)
		c.word(text[:n])
		text = text[n:]
	}
}

func (c *Counter) word(text []byte) {
	for len(text) > maxPiece {
		n := maxPiece
		for !utf8.RuneStart(text[n]) && n > maxPiece-utf8.UTFMax {
			n--
		}
		c.word(text[:n])
		text = text[n:]
	}
	if len(text) > cachedBytes || c.keep {
		c.count(text)
		return
	}
	slot := &c.cache[maphash.Bytes(c.seed, text)%cacheSize]
	if int(slot.size) != len(text) || string(slot.key[:slot.size]) != string(text) {
		before := c.n
		c.count(text)
		slot.size = uint8(copy(slot.key[:], text))
		slot.count = uint16(c.n - before)
		return
	}
	c.n += int64(slot.count)
}

func (c *Counter) count(text []byte) {
	b := &c.m.bpe
	if id, ok := b.whole[string(text)]; ok {
		c.add(id)
		return
	}
	ids := c.merge.join(b, c.merge.begin(b, text))
	c.n += int64(len(ids))
	if c.keep {
		c.ids = append(c.ids, ids...)
	}
}
