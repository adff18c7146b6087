package formats

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// exchangeNames makes two names change places in one step: at no moment does either stand for nothing. errNoExchange: the file system
// cannot. Tests put one that cannot in its place.
var exchangeNames = func(a, b string) error {
	err := unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOTSUP) {
		return errNoExchange
	}
	return err
}

// movable says why another directory cannot take the place of this one, or nil: what a rename would be refused for when the work is done.
func movable(dir string) error {
	var x unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, dir, 0, unix.STATX_BASIC_STATS, &x)
	if err == nil && x.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT != 0 && x.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0 {
		return errMounted
	}
	return movedBy(dir, os.Geteuid())
}

// movedBy is movable by what directories allow a user.
func movedBy(dir string, user int) error {
	own, err := os.Stat(dir)
	if err != nil {
		return err
	}
	above, err := os.Stat(filepath.Dir(dir))
	if err != nil {
		return err
	}
	a, ok := above.Sys().(*syscall.Stat_t)
	o, also := own.Sys().(*syscall.Stat_t)
	if !ok || !also {
		return nil
	}
	if a.Dev != o.Dev {
		return errMounted
	}
	if user == 0 {
		return nil
	}
	if above.Mode()&fs.ModeSticky != 0 && int(a.Uid) != user && int(o.Uid) != user {
		return fmt.Errorf("it is another user's, in a directory where only owners rename: %w", fs.ErrPermission)
	}
	if unix.Access(dir, unix.W_OK) != nil {
		return fmt.Errorf("it may not be moved: %w", fs.ErrPermission)
	}
	return nil
}
