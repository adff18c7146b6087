package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// documents are the Markdown files of the repository, relative to its root.
func documents(t *testing.T) []string {
	t.Helper()
	list := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", "*.md")
	list.Dir = filepath.Join("..", "..")
	names, err := list.Output()
	if err != nil {
		t.Fatalf("git ls-files: %v", err)
	}
	var docs []string
	for name := range strings.SplitSeq(strings.TrimRight(string(names), "\x00"), "\x00") {
		if _, err := os.Stat(filepath.Join("..", "..", name)); err == nil && !strings.Contains(name, "testdata/") {
			docs = append(docs, name)
		}
	}
	if len(docs) < 20 {
		t.Fatalf("%d documents only: %q", len(docs), docs)
	}
	return docs
}

// A command is never written where no test looks: it stands in a ```sh block, which is run or marked with what it needs, or in running
// text, and there its verb, its flags, its make targets and its test names exist.
func TestDocumentsCommands(t *testing.T) {
	checked := 0
	for _, doc := range documents(t) {
		b, err := os.ReadFile(filepath.Join("..", "..", doc))
		if err != nil {
			t.Fatal(err)
		}
		fence, info := false, ""
		for i, l := range strings.Split(string(b), "\n") {
			if kind, ok := strings.CutPrefix(l, "```"); ok {
				fence, info = !fence, kind
				continue
			}
			switch {
			case fence && (info == "sh" || strings.HasPrefix(info, "sh needs=")):
				for _, c := range commandsOf(strings.TrimSuffix(strings.TrimSpace(l), "\\")) {
					checked++
					if bad := checkCommand(c); bad != "" {
						t.Errorf("%s:%d: %s", doc, i+1, bad)
					}
				}
			case fence && !strings.HasPrefix(info, "text") && looksLikeCommand(strings.TrimPrefix(l, "$ ")):
				t.Errorf("%s:%d: a command in a block that nothing runs: make it ```sh, or ```sh needs=WHAT", doc, i+1)
			case !fence && strings.HasPrefix(l, "    ") && looksLikeCommand(l):
				t.Errorf("%s:%d: a command in an indented block, which nothing runs: make it ```sh", doc, i+1)
			case !fence:
				for _, span := range codeSpans(l) {
					for _, c := range commandsOf(span) {
						checked++
						if bad := checkCommand(c); bad != "" {
							t.Errorf("%s:%d: `%s`: %s", doc, i+1, span, bad)
						}
					}
				}
			}
		}
	}
	if checked < 200 {
		t.Errorf("%d commands were looked at: the documents are not being read", checked)
	}
}

// What is written in running text is held to: a command that is wrong must be found.
func TestCheckCommand(t *testing.T) {
	for _, good := range []string{"shadowtape replay TRACE --target URL -o RUN", "shadowtape diff --base a --candidate b", "make demo", "go test ./formats -run Golden", "shadowtape history add RUN…",
		"shadowtape analyze run1 --json | jq .x", "ls -l", "shadowtape", "shadowtape --help"} {
		for _, c := range commandsOf(good) {
			if bad := checkCommand(c); bad != "" {
				t.Errorf("%s: %s", good, bad)
			}
		}
	}
	for _, wrong := range []string{"shadowtape reply x", "shadowtape replay --tagret x", "make demos", "go test ./formats -run NoSuchTestAtAll", "go test ./nowhere", "A=1 shadowtape record --what", "shadowtape history ad x"} {
		found := false
		for _, c := range commandsOf(wrong) {
			found = found || checkCommand(c) != ""
		}
		if !found {
			t.Errorf("%s is not found wrong", wrong)
		}
	}
}

var (
	spanPattern = regexp.MustCompile("`([^`]+)`")
	assignment  = regexp.MustCompile(`^[A-Z_]+=`)
)

func codeSpans(line string) []string {
	var spans []string
	for _, m := range spanPattern.FindAllStringSubmatch(line, -1) {
		spans = append(spans, m[1])
	}
	return spans
}

func looksLikeCommand(line string) bool {
	first, rest, more := strings.Cut(strings.TrimSpace(line), " ")
	return more && (first == "shadowtape" && verbNamed(rest) != nil || first == "make" || first == "kubectl" || first == "install" || first == "go" && strings.HasPrefix(rest, "test "))
}

