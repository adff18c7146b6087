package tokenizer

import (
	"errors"
	"fmt"
	"math/bits"
	"unicode/utf8"
)

// program is a compiled pattern: a backtracking machine, because that is what the patterns were written for: the first alternative that
// matches wins, not the longest. A run of one class is one step of it, and one entry of its stack.
type program struct {
	code  []instr
	start []int       // of each alternative, most wanted first
	first [256]uint64 // by the text's next byte: which of the first 64 alternatives can match
	empty bool        // an alternative can match at the end of the text
}

type instr struct {
	op       opcode
	mode     repeatMode
	set      *class
	min, max int
	x, y     int        // where it goes on
	ahead    *[4]uint64 // of opSplit: the bytes with which what stands at x can begin; nil: any, or none
}

type opcode uint8

const (
	opRun     opcode = iota // between min and max characters of a class
	opSplit                 // x, or else y
	opJump                  // to x
	opSub                   // what stands between here and x−1 matches; goes on at x
	opNot                   // it does not
	opAtomic                // it does, and is taken
	opBegin                 // the text's beginning
	opEnd                   // the text's end
	opMatched               // the pattern, or what opSub and the like look at, has matched
)

const (
	maxCode    = 8192
	maxClasses = 256
)

type compiler struct {
	code    []instr
	classes int
}

var errPatternSize = errors.New("a pattern that is too large")

func compile(pattern string) (*program, error) {
	t, err := parsePattern(pattern)
	if err != nil {
		return nil, err
	}
	alternatives := []*tree{t}
	if t.kind == choiceTree {
		alternatives = t.kids
	}
	if len(alternatives) > 64 {
		return nil, errPatternSize
	}
	p := &program{}
	c := &compiler{}
	for i, t := range alternatives {
		p.start = append(p.start, len(c.code))
		if err := c.tree(t); err != nil {
			return nil, fmt.Errorf("pattern %q: %w", short(pattern), err)
		}
		c.code = append(c.code, instr{op: opMatched})
		var f [256]bool
		if t.first(&f) {
			for b := range f {
				f[b] = true
			}
			p.empty = true
		}
		for b := range f {
			if f[b] {
				p.first[b] |= 1 << i
			}
		}
	}
	p.code = c.code
	return p, nil
}

func (c *compiler) add(i instr) int {
	c.code = append(c.code, i)
	return len(c.code) - 1
}

func (c *compiler) class(s spans) (*class, error) {
	if c.classes++; c.classes > maxClasses {
		return nil, errPatternSize
	}
	return newClass(merged(s)), nil
}

func (c *compiler) tree(t *tree) error {
	if len(c.code) > maxCode {
		return errPatternSize
	}
	switch t.kind {
	case setTree:
		set, err := c.class(t.set)
		c.add(instr{op: opRun, set: set, min: 1, max: 1})
		return err
	case sequenceTree:
		for _, k := range t.kids {
			if err := c.tree(k); err != nil {
				return err
			}
		}
	case choiceTree:
		var ends []int
		for i, k := range t.kids {
			split := -1
			if i < len(t.kids)-1 {
				split = c.add(instr{op: opSplit, ahead: k.ahead()})
				c.code[split].x = len(c.code)
			}
			if err := c.tree(k); err != nil {
				return err
			}
			if split >= 0 {
				ends = append(ends, c.add(instr{op: opJump}))
				c.code[split].y = len(c.code)
			}
		}
		for _, e := range ends {
			c.code[e].x = len(c.code)
		}
	case repeatTree:
		return c.repeat(t)
	case lookTree, notLookTree, atomicTree:
		at := c.add(instr{op: map[treeKind]opcode{lookTree: opSub, notLookTree: opNot, atomicTree: opAtomic}[t.kind]})
		if err := c.tree(t.kids[0]); err != nil {
			return err
		}
		c.add(instr{op: opMatched})
		c.code[at].x = len(c.code)
	case beginTree:
		c.add(instr{op: opBegin})
	case endTree:
		c.add(instr{op: opEnd})
	}
	return nil
}

