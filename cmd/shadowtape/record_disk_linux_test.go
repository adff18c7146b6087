package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shadowtape/shadowtape/formats"
)

// TestFullDisk fills the file system that a recorder writes to, and frees it again.
func TestFullDisk(t *testing.T) {
	disk := t.TempDir()
	if err := syscall.Mount("shadowtape-test", disk, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("SKIPPED: a small file system cannot be mounted here: %v", err)
	}
	t.Cleanup(func() { syscall.Unmount(disk, syscall.MNT_DETACH) })
	rec := filepath.Join(disk, "rec")
	ops := "127.0.0.1:" + freePort(t)
	s := startRecording(t, "--sink", "127.0.0.1:0", "-o", rec, "--segment-age", "200ms", "--metrics-listen", ops)
	// counter reads one counter of the recorder's own page.
	counter := func(name string) (n int) {
		resp, err := http.Get("http://" + ops + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
			if v, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
				if n, err = strconv.Atoi(v); err != nil {
					t.Fatal(err)
				}
			}
		}
		return n
	}
	// until waits for something that the recorder does in its own time.
	until := func(what string, ok func() bool) {
		for range 3600 {
			if ok() {
				return
			}
			time.Sleep(50 * time.Millisecond)
		}
		t.Fatalf("%s: not within three minutes", what)
	}
	// health is what /healthz says; it never fails, or what stands in the traffic would be restarted.
	health := func() string {
		resp, err := http.Get("http://" + ops + "/healthz")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatal(resp.Status, err)
		}
		return string(b)
	}
	sent := 0
	send := func(n int) {
		for range n {
			sent++
			resp, err := http.Post(s.base+"/v1/chat/completions", "application/json", strings.NewReader(fmt.Sprintf(`{"model":"m","max_tokens":%d,"messages":[{"role":"user","content":%q}]}`, sent, strings.Repeat("word ", 2000))))
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != http.StatusAccepted {
				t.Fatal(resp.Status)
			}
		}
	}
	send(20)
	until("write the first requests", func() bool { return counter("shadowtape_exchanges_written_total") == 20 })
	filler := filepath.Join(disk, "filler")
	f, err := os.Create(filler)
	if err != nil {
		t.Fatal(err)
	}
	for block := make([]byte, 4096); err == nil; {
		_, err = f.Write(block)
	}
	f.Close()
	send(200)
	until("drop requests", func() bool { return counter("shadowtape_exchanges_seen_total") == sent })
	if h := health(); !strings.Contains(h, "not recording") || counter("shadowtape_writing") != 0 {
		t.Errorf("while the disk is full it says %q", h)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	until("say that it records again, without traffic", func() bool { return health() == "ok\n" && counter("shadowtape_writing") == 1 })
	full := counter("shadowtape_exchanges_written_total")
	until("write again", func() bool { // it looks again once a second
		send(1)
		return counter("shadowtape_exchanges_written_total") > full
	})
	send(20)
	code, out, errs := s.end()
	if code != exitGood || !strings.Contains(out, "dropped_disk_full") {
		t.Errorf("%d %s %s", code, out, errs)
	}
	tr, err := formats.Open(rec)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	c := tr.Header.Counters
	if c.Seen != int64(sent) || c.Written != tr.Rows || c.Dropped == 0 || c.Written < 40 {
		t.Errorf("%d sent, %d rows, %+v", sent, tr.Rows, c)
	}
	last := int64(0)
	for x, err := range tr.All() {
		if err != nil {
			t.Fatal(err)
		}
		last = max(last, x.MaxTokens.V)
	}
	if last != int64(sent) {
		t.Errorf("the last row is of request %d of %d: it did not go on when there was room", last, sent)
	}
}

// TestFullDiskOfBodies fills the file system that bodies are kept on, not the trace's: every row is written, what became of its body is
// counted, and the file holds whole lines.
func TestFullDiskOfBodies(t *testing.T) {
	disk := t.TempDir()
	if err := syscall.Mount("shadowtape-test", disk, "tmpfs", 0, "size=256k"); err != nil {
		t.Skipf("SKIPPED: a small file system cannot be mounted here: %v", err)
	}
	t.Cleanup(func() { syscall.Unmount(disk, syscall.MNT_DETACH) })
	rec, bodies := filepath.Join(t.TempDir(), "rec"), filepath.Join(disk, "bodies")
	s := startRecording(t, "--sink", "127.0.0.1:0", "-o", rec, "--keep-bodies", bodies, "--json")
	const n = 60
	for i := range n {
		resp, err := http.Post(s.base+"/v1/chat/completions", "application/json", strings.NewReader(fmt.Sprintf(`{"model":"m","max_tokens":%d,"messages":[{"role":"user","content":%q}]}`, i+1, strings.Repeat("word ", 2000))))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusAccepted {
			t.Fatal(resp.Status)
		}
	}
	code, out, errs := s.end()
	var a recordAnswer
	if err := json.Unmarshal([]byte(out), &a); err != nil || code != exitFailed || !strings.Contains(errs, "shadowtape: keep bodies: ") || !strings.Contains(errs, "no space left") {
		t.Errorf("exit %d, %v\n%s%s", code, err, out, errs)
	}
	kept, failed := a.Notes["bodies_kept"], a.Notes["bodies_failed"]
	if a.Written != n || kept == 0 || failed == 0 || kept+failed != n {
		t.Errorf("%d rows, %d bodies kept, %d failed of %d", a.Written, kept, failed, n)
	}
	texts := bodiesIn(t, bodies) // whole lines only
	if int64(len(texts)) != kept {
		t.Errorf("%d bodies in the file, %d counted", len(texts), kept)
	}
	tr, err := formats.Open(rec)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	for x, err := range tr.All() {
		if err != nil {
			t.Fatal(err)
		}
		delete(texts, x.ExchangeID)
	}
	if len(texts) > 0 || tr.Rows != n {
		t.Errorf("%d rows; bodies without a row: %v", tr.Rows, len(texts))
	}
}
