package tokenizer

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// A pattern is read into a tree: what a tokenizer's rules are written with, and no more of regular expressions. Anything else is refused
// by name, as a rule that is half understood counts wrongly.
type tree struct {
	kind     treeKind
	set      spans // of setTree
	kids     []*tree
	min, max int // of repeatTree; max −1: no limit
	mode     repeatMode
}

type treeKind uint8

const (
	setTree treeKind = iota // one character of a set
	sequenceTree
	choiceTree
	repeatTree
	lookTree    // what follows matches
	notLookTree // what follows does not match
	atomicTree  // not tried again once it has matched
	beginTree   // the text's beginning
	endTree     // the text's end
)

type repeatMode uint8

const (
	greedy repeatMode = iota
	lazy
	possessive
)

const (
	maxPattern    = 16 << 10 // bytes of a pattern
	maxNesting    = 32
	maxRepetition = 1000
)

// patternParser reads one pattern.
type patternParser struct {
	s     string
	i     int
	fold  bool // without regard to case
	depth int
}

func parsePattern(s string) (*tree, error) {
	if len(s) > maxPattern || !utf8.ValidString(s) {
		return nil, errors.New("a pattern that is too long, or no text")
	}
	p := &patternParser{s: s}
	t, err := p.choice()
	if err == nil && p.i < len(s) {
		err = errors.New("a parenthesis that closes nothing")
	}
	if err != nil {
		return nil, fmt.Errorf("pattern %s: %w at byte %d", strconv.Quote(short(s)), err, p.i)
	}
	return t, nil
}

// short cuts a text for a message.
func short(s string) string {
	if len(s) > 60 {
		return strings.ToValidUTF8(s[:60], "") + "…"
	}
	return s
}

func (p *patternParser) more() bool { return p.i < len(p.s) }

func (p *patternParser) take(s string) bool {
	if strings.HasPrefix(p.s[p.i:], s) {
		p.i += len(s)
		return true
	}
	return false
}

func (p *patternParser) rune() rune {
	r, n := utf8.DecodeRuneInString(p.s[p.i:])
	p.i += n
	return r
}

func (p *patternParser) choice() (*tree, error) {
	if p.depth++; p.depth > maxNesting {
		return nil, errors.New("parentheses nested too deeply")
	}
	defer func() { p.depth-- }()
	var kids []*tree
	for {
		t, err := p.sequence()
		if err != nil {
			return nil, err
		}
		kids = append(kids, t)
		if !p.take("|") {
			break
		}
	}
	if len(kids) == 1 {
		return kids[0], nil
	}
	return &tree{kind: choiceTree, kids: kids}, nil
}

func (p *patternParser) sequence() (*tree, error) {
	t := &tree{kind: sequenceTree}
	for p.more() && p.s[p.i] != '|' && p.s[p.i] != ')' {
		one, err := p.atom()
		if err != nil {
			return nil, err
		}
		if one == nil { // a flag
			continue
		}
		if one, err = p.quantifier(one); err != nil {
			return nil, err
		}
		t.kids = append(t.kids, one)
	}
	return t, nil
}

func (p *patternParser) atom() (*tree, error) {
	switch c := p.s[p.i]; c {
	case '(':
		return p.group()
	case '[':
		s, err := p.set()
		if err != nil {
			return nil, err
		}
		return p.oneOf(s)
	case '^':
		p.i++
		return &tree{kind: beginTree}, nil
	case '$':
		p.i++
		return &tree{kind: endTree}, nil
	case '.':
		p.i++
		return &tree{kind: setTree, set: spans{{'\n', '\n'}}.negated()}, nil
	case '*', '+', '?', '{':
		return nil, errors.New("a repetition of nothing")
	case '\\':
		p.i++
		if p.take("A") {
			return &tree{kind: beginTree}, nil
		}
		if p.take("z") {
			return &tree{kind: endTree}, nil
		}
		s, err := p.escape()
		if err != nil {
			return nil, err
		}
		return p.oneOf(s)
	}
	r := p.rune()
	return p.oneOf(spans{{r, r}})
}

func (p *patternParser) oneOf(s spans) (*tree, error) {
	if p.fold {
		var err error
		if s, err = s.folded(); err != nil {
			return nil, err
		}
	}
	return &tree{kind: setTree, set: s}, nil
}

func (p *patternParser) group() (*tree, error) {
	p.i++
	kind, fold := sequenceTree, p.fold
	switch {
	case p.take("?:"):
	case p.take("?i:"):
		p.fold = true
	case p.take("?i)"): // to the end of the group around it
		p.fold = true
		return nil, nil
	case p.take("?="):
		kind = lookTree
	case p.take("?!"):
		kind = notLookTree
	case p.take("?>"):
		kind = atomicTree
	case strings.HasPrefix(p.s[p.i:], "?"):
		return nil, fmt.Errorf("the group (%s", short(p.s[p.i:min(p.i+3, len(p.s))]))
	}
	t, err := p.choice()
	if err != nil {
		return nil, err
	}
	if !p.take(")") {
		return nil, errors.New("a parenthesis that is not closed")
	}
	p.fold = fold
	if kind == sequenceTree {
		return t, nil
	}
	return &tree{kind: kind, kids: []*tree{t}}, nil
}

