package main

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The rule for every document of the repository (documents lists them): a fenced block ```sh is run, all of a document's in order in one
// shell, in a copy of the repository. An output block right after it must be what its commands print: numbers aside (```text), to 3 %
// (```text figures, for what virtual time makes exact), or, where a real clock decides what is said (```text timed), each of its lines must
// begin, in order, as a line of the output does. A block ```sh needs=WHAT cannot be run everywhere (a GPU, root, a cluster): its commands are held to
// the program's verbs and flags instead, as is every command in running text (docs_check_test.go).

// walkthroughs are read, and run, one after the other: each finds what the ones before it have left.
var walkthroughs = []string{"record.md", "release.md", "sweep.md", "report.md"}

func TestDocumentsRun(t *testing.T) {
	if testing.Short() {
		t.Skip("skipped by -short: runs every command of the documents, among them make demo, which takes a minute")
	}
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip("skipped: no bash on PATH, no command of the documents is run")
	}
	for _, doc := range documents(t) {
		if strings.HasPrefix(doc, "docs/walkthroughs/") {
			continue
		}
		text, err := os.ReadFile(filepath.Join("..", "..", doc))
		if err != nil {
			t.Fatal(err)
		}
		if len(runnable(codeBlocks(string(text)))) > 0 {
			t.Run(doc, func(t *testing.T) {
				if doc == "README.md" {
					t.Parallel() // it waits more than it works, and so do the walk-throughs; what computes has run before
				}
				runDocument(t, copyRepository(t), doc)
			})
		}
	}
	t.Run("walkthroughs", func(t *testing.T) {
		t.Parallel()
		root := copyRepository(t)
		for _, doc := range walkthroughs {
			t.Run(doc, func(t *testing.T) { runDocument(t, root, "docs/walkthroughs/"+doc) })
			if t.Failed() {
				return // the next one stands on this one's runs
			}
		}
	})
}

// TestWalkthroughsAreAll holds the list of walk-throughs to the directory.
func TestWalkthroughsAreAll(t *testing.T) {
	for _, doc := range documents(t) {
		if name, ok := strings.CutPrefix(doc, "docs/walkthroughs/"); ok && !slices.Contains(walkthroughs, name) {
			t.Errorf("%s is run by nobody: it is not in walkthroughs", doc)
		}
	}
}

func runnable(blocks []block) []block {
	return slices.DeleteFunc(blocks, func(b block) bool { return b.needs != "" })
}

// blockMark stands before the output of each block.
const blockMark = "\x1e"

// runDocument runs the blocks of one document in one shell in root, as a reader would in one terminal, and holds their outputs to it.
func runDocument(t *testing.T, root, doc string) {
	text, err := os.ReadFile(filepath.Join(root, doc))
	if err != nil {
		t.Fatal(err)
	}
	blocks := runnable(codeBlocks(string(text)))
	if len(blocks) == 0 {
		t.Fatal("no command block found")
	}
	var script strings.Builder
	script.WriteString("trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\nset -euo pipefail\n")
	for i, b := range blocks {
		commands := b.commands
		if strings.TrimSpace(commands) == "make test" {
			commands = "make -n test" // this very test is what it runs
		}
		fmt.Fprintf(&script, "printf '\\036%%s\\n' %d | tee /dev/stderr\n%s\n", i, commands)
	}
	commands := script.String()
	for _, port := range []string{"8000", "8001", "8900"} {
		commands = strings.ReplaceAll(commands, ":"+port, ":"+freePort(t))
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, "bash", "-c", commands)
	c.Dir = root
	c.Env = append(os.Environ(), "PATH="+patientShadowtape(t)+string(os.PathListSeparator)+os.Getenv("PATH"))
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	c.WaitDelay = 10 * time.Second
	err = c.Run()
	printed := strings.Split(out.String(), blockMark)[1:]
	if err != nil && len(printed) > 0 {
		last := blocks[len(printed)-1]
		t.Fatalf("%s, line %d: %s: %v\nstdout:\n%s\nstderr:\n%s", doc, last.line, last.commands, err, printed[len(printed)-1], errs.String())
	}
	if err != nil || len(printed) != len(blocks) {
		t.Fatalf("%d of %d blocks ran: %v\n%s", len(printed), len(blocks), err, errs.String())
	}
	for i, b := range blocks {
		_, said, _ := strings.Cut(printed[i], "\n")
		if why := b.differs(said); why != "" {
			t.Errorf("%s, line %d: %s: %s; it prints\n%s\nthe document says\n%s\nstderr of the document:\n%s", doc, b.line, b.commands, why, said, b.output, errs.String())
		}
	}
}

