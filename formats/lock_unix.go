//go:build unix

package formats

import (
	"errors"
	"io"
	"os"
	"syscall"
)

// lockDirectory keeps a second writer out of a directory until it is closed or the process ends. Where the file system knows no locks there
// is none.
func lockDirectory(where string) (io.Closer, error) {
	f, err := os.Open(where)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, errors.Join(ErrBusy, f.Close())
	}
	return f, nil
}

// diskFull reports whether an error is for want of space or quota.
func diskFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}
