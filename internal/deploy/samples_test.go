package deploy

import (
	"os"
	"path/filepath"
	"testing"
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
		if f.Image != "" && !f.GPUs.None() == (f.Dialect == "sim") {
			t.Errorf("%s: a real engine without a GPU, or the simulator with one", path)
		}
	}
}