// patientShadowtape is a directory with a program shadowtape that is the test binary, as a reader would use it: it waits until a target
// answers, and accepts a run that this machine was too busy to measure.
func patientShadowtape(t *testing.T) string {
	t.Helper()
	self, err := exec.LookPath("shadowtape")
	if err != nil {
		t.Fatalf("the test binary is not on PATH as shadowtape: %v", err)
	}
	dir := t.TempDir()
	script := `#!/usr/bin/env bash
accept=
case $1 in replay | analyze | diff | sweep) accept=--allow-invalid ;; esac
for a in "$@"; do
  if [[ ${before-} =~ ^--(target|upstream)$ && $a =~ ^http://127.0.0.1:([0-9]+)$ ]]; then
    for i in {1..300}; do (: <"/dev/tcp/127.0.0.1/${BASH_REMATCH[1]}") 2>/dev/null && break; sleep 0.1; done
  fi
  before=$a
done
exec "$REAL_SHADOWTAPE" "$@" $accept
`
	script = strings.ReplaceAll(script, "$REAL_SHADOWTAPE", self)
	if err := os.WriteFile(filepath.Join(dir, "shadowtape"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// block is one command block and the output block after it, if any.
type block struct {
	line             int
	commands, output string
	how              string // "": equal but for numbers; figures: numbers to 3 %; timed: compare how its lines begin
	needs            string // what it takes to run it; "": it is run
}

// differs says how what the commands printed differs from the output block, or "".
func (b block) differs(printed string) string {
	switch {
	case b.output == "":
		return ""
	case b.how != "timed":
		if normalize(printed) != normalize(b.output) {
			return "the output differs"
		}
		if b.how == "figures" {
			return figuresDiffer(numbers.FindAllString(printed, -1), numbers.FindAllString(b.output, -1))
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

// figuresDiffer says which of the figures printed is more than 3 % off what the document says, or "".
func figuresDiffer(printed, said []string) string {
	plain := strings.NewReplacer(",", "", "±", "")
	for i, s := range said {
		if i >= len(printed) {
			return "figures are missing"
		}
		a, errA := strconv.ParseFloat(strings.Trim(plain.Replace(printed[i]), ".+"), 64)
		b, errB := strconv.ParseFloat(strings.Trim(plain.Replace(s), ".+"), 64)
		if errA != nil || errB != nil {
			if printed[i] != s {
				return fmt.Sprintf("%s is printed, not %s", printed[i], s)
			}
			continue
		}
		if math.Abs(a-b) > 0.03*math.Abs(b)+0.011 {
			return fmt.Sprintf("%s is printed, not %s", printed[i], s)
		}
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
		kind, more, _ := strings.Cut(info, " ")
		switch {
		case kind == "sh":
			blocks = append(blocks, block{line: start, commands: body, needs: strings.TrimPrefix(more, "needs=")})
		case kind == "text" && len(blocks) > 0 && blocks[len(blocks)-1].output == "":
			blocks[len(blocks)-1].output, blocks[len(blocks)-1].how = body, more
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
	numbers = regexp.MustCompile(`[-+±]?[0-9][0-9.,]*|–`)                                                      // a dash is a figure that is not known
	names   = regexp.MustCompile(`"(?:[0-9a-f]{7,40}(?:-dirty)?|v?[0-9]+\.[0-9.]+[^"]*|\(?devel\)?|unknown)"`) // keys' identifiers and versions
	spaces  = regexp.MustCompile(`[ \t]+`)
)

// normalize makes two outputs of one command equal: numbers become N, runs of blanks one blank.
func normalize(s string) string {
	var lines []string
	for l := range strings.SplitSeq(strings.TrimSpace(s), "\n") {
		l = names.ReplaceAllString(l, "N")
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
	if got := codeBlocks("```sh needs=gpu\nx\n```\n"); len(got) != 1 || got[0].needs != "gpu" || len(runnable(got)) != 0 {
		t.Errorf("a block that needs a GPU: %+v", got)
	}
	figures := block{output: "ttft 100.0 ms of 1,000", how: "figures"}
	if why := figures.differs("ttft   102 ms of 1,001"); why != "" {
		t.Error(why)
	}
	if figures.differs("ttft 104 ms of 1,000") == "" {
		t.Error("a figure 4 % off is accepted")
	}
	timed := block{output: "valid 3\nttft 5 ms", how: "timed"}
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
