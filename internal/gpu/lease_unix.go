//go:build unix

package gpu

import (
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// makeLockDir makes the directory of locks, for every user, each of whom may remove only their own files.
func makeLockDir(dir string) error {
	err := os.Mkdir(dir, 0o777)
	if err == nil {
		return os.Chmod(dir, 0o1777|os.ModeSticky) // past the umask
	}
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return errors.New("it is not a directory")
	}
	return nil
}

// openLock opens a lock file, or makes it. It is opened without O_CREAT first: a kernel that protects sticky directories refuses that
// flag on another user's file. Links are not followed.
func openLock(path string) (*os.File, error) {
	for range 3 {
		f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW, 0)
		if !errors.Is(err, fs.ErrNotExist) {
			return f, err
		}
		f, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o666)
		if err == nil {
			return f, f.Chmod(0o666)
		}
		if !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
	}
	return nil, errors.New("it comes and goes")
}

// tryLock locks the whole file for this open file only.
func tryLock(f *os.File) (held bool, err error) {
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return true, nil
	}
	return false, err
}
