//go:build !unix

package gpu

import (
	"errors"
	"os"
)

var errNoLock = errors.New("GPU leases need a Unix system")

func makeLockDir(string) error          { return errNoLock }
func openLock(string) (*os.File, error) { return nil, errNoLock }
func tryLock(*os.File) (bool, error)    { return false, errNoLock }
