package formats

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Store keeps the named objects of one trace: a directory, or a prefix in object storage (Mount). An object is not there before it is
// committed, and then it is there whole. Safe for concurrent use.
type Store interface {
	Create(name string) (Object, error)     // starts an object; an older one of that name stays until Commit
	Commit(o Object) error                  // makes it durable and visible, in the place of an older one
	List(prefix string) ([]Entry, error)    // committed objects whose name begins so, by name
	Open(name string) (ObjectReader, error) // errors.Is(err, fs.ErrNotExist) where there is none
	Remove(name string) error
	Below() ([]string, error) // names of the stores one level below this one, sorted
	Sub(name string) Store    // one of them
}

// Object is an object that is being written. Discard gives it up; after Commit it does nothing.
type Object interface {
	io.Writer
	Name() string
	Discard() error
}

// ObjectReader reads a committed object. Safe for concurrent use but for Close.
type ObjectReader interface {
	io.ReaderAt
	io.Closer
	Size() int64
}

// Entry is one committed object.
type Entry struct {
	Name string
	Size int64
}

// directory is the Store of a directory: objects are written as NAME.tmp, synced, renamed, and the directory is synced.
type directory string

const temporary = ".tmp"

type fileObject struct {
	*os.File
	name string
	done bool
}

func (o *fileObject) Name() string { return o.name }

func (o *fileObject) Discard() error {
	if o.done {
		return nil
	}
	o.done = true
	return errors.Join(o.File.Close(), os.Remove(o.File.Name()))
}

func (d directory) Create(name string) (Object, error) {
	f, err := os.Create(filepath.Join(string(d), name+temporary))
	if err != nil {
		return nil, err
	}
	return &fileObject{File: f, name: name}, nil
}

func (d directory) Commit(o Object) error {
	f, ok := o.(*fileObject)
	if !ok || f.done {
		return fmt.Errorf("commit %s: not an open object of this store", o.Name())
	}
	f.done = true
	if err := errors.Join(f.Sync(), f.File.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.File.Name(), filepath.Join(string(d), f.name)); err != nil {
		return err
	}
	return d.sync()
}

// sync makes renames in the directory durable.
func (d directory) sync() error {
	f, err := os.Open(string(d))
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func (d directory) List(prefix string) ([]Entry, error) {
	es, err := os.ReadDir(string(d)) // sorted by name
	if err != nil {
		return nil, err
	}
	var list []Entry
	for _, e := range es {
		if !e.Type().IsRegular() || !strings.HasPrefix(e.Name(), prefix) || strings.HasSuffix(e.Name(), temporary) {
			continue
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed since
		}
		if err != nil {
			return nil, err
		}
		list = append(list, Entry{Name: e.Name(), Size: info.Size()})
	}
	return list, nil
}

type fileReader struct {
	*os.File
	size int64
}

func (r *fileReader) Size() int64 { return r.size }

func (d directory) Open(name string) (ObjectReader, error) {
	path := filepath.Join(string(d), name)
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() { // the open of a pipe waits for a writer
		return nil, &fs.PathError{Op: "open", Path: path, Err: errors.New("it is no regular file")}
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &fileReader{File: f, size: info.Size()}, nil
}

func (d directory) Below() ([]string, error) {
	es, err := os.ReadDir(string(d))
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range es {
		if e.IsDir() && !strings.HasPrefix(e.Name(), ".") {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

func (d directory) Sub(name string) Store { return directory(filepath.Join(string(d), name)) }

func (d directory) Remove(name string) error { return os.Remove(filepath.Join(string(d), name)) }

// put writes a small object whole.
func put(s Store, name string, content []byte) error {
	o, err := s.Create(name)
	if err != nil {
		return err
	}
	if _, err := o.Write(content); err != nil {
		return errors.Join(err, o.Discard())
	}
	return s.Commit(o)
}

// get reads a small object whole.
func get(s Store, name string) ([]byte, error) {
	r, err := s.Open(name)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(io.NewSectionReader(r, 0, r.Size()))
}
