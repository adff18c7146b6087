package tokenizer

import (
	"bytes"
	"unicode/utf8"
)

// A stage cuts a piece of text into smaller ones, between which no token can reach. Stages work one after the other.
type stage struct {
	prefix  prefixRule
	mark    string   // replaces spaces, and is the prefix; "" leaves them
	pattern *program // nil: the piece stays whole
	keep    behavior
	invert  bool // what lies between matches is the match
}

// prefixRule says whether a mark (or a space) is put before a piece that does not begin with one.
type prefixRule uint8

const (
	noPrefix prefixRule = iota
	alwaysPrefix
	firstPrefix // before the text's first piece only
)

// behavior says what becomes of what a pattern matches.
type behavior uint8

const (
	isolated behavior = iota // a piece of its own
	removed
	withPrevious // joined to the piece before it
	withNext
	contiguous // neighbors are one piece
)

// walk gives text to the stages from i on, and what they make of it to the model. first says that the whole text begins here.
func (c *Counter) walk(i int, text []byte, first bool) {
	if len(text) == 0 || c.match.steps < 0 {
		return
	}
	if i == len(c.m.stages) {
		c.piece(text)
		return
	}
	s := &c.m.stages[i]
	if text = c.dress(i, s, text, first); s.pattern == nil {
		c.walk(i+1, text, first)
		return
	}
	from, was := 0, false // the piece that is not given on yet begins at from; its last part was a match
	give := func(end int) {
		if end > from && !(was && s.keep == removed) {
			c.walk(i+1, text[from:end], first)
			first = false
		}
		from = end
	}
	part := func(start, end int, is bool) {
		if start == end {
			return
		}
		joined := s.keep == contiguous && is == was || s.keep == withPrevious && is && !was || s.keep == withNext && !is && was
		if !joined {
			give(start)
		}
		was = is
	}
	for pos := 0; pos < len(text); {
		start, end := c.find(s.pattern, text, pos)
		part(pos, start, s.invert)
		part(start, end, !s.invert)
		pos = end
	}
	give(len(text))
}

// find returns the next match of p from pos on; both ends are len(text) where there is none. A match of nothing is none.
func (c *Counter) find(p *program, text []byte, pos int) (start, end int) {
	for pos < len(text) {
		if end := c.match.match(p, text, pos); end > pos {
			return pos, end
		}
		if c.match.steps < 0 {
			break
		}
		if text[pos] < utf8.RuneSelf {
			pos++
			continue
		}
		_, n := utf8.DecodeRune(text[pos:])
		pos += n
	}
	return len(text), len(text)
}

// dress applies a stage's marks.
func (c *Counter) dress(i int, s *stage, text []byte, first bool) []byte {
	if s.prefix == noPrefix && s.mark == "" {
		return text
	}
	mark := s.mark
	if mark == "" {
		mark = " "
	}
	for len(c.dressed) <= i {
		c.dressed = append(c.dressed, nil)
	}
	b := c.dressed[i][:0]
	if s.prefix == alwaysPrefix || s.prefix == firstPrefix && first {
		if !bytes.HasPrefix(text, []byte(mark)) && (s.mark == "" || text[0] != ' ') {
			b = append(b, mark...)
		}
	}
	if s.mark == "" {
		b = append(b, text...)
	} else {
		for {
			at := bytes.IndexByte(text, ' ')
			if at < 0 {
				break
			}
			b = append(append(b, text[:at]...), s.mark...)
			text = text[at+1:]
		}
		b = append(b, text...)
	}
	c.dressed[i] = b
	return b
}
