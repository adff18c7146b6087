package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"unicode"
)

// flipped is text with some of it damaged as disks, editors, merges and people damage files.
func flipped(r *rand.Rand, text []byte) []byte {
	b := append([]byte(nil), text...)
	odd := []string{"", "0", "-1", "1e308", "1e999", "9223372036854775808", "99999999999999999999999", "0x10", ".5", "NaN", "null", "true", "\"", "'", "{", "}", "[", "]", ":", ",", "\n", "\r\n", "\t", "\x00", "\x1b[2J", "\xff", "\u2028", "&a ", "*a", "!!binary ", "<<: ", "- ", "---\n", "..", "/", "%", "${x}", strings.Repeat("[", 2000), strings.Repeat("9", 400)}
	for range 1 + r.IntN(3) {
		if len(b) == 0 {
			break
		}
		at := r.IntN(len(b))
		end := min(len(b), at+1+r.IntN(20))
		switch r.IntN(7) {
		case 0:
			b[at] ^= 1 << r.IntN(8)
		case 1:
			b[at] = byte(r.Uint32())
		case 2:
			b = append(b[:at:at], b[end:]...)
		case 3: // a piece twice
			b = append(b[:end:end], b[at:]...)
		case 4:
			b = b[:at]
		case 5: // a number, or a word, is another
			from, to := at, at
			word := func(c byte) bool { return unicode.IsLetter(rune(c)) || c >= '0' && c <= '9' || c == '.' || c == '-' }
			for from > 0 && word(b[from-1]) {
				from--
			}
			for to < len(b) && word(b[to]) {
				to++
			}
			b = append(append(b[:from:from], odd[r.IntN(len(odd))]...), b[to:]...)
		default:
			b = append(append(b[:at:at], odd[r.IntN(len(odd))]...), b[at:]...)
		}
	}
	return b
}

// TestFlips damages the files that people write and keep, each many times over: no verb panics or hangs, each says what is wrong in one line
// of plain text. FLIPS=4000 makes it long.
func TestFlips(t *testing.T) {
	n := 40
	if s := os.Getenv("FLIPS"); s != "" {
		var err error
		if n, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	runs := launches(t, 4, 1)
	trace := shortTrace(t)
	good := func(args ...string) {
		if code, out, errs := invoke(args...); code != exitGood {
			t.Fatalf("%q: exit %d %s%s", args, code, out, errs)
		}
	}
	baseline, db := filepath.Join(dir, "baseline.json"), filepath.Join(dir, "db")
	good(append([]string{"baseline", "save", "-o", baseline}, runs[:3]...)...)
	good(append([]string{"history", "add", "--db", db, "--commit", "c1"}, runs...)...)
	nights, err := filepath.Glob(filepath.Join(db, "*.jsonl"))
	if err != nil || len(nights) == 0 {
		t.Fatal(nights, err)
	}
	pcap := write(t, filepath.Join(dir, "empty.pcap"), "\xd4\xc3\xb2\xa1\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x04\x00\x01\x00\x00\x00")
	of := func(path string) string {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	var golden struct {
		Tokenizer json.RawMessage `json:"tokenizer"`
	}
	if err := json.Unmarshal([]byte(of("../../internal/tokenizer/testdata/bytelevel.json")), &golden); err != nil {
		t.Fatal(err)
	}
	rules := "metrics:\n  ttft: {tolerance: 5%, minimum: 2%, gate: true}\n  tpot:\n    tolerance: 0.03\n    gate: true\n  e2el: {gate: false}\n"
	calls := 0
	fresh := func() string { calls++; return filepath.Join(dir, fmt.Sprint("out", calls)) }
	for _, c := range []struct {
		name, text, file string
		args             func(file string) []string
	}{
		{"rules", rules, "gate.yaml", func(f string) []string {
			return []string{"diff", "--base", runs[0], runs[1], "--candidate", runs[2], runs[3], "--rules", f}
		}},
		{"baseline", of(baseline), "b.json", func(f string) []string { return []string{"diff", "--baseline", f, runs[3]} }},
		{"history", of(nights[0]), "h/" + filepath.Base(nights[0]), func(f string) []string {
			verb := [][]string{{"check"}, {"list"}, {"digest", "--since", "36500d"}, {"trend", "--force", "--html", filepath.Join(dir, "trend.html")}}[calls%4]
			calls++
			return append(append([]string{"history"}, verb...), "--db", filepath.Dir(f))
		}},
		{"deployment", of("../../samples/deploy/vllm.yaml"), "d.yaml", func(f string) []string {
			return []string{"gate", "--base", f, "--aa", "--trace", trace, "--plan", "-o", fresh()}
		}},
		{"deployment of the simulator", of("../../samples/deploy/sim.yaml"), "s.yaml", func(f string) []string {
			return []string{"gate", "--base", f, "--aa", "--trace", trace, "--plan", "-o", fresh()}
		}},
		{"tokenizer", string(golden.Tokenizer), "tokenizer.json", func(f string) []string {
			return []string{"record", "--pcap", pcap, "--tokenizer", f, "-o", fresh()}
		}},
		{"trace.json", of(filepath.Join(trace, "trace.json")), "t/trace.json", func(f string) []string { return []string{"inspect", filepath.Dir(f)} }},
		{"run.json", of(filepath.Join(runs[0], "run.json")), "r/run.json", func(f string) []string { return []string{"analyze", filepath.Dir(f), "--allow-invalid"} }},
		{"limits on the command line", "ttft=500ms,tpot=50ms", "", func(slo string) []string { return []string{"analyze", runs[0], "--slo", slo} }},
		{"tolerances on the command line", "ttft=5%,tpot=3%:1%", "", func(s string) []string {
			return []string{"diff", "--base", runs[0], runs[1], "--candidate", runs[2], runs[3], "--tolerance", s}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			at := filepath.Join(dir, filepath.FromSlash(c.file))
			if c.file != "" {
				if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			if from := map[string]string{"trace.json": trace, "run.json": runs[0]}[c.name]; from != "" {
				if err := os.CopyFS(filepath.Dir(at), os.DirFS(from)); err != nil {
					t.Fatal(err)
				}
			}
			codes := map[int]int{}
			for seed := range n {
				text := []byte(c.text)
				if seed > 0 { // the first is whole
					text = flipped(rand.New(rand.NewPCG(uint64(seed), 7)), text)
				}
				what := string(text)
				if c.file != "" {
					what = write(t, at, string(text))
				}
				args := c.args(what)
				code, out, errs := invoke(args...)
				codes[code]++
				if seed == 0 && code != exitGood && code != exitInconclusive {
					t.Fatalf("%q: exit %d: %s", args, code, errs)
				}
				said := 0
				for line := range strings.Lines(errs) {
					if strings.HasPrefix(line, "shadowtape: ") && !strings.HasPrefix(line, "shadowtape: warning: ") {
						said++
					}
				}
				bare := func(r rune) bool { return r != '\n' && r != '\t' && unicode.IsControl(r) }
				if said > 1 || said == 0 && out == "" && code != exitGood || strings.Contains(errs+out, "goroutine ") || strings.ContainsFunc(errs, bare) || strings.ContainsFunc(out, bare) || strings.Contains(errs, "nil pointer") || strings.Contains(errs, "out of range") {
					t.Errorf("seed %d: exit %d\n%.2000q\n%.500q", seed, code, errs, out)
				}
			}
			t.Logf("%d files, by exit code %v", n, codes)
		})
	}
}
