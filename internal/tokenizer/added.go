package tokenizer

import (
	"sync"
	"unicode"
	"unicode/utf8"
)

// added are the tokens that are looked for in a text before anything else: marks of a chat template, mostly. nil has none.
type added struct {
	root    trie
	skip    [256]bool // no token begins with this byte
	entries []addedToken
}

type addedToken struct {
	id                       int32
	text                     string
	whole, eatLeft, eatRight bool // not inside a word; takes the white space before, after it
}

type trie struct {
	next  map[byte]*trie
	entry int // 1 + index into entries; 0: none ends here
}

func newAdded(tokens []addedToken) *added {
	if len(tokens) == 0 {
		return nil
	}
	a := &added{entries: tokens}
	for b := range a.skip {
		a.skip[b] = true
	}
	for i, t := range tokens {
		a.skip[t.text[0]] = false
		at := &a.root
		for _, b := range []byte(t.text) {
			if at.next == nil {
				at.next = map[byte]*trie{}
			}
			if at.next[b] == nil {
				at.next[b] = &trie{}
			}
			at = at.next[b]
		}
		if at.entry == 0 {
			at.entry = i + 1
		}
	}
	return a
}

// longest returns the longest token that begins at text's start.
func (a *added) longest(text []byte) *addedToken {
	at, best := &a.root, 0
	for _, b := range text {
		if at = at.next[b]; at == nil {
			break
		}
		if at.entry > 0 {
			best = at.entry
		}
	}
	if best == 0 {
		return nil
	}
	return &a.entries[best-1]
}

// split hands out the parts of text in order: those between tokens with id −1, and the tokens' ids. first says whether the text begins
// with this part, as far as first says so of text.
func (a *added) split(text []byte, first bool, out func(part []byte, first bool, id int32)) {
	from := 0
	give := func(end int) {
		if end > from {
			out(text[from:end], first && from == 0, -1)
		}
	}
	if a == nil {
		give(len(text))
		return
	}
	for i := 0; i < len(text); {
		if a.skip[text[i]] {
			i++
			continue
		}
		t := a.longest(text[i:])
		if t == nil {
			i++
			continue
		}
		start, end := i, i+len(t.text)
		i = end
		if t.whole && (wordBefore(text[:start]) || wordAfter(text[end:])) {
			continue
		}
		if t.eatLeft {
			for start > from {
				r, n := utf8.DecodeLastRune(text[from:start])
				if !unicode.IsSpace(r) {
					break
				}
				start -= n
			}
		}
		if t.eatRight {
			for end < len(text) {
				r, n := utf8.DecodeRune(text[end:])
				if !unicode.IsSpace(r) {
					break
				}
				end += n
			}
		}
		give(start)
		out(nil, false, t.id)
		from = end
		i = max(i, end)
	}
	give(len(text))
}

// words are the characters of words, made when first needed.
var words = sync.OnceValue(func() *class { return newClass(wordChars()) })

func wordBefore(text []byte) bool {
	r, n := utf8.DecodeLastRune(text)
	return n > 0 && words().has(r)
}

func wordAfter(text []byte) bool {
	r, n := utf8.DecodeRune(text)
	return n > 0 && words().has(r)
}
