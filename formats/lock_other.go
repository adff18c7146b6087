//go:build !unix

package formats

import "io"

// lockDirectory locks nothing here.
func lockDirectory(string) (io.Closer, error) { return io.NopCloser(nil), nil }

// diskFull knows no such error here: a full disk is the end of a writer.
func diskFull(error) bool { return false }
