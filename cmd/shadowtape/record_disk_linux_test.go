package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
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
	s := startRecording(t, "--sink", "127.0.0.1:0", "-o", rec, "--segment-age", "200ms")
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
	time.Sleep(300 * time.Millisecond)
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	time.Sleep(1500 * time.Millisecond) // it looks again once a second
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