func (c *compiler) repeat(t *tree) error {
	k := t.kids[0]
	for k.kind == sequenceTree && len(k.kids) == 1 {
		k = k.kids[0]
	}
	if k.kind == setTree {
		set, err := c.class(k.set)
		c.add(instr{op: opRun, mode: t.mode, set: set, min: t.min, max: t.max})
		return err
	}
	if t.mode == possessive {
		plain := *t
		plain.mode = greedy
		return c.tree(&tree{kind: atomicTree, kids: []*tree{&plain}})
	}
	var f [256]bool
	if t.max < 0 && k.first(&f) {
		return errors.New("an endless repetition of what may be nothing")
	}
	for range t.min {
		if err := c.tree(k); err != nil {
			return err
		}
	}
	// split makes the rest optional; its exit is set when it is known.
	ahead := k.ahead()
	if t.mode == lazy {
		ahead = nil
	}
	split := func() int {
		at := c.add(instr{op: opSplit, ahead: ahead})
		c.code[at].x = len(c.code)
		return at
	}
	exit := func(at int) {
		if c.code[at].y = len(c.code); t.mode == lazy {
			c.code[at].x, c.code[at].y = c.code[at].y, c.code[at].x
		}
	}
	if t.max < 0 {
		at := split()
		if err := c.tree(k); err != nil {
			return err
		}
		c.add(instr{op: opJump, x: at})
		exit(at)
		return nil
	}
	var open []int
	for range t.max - t.min {
		open = append(open, split())
		if err := c.tree(k); err != nil {
			return err
		}
	}
	for _, at := range open {
		exit(at)
	}
	return nil
}

// ahead are the bytes with which a match can begin; nil where it can be empty.
func (t *tree) ahead() *[4]uint64 {
	var f [256]bool
	if t.first(&f) {
		return nil
	}
	bits := new([4]uint64)
	for b := range f {
		if f[b] {
			bits[b>>6] |= 1 << (b & 63)
		}
	}
	return bits
}

// first adds the bytes that a match can begin with, and reports whether it can be empty. All bytes above ASCII count as one.
func (t *tree) first(f *[256]bool) (empty bool) {
	switch t.kind {
	case setTree:
		for _, r := range t.set {
			for c := r.lo; c <= min(r.hi, 127); c++ {
				f[c] = true
			}
			if r.hi > 127 {
				for b := 128; b < 256; b++ {
					f[b] = true
				}
			}
		}
		return false
	case sequenceTree:
		for _, k := range t.kids {
			if !k.first(f) {
				return false
			}
		}
	case choiceTree:
		for _, k := range t.kids {
			empty = k.first(f) || empty
		}
		return empty
	case repeatTree:
		if t.max == 0 {
			return true
		}
		return t.kids[0].first(f) || t.min == 0
	case atomicTree:
		return t.kids[0].first(f)
	}
	return true
}

// matcher runs programs. Its work on one text is bounded by steps: a hostile text makes it give up, not stand still.
type matcher struct {
	stack []retreat
	steps int // left
}

// retreat is where to go on when what was tried does not match: at pc, from pos; down to lo where a run can give characters back, up to
// hi more where a lazy one can take them.
type retreat struct {
	pc, pos, lo int
	run         *instr // of a lazy run
	taken       int
}

// match returns where the match of p that begins at pos ends, −1 where none does.
func (m *matcher) match(p *program, text []byte, pos int) int {
	if pos == len(text) {
		if !p.empty {
			return -1
		}
		for _, s := range p.start {
			if end := m.run(p.code, s, text, pos); end >= 0 {
				return end
			}
		}
		return -1
	}
	for mask := p.first[text[pos]]; mask != 0; mask &= mask - 1 {
		if end := m.run(p.code, p.start[bits.TrailingZeros64(mask)], text, pos); end >= 0 {
			return end
		}
	}
	return -1
}

