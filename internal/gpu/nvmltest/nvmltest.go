// Package nvmltest builds stand-ins for NVIDIA's management library, so that a machine without a GPU tests how the real one is opened
// and read.
package nvmltest

import (
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

//go:embed standin/nvml.c
var source []byte

// Build compiles libnvidia-ml.so.1 into a directory: that of LD_LIBRARY_PATH for a process that shall open it. driver is the version that
// it says; defines are the words that standin/nvml.c explains, such as OLD. Its error says what is missing, a C compiler perhaps: then a
// test is skipped aloud.
func Build(dir, driver string, defines ...string) error {
	cc, err := exec.LookPath("cc")
	if err != nil {
		return errors.New("no C compiler on this machine")
	}
	header, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/NVIDIA/go-nvml").Output()
	if err != nil {
		return fmt.Errorf("find the binding's nvml.h: %w", err)
	}
	c := filepath.Join(dir, "nvml.c")
	if err := os.WriteFile(c, source, 0o600); err != nil {
		return err
	}
	args := []string{"-shared", "-fPIC", "-w", "-I" + filepath.Join(strings.TrimSpace(string(header)), "pkg/nvml"), `-DDRIVER="` + driver + `"`, "-o", filepath.Join(dir, "libnvidia-ml.so.1"), c}
	for _, d := range defines {
		args = append(args, "-D"+d)
	}
	if b, err := exec.Command(cc, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("build the stand-in: %w: %s", err, b)
	}
	return nil
}
