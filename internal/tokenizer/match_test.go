package tokenizer

import (
	"regexp"
	"strings"
	"testing"
)

// TestPatterns holds patterns that both know against the standard library's.
func TestPatterns(t *testing.T) {
	texts := append(golden(t).Texts, "ab", "aab", "abab", "xaby", "a1b22c333", "aXbYcZ", "foo.bar(baz)", strings.Repeat("ab", 50))
	for _, pattern := range []string{
		`a`, `ab|a`, `a|ab`, `(?:ab)+`, `(?:ab)*?b`, `a*b`, `a*?b`, `a+?`, `a{2,3}`, `(?:a|b){2,5}c?`, `[^a-c]+`, `[a-zA-Z]+\p{N}?`, `\p{L}+`, `\P{L}+`, `(?i:foo|BAR)`, `(?i)[a-c]x`,
		`\p{Lu}\p{Ll}*`, `[\p{L}\p{N}]+`, `.+`, `^a`, `b$`, `(a)(b)`, `\x{61}b`, `a(?:b(?:c|d)|e)?`, `[-+]?\p{Nd}+`, `[\]a]+`, `(?:a?b){2,}`, `\.|\(`,
	} {
		want, err := regexp.Compile(pattern)
		if err != nil {
			t.Fatal(err)
		}
		p, err := compile(pattern)
		if err != nil {
			t.Errorf("%s: %v", pattern, err)
			continue
		}
		c := &Counter{}
		for _, text := range texts {
			c.match.steps = 1 << 20
			b := []byte(text)
			for pos := 0; ; {
				start, end := c.find(p, b, pos)
				loc := next(want, b, pos)
				if loc == nil {
					loc = []int{len(b), len(b)}
				}
				if start != loc[0] || end != loc[1] {
					t.Errorf("%s in %q from %d: [%d %d], want %v", pattern, text, pos, start, end, loc)
				}
				if pos = end; pos >= len(b) {
					break
				}
			}
		}
	}
}

// next is the library's first match of something from pos on.
func next(re *regexp.Regexp, b []byte, pos int) []int {
	for _, loc := range re.FindAllIndex(b, -1) {
		if loc[0] >= pos && loc[1] > loc[0] {
			return loc
		}
	}
	return nil
}

// TestPatternsOnly are patterns that the standard library does not know.
func TestPatternsOnly(t *testing.T) {
	for _, c := range []struct{ pattern, text, want string }{
		{`\s+(?!\S)|\s+`, "a   b", "  | "},
		{`\s+(?!\S)|\s+`, "a   ", "   "},
		{`a(?=b)`, "acab", "a"},
		{`a++a`, "aaa", ""},
		{`(?:ab)++a`, "ababa", "ababa"},
		{`(?>a|ab)c`, "abcac", "ac"},
		{`[\p{L}&&[^\p{Han}]]+`, "ab中cd", "ab|cd"},
		{`\p{Script=Han}+`, "ab中文cd", "中文"},
		{`\p{^L}+`, "ab12", "12"},
		{`(?i:'s)`, "'ſ 'S", "'ſ|'S"},
		{`\p{N}{1,3}+`, "1234567", "123|456|7"},
		{`[^\r\n\p{L}\p{N}]?+\p{L}++`, " ab.cd\nef", " ab|.cd|ef"},
	} {
		p, err := compile(c.pattern)
		if err != nil {
			t.Errorf("%s: %v", c.pattern, err)
			continue
		}
		k := &Counter{}
		k.match.steps = 1 << 20
		var got []string
		for pos := 0; pos < len(c.text); {
			start, end := k.find(p, []byte(c.text), pos)
			if start < end {
				got = append(got, c.text[start:end])
			}
			pos = end
		}
		if strings.Join(got, "|") != c.want {
			t.Errorf("%s in %q: %q, want %s", c.pattern, c.text, got, c.want)
		}
	}
}

// TestSteps: a pattern that would take a time beyond all bounds is given up.
func TestSteps(t *testing.T) {
	m, err := ReadJSON([]byte(small(`"pre_tokenizer":{"type":"Split","pattern":{"Regex":"(?:a+a+)+b|a"},"behavior":"Isolated"},`, "")))
	if err != nil {
		t.Fatal(err)
	}
	if n, ok := m.NewCounter().Count([]byte(strings.Repeat("a", 1000))); ok {
		t.Errorf("counted %d", n)
	}
	if n, ok := m.NewCounter().Count([]byte("aab")); !ok || n != 2 {
		t.Errorf("%d, %t", n, ok)
	}
}
