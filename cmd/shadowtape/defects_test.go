package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The tests that docs/REPLAYING.md names stand where it says.
func TestNamedTestsExist(t *testing.T) {
	page, err := os.ReadFile("../../docs/REPLAYING.md")
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`(Test[A-Za-z0-9]+)` in ([a-z0-9/]+)").FindAllStringSubmatch(string(page), -1)
	if len(named) < 20 {
		t.Fatalf("%d tests are named", len(named))
	}
	for _, n := range named {
		files, err := filepath.Glob(filepath.Join("../..", n[2], "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			found = found || strings.Contains(string(b), "\nfunc "+n[1]+"(t *testing.T)")
		}
		if !found {
			t.Errorf("%s is not in %s", n[1], n[2])
		}
	}
}

// An import that finds no request is no trace: a file of a header alone, or one of which no row can be read.
func TestImportOfNothing(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct{ text, says string }{
		"header": {"TIMESTAMP,ContextTokens,GeneratedTokens\n", "header.csv: it holds no request"},
		"broken": {"TIMESTAMP,ContextTokens,GeneratedTokens\nx\ny\n", "broken.csv: it holds no request: of 2 rows 2 were left out (broken_row)"},
		"huge":   {"TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-12 00:00:01+00:00,9223372036854775807,2\n", "huge.csv: it holds no request: of 1 rows 1 were left out (broken_row)"},
	} {
		csv, out := write(t, filepath.Join(dir, name+".csv"), c.text), filepath.Join(dir, name)
		if code, _, errs := invoke("import", "azure-llm", csv, "-o", out); code != exitFailed || !strings.Contains(errs, c.says) {
			t.Errorf("%s: exit %d, %s", name, code, errs)
		}
		if _, err := os.Stat(out); err == nil {
			t.Errorf("%s: a trace was left", name)
		}
	}
}

// A history of which a line is damaged is checked as far as it can be read, and that is no pass.
func TestDamagedHistory(t *testing.T) {
	db, runs := t.TempDir(), launches(t, 2, 1)
	must(t, "history", "add", runs[0], runs[1], "--db", db)
	if code, out, errs := invoke("history", "check", "--db", db); code != exitGood {
		t.Fatalf("exit %d\n%s%s", code, out, errs)
	}
	if _, out, _ := invoke("history", "list", "--db", db); !strings.Contains(out, " 1 night, ") || strings.Contains(out, "1 nights") {
		t.Errorf("a night is not counted as one:\n%s", out)
	}
	files, err := filepath.Glob(filepath.Join(db, "*.jsonl"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	b, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	whole := string(b)
	at := strings.Index(whole, `"levels":{`)
	digit := at + strings.IndexAny(whole[at:], "123456789")
	for _, damaged := range []string{whole[:digit] + string(whole[digit]^1) + whole[digit+1:], whole[:len(whole)-20]} {
		if err := os.WriteFile(files[0], []byte(damaged), 0o666); err != nil {
			t.Fatal(err)
		}
		for _, verb := range [][]string{{"check"}, {"check", "--json"}} {
			code, out, errs := invoke(append(append([]string{"history"}, verb...), "--db", db)...)
			if code != exitFailed || !strings.Contains(errs, "1 line could not be read: this check is not of the whole history") || !strings.Contains(errs, filepath.Base(files[0])+" line ") || out == "" {
				t.Errorf("exit %d\n%s%s", code, out, errs)
			}
		}
	}
}

// --out is the place of the result in every verb that has -o.
func TestOutEverywhere(t *testing.T) {
	dir := t.TempDir()
	trace, run := filepath.Join(dir, "trace"), filepath.Join(dir, "run")
	must(t, "synth", "--preset", "short", "--rate", "2", "--requests", "7", "--out", trace)
	must(t, "simulate", trace, "--out", run)
	must(t, "export", "jsonl", run, "--out", filepath.Join(dir, "x.jsonl"))
	must(t, "baseline", "save", run, "--out", filepath.Join(dir, "b.json"))
	for _, verb := range verbs {
		c := verb(&app{})
		for _, c := range append(c.Commands(), c) {
			alsoOut(c)
			if f := c.Flags().ShorthandLookup("o"); f != nil && c.Flags().Lookup("out") != f {
				t.Errorf("%s: --out is not -o", c.Name())
			}
		}
	}
}

// What --force cannot replace is known before a candidate is started.
func TestForceBeforeTheStart(t *testing.T) {
	dir := t.TempDir()
	trace, out, started := filepath.Join(dir, "trace"), filepath.Join(dir, "out"), filepath.Join(dir, "started")
	writeTrace(t, trace, 3)
	if err := os.Mkdir(out, 0o777); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(out, "thesis.txt"), "precious")
	deployment := write(t, filepath.Join(dir, "d.yaml"), "process: [touch, "+started+"]\ndialect: sim\nport: 1\n")
	if code, _, errs := invoke("replay", trace, "--deploy", deployment, "-o", out, "--force"); code != exitFailed || !strings.Contains(errs, "thesis.txt in it is not part of a trace or run") {
		t.Errorf("exit %d, %s", code, errs)
	}
	if _, err := os.Stat(started); err == nil {
		t.Error("the candidate was started first")
	}
}
