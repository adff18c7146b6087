package tokenizer

import (
	"fmt"
	"slices"
	"unicode"
)

// span is a range of characters, both ends included.
type span struct{ lo, hi rune }

// spans are sorted and do not touch.
type spans []span

// merged sorts ranges and joins those that touch.
func merged(s spans) spans {
	slices.SortFunc(s, func(a, b span) int { return int(a.lo) - int(b.lo) })
	out := s[:0]
	for _, r := range s {
		if r.hi < r.lo {
			continue
		}
		if n := len(out); n > 0 && r.lo <= out[n-1].hi+1 {
			out[n-1].hi = max(out[n-1].hi, r.hi)
			continue
		}
		out = append(out, r)
	}
	return out
}

func (s spans) negated() spans {
	out, next := spans{}, rune(0)
	for _, r := range s {
		if r.lo > next {
			out = append(out, span{next, r.lo - 1})
		}
		next = r.hi + 1
	}
	if next <= unicode.MaxRune {
		out = append(out, span{next, unicode.MaxRune})
	}
	return out
}

func (s spans) and(o spans) spans {
	out := spans{}
	for i, j := 0, 0; i < len(s) && j < len(o); {
		if lo, hi := max(s[i].lo, o[j].lo), min(s[i].hi, o[j].hi); lo <= hi {
			out = append(out, span{lo, hi})
		}
		if s[i].hi < o[j].hi {
			i++
		} else {
			j++
		}
	}
	return out
}

// maxFolded is the most characters of a class whose other cases are looked up.
const maxFolded = 4096

// folded adds the other cases of every character.
func (s spans) folded() (spans, error) {
	out, n := slices.Clone(s), 0
	for _, r := range s {
		if n += int(r.hi-r.lo) + 1; n > maxFolded {
			return nil, fmt.Errorf("a class of more than %d characters without regard to case", maxFolded)
		}
		for c := r.lo; c <= r.hi; c++ {
			for f := unicode.SimpleFold(c); f != c; f = unicode.SimpleFold(f) {
				out = append(out, span{f, f})
			}
		}
	}
	return merged(out), nil
}

func fromTable(tables ...*unicode.RangeTable) spans {
	var s spans
	one := func(lo, hi, stride rune) {
		if stride == 1 {
			s = append(s, span{lo, hi})
			return
		}
		for c := lo; c <= hi; c += stride {
			s = append(s, span{c, c})
		}
	}
	for _, t := range tables {
		for _, r := range t.R16 {
			one(rune(r.Lo), rune(r.Hi), rune(r.Stride))
		}
		for _, r := range t.R32 {
			one(rune(r.Lo), rune(r.Hi), rune(r.Stride))
		}
	}
	return merged(s)
}

// The classes that escapes name: white space, decimal digits, and what a word is made of (UTS 18, annex C).
func whiteSpace() spans { return fromTable(unicode.White_Space) }
func digits() spans     { return fromTable(unicode.Nd) }
func wordChars() spans {
	return fromTable(unicode.L, unicode.M, unicode.Nd, unicode.Nl, unicode.Pc, unicode.Join_Control, unicode.Other_Alphabetic)
}

// property returns the characters of a Unicode category, script or property.
func property(name string) (spans, error) {
	for _, m := range []map[string]*unicode.RangeTable{unicode.Categories, unicode.Scripts, unicode.Properties} {
		if t, ok := m[name]; ok {
			return fromTable(t), nil
		}
	}
	return nil, fmt.Errorf("the property %q", name)
}

// class is a set of characters, made for quick look-ups.
type class struct {
	low  [1024]uint64 // a bit for each character of the basic plane
	high spans        // beyond it
}

func newClass(s spans) *class {
	c := &class{}
	for _, r := range s {
		for x := r.lo; x <= min(r.hi, 0xffff); x++ {
			c.low[x>>6] |= 1 << (x & 63)
		}
		if r.hi > 0xffff {
			c.high = append(c.high, span{max(r.lo, 0x10000), r.hi})
		}
	}
	return c
}

func (c *class) ascii(b byte) bool { return c.low[b>>6]>>(b&63)&1 == 1 }

func (c *class) has(r rune) bool {
	if r < 0x10000 {
		return c.low[r>>6]>>(r&63)&1 == 1
	}
	i, j := 0, len(c.high)
	for i < j {
		if h := (i + j) / 2; c.high[h].hi < r {
			i = h + 1
		} else {
			j = h
		}
	}
	return i < len(c.high) && c.high[i].lo <= r
}
