package tokenizer

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestAgainstPython compares the tokens of a corpus with those of the Python libraries, which testdata/check.py has written into the
// directory that SHADOWTAPE_TOKENIZERS names.
func TestAgainstPython(t *testing.T) {
	dir := os.Getenv("SHADOWTAPE_TOKENIZERS")
	if dir == "" {
		t.Skip("needs SHADOWTAPE_TOKENIZERS=DIR, written by testdata/check.py (Python with tokenizers and tiktoken)")
	}
	var texts []string
	lines(t, filepath.Join(dir, "corpus.jsonl"), func(int) any { texts = append(texts, ""); return &texts[len(texts)-1] })
	names, err := filepath.Glob(filepath.Join(dir, "*.ids.jsonl"))
	if err != nil || len(names) == 0 || len(texts) < 1000 {
		t.Fatalf("%d texts, %d tokenizers, %v", len(texts), len(names), err)
	}
	for _, name := range names {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".ids.jsonl"), func(t *testing.T) {
			var source string
			want := make([][]int32, len(texts))
			lines(t, name, func(n int) any {
				if n == 0 {
					return &source
				}
				return &want[n-1]
			})
			m, err := Open(source)
			if err != nil {
				t.Fatal(err)
			}
			c, bad, tokens := m.NewCounter(), 0, 0
			for i, text := range texts {
				got, n := encode(c, text)
				tokens += len(want[i])
				counted, ok := c.Count([]byte(text))
				again, _ := c.Count([]byte(text))
				if !slices.Equal(got, want[i]) || !ok || counted != n || again != n {
					if bad++; bad <= 5 {
						t.Errorf("%q\n got %v\nwant %v, counted %d %d", text, got, want[i], counted, again)
					}
				}
			}
			t.Logf("%d of %d texts differ, %d tokens", bad, len(texts), tokens)
		})
	}
}

// encode returns the tokens of a text, past the cache.
func encode(c *Counter, text string) ([]int32, int64) {
	c.keep, c.ids = true, nil
	n, _ := c.Count([]byte(text))
	c.keep = false
	return c.ids, n
}

func lines(t *testing.T, name string, to func(int) any) {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	in := bufio.NewReaderSize(f, 1<<20)
	for n := 0; ; n++ {
		line, err := in.ReadBytes('\n')
		if len(line) > 0 {
			if err := json.Unmarshal(line, to(n)); err != nil {
				t.Fatal(err)
			}
		}
		if err != nil {
			return
		}
	}
}