// commandsOf splits a line of shell, or what stands for one in running text, into its commands that can be checked.
func commandsOf(line string) [][]string {
	var commands [][]string
	for _, part := range regexp.MustCompile(`\|\|?|&&|;|&`).Split(quoted.ReplaceAllStringFunc(line, func(q string) string { return strings.NewReplacer("|", "\x01", ";", "\x02", "&", "\x03").Replace(q) }), -1) {
		words := strings.Fields(strings.NewReplacer("\x01", "|", "\x02", ";", "\x03", "&").Replace(part))
		for len(words) > 0 && (assignment.MatchString(words[0]) || slices.Contains([]string{"nice", "chrt", "-n", "10", "-r", "1", "if", "do", "then", "time", "exec", "/usr/bin/time", "-v"}, words[0])) {
			words = words[1:]
		}
		if len(words) > 0 && (words[0] == "shadowtape" || words[0] == "bin/shadowtape" || words[0] == "make" && len(words) > 1 || words[0] == "go" && len(words) > 2 && words[1] == "test") {
			commands = append(commands, words)
		}
	}
	return commands
}

var quoted = regexp.MustCompile(`"[^"]*"|'[^']*'`)

func verbNamed(rest string) *cobra.Command {
	name, _, _ := strings.Cut(rest, " ")
	for _, v := range verbs {
		if c := v(&app{}); c.Name() == name {
			return c
		}
	}
	return nil
}

// checkCommand says what is wrong with a command's words, or "".
func checkCommand(words []string) string {
	switch words[0] {
	case "make":
		makefile, err := os.ReadFile(filepath.Join("..", "..", "Makefile"))
		if err != nil {
			return err.Error()
		}
		for _, w := range words[1:] {
			if strings.Contains(w, "=") || strings.HasPrefix(w, "-") {
				continue
			}
			if !regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(w) + `:`).Match(makefile) {
				return "the Makefile has no target " + w
			}
			break // what follows is prose
		}
		return ""
	case "go":
		return checkGoTest(words[2:])
	}
	if len(words) == 1 || !regexp.MustCompile(`^[a-z]`).MatchString(words[1]) || words[1] == "help" || words[1] == "completion" {
		return ""
	}
	c := verbNamed(words[1])
	if strings.Join(words, " ") == "shadowtape journal 1" { // how a journal begins (docs/FORMAT.md)
		return ""
	}
	if c == nil {
		return "there is no verb " + words[1]
	}
	words = words[2:]
	if len(words) > 0 && c.HasSubCommands() && regexp.MustCompile(`^[a-z]+$`).MatchString(words[0]) {
		sub, _, err := c.Find(words[:1])
		if err != nil || sub == c {
			return "there is no verb " + c.Name() + " " + words[0]
		}
		c, words = sub, words[1:]
	}
	for i := 0; i < len(words); i++ {
		w := strings.TrimRight(words[i], ".,:)]")
		var f *pflag.Flag
		name, _, _ := strings.Cut(strings.TrimLeft(w, "-["), "=")
		switch {
		case w == "--help" || w == "-h" || w == "-" || w == "--" || w == "-o":
			continue
		case strings.HasPrefix(strings.TrimLeft(w, "["), "--"):
			if f = c.Flags().Lookup(name); f == nil {
				f = c.InheritedFlags().Lookup(name)
			}
		case strings.HasPrefix(w, "-") && len(w) == 2:
			f = c.Flags().ShorthandLookup(w[1:])
		default:
			continue
		}
		if f == nil {
			return c.CommandPath() + " has no flag " + w
		}
	}
	return ""
}

// checkGoTest holds a go test command to the packages and the names of tests and benchmarks that exist.
func checkGoTest(words []string) string {
	pkg, pattern := "", ""
	for i, w := range words {
		w = strings.Trim(w, "'\"")
		switch {
		case strings.HasPrefix(w, "./"):
			pkg = strings.TrimRight(w, ".,:)")
		case (w == "-run" || w == "-bench" || w == "-fuzz") && i+1 < len(words):
			if p := strings.Trim(words[i+1], `'".,:)`); p != "^$" && p != "." {
				pattern = p
			}
		}
	}
	if pkg == "" || pkg == "./..." {
		return ""
	}
	files, _ := filepath.Glob(filepath.Join("..", "..", pkg, "*_test.go"))
	if len(files) == 0 {
		return "there are no tests in " + pkg
	}
	if pattern == "" {
		return ""
	}
	pattern, _, _ = strings.Cut(pattern, "/")
	re, err := regexp.Compile(pattern)
	if err != nil {
		return err.Error()
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return err.Error()
		}
		for _, m := range regexp.MustCompile(`(?m)^func ((?:Test|Benchmark|Fuzz)\w*)\(`).FindAllSubmatch(b, -1) {
			if re.Match(m[1]) {
				return ""
			}
		}
	}
	return pkg + " has no test that matches " + pattern
}
