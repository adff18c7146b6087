package main

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shadowtape/shadowtape/formats"
)

// bodiesIn reads a file of bodies: what the messages of each exchange are.
func bodiesIn(t *testing.T, name string) map[int64]string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	all := map[int64]string{}
	for line := range strings.Lines(string(b)) {
		var l struct {
			ID   int64 `json:"exchange_id"`
			Body struct {
				Prompt   json.RawMessage `json:"prompt"`
				Messages json.RawMessage `json:"messages"`
			} `json:"body"`
		}
		if err := json.Unmarshal([]byte(line), &l); err != nil || all[l.ID] != "" {
			t.Fatalf("%q: %v", line, err)
		}
		all[l.ID] = string(l.Body.Prompt) + string(l.Body.Messages)
	}
	return all
}

// TestBodiesCircle: what a proxy keeps, replay sends again, word for word, and a proxy before the replay keeps the same.
func TestBodiesCircle(t *testing.T) {
	target, _ := startSim(t, "--ttft", "5ms", "--itl", "1ms")
	dir := t.TempDir()
	const n = 24
	record := func(name string) (recording, string, string) {
		rec, bodies := filepath.Join(dir, name), filepath.Join(dir, name+".bodies")
		return startRecording(t, "--listen", "127.0.0.1:0", "--upstream", target, "-o", rec, "--keep-bodies", bodies, "--json"), rec, bodies
	}
	end := func(p recording, bodies string) {
		t.Helper()
		code, out, errs := p.end()
		var a recordAnswer
		if err := json.Unmarshal([]byte(out), &a); err != nil || code != exitGood || a.Written < n || a.Notes["bodies_kept"] != a.Written {
			t.Fatalf("record: %d %s %s", code, out, errs)
		}
		if !strings.Contains(errs, "WARNING: --keep-bodies writes the TEXT OF EVERY REQUEST into "+bodies) {
			t.Errorf("no warning: %s", errs)
		}
		if info, err := os.Stat(bodies); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%v", info.Mode())
		}
	}
	trace := smallTrace(t, n, 5*time.Millisecond, func(i int, x *formats.Exchange) { x.Stream = formats.Of(i%3 != 0) })
	p, rec, bodies := record("first")
	if code, out, errs := shadowtape(t, "replay", trace, "--target", p.base, "-o", filepath.Join(dir, "run1"), "--allow-invalid"); code != exitGood {
		t.Fatalf("replay: %d %s %s", code, out, errs)
	}
	end(p, bodies)
	again, rec2, bodies2 := record("second")
	if code, out, errs := shadowtape(t, "replay", rec, "--bodies", bodies, "--target", again.base, "-o", filepath.Join(dir, "run2"), "--allow-invalid"); code != exitGood {
		t.Fatalf("replay of the bodies: %d %s %s", code, out, errs)
	}
	end(again, bodies2)
	first, second := bodiesIn(t, bodies), bodiesIn(t, bodies2)
	if len(first) < n || len(second) < len(first) { // a replay also asks the server for what it does not know of it
		t.Errorf("kept %d and %d bodies", len(first), len(second))
	}
	// The bodies stand under the numbers of their rows: the server counted what each row says.
	lengths := func(where string, texts map[int64]string) map[string]int64 {
		tr, err := formats.Open(where)
		if err != nil {
			t.Fatal(err)
		}
		defer tr.Close()
		if tr.Header.KeptBodies == "" {
			t.Error("the header does not say that text was kept")
		}
		of := map[string]int64{}
		for x, err := range tr.All() {
			if err != nil {
				t.Fatal(err)
			}
			of[texts[x.ExchangeID]] = x.InputTokens.V
		}
		return of
	}
	a, b := lengths(rec, first), lengths(rec2, second)
	for text, tokens := range a {
		if text == "" || tokens == 0 || b[text] != tokens {
			t.Errorf("%.80q: %d tokens, then %d", text, tokens, b[text])
		}
	}
	code, out, _ := shadowtape(t, "inspect", rec)
	if code != exitGood || !strings.HasPrefix(out, "WARNING: the text of this trace's requests was kept, in first.bodies\n") {
		t.Errorf("%d %s", code, out)
	}
	code, out, _ = shadowtape(t, "inspect", "--json", rec)
	if documentedKeys(t, "inspect", out); code != exitGood || !strings.Contains(out, `"kept_bodies": "first.bodies"`) {
		t.Errorf("%d %s", code, out)
	}
}

