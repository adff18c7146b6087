package formats

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Remove deletes a trace or run, and nothing else: a file that is no trace, or a directory that holds anything that this package does
// not write, is refused. What does not exist is no error.
func Remove(where string) error {
	info, err := os.Lstat(where)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().IsRegular() {
		if _, err := inspectSegment(directory(filepath.Dir(where)), filepath.Base(where)); err != nil {
			return fmt.Errorf("remove %s: %w", where, err)
		}
		return os.Remove(where)
	}
	lock, err := lockDirectory(where)
	if err != nil {
		return fmt.Errorf("remove %s: %w", where, bare(err))
	}
	defer lock.Close()
	es, err := os.ReadDir(where)
	if err != nil {
		return fmt.Errorf("remove %s: %w", where, err)
	}
	ours := len(es) == 0
	for _, e := range es {
		n := strings.TrimSuffix(e.Name(), temporary)
		if !e.Type().IsRegular() || !ownFile(n) {
			return fmt.Errorf("remove %s: %s in it is not part of a trace or run", where, e.Name())
		}
		ours = ours || n == traceFile || n == runFile || strings.HasPrefix(n, segmentPrefix)
	}
	if !ours {
		return fmt.Errorf("remove %s: it is no trace and no run", where)
	}
	return os.RemoveAll(where)
}

// ownFile reports whether this package writes a file of that name into a trace or run.
func ownFile(name string) bool {
	switch name {
	case traceFile, runFile, pinFile:
		return true
	}
	name = strings.TrimSuffix(name, damagedSuffix)
	if sampleKind(name) != "" {
		return true
	}
	return strings.HasPrefix(name, segmentPrefix) && (strings.HasSuffix(name, segmentSuffix) || strings.HasSuffix(name, journalSuffix))
}
