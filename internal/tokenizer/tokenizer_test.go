package tokenizer

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// opened are the encodings that tests share: each takes a part of a second to make.
var opened sync.Map

func mustOpen(t testing.TB, name string) *Model {
	t.Helper()
	if m, ok := opened.Load(name); ok {
		return m.(*Model)
	}
	m, err := Open(name)
	if err != nil {
		t.Fatal(err)
	}
	opened.Store(name, m)
	return m
}

func count(t testing.TB, m *Model, text string) int64 {
	t.Helper()
	n, ok := m.NewCounter().Count([]byte(text))
	if !ok {
		t.Fatalf("%q is not counted", short(text))
	}
	return n
}

// TestEmbedded holds the embedded vocabularies against the digests of the files that tiktoken reads.
func TestEmbedded(t *testing.T) {
	for name, want := range digests {
		tokens, err := unpack(name)
		if err != nil {
			t.Fatal(err)
		}
		h := sha256.New()
		for rank, token := range tokens {
			fmt.Fprintf(h, "%s %d\n", base64.StdEncoding.EncodeToString([]byte(token)), rank)
		}
		if got := hex.EncodeToString(h.Sum(nil)); got != want {
			t.Errorf("%s: digest %s", name, got)
		}
	}
}

// hostile are texts that trip tokenizers: each is 128 KiB.
func hostile() map[string]string {
	texts := map[string]string{}
	for _, unit := range []string{"a", " ", "\n", "A", "!", "1", "中", "\u0301", "😀", "aB", " \n", "\r", "'", "'s", " a", "\t ", "é", "\x80", "<", "<|", "\u00a0", "Aa", "▁", "/", "\x00"} {
		texts[unit] = strings.Repeat(unit, 1<<17/len(unit))
	}
	return texts
}

// TestHostile counts them within the bound on steps, and without memory that grows with the text.
func TestHostile(t *testing.T) {
	for _, name := range []string{"cl100k_base", "o200k_base"} {
		m := mustOpen(t, name)
		c := m.NewCounter()
		for unit, text := range hostile() {
			n, ok := c.Count([]byte(text))
			left := float64(c.match.steps) / float64(stepsPerByte*len(text))
			if !ok || n < 1 || left < 0.5 {
				t.Errorf("%s: %q: %d, %t, %.2f of the steps left", name, unit, n, ok, left)
			}
		}
		if held := cap(c.merge.symbols)*16 + cap(c.merge.heap)*12 + cap(c.merge.ids)*4; held > 16<<20 {
			t.Errorf("%s: %d bytes held", name, held)
		}
	}
}

func TestOpenErrors(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, c := range []struct{ name, want string }{
		{"o300k_base", "no encoding that is known by name"},
		{filepath.Join(dir, "none.json"), "no such file"},
		{dir, "no such file"},
		{write("a.json", "{"), "no tokenizer.json"},
		{write("b.json", `{"model":{"type":"Unigram"}}`), `the model "Unigram" is not supported`},
		{write("mine.tiktoken", "IQ== 0\n"), "begin with that of its encoding"},
		{write("cl100k_base.tiktoken", "IQ== 0\n!! 1\n"), "line 2"},
		{write("gpt2.tiktoken", "IQ== 0\n"), "no token for the byte 0x00"},
	} {
		_, err := Open(c.name)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func BenchmarkCount(b *testing.B) {
	prose, err := os.ReadFile("../../docs/RECORDING.md")
	if err != nil {
		b.Fatal(err)
	}
	for _, name := range []string{"cl100k_base", "o200k_base"} {
		b.Run(name, func(b *testing.B) {
			c := mustOpen(b, name).NewCounter()
			b.SetBytes(int64(len(prose)))
			b.ReportAllocs()
			for b.Loop() {
				if _, ok := c.Count(prose); !ok {
					b.Fatal("not counted")
				}
			}
		})
	}
}
