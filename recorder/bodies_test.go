package recorder

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shadowtape/shadowtape/formats"
)

// numbered gives exchanges their numbers, as a trace's writer does, and refuses some.
type numbered struct {
	n      int64
	refuse int64
}

func (w *numbered) Write(x *formats.Exchange) error {
	if w.n++; w.n == w.refuse {
		return errors.New("refused")
	}
	x.ExchangeID = w.n
	return nil
}

// keptLines reads a file of bodies.
func keptLines(t *testing.T, name string) map[int64]string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	kept := map[int64]string{}
	for line := range strings.Lines(string(b)) {
		var l struct {
			ID   int64           `json:"exchange_id"`
			Body json.RawMessage `json:"body"`
		}
		if err := json.Unmarshal([]byte(line), &l); err != nil || kept[l.ID] != "" {
			t.Fatalf("%q: %v", line, err)
		}
		kept[l.ID] = string(l.Body)
	}
	return kept
}

// TestBodies: each exchange's body stands under its number; what cannot be kept is counted, and all that is written is accounted for.
func TestBodies(t *testing.T) {
	name := filepath.Join(t.TempDir(), "bodies.jsonl")
	b, err := KeepBodies(name, BodyOptions{Each: 200})
	if err != nil {
		t.Fatal(err)
	}
	answer := answerOf(plain)
	chat := func(text string) string {
		return string(post("/v1/chat/completions", "x", "{\"model\": \"m\",\n \"messages\":[{\"role\":\"user\",\"content\":\""+text+"\"}]}\n"))
	}
	src := &Files{Names: []string{write(t, pcapBytes(linkEthernet, exchangeFrames(
		[2]string{chat("first"), answer},
		[2]string{chat(strings.Repeat("x", 300)), answer},
		[2]string{string(post("/v1/chat/completions", "x", `{"model":`)), answer},
		[2]string{string(post("/v1/other", "x", `{}`)), answer},
		[2]string{string(post("/v1/completions", "x", `["no object"]`)), answer},
		[2]string{chat(`last \u00e9 \" \n`), answer})))}, Key: []byte("key"), Counting: Counting{Bodies: b}}
	st, err := Record(t.Context(), src, &numbered{}, Options{Bodies: b})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	want := map[int64]string{1: `{"model":"m","messages":[{"role":"user","content":"first"}]}`, 5: `{"model":"m","messages":[{"role":"user","content":"last \u00e9 \" \n"}]}`}
	if got := keptLines(t, name); !maps.Equal(got, want) {
		t.Errorf("%v", got)
	}
	if n := st.Notes; st.Written != 5 || n[bodiesKept] != 2 || n[bodiesLarge] != 1 || n[bodiesUnreadable] != 2 || len(b.held) != 0 || b.bytes != 0 {
		t.Errorf("%v, %d written, %d held", n, st.Written, len(b.held))
	}
	if info, err := os.Stat(name); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info.Mode(), err)
	}
}

// TestBodiesLimits: the file, the memory and the sink have limits.
func TestBodiesLimits(t *testing.T) {
	name := filepath.Join(t.TempDir(), "bodies.jsonl")
	b, err := KeepBodies(name, BodyOptions{File: 100, Memory: 60})
	if err != nil {
		t.Fatal(err)
	}
	xs := make([]*formats.Exchange, 6)
	for i := range xs {
		xs[i] = &formats.Exchange{ExchangeID: int64(i + 1)}
	}
	body := []byte(`{"prompt":"` + strings.Repeat("x", 14) + `"}`) // 27 bytes, a line of 53
	for _, x := range xs[:3] {
		b.take(x, body, false)
	}
	for _, x := range xs[:3] {
		b.write(x)
	}
	b.take(xs[3], []byte(`{}`), false)
	b.write(xs[3])
	b.take(xs[4], []byte(`{}`), false)
	b.forget(xs[4])
	b.write(xs[5]) // nothing is known of it
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if got := keptLines(t, name); len(got) != 2 || got[1] == "" || got[4] != "{}" {
		t.Errorf("%v", got)
	}
	if n := b.Notes(); n[bodiesKept] != 2 || n[bodiesLarge] != 1 || n[bodiesCrowded] != 1 || n[bodiesUnreadable] != 1 || b.bytes != 0 || len(b.held) != 0 {
		t.Errorf("%v, %d bytes of %d held", n, b.bytes, len(b.held))
	}
}

