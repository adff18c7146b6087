package tokenizer

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
)

// goldenTexts are texts of many scripts, with what tiktoken 0.14.0 makes of them.
type goldenTexts struct {
	Texts []string  `json:"texts"`
	CL    [][]int32 `json:"cl100k_base"`
	O     [][]int32 `json:"o200k_base"`
}

func golden(t testing.TB) (g goldenTexts) {
	t.Helper()
	readJSONFile(t, "testdata/tiktoken.json", &g)
	if len(g.Texts) < 25 {
		t.Fatal("no texts")
	}
	return g
}

func readJSONFile(t testing.TB, name string, v any) {
	t.Helper()
	b, err := os.ReadFile(name)
	if err == nil {
		err = json.Unmarshal(b, v)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func compare(t *testing.T, m *Model, texts []string, want [][]int32) {
	t.Helper()
	c := m.NewCounter()
	for i, text := range texts {
		ids, n := encode(c, text)
		if !slices.Equal(ids, want[i]) || n != int64(len(want[i])) {
			t.Errorf("%q: %v, want %v", text, ids, want[i])
		}
		for range 2 { // counted, then remembered
			if n, ok := c.Count([]byte(text)); !ok || n != int64(len(want[i])) {
				t.Errorf("%q: counted %d, want %d", text, n, len(want[i]))
			}
		}
	}
}

func TestTiktoken(t *testing.T) {
	g := golden(t)
	compare(t, mustOpen(t, "cl100k_base"), g.Texts, g.CL)
	m := mustOpen(t, "o200k_base")
	compare(t, m, g.Texts, g.O)
	if h := mustOpen(t, "o200k_harmony"); h.ID() != m.ID() || m.ID() != "o200k_base" {
		t.Errorf("ids %s, %s", h.ID(), m.ID())
	}
}

// TestJSON reads small vocabularies, trained on the same texts with tokenizers 0.23.3, and compares with what that library makes of them:
// one byte-level with a normalizer and a pattern (as Llama 3 and Qwen have), one that falls back to bytes (as Llama 2 and Mistral).
func TestJSON(t *testing.T) {
	for _, name := range []string{"bytelevel", "fallback"} {
		t.Run(name, func(t *testing.T) {
			var f struct {
				IDs       [][]int32       `json:"ids"`
				Special   int             `json:"special"`
				Tokenizer json.RawMessage `json:"tokenizer"`
			}
			readJSONFile(t, "testdata/"+name+".json", &f)
			m, err := ReadJSON(f.Tokenizer)
			if err != nil {
				t.Fatal(err)
			}
			if m.Special() != f.Special {
				t.Errorf("%d special tokens, want %d", m.Special(), f.Special)
			}
			compare(t, m, golden(t).Texts, f.IDs)
		})
	}
}

// small is a tokenizer.json with the given parts; the vocabulary is the byte-level alphabet's letters a to e and what they are joined to.
func small(parts, model string) string {
	return `{` + parts + `"model":{"type":"BPE","vocab":{"a":0,"b":1,"c":2,"d":3,"e":4,"ab":5,"cd":6,"abcd":7,"Ġ":8,"Ġa":9},"merges":["a b",["c","d"],"ab cd","Ġ a"]` + model + `}}`
}

func TestSmall(t *testing.T) {
	for _, c := range []struct {
		name, parts, model, text string
		want                     int64
	}{
		{"bytes", `"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false},`, "", "abcd abcde", 1 + 3},
		{"prefix", `"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":true},`, "", "abcd", 2}, // a joins b before it joins the space
		{"no rule", `"pre_tokenizer":{"type":"ByteLevel","use_regex":false,"add_prefix_space":false},`, "", "ab ab", 3},
		{"characters", "", "", "abcdxe", 2},
		{"unknown", "", `,"unk_token":"e"`, "abxyzcd", 5},
		{"unknown fused", "", `,"unk_token":"e","fuse_unk":true`, "abxyzcd", 3},
		{"added", `"added_tokens":[{"id":20,"content":"bc"}],`, "", "abcd", 3},
		{"added longest", `"added_tokens":[{"id":20,"content":"b"},{"id":21,"content":"bcd"}],`, "", "abcd", 2},
		{"added word", `"added_tokens":[{"id":20,"content":"bc","single_word":true}],`, "", "abcd bc", 2},
		{"added normalized", `"normalizer":{"type":"Lowercase"},"added_tokens":[{"id":20,"content":"BC","normalized":true}],`, "", "AbCD", 3},
		{"lower case", `"normalizer":{"type":"Sequence","normalizers":[{"type":"Strip","strip_left":true,"strip_right":true},{"type":"Lowercase"}]},`, "", " ABCD ", 1},
		{"replaced by pattern", `"normalizer":{"type":"Replace","pattern":{"Regex":"[x-z]+"},"content":"cd"},`, "", "abxyz", 1},
		{"digits", `"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"String":"b"},"behavior":"MergedWithNext"}]},`, "", "abab", 4},
		{"white space", `"pre_tokenizer":{"type":"WhitespaceSplit"},`, "", "ab cd", 2},
		{"words", `"pre_tokenizer":{"type":"Whitespace"},`, "", "ab cd,ab", 3},
	} {
		m, err := ReadJSON([]byte(small(c.parts, c.model)))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if got := count(t, m, c.text); got != c.want {
			ids, _ := encode(m.NewCounter(), c.text)
			t.Errorf("%s: %q has %d tokens, want %d: %v", c.name, c.text, got, c.want, ids)
		}
	}
}

func TestRefused(t *testing.T) {
	deep := strings.Repeat(`{"type":"Sequence","pretokenizers":[`, 20) + strings.Repeat("]}", 20)
	for _, c := range []struct{ parts, model, want string }{
		{`"normalizer":{"type":"Precompiled"},`, "", `normalizer "Precompiled" is not supported`},
		{`"pre_tokenizer":{"type":"BertPreTokenizer"},`, "", `pre_tokenizer "BertPreTokenizer" is not supported`},
		{`"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"ByteLevel"},{"type":"Digits"}]},`, "", `"Digits after ByteLevel" is not supported`},
		{`"pre_tokenizer":{"type":"Metaspace","prepend_scheme":"sometimes"},`, "", `prepend_scheme "sometimes" is not supported`},
		{`"pre_tokenizer":` + deep + `,`, "", "nested too deeply"},
		{`"post_processor":{"type":"New"},`, "", `post_processor "New" is not supported`},
		{"", `,"dropout":0.1`, "dropout"},
		{"", `,"end_of_word_suffix":"</w>"`, `end_of_word_suffix "</w>" is not supported`},
		{"", `,"merges":["a z"]`, "merge 0"},
		{"", `,"vocab":{"a":-1}`, "below 0"},
		{`"pre_tokenizer":{"type":"Split","pattern":{"Regex":"(?<=a)b"},"behavior":"Isolated"},`, "", "(?<="},
		{`"pre_tokenizer":{"type":"Split","pattern":{"Regex":"\\p{Klingon}"},"behavior":"Isolated"},`, "", `"Klingon"`},
		{`"pre_tokenizer":{"type":"Split","pattern":{"Regex":"(a?)*"},"behavior":"Isolated"},`, "", "may be nothing"},
		{`"pre_tokenizer":{"type":"Split","pattern":{"Regex":"a(b"},"behavior":"Isolated"},`, "", "not closed"},
		{`"pre_tokenizer":{"type":"Split","pattern":{"Regex":"(a{1000}){1000}"},"behavior":"Isolated"},`, "", "too large"},
		{`"pre_tokenizer":{"type":"Split","pattern":{"Regex":"\\b"},"behavior":"Isolated"},`, "", `\b`},
	} {
		_, err := ReadJSON([]byte(small(c.parts, c.model)))
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s %s: %v, want %s", c.parts, c.model, err, c.want)
		}
	}
	for _, whole := range []string{``, `[]`, `{}`, `{"model":{"type":"BPE"}}`, `{"model":{"type":"WordPiece","vocab":{"a":0}}}`, `{"model":{"vocab":[["a",0.5]]}}`} {
		if _, err := ReadJSON([]byte(whole)); err == nil {
			t.Errorf("%s is read", whole)
		}
	}
}
