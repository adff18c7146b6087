package main

import (
	"bytes"
	"context"
	"fmt"
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

// executedDocs are the documents whose command blocks (```sh) run in order, each in a shell of its own in one copy of the repository.
// An output block right after must be what the commands print: numbers aside (```text), or, where the figures decide what is said
// (```text timed), each of its lines must begin, in order, as a line of the output does.
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
				if why := b.differs(out.String()); why != "" {
					t.Errorf("line %d: %s: %s; it prints\n%s\nthe document says\n%s", b.line, script, why, out.String(), b.output)
				}
			}
		})
	}
}

// block is one command block and the output block after it, if any.
type block struct {
	line             int
	commands, output string
	timed            bool // the output's figures are measured: compare how its lines begin
}

// differs says how what the commands printed differs from the output block, or "".
func (b block) differs(printed string) string {
	switch {
	case b.output == "":
		return ""
	case !b.timed:
		if normalize(printed) != normalize(b.output) {
			return "the output differs"
		}
		return ""
	}
	rest := strings.Split(normalize(printed), "\n")
	for want := range strings.SplitSeq(normalize(b.output), "\n") {
		first, _, _ := strings.Cut(want, " ")
		i := slices.IndexFunc(rest, func(l string) bool { f, _, _ := strings.Cut(l, " "); return f == first })
		if i < 0 {
			return fmt.Sprintf("no line begins with %q after the lines before it", first)
		}
		rest = rest[i+1:]
	}
	return ""
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
		case strings.HasPrefix(info, "text") && len(blocks) > 0 && blocks[len(blocks)-1].output == "":
			blocks[len(blocks)-1].output, blocks[len(blocks)-1].timed = body, info == "text timed"
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
	want := []block{{line: 2, commands: "make x", output: "out 1"}, {line: 9, commands: "y"}}
	if !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	timed := block{output: "valid 3\nttft 5 ms", timed: true}
	if why := timed.differs("x\nvalid 9 more\ny\nttft 7"); why != "" {
		t.Error(why)
	}
	if timed.differs("ttft 7\nvalid 9") == "" {
		t.Error("lines out of order are accepted")
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