func (p *patternParser) quantifier(t *tree) (*tree, error) {
	for p.more() {
		lo, hi := 0, -1
		switch p.s[p.i] {
		case '*':
		case '+':
			lo = 1
		case '?':
			hi = 1
		case '{':
			end := strings.IndexByte(p.s[p.i:], '}')
			if end < 0 {
				return nil, errors.New("a brace that is not closed")
			}
			from, to, several := strings.Cut(p.s[p.i+1:p.i+end], ",")
			var err, err2 error
			if lo, err = strconv.Atoi(from); from == "" {
				lo, err = 0, nil
			}
			hi = lo
			if several {
				if hi, err2 = strconv.Atoi(to); to == "" {
					hi, err2 = -1, nil
				}
			}
			if err != nil || err2 != nil || lo < 0 || lo > maxRepetition || hi > maxRepetition || hi >= 0 && hi < lo {
				return nil, errors.New("a repetition that is none")
			}
			p.i += end
		default:
			return t, nil
		}
		p.i++
		mode := greedy
		switch {
		case p.take("+"):
			mode = possessive
		case p.take("?"):
			mode = lazy
		}
		switch t.kind {
		case lookTree, notLookTree, beginTree, endTree:
			return nil, errors.New("a repetition of what takes no characters")
		}
		t = &tree{kind: repeatTree, kids: []*tree{t}, min: lo, max: hi, mode: mode}
	}
	return t, nil
}

// escape reads what follows a backslash.
func (p *patternParser) escape() (spans, error) {
	if !p.more() {
		return nil, errors.New("a backslash at the end")
	}
	r := p.rune()
	switch r {
	case 'n':
		r = '\n'
	case 'r':
		r = '\r'
	case 't':
		r = '\t'
	case 'f':
		r = '\f'
	case 'v':
		r = '\v'
	case 's':
		return whiteSpace(), nil
	case 'S':
		return whiteSpace().negated(), nil
	case 'd':
		return digits(), nil
	case 'D':
		return digits().negated(), nil
	case 'w':
		return wordChars(), nil
	case 'W':
		return wordChars().negated(), nil
	case 'p', 'P':
		return p.property(r == 'P')
	case 'x', 'u':
		return p.number(r)
	default:
		if r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
			return nil, fmt.Errorf("the escape \\%c", r)
		}
	}
	return spans{{r, r}}, nil
}

func (p *patternParser) property(not bool) (spans, error) {
	name := ""
	if p.take("{") {
		end := strings.IndexByte(p.s[p.i:], '}')
		if end < 0 {
			return nil, errors.New("a brace that is not closed")
		}
		name = p.s[p.i : p.i+end]
		p.i += end + 1
	} else if p.more() {
		name = string(p.rune())
	}
	if rest, ok := strings.CutPrefix(name, "^"); ok {
		name, not = rest, !not
	}
	for _, prefix := range []string{"Script=", "sc=", "General_Category=", "gc=", "Is"} {
		name = strings.TrimPrefix(name, prefix)
	}
	s, err := property(name)
	if err == nil && not {
		s = s.negated()
	}
	return s, err
}

// number reads a character by its number: \xHH, \x{H…}, \uHHHH.
func (p *patternParser) number(kind rune) (spans, error) {
	digits := 2
	if kind == 'u' {
		digits = 4
	}
	text := ""
	if p.take("{") {
		end := strings.IndexByte(p.s[p.i:], '}')
		if end < 0 {
			return nil, errors.New("a brace that is not closed")
		}
		text = p.s[p.i : p.i+end]
		p.i += end + 1
	} else if p.i+digits <= len(p.s) {
		text = p.s[p.i : p.i+digits]
		p.i += digits
	}
	n, err := strconv.ParseUint(text, 16, 32)
	if err != nil || n > utf8.MaxRune {
		return nil, errors.New("a character's number that is none")
	}
	return spans{{rune(n), rune(n)}}, nil
}

// set reads a class in brackets.
func (p *patternParser) set() (spans, error) {
	if p.depth++; p.depth > maxNesting {
		return nil, errors.New("brackets nested too deeply")
	}
	defer func() { p.depth-- }()
	p.i++
	not := p.take("^")
	var all, cur spans
	several := false
	for first := true; ; first = false {
		switch {
		case !p.more():
			return nil, errors.New("a bracket that is not closed")
		case p.s[p.i] == ']' && !first:
			p.i++
			cur = merged(cur)
			if several {
				cur = all.and(cur)
			}
			if not {
				cur = cur.negated()
			}
			return cur, nil
		case p.take("&&"):
			cur = merged(cur)
			if several {
				cur = all.and(cur)
			}
			all, cur, several = cur, nil, true
			continue
		case strings.HasPrefix(p.s[p.i:], "[:"):
			return nil, errors.New("a class named in [: :]")
		case p.s[p.i] == '[':
			inner, err := p.set()
			if err != nil {
				return nil, err
			}
			cur = append(cur, inner...)
			continue
		}
		lo, err := p.member()
		if err != nil {
			return nil, err
		}
		if len(lo) == 1 && lo[0].lo == lo[0].hi && strings.HasPrefix(p.s[p.i:], "-") && !strings.HasPrefix(p.s[p.i:], "-]") {
			p.i++
			if !p.more() {
				return nil, errors.New("a bracket that is not closed")
			}
			hi, err := p.member()
			if err != nil {
				return nil, err
			}
			if len(hi) != 1 || hi[0].lo != hi[0].hi || hi[0].lo < lo[0].lo {
				return nil, errors.New("a range that is none")
			}
			lo = spans{{lo[0].lo, hi[0].hi}}
		}
		cur = append(cur, lo...)
	}
}

func (p *patternParser) member() (spans, error) {
	if p.take("\\") {
		return p.escape()
	}
	r := p.rune()
	return spans{{r, r}}, nil
}
