package prompt

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/shadowtape/shadowtape/formats"
)

func TestBodies(t *testing.T) {
	name := filepath.Join(t.TempDir(), "bodies.jsonl")
	lines := `{"exchange_id":1,"body":{"model":"theirs","messages":[{"role":"user","content":"hello"}],"stream":true,"request_id":"old"}}` + "\n\n" +
		`{"exchange_id":9,"body":{"model":"theirs","prompt":"x","previous_response_id":"r"}}`
	if err := os.WriteFile(name, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	b, err := OpenBodies(name)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	b.Model = `ou"rs`
	x := formats.Exchange{ExchangeID: 500, SourceID: formats.Of(int64(1))}
	body, err := b.Body(&x)
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(body, &m); err != nil {
		t.Fatal(err)
	}
	if m["model"] != `ou"rs` || m["request_id"] != nil || m["stream_options"] == nil || x.Endpoint != formats.EndpointChat || !x.Stream.V || b.Len() != 2 {
		t.Errorf("%s", body)
	}
	if _, err := b.Body(&formats.Exchange{ExchangeID: 9}); err != ErrStateful {
		t.Errorf("a stateful body: %v", err)
	}
	if _, err := b.Body(&formats.Exchange{ExchangeID: 2}); err == nil {
		t.Error("a body that is not there")
	}
	b.Maker = prompts(t, Options{})
	if _, err := b.Body(&formats.Exchange{ExchangeID: 2, InputTokens: formats.Of(int64(4))}); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(name, []byte(lines[:40]), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenBodies(name); err == nil {
		t.Error("a cut line is read")
	}
}
