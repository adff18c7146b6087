package main

import (
	"bytes"
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// executedDocs are the documents whose command blocks (```sh) run in order, each in one shell of one copy of the repository, and whose
// output blocks (```text right after) must be what the commands print, numbers aside.
var executedDocs = []string{"README.md"}

func TestDocumentsRun(t *testing.T) {
	if testing.Short() {
		t.Skip("skipped by -short: runs every command of the documents, among them make demo, which takes a minute")
	}
	self, err := exec.LookPath("shadowtape")
	if err != nil {
		t.Fatalf("the test binary is not on PATH as shadowtape: %v", err)
	}
	for _, doc := range executedDocs {
		t.Run(doc, func(t *testing.T) {
			root := copyRepository(t)
			text, err := os.ReadFile(filepath.Join(root, doc))
			if err != nil {
				t.Fatal(err)
			}
			blocks := codeBlocks(string(text))
			if len(blocks) == 0 {
				t.Fatal("no command block found")
			}
			port := freePort(t)
			for _, b := range blocks {
				script := strings.ReplaceAll(b.commands, "8000", port)
				if strings.TrimSpace(script) == "make test" {
					script = "make -n test" // this very test is what it runs
				}
				ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
				c := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", script)
				c.Dir = root
				c.Env = append(os.Environ(), "PATH="+filepath.Dir(self)+string(os.PathListSeparator)+os.Getenv("PATH"))
				var out, errs bytes.Buffer
				c.Stdout, c.Stderr = &out, &errs
				c.WaitDelay = 5 * time.Second
				err := c.Run()
				cancel()
				if err != nil {
					t.Fatalf("line %d: %s: %v\nstdout:\n%s\nstderr:\n%s", b.line, script, err, out.String(), errs.String())
				}
				if b.output != "" {
					if got, want := normalize(out.String()), normalize(b.output); got != want {
						t.Errorf("line %d: %s prints (numbers aside)\n%s\nthe document says\n%s", b.line, script, out.String(), b.output)
					}
				}
			}
		})
	}
}

// block is one command block and the output block after it, if any.
type block struct {
	line             int
	commands, output string
}

// codeBlocks finds the ```sh blocks of a Markdown document, each with the ```text block that follows it before any other text.
func codeBlocks(doc string) []block {
	var blocks []block
	lines := strings.Split(doc, "\n")
	for i := 0; i < len(lines); i++ {
		info, ok := strings.CutPrefix(lines[i], "```")
		if !ok {
			if strings.TrimSpace(lines[i]) != "" && len(blocks) > 0 && blocks[len(blocks)-1].output == "" {
				blocks[len(blocks)-1].output = "\x00" // prose came between: nothing to compare
			}
			continue
		}
		start := i + 1
		for i++; i < len(lines) && !strings.HasPrefix(lines[i], "```"); i++ {
		}
		body := strings.Join(lines[start:i], "\n")
		switch {
		case info == "sh":
			blocks = append(blocks, block{line: start, commands: body})
		case info == "text" && len(blocks) > 0 && blocks[len(blocks)-1].output == "":
			blocks[len(blocks)-1].output = body
		}
	}
	for i := range blocks {
		if blocks[i].output == "\x00" {
			blocks[i].output = ""
		}
	}
	return blocks
}

var (
	numbers = regexp.MustCompile(`[-+±]?[0-9][0-9.,]*`)
	spaces  = regexp.MustCompile(`[ \t]+`)
)

// normalize makes two outputs of one command equal: numbers become N, runs of blanks one blank.
func normalize(s string) string {
	var lines []string
	for l := range strings.SplitSeq(strings.TrimSpace(s), "\n") {
		l = numbers.ReplaceAllString(l, "N")
		lines = append(lines, strings.TrimSpace(spaces.ReplaceAllString(l, " ")))
	}
	return strings.Join(lines, "\n")
}

func TestCodeBlocks(t *testing.T) {
	got := codeBlocks("a\n```sh\nmake x\n```\n\n```text\nout 1\n```\n```sh\ny\n```\nprose\n```text\nnot it\n```\n")
	want := []block{{2, "make x", "out 1"}, {9, "y", ""}}
	if !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if normalize("a  1.5 ms\nb -3%") != "a N ms\nb N%" {
		t.Errorf("normalize: %q", normalize("a  1.5 ms\nb -3%"))
	}
}

// copyRepository copies what git tracks, as it stands in the working tree, so that documents leave nothing behind.
func copyRepository(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	list := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	list.Dir = filepath.Join("..", "..")
	names, err := list.Output()
	if err != nil {
		t.Fatalf("git ls-files: %v", err)
	}
	for name := range strings.SplitSeq(strings.TrimRight(string(names), "\x00"), "\x00") {
		src, dst := filepath.Join("..", "..", name), filepath.Join(dir, name)
		b, err := os.ReadFile(src)
		if os.IsNotExist(err) {
			continue // deleted, not committed yet
		}
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(src)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Dir(dst), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(dst, b, info.Mode().Perm()); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// freePort finds a port of the loopback interface that nothing listens on.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}
