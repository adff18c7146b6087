package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestPackage writes what a release holds beside the program: a page and a completion for each verb and flag, and this binary's own modules.
func TestPackage(t *testing.T) {
	self, err := exec.LookPath("shadowtape")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if code, out, errs := shadowtape(t, "package", self, "-o", dir); code != exitGood {
		t.Fatalf("%d %s %s", code, out, errs)
	}
	read := func(name string) string {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	for _, c := range verbs {
		v := c(&app{})
		if v.Hidden {
			continue
		}
		page := read(filepath.Join("man", "shadowtape-"+v.Name()+".1"))
		if !strings.HasPrefix(page, ".TH \"SHADOWTAPE-") {
			t.Errorf("%s: %.60q", v.Name(), page)
		}
		for line := range strings.Lines(page) {
			if strings.HasPrefix(line, ".") && !strings.HasPrefix(line, ".TH ") && !strings.HasPrefix(line, ".SH ") && !strings.HasPrefix(line, ".B ") && line != ".TP\n" && line != ".PP\n" && line != ".nf\n" && line != ".fi\n" {
				t.Errorf("%s: a line is read as a request: %q", v.Name(), line)
			}
		}
	}
	if page := read("man/shadowtape-replay.1"); !strings.Contains(page, `\-\-start\-at time`) || !strings.Contains(page, "EXAMPLES") {
		t.Error("replay's page lacks its flags or examples")
	}
	if page := read("man/shadowtape.1"); !strings.Contains(page, `shadowtape\-merge`) || strings.Contains(page, `shadowtape\-package`) {
		t.Error("the first page lists other verbs than help")
	}
	for _, name := range []string{"shadowtape.bash", "_shadowtape", "shadowtape.fish"} {
		if text := read(filepath.Join("completions", name)); len(text) < 1000 {
			t.Errorf("%s: %d bytes", name, len(text))
		}
	}
	var d bom
	if err := json.Unmarshal([]byte(read("shadowtape.cdx.json")), &d); err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, c := range d.Components {
		found[c.Name] = strings.HasPrefix(c.PURL, "pkg:golang/"+c.Name+"@") && (c.Name == "std" || len(c.Properties) == 1)
	}
	if d.Format != "CycloneDX" || !found["std"] || !found["github.com/parquet-go/parquet-go"] || !found["github.com/minio/minio-go/v7"] {
		t.Errorf("%+v", d)
	}
	if bash, err := exec.LookPath("bash"); err == nil {
		if out, err := exec.Command(bash, "-n", filepath.Join(dir, "completions", "shadowtape.bash")).CombinedOutput(); err != nil {
			t.Errorf("bash does not read its completion: %v %s", err, out)
		}
	}
	if code, _, errs := shadowtape(t, "package", filepath.Join(dir, "man", "shadowtape.1"), "-o", dir); code != exitFailed || !strings.Contains(errs, "read the components of") {
		t.Errorf("%d %s", code, errs)
	}
}
