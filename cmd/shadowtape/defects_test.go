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