// TestBodiesCanaries: with --keep-bodies text stands in that file and nowhere else, and nothing of a request's head stands in it.
func TestBodiesCanaries(t *testing.T) {
	dir := t.TempDir()
	rec, bodies := filepath.Join(dir, "rec"), filepath.Join(dir, "bodies.jsonl")
	s := startRecording(t, "--sink", "127.0.0.1:0", "-o", rec, "--keep-bodies", bodies, "--tokenizer", "cl100k_base", "--segment-age", "50ms")
	for i := range 3 {
		q, _ := http.NewRequest("POST", s.base+"/v1/chat/completions?HEADCANARY", strings.NewReader(fmt.Sprintf(`{"model":"m","user":"BODYCANARY","messages":[{"role":"user","content":"BODYCANARY %d"}],"x-BODYCANARY":1}`, i)))
		q.Header.Set("Authorization", "Bearer HEADCANARY")
		q.Header.Set("X-HEADCANARY", "HEADCANARY")
		resp, err := http.DefaultClient.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
	}
	code, out, errs := s.end()
	if code != exitGood || strings.Contains(out+errs, "CANARY") || !strings.Contains(out, "bodies_kept") {
		t.Errorf("%d %s %s", code, out, errs)
	}
	if kept, err := os.ReadFile(bodies); err != nil || strings.Count(string(kept), "BODYCANARY") != 9 || strings.Contains(string(kept), "HEADCANARY") {
		t.Errorf("%s %v", kept, err)
	}
	if err := filepath.WalkDir(rec, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			if b, err := os.ReadFile(path); err != nil || strings.Contains(string(b), "CANARY") {
				t.Errorf("%s holds a canary (%v)", d.Name(), err)
			}
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	code, out, errs = shadowtape(t, "inspect", "--privacy", rec)
	if code != exitGood || strings.Contains(out, "CANARY") || !strings.Contains(out, "bodies.jsonl") || !strings.Contains(out, "cl100k_base") {
		t.Errorf("%d %s %s", code, out, errs)
	}
	// The sink sees no answer: the tokenizer is all that says how long a prompt is.
	if code, out, errs := shadowtape(t, "inspect", rec); code != exitGood || !strings.Contains(out, "input from     tokenizer 100 %") || !strings.Contains(out, "output from    unknown 100 %") {
		t.Errorf("%d %s %s", code, out, errs)
	}
	// A second recording goes on with both, or with neither.
	if code, _, errs := shadowtape(t, "record", "--sink", "127.0.0.1:0", "-o", filepath.Join(dir, "other"), "--keep-bodies", bodies, "--duration", "1ms"); code != exitFailed || !strings.Contains(errs, "file exists") {
		t.Errorf("%d %s", code, errs)
	}
	if code, out, errs := shadowtape(t, "record", "--sink", "127.0.0.1:0", "-o", rec, "--append", "--duration", "1ms"); code != exitGood {
		t.Errorf("%d %s %s", code, out, errs)
	}
	if _, out, _ := shadowtape(t, "inspect", rec); !strings.HasPrefix(out, "WARNING: the text") {
		t.Errorf("a recording without --keep-bodies hides what the one before kept: %s", out)
	}
}

func TestRecordTextUsage(t *testing.T) {
	dir := t.TempDir()
	junk := filepath.Join(dir, "tokenizer.json")
	if err := os.WriteFile(junk, []byte(`{"model":{"type":"Unigram","vocab":[["a",0]]}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, "trace")
	capture := []string{"record", "--pcap", filepath.Join("..", "..", "recorder", "testdata", "openai_stream_usage.pcap"), "-o", out}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--tokenizer", "o300k_base"}, exitFailed, "no encoding that is known by name"},
		{[]string{"--tokenizer", filepath.Join(dir, "none.json")}, exitFailed, "no such file"},
		{[]string{"--tokenizer", junk}, exitFailed, `the model "Unigram" is not supported`},
		{[]string{"--keep-bodies", filepath.Join(out, "bodies")}, exitUsage, "within the trace"},
		{[]string{"--keep-bodies", out}, exitUsage, "within the trace"},
		{[]string{"--keep-bodies", filepath.Join(dir, "b"), "--keep-bodies-limit", "0"}, exitUsage, "keeps nothing"},
		{[]string{"--keep-bodies", filepath.Join(dir, "no", "b")}, exitFailed, "no such file"},
		{[]string{"--keep-bodies", junk}, exitFailed, "file exists"},
		{[]string{"--keep-bodies", junk, "--force"}, exitFailed, "no file of bodies"},
	} {
		code, stdout, errs := shadowtape(t, append(slices.Clone(capture), c.args...)...)
		lines := strings.Count(strings.TrimSpace(errs), "\n")
		if code != c.code || stdout != "" || !strings.Contains(errs, c.want) || lines > 1 {
			t.Errorf("%v: %d %s%s", c.args, code, stdout, errs)
		}
		if _, err := os.Lstat(out); err == nil {
			t.Fatalf("%v: a trace was begun", c.args)
		}
	}
	if code, _, errs := shadowtape(t, "record", "--interface", "lo", "--check", "--keep-bodies", filepath.Join(dir, "b")); code != exitUsage || !strings.Contains(errs, "keeps no bodies") {
		t.Errorf("%d %s", code, errs)
	}
	// A trace that is in the way leaves no empty file of bodies behind.
	if err := os.MkdirAll(filepath.Join(out, "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	if code, _, errs := shadowtape(t, append(slices.Clone(capture), "--keep-bodies", filepath.Join(dir, "b"))...); code != exitFailed {
		t.Errorf("%d %s", code, errs)
	}
	if _, err := os.Lstat(filepath.Join(dir, "b")); err == nil {
		t.Error("a file of bodies is left")
	}
}
