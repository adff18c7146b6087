package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// writeFile writes a whole file or none: what was there stays until the new one is whole. What is no file, such as a pipe or a device, is
// written into and never replaced; a link is followed.
func writeFile(path string, write func(io.Writer) error) error {
	failed := func(err error) error { return fmt.Errorf("write %s: %w", path, err) }
	info, err := os.Stat(path)
	switch {
	case err == nil && info.IsDir():
		return failed(errors.New("it is a directory"))
	case err == nil && !info.Mode().IsRegular():
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err == nil {
			err = errors.Join(write(f), f.Close())
		}
		if err != nil {
			return failed(err)
		}
		return nil
	}
	name := path
	if linked, err := filepath.EvalSymlinks(path); err == nil {
		name = linked
	}
	f, err := os.CreateTemp(filepath.Dir(name), ".shadowtape-*")
	var p *fs.PathError
	if errors.As(err, &p) { // it names the temporary file
		return failed(p.Err)
	}
	if err != nil {
		return failed(err)
	}
	defer os.Remove(f.Name()) // after the rename there is nothing of that name
	err = errors.Join(write(f), f.Chmod(0o644), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		return failed(err)
	}
	return nil
}

// isFile reports whether a file or directory is at path, and not a pipe or a device, which may be written into.
func isFile(path string) bool {
	info, err := os.Stat(path)
	if err != nil {
		_, err = os.Lstat(path) // a link to nowhere is in the way too
		return err == nil
	}
	return info.Mode().IsRegular() || info.IsDir()
}
