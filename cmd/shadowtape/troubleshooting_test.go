package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// ofTheSystem are messages of docs/TROUBLESHOOTING.md that the operating system or the standard library writes.
var ofTheSystem = []string{"connection refused", "certificate signed by unknown authority", "too many open files", "address already in use"}

// TestTroubleshooting holds every message of docs/TROUBLESHOOTING.md to the program: each of its fixed parts stands in the code, and each
// section of its tables is read.
func TestTroubleshooting(t *testing.T) {
	list := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", "*.go")
	list.Dir = filepath.Join("..", "..")
	names, err := list.Output()
	if err != nil {
		t.Fatalf("git ls-files: %v", err)
	}
	var code bytes.Buffer
	for name := range strings.SplitSeq(strings.TrimRight(string(names), "\x00"), "\x00") {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		b, err := os.ReadFile(filepath.Join("..", "..", name))
		if err == nil {
			code.Write(b)
		}
	}
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "TROUBLESHOOTING.md"))
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	for i, l := range strings.Split(string(text), "\n") {
		if !strings.HasPrefix(l, "| ") || strings.HasPrefix(l, "| message |") {
			continue
		}
		rows++
		cell, _, _ := strings.Cut(strings.TrimPrefix(l, "| "), " | ")
		spans := codeSpans(cell)
		if len(spans) == 0 {
			t.Errorf("line %d quotes no message: %s", i+1, cell)
		}
		for _, m := range spans {
			for _, part := range fixedParts(m) {
				if !strings.Contains(code.String(), part) && !strings.Contains(strings.Join(ofTheSystem, "\n"), part) {
					t.Errorf("line %d: the program says %q nowhere (of %q)", i+1, part, m)
				}
			}
		}
	}
	if rows < 50 {
		t.Errorf("%d messages only", rows)
	}
	if got := fixedParts("a limit of … ms, …: over it"); len(got) != 2 || got[0] != "a limit of" || got[1] != "over it" {
		t.Errorf("fixed parts: %q", got)
	}
}

// fixedParts are the parts of a message that do not vary and are long enough to mean something.
func fixedParts(message string) []string {
	var parts []string
	for p := range strings.SplitSeq(message, "…") {
		p = strings.Trim(p, " ;,:.?()")
		if len(p) > 5 || p == message {
			parts = append(parts, strings.TrimPrefix(p, "ms, "))
		}
	}
	return parts
}
