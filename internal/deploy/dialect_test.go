package deploy

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// The probe that asks a server's own Python: versions of what is installed, and the commit that setuptools-scm wrote into an engine.
func TestPythonProbe(t *testing.T) {
	words := dialects["vllm"].probes["python"]
	if _, err := exec.LookPath(words[0]); err != nil {
		t.Skip("SKIPPED LOUDLY: no python3: the probe of versions was not tested")
	}
	dir := t.TempDir()
	for path, text := range map[string]string{
		"vllm-0.11.2.dist-info/METADATA":          "Metadata-Version: 2.1\nName: vllm\nVersion: 0.11.2\n",
		"vllm/__init__.py":                        "raise SystemExit('it must not be imported: that takes long and prints')",
		"vllm/_version.py":                        "__version__ = version = '0.11.2'\n__commit_id__ = commit_id = 'g5b8077b8a'\n",
		"nvidia_cublas-13.0.2.dist-info/METADATA": "Metadata-Version: 2.1\nName: nvidia-cublas\nVersion: 13.0.2\n",
	} {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Env = append(os.Environ(), "PYTHONPATH="+dir)
	out, err := cmd.Output()
	var said map[string]any
	if err != nil || json.Unmarshal(out, &said) != nil {
		t.Fatalf("%v %s", err, out)
	}
	if said["vllm"] != "0.11.2" || said["vllm_commit"] != "g5b8077b8a" || said["nvidia-cublas"] != "13.0.2" || said["python"] == nil || said["sglang"] != nil {
		t.Errorf("%s", out)
	}
}
