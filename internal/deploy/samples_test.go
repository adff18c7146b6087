package deploy

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/shadowtape/shadowtape/internal/deploy/kube"
)

// TestSamples parses every deployment file that is shipped.
func TestSamples(t *testing.T) {
	dir := filepath.Join("..", "..", "samples", "deploy")
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil || len(files) < 8 {
		t.Fatalf("%d samples, %v", len(files), err)
	}
	for _, path := range files {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		values := map[string]string{}
		for _, name := range MatrixNames(b) {
			values[name] = "2"
		}
		f, err := Load(path, values)
		if err != nil {
			t.Error(err)
			continue
		}
		if m := f.Kubernetes.Manifest; m != "" {
			b, err := os.ReadFile(f.path(m))
			if err != nil {
				t.Error(err)
			}
			if _, err := kube.Read(b, "bench", "id"); err != nil {
				t.Error(err)
			}
		}
		if f.Image != "" && !f.GPUs.None() == (f.Dialect == "sim") {
			t.Errorf("%s: a real engine without a GPU, or the simulator with one", path)
		}
	}
}

// TestFieldsAreDocumented holds docs/DEPLOY.md to the fields of File, both ways.
func TestFieldsAreDocumented(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "DEPLOY.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## Fields\n")
	section, _, _ = strings.Cut(section, "\n## ")
	documented := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z_.]+)`").FindAllStringSubmatch(section, -1) {
		documented[m[1]] = true
	}
	var walk func(typ reflect.Type, path string)
	walk = func(typ reflect.Type, path string) {
		for name, f := range fieldNames(typ) {
			if !documented[path+name] {
				t.Errorf("docs/DEPLOY.md has no field %s", path+name)
			}
			delete(documented, path+name)
			if f.Kind() == reflect.Slice {
				f = f.Elem()
			}
			if f.Kind() == reflect.Struct {
				walk(f, path+name+".")
			}
		}
	}
	walk(reflect.TypeFor[File](), "")
	for name := range documented {
		t.Errorf("docs/DEPLOY.md has %s, which no file may hold", name)
	}
	for _, d := range Dialects() {
		if !strings.Contains(section, "`"+d+"`") {
			t.Errorf("docs/DEPLOY.md lacks dialect %s", d)
		}
	}
}
