package formats

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
)

// mounts are the kinds of places other than directories, by the scheme that their names begin with.
var mounts sync.Map // string: func(where string) (Store, error)

// Mount makes names that begin with scheme, such as "s3" of "s3://bucket/prefix", stand for places in stores that open makes: a trace or
// run is then a prefix of objects in place of a directory of files. open is given the prefix's whole name without a slash at its end. The
// program mounts what it can read before it opens anything; a scheme that is mounted again has the later meaning.
func Mount(scheme string, open func(where string) (Store, error)) { mounts.Store(scheme, open) }

// Remote reports whether a name stands for a place that is no directory or file of this machine: it begins with a scheme.
func Remote(where string) bool {
	scheme, _, ok := strings.Cut(where, "://")
	return ok && scheme != "" && strings.Trim(scheme, "abcdefghijklmnopqrstuvwxyz0123456789") == ""
}

// place is the store of a name, and the object in it where the name is that of one file; "" stands for the whole store.
func place(where string) (s Store, file string, err error) {
	if !Remote(where) {
		info, err := os.Stat(where)
		switch {
		case err != nil:
			return nil, "", err
		case info.IsDir():
			return directory(where), "", nil
		}
		return directory(filepath.Dir(where)), filepath.Base(where), nil
	}
	scheme, dir, _ := strings.Cut(where, "://")
	dir = strings.TrimRight(dir, "/")
	if strings.HasSuffix(dir, segmentSuffix) {
		file = path.Base(dir)
		dir = strings.TrimRight(strings.TrimSuffix(dir, file), "/")
	}
	open, ok := mounts.Load(scheme)
	if !ok {
		return nil, "", fmt.Errorf("this build knows no storage named %s://", scheme)
	}
	s, err = open.(func(string) (Store, error))(scheme + "://" + dir)
	return s, file, err
}

// Place is the store of a name: of a directory that exists, or of a prefix in storage that is mounted (Mount).
func Place(where string) (Store, error) {
	s, file, err := place(where)
	if err == nil && file != "" {
		err = errors.New("it names one file")
	}
	if err != nil {
		return nil, fmt.Errorf("look at %s: %w", where, bare(err))
	}
	return s, nil
}

// Runs names the runs that a name stands for: itself, or those directly below it, by name, where it is a place that holds runs.
func Runs(where string) ([]string, error) {
	s, err := Place(where)
	if err != nil {
		return nil, err
	}
	if there, err := occupied(s, runFile); err != nil {
		return nil, fmt.Errorf("look at %s: %w", where, bare(err))
	} else if there {
		return []string{where}, nil
	}
	below, err := s.Below()
	if err != nil {
		return nil, fmt.Errorf("look at %s: %w", where, bare(err))
	}
	var runs []string
	for _, n := range below {
		if there, err := occupied(s.Sub(n), runFile); err != nil {
			return nil, fmt.Errorf("look at %s: %w", where, bare(err))
		} else if there {
			runs = append(runs, strings.TrimRight(where, "/")+"/"+n)
		}
	}
	if len(runs) == 0 {
		return nil, fmt.Errorf("look at %s: it is no run and holds none", where)
	}
	return runs, nil
}

// Exists reports whether something stands at a name already: a file, a directory, or objects below a prefix.
func Exists(where string) (bool, error) {
	if !Remote(where) {
		_, err := os.Lstat(where)
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil
		}
		return err == nil, err
	}
	s, file, err := place(where)
	if err == nil {
		var there bool
		if there, err = occupied(s, file); err == nil {
			return there, nil
		}
	}
	return false, fmt.Errorf("look at %s: %w", where, bare(err))
}

// occupied reports whether a store has an object, or any where file is "".
func occupied(s Store, file string) (bool, error) {
	if file == "" {
		es, err := s.List("")
		return len(es) > 0, err
	}
	r, err := s.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, r.Close()
}