// maxStack bounds what a matcher remembers to try.
const maxStack = 1 << 16

func (m *matcher) push(r retreat) {
	if len(m.stack) >= maxStack {
		m.steps = 0
		return
	}
	m.stack = append(m.stack, r)
}

// run runs code from pc. A nested run leaves the stack as it found it.
func (m *matcher) run(code []instr, pc int, text []byte, pos int) int {
	bottom := len(m.stack)
	for {
		if m.steps--; m.steps < 0 {
			m.stack = m.stack[:bottom]
			return -1
		}
		in := &code[pc]
		ok := true
		switch in.op {
		case opMatched:
			m.stack = m.stack[:bottom]
			return pos
		case opJump:
			pc = in.x
			continue
		case opSplit:
			if in.ahead != nil && (pos == len(text) || in.ahead[text[pos]>>6]>>(text[pos]&63)&1 == 0) {
				pc = in.y
				continue
			}
			m.push(retreat{pc: in.y, pos: pos, lo: pos})
			pc = in.x
			continue
		case opBegin:
			ok = pos == 0
		case opEnd:
			ok = pos == len(text)
		case opSub, opNot, opAtomic:
			end := m.run(code, pc+1, text, pos)
			if ok = (end >= 0) != (in.op == opNot); ok {
				if in.op == opAtomic {
					pos = end
				}
				pc = in.x
				continue
			}
		case opRun:
			var lo int
			most := in.max
			if in.mode == lazy {
				most = in.min
			}
			start := pos
			pos, lo, ok = takeRun(in.set, text, pos, in.min, most)
			m.steps -= pos - start
			if ok {
				switch {
				case in.mode == greedy && lo < pos:
					m.push(retreat{pc: pc + 1, pos: pos, lo: lo})
				case in.mode == lazy:
					m.push(retreat{pc: pc + 1, pos: pos, lo: pos, run: in, taken: in.min})
				}
			}
		}
		if ok {
			pc++
			continue
		}
		if pc, pos = m.back(text, bottom); pc < 0 {
			return -1
		}
	}
}

// takeRun takes characters of a set: at least min, at most max (−1: no limit). lo is where min of them end.
func takeRun(set *class, text []byte, pos, min, max int) (end, lo int, ok bool) {
	n := 0
	lo = pos
	for n != max && pos < len(text) {
		if b := text[pos]; b < utf8.RuneSelf {
			if !set.ascii(b) {
				break
			}
			pos++
		} else {
			r, size := utf8.DecodeRune(text[pos:])
			if !set.has(r) {
				break
			}
			pos += size
		}
		if n++; n == min {
			lo = pos
		}
	}
	return pos, lo, n >= min
}

// back takes the next thing to try off the stack; −1 where there is none.
func (m *matcher) back(text []byte, bottom int) (pc, pos int) {
	for len(m.stack) > bottom {
		m.steps--
		r := &m.stack[len(m.stack)-1]
		switch {
		case r.run != nil: // one character more
			end, _, ok := takeRun(r.run.set, text, r.pos, 1, 1)
			if !ok || r.taken == r.run.max {
				m.stack = m.stack[:len(m.stack)-1]
				continue
			}
			r.pos = end
			r.taken++
			return r.pc, r.pos
		case r.pos > r.lo: // one character less
			_, size := utf8.DecodeLastRune(text[r.lo:r.pos])
			r.pos -= size
			pc, pos = r.pc, r.pos
			if r.pos == r.lo {
				m.stack = m.stack[:len(m.stack)-1]
			}
			return pc, pos
		default:
			pc, pos = r.pc, r.pos
			m.stack = m.stack[:len(m.stack)-1]
			return pc, pos
		}
	}
	return -1, 0
}
