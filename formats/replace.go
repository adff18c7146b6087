package formats

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
)

// Replacement is a trace or run that is written beside the one it replaces, which stays as it is until Commit.
type Replacement struct {
	Where string // where the new one is written; of one in object storage a place on this machine

	final string
	dir   string    // of our own: it holds the new one, and for a moment the old
	lock  io.Closer // of the old one, where it is a directory: no recorder may be writing it
	alive io.Closer // of dir: says that this process has not left it
}

var (
	errNoExchange = errors.New("this file system cannot exchange two names")
	errMounted    = errors.New("it is a mount point, whose place nothing can take: name a directory in it")
)

// Replace begins to replace what stands at a name. It refuses what Removable refuses, and a trace that is being written (ErrBusy). Where
// nothing stands there Where is the name itself, and Commit, Discard and Keep do nothing. Whoever calls it calls one of them; a second call
// does nothing.
func Replace(where string) (*Replacement, error) {
	there, err := Exists(where)
	if err != nil {
		return nil, err
	}
	if !there {
		return &Replacement{Where: where, final: where}, nil
	}
	if err := Removable(where); err != nil {
		return nil, err
	}
	r := &Replacement{final: where}
	base, beside := path.Base(where), ""
	if !Remote(where) {
		if r.final, err = filepath.EvalSymlinks(where); err != nil { // a link stays, and what it names is replaced where that stands
			return nil, fmt.Errorf("replace %s: %w", where, bare(err))
		}
		base, beside = filepath.Base(r.final), filepath.Dir(r.final)
		if info, err := os.Stat(r.final); err == nil && info.IsDir() {
			if es, err := os.ReadDir(r.final); err == nil && len(es) == 0 && movable(r.final) != nil {
				return &Replacement{Where: where, final: where}, nil // there is nothing to replace
			}
			if err := movable(r.final); err != nil {
				return nil, fmt.Errorf("replace %s: %w", where, bare(err))
			}
			if r.lock, err = lockDirectory(r.final); err != nil {
				return nil, fmt.Errorf("replace %s: %w", where, bare(err))
			}
		}
	}
	if r.dir, err = os.MkdirTemp(beside, replacePrefix); err != nil { // hidden: a prefix that is read as one trace does not hold it
		return nil, fmt.Errorf("replace %s: %w", where, errors.Join(bare(err), r.Keep()))
	}
	if r.Where = filepath.Join(r.dir, base); Remote(where) {
		return r, nil
	}
	if r.alive, err = lockDirectory(r.dir); err == nil {
		err = os.Chmod(r.dir, 0o755)
	}
	if err != nil {
		return nil, fmt.Errorf("replace %s: %w", where, errors.Join(bare(err), r.Discard()))
	}
	return r, nil
}

// Replaceable says why Replace would refuse what stands at a name, or nil: for whoever has something to do first.
func Replaceable(where string) error {
	r, err := Replace(where)
	if err != nil {
		return err
	}
	return r.Discard()
}

// Commit puts the new one in the place of the old one, and removes that. Where it fails the new one is kept, and the error says where.
func (r *Replacement) Commit() error {
	if r.dir == "" {
		return nil
	}
	dir, alive := r.dir, r.alive
	if alive != nil {
		defer alive.Close() // once there is nothing left of it to be found
	}
	r.alive = nil
	if err := errors.Join(r.Keep(), r.exchange()); err != nil {
		return fmt.Errorf("replace %s: the new one is kept in %s: %w", r.final, r.Where, err)
	}
	return os.RemoveAll(dir)
}

// exchange moves the new one to its name.
func (r *Replacement) exchange() error {
	if Remote(r.final) {
		if err := Remove(r.final); err != nil {
			return err
		}
		return Publish(r.Where, r.final)
	}
	if err := Removable(r.final); err != nil { // what has come into it since
		return err
	}
	old := r.Where + replacedSuffix
	if info, err := os.Lstat(r.final); err != nil || !info.Mode().IsRegular() { // a file is replaced by the second rename alone
		switch err := exchangeNames(r.Where, r.final); {
		case err == nil:
			return errors.Join(directory(filepath.Dir(r.final)).sync(), os.Rename(r.Where, old)) // so that what is left by a kill says what it is
		case !errors.Is(err, errNoExchange) && !errors.Is(err, fs.ErrNotExist):
			return err
		}
		if err := os.Rename(r.final, old); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := os.Rename(r.Where, r.final); err != nil {
		if _, gone := os.Lstat(r.final); gone != nil {
			err = errors.Join(err, os.Rename(old, r.final))
		}
		return err
	}
	return directory(filepath.Dir(r.final)).sync()
}

// Discard gives the new one up, and leaves what stands at the name.
func (r *Replacement) Discard() error {
	if r.dir == "" {
		return nil
	}
	dir := r.dir
	return errors.Join(r.Keep(), os.RemoveAll(dir))
}

// Keep leaves both: the new one where it was written, the other at its name.
func (r *Replacement) Keep() error {
	r.dir = ""
	var err error
	for _, l := range []*io.Closer{&r.lock, &r.alive} {
		if *l != nil {
			err = errors.Join(err, (*l).Close())
			*l = nil
		}
	}
	return err
}

// SetAside moves what stands at a name of this machine aside, for something that is read while it is written, such as a recording, whose
// place cannot change. begin makes the new one: where it fails the old one is put back, else it is removed.
func SetAside(where string, begin func() error) error {
	r, err := Replace(where)
	if err != nil {
		return err
	}
	if r.dir == "" {
		return begin()
	}
	bad := func(err error) error { return fmt.Errorf("replace %s: %w", where, err) }
	if err := os.Rename(r.final, r.Where); err != nil {
		return bad(errors.Join(err, r.Discard()))
	}
	if err := begin(); err != nil {
		back := Remove(r.final)
		if back == nil {
			back = os.Rename(r.Where, r.final)
		}
		if back != nil {
			return errors.Join(err, bad(fmt.Errorf("the old one is kept in %s: %w", r.Where, back)))
		}
		return errors.Join(err, r.Discard())
	}
	return r.Discard()
}
