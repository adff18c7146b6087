//go:build unix

package enginetest

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// alone waits until no other test of this machine has such an engine: two would give their containers the same addresses on the same
// bridge. The lock ends with the file.
func alone(name string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(os.TempDir(), "shadowtape-enginetest-"+name+".lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for range 5 * 60 * 10 {
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err == nil {
			return f, nil
		} else if !errors.Is(err, syscall.EWOULDBLOCK) {
			f.Close()
			return nil, err
		}
		time.Sleep(100 * time.Millisecond)
	}
	f.Close()
	return nil, errors.New("another test has such an engine for five minutes")
}
