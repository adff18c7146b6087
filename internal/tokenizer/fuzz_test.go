package tokenizer

import (
	"encoding/json"
	"os"
	"slices"
	"testing"
)

// FuzzReadJSON: no file panics; what is read counts the same each time, in bounded work, whether tokens are remembered or not.
func FuzzReadJSON(f *testing.F) {
	for _, name := range []string{"bytelevel", "fallback"} {
		var file struct {
			Tokenizer json.RawMessage `json:"tokenizer"`
		}
		readJSONFile(f, "testdata/"+name+".json", &file)
		f.Add([]byte(file.Tokenizer))
	}
	f.Add([]byte(small(`"pre_tokenizer":{"type":"Split","pattern":{"Regex":"(?i:'s|a)|[^a&&[b-d]]+?|\\s+(?!\\S)"},"behavior":"Contiguous","invert":true},`, `,"ignore_merges":true`)))
	f.Add([]byte(small(`"normalizer":{"type":"Replace","pattern":{"Regex":"a{1,3}+"},"content":"b"},"added_tokens":[{"id":1,"content":"cd","lstrip":true,"rstrip":true}],`, `,"unk_token":"a"`)))
	texts := [][]byte{[]byte("abcd éa 12 \n\n x\u0301你好 <|im_start|>don't"), {0xff, 'a', 0xc3}, []byte("   \t ")}
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := ReadJSON(data)
		if err != nil {
			return
		}
		c := m.NewCounter()
		for _, text := range texts {
			n, ok := c.Count(text)
			again, ok2 := c.Count(text)
			ids, kept := encode(c, string(text))
			if n != again || ok != ok2 || n != kept || int64(len(ids)) != n {
				t.Fatalf("%q: %d and %d, %d", text, n, again, kept)
			}
		}
	})
}

// FuzzReadTiktoken: no vocabulary panics.
func FuzzReadTiktoken(f *testing.F) {
	f.Add([]byte("IQ== 0\nIg== 1\nIyM= 2\n"))
	f.Add([]byte("IQ== 5\n\nIg== 4\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if tokens, err := readTiktoken(data); err == nil {
			_, _ = encodings[0].model(tokens)
		}
	})
}

// FuzzCount: the tokens of any text are the text, and counting does not depend on what was counted before.
func FuzzCount(f *testing.F) {
	for _, text := range golden(f).Texts {
		f.Add([]byte(text))
	}
	f.Add([]byte{0xff, 0xfe, 'a', 0xe4, 0xbd})
	prose, err := os.ReadFile("tokenizer.go")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(prose[:2000])
	var models []*Model
	var tokens [][]string
	for _, name := range []string{"cl100k_base", "o200k_base"} {
		words, err := unpack(name)
		if err != nil {
			f.Fatal(err)
		}
		models, tokens = append(models, mustOpen(f, name)), append(tokens, words)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		for i, m := range models {
			c := m.NewCounter()
			ids, n := encode(c, string(text))
			var whole []byte
			for _, id := range ids {
				whole = append(whole, tokens[i][id]...)
			}
			if !slices.Equal(whole, text) {
				t.Fatalf("%q became %q", text, whole)
			}
			if counted, ok := c.Count(text); !ok || counted != n {
				t.Fatalf("%d tokens, counted %d, %t", n, counted, ok)
			}
		}
	})
}
