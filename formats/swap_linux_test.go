package formats

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// TestMovable: what cannot give up its place is known before the work.
func TestMovable(t *testing.T) {
	if err := movable("/proc"); !errors.Is(err, errMounted) {
		t.Errorf("/proc: %v", err)
	}
	sticky := filepath.Join(t.TempDir(), "sticky")
	own := filepath.Join(sticky, "own")
	if err := errors.Join(os.MkdirAll(own, 0o777), os.Chmod(sticky, 0o777|fs.ModeSticky)); err != nil {
		t.Fatal(err)
	}
	if err := movable(own); err != nil {
		t.Error(err)
	}
	if err := movedBy(own, os.Geteuid()+1); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("another user's: %v", err)
	}
}
