package main

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// What is written beside an answer is a file: whole or not there, never in place of a directory, a pipe or a device.
func TestWriteFile(t *testing.T) {
	dir := t.TempDir()
	text := func(s string) func(io.Writer) error {
		return func(w io.Writer) error { _, err := io.WriteString(w, s); return err }
	}
	file := filepath.Join(dir, "a")
	if err := writeNew(file, false, text("one")); err != nil {
		t.Fatal(err)
	}
	if err := writeNew(file, false, text("two")); err == nil || !strings.Contains(err.Error(), "it exists") {
		t.Errorf("over a file: %v", err)
	}
	if err := writeNew(file, true, func(w io.Writer) error { return errors.Join(text("half")(w), io.ErrUnexpectedEOF) }); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a writer that fails: %v", err)
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "one" {
		t.Errorf("after one that failed it holds %q, %v", b, err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(file, link); err != nil {
		t.Fatal(err)
	}
	if err := writeNew(link, true, text("three")); err != nil {
		t.Error(err)
	}
	if b, _ := os.ReadFile(file); string(b) != "three" {
		t.Errorf("through a link it holds %q", b)
	}
	if info, err := os.Lstat(link); err != nil || info.Mode().IsRegular() {
		t.Errorf("the link was replaced: %v", err)
	}
	if err := writeNew(dir, true, text("x")); err == nil || !strings.Contains(err.Error(), "it is a directory") {
		t.Errorf("over a directory: %v", err)
	}
	missing := filepath.Join(dir, "nowhere", "x")
	if err := writeNew(missing, false, text("x")); !errors.Is(err, fs.ErrNotExist) || strings.Contains(err.Error(), ".shadowtape-") {
		t.Errorf("into a directory that is not there: %v", err)
	}
	if list, err := filepath.Glob(filepath.Join(dir, ".shadowtape-*")); err != nil || len(list) > 0 {
		t.Errorf("left behind: %q, %v", list, err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	pipe := "/dev/fd/" + strconv.Itoa(int(w.Fd()))
	if _, err := os.Stat(pipe); err != nil {
		t.Skipf("skipped: %v; writing into a pipe was not tried", err)
	}
	if err := writeNew(pipe, false, text("piped")); err != nil {
		t.Error(err)
	}
	got := make([]byte, 5)
	if _, err := io.ReadFull(r, got); err != nil || string(got) != "piped" {
		t.Errorf("the pipe gave %q, %v", got, err)
	}
}

// A directory and a file named twice are mistakes; a limit given twice is one.
func TestNamedTwice(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "a.csv")
	if err := os.WriteFile(file, []byte("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"import", "azure-llm", file, file, "-o", filepath.Join(dir, "t")}, "is named twice"},
		{[]string{"import", "azure-llm", dir, "-o", filepath.Join(dir, "t")}, "is a directory: name the files in it"},
		{[]string{"analyze", file, "--slo", "ttft=5ms,ttft=6ms"}, "ttft has a limit already"},
	} {
		if code, out, errw := invoke(c.args...); code == exitGood || out != "" || !strings.Contains(errw, c.says) {
			t.Errorf("%q: exit %d, stdout %q, stderr %q", c.args, code, out, errw)
		}
	}
}
