//go:build !unix

package enginetest

import (
	"errors"
	"os"
)

func alone(string) (*os.File, error) { return nil, errors.New("engines are started on Unix only") }
