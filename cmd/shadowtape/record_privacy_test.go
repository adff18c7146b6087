package main

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shadowtape/shadowtape/formats"
)

// TestLiveCanaries sends a canary in every place of a request through the proxy and the sink: none may stand in the trace, its journal,
// the log or the metrics, neither while a request is in flight nor after it.
func TestLiveCanaries(t *testing.T) {
	target, _ := startSim(t, "--ttft", "300ms", "--itl", "1ms", "--fault", "http404=0%")
	for _, mode := range []string{"proxy", "sink"} {
		t.Run(mode, func(t *testing.T) {
			rec := filepath.Join(t.TempDir(), "rec")
			metrics := freeAddress(t)
			args := []string{"-o", rec, "--metrics-listen", metrics, "--segment-age", "100ms"}
			if mode == "proxy" {
				args = append(args, "--listen", "127.0.0.1:0", "--upstream", target)
			} else {
				args = append(args, "--sink", "127.0.0.1:0")
			}
			r := startRecording(t, args...)
			const canary = "KANARIENVOGEL"
			place := 0
			c := func() string { place++; return fmt.Sprintf("%s%d", canary, place) }
			model := c()
			if mode == "proxy" {
				model = "m" // a name that a server answers for is kept
			}
			body := func() string {
				return fmt.Sprintf(`{"model":%q,"user":%q,"stream":true,"messages":[{"role":"system","content":%q},{"role":"user","content":[{"type":"text","text":%q},{"type":"image_url","image_url":{"url":%q}}],"name":%q},
				{"role":"tool","tool_call_id":%q,"content":%q}],"tools":[{"type":"function","function":{"name":%q,"description":%q,"parameters":{"type":"object","properties":{%q:{"type":"string"}}}}}],
				"stop":[%q],%q:%q,"metadata":{%q:%q},"chat_template_kwargs":{%q:true,"x":%q},"response_format":{"type":%q},"service_tier":%q,"reasoning_effort":%q,"cache_salt":%q,"max_tokens":4}`,
					model, c(), c(), c(), c(), c(), c(), c(), c(), c(), c(), c(), c(), c(), c(), c(), c(), c(), c(), c(), c(), c())
			}
			send := func(path string) {
				q, _ := http.NewRequest("POST", r.base+path+"?"+c()+"="+c(), strings.NewReader(body()))
				for _, h := range []string{"Authorization", "X-Api-Key", "Cookie", "X-Request-Id", "X-Session-Id", "X-Tenant-Id", "User-Agent", "X-" + c()} {
					q.Header.Set(h, c())
				}
				if resp, err := http.DefaultClient.Do(q); err == nil {
					io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
			}
			var found []string
			look := func(alive bool) {
				filepath.WalkDir(rec, func(path string, d fs.DirEntry, err error) error {
					if err == nil && !d.IsDir() {
						if b, err := os.ReadFile(path); err == nil && bytes.Contains(b, []byte(canary)) {
							found = append(found, filepath.Base(path))
						}
					}
					return nil
				})
				if !alive {
					return
				}
				if resp, err := http.Get("http://" + metrics + "/metrics"); err == nil {
					b, _ := io.ReadAll(resp.Body)
					resp.Body.Close()
					if bytes.Contains(b, []byte(canary)) {
						found = append(found, "metrics")
					}
				} else {
					t.Error(err)
				}
			}
			done := make(chan struct{})
			go func() {
				defer close(done)
				for _, path := range []string{"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings", "/v1/messages", "/" + c()} {
					send(path)
				}
			}()
			for running := true; running; {
				select {
				case <-done:
					running = false
				case <-time.After(20 * time.Millisecond):
				}
				look(true)
			}
			code, out, errs := r.end()
			look(false)
			if code != exitGood || strings.Contains(out+errs, canary) {
				t.Errorf("%d %s %s", code, out, errs)
			}
			if len(found) > 0 {
				t.Errorf("canaries in %q", found)
			}
			// Segments are compressed: what stands in the rows is looked at as text, too.
			tr, err := formats.Open(rec)
			if err != nil {
				t.Fatal(err)
			}
			defer tr.Close()
			rows := 0
			for x, err := range tr.All() {
				if err != nil {
					t.Fatal(err)
				}
				rows++
				if text := fmt.Sprintf("%+v", x); strings.Contains(text, canary) {
					t.Errorf("a row holds a canary: %s", text)
				}
			}
			if rows < 4 {
				t.Errorf("only %d rows", rows)
			}
		})
	}
}
