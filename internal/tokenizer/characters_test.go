package tokenizer

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"unicode/utf8"
)

// What "four characters are a token" makes of texts of four kinds: docs/WHY_YOUR_BENCHMARK_LIES.md has the figures (-v prints them). They
// are of texts that change with the repository, so what is held is which way the rule is wrong, with room.
func TestFourCharacters(t *testing.T) {
	m, err := Open("cl100k_base")
	if err != nil {
		t.Fatal(err)
	}
	c := m.NewCounter()
	read := func(pattern string) []byte {
		files, err := filepath.Glob(filepath.Join("..", "..", pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: no files: %v", pattern, err)
		}
		var all bytes.Buffer
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			all.Write(b)
		}
		return all.Bytes()
	}
	chinese := []byte("一次测量如果不知道请求什么时候应该发出，就不知道用户等了多久。服务器变慢的时候，等待回答的客户端也跟着变慢，于是测试看起来一切正常。" +
		"真正的流量不会等：早上九点大家同时打开电脑，问题一个接一个地来，长的和短的混在一起，许多开头是相同的。把这些都记下来，再原样放一遍，才知道新的版本是不是更慢。")
	for _, of := range []struct {
		name     string
		text     []byte
		from, to float64 // the rule's count ÷ the tokenizer's
	}{
		{"documentation, English", read("docs/[RG]*.md"), 0.85, 1.2},
		{"source, Go", read("replayer/*.go"), 0.7, 1.05},
		{"checksums", read("go.sum"), 0.3, 0.6},
		{"Chinese", chinese, 0.1, 0.45},
	} {
		n, ok := c.Count(of.text)
		if !ok {
			t.Fatalf("%s: not counted", of.name)
		}
		characters := float64(utf8.RuneCount(of.text))
		ratio := characters / 4 / float64(n)
		t.Logf("%-24s %.2f characters a token; by the rule %.2f times as many tokens as there are", of.name, characters/float64(n), ratio)
		if ratio < of.from || ratio > of.to {
			t.Errorf("%s: the rule counts %.2f times the tokens, want %.2f to %.2f", of.name, ratio, of.from, of.to)
		}
	}
}