// TestBodiesFile: a file is never overwritten unasked, nor gone on with where others may read it or where it is something else.
func TestBodiesFile(t *testing.T) {
	dir := t.TempDir()
	path := func(name, text string, mode fs.FileMode) string {
		p := filepath.Join(dir, name)
		if err := errors.Join(os.WriteFile(p, []byte(text), 0o600), os.Chmod(p, mode)); err != nil {
			t.Fatal(err)
		}
		return p
	}
	line := `{"exchange_id":1,"body":{}}` + "\n"
	link := filepath.Join(dir, "link")
	if err := os.Symlink(path("target", line, 0o600), link); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		o    BodyOptions
		want string // the error, or what the file holds
	}{
		{path("there", line, 0o600), BodyOptions{}, "file exists"},
		{path("again", line+`{"exchange_id":2,"bo`, 0o600), BodyOptions{Append: true}, line},
		{path("half", `{"exchange_id":2,"bo`, 0o600), BodyOptions{Append: true}, ""},
		{path("over", line, 0o600), BodyOptions{Force: true}, ""},
		{path("open", line, 0o644), BodyOptions{Append: true}, "others may read it (mode 0644)"},
		{path("open2", line, 0o604), BodyOptions{Force: true}, "others may read it (mode 0604)"},
		{path("thesis.txt", "Once upon a time", 0o600), BodyOptions{Force: true}, "no file of bodies"},
		{link, BodyOptions{Force: true}, "not a file"},
		{filepath.Join(dir, "none", "x"), BodyOptions{}, "no such file"},
		{filepath.Join(dir, "new"), BodyOptions{Each: -1}, "negative"},
	} {
		before, _ := os.ReadFile(c.name)
		b, err := KeepBodies(c.name, c.o)
		if err != nil {
			after, _ := os.ReadFile(c.name)
			if !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") || c.want == "" || !slices.Equal(before, after) {
				t.Errorf("%s: %v, want %q", c.name, err, c.want)
			}
			continue
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		if after, _ := os.ReadFile(c.name); string(after) != c.want {
			t.Errorf("%s holds %q, want %q", c.name, after, c.want)
		}
	}
}

// TestBodiesDropped: what a spool or a sink drops is let go of.
func TestBodiesDropped(t *testing.T) {
	b, err := KeepBodies(filepath.Join(t.TempDir(), "bodies.jsonl"), BodyOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var pairs [][2]string
	for i := range 6 {
		pairs = append(pairs, [2]string{string(post("/v1/completions", "x", fmt.Sprintf(`{"prompt":"%d"}`, i))), answerOf(plain)})
	}
	src := &Files{Names: []string{write(t, pcapBytes(linkEthernet, exchangeFrames(pairs...)))}, Key: []byte("key"), Counting: Counting{Bodies: b}}
	st, err := Record(t.Context(), src, &numbered{refuse: 3}, Options{Bodies: b})
	if err == nil || st.Written != 2 || st.Dropped != 4 || st.Notes[bodiesKept] != 2 || len(b.held) != 0 {
		t.Errorf("%v: %+v, %d held", err, st, len(b.held))
	}
	w, err := formats.Create(filepath.Join(t.TempDir(), "trace"), formats.Header{}, formats.SegmentOptions{})
	if err != nil {
		t.Fatal(err)
	}
	spool := NewSpool(w, nil, SpoolOptions{QueueBytes: 1, Bodies: b})
	x := &formats.Exchange{}
	b.take(x, []byte(`{}`), false)
	spool.Emit(x) // no room
	if err := spool.Close(); err != nil {
		t.Fatal(err)
	}
	y := &formats.Exchange{}
	b.take(y, []byte(`{}`), false)
	spool.Emit(y) // it is over
	if got := spool.Stats(); got.Dropped != 2 || len(b.held) != 0 {
		t.Errorf("%+v, %d held", got, len(b.held))
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}
