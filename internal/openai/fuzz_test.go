package openai

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"unicode/utf8"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/shadowtape/shadowtape/formats"
)

// seedDialects gives a fuzz target the bodies of the corpus.
func seedDialects(f *testing.F, add func(mime string, request, response []byte)) {
	files, _ := filepath.Glob("testdata/streams/*.txtar")
	for _, name := range files {
		a, err := txtar.ParseFile(name)
		if err != nil {
			f.Fatal(err)
		}
		_, req, _ := bytes.Cut(a.Files[0].Data, []byte("\n"))
		line, body, _ := bytes.Cut(a.Files[1].Data, []byte("\n"))
		add(string(bytes.Fields(line)[1]), bytes.TrimSpace(req), body)
	}
}

// FuzzResponse feeds a body at once, byte by byte, and cut in two: what comes out may not depend on where reads end, nor may the text that
// is kept, nor what of it an echoed prompt is taken for.
func FuzzResponse(f *testing.F) {
	seedDialects(f, func(mime string, _, body []byte) { f.Add(mime, body, uint16(len(body)/2)) })
	f.Fuzz(func(t *testing.T, mime string, body []byte, cut uint16) {
		keep := cut%3 > 0
		run := func(pieces ...[]byte) string {
			x := &formats.Exchange{Endpoint: formats.EndpointChat}
			r := NewResponse(x, 200, mime)
			if keep {
				r.KeepText(1 << 10)
			}
			if cut%3 == 2 {
				r.Expect(&Echo{n: 1, prompts: [][]byte{[]byte("Once upon"), []byte("x")}})
			}
			defer func() {
				if r.TextSize() > 1<<10 {
					t.Fatalf("%d bytes kept", r.TextSize())
				}
			}()
			for _, p := range pieces {
				r.Write(p, 5, 0)
			}
			r.End(5, true)
			if keep {
				return show(x) + fmt.Sprintf("%q %t", r.texts.choices, r.texts.mixed)
			}
			return show(x)
		}
		one := run(body)
		n := min(int(cut), len(body))
		if two := run(body[:n], body[n:]); two != one {
			t.Fatalf("at once\n%s\ncut at %d\n%s", one, n, two)
		}
		bytewise := make([][]byte, len(body))
		for i := range body {
			bytewise[i] = body[i : i+1]
		}
		if each := run(bytewise...); each != one {
			t.Fatalf("at once\n%s\nbyte by byte\n%s", one, each)
		}
		// Losses may make a body unreadable, nothing worse.
		x := &formats.Exchange{}
		r := NewResponse(x, 200, mime)
		r.Write(body[:n], 1, 0)
		r.Lost(int64(n))
		r.Write(body[n:], 2, 0)
		r.End(3, false)
	})
}

// FuzzScanner requires that every valid JSON value is read as one.
func FuzzScanner(f *testing.F) {
	seedDialects(f, func(_ string, req, body []byte) {
		f.Add(req)
		f.Add(bytes.TrimPrefix(bytes.SplitN(body, []byte("\n"), 2)[0], []byte("data: ")))
	})
	f.Add([]byte(`{"a":[[[[[[[[[[[[[[[[[[[[[[[[{"b":[1,2]}]]]]]]]]]]]]]]]]]]]]]]]],"\u0061":"\\\"","c":-1.5e+10}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := &Response{x: &formats.Exchange{}}
		s := scanner{to: r, root: table}
		s.reset()
		n := s.feed(b)
		s.end()
		if json.Valid(b) && (!s.complete() || len(bytes.TrimSpace(b[n:])) > 0) && jsonDepth(b) <= maxDepth && !longScalar(b) {
			t.Fatalf("valid JSON, state %d after %d of %d bytes", s.state, n, len(b))
		}
	})
}

// jsonDepth is how deep a valid value is nested.
func jsonDepth(b []byte) (deepest int) {
	d := json.NewDecoder(bytes.NewReader(b))
	depth := 0
	for {
		t, err := d.Token()
		if err != nil {
			return deepest
		}
		if c, ok := t.(json.Delim); ok {
			if c == '{' || c == '[' {
				depth++
				deepest = max(deepest, depth)
			} else {
				depth--
			}
		}
	}
}

// longScalar reports whether a number is longer than any that means something.
func longScalar(b []byte) bool {
	run := 0
	for _, c := range b {
		if isBare(c) {
			if run++; run > maxText {
				return true
			}
			continue
		}
		run = 0
	}
	return false
}

// FuzzReadRequest compares with encoding/json: a valid object is read, and its model is found.
func FuzzReadRequest(f *testing.F) {
	seedDialects(f, func(_ string, req, _ []byte) { f.Add(req) })
	f.Add([]byte(`{"model":"a\u00e9\ud83d\ude00b","stop":"x","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}},"s",{"type":"tool_result","content":[{"type":"text","text":"t"}]}]},"m"]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		x := &formats.Exchange{}
		err := ReadRequest(x, "/v1/chat/completions", b, NewHasher([]byte("k")))
		_, _ = Echoed(formats.EndpointChat, b), Echoed(formats.EndpointCompletions, b)
		var want map[string]json.RawMessage
		if json.Unmarshal(b, &want) != nil || want == nil {
			return
		}
		if err != nil {
			t.Fatalf("valid object: %v", err)
		}
		// Keys that differ by case or come twice are told apart differently; look only at the plain case.
		if n := bytes.Count(b, []byte(`"model"`)); n != 1 || want["model"] == nil || bytes.Contains(b, []byte(`\u00`)) || !utf8.Valid(b) {
			return
		}
		var model string
		if json.Unmarshal(want["model"], &model) == nil && len(want["model"]) <= maxText && !bytes.Equal(want["model"], []byte("null")) && x.RequestModel != model {
			t.Fatalf("model %q, want %q", x.RequestModel, model)
		}
	})
}

// TestMain keeps the corpus honest: a fuzz target without seeds tests nothing.
func TestMain(m *testing.M) {
	if files, _ := filepath.Glob("testdata/streams/*.txtar"); len(files) == 0 {
		os.Exit(1)
	}
	os.Exit(m.Run())
}
