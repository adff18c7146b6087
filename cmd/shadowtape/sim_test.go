package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSimServesUntilInterrupted(t *testing.T) {
	dir := t.TempDir()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	r, w := io.Pipe()
	code := make(chan int, 1)
	var errs bytes.Buffer
	go func() {
		code <- run(ctx, []string{"sim", "--listen", "127.0.0.1:0", "--profile", "instant", "--emission-log", filepath.Join(dir, "e.jsonl")}, strings.NewReader(""), w, &errs)
		w.Close()
	}()
	out := bufio.NewReader(r)
	address, err := out.ReadString('\n')
	if err != nil {
		t.Fatalf("no address: %v, %s", err, errs.String())
	}
	req, err := http.NewRequest("POST", strings.TrimSpace(address)+"/v1/completions", strings.NewReader(`{"prompt":"one two","max_tokens":3,"ignore_eos":true}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Request-Id", "r1")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil || resp.StatusCode != 200 || !strings.Contains(string(body), `"completion_tokens":3`) {
		t.Errorf("status %d, %v: %s", resp.StatusCode, err, body)
	}
	stop()
	if c := <-code; c != exitGood {
		t.Errorf("exit %d: %s", c, errs.String())
	}
	log, err := os.ReadFile(filepath.Join(dir, "e.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	var line struct {
		ID     string  `json:"x_request_id"`
		Tokens []int64 `json:"token_unix_ns"`
	}
	if err := json.Unmarshal(log, &line); err != nil || line.ID != "r1" || len(line.Tokens) != 3 {
		t.Errorf("emission log %s: %v", log, err)
	}
}

func TestSimUsage(t *testing.T) {
	for _, test := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"--profile", "nope"}, exitUsage, "llama-3.1-8b-h100"},
		{[]string{"--profile", "./nope.json"}, exitFailed, "read profile"},
		{[]string{"--slowdown", "x=1"}, exitUsage, "slowdown"},
		{[]string{"--noise", "launch=200%"}, exitUsage, "noise"},
		{[]string{"--fault", "flood=1%"}, exitUsage, "flood"},
		{[]string{"--pages", "-1"}, exitUsage, "pages"},
		{[]string{"--listen", "999.0.0.1:1"}, exitFailed, "listen"},
		{[]string{"extra"}, exitUsage, "arguments"},
	} {
		var out, errs bytes.Buffer
		if code := run(t.Context(), append([]string{"sim"}, test.args...), strings.NewReader(""), &out, &errs); code != test.code || !strings.Contains(errs.String(), test.says) {
			t.Errorf("%v: exit %d, %q", test.args, code, errs.String())
		}
	}
	var out, errs bytes.Buffer
	if code := run(t.Context(), []string{"sim", "--list-profiles"}, strings.NewReader(""), &out, &errs); code != exitGood || !strings.Contains(out.String(), "derived from data sheets, not measured") {
		t.Errorf("exit %d: %s%s", code, out.String(), errs.String())
	}
}
